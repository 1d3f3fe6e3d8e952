"""What the schemas of all routes share. Names and meanings are OpenAI's where they exist there. A request with a field
that its Struct doesn't have is refused; optional fields may also be null, which is the same as leaving them out."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from forwardpass.server.errors import ApiError

INSTEAD = "x-instead"
"""In a field's extra_json_schema: the schema that the OpenAPI document has in the field's place, where a check beside
the types allows less than they do."""
MOST_INPUTS = 2048
"""Texts in one request."""
LONGEST_TEXT = 1 << 20
"""Characters of one text: more than any model reads, while tokenising it takes a second or two, and 200 MB."""
MOST_IDS = 1 << 20
"""Token ids of one text."""
LONGEST_NAME = 256
LONGEST_WAIT_S = 86400.0


class Body(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The body of any request."""

    model: Annotated[str, Meta(min_length=1, max_length=LONGEST_NAME, description="A name or alias of /v1/models.")]


class Computing(Body):
    """The body of a request that computes."""

    priority: Annotated[int, Meta(ge=-1000, le=1000, description="Smaller is served first.")] = 0
    timeout: Annotated[float, Meta(gt=0, le=LONGEST_WAIT_S, description="Seconds after which it is given up: 504.")
                       ] | None = None
    cache_salt: Annotated[str, Meta(max_length=LONGEST_NAME, description="What is cached of prompts is shared only "
                                    "among requests with the same salt.")] | None = None
    user: Annotated[str, Meta(description="Accepted; it changes nothing.")] | None = None


def array(items: dict[str, Any], least: int = 1, most: int | None = MOST_INPUTS) -> dict[str, Any]:
    """The JSON schema of a list."""
    return {"type": "array", "items": items, "minItems": least} | ({} if most is None else {"maxItems": most})


Words = Annotated[str, Meta(max_length=LONGEST_TEXT)]
"""A text that will be tokenised."""
TEXT = {"type": "string", "maxLength": LONGEST_TEXT}
IDS = array({"type": "integer", "minimum": 0}, most=MOST_IDS)
Prompts = Annotated[Words | list[Words | int | list[int]], Meta(
    description=f"A text, up to {MOST_INPUTS} texts, the token ids of a text, or lists of token ids.",
    extra_json_schema={INSTEAD: {"anyOf": [TEXT, array(TEXT), IDS, array(IDS)]}})]
"""str, list[str], list[int] or list[list[int]]. A union of lists can't be decoded as such: `prompts` does the rest."""


def prompts(given: str | list[str | int | list[int]], field: str, most: int = MOST_INPUTS
            ) -> list[str] | list[list[int]]:
    """The texts, or the token ids of each text. ApiError, which names the place, for an empty list, for one with things
    of several kinds and for one with too many texts."""
    if isinstance(given, str):
        return [given]
    if not given:
        raise ApiError(400, f"{field}: expected at least one text, found an empty list", code="invalid_value",
                       param=field)
    kind = type(given[0])
    limit, what = (MOST_IDS, "token ids") if kind is int else (most, "texts")
    if len(given) > limit:
        raise ApiError(400, f"{field}: expected at most {limit} {what}, found {len(given)}; send several requests",
                       code="invalid_value", param=field)
    if len(set(map(type, given))) > 1 or [] in given:
        number, found = next((i, one) for i, one in enumerate(given) if type(one) is not kind or one == [])
        wanted = "token ids" if found == [] else f"{_KINDS[kind]} like the first one"
        raise ApiError(400, f"{field}[{number}]: expected {wanted}, found "
                       f"{'an empty list' if found == [] else _KINDS[type(found)]}", code="invalid_value",
                       param=f"{field}[{number}]")
    return [given] if kind is int else given


_KINDS = {str: "a text", int: "a token id", list: "a list of token ids"}
