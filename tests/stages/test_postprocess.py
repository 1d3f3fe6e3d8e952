"""One answer from logits to text: end tokens, stop strings, hold-back, bad words, log-probabilities."""

import dataclasses
from types import MappingProxyType

import numpy as np
import pytest

from forwardpass.contracts import Completion, Piece
from forwardpass.decoding.params import TokenFacts, from_user
from forwardpass.errors import ParameterError
from forwardpass.stages.postprocess import Choice

VOCAB, BOS, EOS = 260, 256, 257
FACTS = TokenFacts(VOCAB, end_ids=(EOS,), special_ids=frozenset({BOS, EOS, 258, 259}))


class ByteTokenizer:
    """256 byte tokens and <s>, </s>, <|im_start|>, <|im_end|>."""

    decodes_bytes = True
    drops_first_space = ""
    special_ids = FACTS.special_ids
    names = MappingProxyType({256: b"<s>", 257: b"</s>", 258: b"<|im_start|>", 259: b"<|im_end|>"})

    def token_bytes(self, token_id):
        return self.names.get(token_id) or bytes([token_id])

    def decode(self, ids, skip_special_tokens=False):
        return b"".join(self.token_bytes(i) for i in ids).decode("utf-8", "replace")


class WordTokenizer(ByteTokenizer):
    """Token i is the i-th of the given words."""

    def __init__(self, *words):
        self.words = words

    def token_bytes(self, token_id):
        return self.words[token_id].encode()


def peak(token_id, size=VOCAB):
    row = np.zeros(size, np.float32)
    row[token_id] = 9
    return row


def choice(tokenizer=None, facts=FACTS, prompt=(BOS, 104), index=0, **params):
    tokenizer = tokenizer or ByteTokenizer()
    checked = from_user(None, params, vocab_size=facts.vocab_size, encode=lambda text: list(text.encode()))
    return Choice(checked, facts, prompt, tokenizer, index=index)


def words(*texts, facts=None, **params):
    """A choice whose i-th token is texts[i], fed with rows that want 0, 1, 2, ..."""
    one = choice(WordTokenizer(*texts), facts or TokenFacts(len(texts)), [], **params)
    pieces = []
    for i in range(len(texts)):
        if one.finish_reason is None:
            pieces.append(one.accept(peak(i, len(texts))))
    return one, pieces


def say(one, data):
    """Feed rows that want these tokens until it finishes."""
    pieces = []
    for token_id in data:
        if one.finish_reason is None:
            pieces.append(one.accept(peak(token_id)))
    return pieces


def joined(pieces):
    return "".join(piece.text for piece in pieces)


def test_an_end_token_is_in_the_ids_but_not_in_the_text():
    one = choice()
    pieces = say(one, [*b"hi", EOS])
    assert pieces == [Piece("h", 104), Piece("i", 105), Piece("", EOS)]
    assert (one.text, one.token_ids, one.finish_reason) == ("hi", [104, 105, EOS], "stop")


def test_length():
    one = choice(max_new_tokens=3)
    assert joined(say(one, b"abcd")) == one.text == "abc"
    assert one.finish_reason == "length" and len(one.token_ids) == 3


def test_an_end_token_as_the_last_allowed_one_is_a_stop():
    one = choice(max_new_tokens=2)
    say(one, [97, EOS])
    assert one.finish_reason == "stop"


@pytest.mark.parametrize("end", [1, 5, 6])
def test_every_end_token_of_the_model_ends(end):
    one = choice(facts=TokenFacts(VOCAB, end_ids=(1, 5, 6)))
    say(one, [57, end, 57])
    assert (one.text, one.finish_reason) == ("9", "stop")


def test_ignore_eos_and_the_users_own_end_tokens():
    facts = TokenFacts(VOCAB, end_ids=(1, 5, 6))
    one = choice(facts=facts, ignore_eos=True, max_new_tokens=4)
    say(one, [57, 1, 5, 6, 57])
    assert (one.token_ids, one.finish_reason) == ([57, 1, 5, 6], "length")
    one = choice(facts=facts, ignore_eos=True, stop_token_ids=[7])
    say(one, [57, 1, 7])
    assert (one.text, one.finish_reason) == ("9\x01", "stop")
    one = choice(facts=facts, eos_token_id=[], max_new_tokens=2)
    say(one, [1, 5])
    assert one.finish_reason == "length"
    one = choice(facts=facts, eos_token_id=7)
    say(one, [1, 7])
    assert (one.token_ids, one.finish_reason) == ([1, 7], "stop")


def test_min_new_tokens_holds_the_end_off():
    one = choice(min_new_tokens=3)
    say(one, [EOS] * 4)
    assert one.token_ids.count(EOS) == 1 and len(one.token_ids) == 4 and one.finish_reason == "stop"


def test_half_a_character_is_never_shown():
    one = choice(max_new_tokens=20)
    pieces = say(one, [*"ď猫🌶".encode(), EOS])
    assert [piece.text for piece in pieces] == ["", "ď", "", "", "猫", "", "", "", "🌶", ""]


@pytest.mark.parametrize("ending", ["length", "stop", "cancelled"])
def test_an_incomplete_character_becomes_one_replacement(ending):
    tokens = [97, 0xE7, 0x8C]
    one = choice(max_new_tokens=3 if ending == "length" else 9)
    text = joined(say(one, [*tokens, EOS] if ending == "stop" else tokens))
    if ending == "cancelled":
        assert one.finish_reason is None
        text += one.finish("cancelled")
    assert text == one.text == "a\ufffd"
    assert one.finish_reason == ending


def test_stop_string_across_tokens():
    one, pieces = words("ab", "wx", "y", "z!", "q", stop="wxyz")
    assert [piece.text for piece in pieces] == ["ab", "", "", ""]
    assert (one.text, one.finish_reason, one.token_ids) == ("ab", "stop", [0, 1, 2, 3])


def test_stop_string_included():
    one, pieces = words("ab", "wx", "y", "z!", "q", stop="wxyz", include_stop=True)
    assert joined(pieces) == one.text == "abwxyz"


def test_earliest_of_several_stop_strings():
    assert words("ab", "wx", "y", "z!", "q", stop=["yz", "wxyz"])[0].text == "ab"


def test_a_failed_match_is_released():
    one, pieces = words("ab", "wx", "q", stop="wxyz", max_new_tokens=3)
    assert [piece.text for piece in pieces] == ["ab", "", "wxq"]
    assert one.finish_reason == "length"


@pytest.mark.parametrize("facts", [None, TokenFacts(3, end_ids=(2,))])
def test_held_text_is_flushed_at_the_end(facts):
    one, pieces = words("ab", "wx", "y", facts=facts, stop="wxyz", max_new_tokens=3)
    assert joined(pieces) == one.text == ("abwxy" if facts is None else "abwx")
    assert one.finish_reason == ("length" if facts is None else "stop")


def test_stop_text_in_the_prompt_does_not_count():
    one = choice(WordTokenizer("wx", "yz"), TokenFacts(2), [0], stop="wxyz", max_new_tokens=1)
    assert one.accept(peak(1, 2)).text == "yz"
    assert one.finish_reason == "length"


def test_the_stop_string_wins_over_the_length():
    one, _ = words("ab", "c", stop="c", max_new_tokens=2)
    assert (one.text, one.finish_reason) == ("ab", "stop")


def test_stop_string_of_several_bytes_a_character():
    one = choice(stop="猫")
    pieces = say(one, "a猫b".encode())
    assert (joined(pieces), one.text, one.finish_reason) == ("a", "a", "stop")


def test_a_finished_answer_accepts_no_more():
    one = choice(max_new_tokens=1)
    one.accept(peak(97))
    with pytest.raises(ParameterError, match=r"has finished \(length\)"):
        one.accept(peak(97))
    assert one.finish("cancelled") == "" and one.finish_reason == "length"


def test_log_probabilities_are_raw_and_the_same_in_every_mode():
    row = np.zeros(VOCAB, np.float32)
    row[:3] = np.log([50, 30, 20])
    exact = row.astype(np.float64) - np.logaddexp.reduce(row.astype(np.float64))
    params = {"repetition_penalty": 1.5, "logprobs": 2, "max_new_tokens": 6, "suppress_tokens": [0]}
    for more in ({}, {"do_sample": True, "temperature": 0.3, "top_k": 5, "seed": 1}):
        one = choice(**params, **more)
        pieces = [one.accept(row) for _ in range(6)]
        answer = one.completion()
        assert answer.logprobs == [piece.logprob for piece in pieces]
        np.testing.assert_allclose(answer.logprobs, exact[answer.token_ids], atol=1e-6)
        for top in answer.top_logprobs:
            assert list(top) == [0, 1]
            np.testing.assert_allclose(list(top.values()), exact[:2], atol=1e-6)


def test_no_log_probabilities_unless_asked_for():
    one = choice(max_new_tokens=1)
    assert one.accept(peak(97)).logprob is None
    assert (one.completion().logprobs, one.completion().top_logprobs) == (None, None)
    one = choice(max_new_tokens=1, logprobs=True)
    one.accept(peak(97))
    assert len(one.completion().logprobs) == 1 and one.completion().top_logprobs is None


def test_completion():
    one = choice(index=2, max_new_tokens=1)
    one.accept(peak(97))
    assert one.completion(prompt_index=4, timings={"decode": 0.5}) == Completion(
        text="a", token_ids=[97], prompt_token_ids=[BOS, 104], finish_reason="length", timings={"decode": 0.5},
        prompt_index=4, choice_index=2,
    )  # fmt: skip
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.completion().text = "b"


def bad_word_run(bad_words, wanted, steps, **params):
    """A choice over byte tokens that wants `wanted`, and "-" where it may not have that."""
    one = choice(bad_words=bad_words, max_new_tokens=steps, **params)
    for i in range(steps):
        row = np.full(VOCAB, -5, np.float32)
        row[ord("-")] = 5
        row[wanted[i % len(wanted)]] = 20
        one.accept(row)
    return one


def test_bad_words_never_occur_however_they_are_spelled():
    # "cat" as one token is forbidden by its id; spelled as c + at, or ca + t, it is found in the text.
    texts = ["cat", "c", "at", "ca", "t", "-"]
    for path in ([0], [1, 2], [3, 4], [1, 2, 3, 4]):
        params = from_user(None, {"bad_words": ["cat"], "max_new_tokens": 9}, vocab_size=6, encode=lambda text: [0])
        one = Choice(params, TokenFacts(6), [], WordTokenizer(*texts))
        for token_id in path:
            row = peak(token_id, 6)
            row[5] = 1
            one.accept(row)
        assert "cat" not in one.text and "-" in one.text


@pytest.mark.parametrize("params", [{}, {"do_sample": True, "seed": 3}])
def test_bad_words_in_bytes(params):
    one = bad_word_run(["cat", "猫"], "cat猫 the cat".encode(), 30, **params)
    assert "cat" not in one.text and "猫" not in one.text
    assert "ca-" in one.text
    assert len(one.token_ids) == 30


def test_bad_words_of_the_prompt_do_not_count():
    one = bad_word_run(["hi"], b"i", 2)  # the prompt ends with "h"; "i" alone is no bad word
    assert one.text == "ii"


def test_bad_words_that_leave_nothing():
    texts = ["a", "ab", "ac"]
    params = from_user(None, {"bad_words": ["a"]}, vocab_size=3, encode=lambda text: [0])
    with pytest.raises(ParameterError, match="No token is left"):
        Choice(params, TokenFacts(3), [], WordTokenizer(*texts)).accept(peak(1, 3))


def test_appending_a_token_picked_elsewhere():
    one = choice(max_new_tokens=2, presence_penalty=2.0)
    assert one.append(97) == Piece("a", 97)
    row = np.zeros(VOCAB, np.float32)
    row[97] = 1.0
    assert one.accept(row).token_id == 0  # the penalty knows of it
    with pytest.raises(ParameterError, match="append"):
        choice(logprobs=0).append(97)


def test_one_bad_request_leaves_the_others_alone():
    def boom(ids, row):
        raise RuntimeError("no")

    fine, bad = choice(max_new_tokens=3, do_sample=True, seed=1), choice(logits_processors=[boom])
    row = np.random.default_rng(0).normal(0, 1, VOCAB).astype(np.float32)
    alone = choice(max_new_tokens=3, do_sample=True, seed=1)
    for _ in range(3):
        with pytest.raises(ParameterError, match="raised RuntimeError: no"):
            bad.accept(row)
        fine.accept(row)
        alone.accept(row)
    assert fine.token_ids == alone.token_ids
