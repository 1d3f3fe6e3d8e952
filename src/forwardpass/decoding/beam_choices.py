"""The continuations that a beam search looks at: the best sums, or sums drawn at random."""

from __future__ import annotations

from typing import Any

import numpy as np

from forwardpass import _native
from forwardpass.decoding import _rows, rng
from forwardpass.decoding.processors import NEVER, Chain

Candidate = tuple[float, int, int]
"""Sum of log-probabilities, live beam of its group, token."""


class BestSums:
    """values: edited log-probabilities, float32 [live beams, rows of the head];  sums: float32 [live beams], of each
    beam so far;  renormalize: take the log-softmax of the values;  pool: threads."""

    def __init__(self, values: np.ndarray, sums: np.ndarray, vocab_size: int, renormalize: bool, pool: Any):
        self._arguments = pool, values, np.arange(len(sums), dtype=np.int32), sums
        self._starts = np.array([0, len(sums)], np.int32)
        self._vocab_size = vocab_size
        self._renormalize = renormalize

    def first(self, k: int) -> list[Candidate]:
        """The k best, best first; fewer if there are no more. Among equals the earlier beam, then the lower token."""
        k = min(k, int(self._starts[1]) * self._vocab_size)
        found = _native.best_continuations(
            *self._arguments, self._starts, self._vocab_size, k, self._renormalize
        )
        scores, beams, tokens = (one.tolist() for one in found[:3])
        return [one for one in zip(scores, beams, tokens, strict=True) if one[0] != NEVER]


class DrawnSums:
    """Continuations drawn without replacement, likelier ones more often: each as likely as e ** its sum.

    values, sums, renormalize: see BestSums;  chain: its temperature and filters choose what can be drawn;
    seed, step: what the random numbers are a function of.
    """

    def __init__(self, values: np.ndarray, sums: np.ndarray, chain: Chain, renormalize: bool, seed: int, step: int):
        self._seed, self._step = seed, step
        parts = [(np.empty(0, np.float32), np.empty(0, np.int64), np.empty(0, np.int64))]
        for beam, (row, total) in enumerate(zip(values, sums, strict=True)):
            row = row[: chain.vocab_size]
            if row.max() == NEVER:
                continue
            ids, logits = chain.candidates(row)
            if renormalize:
                logits = logits - np.float32(_rows.log_sum_exp(logits))
            ids = np.arange(row.size) if ids is None else ids
            parts.append((logits + total, np.full(ids.size, beam), ids))
        self._sums, self._beams, self._tokens = map(np.concatenate, zip(*parts, strict=True))
        self._lottery = _rows.Lottery(self._sums)
        self._drawn: list[Candidate] = []

    def first(self, k: int) -> list[Candidate]:
        """The first k drawn, best first; fewer if there are no more."""
        while len(self._drawn) < k:
            index = self._lottery.draw(rng.uniform(self._seed, 0, self._step, len(self._drawn)))
            if index is None:
                break
            self._drawn.append((float(self._sums[index]), int(self._beams[index]), int(self._tokens[index])))
        return sorted(self._drawn, key=lambda one: -one[0])
