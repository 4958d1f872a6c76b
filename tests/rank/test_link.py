"""How rank processes end: with their daemon, by their own fault, or not at all."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import driver
import msgspec
import pytest
from driver import GREEDY, Host, Shape, Worker, host, parts_of
from peer import PATIENCE_S, Peer

from vertumnusd.messages import Begin, FromRank, Open, RankFault, Release, Step
from vertumnusd.rank.link import Link

pytestmark = pytest.mark.ranks


@pytest.fixture
def unstarted() -> Iterator[Peer]:
    with ExitStack() as stack:
        peer = Peer("vertumnusd.rank", [], FromRank)
        stack.callback(peer.kill)
        yield peer


def fault(peer: Peer) -> str:
    """The reason in the rank's last message; it ends with status 1."""
    reason = peer.receive(RankFault).reason
    assert peer.process.wait(PATIENCE_S) == 1
    return reason


def leave_amid_a_step(worker: Worker) -> None:
    """Only the worker's first rank gets a step: it waits for the other in the first layer."""
    run = worker.reserve([1, 2, 3, 4, 5])
    worker.begin(run)
    worker.peers[0].send(Step(worker.term, worker.epoch, 99, 0, 4, parts_of(run)))


@pytest.fixture(scope="module")
def expendable(checkpoint: Path) -> Iterator[Host]:
    """Ranks that tests take away and break."""
    with host(checkpoint, Shape(ranks=4, cp_degrees=(1,), decode_ranks=2)) as running:
        yield running


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (msgspec.msgpack.encode({"type": "Abscond"}), "Invalid value 'Abscond'"),
        (b"\xc1", "malformed"),
        (msgspec.msgpack.encode(Open("r", 1, GREEDY, ())), "Open sent to a prefill rank"),
    ],
)
def test_nonsense_ends_a_prefill_rank_with_its_name(
    expendable: Host, frame: bytes, reason: str
) -> None:
    peer = expendable.prefill.pop()
    peer.send_raw(frame)
    assert reason in fault(peer)


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (msgspec.msgpack.encode({"type": "Open", "request": 7}), "Expected `str`, got `int`"),
        (msgspec.msgpack.encode(Release("r")), "Release sent to a decode rank"),
    ],
)
def test_nonsense_ends_a_decode_rank_with_its_name(
    expendable: Host, frame: bytes, reason: str
) -> None:
    peer = expendable.decode.pop()
    peer.send_raw(frame)
    assert reason in fault(peer)


def test_a_prefix_that_is_not_held_ends_the_rank(expendable: Host) -> None:
    worker = expendable.worker(1)
    run = worker.reserve([1] * 9)
    worker.send(
        Begin(1, worker.epoch, run.request, b"\1\0\0\0", 8, run.block_ids, 0, 1, 0, GREEDY, 0)
    )
    assert "block 0 of 2 cached is not held" in fault(worker.peers[0])


def test_a_message_to_a_daemon_that_is_gone_ends_the_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "_exit", sys.exit)
    ours, theirs = socket.socketpair()
    theirs.close()
    with ours, pytest.raises(SystemExit) as end:
        Link(ours).send(RankFault(0, "nobody will read this"))
    assert end.value.code == 0


def test_the_start_must_come_first(unstarted: Peer) -> None:
    unstarted.send(Release("r"))
    assert "RankStart must come first, not Release" in fault(unstarted)


def test_a_start_that_fails_says_why(expendable: Host, unstarted: Peer) -> None:
    unstarted.send(expendable.starts[0])  # none of its descriptors is open over there
    assert "OSError" in fault(unstarted)


def test_signals_are_for_the_daemon_but_its_end_is_the_ranks_end(checkpoint: Path) -> None:
    with host(checkpoint, Shape()) as serving:
        ranks = (*serving.prefill, *serving.decode)
        for peer in ranks:
            peer.process.send_signal(signal.SIGINT)
            peer.process.send_signal(signal.SIGTERM)
        worker = serving.worker(2)
        assert serving.generate(worker.prefill([1, 2, 3]), 2, 3)
        leave_amid_a_step(worker)
        assert [peer.end() for peer in ranks] == [0, 0, 0]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_losing_a_peer_ends_the_others_of_its_worker(checkpoint: Path, number: int) -> None:
    with host(checkpoint, Shape(collective_timeout_s=2.0)) as serving:
        leave_amid_a_step(serving.worker(2))
        serving.prefill[1].process.send_signal(number)
        assert "CollectiveError" in fault(serving.prefill[0])
        assert serving.decode[0].process.poll() is None


def test_ranks_die_with_a_daemon_that_is_killed(checkpoint: Path) -> None:
    """Even when some other process has inherited the daemon's ends of the sockets."""
    daemon = subprocess.Popen(
        [sys.executable, driver.__file__, str(checkpoint)], stdout=subprocess.PIPE
    )
    assert daemon.stdout is not None
    with daemon:
        heir, *pids = (int(pid) for pid in daemon.stdout.readline().split())
        try:
            assert len(pids) == 4
            assert all(alive(pid) for pid in pids)
            daemon.kill()
            deadline = time.monotonic() + PATIENCE_S
            while any(alive(pid) for pid in pids):
                assert time.monotonic() < deadline, "ranks outlive their daemon"
                time.sleep(0.02)
            assert alive(heir)
        finally:
            os.kill(heir, signal.SIGKILL)


def alive(pid: int) -> bool:
    """Whether the process runs; one that waits to be reaped does not."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status.rpartition(")")[2].split()[0] != "Z"
