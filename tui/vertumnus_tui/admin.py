"""What an operator asks a node to do, over HTTP: planned first, done after a yes.

Every request can be cancelled at any time: a drain takes long, and the console may end meanwhile.
What was begun goes on at the node.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from getpass import getuser
from socket import gethostname
from typing import Any

import h11
import msgspec

from vertumnus_tui.cluster import Cluster, Worker
from vertumnus_tui.details import Facts
from vertumnus_tui.link import Address
from vertumnus_tui.numbers import count, duration, seconds

HOLD_S = 1800.0
PLAN_S = 5.0
READ_BYTES = 64 * 1024
ANSWER_BYTES = 1 << 20


class AdminError(Exception):
    """The node could not be asked, or refused; the message says why."""


@dataclass(frozen=True, slots=True)
class Action:
    """``planned``: the node is asked first what would be done."""

    kind: str
    body: dict[str, Any]
    title: str
    planned: bool = True

    @property
    def path(self) -> str:
        return f"/v1/admin/{self.kind}"


def action_on(kind: str, selected: str, cluster: Cluster, now: float) -> Action:
    """What a key means for the selected line. Raises :class:`AdminError`."""
    if kind == "hold":
        return _hold(cluster, now)
    what, _, name = selected.partition(" ")
    if kind == "reclaim":
        if what != "prefix":
            raise AdminError("select a prefix on the prefixes page first")
        return Action(kind, {"prefix": name}, f"reclaim {name} from every home?")
    worker = next((w for w in cluster.workers if w.name == name), None)
    if what != "worker" or worker is None:
        raise AdminError("select a worker on the cluster page first")
    if kind == "merge":
        names = [w.name for w in siblings(worker, cluster)]
        return Action(kind, {"workers": names}, f"merge {' '.join(names)}?")
    body: dict[str, Any] = {"workers": [name]}
    return Action(kind, body, f"{kind} {name}?", planned=kind != "undrain")


def _hold(cluster: Cluster, now: float) -> Action:
    held_until = cluster.adaptation.held_until
    if held_until is not None and held_until > now:
        title = f"end the hold ({duration(held_until - now)} are left)?"
        return Action("hold", {"for_s": 0, "by": whoami()}, title, planned=False)
    title = f"begin nothing automatically for {duration(HOLD_S)}?"
    return Action("hold", {"for_s": HOLD_S, "by": whoami()}, title, planned=False)


def whoami() -> str:
    """Who gives an order, for those who wonder later."""
    try:
        return f"{getuser()} on {gethostname()}"
    except (KeyError, OSError):  # a user without a name
        return gethostname()


def siblings(worker: Worker, cluster: Cluster) -> list[Worker]:
    """The workers of its degree that would be one of the next larger degree, itself among them.

    Raises :class:`AdminError`.
    """
    larger = [degree for degree in cluster.geometry.cp_degrees if degree > worker.degree]
    if not larger:
        raise AdminError(f"{worker.name} has the largest degree")
    base = worker.ranks[0] - worker.ranks[0] % larger[0]
    ranks = range(base, base + larger[0])
    found = [w for w in cluster.workers if w.degree == worker.degree and w.ranks[0] in ranks]
    if sum(len(w.ranks) for w in found) != larger[0]:
        raise AdminError(f"a sibling of {worker.name} has another degree now")
    return found


def consequences(action: Action, plan: dict[str, Any], cluster: Cluster) -> Facts:
    """What the plan of the node comes to, for the question."""
    workers = [w for w in cluster.workers if w.name in action.body.get("workers", ())]
    if action.kind == "reclaim":
        return _goes(plan, cluster)
    facts: Facts = [("composition", cluster.composition)]
    for planned in plan.get("planned", ()):
        if "after" in planned:
            after = composition_after(cluster, planned["before"], planned["after"])
            facts.append(("afterwards", after))
            facts.append(("drain", f"about {seconds(planned['predicted_drain_s'])} s"))
    if workers:
        running = [name for worker in workers for name in worker.running]
        waiting = sum(worker.waiting for worker in workers)
        facts.append(("runs to its end", " ".join(running) or "nothing"))
        facts.append(("placed elsewhere", f"{waiting} waiting requests"))
    return facts


def _goes(plan: dict[str, Any], cluster: Cluster) -> Facts:
    """By home: what the prefix and all behind it come to."""
    tokens = cluster.geometry.block_tokens
    facts: Facts = [
        (
            f"home {each['home']}",
            f"{each['blocks']} blocks, {count(each['blocks'] * tokens)} tokens"
            if each["blocks"]
            else "needed by what runs or is copied: it stays",
        )
        for each in plan.get("planned", ())
    ]
    return [*facts, ("affected", "the next request with it computes it anew")]


def composition_after(cluster: Cluster, before: list[str], after: list[str]) -> str:
    """``1CP4/2CP2``, once the workers ``before`` have become those ``after``."""
    names = [w.name for w in cluster.workers if w.name not in before] + after
    degrees = Counter(int(found[1]) for name in names if (found := re.match(r"CP(\d+)", name)))
    return "/".join(f"{degrees[degree]}CP{degree}" for degree in sorted(degrees, reverse=True))


async def plan(address: Address, action: Action) -> dict[str, Any]:
    """Raises :class:`AdminError`."""
    if not action.planned:
        return {}
    try:
        async with asyncio.timeout(PLAN_S):
            return await _post(address, action.path, {**action.body, "dry_run": True})
    except TimeoutError as error:
        raise AdminError(f"{address} does not answer") from error


async def carry_out(address: Address, action: Action) -> dict[str, Any]:
    """Returns when it is over, which takes as long as it takes. Raises :class:`AdminError`."""
    return await _post(address, action.path, action.body)


async def _post(address: Address, path: str, content: dict[str, Any]) -> dict[str, Any]:
    body = msgspec.json.encode(content)
    headers = {
        "Host": address.host or "localhost",
        "Content-Type": "application/json",
        "Content-Length": str(len(body)),
        "Connection": "close",
        **address.headers,
    }
    client = h11.Connection(h11.CLIENT)
    sent = client.send(h11.Request(method="POST", target=path, headers=list(headers.items())))
    sent += client.send(h11.Data(data=body)) + client.send(h11.EndOfMessage())
    try:
        reader, writer = await address.open()
        with closing(writer):
            writer.write(sent)
            await writer.drain()
            status, answer = await _answer(client, reader)
        read = msgspec.json.decode(answer, type=dict[str, Any])
    except OSError as error:
        raise AdminError(f"{address}: {error.strerror or error}") from error
    except (h11.RemoteProtocolError, msgspec.DecodeError) as error:
        raise AdminError(f"{address}: this is no vertumnusd: {error}") from error
    if status != 200:
        message = read.get("error", {}).get("message", "")
        raise AdminError(message or f"HTTP {status}")
    return read


async def _answer(client: h11.Connection, reader: asyncio.StreamReader) -> tuple[int, bytes]:
    status, body = 0, b""
    while True:
        event = client.next_event()
        if event is h11.NEED_DATA:
            client.receive_data(await reader.read(READ_BYTES))
        elif isinstance(event, h11.Response):
            status = event.status_code
        elif isinstance(event, h11.Data):
            body += event.data
            if len(body) > ANSWER_BYTES:
                raise h11.RemoteProtocolError("the answer is too long")
        elif isinstance(event, h11.EndOfMessage):
            return status, body
