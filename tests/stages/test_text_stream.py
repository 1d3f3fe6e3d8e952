"""Streamed text is the final text, and never shows half a character."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models

from forwardpass.errors import UnsupportedModelError
from forwardpass.stages.text_stream import TextStream
from forwardpass.weights.tokenizer import Tokenizer, VocabularyFacts


def stream(tokenizer, ids, **options):
    text = TextStream(tokenizer, **options)
    return [text.push(i) for i in ids], text.finish()


def test_str_01_one_byte_a_token(byte_tokenizer):
    tokenizer = byte_tokenizer()
    for char, raw in [
        ("ď", b"\xc4\x8f"),
        ("猫", b"\xe7\x8c\xab"),
        ("🌶", b"\xf0\x9f\x8c\xb6"),
        ("\ufffd", b"\xef\xbf\xbd"),
    ]:
        pieces, tail = stream(tokenizer, list(raw))
        assert pieces == [""] * (len(raw) - 1) + [char] and tail == ""


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_str_01_incomplete_tail_is_one_replacement(byte_tokenizer, cut):
    pieces, tail = stream(byte_tokenizer(), [97, *b"\xf0\x9f\x8c\xb6"[:cut]])
    assert pieces == ["a"] + [""] * cut and tail == "\ufffd"


@pytest.mark.parametrize("split", [1, 2, 3])
def test_str_01_a_character_over_two_tokens(split):
    raw = "🌶".encode()
    tokenizer = metaspace_tokenizer()
    halves = [tokenizer.token_to_id(f"<0x{byte:02X}>") for byte in raw]
    text = TextStream(tokenizer)
    assert "".join(text.push(i) for i in halves[:split]) == ""
    assert "".join(text.push(i) for i in halves[split:]) == "🌶"


def test_broken_character_appears_with_the_next_token(byte_tokenizer):
    assert stream(byte_tokenizer(), [0xE7, 0x8C, 97]) == (["", "", "\ufffda"], "")


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 260), max_size=40), st.booleans())
def test_pieces_concatenate_to_decode(byte_tokenizer, ids, skip):
    tokenizer = byte_tokenizer()
    pieces, tail = stream(tokenizer, ids, skip=tokenizer.special_ids if skip else ())
    assert "".join(pieces) + tail == tokenizer.decode(ids, skip_special_tokens=skip)
    assert tail in ("", "\ufffd")


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=60))
def test_real_tokens(smollm2, text):
    ids = smollm2.encode(text, add_special_tokens=False, parse_special=True)
    pieces, tail = stream(smollm2, ids)
    assert "".join(pieces) + tail == smollm2.decode(ids) == smollm2.backend.decode(ids, skip_special_tokens=False)
    if "\ufffd" not in smollm2.decode(ids):
        assert not any("\ufffd" in piece for piece in pieces)


def metaspace_tokenizer(drop=True, metaspace=False):
    """A SentencePiece-like vocabulary; ids by hand."""
    words = ["<s>", "▁a", "▁", "▁▁▁", "b", "x", ".", "▁Y", "▁lead"] + [f"<0x{byte:02X}>" for byte in range(256)]
    backend = Backend(models.BPE(vocab={word: i for i, word in enumerate(words)}, merges=[]))
    backend.add_special_tokens(["<s>"])
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence(parts + [decoders.Strip(" ", 1, 0)] * drop)
    if metaspace:
        backend.decoder = decoders.Metaspace(prepend_scheme="always" if drop else "never")
    return Tokenizer(backend, VocabularyFacts(len(words), bos_token_id=0))


@pytest.mark.parametrize("drop", [True, False])
@pytest.mark.parametrize("metaspace", [True, False])
@pytest.mark.parametrize("ids", [[1, 3, 2, 4], [5, 6, 7], [8], [2, 1], [3, 1], [1, 0, 1], [0, 1], [4, 0, 2, 0, 1]])
@pytest.mark.parametrize("skip", [True, False])
def test_str_03_spaces(drop, metaspace, ids, skip):
    """Neither lost nor doubled, with special tokens between words, whatever decoder writes the spaces."""
    tokenizer = metaspace_tokenizer(drop, metaspace)
    pieces, tail = stream(tokenizer, ids, skip=tokenizer.special_ids if skip else ())
    assert (
        "".join(pieces) + tail == tokenizer.decode(ids, skip) == tokenizer.backend.decode(ids, skip_special_tokens=skip)
    )


def test_str_03_by_hand():
    assert metaspace_tokenizer().decode([1, 3, 1]) == "a    a" and metaspace_tokenizer().decode([8]) == "lead"
    assert metaspace_tokenizer(drop=False).decode([8]) == " lead"
    assert stream(metaspace_tokenizer(), [1, 7]) == (["a", " Y"], "")


def test_byte_pieces_never_show_their_names():
    tokenizer = metaspace_tokenizer()
    ids = [tokenizer.token_to_id(f"<0x{byte:02X}>") for byte in "猫".encode()]
    assert tokenizer.decode(ids) == "猫" and tokenizer.decode(ids[:2]) == "\ufffd"


def test_tokens_that_are_no_text():
    backend = Backend(models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    backend.decoder = decoders.WordPiece()
    tokenizer = Tokenizer(backend, VocabularyFacts(2))
    assert tokenizer.decode([1, 1]) == "a a"
    with pytest.raises(UnsupportedModelError, match="streamed"):
        TextStream(tokenizer)


def test_cost_does_not_grow(smollm2):
    """The last thousand of 30,000 tokens cost about what the first did (both well under 10 microseconds each)."""
    ids = (smollm2.encode("Hello wörld 🌶 猫\n", add_special_tokens=False, parse_special=True) * 3000)[:30000]
    text = TextStream(smollm2)
    for token in ids[:200]:
        text.push(token)

    def seconds(part):
        started = time.thread_time()
        for token in part:
            text.push(token)
        return time.thread_time() - started

    first = min(seconds(ids[:1000]) for _ in range(5))
    seconds(ids)
    last = min(seconds(ids[-1000:]) for _ in range(5))
    assert last < 5 * first and last < 0.05
