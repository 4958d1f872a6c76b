"""How windows add up to a signal; each window's own verdict is in test_paper.py."""

from __future__ import annotations

from vertumnusd.control.demand import Demand, Signal, Window
from vertumnusd.control.fleet import Worker
from vertumnusd.control.settings import ReconfigurationSettings

WORKERS = [Worker(2, 0), Worker(2, 2)]  # κ = 10 s each: split above 18 s, merge below 10 s


def demand(**changed: float) -> Demand:
    values = {"hold_windows": 3, "min_requests": 25, **changed}
    return Demand(ReconfigurationSettings(window_s=10, capacity_share=1, **values))


def judge(demand: Demand, demand_s: float, requests: int = 10, error_s: float = 0.0) -> Signal:
    window = Window(requests=requests, demand_s=demand_s, squares_s2=error_s**2)
    return demand.judge(window, WORKERS)


def test_a_signal_is_proven_when_it_held_for_several_windows():
    windows = demand()
    signals = [judge(windows, 19) for _ in range(3)]
    assert [signal.held for signal in signals] == [1, 2, 3]
    assert [signal.proven for signal in signals] == [False, False, True]


def test_another_signal_in_between_starts_over():
    windows = demand()
    proven = [judge(windows, demand_s).proven for demand_s in (19, 19, 15, 19, 19, 19)]
    assert proven == [False, False, False, False, False, True]


def test_few_requests_prove_nothing_however_long_it_held():
    windows = demand()
    assert not any(judge(windows, 5, requests=1).proven for _ in range(20))
    assert judge(windows, 5, requests=5).proven


def test_a_demand_no_further_away_than_chance_proves_nothing_until_it_held_for_longer():
    # 2 s above the threshold of 18 s. Its error is 3 s in one window, 3·√n in n that are 2·n above:
    # two of them away after (2·3/2)² = 9 windows
    windows = demand(confidence=2, hold_windows=1)
    proven = [judge(windows, 20, requests=99, error_s=3).proven for _ in range(9)]
    assert proven == [False] * 8 + [True]


def test_a_load_of_few_long_requests_is_proven_as_soon_as_one_of_many_short_ones():
    # 30 of 2 s, or 6,000 of 0.01 s: 60 s in a window that has room for 18 s
    windows = demand(hold_windows=1)
    assert judge(windows, 60, requests=30, error_s=(30 * 2**2) ** 0.5).proven
    # 5 of 4 s are 20 s by chance as often as not
    windows = demand(hold_windows=1, min_requests=1)
    assert not judge(windows, 20, requests=5, error_s=(5 * 4**2) ** 0.5).proven


def test_a_shift_of_long_requests_must_not_be_chance_either():
    def signal(requests: int) -> Signal:
        windows = demand(hold_windows=1)
        for long in (0.2, 0.3):
            window = Window(requests=requests, demand_s=15, long_requests=round(long * requests))
            found = windows.judge(window, WORKERS)
        return found

    # √(0.2·0.8/n + 0.3·0.7/n) twice is 0.1 at n = 148
    assert (signal(140).verdict, signal(140).proven) == ("merge", False)
    assert signal(160).proven


def test_an_empty_window_asks_for_a_merge_that_is_never_proven():
    windows = demand(hold_windows=1, min_requests=1)
    assert judge(windows, 0, requests=0) == Signal(
        "merge", "demand below the lower threshold", 1, False
    )


def test_after_a_change_of_the_composition_everything_is_new():
    windows = demand()
    for _ in range(2):
        judge(windows, 19)
    windows.forget()
    assert judge(windows, 19).held == 1


def test_steadiness_is_measured_against_the_window_in_which_demand_changed():
    windows = demand(steady_share=0.1)
    reasons = [judge(windows, demand_s).reason for demand_s in (12, 13.1, 12.1, 14.4, 14.5)]
    # 13.1 is within 10 % of 12 (13.2); 14.4 is not, and 14.5 is within 10 % of 14.4
    changed, steady = "demand changes", "demand and long requests steady"
    assert reasons == [changed, steady, steady, changed, steady]


def test_no_demand_is_lost_between_windows():
    windows = demand()
    windows.arrive(1.0, 5)
    first = windows.close()
    windows.arrive(2.0, 5)
    assert (first.demand_s, windows.close().demand_s) == (1.0, 2.0)
