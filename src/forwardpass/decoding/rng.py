"""Randomness as a pure function of (seed, choice, step): Philox 4x64 with 10 rounds.

Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011). Nothing is carried from one token to the next,
so a token's random number cannot depend on the batch, on the order of requests or on a preemption.
"""

from __future__ import annotations

import os

SEED_LIMIT = 1 << 64
_MASK = SEED_LIMIT - 1
_MULTIPLIER_0, _MULTIPLIER_2 = 0xD2E7470EE14C6C93, 0xCA5A826395121157
_WEYL_0, _WEYL_1 = 0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B


def philox(key: tuple[int, int], counter: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
    """Four 64-bit words from a 128-bit key and a 256-bit counter, both given as 64-bit words, low word first."""
    key_0, key_1 = key
    a, b, c, d = counter
    for _ in range(10):
        low = _MULTIPLIER_0 * a
        high = _MULTIPLIER_2 * c
        a, b, c, d = (high >> 64) ^ b ^ key_0, high & _MASK, (low >> 64) ^ d ^ key_1, low & _MASK
        key_0 = (key_0 + _WEYL_0) & _MASK
        key_1 = (key_1 + _WEYL_1) & _MASK
    return a, b, c, d


def uniform(seed: int, choice: int, step: int, attempt: int = 0) -> float:
    """A number in [0, 1) with 53 random bits for one token.

    choice:  0 for the first (or only) answer to a prompt
    step:    0 for its first generated token
    attempt: counts further draws for the same token, when the one before was refused
    """
    return (philox((seed, choice), (step, attempt, 0, 0))[0] >> 11) * 2.0**-53


def fresh_seed() -> int:
    """A seed from the operating system, for a request that names none."""
    return int.from_bytes(os.urandom(8), "little")
