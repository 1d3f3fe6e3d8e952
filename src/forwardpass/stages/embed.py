"""Stage 2: token ids and their positions become vectors, and so do the patches of images.

The token's row of the embedding table, plus, in models with learned positions, the row of its position. Rotary models
use positions later, inside attention; they are checked here all the same, before any work is done.
"""

from __future__ import annotations

import numpy as np

from forwardpass.backends.native import bounds
from forwardpass.contracts import Hidden, Packed, Padded, packed_of
from forwardpass.errors import ContextLengthError, ParameterError


def embed(network, tokens: Packed | Padded) -> Hidden:
    """Packed or Padded tokens -> Hidden, one row for each real token; padding gets none. Images -> their rows.

    Raises ParameterError for an id outside the vocabulary or an unknown token type, and for images where tokens are
    read or the other way round, ContextLengthError for a position beyond the model's.
    """
    packed = packed_of(tokens)
    spec = network.spec
    if spec.patches or packed.pixels is not None:
        return Hidden(_images(network, packed), packed)
    if packed.positions.size != packed.token_ids.size:
        raise ParameterError(f"every token needs one position: {packed.token_ids.size} tokens, "
                             f"{packed.positions.size} positions")
    _check_ids(packed.token_ids, spec.vocab_size)
    least, most = bounds(packed.positions)
    if least < 0:
        raise ParameterError(f"positions start at 0; found {least}")
    if most >= spec.max_position_embeddings:
        raise ContextLengthError(f"position {most} is beyond the model's context of {spec.max_position_embeddings} "
                                 f"positions (0 to {spec.max_position_embeddings - 1}); shorten the text")
    if packed.types is None:
        return Hidden(network.embed(packed.token_ids, packed.positions), packed)
    _check_types(packed.types, packed.token_ids.size, spec.token_types)
    return Hidden(network.embed(packed.token_ids, packed.positions, packed.types), packed)


def _images(network, packed: Packed) -> np.ndarray:
    patches, pixels = network.spec.patches, packed.pixels
    if patches is None or pixels is None:
        raise ParameterError(f"this model reads {'images' if patches else 'tokens'}; found the other")
    rows = [patches.rows(*one.shape[:2]) for one in pixels]
    if rows != packed.lengths.tolist():
        raise ParameterError(f"images become {rows[:8]} rows, the packed rows are {packed.lengths.tolist()[:8]}")
    return network.embed_images(pixels)


def _check_types(types: np.ndarray, tokens: int, known: int) -> None:
    if types.size != tokens:
        raise ParameterError(f"every token needs one type: {tokens} tokens, {types.size} types")
    least, most = bounds(types)
    if least < 0 or most >= max(1, known):
        raise ParameterError(f"token type {least if least < 0 else most} is unknown: types run from 0 to "
                             f"{max(1, known) - 1}")


def _check_ids(ids: np.ndarray, vocab_size: int) -> None:
    """Raise ParameterError unless there is at least one id and all are in [0, vocab_size)."""
    if ids.size == 0:
        raise ParameterError("no tokens: the model needs at least one to begin with")
    least, most = bounds(ids)
    if least < 0 or most >= vocab_size:
        wrong = least if least < 0 else most
        raise ParameterError(f"token id {wrong} is outside the vocabulary: ids run from 0 to {vocab_size - 1}")
