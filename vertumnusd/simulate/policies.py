"""The policies that are compared, each with the parameters it is tuned by.

===============  ================================================================
ours             the controller's policy, on KV homes
paper            the published policy, nothing more: KV owned at the worker's degree
mix              the published placement on the best fixed composition
homo             the published placement on workers of one degree; one policy for each degree
static           two fixed pools, split by a length threshold
round-robin,     what routers do that know neither prefixes nor degrees
least-loaded
cache-aware      SGLang router's rule
overlap-cost     Dynamo's rule
bound            no policy: every request alone at its best degree, an endless cache
===============  ================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

from vertumnusd.control.fleet import Worker, parse_composition
from vertumnusd.simulate.bound import lower_bound
from vertumnusd.simulate.choice import Choice, adaptive
from vertumnusd.simulate.conditions import Conditions
from vertumnusd.simulate.controlled import run_controlled
from vertumnusd.simulate.light import LightCluster, Router
from vertumnusd.simulate.outcome import Outcome
from vertumnusd.simulate.routers import ByCost, CacheAware, LeastLoaded, OverlapCost, RoundRobin
from vertumnusd.simulate.traces import Arrival

MIXES_MAX = 8  # fixed mixes of two degrees that are tried
THRESHOLDS = (4_096, 8_192, 16_384, 32_768)
CACHE_THRESHOLDS = (0.3, 0.5, 0.7)
IMBALANCES = (1, 4, 16)
RELATIVE_IMBALANCE = 1.5
OVERLAP_WEIGHTS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 64.0)


Run = Callable[[Choice, Sequence[Arrival], Conditions], Outcome]


@dataclass(frozen=True, slots=True)
class Policy:
    """``candidates`` are what it is tuned over. ``proxy`` is a quicker policy that is tuned in its
    place; ``cost`` is what a run takes, relative to the quickest."""

    candidates: Callable[[str, Conditions], list[Choice]]
    run: Run
    proxy: str = ""
    cost: float = 1.0


def run_policy(choice: Choice, arrivals: Sequence[Arrival], conditions: Conditions) -> Outcome:
    return policy(choice.policy).run(choice, arrivals, conditions)


def policy(name: str) -> Policy:
    """Of ``homo-2`` and the like, the one of all homogeneous pools. Raises KeyError."""
    return POLICIES["homo" if name.startswith("homo-") else name]


def names(homo_degrees: Sequence[int]) -> list[str]:
    """Every policy of a comparison, in the order of reports."""
    others = [name for name in POLICIES if name != "homo"]
    return others[:3] + [f"homo-{degree}" for degree in homo_degrees] + others[3:]


# --- candidates


def _mixes(name: str, conditions: Conditions) -> list[Choice]:
    return [Choice(name, mix) for mix in compositions(conditions.degrees, conditions.ranks)]


def _published(name: str, conditions: Conditions) -> list[Choice]:
    return [Choice(name, mix) for mix in compositions(conditions.cp_degrees, conditions.ranks)]


def _adaptive(name: str, conditions: Conditions) -> list[Choice]:
    return [adaptive(name, mix) for mix in compositions(conditions.degrees, conditions.ranks)]


def compositions(degrees: Sequence[int], ranks: int) -> list[str]:
    """Homogeneous and mixed ones of these degrees: at most ``MIXES_MAX`` steps each."""
    counts = sorted(_counts(ranks, sorted(degrees, reverse=True)))
    step = -(-len(counts) // (MIXES_MAX * (len(degrees) - 1) + 1))
    chosen = {*counts[::step], counts[-1]}
    return ["/".join(f"{n}CP{degree}" for degree, n in mix if n) for mix in sorted(chosen)]


def _counts(ranks: int, degrees: Sequence[int]) -> Iterator[tuple[tuple[int, int], ...]]:
    """Every way to fill ``ranks`` with workers, as (degree, count)."""
    degree, *smaller = degrees
    if not smaller:
        if ranks % degree == 0:
            yield ((degree, ranks // degree),)
        return
    for n in range(ranks // degree + 1):
        for rest in _counts(ranks - n * degree, smaller):
            yield ((degree, n), *rest)


def _homogeneous(name: str, conditions: Conditions) -> list[Choice]:
    degree = int(name.removeprefix("homo-"))
    return [Choice(name, f"{conditions.ranks // degree}CP{degree}")]


def _static(name: str, conditions: Conditions) -> list[Choice]:
    mixes = compositions(conditions.degrees, conditions.ranks)
    mixed = [mix for mix in mixes if mix.count("/") == 1]
    return [Choice(name, mix, threshold=limit) for mix, limit in product(mixed, THRESHOLDS)]


def _any_degree(name: str, conditions: Conditions) -> list[Choice]:
    return [Choice(name, f"{conditions.ranks // d}CP{d}") for d in conditions.degrees]


def _cache_aware(name: str, conditions: Conditions) -> list[Choice]:
    return [
        replace(choice, cache_threshold=threshold, imbalance=imbalance)
        for choice in _any_degree(name, conditions)
        for threshold, imbalance in product(CACHE_THRESHOLDS, IMBALANCES)
    ]


def _overlap_cost(name: str, conditions: Conditions) -> list[Choice]:
    choices = _any_degree(name, conditions)
    return [replace(choice, weight=weight) for choice in choices for weight in OVERLAP_WEIGHTS]


def _only(name: str, conditions: Conditions) -> list[Choice]:
    return [Choice(name)]


# --- runs


def _bound(choice: Choice, arrivals: Sequence[Arrival], conditions: Conditions) -> Outcome:
    return lower_bound(arrivals, conditions)


def _light(router: Callable[[Choice, Sequence[Worker], Conditions], Router]) -> Run:
    def run(choice: Choice, arrivals: Sequence[Arrival], conditions: Conditions) -> Outcome:
        workers = _workers(choice.composition, conditions.ranks)
        cluster = LightCluster(
            choice.policy, workers, router(choice, workers, conditions), conditions
        )
        return cluster.run(arrivals)

    return run


def _workers(composition: str, ranks: int) -> tuple[Worker, ...]:
    degrees = sorted({int(part.partition("CP")[2]) for part in composition.split("/")})
    return parse_composition(composition, degrees, ranks)


POLICIES: dict[str, Policy] = {
    "ours": Policy(_adaptive, run_controlled, cost=8.0),
    "paper": Policy(_published, run_controlled, proxy="mix", cost=8.0),
    "mix": Policy(_mixes, _light(lambda choice, workers, _: ByCost(workers))),
    "homo": Policy(_homogeneous, _light(lambda choice, workers, _: ByCost(workers))),
    "static": Policy(_static, _light(lambda choice, workers, _: ByCost(workers, choice.threshold))),
    "round-robin": Policy(_any_degree, _light(lambda *_: RoundRobin())),
    "least-loaded": Policy(_any_degree, _light(lambda *_: LeastLoaded())),
    "cache-aware": Policy(
        _cache_aware,
        _light(
            lambda choice, workers, conditions: CacheAware(
                workers,
                conditions.kv_blocks,
                cache_threshold=choice.cache_threshold,
                absolute=choice.imbalance,
                relative=RELATIVE_IMBALANCE,
            )
        ),
    ),
    "overlap-cost": Policy(
        _overlap_cost,
        _light(lambda choice, workers, _: OverlapCost(len(workers), choice.weight)),
    ),
    "bound": Policy(_only, _bound),
}
