"""What a past load asked for: the demand that ``composition = "auto"`` begins with.

D of a window is the sum of the predicted prefill times of its arrivals, each with the prefix that
it found and at the degree that it ran at (``control/demand.py``). Of a trace it is known once the
trace has been played.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from vertumnusd.control.fleet import composition_name
from vertumnusd.control.initial_composition import composition_for
from vertumnusd.control.settings import ReconfigurationSettings
from vertumnusd.simulate.conditions import Conditions
from vertumnusd.simulate.outcome import Outcome
from vertumnusd.simulate.profiles import profile
from vertumnusd.simulate.traces import Arrival


def demands_s(
    arrivals: Sequence[Arrival], outcome: Outcome, conditions: Conditions, window_s: float
) -> list[float]:
    """D of every window in which something came that was served, in order."""
    predict_s = profile(conditions.profile).predicted.predict_s
    demands: dict[int, float] = defaultdict(float)
    served = zip(arrivals, outcome.degree.tolist(), outcome.cached_tokens.tolist(), strict=True)
    for arrival, degree, cached in served:
        if degree:
            service_s = predict_s(degree, arrival.input_tokens - cached, cached)
            demands[int(arrival.at_s // window_s)] += service_s
    return [demands[window] for window in sorted(demands)]


def initial_composition(demand_s: float, conditions: Conditions) -> str:
    """What a cluster begins with for this demand, by κ_C of the conditions or of the profile."""
    shares = dict(conditions.capacity_shares) or profile(conditions.profile).capacity_shares
    settings = ReconfigurationSettings(capacity_shares=dict(shares))
    capacity_s = {degree: settings.capacity_s(degree) for degree in conditions.degrees}
    return composition_name(composition_for([demand_s], capacity_s, conditions.ranks))
