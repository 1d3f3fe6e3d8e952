"""A plan as the arrays that the stages read, and their rows as those who asked for them get them."""

from __future__ import annotations

import numpy as np

from forwardpass.contracts import CacheView, Hidden, Packed
from forwardpass.models.regimes import Regimes
from forwardpass.scheduler.scheduler import Work
from forwardpass.scheduler.texts import Text


def packed_plan(plan: list[Work], regimes: Regimes) -> tuple[Packed, CacheView]:
    """The rows of a plan, and what stage 3 asks of the cache. Slot and position are the same number: texts are computed
    from their start."""
    regime = lengths = sources = None
    if regimes.switch:
        regime = np.array([work.sequence.regime.long for work in plan], np.int32)
    if regimes.trained:
        lengths = np.array([max(work.sequence.prompt, work.sequence.computed + work.count) for work in plan], np.int32)
    if plan[0].sequence.source is not None:
        sources = np.array([len(work.sequence.source) for work in plan], np.int32)
    if len(plan) == 1:  # one sequence is the common case when decoding: the short path saves 1% of a small model's step
        sequence, count = plan[0].sequence, plan[0].count
        begin = sequence.computed
        ids = np.array(sequence.tokens[begin : begin + count], np.int32)
        positions = np.arange(begin, begin + count, dtype=np.int32)
        starts, past = np.array([0, count], np.int32), np.array([begin], np.int32)
        return Packed(ids, positions, starts), CacheView(past, _tables(plan), regime, lengths, sources)
    counts = [work.count for work in plan]
    past = np.array([work.sequence.computed for work in plan], np.int32)
    if max(counts) == 1:  # the others' common case, with many beams worth a millisecond
        ids = np.array([work.sequence.tokens[work.sequence.computed] for work in plan], np.int32)
        packed = Packed(ids, past.copy(), np.arange(len(plan) + 1, dtype=np.int32))
        return packed, CacheView(past, _tables(plan), regime, lengths, sources)
    starts = _starts(counts)
    ids, positions = np.empty(starts[-1], np.int32), np.empty(starts[-1], np.int32)
    for i, work in enumerate(plan):
        sequence, begin = work.sequence, work.sequence.computed
        ids[starts[i] : starts[i + 1]] = sequence.tokens[begin : begin + work.count]
        positions[starts[i] : starts[i + 1]] = np.arange(begin, begin + work.count)
    return Packed(ids, positions, starts), CacheView(past, _tables(plan), regime, lengths, sources)


def packed_texts(texts: list[Text]) -> tuple[Packed, CacheView | None]:
    """Texts for an encoder, or images, and for one whose keys and values decoders attend to, where these go."""
    starts = _starts([len(text) for text in texts])
    positions = np.arange(starts[-1], dtype=np.int32) - np.repeat(starts[:-1], np.diff(starts))
    types = None
    if any(text.types is not None for text in texts):
        types = np.concatenate([np.zeros(len(text), np.int32) if text.types is None else text.types for text in texts])
    pixels = None if texts[0].pixels is None else tuple(text.pixels for text in texts)
    packed = Packed(np.concatenate([text.tokens for text in texts]), positions, starts, types, pixels)
    if not texts[0].blocks:
        return packed, None
    tables = np.full((1, len(texts), max(len(text.blocks) for text in texts)), -1, np.int32)
    for row, text in zip(tables[0], texts, strict=True):
        row[: len(text.blocks)] = text.blocks
    return packed, CacheView(np.zeros(len(texts), np.int32), tables)


Part = tuple[np.ndarray, int, int]
"""Rows begin to end of an array."""


def joined(parts: list[Part]) -> np.ndarray:
    """The rows of all parts, one after another; they are not copied if they lie like that already."""
    array, begin, end = parts[0]
    for other, first, last in parts[1:]:
        if other is not array or first != end:
            return np.concatenate([one[low:high] for one, low, high in parts])
        end = last
    return array[begin:end]


def packed_hidden(texts: list[tuple[np.ndarray, np.ndarray | None, np.ndarray | None]], parts: list[Part]) -> Hidden:
    """Whole texts, (tokens, types, pixels), with their hidden states. Pixels are not passed on."""
    packed, _ = packed_texts([Text(*one[:2]) for one in texts])
    return Hidden(joined(parts), packed)


def _starts(counts: list[int]) -> np.ndarray:
    starts = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=starts[1:])
    return starts


def _tables(plan: list[Work]) -> np.ndarray:
    """int32 [groups, sequences, blocks], -1 where a sequence holds no block. Sources are the last group."""
    texts = [work.sequence.tables for work in plan]
    if len(texts) == len(texts[0]) == 1 and not texts[0][0].first and plan[0].sequence.source is None:
        return np.array([[texts[0][0].blocks]], np.int32)
    groups = len(texts[0])
    sources = [] if plan[0].sequence.source is None else [work.sequence.source.blocks for work in plan]
    width = max(max(table.end for tables in texts for table in tables), max(map(len, sources), default=0))
    out = np.full((groups + bool(sources), len(texts), width), -1, np.int32)
    for s, tables in enumerate(texts):
        for g, table in enumerate(tables):
            out[g, s, table.first : table.end] = table.blocks
    for s, blocks in enumerate(sources):
        out[groups, s, : len(blocks)] = blocks
    return out
