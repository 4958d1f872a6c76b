"""Decisions in words: what ``vertumnusd why`` prints for each event that led somewhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

Entry = dict[str, Any]


def explain(entries: Sequence[Entry]) -> list[str]:
    """One line or more for each entry; times count from the first one."""
    lines: list[str] = []
    for entry in entries:
        at_s = entry["at_s"] - entries[0]["at_s"]
        first, *more = _WORDS[entry["type"]](entry)
        lines += [f"{at_s:9.3f} s  {first}", *(f"{'':13}{line}" for line in more)]
    return lines


def _placed(e: Entry) -> list[str]:
    own_s = e["cost_s"] - e["queue_s"] - e["fetch_s"] - e["delay_s"] - e["gpu_price_s"]
    fetched = e["transfer"] is not None
    copy = [f"a part of its prefix comes with copy {e['transfer']}, begun now"] if fetched else []
    return [
        f"placed on {e['worker']}: J = {e['cost_s']:.3f} s",
        f"= queue {e['queue_s']:.3f} + copy beyond it {e['fetch_s']:.3f} + delay of others"
        f" {e['delay_s']:.3f} + β·Ê {own_s:.3f} + price of devices {e['gpu_price_s']:.3f}",
        *copy,
        f"Ê = {e['service_s']:.3f} s for {e['input_tokens'] - e['cached_tokens']} uncached tokens"
        f" behind {e['cached_tokens']} cached ones at degree {e['degree']};"
        f" preferred degree {e['preferred_degree']}",
        *map(_other, e["others"]),
    ]


def _other(compared: Entry) -> str:
    """A worker of another kind: J, and the sum it is, or that both are at least so much."""
    cost_s, queue_s, delay_s = (compared[term] for term in ("cost_s", "queue_s", "delay_s"))
    price_s = compared["gpu_price_s"]
    least = "at least " if compared["at_least"] else ""
    own_s = cost_s - queue_s - delay_s - price_s
    return (
        f"beside {compared['worker']}, {compared['cached_tokens']} cached: J = {least}{cost_s:.3f}"
        f" = queue {least}{queue_s:.3f} + delay of others {least}{delay_s:.3f}"
        f" + β·Ê {own_s:.3f} + price of devices {price_s:.3f}"
    )


def _dispatched(e: Entry) -> list[str]:
    decode = f", decode rank {e['decode_rank']}" if e["decode_rank"] >= 0 else ""
    return [
        f"dispatched to {e['worker']}: home {e['home_base']}{decode},"
        f" predicted {e['predicted_s']:.3f} s"
    ]


def _finished(e: Entry) -> list[str]:
    return [
        f"finished ({e['reason']}): {e['output_tokens']} tokens, prefill {e['prefill_s']:.3f} s"
        f" (predicted {e['predicted_s']:.3f}), first token after {e['ttft_s']:.3f} s"
    ]


def _decided(e: Entry) -> list[str]:
    lines = [
        f"decided to {e['verdict']}: {e['reason']}",
        f"window {e['window']}: {e['requests']} requests,"
        f" {e['long_request_share']:.1%} of them long,"
        f" demand {e['demand_s']:.2f} s of {e['capacity_s']:.2f} s capacity"
        f" ({e['composition'] or 'no worker serves'})",
    ]
    predicted = sorted(e["predicted_ttft_s"], key=lambda prospect: prospect[1])
    if predicted:
        means = ", ".join(f"{composition} {ttft_s:.3f}" for composition, ttft_s in predicted)
        return [*lines, f"predicted mean TTFT of the latest requests, in seconds: {means}"]
    return [
        *lines,
        f"split above {e['upper_s']:.2f}, merge below {e['lower_s']:.2f};"
        f" {e['signal']} for {e['held']} windows in a row",
    ]


def _converting(e: Entry) -> list[str]:
    by = f"decided in window {e['window']}" if e["window"] else "ordered by hand"
    change = f"{' '.join(e['before'])} → {' '.join(e['after'])}"
    return [f"{e['kind']} {change}, {by}; predicted drain {e['predicted_drain_s']:.3f} s"]


def _converted(e: Entry) -> list[str]:
    if e["outcome"] == "exposed":
        times = f"drain {e['drain_s']:.3f} s, switch {e['switch_s'] * 1e3:.1f} ms"
        return [f"done: {' '.join(e['after'])} serve; {times}"]
    return [f"{e['outcome']} in {e['phase']}: {e['reason']}"]


_WORDS: dict[str, Callable[[Entry], list[str]]] = {
    "Placed": _placed,
    "Dispatch": _dispatched,
    "Finished": _finished,
    "Failed": lambda e: [f"failed ({e['status']} {e['code']}): {e['reason']}"],
    "Lost": lambda e: [f"lost: {e['reason']}; submitted again"],
    "Reject": lambda e: [f"refused ({e['code']}): {e['reason']}"],
    "Abort": lambda e: [f"cancelled while it ran on {e['worker']}"],
    "Decided": _decided,
    "Converting": _converting,
    "Converted": _converted,
}
