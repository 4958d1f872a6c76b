"""Admission: which requests are turned away on arrival, and when to come back.

A request that no worker or no decode rank could ever hold is refused for good. One that would only
overfill the queue is refused for a while: waiting is bounded in tokens, over all workers, and in
predicted seconds, on the worker with the shortest queue.
"""

from __future__ import annotations

from vertumnusd.control.errors import IllegalEvent
from vertumnusd.control.settings import Settings
from vertumnusd.messages import HASH_BYTES, Reject, Submit

RETRY_AFTER_MIN_S = 1.0


def check(settings: Settings, submit: Submit) -> None:
    """Raise IllegalEvent for a submission that no gateway can have meant."""
    hashes, odd = divmod(len(submit.chain), HASH_BYTES)
    complete = submit.input_tokens // settings.block_tokens
    if submit.input_tokens < 1 or submit.max_new_tokens < 0 or odd or hashes > complete:
        raise IllegalEvent(
            f"request {submit.request}: {submit.input_tokens} input tokens with"
            f" {len(submit.chain)} bytes of hashes and {submit.max_new_tokens} new tokens"
        )


def decode_blocks(settings: Settings, submit: Submit) -> int:
    """Blocks to set aside on a decode rank: none if the prefill draws all there is to draw."""
    if submit.max_new_tokens <= 1:
        return 0
    return settings.blocks(submit.input_tokens + submit.max_new_tokens)


def refuse_oversized(settings: Settings, submit: Submit) -> Reject | None:
    """The final refusal of a request that can never fit."""
    needed, capacity = settings.blocks(submit.input_tokens), settings.span_blocks
    if needed > capacity:
        what = f"input would take {needed} KV blocks"
        return _oversized(submit, what, "the largest worker", capacity)
    needed, capacity = decode_blocks(settings, submit), settings.decode_kv_blocks
    if needed > capacity:
        what = f"input and answer would take {needed} KV blocks"
        return _oversized(submit, what, "a decode rank", capacity)
    return None


def _oversized(submit: Submit, what: str, where: str, capacity: int) -> Reject:
    reason = f"{what}; {where} has {capacity}"
    return Reject(submit.request, submit.attempt, "context_length_exceeded", reason)


def refuse_overload(
    settings: Settings, submit: Submit, queued_tokens: int, shortest_queue_s: float
) -> Reject | None:
    """The refusal for now of a request that would overfill the queue.

    A later attempt is let in: it was accepted before, and a lost rank is no reason to drop it.
    So is any request when nothing else waits.
    """
    if submit.attempt > 0:
        return None
    tokens = queued_tokens + submit.input_tokens
    if queued_tokens and tokens > settings.max_queue_tokens:
        reason = f"{tokens} tokens would wait; {settings.max_queue_tokens} may"
        return overloaded(submit, reason, shortest_queue_s)
    if shortest_queue_s > settings.max_queue_s:
        reason = (
            f"the shortest queue is {shortest_queue_s:.1f} s; {settings.max_queue_s:g} s may be"
        )
        return overloaded(submit, reason, shortest_queue_s - settings.max_queue_s)
    return None


def overloaded(submit: Submit, reason: str, retry_after_s: float) -> Reject:
    retry_after_s = max(RETRY_AFTER_MIN_S, retry_after_s)
    return Reject(submit.request, submit.attempt, "server_is_overloaded", reason, retry_after_s)
