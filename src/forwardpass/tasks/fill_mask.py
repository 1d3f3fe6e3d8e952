"""Masked language models: what may stand where the mask is."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from forwardpass.contracts import Candidate, Hidden
from forwardpass.errors import ParameterError
from forwardpass.stages.labels import activate, best_first
from forwardpass.stages.project import project
from forwardpass.stages.texts import EncodedText
from forwardpass.tasks.texts import checked_texts, encoded, finite, limit_for, read, whole_number


def fill_mask(model, text: Any, *, top_k: int, truncation: str | None, max_length: int | None
              ) -> list[list[Candidate]] | list[list[list[Candidate]]]:
    """See Model.fill_mask."""
    texts = checked_texts(text, "text")
    top_k = whole_number("top_k", top_k, 1)
    tokenizer = model.tokenizer
    mask, written = tokenizer.mask_token_id, tokenizer.id_to_token(tokenizer.mask_token_id)
    for number, one in enumerate(texts):
        if written not in one:
            raise ParameterError(f"text {number}: expected at least one {written}, the mask that the model knows, "
                                 f"found {one[:80]!r}")
    ready = encoded(model, texts, limit_for(model, max_length, truncation), offsets=True)
    for number, one in enumerate(ready):
        if mask not in one.ids:
            raise ParameterError(f"text {number}: every {written} was cut off with the rest of a text of "
                                 f"{len(one.ids) + one.cut} tokens; shorten it, or cut the other end")

    def rows(hidden: Hidden) -> list[np.ndarray]:
        places = np.flatnonzero(hidden.packed.token_ids == mask).astype(np.int32)
        scores = finite(project(model.network, hidden, places).values[:, : model.facts.vocab_size])
        edges = np.searchsorted(places, hidden.packed.starts).tolist()
        return [scores[first:end].copy() for first, end in pairwise(edges)]

    found = [_candidates(tokenizer, one, encoded_text, scores, top_k, mask, written)
             for one, encoded_text, scores in zip(texts, ready, read(model, ready, rows), strict=True)]
    return found[0] if isinstance(text, str) else found


def _candidates(tokenizer, text: str, ready: EncodedText, rows: np.ndarray, top_k: int, mask: int, written: str
                ) -> list[list[Candidate]]:
    """For each mask, best first. A mask's offsets may hold the blanks before it."""
    ends = [end for token, (_, end) in zip(ready.ids, ready.pick("offsets"), strict=True) if token == mask]
    prefix = getattr(tokenizer.backend.model, "continuing_subword_prefix", None) or "\0"
    found = []
    for end, row in zip(ends, rows, strict=True):
        end = len(text[:end].rstrip())
        start = end - len(written)
        scores = activate(row, "softmax")
        found.append([])
        for token in best_first(scores, top_k):
            said = tokenizer.decode([token]).strip()
            whole = text[:start] + said.removeprefix(prefix) + text[end:]
            found[-1].append(Candidate(said, float(scores[token]), token, whole))
    return found
