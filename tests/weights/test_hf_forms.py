"""Older forms of a tokenizer in a directory, and BERT's word pieces in GGUF metadata, against transformers."""

import json

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers, trainers
from transformers import BertTokenizer, CLIPTokenizer, GPT2Tokenizer, Qwen2Tokenizer, RobertaTokenizer

from forwardpass.errors import ModelFileError, UnsupportedModelError
from forwardpass.stages.text_stream import TextStream
from forwardpass.weights.tokenizer import Tokenizer
from forwardpass.weights.vocabulary import has_tokenizer, tokenizer_from_directory, tokenizer_from_gguf
from sentence_models import LINES, NASTY

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


@pytest.fixture(scope="module")
def pieces():
    """The lines of a vocab.txt, trained here."""
    backend = Backend(models.WordPiece(unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.train_from_iterator(
        LINES, trainers.WordPieceTrainer(vocab_size=500, special_tokens=SPECIAL, show_progress=False)
    )
    vocab = backend.get_vocab()
    return sorted(vocab, key=vocab.get)


def as_gguf(pieces, **keys):
    """The convention of the format: a visible space before a word's beginning, nothing before what goes on."""
    tokens = [p if p in SPECIAL else p[2:] if p.startswith("##") else "▁" + p for p in pieces]
    values = {
        "model": "bert", "tokens": tokens, "token_type": [3 if p in SPECIAL else 1 for p in pieces],
        "cls_token_id": 2, "seperator_token_id": 3, "unknown_token_id": 1, "padding_token_id": 0, "mask_token_id": 4,
        **keys,
    }  # fmt: skip
    return {f"tokenizer.ggml.{key}": value for key, value in values.items()}


@pytest.mark.parametrize("lower", [True, False])
def test_word_pieces(tmp_path, pieces, lower):
    (tmp_path / "vocab.txt").write_text("\n".join(pieces) + "\n", encoding="utf-8")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": lower}))
    assert has_tokenizer(tmp_path)
    witness = BertTokenizer.from_pretrained(tmp_path)
    directory = tokenizer_from_directory(tmp_path)
    gguf = tokenizer_from_gguf(as_gguf(pieces, **{"normalizer.lowercase": lower}))
    for text in [*NASTY, *LINES[::5], "a [SEP] b [MASK]"]:
        expected = witness(text)["input_ids"]
        for tokenizer in (directory, gguf):
            ids = tokenizer.encode(text, add_special_tokens=True, parse_special=True)
            assert ids == expected, text
            assert tokenizer.decode(ids) == tokenizer.backend.decode(ids, skip_special_tokens=False)
    for tokenizer in (directory, gguf, Tokenizer.from_json(gguf.to_json())):
        assert tokenizer.prefix_ids == (2,) and tokenizer.suffix_ids == (3,) and tokenizer.vocab_size == len(pieces)
        assert tokenizer.special_ids == set(range(5))
        assert tokenizer.encode("a", add_special_tokens=True, parse_special=True).count(2) == 1
        plain = tokenizer.encode("[CLS] a [SEP]", add_special_tokens=False, parse_special=False)
        assert not {2, 3} & set(plain)
        with pytest.raises(UnsupportedModelError, match="streamed"):
            TextStream(tokenizer)


def test_case_is_found_in_the_vocabulary(pieces):
    """Older files do not say whether capital letters matter."""
    cased = tokenizer_from_gguf(as_gguf(pieces))
    assert cased.encode("A", add_special_tokens=False, parse_special=False) == [pieces.index("A")]
    small = [piece.lower() if piece not in SPECIAL else piece for piece in pieces]
    small = list(dict.fromkeys(small))
    lower = tokenizer_from_gguf(as_gguf(small))
    assert lower.encode("A", add_special_tokens=False, parse_special=False) == [small.index("a")]


def test_word_pieces_without_their_unknown_token(tmp_path):
    (tmp_path / "vocab.txt").write_text("a\nb\n")
    with pytest.raises(ModelFileError, match=r"lacks the unknown token '\[UNK\]'"):
        tokenizer_from_directory(tmp_path)
    (tmp_path / "vocab.txt").write_text("[UNK]\na\na\n")
    with pytest.raises(ModelFileError, match="twice"):
        tokenizer_from_directory(tmp_path)
    metadata = as_gguf(["a", "b"], cls_token_id=None, unknown_token_id=None, seperator_token_id=None)
    metadata |= {"tokenizer.ggml.padding_token_id": None, "tokenizer.ggml.mask_token_id": None}
    with pytest.raises(ModelFileError, match="unknown_token_id"):
        tokenizer_from_gguf(metadata)


@pytest.fixture(scope="module")
def byte_pairs():
    """(vocab, merges) trained here."""
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=500, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False,
        special_tokens=["<s>", "</s>", "<unk>", "<pad>", "<mask>", "<|endoftext|>"],
    )  # fmt: skip
    backend.train_from_iterator(LINES, trainer)
    model = json.loads(backend.to_str())["model"]
    return model["vocab"], [" ".join(merge) for merge in model["merges"]]


@pytest.mark.parametrize("kind", [GPT2Tokenizer, RobertaTokenizer, Qwen2Tokenizer], ids=lambda kind: kind.__name__)
def test_vocab_json_and_merges(tmp_path, byte_pairs, kind):
    vocab, merges = byte_pairs
    (tmp_path / "vocab.json").write_text(json.dumps(vocab, ensure_ascii=False), encoding="utf-8")
    (tmp_path / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n", encoding="utf-8")
    config = {"tokenizer_class": kind.__name__}
    if kind is RobertaTokenizer:
        config |= {"bos_token": "<s>", "eos_token": "</s>", "cls_token": "<s>", "sep_token": "</s>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert has_tokenizer(tmp_path)
    witness = kind.from_pretrained(tmp_path)
    tokenizer = tokenizer_from_directory(tmp_path)
    for text in [*NASTY, *LINES[::5], "a<|endoftext|>b"]:
        ids = tokenizer.encode(text, add_special_tokens=True, parse_special=True)
        assert ids == witness(text)["input_ids"], text
    assert tokenizer.eos_token_ids == (vocab[config.get("eos_token", "<|endoftext|>")],)
    plain = tokenizer.encode("a<|endoftext|>b", add_special_tokens=False, parse_special=False)
    assert vocab["<|endoftext|>"] not in plain


@pytest.fixture(scope="module")
def word_end_pairs():
    """(vocab, merges) of words that end with "</w>", trained here; every byte is a piece within and at the end."""
    backend = Backend(models.BPE(end_of_word_suffix="</w>"))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=letters, show_progress=False,
                                  end_of_word_suffix="</w>")
    backend.train_from_iterator([line.lower() for line in LINES], trainer)
    merges = [" ".join(merge) for merge in json.loads(backend.to_str())["model"]["merges"]]
    tokens = [*letters, *(letter + "</w>" for letter in letters), *(merge.replace(" ", "") for merge in merges)]
    tokens = [*dict.fromkeys(tokens), "<|startoftext|>", "<|endoftext|>"]
    return {token: i for i, token in enumerate(tokens)}, merges


@pytest.mark.parametrize("pad", ["<|endoftext|>", "!"])
def test_vocab_json_and_merges_of_clip(tmp_path, word_end_pairs, pad):
    vocab, merges = word_end_pairs
    (tmp_path / "vocab.json").write_text(json.dumps(vocab, ensure_ascii=False), encoding="utf-8")
    (tmp_path / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n", encoding="utf-8")
    config = {"tokenizer_class": "CLIPTokenizer", "pad_token": pad, "model_max_length": 77}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert has_tokenizer(tmp_path)
    witness = CLIPTokenizer.from_pretrained(tmp_path)
    tokenizer = tokenizer_from_directory(tmp_path)
    for text in [*NASTY, *LINES[::5], "A  Photo of\tan ÉLAN, isn't it!! 1234", "a<|endoftext|>b", ""]:
        ids = tokenizer.encode(text, add_special_tokens=True, parse_special=True)
        assert ids == witness(text)["input_ids"], text
    assert (tokenizer.pad_token_id, tokenizer.eos_token_ids) == (vocab[pad], (vocab["<|endoftext|>"],))
    plain = tokenizer.encode("Two  Words", add_special_tokens=False, parse_special=False)
    assert tokenizer.decode(plain) == "two words"


def test_a_vocabulary_of_clip_without_its_marks(tmp_path, word_end_pairs):
    vocab, merges = word_end_pairs
    (tmp_path / "vocab.json").write_text(json.dumps({token: i for token, i in vocab.items() if "start" not in token}))
    (tmp_path / "merges.txt").write_text("\n".join(merges))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "CLIPTokenizer"}))
    with pytest.raises(ModelFileError, match=r"lacks the bos token '<\|startoftext\|>'"):
        tokenizer_from_directory(tmp_path)


def test_added_tokens_json(tmp_path, byte_pairs):
    vocab, merges = byte_pairs
    (tmp_path / "vocab.json").write_text(json.dumps(vocab))
    (tmp_path / "merges.txt").write_text("\n".join(merges))
    (tmp_path / "added_tokens.json").write_text(json.dumps({"<|x|>": len(vocab) + 2}))
    tokenizer = tokenizer_from_directory(tmp_path)
    assert tokenizer.vocab_size == len(vocab) + 3 and tokenizer.token_to_id("<|x|>") == len(vocab) + 2
    last = max(vocab, key=vocab.get)
    (tmp_path / "vocab.json").write_text(json.dumps(vocab | {last: len(vocab)}))
    (tmp_path / "added_tokens.json").write_text(json.dumps({"<|x|>": len(vocab) - 1}))
    tokenizer = tokenizer_from_directory(tmp_path)
    assert tokenizer.vocab_size == len(vocab) + 1 and tokenizer.token_to_id("<|x|>") == len(vocab) - 1  # fills the hole
    for wrong in (0, -1, "5", None, [], 2.5, 10**9, 2**70):
        (tmp_path / "added_tokens.json").write_text(json.dumps({"<|x|>": wrong}))
        with pytest.raises(ModelFileError, match="id of its own"):
            tokenizer_from_directory(tmp_path)


@pytest.mark.parametrize(
    ("config", "vocab", "error", "words"),
    [
        ({"tokenizer_class": "CTRLTokenizer"}, {"a": 0}, UnsupportedModelError, "CTRLTokenizer.*GPT2Tokenizer"),
        ({"tokenizer_class": 3}, {"a": 0}, UnsupportedModelError, "of a 3;"),
        ({"tokenizer_class": ["GPT2Tokenizer"]}, {"a": 0}, UnsupportedModelError, "GPT2Tokenizer"),
        ({}, {"a</w>": 0}, UnsupportedModelError, "tokenizer.json"),
        ({"add_prefix_space": True}, {"a": 0}, UnsupportedModelError, "tokenizer.json"),
        ({}, {"a": 0, "b": 0}, ModelFileError, "id of its own"),
        ({}, {"a": -1}, ModelFileError, "id of its own"),
        ({}, {"a": 10**9}, ModelFileError, "id of its own"),
        ({}, {"a": 9_999_999}, ModelFileError, "id of its own, below 65537"),
        ({}, ["a"], ModelFileError, "JSON object"),
    ],
)
def test_refused_directories(tmp_path, config, vocab, error, words):
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "vocab.json").write_text(json.dumps(vocab))
    (tmp_path / "merges.txt").write_text("")
    with pytest.raises(error, match=words):
        tokenizer_from_directory(tmp_path)
