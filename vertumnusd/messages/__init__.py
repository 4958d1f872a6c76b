"""Every event, command and wire message of Vertumnus. Imports nothing of ours.

Five conversations, a module each but for the first two, which share ``rank.py``; what prefill ranks
hold, and copies between them, are in ``blocks.py``:

* node daemon ↔ prefill rank (a socketpair; msgpack frames)
* node daemon ↔ decode rank (the same)
* controller ↔ node: events in, commands out (``control.py``)
* answers: what a gateway receives for one request, in order (``answers.py``)
* node → console: the cluster and what changes in it (``feed.py``)

Token ids travel as little-endian u32 bytes, block hashes as 16-byte strings laid end to
end; both are cheaper than lists by three orders of magnitude. ``(term, epoch)`` is the
fencing token: a rank refuses a command older than the one it adopted.
"""

from __future__ import annotations

# ruff: noqa: F403
from vertumnusd.messages.answers import *
from vertumnusd.messages.base import *
from vertumnusd.messages.blocks import *
from vertumnusd.messages.control import *
from vertumnusd.messages.feed import *
from vertumnusd.messages.model import *
from vertumnusd.messages.pace import *
from vertumnusd.messages.rank import *
