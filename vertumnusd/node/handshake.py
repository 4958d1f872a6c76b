"""The HTTP side of a websocket's beginning (RFC 6455, section 4.2)."""

from __future__ import annotations

import binascii
from base64 import b64decode

from wsproto.utilities import generate_accept_token

from vertumnusd.node.errors import RequestError
from vertumnusd.node.http import Head, Headers

RESPONSES = "/v1/responses"
ADMIN_FEED = "/v1/admin/feed"
PATHS = (RESPONSES, ADMIN_FEED)
VERSION = b"13"
NONCE_BYTES = 16


def wanted(head: Head) -> bool:
    """Whether this request asks for a websocket where there is one."""
    connection = [option.strip().lower() for option in head.header(b"connection").split(b",")]
    return (
        head.path in PATHS
        and head.method == "GET"
        and b"upgrade" in connection
        and head.header(b"upgrade").strip().lower() == b"websocket"
    )


def accept(head: Head) -> Headers:
    """The headers of the 101. Raises :class:`RequestError` 400 or 426."""
    if head.header(b"sec-websocket-version") != VERSION:
        raise RequestError(
            426,
            "upgrade_required",
            "only websocket version 13 is spoken here",
            headers=(("Sec-WebSocket-Version", VERSION.decode()),),
        )
    nonce = head.header(b"sec-websocket-key").strip()
    if head.version == b"1.0" or head.has_body or not _is_nonce(nonce):
        raise RequestError(400, "bad_request", "this is not a correct websocket handshake")
    return (
        ("Upgrade", "websocket"),
        ("Connection", "Upgrade"),
        ("Sec-WebSocket-Accept", generate_accept_token(nonce).decode()),
    )


def check_origin(head: Head) -> None:
    """Where no keys are asked for, a page of another site must not act in its visitor's name.

    Browsers send ``Origin`` and let every page open a websocket anywhere; other clients send none.
    Raises :class:`RequestError` 403.
    """
    origin, host = (head.header(name).decode("latin-1") for name in (b"origin", b"host"))
    if origin and origin.partition("://")[2] != host:
        raise RequestError(403, "origin_not_allowed", "requests from other sites need an API key")


def _is_nonce(nonce: bytes) -> bool:
    try:
        return len(b64decode(nonce, validate=True)) == NONCE_BYTES
    except binascii.Error:
        return False
