"""Relative positions: which row of a table stands for a distance.

T5 (Raffel et al. 2020) adds a learned number a head and bucket of distances to scores. DeBERTa (He et al. 2021) has
vectors for distances, or for logarithmic buckets of them.
"""

from __future__ import annotations

import numpy as np


def buckets(relative: np.ndarray, count: int, bidirectional: bool, max_distance: int) -> np.ndarray:
    """The bucket of each relative position (key - query).

    Bidirectional: half of the buckets are for keys after the query; otherwise those count as distance 0. Of what is
    left, half are for one distance each, the others grow logarithmically up to max_distance; what lies beyond is in
    the last. The logarithm is taken in float32, as transformers does.
    """
    relative = np.asarray(relative)
    first = np.zeros(relative.shape, np.int64)
    if bidirectional:
        count //= 2
        first = np.where(relative > 0, count, 0)
    distance = np.abs(relative) if bidirectional else np.maximum(-relative, 0)
    exact = count // 2
    ratio = np.maximum(distance, exact).astype(np.float32) / np.float32(exact)
    steps = np.log(ratio) / np.float32(np.log(max_distance / exact)) * np.float32(count - exact)
    far = np.minimum(exact + steps.astype(np.int64), count - 1)
    return first + np.where(distance < exact, distance, far)


def by_distance(table: np.ndarray, bidirectional: bool, max_distance: int) -> np.ndarray:
    """table: [buckets, heads], as checkpoints have it -> float32 [heads, 2 * max_distance + 1], by key - query from
    -max_distance to max_distance: what `Program.attention` takes. Further away everything is in the same bucket."""
    relative = np.arange(-max_distance, max_distance + 1)
    chosen = np.asarray(table, np.float32)[buckets(relative, len(table), bidirectional, max_distance)]
    return np.ascontiguousarray(chosen.T)


def disentangled_rows(span: int, bucket_count: int, max_distance: int) -> np.ndarray:
    """int32 [2 n + 1]: the row of DeBERTa's table of 2 * span vectors for each distance key - query from -n to n; what
    is further away has the first or the last of them.

    Row span stands for distance 0, and rows above it for keys before the query. Without buckets each distance has a row
    for itself. Otherwise that is so up to half of the span, the others grow logarithmically up to max_distance. The
    logarithms are taken in float32, as transformers does.
    """
    n = max_distance if bucket_count else span
    before = np.arange(n, -n - 1, -1)  # how far the key is before the query
    if bucket_count:
        half, distance = span // 2, np.abs(before)
        ratio = np.maximum(distance, half).astype(np.float32) / np.float32(half)
        end = np.log(np.full(1, (max_distance - 1) / half, np.float32))
        far = np.ceil(np.log(ratio) / end * np.float32(half - 1)).astype(np.int64) + half
        before = np.where(distance <= half, before, np.sign(before) * far)
    return np.clip(before + span, 0, 2 * span - 1).astype(np.int32)
