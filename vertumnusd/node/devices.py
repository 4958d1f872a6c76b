"""The CUDA devices of this host, as its driver shows them: the daemon itself loads no CUDA."""

from __future__ import annotations

import re
from pathlib import Path

from vertumnusd.config import Config, ConfigError

DEV = Path("/dev")


def check_devices(config: Config) -> None:
    """Raise ConfigError if ranks are to have CUDA devices and there are not enough."""
    if config.rank.device != "cuda":
        return
    ranks = config.cluster.ranks + config.cluster.decode_ranks
    found = [path for path in DEV.glob("nvidia*") if re.fullmatch(r"nvidia\d+", path.name)]
    if len(found) < ranks:
        raise ConfigError(
            f"rank.device = 'cuda': {config.cluster.ranks} prefill and"
            f" {config.cluster.decode_ranks} decode ranks need a CUDA device each;"
            f" {len(found)} found ({DEV}/nvidia0, …)"
        )
