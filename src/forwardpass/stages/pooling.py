"""Stage 4 for vectors: the hidden states of a text's tokens become one vector.

Each text is pooled by itself, row after row, so its vector has the same bits whatever else was in the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from ..contracts import Hidden

NEAR = 256
"""Vectors that are normalised together: what they need in between stays in a core's cache."""


def pool(hidden: Hidden, how: Sequence[str], skip: int = 0) -> np.ndarray:
    """float32 [texts, len(how) * hidden_size], the poolings side by side.

    how: "cls" the first token, "second" the one after it, "last" the last one, "max" each column's greatest, "mean",
    "mean_sqrt_len" the sum over the square root of the number of tokens, "weightedmean" with weights 1, 2, 3, ... by
    position (Muennighoff 2022).
    skip: leading tokens that all but cls, second and last leave out, a prompt's or the rows before an image's patches;
    a text's last token is never left out.

    Example: rows (1, 2) and (3, 4): mean (2, 3), cls (1, 2), max and last (3, 4), mean_sqrt_len (4, 6) / sqrt(2),
    weightedmean (7, 10) / 3.
    """
    values, starts = hidden.values, hidden.packed.starts.tolist()
    width = values.shape[1]
    out = np.empty((len(starts) - 1, len(how) * width), np.float32)
    for text, (first, end) in enumerate(pairwise(starts)):
        rows = values[min(first + skip, end - 1) : end] if skip else values[first:end]
        for i, kind in enumerate(how):
            place = out[text, i * width : (i + 1) * width]
            if kind == "mean":
                np.add.reduce(rows, axis=0, out=place)
                place /= np.float32(len(rows))
            else:
                place[:] = _OTHERS[kind](values[first:end], rows)
    return out


def _mean_sqrt_len(text: np.ndarray, rows: np.ndarray) -> np.ndarray:
    return np.add.reduce(rows, axis=0) / np.sqrt(np.float32(len(rows)))


def _weighted_mean(text: np.ndarray, rows: np.ndarray) -> np.ndarray:
    weights = np.arange(len(text) - len(rows) + 1, len(text) + 1, dtype=np.float32)
    return np.add.reduce(rows * weights[:, None], axis=0) / np.float32(weights.sum(dtype=np.float64))


_OTHERS = {
    "cls": lambda text, rows: text[0],
    "second": lambda text, rows: text[1],
    "last": lambda text, rows: text[-1],
    "max": lambda text, rows: np.maximum.reduce(rows, axis=0),
    "mean_sqrt_len": _mean_sqrt_len,
    "weightedmean": _weighted_mean,
}


def normalized(vectors: np.ndarray) -> np.ndarray:
    """float32 [n, d]: each vector divided by its length, at least 1e-12. Sums are in float64, a row at a time."""
    out = np.empty(vectors.shape, np.float32)
    for at in range(0, len(vectors), NEAR):
        some = vectors[at : at + NEAR]
        lengths = np.sqrt(np.add.reduce(np.square(some, dtype=np.float64), axis=1))
        np.divide(some, np.maximum(lengths, 1e-12)[:, None], out=out[at : at + NEAR], casting="same_kind")
    return out


def as_int8(vectors: np.ndarray) -> np.ndarray:
    """int8 [n, d]: each vector scaled so that its greatest number becomes 127, then rounded. Cosines stay nearly the
    same; lengths are lost. No other vector has a say in it."""
    greatest = np.abs(vectors).max(axis=1, keepdims=True, initial=0.0)
    scale = np.divide(127, greatest, out=np.zeros_like(greatest), where=greatest > 0)
    return np.rint(vectors * scale).astype(np.int8)


def as_bits(vectors: np.ndarray) -> np.ndarray:
    """uint8 [n, ceil(d / 8)]: a bit for each number, 1 where it is above 0, the first one the highest of its byte."""
    return np.packbits(vectors > 0, axis=1)
