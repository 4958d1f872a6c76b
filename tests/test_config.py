"""Configuration: every key documented, every mistake named."""

import tomllib
from pathlib import Path

import msgspec
import pytest

from vertumnusd.__main__ import main
from vertumnusd.config import (
    PROFILES,
    Config,
    ConfigError,
    ModelConfig,
    adaptation,
    load_config,
    load_profile,
)
from vertumnusd.control.prefill_time import Coefficients
from vertumnusd.profile_file import ProfileFile

ROOT = Path(__file__).resolve().parent.parent


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "node.toml"
    path.write_text(text)
    return path


def test_the_sample_file_holds_every_key_with_its_default():
    table = tomllib.loads((ROOT / "etc" / "vertumnusd.toml").read_text())
    assert table == msgspec.json.decode(msgspec.json.encode(Config()))


def test_the_sample_and_the_demo_file_load():
    assert load_config(ROOT / "etc" / "vertumnusd.toml") == Config()
    assert load_config(ROOT / "etc" / "demo.toml").composition == "2CP2"


def test_what_is_shown_is_a_file_that_says_the_same(tmp_path, capsys):
    path = write(tmp_path, '[model]\nname = "a\\"\\\\b"\n[placement]\nlambda = 1e-9\n')
    assert main(["config", "show", str(path)]) == 0
    shown = write(tmp_path, capsys.readouterr().out)
    assert load_config(shown).model.name == 'a"\\b'
    assert load_config(shown) == load_config(
        None, {"model": {"name": 'a"\\b'}, "placement": {"lambda": 1e-9}}
    )


def test_an_installation_takes_all_of_etc_along():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    placed = {
        Path(folder).relative_to("share/vertumnusd") / file.name: file
        for folder, patterns in project["tool"]["setuptools"]["data-files"].items()
        for pattern in patterns
        for file in ROOT.glob(pattern)
    }
    files = [file for file in (ROOT / "etc").rglob("*") if file.is_file()]
    assert placed == {file.relative_to(ROOT / "etc"): file for file in files}


def test_flags_win_over_the_file(tmp_path):
    path = write(tmp_path, "[node]\nport = 1\nhost = 'a'\n")
    node = load_config(path, {"node": {"port": 2}}).node
    assert (node.port, node.host) == (2, "a")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[node]\nprot = 1\n", ["node.prot", "did you mean port?"]),
        ("[nod]\nport = 1\n", ["[nod]", "did you mean node?"]),
        ("[node]\nqqq = 1\n", ["node.qqq", "known are"]),
        ("[node]\nport = 'x'\n", ["node.port = 'x'", "int"]),
        ("[node]\nport = 70000\n", ["node.port = 70000", "65535"]),
        ("port = 1\n", ["port = 1 is in no section", "it belongs to [node]"]),
        ("prot = 1\n", ["prot = 1 is in no section"]),
        ("node = 1\n", ["[node]"]),
        ("[node\n", ["TOML"]),
        ("[model]\ndtype = 'int4'\n", ["model.dtype = 'int4'", "float32", "bfloat16"]),
        ("[cluster]\ncp_degrees = [3]\n", ["cluster.cp_degrees = [3]", "powers of two"]),
        ("[cluster]\ncp_degrees = [2, 1]\n", ["rising"]),
        ("[cluster]\ncp_degrees = ['x']\n", ["cluster.cp_degrees[0] = ['x']", "int"]),
        ("[adaptation]\ncapacity_shares = {1 = 'x'}\n", ["capacity_shares[...] = {'1': 'x'}"]),
        ("[cluster]\ncp_degrees = []\n", ["cluster.cp_degrees"]),
        ("[cluster]\nranks = 3\ncp_degrees = [2]\n", ["cluster.ranks = 3", "multiple of 2"]),
        ("[cluster]\nranks = 4\ncp_degrees = [2]\nhome_ranks = 4\n", ["home_ranks = 4", "1, 2"]),
        ("[cluster]\nranks = 4\ncomposition = '2CP4'\n", ["composition = '2CP4'", "degrees are 1"]),
        ("[cluster]\nranks = 4\ncomposition = '3CP1'\n", ["3CP1", "uses 3 ranks of 4"]),
        ("[cluster]\nranks = 4\ncomposition = 'CP1'\n", ["'CP1' is not like"]),
        ("[cluster]\ncomposition = 'auto'\n", ["historic_demands_s = []", "of one past window"]),
        ("[cluster]\ncomposition = 'Auto'\n", ["composition = 'Auto'", "not like", '"auto"']),
        ("[placement]\npolicy = 'mine'\n", ['policy = \'mine\': "paper" or "ours" is allowed']),
        ("[adaptation]\njudge_by = 'time'\n", ['judge_by = \'time\': "times" or "demand" is']),
        ("[cluster]\nhistoric_demands_s = [-1.0]\n", ["historic_demands_s = [-1.0]", "0 or more"]),
        ("[cluster]\nhistoric_demands_s = [inf]\n", ["historic_demands_s = [inf]", "0 or more"]),
        ("[cluster]\nranks = 1025\n", ["cluster.ranks = 1025", "1024"]),
        ("[cluster]\nranks = 0\n", ["cluster.ranks = 0", "1024"]),
        ("[cluster]\ndecode_ranks = 0\n", ["cluster.decode_ranks = 0", "1024"]),
        ("[node]\ndrain_s = inf\n", ["node.drain_s = inf", "finite"]),
        ("[placement]\nlambda = nan\n", ["placement.lambda = nan", "finite"]),
        ("[rank]\nmax_restarts = -1\n", ["rank.max_restarts = -1"]),
        ("[cache]\nblock_tokens = 4\n", ["cache.block_tokens = 4", "8 … 512"]),
        ("[cache]\nkv_tokens = 4\n", ["cache.kv_tokens = 4", "16"]),
        ("[placement]\nbeta = 0.5\n", ["placement.beta = 0.5", "1 or more"]),
        ("[placement]\nlambda = -1.0\n", ["placement.lambda"]),
        ("[rank]\nstep_s = 0.0\n", ["rank.step_s = 0.0", "more than 0"]),
        ("[rank]\nstep_s = nan\n", ["rank.step_s = nan"]),
        ("[rank]\ndevice = 'tpu'\n", ["rank.device = 'tpu'", "cpu", "cuda"]),
        ("[rank]\ndevice = 'cuda'\n", ["model.dtype = 'float32'", "bfloat16"]),
        (
            "[rank]\ndevice = 'cuda'\nexchange = 'shared'\n[model]\ndtype = 'bfloat16'\n",
            ["rank.exchange = 'shared'", "collective"],
        ),
        ("[rank]\nexchange = 'mpi'\n", ["rank.exchange = 'mpi'", "shared", "collective"]),
    ],
)
def test_a_mistake_is_named_with_what_is_allowed(tmp_path, text, words):
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as error:
        load_config(path)
    for word in [str(path), *words]:
        assert word in str(error.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match="No such file"):
        load_config(tmp_path / "none.toml")


def test_every_shipped_profile_loads_and_rises_with_length():
    for path in PROFILES.glob("*.toml"):
        prefill_time, name = load_profile(ModelConfig(profile=str(path)), "any")
        assert name == path.name
        for degree in (1, 2):
            short_s = prefill_time.predict_s(degree, 100, 0)
            assert 0 < short_s < prefill_time.predict_s(degree, 1000, 0)


def test_the_fall_back_profile_serves_unknown_models():
    assert load_profile(ModelConfig(), "nobody-measured-this")[1] == "fallback.toml"


@pytest.mark.parametrize(
    ("profile", "word"),
    [("none-such", "known: "), ("/none/such.toml", "No such file")],
)
def test_a_missing_profile_is_named(profile, word):
    with pytest.raises(ConfigError, match=word):
        load_profile(ModelConfig(profile=profile), "any")


def test_a_broken_profile_is_named(tmp_path):
    path = tmp_path / "p.toml"
    path.write_text("model = 'm'\ndtype = 'd'\ndevice = 'c'\n[shared]\nd_s = -1.0\n")
    with pytest.raises(ConfigError, match=r"p\.toml"):
        load_profile(ModelConfig(profile=str(path)), "any")


def test_checking_a_file_checks_the_profile_that_it_names(tmp_path, capsys):
    path = write(tmp_path, "[model]\nprofile = 'none-such'\n")
    assert main(["config", "check", str(path)]) == 2
    assert "none-such" in capsys.readouterr().err


def test_the_capacity_of_the_profile_counts_where_none_is_configured(tmp_path):
    path = write(tmp_path, "[adaptation]\ncapacity_shares = {1 = 0.7}\n")
    some = Coefficients(0.1, 0.0, 0.0, 0.0, 0.0)
    profile = ProfileFile("m", "float32", "cpu", some, capacity={"1": 0.9, "2": 0.6})
    settings = adaptation(load_config(path), profile)
    assert settings.capacity_shares == {1: 0.7, 2: 0.6}
