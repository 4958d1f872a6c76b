"""A node whose log cannot be written serves on."""

import io
import sys
from collections.abc import Iterator

import pytest
import structlog

from vertumnusd.node.logs import set_up_logs


class Disk(io.StringIO):
    """Full for as long as somebody says so."""

    full = False

    def write(self, text: str) -> int:
        if self.full:
            raise OSError(28, "No space left on device")
        return super().write(text)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    disk = Disk()
    monkeypatch.setattr(sys, "stderr", disk)
    set_up_logs("text", "info")
    yield disk
    structlog.reset_defaults()


def test_a_full_disk_loses_lines_and_nothing_else(disk: Disk) -> None:
    log = structlog.get_logger()
    disk.full = True
    log.info("lost")
    disk.full = False
    log.info("kept")
    assert "kept" in disk.getvalue()
    assert "lost" not in disk.getvalue()
