"""The service manager hears of us, and its absence or deafness harms nothing."""

import socket

import pytest

from vertumnusd.node.systemd import Notifier


@pytest.fixture
def manager(tmp_path, monkeypatch):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        listener.settimeout(1)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        yield listener


def test_fields_go_out_as_lines(manager):
    notifier = Notifier()
    notifier.send(READY=1, STATUS="serving\nSTOPPING=1")
    assert manager.recv(100) == b"READY=1\nSTATUS=serving"
    notifier.close()


def test_a_manager_that_is_gone_is_ignored(manager):
    notifier = Notifier()
    manager.close()
    notifier.send(WATCHDOG=1)
    notifier.close()


def test_without_a_manager_nothing_happens(monkeypatch):
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    Notifier().send(READY=1)


def test_the_watchdog_interval_is_for_this_process_only(monkeypatch):
    monkeypatch.setenv("WATCHDOG_USEC", "20000000")
    monkeypatch.delenv("WATCHDOG_PID", raising=False)
    assert Notifier().watchdog_s == 20.0
    monkeypatch.setenv("WATCHDOG_PID", "1")
    assert Notifier().watchdog_s == 0.0
