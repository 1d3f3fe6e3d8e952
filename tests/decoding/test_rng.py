"""Random numbers are a function of (seed, choice, step), and that function is Philox."""

import numpy as np
import pytest

from forwardpass.decoding import rng


@pytest.mark.parametrize("key", [(0, 0), (7, 0), (2**64 - 1, 5), (123456789, 2**64 - 1)])
@pytest.mark.parametrize("counter", [(1, 0, 0, 0), (9, 1, 0, 0), (2**64 - 1, 2**64 - 1, 3, 4)])
def test_philox_equals_numpys(key, counter):
    # NumPy counts up by one before its first block.
    before = (counter[0] - 1, *counter[1:])
    theirs = np.random.Philox(counter=np.array(before, np.uint64), key=np.array(key, np.uint64)).random_raw(4)
    assert rng.philox(key, counter) == tuple(int(word) for word in theirs)


def test_uniform_depends_on_every_coordinate_and_on_nothing_else():
    reference = rng.uniform(7, 0, 0)
    for other in [(8, 0, 0), (7, 1, 0), (7, 0, 1), (7, 0, 0, 1)]:
        assert rng.uniform(*other) != reference
    assert rng.uniform(7, 0, 0) == reference
    assert rng.uniform(2**63, 0, 0) != rng.uniform(0, 0, 0)


def test_uniform_is_uniform():
    values = np.array([rng.uniform(3, choice, step) for choice in range(4) for step in range(2000)])
    assert values.min() >= 0 and values.max() < 1
    counts = np.histogram(values, bins=20, range=(0, 1))[0]
    chi_square = float(((counts - 400.0) ** 2 / 400.0).sum())
    assert chi_square < 43.8  # 99.9 % point for 19 degrees of freedom


def test_fresh_seeds_differ():
    seeds = {rng.fresh_seed() for _ in range(8)}
    assert len(seeds) == 8
    assert all(0 <= seed < rng.SEED_LIMIT for seed in seeds)
