"""POST /v1/embeddings."""

from __future__ import annotations

import base64
from typing import Any

import msgspec
import numpy as np

from forwardpass.server.errors import ApiError
from forwardpass.server.reading import run_task
from forwardpass.server.schemas import prompts
from forwardpass.server.schemas_reading import Embedding, Embeddings, EmbeddingsBody


async def embeddings(call, body: EmbeddingsBody) -> Embeddings:
    """Vectors of texts, in their order. A text with more tokens than the model reads is an error unless `truncation`
    says otherwise. Token ids are read as they are, without special tokens or a prompt around them."""
    model = call.find(body.model, "embed")
    texts = prompts(body.input, "input")
    done = await run_task(
        call, body, {"texts": "input"} | ({"prompt": "prompt_name"} if body.prompt_name is not None else {}), _embedded,
        model, texts, body.encoding_format == "base64", dimensions=body.dimensions, normalize=body.normalize,
        prompt=_prompt(model, body), truncation=body.truncation or "error")
    return Embeddings(data=[Embedding(index=i, embedding=one) for i, one in enumerate(done.result)], model=body.model,
                      usage=done.usage, warnings=done.warnings)


def _embedded(model, texts: list[Any], as_bytes: bool, **given: Any) -> list[msgspec.Raw | str]:
    """Each vector as the answer has it. This is done in a thread and vector by vector, since the event loop has other
    answers to send meanwhile."""
    vectors = model.embed(texts, **given)
    if as_bytes:
        return [base64.b64encode(one.astype("<f4").tobytes()).decode() for one in vectors]
    return [_numbers(one) for one in vectors]


def _numbers(vector: np.ndarray) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(vector.tolist()))


def _prompt(model, body: EmbeddingsBody) -> str | None:
    """What the model's embed() takes for a prompt."""
    if body.prompt_name is None:
        return body.prompt
    if body.prompt is not None:
        raise ApiError(400, "prompt_name: leave it out where prompt has the text, or the other way round",
                       code="invalid_value", param="prompt_name")
    known = model.settings.prompts
    if body.prompt_name not in known:
        raise ApiError(400, f"prompt_name: the model has no prompt {body.prompt_name!r}; "
                       + (f"it has {', '.join(known)}" if known else "it has none"), code="invalid_value",
                       param="prompt_name")
    return body.prompt_name
