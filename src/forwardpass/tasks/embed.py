"""Texts to vectors: pooled hidden states, then whatever the checkpoint's files put behind them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import numpy as np

from forwardpass.contracts import Hidden
from forwardpass.errors import ParameterError
from forwardpass.models.task_settings import NORMALIZE, POOLING_NAMES, POOLINGS
from forwardpass.stages.pooling import as_bits, as_int8, normalized, pool
from forwardpass.stages.texts import split_texts
from forwardpass.tasks.dense import products
from forwardpass.tasks.notices import notice
from forwardpass.tasks.texts import (
    checked_inputs,
    encoded,
    encoded_ids,
    finite,
    flag,
    has_types,
    limit_for,
    made_vectors,
    read,
    reader,
    vector_width,
    whole_number,
)

OUTPUTS = ("float32", "int8", "binary")
_NAME = re.compile(r"[\w.-]+")
"""A prompt like this is meant as a name, since none would end without a blank or a colon."""


def embed(model, texts: Any, *, pooling: str | Sequence[str] | None, normalize: bool | None, prompt: str | None,
          dimensions: int | None, output: str, truncation: str | None, max_length: int | None, overlap: int | None
          ) -> tuple[np.ndarray, int]:
    """(vectors, tokens that the model read). See Model.embed."""
    texts = checked_inputs(texts, reader(model.spec).vocab_size)
    written = isinstance(texts[0], str)
    settings = model.settings
    if output not in OUTPUTS:
        raise ParameterError(f"output must be one of {', '.join(OUTPUTS)}, not {output!r}")
    how = _pooling(model, pooling)  # () = the model has a head for it
    inner, normal = list(settings.steps), False
    while inner and inner[-1] == NORMALIZE:
        inner.pop()
        normal = True
    normal = normal if normalize is None else flag("normalize", normalize)
    width = inner_width = reader(model.spec).hidden_size * len(how) or vector_width(model.spec)
    if settings.dense:
        width = settings.dense[-1].outputs
        if inner_width != settings.dense[0].inputs:
            raise ParameterError(f"pooling {pooling!r} gives vectors of {inner_width} numbers; the model's dense layer "
                                 f"takes {settings.dense[0].inputs}: leave pooling out")
    wanted = width if dimensions is None else whole_number("dimensions", dimensions, 1, width)
    if not written and (prompt or overlap is not None):
        raise ParameterError(f"{'prompt' if prompt else 'overlap'} is for texts; token ids are read as they are: leave "
                             "it out, or pass texts")
    before = _prompt(settings, prompt) if written else ""
    prompted = _prompt_tokens(model.tokenizer, _prepared(settings, before)) if before else 0
    skip = 0 if settings.include_prompt else prompted
    ready = [_prepared(settings, before + text) for text in texts] if written else texts

    def vectors(hidden: Hidden) -> np.ndarray:
        out, layers = pool(hidden, how, skip) if how else made_vectors(model, hidden), iter(model.dense)
        for step in inner:
            out = normalized(out) if step == NORMALIZE else next(layers)(out)
        return finite(out)

    limit = limit_for(model, max_length, truncation)
    if overlap is None:
        parts = encoded(model, ready, limit, keep=prompted) if written else encoded_ids(model, ready, limit)
        owners = None
    else:
        if truncation is not None:
            raise ParameterError("overlap splits what is too long, truncation cuts it: give one of them")
        parts, owners = split_texts(model.tokenizer, ready, limit, whole_number("overlap", overlap, 0),
                                    types=has_types(model.spec), keep=prompted)
    made = np.stack(read(model, parts, vectors))
    if owners is not None and len(owners) > len(texts):
        made = _joined(normalized(made) if normal else made, owners, [len(part.ids) for part in parts])
    made = made[:, :wanted]
    if normal:
        made = normalized(made)
    made = as_int8(made) if output == "int8" else as_bits(made) if output == "binary" else np.ascontiguousarray(made)
    return made, sum(len(part.ids) for part in parts)


def similarity(model, vectors: np.ndarray, others: np.ndarray) -> np.ndarray:
    """See Model.similarity."""
    model.engine  # noqa: B018  the error of a closed model
    a, b = _rows(vectors), _rows(others)
    if a.shape[1] != b.shape[1]:
        raise ParameterError(f"similarity takes vectors of one width, [n, d] and [m, d]; found {list(a.shape)} and "
                             f"{list(b.shape)}")
    kind = model.settings.similarity
    if kind in ("euclidean", "manhattan"):
        norm = 2 if kind == "euclidean" else 1
        return np.stack([-np.linalg.norm(b - row, ord=norm, axis=1) for row in a])
    if kind == "cosine":
        a, b = normalized(a), normalized(b)
    return products(model.network.backend, a, b)


def _rows(vectors: Any) -> np.ndarray:
    """float32 [n, d]. uint8 is what embed(output="binary") gives: a bit that is set counts as 1 and another as -1."""
    try:
        found = np.atleast_2d(np.asarray(vectors))
    except ValueError:  # rows of several lengths
        found = np.empty(0, object)
    if found.dtype.kind not in "fiu" or found.ndim != 2 or 0 in found.shape:
        raise ParameterError(f"similarity takes vectors, an array of numbers [n, d]; found {type(vectors).__name__} "
                             f"{str(vectors)[:40]!r}" if found.dtype.kind not in "fiu" else
                             f"similarity takes vectors [n, d], at least one; found {list(found.shape)}")
    if found.dtype == np.uint8:
        found = np.where(np.unpackbits(found, axis=1), np.float32(1), np.float32(-1))
    return found.astype(np.float32)


def _pooling(model, pooling: str | Sequence[str] | None) -> tuple[str, ...]:
    if pooling is not None:
        names = pooling if isinstance(pooling, (list, tuple)) else [pooling]
        for name in names:
            if not isinstance(name, str) or name not in POOLING_NAMES:
                raise ParameterError(f"pooling must be one of {', '.join(POOLINGS)}, or several of them, not {name!r}")
        if not names:
            raise ParameterError("pooling: expected at least one name, found an empty list")
        return tuple(POOLING_NAMES[name] for name in names)
    if model.settings.pooling or model.spec.head.task == "vector":
        return model.settings.pooling
    default = "last" if model.spec.causal and not model.spec.encoder else "mean"
    notice(f"{model.path.name} does not say how its vectors are made (it has no 1_Pooling/config.json): taking "
           f"pooling={default!r}", 4, told=model.told, name="pooling")
    return (default,)


def _prompt(settings, prompt: str | None) -> str:
    """The text to put before each text."""
    if prompt is None:
        return settings.prompts[settings.default_prompt] if settings.default_prompt else ""
    if not isinstance(prompt, str):
        raise ParameterError(f"prompt must be a text or a name, not {type(prompt).__name__}")
    if prompt in settings.prompts:
        return settings.prompts[prompt]
    if _NAME.fullmatch(prompt):
        known = f"has the prompts {', '.join(settings.prompts)}" if settings.prompts else "has no prompts"
        raise ParameterError(f"prompt: there is no prompt {prompt!r}: the model {known}; a text to put before each "
                             "text ends with a blank or a colon")
    return prompt


def _prompt_tokens(tokenizer, prompt: str) -> int:
    """Tokens of a prompt at the beginning of a text, the opening special token included."""
    ids = tokenizer.encode_batch([prompt])[0].ids
    return len(ids) - (bool(ids) and ids[-1] in tokenizer.special_ids)


def _prepared(settings, text: str) -> str:
    """As sentence-transformers does it before tokenising."""
    text = text.strip() if settings.strip else text
    return text.lower() if settings.lower else text


def _joined(vectors: np.ndarray, owners: list[int], tokens: list[int]) -> np.ndarray:
    """Means of each text's parts, weighted by their tokens. owners: ascending."""
    out = []
    for _, parts in groupby(range(len(owners)), owners.__getitem__):
        mine = list(parts)
        weights = np.array([tokens[i] for i in mine], np.float32)[:, None]
        out.append(vectors[mine[0]] if len(mine) == 1 else
                   np.add.reduce(vectors[mine] * weights, axis=0) / weights.sum())
    return np.stack(out)
