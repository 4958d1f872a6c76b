"""All about one line of a page: what stands in it in full, and what explains it."""

from __future__ import annotations

from collections.abc import Callable

from vertumnus_tui.cluster import Request, Worker
from vertumnus_tui.model import Model
from vertumnus_tui.numbers import count, percent, seconds, size
from vertumnusd.messages import Placed

Facts = list[tuple[str, str]]


def details(model: Model, key: str) -> tuple[str, Facts]:
    """A title, and pairs of a name and what is so called. What is gone has no pairs."""
    kind, _, name = key.partition(" ")
    about = _ABOUT.get(kind)
    return f"{kind} {name}", about(model, name) if about else []


def _worker(model: Model, name: str) -> Facts:
    found: Worker | None = next((w for w in model.cluster.workers if w.name == name), None)
    if found is None:
        return []
    homes = model.cluster.homes_of(found)
    return [
        ("state", model.cluster.state_of(found)),
        ("degree", str(found.degree)),
        ("ranks", " ".join(map(str, found.ranks))),
        ("ranks down", " ".join(map(str, found.ranks_down)) or "none"),
        ("epoch", str(found.epoch)),
        ("queue", f"{seconds(found.queue_s)} s of predicted prefills"),
        ("runs", " ".join(found.running) or "nothing"),
        ("waiting", f"{found.waiting}" + (f", {found.blocked}" if found.blocked else "")),
        ("cached", f"{count(model.cluster.cached_tokens(found))} tokens in {len(homes)} homes"),
        ("hit rate", f"{percent(found.hit_rate)} of {count(found.input_tokens)} input tokens"),
    ]


def _request(model: Model, name: str) -> Facts:
    found = model.request(name)
    placed = model.placements.get(name)
    facts = _state(model, found) if found else []
    return [*facts, *_placement(placed)] if placed else facts


def _state(model: Model, request: Request) -> Facts:
    at = model.clock(request.accepted_at) if request.accepted_at is not None else "-"
    progress = model.progress(request.request)
    return [
        ("phase", request.phase),
        ("worker", request.worker or "none yet"),
        ("input", f"{count(request.input_tokens)} tokens"),
        ("output", f"{count(request.output_tokens)} tokens"),
        ("accepted", at),
        ("attempt", str(request.attempt + 1)),
        ("predicted", f"{seconds(request.predicted_s)} s"),
        ("progress", percent(progress)),
        ("TTFT", f"{seconds(request.ttft_s)} s"),
        ("decode rank", "-" if request.decode_rank is None else str(request.decode_rank)),
    ]


def _placement(placed: Placed) -> Facts:
    """J = q + β·s + price, with this placement's numbers."""
    beta_s = placed.cost_s - placed.queue_s - placed.gpu_price_s
    return [
        ("placed at", f"{placed.worker}, degree {placed.degree}"),
        ("preferred degree", str(placed.preferred_degree)),
        ("cached", f"{count(placed.cached_tokens)} of {count(placed.input_tokens)} tokens"),
        ("q", f"{seconds(placed.queue_s)} s until its turn"),
        ("s", f"{seconds(placed.service_s)} s for its prefill"),
        ("β·s", f"{seconds(beta_s)} s"),
        ("λ price", f"{seconds(placed.gpu_price_s)} s for more devices"),
        ("J", f"{seconds(placed.cost_s)} s, the least of all workers"),
    ]


def _conversion(model: Model, number: str) -> Facts:
    found = next((c for c in model.conversions if str(c.converted.operation) == number), None)
    if found is None:
        return []
    over = found.converted
    return [
        ("at", model.clock(found.t)),
        ("kind", over.kind),
        ("before", " ".join(over.before)),
        ("after", " ".join(over.after)),
        ("outcome", over.outcome),
        ("drain", f"{seconds(over.drain_s)} s"),
        ("switch", f"{seconds(over.switch_s)} s"),
        ("begun for", found.reason),
        ("ended in", f"{over.phase} {over.reason}"),
    ]


def _prefix(model: Model, name: str) -> Facts:
    found = next((p for p in model.cluster.hot_prefixes if p.prefix == name), None)
    if found is None:
        return []
    return [
        ("tokens", count(found.tokens)),
        ("access", f"{found.access:.2f}, decaying"),
        ("missed", f"{seconds(found.missed_s)} s lost for want of a replica"),
        ("homes", " ".join(map(str, found.homes)) or "none"),
        *((f"CP{r.degree}", f"{r.workers} workers hold it") for r in found.replicas),
    ]


def _transfer(model: Model, number: str) -> Facts:
    found = next((t for t in model.cluster.transfers if str(t.transfer) == number), None)
    if found is None:
        return []
    return [
        ("prefix", found.prefix),
        ("kind", found.kind or "-"),
        ("phase", found.phase or "-"),
        ("blocks", count(found.blocks)),
        ("copied", f"{size(found.kv_bytes or 0)} of {size(model.cluster.bytes_of(found))}"),
        ("from home", str(found.source_home)),
        ("to home", str(found.destination_home)),
    ]


def _home(model: Model, base: str) -> Facts:
    found = next((h for h in model.cluster.homes if str(h.base) == base), None)
    if found is None:
        return []
    return [
        ("ranks", " ".join(map(str, found.ranks))),
        ("cached", f"{found.cached_blocks} blocks"),
        ("pinned", f"{found.pinned_blocks} blocks"),
        ("set aside", f"{found.reserved_blocks} blocks"),
        ("free", f"{found.free_blocks} blocks"),
    ]


def _event(model: Model, number: str) -> Facts:
    found = next((e for e in model.events if str(e.number) == number), None)
    if found is None:
        return []
    return [("at", model.clock(found.t)), (found.about.label, found.about.text)]


_ABOUT: dict[str, Callable[[Model, str], Facts]] = {
    "worker": _worker,
    "request": _request,
    "conversion": _conversion,
    "prefix": _prefix,
    "transfer": _transfer,
    "home": _home,
    "event": _event,
}
