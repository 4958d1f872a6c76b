"""What the flags of a simulation ask for: the source of its requests, and the cluster."""

from __future__ import annotations

import argparse
from pathlib import Path

from vertumnusd.config import ConfigError
from vertumnusd.control.fleet import parse_composition
from vertumnusd.simulate.arguments import positive
from vertumnusd.simulate.conditions import Conditions
from vertumnusd.simulate.experiment import Part, Source, rows_of
from vertumnusd.simulate.generate import WORKLOADS, Phase
from vertumnusd.simulate.profiles import profile

REQUESTS_MAX = 5_000_000  # generated ones


def source_of(arguments: argparse.Namespace) -> Source:
    """A trace file, or a load to generate. Raises ConfigError."""
    source = _source(arguments)
    _check_size(source)
    return source


def _source(arguments: argparse.Namespace) -> Source:
    name, path = arguments.source, Path(arguments.source)
    if path.exists():
        return Source(path.name.partition(".")[0], path)
    if name in WORKLOADS:
        return Source(name, phases=(Phase(arguments.seconds, arguments.rate or 10.0, name),))
    if ":" in name:
        return Source("phases", phases=tuple(_phase(part) for part in name.split(",")))
    raise ConfigError(f"{name}: no such file, and no load of {', '.join(WORKLOADS)}")


def _check_size(source: Source) -> None:
    requests = sum(phase.seconds * phase.rate for phase in source.phases)
    if requests > REQUESTS_MAX:
        raise ConfigError(f"{source.name}: {requests:.3g} requests; at most {REQUESTS_MAX} may be")


def _phase(text: str) -> Phase:
    """``KIND:SECONDS:RATE``."""
    kind, _, numbers = text.partition(":")
    seconds, _, rate = numbers.partition(":")
    try:
        phase = Phase(positive(seconds), positive(rate), kind)
    except argparse.ArgumentTypeError as error:
        raise ConfigError(f"{text}: KIND:SECONDS:RATE is expected, above 0") from error
    if kind not in WORKLOADS:
        raise ConfigError(f"{text}: no load {kind}; known: {', '.join(WORKLOADS)}")
    return phase


def conditions_of(arguments: argparse.Namespace) -> Conditions:
    """The cluster that is simulated. Raises ConfigError."""
    try:
        degrees = tuple(sorted({int(degree) for degree in arguments.degrees.split(",")}))
    except ValueError as error:
        raise ConfigError(f"--degrees {arguments.degrees}: integers are expected") from error
    smallest = degrees[0]
    if any(degree < 1 or degree & (degree - 1) for degree in degrees):
        raise ConfigError(f"--degrees {arguments.degrees}: powers of two are expected")
    if arguments.gpus < degrees[-1] or arguments.gpus % smallest:
        multiple = f"a multiple of {smallest}, {degrees[-1]} or more, is expected"
        raise ConfigError(f"--gpus {arguments.gpus}: {multiple}")
    profile(arguments.profile)
    return Conditions(
        profile=arguments.profile,
        ranks=arguments.gpus,
        cp_degrees=degrees,
        kv_tokens=arguments.kv_tokens,
        link_bytes_s=arguments.link * 1e9,
        noise_sigma=arguments.noise,
    )


def check_composition(composition: str, conditions: Conditions) -> None:
    """Raises ConfigError."""
    try:
        parse_composition(composition, conditions.cp_degrees, conditions.ranks)
    except ValueError as error:
        raise ConfigError(f"--composition: {error}") from error


def check_fits(source: Source, conditions: Conditions) -> None:
    """Of either half, which is played by itself, something must fit. Raises ConfigError."""
    most = conditions.kv_tokens * conditions.degrees[-1]
    for part in (Part.FIRST, Part.SECOND):
        shortest = min((row.input_tokens for row in rows_of(source, part)), default=0)
        if shortest > most:
            raise ConfigError(
                f"{source.name}: inputs of {shortest} tokens and more in its {part.value};"
                f" {conditions.degrees[-1]} GPUs with --kv-tokens {conditions.kv_tokens} hold"
                f" {most}"
            )
