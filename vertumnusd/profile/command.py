"""``vertumnusd profile``: measure a model on this machine and write its profile and picture.

The flow: check everything that can be wrong, start the ranks, prefill the quarry, tell how long it
will take, measure the grid, fit, measure the requests of a load for κ_C, probe the exchange, write.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from vertumnusd.config import ConfigError, ModelConfig, load_profile
from vertumnusd.profile.arguments import Wanted, wanted
from vertumnusd.profile.capacity import Served, capacity_share
from vertumnusd.profile.chart import draw, has_matplotlib
from vertumnusd.profile.fitting import choose
from vertumnusd.profile.grid import Point, lengths, points
from vertumnusd.profile.host import Host, HostError, StartError, running_host
from vertumnusd.profile.load import longest_in_time, mix, rows_of
from vertumnusd.profile.progress import Progress, duration
from vertumnusd.profile.report import Findings, comment_of, profile_of, tables
from vertumnusd.profile.session import Estimate, measure
from vertumnusd.profile.worker import Worker
from vertumnusd.profile_file import write_profile
from vertumnusd.simulate.traces import TraceRow

EXIT_DONE, EXIT_FAULT, EXIT_NO_RANKS = 0, 1, 4
WARM_UP_TOKENS = 64
WARM_UPS = 2
PATIENCE_S = 1800.0  # longest wait for one prefill, or for the probes
ROUNDS = 3
LENGTHS_PER_OCTAVE = 1


def profile(arguments: argparse.Namespace) -> int:
    """Returns the exit status; raises ConfigError for what cannot be profiled."""
    asked = wanted(arguments)
    rows = rows_of(asked.load)
    progress = Progress(sys.stderr)
    _warn(asked, progress)
    try:
        with running_host(asked.config, asked.model, asked.path, progress.show) as host:
            findings = _find(host, asked, rows, progress)
    except StartError as error:
        progress.say(f"vertumnusd: ranks failed to start: {error}")
        return EXIT_NO_RANKS
    except HostError as error:
        progress.say(f"vertumnusd: {error}")
        return EXIT_FAULT
    print(tables(findings))
    _write(findings)
    return EXIT_DONE


def _warn(asked: Wanted, progress: Progress) -> None:
    cores, ranks = len(os.sched_getaffinity(0)), asked.config.cluster.ranks
    if ranks > cores:
        progress.say(f"{ranks} ranks share {cores} cores: times of the larger degrees say little")
    if not has_matplotlib():
        progress.say("no picture: it needs matplotlib, pip install 'vertumnusd[plots]'")


def _find(host: Host, asked: Wanted, rows: Sequence[TraceRow], progress: Progress) -> Findings:
    degrees = asked.config.cluster.cp_degrees
    worker = Worker(host, PATIENCE_S)
    assumed, _ = load_profile(ModelConfig(dtype=asked.model.dtype), asked.model.name)
    estimate = Estimate(assumed)
    _prepare(worker, asked, estimate, progress)
    chosen = _grid(asked, estimate)
    longest = chosen[-1].input_tokens
    if longest < asked.longest:
        progress.say(f"there is no time for {asked.longest} tokens: {longest} are the longest")
    round_s = estimate.seconds(chosen)
    budget_s = asked.budget_s or ROUNDS * round_s
    progress.say(
        f"{len(chosen)} points up to {longest} tokens, a round of them takes"
        f" {duration(round_s)}: at most {duration(max(round_s, budget_s))} in all"
        + ("" if asked.quick else "; --quick takes less than two minutes")
    )
    samples = measure(worker, chosen, estimate, budget_s, progress).all()
    best, judged = choose([sample.measurement for sample in samples])
    findings = Findings(asked, samples, best, judged)
    progress.say(f"{findings.quiet} of {len(samples)} points were measured undisturbed")

    in_time = longest_in_time(best.prefill_time, max(degrees), asked.slo, longest)
    if in_time:
        block = asked.config.cache.block_tokens
        findings.mix = mix(asked.load, rows, asked.load_requests, in_time, block)
        findings.capacity = _capacity(worker, findings, estimate, progress)
    progress.show("measuring exchanges and copies")
    findings.probed = host.probe(PATIENCE_S)
    progress.wipe()
    return findings


def _prepare(worker: Worker, asked: Wanted, estimate: Estimate, progress: Progress) -> None:
    """Warm every degree up, and make the prefixes."""
    for degree in asked.config.cluster.cp_degrees:
        worker.adopt(degree)
        for _ in range(WARM_UPS):
            worker.prefill(WARM_UP_TOKENS, 0)
    progress.show(f"prefilling {asked.longest} tokens to take prefixes from")
    dug = worker.dig(asked.longest)
    estimate.learn(Point(degree, asked.longest, 0), dug.elapsed_s)


def _grid(asked: Wanted, estimate: Estimate) -> list[Point]:
    """All points; where the time is limited, as long as a round of them fits in half of it."""
    longest = asked.longest
    while True:
        inputs = lengths(longest, LENGTHS_PER_OCTAVE)
        degrees, block = asked.config.cluster.cp_degrees, asked.config.cache.block_tokens
        chosen = points(degrees, inputs, asked.shares, block)
        fits = asked.budget_s is None or estimate.seconds(chosen) <= asked.budget_s / 2
        if fits or len(inputs) <= 3:
            return sorted(chosen, key=lambda point: (point.input_tokens, point))
        longest //= 2


def _capacity(
    worker: Worker, findings: Findings, estimate: Estimate, progress: Progress
) -> dict[int, float]:
    """κ over the window of every degree, from the load's requests measured once each."""
    asked, load, predict_s = findings.wanted, findings.mix, findings.best.prefill_time.predict_s
    assert load is not None
    degrees = asked.config.cluster.cp_degrees
    progress.say(
        f"capacity: {len(load.requests)} requests of {load.name}, {load.mean_tokens:.0f} tokens"
        " in the mean, at every degree"
    )
    every = sorted({Point(degree, *request) for degree in degrees for request in load.requests})
    samples = measure(worker, every, estimate, 0.0, progress)
    shares = {}
    for degree in degrees:
        served = [
            Served(
                uncached + cached,
                predict_s(degree, uncached, cached),
                samples.sample(Point(degree, uncached, cached)).elapsed_s,
            )
            for uncached, cached in load.requests
        ]
        share = capacity_share(served, asked.config.cluster.ranks // degree, asked.slo)
        if share > 0:
            shares[degree] = share
    return shares


def _write(findings: Findings) -> None:
    out, model = findings.wanted.out, findings.wanted.model
    try:
        write_profile(out, profile_of(findings), comment_of(findings))
        print(f"\nprofile written to {out}")
        if has_matplotlib():
            picture = out.with_suffix(".png")
            draw(picture, f"{model.name}, {model.dtype}", findings.samples, findings.best)
            print(f"picture written to {picture}")
    except OSError as error:
        raise ConfigError(f"--out {out}: {error.strerror or error}") from error
