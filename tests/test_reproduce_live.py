"""``vertumnusd reproduce --live``: a small load on real paced ranks beside the simulator."""

import numpy as np
import pytest

from vertumnusd.live.cluster import live_cluster
from vertumnusd.live.experiment import live_settings, loads
from vertumnusd.live.load import prompt, replay
from vertumnusd.live.run import Load
from vertumnusd.simulate.conditions import Conditions
from vertumnusd.simulate.generate import Phase, generate
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


def test_every_load_asks_for_less_than_the_pool_can_do() -> None:
    for load in loads(CONDITIONS, 1.0):
        assert all(phase.seconds == 5.0 and phase.rate > 0 for phase in load.phases)


@pytest.mark.ranks
def test_every_request_of_a_load_is_answered_live() -> None:
    drawn = arrivals(generate((Phase(4.0, 8.0, "short"),), 1), 0, 0.0)
    settings = live_settings("2CP2", True, CONDITIONS, 5.0)
    with live_cluster(settings, CONDITIONS.profile, pace=0.2) as cluster:
        replayed = replay(cluster, drawn)
    assert np.isfinite(replayed.ttft_s).all()
    assert set(replayed.degree) <= {1, 2, 4}
    assert sum(replayed.cached_tokens) > 0
