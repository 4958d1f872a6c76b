"""What goes wrong with a request, in the shape that OpenAI's clients parse.

The body is ``{"error": {"message", "type", "param", "code"}}``; clients choose what to do by status
and ``code``, people read ``message``. A :class:`RequestError` is raised wherever the fault is found
and becomes bytes at the one place that knows which door the request came through.
"""

from __future__ import annotations

import math
from typing import Any

from vertumnusd.messages import Failed

OVERLOADED = "server_is_overloaded"
UNAVAILABLE = "service_unavailable"

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
}


class RequestError(Exception):
    """A request that is answered with an error. ``param`` names the offending field, if any."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        param: str | None = None,
        *,
        retry_after_s: float = 0.0,
        headers: tuple[tuple[str, str], ...] = (),
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s
        self._headers = headers

    @classmethod
    def from_failed(cls, failed: Failed) -> RequestError:
        """The node behind the doors refused or lost the request."""
        return cls(failed.status, failed.code, failed.reason, retry_after_s=failed.retry_after_s)

    @property
    def type(self) -> str:
        fallback = "server_error" if self.status >= 500 else "invalid_request_error"
        return _TYPES.get(self.status, fallback)

    @property
    def headers(self) -> tuple[tuple[str, str], ...]:
        """Extra HTTP headers. ``Retry-After`` has whole seconds only, so they are rounded up."""
        if not self.retry_after_s:
            return self._headers
        return (*self._headers, ("Retry-After", str(math.ceil(self.retry_after_s))))

    def body(self) -> dict[str, Any]:
        error: dict[str, Any] = {
            "message": self.message,
            "type": self.type,
            "param": self.param,
            "code": self.code,
        }
        if self.retry_after_s:
            error["retry_after"] = self.retry_after_s
        return {"error": error}


def invalid(message: str, param: str | None = None, code: str = "invalid_value") -> RequestError:
    """The client's fault: a value that cannot be used."""
    return RequestError(400, code, message, param)


def unsupported(param: str, why: str = "is not supported") -> RequestError:
    """A field that would change the meaning of the answer, which this server cannot honour."""
    return RequestError(400, "unsupported_parameter", f"'{param}' {why}", param)
