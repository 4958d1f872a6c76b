"""Whether there is a CUDA device for every rank."""

from __future__ import annotations

from pathlib import Path

import pytest

from vertumnusd.config import Config, ConfigError, load_config
from vertumnusd.node import devices


def config(device: str) -> Config:
    return load_config(
        None,
        {
            "rank": {"device": device},
            "model": {"dtype": "bfloat16"},
            "cluster": {"ranks": 2, "decode_ranks": 1},
        },
    )


@pytest.fixture
def dev(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(devices, "DEV", tmp_path)
    for name in ("nvidiactl", "nvidia-uvm", "nvidia0", "nvidia1"):
        (tmp_path / name).touch()
    return tmp_path


def test_too_few_devices_are_named_with_what_is_needed(dev: Path) -> None:
    with pytest.raises(ConfigError, match=r"2 prefill and 1 decode ranks need .* 2 found"):
        devices.check_devices(config("cuda"))


def test_a_device_for_each_rank_is_enough(dev: Path) -> None:
    (dev / "nvidia2").touch()
    devices.check_devices(config("cuda"))


def test_ranks_on_cpu_need_none(dev: Path) -> None:
    (dev / "nvidia0").unlink()
    devices.check_devices(config("cpu"))
