"""Where the admin socket is, for the daemon and for those who look for it."""

import os
from pathlib import Path

import pytest

from vertumnusd.admin_address import admin_socket_path


@pytest.fixture(autouse=True)
def nobody_in_particular(monkeypatch):
    monkeypatch.delenv("RUNTIME_DIRECTORY", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/1")
    monkeypatch.setattr(os, "geteuid", lambda: 1)


def test_a_configured_path_wins():
    assert admin_socket_path("/x/y.sock", 8000) == Path("/x/y.sock")


def test_the_unit_and_root_meet(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    as_root = admin_socket_path("", 8000)
    monkeypatch.setattr(os, "geteuid", lambda: 2)
    monkeypatch.setenv("RUNTIME_DIRECTORY", "/run/vertumnusd:/run/other")
    assert admin_socket_path("", 8000) == as_root == Path("/run/vertumnusd/vertumnusd-8000.sock")


def test_users_have_their_own(monkeypatch):
    assert admin_socket_path("", 8000) == Path("/run/user/1/vertumnusd-8000.sock")
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert admin_socket_path("", 8000).parent.name == "vertumnusd-1"
