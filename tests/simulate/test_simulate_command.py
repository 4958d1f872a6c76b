from __future__ import annotations

import json

import pytest

from vertumnusd.__main__ import main

FLAGS = ("--seconds", "20", "--rate", "3", "--gpus", "8", "--jobs", "1")
TRACE_LINE = '{"timestamp": %d, "input_length": 600, "output_length": 1, "hash_ids": [%d, %d]}\n'


def simulate(*flags):
    return main(["simulate", *flags])


def status_of(*flags):
    """The exit status, whoever refuses: argparse raises it."""
    try:
        return simulate(*flags)
    except SystemExit as stopped:
        return stopped.code


def test_all_policies_on_a_generated_load(tmp_path, capsys):
    report = tmp_path / "report.json"
    assert simulate("conversation", *FLAGS, "--seeds", "2", "--json", str(report)) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = {line.split()[0]: line for line in lines[3:]}
    written = json.loads(report.read_text())
    assert [p["choice"]["policy"] for p in written["policies"]] == list(rows)
    assert {"ours", "paper", "homo-2", "homo-4", "static", "overlap-cost", "bound"} <= set(rows)
    for entry in written["policies"]:
        assert [seed["requests"] for seed in entry["seeds"]] == [entry["seeds"][0]["requests"]] * 2
        assert "±" in rows[entry["choice"]["policy"]]


def test_the_same_command_gives_the_same_bytes_in_one_process_and_in_two(tmp_path):
    reports = [tmp_path / "one.json", tmp_path / "two.json"]
    for jobs, report in zip("12", reports, strict=True):
        flags = [*FLAGS[:-1], jobs, "--policies", "ours,static,bound", "--json", str(report)]
        assert simulate("tool-agent", *flags) == 0
    assert reports[0].read_bytes() == reports[1].read_bytes()


def test_a_trace_file_is_replayed_at_the_rate_asked_for(tmp_path, capsys):
    trace = tmp_path / "two.jsonl"
    trace.write_text("".join(TRACE_LINE % (1000 * n, n, 100 + n) for n in range(10)))
    assert simulate(str(trace), "--rate", "2.5", "--policies", "bound,round-robin") == 0
    assert "two: 10 requests at 2.5/s on 40 GPUs" in capsys.readouterr().out


def test_phases_follow_each_other(capsys):
    assert simulate("short:20:3,long:20:1", "--gpus", "8", "--policies", "bound,paper") == 0
    assert "phases: " in capsys.readouterr().out


def test_a_recording_has_a_header_and_pictures_at_fixed_times(tmp_path):
    path = tmp_path / "recording.jsonl"
    flags = ("--policies", "ours", "--composition", "1CP4/2CP2", "--record", str(path))
    assert simulate("short", *FLAGS, *flags, "--record-interval", "5") == 0
    header, *pictures = map(json.loads, path.read_text().splitlines())
    assert (header["format"], header["version"]) == ("vertumnus-recording", 1)
    times = [picture["t"] for picture in pictures]
    assert times == pytest.approx([times[0] + 5 * n for n in range(len(times))])
    assert len(times) >= 4
    assert pictures[-1]["cluster"]["composition"] == "1CP4/2CP2"
    kinds = {event["type"] for picture in pictures for event in picture["events"]}
    assert {"Exposed", "Placed"} <= kinds


def test_a_plot_is_written(tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "plot.png"
    assert simulate("short", *FLAGS, "--policies", "mix,bound", "--plots", str(path)) == 0
    assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (("nowhere.jsonl",), "nowhere.jsonl"),
        (("short", "--seeds", "0"), "--seeds"),
        (("short", "--noise", "-1"), "--noise"),
        (("short", "--rate", "0"), "--rate"),
        (("short:10",), "KIND:SECONDS:RATE is expected"),
        (("tall:10:1",), "no load tall"),
        (("short", "--policies", "best"), "no policy best; known: ours"),
        (("short", "--degrees", "1,3"), "powers of two are expected"),
        (("short", "--degrees", "x"), "integers are expected"),
        (("short", "--degrees", "0,1"), "powers of two are expected"),
        (("short", "--gpus", "9"), "a multiple of 2, 4 or more, is expected"),
        (("short", "--gpus", "2"), "a multiple of 2, 4 or more, is expected"),
        (("short", "--profile", "q4"), "no such profile"),
        (("short", "--composition", "3CP4"), "--composition"),
        (("short", "--seconds", "1e9"), "5000000 may be"),
        (("short", "--kv-tokens", "511"), "at least 512"),
        (("long", "--kv-tokens", "512"), "--kv-tokens 512 hold 2048"),
        (("short", "--json", "/nowhere/x.json"), "a folder that exists"),
        (("short", "--policies", "bound", "--seconds", "5", "--record", "r"), "--record"),
    ],
)
def test_what_cannot_be_run_is_refused_with_the_reason(flags, reason, capsys):
    assert status_of(*flags) == 2
    assert reason in capsys.readouterr().err
