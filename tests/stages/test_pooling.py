"""One vector a text. Expected numbers are written out by hand."""

import numpy as np
import pytest

from forwardpass.contracts import Hidden
from forwardpass.stages.pooling import NEAR, as_bits, as_int8, normalized, pool
from forwardpass.stages.preprocess import pack


def hidden(*texts):
    """Rows of each text side by side."""
    return Hidden(np.array([row for text in texts for row in text], np.float32), pack([[1] * len(t) for t in texts]))


TWO = hidden([(2, -1), (4, 5)], [(7, 7)])


@pytest.mark.parametrize(("how", "first"), [
    ("mean", (3, 2)),
    ("cls", (2, -1)),
    ("last", (4, 5)),
    ("max", (4, 5)),
    ("mean_sqrt_len", (6 / 2**0.5, 4 / 2**0.5)),
    ("weightedmean", (10 / 3, 9 / 3)),
])
def test_poolings(how, first):
    """A text of two rows beside one of a single row, which every pooling but the first two gives back."""
    found = pool(TWO, (how,))
    assert found.dtype == np.float32 and found.shape == (2, 2)
    assert np.allclose(found, [first, (7, 7)], rtol=1e-7)


def test_several_side_by_side():
    assert pool(TWO, ("cls", "max", "mean")).tolist() == [[2, -1, 4, 5, 3, 2], [7, 7, 7, 7, 7, 7]]


@pytest.mark.parametrize(("how", "expected"), [
    ("mean", (5, 6)),
    ("max", (6, 7)),
    ("cls", (1, 2)),
    ("last", (6, 7)),
    ("mean_sqrt_len", (10 / 2**0.5, 12 / 2**0.5)),
    ("weightedmean", ((3 * 4 + 4 * 6) / 7, (3 * 5 + 4 * 7) / 7)),
])
def test_a_prompt_of_two_tokens_that_is_left_out(how, expected):
    """Weights go by the position in the whole text."""
    found = pool(hidden([(1, 2), (3, 9), (4, 5), (6, 7)]), (how,), skip=2)
    assert np.allclose(found, [expected], rtol=1e-6)


def test_a_text_that_is_all_prompt_keeps_its_last_token():
    assert pool(hidden([(1, 2), (3, 4)]), ("mean", "max"), skip=5).tolist() == [[3, 4, 3, 4]]


@pytest.mark.parametrize("how", ["mean", "mean_sqrt_len", "weightedmean", "max", "cls", "last"])
def test_the_same_bits_alone_and_in_any_company(how):
    rng = np.random.default_rng(7)
    texts = [rng.standard_normal((n, 48)).astype(np.float32) for n in (1, 2, 3, 17, 130, 600, 5, 1)]
    together = normalized(pool(hidden(*texts), (how,), skip=1))
    for i, text in enumerate(texts):
        assert np.array_equal(normalized(pool(hidden(text), (how,), skip=1)), together[i : i + 1])
    assert np.array_equal(normalized(pool(hidden(*texts[::-1]), (how,), skip=1))[::-1], together)


def test_normalised():
    found = normalized(np.array([[3, 2], [0, 0], [-5, 0]], np.float32))
    assert np.allclose(found, [(0.8320503, 0.5547002), (0, 0), (-1, 0)], atol=1e-7) and found.dtype == np.float32
    assert np.array_equal(normalized(np.array([[1e30, 1e30]], np.float32)), np.float32([[0.5**0.5] * 2]))


def test_a_vector_of_many_is_normalised_as_alone():
    many = np.random.default_rng(1).standard_normal((NEAR + 3, 40)).astype(np.float32)
    found = normalized(many)
    assert np.array_equal(found, np.concatenate([normalized(one[None]) for one in many]))
    assert np.allclose(np.linalg.norm(found, axis=1), 1, atol=1e-6)


def test_int8():
    """By the greatest number of each vector alone: 127 / 2 and 127 / 0.5."""
    found = as_int8(np.array([[1, -2, 0.2], [0.5, 0.25, -0.125], [0, 0, 0]], np.float32))
    assert found.dtype == np.int8 and found.tolist() == [[64, -127, 13], [127, 64, -32], [0, 0, 0]]


def test_bits():
    found = as_bits(np.array([[1, -1, 0.5, 0, -0.1, 3, 2, -7, 1e-9, -1]], np.float32))
    assert found.dtype == np.uint8 and found.tolist() == [[0b10100110, 0b10000000]]
