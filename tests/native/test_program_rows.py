"""Stretches of operations that treat every row alone: a thread takes some rows through all, and no bit changes."""

import numpy as np
import pytest

from forwardpass import _native
from forwardpass.backends.native import NativeBackend
from forwardpass.backends.protocol import NormWeights
from kernel_tools import ISAS, pack_floats, same

HIDDEN, INNER, WORDS = 48, 112, 30
ROWS = 199


class Recorded:
    """A stretch with every kind of operation, a gather, which mixes rows, and a stretch of a gated pair."""

    def __init__(self, format: str, isa: str, threads: int):
        self.rng = np.random.default_rng(5)
        self.program = program = NativeBackend(threads, isa).program()
        self.hidden, self.inner, self.branch, self.out = (program.buffer(w) for w in (HIDDEN, INNER, HIDDEN, HIDDEN))
        norm = NormWeights("layer", 1e-5, self.floats(HIDDEN), self.floats(HIDDEN))
        heads = NormWeights("rms", 1e-5, self.floats(16), None)
        program.embed(self.hidden, self.matrix(format, WORDS, HIDDEN), scale=2.0, label="embed")
        program.positions(self.hidden, self.matrix("F32", WORDS, HIDDEN), offset=1, label="positions")
        program.linear(self.hidden, self.inner, [self.part(format, INNER, HIDDEN)], norm=norm, activation="gelu_erf",
                       label="up")
        program.linear(self.inner, self.branch, [self.part(format, HIDDEN, INNER)], norm=None, label="down")
        program.add_normed(self.branch, self.hidden, norm, scale=0.5, label="add")
        program.norm(self.hidden, self.hidden, norm, label="norm")
        program.head_norm(self.hidden, column=16, heads=2, head_dim=16, norm=heads, each=False, label="heads")
        program.clip(self.hidden, column=0, width=8, limit=0.7, label="clip")
        program.gather(self.hidden, self.out, label="gather")
        gate, up = self.part(format, INNER, HIDDEN), self.part(format, INNER, HIDDEN)
        program.gated(self.out, self.inner, gate, up, norm=None, activation="silu", label="gated")
        program.linear(self.inner, self.out, [self.part(format, 32, INNER), self.part(format, 16, INNER)], norm=None,
                       mode="add", label="last")

    def floats(self, *shape):
        return self.rng.standard_normal(shape).astype(np.float32)

    def matrix(self, format, n, k):
        return pack_floats(format, self.floats(n, k) * 0.2).matrix()

    def part(self, format, n, k):
        return self.matrix(format, n, k), self.floats(n)

    def run(self, ids, positions, bound=()):
        out = np.full((len(ids), HIDDEN), np.nan, np.float32)
        wanted = np.arange(len(ids), dtype=np.int32)
        self.program.run(len(ids), ids=ids, positions=positions, wanted=wanted, bound=[(self.out, out), *bound])
        return out


def inputs():
    rng = np.random.default_rng(6)
    return rng.integers(0, WORDS, ROWS).astype(np.int32), rng.integers(0, WORDS - 1, ROWS).astype(np.int32)


def alone(format):
    """Every row by itself, by the definition."""
    recorded, (ids, positions) = Recorded(format, "scalar", 1), inputs()
    return np.concatenate([recorded.run(ids[r : r + 1], positions[r : r + 1]) for r in range(ROWS)])


@pytest.mark.parametrize("format", ["Q8A", "Q8C", "F32"])
def test_rows_of_a_stretch_are_as_alone(format):
    expected, (ids, positions) = alone(format), inputs()
    assert np.isfinite(expected).all()
    for isa in ISAS:
        for threads in (1, 2, 3):
            recorded = Recorded(format, isa, threads)
            for rows in (ROWS, 33, 64, 97, ROWS):  # memory of an earlier run changes nothing
                assert same(recorded.run(ids[:rows], positions[:rows]), expected[:rows]), (isa, threads, rows)


@pytest.mark.parametrize("bound", ["inner", "branch"])
def test_a_buffer_of_the_caller_is_filled(bound):
    """What would only be passed on within a stretch is the caller's to read if the caller binds it."""
    ids, positions = inputs()
    many, one = Recorded("Q8A", _native.isas()[0], 2), Recorded("Q8A", "scalar", 1)
    width = INNER if bound == "inner" else HIDDEN
    got, expected = (np.full((ROWS, width), np.nan, np.float32) for _ in range(2))
    outs = many.run(ids, positions, [(getattr(many, bound), got)])
    for r in range(ROWS):
        row = one.run(ids[r : r + 1], positions[r : r + 1], [(getattr(one, bound), expected[r : r + 1])])
        assert same(row[0], outs[r])
    assert same(got, expected)


def test_every_operation_of_a_stretch_is_timed():
    recorded = Recorded("Q8A", _native.isas()[0], 1)
    recorded.program._backend.timed = True
    recorded.run(*inputs())
    seconds = recorded.program.timings()
    assert len(seconds) == 11 and all(value > 0 for value in seconds.values())


def test_many_steps_of_many_threads_give_one_answer():
    """Threads take rows as they come: who gets which differs from run to run."""
    recorded, arguments = Recorded("Q8C", _native.isas()[0], 4), inputs()
    first = recorded.run(*arguments)
    for _ in range(50):
        assert same(recorded.run(*arguments), first)


def test_moments_say_where_threads_meet():
    apart, together = Recorded("F32", "scalar", 2), Recorded("Q8A", "scalar", 2)
    assert apart.program.moments() == [0, 0, 1, 2, 3, 3, 3, 3, 4, 5, 6] and apart.program.passed() == []
    assert together.program.moments() == [0] * 8 + [1, 2, 2]
    assert sorted(together.program.passed()) == sorted([together.inner, together.branch])
    ids, positions = inputs()
    out = together.run(ids, positions)
    together.program.clip(together.out, column=0, width=4, limit=9.0, label="clip")  # recorded after moments were asked
    assert together.program.moments() == [0] * 8 + [1, 2, 2, 2] and np.abs(out).max() < 1e4
    out[:, :4] = np.clip(out[:, :4], -9, 9)
    assert same(together.run(ids, positions), out)
