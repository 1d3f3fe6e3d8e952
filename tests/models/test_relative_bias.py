"""T5's buckets of relative positions: numbers written down by hand, and transformers'."""

import numpy as np
import pytest
import torch
from transformers.models.t5.modeling_t5 import T5Attention

from forwardpass.models.relative_bias import buckets, by_distance


def test_numbers():
    distances = {0: 0, 15: 15, 16: 16, 17: 16, 20: 17, 32: 21, 64: 26, 127: 31, 200: 31}
    relative = -np.array(list(distances))
    assert buckets(relative, 32, False, 128).tolist() == list(distances.values())
    both = {-20: 10, -8: 8, 0: 0, 1: 17, 7: 23, 8: 24, 20: 26, 200: 31}
    assert buckets(np.array(list(both)), 32, True, 128).tolist() == list(both.values())
    assert not buckets(np.arange(0, 50), 32, False, 128).any()  # what a decoder may not see


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("count, max_distance", [(32, 128), (16, 20), (8, 64), (64, 1000), (32, 256)])
def test_transformers_agrees(count, max_distance, bidirectional):
    relative = np.arange(-1200, 1200)
    theirs = T5Attention._relative_position_bucket(torch.from_numpy(relative), bidirectional, count, max_distance)
    assert np.array_equal(buckets(relative, count, bidirectional, max_distance), theirs.numpy())


@pytest.mark.parametrize("bidirectional", [False, True])
def test_beyond_the_table_nothing_changes(bidirectional):
    table = np.random.default_rng(0).standard_normal((32, 5)).astype(np.float32)
    bias = by_distance(table, bidirectional, 128)
    assert bias.shape == (5, 257) and bias.dtype == np.float32
    relative = np.arange(-900, 900)
    expected = table[buckets(relative, 32, bidirectional, 128)].T
    assert np.array_equal(bias[:, np.clip(relative, -128, 128) + 128], expected)
