"""``vertumnusd reproduce --live``: a small load on real paced ranks beside the simulator."""

from pathlib import Path

import numpy as np
import pytest
import trio
import trio.testing

from vertumnusd.live.cluster import live_cluster
from vertumnusd.live.experiment import _compare, live_settings, load_of, loads
from vertumnusd.live.load import IDLE_S, Connection, Connections, Replayed, prompt, replay
from vertumnusd.live.run import Load
from vertumnusd.simulate.conditions import Conditions
from vertumnusd.simulate.generate import Phase, generate
from vertumnusd.simulate.outcome import Outcome
from vertumnusd.simulate.traces import Arrival, arrivals

CONDITIONS = Conditions(ranks=4, cp_degrees=(1, 2, 4), noise_sigma=0.0, outside_s=0.0)


def test_equal_blocks_have_equal_tokens_and_tails_differ() -> None:
    first, second = (prompt(n, Arrival(0.0, 1030, (7, 8), 1.0)).decode() for n in (0, 1))
    ids = [body.partition('"prompt":[')[2].rstrip("]}").split(",") for body in (first, second)]
    assert [len(each) for each in ids] == [1030, 1030]
    assert ids[0][:1024] == ids[1][:1024]
    assert ids[0][1024:] != ids[1][1024:]


def test_a_phase_is_found_by_its_time() -> None:
    load = Load("two", (Phase(10.0, 1.0, "short"), Phase(5.0, 1.0, "long")))
    assert [load.phase_of(at_s) for at_s in (0.0, 9.9, 10.0, 14.9, 15.1)] == [0, 0, 1, 1, 1]


def test_phases_of_a_load_are_so_many_windows_long() -> None:
    swing, six = loads(CONDITIONS, 2.0)
    assert [phase.seconds for phase in swing.phases] == [4.0, 20.0, 4.0, 20.0]
    assert [phase.seconds for phase in six.phases] == [10.0] * 6


def test_a_load_asks_for_its_share_of_what_the_pool_can_do() -> None:
    half, whole = (load_of("", ((1.0, share, "short"),), CONDITIONS, 1.0) for share in (0.5, 1.0))
    assert 0 < half.phases[0].rate == whole.phases[0].rate / 2


def test_a_request_that_failed_counts_on_neither_side() -> None:
    load = Load("two", (Phase(10.0, 1.0, "short"), Phase(10.0, 1.0, "long")))
    drawn = [Arrival(at_s, 1024, (), 1.0) for at_s in (1.0, 2.0, 11.0)]
    simulated = Outcome.empty("ours", 8, [1024] * 3)
    simulated.ttft_s[:] = 1.0, 7.0, 3.0
    replayed = Replayed([2.0, float("nan"), 4.0], [1] * 3, [0] * 3)
    run = _compare(load, drawn, "8CP1", False, simulated, replayed, [])
    assert (run.requests, run.failed) == (3, 1)
    assert (run.live_s, run.simulated_s) == (3.0, 2.0)
    assert run.phases == ((2.0, 1.0), (4.0, 3.0))


@pytest.mark.trio
@pytest.mark.parametrize(("head", "kept"), [(b"", True), (b"Connection: close\r\n", False)])
async def test_a_connection_is_used_again_unless_the_node_closes_it(
    head: bytes, kept: bool, tmp_path: Path
) -> None:
    stream, node = trio.testing.memory_stream_pair()
    await node.send_all(b"HTTP/1.1 200 OK\r\n" + head + b"Content-Length: 2\r\n\r\n{}")
    connections, connection = Connections(tmp_path), Connection(stream)
    assert await connection.request("GET", "/v1/cluster") == (200, b"{}")
    await connections.give_back(connection)
    if kept:
        assert await connections.take() is connection
        return
    with pytest.raises(trio.ClosedResourceError):
        await stream.send_all(b"x")


@pytest.mark.trio
async def test_connections_that_the_node_may_have_closed_by_now_are_used_no_more(
    tmp_path: Path,
) -> None:
    (stream, _), connections = trio.testing.memory_stream_pair(), Connections(tmp_path / "none")
    connection = Connection(stream)
    connection.since -= IDLE_S + 1
    connections._idle.append(connection)
    with pytest.raises(FileNotFoundError):  # of a new one
        await connections.take()
    with pytest.raises(trio.ClosedResourceError):
        await stream.send_all(b"x")


@pytest.mark.ranks
def test_every_request_of_a_load_is_answered_live() -> None:
    drawn = arrivals(generate((Phase(4.0, 8.0, "short"),), 1), 0, 0.0)
    settings = live_settings("2CP2", True, CONDITIONS, 5.0)
    with live_cluster(settings, CONDITIONS.profile, pace=0.2) as cluster:
        replayed = replay(cluster, drawn)
    assert np.isfinite(replayed.ttft_s).all()
    assert set(replayed.degree) <= {1, 2, 4}
    assert sum(replayed.cached_tokens) > 0
