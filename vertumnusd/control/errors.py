"""The one error of the decisions: an event that cannot follow from what happened before."""

from __future__ import annotations


class IllegalEvent(ValueError):
    """A peer's nonsense or our bug, never a late or repeated event; state was left untouched."""
