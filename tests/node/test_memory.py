"""How the memory of a host is divided among pools and activations."""

import pytest

from vertumnusd.config import CacheConfig, ClusterConfig, Config, ConfigError, RankConfig
from vertumnusd.messages import Experts, ModelInfo
from vertumnusd.node.memory import LEAST_ACTIVATION_BYTES, GiB, fixed_bytes, planned, weights_bytes


def model(**fields) -> ModelInfo:
    shape = {
        "name": "m", "architecture": "llama", "layers": 10, "hidden": 512, "heads": 8,
        "kv_heads": 2, "head_dim": 64, "intermediate": 1024, "vocab": 1000,
        "context_tokens": 4096, "norm_eps": 1e-5, "rope_theta": 1e4, "tied_embeddings": True,
        "dtype": "float32",
    }  # fmt: skip
    return ModelInfo(**shape | fields)


def config(kv_tokens: int = 16384, activation_bytes: int = 0, ranks: int = 2) -> Config:
    return Config(
        cluster=ClusterConfig(ranks=ranks, cp_degrees=(1, 2)),
        cache=CacheConfig(kv_tokens=kv_tokens, decode_kv_tokens=8192),
        rank=RankConfig(activation_bytes=activation_bytes),
    )


def used_bytes(config: Config, model: ModelInfo) -> int:
    pools = config.cluster.ranks * config.cache.kv_tokens
    pools += config.cluster.decode_ranks * config.cache.decode_kv_tokens
    activations = config.cluster.ranks * config.rank.activation_bytes
    return fixed_bytes(config, model) + pools * model.kv_bytes_per_token + activations


@pytest.mark.parametrize("kv_tokens", [0, 16384])
@pytest.mark.parametrize("ranks", [2, 6])
def test_what_is_free_is_divided_and_no_more(kv_tokens, ranks):
    sized = planned(config(kv_tokens, ranks=ranks), model(), 16 * GiB)
    assert 0.95 < used_bytes(sized, model()) / (0.9 * 16 * GiB) <= 1
    assert sized.cache.kv_tokens % sized.cache.block_tokens == 0
    assert kv_tokens in (0, sized.cache.kv_tokens)


def test_configured_sizes_stay():
    written = config(1600, 100 << 20)
    assert planned(written, model(), 16 * GiB) == written


def test_activations_that_do_not_fit_are_refused():
    with pytest.raises(ConfigError, match=r"activation_bytes = 17179869184 .* 16.0 GiB are avail"):
        planned(config(activation_bytes=16 * GiB), model(), 16 * GiB)


def test_pools_that_leave_nothing_for_activations_are_refused():
    tokens = 13 * GiB // 4 // model().kv_bytes_per_token
    with pytest.raises(ConfigError, match=rf"kv_tokens = {tokens} on 2 ranks"):
        planned(config(tokens), model(), 8 * GiB)


def test_a_host_without_room_for_the_processes_is_refused():
    with pytest.raises(ConfigError, match="too much"):
        planned(config(0), model(), GiB)


def test_activations_get_at_least_a_little():
    sized = planned(config(0), model(), 4 * GiB)
    assert sized.rank.activation_bytes >= LEAST_ACTIVATION_BYTES


def test_experts_are_counted_among_the_weights():
    experts = Experts(count=16, per_token=2, intermediate=256, normalised=True, layers=(0, 1))
    difference = weights_bytes(model(experts=experts)) - weights_bytes(model())
    one_layer = 16 * (3 * 256 + 1) - 3 * 1024
    assert difference == 2 * one_layer * 512 * 4
