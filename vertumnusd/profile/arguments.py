"""The flags of ``vertumnusd profile``, and what they come to once everything is checked."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from vertumnusd.checkpoint import DTYPES, PACKAGED, CheckpointError, model_info, resolve
from vertumnusd.config import PROFILES, Config, ConfigError, load_config, profile_name
from vertumnusd.control.settings import SLO, SloClass
from vertumnusd.messages import ModelInfo
from vertumnusd.node.memory import plan_memory
from vertumnusd.profile.disturbance import kernel_counts
from vertumnusd.profile.grid import CACHED_SHARES, QUICK_SHARES, SHORTEST_TOKENS
from vertumnusd.profile.load import check_load
from vertumnusd.simulate.arguments import count, positive

LONGEST_TOKENS, QUICK_LONGEST_TOKENS = 8192, 2048
LOAD_REQUESTS, QUICK_LOAD_REQUESTS = 100, 24
QUICK_BUDGET_S = 50.0  # for the grid; start, load and probes come on top


@dataclass(frozen=True, slots=True)
class Wanted:
    """A profile that can be made, as far as is known before any process starts."""

    config: Config
    path: Path
    model: ModelInfo
    longest: int  # tokens
    shares: Sequence[float]  # of the input, cached
    budget_s: float | None  # for the grid; None: three rounds
    load: str
    load_requests: int
    slo: Sequence[SloClass]
    out: Path
    quick: bool


def add_profile(parser: argparse.ArgumentParser) -> None:
    """The flags of ``vertumnusd profile``."""
    add = parser.add_argument
    add("model", help="a .gguf file, a checkpoint folder, or a name")
    add("--config", type=Path, help="take ranks, degrees, homes and blocks from this file")
    add("--ranks", type=count, help="prefill ranks; else the file's, else one for each core")
    add("--degrees", help="context-parallel degrees, such as 1,2; else all that the ranks allow")
    add("--dtype", choices=DTYPES, help="compute and KV type")
    add("--longest", type=count, metavar="TOKENS", help="longest input measured")
    add("--budget", type=positive, metavar="MINUTES", help="for prefill times; else three rounds")
    add("--load", default="conversation", help="what κ is measured with: a workload or a trace")
    add(
        "--slo",
        metavar="TOKENS:SECONDS,…",
        help="TTFT limits by input length, such as 8192:1,inf:5",
    )
    add("--quick", action="store_true", help="fewer and shorter points, under two minutes")
    add("--out", type=Path, metavar="FILE", help="the profile, .toml; its picture lies beside it")


def wanted(arguments: argparse.Namespace) -> Wanted:
    """Raises ConfigError for whatever is wrong with the flags."""
    if not kernel_counts():
        raise ConfigError("this kernel has no /proc/PID/schedstat, which tells disturbed runs")
    check_load(arguments.load)
    slo = _slo(arguments.slo) if arguments.slo else SLO
    try:
        path = resolve(arguments.model)
        config = _config(arguments)
        name = arguments.model if arguments.model in PACKAGED else ""
        model = model_info(path, name, config.model.dtype)
    except CheckpointError as error:
        raise ConfigError(str(error)) from error
    longest = _longest(arguments, model)
    config = plan_memory(_with_pools(config, longest), model)
    out = arguments.out or PROFILES / f"{profile_name(model.name, model.dtype)}.toml"
    _check_out(out)
    quick = arguments.quick
    return Wanted(
        config=config,
        path=path,
        model=model,
        longest=longest,
        shares=QUICK_SHARES if quick else CACHED_SHARES,
        budget_s=arguments.budget * 60 if arguments.budget else QUICK_BUDGET_S if quick else None,
        load=arguments.load,
        load_requests=QUICK_LOAD_REQUESTS if quick else LOAD_REQUESTS,
        slo=slo,
        out=out,
        quick=quick,
    )


def _config(arguments: argparse.Namespace) -> Config:
    """Of the file, if there is one, with the flags over it; else for this machine."""
    given = load_config(arguments.config)
    machine = arguments.config is None
    ranks = arguments.ranks or (len(os.sched_getaffinity(0)) if machine else given.cluster.ranks)
    if arguments.degrees:
        degrees = _degrees(arguments.degrees)
    elif machine:
        degrees = [1 << n for n in range(ranks.bit_length())]
    else:
        degrees = list(given.cluster.cp_degrees)
    if max(degrees) > ranks:
        raise ConfigError(
            f"degree {max(degrees)} needs {max(degrees)} ranks, but there are {ranks}:"
            f" give --ranks {max(degrees)} or --degrees of at most {ranks}"
        )
    cluster: dict[str, Any] = {"ranks": ranks, "cp_degrees": degrees, "composition": ""}
    model = {"path": arguments.model} | ({"dtype": arguments.dtype} if arguments.dtype else {})
    return load_config(arguments.config, {"cluster": cluster, "model": model})


def _degrees(text: str) -> list[int]:
    try:
        return sorted({count(degree) for degree in text.split(",")})
    except (ValueError, argparse.ArgumentTypeError) as error:
        raise ConfigError(f"--degrees {text}: numbers such as 1,2,4 are expected") from error


def _longest(arguments: argparse.Namespace, model: ModelInfo) -> int:
    usual = QUICK_LONGEST_TOKENS if arguments.quick else LONGEST_TOKENS
    longest = int(arguments.longest or min(usual, model.context_tokens))
    if not 2 * SHORTEST_TOKENS <= longest <= model.context_tokens:
        raise ConfigError(
            f"--longest {longest}: {2 * SHORTEST_TOKENS} … {model.context_tokens} is allowed,"
            f" the context of {model.name}"
        )
    return longest


def _with_pools(config: Config, longest: int) -> Config:
    """Pools for the quarry and one more prompt, on one home; no decode rank is started."""
    block = config.cache.block_tokens
    tokens = 2 * (-(-longest // block) + 1) * block
    replace = msgspec.structs.replace
    cache = replace(config.cache, kv_tokens=tokens, decode_kv_tokens=block)
    return replace(config, cache=cache)


def _slo(text: str) -> tuple[SloClass, ...]:
    """``TOKENS:SECONDS,…``, rising, the last without an end."""
    try:
        pairs = [part.split(":") for part in text.split(",")]
        classes = tuple(SloClass(float(tokens), positive(limit)) for tokens, limit in pairs)
    except (ValueError, argparse.ArgumentTypeError) as error:
        raise ConfigError(f"--slo {text}: TOKENS:SECONDS,… is expected, above 0") from error
    bounds = [bound.below_tokens for bound in classes]
    if bounds != sorted(set(bounds)) or bounds[0] <= 0 or bounds[-1] != float("inf"):
        raise ConfigError(f"--slo {text}: rising lengths are expected, the last one inf")
    return classes


def _check_out(out: Path) -> None:
    if out.suffix != ".toml":
        raise ConfigError(f"--out {out}: a .toml file is expected")
    for path in (out, out.with_suffix(".png")):
        place = path if path.exists() else path.parent
        if path.is_dir() or not place.exists() or not os.access(place, os.W_OK):
            raise ConfigError(f"--out {out}: {path} cannot be written; name a file that can")
