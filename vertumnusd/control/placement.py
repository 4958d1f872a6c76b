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

from collections.abc import Callable, Iterable
from typing import NamedTuple

from vertumnusd.control.fleet import Worker
from vertumnusd.control.prefill_time import PrefillTime

Wait = tuple[float, int]  # q_w in seconds and n_w, for a request of s seconds


class Longer(NamedTuple):
    """A prefix that workers which have less can fetch: ``copy_s`` (t_0), and ``token_s`` (t_1)."""

    tokens: int
    token_s: float
    copy_s: float


class Kind:
    """Workers of one degree with the same prefix of the request: they differ in q and n alone.

    ``workers``: each with seconds that its q is not below, least first; where leads pause, either
    it is not, or q is at least one step and n at least 1. ``promised``: they will have the prefix
    when those before the request have run.
    """

    __slots__ = ("cached_tokens", "degree", "promised", "workers")

    def __init__(
        self,
        degree: int,
        cached_tokens: int,
        workers: Iterable[tuple[float, Worker]],
        promised: bool = False,
    ) -> None:
        self.degree = degree
        self.cached_tokens = cached_tokens
        self.workers = workers
        self.promised = promised


class Price:
    """What is the same for all workers of a kind. In seconds: ``own_s`` is J − max(q, t) − n·s.

    ``fetch_s`` is t; 0 without a fetch.
    """

    __slots__ = ("fetch_s", "gpu_price_s", "own_s", "service_s")

    def __init__(
        self, service_s: float, gpu_price_s: float, own_s: float, fetch_s: float = 0.0
    ) -> None:
        self.service_s = service_s
        self.gpu_price_s = gpu_price_s
        self.own_s = own_s
        self.fetch_s = fetch_s


class Terms:
    """A worker, priced. All in seconds: J is ``cost_s``, and n·s is ``delay_s``.

    With a fetch, the kind's prefix is the longer one. ``at_least``: it was seen to be dearer than
    another before its queue was looked at, so q and J may be more.
    """

    __slots__ = ("at_least", "cost_s", "delay_s", "kind", "price", "queue_s", "worker")

    def __init__(
        self,
        cost_s: float,
        queue_s: float,
        delay_s: float,
        price: Price,
        kind: Kind,
        worker: Worker,
        at_least: bool = False,
    ) -> None:
        self.cost_s = cost_s
        self.queue_s = queue_s
        self.delay_s = delay_s
        self.price = price
        self.kind = kind
        self.worker = worker
        self.at_least = at_least

    @property
    def fetch_s(self) -> float:
        """What a fetch takes beyond the wait in the queue."""
        return max(0.0, self.price.fetch_s - self.queue_s)

    def is_better_than(self, other: Terms) -> bool:
        """Equal J: the shorter queue wins, then the longer prefix, then the smaller worker."""
        if self.cost_s != other.cost_s:
            return self.cost_s < other.cost_s
        return self._rank() < other._rank()

    def _rank(self) -> tuple[float, int, Worker]:
        return self.queue_s, -self.kind.cached_tokens, self.worker


class Comparison(NamedTuple):
    """The cheapest worker, if any has a short enough queue; the preferred degree, which is that of
    argmin (J − q); and the best worker of each kind, the cheapest among them."""

    best: Terms | None
    preferred_degree: int
    of_kinds: list[Terms]


class Policy:
    """What decides a placement besides the state of the workers.

    ``pause_s``: leads pause prefills for shorter ones, every so many seconds.
    """

    def __init__(
        self, prefill_time: PrefillTime, beta: float, lambda_: float, pause_s: float = float("inf")
    ) -> None:
        self._prefill_time = prefill_time
        self._beta = beta
        self._lambda = lambda_
        self._pause_s = pause_s

    def place(
        self,
        kinds: list[Kind],
        input_tokens: int,
        wait: Callable[[Worker, float, bool], Wait],
        limit_s: float = float("inf"),
    ) -> Comparison:
        """Compare the workers, but for those with a q above ``limit_s``.

        ``wait`` tells q and n of a worker by s, and by whether it counts on a promised prefix.
        """
        smallest_degree = min([kind.degree for kind in kinds])
        best: Terms | None = None
        preferred_s, preferred_degree = float("inf"), 0
        of_kinds: list[Terms] = []
        for kind in kinds:
            price = self.price(kind.degree, kind.cached_tokens, input_tokens, smallest_degree)
            if price.own_s < preferred_s or (
                price.own_s == preferred_s and kind.degree < preferred_degree
            ):
                preferred_s, preferred_degree = price.own_s, kind.degree
            terms = _best_of(kind, price, wait, limit_s, best, self._most_s(price))
            if terms is not None:
                of_kinds.append(terms)
                if best is None or terms.is_better_than(best):
                    best = terms
        return Comparison(best, preferred_degree, of_kinds)

    def place_fetching(
        self,
        kinds: Callable[[int], list[Kind]],
        degrees: list[int],
        input_tokens: int,
        wait: Callable[[Worker, float, bool], Wait],
        limit_s: float,
        longer: Longer,
        plain: Terms,
    ) -> Terms | None:
        """The cheapest worker with the longer prefix, if it costs less than ``plain``: the cheapest
        without a fetch. ``kinds`` tells those of a degree."""
        best = plain
        tokens, token_s, copy_s = longer
        smallest_degree = min(degrees)
        for degree in degrees:
            price = self.price(degree, tokens, input_tokens, smallest_degree)
            if copy_s + price.own_s >= best.cost_s:
                continue  # as is seen without a look at its workers
            for kind in kinds(degree):
                fetch_s = copy_s + (tokens - kind.cached_tokens) * token_s
                if kind.cached_tokens < tokens and fetch_s + price.own_s < best.cost_s:
                    fetched = Kind(degree, tokens, kind.workers)
                    priced = Price(price.service_s, price.gpu_price_s, price.own_s, fetch_s)
                    terms = _best_of(fetched, priced, wait, limit_s, best, self._most_s(price))
                    if terms is not None and terms.cost_s < best.cost_s:
                        best = terms
        return None if best is plain else best

    def _most_s(self, price: Price) -> float:
        """What a load adds to J at most, for certain."""
        return self._pause_s + price.service_s

    def price(
        self, degree: int, cached_tokens: int, input_tokens: int, smallest_degree: int
    ) -> Price:
        """The terms of J that do not depend on a worker's queue."""
        uncached = input_tokens - cached_tokens
        service_s = self._prefill_time.predict_s(degree, uncached, cached_tokens)
        gpu_price_s = 0.0
        if self._lambda:
            least_s = self._prefill_time.predict_s(smallest_degree, uncached, cached_tokens)
            gpu_price_s = self._lambda * (degree * service_s - smallest_degree * least_s)
        return Price(service_s, gpu_price_s, self._beta * service_s + gpu_price_s)


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
    service_s, own_s, fetch_s = price.service_s, price.own_s, price.fetch_s
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
