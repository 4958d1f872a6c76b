"""The text of ``docs/benchmarks.md``, filled with the figures of an evaluation."""

from __future__ import annotations

from vertumnusd.simulate import page
from vertumnusd.simulate.report import Interval, figure, interval
from vertumnusd.simulate.results import LENGTHS, Evaluation
from vertumnusd.simulate.scenarios import Roles

UNKNOWN = "not stated here"


def benchmarks(evaluation: Evaluation) -> str:
    """The whole page."""
    sections = (
        _head(evaluation),
        _claims(evaluation),
        _prefill(evaluation),
        *_curves(evaluation),
        _losses(evaluation),
        _reconfiguration(evaluation),
        _ablation(evaluation),
    )
    return "\n\n".join(sections) + "\n"


def _head(evaluation: Evaluation) -> str:
    scale = evaluation.scale
    generated = [source.name for source in evaluation.sources if source.path is None]
    traces = [f"{s.name} ({s.path.name})" for s in evaluation.sources if s.path is not None]
    loads = f"Replayed traces: {', '.join(traces) or 'none'}. "
    loads += f"Generated in their place: {', '.join(generated) or 'none'}."
    return f"""# Benchmarks of the policies

Written by `vertumnusd reproduce`; every figure is a simulation (see [simulator.md](simulator.md)),
with the same decision code that serves. TTFT in milliseconds unless said otherwise.

{loads}

Each policy's parameters are tuned on the first half of a workload, for each load by itself (least
mean TTFT; all on its first 1,000 requests, the best quarter on up to 4,000), and scored on the
second half (up to 6,000 requests); cells of tables are mean ± interval
(P90; SLO %; SLO/2 %). Loads are shares of the rate at which every GPU would be busy at the smallest
degree of the published policy with an endless cache, so 100 % is out of reach.

{page.conditions_table(scale.deployments, scale.seeds)}

Policies: **ours** is the controller as it serves, **paper** the published policy with KV owned at
the worker's degree, both with conversions and replication on. **mix** is the published
placement on the best fixed composition, **homo-C** on workers of degree C, **static** two fixed
pools split by a length threshold; **cache-aware** is the SGLang router's rule, **overlap-cost**
Dynamo's; **bound** is no policy: every request alone, at its best degree, with an endless cache.
All but paper may use every degree of the deployment, paper the published two. Each is tuned by runs
of its own, but paper, for which mix runs on the published degrees, as it is quicker."""


def _claims(evaluation: Evaluation) -> str:
    roles = evaluation.reconfigured[0][1]
    start = roles["fixed as at the start"][1]
    best = roles["fixed, best in hindsight"][1]
    paper = roles["paper"][1]
    over_paper, *against = _overall(evaluation)
    (ours_homo, paper_homo), (ours_static, paper_static), (ours_router, paper_router) = against
    gain = page.percent(page.change(paper, start))
    gain_best = page.percent(page.change(paper, best))
    drain, switch = (figure(paper, field).mean for field in ("drain_s", "switch_s"))
    replication = _replication_gain(evaluation)
    rows = [
        (
            "speed-up of a 64K prompt at C = 2 / 4 / 8",
            "1.68 / 2.71 / 3.91",
            "the same, to rounding",
            "the profile is calibrated to these figures: no finding of ours",
        ),
        (
            "speed-up of a 1K prompt",
            "0.86 / 0.99 / 1.06",
            "the same, to rounding",
            "as above; a degree of 1 needs coefficients of its own",
        ),
        (
            "mean TTFT against the best homogeneous pool",
            UNKNOWN,
            f"ours: {ours_homo}. paper: {paper_homo}",
            "every homogeneous degree is here, also the right one, which is the hard baseline",
        ),
        (
            "mean TTFT against a static split",
            UNKNOWN,
            f"ours: {ours_static}. paper: {paper_static}",
            "the split here is tuned over compositions and thresholds, for each load",
        ),
        (
            "mean TTFT against the best of four routers",
            UNKNOWN,
            f"ours: {ours_router}. paper: {paper_router}",
            "each is tuned, its degree included",
        ),
        (
            "ours against paper",
            "no such policy",
            f"{over_paper[0]}",
            "ours serves the shortest first, counts on what will be computed, and has degree 1",
        ),
        (
            "reconfiguration against a wrong fixed mix",
            "−42 %",
            f"{gain}; against the best mix in hindsight {gain_best}",
            "how wrong the mix is decides; here it is the best one for the first phase",
        ),
        (
            "drain and switch of a conversion",
            UNKNOWN,
            f"{drain:.2f} s and {switch:.2f} s",
            "a drain waits for the longest running request; the switch is an assumption",
        ),
        (
            "replication of prefixes",
            UNKNOWN,
            f"{page.percent(replication)} mean TTFT",
            "hot prefixes spread within seconds anyway, by being computed again elsewhere",
        ),
    ]
    return "## What the paper says, what we see\n\n" + page.table(
        ("", "the paper says", "we see", "why they differ"), rows
    )


def _overall(evaluation: Evaluation) -> list[list[str]]:
    """Over all cells: ours against paper, and both against each kind of baseline."""
    changes: list[list[list[Interval]]] = [[[]], [[], []], [[], []], [[], []]]
    for results in evaluation.curves.values():
        ours, paper = (page.runs_of(results, name) for name in page.OURS)
        changes[0][0].append(page.change(ours, paper))
        homo, router = page.best_of(results, ("homo-",)), page.best_of(results, page.ROUTERS)
        for found, rival in zip(changes[1:], (homo, "static", router), strict=True):
            against = page.runs_of(results, rival)
            found[0].append(page.change(ours, against))
            found[1].append(page.change(paper, against))
    return [[page.tally(cells) for cells in found] for found in changes]


def _replication_gain(evaluation: Evaluation) -> Interval:
    return interval(
        [
            page.change(variants["replication"], variants["neither"]).mean
            for (_, name), variants in evaluation.ablated.items()
            if name == "paper"
        ]
    )


def _prefill(evaluation: Evaluation) -> str:
    conditions = evaluation.scale.deployments[0].conditions
    return f"""## Prefill time by degree and length

![speed-up by degree and input length](plots/speed_up.png)

{page.speed_up_table(conditions, LENGTHS)}

How well Ê fits (least squares, non-negative, weighted by 1/t), relative errors:

{page.fit_table(evaluation.fits)}"""


def _curves(evaluation: Evaluation) -> list[str]:
    sections = []
    for deployment in evaluation.scale.deployments:
        tables = [
            f"### {source.name}\n\n{page.curve_table(evaluation.curves, deployment, source.name)}"
            for source in evaluation.sources
        ]
        plot = f"![mean, P90 and SLO against load](plots/load_{deployment.name}.png)"
        title = f"## Load curves: {deployment.name}, {deployment.title}"
        sections.append("\n\n".join([title, plot, *tables]))
    comparison = page.comparison_table(evaluation.curves)
    sections.append(f"## Against each kind of baseline: change of mean TTFT\n\n{comparison}")
    return sections


def _losses(evaluation: Evaluation) -> str:
    return f"""## Where ours or paper loses

Against the best baseline of each cell, tuned as they are. Reasons are read off the figures.

{page.losses(evaluation.curves)}"""


def _reconfiguration(evaluation: Evaluation) -> str:
    parts = [
        """## Reconfiguration under changing load

Four scenarios, fixed before they were run; the last changes faster than a window and is there to
show what reconfiguration costs. κ is profiled on the conversation workload. For paper, a factor on
it and the windows in a row that must agree, and the fixed mixes are tuned on another draw of the
same scenario; each seed draws it anew. "As at the start" is the best mix of the published degrees
for the first phase, kept, with the published placement; ours and paper begin with it too. "Ours,
fixed" is ours without conversions on the mix that is best in hindsight for the published placement.

![six phases](plots/six_phases.png)"""
    ]
    for scenario, roles in evaluation.reconfigured:
        listed = page.phases_list(scenario)
        parts.append(
            f"### {scenario.name}\n\n{listed}.\n\n{page.scenario_table(roles)}\n\n{_verdict(roles)}"
        )
    return "\n\n".join(parts)


def _verdict(roles: Roles) -> str:
    """Two sentences of what the scenario says about following the load."""
    rivals = {
        "paper": ("fixed as at the start", "fixed, best in hindsight"),
        "ours": ("fixed, best in hindsight", "ours, fixed, best in hindsight"),
    }
    sentences = []
    for name, others in rivals.items():
        parts = []
        for role in others:
            gain = page.change(roles[name][1], roles[role][1])
            if abs(gain.mean) <= gain.half:
                word = "no different from"
            else:
                word = "better than" if gain.mean < 0 else "worse than"
            parts.append(f"{word} {role} ({page.percent(gain)})")
        sentences.append(f"Following the load, {name} is {' and '.join(parts)}.")
    return " ".join(sentences)


def _ablation(evaluation: Evaluation) -> str:
    return f"""## What the cache manager and conversions bring by themselves

Changes of mean TTFT against the same policy with neither, at the same composition.

{page.ablation_table(evaluation.ablated, evaluation.curves)}

## What each improvement of ours brings by itself

Ours without conversions and replication, on the composition that suits the published policy: with
none of its improvements, with one, with all but one, with all; and on the composition that suits
ours. *promises*: a match counts the blocks that queued and running requests will produce.
*remaining*: of what a worker was given, J counts what is left. *shortest-first*: the shortest
request goes first, and J counts whom it delays. *pause*: a long prefill lets shorter ones go first
between its steps, and J counts on it. *pack*: short requests share a step. *fetch*: J
also prices taking a longer prefix from another home over the link, while the request waits.

{page.improvements_table(evaluation.improved)}"""
