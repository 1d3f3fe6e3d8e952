"""Labels of tokens: entities in a text, with their places in it."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import pairwise
from typing import Any

import numpy as np

from forwardpass.contracts import Entity, Hidden
from forwardpass.errors import ParameterError
from forwardpass.stages.entities import AGGREGATIONS, entities
from forwardpass.stages.labels import activate
from forwardpass.stages.texts import EncodedText, split_texts
from forwardpass.tasks.texts import checked_texts, encoded, has_types, label_scores, limit_for, read, whole_number


def token_classify(model, text: Any, *, aggregation: str, ignore: Collection[str], truncation: str | None,
                   max_length: int | None, overlap: int | None) -> list[Entity] | list[list[Entity]]:
    """See Model.token_classify."""
    texts = checked_texts(text, "text")
    if aggregation not in AGGREGATIONS:
        raise ParameterError(f"aggregation must be one of {', '.join(AGGREGATIONS)}, not {aggregation!r}")
    if isinstance(ignore, (str, bytes)) or not isinstance(ignore, Iterable):
        raise ParameterError(f"ignore must be a list of labels, not {ignore!r}")
    ignored = set(ignore)  # what comes only once is gone after it
    if not all(isinstance(label, str) for label in ignored):
        raise ParameterError(f"ignore must be a list of labels, not of {', '.join(map(repr, ignored))[:80]}")
    limit = limit_for(model, max_length, truncation)
    if overlap is None:
        parts = encoded(model, texts, limit, offsets=True)
        owners = list(range(len(texts)))
    else:
        if truncation is not None:
            raise ParameterError("overlap splits what is too long, truncation cuts it: give one of them")
        parts, owners = split_texts(model.tokenizer, texts, limit, whole_number("overlap", overlap, 0),
                                    types=has_types(model.spec), offsets=True)
    rows = read(model, parts, lambda hidden: _rows(model, hidden))
    mine: list[list[tuple[EncodedText, np.ndarray]]] = [[] for _ in texts]
    for owner, part, scores in zip(owners, parts, rows, strict=True):
        mine[owner].append((part, scores))
    found = [_entities(model, one, each, aggregation, ignored) for one, each in zip(texts, mine, strict=True)]
    return found[0] if isinstance(text, str) else found


def _rows(model, hidden: Hidden) -> list[np.ndarray]:
    scores, starts = label_scores(model, hidden), hidden.packed.starts.tolist()
    return [scores[first:end].copy() for first, end in pairwise(starts)]


def _entities(model, text: str, parts: list[tuple[EncodedText, np.ndarray]], aggregation: str, ignore: Collection[str]
              ) -> list[Entity]:
    """Of a token that is in two parts the scores are those of the part where more of the text is around it."""
    chosen: dict[int, tuple[int, np.ndarray]] = {}  # token of the whole encoding -> (what is around it, raw scores)
    encoding = parts[0][0].encoding
    for number, (part, scores) in enumerate(parts):
        kept = range(len(encoding)) if part.kept is None else part.kept
        for place, (token, row) in enumerate(zip(kept, scores, strict=True)):
            before = len(encoding) if number == 0 else place
            after = len(encoding) if number == len(parts) - 1 else len(kept) - 1 - place
            around = min(before, after)
            if token not in chosen or around > chosen[token][0]:
                chosen[token] = around, row
    sequence, offsets, words = encoding.sequence_ids, encoding.offsets, encoding.word_ids
    tokens = sorted(token for token in chosen if sequence[token] is not None)
    if not tokens:
        return []
    scores = activate(np.stack([chosen[token][1] for token in tokens]), "softmax")
    return entities(text, [offsets[i] for i in tokens], [words[i] for i in tokens], scores, model.settings.labels,
                    aggregation, ignore)
