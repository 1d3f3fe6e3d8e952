"""Slopes of ALiBi, attention with linear biases (Press et al. 2022): a score loses slope * distance."""

from __future__ import annotations

import numpy as np


def alibi_slopes(heads: int, max_bias: float = 8.0) -> tuple[float, ...]:
    """One slope a head, each a float32. With n = 2^m heads they are 2^(-max_bias i / n), i = 1 to n.

    With another number of heads, those for the next lower power of two n come first, then every second one of those
    for 2 n. (BLOOM and Falcon are written so; MPT's way, the odd ones of the next higher power after its even ones,
    gives the same.)
    """
    low = 1 << (heads.bit_length() - 1)
    exponents = [max_bias * i / low for i in range(1, low + 1)]
    exponents += [max_bias * i / (2 * low) for i in range(1, 2 * (heads - low), 2)]
    return tuple(float(np.float32(2.0**-e)) for e in exponents)
