"""Helpers over one row of logits."""

import numpy as np
import pytest
from scipy.special import logsumexp

from forwardpass import _native

SIZES = [1, 2, 15, 16, 17, 255, 256, 257, 1000, 49152]


def rows(n):
    rng = np.random.default_rng(n)
    yield rng.standard_normal(n).astype(np.float32)
    yield rng.integers(0, 5, n).astype(np.float32)  # many ties
    yield np.zeros(n, np.float32)
    yield np.arange(n, dtype=np.float32)
    yield -np.arange(n, dtype=np.float32)
    masked = rng.standard_normal(n).astype(np.float32)
    masked[rng.random(n) < 0.9] = -np.inf
    yield masked


@pytest.mark.parametrize("n", SIZES)
def test_argmax_takes_the_first_of_equals(n):
    for row in rows(n):
        assert _native.argmax(row) == row.argmax()


@pytest.mark.parametrize("n", SIZES)
def test_top_k_is_a_stable_sort(n):
    for row in rows(n):
        order = np.argsort(-row, kind="stable")
        for k in {1, 2, 5, 50, n // 4 + 1, n - 1, n} & set(range(1, n + 1)):
            assert np.array_equal(_native.top_k(row, k), order[:k]), k


@pytest.mark.parametrize("n", SIZES)
def test_log_sum_exp(n):
    for row in rows(n):
        for shift in (0, 1e4, -1e4):
            moved = (row + np.float32(shift)).astype(np.float32)
            exact = logsumexp(moved.astype(np.float64))
            assert _native.log_sum_exp(moved) == pytest.approx(exact, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("n", [1, 17, 256, 3000])
def test_nan_never_wins(n):
    row = np.random.default_rng(n).standard_normal(n).astype(np.float32)
    row[::2] = np.nan
    numbers = np.where(np.isnan(row), -np.inf, row)
    assert _native.argmax(row) == numbers.argmax()
    expected = np.argsort(-numbers, kind="stable")
    for k in {1, min(4, n), n}:
        assert np.array_equal(_native.top_k(row, k), expected[:k])
    nothing = np.full(n, np.nan, np.float32)
    assert _native.argmax(nothing) == 0 and np.array_equal(_native.top_k(nothing, n), np.arange(n))


def test_infinities():
    assert _native.argmax(np.full(300, -np.inf, np.float32)) == 0
    assert _native.log_sum_exp(np.full(300, -np.inf, np.float32)) == -np.inf
    assert _native.log_sum_exp(np.array([0, np.inf], np.float32)) == np.inf
    row = np.array([1, np.inf, 2, np.inf], np.float32)
    assert _native.argmax(row) == 1 and list(_native.top_k(row, 3)) == [1, 3, 2]


@pytest.mark.parametrize("k", [0, -1, 5])
def test_top_k_out_of_range(k):
    with pytest.raises(ValueError):
        _native.top_k(np.zeros(4, np.float32), k)
