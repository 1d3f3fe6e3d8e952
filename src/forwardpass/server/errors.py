"""Errors as a client sees them: OpenAI's body, {"error": {"message", "type", "param", "code"}}, whatever went wrong."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

import msgspec
from starlette.responses import Response

from forwardpass.errors import (
    BusyError,
    CapacityError,
    ContextLengthError,
    DeadlineError,
    ForwardpassError,
    ParameterError,
    TemplateError,
    UnknownModelError,
    UnsupportedModelError,
)

TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
"""Status -> type of error, where it is not "invalid_request_error" (below 500) or "server_error"."""
SURROGATE = re.compile("[\ud800-\udfff]")
LONGEST_MESSAGE = 2000


class Problem(msgspec.Struct):
    """What went wrong. param: the field of the request that is wrong;  code: for programs."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(msgspec.Struct):
    error: Problem


class ApiError(Exception):
    """An answer that is an error. type: by default what fits the status."""

    def __init__(self, status: int, message: str, *, type: str | None = None, code: str | None = None,
                 param: str | None = None, headers: Mapping[str, str] | None = None):
        super().__init__(message)
        self.status = status
        self.message = message
        self.type = type or TYPES.get(status) or ("invalid_request_error" if status < 500 else "server_error")
        self.code = code
        self.param = param
        self.headers = dict(headers or {})

    def problem(self) -> Problem:
        return Problem(printable(self.message), self.type, None if self.param is None else printable(self.param),
                       self.code)

    def body(self) -> bytes:
        """The JSON, also what an event of a stream carries."""
        return msgspec.json.encode(ErrorBody(self.problem()))

    def response(self) -> Response:
        return Response(self.body(), self.status, self.headers, "application/json")


def api_error(error: BaseException) -> ApiError:
    """What a client is told of an exception. Of those that nobody raised on purpose it is told nothing more."""
    if isinstance(error, ApiError):
        return error
    message, param = str(error), getattr(error, "param", None)
    if isinstance(error, UnknownModelError):
        return ApiError(404, message, code="model_not_found", param="model")
    if isinstance(error, ContextLengthError):
        return ApiError(400, message, code="context_length_exceeded", param=param)
    if isinstance(error, UnsupportedModelError):
        return ApiError(400, message, code="unsupported_by_model", param=param or "model")
    if isinstance(error, ParameterError | TemplateError | CapacityError):
        return ApiError(400, message, param=param)
    if isinstance(error, BusyError):
        wait = {"Retry-After": str(max(1, math.ceil(error.retry_after)))}
        if error.own:
            return ApiError(429, message, code="rate_limit_exceeded", headers=wait)
        return ApiError(503, message, code="engine_overloaded", headers=wait)
    if isinstance(error, DeadlineError):
        return ApiError(504, message, type="timeout_error", code="deadline_exceeded")
    if isinstance(error, ForwardpassError):
        return ApiError(500, message)
    if isinstance(error, RecursionError):  # of something that a client nested, since our own code nests little
        return ApiError(400, "the request is nested too deeply")
    return ApiError(500, "the server failed to answer this request; its log says more under the request's id")


def invalid_body(error: msgspec.DecodeError) -> ApiError:
    """A body that is no JSON, or not of the shape that is wanted: the field becomes the error's param."""
    message = str(error)
    if not isinstance(error, msgspec.ValidationError):
        return ApiError(400, f"the body must be JSON in UTF-8: {message}", code="invalid_json")
    message, _, where = message.partition(" - at ")
    path = re.search(r"\$([^`]*)`", where)
    at = path[1].replace("[...]", "").lstrip(".") if path else ""
    field = re.search(r"(?:unknown|required) field `(.*)`", message, re.DOTALL)
    param = ".".join(part for part in (at, field[1] if field else "") if part) or None
    code = "unknown_field" if "unknown field" in message else "missing_field" if field else "invalid_value"
    said = message[:1].lower() + message[1:]
    return ApiError(400, f"{param}: {said}" if param else f"the body: {said}", code=code, param=param)


def printable(text: str) -> str:
    """A text that can be encoded, and is not endless: errors quote what a client sent."""
    text = SURROGATE.sub("\N{REPLACEMENT CHARACTER}", text)
    return text if len(text) <= LONGEST_MESSAGE else text[:LONGEST_MESSAGE] + " ..."
