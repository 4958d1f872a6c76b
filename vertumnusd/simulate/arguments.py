"""The flags of ``vertumnusd simulate`` and ``vertumnusd reproduce``."""

from __future__ import annotations

import argparse
from pathlib import Path

from vertumnusd.simulate.conditions import Conditions
from vertumnusd.simulate.generate import WORKLOADS


def add_simulate(parser: argparse.ArgumentParser) -> None:
    """The flags of ``vertumnusd simulate``."""
    defaults = Conditions()
    add = parser.add_argument
    known = ", ".join(WORKLOADS)
    add(
        "source",
        help=f"a Mooncake trace (.jsonl, .jsonl.xz); or a generated load: {known},"
        " or phases KIND:SECONDS:RATE,…",
    )
    add("--rate", type=positive, help="mean requests/s; scales the times between arrivals")
    add("--seconds", type=positive, default=300.0, help="length of a generated load")
    add("--policies", default="all", help="comma-separated names, or all")
    add("--composition", help="of ours and paper, such as 5CP4/10CP2; else tuned")
    add("--profile", default=defaults.profile, help="name, .toml file, or table.csv[:variant]")
    add("--gpus", type=count, default=defaults.ranks, help="devices of the prefill pool")
    add("--degrees", default="2,4", help="context-parallel degrees, comma-separated")
    add("--kv-tokens", type=count, default=defaults.kv_tokens, help="tokens of KV of one device")
    add("--link", type=positive, default=25.0, help="bandwidth between devices, GB/s")
    add(
        "--noise",
        type=non_negative,
        default=defaults.noise_sigma,
        help="sigma of log prefill times",
    )
    add("--seeds", type=count, default=1, help="runs with different noise and arrivals")
    add("--jobs", type=count, default=2, help="processes")
    add("--json", type=Path, metavar="FILE", help="write every figure of every run")
    add("--plots", type=Path, metavar="FILE", help="write a PNG")
    add("--record", type=Path, metavar="FILE", help="write a recording of the first policy")
    add("--record-interval", type=positive, default=1.0, help="virtual seconds between pictures")


def add_reproduce(parser: argparse.ArgumentParser) -> None:
    """The flags of ``vertumnusd reproduce``."""
    add = parser.add_argument
    add("--traces", type=Path, metavar="DIR", help="Mooncake traces; else loads are generated")
    add("--tables", type=Path, metavar="DIR", help="measured prefill times to fit, csv")
    add("--out", type=Path, metavar="DIR", default=Path("docs"), help="gets benchmarks.md, plots/")
    add("--quick", action="store_true", help="a small part of it, in two minutes")
    add("--jobs", type=count, default=2, help="processes")


def positive(text: str) -> float:
    """A finite number above 0; ValueError for anything else."""
    value = float(text)
    if not 0 < value < float("inf"):
        raise ValueError
    return value


def non_negative(text: str) -> float:
    return 0.0 if float(text) == 0 else positive(text)


def count(text: str) -> int:
    """A whole number of at least 1; ValueError for anything else."""
    if int(text) < 1:
        raise ValueError
    return int(text)
