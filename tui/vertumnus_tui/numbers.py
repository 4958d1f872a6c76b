"""Numbers for people: few digits, aligned, with their units."""

from __future__ import annotations

import math


def seconds(value: float | None) -> str:
    """``0.012``, ``1.42``, ``17.5``, ``204``: three digits that count."""
    if value is None or not math.isfinite(value):
        return "-"
    if abs(value) < 0.0005:
        return "0"
    if abs(value) < 1:
        return f"{value:.3f}"
    return (
        f"{value:.2f}"
        if abs(value) < 10
        else f"{value:.1f}"
        if abs(value) < 100
        else f"{value:.0f}"
    )


def count(value: float | None) -> str:
    """``812``, ``12.4k``, ``3.1M``: tokens, blocks, requests."""
    if value is None or not math.isfinite(value):
        return "-"
    for limit, unit in ((1e3, ""), (1e6, "k"), (1e9, "M")):
        if abs(value) < limit:
            scaled = value / (limit / 1e3)
            return f"{scaled:.0f}{unit}" if not unit or scaled >= 100 else f"{scaled:.1f}{unit}"
    return f"{value / 1e9:.1f}G"


def percent(share: float | None) -> str:
    return "-" if share is None or not math.isfinite(share) else f"{share * 100:.0f}%"


def duration(value_s: float) -> str:
    """``8s``, ``12:30``, ``1:02:03``."""
    whole = max(0, int(value_s))
    minutes, left = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}:{minutes:02}:{left:02}"
    return f"{minutes}:{left:02}" if minutes else f"{left}s"


def size(value: float) -> str:
    """Bytes."""
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} GiB"
