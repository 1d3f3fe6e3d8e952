"""Attention without causality: each text sees itself on both sides, and nothing of it is kept."""

import numpy as np
import pytest

from attention_tools import NONE, Changes, Heads, Runner, as_cached, exact, rotary_table, texts, whole
from forwardpass import _native
from forwardpass.backends.native import KV_DTYPES, NativeBackend
from forwardpass.models.relative_bias import by_distance
from kernel_tools import ISAS, OTHER_ISAS, same

HEADS = [Heads(1, 1, 8), Heads(4, 2, 16, 16), Heads(12, 12, 32), Heads(9, 3, 64, 64), Heads(6, 2, 20, 20),
         Heads(40, 1, 16, 16), Heads(3, 1, 256, 64)]
ALL = Changes(softcap=50.0, alibi=True, reach=30)
LENGTHS = [1, 2, 15, 16, 17, 33, 63, 64, 65, 150]


@pytest.mark.parametrize("kv_dtype, bound", [("float32", 4e-6), ("bfloat16", 2.5e-2), ("int8", 2.5e-2)])
@pytest.mark.parametrize("changes", [NONE, Changes(reach=20), ALL], ids=str)
@pytest.mark.parametrize("heads", HEADS, ids=str)
def test_float64_agrees(heads, changes, kv_dtype, bound):
    for window in (0, 1, 7, 70):
        rows = texts(heads, [1, 17, 150])
        for one, got in zip(rows, whole("scalar", heads, kv_dtype, rows, window, changes, causal=False), strict=True):
            expected = exact(one, heads, kv_dtype, window, changes, causal=False)
            assert np.abs(got - expected).max() <= bound * np.abs(expected).max(), (len(one), window)


@pytest.mark.parametrize("isa", OTHER_ISAS)
@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
@pytest.mark.parametrize("changes", [NONE, ALL], ids=str)
@pytest.mark.parametrize("heads", HEADS, ids=str)
def test_equals_scalar(heads, changes, kv_dtype, isa):
    for window in (0, 20):
        rows = texts(heads, LENGTHS)
        expected = whole("scalar", heads, kv_dtype, rows, window, changes, causal=False)
        for one, other in zip(whole(isa, heads, kv_dtype, rows, window, changes, causal=False), expected, strict=True):
            assert same(one, other), (len(one), window)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
@pytest.mark.parametrize("heads", [HEADS[1], HEADS[2], HEADS[5]], ids=str)
def test_neighbours_and_threads_change_nothing(heads, kv_dtype, isa):
    """Any company, in any order, by any number of threads. Scratch memory has held other texts before."""
    rows = texts(heads, LENGTHS)
    for window in (0, 20) if isa != "scalar" else (20,):
        expected = whole(isa, heads, kv_dtype, rows, window, ALL, causal=False)
        orders = (1, [9, 0, 5, 1]), (2, list(range(10))), (3, [2, 4, 9, 9, 3]), (4, [8, 6, 7])
        for threads, order in orders if isa != "scalar" else ((2, [5, 0, 8, 1]),):
            run = Runner(isa, heads, kv_dtype, window, threads, ALL, causal=False)
            run.both_ways([np.full((70, heads.width), np.nan, np.float32)])
            got = run.both_ways([rows[i] for i in order])
            for i, one in zip(order, got, strict=True):
                assert same(one, expected[i]), (window, threads, i)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kv_dtype", ["float32", "bfloat16"])
def test_parts_of_a_long_text_are_shared_by_threads(kv_dtype, isa):
    heads = Heads(4, 1, 16, 16)  # 256 query rows are 64 tokens
    rows = texts(heads, [300, 20, 700] if isa != "scalar" else [130, 20])
    for window in (0, 90):
        expected = whole(isa, heads, kv_dtype, rows, window, causal=False)
        for threads in (2, 3, 5):
            got = Runner(isa, heads, kv_dtype, window, threads, causal=False).both_ways(rows)
            assert all(same(a, b) for a, b in zip(got, expected, strict=True)), (window, threads)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
def test_the_last_row_sees_what_it_sees_with_a_cache(kv_dtype, isa):
    """A text's last row sees all of it in either way: the same bits."""
    heads = HEADS[3]
    rows = texts(heads, [1, 40, 64, 129])
    for one, other in zip(whole(isa, heads, kv_dtype, rows, causal=False), whole(isa, heads, kv_dtype, rows),
                          strict=True):
        assert same(one[-1], other[-1])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
def test_a_window_hides_both_sides(kv_dtype, isa):
    heads = HEADS[1]
    rows = texts(heads, [200])[0]
    changed = rows.copy()
    changed[90:110] = texts(heads, [200], seed=3, size=1e10)[0][90:110]
    for window in (5, 64):
        a, b = (whole(isa, heads, kv_dtype, [one], window, causal=False)[0] for one in (rows, changed))
        near = slice(90 - window + 1, 110 + window - 1)
        assert same(a[: near.start], b[: near.start]) and same(a[near.stop :], b[near.stop :])
        assert not same(a[near.start], b[near.start]) and not same(a[near.stop - 1], b[near.stop - 1])
    own = whole(isa, heads, kv_dtype, [rows], 1, causal=False)[0].reshape(200, heads.heads, heads.dim)
    value = as_cached(rows.reshape(200, -1, heads.dim)[:, heads.heads + heads.kv_heads :], kv_dtype)
    bound = 1e-6 if kv_dtype != "int8" else 6e-3  # weight times value scale is rounded to bfloat16
    assert np.abs(own - np.repeat(value, 2, 1)).max() <= bound * np.abs(value).max()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
@pytest.mark.parametrize("bad", [np.nan, np.inf, 3e38])
def test_a_broken_text_does_not_disturb_others(kv_dtype, isa, bad):
    """Not those that its thread computes next, either: they are shorter and share its memory."""
    heads = HEADS[3]
    rows = texts(heads, [20, 7, 1])
    expected = whole(isa, heads, kv_dtype, rows, causal=False)
    broken = np.full((90, heads.width), bad, np.float32)
    for threads in (1, 2):
        run = Runner(isa, heads, kv_dtype, 0, threads, causal=False)
        got = run.both_ways([broken, rows[0], broken[:33], rows[1], broken[:1], rows[2]])
        for one, other in zip(got[1::2], expected, strict=True):
            assert same(one, other)


@pytest.mark.parametrize("isa", ISAS)
def test_rotary_takes_the_given_positions(isa):
    """Distances alone count: a text that begins at position 40 has nearly the same answer, and other bits."""
    heads = HEADS[1]
    rows = texts(heads, [30])
    run = Runner(isa, heads, "float32", causal=False)
    plain, = run.both_ways(rows)
    shifted, = run.both_ways(rows, np.arange(40, 70, dtype=np.int32))
    other, = run.both_ways(rows, np.arange(0, 60, 2, dtype=np.int32))
    assert np.abs(shifted - plain).max() <= 1e-4 * np.abs(plain).max() < np.abs(other - plain).max()


def test_dynamic_frequencies_are_those_of_the_text():
    """Keys are rotated at once: nothing is cached. Lengths beyond the trained one stretch the frequencies."""
    heads = Heads(2, 1, 16, 16)
    table = _native.RotaryTable([10000.0 ** (-i / 8) for i in range(8)], 1.0, [], (10000.0, 2.0, 32))
    rows = texts(heads, [50])[0]
    run = Runner("scalar", heads, "float32", rotary=table, causal=False)
    out = np.empty((50, 32), np.float32)
    bound = [(run.qkv, rows), (run.out, out)]
    starts, positions = np.array([0, 50], np.int32), np.arange(50, dtype=np.int32)
    for length in (0, 50):
        frequencies = table.frequencies(length) if length else None
        run.program.run(50, None, positions, None, starts, None, None, [], bound, False, None,
                        np.array([length], np.int32))
        expected = exact(rows, heads, "float32", 0, dynamic=frequencies, causal=False)
        assert np.abs(out - expected).max() <= 1e-5 * np.abs(expected).max()
    with pytest.raises(ValueError, match="cache's slots"):
        run.program.run(50, None, positions + 1, None, starts, None, None, [], bound, False)
    with pytest.raises(ValueError, match="longer than its length"):
        run.program.run(50, None, positions, None, starts, None, None, [], bound, False, None, np.array([49], np.int32))


@pytest.mark.parametrize("isa", ISAS)
def test_a_t5_encoder_bias(isa):
    """A bidirectional table through the backend: keys after the query have buckets of their own, no scale."""
    heads = Heads(3, 3, 16)
    bias = by_distance(np.random.default_rng(5).standard_normal((32, 3)).astype(np.float32), True, 128)
    program = NativeBackend(2, isa).program()
    qkv, out = program.buffer(heads.width), program.buffer(48)
    program.attention(qkv, out, layer=0, num_heads=3, num_kv_heads=3, head_dim=16, scale=1.0, window=0,
                      kv_dtype="float32", rotary=None, relative_bias=bias, causal=False, label="attention")
    rows = texts(heads, [300, 20])
    got = np.empty((320, 48), np.float32)
    program.run(320, starts=np.array([0, 300, 320], np.int32), bound=[(qkv, np.concatenate(rows)), (out, got)])
    for one, part in zip(rows, np.split(got, [300]), strict=True):
        n = len(one)
        q, k, v = one.astype(np.float64).reshape(n, 3, 3, 16).transpose(1, 2, 0, 3)
        relative = np.arange(n)[None] - np.arange(n)[:, None]
        scores = q @ k.transpose(0, 2, 1) + bias[:, np.clip(relative, -128, 128) + 128]
        p = np.exp(scores - scores.max(-1, keepdims=True))
        expected = (p / p.sum(-1, keepdims=True) @ v).transpose(1, 0, 2).reshape(n, 48)
        assert np.abs(part - expected).max() <= 1e-5 * np.abs(expected).max()


def test_wrong_arguments_are_refused():
    heads = Heads(4, 2, 16, 16)
    run = Runner("scalar", heads, "float32", causal=False)
    rows, out = texts(heads, [6])[0], np.empty((6, 64), np.float32)
    bound, positions = [(run.qkv, rows), (run.out, out)], np.arange(6, dtype=np.int32)

    def attempt(starts, positions=positions):
        run.program.run(6, None, positions, None, None if starts is None else np.array(starts, np.int32), None, None,
                        [], bound, False)

    attempt([0, 2, 6])
    for starts, match in ((None, "where"), ([0], "where"), ([], "where"), ([0, 5], "cover"), ([1, 6], "cover"),
                          ([0, 7], "cover"), ([0, 3, 3, 6], "empty"), ([0, 7, 6], "empty"), ([0, -1, 6], "empty"),
                          ([0, 2**31 - 1, -(2**31), 6], "empty")):
        with pytest.raises(ValueError, match=match):
            attempt(starts)
    with pytest.raises(ValueError, match="position"):
        attempt([0, 6], None)
    with pytest.raises(ValueError, match="position"):
        attempt([0, 6], positions - 1)
    for wrong in (Heads(5, 2, 16), Heads(0, 1, 16), Heads(4, 0, 16), Heads(1, 1, 1025)):
        with pytest.raises(ValueError, match=r"heads|width"):
            Runner("scalar", wrong, "float32", causal=False)
    program = _native.Program(_native.Pool(1), "scalar")
    qkv, out = program.buffer(3 * 32), program.buffer(32)
    for wrong in ({"window": -1}, {"kv_type": 3}, {"kv_type": -1}, {"out": qkv}, {"heads": 2}):
        arguments = {"qkv": qkv, "out": out, "layer": 0, "heads": 1, "kv_heads": 1, "head_dim": 32, "scale": 1.0,
                     "window": 0, "kv_type": 0, "rotary": None, "slopes": None, "softcap": 0.0, "bias": None,
                     "label": "a", "causal": False}
        with pytest.raises(ValueError):
            program.attention(**(arguments | wrong))
    with pytest.raises(ValueError, match="rotary"):
        Runner("scalar", Heads(2, 1, 16), "float32", rotary=rotary_table(Heads(1, 1, 32, 32)), causal=False)


# ---------------------------------------------------------------- token types

@pytest.mark.parametrize("isa", ISAS)
def test_token_types_are_added(isa):
    from kernel_tools import pack_floats

    table = np.random.default_rng(2).standard_normal((3, 37)).astype(np.float32)
    program = NativeBackend(2, isa).program()
    out = program.buffer(37)
    packed = pack_floats("F32", table)
    program.types(out, packed.matrix(), label="types")
    for types in (np.array([0, 2, 1, 2, 0, 0, 1], np.int32), None):
        rows = np.random.default_rng(3).standard_normal((7, 37)).astype(np.float32)
        expected = rows + table[types if types is not None else np.zeros(7, int)]
        program.run(7, types=types, bound=[(out, rows)])
        assert same(rows, expected)
    for wrong in ([0, 3, 0], [0, -1, 0], [0, 1], [0, 1, 2, 0]):
        with pytest.raises(ValueError, match="token type"):
            program.run(3, types=np.array(wrong, np.int32), bound=[(out, rows[:3])])
    with pytest.raises(ValueError, match="width"):
        program.types(program.buffer(36), packed.matrix(), label="types")
