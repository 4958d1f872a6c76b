"""Recordings: written, read, played and sought in."""

import gzip
import json
from pathlib import Path

import pytest
from record import record
from screens import RECORDING, panel_at, player_at
from vertumnus_tui.link import Address
from vertumnus_tui.playback import Player, Recorder, RecordingError, read_recording
from vertumnus_tui.source import LiveSource
from vertumnus_tui.status import Live

from vertumnusd.messages import FeedDelta, FeedSnapshot

HEADER = {"format": "vertumnus-recording", "version": 1, "interval_s": 1.0}
CLUSTER = {"composition": "1CP1", "workers": [], "totals": {}}


def written(path, *lines, header=HEADER):
    path.write_text("\n".join(json.dumps(line) for line in (header, *lines)))
    return path


def picture(t, **changes):
    return {"t": t, "cluster": {**CLUSTER, **changes}, "events": []}


def test_time_passes_at_the_speed_that_is_chosen(tmp_path):
    path = written(tmp_path / "r", *(picture(t, epoch=t) for t in range(10)))
    player = Player(read_recording(path))
    player.change_speed(faster=True)
    player.pass_time(1.6)
    assert (player.at_s, player.model.cluster.epoch) == (3.2, 3)
    player.paused = True
    player.pass_time(5.0)
    assert player.at_s == 3.2
    player.paused = False
    player.pass_time(100.0)
    assert (player.at_s, player.model.cluster.epoch) == (9.0, 9)


def test_seeking_back_and_forth_comes_to_the_same():
    player = player_at(80.0)
    player.seek(30.0)
    player.seek(60.0)
    straight = panel_at(60.0)
    assert player.model.raw() == straight.model.raw()
    assert player.model.history.last(1e9) == straight.model.history.last(1e9)
    assert len(player.model.events) == len(straight.model.events)


def test_plain_and_packed_recordings_are_read(tmp_path):
    unpacked = tmp_path / "swing.jsonl"
    unpacked.write_bytes(gzip.decompress(RECORDING.read_bytes()))
    assert read_recording(unpacked).times == read_recording(RECORDING).times


def test_what_the_simulator_records_today_can_be_played(tmp_path):
    path = tmp_path / "today.jsonl"
    path.write_bytes(record())
    player = Player(read_recording(path))
    player.seek(1e9)
    assert player.trouble == ""
    assert player.model.decisions
    assert sum(event.kind == "Placed" for event in player.model.events) > 100


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "first line"),
        (b"\x89PNG\r\n", "first line"),
        (b'{"format": "other", "version": 1, "interval_s": 1}\n', "first line"),
        (b'{"format": "vertumnus-recording", "version": 2, "interval_s": 1}\n', "version 2"),
        (json.dumps(HEADER).encode(), "nothing in it"),
        (json.dumps(HEADER).encode() + b'\n{"t": 1, "clu', "cannot be read"),
        (json.dumps(HEADER).encode() + b'\n{"t": 2}\n{"t": 1}', "backwards"),
        (b"\x1f\x8bbroken", "compress|file"),
    ],
)
def test_what_is_no_recording_is_named(tmp_path, content, words):
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(RecordingError, match=words) as error:
        read_recording(path)
    assert str(path) in str(error.value)


def test_what_a_feed_showed_can_be_played(tmp_path):
    path = tmp_path / "r.jsonl"
    recorder = Recorder(path)
    source = Player(read_recording(written(tmp_path / "empty", picture(0)))).model
    event = {"t": 100.2, "type": "Held", "hold_s": 60.0, "by": "ann"}
    frames = [FeedSnapshot(1, 100.0, 5000.0, CLUSTER)]
    frames += [
        FeedDelta(n, 100.0 + n / 4, {"epoch": n}, {}, [event] if n == 2 else [])
        for n in range(2, 12)
    ]
    for frame in frames:
        source.apply(frame)
        recorder.take(source, frame.events)
    recorder.close()
    player = Player(read_recording(path))
    player.seek(1e9)
    assert player.model.cluster.epoch == 8  # of the last whole second
    assert [e.about.label for e in player.model.events] == ["held"]
    assert player.model.wall_s == 4900.0


def test_a_recording_ends_where_it_is_broken(tmp_path):
    lines = [picture(0), picture(1, epoch=1), picture(2, workers=[{"name": 5}]), picture(3)]
    player = Player(read_recording(written(tmp_path / "r", *lines)))
    player.seek(3.0)
    assert (player.at_s, player.length_s, player.model.cluster.epoch) == (1.0, 1.0, 1)
    assert player.trouble.startswith("line 4: this is no cluster")
    with pytest.raises(RecordingError, match="line 2"):
        Player(read_recording(written(tmp_path / "r", {"t": 0, "cluster": {"workers": 1}})))


def test_a_full_disk_ends_the_recording_and_not_the_console():
    source = LiveSource(Address(), Recorder(Path("/dev/full")))
    source._take(FeedSnapshot(1, 1.0, 0.0, CLUSTER))
    source._take(FeedDelta(2, 2.0))
    assert isinstance(source.status, Live)
    assert "No space left" in source.status.recording


def test_a_recording_that_cannot_be_written_is_refused(tmp_path):
    with pytest.raises(RecordingError, match="No such file"):
        Recorder(tmp_path / "missing" / "r.jsonl")
