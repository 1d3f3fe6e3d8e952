"""Small real SentencePiece models, trained here: the witness for vocabularies that store scores."""

from __future__ import annotations

import functools
import inspect
import io
import random
import textwrap
import tokenize

import sentencepiece
from sentencepiece import sentencepiece_model_pb2 as protobuf

NASTY = [
    "", " ", "   ", " lead", "trail ", "a    b", "\n", "\n\n\n", "\r\n\r\n", "\t\t x", "x. Y", "Hello, world!",
    "don't I'LL we've 'S ''s",
    "naïve café ñandú", "Žluťoučký kůň", "猫が好きです。中文字符测试，全角！", "한국어 문장입니다",
    "مرحبا بالعالم", "שלום עולם", "हिन्दी में", "👨‍👩‍👧‍👦 🌶🏳️‍🌈👍🏽", "e\u0301 vs \u00e9", "\u200b\u200d\ufeff\u2028",
    "\x00",
    "\x00\x01\x02\x07\x1b\x7f", "a\x00b", "1234567890 3.14159 1,000,000", "0x1F 1e-9", "a" * 300, " " * 300,
    "\n" * 50,
    "=" * 100, "🌶" * 40, "for (i=0;i<n;++i) {\n\t\tx[i] += 1; // ok\n}", "<|im_start|>user\nhi<|im_end|>",
    "  <|im_end|>  ", "<|im_end|><|im_end|>", "<|im_", "<file_sep>x<|endoftext|>", "\ufffd", "ﬁ ﬂ Å Ω", "𝔘𝔫𝔦 𐍈", "ﷺ",
    "\u202eRTL\u202c", "A\u0300\u0301\u0302", "https://example.com/a?b=c&d=%20#e", "\u00a0nbsp\u00a0\u00a0x",
    "\u3000wide",
]  # fmt: skip
"""Texts that break tokenizers."""

LINES = [line.strip() for module in (textwrap, tokenize) for line in inspect.getsource(module).split("\n") if line]
LINES += ["猫が好きです。", "Žluťoučký kůň pěl", "한국어 문장", "naïve café", "hahahaha aaaa ababab"] * 5

_rng = random.Random(0)
_LETTERS = "abcdehlort  ▁▁\n.,!é猫ß👍0123<>/sx"
WILD = ["".join(_rng.choice(_LETTERS) for _ in range(_rng.randint(1, 40))) for _ in range(800)]
LOOKS_SPECIAL = ["<s> x</s>", "a</s>b", "<0x41>", "x <0x0A>b", "<unk>", "▁<s>"]
TEXTS = [*NASTY, *LINES[::4], *WILD, *LOOKS_SPECIAL]

PAIRS = {
    "plain": {"byte_fallback": True, "normalization_rule_name": "identity", "remove_extra_whitespaces": False},
    "added": {
        "byte_fallback": True, "normalization_rule_name": "identity", "remove_extra_whitespaces": False,
        "user_defined_symbols": ["▁▁▁", "<x>", "\n\n"],
    },
    "no prefix": {
        "normalization_rule_name": "identity", "remove_extra_whitespaces": False, "add_dummy_prefix": False,
        "user_defined_symbols": ["▁▁▁", "<x>", "\n\n"],
    },
    "nfkc": {"byte_fallback": True, "user_defined_symbols": ["<x>"]},
}  # fmt: skip
UNIGRAMS = {
    "plain": {},
    "bytes": {"byte_fallback": True, "user_defined_symbols": ["<x>"]},
    "identity": {"byte_fallback": True, "normalization_rule_name": "identity", "remove_extra_whitespaces": False},
}
CASES = [("llama", name) for name in PAIRS] + [("t5", name) for name in UNIGRAMS]


@functools.cache
def trained(kind: str, name: str) -> bytes:
    """A tokenizer.model file. kind: as `tokenizer.ggml.model` calls it."""
    settings = (PAIRS if kind == "llama" else UNIGRAMS)[name]
    file = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES), model_writer=file, model_type="bpe" if kind == "llama" else "unigram",
        vocab_size=650 if settings.get("byte_fallback") else 400, num_threads=1, minloglevel=2, **settings,
    )  # fmt: skip
    return file.getvalue()


def processor(blob: bytes) -> sentencepiece.SentencePieceProcessor:
    return sentencepiece.SentencePieceProcessor(model_proto=blob)


def gguf_metadata(blob: bytes, kind: str, **changes) -> dict:
    """What a conversion writes for this model; without BOS and EOS around texts, as the processor gives them."""
    model = protobuf.ModelProto.FromString(blob)
    normalizer, trainer = model.normalizer_spec, model.trainer_spec
    values = {
        "model": kind,
        "tokens": [piece.piece for piece in model.pieces],
        "scores": [piece.score for piece in model.pieces],
        "token_type": [piece.type for piece in model.pieces],
        "add_space_prefix": normalizer.add_dummy_prefix,
        "remove_extra_whitespaces": normalizer.remove_extra_whitespaces,
        "precompiled_charsmap": list(normalizer.precompiled_charsmap),
        "unknown_token_id": trainer.unk_id,
        "bos_token_id": trainer.bos_id,
        "eos_token_id": trainer.eos_id,
        "add_bos_token": False,
        "add_eos_token": False,
        **changes,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in values.items() if value is not None}
