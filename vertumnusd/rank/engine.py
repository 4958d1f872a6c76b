"""The engine thread of a prefill rank: the model, and the requests whose steps are under way.

A failed step is the request's own affair: it is reported, the request waits for its Discard, and
the others go on. (A failed collective is not: it ends the rank.) When a step fails on one rank of a
worker, the others have computed with KV that never came, without knowing, and may have published
it. The Discard which follows every failure takes that back; see ``Cache.retract``.
"""

from __future__ import annotations

import os
import time

from torch import Tensor
from vertumnus_kernels.attention import implementation

from vertumnusd.messages import (
    Adopt,
    Adopted,
    Park,
    Parked,
    RankStart,
    Ready,
    Step,
    StepDone,
    StepFailed,
)
from vertumnusd.rank.admission import Admission
from vertumnusd.rank.assemble import open_pools, open_prefill
from vertumnusd.rank.cache import Cache
from vertumnusd.rank.device import open_device
from vertumnusd.rank.kv_copy import PoolCopier
from vertumnusd.rank.link import Link
from vertumnusd.rank.prefill import PrefillError
from vertumnusd.rank.sampling import draw


class Engine:
    """Runs the commands of one prefill rank, in the order of the calls."""

    def __init__(self, start: RankStart, link: Link, cache: Cache) -> None:
        self._start = start
        self._link = link
        self._cache = cache
        self._adopted: Adopt | None = None
        self._admissions: dict[str, Admission] = {}
        self._failures: dict[str, str] = {}  # request → why, until its Discard
        # Only this thread is pinned; the control thread answers from any core.
        if start.core >= 0:
            os.sched_setaffinity(0, {start.core})
        device = open_device(start)
        pools = open_pools(start, device, own=True)
        self.copier = PoolCopier(pools, start.rank)
        self._prefill = open_prefill(start, pools, device)
        attention = implementation(device.type).name
        link.send(Ready(start.rank, start.incarnation, os.getpid(), attention))

    def adopt(self, adopt: Adopt) -> None:
        """Switch geometry; what was begun in the old one is gone. A repeat changes nothing."""
        if adopt != self._adopted:
            self._discard_all()
            self._prefill.adopt(adopt.degree, adopt.base)
            self._adopted = adopt
        self._link.send(Adopted(self._start.rank, adopt.term, adopt.epoch, adopt.degree))

    def park(self, park: Park) -> None:
        """Stand still until the next Adopt: no step is running, and none will be."""
        self._discard_all()
        self._adopted = None
        self._link.send(Parked(self._start.rank, park.term, park.epoch))

    def begin(self, admission: Admission) -> None:
        """Take a request on. If it cannot run, its steps will say why."""
        request = admission.begin.request
        try:
            self._prefill.begin(admission.begin, admission.writable)
        except PrefillError as error:
            self._failures[request] = str(error)
        else:
            self._admissions[request] = admission

    def step(self, step: Step) -> None:
        """Run one step and report it, each of its failures first."""
        started = time.perf_counter()
        result = self._prefill.run(step)
        failures = dict(result.failures)
        drawn = {}
        for request, logits_V in result.logits.items():
            try:
                drawn[request] = self._draw(request, logits_V)
            except FloatingPointError as error:
                failures[request] = str(error)
        for request, reason in failures.items():
            self._fail(step, request, reason)
        if step.last_layer == self._start.model.layers:
            for part in step.parts:
                if part.request not in failures:
                    self._finish(part.request)
        elapsed_s = time.perf_counter() - started
        self._link.send(StepDone(self._start.rank, step.epoch, step.seq, elapsed_s, drawn))

    def discard(self, request: str) -> None:
        """Forget the request; unknown ones are ignored."""
        self._admissions.pop(request, None)
        self._failures.pop(request, None)
        self._prefill.discard(request)

    def _discard_all(self) -> None:
        for request in self._admissions.keys() | self._failures.keys():
            self.discard(request)

    def _draw(self, request: str, logits_V: Tensor) -> int:
        begin = self._admissions[request].begin
        return draw(logits_V, begin.sampling, begin.position)

    def _fail(self, step: Step, request: str, reason: str) -> None:
        """The first reason stands until the Discard."""
        reason = self._failures.get(request, reason)
        self.discard(request)
        self._failures[request] = reason
        self._link.send(StepFailed(self._start.rank, step.epoch, step.seq, request, reason))

    def _finish(self, request: str) -> None:
        """Its last layer is done."""
        reservation = self._admissions[request].reservation
        if reservation is not None:
            self._cache.publish(reservation)
        self.discard(request)
