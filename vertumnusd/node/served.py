"""What a node serves, as its configuration says: a checkpoint, or a model that is only paced.

A paced model has the prefill times of a profile and no weights: its ranks only take the time, see
``rank/paced.py``. Its tokens are bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import msgspec
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

from vertumnusd.checkpoint import PACKAGED, model_info, resolve
from vertumnusd.config import PACED, Config, adaptation, load_profile_file
from vertumnusd.control.prefill_time import Coefficients, PrefillTime
from vertumnusd.control.settings import ReconfigurationSettings
from vertumnusd.messages import DegreePace, ModelInfo, Pace
from vertumnusd.node.detokenizer import byte_spelling
from vertumnusd.node.devices import check_devices
from vertumnusd.node.tokens import Tokens

PACED_LAYERS = 48
PACED_CONTEXT_TOKENS = 262_144
PACED_TOKEN_S = 0.03  # of one decode iteration, times the pace
PACED_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '\\n' }}"
    "{% endfor %}"
)


@dataclass(frozen=True, slots=True)
class Served:
    """The model, its tokenizer, and what is known of its speed."""

    path: str  # of the checkpoint; "" without one
    model: ModelInfo
    load_tokens: Callable[[], Tokens]
    prefill_time: PrefillTime
    adaptation: ReconfigurationSettings  # with the profile's κ_C
    profile: str  # name of its file
    pace: Pace | None = None


def open_served(config: Config) -> Served:
    """Raises ConfigError and CheckpointError."""
    return _paced(config) if config.rank.device == PACED else _checkpoint(config)


def _checkpoint(config: Config) -> Served:
    path = resolve(config.model.path)
    name = config.model.name or (config.model.path if config.model.path in PACKAGED else "")
    model = model_info(path, name, config.model.dtype)
    check_devices(config)
    profile, file = load_profile_file(config.model, model.name)
    load_tokens = partial(Tokens.load, path)
    times, settings = profile.prefill_time, adaptation(config, profile)
    return Served(str(path), model, load_tokens, times, settings, file)


def _paced(config: Config) -> Served:
    profile, file = load_profile_file(config.model, config.model.name)
    times = slowed(profile.prefill_time, config.rank.pace)
    degrees = {
        degree: DegreePace(*msgspec.structs.astuple(times.by_degree.get(degree, times.shared)))
        for degree in config.cluster.cp_degrees
    }
    pace = Pace(degrees, PACED_TOKEN_S * config.rank.pace)
    model = paced_model(config.model.name or profile.model)
    return Served("", model, byte_tokens, times, adaptation(config, profile), file, pace)


def slowed(times: PrefillTime, pace: float) -> PrefillTime:
    """All times multiplied by ``pace``."""

    def slow(k: Coefficients) -> Coefficients:
        return Coefficients(*(pace * value for value in msgspec.structs.astuple(k)))

    return PrefillTime(slow(times.shared), {d: slow(k) for d, k in times.by_degree.items()})


def paced_model(name: str) -> ModelInfo:
    """As small as can be: its KV is four bytes for a token and layer, of which most are unused."""
    return ModelInfo(
        name=name,
        architecture=PACED,
        layers=PACED_LAYERS,
        hidden=1,
        heads=1,
        kv_heads=1,
        head_dim=1,
        intermediate=1,
        vocab=256,
        context_tokens=PACED_CONTEXT_TOKENS,
        norm_eps=1e-5,
        rope_theta=1e4,
        tied_embeddings=True,
        dtype="bfloat16",
    )


def byte_tokens() -> Tokens:
    """A token for each byte of a text."""
    tokenizer = Tokenizer(BPE(byte_spelling(), []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return Tokens(tokenizer, begin=[], stop_tokens=(), template=PACED_TEMPLATE, variables={})
