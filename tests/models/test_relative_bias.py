"""Buckets of relative positions, T5's and DeBERTa's: numbers written down by hand, and transformers'."""

import numpy as np
import pytest
import torch
from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position
from transformers.models.t5.modeling_t5 import T5Attention

from forwardpass.models.relative_bias import buckets, by_distance, disentangled_rows


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


def test_rows_of_distances():
    """Span 4: keys 4 and more before the query have row 7, like those 3 before it; 4 and more after it row 0."""
    rows = disentangled_rows(4, 0, 0)
    assert rows.tolist() == [7, 7, 6, 5, 4, 3, 2, 1, 0] and rows.dtype == np.int32  # by key - query, from -4 to 4
    # 8 buckets up to distance 20: 0 to 4 for themselves, then ceil(log(d / 4) / log(19 / 4) * 3) + 4
    far = {-20: 15, -19: 15, -12: 15, -11: 14, -7: 14, -6: 13, -5: 13, -4: 12, 0: 8, 4: 4, 5: 3, 7: 2, 11: 2, 12: 1, 
           19: 1, 20: 0}
    rows = disentangled_rows(8, 8, 20)
    assert {relative: int(rows[relative + 20]) for relative in far} == far


@pytest.mark.parametrize("span, max_distance", [(256, 512), (8, 20), (64, 1000), (4, 5), (16, 10), (512, 2048)])
def test_transformers_agrees_on_rows(span, max_distance):
    """And further away the rows stay what they are at the ends."""
    relative = np.arange(-3 * max_distance, 3 * max_distance + 1)
    theirs = make_log_bucket_position(torch.from_numpy(-relative), span, max_distance).long().numpy()
    rows = disentangled_rows(span, span, max_distance)
    ours = rows[np.clip(relative, -max_distance, max_distance) + max_distance]
    assert np.array_equal(ours, np.clip(theirs + span, 0, 2 * span - 1))
