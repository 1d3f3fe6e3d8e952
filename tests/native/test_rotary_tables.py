"""Rotary encodings that differ from sequence to sequence: two lists of frequencies, or some that follow the length."""

import numpy as np
import pytest

from attention_tools import Cache, Heads, Runner, exact, rotary_table, texts
from forwardpass import _native
from forwardpass.backends.native import KV_DTYPES, NativeBackend
from forwardpass.backends.protocol import NormWeights
from forwardpass.models.rotary import ntk_base, rotary
from kernel_tools import ISAS, OTHER_ISAS, pack_floats, same

HEADS = [Heads(4, 2, 16, 16), Heads(3, 1, 80, 32), Heads(3, 3, 20, 20), Heads(2, 1, 256, 256)]
LONG = {"rope_type": "longrope", "original_max_position_embeddings": 64, "attention_factor": 1.25}
BASE, FACTOR, TRAINED = 10000.0, 3.0, 50
BOUNDS = {"float32": 5e-6, "bfloat16": 2.5e-2, "int8": 3e-2}


def long_table(heads):
    count = heads.rotary // 2
    spec = rotary(heads.rotary, BASE, LONG | {"short_factor": np.linspace(1, 2, count).tolist(),
                                              "long_factor": np.linspace(2, 40, count).tolist()}, positions=256)
    one, other = (_native.RotaryTable(list(f), 1.25) for f in (spec.inv_freq, spec.long_inv_freq))
    return _native.RotaryTable(list(spec.inv_freq), 1.25, list(spec.long_inv_freq)), one, other


def dynamic_table(heads):
    spec = rotary(heads.rotary, BASE, {"rope_type": "dynamic", "factor": FACTOR}, positions=TRAINED)
    return _native.RotaryTable(list(spec.inv_freq), 1.0, [], (spec.ntk.base, spec.ntk.factor, spec.ntk.trained))


def frequencies(heads, length):
    ntk = rotary(heads.rotary, BASE, {"rope_type": "dynamic", "factor": FACTOR}, positions=TRAINED).ntk
    return rotary(heads.rotary, ntk_base(ntk, heads.rotary, length)).inv_freq


def alone(isa, heads, kv_dtype, table, rows, threads=1, window=0, **per_sequence):
    run, cache = Runner(isa, heads, kv_dtype, window, threads, rotary=table), Cache(heads, kv_dtype)
    return run(cache, [(rows, 0, cache.table(len(rows)))], **per_sequence)[0]


# ---------------------------------------------------------------- two lists

@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
@pytest.mark.parametrize("heads", HEADS[:2], ids=str)
def test_each_sequence_has_its_list(heads, kv_dtype, isa):
    both, short, long = long_table(heads)
    rows = texts(heads, [70, 1, 40, 130])
    regime = [0, 1, 1, 0]
    expected = [alone(isa, heads, kv_dtype, (short, long)[r], one) for r, one in zip(regime, rows, strict=True)]
    for threads in (1, 2):
        run, cache = Runner(isa, heads, kv_dtype, 0, threads, rotary=both), Cache(heads, kv_dtype)
        tables = [cache.table(len(one)) for one in rows]
        got = run(cache, [(one, 0, table) for one, table in zip(rows, tables, strict=True)], regime=regime)
        for one, other in zip(got, expected, strict=True):
            assert same(one, other)
    assert same(alone(isa, heads, kv_dtype, both, rows[0]), expected[0])  # an absent regime is 0
    assert not same(alone(isa, heads, kv_dtype, both, rows[0], regime=[1]), expected[0])


# ---------------------------------------------------------------- frequencies that follow the length

@pytest.mark.parametrize("dim", [4, 16, 64, 100])
def test_dynamic_frequencies(dim):
    heads = Heads(1, 1, dim, dim)
    table = dynamic_table(heads)
    for length in (1, TRAINED, TRAINED + 1, 64, 1000, 100000):
        assert table.frequencies(length) == list(frequencies(heads, length)), length
    assert table.frequencies(TRAINED) == list(rotary(dim, BASE).inv_freq)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("heads", HEADS, ids=str)
def test_a_float_cache_gives_the_bits_of_keys_rotated_before(heads, isa):
    rows = texts(heads, [130])[0]
    for lengths, length in ((None, 1), ([0], 1), ([TRAINED], 1), ([130], 130), ([200], 200)):
        table = _native.RotaryTable(list(frequencies(heads, length)), 1.0)
        count = min(130, lengths[0] or 130) if lengths else 130
        got = alone(isa, heads, "float32", dynamic_table(heads), rows[:count], lengths=lengths)
        assert same(got, alone(isa, heads, "float32", table, rows[:count])), lengths


@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
@pytest.mark.parametrize("heads", HEADS, ids=str)
def test_float64_agrees(heads, kv_dtype):
    for count, length in ((40, 40), (130, 130), (130, 300)):
        rows = texts(heads, [count])[0]
        expected = exact(rows, heads, kv_dtype, 0, dynamic=frequencies(heads, length))
        got = alone("scalar", heads, kv_dtype, dynamic_table(heads), rows, lengths=[length])
        assert np.abs(got - expected).max() <= BOUNDS[kv_dtype] * np.abs(expected).max(), (count, length)


@pytest.mark.parametrize("isa", OTHER_ISAS)
@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
@pytest.mark.parametrize("heads", HEADS, ids=str)
def test_equals_scalar(heads, kv_dtype, isa):
    for count, window in ((1, 0), (33, 0), (150, 0), (150, 70)):
        rows = texts(heads, [count])[0]
        for length in (0, 150, 400):
            got, expected = (alone(one, heads, kv_dtype, dynamic_table(heads), rows, window=window, lengths=[length])
                             for one in (isa, "scalar"))
            assert same(got, expected), (count, window, length)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
def test_chunks_threads_and_company_change_nothing(kv_dtype, isa):
    """A prompt in chunks that follow its whole length, beside a text of another length."""
    heads = HEADS[1]
    first, second = texts(heads, [140, 30])
    expected = alone(isa, heads, kv_dtype, dynamic_table(heads), first, lengths=[140])
    other = alone(isa, heads, kv_dtype, dynamic_table(heads), second, lengths=[90])
    for threads in (1, 2):
        run = Runner(isa, heads, kv_dtype, 0, threads, rotary=dynamic_table(heads))
        cache = Cache(heads, kv_dtype)
        one, two = cache.table(140), cache.table(30)
        got, beside = [], []
        for past, count, skip, more in ((0, 60, 0, 10), (60, 3, 10, 1), (63, 2, 11, 18), (65, 75, 29, 1)):
            parts = run(cache, [(first[past : past + count], past, one), (second[skip : skip + more], skip, two)],
                        lengths=[140, 90])
            got.append(parts[0])
            beside.append(parts[1])
        assert same(np.concatenate(got), expected) and same(np.concatenate(beside), other)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
def test_every_step_sees_all_keys_with_its_own_length(kv_dtype, isa):
    """Row t of a text that grew one by one is row t of a run that had length t + 1 from the beginning; short, long and
    short again: nothing stays behind in the table."""
    heads = HEADS[0]
    rows = texts(heads, [330])[0]
    table = dynamic_table(heads)
    run, cache = Runner(isa, heads, kv_dtype, 0, 3, rotary=table), Cache(heads, kv_dtype)
    blocks = cache.table(330)
    run(cache, [(rows[:45], 0, blocks)], lengths=[45])
    got = {t: run(cache, [(rows[t : t + 1], t, blocks)], lengths=[t + 1])[0] for t in range(45, 70)}
    run(cache, [(rows[70:329], 70, blocks)], lengths=[329])
    got[329] = run(cache, [(rows[329:], 329, blocks)], lengths=[330])[0]  # pages spread over the threads
    for t in (45, 49, 50, 51, 69, 329, 46):
        again = alone(isa, heads, kv_dtype, table, rows[: t + 1], lengths=[t + 1])
        assert same(again[-1:], got[t]), t


# ---------------------------------------------------------------- several steps in one call

class Tiny:
    """A model of one layer with random weights: the recorded stages as models/blocks.py would give them."""

    def __init__(self, rotary, heads=HEADS[0], vocab=50, width=32):
        rng = np.random.default_rng(3)
        self.backend, self.vocab = NativeBackend(1, "scalar"), vocab

        def matrix(n, k, size=0.3):
            return pack_floats("F32", rng.standard_normal((n, k)) * size).matrix()

        def stage(record):
            program = self.backend.program()
            source, out = record(program)
            return type("Recorded", (), {"program": program, "source": source, "out": out})

        def embed(program):
            out = program.buffer(width)
            program.embed(out, matrix(vocab, width, 1.0), label="embed")
            return out, out

        def layers(program):
            hidden, out, qkv = program.buffer(width), program.buffer(width), program.buffer(heads.width)
            mixed = program.buffer(heads.heads * heads.dim)
            program.linear(hidden, qkv, [(matrix(heads.width, width), None)], norm=None, label="qkv")
            program.attention(qkv, mixed, layer=1, num_heads=heads.heads, num_kv_heads=heads.kv_heads,
                              head_dim=heads.dim, scale=0.5, window=0, kv_dtype="float32", rotary=rotary, label="a")
            program.linear(mixed, hidden, [(matrix(width, heads.heads * heads.dim), None)], norm=None, mode="add",
                           label="out")
            program.norm(hidden, out, NormWeights("rms", 1e-5, np.ones(width, np.float32)), label="norm")
            return hidden, out

        def project(program):
            hidden, rows, logits = program.buffer(width), program.buffer(width), program.buffer(vocab)
            program.gather(hidden, rows, label="head")
            program.linear(rows, logits, [(matrix(vocab, width), None)], norm=None, label="head")
            return hidden, logits

        self.width = width
        self.stages = [stage(embed), stage(layers), stage(project)]

    def steps(self, count, cache, blocks, **per_sequence):
        """Tokens of `count` steps of two sequences from nothing on."""
        zero = np.zeros(2, np.int32)
        tokens, _ = self.backend.greedy_steps(self.stages, np.array([1, 2], np.int32), zero, zero,
                                              np.array([blocks], np.int32), [cache.memory], count, self.vocab,
                                              [np.array([], np.int32)] * 2, **per_sequence)
        return tokens.tolist()

    def one_by_one(self, count, cache, blocks, per_step):
        ids, out = np.array([1, 2], np.int32), []
        embed, layers, project = self.stages
        for step in range(count):
            position = np.full(2, step, np.int32)
            hidden, final = np.empty((2, self.width), np.float32), np.empty((2, self.width), np.float32)
            logits = np.empty((2, self.vocab), np.float32)
            embed.program.run(2, ids=ids, bound=[(embed.out, hidden)])
            layers.program.run(2, positions=position, starts=np.arange(3, dtype=np.int32), past=position,
                               tables=np.array([blocks], np.int32), memory=[cache.memory],
                               bound=[(layers.source, hidden), (layers.out, final)], **per_step(step))
            project.program.run(2, wanted=np.arange(2, dtype=np.int32),
                                bound=[(project.source, final), (project.out, logits)])
            ids = logits.argmax(1).astype(np.int32)
            out.append(ids.tolist())
        return out


def test_greedy_steps_follow_lengths_and_regimes():
    heads = HEADS[0]

    def ints(*values):
        return np.array(values, np.int32)

    def run(table, first, per_step, count=90):
        caches = Cache(heads, "float32"), Cache(heads, "float32")
        blocks = [caches[0].table(count), caches[0].table(count)]
        model = Tiny(table)
        many = model.steps(count, caches[0], blocks, **first)
        single = model.one_by_one(count, caches[1], blocks, per_step)
        assert many == single and len(many) == count
        return many

    following = run(dynamic_table(heads), {"lengths": ints(1, 1)}, lambda step: {"lengths": ints(step + 1, step + 1)})
    plain = run(dynamic_table(heads), {"lengths": ints(0, 0)}, lambda step: {})
    assert plain[:TRAINED] == following[:TRAINED] and plain != following
    one = run(long_table(heads)[0], {"regime": ints(1, 0)}, lambda step: {"regime": ints(1, 0)})
    other = run(long_table(heads)[0], {}, lambda step: {})
    assert [b for _, b in one] == [b for _, b in other] and [a for a, _ in one] != [a for a, _ in other]


# ---------------------------------------------------------------- arguments

def test_wrong_arguments_are_refused():
    heads = HEADS[0]
    rows = texts(heads, [10])[0]
    table = dynamic_table(heads)
    for wrong, message in (({"lengths": [9]}, "longer than its length"), ({"lengths": [-1]}, "out of range"),
                           ({"lengths": [10, 10]}, "one for each sequence"), ({"regime": [2]}, "0 or 1"),
                           ({"regime": []}, "0 or 1")):
        with pytest.raises(ValueError, match=message):
            alone("scalar", heads, "float32", table, rows, **wrong)
    program = _native.Program(_native.Pool(1), "scalar")
    qkv, out = program.buffer(heads.width), program.buffer(64)
    program.attention(qkv, out, 1, 4, 2, 16, 0.25, 0, 0, table, None, 0.0, None, "attention")
    cache = Cache(heads, "float32")
    with pytest.raises(ValueError, match="slots"):
        program.run(10, None, np.arange(1, 11, dtype=np.int32), None, np.array([0, 10], np.int32),
                    np.zeros(1, np.int32), np.array([[cache.table(10)]], np.int32), [cache.memory],
                    [(qkv, rows), (out, np.empty((10, 64), np.float32))], False)
    plain = rotary_table(heads)
    with pytest.raises(ValueError, match="do not depend"):
        plain.frequencies(3)
    for arguments in (([], 1.0), ([1.0], 1.0, [1.0, 2.0]), ([1.0], 1.0, [], (1e4, 2.0, 8)),
                      ([1.0, 0.1], 1.0, [1.0, 0.1], (1e4, 2.0, 8)), ([1.0, 0.1], 1.0, [], (1e4, 0.5, 8)),
                      ([1.0, 0.1], 1.0, [], (1e4, 2.0, 0))):
        with pytest.raises(ValueError):
            _native.RotaryTable(*arguments)
