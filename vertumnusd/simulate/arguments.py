"""The flags of ``vertumnusd simulate``, ``vertumnusd calibrate`` and ``vertumnusd reproduce``."""

from __future__ import annotations

import argparse
from pathlib import Path

from vertumnusd.config import ConfigError
from vertumnusd.simulate.conditions import Conditions
from vertumnusd.simulate.generate import WORKLOADS
from vertumnusd.simulate.traces import BLOCK_TOKENS

PROFILE = "prefill times: name in etc/profiles, .toml file, or table.csv[:variant]"


def add_simulate(parser: argparse.ArgumentParser) -> None:
    """The flags of ``vertumnusd simulate``."""
    add = parser.add_argument
    _add_source(parser)
    add("--policies", default="all", help="comma-separated names, or all")
    add("--composition", help="of ours and paper, such as 5CP4/10CP2; else tuned")
    add("--profile", default=Conditions().profile, help=PROFILE)
    _add_cluster(parser)
    add("--seeds", type=count, default=1, help="runs with different noise and arrivals")
    add("--jobs", type=count, default=2, help="processes")
    add("--json", type=new_file, metavar="FILE", help="write every figure of every run")
    add("--plots", type=new_file, metavar="FILE", help="write a PNG")
    add("--record", type=new_file, metavar="FILE", help="write a recording of the first policy")
    add("--record-interval", type=positive, default=1.0, help="virtual seconds between pictures")


def add_calibrate(parser: argparse.ArgumentParser) -> None:
    """The flags of ``vertumnusd calibrate``."""
    add = parser.add_argument
    add("profile", metavar="PROFILE", help=PROFILE)
    _add_source(parser)
    add("--policy", choices=("ours", "paper"), default="ours", help="placement.policy")
    add("--composition", help="workers at start; else all of the smallest degree")
    _add_cluster(parser)
    add("--seeds", type=count, default=4, help="runs of each value, 2 or more; 4 by default")
    add("--jobs", type=count, default=2, help="processes")
    add("--quick", action="store_true", help="the nearest values on the trace's beginning")
    out = Path("calibrated.toml")
    add("--out", type=new_file, metavar="FILE", default=out, help=f"else {out}")


def _add_source(parser: argparse.ArgumentParser) -> None:
    known = ", ".join(WORKLOADS)
    add = parser.add_argument
    add(
        "source",
        metavar="TRACE",
        help=f"a Mooncake trace (.jsonl, .jsonl.xz); or a generated load: {known},"
        " or phases KIND:SECONDS:RATE,…",
    )
    add("--rate", type=positive, help="mean requests/s; scales the times between arrivals")
    add("--seconds", type=positive, default=300.0, help="length of a generated load")


def _add_cluster(parser: argparse.ArgumentParser) -> None:
    defaults = Conditions()
    add = parser.add_argument
    add("--gpus", type=count, default=defaults.ranks, help="devices of the prefill pool")
    add("--degrees", default="2,4", help="context-parallel degrees, comma-separated")
    add(
        "--kv-tokens",
        type=block_tokens,
        default=defaults.kv_tokens,
        help="tokens of KV of one device",
    )
    add("--link", type=positive, default=25.0, help="bandwidth between devices, GB/s")
    add(
        "--noise",
        type=non_negative,
        default=defaults.noise_sigma,
        help="sigma of log prefill times",
    )


def add_reproduce(parser: argparse.ArgumentParser) -> None:
    """The flags of ``vertumnusd reproduce``."""
    add = parser.add_argument
    add("--out", type=Path, metavar="DIR", default=Path("docs"), help="gets the page and plots/")
    add("--quick", action="store_true", help="a small part of it, in two minutes")
    add("--live", action="store_true", help="on paced ranks beside the simulator")
    live = parser.add_argument_group("of --live alone").add_argument
    live("--ranks", type=count, default=8, help="a multiple of 4")
    live("--pace", type=positive, default=1.0, help="times are so many times as long")
    live("--window", type=positive, default=4.0, help="seconds before the pace")
    live("--json", type=new_file, metavar="FILE", help="write every figure")
    simulated = parser.add_argument_group("without --live alone").add_argument
    simulated("--traces", type=Path, metavar="DIR", help="Mooncake traces; else loads are drawn")
    simulated("--tables", type=Path, metavar="DIR", help="measured prefill times to fit, csv")
    simulated("--jobs", type=count, default=2, help="processes")


def check_reproduce(arguments: argparse.Namespace) -> None:
    """Raises ConfigError for a flag that would count for nothing."""
    strangers = ("traces", "tables") if arguments.live else ("ranks", "pace", "window", "json")
    parser = argparse.ArgumentParser()
    add_reproduce(parser)
    for flag in strangers:
        if getattr(arguments, flag) != parser.get_default(flag):
            where = "not with" if arguments.live else "only with"
            raise ConfigError(f"--{flag} goes {where} --live")


def positive(text: str) -> float:
    """A finite number above 0."""
    value = _number(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text}: a number above 0 is expected")
    return value


def non_negative(text: str) -> float:
    if not 0 <= _number(text) < float("inf"):
        raise argparse.ArgumentTypeError(f"{text}: a number of at least 0 is expected")
    return float(text)


def count(text: str) -> int:
    """A whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text}: a whole number of at least 1 is expected")
    return int(text)


def block_tokens(text: str) -> int:
    """Room for one block at least."""
    if count(text) < BLOCK_TOKENS:
        raise argparse.ArgumentTypeError(f"{text}: at least {BLOCK_TOKENS}, a block, are expected")
    return int(text)


def new_file(text: str) -> Path:
    """A file that can be written: that is seen before hours of work, not after."""
    path = Path(text)
    if not path.parent.is_dir() or path.is_dir():
        raise argparse.ArgumentTypeError(f"{text}: a file in a folder that exists is expected")
    return path


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")
