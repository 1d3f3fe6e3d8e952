"""Labels of tokens and guesses of masks, against torch and transformers' pipelines."""

from functools import partial

import numpy as np
import pytest

import forwardpass
import tiny_readers
from forwardpass import ContextLengthError, ParameterError, UnsupportedModelError
from tiny_readers import ids_of, some_words, torch_scores, words

load = partial(forwardpass.load, dtype="float32")
NAMES = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
TEXT = "Paris  is in France, unhappy w1 w2w3 parises\tw4.  w5"


def softmax(x):
    x = np.exp(x - x.max(-1, keepdims=True))
    return x / x.sum(-1, keepdims=True)


@pytest.fixture(scope="module")
def tags():
    return tiny_readers.make("tags", 5)


@pytest.fixture(scope="module")
def model(tags, tmp_path_factory):
    names = {str(i): name for i, name in enumerate(NAMES)}
    with load(tiny_readers.save(tags, tmp_path_factory.mktemp("tags"), id2label=names)) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def masked():
    return tiny_readers.make("lm")


@pytest.fixture(scope="module")
def guesser(masked, tmp_path_factory):
    with load(tiny_readers.save(masked, tmp_path_factory.mktemp("masked"))) as loaded:
        yield loaded


# ---- entities


def test_tokens_by_themselves(model, tags):
    found = model.token_classify(TEXT, aggregation="none", ignore=())
    scores = softmax(torch_scores(tags, ids_of(TEXT)[0])[1:-1])
    assert [one.label for one in found] == [NAMES[i] for i in scores.argmax(1)]
    assert np.allclose([one.score for one in found], scores.max(1), atol=2e-6)
    assert [one.text for one in found] == ["Paris", "is", "in", "France", ",", "un", "happy", "w1", "w2w3", "paris",
                                           "es", "w4", ".", "w5"]
    assert all(TEXT[one.start : one.end] == one.text for one in found)


@pytest.mark.parametrize("aggregation", ["none", "simple", "first", "average", "max"])
def test_as_the_pipeline_of_transformers(model, tags, aggregation):
    import transformers

    tags.config.id2label = dict(enumerate(NAMES))
    tokenizer = transformers.AutoTokenizer.from_pretrained(model.path)
    pipeline = transformers.pipeline("token-classification", model=tags, tokenizer=tokenizer,
                                     aggregation_strategy=aggregation)
    for text in (TEXT, some_words(25, 3), "w1", "unhappy parises unhappy"):
        theirs = [(one.get("entity_group", one.get("entity")), one["start"], one["end"], float(one["score"]))
                  for one in pipeline(text)]
        ours = [(one.label, one.start, one.end, one.score) for one in model.token_classify(
            text, aggregation=aggregation)]
        assert [one[:3] for one in ours] == [one[:3] for one in theirs]
        assert np.allclose([one[3] for one in ours], [one[3] for one in theirs], atol=1e-5)


def test_several_texts_the_same_bits_alone(model):
    texts = [TEXT, "w1", some_words(20), "w1 w2"]
    found = model.token_classify(texts, aggregation="words", ignore=())
    assert [model.token_classify(text, aggregation="words", ignore=()) for text in texts] == found
    assert model.token_classify(texts[::-1], aggregation="words", ignore=()) == found[::-1]
    assert model.token_classify("") == [] and model.token_classify(["", TEXT])[0] == []


def test_a_long_text_is_cut_or_split(model, tags):
    """30 words in parts of 8 tokens that share 4: each word is labelled where more of the text is around it."""
    text = words(*range(1, 31))
    with pytest.warns(UserWarning, match=r"longer than 10 tokens.*22 tokens left out"):
        cut = model.token_classify(text, aggregation="none", ignore=(), max_length=10)
    assert [one.text for one in cut] == [f"w{i}" for i in range(1, 9)]
    found = model.token_classify(text, aggregation="none", ignore=(), max_length=10, overlap=4)
    assert [one.text for one in found] == [f"w{i}" for i in range(1, 31)]
    parts = [range(first, min(first + 8, 31)) for first in range(1, 26, 4)]
    for word in range(1, 31):
        around = {part: min(word - part[0] if part[0] > 1 else 99, part[-1] - word if part[-1] < 30 else 99)
                  for part in parts if word in part}
        best = max(around, key=around.get)
        scores = softmax(torch_scores(tags, ids_of(words(*best))[0]))[best.index(word) + 1]
        assert np.isclose(found[word - 1].score, scores.max(), atol=2e-6), word
    assert model.token_classify("w1 w2", overlap=4) == model.token_classify("w1 w2")


def test_wrong_arguments(model):
    for change, words_in_it in (
            ({"aggregation": "last"}, "aggregation must be one of"), ({"ignore": "O"}, "ignore must be a list"),
            ({"ignore": [1]}, "ignore must be a list"), ({"ignore": None}, "ignore must be a list"),
            ({"ignore": 3}, "ignore must be a list"), ({"overlap": 1, "truncation": "left"}, "one of them"),
            ({"text": []}, "empty list"), ({"text": [1]}, "int at 0"), ({"overlap": 99}, "overlap must be from 0")):
        with pytest.raises(ParameterError, match=words_in_it):
            model.token_classify(**{"text": "w1", **change})
    with pytest.raises(ContextLengthError, match="43 tokens"):
        model.token_classify(some_words(41), truncation="error")


def test_labels_to_ignore_may_come_once(model):
    texts = [some_words(9, 1), some_words(9, 2)]
    found = model.token_classify(texts, aggregation="none", ignore=NAMES[:2])
    assert found == model.token_classify(texts, aggregation="none", ignore=iter(NAMES[:2]))
    assert all(len(one) < 9 for one in found)


def test_raw_scores(model, tags):
    ids, _ = ids_of("w1 w2")
    assert np.allclose(model.logits(ids), torch_scores(tags, ids), atol=1e-5)
    assert model.tasks == ("embed", "token_classify", "logits", "hidden_states")


# ---- masks


def test_guesses_against_the_pipeline_of_transformers(guesser, masked):
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(guesser.path)
    pipeline = transformers.pipeline("fill-mask", model=masked, tokenizer=tokenizer, top_k=7)
    for text in ("w1 [MASK] w3", "Paris is in [MASK]."):
        (ours,), theirs = guesser.fill_mask(text, top_k=7), pipeline(text)
        assert [one.token_id for one in ours] == [one["token"] for one in theirs]
        assert np.allclose([one.score for one in ours], [one["score"] for one in theirs], atol=1e-5)
    two, theirs = guesser.fill_mask("[MASK] is [MASK]"), pipeline("[MASK] is [MASK]", top_k=5)
    assert [[one.token_id for one in mask] for mask in two] == [[one["token"] for one in mask] for mask in theirs]


def test_candidates(guesser, masked):
    (found,) = guesser.fill_mask("Paris is\n[MASK] , w1", top_k=46)
    scores = softmax(torch_scores(masked, ids_of("Paris is\n[MASK] , w1")[0])[3])
    assert [one.token_id for one in found] == np.argsort(-scores, kind="stable").tolist()
    assert np.allclose([one.score for one in found], np.sort(scores)[::-1], atol=2e-6)
    written = {one.token: one.text for one in found}
    assert written["w9"] == "Paris is\nw9 , w1" and written["##happy"] == "Paris is\nhappy , w1"
    assert len(guesser.fill_mask("[MASK]", top_k=500)[0]) == 46 and len(guesser.fill_mask("[MASK]")[0]) == 5


def test_several_texts_and_masks(guesser):
    texts = ["[MASK] w1", "w1 w2 [MASK] w3 [MASK] w4", "w5 [MASK]"]
    found = guesser.fill_mask(texts)
    assert [len(masks) for masks in found] == [1, 2, 1]
    assert [guesser.fill_mask(text) for text in texts] == found and guesser.fill_mask(texts[::-1]) == found[::-1]
    assert found[1][0][0].text == texts[1].replace("[MASK]", found[1][0][0].token.removeprefix("##"), 1)
    assert found[1][1][0].text.startswith("w1 w2 [MASK] w3 ")


def test_masks_that_are_missing_or_cut(guesser):
    with pytest.raises(ParameterError, match=r"text 1: expected at least one \[MASK\].*'w1 <mask>'"):
        guesser.fill_mask(["[MASK]", "w1 <mask>"])
    with pytest.warns(UserWarning, match="cut on the right"), pytest.raises(ParameterError, match="was cut off"):
        guesser.fill_mask(words(1, 2, 3, 4) + " [MASK]", max_length=5)
    with pytest.warns(UserWarning, match="cut on the left"):
        (left,) = guesser.fill_mask(words(1, 2, 3, 4) + " [MASK]", max_length=5, truncation="left")
    assert [one.token_id for one in left] == [one.token_id for one in guesser.fill_mask("w3 w4 [MASK]")[0]]
    assert left[0].text == "w1 w2 w3 w4 " + left[0].token.removeprefix("##")
    for wrong in (0, None, 2.5):
        with pytest.raises(ParameterError, match="top_k"):
            guesser.fill_mask("[MASK]", top_k=wrong)


def test_a_masked_model_does_not_generate(guesser, masked):
    assert guesser.tasks == ("embed", "fill_mask", "logits", "hidden_states")
    with pytest.raises(UnsupportedModelError, match="cannot generate"):
        guesser.generate([1, 2])
    ids, types = ids_of("w1", "w2 w3")
    assert np.allclose(guesser.logits(ids), torch_scores(masked, ids), atol=1e-5)
    assert np.allclose(guesser.logits(ids, types), torch_scores(masked, ids, types), atol=1e-5)
