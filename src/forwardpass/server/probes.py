"""What machines ask about the server itself: is it alive, is it ready, what is it."""

from __future__ import annotations

import msgspec
from starlette.responses import Response

import forwardpass
from forwardpass.server.metrics import CONTENT_TYPE


class Health(msgspec.Struct):
    """status: "ok", or the reason why not."""

    status: str


class Version(msgspec.Struct):
    version: str
    models: list[str]


async def health(call, body: None) -> Health | Response:
    """200 if requests are taken; 503 while the server drains or an engine has no thread to step it."""
    reason = call.app.not_ready()
    if reason is None:
        return Health("ok")
    return Response(msgspec.json.encode(Health(reason)), 503, media_type="application/json")


async def live(call, body: None) -> Health:
    """Answers as long as the process does."""
    return Health("ok")


async def version(call, body: None) -> Version:
    return Version(forwardpass.__version__, list(call.host.models))


async def metrics(call, body: None) -> Response:
    """The counts of metrics.py as Prometheus reads them."""
    return Response(call.metrics.text(), media_type=CONTENT_TYPE)
