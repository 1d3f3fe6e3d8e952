"""SentencePiece vocabularies: building one from pieces with scores and types, and reading a `tokenizer.model` file.

The file is a protocol buffer (sentencepiece_model.proto). Of its fields, by number:
    ModelProto        1 pieces, 2 trainer_spec, 3 normalizer_spec
    SentencePiece     1 piece, 2 score, 3 type
    TrainerSpec       3 model_type, 24 treat_whitespace_as_suffix, 40 unk_id, 41 bos_id, 42 eos_id, 43 pad_id
    NormalizerSpec    2 precompiled_charsmap, 3 add_dummy_prefix, 4 remove_extra_whitespaces, 5 escape_whitespaces
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer as Backend

from ..errors import ModelFileError, UnsupportedModelError
from .recipes import ScoredPairs, Spaces, Unigrams
from .score_merges import merges_from_scores

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
"""Types of pieces; a GGUF file uses the same numbers for every vocabulary."""

_UNIGRAM, _PAIRS = 1, 2
_MODEL_TYPES = {1: "unigram", 2: "bpe", 3: "word", 4: "char"}


@dataclass(frozen=True)
class Pieces:
    """A vocabulary as SentencePiece sees it."""

    tokens: list[str]
    scores: np.ndarray
    types: list[int]
    unknown: int | None
    spaces: Spaces
    prefix: tuple[int, ...] = ()
    suffix: tuple[int, ...] = ()


def added_tokens(types: list[int]) -> dict[int, bool]:
    """The tokens found in text before anything else -> whether they are special."""
    return {i: kind != USER_DEFINED for i, kind in enumerate(types) if kind in (UNKNOWN, CONTROL, USER_DEFINED)}


def build_pairs(pieces: Pieces) -> tuple[Backend, ScoredPairs]:
    """SentencePiece's BPE."""
    bare = ScoredPairs(
        pieces.tokens, [], added_tokens(pieces.types), pieces.unknown, BYTE in pieces.types,
        pieces.spaces, pieces.prefix, pieces.suffix,
    )  # fmt: skip
    # Unused tokens are joined too, as llama.cpp does; a space is never left in a prepared text.
    kept = [i for i, kind in enumerate(pieces.types) if kind in (NORMAL, UNUSED) and " " not in pieces.tokens[i]]
    merges, model = merges_from_scores([pieces.tokens[i] for i in kept], pieces.scores[kept], bare.model)
    recipe = ScoredPairs(**{**vars(bare), "merges": [f"{left} {right}" for left, right in merges]})
    return recipe.build(model), recipe


def build_unigrams(pieces: Pieces) -> tuple[Backend, Unigrams]:
    """SentencePiece's unigram model."""
    normal = [i for i, kind in enumerate(pieces.types) if kind == NORMAL]
    # Scores of other tokens mean nothing, and the library takes the least of all as a base for what is unknown.
    least = float(pieces.scores[normal].min()) if normal else 0.0
    scores = [
        score if kind == NORMAL else least for score, kind in zip(pieces.scores.tolist(), pieces.types, strict=True)
    ]
    hidden = tuple(i for i, kind in enumerate(pieces.types) if kind in (UNKNOWN, CONTROL, UNUSED))
    recipe = Unigrams(
        pieces.tokens, scores, added_tokens(pieces.types), pieces.unknown, BYTE in pieces.types, hidden,
        pieces.spaces, pieces.prefix, pieces.suffix,
    )  # fmt: skip
    return recipe.build(), recipe


# -- tokenizer.model


@dataclass(frozen=True)
class PieceFile:
    """What a tokenizer.model says. Ids are None where it has no such token."""

    kind: str
    pieces: Pieces
    bos: int | None
    eos: int | None
    pad: int | None


def read_piece_file(path: Path) -> PieceFile:
    """Raises ModelFileError for a damaged file, UnsupportedModelError for a kind of model that is not implemented."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ModelFileError(f"{path} cannot be read: {error}") from error
    try:
        return _read(data, path)
    except (ValueError, IndexError, struct.error, TypeError, AttributeError) as error:
        raise ModelFileError(f"{path} is not a SentencePiece model, or is damaged ({error}).") from error


def _read(data: bytes, path: Path) -> PieceFile:
    tokens: list[str] = []
    scores: list[float] = []
    types: list[int] = []
    trainer: dict = {3: _UNIGRAM, 24: 0, 40: 0, 41: 1, 42: 2, 43: -1}
    normalizer: dict = {2: b"", 3: 1, 4: 1, 5: 1}
    for number, value in _fields(data):
        if number == 1:
            piece = {2: b"\0\0\0\0", 3: NORMAL, **dict(_fields(value))}
            tokens.append(piece[1].decode())
            scores.append(struct.unpack("<f", piece[2])[0])
            types.append(piece[3])
        elif number == 2:
            trainer.update(_fields(value))
        elif number == 3:
            normalizer.update(_fields(value))
    if not tokens:
        raise ValueError("it holds no pieces")
    if len(set(tokens)) != len(tokens):
        raise ValueError("it holds a piece twice")
    kind = _MODEL_TYPES.get(trainer[3], str(trainer[3]))
    if trainer[3] not in (_UNIGRAM, _PAIRS) or trainer[24] or not normalizer[5]:
        found = f"model type {kind}" + ", spaces after words" * bool(trainer[24])
        found += ", spaces as they are" * (not normalizer[5])
        raise UnsupportedModelError(
            f"{path} uses {found}; expected bpe or unigram with a visible space before words. "
            "Save the tokenizer once as tokenizer.json."
        )
    # A negative id is none; a protocol buffer writes it as a huge number.
    unk, bos, eos, pad = (i if 0 <= (i := trainer[number]) < len(tokens) else None for number in (40, 41, 42, 43))
    spaces = Spaces(bool(normalizer[3]), bool(normalizer[4]), base64.b64encode(normalizer[2]).decode())
    return PieceFile(kind, Pieces(tokens, np.array(scores), types, unk, spaces), bos, eos, pad)


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(number, value) of each field of a message: an int, or bytes for texts, messages and fixed-size numbers."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(data, at)
        else:
            if kind == 2:
                size, at = _varint(data, at)
            elif kind in (1, 5):
                size = 8 if kind == 1 else 4
            else:
                raise ValueError(f"field of unknown kind {kind} at byte {at}")
            if at + size > len(data):
                raise ValueError(f"field of {size} bytes at byte {at} of {len(data)}")
            value, at = data[at : at + size], at + size
        yield key >> 3, value


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError(f"number of more than ten bytes at byte {at}")
