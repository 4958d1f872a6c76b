"""What one rank does of a step: its rows of every part, and the windows they are computed in.

The rows of the parts lie behind one another, so that every product with a weight is one for the
whole pack. A window is a stretch of rows that goes through attention and MLP at once: all of them,
unless the memory for that is missing (``activation.py``).

Shapes: T this rank's rows of all parts, S suffix tokens, P prefix tokens, E hidden, H heads,
D head dim.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from vertumnus_kernels.attention import attend, merge

from vertumnusd.rank.exchange import KV, Fetched
from vertumnusd.rank.job import Job
from vertumnusd.rank.plan import Chunk, Chunks, PartPlan


@dataclass(slots=True, eq=False)
class Share:
    """This rank's share of one part. ``chunks`` have their rows among those of the whole pack."""

    part: PartPlan
    job: Job
    chunks: Chunks
    ahead: Fetched | None = None  # the prefix of the layer to come
    failure: str = ""

    @property
    def rows(self) -> slice:
        first = self.chunks[0].row if self.chunks else 0
        return slice(first, first + self.job.rows)


class Source(NamedTuple):
    """What the rows of a share attend to at one layer, all (S, H, D): the whole suffix, of which a
    query sees what is before it, and the cached prefix in pieces, of which it sees everything."""

    suffix: KV
    prefix: list[KV]

    def attend(self, chunks: Chunks, q_THD: Tensor, scale: float) -> Tensor:
        """Attention (T, H, D), float32, of consecutive rows: the queries of these chunks."""
        k_SHD, v_SHD = self.suffix
        first = chunks[0].row
        own = [
            attend(
                q_THD[chunk.row - first : chunk.rows.stop - first],
                k_SHD[: chunk.stop],
                v_SHD[: chunk.stop],
                True,
                scale,
            )
            for chunk in chunks
        ]
        part = own[0]
        if len(own) > 1:
            part = torch.cat([out for out, _ in own]), torch.cat([lse for _, lse in own], 1)
        for k_PHD, v_PHD in self.prefix:
            part = merge([part, attend(q_THD, k_PHD, v_PHD, False, scale)])
        return part[0]


class Window(NamedTuple):
    """Consecutive rows, and whose they are."""

    rows: slice
    chunks: list[tuple[Share, Chunks]]


@dataclass(frozen=True, slots=True)
class Pack:
    """The parts of a step that this rank knows."""

    shares: list[Share]
    positions_T: Tensor

    @property
    def rows(self) -> int:
        return self.positions_T.numel()

    def hidden(self) -> Tensor:
        """The hidden states (T, E) that the jobs kept."""
        kept = [share.job.x_TE for share in self.shares if share.job.x_TE is not None]
        assert len(kept) == len(self.shares), "the first step of a request starts at layer 0"
        return kept[0] if len(kept) == 1 else torch.cat(kept)

    def keep(self, x_TE: Tensor) -> None:
        """Give the jobs their hidden states, until the next step."""
        for share in self.shares:
            share.job.x_TE = x_TE[share.rows]

    def last_rows(self) -> tuple[list[Share], Tensor, list[Window]]:
        """Who has its last token here, the rows of those tokens, and the one window of these rows.

        After the last layer nothing follows but the logits of these.
        """
        shares = [share for share in self.shares if share.job.has_last]
        rows_N = torch.tensor([share.chunks[-1].rows.stop - 1 for share in shares])
        chunks = []
        for row, share in enumerate(shares):
            last = share.part.suffix_tokens
            chunks.append((share, (Chunk(last - 1, last, row),)))
        return shares, rows_N, [Window(slice(0, len(shares)), chunks)] if shares else []

    def windows(self, most_rows: int) -> list[Window]:
        """All rows in windows of at most so many; one, if that is enough."""
        found = []
        for start in range(0, self.rows, most_rows):
            rows = slice(start, min(start + most_rows, self.rows))
            cut = [(share, _within(share.chunks, rows)) for share in self.shares]
            found.append(Window(rows, [(share, chunks) for share, chunks in cut if chunks]))
        return found


def open_pack(known: Sequence[tuple[PartPlan, Job]]) -> Pack:
    """Lay the rows of the parts behind one another."""
    shares, row = [], 0
    for part, job in known:
        chunks = tuple(Chunk(c.start, c.stop, c.row + row) for c in job.chunks)
        shares.append(Share(part, job, chunks))
        row += job.rows
    return Pack(shares, torch.cat([job.positions_T for _, job in known]))


def _within(chunks: Chunks, rows: slice) -> Chunks:
    """What of the chunks lies in these rows."""
    found = []
    for chunk in chunks:
        first, stop = max(chunk.row, rows.start), min(chunk.rows.stop, rows.stop)
        if first < stop:
            ahead = first - chunk.row
            found.append(Chunk(chunk.start + ahead, chunk.start + ahead + stop - first, first))
    return tuple(found)
