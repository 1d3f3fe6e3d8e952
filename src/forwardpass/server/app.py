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
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from forwardpass.scheduler.limits import TokensInFlight
from forwardpass.server.body import BodyRoom, decode_body
from forwardpass.server.call import Call
from forwardpass.server.errors import ApiError
from forwardpass.server.keys import Key, Keys
from forwardpass.server.logs import RequestLog
from forwardpass.server.metrics import Metrics
from forwardpass.server.origins import Origins
from forwardpass.server.protocol import most_connections
from forwardpass.server.reply import Reply
from forwardpass.server.routes import ROUTES, Route
from forwardpass.server.schemas import Computing
from forwardpass.server.settings import Settings

PREPARING = 2
"""Threads that tokenise and fill templates. More would take the processor from the steps, not finish sooner."""
CLIENT_GONE = 499
"""What logs and metrics call the status of an answer that nobody was there to take."""
OTHER = "other"
"""Their route of a request for no route: a client may invent any number of paths."""


class App:
    """host: the models;  keys: who may ask (None = everybody);  log: where a line a request goes (None = nowhere);
    routes: for tests that bring their own.

    calls: those that are being answered;  draining: no new ones are taken;  max_connections: for protocol.py.
    """

    def __init__(self, host, settings: Settings | None = None, keys: Keys | None = None, log: RequestLog | None = None,
                 routes: tuple[Route, ...] = ROUTES):
        self.host = host
        self.settings = settings or Settings()
        self.keys = keys
        self.log = log
        self.origins = Origins(self.settings.cors_origin)
        self.routes = routes
        self.metrics = Metrics(self)
        self.calls: set[Call] = set()
        self.draining = False
        self.max_connections = most_connections()
        self.bodies = BodyRoom(self.settings.max_body)
        # A thread for everyone who may be inside: who waits for the engine must not keep others from waiting, too.
        self.waiting = ThreadPoolExecutor(self.settings.max_requests, "forwardpass-wait")
        self.preparing = ThreadPoolExecutor(PREPARING, "forwardpass-prepare")
        self._accounts = {key.name: self._account(key) for key in keys.keys} if keys else {}
        self._public = {route.path for route in routes if route.public}
        self._router = routing.Router([routing.Route(route.path, Endpoint(route), methods=[route.method])
                                       for route in routes], redirect_slashes=False, default=_no_route)

    def _account(self, key: Key) -> TokensInFlight:
        limit = self.settings.max_tokens_per_key if key.limit is None else key.limit
        return TokensInFlight(limit, self.host.account, key.name)

    async def __call__(self, scope: dict, receive, send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"this application speaks HTTP only, not {scope['type']}")
        request = Request(scope)
        call = Call(self, request, receive)
        reply = Reply(call, send, [(b"x-request-id", (call.client_id or call.id).encode()),
                                   *self.origins.headers(request)])
        scope |= {"call": call, "app": self}
        try:
            preflight = self.origins.preflight(request)
            if preflight is not None:
                await preflight(scope, receive, reply)
            else:
                self._let_in(call)
                if scope["path"].endswith("\n"):  # the router's patterns overlook a last line end
                    await _no_route(scope, receive, reply)
                await self._router(scope, receive, reply)
        except ClientDisconnect:
            call.client_gone = True
        except asyncio.CancelledError:
            if call.reason is not None:
                await reply.fail(call.reason)
            elif not call.client_gone:
                raise
        except Exception as error:
            if not call.client_gone:
                await reply.fail(call.reason or error)
        finally:
            self._note(call, reply)

    def _let_in(self, call: Call) -> None:
        """Whether the request may come in at all. Everything but the probes needs a key, whatever its path is."""
        request = call.request
        if request.scope["path"] in self._public:
            return
        if self.keys is None:
            self.origins.check(request)
        else:
            call.key = key = self._key(request)
            call.terms.key, call.terms.account = key.name, self._accounts[key.name]
        self._refuse_while_draining()

    def _key(self, request: Request) -> Key:
        given = request.headers.getlist("authorization")
        key = None
        if len(given) == 1 and given[0].startswith("Bearer "):
            key = self.keys.find(given[0].removeprefix("Bearer ").encode("latin-1"))
        if key is None:
            said = "this API key is not known here" if given else "an API key is needed"
            raise ApiError(401, f"{said}: send the header Authorization: Bearer KEY", code="invalid_api_key",
                           headers={"WWW-Authenticate": 'Bearer realm="forwardpass"'})
        return key

    def _refuse_while_draining(self) -> None:
        if self.draining:
            raise shutting_down()

    def admit(self, call: Call) -> None:
        """From now on it counts among those that are being answered. ApiError 503 if there are too many."""
        self._refuse_while_draining()
        if len(self.calls) >= self.settings.max_requests:
            raise ApiError(503, f"the server is answering {len(self.calls)} requests, as many as it takes at a time",
                           code="engine_overloaded", headers={"Retry-After": "1"})
        self.calls.add(call)

    def model_name(self, name: str) -> str:
        """The served name of a model or alias, for metrics."""
        return self.host.aliases.get(name, name)

    def not_ready(self) -> str | None:
        """Why no request should be sent here now, None = they may be."""
        if self.draining:
            return "shutting down"
        driver = self.host.driver
        if not driver.alive:
            driver.wake()  # it may have ended a moment ago, and another one takes its place
        return None if driver.alive else "the thread that steps the engines has ended"

    def _note(self, call: Call, reply: Reply) -> None:
        """The request has ended, one way or another: count it, and write its line."""
        status = reply.status or (CLIENT_GONE if call.client_gone else 500)
        self.metrics.request(call.route or OTHER, status, call.age, call.client_gone)
        if "model" in call.log:
            model = self.model_name(call.log["model"])
            self.metrics.tokens(model, call.log.get("prompt_tokens", 0), call.log.get("completion_tokens", 0))
            if "ttft" in call.log:
                self.metrics.first_token(model, call.log["ttft"])
        if self.log is not None:
            self.log.write(call.record(status))

    # ---- the end

    def drain(self) -> None:
        """Take no more requests; those that run may finish."""
        self.draining = True

    def end_all(self) -> None:
        """End all that still run; each is told why."""
        for call in list(self.calls):
            call.stop(shutting_down())

    def close(self) -> None:
        self.waiting.shutdown(wait=False, cancel_futures=True)
        self.preparing.shutdown(wait=False, cancel_futures=True)


class Endpoint:
    """What Starlette calls for a route: the body is read and decoded, the handler called, its answer sent."""

    def __init__(self, route: Route):
        self.route = route
        self.decoder = route.body and msgspec.json.Decoder(route.body)

    async def __call__(self, scope: dict, receive, send: Reply) -> None:
        call = scope["call"]
        call.route = self.route.path
        if self.route.public:  # answered whatever else happens
            await self._answer(call, None, send)
            return
        app = call.app
        try:
            body = None if self.decoder is None else await self._body(call, receive)
            app.admit(call)
            with call.terms:  # the task below gets a copy of this context, and so do its threads
                await call.watched(self._answer(call, body, send))
        finally:
            call.end()
            app.bodies.give_back(call)

    async def _body(self, call: Call, receive) -> Any:
        raw = await call.app.bodies.read(call, receive)
        body = decode_body(raw, self.decoder)
        if call.settings.log_prompts:
            call.log["request"] = msgspec.Raw(msgspec.json.format(raw, indent=-1))  # on one line
        if isinstance(body, Computing):
            call.extra(body.priority, body.timeout, body.cache_salt)
        return body

    async def _answer(self, call: Call, body: Any, send: Reply) -> None:
        answer = await self.route.handler(call, body)
        if not isinstance(answer, Response):
            answer = Response(msgspec.json.encode(answer), media_type="application/json")
        await answer(call.request.scope, call.receive, send)


def shutting_down() -> ApiError:
    return ApiError(503, "the server is shutting down", code="shutting_down",
                    headers={"Connection": "close", "Retry-After": "10"})


async def _no_route(scope: dict, receive, send) -> None:
    raise ApiError(404, f"there is no route {scope['path']!r}; GET /openapi.json describes those that there are",
                   code="unknown_route")
