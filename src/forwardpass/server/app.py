"""The application: every request's way from a connection to a handler and back.

It is one ASGI callable around Starlette's router, so that whatever happens on the way, an unknown path or a bug, ends
in one place: an answer in OpenAI's shape, a line in the log, a count in the metrics.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
from starlette import routing
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from forwardpass.server.body import decode_body, read_body
from forwardpass.server.call import Call
from forwardpass.server.errors import ApiError, api_error
from forwardpass.server.routes import ROUTES, Route
from forwardpass.server.settings import Settings

PREPARING = 2
"""Threads that tokenise and fill templates. More would take the processor from the steps, not finish sooner."""
EVENTS = b"text/event-stream"


class App:
    """host: the models;  settings;  routes: for tests that bring their own."""

    def __init__(self, host, settings: Settings | None = None, routes: tuple[Route, ...] = ROUTES):
        self.host = host
        self.settings = settings or Settings()
        self.metrics = None
        self.draining = False
        self.calls: set[Call] = set()
        # A thread for everyone who may be inside: who waits for the engine must not keep others from waiting, too.
        self.waiting = ThreadPoolExecutor(self.settings.max_requests, "forwardpass-wait")
        self.preparing = ThreadPoolExecutor(PREPARING, "forwardpass-prepare")
        self.public = {route.path for route in routes if route.public}
        self._router = routing.Router([routing.Route(route.path, Endpoint(route), methods=[route.method])
                                       for route in routes], redirect_slashes=False, default=_no_route)

    async def __call__(self, scope: dict, receive, send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"this application speaks HTTP only, not {scope['type']}")
        call = Call(self, Request(scope), receive)
        reply = Reply(call, send)
        scope |= {"call": call, "app": self}
        try:
            self._check(call)
            await self._router(scope, receive, reply)
        except ClientDisconnect:
            call.client_gone = True
        except asyncio.CancelledError:
            if call.reason is not None:
                await reply.fail(call.reason)
            elif not call.client_gone:
                raise
        except Exception as error:
            await reply.fail(call.reason or error)

    def _check(self, call: Call) -> None:
        """Whether the request may come in at all."""
        if call.request.scope["path"] in self.public:
            return
        if self.draining:
            raise ApiError(503, "the server is shutting down", code="shutting_down",
                           headers={"Connection": "close", "Retry-After": "10"})

    def admit(self, call: Call) -> None:
        """It counts among those that are being answered. ApiError 503 if there are too many."""
        if len(self.calls) >= self.settings.max_requests:
            raise ApiError(503, f"the server is answering {len(self.calls)} requests, as many as it takes at a time",
                           code="engine_overloaded", headers={"Retry-After": "1"})
        self.calls.add(call)

    def not_ready(self) -> str | None:
        """Why no request should be sent here now, None = they may be."""
        if self.draining:
            return "shutting down"
        return None if self.host.driver.alive else "the engine's thread has ended"

    def close(self) -> None:
        self.waiting.shutdown(wait=False, cancel_futures=True)
        self.preparing.shutdown(wait=False, cancel_futures=True)


class Endpoint:
    """What Starlette calls for a route: the body is read and decoded, the handler called, its answer sent."""

    def __init__(self, route: Route):
        self.route = route
        self.decoder = route.body and msgspec.json.Decoder(route.body)

    async def __call__(self, scope: dict, receive, send: Reply) -> None:
        call, route = scope["call"], self.route
        app = call.app
        call.route = route.path
        body = None
        if self.decoder is not None:
            raw = await read_body(call.request, receive, app.settings.max_body)
            body = decode_body(raw, self.decoder)
            del raw
            if hasattr(body, "cache_salt"):
                call.extra(body.priority, body.timeout, body.cache_salt)
        if route.public:
            await self._answer(call, body, send)
            return
        app.admit(call)
        try:
            with call.terms:  # the task below gets a copy of this context, and so do its threads
                await call.watched(self._answer(call, body, send))
        finally:
            call.end()

    async def _answer(self, call: Call, body: Any, send: Reply) -> None:
        answer = await self.route.handler(call, body)
        if not isinstance(answer, Response):
            answer = Response(msgspec.json.encode(answer), media_type="application/json")
        await answer(call.request.scope, call.receive, send)


class Reply:
    """The answer on its way out. It gets the headers that every answer has, and it can still turn into an error: before
    it has begun that is an answer of its own, within a stream of events the last event."""

    def __init__(self, call: Call, send):
        self.call = call
        self.status = 0
        self.begun = self.done = False
        self._send = send
        self._events = False

    async def __call__(self, message: dict) -> None:
        if message["type"] == "http.response.start":
            self.begun, self.status = True, message["status"]
            headers = message.setdefault("headers", [])
            self._events = any(name == b"content-type" and value.startswith(EVENTS) for name, value in headers)
            message["headers"] = [*headers, *self._headers()]
        elif not message.get("more_body", False):
            self.done = True
        await self._send(message)

    def _headers(self) -> list[tuple[bytes, bytes]]:
        headers = [(b"x-request-id", (self.call.client_id or self.call.id).encode())]
        return headers

    async def fail(self, error: BaseException) -> None:
        """Answer with an error, if that is still possible."""
        if self.done:
            return
        said = api_error(_of_starlette(error))
        if not self.begun:
            await said.response()(self.call.request.scope, self.call.receive, self)
        elif self._events:
            await self({"type": "http.response.body", "body": b"data: " + said.body() + b"\n\n", "more_body": False})
        else:
            raise error


def _of_starlette(error: BaseException) -> BaseException:
    if not isinstance(error, HTTPException):
        return error
    return ApiError(error.status_code, f"{error.detail}", headers=error.headers)


async def _no_route(scope: dict, receive, send) -> None:
    raise ApiError(404, f"there is no route {scope['path']!r}; GET /openapi.json describes those that there are",
                   code="unknown_route")
