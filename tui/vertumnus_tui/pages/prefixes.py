"""The prefix cache: what is hot and where it lies, what is being copied, how full the homes are."""

from __future__ import annotations

from vertumnus_tui.bars import bar
from vertumnus_tui.cluster import Cluster, Home, Prefix, Transfer
from vertumnus_tui.model import Model
from vertumnus_tui.numbers import count, duration, percent, seconds, size
from vertumnus_tui.page import Page, View
from vertumnus_tui.table import Column, Table
from vertumnus_tui.text import Line, Span, line

CACHE_EVENTS = ("Replicate", "Replicated", "TransferFailed", "Reclaim")
EVENTS_SHOWN = 50
HOT_LEAST, REST = 7, 24  # hot prefixes that are shown, and lines that others may have


def page(model: Model, view: View) -> Page:
    cluster = model.cluster
    hot = cluster.hot_prefixes[: max(HOT_LEAST, view.height - REST)]
    body: list[Line] = []
    keys: list[str] = []
    sections: tuple[tuple[list[Line], list[str]], ...] = (
        (_transfers(model, view), [f"transfer {each.transfer}" for each in cluster.transfers]),
        (_hot(hot, cluster, view), [f"prefix {prefix.prefix}" for prefix in hot]),
        (_homes(cluster, view), [f"home {home.base}" for home in cluster.homes]),
        (_events(model, view), []),
    )
    for lines, names in sections:
        if lines:
            body += [*lines, line()]
            keys += [*[""] * (len(lines) - len(names)), *names, ""]
    return Page([_trie(cluster), _totals(cluster), line()], body, keys)


def _trie(cluster: Cluster) -> Line:
    trie, tokens = cluster.prefixes, cluster.geometry.block_tokens
    blocks = trie.get("blocks", 0)
    return line(
        Span("  trie    ", "title"),
        f"{count(blocks)} blocks, {count(blocks * tokens)} tokens",
        Span("   pending ", "dim"),
        count(trie.get("pending_blocks", 0)),
        Span("   memory ", "dim"),
        size(trie.get("memory_bytes", 0)),
    )


def _totals(cluster: Cluster) -> Line:
    return line(
        Span("  hits    ", "title"),
        f"{percent(cluster.slo.hit_rate)} of all input tokens",
        Span("   block ", "dim"),
        f"{cluster.geometry.block_tokens} tokens",
        Span("   home ", "dim"),
        f"{cluster.geometry.home_ranks} ranks",
    )


def _hot(hot: list[Prefix], cluster: Cluster, view: View) -> list[Line]:
    degrees = cluster.geometry.cp_degrees
    columns = [
        Column("hot prefix", 10),
        Column("tokens", 7, ">"),
        Column("access", 14, ">"),
        Column("missed s", 8, ">"),
        *(Column(f"CP{degree}", 4, ">") for degree in degrees),
        Column("homes", 0),
    ]
    table = Table(columns, view.width)
    most = max((prefix.access for prefix in hot), default=0.0)
    rows = [_prefix(prefix, degrees, most, view, table) for prefix in hot]
    if not rows:
        rows = [line(Span("  none has been used, or replication is off", "dim"))]
    return [table.header, *rows]


def _prefix(prefix: Prefix, degrees: list[int], most: float, view: View, table: Table) -> Line:
    workers = {replicas.degree: replicas.workers for replicas in prefix.replicas}
    used = bar(prefix.access / most if most else 0.0, 8, view.glyphs)
    holders = [workers.get(degree, 0) for degree in degrees]
    return table.row(
        Span(prefix.prefix, "accent"),
        count(prefix.tokens),
        (*used, Span(f"{prefix.access:>6.1f}")),
        Span(seconds(prefix.missed_s), "warn" if prefix.missed_s else ""),
        *(Span(str(n) if n else "-", "" if n else "dim") for n in holders),
        " ".join(map(str, prefix.homes)),
    )


def _transfers(model: Model, view: View) -> list[Line]:
    transfers = model.cluster.transfers
    if not transfers:
        return []
    columns = [
        Column("transfer", 8),
        Column("prefix", 8),
        Column("kind", 5),
        Column("homes", 8),
        Column("phase", 10),
        Column("copied", 0, least=12),
        Column("of", 8, ">"),
        Column("left", 5, ">"),
    ]
    table = Table(columns, view.width)
    return [table.header, *(_transfer(model, each, view, table) for each in transfers)]


def _transfer(model: Model, transfer: Transfer, view: View, table: Table) -> Line:
    whole, arrow = model.cluster.bytes_of(transfer), view.glyphs.arrow
    share = transfer.kv_bytes / whole if whole and transfer.kv_bytes is not None else None
    left = transfer.deadline - model.t if transfer.deadline is not None else None
    width = max(12, view.width - 72)
    copied: Line = line(Span("under way", "dim"))
    if share is not None:
        copied = (*bar(share, width - 6, view.glyphs), Span(f" {percent(min(1.0, share)):>5}"))
    return table.row(
        str(transfer.transfer),
        Span(transfer.prefix, "accent"),
        transfer.kind or "-",
        f"{transfer.source_home} {arrow} {transfer.destination_home}",
        Span(transfer.phase or "-", "dim" if transfer.phase == "queued" else ""),
        copied,
        size(whole) if whole else f"{count(transfer.blocks)} bl.",
        duration(left) if left is not None else "-",
    )


def _homes(cluster: Cluster, view: View) -> list[Line]:
    columns = [
        Column("home", 7),
        Column("full", 0, least=12),
        Column("cached", 8, ">"),
        Column("pinned", 8, ">"),
        Column("set aside", 9, ">"),
        Column("free", 8, ">"),
    ]
    table = Table(columns, view.width)
    rows = [_home(home, cluster, view, table) for home in cluster.homes]
    return [table.header, *rows] if rows else []


def _home(home: Home, cluster: Cluster, view: View, table: Table) -> Line:
    whole = cluster.geometry.kv_blocks * len(home.ranks) or home.cached_blocks + home.free_blocks
    share = home.cached_blocks / whole if whole else 0.0
    ends = sorted({home.ranks[0], home.ranks[-1]}) if home.ranks else [home.base]
    width = max(12, view.width - 60)
    return table.row(
        "-".join(map(str, ends)),
        (*bar(share, width, view.glyphs), Span(f" {percent(share):>4}")),
        *(
            count(blocks)
            for blocks in (
                home.cached_blocks,
                home.pinned_blocks,
                home.reserved_blocks,
                home.free_blocks,
            )
        ),
    )


def _events(model: Model, view: View) -> list[Line]:
    """The last copies and reclaims."""
    shown = [event for event in reversed(model.events) if event.kind in CACHE_EVENTS]
    if not shown:
        return []
    table = Table([Column("at", 8), Column("lately", 11), Column("", 0)], view.width)
    rows = (
        table.row(Span(model.clock(e.t), "dim"), Span(e.about.label, e.about.style), e.about.text)
        for e in shown[:EVENTS_SHOWN]
    )
    return [table.header, *rows]
