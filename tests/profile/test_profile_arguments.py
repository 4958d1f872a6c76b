"""What is wrong with a profile's flags is said before anything starts."""

from __future__ import annotations

import json

import pytest

from vertumnusd.__main__ import main

CONFIG = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 16,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 32,
    "vocab_size": 64,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
}


@pytest.fixture
def model(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "model.safetensors").touch()
    return str(tmp_path)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--ranks", "2", "--degrees", "1,4"], ["degree 4 needs 4 ranks", "there are 2"]),
        (["--degrees", "1,x"], ["--degrees 1,x", "such as 1,2,4"]),
        (["--ranks", "3", "--degrees", "3"], ["cluster.cp_degrees = [3]", "powers of two"]),
        (["--longest", "200"], ["--longest 200", "32 … 128"]),
        (["--longest", "8"], ["--longest 8", "32 … 128"]),
        (["--load", "nothing"], ["--load nothing", "conversation"]),
        (["--slo", "100:x"], ["--slo 100:x", "TOKENS:SECONDS"]),
        (["--slo", "100:1"], ["--slo 100:1", "inf"]),
        (["--slo", "100:1,50:1,inf:2"], ["rising"]),
        (["--out", "/nowhere/p.toml"], ["--out /nowhere/p.toml", "cannot be written"]),
        (["--out", "p.json"], ["--out p.json", ".toml"]),
        (["--config", "/none.toml"], ["/none.toml", "No such file"]),
        (["--dtype", "int4"], ["int4", "bfloat16"]),
        (["--ranks", "0"], ["--ranks"]),
        (["--quik"], ["did you mean --quick?"]),
    ],
    ids=lambda value: " ".join(value) if value[0].startswith("--") else "",
)
def test_a_wrong_flag_is_named_with_what_is_allowed(model, capsys, flags, words):
    try:
        status = main(["profile", model, *flags])
    except SystemExit as end:
        status = end.code
    assert status == 2
    said = capsys.readouterr().err
    for word in words:
        assert word in said


def test_an_unknown_model_is_named(capsys):
    assert main(["profile", "none-such"]) == 2
    assert "model 'none-such' is neither" in capsys.readouterr().err


def test_a_kernel_that_cannot_tell_disturbed_runs_is_said(model, capsys, monkeypatch):
    monkeypatch.setattr("vertumnusd.profile.arguments.kernel_counts", lambda: False)
    assert main(["profile", model]) == 2
    assert "schedstat" in capsys.readouterr().err
