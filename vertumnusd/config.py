"""Configuration: TOML file → frozen structs, checked once at start.

Every key stands, with its unit and default, in ``etc/vertumnusd.toml``. An unknown key or a bad
value raises :class:`ConfigError` with file, key, value, what is allowed, and the nearest known key.
"""

from __future__ import annotations

import difflib
import math
import sys
import tomllib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import msgspec

from vertumnusd.control.fleet import parse_composition
from vertumnusd.control.prefill_time import PrefillTime
from vertumnusd.control.settings import AUTO, ReconfigurationSettings, ReplicationSettings
from vertumnusd.profile_file import ProfileFile, read_profile

CPU, CUDA, PACED = "cpu", "cuda", "paced"
MOST_RANKS = 1024  # of one node; a typing error should not start a process for each
SOURCE_ETC = Path(__file__).resolve().parent.parent / "etc"
INSTALLED_ETC = Path(sys.prefix) / "share" / "vertumnusd"  # where pyproject.toml puts it
ETC = SOURCE_ETC if (SOURCE_ETC / "vertumnusd.toml").is_file() else INSTALLED_ETC
PROFILES = ETC / "profiles"
Require = Callable[[bool, str, object, str], None]  # whether it holds; key, value, what is allowed


class ConfigError(Exception):
    """The configuration cannot be used; the message says where, what and what is allowed."""


class NodeConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """This host's doors."""

    host: str = "127.0.0.1"
    port: int = 8000
    rank_host: str = "127.0.0.1"  # network that the ranks' store listens on
    api_key_file: str = ""  # one key a line; empty: no authentication
    admin_socket: str = ""  # path; empty: see admin_address.py
    admin_token_file: str = ""  # for admin requests over TCP; empty: none are taken
    drain_s: float = 30.0  # longest wait for running requests at shutdown


class ModelConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is served."""

    path: str = "SmolLM2-135M-Instruct"
    name: str = ""  # name on the wire; empty: the checkpoint's own
    dtype: str = "float32"
    profile: str = ""  # name in etc/profiles or a path; empty: by model and dtype, else fall-back


class ClusterConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Prefill ranks and how they start."""

    ranks: int = 1
    cp_degrees: tuple[int, ...] = (1,)
    composition: str = ""  # "1CP2/2CP1", or AUTO; empty: all workers at the smallest degree
    historic_demands_s: tuple[float, ...] = ()  # D of past windows, that AUTO is chosen for
    home_ranks: int = 0  # 0: the smallest configured degree
    decode_ranks: int = 1


class CacheConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """KV memory, in tokens."""

    block_tokens: int = 16
    kv_tokens: int = 16384  # per prefill rank; 0: by what memory is free
    decode_kv_tokens: int = 32768  # per decode rank


class PlacementConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Terms of J, and how much may wait."""

    policy: Literal["paper", "ours"] = "ours"
    beta: float = 1.0
    lambda_: float = msgspec.field(default=0.0, name="lambda")
    max_queue_tokens: int = 1_000_000
    max_queue_s: float = 600.0
    unplaced_wait_s: float = 60.0  # a request without any worker to go to waits this long
    fetch: bool = True  # prefixes of other homes, where copying costs less than computing
    fetch_bytes_per_s: float = 1e9  # into one rank


class ReplicationConfig(ReplicationSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Algorithms 1 and 2, and the copies that nobody waits for."""

    enabled: bool = True
    running: int = 4  # copies on the way at once …
    bytes_per_s: float = 30e6  # … and what they bring to one rank


class RankConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How rank processes run."""

    # "cpu", "cuda" (a device for each rank), or "paced": ranks that compute nothing, and take the
    # profile's time ``pace`` times.
    device: str = CPU
    pace: float = 1.0
    step_s: float = 0.2  # predicted length of a step; cancels and pauses act between steps
    max_paused: int = 4  # begun prefills that may wait between layers for shorter ones
    pack_requests: int = 8  # short prefills that may share a step …
    pack_tokens: int = 8192  # … and their uncached tokens together
    activation_bytes: int = 0  # memory for the steps of a prefill rank; 0: what is free, on CPU
    debug_plans: bool = False  # whether the ranks of a worker compare their plans at each step
    pin_cores: bool = True
    exchange: str = ""  # "shared" or "collective"; empty: shared where ranks see the same memory
    start_timeout_s: float = 120.0
    progress_timeout_s: float = 5.0  # or five times the predicted time, if longer
    collective_timeout_s: float = 60.0
    max_restarts: int = 5  # of one lattice root within ten minutes


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole configuration of one node."""

    node: NodeConfig = NodeConfig()
    model: ModelConfig = ModelConfig()
    cluster: ClusterConfig = ClusterConfig()
    cache: CacheConfig = CacheConfig()
    placement: PlacementConfig = PlacementConfig()
    rank: RankConfig = RankConfig()
    adaptation: ReconfigurationSettings = ReconfigurationSettings()
    replication: ReplicationConfig = ReplicationConfig()

    @property
    def home_ranks(self) -> int:
        return self.cluster.home_ranks or min(self.cluster.cp_degrees)

    @property
    def composition(self) -> str:
        """The workers at start, such as ``1CP2/2CP1``; or AUTO."""
        smallest = min(self.cluster.cp_degrees)
        return self.cluster.composition or f"{self.cluster.ranks // smallest}CP{smallest}"

    @property
    def kv_blocks(self) -> int:
        return self.cache.kv_tokens // self.cache.block_tokens

    @property
    def decode_kv_blocks(self) -> int:
        return self.cache.decode_kv_tokens // self.cache.block_tokens


def load_config(path: Path | None, overrides: dict[str, dict[str, Any]] | None = None) -> Config:
    """Read ``path`` (``None``: defaults), lay ``overrides`` (section → key → value) over it, check.

    Raises :class:`ConfigError`.
    """
    source = str(path) if path is not None else "defaults"
    table: dict[str, Any] = {}
    if path is not None:
        try:
            table = tomllib.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(f"{source}: {error.strerror or error}") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{source}: not valid TOML: {error}") from error
    for section, values in (overrides or {}).items():
        table[section] = {**table.get(section, {}), **values}
    _reject_unknown_keys(source, table)
    try:
        config = msgspec.convert(table, Config, str_keys=True)
    except msgspec.ValidationError as error:
        raise ConfigError(_locate(source, table, str(error))) from error
    _check_values(source, config)
    return config


def _reject_unknown_keys(source: str, table: dict[str, Any]) -> None:
    sections = {f.encode_name: f.type for f in msgspec.structs.fields(Config)}
    for section, values in table.items():
        if section not in sections and not isinstance(values, dict):
            homes = [f"[{name}]" for name, of in sections.items() if section in _keys(of)]
            where = f"; it belongs to {' or '.join(homes)}" if homes else ""
            raise ConfigError(f"{source}: {section} = {values!r} is in no section{where}")
        if section not in sections:
            raise ConfigError(f"{source}: unknown section [{section}]{_near(section, sections)}")
        if not isinstance(values, dict):
            raise ConfigError(
                f"{source}: {section} = {values!r}: a section [{section}] is expected"
            )
        known = _keys(sections[section])
        for key in values:
            if key not in known:
                raise ConfigError(f"{source}: unknown key {section}.{key}{_near(key, known)}")


def _keys(section: type[msgspec.Struct]) -> list[str]:
    return [field.encode_name for field in msgspec.structs.fields(section)]


def _near(word: str, known: Any) -> str:
    match = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    if match:
        return f"; did you mean {match[0]}?"
    return f"; known are: {', '.join(sorted(known))}"


def _locate(source: str, table: dict[str, Any], error: str) -> str:
    """Turn msgspec's ``Expected `int`, got `str` - at `$.node.port``` into our form."""
    reason, _, where = error.partition(" - at `")
    key = where.rpartition("$.")[2].rstrip("`")
    section, _, name = key.partition(".")
    if not name:
        return f"{source}: [{section}]: {reason}"
    whole = name.partition("[")[0]  # of a list or table, perhaps one part is wrong
    value = table.get(section, {}).get(whole)
    if words := _words(section, whole):
        reason = f"{' or '.join(words)} is allowed"
    return f"{source}: {key} = {value!r}: {reason[0].lower()}{reason[1:]}"


def _words(section: str, name: str) -> list[str]:
    """What a key allows if that is one of a few words."""
    (table,) = (f.type for f in msgspec.structs.fields(Config) if f.encode_name == section)
    (key,) = (f.type for f in msgspec.structs.fields(table) if f.encode_name == name)
    return [f'"{word}"' for word in get_args(key)] if get_origin(key) is Literal else []


def _check_values(source: str, config: Config) -> None:
    require: Require = partial(_require, source)
    _check_ranks(require, config)
    _check_sizes(require, config)
    _check_device(require, config)
    _check_numbers(require, config)
    _check_composition(require, config)


def _require(source: str, holds: bool, key: str, value: object, allowed: str) -> None:
    if not holds:
        raise ConfigError(f"{source}: {key} = {value!r}: {allowed}")


def _check_ranks(require: Require, config: Config) -> None:
    cluster, degrees = config.cluster, config.cluster.cp_degrees
    powers = bool(degrees) and all(d >= 1 and d & (d - 1) == 0 for d in degrees)
    require(powers, "cluster.cp_degrees", list(degrees), "a list of powers of two is expected")
    rising = sorted(set(degrees)) == list(degrees)
    require(rising, "cluster.cp_degrees", list(degrees), "rising, each once, is expected")
    for key, count in (("ranks", cluster.ranks), ("decode_ranks", cluster.decode_ranks)):
        require(1 <= count <= MOST_RANKS, f"cluster.{key}", count, f"1 … {MOST_RANKS} is allowed")
    fits = cluster.ranks % min(degrees) == 0
    require(fits, "cluster.ranks", cluster.ranks, f"a multiple of {min(degrees)} is expected")
    homes = config.home_ranks
    home_fits = homes >= 1 and min(degrees) % homes == 0
    divisors = ", ".join(str(d) for d in range(1, min(degrees) + 1) if min(degrees) % d == 0)
    require(
        home_fits, "cluster.home_ranks", homes, f"a home lies in every worker: one of {divisors}"
    )


def _check_sizes(require: Require, config: Config) -> None:
    cache, port, dtype = config.cache, config.node.port, config.model.dtype
    require(0 <= port <= 65535, "node.port", port, "0 … 65535 is allowed")
    known = dtype in ("float32", "bfloat16")
    require(known, "model.dtype", dtype, '"float32" or "bfloat16" is allowed')
    block, on_cuda = cache.block_tokens, config.rank.device == CUDA
    require(8 <= block <= 512, "cache.block_tokens", block, "8 … 512 is allowed")
    for key, tokens in (
        ("kv_tokens", cache.kv_tokens),
        ("decode_kv_tokens", cache.decode_kv_tokens),
    ):
        allowed = tokens >= block or (tokens == 0 and key == "kv_tokens" and not on_cuda)
        require(allowed, f"cache.{key}", tokens, f"at least one block of {block}")


def _check_device(require: Require, config: Config) -> None:
    device, exchange, dtype = config.rank.device, config.rank.exchange, config.model.dtype
    require(
        exchange in ("", "shared", "collective"),
        "rank.exchange",
        exchange,
        '"shared", "collective" or "" is allowed',
    )
    known = (CPU, CUDA, PACED)
    require(device in known, "rank.device", device, '"cpu", "cuda" or "paced" is allowed')
    if device == CUDA:
        require(dtype == "bfloat16", "model.dtype", dtype, 'on "cuda" "bfloat16" is expected')
        require(
            exchange != "shared",
            "rank.exchange",
            exchange,
            'ranks on "cuda" do not see each other\'s memory: "collective" or "" is allowed',
        )


def _check_composition(require: Require, config: Config) -> None:
    cluster, past_s = config.cluster, config.cluster.historic_demands_s
    past = all(0 <= demand_s < math.inf for demand_s in past_s)
    require(past, "cluster.historic_demands_s", list(past_s), "seconds, 0 or more, are expected")
    if config.composition == AUTO:
        known = f'with "{AUTO}" the demand of one past window at least is expected'
        require(bool(past_s), "cluster.historic_demands_s", list(past_s), known)
        return
    try:
        parse_composition(config.composition, cluster.cp_degrees, cluster.ranks)
    except ValueError as error:
        allowed = f'{error}; or "{AUTO}"'
        require(False, "cluster.composition", cluster.composition, allowed)


def _check_numbers(require: Require, config: Config) -> None:
    placement, rank = config.placement, config.rank
    for section in msgspec.structs.fields(Config):
        for field in msgspec.structs.fields(section.type):
            value = getattr(getattr(config, section.name), field.name)
            finite = not isinstance(value, float) or math.isfinite(value)
            key = f"{section.encode_name}.{field.encode_name}"
            require(finite, key, value, "a finite number is expected")
    require(rank.max_restarts >= 0, "rank.max_restarts", rank.max_restarts, "0 or more is allowed")
    least = rank.activation_bytes
    require(least >= 0, "rank.activation_bytes", least, "0 or more is allowed")
    require(rank.max_paused >= 0, "rank.max_paused", rank.max_paused, "0 or more is allowed")
    require(placement.beta >= 1, "placement.beta", placement.beta, "1 or more is allowed")
    require(placement.lambda_ >= 0, "placement.lambda", placement.lambda_, "0 or more is allowed")
    for key, value in (
        ("placement.max_queue_tokens", placement.max_queue_tokens),
        ("placement.max_queue_s", placement.max_queue_s),
        ("placement.unplaced_wait_s", placement.unplaced_wait_s),
        ("placement.fetch_bytes_per_s", placement.fetch_bytes_per_s),
        ("rank.pace", rank.pace),
        ("rank.step_s", rank.step_s),
        ("rank.pack_requests", rank.pack_requests),
        ("rank.pack_tokens", rank.pack_tokens),
        ("rank.start_timeout_s", rank.start_timeout_s),
        ("rank.progress_timeout_s", rank.progress_timeout_s),
        ("rank.collective_timeout_s", rank.collective_timeout_s),
        ("node.drain_s", config.node.drain_s),
    ):
        require(value > 0, key, value, "more than 0 is expected")


def load_profile(config: ModelConfig, model: str) -> tuple[PrefillTime, str]:
    """The prefill times of ``model``, and the name of the file that they are from.

    Raises :class:`ConfigError`.
    """
    profile, name = load_profile_file(config, model)
    return profile.prefill_time, name


def load_profile_file(config: ModelConfig, model: str) -> tuple[ProfileFile, str]:
    """The named profile, else the one measured for ``model``, else the fall-back; and its name.

    Raises :class:`ConfigError`.
    """
    path = _profile_path(config, model)
    try:
        return read_profile(path), path.name
    except OSError as error:
        raise ConfigError(
            f"model.profile = {config.profile!r}: {path}: {error.strerror}"
        ) from error
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from error


def adaptation(config: Config, profile: ProfileFile) -> ReconfigurationSettings:
    """The configured thresholds; where the configuration names no κ_C, with the profile's."""
    configured = config.adaptation.capacity_shares
    shares = {**profile.capacity_shares, **configured}
    return msgspec.structs.replace(config.adaptation, capacity_shares=shares)


def _profile_path(config: ModelConfig, model: str) -> Path:
    if config.profile:
        named = Path(config.profile)
        if named.suffix == ".toml":
            return named
        path = PROFILES / f"{config.profile}.toml"
        if not path.exists():
            names = ", ".join(sorted(p.stem for p in PROFILES.glob("*.toml")))
            raise ConfigError(
                f"model.profile = {config.profile!r}: no such profile; known: {names}"
            )
        return path
    measured = PROFILES / f"{profile_name(model, config.dtype)}.toml"
    return measured if measured.exists() else PROFILES / "fallback.toml"


def profile_name(model: str, dtype: str) -> str:
    """What the profile of a model on this kind of device is called, unless somebody says else."""
    return f"{model.lower()}_cpu_{dtype}"
