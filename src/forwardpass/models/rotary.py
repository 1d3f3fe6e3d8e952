"""Frequencies of the rotary position encoding (Su et al. 2021, "RoFormer")."""

from __future__ import annotations

import numpy as np

from forwardpass.errors import ModelFileError
from forwardpass.models.spec import RotarySpec


def rotary(dim: int, theta: float) -> RotarySpec:
    """Plain rotary encoding of `dim` dimensions: frequency i is theta ** -(2 i / dim), i < dim / 2.

    The steps are transformers' (float32 exponent, float32 power, float32 reciprocal), so that the angles at far
    positions agree with the reference. The power is rounded once from float64; torch's own float32 power is one
    unit off in the last place for about 1 frequency in 150. An odd dimension is a ModelFileError.
    """
    if dim < 2 or dim % 2:
        raise ModelFileError(f"rotary positions: expected an even head dimension, found {dim}; "
                             "fix the model's config or fetch it again")
    exponent = np.arange(0, dim, 2, dtype=np.float32) / np.float32(dim)
    power = np.array([theta ** float(e) for e in exponent], dtype=np.float32)
    return RotarySpec(dim, tuple(float(f) for f in np.float32(1) / power))
