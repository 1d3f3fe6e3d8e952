"""Readers of SentencePiece models whose pieces the families of encoder-decoders (and XLM-RoBERTa) number anew, and of
what ByT5 has instead of a vocabulary. They are readers of hf_forms.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from ..errors import ModelFileError
from . import language_codes
from .recipes import add_tokens, set_wrapping
from .renumbered import cutting_backend
from .sentence_pieces import CONTROL, NORMAL, UNKNOWN, PieceFile, Pieces, build_pairs, build_unigrams, read_piece_file
from .text_files import numbered, read_object
from .tokenizer import BYTE_OF

FAIRSEQ = "sentencepiece.bpe.model"
_CODES = {"Nllb": language_codes.NLLB, "MBart": language_codes.MBART, "MBart50": language_codes.MBART50}
_NUMBERED_CODES = {"m2m100": language_codes.M2M100, "wmt21": language_codes.WMT21}
_OF_MODEL_TYPE = {
    "t5": "T5", "mt5": "T5", "umt5": "T5", "mbart": "MBart", "marian": "Marian", "pegasus": "Pegasus",
    "xlm-roberta": "XLMRoberta",
}
MAX_EXTRA = 10_000
"""Tokens besides the text's that a config may ask for; models have a hundred."""

Names = Mapping[str, str]


@dataclass(frozen=True)
class Form:
    """What a reader gives. names: special tokens by role, those of the vocabulary itself included.

    tokens, spelled: of a vocabulary that numbers its pieces itself (renumbered.py); tokens None = of any other.
    """

    backend: Backend
    names: Names
    tokens: list[str] | None = None
    spelled: dict[str, int] | None = None


Reader = Callable[[Path, dict, Names], Form]


def tokenizer_kind(path: Path, config: Mapping) -> str:
    """The class of a directory's tokenizer without "Tokenizer" ("MBart50"), as one of its files or its model says; ""
    where none does. config: the values of tokenizer_config.json."""
    model = read_object(path / "config.json")
    for named in (config.get("tokenizer_class"), model.get("tokenizer_class")):
        kind = str(named or "").removesuffix("Fast").removesuffix("Tokenizer")
        if kind not in ("", "PreTrained", "TokenizersBackend"):
            return kind
    if model.get("model_type") == "m2m_100":
        return "M2M100" if (path / "vocab.json").is_file() else "Nllb"
    return _OF_MODEL_TYPE.get(str(model.get("model_type")), "")


def piece_form(path: Path, kind: str) -> Reader | None:
    """The reader for what lies in the directory, None if it is nothing of this page."""
    if kind == "ByT5":
        return _bytes
    if (path / "vocab.json").is_file():
        if (path / "source.spm").is_file():
            return _marian
        if (path / FAIRSEQ).is_file():
            return _m2m100
    elif (path / FAIRSEQ).is_file() and kind in (*_CODES, "XLMRoberta"):
        return lambda path, config, names: _fairseq(path, config, names, kind)
    return None


def _bytes(path: Path, config: dict, names: Names) -> Form:
    """ByT5: three special tokens, the 256 bytes, and tokens for gaps."""
    names = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    tokens = [*names.values(), *(char for _, char in sorted((byte, char) for char, byte in BYTE_OF.items()))]
    backend = Backend(models.BPE({token: i for i, token in enumerate(tokens)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    add_tokens(backend, [AddedToken(one, special=True, lstrip=True, rstrip=True) for one in names.values()]
               + [AddedToken(one, special=True) for one in _gaps(config, 125, path)])
    set_wrapping(backend, [], [names["eos_token"]])
    return Form(backend, names)


def _gaps(config: dict, usual: int, path: Path) -> list[str]:
    """T5's tokens for gaps in a text, by name."""
    count = config.get("extra_ids", usual)
    if type(count) is not int or not 0 <= count <= MAX_EXTRA:
        raise ModelFileError(f"{path / 'tokenizer_config.json'}: extra_ids: expected a number from 0 to {MAX_EXTRA}, "
                             f"found {str(count)[:40]}; fetch the file again.")
    return [f"<extra_id_{i}>" for i in range(count)]


def t5(pieces: Pieces, config: dict, path: Path) -> Pieces:
    """T5's tokens for gaps come after the pieces, the last first."""
    return _followed(pieces, [one for one in reversed(_gaps(config, 100, path)) if one not in set(pieces.tokens)])


def pegasus(pieces: Pieces, config: dict, names: Names, path: Path) -> Pieces:
    """Padding and the end token, two masks, a hundred tokens that only training used, then the pieces."""
    offset = config.get("offset", 103)
    if type(offset) is not int or not 3 <= offset <= MAX_EXTRA:
        raise ModelFileError(f"{path / 'tokenizer_config.json'}: offset: expected a number from 3 to {MAX_EXTRA}, "
                             f"found {str(offset)[:40]}; fetch the file again.")
    first = [names.get("pad_token", "<pad>"), names.get("eos_token", "</s>"), "<mask_1>", "<mask_2>"]
    first += [f"<unk_{i}>" for i in range(2, offset)]
    return _preceded(pieces, first, 2, path)


def _fairseq(path: Path, config: dict, names: Names, kind: str) -> Form:
    """The numbering of fairseq: four special tokens, the pieces without their own, languages, the mask."""
    file = read_piece_file(path / FAIRSEQ)
    names = {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>", "cls_token": "<s>",
             "sep_token": "</s>", "mask_token": "<mask>", **names}
    first = [names[f"{role}_token"] for role in ("bos", "pad", "eos", "unk")]
    pieces = _preceded(file.pieces, first, 3, path / FAIRSEQ)
    pieces = _followed(replace(pieces, unknown=3), [*_CODES.get(kind, ()), names["mask_token"]])
    pieces.types[3] = UNKNOWN
    around = {"prefix": (0,), "suffix": (2,)} if kind == "XLMRoberta" else {"suffix": (2,)}
    return Form(_build(file, replace(pieces, **around)), names)


def _preceded(pieces: Pieces, first: list[str], dropped: int, path: Path) -> Pieces:
    """Special tokens in place of the first so many pieces, which may not be text."""
    if len(pieces.tokens) <= dropped or NORMAL in pieces.types[:dropped]:
        raise ModelFileError(f"{path}: expected {dropped} special tokens as the first pieces, found "
                             f"{', '.join(map(repr, pieces.tokens[:dropped]))[:200]}; fetch the model again.")
    tokens = first + pieces.tokens[dropped:]
    if len(set(tokens)) != len(tokens):
        raise ModelFileError(f"{path}: expected no piece that is called like a special token; fetch the model again.")
    types = [CONTROL] * len(first) + pieces.types[dropped:]
    unknown = None if pieces.unknown is None else pieces.unknown - dropped + len(first)
    return replace(pieces, tokens=tokens, scores=np.concatenate([np.zeros(len(first)), pieces.scores[dropped:]]),
                   types=types, unknown=unknown)


def _followed(pieces: Pieces, last: list[str]) -> Pieces:
    return replace(pieces, tokens=pieces.tokens + last, scores=np.concatenate([pieces.scores, np.zeros(len(last))]),
                   types=pieces.types + [CONTROL] * len(last))


def _build(file: PieceFile, pieces: Pieces) -> Backend:
    return (build_pairs if file.kind == "bpe" else build_unigrams)(pieces)[0]


def _marian(path: Path, config: dict, names: Names) -> Form:
    names = {"unk_token": "<unk>", "eos_token": "</s>", "pad_token": "<pad>", **names}
    tokens = numbered(read_object(path / "vocab.json"), path / "vocab.json")
    targets = tokens
    if config.get("separate_vocabs"):
        targets = numbered(read_object(path / "target_vocab.json"), path / "target_vocab.json")
    backend = _cutter(path / "source.spm", tokens, names)
    for role in ("unk_token", "eos_token"):
        if names[role] not in targets:
            raise ModelFileError(f"{path / 'target_vocab.json'} lacks {names[role]!r}; fetch the file again.")
    spelled = None if targets is tokens else {token: i for i, token in enumerate(tokens)}
    return Form(backend, names, targets, spelled)


def _m2m100(path: Path, config: dict, names: Names) -> Form:
    names = {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>", "sep_token": "</s>",
             **names}
    kind = str(config.get("language_codes") or "m2m100")
    if kind not in _NUMBERED_CODES:
        raise ModelFileError(f"{path / 'tokenizer_config.json'}: language_codes: expected "
                             f"{' or '.join(_NUMBERED_CODES)}, found {kind[:40]!r}; fetch the file again.")
    tokens = numbered(read_object(path / "vocab.json"), path / "vocab.json")
    marks = [f"__{code}__" for code in _NUMBERED_CODES[kind]]
    if set(marks) & set(tokens):
        raise ModelFileError(f"{path / 'vocab.json'}: expected no tokens of languages in it; fetch the file again.")
    return Form(_cutter(path / FAIRSEQ, tokens + marks, names, marks), names, tokens + marks)


def _cutter(model: Path, tokens: list[str], names: Names, marks: list[str] = ()) -> Backend:
    place = {token: i for i, token in enumerate(tokens)}
    for role in ("unk_token", "eos_token"):
        if names[role] not in place:
            raise ModelFileError(f"{model.parent / 'vocab.json'} lacks {names[role]!r}; fetch the file again.")
    special = {place[token]: True for token in (*names.values(), *marks) if token in place}
    return cutting_backend(read_piece_file(model), tokens, special, place[names["unk_token"]],
                           (place[names["eos_token"]],))
