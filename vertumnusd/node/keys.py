"""API keys: who may knock, and which prefix cache is theirs.

A tenant is one API key. The salt of its prefix cache is derived from the key on this server, so two
tenants never share a cached block and no client can choose its salt. Keys are kept and compared as
digests, every one of them for every request, so the time taken tells nothing about them.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from vertumnusd.node.errors import RequestError


@dataclass(frozen=True, slots=True)
class Tenant:
    """``name`` is a short digest of the key: safe to log, and one label per key."""

    name: str
    salt: bytes


ANYONE = Tenant(name="", salt=b"")


class Keys:
    """The keys this node accepts; none at all means that everybody may enter."""

    def __init__(self, keys: frozenset[str] = frozenset()) -> None:
        self._tenants = {_digest(key): _tenant(key) for key in keys}

    @classmethod
    def load(cls, path: Path) -> Keys:
        """One key a line; blank lines and lines that begin with ``#`` are skipped.

        Raises ``ValueError`` if the file holds no key or one that no header can carry: an empty key
        file must not open the door.
        """
        lines = (line.strip() for line in path.read_text("utf-8").splitlines())
        keys = frozenset(line for line in lines if line and not line.startswith("#"))
        if not keys:
            raise ValueError(f"{path} holds no API key")
        if not all(key.isascii() and key.isprintable() and " " not in key for key in keys):
            raise ValueError(f"{path}: a key must be printable ASCII without spaces")
        return cls(keys)

    def __len__(self) -> int:
        return len(self._tenants)

    def accept(self, tenant: Tenant) -> bool:
        """Whether a tenant that was let in before would be let in now."""
        return tenant in self._tenants.values() if self._tenants else tenant == ANYONE

    def tenant(self, authorization: bytes) -> Tenant:
        """Who sent this ``Authorization`` header. Raises :class:`RequestError` 401."""
        if not self._tenants:
            return ANYONE
        scheme, _, key = authorization.partition(b" ")
        if scheme.lower() != b"bearer" or not key.strip():
            raise refusal("an API key is needed: send 'Authorization: Bearer KEY'")
        offered = _digest(key.strip().decode("latin-1"))
        found = None
        for digest, tenant in self._tenants.items():
            if hmac.compare_digest(digest, offered):
                found = tenant
        if found is None:
            raise refusal("this API key is not known here")
        return found


def _digest(key: str) -> bytes:
    return blake2b(key.encode("utf-8"), digest_size=32).digest()


def _tenant(key: str) -> Tenant:
    salt = blake2b(key.encode("utf-8"), digest_size=16, person=b"vertumnus salt").digest()
    name = blake2b(key.encode("utf-8"), digest_size=4, person=b"vertumnus name").hexdigest()
    return Tenant(name=name, salt=salt)


def refusal(message: str) -> RequestError:
    return RequestError(401, "invalid_api_key", message, headers=(("WWW-Authenticate", "Bearer"),))
