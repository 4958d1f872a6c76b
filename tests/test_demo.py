"""What the demo takes for a hit on a copy, how it waits, and how it says what went wrong."""

from __future__ import annotations

import pytest
import trio
from vertumnus_tui.playback import read_recording

from vertumnusd import demo_adaptation
from vertumnusd.demo import _reason, demo
from vertumnusd.demo_adaptation import Watch, two_places
from vertumnusd.demo_client import DemoError, ProgressLine, Row
from vertumnusd.messages import RecordingHeader


def row(worker: str, cached_tokens: int) -> Row:
    return Row("", worker, 1, 100, cached_tokens, 1, 0.0, 0.0, 0.0, 0.0, 0.0, "")


def view(*workers: str, operations: int = 0) -> dict:
    named = [{"name": worker} for worker in workers]
    return {"workers": named, "operations": [{}] * operations, "composition": "/".join(workers)}


def test_a_copy_is_seen_by_hits_at_workers_that_share_no_rank():
    one, other = row("CP2[0-1]", 90), row("CP1[2]", 90)
    assert two_places([one, other]) == (one, other)
    assert two_places([one, row("CP1[2]", 40)]) is None
    assert two_places([one, row("CP1[1]", 90), row("CP4[0-3]", 90)]) is None


def test_a_split_is_seen_when_it_is_over_and_recorded(monkeypatch, tmp_path, autojump_clock):
    views = [view("CP2"), view("CP2", operations=1), view("CP1", "CP1")]
    monkeypatch.setattr(demo_adaptation, "get", lambda *_: views.pop(0))
    monkeypatch.setattr(demo_adaptation, "_why", lambda _: "because")

    async def play() -> Watch:
        with (tmp_path / "record").open("wb") as record:
            watch = Watch(0, ProgressLine(), record)
            for splits in (0, 0, 1):
                await watch.look()
                assert watch.splits == splits
            await watch.until(lambda: watch.splits == 1, "a split")
        return watch

    watch = trio.run(play, clock=autojump_clock)
    assert watch.merges == 0
    recorded = read_recording(tmp_path / "record")
    assert isinstance(recorded.header, RecordingHeader)
    assert [len(recorded.line(n).cluster["workers"]) for n in range(3)] == [1, 1, 2]


def test_what_is_never_seen_fails_by_name(autojump_clock):
    async def play() -> None:
        await Watch(0, ProgressLine(), None).until(lambda: False, "a merge")

    with pytest.raises(DemoError, match="a merge was not seen"):
        trio.run(play, clock=autojump_clock)


def test_a_recording_that_cannot_be_written_is_refused_before_anything_starts(tmp_path, capsys):
    assert demo(None, tmp_path / "none" / "record") == 2
    assert "No such file" in capsys.readouterr().err


def test_the_reason_of_a_failure_is_found_within_nurseries():
    group = BaseExceptionGroup("outer", [BaseExceptionGroup("inner", [DemoError("why")])])
    assert str(_reason(group)) == "why"
