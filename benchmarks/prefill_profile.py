"""Measure the prefill times of the demo's model on this machine and fit Ê to them.

For every degree, length and share of cached prefix: the fastest of a few prefills on an idle
daemon, as its ranks report them. Writes ``--out FILE`` as a profile for ``etc/profiles``; the ratio
is the median error of the fit over its target of 5 %. Needs two cores that nobody else uses.
"""

from __future__ import annotations

import argparse
import platform
import random
from pathlib import Path

from harness import Client, daemon, result, say

from vertumnusd.control.prefill_time import Coefficients, Measurement, RelativeError, fit

LENGTHS = (16, 48, 128, 256, 512, 1024, 2048, 4096, 6144)
CACHED_SHARES = (0.5, 0.9, 0.99)
ROUNDS = 3  # 2 for long ones; the fastest counts: what else the machine does only adds
BLOCK = 16


def measure(degree: int, dtype: str) -> list[Measurement]:
    cluster = {"ranks": 2, "cp_degrees": [1, 2], "composition": f"{2 // degree}CP{degree}"}
    rng = random.Random(degree)
    found = []
    with daemon(cluster=cluster, model={"dtype": dtype}) as node, Client(node.port) as client:
        client.complete([7] * 64, 2)  # warm up
        for length in LENGTHS:
            cold = random_tokens(rng, length)
            found.append(measure_one(client, degree, length, [], rng, cold))
            prefixes = {int(length * share) // BLOCK * BLOCK for share in CACHED_SHARES} - {0}
            for prefix in sorted(prefixes):
                found.append(measure_one(client, degree, length, cold[:prefix], rng))
    return found


def random_tokens(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(1000, 40000) for _ in range(count)]


def measure_one(
    client: Client,
    degree: int,
    length: int,
    head: list[int],
    rng: random.Random,
    first: list[int] | None = None,
) -> Measurement:
    """The fastest of a few prompts that begin with ``head``, cached by now; ``first`` is one."""
    times, cached = [], 0
    for i in range(ROUNDS if length - len(head) <= 1024 else 2):
        prompt = head + random_tokens(rng, length - len(head))
        answer = client.complete(first if first and not i else prompt, 1)
        cached = answer.cached_tokens
        times.append(answer.facts["prefill_s"])
    say(f"CP{degree}: {length} tokens, {cached} cached: {1e3 * min(times):.1f} ms")
    return Measurement(degree, length - cached, cached, min(times))


def section(name: str, k: Coefficients) -> str:
    values = {"d_s": k.d_s, "a_s": k.a_s, "b_s": k.b_s, "c_s": k.c_s, "alpha_s": k.alpha_s}
    return f"[{name}]\n" + "".join(f"{key} = {value:.6g}\n" for key, value in values.items())


def write(path: Path, model: str, dtype: str, measured: list[Measurement]) -> RelativeError:
    """Write the profile. Returns the error of the per-degree fits, which placement uses."""
    shared, shared_error = fit(measured)
    parts = [section("shared", shared)]
    errors = []
    for degree in (1, 2):
        own = [m for m in measured if m.degree == degree]
        coefficients, error = fit(own)
        errors.append(error)
        parts.append(section(f"degree.{degree}", coefficients))
    worst = RelativeError(*(max(e[i] for e in map(as_tuple, errors)) for i in range(3)))
    parts.append(
        "[measured]\n"
        f"points = {len(measured)}\n"
        f'lengths = "{min(LENGTHS)} … {max(LENGTHS)} tokens, none or {CACHED_SHARES} cached"\n'
        f"shared_error = {[round(e, 4) for e in as_tuple(shared_error)]}  # median, P90, max\n"
        f"degree_error = {[round(e, 4) for e in as_tuple(worst)]}  # the worse degree's\n"
    )
    head = (
        "# Prefill times measured on an idle daemon, one core a rank; fitted with weights 1/t.\n\n"
        f'model = "{model}"\ndtype = "{dtype}"\ndevice = "cpu {platform.machine()}"\n\n'
    )
    path.write_text(head + "\n".join(parts))
    return worst


def as_tuple(error: RelativeError) -> tuple[float, float, float]:
    return error.median, error.p90, error.max


parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--dtype", default="float32")
arguments = parser.parse_args()
points = measure(1, arguments.dtype) + measure(2, arguments.dtype)
error = write(arguments.out, "SmolLM2-135M-Instruct", arguments.dtype, points)
result(
    points=len(points),
    median_error=error.median,
    p90_error=error.p90,
    max_error=error.max,
    ratio=error.median / 0.05,
)
