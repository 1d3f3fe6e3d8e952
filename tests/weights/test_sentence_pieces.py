"""SentencePiece vocabularies, from GGUF metadata and from tokenizer.model, against SentencePiece itself."""

import json

import numpy as np
import pytest

import sentence_models
from forwardpass.errors import ModelFileError, UnsupportedModelError
from forwardpass.stages.template import chat_ids
from forwardpass.stages.text_stream import TextStream
from forwardpass.weights.tokenizer import Tokenizer
from forwardpass.weights.vocabulary import tokenizer_from_directory, tokenizer_from_gguf
from sentence_models import CASES, TEXTS

TIED = "=-"
"""Runs of these have several best segmentations; SentencePiece adds scores as float32 and so breaks ties otherwise."""


@pytest.fixture(scope="module", params=CASES, ids=" ".join)
def case(request):
    kind, name = request.param
    blob = sentence_models.trained(kind, name)
    return kind, name, blob, sentence_models.processor(blob)


def comparable(kind, name, text):
    if kind == "t5" and any(sign * 12 in text for sign in TIED):
        return False
    if name == "added" and text.replace(" ", "▁") in ("▁▁▁", "<x>", "\n\n"):
        return False  # a text that is one added token and nothing else gets no space before it
    return "\u0300\u0301\u0302" not in text  # the library composes by whole grapheme, of at most five bytes


def test_ids_and_text_equal_sentencepiece(case):
    kind, name, blob, witness = case
    tokenizer = tokenizer_from_gguf(sentence_models.gguf_metadata(blob, kind))
    compared = 0
    for text in TEXTS:
        if not comparable(kind, name, text):
            continue
        compared += 1
        ids = tokenizer.encode(text, add_special_tokens=True, parse_special=False)
        assert ids == witness.encode(text), text
        # SentencePiece shows an unknown piece as two question marks in one; everything else is equal.
        if tokenizer.unk_token_id not in ids:
            assert tokenizer.decode(ids) == witness.decode(ids), text
    assert compared > 0.95 * len(TEXTS)


def test_streamed_text_equals_decode(case):
    kind, _, blob, _ = case
    tokenizer = tokenizer_from_gguf(sentence_models.gguf_metadata(blob, kind))
    rng = np.random.default_rng(0)
    samples = [tokenizer.encode(text, add_special_tokens=False, parse_special=True) for text in TEXTS[::3]]
    samples += [rng.integers(0, tokenizer.vocab_size, 40).tolist() for _ in range(200)]  # bytes in any order
    space, start = tokenizer.token_to_id("▁"), tokenizer.bos_token_id
    samples += [[start, space, space, 20], [space, start, space], [space], [start], []]
    for ids in samples:
        for skip in (False, True):
            stream = TextStream(tokenizer, skip=tokenizer.special_ids if skip else ())
            text = "".join(map(stream.push, ids)) + stream.finish()
            assert text == tokenizer.decode(ids, skip)


def test_a_continued_text_keeps_its_first_space():
    """What an answer adds to its prompt: "Hello" and " world", though " world" alone decodes without the space."""
    tokenizer = tokenizer_from_gguf(sentence_models.gguf_metadata(sentence_models.trained("llama", "plain"), "llama"))
    whole = tokenizer.encode("the text", add_special_tokens=False, parse_special=False)
    cut = tokenizer.encode("the", add_special_tokens=False, parse_special=False)
    assert whole[: len(cut)] == cut
    for continues, text in ((True, " text"), (False, "text")):
        stream = TextStream(tokenizer, continues=continues)
        assert "".join(map(stream.push, whole[len(cut) :])) + stream.finish() == text


def test_decode_equals_the_library_on_text(case):
    kind, _, blob, _ = case
    tokenizer = tokenizer_from_gguf(sentence_models.gguf_metadata(blob, kind))
    for text in TEXTS[::3]:
        ids = tokenizer.encode(text, add_special_tokens=True, parse_special=True)
        for skip in (False, True):
            assert tokenizer.decode(ids, skip) == tokenizer.backend.decode(ids, skip_special_tokens=skip)


def test_special_text_in_content_is_plain_text(case):
    kind, _, blob, _ = case
    tokenizer = tokenizer_from_gguf(sentence_models.gguf_metadata(blob, kind))
    for text in ("a</s>b", "<s>", "x <unk> y", "<0x41>"):
        ids = tokenizer.encode(text, add_special_tokens=False, parse_special=False)
        assert not {tokenizer.bos_token_id, *tokenizer.eos_token_ids} & set(ids)
        byte = tokenizer.token_to_id("<0x41>")
        assert byte is None or byte not in ids
        if tokenizer.unk_token_id not in ids:
            assert tokenizer.decode(ids) == text
    parsed = tokenizer.encode("a</s>b", add_special_tokens=False, parse_special=True)
    assert parsed.count(tokenizer.eos_token_id) == 1


def test_chat_keeps_special_text_of_messages_plain(case):
    kind, _, blob, _ = case
    metadata = sentence_models.gguf_metadata(blob, kind)
    template = "{{ bos_token }}[INST] {{ messages[0]['content'] }} [/INST]"
    tokenizer = tokenizer_from_gguf(metadata | {"tokenizer.chat_template": template})
    for content in ("hi", "a</s>b", "<s>", "猫が ☃ x"):
        plain = tokenizer.encode(f"[INST] {content} [/INST]", add_special_tokens=False, parse_special=False)
        assert chat_ids(tokenizer, [{"role": "user", "content": content}]) == [1, *plain]


def test_special_spans_are_what_is_written(case):
    kind, _, blob, _ = case
    tokenizer = tokenizer_from_gguf(sentence_models.gguf_metadata(blob, kind))
    assert tokenizer.special_spans("é☃ </s>x<s>") == [(3, 7, 2), (8, 11, 1)]


def test_stored_form(case):
    kind, _, blob, _ = case
    tokenizer = tokenizer_from_gguf(sentence_models.gguf_metadata(blob, kind, add_bos_token=True))
    again = Tokenizer.from_json(tokenizer.to_json())
    assert again.facts == tokenizer.facts and again.special_ids == tokenizer.special_ids
    for text in TEXTS[::5]:
        for special in (False, True):
            ids = tokenizer.encode(text, add_special_tokens=True, parse_special=special)
            assert again.encode(text, add_special_tokens=True, parse_special=special) == ids
            assert again.decode(ids) == tokenizer.decode(ids)


def test_tokenizer_model_file(case, tmp_path):
    kind, name, blob, witness = case
    (tmp_path / "tokenizer.model").write_bytes(blob)
    (tmp_path / "tokenizer_config.json").write_text('{"add_bos_token": false, "add_eos_token": false}')
    tokenizer = tokenizer_from_directory(tmp_path)
    for text in TEXTS:
        if comparable(kind, name, text):
            assert tokenizer.encode(text, add_special_tokens=True, parse_special=False) == witness.encode(text), text
    assert (tokenizer.bos_token_id, tokenizer.eos_token_ids, tokenizer.unk_token_id) == (1, (2,), 0)
    assert tokenizer.vocab_size == witness.vocab_size() and tokenizer.pad_token_id is None


def test_tokenizer_model_defaults(tmp_path):
    """As the classes that read this form: Llama puts BOS before a text, T5 EOS after it."""
    (tmp_path / "tokenizer.model").write_bytes(sentence_models.trained("llama", "plain"))
    tokenizer = tokenizer_from_directory(tmp_path)
    assert (tokenizer.prefix_ids, tokenizer.suffix_ids) == ((1,), ())
    (tmp_path / "tokenizer.model").unlink()
    (tmp_path / "spiece.model").write_bytes(sentence_models.trained("t5", "plain"))
    extra = {str(400 + i): {"content": f"<extra_id_{i}>", "special": True} for i in range(3)}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": extra, "pad_token": "<unk>"}))
    tokenizer = tokenizer_from_directory(tmp_path)
    assert (tokenizer.prefix_ids, tokenizer.suffix_ids) == ((), (2,))
    assert tokenizer.encode("a<extra_id_1>", add_special_tokens=True, parse_special=True)[-2:] == [401, 2]
    assert tokenizer.pad_token_id == 0 and tokenizer.vocab_size == 403


@pytest.mark.parametrize("name", ["wrong kind", "truncated", "empty", "noise", "twice", "no end"])
def test_damaged_tokenizer_model(tmp_path, name):
    blob = sentence_models.trained("llama", "plain")
    piece = b"\x0a\x03\x0a\x01a"
    contents = {
        "wrong kind": piece + b"\x12\x02\x18\x03",
        "truncated": blob[:-7],
        "empty": b"",
        "noise": bytes(range(256)),
        "twice": piece + piece,
        "no end": b"\xff" * 20,
    }
    (tmp_path / "tokenizer.model").write_bytes(contents[name])
    error, words = (UnsupportedModelError, "model type word") if name == "wrong kind" else (ModelFileError, "damaged")
    with pytest.raises(error, match=words):
        tokenizer_from_directory(tmp_path)


# -- by hand


def byte_pieces(*without):
    return [name for byte in range(256) if (name := f"<0x{byte:02X}>") not in without]


def unigram(*words, **keys):
    """Metadata of a unigram vocabulary; names like <0x41> are byte pieces, <...> others are control tokens."""
    types = [2 if word == "<unk>" else 6 if word[:3] == "<0x" else 3 if word[0] == "<" else 1 for word in words]
    values = {
        "model": "t5", "tokens": list(words), "token_type": types, "scores": [-1.0] * len(words),
        "add_space_prefix": False, "add_eos_token": False, "unknown_token_id": 0, **keys,
    }  # fmt: skip
    return tokenizer_from_gguf({f"tokenizer.ggml.{key}": value for key, value in values.items()})


def tokens_of(tokenizer, text):
    return [tokenizer.id_to_token(i) for i in tokenizer.encode(text, add_special_tokens=True, parse_special=False)]


def test_unknown_characters_become_bytes():
    """All the bytes of a character if all are in the vocabulary, else one unknown token; never fused."""
    tokenizer = unigram("<unk>", "▁", "x", "y", *byte_pieces())
    assert tokens_of(tokenizer, "x\n猫y") == ["x", "<0x0A>", "<0xE7>", "<0x8C>", "<0xAB>", "y"]
    assert tokenizer.decode(tokenizer.encode("猫", add_special_tokens=False, parse_special=False)) == "猫"
    partial = unigram("<unk>", "▁", "x", "y", *byte_pieces("<0xAB>"))
    assert tokens_of(partial, "x\n猫y") == ["x", "<0x0A>", "<unk>", "y"]
    assert tokens_of(partial, "猫猫\n") == ["<unk>", "<unk>", "<0x0A>"]
    assert tokens_of(unigram("<unk>", "▁", "x", "y"), "x\n猫y猫") == ["x", "<unk>", "y", "<unk>"]  # neighbours fuse


def test_unknown_characters_in_pairs():
    blob = sentence_models.trained("llama", "plain")
    tokenizer = tokenizer_from_gguf(sentence_models.gguf_metadata(blob, "llama"))
    assert tokens_of(tokenizer, "x\n\x0b")[-2:] == ["<0x0A>", "<0x0B>"]


def test_scores_of_other_tokens_do_not_matter():
    """A control token of score 0, padding of score -1000: neither changes what is likeliest."""
    plain = unigram("<unk>", "▁", "a", "b", "ab", "<s>", scores=[0.0, -1.0, -1.5, -1.5, -2.0, 0.0])
    assert set(tokens_of(plain, "ab<s>")) == {"ab", "<unk>"}
    padded = unigram(
        "<unk>", "▁", "a", "b", "ab", "[PAD]", scores=[0, -1, -1.5, -1.5, -2, -1000], token_type=[2, 1, 1, 1, 1, 5]
    )
    assert tokens_of(padded, "ab[xx]ab") == ["ab", "<unk>", "ab"]
    assert set(tokens_of(padded, "ab[PAD]ab")) == {"ab", "<unk>"}


@pytest.mark.parametrize("kind", ["llama", "t5"])
def test_one_bos(kind):
    blob = sentence_models.trained(kind, "plain")

    def ids(text, **keys):
        metadata = sentence_models.gguf_metadata(blob, kind, **keys)
        return tokenizer_from_gguf(metadata).encode(text, add_special_tokens=True, parse_special=True)

    both = {"add_bos_token": True, "add_eos_token": True}
    assert ids("hi", **both).count(1) == 1 and ids("hi", **both)[0] == 1 and ids("hi", **both)[-1] == 2
    assert ids("<s>hi", **both) == ids("hi", **both)
    assert ids("", **both) == [1, 2]
    silent = {"add_bos_token": None, "add_eos_token": None}  # the file does not say
    assert (1 in ids("hi", **silent), 2 in ids("hi", **silent)) == ((True, False) if kind == "llama" else (False, True))


def test_ends_of_turns():
    blob = sentence_models.trained("llama", "plain")
    metadata = sentence_models.gguf_metadata(blob, "llama", eot_token_id=7)
    tokens, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    tokens[-3:], types[-3:] = ["<end_of_turn>", "<|im_end|>", "<|other|>"], [3, 4, 3]
    assert tokenizer_from_gguf(metadata).eos_token_ids == (2, 7, len(tokens) - 3)
    tokens[-4:], types[-4:] = ["<|end|>", "<|return|>", "<|call|>", "<|x|>"], [3] * 4
    ends = tokenizer_from_gguf(metadata).eos_token_ids  # here <|end|> stands between the parts of one answer
    assert ends == (2, 7, len(tokens) - 3, len(tokens) - 2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scores": None}, "scores.*expected .* numbers"),
        ({"scores": [1.0]}, "scores.*found '1'"),
        ({"scores": "nan"}, "finite"),
        ({"scores": "words"}, "scores.*numbers"),
        ({"precompiled_charsmap": [1, 2, 3]}, "charsmap"),
        ({"precompiled_charsmap": "x"}, "list of bytes"),
        ({"add_space_prefix": "yes"}, "true or false"),
    ],
)
@pytest.mark.parametrize("kind", ["llama", "t5"])
def test_contradictions(kind, change, message):
    metadata = sentence_models.gguf_metadata(sentence_models.trained(kind, "plain"), kind)
    size = len(metadata["tokenizer.ggml.tokens"])
    for key, value in change.items():
        long = {"nan": [float("nan")] * size, "words": ["x"] * size}
        metadata[f"tokenizer.ggml.{key}"] = long.get(value, value) if isinstance(value, str) else value
    with pytest.raises(ModelFileError, match=message):
        tokenizer_from_gguf({key: value for key, value in metadata.items() if value is not None})


@pytest.mark.parametrize("kind", ["llama", "t5"])
def test_a_table_of_characters_that_leads_out_of_itself(kind):
    """The library walks it unchecked, and panics."""
    metadata = sentence_models.gguf_metadata(sentence_models.trained(kind, "plain"), kind)
    metadata["tokenizer.ggml.precompiled_charsmap"] = [0, 1, 0, 0, *[7] * 256, 65, 0]
    tokenizer = tokenizer_from_gguf(metadata)
    for special in (True, False):
        with pytest.raises(ModelFileError, match="vocabulary is damaged"):
            tokenizer.encode("a b", add_special_tokens=special, parse_special=special)
    with pytest.raises(ModelFileError, match="vocabulary is damaged"):
        tokenizer.prefix_ids  # noqa: B018
