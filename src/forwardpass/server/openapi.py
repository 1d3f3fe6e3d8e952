"""GET /openapi.json: the document is made of the table of routes and of the Structs that bodies are decoded to, so that
it says what the server does, and nothing else."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Any

import msgspec
from starlette.responses import Response

import forwardpass
from forwardpass.server.errors import ErrorBody
from forwardpass.server.examples import EXAMPLES
from forwardpass.server.schemas import INSTEAD

MEANINGS = {
    200: "The answer.",
    400: "The request is wrong; param names the field.",
    401: "The server wants an API key: Authorization: Bearer KEY.",
    404: "There is no such model; the message lists those that there are.",
    408: "The body did not arrive in time.",
    413: "The body is larger than the server takes.",
    415: "The body is not JSON, or says so wrongly.",
    429: "What this key may have in flight is reached; Retry-After says when to try again.",
    500: "A fault of the server.",
    503: "The server is full or shutting down; Retry-After says when to try again.",
    504: "The request's own timeout has passed.",
}
INFO = "Transformer models on a CPU: the OpenAI API and a few routes more. Requests with unknown fields are refused."
_PARAMETER = re.compile(r"\{(\w+)(?::\w+)?\}")
_REF = "#/components/schemas/{name}"


async def openapi(call, body: None) -> Response:
    """This document."""
    return Response(_encoded(call.app.routes, call.settings.needs_key), media_type="application/json")


@cache
def _encoded(routes: tuple, keys: bool) -> bytes:
    return msgspec.json.encode(document(routes, keys))


def document(routes: Sequence, keys: bool = True) -> dict[str, Any]:
    """OpenAPI 3.1 (https://spec.openapis.org/oas/v3.1.1.html). keys: requests must come with one."""
    structs = [ErrorBody, *{kind: None for route in routes for kind in (route.body, route.answer, route.event) if kind}]
    references, components = msgspec.json.schema_components(structs, ref_template=_REF)
    schemas = dict(zip(structs, references, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        at = paths.setdefault(_PARAMETER.sub(r"{\1}", route.path), {})
        at[route.method.lower()] = _operation(route, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "forwardpass", "version": forwardpass.__version__, "description": INFO,
                 "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"}},
        "paths": paths,
        "components": {
            "schemas": _as_checked(components),
            "responses": {str(status): _described(status, {"application/json": {"schema": schemas[ErrorBody]}})
                          for status in MEANINGS if status != 200},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"key": []}] if keys else [{"key": []}, {}],
    }


def statuses(route) -> list[int]:
    """Every status that a route may answer with."""
    found = {200, 500, *route.errors}
    if not route.public:
        found |= {401, 429, 503}
    if _PARAMETER.search(route.path):
        found.add(404)
    if route.body is not None:
        found |= {400, 404, 408, 413, 415, 504}
    return sorted(found)


def _operation(route, schemas: dict[type, dict[str, Any]]) -> dict[str, Any]:
    said: dict[str, Any] = {"operationId": route.handler.__name__, "summary": route.summary}
    if route.handler.__doc__:
        said["description"] = " ".join(route.handler.__doc__.split())
    if names := _PARAMETER.findall(route.path):
        said["parameters"] = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
                              for name in names]
    if route.body is not None:
        content: dict[str, Any] = {"schema": schemas[route.body]}
        if route.path in EXAMPLES:
            content["examples"] = {name: {"value": value} for name, value in EXAMPLES[route.path].items()}
        said["requestBody"] = {"required": True, "content": {"application/json": content}}
    if route.public:
        said["security"] = []
    said["responses"] = {str(status): {"$ref": f"#/components/responses/{status}"} for status in statuses(route)}
    said["responses"]["200"] = _answer(route, schemas)
    if route.public:  # what such a route says of itself has the same shape, however it is
        said["responses"] |= {str(status): _answer(route, schemas, status) for status in route.errors}
    return said


def _answer(route, schemas: dict[type, dict[str, Any]], status: int = 200) -> dict[str, Any]:
    if route.answer is not None:
        content = {"application/json": {"schema": schemas[route.answer]}}
    else:
        kind = route.media_type.partition(";")[0]
        content = {kind: {"schema": {"type": "object" if kind == "application/json" else "string"}}}
    if route.event is not None:
        data = [{"type": "string", "contentMediaType": "application/json", "contentSchema": schemas[one]}
                for one in (route.event, ErrorBody)]
        content["text/event-stream"] = {"schema": {
            "description": "Each event. The last one says [DONE], or what went wrong.",
            "type": "object", "properties": {"data": {"anyOf": [*data, {"const": "[DONE]"}]}}, "required": ["data"]}}
    return _described(status, content)


def _described(status: int, content: dict[str, Any]) -> dict[str, Any]:
    headers = {"X-Request-Id": {"description": "The client's own if it sent one, else the server's.",
                                "schema": {"type": "string"}}}
    if status in (429, 503):
        headers["Retry-After"] = {"description": "Seconds.", "schema": {"type": "string"}}
    return {"description": MEANINGS[status], "headers": headers, "content": content}


def _as_checked(schema: Any) -> Any:
    """With what is said for a field instead of its type put in that type's place."""
    if isinstance(schema, list):
        return [_as_checked(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    if INSTEAD in schema:
        kept = {name: schema[name] for name in ("description", "default") if name in schema}
        return kept | schema[INSTEAD]
    return {name: _as_checked(value) for name, value in schema.items()}
