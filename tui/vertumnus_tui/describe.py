"""Events in words: one line each, with how grave it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from vertumnus_tui.numbers import count, duration, percent, seconds

LONGEST = 500  # characters

Fields = dict[str, Any]


class Description(NamedTuple):
    """``style``: "", "good", "warn" or "bad", and the same to be read: ``mark``."""

    label: str
    text: str
    style: str = ""

    @property
    def mark(self) -> str:
        return {"good": "+", "warn": "!", "bad": "x"}.get(self.style, " ")


def describe(kind: str, event: Fields) -> Description:
    """Of an unknown kind, its name and fields."""
    known = _KINDS.get(kind)
    if known is not None:
        try:
            label, text, style = known(event)
            return Description(label, text[:LONGEST], style)
        except (KeyError, TypeError, ValueError):
            pass  # a field is missing or of another type: say what there is
    fields = (f"{key}={value}" for key, value in event.items() if key not in ("t", "type"))
    return Description(kind, " ".join(fields)[:LONGEST])


def _names(names: Any) -> str:
    return " ".join(names)


def _placed(e: Fields) -> Description:
    hit = f", {count(e['cached_tokens'])} cached" if e["cached_tokens"] else ""
    text = (
        f"at {e['worker']}: {count(e['input_tokens'])} tokens{hit},"
        f" q {seconds(e['queue_s'])} s {seconds(e['service_s'])} J {seconds(e['cost_s'])}"
        f"  {e['request']}"
    )
    return Description("placed", text)


def _reject(e: Fields) -> Description:
    return Description("rejected", f"{e['request']}: {e['reason']}", "warn")


def _lost(e: Fields) -> Description:
    return Description("lost", f"{e['request']}: {e['reason']}, placed again", "warn")


def _exposed(e: Fields) -> Description:
    return Description("serving", f"{e['worker']} serves, epoch {e['epoch']}", "good")


def _withdrawn(e: Fields) -> Description:
    style = "" if str(e["reason"]).startswith("parked") else "bad"
    return Description("withdrawn", f"{e['worker']}: {e['reason']}", style)


def _decided(e: Fields) -> Description:
    text = (
        f"{e['verdict']}: {e['reason']}; demand {seconds(e['demand_s'])} of"
        f" {seconds(e['capacity_s'])} s, {percent(e['long_request_share'])} long"
    )
    return Description("decided", text)


def _converting(e: Fields) -> Description:
    text = (
        f"{e['kind']} {_names(e['before'])} → {_names(e['after'])},"
        f" drain predicted {seconds(e['predicted_drain_s'])} s"
    )
    return Description("converting", text, "warn")


def _converted(e: Fields) -> Description:
    done = e["outcome"] == "exposed"
    times = f"drain {seconds(e['drain_s'])} s, switch {seconds(e['switch_s'])} s"
    why = times if done else f"in {e['phase']}: {e['reason']}"
    text = f"{e['kind']} {_names(e['before'])} → {_names(e['after'])} {e['outcome']}"
    return Description("converted", f"{text}, {why}", "good" if done else "bad")


def _drain(e: Fields) -> Description:
    limit = f", at most {seconds(e['deadline_s'])} s" if e["deadline_s"] else ""
    return Description("draining", f"{e['worker']}{limit}")


def _drained(e: Fields) -> Description:
    return Description("drained", f"{e['worker']}, in {seconds(e['drain_s'])} s")


def _resume(e: Fields) -> Description:
    return Description("resumed", f"{e['worker']} serves on", "warn")


def _held(e: Fields) -> Description:
    by = f", by {e['by']}" if e["by"] else ""
    if e["hold_s"]:
        return Description("held", f"nothing automatic for {duration(e['hold_s'])}{by}", "warn")
    return Description("hold ended", f"automatic again{by or ', its time is over'}", "good")


def _replicate(e: Fields) -> Description:
    text = (
        f"{e['kind']} copy of {count(e['blocks'])} blocks of {e['prefix']},"
        f" home {e['source_home']} → {e['destination_home']}"
    )
    return Description("copying", text)


def _replicated(e: Fields) -> Description:
    return Description("copied", f"transfer {e['transfer']} is installed", "good")


def _transfer_failed(e: Fields) -> Description:
    return Description("copy failed", f"transfer {e['transfer']}: {e['reason']}", "warn")


def _reclaim(e: Fields) -> Description:
    text = f"{count(e['blocks'])} blocks behind {e['prefix']} at home {e['home']}"
    return Description("reclaimed", text)


def _rank_up(e: Fields) -> Description:
    return Description("rank up", f"{e['kind']} rank {e['rank']}", "good")


def _rank_down(e: Fields) -> Description:
    ranks = ", ".join(str(rank) for rank in (e["rank"], *e.get("also", ())))
    return Description("rank down", f"{e['kind']} rank {ranks}: {e['reason']}", "bad")


def _restarted(_: Fields) -> Description:
    return Description("restarted", "the node began anew; what was before is told as it was", "bad")


def _refused(e: Fields) -> Description:
    return Description("refused", f"rank {e['rank']} refused {e['command']}", "warn")


_KINDS: dict[str, Callable[[Fields], Description]] = {
    "Placed": _placed,
    "Reject": _reject,
    "Lost": _lost,
    "Exposed": _exposed,
    "Withdrawn": _withdrawn,
    "Decided": _decided,
    "Converting": _converting,
    "Converted": _converted,
    "DrainWorker": _drain,
    "WorkerDrained": _drained,
    "Resume": _resume,
    "Held": _held,
    "Replicate": _replicate,
    "Replicated": _replicated,
    "TransferFailed": _transfer_failed,
    "Reclaim": _reclaim,
    "RankUp": _rank_up,
    "RankDown": _rank_down,
    "Refused": _refused,
    "NodeRestarted": _restarted,
}
