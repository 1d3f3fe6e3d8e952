"""Buffers in spaces: images halved, a row for each sequence, contexts; and the operations that mix them."""

import numpy as np
import pytest

from forwardpass.backends.native import NativeBackend
from forwardpass.backends.protocol import CONTEXT, IMAGES, NormWeights
from kernel_tools import ACTIVATIONS, ISAS, pack_floats, same

SIZES = [(5, 3), (1, 1), (8, 8), (2, 7), (17, 1)]
WIDTH = 37


def floats(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def arrays(sizes):
    return np.array(sizes, np.int32)


def rows_at(size, level):
    height, width = (-(-one // 2**level) for one in size)
    return height * width


class Modulated:
    """out = modulate(x), gated into y, with rows added; at a level, by a row for each image that is activated first."""

    def __init__(self, isa, level, threads=1, norm="layer", weights=True, products=False):
        program = self.program = NativeBackend(threads, isa).program()
        self.level = level
        self.weight, self.bias = (floats(WIDTH, seed=1), floats(WIDTH, seed=2)) if weights else (None, None)
        self.norm = NormWeights(norm, 1e-5, self.weight, self.bias) if norm else None
        self.raw, self.by = program.buffer(3 * WIDTH + 5, IMAGES), program.buffer(3 * WIDTH + 5, IMAGES)
        self.x, self.y, between = (program.buffer(WIDTH, level) for _ in range(3))
        program.activate(self.raw, self.by, "silu", label="activate")
        program.modulate(self.x, between, self.norm, by=self.by, shift=3, scale=WIDTH, label="modulate")
        self.matrix = floats(WIDTH, WIDTH, seed=3)
        if products:  # a stretch
            program.linear(between, between, [(pack_floats("Q8C", self.matrix).matrix(), None)], norm=None, label="l")
        program.add_gated(between, self.y, by=self.by, gate=2 * WIDTH + 4, label="gate")
        program.add_rows(self.y, by=self.by, column=1, label="rows")

    def __call__(self, sizes, raw, x, y):
        y = [one.copy() for one in y]
        joined = np.concatenate(y)
        self.program.run(int(sum(h * w for h, w in sizes)), sizes=arrays(sizes),
                         bound=[(self.raw, raw), (self.x, np.concatenate(x)), (self.y, joined)])
        return np.split(joined, np.cumsum([len(one) for one in x])[:-1])


def inputs(sizes, level):
    counts = [rows_at(size, level) for size in sizes]
    x, y = ([floats(count, WIDTH, seed=10 * i + kind) for i, count in enumerate(counts)] for kind in (1, 2))
    return floats(len(sizes), 3 * WIDTH + 5, seed=5), x, y


def exact(run, norm, raw, x, y):
    by = raw.astype(np.float64)
    by = by / (1 + np.exp(-by))
    out = []
    for row, a, b in zip(by, x, y, strict=True):
        a = a.astype(np.float64)
        if norm in ("rms", "layer"):
            a = a - a.mean(1, keepdims=True) * (norm == "layer")
            a = a / np.sqrt((a * a).mean(1, keepdims=True) + 1e-5)
        if norm and run.weight is not None:
            a = a * run.weight + run.bias
        a = a * (1 + row[WIDTH : 2 * WIDTH]) + row[3 : 3 + WIDTH]
        out.append(b + row[2 * WIDTH + 4 : 3 * WIDTH + 4] * a + row[1 : 1 + WIDTH])
    return out


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("norm, weights", [(None, False), ("layer", False), ("rms", True), ("scale", True),
                                           ("scale", False)])
def test_modulation(isa, norm, weights):
    for level in (0, 1, 3):
        raw, x, y = inputs(SIZES, level)
        run = Modulated(isa, level, norm=norm, weights=weights)
        got, scalar = run(SIZES, raw, x, y), Modulated("scalar", level, norm=norm, weights=weights)(SIZES, raw, x, y)
        for one, other, right in zip(got, scalar, exact(run, norm, raw, x, y), strict=True):
            assert same(one, other)
            assert np.abs(one - right).max() <= 1e-5 * max(1, np.abs(right).max())


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("products", [False, True])
@pytest.mark.parametrize("level", [0, 1])
def test_company_and_threads_change_nothing(isa, level, products):
    sizes = [*SIZES, (20, 30)]
    raw, x, y = inputs(sizes, level)
    alone = Modulated(isa, level, products=products)
    expected = [alone([size], raw[i : i + 1], x[i : i + 1], y[i : i + 1])[0] for i, size in enumerate(sizes)]
    for threads in (1, 2, 3):
        for order in (range(len(sizes)), [5, 0, 2, 5], [1, 4]):
            got = Modulated(isa, level, threads, products=products)(
                [sizes[i] for i in order], raw[list(order)], [x[i] for i in order], [y[i] for i in order])
            assert all(same(one, expected[i]) for one, i in zip(got, order, strict=True)), (threads, order)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("activation", ACTIVATIONS[1:])
def test_activate(isa, activation):
    for rows, width in ((1, 1), (3, 16), (7, 37)):
        x = floats(rows, width) * 4
        x[0, 0] = 3
        results = []
        for name, place in ((isa, "new"), (isa, "same"), ("scalar", "new")):
            program = NativeBackend(2, name).program()
            source = program.buffer(width)
            out = source if place == "same" else program.buffer(width)
            program.activate(source, out, activation, label="a")
            results.append(x.copy())
            program.run(rows, bound=[(out, results[-1])] if place == "same" else [(source, x), (out, results[-1])])
        assert same(results[0], results[1]) and same(results[0], results[2])
        assert 0.99 < results[0][0, 0] <= 3


@pytest.mark.parametrize("isa", ISAS)
def test_copies_put_channels_side_by_side(isa):
    program = NativeBackend(2, isa).program()
    a, b, out = program.buffer(5), program.buffer(WIDTH), program.buffer(50)
    add = floats(WIDTH, seed=9)
    program.copy(a, out, label="a")
    program.copy(b, out, column=7, add=add, label="b")
    x, y, to = floats(90, 5), floats(90, WIDTH), np.full((90, 50), 8, np.float32)
    program.run(90, bound=[(a, x), (b, y), (out, to)])
    assert same(to[:, :5].copy(), x) and same(to[:, 7 : 7 + WIDTH].copy(), y + add)
    assert (to[:, 5:7] == 8).all() and (to[:, 7 + WIDTH :] == 8).all()


@pytest.mark.parametrize("isa", ISAS)
def test_products_in_every_space(isa):
    """Rows of contexts and of images are multiplied as rows of tokens are; a step may bring no context rows."""
    matrix = pack_floats("Q8C", floats(48, WIDTH))
    program = NativeBackend(2, isa).program()
    spaces = (0, 2, IMAGES, CONTEXT)
    pairs = [(program.buffer(WIDTH, space), program.buffer(48, space)) for space in spaces]
    for source, out in pairs:
        program.linear(source, out, [(matrix.matrix(), None)], norm=NormWeights("rms", 1e-5, None), label="l")
    plain = NativeBackend(1, isa).program()
    source, out = plain.buffer(WIDTH), plain.buffer(48)
    plain.linear(source, out, [(matrix.matrix(), None)], norm=NormWeights("rms", 1e-5, None), label="l")
    for contexts in ([0, 4, 4, 7, 90, 91], [0] * 6):
        counts = [sum(rows_at(size, 0) for size in SIZES), sum(rows_at(size, 2) for size in SIZES), 5, contexts[-1]]
        x, y = ([floats(count, width, seed=4) for count in counts] for width in (WIDTH, 48))
        bound = [pair for ids, *both in zip(pairs, x, y, strict=True) for pair in zip(ids, both, strict=True)]
        program.run(counts[0], sizes=arrays(SIZES), context_starts=np.array(contexts, np.int32), bound=bound)
        for rows, got in zip(x, y, strict=True):
            if len(rows):
                expected = np.empty_like(got)
                plain.run(len(rows), bound=[(source, rows), (out, expected)])
                assert same(got, expected)


def test_what_a_run_brings_is_checked():
    program = NativeBackend(1, "scalar").program()
    x, half, context = program.buffer(4), program.buffer(4, 1), program.buffer(4, CONTEXT)
    for buffer in (x, half, context):
        program.activate(buffer, buffer, "relu", label="a")

    def attempt(rows=15, sizes=((5, 3),), context_starts=(0, 2), counts=(15, 6, 2), starts=None):
        program.run(rows, sizes=None if sizes is None else arrays(sizes), starts=starts and np.array(starts, np.int32),
                    context_starts=None if context_starts is None else np.array(context_starts, np.int32),
                    bound=[(id, floats(count, 4)) for id, count in zip((x, half, context), counts, strict=True)])

    attempt()
    attempt(starts=[0, 15])
    for match, arguments in {"sizes": {"sizes": None}, "cover": {"rows": 14, "counts": (14, 6, 2)},
                             "out of range": {"sizes": ((-5, -3),)}, "height and width": {"sizes": ((5, 3, 1),)},
                             "too few": {"counts": (15, 5, 2)}, "too few rows": {"counts": (15, 6, 1)},
                             "context": {"context_starts": None}, "context of": {"context_starts": (0, 2, 2)},
                             "row 0": {"context_starts": (1, 2)}, "less than no": {"context_starts": (0, -1)},
                             "starts": {"starts": [0, 5, 15]}, "too many": {"sizes": ((1 << 20, 1 << 20),)}}.items():
        with pytest.raises(ValueError, match=match):
            attempt(**arguments)
    with pytest.raises(ValueError, match="height"):
        attempt(sizes=np.zeros((0, 2)))


def test_what_is_recorded_is_checked():
    program = NativeBackend(1, "scalar").program()
    x, other, half = program.buffer(8), program.buffer(8), program.buffer(8, 1)
    wide, by, context = program.buffer(20), program.buffer(20, IMAGES), program.buffer(8, CONTEXT)
    table = pack_floats("F32", floats(4, 8)).matrix()
    for space in (-3, 16):
        with pytest.raises(ValueError, match="space"):
            program.buffer(8, space)
    wrong = [lambda: program.modulate(x, half, None, by=by, shift=0, scale=8, label=""),
             lambda: program.modulate(x, other, None, by=wide, shift=0, scale=8, label=""),
             lambda: program.modulate(x, other, None, by=by, shift=0, scale=13, label=""),
             lambda: program.modulate(x, other, None, by=by, shift=-1, scale=0, label=""),
             lambda: program.modulate(x, wide, None, by=by, shift=0, scale=0, label=""),
             lambda: program.add_gated(x, x, by=by, gate=0, label=""),
             lambda: program.add_gated(x, other, by=by, gate=13, label=""),
             lambda: program.add_rows(wide, by=by, column=1, label=""),
             lambda: program.add_rows(by, by=by, column=0, label=""),
             lambda: program.activate(x, half, "relu", label=""),
             lambda: program.activate(x, wide, "relu", label=""),
             lambda: program.copy(x, wide, column=13, label=""),
             lambda: program.copy(x, wide, column=-1, label=""),
             lambda: program.copy(x, x, label=""),
             lambda: program.copy(x, wide, add=np.zeros(7, np.float32), label=""),
             lambda: program.norm(x, context, None, label=""),
             lambda: program.gather(half, half, label=""),
             lambda: program.embed(half, table, label="")]
    for attempt in wrong:
        with pytest.raises(ValueError):
            attempt()
