"""What a second rank is worth, by input length and cached prefix: time at degree 1 over degree 2.

From a profile, whose degrees were measured next to each other at every size. Targets: 1.9 cold from
1,024 tokens on, 1.7 cold at 256, 1.75 at 4,096 with 90 % cached; the ratio is the least speed-up
over its target, of the sizes that were measured.
"""

from __future__ import annotations

from harness import result
from profiled import conditions, measurements, profile

from vertumnusd.profile.grid import Point


def target(point: Point) -> float | None:
    """The speed-up wanted at this size, if any is."""
    if point.cached_tokens == 0 and point.input_tokens >= 1024:
        return 1.9
    if point.cached_tokens == 0 and point.input_tokens == 256:
        return 1.7
    if point.input_tokens == 4096 and 0.88 < point.cached_share < 0.92:
        return 1.75
    return None


measured = profile(__doc__)
times_s = {
    Point(m.degree, m.uncached_tokens, m.cached_tokens): m.elapsed_s for m in measurements(measured)
}
if {point.degree for point in times_s} < {1, 2}:
    raise SystemExit("a profile of degrees 1 and 2 is needed: two cores, or --profile FILE")
speed_ups = {
    point: one_s / times_s[point._replace(degree=2)]
    for point, one_s in times_s.items()
    if point.degree == 1
}
shares = [speed_up / wanted for point, speed_up in speed_ups.items() if (wanted := target(point))]
wins = [p.uncached_tokens for p, s in speed_ups.items() if p.cached_tokens == 0 and s > 1]
result(
    **conditions(measured),
    speed_ups={f"{p.input_tokens}/{p.cached_tokens}": round(s, 2) for p, s in speed_ups.items()},
    shortest_that_wins=min(wins, default=None),
    ratio=min(shares),
)
