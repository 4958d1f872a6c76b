"""The profile's end of real ranks: it notices what goes wrong, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from vertumnusd.checkpoint import model_info
from vertumnusd.config import load_config
from vertumnusd.profile.host import Host, HostError, running_host
from vertumnusd.profile.worker import Worker

pytestmark = pytest.mark.ranks

QUARRY_TOKENS = 64
PATIENCE_S = 60.0


@pytest.fixture
def host(checkpoint: Path) -> Iterator[Host]:
    cluster = {"ranks": 2, "cp_degrees": [2], "home_ranks": 2}
    cache = {"kv_tokens": 128, "decode_kv_tokens": 16}
    config = load_config(None, {"cluster": cluster, "cache": cache})
    with running_host(
        config, model_info(checkpoint, "", "float32"), checkpoint, lambda _: None
    ) as h:
        yield h
    assert all(not Path(f"/proc/{rank.pid}").exists() for rank in h.ranks)


def test_prefixes_are_real_and_a_dead_rank_is_named(host: Host) -> None:
    worker = Worker(host, PATIENCE_S)
    worker.adopt(2)
    worker.dig(QUARRY_TOKENS)
    for cached_tokens in (0, 16, 48, 16):
        run = worker.prefill(QUARRY_TOKENS - cached_tokens, cached_tokens)
        assert run.elapsed_s > 0
        assert len(run.stats) == 2
    with pytest.raises(HostError, match="64 tokens are cached where 80 should be"):
        worker.prefill(16, QUARRY_TOKENS + 16)
    os.kill(host.ranks[1].pid, signal.SIGKILL)
    with pytest.raises(HostError, match=r"rank \d"):
        worker.prefill(16, 0)
