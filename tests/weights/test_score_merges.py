"""Merges made from scores, against the rule of SentencePiece followed literally."""

import itertools
import random

import numpy as np
import pytest
from tokenizers import models

from forwardpass.weights.score_merges import merges_from_scores


def literal(text, scores):
    """Join the two neighbours of the best score, the leftmost first, until none is left."""
    parts = list(text)
    while len(parts) > 1:
        joined = [scores.get(a + b, -np.inf) for a, b in itertools.pairwise(parts)]
        at = int(np.argmax(joined))
        if joined[at] == -np.inf:
            break
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return parts


def build_for(tokens):
    vocab = {token: i for i, token in enumerate(tokens)}
    return lambda merges: models.BPE(vocab=vocab, merges=merges)


@pytest.mark.parametrize("letters", ["ab", "abc", "ab▁猫"])
@pytest.mark.parametrize("trained", [True, False])
def test_random_vocabularies(letters, trained):
    """trained: every token scores less than its parts, as training makes them; otherwise scores are in any order."""
    rng = random.Random(f"{letters}{trained}")
    for _ in range(40):
        tokens = list(letters)
        for _ in range(rng.randint(1, 25)):
            new = rng.choice(tokens) + rng.choice(tokens)
            if new not in tokens and len(new) < 12:
                tokens.append(new)
        scores = [-float(i) for i in range(len(tokens))]
        if not trained:
            rng.shuffle(scores)
        merges, model = merges_from_scores(tokens, np.array(scores), build_for(tokens))
        score_of = dict(zip(tokens, scores, strict=True))
        for _ in range(60):
            text = "".join(rng.choice(letters) for _ in range(rng.randint(1, 24)))
            assert [piece.value for piece in model.tokenize(text)] == literal(text, score_of), (text, score_of)
        assert len(set(merges)) == len(merges)


def test_one_merge_a_token():
    tokens = ["a", "b", "c", "ab", "bc", "abc"]
    merges, _ = merges_from_scores(tokens, np.array([0, 0, 0, -1, -2, -3]), build_for(tokens))
    assert merges == [("a", "b"), ("b", "c"), ("ab", "c")]
    merges, _ = merges_from_scores(tokens, np.array([0, 0, 0, -2, -1, -3]), build_for(tokens))
    assert merges == [("b", "c"), ("a", "b"), ("a", "bc")]


def test_tokens_that_are_never_reached():
    """In "aba" the better "ab" leaves "ba" no chance, so "xaba" is never made."""
    tokens = ["a", "b", "ab", "ba", "xaba"]
    merges, model = merges_from_scores(tokens, np.array([0, 0, -1, -2, -3]), build_for(tokens))
    assert merges == [("a", "b"), ("b", "a")]
    assert [piece.value for piece in model.tokenize("aba")] == ["ab", "a"]


def test_none():
    merges, _ = merges_from_scores([], np.array([]), build_for([]))
    assert merges == []
    assert merges_from_scores(["a", "b"], np.array([0.0, 0.0]), build_for(["a", "b"]))[0] == []
