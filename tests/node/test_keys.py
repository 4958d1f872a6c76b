"""API keys: what a key file may hold, and what a tenant gets from its key."""

from __future__ import annotations

from pathlib import Path

import pytest

from vertumnusd.node.errors import RequestError
from vertumnusd.node.keys import ANYONE, Keys


def load(tmp_path: Path, text: str) -> Keys:
    file = tmp_path / "keys"
    file.write_text(text)
    return Keys.load(file)


def test_a_key_file_has_a_key_a_line(tmp_path: Path) -> None:
    keys = load(tmp_path, "# people\none\n\n  two  \n")
    assert keys.tenant(b"Bearer one") != keys.tenant(b"Bearer two")
    for wrong in (b"", b"Bearer", b"Bearer ", b"Bearer three", b"one", b"Basic one", b"Bearer #"):
        with pytest.raises(RequestError) as caught:
            keys.tenant(wrong)
        assert caught.value.status == 401


def test_the_scheme_is_not_case_sensitive_and_the_key_is(tmp_path: Path) -> None:
    keys = load(tmp_path, "One")
    assert keys.tenant(b"bearer One")
    with pytest.raises(RequestError):
        keys.tenant(b"Bearer one")


@pytest.mark.parametrize("text", ["", "\n# none\n", "caf\u00e9", "two words"])
def test_a_file_without_a_usable_key_does_not_open_the_door(tmp_path: Path, text: str) -> None:
    with pytest.raises(ValueError, match="key"):
        load(tmp_path, text)


def test_without_keys_everybody_is_the_same_tenant() -> None:
    assert Keys().tenant(b"") == Keys().tenant(b"Bearer whatever") == ANYONE


def test_salt_and_name_tell_nothing_of_the_key_and_last_over_restarts(tmp_path: Path) -> None:
    first, again = load(tmp_path, "secret-key"), load(tmp_path, "secret-key\nother")
    tenant = first.tenant(b"Bearer secret-key")
    assert tenant == again.tenant(b"Bearer secret-key")
    assert b"secret" not in tenant.salt
    assert "secret" not in tenant.name
    assert tenant.salt
