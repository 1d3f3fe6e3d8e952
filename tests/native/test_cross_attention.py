"""Attention to the stored keys and values of another text: sources of any length, shared by any number of sequences."""

from types import SimpleNamespace

import numpy as np
import pytest

from attention_tools import Cache, Heads, as_cached
from forwardpass.backends.native import KV_DTYPES, NativeBackend
from forwardpass.backends.protocol import NormWeights
from kernel_tools import ISAS, OTHER_ISAS, pack_floats, same

HEADS = [Heads(6, 6, 64), Heads(4, 2, 20), Heads(1, 1, 8), Heads(40, 1, 16)]
LAYER = 1


class Crossing:
    """A program that stores a source, and one that attends to it, in layer 1 of a group of two."""

    def __init__(self, isa, heads, kv_dtype, threads=1, blocks=40):
        self.heads, backend = heads, NativeBackend(threads, isa)
        shape = dict(layer=LAYER, group=0, num_kv_heads=heads.kv_heads, head_dim=heads.dim, kv_dtype=kv_dtype)
        self.encoder, self.decoder = backend.program(), backend.program()
        self.kv = self.encoder.buffer(2 * heads.kv_heads * heads.dim)
        self.encoder.store(self.kv, **shape, label="store")
        self.q = self.decoder.buffer(heads.heads * heads.dim)
        self.out = self.decoder.buffer(heads.heads * heads.dim)
        self.decoder.cross_attention(self.q, self.out, num_heads=heads.heads, scale=heads.dim**-0.5, **shape,
                                     label="cross")
        self.cache = Cache(heads, kv_dtype, blocks)

    def store(self, sources, past=None, tables=None):
        """kv rows of each source -> its block table."""
        tables = tables or [self.cache.table(len(one)) for one in sources]
        starts = np.cumsum([0, *map(len, sources)]).astype(np.int32)
        past = np.zeros(len(sources), np.int32) if past is None else np.array(past, np.int32)
        rows = np.concatenate(sources)
        self.encoder.run(len(rows), starts=starts, past=past, tables=square(tables)[None], memory=[self.cache.memory],
                         bound=[(self.kv, rows)])
        return tables

    def __call__(self, queries, tables, lengths, past=None):
        starts = np.cumsum([0, *map(len, queries)]).astype(np.int32)
        rows = np.concatenate(queries)
        out = np.full_like(rows, np.nan)
        self.decoder.run(len(rows), starts=starts, past=np.array(past or [0] * len(queries), np.int32),
                         tables=square(tables)[None], memory=[self.cache.memory], sources=np.array(lengths, np.int32),
                         bound=[(self.q, rows), (self.out, out)])
        return np.split(out, starts[1:-1])


def ints(*values):
    return np.array(values, np.int32)


def square(tables):
    out = np.full((len(tables), max(map(len, tables))), -1, np.int32)
    for row, table in zip(out, tables, strict=True):
        row[: len(table)] = table
    return out


def some(heads, queries, sources, seed=0, size=1.0):
    """Query rows and source rows of these lengths."""
    rng = np.random.default_rng(seed)
    widths = heads.heads * heads.dim, 2 * heads.kv_heads * heads.dim
    return [[(size * rng.standard_normal((n, width))).astype(np.float32) for n in lengths]
            for width, lengths in zip(widths, (queries, sources), strict=True)]


def exact(heads, queries, source, kv_dtype):
    q = queries.astype(np.float64).reshape(len(queries), heads.heads, heads.dim)
    k, v = as_cached(source.reshape(len(source), 2, heads.kv_heads, heads.dim), kv_dtype).transpose(1, 0, 2, 3)
    k, v = (np.repeat(part, heads.heads // heads.kv_heads, 1) for part in (k, v))
    scores = np.einsum("qhd,khd->hqk", q, k) * heads.dim**-0.5
    p = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("hqk,khd->qhd", p / p.sum(-1, keepdims=True), v).reshape(len(queries), -1)


_alone = {}


def alone(isa, heads, kv_dtype, queries, source):
    key = isa, heads, kv_dtype, queries.tobytes(), source.tobytes()
    if key not in _alone:
        run = Crossing(isa, heads, kv_dtype)
        _alone[key] = run([queries], run.store([source]), [len(source)])[0]
    return _alone[key]


QUERIES, SOURCES = [1, 1, 3, 1, 40, 5], [1, 20, 64, 65, 100, 33]


@pytest.mark.parametrize("kv_dtype, bound", [("float32", 3e-6), ("bfloat16", 2.5e-2), ("int8", 2.5e-2)])
@pytest.mark.parametrize("heads", HEADS, ids=str)
def test_float64_agrees(heads, kv_dtype, bound):
    for q, source in zip(*some(heads, QUERIES, SOURCES), strict=True):
        expected, got = exact(heads, q, source, kv_dtype), alone("scalar", heads, kv_dtype, q, source)
        assert np.abs(got - expected).max() <= bound * np.abs(expected).max(), (len(q), len(source))


@pytest.mark.parametrize("isa", OTHER_ISAS)
@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
@pytest.mark.parametrize("heads", HEADS, ids=str)
def test_equals_scalar(heads, kv_dtype, isa):
    for q, source in zip(*some(heads, QUERIES, SOURCES), strict=True):
        assert same(alone(isa, heads, kv_dtype, q, source), alone("scalar", heads, kv_dtype, q, source))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
@pytest.mark.parametrize("heads", HEADS[:2], ids=str)
def test_company_threads_and_the_cuts_of_a_source_change_nothing(heads, kv_dtype, isa):
    queries, sources = some(heads, QUERIES, SOURCES)
    expected = [alone(isa, heads, kv_dtype, q, source) for q, source in zip(queries, sources, strict=True)]
    for threads, members in ((1, [0, 1, 3]), (2, [0, 1, 2, 3, 5]), (2, [4, 1, 1]), (3, [3, 4, 2, 0])):
        run = Crossing(isa, heads, kv_dtype, threads)
        tables = run.store([sources[i] for i in members])
        got = run([queries[i] for i in members], tables, [SOURCES[i] for i in members],
                  past=[7 * i for i in range(len(members))])
        assert all(same(one, expected[i]) for one, i in zip(got, members, strict=True)), (threads, members)
    run = Crossing(isa, heads, kv_dtype, 2)
    table = [run.cache.table(100)]
    for begin, end in ((0, 1), (1, 64), (64, 100)):
        run.store([sources[4][begin:end]], [begin], table)
    assert same(run([queries[4]], table, [100])[0], expected[4])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
def test_a_long_source_is_shared_by_threads(kv_dtype, isa):
    heads = HEADS[1]
    (q, several), (source, short) = some(heads, [1, 3], [400, 10])
    for threads in (1, 2, 4):
        run = Crossing(isa, heads, kv_dtype, threads)
        got = run([q, several], run.store([source, short]), [400, 10])
        assert same(got[0], alone("scalar", heads, kv_dtype, q, source)), threads
        assert same(got[1], alone("scalar", heads, kv_dtype, several, short)), threads


@pytest.mark.parametrize("isa", ISAS)
def test_beams_read_the_same_blocks(isa):
    heads = HEADS[0]
    queries, sources = some(heads, [1] * 6, [30, 70])
    run = Crossing(isa, heads, "bfloat16", 2)
    tables = run.store(sources)
    owners = [0, 0, 0, 1, 1, 0]
    got = run(queries, [tables[i] for i in owners], [len(sources[i]) for i in owners])
    for one, q, i in zip(got, queries, owners, strict=True):
        assert same(one, alone(isa, heads, "bfloat16", q, sources[i]))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
def test_what_lies_behind_a_source_is_not_seen(kv_dtype, isa):
    """A block that held a longer source before; sequences with sources of other lengths beside it."""
    heads = HEADS[1]
    (q,), (source, longer) = some(heads, [2], [21, 64], seed=4)
    run = Crossing(isa, heads, kv_dtype)
    table = run.store([longer * np.float32(1e4)])
    run.store([source], tables=table)
    assert same(run([q], table, [21])[0], alone(isa, heads, kv_dtype, q, source))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
def test_rows_that_see_nothing_are_zero(kv_dtype, isa):
    """Few rows and many (other plans), with neighbours whose bits do not change."""
    heads = HEADS[1]
    for count in (1, 20):
        queries, (source, long) = some(heads, [count, 2, count], [9, 300])
        for threads in (1, 3):
            run = Crossing(isa, heads, kv_dtype, threads)
            first, second = run.store([source, long])
            got = run(queries, [first, [], second], [9, 0, 300])
            assert not got[1].any() and np.isfinite(got[1]).all()
            assert same(got[0], alone(isa, heads, kv_dtype, queries[0], source))
            assert same(got[2], alone(isa, heads, kv_dtype, queries[2], long))
            for table in ([-1], []):
                assert not run([queries[0]], [table], [0])[0].any()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, 3e38])
def test_a_broken_source_does_not_disturb_others(isa, bad):
    heads = HEADS[1]
    queries, (source, broken) = some(heads, [2, 2], [30, 50])
    run = Crossing(isa, heads, "bfloat16")
    got = run(queries, run.store([np.full_like(broken, bad), source]), [50, 30])
    assert same(got[1], alone(isa, heads, "bfloat16", queries[1], source))


# ---------------------------------------------------------------- several steps in one call

class Decoder:
    """Embedding, self-attention in group 0, cross-attention in group 1, logits: random weights."""

    heads, width, vocab = Heads(2, 1, 16), 24, 30

    def __init__(self, isa):
        rng = np.random.default_rng(8)

        def matrix(n, k):
            return pack_floats("F32", (k**-0.5 * rng.standard_normal((n, k))).astype(np.float32)).matrix(), None

        self.backend = NativeBackend(2, isa)
        embed, layers, project = (self.backend.program() for _ in range(3))
        hidden = embed.buffer(self.width)
        embed.embed(hidden, matrix(self.vocab, self.width)[0], label="embed")
        shape = dict(layer=0, num_heads=2, num_kv_heads=1, head_dim=16, scale=0.5, kv_dtype="bfloat16", label="a")
        source, out, qkv, q, mixed = (layers.buffer(width) for width in (24, 24, 64, 32, 32))
        layers.linear(source, qkv, [matrix(64, 24)], norm=None, label="qkv")
        layers.attention(qkv, mixed, group=0, window=0, rotary=None, **shape)
        layers.linear(mixed, source, [matrix(24, 32)], norm=None, mode="add", label="out")
        layers.linear(source, q, [matrix(32, 24)], norm=None, label="q")
        layers.cross_attention(q, mixed, group=1, **shape)
        layers.linear(mixed, source, [matrix(24, 32)], norm=None, mode="add", label="out")
        layers.norm(source, out, NormWeights("rms", 1e-5, np.ones(24, np.float32)), label="norm")
        final, rows, logits = project.buffer(24), project.buffer(24), project.buffer(self.vocab)
        project.gather(final, rows, label="head")
        project.linear(rows, logits, [matrix(self.vocab, 24)], norm=None, label="head")
        parts = (embed, -1, hidden), (layers, source, out), (project, final, logits)
        self.stages = [SimpleNamespace(program=one, source=first, out=last) for one, first, last in parts]
        self.memory = [self.backend.kv_memory("bfloat16", 1, 1, 16, 8) for _ in range(2)]
        encoder = self.backend.program()
        kv = encoder.buffer(32)
        encoder.store(kv, layer=0, group=0, num_kv_heads=1, head_dim=16, kv_dtype="bfloat16", label="store")
        rows = (2 * rng.standard_normal((112, 32))).astype(np.float32)
        encoder.run(112, starts=ints(0, 12, 112), past=ints(0, 0), tables=ints([[5, -1], [0, 7]]),
                    memory=self.memory[1:], bound=[(kv, rows)])

    def cache(self):
        return dict(tables=ints([[1, 3], [2, 0], [4, 6]], [[5, -1], [0, 7], [5, -1]]), memory=self.memory,
                    sources=ints(12, 100, 12))

    def many(self, count):
        nothing = np.zeros(3, np.int32)
        return self.backend.greedy_steps(self.stages, ints(1, 1, 2), nothing, nothing, steps=count,
                                         vocab_size=self.vocab, ends=[ints()] * 3, **self.cache())[0].tolist()

    def one_by_one(self, count):
        ids, out = ints(1, 1, 2), []
        embed, layers, project = self.stages
        for step in range(count):
            hidden, final = np.empty((3, self.width), np.float32), np.empty((3, self.width), np.float32)
            logits, past = np.empty((3, self.vocab), np.float32), np.full(3, step, np.int32)
            embed.program.run(3, ids=ids, bound=[(embed.out, hidden)])
            layers.program.run(3, starts=ints(0, 1, 2, 3), past=past, **self.cache(),
                               bound=[(layers.source, hidden), (layers.out, final)])
            project.program.run(3, wanted=ints(0, 1, 2), bound=[(project.source, final), (project.out, logits)])
            ids = logits.argmax(1).astype(np.int32)
            out.append(ids.tolist())
        return out


@pytest.mark.parametrize("isa", ISAS)
def test_greedy_steps_are_single_steps(isa):
    """Sequences 0 and 2 share a source, 0 and 1 a first token."""
    many = Decoder(isa).many(70)
    assert many == Decoder(isa).one_by_one(70)
    a, b, c = zip(*many, strict=True)
    assert a != b and a != c
    decoder = Decoder("scalar")
    for wrong in (ints(12, 129, 12), ints(12, 100, -1), ints(12, 100), None):
        with pytest.raises(ValueError):
            decoder.backend.greedy_steps(decoder.stages, ints(1, 1, 2), ints(0, 0, 0), ints(0, 0, 0), steps=2,
                                         vocab_size=30, ends=[ints()] * 3, **(decoder.cache() | {"sources": wrong}))


# ---------------------------------------------------------------- arguments

def test_wrong_arguments_are_refused():
    heads = HEADS[1]
    run = Crossing("scalar", heads, "float32", blocks=4)
    (q, other), (source,) = some(heads, [1, 2], [100])
    run.store([source], tables=[[0, 3]])
    run([q], [[0, 3]], [100])
    for table, length, match in ([[0, 3], 129, "too short"], [[0, 3], 2**31 - 1, "too short"], [[0], 65, "too short"],
                                 [[0, 4], 100, "no such KV block"], [[0, -1], 100, "no such KV block"],
                                 [[-1, 3], 1, "no such KV block"], [[2**31 - 1], 1, "no such KV block"],
                                 [[0, 3], -1, "less than no tokens"], [[0, 3], -(2**31), "less than no tokens"]):
        with pytest.raises(ValueError, match=match):
            run([q], [table], [length])
    for lengths in ([], [100, 100]):
        with pytest.raises(ValueError, match="length of each source"):
            run([q], [[0, 3]], lengths)
    with pytest.raises(ValueError, match="length of each source"):
        run.decoder.run(1, starts=np.array([0, 1], np.int32), past=np.zeros(1, np.int32),
                        tables=np.zeros((1, 1, 2), np.int32), memory=[run.cache.memory],
                        bound=[(run.q, q), (run.out, np.empty_like(q))])
    with pytest.raises(ValueError, match="cover"):
        run.decoder.run(2, starts=np.array([0, 1], np.int32), past=np.zeros(1, np.int32), sources=np.ones(1, np.int32),
                        tables=np.zeros((1, 1, 2), np.int32), memory=[run.cache.memory],
                        bound=[(run.q, other), (run.out, np.empty_like(other))])
    for past, tables in (([1], [[0]]), ([64], [[0, 4]]), ([-1], [[0, 3]]), ([2**31 - 1], [[0, 3]])):
        with pytest.raises(ValueError):
            run.store([source[:64]], past, tables)
    with pytest.raises(ValueError, match="another layout"):
        Crossing("scalar", heads, "bfloat16").decoder.run(
            1, starts=np.array([0, 1], np.int32), past=np.zeros(1, np.int32), sources=np.ones(1, np.int32),
            tables=np.zeros((1, 1, 2), np.int32), memory=[run.cache.memory],
            bound=[(run.q, q), (run.out, np.empty_like(q))])


def test_wrong_recordings_are_refused():
    shape = dict(num_kv_heads=2, head_dim=16, kv_dtype="float32", label="x")
    cross = shape | {"num_heads": 4, "scale": 1.0}
    own = cross | {"window": 0, "rotary": None}
    program = NativeBackend(1, "scalar").program()
    qkv, q, out, kv = (program.buffer(width) for width in (128, 64, 64, 64))
    program.attention(qkv, out, layer=0, group=0, **own)
    program.cross_attention(q, out, layer=1, group=1, **cross)
    program.store(kv, layer=1, group=2, **shape)
    for record in (lambda: program.cross_attention(q, out, layer=0, group=0, **cross),
                   lambda: program.store(kv, layer=0, group=1, **shape),
                   lambda: program.attention(qkv, out, layer=0, group=1, **own)):
        with pytest.raises(ValueError, match="not both"):
            record()
    for record in (lambda: program.cross_attention(qkv, out, layer=0, group=1, **cross),
                   lambda: program.cross_attention(q, q, layer=0, group=1, **cross),
                   lambda: program.cross_attention(q, qkv, layer=0, group=1, **cross),
                   lambda: program.cross_attention(q, out, layer=-1, group=1, **cross),
                   lambda: program.cross_attention(q, out, layer=0, group=2**40, **cross),
                   lambda: program.cross_attention(q, out, layer=0, group=1, **(cross | {"num_heads": 3})),
                   lambda: program.store(qkv, layer=0, group=2, **shape),
                   lambda: program.store(kv, layer=0, group=-1, **shape),
                   lambda: program.store(kv, layer=2**40, group=2, **shape),
                   lambda: program.store(kv, layer=0, group=2, **(shape | {"num_kv_heads": 0}))):
        with pytest.raises(ValueError):
            record()
