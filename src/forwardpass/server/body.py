"""The body of a request: read up to a limit of bytes and of time, decoded, and refused by the name of what is wrong."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import Iterator
from difflib import get_close_matches
from time import perf_counter
from typing import Any

import msgspec
import msgspec.inspect
from starlette.requests import ClientDisconnect, Request

from forwardpass.config import memory_text
from forwardpass.server.errors import SURROGATE, ApiError, invalid_body

WHOLE_S = 300.0
"""The longest a body may take, however steadily it comes."""
ROOM = 256 << 20
"""Bytes of bodies that may be in memory at the same time, at least."""
EXPLAINED = 1 << 20
"""Bytes of a body that are read a second time to say more about what is wrong: that takes some milliseconds."""
LONGEST_SHOWN = 60
"""Characters of a wrong value or name that an error looks at."""
READ_AGAIN = 64 << 10
"""Bytes of a wrong body that are read once more, to tell what was found."""
ESCAPED_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


class BodyRoom:
    """The bodies of all requests together, so that many large ones do not fill the memory: room for ROOM bytes, but at
    least for four of the largest. limit: bytes of one body."""

    def __init__(self, limit: int):
        self.limit = limit
        self.left = max(ROOM, 4 * limit)

    async def read(self, call, receive, whole_s: float = WHOLE_S) -> bytes:
        """All bytes of a JSON body; they are held until give_back(call). ApiError 413, 415, 408 or 503; starlette's
        ClientDisconnect if the client leaves."""
        request, pause_s = call.request, call.settings.read_timeout
        _check_type(request)
        length = request.headers.get("content-length", "")
        if length.isascii() and length.isdigit() and int(length[:20]) > self.limit:
            raise _too_large(self.limit)
        body, begun = bytearray(), perf_counter()
        while True:
            try:
                async with asyncio.timeout(min(pause_s, begun + whole_s - perf_counter())):
                    message = await receive()
            except TimeoutError:
                raise ApiError(408, f"the body did not arrive in time: {len(body)} bytes came in "
                               f"{perf_counter() - begun:.1f} s", code="request_timeout",
                               headers={"Connection": "close"}) from None
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            chunk = message.get("body", b"")
            self.left -= len(chunk)
            call.held += len(chunk)
            body += chunk
            if len(body) > self.limit:
                raise _too_large(self.limit)
            if self.left < 0:
                raise ApiError(503, "the bodies of the requests that are being answered fill the room for them",
                               code="engine_overloaded", headers={"Retry-After": "1", "Connection": "close"})
            if not message.get("more_body", False):
                return bytes(body)

    def give_back(self, call) -> None:
        self.left += call.held
        call.held = 0


def _check_type(request: Request) -> None:
    """JSON in UTF-8 and nothing else. That it must be said also keeps pages of other origins out: a browser does not
    send this type anywhere without asking first."""
    kind, *parameters = [part.strip().lower() for part in request.headers.get("content-type", "").split(";")]
    if kind != "application/json":
        raise ApiError(415, f"send JSON with the header Content-Type: application/json, not {kind or 'none'!r}",
                       code="unsupported_media_type")
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name == "charset" and value.strip('"') not in ("utf-8", "utf8"):
            raise ApiError(415, f"JSON is read as UTF-8, not as {value!r}", code="unsupported_media_type")
    coding = request.headers.get("content-encoding", "identity").strip().lower()
    if coding not in ("", "identity"):
        raise ApiError(415, f"the body must not be compressed, and this one says Content-Encoding: {coding!r}",
                       code="unsupported_media_type")


def _too_large(limit: int) -> ApiError:
    return ApiError(413, f"the body is longer than the {memory_text(limit)} that this server takes; send less at "
                    "once, or raise --max-body", code="request_too_large")


def decode_body(body: bytes, decoder: msgspec.json.Decoder) -> Any:
    """The Struct that the bytes are. ApiError 400 that names the field that is wrong."""
    try:
        return decoder.decode(body)
    except msgspec.DecodeError as error:
        raise _half_a_character(body) or _told(invalid_body(error), body, decoder.type) from None
    except UnicodeError as error:
        raise ApiError(400, f"the body must be JSON in UTF-8: {error}", code="invalid_json") from None
    except RecursionError:
        raise ApiError(400, "the body is nested too deeply", code="invalid_json") from None


def _told(error: ApiError, body: bytes, wanted: Any) -> ApiError:
    """The same error, with what the decoder does not say: what was found, and which names there are."""
    if not body.strip():
        error.message = "the body is empty; send a JSON object"
    elif error.code == "unknown_field" and len(error.param or "") <= LONGEST_SHOWN:
        fields = getattr(wanted, "__struct_encode_fields__", ())
        near = get_close_matches(error.param or "", fields, 1)  # of fields inside others there are none
        error.message += f"; is it {near[0]!r} that you mean?" if near else ""
    elif error.code == "invalid_value" and error.param and len(body) <= READ_AGAIN and ", got " not in error.message:
        with contextlib.suppress(ValueError, LookupError, TypeError, RecursionError):
            if "invalid enum value" in error.message and (choices := _choices(wanted, error.param)):
                error.message = f"{error.param}: expected {choices}"
            error.message += f", found {_shown(_at(json.loads(body), error.param))}"
    return error


def _choices(wanted: Any, name: str) -> str:
    """The words that a field of the body takes, "" if that is not all it takes."""
    kind = next((one.type for one in msgspec.inspect.type_info(wanted).fields if one.encode_name == name), None)
    kinds = [getattr(one, "type", one) for one in getattr(kind, "types", (kind,))]
    words = [value for one in kinds if isinstance(one, msgspec.inspect.LiteralType) for value in one.values]
    return f"{'one of ' if len(words) > 1 else ''}{', '.join(map(repr, words))}"


def _at(value: Any, path: str) -> Any:
    """The part of a body that a path such as messages[0].content names."""
    for name, number in re.findall(r"([^.\[\]]+)|\[(\d+)\]", path):
        value = value[name] if name and not number else value[int(number)]
    return value


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return f"{len(value)} of them" if value else "none"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}... ({len(text):,} characters)"


def _half_a_character(body: bytes) -> ApiError | None:
    """JSON can write half of a pair of UTF-16, which is no character. The decoder refuses it, but says neither why nor
    where."""
    if len(body) > EXPLAINED or not ESCAPED_SURROGATE.search(body):
        return None
    try:
        where = next(_surrogates(json.loads(body), ""), None)
    except (ValueError, RecursionError):
        return None
    if where is None:
        return None
    return ApiError(400, f"{where}: holds half of a surrogate pair (\\ud800 to \\udfff alone), which is no character",
                    code="invalid_value", param=where)


def _surrogates(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, str):
        if SURROGATE.search(value):
            yield path or "body"
    elif isinstance(value, list):
        for number, one in enumerate(value):
            yield from _surrogates(one, f"{path}[{number}]")
    elif isinstance(value, dict):
        for name, one in value.items():
            at = f"{path}.{name}" if path else name
            if SURROGATE.search(name):
                yield at
            yield from _surrogates(one, at)
