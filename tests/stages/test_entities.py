"""Tokens to words to entities: by hand, and against transformers' aggregation."""

import numpy as np
import pytest

from forwardpass.contracts import Entity
from forwardpass.errors import ParameterError
from forwardpass.stages.entities import AGGREGATIONS, entities

LABELS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC", "MISC"]
TEXT = "Ada Lovelace met Bab bage in Paris."
#       Ada | Love ##lace | met | Bab | bage | in | Paris | .
OFFSETS = [(0, 3), (4, 8), (8, 12), (13, 16), (17, 20), (21, 25), (26, 28), (29, 34), (34, 35)]
WORDS = [0, 1, 1, 2, 3, 4, 5, 6, 7]


def rows(*picks):
    """(label, its probability) of each token; the rest is shared by the other labels."""
    out = np.full((len(picks), len(LABELS)), 0.0)
    for row, (label, score) in zip(out, picks, strict=True):
        row[:] = (1 - score) / (len(LABELS) - 1)
        row[LABELS.index(label)] = score
    return out


SCORES = rows(("B-PER", 0.9), ("I-PER", 0.8), ("O", 0.6), ("O", 0.9), ("B-PER", 0.7), ("B-PER", 0.5), ("O", 0.9),
              ("I-LOC", 0.8), ("O", 0.9))


def find(aggregation, scores=SCORES, ignore=("O",), text=TEXT, offsets=OFFSETS, words=WORDS):
    return [(one.label, round(one.score, 4), one.text)
            for one in entities(text, offsets, words, scores, LABELS, aggregation, ignore)]


def test_tokens_by_themselves():
    assert find("none") == [("B-PER", 0.9, "Ada"), ("I-PER", 0.8, "Love"), ("B-PER", 0.7, "Bab"),
                            ("B-PER", 0.5, "bage"), ("I-LOC", 0.8, "Paris")]


def test_neighbours_of_one_name_join_until_the_next_begins():
    """Ada and Love are one, Bab and bage both begin; a word may be torn apart."""
    assert find("simple") == [("PER", 0.85, "Ada Love"), ("PER", 0.7, "Bab"), ("PER", 0.5, "bage"),
                              ("LOC", 0.8, "Paris")]


def test_words_by_their_first_token():
    assert find("first") == [("PER", 0.85, "Ada Lovelace"), ("PER", 0.7, "Bab"), ("PER", 0.5, "bage"),
                             ("LOC", 0.8, "Paris")]


def test_words_by_their_surest_token():
    """##lace is O with 0.85, surer than Love's I-PER with 0.8."""
    scores = SCORES.copy()
    scores[2] = rows(("O", 0.85))[0]
    assert find("max", scores)[0] == ("PER", 0.9, "Ada")
    assert find("max")[0] == ("PER", 0.85, "Ada Lovelace")


def test_words_by_the_mean_of_their_tokens():
    """Lovelace: I-PER (0.8 + 0.08) / 2 = 0.44, O (0.04 + 0.6) / 2 = 0.32."""
    assert find("average")[0] == ("PER", 0.67, "Ada Lovelace")


def test_every_word_by_itself():
    assert find("words") == [("B-PER", 0.9, "Ada"), ("I-PER", 0.8, "Lovelace"), ("B-PER", 0.7, "Bab"),
                             ("B-PER", 0.5, "bage"), ("I-LOC", 0.8, "Paris")]


def test_labels_without_a_prefix_join():
    scores = rows(*[("MISC", 0.5)] * 3, *[("O", 0.9)] * 6)
    assert find("simple", scores) == [("MISC", 0.5, "Ada Lovelace")]


def test_what_is_ignored():
    assert find("simple", ignore=("O", "PER")) == [("LOC", 0.8, "Paris")]
    assert find("none", ignore=("B-PER", "O")) == [("I-PER", 0.8, "Love"), ("I-LOC", 0.8, "Paris")]
    assert ("O", 0.9, "met") in find("none", ignore=())


def test_places_are_in_the_text():
    for kind in AGGREGATIONS:
        for one in entities(TEXT, OFFSETS, WORDS, SCORES, LABELS, kind, ()):
            assert isinstance(one, Entity) and TEXT[one.start : one.end] == one.text and one.text


def test_an_entity_has_no_blanks_around_it():
    """Some tokenizers count the blank before a word as its first character."""
    found = entities("to Paris", [(0, 2), (2, 8)], [0, 1], rows(("O", 0.9), ("B-LOC", 0.9)), LABELS, "first", ("O",))
    assert found == [Entity("LOC", 0.9, 3, 8, "Paris")]
    assert entities("a  ", [(0, 1), (1, 3)], [0, 1], rows(("O", 0.9), ("MISC", 0.9)), LABELS, "none", ("O",)) == []


def test_a_tokenizer_without_words():
    """All of one number: then blanks part words."""
    found = find("words", ignore=(), words=[0] * 9)
    assert [text for _, _, text in found] == ["Ada", "Lovelace", "met", "Bab", "bage", "in", "Paris."]


def test_no_tokens_and_an_unknown_aggregation():
    assert entities("", [], [], np.empty((0, 6)), LABELS, "first", ()) == []
    with pytest.raises(ParameterError, match=r"none, simple, first.*'last'"):
        find("last")


@pytest.mark.parametrize("aggregation", ["none", "simple", "first", "average", "max"])
def test_as_transformers_does_it(aggregation):
    """Random scores of words in pieces, through transformers' own functions."""
    from transformers.pipelines.token_classification import AggregationStrategy, TokenClassificationPipeline

    class Words:
        def convert_tokens_to_string(self, tokens):
            return " ".join(tokens)

    pipeline = object.__new__(TokenClassificationPipeline)
    pipeline.tokenizer = Words()
    pipeline.model = type("Model", (), {"config": type("Config", (), {"id2label": dict(enumerate(LABELS))})})
    rng = np.random.default_rng(11)
    for _ in range(30):
        words = np.sort(rng.integers(0, 7, 12)).tolist()
        text, offsets = "", []
        for i, word in enumerate(words):
            text += " " if i and word != words[i - 1] else ""
            offsets.append((len(text), len(text) + 2))
            text += "xy"
        scores = rng.dirichlet(np.ones(len(LABELS)), 12)
        before = [{"word": "xy", "scores": row, "start": start, "end": end, "index": i,
                   "is_subword": i > 0 and words[i] == words[i - 1]}
                  for i, (row, (start, end)) in enumerate(zip(scores, offsets, strict=True))]
        theirs = [(one.get("entity_group", one.get("entity")), one["start"], one["end"], float(one["score"]))
                  for one in pipeline.aggregate(before, AggregationStrategy(aggregation))]
        theirs = [one for one in theirs if one[0] != "O"]
        ours = entities(text, offsets, words, scores, LABELS, aggregation, ("O",))
        assert [(one.label, one.start, one.end) for one in ours] == [one[:3] for one in theirs]
        assert np.allclose([one.score for one in ours], [one[3] for one in theirs], rtol=1e-12)
