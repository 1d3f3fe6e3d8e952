"""The operations over a whole vocabulary that decoding needs. Every row is float32 [n] and is only read."""

from __future__ import annotations

import numpy as np

from forwardpass import _native

_BLOCK = 256


def argmax(row: np.ndarray) -> int:
    """Index of the largest value; the lowest index among equals; the first NaN if there is one."""
    return int(row.argmax())


def weights(row: np.ndarray) -> np.ndarray:
    """exp(row - max), float32: softmax without the division. The largest value must be finite."""
    return _native.softmax_weights(row)


def log_sum_exp(row: np.ndarray) -> float:
    """log(sum(exp(row))): what turns a logit into a log-probability by subtraction."""
    return _native.log_sum_exp(row)


def kth_largest(row: np.ndarray, k: int) -> float:
    """The k-th largest value, 1 <= k <= n."""
    return float(row[_native.top_k(row, k)[-1]])


def top_k_indices(row: np.ndarray, k: int) -> np.ndarray:
    """Indices of the k largest values, largest first, the lower index first among equals. int32 [min(k, n)]."""
    return _native.top_k(row, min(k, row.size)) if k and row.size else np.empty(0, np.int32)


def draw(row: np.ndarray, u: float) -> int:
    """Index drawn from softmax(row) by inverting its cumulative sum at u in [0, 1). The maximum must be finite."""
    return _invert(weights(row), u)[0]


def _invert(probable: np.ndarray, u: float, sums: np.ndarray | None = None) -> tuple[int, np.ndarray]:
    """The index at u in [0, 1) of the cumulative sum of weights, not all 0; and the sums of their blocks.

    Sums of blocks find the block, then only that block is summed step by step: a float64 cumulative sum of the whole
    vocabulary would cost several times as much as the softmax.
    """
    if sums is None:
        sums = np.add.reduceat(probable, np.arange(0, probable.size, _BLOCK), dtype=np.float64)
    total = np.cumsum(sums)
    target = u * total[-1]
    # side="right": the first sum that exceeds the target, so that an index of weight 0 is never drawn.
    block = int(np.searchsorted(total, target, side="right"))
    begin = block * _BLOCK
    inside = np.cumsum(probable[begin : begin + _BLOCK], dtype=np.float64)
    offset = int(np.searchsorted(inside, target - (total[block - 1] if block else 0.0), side="right"))
    if offset == inside.size:  # the two sums of this block were rounded differently: its last possible token
        offset = int(np.flatnonzero(probable[begin : begin + _BLOCK])[-1])
    return begin + offset, sums


class Lottery:
    """Draws from softmax(row) without replacement: after each draw from what is left. row: float32 [n]."""

    def __init__(self, row: np.ndarray):
        self._row = row.copy()
        self._weights: np.ndarray | None = None
        self._sums: np.ndarray | None = None

    def draw(self, u: float) -> int | None:
        """The index at u in [0, 1) of those that were not drawn yet; None if all others are -infinity."""
        if self._sums is None or not self._sums.any():  # at first, and where all others are far less likely
            if not self._row.size or self._row.max() == -np.inf:
                return None
            self._weights, self._sums = weights(self._row), None
        index, self._sums = _invert(self._weights, u, self._sums)
        self._row[index] = -np.inf
        self._weights[index] = 0
        begin = index - index % _BLOCK
        self._sums[begin // _BLOCK] = self._weights[begin : begin + _BLOCK].sum(dtype=np.float64)
        return index
