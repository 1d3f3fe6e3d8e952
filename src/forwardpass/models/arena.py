"""One piece of memory for all buffers of a program, in which those that are never needed together share their places.

Images are large: one buffer of an autoencoder's last level takes hundreds of megabytes, and a UNet has hundreds of
buffers, most of them for two or three operations. So a program that is recorded through a `Planner` uses each of them
for one thing, and when it runs gives it a place where no other lies that is needed at the same time. With the plan of
Pisarchyk and Lee 2020 (the largest first, each as low as it can lie) that is hardly more than what is needed at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from forwardpass import config
from forwardpass.backends.protocol import Program
from forwardpass.errors import CapacityError

_ALIGN = 16
"""Floats; a cache line."""
_KEPT_PLANS = 64


class Planner:
    """Records operations onto a program, as that would, and notes which buffers each of them uses: all whole numbers
    among its arguments that have no name, and `by`."""

    def __init__(self, program: Program):
        self.program = program
        self.widths: dict[int, int] = {}
        self.spaces: dict[int, int] = {}
        self._bound: set[int] = set()
        self._used: list[list[int]] = []
        self._spans: dict[int, tuple[int, int]] | None = None
        self._plans: dict[tuple[int, ...], tuple[dict[int, int], int]] = {}
        self._memory = np.empty(0, np.float32)

    def buffer(self, width: int, space: int = 0) -> int:
        """See Program.buffer."""
        buffer = self.program.buffer(width, space)
        self.widths[buffer], self.spaces[buffer] = width, space
        return buffer

    def bound(self, width: int, space: int = 0) -> int:
        """A buffer that the caller binds in every run."""
        buffer = self.buffer(width, space)
        self._bound.add(buffer)
        return buffer

    def __getattr__(self, operation: str) -> Callable[..., None]:
        record = getattr(self.program, operation)

        def recorded(*arguments: Any, **facts: Any) -> None:
            self._used.append([one for one in (*arguments, facts.get("by")) if type(one) is int])
            record(*arguments, **facts)

        return recorded

    def spans(self) -> dict[int, tuple[int, int]]:
        """When all is recorded: for each buffer that is to have a place, the first and the last moment (see
        Program.moments) of its use. Those of other spaces than levels are small and have none."""
        if self._spans is None:
            spans: dict[int, tuple[int, int]] = {}
            for moment, buffers in zip(self.program.moments(), self._used, strict=True):
                for buffer in buffers:
                    spans[buffer] = (spans.get(buffer, (moment,))[0], moment)
            left_out = {*self._bound, *self.program.passed()}
            self._spans = {buffer: span for buffer, span in spans.items()
                           if self.spaces[buffer] >= 0 and buffer not in left_out}
        return self._spans

    def plan(self, rows: tuple[int, ...]) -> tuple[dict[int, int], int]:
        """rows: of each level. Returns (buffer -> where it begins, length of the whole), in floats."""
        found = self._plans.get(rows)
        if found is None:
            if len(self._plans) >= _KEPT_PLANS:
                self._plans.pop(next(iter(self._plans)))
            found = self._plans[rows] = _places({
                buffer: (rows[self.spaces[buffer]] * self.widths[buffer], *span)
                for buffer, span in self.spans().items()})
        return found

    def bytes(self, rows: tuple[int, ...]) -> int:
        """Of memory for a run with so many rows of each level."""
        return 4 * self.plan(rows)[1]

    def run(self, sizes: np.ndarray, levels: int, bound: Mapping[int, np.ndarray], **facts: Any) -> None:
        """Run the program over images. sizes: int32 [images, 2];  levels: how many there are;  bound, facts: as
        Program.run takes them. Raises CapacityError where memory is short: it would be taken all the same, until the
        system ends some process."""
        rows = rows_by_level(sizes, levels)
        places, length = self.plan(rows)
        if not length <= self._memory.size <= 4 * length + 4096:  # not much more is kept than what is needed
            self._memory = np.empty(0, np.float32)  # the old goes before the new comes
            free = config.available_memory()
            if 4 * length > free:
                raise CapacityError(f"a pass over pictures of this size needs {config.memory_text(4 * length)}; "
                                    f"{config.memory_text(free)} of memory are free: ask for smaller pictures, or for "
                                    "fewer at a time")
            self._memory = np.empty(length + _ALIGN, np.float32)
        start = -(self._memory.ctypes.data // 4) % _ALIGN
        inner = []
        for buffer, at in places.items():
            size = rows[self.spaces[buffer]] * self.widths[buffer]
            inner.append((buffer, self._memory[start + at : start + at + size].reshape(-1, self.widths[buffer])))
        self.program.run(rows[0], sizes=sizes, bound=[*bound.items(), *inner], **facts)

    @property
    def memory_bytes(self) -> int:
        """What is taken now."""
        return self._memory.nbytes

    def forget(self) -> None:
        """Give the memory back; the next run takes it again."""
        self._memory = np.empty(0, np.float32)


def rows_by_level(sizes: np.ndarray, levels: int) -> tuple[int, ...]:
    """Rows of images of these heights and widths on each level: each is halved, and rounded up."""
    sizes = np.asarray(sizes, np.int64)
    return tuple(int((-(-sizes // 2**level)).prod(axis=1).sum()) for level in range(levels))


def _places(spans: Mapping[int, tuple[int, int, int]]) -> tuple[dict[int, int], int]:
    """spans: buffer -> (floats, first moment, last moment)."""
    placed: list[tuple[int, int, int, int]] = []  # begin, end, first, last
    places, length = {}, 0
    for buffer, (size, first, last) in sorted(spans.items(), key=lambda one: -one[1][0]):
        size = -(-size // _ALIGN) * _ALIGN
        at = 0
        for begin, end, since, until in sorted(placed):
            if since <= last and first <= until:
                if begin - at >= size:
                    break
                at = max(at, end)
        placed.append((at, at + size, first, last))
        places[buffer] = at
        length = max(length, at + size)
    return places, length
