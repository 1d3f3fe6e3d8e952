"""A plan as the arrays that stages 2 and 3 read."""

from __future__ import annotations

import numpy as np

from forwardpass.contracts import CacheView, Packed
from forwardpass.models.regimes import Regimes
from forwardpass.scheduler.scheduler import Work


def packed_plan(plan: list[Work], regimes: Regimes) -> tuple[Packed, CacheView]:
    """The rows of a plan, and what stage 3 asks of the cache. Slot and position are the same number: texts are computed
    from their start."""
    regime = lengths = None
    if regimes.switch:
        regime = np.array([work.sequence.regime.long for work in plan], np.int32)
    if regimes.trained:
        lengths = np.array([max(work.sequence.prompt, work.sequence.computed + work.count) for work in plan], np.int32)
    if len(plan) == 1:  # one sequence is the common case when decoding: the short path saves 1% of a small model's step
        sequence, count = plan[0].sequence, plan[0].count
        begin = sequence.computed
        ids = np.array(sequence.tokens[begin : begin + count], np.int32)
        positions = np.arange(begin, begin + count, dtype=np.int32)
        starts, past = np.array([0, count], np.int32), np.array([begin], np.int32)
        return Packed(ids, positions, starts), CacheView(past, _tables(plan), regime, lengths)
    counts = [work.count for work in plan]
    ids, positions = np.empty(sum(counts), np.int32), np.empty(sum(counts), np.int32)
    starts = np.zeros(len(plan) + 1, np.int32)
    np.cumsum(counts, out=starts[1:])
    past = np.array([work.sequence.computed for work in plan], np.int32)
    for i, work in enumerate(plan):
        sequence, begin = work.sequence, work.sequence.computed
        ids[starts[i] : starts[i + 1]] = sequence.tokens[begin : begin + work.count]
        positions[starts[i] : starts[i + 1]] = np.arange(begin, begin + work.count)
    return Packed(ids, positions, starts), CacheView(past, _tables(plan), regime, lengths)


def _tables(plan: list[Work]) -> np.ndarray:
    """int32 [groups, sequences, blocks], -1 where a sequence holds no block."""
    texts = [work.sequence.tables for work in plan]
    if len(texts) == len(texts[0]) == 1 and not texts[0][0].first:
        return np.array([[texts[0][0].blocks]], np.int32)
    width = max(table.end for tables in texts for table in tables)
    out = np.full((len(texts[0]), len(texts), width), -1, np.int32)
    for s, tables in enumerate(texts):
        for g, table in enumerate(tables):
            out[g, s, table.first : table.end] = table.blocks
    return out
