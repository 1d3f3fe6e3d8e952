"""Texts and pairs within a limit: what is cut, what stays, and that ids, types and offsets are cut together."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from forwardpass.errors import ContextLengthError, ParameterError
from forwardpass.stages.texts import Limit, count_tokens, encode_texts, fill_template, split_texts
from forwardpass.weights.vocabulary import tokenizer_from_directory
from word_tokenizer import CLS, SEP, backend, word_id, write


def words(*numbers):
    return " ".join(f"w{i}" for i in numbers)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return tokenizer_from_directory(write(tmp_path_factory.mktemp("words")))


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """Adds no special tokens."""
    return tokenizer_from_directory(write(tmp_path_factory.mktemp("plain"), special=False))


def encode(tokenizer, text, tokens, truncation="right", pairs="longest_first", types=True, **options):
    return encode_texts(tokenizer, [text], Limit(tokens, truncation, pairs), types=types, offsets=True, **options)[0]


def test_a_text_that_fits_is_whole(tokenizer):
    found = encode(tokenizer, words(1, 2, 3), 5)
    assert found.ids == [CLS, word_id(1), word_id(2), word_id(3), SEP] and found.types == [0] * 5
    assert (found.cut, found.kept) == (0, None)


@pytest.mark.parametrize(("side", "kept"), [("right", range(1, 7)), ("left", range(17, 23))])
def test_only_content_is_cut(tokenizer, side, kept):
    """22 words and a limit of 8: six of them stay between [CLS] and [SEP]."""
    found = encode(tokenizer, words(*range(1, 23)), 8, side)
    assert found.ids == [CLS, *map(word_id, kept), SEP] and found.cut == 16
    text = words(*range(1, 23))
    assert [text[a:b] for a, b in found.pick("offsets")][1:-1] == [f"w{i}" for i in kept]
    assert found.pick("sequence_ids") == [None, *[0] * 6, None]


def test_without_special_tokens_all_of_the_limit_is_content(plain):
    assert encode(plain, words(*range(1, 10)), 3).ids == [word_id(1), word_id(2), word_id(3)]
    assert encode(plain, words(*range(1, 10)), 3, "left").ids == [word_id(7), word_id(8), word_id(9)]


def test_the_limit_in_tokenizer_json_does_not_count(tokenizer):
    assert len(encode(tokenizer, words(*range(1, 21)), 512).ids) == 22


def test_types_of_a_pair(tokenizer):
    found = encode(tokenizer, (words(1, 2), words(3)), 20)
    assert found.ids == [CLS, word_id(1), word_id(2), SEP, word_id(3), SEP] and found.types == [0, 0, 0, 0, 1, 1]
    assert encode(tokenizer, (words(1, 2), words(3)), 20, types=False).types is None


@pytest.mark.parametrize(("pairs", "side", "first", "second"), [
    ("only_second", "right", [1, 2, 3], [4, 5, 6, 7]),
    ("only_second", "left", [1, 2, 3], [21, 22, 23, 24]),
    ("longest_first", "left", [1, 2, 3], [21, 22, 23, 24]),
    ("longest_first", "right", [1, 2, 3], [4, 5, 6, 7]),
])
def test_a_pair_of_3_and_21_tokens_in_10(tokenizer, pairs, side, first, second):
    found = encode(tokenizer, (words(1, 2, 3), words(*range(4, 25))), 10, side, pairs)
    assert found.ids == [CLS, *map(word_id, first), SEP, *map(word_id, second), SEP]
    assert found.types == [0] * 5 + [1] * 5 and found.cut == 17


def test_longest_first_shares_what_is_left(tokenizer):
    """Room for 7 of 9 and 12 tokens: half each, the odd one to the longer text."""
    found = encode(tokenizer, (words(*range(1, 10)), words(*range(10, 22))), 10)
    assert found.types == [0] * 5 + [1] * 5
    found = encode(tokenizer, (words(*range(10, 22)), words(*range(1, 10))), 10)
    assert found.types == [0] * 6 + [1] * 4


def test_longest_first_is_that_of_the_tokenizers_library(tokenizer):
    reference = backend()
    rng = np.random.default_rng(3)
    for _ in range(150):
        a, b, limit = (int(rng.integers(0, 25)), int(rng.integers(0, 25)), int(rng.integers(3, 40)))
        reference.enable_truncation(limit, strategy="longest_first")
        pair = (words(*range(1, a + 1)), words(*range(1, b + 1)))
        expected = reference.encode(*pair)
        found = encode(tokenizer, pair, limit)
        assert (found.ids, found.types) == (expected.ids, expected.type_ids), (a, b, limit)


@pytest.mark.parametrize(("pairs", "text", "words_in_it"), [
    ("only_second", (words(*range(1, 10)), words(1)), "9"),
    ("only_first", (words(1), words(*range(1, 10))), "9"),
])
def test_the_text_that_may_not_be_cut_is_too_long(tokenizer, pairs, text, words_in_it):
    with pytest.raises(ContextLengthError, match=rf"{pairs}.*{words_in_it} alone.*8"):
        encode(tokenizer, text, 8, pairs=pairs)


def test_a_limit_below_the_special_tokens(tokenizer):
    assert encode(tokenizer, words(1, 2), 2).ids == [CLS, SEP]
    with pytest.raises(ContextLengthError, match="2 tokens that cannot be left out; the limit is 1"):
        encode(tokenizer, words(1, 2), 1)


def test_refusing_to_cut(tokenizer):
    with pytest.raises(ContextLengthError, match=r"text 1 has 6 tokens, the limit is 5"):
        encode_texts(tokenizer, [words(1), words(1, 2, 3, 4)], Limit(5, "error"), types=True)


def test_texts_without_tokens(tokenizer, plain):
    assert encode(tokenizer, "", 5).ids == [CLS, SEP]
    with pytest.raises(ParameterError, match="text 1 has no tokens"):
        encode_texts(plain, [words(1), ""], Limit(5), types=False)
    with pytest.raises(ParameterError, match="text 0 has no tokens"):
        split_texts(plain, [""], Limit(5), 0, types=False)


def test_a_prompt_stays_where_the_left_is_cut(tokenizer):
    found = encode(tokenizer, words(*range(1, 10)), 6, "left", keep=3)
    assert found.ids == [CLS, word_id(1), word_id(2), word_id(8), word_id(9), SEP]


@pytest.mark.parametrize("change", [{"truncation": "middle"}, {"truncation": None}, {"pairs": "second"}])
def test_words_for_truncation(change):
    with pytest.raises(ParameterError, match="must be one of"):
        Limit(5, **change)


def test_the_text_with_a_lone_surrogate_is_named(tokenizer):
    with pytest.raises(ParameterError, match=r"text 2.*surrogate"):
        encode_texts(tokenizer, ["a", "b", "\ud800"], Limit(5), types=True)


# ---- parts


def test_parts_overlap(tokenizer):
    parts, owners = split_texts(tokenizer, [words(*range(1, 10)), words(1)], Limit(6), 1, types=True)
    assert [part.ids[1:-1] for part in parts] == [
        [word_id(i) for i in mine] for mine in ([1, 2, 3, 4], [4, 5, 6, 7], [7, 8, 9], [1])]
    assert owners == [0, 0, 0, 1] and all(part.ids[0] == CLS and part.ids[-1] == SEP for part in parts)


@pytest.mark.parametrize("count", range(10))
@pytest.mark.parametrize("overlap", range(4))
def test_every_token_is_in_a_part(tokenizer, count, overlap):
    parts, _ = split_texts(tokenizer, [words(*range(1, count + 1))], Limit(6), overlap, types=True)
    inside = [part.ids[1:-1] for part in parts]
    assert all(len(one) <= 4 for one in inside) and (len(inside) == 1) == (count <= 4)
    joined = inside[0]
    for one in inside[1:]:
        assert one[:overlap] == joined[len(joined) - overlap :] and len(one) > overlap
        joined = joined + one[overlap:]
    assert joined == [word_id(i) for i in range(1, count + 1)]


@pytest.mark.parametrize(("name", "value"), [("AT_ONCE", 3), ("LETTERS_AT_ONCE", 12)])
def test_many_texts_are_tokenised_some_at_a_time(tokenizer, monkeypatch, name, value):
    monkeypatch.setattr(f"forwardpass.stages.texts.{name}", value)
    many = [words(i % 7 + 1, 2) for i in range(10)]
    found = encode_texts(tokenizer, many, Limit(8), types=True)
    assert [one.ids for one in found] == [encode(tokenizer, text, 8).ids for text in many]
    assert all(one.encoding is None for one in found)
    assert split_texts(tokenizer, many, Limit(3), 0, types=True)[1] == [i for i in range(10) for _ in "ab"]
    with pytest.raises(ParameterError, match=r"text 8: .*surrogate"):
        encode_texts(tokenizer, [*many[:8], "\ud800"], Limit(8), types=True)
    with pytest.raises(ParameterError, match=r"text 6: .*surrogate"):
        encode_texts(tokenizer, [*many[:6], "\ud800"], Limit(8), types=True)
    with pytest.raises(ContextLengthError, match="text 10 has 5 tokens"):
        encode_texts(tokenizer, [*many, words(1, 2, 3)], Limit(4, "error"), types=True)


def test_tokens_are_counted(tokenizer, monkeypatch):
    monkeypatch.setattr("forwardpass.stages.texts.AT_ONCE", 2)
    assert count_tokens(tokenizer, [words(1, 2, 3), "", words(4), "un unhappy", words(5)]) == 5 + 2 + 3 + 5 + 3


def test_large_texts_take_turns(tokenizer, monkeypatch):
    """Of eight threads with a large text each no more than two have one tokenised, in pairs and templates too; small
    texts wait for nobody, and an error gives the turn back."""
    inside, most, lock = 0, 0, threading.Lock()
    encode_batch = type(tokenizer).encode_batch

    def counted(self, texts, **more):
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)
        time.sleep(0.01)
        try:
            return encode_batch(self, texts, **more)
        finally:
            with lock:
                inside -= 1

    monkeypatch.setattr(type(tokenizer), "encode_batch", counted)
    large = words(*([1, 2, 3] * 3000))
    with ThreadPoolExecutor(8) as threads:
        done = [threads.submit(encode_texts, tokenizer, [given], Limit(9, "right"), types=True)
                for given in [large, (large, "w1")] * 8]
        for one in done:
            assert len(one.result()[0].ids) == 9
        assert most == 2
        failing = [threads.submit(encode_texts, tokenizer, [large], Limit(9, "error"), types=True) for _ in range(8)]
        assert all(isinstance(one.exception(), ContextLengthError) for one in failing)
        assert len(encode_texts(tokenizer, [large], Limit(9), types=True)[0].ids) == 9
        most = 0
        for one in [threads.submit(encode_texts, tokenizer, ["w1"], Limit(9), types=True) for _ in range(32)]:
            one.result()
        assert most > 2


def test_a_long_text_is_split_in_one_go(tokenizer):
    """60,000 tokens in 20,000 parts: looking at all tokens for each part would take minutes."""
    parts, _ = split_texts(tokenizer, [words(*([1, 2, 3] * 20_000))], Limit(5), 0, types=True)
    assert len(parts) == 20_000 and all(part.ids == parts[0].ids for part in parts)


def test_every_part_has_the_prompt(tokenizer):
    parts, _ = split_texts(tokenizer, [words(*range(1, 8))], Limit(5), 0, types=True, keep=2)
    assert [part.ids for part in parts] == [
        [CLS, word_id(1), word_id(a), word_id(b), SEP] for a, b in ((2, 3), (4, 5), (6, 7))]


@pytest.mark.parametrize("overlap", [4, -1, 100])
def test_overlaps_that_lead_nowhere(tokenizer, overlap):
    with pytest.raises(ParameterError, match="overlap must be from 0 to 3"):
        split_texts(tokenizer, [words(1)], Limit(6), overlap, types=True)


# ---- templates


def test_a_template_makes_special_tokens_and_its_values_do_not(tokenizer):
    values = {"query": "w1 [SEP]", "document": "w2"}
    found = fill_template(tokenizer, "{query} [SEP] {document}", values, "document", Limit(20))
    unknown = [i for i in found.ids if i not in (CLS, SEP, word_id(1), word_id(2))]
    assert found.ids[:2] == [CLS, word_id(1)] and found.ids[-3:] == [SEP, word_id(2), SEP]
    assert found.ids.count(SEP) == 2 and len(unknown) == 3  # "[", "sep" and "]", none of them a word


@pytest.mark.parametrize(("side", "kept"), [("right", [2, 3, 4]), ("left", [8, 9, 10])])
def test_a_template_cuts_the_document(tokenizer, side, kept):
    values = {"query": "w1", "document": words(*range(2, 11))}
    found = fill_template(tokenizer, "{query} is {document}", values, "document", Limit(7, side))
    assert found.ids == [CLS, word_id(1), 36, *map(word_id, kept), SEP] and found.cut == 6
    with pytest.raises(ContextLengthError, match="5 tokens, the limit is 3"):
        fill_template(tokenizer, "{query} is {query}{document}", values | {"document": ""}, "document", Limit(3, side))
    with pytest.raises(ContextLengthError, match="13 tokens, the limit is 7"):
        fill_template(tokenizer, "{query} is {document}", values, "document", Limit(7, "error"))
