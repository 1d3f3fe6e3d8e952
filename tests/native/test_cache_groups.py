"""Groups of layers with memory of their own: which block each reads, and which entries of a table nobody reads."""

import numpy as np
import pytest

from attention_tools import Cache, Heads, Runner, texts, whole
from forwardpass import _native
from forwardpass.backends.native import KV_DTYPES, NativeBackend
from kernel_tools import ISAS, same

HEADS = Heads(4, 2, 32, 32)


def poisoned(cache, kv_dtype):
    """A block of values that no sum may touch."""
    block = cache.table(64)
    Runner("scalar", HEADS, kv_dtype)(cache, [(np.full((64, HEADS.width), np.nan, np.float32), 0, block)])
    return block[0]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
def test_pages_before_the_window_are_never_read(kv_dtype, isa):
    """All three ways to share the work: few rows after a long context, few after short ones, and a chunk."""
    length, window = 760, 300
    rows = texts(HEADS, [length])[0]
    expected = whole("scalar", HEADS, kv_dtype, [rows], window)[0]
    cache = Cache(HEADS, kv_dtype)
    bad = poisoned(cache, kv_dtype)
    table, past = cache.table(length), 0
    for count, threads in ((500, 1), (1, 4), (2, 4), (90, 3), (1, 1), (40, 2), (126, 2)):
        first = max(0, past - window + 1) // 64
        for gone in (bad, -1):
            seen = [gone] * first + table[first:]
            got = Runner(isa, HEADS, kv_dtype, window, threads)(cache, [(rows[past : past + count], past, seen)])[0]
            assert same(got, expected[past : past + count]), (past, count, threads, gone)
        past += count
    assert past == length and first > 3


@pytest.mark.parametrize("isa", ISAS)
def test_each_group_reads_its_own_memory(isa):
    """Two groups of different windows and different numbers of blocks, a layer of each in one program."""
    backend = NativeBackend(2, isa)
    rows = texts(HEADS, [150])[0]
    program = backend.program()
    qkv, first, second = program.buffer(HEADS.width), program.buffer(128), program.buffer(128)
    shape = dict(num_heads=4, num_kv_heads=2, head_dim=32, scale=32**-0.5, kv_dtype="bfloat16", rotary=None, label="a")
    program.attention(qkv, first, layer=1, group=0, window=0, **shape)
    program.attention(qkv, second, layer=0, group=1, window=20, **shape)
    memory = [backend.kv_memory("bfloat16", 2, 2, 32, 8), backend.kv_memory("bfloat16", 1, 2, 32, 4)]
    tables = np.array([[[7, 2, 5]], [[1, 3, 0]]], np.int32)
    outs = [np.empty((150, 128), np.float32) for _ in range(2)]
    past = 0
    for count in (70, 79, 1):
        out = [np.empty((count, 128), np.float32) for _ in range(2)]
        program.run(count, starts=np.array([0, count], np.int32), past=np.array([past], np.int32), tables=tables,
                    memory=memory, bound=[(qkv, rows[past : past + count]), *zip((first, second), out, strict=True)])
        for whole_out, part in zip(outs, out, strict=True):
            whole_out[past : past + count] = part
        past += count
        tables[1, 0, : (past - 19) // 64] = -1
    plain = Heads(4, 2, 32)
    for got, window in zip(outs, (0, 20), strict=True):
        assert same(got, whole(isa, plain, "bfloat16", [rows], window)[0])


def test_a_released_block_is_cleared_before_use():
    memory = _native.KvMemory(KV_DTYPES.index("float32"), 2, 2, 32, 4)
    memory.release(1)
    memory.clear(1)
    for wrong in (-1, 4):
        for call in (memory.release, memory.clear, lambda block: memory.copy(0, block), lambda b: memory.copy(b, 0)):
            with pytest.raises(ValueError, match="no such KV block"):
                call(wrong)


def test_wrong_tables_and_memories_are_refused():
    run = Runner("scalar", HEADS, "float32", 100)
    cache = Cache(HEADS, "float32", blocks=5)
    rows = texts(HEADS, [300])[0]
    for past, table in ((200, [-1, 0, 1, 2, 3]), (199, [-1, 0, 1, 2, 3])):
        run(cache, [(rows[past:], past, table)])
    for past, table in ((162, [-1, 0, 1, 2, 3]), (200, [-2, 0, 1, 2, 3]), (200, [5, 0, 1, 2, 3]),
                        (200, [-1, -1, 1, 2, 3]), (200, [-1, 0, 1, 2, -1]), (200, [-1, 0, 1, 2, 2**31 - 1])):
        with pytest.raises(ValueError, match="no such KV block"):
            run(cache, [(rows[past:], past, table)])
    program, memory = run.program, cache.memory
    starts, past, tables = np.array([0, 1], np.int32), np.zeros(1, np.int32), np.zeros((1, 1, 1), np.int32)
    bound = [(run.qkv, rows[:1]), (run.out, np.empty((1, 128), np.float32))]

    def attempt(tables, memories):
        program.run(1, None, np.zeros(1, np.int32), None, starts, past, tables, memories, bound, False)

    attempt(tables, [memory])
    for wrong in (np.zeros((2, 1, 1), np.int32), np.zeros((0, 1, 1), np.int32)):
        with pytest.raises(ValueError, match="one memory and one block table for each group"):
            attempt(wrong, [memory])
    with pytest.raises(ValueError, match="one memory and one block table for each group"):
        attempt(tables, [])
    with pytest.raises(ValueError, match="number of sequences"):
        attempt(np.zeros((1, 2, 1), np.int32), [memory])
    with pytest.raises(ValueError, match="too short"):
        attempt(np.zeros((1, 1, 0), np.int32), [memory])


def record(*groups, kv_heads=(2, 2)):
    """One layer in each of these groups."""
    program = NativeBackend(1, "scalar").program()
    for group, kv in zip(groups, kv_heads, strict=False):
        qkv, out = program.buffer((4 + 2 * kv) * 32), program.buffer(128)
        program.attention(qkv, out, layer=0, group=group, num_heads=4, num_kv_heads=kv, head_dim=32, scale=1.0,
                          window=0, kv_dtype="float32", rotary=None, label="a")
    return program


def test_groups_have_numbers_and_one_layout():
    """A group may be recorded before one of a lower number, but none may stay away."""
    for groups in ((0, 0), (0, 1), (1, 0)):
        record(*groups, kv_heads=(2, 1) if 1 in groups else (2, 2))
    for wrong in (-1, 1 << 16):
        with pytest.raises(ValueError, match="a group below zero"):
            record(wrong)
    program, zeros = record(0, 2), np.zeros(1, np.int32)
    memory = [NativeBackend(1, "scalar").kv_memory("float32", 1, 2, 32, 1) for _ in range(3)]
    with pytest.raises(ValueError, match="without layers"):
        program.run(1, positions=zeros, starts=np.array([0, 1], np.int32), past=zeros,
                    tables=np.zeros((3, 1, 1), np.int32), memory=memory)
    with pytest.raises(ValueError, match="one layout"):
        record(0, 0, kv_heads=(2, 1))
