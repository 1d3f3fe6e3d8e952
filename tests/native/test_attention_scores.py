"""Changes of attention scores: soft caps, ALiBi and biases by relative position, alone and together."""

import numpy as np
import pytest

from attention_tools import Cache, Changes, Heads, Runner, exact, in_steps, texts, whole
from forwardpass import _native
from forwardpass.backends.native import KV_DTYPES, NativeBackend
from forwardpass.models.relative_bias import by_distance
from kernel_tools import ISAS, OTHER_ISAS, same

HEADS = [Heads(1, 1, 64), Heads(3, 1, 20, 20), Heads(6, 3, 80, 32), Heads(12, 4, 96, 96), Heads(3, 3, 256, 64),
         Heads(20, 1, 16)]
CHANGES = [Changes(softcap=1.5), Changes(alibi=True), Changes(reach=20), Changes(softcap=50.0, alibi=True, reach=130)]
ALL = CHANGES[3]


@pytest.mark.parametrize("kv_dtype, bound", [("float32", 5e-6), ("bfloat16", 2.5e-2), ("int8", 2.5e-2)])
@pytest.mark.parametrize("changes", CHANGES, ids=str)
@pytest.mark.parametrize("heads", HEADS, ids=str)
def test_float64_agrees(heads, changes, kv_dtype, bound):
    for window in (0, 70):
        rows = texts(heads, [1, 17, 150], size=2.0)
        got = whole("scalar", heads, kv_dtype, rows, window, changes)
        for one, other, unchanged in zip(rows, got, whole("scalar", heads, kv_dtype, rows, window), strict=True):
            expected = exact(one, heads, kv_dtype, window, changes)
            assert np.abs(other - expected).max() <= bound * np.abs(expected).max(), (len(one), window)
            assert len(one) < 150 or window or np.abs(unchanged - other).max() > 0.05 * np.abs(expected).max()


@pytest.mark.parametrize("isa", OTHER_ISAS)
@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
@pytest.mark.parametrize("changes", CHANGES, ids=str)
@pytest.mark.parametrize("heads", HEADS, ids=str)
def test_equals_scalar(heads, changes, kv_dtype, isa):
    """Pages that all rows see, that some see in part, and that windows cut."""
    for window in (0, 70):
        rows = texts(heads, [1, 17, 150], size=2.0)
        expected = whole("scalar", heads, kv_dtype, rows, window, changes)
        for one, other in zip(whole(isa, heads, kv_dtype, rows, window, changes), expected, strict=True):
            assert same(one, other), (len(one), window)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
@pytest.mark.parametrize("heads", [HEADS[1], HEADS[3], HEADS[5]], ids=str)
def test_chunks_and_threads_change_nothing(heads, kv_dtype, isa):
    rows = texts(heads, [150], size=2.0)
    for cuts, threads, window in [([1] * 150, 1, 0), ([64, 65, 20, 1], 2, 100), ([40, 110], 3, 0)]:
        if isa == "scalar" and threads == 1:
            cuts = [149, 1]
        expected = whole(isa, heads, kv_dtype, rows, window, ALL)[0]
        run, cache = Runner(isa, heads, kv_dtype, window, threads, ALL), Cache(heads, kv_dtype)
        assert same(in_steps(run, cache, rows[0], cuts), expected), (cuts, threads, window)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
def test_a_long_context_is_shared_by_threads(kv_dtype, isa):
    heads = Heads(6, 2, 32, 32)
    rows = texts(heads, [643])[0]
    for window in (0, 400):
        expected = whole("scalar", heads, kv_dtype, [rows], window, ALL)[0]
        run, cache = Runner(isa, heads, kv_dtype, window, 3, ALL), Cache(heads, kv_dtype)
        table = cache.table(643)
        run(cache, [(rows[:640], 0, table)])
        for past, count in ((640, 1), (641, 2)):
            assert same(run(cache, [(rows[past : past + count], past, table)])[0], expected[past : past + count])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
def test_the_future_is_invisible(kv_dtype, isa):
    heads = HEADS[2]
    for size in (1e15, 3e38):
        rows = texts(heads, [100])[0]
        changed = rows.copy()
        changed[40:] = texts(heads, [100], seed=2)[0][40:] * np.float32(size / 4)
        a, b = (whole(isa, heads, kv_dtype, [one], 0, ALL)[0] for one in (rows, changed))
        assert same(a[:40], b[:40])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
def test_capped_scores_stay_below_the_cap(kv_dtype, isa):
    """Scores that would be 10^6 apart are twice the cap apart: every weight is at least e^(-2 cap) of any other."""
    heads, changes = Heads(2, 1, 32), Changes(softcap=0.5)
    rows = np.zeros((70, heads.width), np.float32)
    rows[:, :64] = 1e3
    rows[::2, 64:96], rows[1::2, 64:96] = 1e3, -1e3
    rows[::2, 96:] = 1
    got = whole(isa, heads, kv_dtype, [rows], 0, changes)[0]
    assert np.abs(got[69] - 1 / (1 + np.exp(-1))).max() < 5e-3
    assert same(got, whole("scalar", heads, kv_dtype, [rows], 0, changes)[0])


@pytest.mark.parametrize("bidirectional", [False, True])
def test_a_t5_table(bidirectional):
    """[buckets, heads] of a checkpoint through the backend: scores are products plus the bias of the bucket."""
    heads = Heads(3, 3, 16)
    table = np.random.default_rng(5).standard_normal((32, 3)).astype(np.float32)
    bias = by_distance(table, bidirectional, 128)
    backend = NativeBackend(1)
    program = backend.program()
    qkv, out = program.buffer(heads.width), program.buffer(48)
    program.attention(qkv, out, layer=1, num_heads=3, num_kv_heads=3, head_dim=16, scale=1.0, window=0,
                      kv_dtype="float32", rotary=None, relative_bias=bias, label="attention")
    rows, cache = texts(heads, [300])[0], Cache(heads, "float32")
    got = np.empty((300, 48), np.float32)
    program.run(300, starts=np.array([0, 300], np.int32), past=np.zeros(1, np.int32),
                tables=np.array([[cache.table(300)]], np.int32), memory=[cache.memory], bound=[(qkv, rows), (out, got)])
    q, k, v = rows.astype(np.float64).reshape(300, 3, 3, 16).transpose(1, 2, 0, 3)
    relative = np.arange(300)[None] - np.arange(300)[:, None]
    scores = q @ k.transpose(0, 2, 1) + bias[:, np.clip(relative, -128, 128) + 128]
    p = np.exp(np.where(relative > 0, -np.inf, scores) - scores.max(-1, keepdims=True))
    expected = (p / p.sum(-1, keepdims=True) @ v).transpose(1, 0, 2).reshape(300, 48)
    assert np.abs(got - expected).max() <= 1e-5 * np.abs(expected).max()


def test_wrong_arguments_are_refused():
    program = _native.Program(_native.Pool(1), "scalar")
    qkv, out = program.buffer(3 * 2 * 16), program.buffer(32)

    def attention(slopes=None, softcap=0.0, bias=None):
        program.attention(qkv, out, 0, 2, 2, 16, 1.0, 0, 0, None, slopes, softcap, bias, "attention")

    for wrong in ({"slopes": np.ones(3, np.float32)}, {"softcap": -1.0}, {"softcap": float("nan")},
                  {"bias": np.ones((3, 41), np.float32)}, {"bias": np.ones((2, 40), np.float32)},
                  {"bias": np.ones((2, 29), np.float32)}):
        with pytest.raises(ValueError):
            attention(**wrong)
    attention(np.ones(2, np.float32), 1.0, np.ones((2, 31), np.float32))
