"""Node → console: the cluster as it is, then what changes; and the same, kept in a recording.

A feed begins with a ``FeedSnapshot``; ``FeedDelta`` frames follow, each with the next number. Lists
whose entries have names (``ENTRY_NAMES``) change entry by entry, everything else as a whole. All
times are seconds on the node's clock, which begins anywhere; ``wall_s`` is the Unix time at ``t``.

A recording is JSON lines: a ``RecordingHeader``, then ``RecordingLine``.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

RECORDING_FORMAT: Literal["vertumnus-recording"] = "vertumnus-recording"
RECORDING_VERSION = 1

# Lists of a cluster, and what names an entry of each.
ENTRY_NAMES = {
    "workers": "name",
    "requests": "request",
    "operations": "operation",
    "homes": "base",
    "transfers": "transfer",
    "decode": "rank",
}

Cluster = dict[str, Any]
Entry = dict[str, Any]
Name = str | int


class EntryChanges(msgspec.Struct, frozen=True, omit_defaults=True):
    """Of one list: entries that are new or other than before, and the names of those that left."""

    put: list[Entry] = []
    drop: list[Name] = []


class FeedSnapshot(msgspec.Struct, frozen=True, tag="snapshot"):
    """All there is to see, and the last events before it."""

    seq: int
    t: float
    wall_s: float
    cluster: Cluster
    events: list[Entry] = []


class FeedDelta(msgspec.Struct, frozen=True, tag="delta", omit_defaults=True):
    """What is other than in the frame before. Of too many events the first ones are left out."""

    seq: int
    t: float
    changed: dict[str, Any] = {}
    entries: dict[str, EntryChanges] = {}
    events: list[Entry] = []
    events_lost: int = 0


FeedFrame = FeedSnapshot | FeedDelta


class RecordingHeader(msgspec.Struct, frozen=True, kw_only=True):
    """``wall_s``: Unix time at t = 0; recordings on virtual time have none."""

    format: Literal["vertumnus-recording"] = RECORDING_FORMAT
    version: int = RECORDING_VERSION
    interval_s: float
    policy: str = ""
    wall_s: float | None = None


class RecordingLine(msgspec.Struct, frozen=True):
    """The cluster at ``t``, and the events since the line before."""

    t: float
    cluster: Cluster
    events: list[Entry] = []
