"""Tokenizer files of encoder-decoders that transformers reads, too: small SentencePiece models with what belongs beside
them."""

from __future__ import annotations

import functools
import io
import json

import sentencepiece

import sentence_models
from forwardpass.weights import language_codes
from sentence_models import LINES

T5_NUMBERS = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}


@functools.cache
def trained(kind: str, size: int = 400, **numbers) -> bytes:
    file = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES), model_writer=file, model_type=kind, vocab_size=size, num_threads=1,
        minloglevel=2, **numbers)
    return file.getvalue()


def pieces(blob: bytes) -> list[str]:
    witness = sentence_models.processor(blob)
    return [witness.id_to_piece(i) for i in range(witness.vocab_size())]


def m2m100_vocabulary() -> dict[str, int]:
    """Not all of the model's pieces, and a sign that it does not know."""
    kept = [piece for i, piece in enumerate(pieces(trained("bpe"))[3:]) if i % 7]
    return {token: i for i, token in enumerate(["<s>", "<pad>", "</s>", "<unk>", *kept, "☃", "q☃"])}


def marian_vocabulary() -> dict[str, int]:
    """The same, with two languages, and the pieces of a second model, which cut no text."""
    kept = [piece for i, piece in enumerate(pieces(trained("unigram"))[3:]) if i % 7]
    other = [piece for piece in pieces(trained("unigram", 300))[3:] if piece not in kept]
    tokens = ["</s>", "<unk>", *kept, ">>fra<<", ">>deu_Latn<<", "☃", *other, "zz", "<pad>"]
    return {token: i for i, token in enumerate(tokens)}


FORMS = {  # name: (files but the configs, config.json, tokenizer_config.json)
    "t5": ({"spiece.model": trained("unigram", **T5_NUMBERS)}, {"model_type": "t5"}, {
        "tokenizer_class": "T5Tokenizer"}),
    "mt5": ({"spiece.model": trained("unigram", **T5_NUMBERS)}, {"model_type": "mt5"}, {"extra_ids": 0}),
    "pegasus": ({"spiece.model": trained("unigram", **T5_NUMBERS)}, {"model_type": "pegasus"}, {}),
    "mbart": ({"sentencepiece.bpe.model": trained("unigram")}, {"model_type": "mbart"}, {"src_lang": "ro_RO"}),
    "mbart50": ({"sentencepiece.bpe.model": trained("unigram")}, {"model_type": "mbart"},
                {"tokenizer_class": "MBart50Tokenizer", "src_lang": "de_DE"}),
    "nllb": ({"sentencepiece.bpe.model": trained("bpe")}, {"model_type": "m2m_100"}, {
        "tokenizer_class": "NllbTokenizer", "src_lang": "fra_Latn", "added_tokens_decoder": {
            str(i): {"content": code, "special": True} for i, code in enumerate([*language_codes.NLLB, "<mask>"], 401)},
        "additional_special_tokens": language_codes.NLLB}),
    "xlm-roberta": ({"sentencepiece.bpe.model": trained("unigram")}, {"model_type": "xlm-roberta"}, {}),
    "m2m_100": ({"sentencepiece.bpe.model": trained("bpe"), "vocab.json": m2m100_vocabulary()},
                {"model_type": "m2m_100"}, {"tokenizer_class": "M2M100Tokenizer", "src_lang": "de"}),
    "marian": ({"source.spm": trained("unigram"), "target.spm": trained("unigram", 300),
                "vocab.json": marian_vocabulary()}, {"model_type": "marian"}, {"source_lang": "en"}),
    "byt5": ({}, {"model_type": "t5"}, {"tokenizer_class": "ByT5Tokenizer"}),
}


def write(directory, name, **changes):
    """The files of one of FORMS, some of them others."""
    files, config, settings = FORMS[name]
    return write_files(directory, {**files, "config.json": config, "tokenizer_config.json": settings, **changes})


def write_files(directory, files):
    for file, value in files.items():
        blob = value if isinstance(value, bytes) else json.dumps(value, ensure_ascii=False).encode()
        (directory / file).write_bytes(blob)
    return directory
