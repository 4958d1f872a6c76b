"""What is run: a policy and the value of every parameter that it is tuned by."""

from __future__ import annotations

from dataclasses import dataclass

from vertumnusd.control.settings import Improvement


@dataclass(frozen=True, slots=True)
class Choice:
    """A policy with every parameter fixed. Those that a policy does not know stay at 0."""

    policy: str
    composition: str = ""
    threshold: int = 0  # static: tokens from which an input is long
    cache_threshold: float = 0.0
    imbalance: int = 0  # cache-aware: requests
    weight: float = 0.0  # overlap-cost
    reconfigures: bool = False  # ours, paper: the composition follows the load
    replicates: bool = False  # ours, paper: Algorithms 1 and 2
    hold_windows: int = 0  # windows in a row that must speak for a conversion; 0: the default
    confidence: float = 0.0  # of these windows, in standard errors; 0: the default
    capacity_factor: float = 1.0  # on the profiled κ_C
    left_out: tuple[Improvement, ...] = ()  # of ours
    # keys of the configuration with another value than the default, such as ("placement.beta", 1.5)
    changed: tuple[tuple[str, float], ...] = ()

    def changed_in(self, section: str) -> dict[str, float]:
        """The changed keys of one section of the configuration."""
        parts = ((key.partition("."), value) for key, value in self.changed)
        return {name: value for (of, _, name), value in parts if of == section}

    @property
    def label(self) -> str:
        """Policy and parameters, for people."""
        parameters = {
            "threshold": self.threshold,
            "cache": self.cache_threshold,
            "imbalance": self.imbalance,
            "weight": self.weight,
            "windows": self.hold_windows,
            "confidence": self.confidence,
            "κ ×": self.capacity_factor if self.capacity_factor != 1 else 0,
        }
        shown = [f"{name} {value:g}" for name, value in parameters.items() if value]
        return ", ".join([part for part in (self.composition, *shown) if part])


def adaptive(name: str, composition: str) -> Choice:
    """Ours or paper with all that belongs to it, from this composition on."""
    return Choice(name, composition, reconfigures=True, replicates=True)
