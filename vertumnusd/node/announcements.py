"""What the controller does, in the log: one event a line, at info for what an operator acts on."""

from __future__ import annotations

from typing import Any

import msgspec
import structlog

from vertumnusd.messages import (
    ControlCommand,
    Converted,
    Converting,
    Decided,
    Exposed,
    Held,
    Lost,
    Refused,
    Resume,
    Withdrawn,
    WorkerDrained,
)

log = structlog.get_logger("vertumnusd.controller")

DIGITS = 4


def announce(happened: ControlCommand | Refused) -> None:
    match happened:
        case Exposed():
            log.info("worker exposed", worker=happened.worker, epoch=happened.epoch)
        case Withdrawn():
            log.info("worker withdrawn", worker=happened.worker, reason=happened.reason)
        case WorkerDrained():
            log.info("worker drained", **_facts(happened))
        case Resume():
            log.info("worker resumed", worker=happened.worker)
        case Decided():
            begun = happened.verdict != "stay"
            (log.info if begun else log.debug)("decided", **_facts(happened))
        case Converting():
            log.info("converting", **_facts(happened))
        case Converted():
            log.info("converted", **_facts(happened))
        case Held(hold_s=0.0):
            log.info("hold ended", by=happened.by or "time")
        case Held():
            log.info("held", hold_s=happened.hold_s, by=happened.by)
        case Lost():
            log.warning("request lost its rank", request=happened.request, reason=happened.reason)
        case Refused():
            log.warning("command refused", rank=happened.rank, command=happened.command)


def _facts(command: Converting | Converted | Decided | WorkerDrained) -> dict[str, Any]:
    """Its fields, short; empty ones are left out."""
    fields = msgspec.structs.asdict(command)
    return {name: _short(value) for name, value in fields.items() if value not in ("", ())}


def _short(value: Any) -> Any:
    match value:
        case tuple():
            return " ".join(map(_word, value))
        case float():
            return round(value, DIGITS)
    return value


def _word(value: Any) -> str:
    """A name, or a composition with its mean TTFT."""
    return value if isinstance(value, str) else f"{value[0]}={value[1]:.3f}"
