"""The older forms of a tokenizer in a Hugging Face directory: tokenizer.model, vocab.json with merges.txt, vocab.txt.

Which one a directory has decides everything; where the files leave something open, the defaults are those of the
transformers class that reads this form (Llama and T5, GPT-2, CLIP, BERT).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from ..errors import ModelFileError, UnsupportedModelError
from . import piece_forms
from .piece_forms import Form, Names, Reader
from .recipes import BytePairs, WordEndPairs, WordPieces
from .sentence_pieces import Pieces, build_pairs, build_unigrams, read_piece_file
from .text_files import numbered, read_object, read_text

PIECE_FILES = ("tokenizer.model", "spiece.model")
_CUTTERS = {
    "GPT2Tokenizer": "gpt-2", "RobertaTokenizer": "gpt-2", "CodeGenTokenizer": "gpt-2", "Qwen2Tokenizer": "qwen2",
}  # fmt: skip
"""How words are cut, by the class that tokenizer_config.json declares; vocab.json says nothing of it."""
_BERT_TOKENS = {f"{name.lower()}_token": f"[{name}]" for name in ("UNK", "CLS", "SEP", "PAD", "MASK")}


def older_form(path: Path, kind: str) -> Reader | None:
    """The reader for what lies in the directory of a tokenizer of this kind, None if nothing does."""
    if (reader := piece_forms.piece_form(path, kind)) is not None:
        return reader
    if any((path / name).is_file() for name in PIECE_FILES):
        return {"T5": _t5, "Pegasus": _pegasus}.get(kind, _piece_file)
    if (path / "vocab.json").is_file() and (path / "merges.txt").is_file():
        return _word_end_pairs if kind == "CLIP" else _byte_pairs
    if (path / "vocab.txt").is_file():
        return _word_pieces
    return None


def _t5(path: Path, config: dict, names: Names) -> Form:
    return _piece_file(path, config, {"pad_token": "<pad>", **names}, lambda pieces, names: piece_forms.t5(
        pieces, config, path))


def _pegasus(path: Path, config: dict, names: Names) -> Form:
    return _piece_file(path, config, {"mask_token": "<mask_2>", **names}, lambda pieces, names: piece_forms.pegasus(
        pieces, config, names, path))


def _piece_file(path: Path, config: dict, names: Names,
                change: Callable[[Pieces, Names], Pieces] = lambda pieces, names: pieces) -> Form:
    file = read_piece_file(next(path / name for name in PIECE_FILES if (path / name).is_file()))
    tokens = file.pieces.tokens
    ids = {"bos_token": file.bos, "eos_token": file.eos, "unk_token": file.pieces.unknown, "pad_token": file.pad}
    names = {**{name: tokens[i] for name, i in ids.items() if i is not None}, **names}
    pieces = change(file.pieces, names)
    place = {token: i for i, token in enumerate(pieces.tokens)}

    def around(name: str, default: bool) -> tuple[int, ...]:
        return (place[names[name]],) if config.get(f"add_{name}", default) and names.get(name) in place else ()

    pairs = file.kind == "bpe"
    pieces = replace(pieces, prefix=around("bos_token", pairs), suffix=around("eos_token", not pairs))
    backend, _ = (build_pairs if pairs else build_unigrams)(pieces)
    return Form(backend, names)


def _byte_pairs(path: Path, config: dict, names: Names) -> Form:
    kind = str(config.get("tokenizer_class") or "GPT2Tokenizer")[:100]
    pre = _CUTTERS.get(kind.removesuffix("Fast"))
    vocab = read_object(path / "vocab.json")
    if pre is None or config.get("add_prefix_space") or any(token.endswith("</w>") for token in vocab):
        raise UnsupportedModelError(
            f"{path} has vocab.json and merges.txt of a {kind}; without a tokenizer.json only the byte-level "
            f"vocabularies of {', '.join(_CUTTERS)} can be read. Save the tokenizer once as tokenizer.json."
        )
    extra = read_object(path / "added_tokens.json")
    tokens, merges = numbered({**extra, **vocab}, path / "vocab.json"), _merges(path)
    if "<|endoftext|>" in vocab:
        names = {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>", **names}
    place = {token: i for i, token in enumerate(tokens)}
    special = {place[token] for token in names.values() if token in place}
    added = {i: True for i in special} | {place[token]: True for token in extra}
    prefix, suffix = _class_and_separator(names, place)
    return Form(BytePairs(tokens, merges, pre, added, prefix, suffix).build(), names)


def _merges(path: Path) -> list[str]:
    lines = read_text(path / "merges.txt").split("\n")
    return [line for line in lines if line and not line.startswith("#version")]


def _word_end_pairs(path: Path, config: dict, names: Names) -> Form:
    extra = read_object(path / "added_tokens.json")
    tokens = numbered({**extra, **read_object(path / "vocab.json")}, path / "vocab.json")
    place = {token: i for i, token in enumerate(tokens)}
    end = "<|endoftext|>"
    names = {"bos_token": "<|startoftext|>", "eos_token": end, "unk_token": end, "pad_token": end, **names}
    for name in ("bos_token", "eos_token", "unk_token"):
        if names[name] not in place:
            raise ModelFileError(f"{path / 'vocab.json'} lacks the {name.replace('_', ' ')} {names[name][:80]!r}; "
                                 "fetch the file again.")
    added = {place[token]: True for token in names.values() if token in place} | {place[token]: True for token in extra}
    recipe = WordEndPairs(tokens, _merges(path), added, place[names["unk_token"]], (place[names["bos_token"]],),
                          (place[names["eos_token"]],))
    return Form(recipe.build(), names)


def _word_pieces(path: Path, config: dict, names: Names) -> Form:
    tokens = [line.rstrip("\r") for line in read_text(path / "vocab.txt").split("\n")]
    if tokens and not tokens[-1]:
        tokens.pop()
    place = {token: i for i, token in enumerate(tokens)}
    if len(place) != len(tokens):
        raise ModelFileError(f"{path / 'vocab.txt'} holds a token twice; expected one token a line.")
    names = {**{name: token for name, token in _BERT_TOKENS.items() if token in place}, **names}
    if names.get("unk_token") not in place:
        raise ModelFileError(f"{path / 'vocab.txt'} lacks the unknown token {names.get('unk_token', '[UNK]')!r}.")
    added = {place[token]: True for token in names.values() if token in place}
    lower = bool(config.get("do_lower_case", True))
    accents = config.get("strip_accents")
    prefix, suffix = _class_and_separator(names, place)
    recipe = WordPieces(
        tokens, added, place[names["unk_token"]], lower, lower if accents is None else bool(accents), prefix, suffix
    )
    return Form(recipe.build(), names)


def _class_and_separator(names: Names, place: Mapping[str, int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    if names.get("cls_token") in place and names.get("sep_token") in place:
        return (place[names["cls_token"]],), (place[names["sep_token"]],)
    return (), ()
