"""Stage 5 for labelled tokens: tokens become words, words become entities with places in the text.

Labels may follow the B-/I- scheme: B- begins an entity, I- goes on with one of the same name; a label without a prefix
counts as I-. Choices follow transformers' token classification pipeline, with two differences: which tokens are one
word is what the tokenizer says, and an entity neither begins nor ends with blanks.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise

import numpy as np

from ..contracts import Entity
from ..errors import ParameterError

AGGREGATIONS = ("none", "simple", "first", "average", "max", "words")


def entities(text: str, offsets: Sequence[tuple[int, int]], words: Sequence[int | None], scores: np.ndarray,
             labels: Sequence[str], aggregation: str, ignore: Collection[str]) -> list[Entity]:
    """The entities of one text, in order.

    offsets: characters of each token;  words: the number of the word it is in;  scores: float64 [tokens, labels],
    probabilities;  ignore: names of labels that are no entities ("O").
    aggregation: "none", each token with its own label;  "simple", neighbouring tokens of one name together;  "first",
    "average", "max": whole words, which get the label of their first token, of the mean of their tokens' scores or of
    the token that is surest, and neighbouring words of one name together;  "words": each word by itself, by its first
    token. An entity's score is the mean of those of its parts.
    """
    if aggregation not in AGGREGATIONS:
        raise ParameterError(f"aggregation must be one of {', '.join(AGGREGATIONS)}, not {aggregation!r}")
    if aggregation in ("none", "simple"):
        parts = [(row, span) for row, span in zip(scores, offsets, strict=True)]
    else:
        parts = [_word(scores[first:end], offsets[first:end], aggregation)
                 for first, end in _words(text, offsets, words)]
    chosen = [(labels[best], float(row[best]), span) for row, span in parts for best in (int(row.argmax()),)]
    if aggregation not in ("none", "words"):
        chosen = _grouped(chosen)
    found = [_entity(text, *one) for one in chosen if one[0] not in ignore]
    return [one for one in found if one.start < one.end]


def _words(text: str, offsets: Sequence[tuple[int, int]], words: Sequence[int | None]) -> list[tuple[int, int]]:
    """(first token, end) of each word. A tokenizer that doesn't know words gives them all the same number: then a word
    begins where there is a blank before it."""
    if not words:
        return []
    if len(set(words)) > 1:
        begins = [b is None or a != b for a, b in pairwise(words)]
    else:
        begins = [any(map(str.isspace, text[max(start - 1, 0) : start + 1])) for start, _ in offsets[1:]]
    edges = [0, *(i for i, begin in enumerate(begins, 1) if begin), len(words)]
    return list(pairwise(edges))


def _word(scores: np.ndarray, offsets: Sequence[tuple[int, int]], aggregation: str
          ) -> tuple[np.ndarray, tuple[int, int]]:
    if aggregation == "average":
        row = np.add.reduce(scores, axis=0) / len(scores)
    elif aggregation == "max":
        row = scores[int(scores.max(axis=1).argmax())]
    else:
        row = scores[0]
    return row, (offsets[0][0], offsets[-1][1])


def _name(label: str) -> tuple[str, bool]:
    """(name without the prefix, whether it begins an entity)."""
    return (label[2:], label[0] == "B") if label[:2] in ("B-", "I-") else (label, False)


def _grouped(parts: list[tuple[str, float, tuple[int, int]]]) -> list[tuple[str, float, tuple[int, int]]]:
    groups: list[tuple[str, list[float], int, int]] = []
    for label, score, (start, end) in parts:
        name, begins = _name(label)
        if groups and groups[-1][0] == name and not begins:
            _, scores, first, _ = groups[-1]
            scores.append(score)
            groups[-1] = name, scores, first, end
        else:
            groups.append((name, [score], start, end))
    return [(name, sum(scores) / len(scores), (start, end)) for name, scores, start, end in groups]


def _entity(text: str, label: str, score: float, span: tuple[int, int]) -> Entity:
    start, end = span
    inside = text[start:end]
    start += len(inside) - len(inside.lstrip())
    end = max(start, end - (len(inside) - len(inside.rstrip())))
    return Entity(label, score, start, end, text[start:end])
