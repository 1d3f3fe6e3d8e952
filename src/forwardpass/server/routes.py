"""All routes, in one table: the application and the OpenAPI document are made of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from forwardpass.server import (
    classify,
    embeddings,
    images,
    models,
    openapi,
    probes,
    rerank,
    schemas_images,
    tokens,
    translate,
)
from forwardpass.server import schemas_reading as reading
from forwardpass.server.chat import chat
from forwardpass.server.completions import complete
from forwardpass.server.metrics import CONTENT_TYPE
from forwardpass.server.schemas_generation import (
    ChatChunk,
    ChatCompletion,
    ChatRequest,
    CompletionRequest,
    TextChunk,
    TextCompletion,
)


@dataclass(frozen=True, slots=True)
class Route:
    """handler: handler(call, body) -> a Struct, which becomes JSON, or a starlette Response. The body is read, decoded
    and checked before.

    body: the Struct that the request's JSON must be (None: the route reads none);  answer: the Struct that a JSON
    answer is (None: it is something else, of this media_type);  event: of a route that can answer in a stream of
    events, the Struct that an event's data is;  errors: statuses besides the usual ones;  public: needs no API key.
    """

    method: str
    path: str
    handler: Callable[..., Awaitable[Any]]
    summary: str
    body: type[msgspec.Struct] | None = None
    answer: type[msgspec.Struct] | None = None
    event: type[msgspec.Struct] | None = None
    errors: tuple[int, ...] = ()
    public: bool = False
    media_type: str = "application/json"


ROUTES: tuple[Route, ...] = (
    Route("POST", "/v1/chat/completions", chat, "Answer a conversation.", ChatRequest, ChatCompletion,
          ChatChunk),
    Route("POST", "/v1/completions", complete, "Continue texts, fill in a middle, or say how likely texts are.",
          CompletionRequest, TextCompletion, TextChunk),
    Route("GET", "/health", probes.health, "Whether the server takes requests.", answer=probes.Health, errors=(503,),
          public=True),
    Route("GET", "/health/live", probes.live, "Whether the process lives.", answer=probes.Health, public=True),
    Route("GET", "/version", probes.version, "What runs here.", answer=probes.Version),
    Route("GET", "/metrics", probes.metrics, "Counts and times for Prometheus.", media_type=CONTENT_TYPE),
    Route("GET", "/v1/models", models.models, "The models and their other names.", answer=reading.ModelList),
    Route("GET", "/v1/models/{id:path}", models.model, "One model.", answer=reading.ModelCard),
    Route("POST", "/v1/embeddings", embeddings.embeddings, "Vectors of texts.", reading.EmbeddingsBody,
          reading.Embeddings),
    Route("POST", "/v1/rerank", rerank.rerank, "Documents by their relevance to a query.", reading.RerankBody,
          reading.Reranked),
    Route("POST", "/v1/classify", classify.classify, "Labels of texts and pairs of texts.", reading.ClassifyBody,
          reading.Classification),
    Route("POST", "/v1/translate", translate.translate, "Texts in another language.", reading.TranslateBody,
          reading.TranslationAnswer),
    Route("POST", "/v1/images/generations", images.generations, "Pictures of a prompt or a label.",
          schemas_images.ImagesBody, schemas_images.Pictures),
    Route("POST", "/tokenize", tokens.tokenize, "Token ids of a text or a conversation.", reading.TokenizeBody,
          reading.Tokens),
    Route("POST", "/detokenize", tokens.detokenize, "The text of token ids.", reading.DetokenizeBody,
          reading.Detokenized),
    Route("GET", "/openapi.json", openapi.openapi, "This document."),
)
