"""Stage 4: hidden states become logits, for the rows that somebody will look at and no others, or the scores of labels.

Vectors of texts are made in pooling.py.
"""

from __future__ import annotations

import numpy as np

from forwardpass.contracts import Hidden, Logits, int32
from forwardpass.errors import ParameterError
from forwardpass.stages.pooling import pool

POOLINGS = {"first": "cls", "last": "last", "mean": "mean"}
"""What a head of labels reads of a text (HeadSpec.pool) -> its name in pooling.py."""


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
    """Scores float32 [texts, labels] of a head that labels texts, or [tokens, labels] of one that labels tokens."""
    how = POOLINGS.get(network.spec.head.pool)
    return network.head(pool(hidden, (how,)) if how else hidden.values)
