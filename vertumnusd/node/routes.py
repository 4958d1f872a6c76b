"""Which endpoint answers which path, and what is asked of a client before it may."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from vertumnusd.node.api import admin, chat, completions, responses, status, tokenize
from vertumnusd.node.errors import RequestError
from vertumnusd.node.exchange import Exchange
from vertumnusd.node.gate import Gate
from vertumnusd.node.http import Head

Handler = Callable[[Exchange, Gate], Awaitable[None]]

MODEL = "/v1/models/"


@dataclass(frozen=True, slots=True)
class Route:
    """``keyed``: an API key is needed, if any are set, but for looking through the admin socket.
    ``works``: takes the node's time.
    ``admin``: for those who come through the admin socket, or with the admin token.
    """

    method: str
    handler: Handler
    keyed: bool = True
    works: bool = False
    admin: bool = False


ROUTES = {
    "/v1/responses": Route("POST", responses.respond, works=True),
    "/v1/chat/completions": Route("POST", chat.chat, works=True),
    "/v1/completions": Route("POST", completions.complete, works=True),
    "/tokenize": Route("POST", tokenize.tokenize),
    "/detokenize": Route("POST", tokenize.detokenize),
    "/v1/models": Route("GET", status.models),
    "/v1/cluster": Route("GET", status.cluster),
    "/v1/admin/split": Route("POST", partial(admin.convert, kind="split"), False, admin=True),
    "/v1/admin/merge": Route("POST", partial(admin.convert, kind="merge"), False, admin=True),
    "/v1/admin/drain": Route("POST", admin.drain, False, admin=True),
    "/v1/admin/undrain": Route("POST", admin.undrain, False, admin=True),
    "/v1/admin/hold": Route("POST", admin.hold, False, admin=True),
    "/v1/admin/reclaim": Route("POST", admin.reclaim, False, admin=True),
    "/v1/admin/audit": Route("POST", admin.audit, False, admin=True),
    # Probes and scrapes tell nothing of what clients send, and are made without keys.
    "/health": Route("GET", status.health, keyed=False),
    "/live": Route("GET", status.live, keyed=False),
    "/version": Route("GET", status.version, keyed=False),
    "/metrics": Route("GET", status.metrics, keyed=False),
}


def find(head: Head) -> Route:
    """Raises :class:`RequestError` 404 or 405."""
    route = ROUTES.get(head.path)
    if route is None and head.path.startswith(MODEL):
        route = Route("GET", partial(status.model, name=head.path.removeprefix(MODEL)))
    if route is None and head.path.startswith(admin.WHY):
        route = Route("GET", admin.why, False, admin=True)
    if route is None:
        raise RequestError(404, "not_found", f"there is nothing at '{head.path[:200]}'")
    allowed = ("GET", "HEAD") if route.method == "GET" else (route.method,)
    if head.method not in allowed:
        raise RequestError(
            405,
            "method_not_allowed",
            f"'{head.path[:200]}' takes {' and '.join(allowed)}",
            headers=(("Allow", ", ".join(allowed)),),
        )
    return route
