"""Whether a request waits for one ahead of it on its worker, to find its blocks in the cache."""

from __future__ import annotations

from vertumnusd.control.promised import common_blocks
from vertumnusd.control.step_order import Steppable
from vertumnusd.messages import HASH_BYTES


def follows(run: Steppable, ahead: Steppable) -> bool:
    """Whether ``run`` should reserve after ``ahead``.

    It must while ``ahead`` is in its last step: blocks of a prefill that may still fail are not
    for others. Before that it waits if ``ahead`` computes blocks that both need and is done no
    later than ``run`` would be without them; a short request does not wait for a long one.
    """
    root = run.chain[:HASH_BYTES]
    if not root or root != ahead.chain[:HASH_BYTES]:
        return False
    geometry = run.geometry
    if ahead.next_layer == geometry.layers or ahead.ending is not None:
        return ahead.next_layer == geometry.layers
    cached_tokens = ahead.cached_tokens
    if ahead.reserved:
        shared_tokens = common_blocks(run.chain, ahead.chain) * geometry.block_tokens
        max_cached_tokens = (run.input_tokens - 1) // geometry.block_tokens * geometry.block_tokens
        if min(shared_tokens, max_cached_tokens) <= cached_tokens:
            return False
    alone_s = geometry.predict_s(run.input_tokens - cached_tokens, cached_tokens)
    return ahead.remaining_s <= alone_s
