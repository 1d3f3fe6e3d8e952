"""Stage 3: hidden states go through every layer and the final norm, reading and extending the KV cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from forwardpass.contracts import PAGE, CacheView, Hidden, Packed
from forwardpass.errors import ParameterError


def decode(network, hidden: Hidden, cache: CacheView | None = None, memory: Sequence[Any] = ()) -> Hidden:
    """Hidden after stage 2 -> Hidden after all layers and the final norm. `hidden.values` is used up.

    memory: the KV memory of each group, that the block tables of `cache` point into. Row i of sequence s takes the
    cache's slot past[s] + i and sees the slots up to it. Models that cache nothing need neither: their texts are
    computed whole.
    """
    packed = hidden.packed
    view = _checked(network, packed, cache) if network.groups else None
    try:
        values = network.layers(hidden.values, packed.positions, packed.starts, view, memory)
    except ValueError as error:  # the kernels check every index before they compute anything
        if "slots" in str(error):
            raise ParameterError(f"{error}: row i of a text must have position past + i") from error
        blocks = ", ".join(f"0 to {one.blocks - 1}" for one in memory)
        raise ParameterError(f"the cache view does not fit the KV memory ({error}): a table names a block, {blocks}, "
                             "for every 64 positions that a row sees, up to the sequence's last") from error
    return Hidden(values, packed)


def _checked(network, packed: Packed, cache: CacheView | None) -> CacheView:
    """The view with all that the network needs of it, in the form it reads. ParameterError names what does not fit."""
    if cache is None:
        raise ParameterError("this model caches keys and values: decode needs a cache view and KV memory")
    past, tables = np.ascontiguousarray(cache.past, np.int32), np.ascontiguousarray(cache.tables, np.int32)
    groups, sequences = len(network.groups), packed.starts.size - 1
    if tables.ndim == 2:
        tables = np.ascontiguousarray(np.broadcast_to(tables, (groups, *tables.shape)))
    if tables.ndim != 3 or tables.shape[0] != groups:
        raise ParameterError(f"block tables are int32 [sequences, blocks], or [groups, sequences, blocks] of this "
                             f"model's {groups} group(s) of layers; found {list(tables.shape)}")
    if past.size != sequences or tables.shape[1] != sequences:
        raise ParameterError(f"the cache view describes {past.size} sequences, the tokens {sequences}")
    lengths = past + packed.lengths
    sources = None
    if network.encoder is not None:
        if cache.sources is None:
            raise ParameterError("this model attends to a source: the cache view needs the length of each one's")
        sources = np.ascontiguousarray(cache.sources, np.int32)
        if sources.size != sequences:
            raise ParameterError(f"the cache view has lengths of {sources.size} sources for {sequences} sequences")
    needed = max(int(lengths.max()), 0 if sources is None else int(sources.max()))
    if needed > tables.shape[2] * PAGE:
        raise ParameterError(f"block tables hold {tables.shape[2] * PAGE} positions, the sequences need {needed}")
    return CacheView(past, tables, *_factors(network.regimes, cache, lengths), sources)


def _factors(regimes, cache: CacheView, lengths: np.ndarray) -> tuple[np.ndarray | None, np.ndarray | None]:
    """(regime, lengths) for a model that needs them."""
    regime = tokens = None
    if regimes.switch:
        regime = lengths > regimes.switch if cache.regime is None else cache.regime
    if regimes.trained:
        tokens = lengths if cache.lengths is None else cache.lengths
    return tuple(None if one is None else np.ascontiguousarray(one, np.int32) for one in (regime, tokens))
