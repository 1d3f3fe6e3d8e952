"""Scores of labels, by hand."""

import numpy as np
import pytest

from forwardpass.errors import ParameterError
from forwardpass.stages.labels import activate, activation_for, best_first, ranked


def test_activations():
    """e^1.5 = 4.4817: of logits 1.5 and 0 the softmax is .8176/.1824; the sigmoids are .8176 and .5."""
    scores = np.array([1.5, 0.0], np.float32)
    assert np.allclose(activate(scores, "softmax"), [0.81757448, 0.18242552])
    assert np.allclose(activate(scores, "sigmoid"), [0.81757448, 0.5])
    assert activate(scores, "none").tolist() == [1.5, 0.0]
    with pytest.raises(ParameterError, match=r"softmax, sigmoid, none.*'tanh'"):
        activate(scores, "tanh")


def test_activations_of_large_scores():
    scores = np.array([[900.0, -900.0, 0.0]], np.float32)
    with np.errstate(all="raise", under="ignore"):
        assert activate(scores, "softmax").tolist() == [[1.0, 0.0, 0.0]]
        assert activate(scores, "sigmoid").tolist() == [[1.0, 0.0, 0.5]]


@pytest.mark.parametrize(("problem", "outputs", "own", "expected"), [
    (None, 3, None, "softmax"), ("single", 2, None, "softmax"), ("multi", 3, None, "sigmoid"),
    (None, 1, None, "sigmoid"), ("single", 1, None, "sigmoid"), ("regression", 1, None, "none"),
    ("regression", 3, None, "none"), (None, 1, "none", "none"), ("regression", 1, "sigmoid", "none"),
    (None, 3, "none", "softmax"),
])
def test_which_activation(problem, outputs, own, expected):
    assert activation_for(problem, outputs, own) == expected


def test_one_label_is_not_a_certainty():
    """The softmax of one score is always 1."""
    assert np.isclose(activate(np.float32([1.5]), activation_for(None, 1))[0], 0.81757448)
    assert activate(np.float32([1.5]), activation_for("regression", 1))[0] == 1.5


def test_order():
    scores = np.array([0.1, 0.4, 0.4, 0.1, 0.9])
    assert best_first(scores, None) == [4, 1, 2, 0, 3]
    assert [best_first(scores, k) for k in (1, 2, 3, 4, 9)] == [[4], [4, 1], [4, 1, 2], [4, 1, 2, 0], [4, 1, 2, 0, 3]]
    assert ranked("abcde", scores, 2) == [("e", 0.9), ("b", 0.4)]


def test_the_best_few_are_the_first_of_all():
    rng = np.random.default_rng(1)
    for _ in range(50):
        scores = rng.integers(0, 6, 40).astype(float)
        k = int(rng.integers(1, 40))
        assert best_first(scores, k) == best_first(scores, None)[:k]
