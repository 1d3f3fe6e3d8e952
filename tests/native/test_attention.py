"""Attention with its cache: every cache type, instruction set, number of threads and way to cut the work."""

import itertools

import numpy as np
import pytest

from attention_tools import HEADS, Cache, Heads, Runner, as_cached, exact, in_steps, texts, whole
from forwardpass.backends.native import KV_DTYPES
from kernel_tools import ISAS, OTHER_ISAS, same


@pytest.mark.parametrize("kv_dtype, bound", [("float32", 3e-6), ("bfloat16", 2.5e-2), ("int8", 2.5e-2)])
@pytest.mark.parametrize("heads", HEADS, ids=str)
def test_float64_agrees(heads, kv_dtype, bound):
    """float32 keeps float32's precision; the others round queries and weights to bfloat16 on the way."""
    for window in (0, 1, 7, 64, 100):
        rows = texts(heads, [1, 17, 150])
        for one, got in zip(rows, whole("scalar", heads, kv_dtype, rows, window), strict=True):
            expected = exact(one, heads, kv_dtype, window)
            assert np.abs(got - expected).max() <= bound * np.abs(expected).max(), (len(one), window)


# ---------------------------------------------------------------- the same bits, however it is done

@pytest.mark.parametrize("isa", OTHER_ISAS)
@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
@pytest.mark.parametrize("heads", HEADS, ids=str)
def test_equals_scalar(heads, kv_dtype, isa):
    for window in (0, 7, 100):
        rows = texts(heads, [1, 2, 5, 33, 64, 65, 200])
        expected = whole("scalar", heads, kv_dtype, rows, window)
        for one, other in zip(whole(isa, heads, kv_dtype, rows, window), expected, strict=True):
            assert same(one, other), (len(one), window)


# (rows of each step, threads, window)
CUTS = [([1] * 9 + [191], 2, 0), ([63, 1, 1, 1, 134], 1, 100), ([64, 64, 72], 2, 0), ([130, 1, 1, 68], 3, 100),
        ([16, 17, 33, 100, 34], 2, 0)]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
@pytest.mark.parametrize("heads", [HEADS[1], HEADS[2], HEADS[4], HEADS[6]], ids=str)
def test_chunks_and_threads_change_nothing(heads, kv_dtype, isa):
    rows = texts(heads, [200])
    for cuts, threads, window in CUTS if isa != "scalar" else CUTS[:2]:
        expected = whole(isa, heads, kv_dtype, rows, window)[0]
        run, cache = Runner(isa, heads, kv_dtype, window, threads), Cache(heads, kv_dtype)
        assert same(in_steps(run, cache, rows[0], cuts), expected), (cuts, threads, window)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
def test_a_long_context_is_shared_by_threads(kv_dtype, isa):
    """A few rows after 640 positions: the pages are spread over the threads."""
    heads = Heads(4, 2, 32, 32)
    rows = texts(heads, [646])[0]
    for window in (0, 400):
        expected = whole("scalar", heads, kv_dtype, [rows], window)[0]
        cache = Cache(heads, kv_dtype)
        table = cache.table(646)
        Runner(isa, heads, kv_dtype, window)(cache, [(rows[:640], 0, table)])
        for threads in (1, 2, 3, 4):
            run, past = Runner(isa, heads, kv_dtype, window, threads), 640
            for count in (1, 3, 2):
                got = run(cache, [(rows[past : past + count], past, table)])[0]
                assert same(got, expected[past : past + count]), (threads, window, count)
                past += count


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
def test_sequences_together_equal_each_alone(kv_dtype, isa):
    """Prompts, single rows and continuations of many lengths in one batch, by one thread and by two."""
    heads = HEADS[2]
    pasts, lengths = [0, 0, 63, 64, 65, 130, 0, 200], [70, 1, 2, 1, 5, 1, 33, 1]
    rows = texts(heads, [p + n for p, n in zip(pasts, lengths, strict=True)])
    expected = whole(isa, heads, kv_dtype, rows)
    for members in ([0, 1, 2, 3, 4, 5, 6, 7], [1, 3, 5, 7], [7, 2], [6, 0]) if isa != "scalar" else ([1, 2, 3], [6, 4]):
        for threads in (2, 1) if isa != "scalar" else (2,):
            run, cache = Runner(isa, heads, kv_dtype, 0, threads), Cache(heads, kv_dtype)
            tables = {i: cache.table(len(rows[i])) for i in members}
            for i in members:
                if pasts[i]:
                    run(cache, [(rows[i][: pasts[i]], 0, tables[i])])
            got = run(cache, [(rows[i][pasts[i] :], pasts[i], tables[i]) for i in members])
            for i, one in zip(members, got, strict=True):
                assert same(one, expected[i][pasts[i] :]), (members, threads, i)


@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
def test_a_cache_written_by_one_isa_is_read_by_another(kv_dtype):
    heads = HEADS[3]
    rows = texts(heads, [160])[0]
    expected = whole("scalar", heads, kv_dtype, [rows])[0]
    cache, past, got = Cache(heads, kv_dtype), 0, []
    table = cache.table(160)
    for isa, count in zip(itertools.cycle(ISAS), [40, 1, 30, 3, 60, 1, 1, 24], strict=False):
        got += Runner(isa, heads, kv_dtype)(cache, [(rows[past : past + count], past, table)])
        past += count
    assert same(np.concatenate(got), expected)


# ---------------------------------------------------------------- what must not be seen

@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
def test_the_future_is_invisible(kv_dtype, isa):
    heads = HEADS[2]
    for length, n in [(100, 40), (33, 32), (65, 64), (20, 19)]:
        rows = texts(heads, [length])[0]
        changed = rows.copy()
        changed[n:] = texts(heads, [length], seed=2, size=1e15)[0][n:]
        a, b = (whole(isa, heads, kv_dtype, [one])[0] for one in (rows, changed))
        assert same(a[:n], b[:n]) and not same(a[n:], b[n:])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
def test_a_window_hides_the_past(kv_dtype, isa):
    """Rows whose window has moved past the changed ones are the same; a window of one sees its own value alone."""
    heads = HEADS[1]
    rows = texts(heads, [200])[0]
    changed = rows.copy()
    changed[:50] = texts(heads, [200], seed=3, size=1e10)[0][:50]
    for window in (5, 64, 100):
        a, b = (whole(isa, heads, kv_dtype, [one], window)[0] for one in (rows, changed))
        assert same(a[49 + window :], b[49 + window :]) and not same(a[48 + window], b[48 + window])
    own = whole(isa, heads, kv_dtype, [rows], 1)[0].reshape(200, heads.heads, heads.dim)
    value = as_cached(rows.reshape(200, -1, heads.dim)[:, heads.heads + heads.kv_heads :], kv_dtype)
    bound = 1e-6 if kv_dtype != "int8" else 6e-3  # weight times value scale is rounded to bfloat16
    assert np.abs(own - np.repeat(value, 2, 1)).max() <= bound * np.abs(value).max()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
@pytest.mark.parametrize("bad", [np.nan, np.inf, 3e38])
def test_a_broken_sequence_does_not_disturb_others(kv_dtype, isa, bad):
    heads = HEADS[2]
    rows = texts(heads, [20, 70, 1])
    expected = whole(isa, heads, kv_dtype, rows)
    broken = np.full((33, heads.width), bad, np.float32)
    for threads in (1, 2):
        run, cache = Runner(isa, heads, kv_dtype, 0, threads), Cache(heads, kv_dtype)
        got = run(cache, [(one, 0, cache.table(len(one))) for one in [rows[0], broken, rows[1], broken[:1], rows[2]]])
        for one, other in zip(got[::2], expected, strict=True):
            assert same(one, other)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
def test_zero_and_extreme_rows(kv_dtype, isa):
    """All zero: the mean of zero values. Scores so far apart that one position takes everything: its value."""
    heads = Heads(2, 1, 32)
    assert not whole(isa, heads, kv_dtype, [np.zeros((70, heads.width), np.float32)])[0].any()
    rows = np.zeros((70, heads.width), np.float32)
    rows[:, 0] = rows[:, 32] = 1e3
    rows[3, 64] = 1e3  # the key of position 3
    rows[:, 96:] = np.arange(70)[:, None] % 8
    got = whole(isa, heads, kv_dtype, [rows])[0]
    assert np.abs(got[3:] - 3).max() <= 0.02
    assert same(got, whole("scalar", heads, kv_dtype, [rows])[0])


# ---------------------------------------------------------------- arguments

def test_wrong_arguments_are_refused():
    heads = Heads(4, 2, 16, 16)
    run, cache = Runner("scalar", heads, "float32"), Cache(heads, "float32", blocks=3)
    rows = texts(heads, [70])[0]
    with pytest.raises(ValueError, match="no such KV block"):
        run(cache, [(rows, 0, [0, 3])])
    with pytest.raises(ValueError, match="too short"):
        run(cache, [(rows, 0, [0])])
    with pytest.raises(ValueError, match="too short"):
        run(cache, [(rows, 60, [0, 1])])
    with pytest.raises(ValueError, match="empty"):
        run(cache, [(rows[:0], 0, [0]), (rows, 0, [1, 2])])
    with pytest.raises(ValueError, match="another layout"):
        run(Cache(heads, "bfloat16"), [(rows, 0, [0, 1])])
    with pytest.raises(ValueError, match="heads"):
        Runner("scalar", Heads(5, 2, 16), "float32")
