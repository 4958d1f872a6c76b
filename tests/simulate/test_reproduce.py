"""The whole evaluation, on loads of a few seconds."""

from __future__ import annotations

import re

import pytest

from vertumnusd.__main__ import main
from vertumnusd.simulate import reproduce
from vertumnusd.simulate.evaluation import DEPLOYMENTS, TRACES, Scale, sources
from vertumnusd.simulate.scenarios import SCENARIOS

TINY = Scale(
    seeds=2,
    loads=(0.4, 0.7),
    rows_max=60,
    seconds_factor=0.01,
    deployments=DEPLOYMENTS[:1],
    ablated=(0.7,),
    tuned_windows=(1,),
    tuned_factors=(1.0,),
)


def test_the_page_has_every_part_and_its_plots(monkeypatch, tmp_path):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(reproduce, "QUICK", TINY)
    assert main(["reproduce", "--quick", "--jobs", "1", "--out", str(tmp_path)]) == 0
    text = (tmp_path / "benchmarks.md").read_text()
    for name in ("ours", "paper", "homo-1", "homo-8", "static", "overlap-cost", "bound"):
        assert f"| {name} |" in text
    for title in (*SCENARIOS, "conversation", "tool-agent", "synthetic", "l-eval"):
        assert f"### {title}\n" in text
    for plot in re.findall(r"\]\((plots/[^)]+)\)", text):
        assert (tmp_path / plot).read_bytes().startswith(b"\x89PNG")
    assert "| conversation, 70% | only promises |" in text
    assert "nan" not in text
    assert "−42 %" in text


def test_traces_in_the_folder_take_the_place_of_generated_loads(tmp_path):
    trace = tmp_path / "conversation_trace.jsonl"
    trace.touch()
    found = sources(tmp_path, TINY)
    assert [source.path for source in found] == [trace, None, None, None]
    assert [source.name for source in found] == list(TRACES)
