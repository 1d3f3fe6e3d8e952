"""A plan goes through the stages 2, 3 and 4."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from forwardpass.contracts import CacheView, Hidden, Packed
from forwardpass.errors import ForwardpassError
from forwardpass.scheduler.arrays import packed_plan, packed_texts
from forwardpass.scheduler.pace import Pace
from forwardpass.scheduler.scheduler import Plan, Scheduler, Work
from forwardpass.scheduler.texts import Text
from forwardpass.stages.decode import decode
from forwardpass.stages.embed import embed
from forwardpass.stages.project import project

RUN_AHEAD_S = 0.04
"""Greedy requests may be computed this many seconds ahead of Python: nobody notices, and its share becomes small."""
RUN_AHEAD_STEPS = 16
PROJECT_ROWS = 64
"""Rows projected at once where logits of whole texts are wanted: bounds the memory of a large vocabulary."""

Results = list[tuple]
"""(job, who takes a result of its, the result's parts)."""


class Step(NamedTuple):
    """What a step computed. rows: (new tokens, positions cached before) of each sequence;  wanted: rows that became
    logits;  texts: the length of each that the encoder read;  sources: that of each sequence's, if they have some;
    images: the rows of each that a vision tower read."""

    rows: list[tuple[int, int]]
    wanted: int
    texts: list[int]
    sources: list[int]
    images: tuple[int, ...] = ()

    @property
    def positions(self) -> int:
        """How many were computed."""
        return sum(count for count, _ in self.rows) + sum(self.texts) + sum(self.images)


class Computing:
    """network, encoder, memory: see Engine;  vocab_size: of the tokens that may be chosen.

    steps: how many were computed;  last: those of the newest call.
    """

    def __init__(self, network, encoder, memory: Sequence[Any], vocab_size: int):
        self.network = network
        self.encoder = encoder
        self.memory = memory
        self.vocab_size = vocab_size
        self.steps = 0
        self.last: list[Step] = []

    def step(self, plan: Plan, scheduler: Scheduler) -> tuple[Results, dict[str, float]]:
        """One step: the results of all whom it advances, and seconds by stage."""
        self.steps += 1
        texts, work = plan
        reading = 0.0
        seconds = {"embed": 0.0, "decode": 0.0, "project": 0.0}
        results = []
        if texts:
            results = self._read(texts, scheduler, seconds)
            reading = sum(seconds.values())
            scheduler.pace.note_texts(sum(map(len, texts)), reading)
        rows, wanted, sources = [(one.count, one.sequence.computed) for one in work], [], []
        if work:
            packed, cache = packed_plan(work, self.network.regimes)
            sources = _sources(cache)
            hidden = self._hidden(self.network, packed, cache, self.memory, seconds)
            start = perf_counter()
            starts = packed.starts.tolist()
            wanted = [starts[i + 1] - 1 for i, one in enumerate(work) if one.final]
            logits = project(self.network, hidden, np.array(wanted, np.int32)).values
            seconds["project"] = perf_counter() - start
            row = 0
            for i, one in enumerate(work):
                owner = one.sequence.owner
                if one.final:
                    results.append((owner, scheduler.give, (one, logits, row, row + 1)))
                    row += 1
                elif one.sequence.rows:
                    results.append((owner, scheduler.give, (one, hidden.values, starts[i], starts[i + 1])))
                else:
                    results.append((owner, scheduler.done, (one,)))
            ones = sum(one.count == 1 for one in work)
            scheduler.pace.note(ones, packed.token_ids.size - ones, sum(seconds.values()) - reading)
        images = tuple(len(text) for text in texts if text.pixels is not None and self.network.vision)
        read = [len(text) for text in texts if text.pixels is None or not self.network.vision]
        self.last = [Step(rows, len(wanted), read, sources, images)]
        return results, seconds

    def steps_ahead(self, plan: Plan, scheduler: Scheduler, within: float) -> int:
        """Steps that may be computed before Python looks at their tokens: more than one only if each token is simply
        the likeliest, nobody waits to join, and they take no longer than `within` seconds."""
        sequences, seconds = scheduler.pace.ones
        if sequences != len(plan.work):
            return 1
        steps = min(RUN_AHEAD_STEPS, int(within / max(seconds, 1e-6)))
        for work in plan.work:
            if steps <= 1:
                return 1
            steps = min(steps, work.sequence.owner.ahead(work.sequence))
        return scheduler.ahead(plan, steps) if steps > 1 else 1

    def ahead(self, plan: list[Work], steps: int, pace: Pace) -> tuple[Results, dict[str, float]]:
        """The same as `step` for several steps in one call, at least one, where next tokens need nobody to choose."""
        packed, cache = packed_plan(plan, self.network.regimes)
        ends = [np.fromiter(work.sequence.owner.ends(work.sequence), np.int32) for work in plan]
        tokens, seconds = self.network.greedy_steps(packed.token_ids, packed.positions, cache, self.memory, steps,
                                                    self.vocab_size, ends)
        done = len(tokens)
        if done == 0:  # logits that are not numbers: stage 5 has the words for it
            raise ForwardpassError("Logits must be finite numbers; the model's weights are damaged, or too large for "
                                   "this dtype: try dtype='float32'.")
        self.steps += done
        self.last = [Step([(1, work.sequence.computed + i) for work in plan], len(plan), [], _sources(cache))
                     for i in range(done)]
        pace.note(len(plan), 0, sum(seconds.values()) / done)
        return [(work.sequence.owner, work.sequence.owner.take_ahead, (work, mine))
                for work, mine in zip(plan, tokens.T.tolist(), strict=True)], seconds

    def projected(self, ids: Sequence[int], consume: Callable[[int, np.ndarray], None]):
        """What takes hidden states of the text `ids`, (first row, values), and hands their logits to `consume`."""
        def project_rows(first: int, values: np.ndarray) -> None:
            count = len(values)
            packed = Packed(np.array(ids[first : first + count], np.int32),
                            np.arange(first, first + count, dtype=np.int32), np.array([0, count], np.int32))
            for at in range(0, count, PROJECT_ROWS):
                rows = np.arange(at, min(at + PROJECT_ROWS, count), dtype=np.int32)
                consume(first + at, project(self.network, Hidden(values, packed), rows).values)

        return project_rows

    def _read(self, texts: list[Text], scheduler: Scheduler, seconds: dict[str, float]) -> Results:
        """What the encoder makes of texts, and it, or the vision tower, of images."""
        results: Results = []
        for images, network in ((False, self.encoder), (True, self.network.vision or self.encoder)):
            some = [text for text in texts if (text.pixels is not None) == images]
            if some:
                packed, cache = packed_texts(some)
                hidden = self._hidden(network, packed, cache, self.memory[-1:], seconds)
                starts = packed.starts.tolist()
                results += [(text.owner, scheduler.give_text, (text, hidden.values, starts[i], starts[i + 1]))
                            for i, text in enumerate(some) if text.owner]
        return results

    @staticmethod
    def _hidden(network, packed: Packed, cache: CacheView | None, memory: Sequence[Any],
                seconds: dict[str, float]) -> Hidden:
        start = perf_counter()
        hidden = embed(network, packed)
        middle = perf_counter()
        hidden = decode(network, hidden, cache, memory)
        seconds["embed"] += middle - start
        seconds["decode"] += perf_counter() - middle
        return hidden


def _sources(cache: CacheView) -> list[int]:
    return [] if cache.sources is None else cache.sources.tolist()
