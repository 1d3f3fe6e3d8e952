"""What an engine has done so far, counted as it goes and read by whoever looks, from any thread."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass

STEP_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5)
BATCH = (1, 2, 4, 8, 16, 32, 64, 128, 256)


@dataclass(frozen=True, slots=True)
class Histogram:
    """counts[i]: how many were at most edges[i] and above the edge before; the last one has those above all edges.
    total: the sum of all that was counted."""

    edges: tuple[float, ...]
    counts: tuple[int, ...]
    total: float


@dataclass(frozen=True, slots=True)
class EngineStats:
    """steps: forward passes;  rows: positions computed in them;  generated: tokens chosen;
    step_seconds: of each step, by stage;  batch: texts in each step;
    requests: that have not ended;  running: sequences that hold blocks;  waiting: sequences that wait;
    ended: requests, by how: "done", "cancelled", "deadline", "failed";  preemptions: sequences that had to start over;
    kv_held, kv_size: bytes of the cache that are in use or kept for later, and all, which other models may share;
    prefix_asked, prefix_found: tokens of prompts that were looked for among kept texts, and those of them that were
    there;  kv_kept: bytes of kv_held that are only kept for later;  kv_dropped: bytes of kept texts that were dropped
    so far because somebody needed them, in all models that share the memory.
    """

    steps: int
    rows: int
    generated: int
    step_seconds: Mapping[str, Histogram]
    batch: Histogram
    requests: int
    running: int
    waiting: int
    ended: Mapping[str, int]
    preemptions: int
    kv_held: int
    kv_size: int
    prefix_asked: int
    prefix_found: int
    kv_kept: int
    kv_dropped: int


class Tally:
    """A histogram that is being filled, by one thread at a time."""

    def __init__(self, edges: tuple[float, ...]):
        self._edges = edges
        self._counts = [0] * (len(edges) + 1)
        self._total = 0.0

    def add(self, value: float, times: int = 1) -> None:
        self._counts[bisect_left(self._edges, value)] += times
        self._total += value * times

    def read(self) -> Histogram:
        return Histogram(self._edges, tuple(self._counts), self._total)


class Meter:
    """Counts the steps of an engine."""

    def __init__(self) -> None:
        self.rows = 0
        self.generated = 0
        self._seconds: dict[str, Tally] = {}
        self._batch = Tally(BATCH)

    def steps(self, count: int, texts: int, rows: int, generated: int, seconds: Mapping[str, float]) -> None:
        """That many steps of the same texts took so many seconds in each stage together."""
        self.rows += rows
        self.generated += generated
        self._batch.add(texts, count)
        for stage, time in seconds.items():
            if stage not in self._seconds:
                self._seconds[stage] = Tally(STEP_S)
            self._seconds[stage].add(time / count, count)

    def step_seconds(self) -> dict[str, Histogram]:
        return {stage: tally.read() for stage, tally in list(self._seconds.items())}

    def batch(self) -> Histogram:
        return self._batch.read()
