"""The noise of pictures: a pure function of seed and stream, and distributed as it should be."""

import math

import numpy as np
import pytest

from forwardpass.decoding.noise.normal import normals
from forwardpass.decoding.rng import philox


@pytest.mark.parametrize(("seed", "stream"), [(0, 0), (7, 3), (2**64 - 1, 2**40)])
def test_by_hand_from_the_words_of_the_generator(seed, stream):
    found = normals(seed, stream, (2, 3)).reshape(-1)
    words = [word >> 11 for block in range(2) for word in philox((seed, stream), (block, 0, 0, 0))]
    expected = []
    for first, second in zip(words[::2], words[1::2], strict=True):
        radius = math.sqrt(-2 * math.log((first + 1) / 2**53))
        angle = 2 * math.pi * second / 2**53
        expected += [radius * math.cos(angle), radius * math.sin(angle)]
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected[:6], rtol=1e-6)


def test_shapes_and_lengths_only_cut_the_same_numbers():
    whole = normals(5, 1, (1000,))
    for shape in ((999,), (10, 7), (1,), (3, 3, 4), (1000,)):
        assert (normals(5, 1, shape).reshape(-1) == whole[: math.prod(shape)]).all()
    assert normals(5, 1, (0, 4)).shape == (0, 4)


def test_streams_and_seeds_have_nothing_in_common():
    drawn = [normals(seed, stream, (4096,)) for seed in (0, 1, 2**63) for stream in (0, 1, 2)]
    for i, one in enumerate(drawn):
        for other in drawn[:i]:
            assert abs(np.corrcoef(one, other)[0, 1]) < 0.08  # five standard deviations


def test_distribution():
    many = normals(11, 0, (400, 500)).astype(np.float64).reshape(-1)
    n = many.size
    assert abs(many.mean()) < 5 / math.sqrt(n) and abs(many.var() - 1) < 5 * math.sqrt(2 / n)
    for bound in (0.25, 1.0, 2.0, 3.0):
        share = math.erf(bound / math.sqrt(2))
        assert abs((np.abs(many) < bound).mean() - share) < 5 * math.sqrt(share * (1 - share) / n)
    assert np.isfinite(many).all() and np.abs(many).max() < 7
    assert abs(np.corrcoef(many[:-1], many[1:])[0, 1]) < 5 / math.sqrt(n)
