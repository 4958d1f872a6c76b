"""What a placement tells of the workers that it was compared with."""

from __future__ import annotations

from collections.abc import Iterable

from vertumnusd.control.fleet import Worker
from vertumnusd.control.placed import OTHERS_MAX, Placement
from vertumnusd.control.placement import Kind, Price, Terms
from vertumnusd.control.request import Request
from vertumnusd.messages import Placed, Submit

REQUEST = Request(Submit("a", 0, 100, b"", 1), 0, 0.0, 7, 0)


def terms(base: int, cost_s: float, at_least: bool = False) -> Terms:
    """1 s of queue, 0.5 s of delay."""
    kind = Kind(1, 16 * base, [])
    return Terms(cost_s, 1.0, 0.5, Price(2.0, 0.25, 2.25), kind, Worker(1, base), at_least)


def placed(chosen: Terms, others: Iterable[Terms]) -> Placed:
    return Placement(chosen, [chosen, *others]).placed(1, 2, REQUEST)


def test_the_others_stand_in_order_of_j_without_the_chosen_one():
    told = placed(terms(0, 3.0), [terms(1, 9.0, at_least=True), terms(2, 4.0)])
    assert told.worker == "CP1[0]"
    assert [(o.worker, o.cost_s, o.at_least) for o in told.others] == [
        ("CP1[2]", 4.0, False),
        ("CP1[1]", 9.0, True),
    ]
    first = told.others[0]
    assert (first.cached_tokens, first.queue_s, first.delay_s, first.gpu_price_s) == (
        32,
        1.0,
        0.5,
        0.25,
    )


def test_of_many_others_the_cheapest_are_told():
    told = placed(terms(0, 1.0), [terms(n, float(50 - n)) for n in range(1, 40)])
    assert [o.cost_s for o in told.others] == [11.0 + n for n in range(OTHERS_MAX)]


def test_with_a_copy_the_best_without_one_is_among_the_others():
    plain, fetching = terms(1, 4.0), terms(0, 3.0)
    told = Placement(fetching, [plain], transfer=8).placed(1, 2, REQUEST)
    assert (told.worker, told.transfer, told.others[0].worker) == ("CP1[0]", 8, "CP1[1]")
