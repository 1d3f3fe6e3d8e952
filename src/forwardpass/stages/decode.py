"""Stage 3: hidden states go through every layer and the final norm, reading and extending the KV cache."""

from __future__ import annotations

import numpy as np

from forwardpass.contracts import PAGE, CacheView, Hidden
from forwardpass.errors import ParameterError


def decode(network, hidden: Hidden, cache: CacheView, memory) -> Hidden:
    """Hidden after stage 2 -> Hidden after all layers and the final norm. `hidden.values` is used up.

    memory: the KV memory that the block tables of `cache` point into. Row i of sequence s takes the cache's slot
    past[s] + i and sees the slots up to it.
    """
    starts = hidden.packed.starts
    past, tables = np.ascontiguousarray(cache.past, np.int32), np.ascontiguousarray(cache.tables, np.int32)
    if tables.ndim != 2:
        raise ParameterError(f"block tables are int32 [sequences, blocks], found {list(tables.shape)}")
    if past.size != starts.size - 1 or tables.shape[0] != past.size:
        raise ParameterError(f"the cache view describes {past.size} sequences, the tokens {starts.size - 1}")
    needed = int((past + hidden.packed.lengths).max())
    if needed > tables.shape[1] * PAGE:
        raise ParameterError(f"block tables hold {tables.shape[1] * PAGE} positions, the sequences need {needed}")
    try:
        values = network.layers(hidden.values, hidden.packed.positions, starts, past, tables, memory)
    except ValueError as error:  # the kernels check every index before they compute anything
        raise ParameterError(f"the cache view does not fit the KV memory ({error}): a table names a block, 0 to "
                             f"{memory.blocks - 1}, for every 64 positions up to the sequence's last") from error
    return Hidden(values, hidden.packed)
