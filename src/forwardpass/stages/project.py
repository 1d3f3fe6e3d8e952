"""Stage 4: hidden states become logits, for the rows that somebody will look at and no others, or the scores of labels,
or the vectors of a head that makes them.

Vectors that need no head are made in pooling.py.
"""

from __future__ import annotations

import numpy as np

from forwardpass.contracts import Hidden, Logits, int32
from forwardpass.errors import ParameterError
from forwardpass.stages.pooling import pool

POOLINGS = {"first": ("cls",), "last": ("last",), "mean": ("mean",), "patches": ("mean",),
            "first+patches": ("cls", "mean"), "both": ("cls", "second")}
"""What a head reads of a text or an image (HeadSpec.pool) -> its names in pooling.py."""


def project(network, hidden: Hidden, rows: np.ndarray | None = None) -> Logits:
    """Hidden after stage 3 -> Logits float32 [rows, vocab].

    rows: int32 indices into the packed tokens; None = the last token of each sequence, which is what decides the next.
    """
    if rows is None:
        rows = hidden.packed.starts[1:] - 1
    rows = int32("rows", rows)
    count = hidden.values.shape[0]
    if rows.size and not (int(rows.min()) >= 0 and int(rows.max()) < count):
        raise ParameterError(f"rows to project must be in [0, {count}), found {int(rows.min())} to {int(rows.max())}")
    if rows.size == 0:
        return Logits(np.empty((0, network.spec.vocab_size), np.float32), rows)
    return Logits(network.project(hidden.values, rows), rows)


def label_scores(network, hidden: Hidden) -> np.ndarray:
    """Scores float32 [texts, labels] of a head that labels texts or images, or [tokens, labels] of one that labels
    tokens."""
    return network.head(pooled(network, hidden) if network.spec.head.pool != "each" else hidden.values)


def vectors(network, hidden: Hidden) -> np.ndarray:
    """float32 [texts, width]: what a head of vectors makes of texts or images, not normalised. network: of the tower
    that computed `hidden`."""
    return network.head(pooled(network, hidden))


def pooled(network, hidden: Hidden) -> np.ndarray:
    """float32 [texts, width]: what the head reads of each text or image."""
    head, patches = network.spec.head, network.spec.patches
    if head.pool == "attention":
        return network.pool_by_attention(hidden.values, hidden.packed.starts)
    if head.pool in ("end", "greatest"):
        return hidden.values[_ends(hidden, head)]
    skip = patches.first if patches and head.pool in ("patches", "first+patches") else 0
    return pool(hidden, POOLINGS[head.pool], skip)


def _ends(hidden: Hidden, head) -> np.ndarray:
    """The row of each text that stands for it: its first end token, or its first token where it has none; the first of
    its greatest ids with files that don't know their end token (CLIP's first)."""
    ids, starts = hidden.packed.token_ids, hidden.packed.starts[:-1]
    texts = np.split(ids, starts[1:])
    return starts + [int(np.argmax(text if head.pool == "greatest" else text == head.end)) for text in texts]
