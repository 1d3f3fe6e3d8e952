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
    """Index drawn from softmax(row) by inverting its cumulative sum at u in [0, 1). The maximum must be finite.

    Sums of blocks find the block, then only that block is summed step by step: a float64 cumulative sum of the whole
    vocabulary would cost several times as much as the softmax.
    """
    probable = weights(row)
    starts = np.arange(0, row.size, _BLOCK)
    total = np.cumsum(np.add.reduceat(probable, starts, dtype=np.float64))
    target = u * total[-1]
    # side="right": the first sum that exceeds the target, so that an index of weight 0 is never drawn.
    block = int(np.searchsorted(total, target, side="right"))
    begin = int(starts[block])
    inside = np.cumsum(probable[begin : begin + _BLOCK], dtype=np.float64)
    offset = int(np.searchsorted(inside, target - (total[block - 1] if block else 0.0), side="right"))
    if offset == inside.size:  # the two sums of this block were rounded differently: its last possible token
        offset = int(np.flatnonzero(probable[begin : begin + _BLOCK])[-1])
    return begin + offset
