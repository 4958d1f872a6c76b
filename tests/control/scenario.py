"""Scenarios: protocol traces in ``tests/scenarios/*.txt``, read and played against a Controller.

    settings composition=2CP1 ranks=2      what differs from ``settings()`` below; fields of parts
                                           are written ``reconfiguration.window_s=10``
    boot                                   take the seat; every rank comes up and adopts

    1.0 Submit request=a input_tokens=100  at 1.0 this event …
        Placed request=a worker=CP1[0]     … leads to exactly these commands, in this order
        Dispatch request=a
    2.0 PrefillDone request=a              an event that leads to no command

Fields of events that are left out have the defaults below; of commands, the fields named are
compared. ``chain=ab`` stands for the blocks named a and ab, and so does ``stored=ab``;
``stored=b,abcd`` stands for the last blocks of these paths. Besides events there are ``tick``,
``idle`` (the base line is reached) and ``waits`` (why requests wait, as ``reason: count``), and in
place of commands ``illegal``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from vertumnusd.control.controller import Controller, IllegalEvent, Settings
from vertumnusd.control.prefill_time import Coefficients, PrefillTime
from vertumnusd.messages import Adopted, AdoptWorker, ControlCommand, ControlEvent, RankUp, Seated

# Ê_C(R, P) = R / (100·C) seconds: 100 tokens take 1 s on one rank.
PREFILL_TIME = PrefillTime(Coefficients(d_s=0.0, a_s=0.0, b_s=0.0, c_s=0.01, alpha_s=0.0))

DEFAULTS: dict[str, dict[str, Any]] = {
    "Seated": {"term": 1},
    "RankUp": {"kind": "prefill", "incarnation": 1},
    "RankDown": {"kind": "prefill", "reason": "killed"},
    "Adopted": {"term": 1},
    "BlocksChanged": {
        **{"stored": "", "evicted": "", "cached_blocks": 0, "pinned_blocks": 0},
        "free_blocks": 0,
    },
    "Submit": {"attempt": 0, "chain": "", "max_new_tokens": 1},
    "PrefillDone": {"attempt": 0, "cached_tokens": 0, "prefill_s": 1.0},
    "RoomMissing": {"attempt": 0},
    "HandedOff": {"attempt": 0},
    "Done": {"attempt": 0},
    "Returned": {"attempt": 0},
    "Drained": {"term": 1},
    "Parked": {"term": 1},
}


def settings(**changed: Any) -> Settings:
    """Four ranks of degree 1 or 2 with 100 blocks of 10 tokens, and one decode rank, number 4."""
    values: dict[str, Any] = {
        **{"cp_degrees": (1, 2), "ranks": 4, "home_ranks": 1, "composition": "1CP2/2CP1"},
        **{
            "block_tokens": 10,
            "mark_tokens": 10,
            "kv_blocks": 100,
            "decode_ranks": 1,
            "decode_kv_blocks": 100,
        },
        **{"max_queue_tokens": 10_000, "max_queue_s": 100.0, "unplaced_wait_s": 10.0},
    }
    return msgspec.convert({**values, **changed}, Settings, strict=False)


def blocks(path: str) -> list[bytes]:
    """One block for each letter, named by the path up to it."""
    return [name_of(path[: n + 1]) for n in range(len(path))]


def name_of(path: str) -> bytes:
    return path.encode().ljust(16, b"\0")


def boot(controller: Controller, settings: Settings, now: float = 0.0) -> None:
    """Take the seat of term 1, bring every rank up, and let all of them adopt."""
    controller.step(now, Seated(1))
    commands: list[ControlCommand] = []
    for rank in range(settings.ranks + settings.decode_ranks):
        kind = "prefill" if rank < settings.ranks else "decode"
        commands += controller.step(now, RankUp(rank, kind, 1))
    for command in commands:
        assert isinstance(command, AdoptWorker)
        for rank in range(command.base, command.base + command.degree):
            controller.step(now, Adopted(rank, 1, command.epoch, command.degree))


def booted(**changed: Any) -> Controller:
    """A controller with these settings in which all workers serve."""
    chosen = settings(**changed)
    controller = Controller(chosen, PREFILL_TIME)
    boot(controller, chosen)
    return controller


@dataclass
class Exchange:
    """One line with an event, and the lines expected after it."""

    line: int
    text: str
    expected: list[str] = field(default_factory=list)


def play(path: Path) -> None:
    """Play a scenario; the first difference fails the test, with its line."""
    exchanges = read(path)
    _, *changed = exchanges.pop(0).text.split()
    chosen = settings(**_nested(dict(part.split("=", 1) for part in changed)))
    controller = Controller(chosen, PREFILL_TIME)
    for exchange in exchanges:
        if exchange.text == "boot":
            boot(controller, chosen)
            continue
        answer = happen(controller, exchange.text)
        where = f"{path.name}:{exchange.line}: {exchange.text}"
        got = "\n".join(f"    {line}" for line in answer)
        if len(answer) != len(exchange.expected) or not all(map(agrees, exchange.expected, answer)):
            pytest.fail(f"{where}\n{got or '    (nothing)'}", pytrace=False)


def _nested(values: dict[str, str]) -> dict[str, Any]:
    """``replication.enabled=true`` stands for a field of a field."""
    nested: dict[str, Any] = {}
    for key, value in values.items():
        group, _, name = key.rpartition(".")
        (nested.setdefault(group, {}) if group else nested)[name] = value
    if "cp_degrees" in nested:
        nested["cp_degrees"] = nested["cp_degrees"].split(",")
    return nested


def read(path: Path) -> list[Exchange]:
    exchanges: list[Exchange] = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        text = line.split("#")[0].rstrip()
        if text.startswith(" "):
            exchanges[-1].expected.append(text.strip())
        elif text:
            exchanges.append(Exchange(number, text))
    return exchanges


def happen(controller: Controller, text: str) -> list[str]:
    """Let one event happen, and show what came of it."""
    time, name, *parts = text.split()
    now = float(time)
    match name:
        case "tick":
            return [show(command) for command in controller.tick(now)]
        case "idle":
            return [] if controller.idle() else ["not idle"]
        case "waits":
            reasons = controller.snapshot(now)["waiting"]["reasons"]
            return [f"{reason}: {count}" for reason, count in sorted(reasons.items())]
    before = controller.snapshot(now)
    try:
        return [show(command) for command in controller.step(now, event(name, parts))]
    except IllegalEvent:
        assert controller.snapshot(now) == before
        return ["illegal"]


def event(name: str, parts: list[str]) -> ControlEvent:
    fields = {**DEFAULTS.get(name, {}), **dict(part.split("=", 1) for part in parts)}
    for key in ("chain", "evicted"):
        if key in fields:
            fields[key] = b"".join(blocks(fields[key]))
    if "stored" in fields:
        whole, *more = fields["stored"].split(",")
        ends = [whole, *more] if more else [whole[: n + 1] for n in range(len(whole))]
        fields["stored"] = b"".join(name_of(end[:-1]) + name_of(end) for end in ends)
    if "also" in fields:
        fields["also"] = fields["also"].split(",")
    return msgspec.convert({"type": name, **fields}, ControlEvent, strict=False)


def show(command: ControlCommand) -> str:
    fields = {key: value for key, value in msgspec.to_builtins(command).items() if key != "type"}
    shown = (f"{key}={_number(value)}" for key, value in fields.items())
    return " ".join([type(command).__name__, *shown])


def _number(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else f"{value}".replace(" ", "_")


def agrees(expected: str, answer: str) -> bool:
    """The same command, with every field that is expected."""
    if re.fullmatch(r"[^=]*: \d+", expected):
        return expected == answer
    return expected.split()[0] == answer.split()[0] and set(expected.split()) <= set(answer.split())
