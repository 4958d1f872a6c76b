"""A request that this node's gateway accepted, from its submission until its answer is over."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any

from vertumnusd.control.answering import AdmitToLead, Answering
from vertumnusd.control.lead import Lead, Prefill
from vertumnusd.messages import Submit
from vertumnusd.node.service import Job

Chain = Callable[[list[int], bytes], bytes]  # tokens, salt → chained block hashes


class Accepted:
    """``answering`` says what to do for it; ``chain`` names the blocks of its tokens."""

    __slots__ = ("answering", "chain", "job")

    def __init__(self, job: Job, chain: Chain) -> None:
        self.job = job
        self.answering = Answering(
            request=job.request,
            input_tokens=len(job.tokens),
            max_new_tokens=job.max_new_tokens,
            sampling=job.sampling,
            stop_tokens=job.stop_tokens,
            arrived=job.arrived,
        )
        self.chain = chain(job.tokens, job.salt)

    def submit(self) -> Submit:
        job = self.job
        return Submit(job.request, 0, len(job.tokens), self.chain, job.max_new_tokens)

    def resubmit(self, attempt: int, chain: Chain) -> Submit:
        """Behind the tokens that its client has."""
        tokens = self._tokens()
        self.chain = chain(tokens, self.job.salt)
        left = self.answering.tokens_left
        return Submit(self.job.request, attempt, len(tokens), self.chain, left)

    def prefill(self, admitted: AdmitToLead) -> Prefill:
        return Prefill(
            dispatch=admitted.dispatch,
            tokens=array("I", self._tokens()).tobytes(),
            chain=self.chain,
            sampling=self.job.sampling,
            position=admitted.position,
            keep=True,
        )

    def show(self, placed: dict[str, Any], lead: Lead | None) -> dict[str, Any]:
        """``placed``: what the controller shows of it, if anything; ``lead``: who runs it."""
        answering, dispatch = self.answering, self.answering.dispatch
        progress = lead.progress(self.job.request) if lead is not None else None
        return {
            **placed,
            "request": self.job.request,
            "phase": answering.phase,
            "worker": dispatch.worker if dispatch is not None else placed.get("worker"),
            "input_tokens": len(self.job.tokens),
            "output_tokens": len(answering.emitted),
            "predicted_s": dispatch.predicted_s if dispatch else placed.get("predicted_s"),
            "ttft_s": answering.ttft_s,
            "layers_done": progress[0] if progress else None,
            "layers": progress[1] if progress else None,
        }

    def _tokens(self) -> list[int]:
        """Of its prompt, and those that were generated."""
        return self.job.tokens + self.answering.emitted
