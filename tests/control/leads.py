"""A lead without a cluster: prefills to admit, ranks' answers, and the messages in its commands."""

from array import array

from vertumnusd.control.lead import Lead, Prefill, SendRank
from vertumnusd.control.prefill_time import Coefficients, PrefillTime
from vertumnusd.control.step_order import StepLimits
from vertumnusd.messages import Dispatch, Reserve, Reserved, Sampling, Step, StepDone

DECODE = 9
BLOCK = 4
LAYERS = 6


def new_lead(
    degree: int = 1,
    step_s: float = 1.0,
    prefill_s: float = 2.0,
    token_s: float = 0.0,
    limits: StepLimits | None = None,
) -> Lead:
    """Every prefill takes ``prefill_s``, and ``token_s`` for each uncached token."""
    return Lead(
        term=1,
        epoch=5,
        degree=degree,
        base=0,
        block_tokens=BLOCK,
        layers=LAYERS,
        prefill_time=PrefillTime(Coefficients(prefill_s, token_s, 0, 0, 0)),
        limits=limits or StepLimits(step_s),
        progress_timeout_s=5.0,
    )


def prefill(
    request: str,
    tokens: int,
    chain: bytes = b"",
    home_ranks: int = 1,
    keep_homes: tuple[int, ...] = (),
) -> Prefill:
    dispatch = Dispatch(1, 5, request, 0, "CP1[0]", 1, 0, 0, home_ranks, 2.0, DECODE, 4, keep_homes)
    return Prefill(dispatch, array("I", range(tokens)).tobytes(), chain, Sampling(), 0, True)


def u32(*ids: int) -> bytes:
    return array("I", ids).tobytes()


def messages(commands, kind, rank=None):
    return [
        c.message
        for c in commands
        if isinstance(c, SendRank) and isinstance(c.message, kind) and rank in (None, c.rank)
    ]


def step_done(
    rank: int, seq: int, request: str = "a", token: int = -1, elapsed_s: float = 0.5
) -> StepDone:
    return StepDone(rank, 5, seq, elapsed_s, {request: token} if token >= 0 else {})


def running(lead: Lead, request: str = "a", tokens: int = 6, **kwargs):
    """Admit a request and let rank 0 confirm its reservation."""
    first = lead.admit(0.0, prefill(request, tokens, **kwargs))
    (reserve,) = messages(first, Reserve)
    return lead.step(0.0, reserved(reserve))


def reserved(reserve: Reserve) -> Reserved:
    """Rank 0 reserves; it holds nothing of the chain."""
    return Reserved(0, 5, reserve.request, 0, u32(*range(reserve.blocks)))


def names(step: Step) -> str:
    """The requests of a step, in one word."""
    return "+".join(part.request for part in step.parts)
