"""Memory of buffers that share their places: nobody's rows lie where somebody else's are still needed."""

import itertools

import numpy as np
import pytest

from forwardpass import config
from forwardpass.errors import CapacityError
from forwardpass.models.arena import Planner, rows_by_level


class Program:
    """Records what a planner passes on, and keeps the memory of a run. Linear operations run together where they follow
    one another."""

    def __init__(self, *passed):
        self.widths, self.operations, self.memory, self.kept = [], [], {}, passed

    def buffer(self, width, space=0):
        self.widths.append(width)
        return len(self.widths) - 1

    def moments(self):
        found = [0]
        for a, b in itertools.pairwise(self.operations):
            found.append(found[-1] + (a[0] != "linear" or b[0] != "linear"))
        return found

    def passed(self):
        return self.kept

    def run(self, rows, *, sizes, bound, **facts):
        self.rows, self.facts, self.memory = rows, facts, dict(bound)

    def __getattr__(self, name):
        return lambda *buffers, **facts: self.operations.append((name, buffers, facts))


def places(planner):
    """buffer -> (first byte, end) of the last run."""
    return {buffer: (array.ctypes.data, array.ctypes.data + array.nbytes)
            for buffer, array in planner.program.memory.items()}


def apart(a, b):
    return a[1] <= b[0] or b[1] <= a[0]


def test_levels_have_half_the_lines_and_columns_rounded_up():
    assert rows_by_level(np.array([[9, 7], [4, 4], [1, 1]], np.int32), 4) == (80, 25, 8, 4)


def test_a_chain_of_convolutions_needs_two_images():
    planner = Planner(Program())
    source = planner.bound(3)
    buffers = [planner.buffer(16) for _ in range(6)]
    for before, after in itertools.pairwise([source, *buffers]):
        planner.conv(before, after, (None, None), size=3, label="conv")
    size = np.array([[8, 8]], np.int32)
    assert planner.bytes(rows_by_level(size, 1)) == 2 * 64 * 16 * 4
    planner.run(size, 1, {source: np.zeros((64, 3), np.float32)})
    found = places(planner)
    assert all(apart(found[a], found[b]) for a, b in itertools.pairwise(buffers))
    assert all(one[0] % 64 == 0 for buffer, one in found.items() if buffer != source)


@pytest.mark.parametrize("passed", [(), (1, 2)])
def test_operations_of_one_moment_share_nothing(passed):
    """A thread may be at the last of them while another is at the first. What they only pass on has no place."""
    planner = Planner(Program(*passed))
    a, b, c, d = (planner.buffer(8) for _ in range(4))
    planner.linear(a, b, [], norm=None, label="")
    planner.linear(b, c, [], norm=None, label="")
    planner.linear(c, d, [], norm=None, label="")
    assert planner.bytes((10,)) == (4 - len(passed)) * 320
    planner.run(np.array([[2, 5]], np.int32), 1, {})
    assert set(planner.program.memory) == {0, 1, 2, 3} - set(passed)


def test_what_a_step_adds_counts_and_small_spaces_have_their_own_memory():
    planner = Planner(Program())
    image, other, by = planner.buffer(4), planner.buffer(4), planner.buffer(4, -1)
    planner.conv(image, other, (None, None), size=3, label="")
    planner.add_rows(other, by=by, column=0, label="")
    planner.run(np.array([[2, 2]], np.int32), 1, {})
    assert set(planner.program.memory) == {image, other} and planner.program.rows == 4


@pytest.mark.parametrize("seed", range(4))
def test_nothing_needed_at_the_same_time_overlaps(seed):
    rng = np.random.default_rng(seed)
    planner = Planner(Program())
    levels = [int(one) for one in rng.integers(0, 3, 30)]
    buffers = [planner.buffer(int(rng.integers(1, 40)), level) for level in levels]
    used = {}
    for moment in range(60):
        a, b = (buffers[int(i)] for i in np.clip(rng.integers(0, 6, 2) + moment // 2 - 3, 0, 29))
        planner.conv(a, b, (None, None), size=3, label="")
        for one in (a, b):
            used.setdefault(one, []).append(moment)
    sizes = np.array([[11, 6], [3, 9]], np.int32)
    planner.run(sizes, 3, {})
    found, rows = places(planner), rows_by_level(sizes, 3)
    for a in used:
        for b in used:
            together = used[a][0] <= used[b][-1] and used[b][0] <= used[a][-1]
            assert a == b or not together or apart(found[a], found[b])
    alive = [sum(4 * rows[levels[b]] * planner.widths[b] for b, times in used.items() if times[0] <= t <= times[-1])
             for t in range(60)]
    assert max(alive) <= planner.bytes(rows) <= 1.2 * max(alive) + 64 * len(buffers)


def test_memory_follows_what_is_needed():
    planner = Planner(Program())
    a, b = planner.buffer(16), planner.buffer(16)
    planner.conv(a, b, (None, None), size=3, label="")

    def run(side):
        planner.run(np.array([[side, side]], np.int32), 1, {}, context_starts=1)
        assert planner.program.facts == {"context_starts": 1}
        array = planner.program.memory[a]
        while array.base is not None:
            array = array.base
        return array.size

    large = run(64)
    assert run(60) == large  # nearly as much: kept
    assert run(8) < large / 10
    planner.forget()
    planner.program.memory = {}
    assert not planner.memory_bytes


def test_more_memory_than_there_is_is_not_taken(monkeypatch):
    planner = Planner(Program())
    planner.conv(planner.buffer(16), planner.buffer(16), (None, None), size=3, label="")
    monkeypatch.setattr(config, "available_memory", lambda: 2 * 64 * 16 * 4)
    planner.run(np.array([[8, 8]], np.int32), 1, {})
    with pytest.raises(CapacityError, match=r"needs 16.*smaller pictures"):
        planner.run(np.array([[16, 8]], np.int32), 1, {})
    assert not planner.memory_bytes
    planner.run(np.array([[8, 8]], np.int32), 1, {})
