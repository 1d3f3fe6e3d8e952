"""Texts and pairs as a model reads them, and what the files say of masks and cutting."""

import json

import pytest

import word_tokenizer
from forwardpass.errors import ParameterError
from forwardpass.weights.tokenizer import Tokenizer
from forwardpass.weights.vocabulary import tokenizer_from_directory
from word_tokenizer import CLS, MASK, SEP, word_id


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return tokenizer_from_directory(word_tokenizer.write(tmp_path_factory.mktemp("words")))


def test_texts_and_pairs_together(tokenizer):
    single, pair = tokenizer.encode_batch(["w1 w2", ("w3", "w4")])
    assert single.ids == [CLS, word_id(1), word_id(2), SEP] and single.type_ids == [0] * 4
    assert pair.ids == [CLS, word_id(3), SEP, word_id(4), SEP] and pair.type_ids == [0, 0, 0, 1, 1]
    assert single.sequence_ids == [None, 0, 0, None] and pair.sequence_ids == [None, 0, None, 1, None]


def test_alone_and_among_others(tokenizer):
    texts = ["w1", "w2 unhappy", "", "[SEP] w3 [MASK]"]
    for offsets in (False, True):
        together = tokenizer.encode_batch(texts, offsets=offsets)
        for text, one in zip(texts, together, strict=True):
            assert tokenizer.encode_batch([text])[0].ids == one.ids
    assert together[1].offsets == [(0, 0), (0, 2), (3, 5), (5, 10), (0, 0)]
    assert together[1].word_ids == [None, 0, 1, 1, None]
    assert together[3].ids == [CLS, SEP, word_id(3), MASK, SEP]  # what is written out counts


@pytest.mark.parametrize(("texts", "words"), [
    ([3], "int"), (["w1", None], "text 1.*NoneType"), ([("w1", 2)], "int"), (["w1", "\ud800"], "text 1.*surrogate")])
def test_what_is_no_text(tokenizer, texts, words):
    with pytest.raises(ParameterError, match=words):
        tokenizer.encode_batch(texts)


@pytest.mark.parametrize(("config", "expected"), [
    ({}, MASK), ({"mask_token": {"content": "[MASK]"}}, MASK), ({"mask_token": "w1"}, word_id(1)),
    ({"mask_token": None}, MASK), ({"mask_token": "nowhere"}, MASK)])
def test_the_mask(tmp_path, config, expected):
    """As the files name it, else the usual name."""
    assert tokenizer_from_directory(word_tokenizer.write(tmp_path, **config)).mask_token_id == expected


def test_a_vocabulary_without_a_mask(tmp_path):
    made = json.loads(word_tokenizer.backend().to_str())
    made["added_tokens"] = [token for token in made["added_tokens"] if token["content"] != "[MASK]"]
    (tmp_path / "tokenizer.json").write_text(json.dumps(made))
    assert tokenizer_from_directory(tmp_path).mask_token_id is None


@pytest.mark.parametrize(("config", "side"), [({}, "right"), ({"truncation_side": "left"}, "left"),
                                              ({"truncation_side": "up"}, "right"), ({"truncation_side": 5}, "right")])
def test_the_side_that_is_cut_survives_packing(tmp_path, config, side):
    made = tokenizer_from_directory(word_tokenizer.write(tmp_path, **config))
    again = Tokenizer.from_json(made.to_json())
    assert made.truncation_side == again.truncation_side == side and again.mask_token_id == MASK
    assert again.encode_batch([("w1", "w2")])[0].type_ids == [0, 0, 0, 1, 1]


def test_a_stored_form_from_before(tmp_path):
    """A tokenizer that an older program kept says nothing of it."""
    head, body = tokenizer_from_directory(word_tokenizer.write(tmp_path)).to_json().split("\n", 1)
    facts = json.loads(head)
    del facts["facts"]["truncation_side"]
    assert Tokenizer.from_json(json.dumps(facts) + "\n" + body).truncation_side == "right"
