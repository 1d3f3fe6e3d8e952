"""Pages of other origins: browsers let them use the server only if it says so, and by default it says so to nobody."""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import Response

from forwardpass.server.errors import ApiError

METHODS = "GET, POST"
HEADERS = "Authorization, Content-Type, X-Request-Id"
EXPOSED = "X-Request-Id, Retry-After"
LOCAL = ("localhost", "127.0.0.1", "::1")
KEPT_S = "600"


class Origins:
    """allowed: origins such as https://chat.example.org; "*" = any."""

    def __init__(self, allowed: tuple[str, ...]):
        self.allowed = allowed

    def permits(self, request: Request) -> str | None:
        """What Access-Control-Allow-Origin says to this request, None = nothing."""
        origin = request.headers.get("origin")
        if origin is None:
            return None
        return "*" if "*" in self.allowed else origin if origin in self.allowed else None

    def headers(self, request: Request) -> list[tuple[bytes, bytes]]:
        """Of every answer."""
        if not self.allowed:
            return []
        vary = [] if "*" in self.allowed else [(b"vary", b"Origin")]
        origin = self.permits(request)
        if origin is None:
            return vary
        return [*vary, (b"access-control-allow-origin", origin.encode("latin-1")),
                (b"access-control-expose-headers", EXPOSED.encode())]

    def preflight(self, request: Request) -> Response | None:
        """The answer to a browser that asks what a page may do; None = this is no such question. It comes without a
        key: browsers send none with it."""
        asks = request.method == "OPTIONS" and "access-control-request-method" in request.headers
        if not asks or self.permits(request) is None:
            return None
        return Response(status_code=204, headers={
            "Access-Control-Allow-Methods": METHODS, "Access-Control-Allow-Headers": HEADERS,
            "Access-Control-Max-Age": KEPT_S})

    def check(self, request: Request) -> None:
        """For servers without keys: what a browser sends with the origin of a page from elsewhere is refused, even if
        that name was made to lead to this machine, so that no site can compute here for whoever visits it. What such a
        page fetches without sending anything has no origin, and is answered."""
        origin = request.headers.get("origin")
        if origin is None or self.permits(request) is not None:
            return
        try:
            local = urlsplit(origin).hostname in LOCAL
        except ValueError:
            local = False
        if not local:
            raise ApiError(403, f"pages of {origin!r} may not use this server; start it with --cors-origin to allow "
                           "them, or with --api-key-file", code="origin_not_allowed")
