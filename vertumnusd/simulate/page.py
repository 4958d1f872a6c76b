"""``docs/benchmarks.md``: the tables and words around the plots of ``vertumnusd reproduce``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median

from vertumnusd.control.prefill_time import RelativeError
from vertumnusd.control.settings import SLO
from vertumnusd.simulate.choice import Choice
from vertumnusd.simulate.conditions import Conditions
from vertumnusd.simulate.evaluation import ALL, NONE, Cell, Curves, Deployment
from vertumnusd.simulate.outcome import SLO_TIGHT, Slo, Summary
from vertumnusd.simulate.profiles import profile
from vertumnusd.simulate.report import Interval, figure, interval
from vertumnusd.simulate.scenarios import Roles, Scenario

OURS = ("ours", "paper")


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


# --- conditions


def conditions_table(deployments: Sequence[Deployment], seeds: int) -> str:
    def row(label: str, value: str) -> tuple[str, str]:
        return label, value

    first = deployments[0].conditions
    rows = [
        row("prefill pool", f"{first.ranks} GPUs"),
        *(row(f"deployment {d.name}", d.title) for d in deployments),
        *(row(f"prefill time {d.name}", _coefficients(d.conditions)) for d in deployments),
        row("KV memory", f"{first.kv_tokens:,} tokens a GPU, blocks of 512, LRU"),
        row("KV size", f"{first.kv_bytes_per_token:,} bytes a token"),
        row("link", f"{first.link_bytes_s / 1e9:g} GB/s between homes"),
        row("noise", f"prefill times × log-normal, σ {first.noise_sigma:g}, the same for all"),
        row("outside the pool", f"{first.outside_s * 1e3:.0f} ms added to every TTFT"),
        row("switch", f"{first.switch_s * 1e3:.0f} ms from parked to adopted"),
        row("SLO", _slo(SLO)),
        row("SLO/2", _slo(SLO_TIGHT)),
        row("seeds", f"{seeds}; ± is half of a 95 % interval over them (Student's t)"),
        row("placement", "β = 1, λ = 0"),
        row("execution", "one request at a time on a worker; in order of arrival, but for ours"),
    ]
    return table(("what", "value"), rows)


def _coefficients(conditions: Conditions) -> str:
    predicted = profile(conditions.profile).predicted
    parts = []
    for degree in ("", *map(str, predicted.by_degree)):
        k = predicted.by_degree[int(degree)] if degree else predicted.shared
        name = f"degree {degree}" if degree else "shared"
        causal = f", γ {k.gamma_s:g}" if k.gamma_s else ""
        parts.append(
            f"{name}: d {k.d_s:g}, a {k.a_s:g}, b {k.b_s:g}, c {k.c_s:g}, α {k.alpha_s:g}{causal}"
        )
    return "; ".join(parts)


def _slo(slo: Slo) -> str:
    parts = []
    for bound in slo:
        below = f"below {bound.below_tokens / 1024:.0f}K"
        where = below if bound.below_tokens < float("inf") else "longer"
        parts.append(f"{where} {bound.ttft_s:g} s")
    return ", ".join(parts) + "; weighted by tokens"


# --- prefill times


def speed_up_table(conditions: Conditions, lengths: Sequence[int]) -> str:
    seconds = profile(conditions.profile).actual_s
    degrees = (2, 4, 8)
    rows = []
    for length in lengths:
        single_s = seconds(1, length, 0)
        speed_ups = [f"{single_s / seconds(degree, length, 0):.2f}" for degree in degrees]
        rows.append([f"{length // 1024}K", f"{single_s:.3f}", *speed_ups])
    return table(("input", "seconds at C = 1", *(f"C = {d}" for d in degrees)), rows)


def fit_table(fits: Mapping[str, tuple[int, RelativeError]]) -> str:
    rows = [
        [name, str(points), f"{e.median:.1%}", f"{e.p90:.1%}", f"{e.max:.1%}"]
        for name, (points, e) in fits.items()
    ]
    return table(("measurements", "points", "median error", "P90", "largest"), rows)


# --- load curves


def curve_table(curves: Curves, deployment: Deployment, workload: str) -> str:
    """Rows: policies. Columns: loads. Mean TTFT ± (P90; SLO; SLO/2)."""
    cells = [c for c in curves if c.deployment == deployment and c.source.name == workload]
    policies = list(dict.fromkeys(choice.policy for cell in cells for choice in curves[cell]))
    rows = []
    for name in policies:
        row = [name]
        for cell in cells:
            runs = runs_of(curves[cell], name)
            best = best_mean(curves[cell])
            mean = figure(runs, "mean_s")
            text = f"{mean.mean * 1e3:,.0f} ± {mean.half * 1e3:,.0f}"
            text = f"**{text}**" if mean.mean <= best and name != "bound" else text
            p90 = figure(runs, "p90_s").mean * 1e3
            loose, tight = (figure(runs, field).mean * 100 for field in ("slo_loose", "slo_tight"))
            row.append(f"{text} ({p90:,.0f}; {loose:.0f}; {tight:.0f})")
        rows.append(row)
    header = ("policy", *(f"{cell.rate:.1f}/s ({cell.load:.0%})" for cell in cells))
    return table(header, rows)


def runs_of(results: Mapping[Choice, list[Summary]], name: str) -> list[Summary]:
    return next(runs for choice, runs in results.items() if choice.policy == name)


def choice_of(results: Mapping[Choice, list[Summary]], name: str) -> Choice:
    return next(choice for choice in results if choice.policy == name)


def best_mean(results: Mapping[Choice, list[Summary]]) -> float:
    return min(figure(r, "mean_s").mean for c, r in results.items() if c.policy != "bound")


def best_of(results: Mapping[Choice, list[Summary]], kinds: Sequence[str]) -> str:
    """The name of the policy with the least mean TTFT among those that begin with a kind."""
    named = [c.policy for c in results if c.policy.startswith(tuple(kinds))]
    return min(named, key=lambda name: figure(runs_of(results, name), "mean_s").mean)


def change(runs: Sequence[Summary], against: Sequence[Summary], field: str = "mean_s") -> Interval:
    """Relative change of a figure, seed by seed."""
    pairs = zip(runs, against, strict=True)
    return interval([getattr(a, field) / getattr(b, field) - 1 for a, b in pairs])


def percent(value: Interval) -> str:
    """Small changes with one decimal; never a negative zero."""
    digits = 1 if abs(value.mean) < 0.0995 else 0
    mean = round(value.mean * 100, digits) + 0.0
    return f"{mean:+.{digits}f} % ± {value.half * 100:.{digits}f}"


def tally(changes: Sequence[Interval]) -> str:
    """Changes of mean TTFT in many cells: their median, and how often they stand out."""
    better = sum(c.mean < -c.half for c in changes)
    worse = sum(c.mean > c.half for c in changes)
    middle = median(c.mean for c in changes) * 100 + 0.0
    even = len(changes) - better - worse
    return f"median {middle:+.1f} %; better in {better}, even in {even}, worse in {worse} cells"


ROUTERS = ("round-robin", "least-loaded", "cache-aware", "overlap-cost")


def comparison_table(curves: Curves) -> str:
    """Ours and paper against the best of each kind of baseline, in every cell."""
    rows = []
    for cell, results in curves.items():
        homo, router = best_of(results, ("homo-",)), best_of(results, ROUTERS)
        row = [cell.deployment.name, cell.source.name, f"{cell.load:.0%}"]
        ours, paper = (runs_of(results, name) for name in OURS)
        row.append(percent(change(ours, paper)))
        row += [percent(change(runs, runs_of(results, homo))) for runs in (ours, paper)]
        row.append(homo)
        row += [percent(change(runs, runs_of(results, "static"))) for runs in (ours, paper)]
        row += [percent(change(runs, runs_of(results, router))) for runs in (ours, paper)]
        row.append(router)
        rows.append(row)
    header = ("", "workload", "load", "ours / paper", "ours / homo", "paper / homo", "best homo")
    more = ("ours / static", "paper / static", "ours / router", "paper / router", "best router")
    return table((*header, *more), rows)


def losses(curves: Curves) -> str:
    """One line for every cell in which paper or ours is worse than some baseline, and why."""
    lines = []
    for cell, results in curves.items():
        for name in OURS:
            rival = best_of(results, ("homo-", "mix", "static", *ROUTERS))
            worse = change(runs_of(results, name), runs_of(results, rival))
            if worse.mean > 0.005:
                where = f"{cell.deployment.name}, {cell.source.name}, {cell.load:.0%}"
                reason = _why(results, name, rival, worse)
                lines.append(f"* {where}: {name} {percent(worse)} against {rival}. {reason}")
    return "\n".join(lines) or "None."


def _why(results: Mapping[Choice, list[Summary]], name: str, rival: str, worse: Interval) -> str:
    """The reason that the figures give, the plainest first."""
    ours, theirs = runs_of(results, name), runs_of(results, rival)
    mine, other = choice_of(results, name), choice_of(results, rival)
    if worse.mean <= worse.half:
        return "Within the interval."
    reasons = []
    if mine.composition != other.composition:
        reasons.append(f"It began with {mine.composition}, the other has {other.composition}")
    for field, word in (("hit_rate", "hit rate"), ("utilisation", "GPUs busy")):
        here, there = figure(ours, field).mean, figure(theirs, field).mean
        if abs(here - there) > 0.01:
            reasons.append(f"{word} {here:.0%} against {there:.0%}")
    if conversions := figure(ours, "conversions").mean:
        drain_s = figure(ours, "drain_s").mean
        reasons.append(f"{conversions:.0f} conversions, drains of {drain_s:.1f} s")
    if copies := figure(ours, "transfers").mean:
        reasons.append(f"{copies:.0f} copies of prefixes")
    return "; ".join(reasons) + "." if reasons else "Same composition; the order of requests."


# --- reconfiguration


def scenario_table(roles: Roles) -> str:
    reference = roles["fixed as at the start"][1]
    rows = []
    for role, (choice, runs) in roles.items():
        mean = figure(runs, "mean_s")
        rows.append(
            [
                role,
                choice.label,
                f"{mean.mean * 1e3:,.0f} ± {mean.half * 1e3:,.0f}",
                f"{figure(runs, 'p90_s').mean * 1e3:,.0f}",
                f"{figure(runs, 'slo_loose').mean:.1%}",
                percent(change(runs, reference)),
                f"{figure(runs, 'conversions').mean:.1f}",
                f"{figure(runs, 'drain_s').mean:.2f}",
                f"{figure(runs, 'switch_s').mean:.2f}",
            ]
        )
    header = ("", "parameters", "mean TTFT, ms", "P90", "SLO", "against the start's mix")
    return table((*header, "conversions", "drain, s", "switch, s"), rows)


def phases_list(scenario: Scenario) -> str:
    parts = [f"{p.seconds:.0f} s {p.kind} at {p.rate:.1f}/s" for p in scenario.phases[:8]]
    more = " …" if len(scenario.phases) > len(parts) else ""
    return "; ".join(parts) + more


# --- ablation


def ablation_table(
    ablated: Mapping[tuple[Cell, str], Mapping[str, list[Summary]]], curves: Curves
) -> str:
    rows = []
    for (cell, name), variants in ablated.items():
        plain = variants["neither"]
        both = runs_of(curves[cell], name)
        mean = figure(plain, "mean_s")
        rows.append(
            [
                f"{cell.source.name}, {cell.load:.0%}",
                name,
                f"{mean.mean * 1e3:,.0f} ± {mean.half * 1e3:,.0f}",
                percent(change(variants["replication"], plain)),
                f"{figure(variants['replication'], 'transfers').mean:.0f}",
                _points(variants["replication"], plain),
                percent(change(variants["conversions"], plain)),
                percent(change(both, plain)),
            ]
        )
    header = ("workload, load", "policy", "neither, ms", "replication", "copies", "hit rate")
    return table((*header, "conversions", "both"), rows)


def improvements_table(
    improved: Mapping[tuple[Cell, str], Mapping[str, list[Summary]]],
) -> str:
    """Rows: what is on, in each cell; changes against none of it and against all of it."""
    rows = []
    for (cell, _), variants in improved.items():
        for label, runs in variants.items():
            mean = figure(runs, "mean_s")
            rows.append(
                [
                    f"{cell.source.name}, {cell.load:.0%}",
                    label,
                    f"{mean.mean * 1e3:,.0f} ± {mean.half * 1e3:,.0f}",
                    f"{figure(runs, 'p90_s').mean * 1e3:,.0f}",
                    f"{figure(runs, 'p99_s').mean * 1e3:,.0f}",
                    percent(change(runs, variants[NONE])),
                    percent(change(runs, variants[ALL])),
                ]
            )
    header = ("workload, load", "improvements", "mean, ms", "P90", "P99", "against none")
    return table((*header, "against all"), rows)


def _points(runs: Sequence[Summary], against: Sequence[Summary]) -> str:
    difference = figure(runs, "hit_rate").mean - figure(against, "hit_rate").mean
    return f"{difference * 100:+.2f} points"
