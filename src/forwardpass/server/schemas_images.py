"""Requests and answers of /v1/images/generations."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from forwardpass.server.schemas import LONGEST_NAME, Computing, Words
from forwardpass.server.schemas_reading import Noticed

MOST_IMAGES = 16
LONGEST_EDGE = 4096
"""Pixels. Whether so many fit into memory is known when the request is there."""
Size = Annotated[str, Meta(pattern=r"^([1-9][0-9]{0,3}x[1-9][0-9]{0,3}|auto)$", description=(
    f'Width and height in pixels, such as "512x512", up to {LONGEST_EDGE} each. auto: what the model draws best.'))]
Inline = Annotated[Literal["b64_json"], Meta(description="Pictures come in the answer itself.")]
FileFormat = Annotated[Literal["png", "jpeg", "webp"], Meta(
    description="png (default) also holds what a picture was drawn with.")]
Seed = Annotated[int, Meta(ge=0, le=2**63 - 1, description=(
    "Of the first picture; the others have the next ones. The same seed gives the same picture."))]
Method = Annotated[str, Meta(max_length=LONGEST_NAME, description="Another method, by diffusers' name.")]


class ImagesBody(Computing, kw_only=True):
    """A prompt, or of a model of labels the name or number of one, and how it is drawn."""

    prompt: Words
    n: Annotated[int, Meta(ge=1, le=MOST_IMAGES, description="Pictures.")] | None = None
    size: Size | None = None
    response_format: Inline | None = None
    output_format: FileFormat | None = None
    seed: Seed | None = None
    negative_prompt: Words | None = None
    num_inference_steps: Annotated[int, Meta(ge=1, le=1000)] | None = None
    guidance_scale: Annotated[float, Meta(ge=0, le=1000)] | None = None
    scheduler: Method | None = None


class Picture(msgspec.Struct, kw_only=True):
    b64_json: str
    seed: int


class Pictures(Noticed, kw_only=True):
    """created: seconds since 1970;  size: width x height."""

    created: int
    data: list[Picture]
    model: str
    output_format: Literal["png", "jpeg", "webp"]
    size: str | UnsetType = UNSET
