"""Code completion: the prompt that is built, what it leaves out, and where the answer ends."""

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer

import forwardpass
from forwardpass.errors import ContextLengthError, ParameterError, UnsupportedModelError
from forwardpass.tasks.complete import completion_ids, natural_ends
from forwardpass.weights.fill_in_middle import fill_in_middle

PREFIX, SUFFIX, MIDDLE, PAD = range(260, 264)
MARKS = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|fim_pad|>"]


@pytest.fixture(scope="module")
def coder(tiny_folder):
    """The tiny model with tokens for filling in the middle; a token is a byte."""
    folder = tiny_folder()
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in MARKS])
    tokenizer.save(str(folder / "tokenizer.json"))
    with forwardpass.load(folder) as model:
        yield model


def ids_of(model, prefix, suffix, room=100):
    return completion_ids(model.tokenizer, fill_in_middle(model.tokenizer), prefix, suffix, room)


def saying(model, text, end=None):
    """A logits processor that makes the model say this text, then the token `end`."""
    script = model.tokenizer.encode(text, add_special_tokens=False, parse_special=False)
    script += [] if end is None else [end]
    start = None

    def choose(ids, row):
        nonlocal start
        start = len(ids) if start is None else start
        out = np.full_like(row, -50.0)
        out[script[min(len(ids) - start, len(script) - 1)]] = 50.0
        return out

    return [choose]


def test_the_parts_stand_between_the_models_tokens(coder):
    text = coder.tokenizer.decode
    ids = ids_of(coder, "a = ", "\nb")
    assert (ids[0], ids[-1]) == (PREFIX, MIDDLE)
    at = ids.index(SUFFIX)
    assert (text(ids[1:at]), text(ids[at + 1 : -1])) == ("a = ", "\nb")


def test_marks_in_the_file_are_plain_text(coder):
    ids = ids_of(coder, "x = '<|fim_middle|>", "'</s>")
    assert [ids.count(mark) for mark in (PREFIX, SUFFIX, MIDDLE, 257)] == [1, 1, 1, 0]


def test_without_a_suffix_the_prefix_is_continued(coder):
    assert coder.tokenizer.decode(ids_of(coder, "abc", None)) == "abc"


@pytest.mark.parametrize(("before", "after", "kept_before", "kept_after"), [
    (50, 7, 33, 7),     # what fits on one side leaves the rest to the other
    (50, 50, 30, 10),   # a quarter for the suffix
    (5, 50, 5, 35),
    (20, 20, 20, 20),
])
def test_room_is_spent_around_the_cursor(coder, before, after, kept_before, kept_after):
    ids = ids_of(coder, "p" * before, "s" * after, 43)
    at = ids.index(SUFFIX)
    assert len(ids) <= 43
    assert (at - 1, len(ids) - at - 2) == (kept_before, kept_after)


def test_cuts_are_at_lines(coder):
    prefix, suffix = "one two three\n" * 9 + "x = ", "\n" + "four five six\n" * 9
    ids = ids_of(coder, prefix, suffix, 63)
    at = ids.index(SUFFIX)
    before, after = coder.tokenizer.decode(ids[1:at]), coder.tokenizer.decode(ids[at + 1 : -1])
    assert before == "one two three\n" * 2 + "x = " and len(before) <= 45
    assert after == "\nfour five six\n"
    assert len(ids) <= 63


def test_what_is_far_from_the_cursor_is_not_even_tokenised(coder):
    """A gigabyte before the cursor costs no more than what can be used of it."""
    class Counting:
        def __init__(self, inner):
            self.inner, self.seen = inner, 0

        def __getattr__(self, name):
            return getattr(self.inner, name)

        def encode(self, text, **options):
            self.seen += len(text)
            return self.inner.encode(text, **options)

    counting = Counting(coder.tokenizer)
    ids = completion_ids(counting, fill_in_middle(coder.tokenizer), "y" * 500_000, "z" * 500_000, 43)
    assert len(ids) <= 43 and counting.seen < 5_000


@pytest.mark.parametrize(("suffix", "ends"), [
    (")\n    return total\n", [")\n    return total"]),
    ("\n    return total\n    more()\n", ["\n    return total"]),
    ("\n\n\n    done = True\n", ["\n\n\n    done = True", "\n\n\n"]),
    ("rest_of_the_line()\nnext\n", ["rest_of_the_line()"]),
    ("\n)\n}\n", []),
    ("", []),
])
def test_where_a_middle_has_ended(suffix, ends):
    assert natural_ends("x = ", suffix) == [*ends, "\n```"]
    assert natural_ends("```\nx = ", suffix) == ends


@pytest.mark.parametrize("suffix", ["y" * 5000 + "\n", "\n" * 5000])
def test_a_suffix_may_begin_with_a_very_long_line(coder, suffix):
    """Stop strings have a greatest length, lines have none."""
    said = "ab" + suffix[:300]
    done = coder.complete("x", suffix, logits_processors=saying(coder, said), max_new_tokens=60, context_tokens=60)
    assert done.finish_reason == "length" and done.text == said[:60]
    assert all(0 < len(end) <= 200 for end in natural_ends("x", suffix))


def test_an_answer_ends_at_the_blank_lines_of_the_suffix(coder):
    processors = saying(coder, "a\n\nb\n\n\ndef g(): pass")
    done = coder.complete("t = ", "\n\n\nclass A:\n", logits_processors=processors, max_new_tokens=40)
    assert (done.text, done.finish_reason) == ("a\n\nb", "stop")


def test_the_suffix_is_not_repeated(coder):
    processors = saying(coder, "a + b\n    return total\n    more()", 257)
    done = coder.complete("total = ", "\n    return total\n", logits_processors=processors, max_new_tokens=60)
    assert (done.text, done.finish_reason) == ("a + b", "stop")


@pytest.mark.parametrize("end", [PAD, 257, PREFIX])
def test_the_middle_ends_where_the_model_says(coder, end):
    done = coder.complete("total = ", "\nx", logits_processors=saying(coder, "a + b", end), max_new_tokens=60)
    assert (done.text, done.finish_reason, done.token_ids[-1]) == ("a + b", "stop", end)


def test_streamed_pieces_are_the_same_text(coder):
    options = {"max_new_tokens": 40, "stop": ["zz"]}
    said = "a + b\n    retry()\n    return total"
    whole = coder.complete("t = ", "\n    return total\n", logits_processors=saying(coder, said), **options)
    with coder.complete("t = ", "\n    return total\n", stream=True, logits_processors=saying(coder, said),
                        **options) as stream:
        assert "".join(piece.text for piece in stream) == whole.text == "a + b\n    retry()"


def test_the_users_own_stops_still_count(coder):
    done = coder.complete("t = ", "\n    return total\n", stop=["+"], logits_processors=saying(coder, "a + b"))
    assert done.text == "a "


def test_the_prompt_leaves_room_for_the_answer(coder):
    """Context 128: the longest files still get an answer."""
    done = coder.complete("p" * 1000, "s" * 1000, max_new_tokens=28, eos_token_id=[], mask_special_tokens=True)
    assert len(done.prompt_token_ids) <= 100
    done = coder.complete("p" * 1000, "s" * 1000, max_new_tokens=5, context_tokens=20)
    assert len(done.prompt_token_ids) <= 20


@pytest.mark.parametrize(("arguments", "options", "error", "words"), [
    ((b"x",), {}, ParameterError, "prefix must be text"),
    (("x", 3), {}, ParameterError, "suffix must be text"),
    (("x", "y"), {"context_tokens": 0}, ParameterError, "context_tokens.*at least 1"),
    (("x", "y"), {"context_tokens": True}, ParameterError, "context_tokens"),
    (("x", "y"), {"context_tokens": 3}, ContextLengthError, "room for 3 prompt tokens"),
    (("x", "y"), {"max_new_tokens": 128}, ContextLengthError, "room for 0 prompt tokens"),
    (("", None), {}, ParameterError, "nothing to complete"),
    (("x", "y"), {"max_tokens": 5}, ParameterError, "max_tokens"),
])
def test_bad_requests(coder, arguments, options, error, words):
    with pytest.raises(error, match=words):
        coder.complete(*arguments, **{"max_new_tokens": 20, **options})
    assert coder.complete("a", "b", max_new_tokens=2).token_ids


def test_a_model_without_the_tokens_says_so_and_still_continues(tiny):
    with pytest.raises(UnsupportedModelError, match="leave the suffix out"):
        tiny.complete("def f():", "\n    return 1", max_new_tokens=20)
    assert tiny.complete("def f():", max_new_tokens=3, eos_token_id=[]).token_ids \
        == tiny.generate("def f():", max_new_tokens=3, eos_token_id=[]).token_ids
