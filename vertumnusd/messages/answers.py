"""What a gateway receives for one request, in this order: ``Placed``, tokens, one ending."""

from __future__ import annotations

from vertumnusd.messages.base import Message
from vertumnusd.messages.control import Placed


class Token(Message, frozen=True):
    token: int


class Finished(Message, frozen=True):
    """The last event of a request that succeeded. Times in seconds from its arrival at the gateway.

    ``ttft_s``: first token; ``handoff_ttft_s``: first token after hand-off and one decode step (the
    paper's TTFT; equal to ``ttft_s`` when nothing was decoded).
    """

    reason: str  # "stop", "length" or "prefilled"
    worker: str
    degree: int
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    queue_s: float
    predicted_s: float
    prefill_s: float
    ttft_s: float
    handoff_ttft_s: float
    total_s: float


class Failed(Message, frozen=True):
    """The last event of a request that did not succeed; the client sees ``code`` and ``status``."""

    status: int
    code: str
    reason: str
    retry_after_s: float = 0.0


Answer = Placed | Token | Finished | Failed
