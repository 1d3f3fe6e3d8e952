"""Terms of scores between contents and relative positions: each query with the position of a key, and the reverse."""

import numpy as np
import pytest

from attention_tools import Heads, as_cached, texts
from forwardpass.backends.native import KV_DTYPES, NativeBackend
from forwardpass.models.relative_bias import disentangled_rows
from kernel_tools import ISAS, OTHER_ISAS, same

HEADS = [Heads(1, 1, 8), Heads(4, 4, 64), Heads(3, 3, 20), Heads(2, 2, 80)]
BUCKETS = disentangled_rows(8, 8, 40)  # 16 vectors for distances up to 40
EACH = disentangled_rows(5, 0, 0)  # 10 vectors for distances from -5 to 5
TERMS = {"both": (True, True, BUCKETS), "c2p": (True, False, EACH), "p2c": (False, True, BUCKETS)}
LENGTHS = [1, 2, 17, 40, 64, 65, 130]


def vectors(heads, terms, size=1.0):
    keys, queries, index = TERMS[terms]
    rng = np.random.default_rng(heads.dim)
    both = (size * rng.standard_normal((2, heads.heads, index.max() + 1, heads.dim))).astype(np.float32)
    return both[0] if keys else None, both[1] if queries else None, index


class Recorded:
    def __init__(self, isa, heads, kv_dtype, disentangled, threads=1, window=0, softcap=0.0, **changes):
        self.width = heads.heads * heads.dim
        self.program = NativeBackend(threads, isa).program()
        self.qkv, self.out = self.program.buffer(heads.width), self.program.buffer(self.width)
        arguments = dict(layer=0, num_heads=heads.heads, num_kv_heads=heads.kv_heads, head_dim=heads.dim,
                         scale=(3 * heads.dim) ** -0.5, window=window, kv_dtype=kv_dtype, rotary=None, softcap=softcap,
                         causal=False, disentangled=disentangled, label="attention")
        self.program.attention(self.qkv, self.out, **(arguments | changes))

    def __call__(self, rows):
        starts = np.cumsum([0, *map(len, rows)]).astype(np.int32)
        out = np.full((starts[-1], self.width), np.nan, np.float32)
        self.program.run(len(out), starts=starts, bound=[(self.qkv, np.concatenate(rows)), (self.out, out)])
        return np.split(out, starts[1:-1])


_alone = {}


def alone(isa, heads, kv_dtype, terms, rows, window=0):
    out = []
    for one in rows:
        key = isa, heads, kv_dtype, terms, window, one.tobytes()
        if key not in _alone:
            _alone[key] = Recorded(isa, heads, kv_dtype, vectors(heads, terms), window=window)([one])[0]
        out.append(_alone[key])
    return out


def exact(rows, heads, kv_dtype, disentangled, window=0, softcap=0.0):
    n, (keys, queries, index) = len(rows), disentangled
    q, k, v = rows.astype(np.float64).reshape(n, 3, heads.heads, heads.dim).transpose(1, 2, 0, 3)
    k, v = (as_cached(part, kv_dtype) for part in (k, v))
    distance = np.arange(n)[None] - np.arange(n)[:, None]
    reach = len(index) // 2
    row = index[np.clip(distance, -reach, reach) + reach]
    scores = q @ k.transpose(0, 2, 1)
    if keys is not None:
        scores = scores + np.einsum("hqd,hqkd->hqk", q, keys.astype(np.float64)[:, row])
    if queries is not None:
        scores = scores + np.einsum("hkd,hqkd->hqk", k, queries.astype(np.float64)[:, row])
    scores = scores * (3 * heads.dim) ** -0.5
    if softcap:
        scores = softcap * np.tanh(scores / softcap)
    if window:
        scores = np.where(np.abs(distance) < window, scores, -np.inf)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    return (p / p.sum(-1, keepdims=True) @ v).transpose(1, 0, 2).reshape(n, -1)


@pytest.mark.parametrize("kv_dtype, bound", [("float32", 5e-6), ("bfloat16", 3e-2), ("int8", 3e-2)])
@pytest.mark.parametrize("terms", TERMS)
@pytest.mark.parametrize("heads", HEADS, ids=str)
def test_float64_agrees(heads, terms, kv_dtype, bound):
    tables, plain = vectors(heads, terms), Recorded("scalar", heads, kv_dtype, None)
    for window in (0, 30):
        rows = texts(heads, [1, 17, 70])
        for one, got in zip(rows, alone("scalar", heads, kv_dtype, terms, rows, window), strict=True):
            expected = exact(one, heads, kv_dtype, tables, window)
            assert np.abs(got - expected).max() <= bound * np.abs(expected).max(), (len(one), window)
            assert len(one) == 1 or np.abs(got - plain([one])[0]).max() > 0.1 * np.abs(expected).max()


def test_a_score_by_hand():
    """One dimension, two tokens, scale 1. The first token's own score is 2 * 2. The other key comes after it, so the
    last of index names its vectors: 2 * 3 + 2 * 0.5 + 3 * 0.7 = 9.1. Values are 0 and 1: the answer is its weight.
    """
    keys, queries = np.zeros((1, 4, 1), np.float32), np.zeros((1, 4, 1), np.float32)
    keys[0, 3], queries[0, 3] = 0.5, 0.7
    index = np.array([0, 1, 3], np.int32)
    rows = np.array([[2, 2, 0], [9, 3, 1]], np.float32)
    run = Recorded("scalar", Heads(1, 1, 1), "float32", (keys, queries, index), scale=1.0)
    assert abs(run([rows])[0][0, 0] - 1 / (1 + np.exp(4 - 9.1))) < 1e-6


@pytest.mark.parametrize("isa", OTHER_ISAS)
@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
@pytest.mark.parametrize("terms", TERMS)
@pytest.mark.parametrize("heads", HEADS, ids=str)
def test_equals_scalar(heads, terms, kv_dtype, isa):
    rows = texts(heads, LENGTHS)
    expected = alone("scalar", heads, kv_dtype, terms, rows)
    for one, other in zip(alone(isa, heads, kv_dtype, terms, rows), expected, strict=True):
        assert same(one, other), len(one)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
def test_neighbours_and_threads_change_nothing(kv_dtype, isa):
    heads = HEADS[1]
    rows = texts(heads, LENGTHS if isa != "scalar" else LENGTHS[:5])
    expected = alone(isa, heads, kv_dtype, "both", rows)
    for threads in (1, 3):
        got = Recorded(isa, heads, kv_dtype, vectors(heads, "both"), threads)(rows[::-1])
        assert all(same(a, b) for a, b in zip(got[::-1], expected, strict=True)), threads


@pytest.mark.parametrize("isa", OTHER_ISAS)
def test_parts_of_a_long_text_are_shared_by_threads(isa):
    rows = texts(HEADS[0], [600])
    for window in (0, 50):
        expected = alone("scalar", HEADS[0], "bfloat16", "both", rows, window)[0]
        for threads in (1, 2):
            run = Recorded(isa, HEADS[0], "bfloat16", vectors(HEADS[0], "both"), threads, window)
            assert same(run(rows)[0], expected), (window, threads)


@pytest.mark.parametrize("isa", ISAS)
def test_other_changes_come_after_the_terms(isa):
    heads, tables = HEADS[2], vectors(HEADS[2], "both", 2.0)
    rows = texts(heads, [40], size=2.0)
    got = Recorded(isa, heads, "float32", tables, softcap=1.0)(rows)[0]
    expected = exact(rows[0], heads, "float32", tables, softcap=1.0)
    assert np.abs(got - expected).max() <= 5e-6 * np.abs(expected).max()


def test_wrong_arguments_are_refused():
    heads = Heads(2, 2, 16)
    table, index = np.zeros((2, 6, 16), np.float32), np.array([0, 5, 2], np.int32)
    Recorded("scalar", heads, "float32", (table, table, index))
    wrong = {"index": [(table, table, np.array([0, 6, 1], np.int32)), (table, table, np.array([0, -1, 1], np.int32)),
                       (table, table, index[:2]), (table, table, index[:0]), (None, table, None),
                       (table[:, :0], None, index)],
             "shape": [(table[:1], None, index), (None, np.zeros((2, 6, 15), np.float32), index),
                       (np.zeros((3, 6, 16), np.float32), None, index)]}
    for arguments in wrong["index"] + wrong["shape"]:
        with pytest.raises(ValueError):
            Recorded("scalar", heads, "float32", arguments)
    with pytest.raises(ValueError, match="encoder"):
        Recorded("scalar", heads, "float32", (table, table, index), causal=True)
    with pytest.raises(ValueError, match="encoder"):
        Recorded("scalar", Heads(2, 1, 16), "float32", (table, table, index))
