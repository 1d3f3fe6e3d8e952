"""A tokenizer of a few words with the special tokens of BERT, and one without any, for tests of what is read."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, processors

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = [f"w{i}" for i in range(1, 31)] + ["paris", "is", "in", "france", "##es", "un", "##happy", ",", ".", "a", "b"]
CLS, SEP, MASK = 2, 3, 4


def word_id(number: int) -> int:
    """The id of word w1, w2, ..."""
    return len(SPECIALS) + number - 1


def backend(special: bool = True) -> Tokenizer:
    vocab = {token: i for i, token in enumerate([*SPECIALS, *WORDS])}
    made = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.add_special_tokens([AddedToken(text, special=True) for text in SPECIALS])
    if special:
        made.post_processor = processors.TemplateProcessing(
            single="[CLS]:0 $A:0 [SEP]:0", pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
            special_tokens=[("[CLS]", CLS), ("[SEP]", SEP)])
    return made


def write(folder: Path, special: bool = True, **config) -> Path:
    """tokenizer.json and tokenizer_config.json. The first bakes in a limit and padding, which must not count."""
    made = backend(special)
    made.enable_truncation(7)
    made.enable_padding(length=7)
    made.save(str(folder / "tokenizer.json"))
    named = {"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]", "unk_token": "[UNK]",
             "mask_token": "[MASK]"}
    (folder / "tokenizer_config.json").write_text(json.dumps({**named, **config}))
    return folder
