"""log-softmax and the best continuations of beams, against numpy in double precision."""

import numpy as np
import pytest

from forwardpass import _native
from kernel_tools import ISAS, same

INF = np.inf
WIDTHS = [1, 2, 15, 16, 17, 255, 256, 257, 1000, 32128]


def drawn(seed, rows, width, spread=3.0):
    return np.random.default_rng(seed).normal(0, spread, (rows, width)).astype(np.float32)


def int32(values):
    return np.array(values, np.int32)


def log_softmax(values, rows=None, pool=None, isa=None):
    rows = np.arange(len(values), dtype=np.int32) if rows is None else rows
    out = np.full((len(rows), values.shape[1]), np.nan, np.float32)
    return out, _native.log_softmax(pool, values, rows, out, isa)


def best(values, k, *, rows=None, before=None, starts=None, vocabulary=None, normalise=True, pool=None, isa=None):
    rows = np.arange(len(values), dtype=np.int32) if rows is None else rows
    before = np.zeros(len(rows), np.float32) if before is None else before
    starts = int32([0, len(rows)]) if starts is None else starts
    *found, sums = _native.best_continuations(pool, values, rows, before, starts, vocabulary or values.shape[1], k,
                                              normalise, isa)  # fmt: skip
    return [one.reshape(-1, k) for one in found], sums


def exact_log_softmax(values):
    values = values.astype(np.float64)
    most = values.max(axis=1, keepdims=True)
    return values - most - np.log(np.exp(values - most).sum(axis=1, keepdims=True))


def expected(values, before, k):
    """(scores, rows, tokens) of the k greatest sums, float32, the first row and the lowest token first among equals."""
    sums = values + before[:, None]
    rows, tokens = np.divmod(np.argsort(-sums, axis=None, kind="stable")[:k], values.shape[1])
    possible = sums[rows, tokens] > -INF
    return sums[rows, tokens][possible], rows[possible], tokens[possible]


@pytest.mark.parametrize("width", WIDTHS)
def test_log_softmax(width):
    for shift in (0, 500, -500):
        values = drawn(width, 3, width) + np.float32(shift)
        out, sums = log_softmax(values)
        np.testing.assert_allclose(out, exact_log_softmax(values), rtol=1e-6, atol=1.5e-6)
        assert np.allclose(np.exp(out.astype(np.float64)).sum(axis=1), 1, atol=1e-5) and np.isfinite(sums).all()


def test_log_softmax_of_spread_rows():
    values = drawn(3, 4, 3000, 40.0)  # all but a few are nothing beside the greatest
    np.testing.assert_allclose(log_softmax(values)[0], exact_log_softmax(values), rtol=1e-6, atol=1e-6)
    values[:, ::2] = -INF
    out, _ = log_softmax(values)
    assert (out[:, ::2] == -INF).all()
    np.testing.assert_allclose(out[:, 1::2], exact_log_softmax(values)[:, 1::2], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("isa", ISAS)
def test_every_instruction_set_gives_the_same_bits(isa):
    for width in (17, 700, 5000):
        values = drawn(1, 5, width)
        for one, other in zip(log_softmax(values, isa=isa), log_softmax(values, isa="scalar"), strict=True):
            assert same(one, other)
        assert same(best(values, 9, isa=isa)[0][0], best(values, 9, isa="scalar")[0][0])


def test_a_row_is_the_same_in_any_batch_and_order():
    values = drawn(2, 40, 900)
    pool = _native.Pool(3)
    alone = [log_softmax(values[i : i + 1]) for i in range(40)]
    order = np.random.default_rng(0).permutation(40).astype(np.int32)
    for team in (None, pool):
        out, sums = log_softmax(values, order, team)
        for at, row in enumerate(order):
            assert same(out[at], alone[row][0][0]) and same(sums[at], alone[row][1][0])
        found, _ = best(values, 6, rows=order, starts=int32([0, 1, 3, 3, 20, 40]), pool=team)
        for s, (begin, end) in enumerate([(0, 1), (1, 3), (3, 3), (3, 20), (20, 40)]):
            lone, _ = best(np.ascontiguousarray(values[order[begin:end]]), 6) if end > begin else (None, None)
            for one in range(3):
                assert lone is None or same(found[one][s], lone[one][0])
        assert (found[0][2] == -INF).all() and (found[1][2] == -1).all()


@pytest.mark.parametrize("width", WIDTHS)
def test_best_continuations(width):
    values, before = drawn(width, 4, width), np.array([0, -0.5, -1.25, -9], np.float32)
    normal = log_softmax(values)[0]
    for k in {1, 2, 8, 50, 4 * width} & set(range(1, 4 * width + 1)):
        for normalise, rows in ((True, normal), (False, values)):
            (scores, parents, tokens), sums = best(values, k, before=before, normalise=normalise)
            wanted = expected(rows, before, k)
            assert same(scores[0], wanted[0]) and sums.size == (4 if normalise else 0)
            assert parents[0].tolist() == wanted[1].tolist() and tokens[0].tolist() == wanted[2].tolist()


def test_equals_and_impossible_tokens():
    values = np.random.default_rng(5).integers(0, 3, (3, 700)).astype(np.float32)
    values[np.random.default_rng(6).random((3, 700)) < 0.9] = -INF
    values[1] = -INF
    before = np.array([0, 5, -1], np.float32)
    for k in (1, 5, 40, 600, 2100):
        (scores, parents, tokens), _ = best(values, k, before=before, normalise=False)
        wanted = expected(values, before, k)
        count = len(wanted[0])
        assert scores[0, :count].tolist() == wanted[0].tolist() and (scores[0, count:] == -INF).all()
        assert parents[0, :count].tolist() == wanted[1].tolist() and (parents[0, count:] == -1).all()
        assert tokens[0, :count].tolist() == wanted[2].tolist()


@pytest.mark.parametrize("vocabulary", [1, 3, 256, 257, 500])
def test_tokens_beyond_the_vocabulary_count_and_are_not_chosen(vocabulary):
    values = drawn(8, 2, 501)
    values[:, vocabulary:] += 20
    (scores, parents, tokens), _ = best(values, min(7, 2 * vocabulary), vocabulary=vocabulary)
    wanted = expected(log_softmax(values)[0][:, :vocabulary].copy(), np.zeros(2, np.float32), min(7, 2 * vocabulary))
    assert same(scores[0], wanted[0]) and tokens[0].tolist() == wanted[2].tolist()
    assert parents[0].tolist() == wanted[1].tolist()


@pytest.mark.parametrize("value", [np.nan, INF])
@pytest.mark.parametrize("at", [0, 300, 699])
def test_rows_that_are_no_distribution_are_marked(value, at):
    values = drawn(9, 3, 700)
    values[1, at] = value
    _, sums = log_softmax(values)
    assert np.isnan(sums).tolist() == [False, True, False]
    (_, parents, _), sums = best(values, 8, vocabulary=600)
    assert np.isnan(sums).tolist() == [False, True, False] and 1 not in parents
    values[1] = -INF
    assert np.isnan(log_softmax(values)[1]).tolist() == [False, True, False]
    values[1] = np.nan
    assert np.isnan(log_softmax(values)[1]).tolist() == [False, True, False]


@pytest.mark.parametrize(
    "wrong",
    [
        {"rows": int32([0, 3])}, {"rows": int32([-1, 0])}, {"before": np.zeros(2, np.float32)}, {"k": 0}, {"k": 61},
        {"starts": int32([0, 2])}, {"starts": int32([1, 3])}, {"starts": int32([0, 4, 3])}, {"starts": int32([])},
        {"vocabulary": 21}, {"vocabulary": -1},
    ],
)  # fmt: skip
def test_arguments_are_checked(wrong):
    arguments = {"k": 5, **wrong}
    with pytest.raises(ValueError):
        best(drawn(1, 3, 20), **arguments)


def test_log_softmax_checks_its_arguments():
    values = drawn(1, 3, 20)
    for rows, out in ((int32([3]), (1, 20)), (int32([0]), (2, 20)), (int32([0]), (1, 19))):
        with pytest.raises(ValueError):
            _native.log_softmax(None, values, rows, np.empty(out, np.float32))
