"""The admin door: who may watch the cluster and change it.

Whoever can open the node's admin socket may: the file's permissions say who that is. Over TCP an
admin token is asked for; without one in the configuration nobody may.
"""

from __future__ import annotations

import errno
import hmac
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import trio

from vertumnusd.node.errors import RequestError
from vertumnusd.node.feed import Feed
from vertumnusd.node.http import Head
from vertumnusd.node.service import Operator

BACKLOG = 1024


class AdminSocketError(Exception):
    """The admin socket cannot be made; the message says where and why."""


class AdminToken:
    """Kept and compared as a digest. An empty token is never right."""

    def __init__(self, token: str = "") -> None:
        self._digest = _digest(token.encode()) if token else b""

    @classmethod
    def load(cls, path: Path) -> AdminToken:
        """The first word of the file. Raises ``ValueError`` if there is none, and ``OSError``."""
        words = path.read_text("utf-8").split()
        if not words:
            raise ValueError(f"{path} holds no token")
        return cls(words[0])

    def check(self, head: Head) -> None:
        """Raises :class:`RequestError` 401 unless the request carries the token."""
        scheme, _, token = head.header(b"authorization").partition(b" ")
        offered = _digest(token.strip())
        right = hmac.compare_digest(self._digest, offered)
        if not self._digest:
            message = "admin requests go through the admin socket: this node has no admin token"
        elif scheme.lower() != b"bearer" or not right:
            message = "an admin token is needed: send 'Authorization: Bearer TOKEN'"
        else:
            return
        raise RequestError(
            401, "invalid_admin_token", message, headers=(("WWW-Authenticate", "Bearer"),)
        )


def _digest(token: bytes) -> bytes:
    return blake2b(token, digest_size=32).digest()


@dataclass(frozen=True, slots=True)
class Admin:
    """What is behind the admin door."""

    feed: Feed
    token: AdminToken
    operator: Operator


@contextmanager
def admin_listener(path: Path) -> Iterator[trio.SocketListener]:
    """Listen at ``path``, for this user only. Raises :class:`AdminSocketError`.

    A socket that a killed node left behind is replaced; one that somebody answers at is not.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if _is_stale(path):
            path.unlink()
        bound = _bind(path)
    except OSError as error:
        raise AdminSocketError(f"admin socket {path}: {error.strerror or error}") from error
    try:
        yield trio.SocketListener(trio.socket.from_stdlib_socket(bound))
    finally:
        bound.close()
        path.unlink(missing_ok=True)


def _bind(path: Path) -> socket.socket:
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mask = os.umask(0o177)
    try:
        bound.bind(str(path))
        bound.listen(BACKLOG)
    except BaseException:
        bound.close()
        raise
    finally:
        os.umask(mask)
    return bound


def _is_stale(path: Path) -> bool:
    """Raises ``OSError`` if the place is taken."""
    if not path.exists():
        return False
    if not path.is_socket():
        raise FileExistsError(errno.EEXIST, "there is another file")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return True
    raise OSError(errno.EADDRINUSE, "another node listens there")
