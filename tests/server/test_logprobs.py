"""Log-probabilities in the forms of the API: tokens as texts and bytes, and where they begin."""

import math
import tracemalloc

import numpy as np
import pytest

import scripted
from forwardpass.decoding import sampler
from forwardpass.server.errors import ApiError
from forwardpass.server.generation import MAX_LOGPROBS, Length, _share_of_logprobs
from forwardpass.server.logprobs import CompletionRows, Offsets, TokenTexts, prompt_offsets
from forwardpass.server.prompt_scores import PromptScores
from forwardpass.weights.vocabulary import tokenizer_from_directory

SPLIT = "ď猫🌶!".encode()  # 2 + 3 + 4 + 1 tokens


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bytes")
    scripted.tiny_chat.write(folder, bos=True)
    return tokenizer_from_directory(folder)


@pytest.fixture
def ids(tokenizer):
    return lambda data: scripted.tokens_of(tokenizer, data)


# ---- tokens as texts


def test_texts_of_tokens(tokenizer, ids):
    texts = TokenTexts(tokenizer)
    (letter,), (part,) = ids(b"x"), ids(b"\xe7")
    assert (texts.text(letter), texts.distinct(letter), texts.bytes_of(letter)) == ("x", "x", b"x")
    assert (texts.text(part), texts.distinct(part)) == ("\N{REPLACEMENT CHARACTER}", "bytes:\\xe7")
    assert texts.bytes_of(part) == b"\xe7"
    assert texts.text(258) == texts.distinct(258) == "<|im_start|>"


def test_texts_without_a_tokenizer():
    texts = TokenTexts(None)
    assert (texts.text(5), texts.distinct(5), texts.bytes_of(5)) == ("token_id:5", "token_id:5", None)
    assert texts.entry(5, -1.0, {}).bytes is None


def test_texts_of_a_vocabulary_that_is_no_bytes():
    class Words:
        decodes_bytes = False

        def id_to_token(self, token):
            return {0: "zero"}.get(token)

    texts = TokenTexts(Words())
    assert (texts.text(0), texts.distinct(0), texts.bytes_of(0), texts.text(1)) == ("zero", "zero", None, "token_id:1")


def test_an_entry_of_a_chat(tokenizer, ids):
    (letter,), (part,) = ids(b"x"), ids(b"\xe7")
    entry = TokenTexts(tokenizer).entry(part, -0.5, {letter: -0.25, part: -0.5})
    assert (entry.logprob, entry.bytes, [one.token for one in entry.top_logprobs]) == (-0.5, [0xE7], [
        "x", "\N{REPLACEMENT CHARACTER}"])
    assert [one.logprob for one in entry.top_logprobs] == [-0.25, -0.5]


def test_what_is_impossible_can_be_written(tokenizer):
    """JSON knows no infinity."""
    entry = TokenTexts(tokenizer).entry(5, -math.inf, {6: -math.inf})
    assert entry.logprob == entry.top_logprobs[0].logprob == -9999.0


def test_rows_of_a_completion(tokenizer, ids):
    first, second, part = ids(b"xy\xe7")
    rows = CompletionRows(TokenTexts(tokenizer), top=True)
    rows.add(first, None, None, 0)
    rows.add(second, -1.0, {first: -0.5}, 1)  # the token itself is shown beside the likeliest
    rows.add(part, -0.5, {part: -0.5, second: -2.0}, 2)
    assert len(rows) == 3
    taken = rows.take()
    assert (taken.tokens, taken.token_logprobs, taken.text_offset) == (["x", "y", "bytes:\\xe7"], [None, -1.0, -0.5],
                                                                       [0, 1, 2])
    assert taken.top_logprobs == [None, {"x": -0.5, "y": -1.0}, {"bytes:\\xe7": -0.5, "y": -2.0}]
    assert len(rows) == 0 and rows.take().tokens == []


def test_rows_without_likeliest_tokens(tokenizer):
    rows = CompletionRows(TokenTexts(tokenizer), top=False)
    rows.add(5, -1.0, {}, 0)
    assert rows.take().top_logprobs is None


def test_tokens_written_alike_show_the_likeliest():
    class Twins:
        decodes_bytes = True

        def token_bytes(self, token):
            return b"same" if token < 2 else b"other"

    rows = CompletionRows(TokenTexts(Twins()), top=True)
    rows.add(1, -3.0, {0: -0.5, 2: -1.0}, 0)
    assert rows.take().top_logprobs == [{"same": -0.5, "other": -1.0}]


# ---- where tokens begin


def test_offsets_count_characters(tokenizer, ids):
    offsets = Offsets(tokenizer, 5)
    assert [offsets.push(token) for token in ids(SPLIT)] == [5, 5, 6, 6, 6, 7, 7, 7, 7, 8]
    assert offsets.at == 9


def test_offsets_of_a_prompt(tokenizer, ids):
    """A BOS that the tokenizer put in front is no part of the text; one that was written is."""
    bos = 256
    assert prompt_offsets(tokenizer, "aď", [bos, *ids("aď".encode())]) == ("aď", [0, 0, 1, 1])
    assert prompt_offsets(tokenizer, "<s>a", [bos, *ids(b"a")]) == ("<s>a", [0, 3])
    assert prompt_offsets(tokenizer, None, [bos, *ids(b"a")]) == ("<s>a", [0, 3])
    assert prompt_offsets(None, None, [1, 2]) == ("", [0, 0])


def test_offsets_stay_inside_a_text_that_the_tokenizer_changed(tokenizer, ids):
    assert max(prompt_offsets(tokenizer, "ab", ids(b"abcd"))[1]) == 2


# ---- prompts


def test_scores_of_a_prompt_are_those_of_the_rows():
    rng = np.random.default_rng(3)
    prompt, logits = [3, 1, 4, 1, 5], rng.normal(0, 3, (5, 9)).astype(np.float32)
    scores = PromptScores(prompt, 3, 8)
    scores.take(0, logits[:2])
    scores.take(2, logits[2:])
    found = list(scores)
    assert found[0] == (3, None, None)
    for place in range(1, 5):
        assert found[place] == (prompt[place], *sampler.logprobs(logits[place - 1], prompt[place], 3, 8))


def test_scores_of_a_long_prompt_need_little_memory():
    """20 likeliest tokens of 2,000: 250 bytes a token until they are shown."""
    row = np.random.default_rng(1).normal(0, 1, (1, 1000)).astype(np.float32)
    tracemalloc.start()
    scores = PromptScores([5] * 2000, 20, 1000)
    for place in range(2000):
        scores.take(place, row)
    size, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size < 5.2e5 and peak < 6e5
    assert len(list(scores)) == 2000


@pytest.mark.parametrize(("read", "answers", "asked", "tops", "echoed", "fits"), [
    (10, 1, 8192, 21, 0, True), (10, 2, 8192, 21, 0, False), (10, 128, 97, 21, 0, True), (10, 128, 98, 21, 0, False),
    (8192, 1, 0, 21, 1, True), (8192, 2, 0, 21, 2, False), (10, 1, MAX_LOGPROBS, 1, 0, True),
    (10, 1, MAX_LOGPROBS + 1, 1, 0, False), (10, 128, 10**6, 0, 0, True),
])
def test_how_many_may_be_asked_for(read, answers, asked, tops, echoed, fits):
    """All that one request can make the server hold is bounded, whatever its fields are multiplied with."""
    length = Length(asked, "max_tokens", "prompt", answers, tops, echoed)
    if fits:
        assert _share_of_logprobs(read, answers, length) >= asked
    else:
        with pytest.raises(ApiError, match=str(MAX_LOGPROBS)) as caught:
            _share_of_logprobs(read, answers, length)
        assert (caught.value.status, caught.value.param) == (400, "logprobs")


def test_by_default_answers_are_as_long_as_their_log_probabilities_may_be():
    assert _share_of_logprobs(10, 128, Length(None, "max_tokens", "prompt", 128, 21)) == MAX_LOGPROBS // (128 * 21)
