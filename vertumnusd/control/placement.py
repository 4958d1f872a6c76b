"""Placement (section 3): the worker with the smallest J takes the request.

    J = q_w + n_w·s + β·s + λ·(C_w·s − C_min·Ê_Cmin(R, P)),    s = Ê_Cw(R, P)

P is what w itself has cached and R the rest, C_min the smallest degree that serves. β ≥ 1 weighs
computing above waiting, which keeps prefixes together; λ ≥ 0 is the price of GPU seconds beyond
those at degree C_min.

Policy "paper" serves in order of arrival: q_w is the predicted time of the unfinished requests on
w, and n_w = 0. Policy "ours" lets short requests go first: q_w is what is left of those that w was
given, and the predicted time of those that go before this one; n_w is how many this one goes
before, and so delays by s each, among them prefills that are paused for it. Both are computed in
``worker_queue.py``.

Where prefixes can be fetched, a worker is priced a second time, with the longer prefix that another
home has. Copying what w lacks of it takes t, and goes on while the request waits:

    J = max(q_w, t) + n_w·s + β·s + λ·(C_w·s − C_min·Ê_Cmin(R, P)),    t = t_0 + (P − P_w)·t_1

with s, R and P of the longer prefix, P_w what w has, t_0 what any copy takes, and t_1 the seconds
that a token's KV takes over the link. It is fetched if this J is below all others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from vertumnusd.control.fleet import Worker
from vertumnusd.control.prefill_time import PrefillTime


class Kind(NamedTuple):
    """Workers of one degree with the same prefix of the request: they differ in q and n alone.

    ``workers``: each with seconds that its q is not below, least first; where leads pause, either
    it is not, or q is at least one step and n at least 1.
    """

    degree: int
    cached_tokens: int
    workers: Iterable[tuple[float, Worker]]
    promised: bool = False  # they will have the prefix when those before the request have run


class Wait(NamedTuple):
    """q_w and n_w for a request of s seconds."""

    queue_s: float
    behind: int


class Longer(NamedTuple):
    """A prefix that workers which have less can fetch: ``copy_s`` (t_0), and ``token_s`` (t_1)."""

    tokens: int
    token_s: float
    copy_s: float


class Price(NamedTuple):
    """What is the same for all workers of a kind. In seconds: ``own_s`` is J − max(q, t) − n·s.

    ``fetch_s`` is t; 0 without a fetch.
    """

    service_s: float
    gpu_price_s: float
    own_s: float
    fetch_s: float = 0.0


class Terms(NamedTuple):
    """A worker, priced. All in seconds: J is ``cost_s``, and n·s is ``delay_s``.

    With a fetch, the kind's prefix is the longer one. ``at_least``: it was seen to be dearer than
    another before its queue was looked at, so q and J may be more.
    """

    cost_s: float
    queue_s: float
    delay_s: float
    price: Price
    kind: Kind
    worker: Worker
    at_least: bool = False

    @property
    def fetch_s(self) -> float:
        """What a fetch takes beyond the wait in the queue."""
        return max(0.0, self.price.fetch_s - self.queue_s)


class Comparison(NamedTuple):
    """The cheapest worker, if any has a short enough queue; the preferred degree, which is that of
    argmin (J − q); and the best worker of each kind, the cheapest among them."""

    best: Terms | None
    preferred_degree: int
    of_kinds: list[Terms]


class Policy(NamedTuple):
    """What decides a placement besides the state of the workers."""

    prefill_time: PrefillTime
    beta: float
    lambda_: float
    pause_s: float = float("inf")  # leads pause prefills for shorter ones: every so many seconds

    def place(
        self,
        kinds: Iterable[Kind],
        input_tokens: int,
        wait: Callable[[Worker, float, bool], Wait],
        limit_s: float = float("inf"),
    ) -> Comparison:
        """Compare the workers, but for those with a q above ``limit_s``.

        ``wait`` tells q and n of a worker by s, and by whether it counts on a promised prefix.
        Equal J: the shorter queue wins, then the longer prefix, then the smaller (degree, base).
        """
        kinds = list(kinds)
        smallest_degree = min(kind.degree for kind in kinds)
        best: Terms | None = None
        preferred = float("inf"), 0
        of_kinds: list[Terms] = []
        for kind in kinds:
            price = self.price(kind.degree, kind.cached_tokens, input_tokens, smallest_degree)
            preferred = min(preferred, (price.own_s, kind.degree))
            terms = _best_of(kind, price, wait, limit_s, best, self._most_s(price))
            if terms is not None:
                of_kinds.append(terms)
                if best is None or _rank(terms) < _rank(best):
                    best = terms
        return Comparison(best, preferred[1], of_kinds)

    def place_fetching(
        self,
        kinds: Callable[[int], Iterable[Kind]],
        degrees: Sequence[int],
        input_tokens: int,
        wait: Callable[[Worker, float, bool], Wait],
        limit_s: float,
        longer: Longer,
        plain: Terms,
    ) -> Terms | None:
        """The cheapest worker with the longer prefix, if it costs less than ``plain``: the cheapest
        without a fetch. ``kinds`` tells those of a degree."""
        best = plain
        for degree in degrees:
            price = self.price(degree, longer.tokens, input_tokens, min(degrees))
            if longer.copy_s + price.own_s >= best.cost_s:
                continue  # as is seen without a look at its workers
            for kind in kinds(degree):
                fetch_s = longer.copy_s + (longer.tokens - kind.cached_tokens) * longer.token_s
                if kind.cached_tokens < longer.tokens and fetch_s + price.own_s < best.cost_s:
                    fetched = kind._replace(cached_tokens=longer.tokens, promised=False)
                    priced = price._replace(fetch_s=fetch_s)
                    terms = _best_of(fetched, priced, wait, limit_s, best, self._most_s(price))
                    if terms is not None and terms.cost_s < best.cost_s:
                        best = terms
        return None if best is plain else best

    def _most_s(self, price: Price) -> float:
        """What a load adds to J at most, for certain."""
        return self.pause_s + price.service_s

    def price(
        self, degree: int, cached_tokens: int, input_tokens: int, smallest_degree: int
    ) -> Price:
        """The terms of J that do not depend on a worker's queue."""
        uncached = input_tokens - cached_tokens
        service_s = self.prefill_time.predict_s(degree, uncached, cached_tokens)
        gpu_price_s = 0.0
        if self.lambda_:
            least_s = self.prefill_time.predict_s(smallest_degree, uncached, cached_tokens)
            gpu_price_s = self.lambda_ * (degree * service_s - smallest_degree * least_s)
        return Price(service_s, gpu_price_s, self.beta * service_s + gpu_price_s)


def _best_of(
    kind: Kind,
    price: Price,
    wait: Callable[[Worker, float, bool], Wait],
    limit_s: float,
    best: Terms | None,
    most_s: float,
) -> Terms | None:
    """The cheapest worker of a kind; if it is seen to cost more than ``best``, what it is at least.

    Ends at the first worker that cannot be better, for none behind it can: of any load it is
    certain up to ``most_s`` that it adds to J.
    """
    service_s, _, own_s, fetch_s = price
    at_most = float("inf") if best is None else best.cost_s
    found: Terms | None = None
    for load_s, worker in kind.workers:
        least_s = min(load_s, most_s)
        least_cost_s = max(least_s, fetch_s) + own_s
        if least_s > limit_s or (found is not None and least_cost_s >= found.cost_s):
            break
        if least_cost_s > at_most:
            return Terms(least_cost_s, least_s, 0.0, price, kind, worker, at_least=True)
        queue_s, behind = wait(worker, service_s, kind.promised)
        delay_s = behind * service_s
        cost_s = max(queue_s, fetch_s) + delay_s + own_s
        if queue_s <= limit_s and (found is None or cost_s < found.cost_s):
            found = Terms(cost_s, queue_s, delay_s, price, kind, worker)
    return found


def _rank(terms: Terms) -> tuple[float, float, int, Worker]:
    return terms.cost_s, terms.queue_s, -terms.kind.cached_tokens, terms.worker
