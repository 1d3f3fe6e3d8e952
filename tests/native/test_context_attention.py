"""Attention to rows of contexts, by images of any level, and causal attention that keeps nothing."""

import numpy as np
import pytest

from attention_tools import NONE, Changes, Heads, Runner, texts, whole
from forwardpass.backends.native import KV_DTYPES, NativeBackend
from forwardpass.backends.protocol import CONTEXT
from kernel_tools import ISAS, OTHER_ISAS, same

ALL = Changes(softcap=50.0, alibi=True, reach=30)
DIMS = [(2, 8), (3, 40), (2, 64), (1, 72), (2, 80), (1, 160), (1, 512)]
SIZES = [(5, 7), (1, 1), (20, 3), (4, 4), (9, 9)]
CONTEXTS = [77, 0, 1, 64, 20]


class Crossing:
    """Images of a level that attend to contexts, whose keys and values stand from a column on."""

    def __init__(self, isa, heads, dim, kv_dtype, level=0, threads=1, column=3):
        program = self.program = NativeBackend(threads, isa).program()
        self.level, self.column, self.width = level, column, heads * dim
        self.q, self.out = program.buffer(self.width, level), program.buffer(self.width, level)
        self.kv = program.buffer(column + 2 * self.width + 2, CONTEXT)
        program.context_attention(self.q, self.kv, self.out, column=column, num_heads=heads, head_dim=dim,
                                  scale=dim**-0.5, kv_dtype=kv_dtype, label="attention")

    def __call__(self, sizes, q, kv):
        """[rows, width] of each image, [rows, 2 width] of each context -> [rows, width] of each image."""
        out = np.full((sum(len(one) for one in q), self.width), np.nan, np.float32)
        starts = np.cumsum([0] + [len(one) for one in kv]).astype(np.int32)
        wide = np.full((starts[-1], self.column + 2 * self.width + 2), np.nan, np.float32)
        wide[:, self.column : -2] = np.concatenate(kv)
        self.program.run(sum(h * w for h, w in sizes), sizes=np.array(sizes, np.int32), context_starts=starts,
                         bound=[(self.q, np.concatenate(q)), (self.kv, wide), (self.out, out)])
        return np.split(out, np.cumsum([len(one) for one in q])[:-1])


def inputs(width, level=0, sizes=SIZES, contexts=CONTEXTS):
    rng = np.random.default_rng([width, level])
    counts = [-(-h // 2**level) * -(-w // 2**level) for h, w in sizes]
    return ([rng.standard_normal((n, width)).astype(np.float32) for n in counts],
            [rng.standard_normal((n, 2 * width)).astype(np.float32) + 0.3 for n in contexts])


def exact(q, kv, heads):
    n, width = q.shape
    if not len(kv):
        return np.zeros((n, width))
    q, k, v = (one.astype(np.float64).reshape(len(one), heads, -1) for one in (q, kv[:, :width], kv[:, width:]))
    scores = np.einsum("qhd,khd->hqk", q, k) * q.shape[2] ** -0.5
    p = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("hqk,khd->qhd", p / p.sum(-1, keepdims=True), v).reshape(n, width)


BOUNDS = {"float32": 4e-6, "bfloat16": 2.5e-2, "int8": 2e-2}


@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
@pytest.mark.parametrize("heads, dim", DIMS)
def test_float64_agrees(heads, dim, kv_dtype):
    for level in (0, 1):
        q, kv = inputs(heads * dim, level)
        for one, rows, got in zip(q, kv, Crossing(ISAS[1], heads, dim, kv_dtype, level)(SIZES, q, kv), strict=True):
            right = exact(one, rows, heads)
            assert np.abs(got - right).max() <= BOUNDS[kv_dtype] * np.abs(right).max()


def test_bytes_are_near():
    """int8 where nothing is done to scores: peaked and flat softmax, keys far from zero, a row without a number."""
    rng = np.random.default_rng(4)
    for size, rms, most in ((0.05, 0.015, 0.02), (1.0, 0.015, 0.03), (5.0, 0.03, 0.08)):
        q, kv = rng.standard_normal((900, 80)) * size, rng.standard_normal((900, 160))
        kv[:, :80] += rng.standard_normal(80) * 4
        q, kv = q.astype(np.float32), kv.astype(np.float32)
        got, right = Crossing(ISAS[1], 2, 40, "int8", threads=2)([(30, 30)], [q], [kv])[0], exact(q, kv, 2)
        error = got - right
        assert np.abs(error).max() <= most * np.abs(right).max(), size
        assert np.sqrt((error**2).mean()) <= rms * np.sqrt((right**2).mean()), size
    q[7], kv[5, 3], kv[9, 100], kv[:, 150] = np.nan, np.inf, np.nan, 0
    scalar, other = (Crossing(isa, 2, 40, "int8")([(30, 30)], [q], [kv])[0] for isa in ("scalar", ISAS[1]))
    assert same(scalar, other) and not scalar[8:, 70].any()


@pytest.mark.parametrize("isa", OTHER_ISAS)
@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
@pytest.mark.parametrize("heads, dim", DIMS[:5])
def test_equals_scalar(heads, dim, kv_dtype, isa):
    q, kv = inputs(heads * dim)
    expected = Crossing("scalar", heads, dim, kv_dtype)(SIZES, q, kv)
    for one, other in zip(Crossing(isa, heads, dim, kv_dtype)(SIZES, q, kv), expected, strict=True):
        assert same(one, other)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
def test_company_and_threads_change_nothing(kv_dtype, isa):
    heads, dim = 2, 40
    sizes, contexts = [*SIZES, (30, 40)] if isa != "scalar" else SIZES, [*CONTEXTS, 90]
    q, kv = inputs(heads * dim, 0, sizes, contexts[: len(sizes)])
    alone = Crossing(isa, heads, dim, kv_dtype)
    expected = [alone([size], [a], [b])[0] for size, a, b in zip(sizes, q, kv, strict=True)]
    for threads, order in ((1, range(len(sizes))), (2, [len(sizes) - 1, 0, 1]), (3, [1, 1]), (3, [2, 4, 3, 0])):
        run = Crossing(isa, heads, dim, kv_dtype, threads=threads)
        run([(9, 9)], [np.full_like(q[4], np.nan)], [np.full_like(kv[0], np.nan)])
        got = run(*([these[i] for i in order] for these in (sizes, q, kv)))
        assert all(same(one, expected[i]) for one, i in zip(got, order, strict=True)), (threads, order)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
def test_a_context_of_the_rows_themselves_is_attention_to_them(kv_dtype, isa):
    heads, dim = 3, 40
    program = NativeBackend(2, isa).program()
    qkv, out = program.buffer(3 * heads * dim), program.buffer(heads * dim)
    program.attention(qkv, out, layer=0, num_heads=heads, num_kv_heads=heads, head_dim=dim, scale=dim**-0.5, window=0,
                      kv_dtype=kv_dtype, rotary=None, causal=False, label="attention")
    rows = np.concatenate(texts(Heads(heads, heads, dim), [81]))
    own, width = np.empty((81, heads * dim), np.float32), heads * dim
    program.run(81, starts=np.array([0, 81], np.int32), bound=[(qkv, rows), (out, own)])
    crossing = Crossing(isa, heads, dim, kv_dtype)
    assert same(crossing([(9, 9)], [rows[:, :width].copy()], [rows[:, width:].copy()])[0], own)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
@pytest.mark.parametrize("window, changes", [(0, NONE), (20, NONE), (0, ALL)], ids=str)
def test_causal_attention_without_a_cache_is_that_with_one(window, changes, kv_dtype, isa):
    heads = Heads(9, 3, 64, 64) if isa != "scalar" else Heads(2, 1, 16, 16)
    rows = texts(heads, [1, 17, 64, 77, 150])
    expected = whole(isa, heads, kv_dtype, rows, window, changes)
    for threads in (1, 2):
        run = Runner(isa, heads, kv_dtype, window, threads, changes, own=True)
        for one, other in zip(run.both_ways(rows), expected, strict=True):
            assert same(one, other)


def test_wrong_arguments_are_refused():
    program = NativeBackend(1, "scalar").program()
    q = program.buffer(32)
    half, kv, context = program.buffer(32, 1), program.buffer(66), program.buffer(66, CONTEXT)

    def crossing(**changes):
        arguments = {"q": q, "kv": context, "out": half, "column": 2, "num_heads": 2, "head_dim": 16, "scale": 1.0,
                     "kv_dtype": "float32", "label": ""} | changes
        program.context_attention(**arguments)

    out = program.buffer(32)
    crossing(out=out)
    for wrong in ({}, {"out": q}, {"out": out, "kv": kv}, {"out": out, "column": 3}, {"out": out, "column": -1},
                  {"out": out, "num_heads": 1}, {"out": out, "kv": program.buffer(66, 1)}):
        with pytest.raises(ValueError):
            crossing(**wrong)
