"""All routes, in one table: the application and the OpenAPI document are made of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from forwardpass.server import probes
from forwardpass.server.chat import chat
from forwardpass.server.completions import complete
from forwardpass.server.schemas_generation import ChatCompletion, ChatRequest, CompletionRequest, TextCompletion


@dataclass(frozen=True, slots=True)
class Route:
    """handler: handler(call, body) -> a Struct, which becomes JSON, or a starlette Response. The body is read, decoded
    and checked before.

    body: the Struct that the request's JSON must be (None: the route reads none);  answer: the Struct that a JSON
    answer is (None: it is something else);  streams: it can answer in events;  errors: statuses besides the usual ones.
    public: needs no API key.
    """

    method: str
    path: str
    handler: Callable[..., Awaitable[Any]]
    summary: str
    body: type[msgspec.Struct] | None = None
    answer: type[msgspec.Struct] | None = None
    streams: bool = False
    errors: tuple[int, ...] = ()
    public: bool = False


ROUTES: tuple[Route, ...] = (
    Route("POST", "/v1/chat/completions", chat, "Answer a conversation.", ChatRequest, ChatCompletion, True),
    Route("POST", "/v1/completions", complete, "Continue texts, fill in a middle, or say how likely texts are.",
          CompletionRequest, TextCompletion, True),
    Route("GET", "/health", probes.health, "Whether the server takes requests.", answer=probes.Health, errors=(503,),
          public=True),
    Route("GET", "/health/live", probes.live, "Whether the process lives.", answer=probes.Health, public=True),
    Route("GET", "/version", probes.version, "What runs here.", answer=probes.Version),
    Route("GET", "/metrics", probes.metrics, "Counts and times for Prometheus."),
)
