"""Vocabularies from model files: the GGUF metadata keys, or the tokenizer files of a Hugging Face directory."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, processors

from ..errors import ModelFileError, UnsupportedModelError
from .pretokenizers import pretokenizer
from .tokenizer import BytePairs, Tokenizer, VocabularyFacts, add_tokens, backend_from_json, set_wrapping

__all__ = ["Tokenizer", "tokenizer_from_directory", "tokenizer_from_gguf"]

_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4

_END_MARKS = frozenset(
    ("<|endoftext|>", "<|end_of_text|>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<end_of_turn>")
)
"""A GGUF file has room for one or two end tokens where generation_config.json lists all. A control token spelled like
one of these ends a text or a turn in every model that has it."""

_MAX_JSON = 256 * 2**20
_NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


# -- GGUF


def tokenizer_from_gguf(metadata: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer of a GGUF file, from its `tokenizer.*` metadata (plain Python values or NumPy arrays).

    Raises UnsupportedModelError for a vocabulary type or word cutter that is not implemented (it is named), and
    ModelFileError for metadata that contradicts itself.
    """
    get = _Metadata(metadata)
    kind = get.text("model")
    if kind != "gpt2":
        names = {"llama": "SentencePiece", "bert": "WordPiece", "t5": "Unigram", "rwkv": "RWKV"}
        what = f" ({names[kind]})" if kind in names else ""
        raise UnsupportedModelError(
            f"tokenizer.ggml.model is {kind!r}{what}; expected 'gpt2', the byte-level vocabulary. "
            "Use the model's Hugging Face directory, whose tokenizer.json can be read."
            if kind
            else "the file has no tokenizer.ggml.model, so it carries no vocabulary; expected 'gpt2'."
        )
    pre = get.text("pre")
    cut = pretokenizer(pre)
    tokens = get.strings("tokens")
    merges = get.strings("merges")
    if not tokens:
        raise ModelFileError("tokenizer.ggml.tokens is missing or empty; expected the vocabulary.")
    if "" in tokens:
        tokens = [token or f"[EMPTY_{i}]" for i, token in enumerate(tokens)]
    if len(set(tokens)) != len(tokens):
        seen: dict[str, int] = {}
        first, second = next((seen[t], i) for i, t in enumerate(tokens) if seen.setdefault(t, i) != i)
        raise ModelFileError(f"the vocabulary has token {tokens[first]!r} twice, as {first} and {second}.")
    types = get.integers("token_type", len(tokens))
    added = {i: kind != _USER_DEFINED for i, kind in enumerate(types) if kind in (_UNKNOWN, _CONTROL, _USER_DEFINED)}

    names = ("bos", "eos", "eot", "eom", "unknown", "padding")
    ids = {name: get.token(f"{name}_token_id", len(tokens)) for name in names}
    ends = [ids["eos"], ids["eot"], ids["eom"]]
    ends += [i for i, special in added.items() if special and tokens[i] in _END_MARKS]
    bos, eos = ids["bos"], ids["eos"]
    add_bos, add_eos = get.flag("add_bos_token", cut.add_bos), get.flag("add_eos_token", False)
    prefix = (bos,) if bos is not None and add_bos else ()
    suffix = (eos,) if eos is not None and add_eos else ()
    pairs = BytePairs(tokens, merges, pre, added, prefix, suffix)
    variables = {"bos_token": bos, "eos_token": eos, "unk_token": ids["unknown"], "pad_token": ids["padding"]}
    template = metadata.get("tokenizer.chat_template")
    facts = VocabularyFacts(
        vocab_size=len(tokens),
        bos_token_id=bos,
        eos_token_ids=tuple(dict.fromkeys(i for i in ends if i is not None)),
        unk_token_id=ids["unknown"],
        pad_token_id=ids["padding"],
        chat_template=template if isinstance(template, str) else None,
        variables={name: tokens[i] for name, i in variables.items() if i is not None},
    )
    return Tokenizer(pairs.build(), facts, pairs)


class _Metadata:
    """Typed access to `tokenizer.ggml.*`; every mismatch is a ModelFileError that names the key."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self._metadata = metadata

    def _wrong(self, key: str, expected: str, found: Any) -> ModelFileError:
        return ModelFileError(f"tokenizer.ggml.{key}: expected {expected}, found {str(found)[:80]!r}.")

    def _get(self, key: str) -> Any:
        value = self._metadata.get(f"tokenizer.ggml.{key}")
        return value.tolist() if hasattr(value, "tolist") else value

    def text(self, key: str) -> str | None:
        value = self._get(key)
        if value is not None and not isinstance(value, str):
            raise self._wrong(key, "a string", value)
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self._get(key)
        if value is None:
            return default
        if not isinstance(value, (bool, int)):
            raise self._wrong(key, "true or false", value)
        return bool(value)

    def token(self, key: str, size: int) -> int | None:
        value = self._get(key)
        if value is None or value in (-1, 2**32 - 1):  # both spell "none"
            return None
        if not isinstance(value, int) or not 0 <= value < size:
            raise self._wrong(key, f"a token id from 0 to {size - 1}", value)
        return value

    def strings(self, key: str) -> list[str]:
        value = self._get(key)
        if value is None:
            return []
        if not isinstance(value, (list, tuple)):
            raise self._wrong(key, "a list of strings", value)
        for item in value:
            if type(item) is not str:
                raise self._wrong(key, "a list of strings", item)
        return list(value)

    def integers(self, key: str, size: int) -> list[int]:
        value = self._get(key)
        if value is None:
            return [1] * size
        if not isinstance(value, (list, tuple)) or len(value) != size:
            found = len(value) if hasattr(value, "__len__") else value
            raise self._wrong(key, f"{size} numbers, one for each token", found)
        return list(value)


# -- Hugging Face directory


def tokenizer_from_directory(path: str | Path) -> Tokenizer:
    """The tokenizer of a Hugging Face directory: tokenizer.json, tokenizer_config.json, special_tokens_map.json and the
    chat template in any of its places (chat_template.jinja, chat_template.json, tokenizer_config.json).

    Raises ModelFileError for a missing or damaged file.
    """
    path = Path(path)
    if not (path / "tokenizer.json").is_file():
        forms = ("tokenizer.model", "spiece.model", "vocab.json", "vocab.txt")
        if others := [name for name in forms if (path / name).is_file()]:
            raise UnsupportedModelError(
                f"{path} has {', '.join(others)} but no tokenizer.json; expected tokenizer.json. "
                "Save the tokenizer once in the fast form."
            )
        raise ModelFileError(f"{path} has no tokenizer.json; expected one beside the model's config.json.")
    backend = backend_from_json(_read(path / "tokenizer.json"))
    config = {**_read_json(path / "special_tokens_map.json"), **_read_json(path / "tokenizer_config.json")}

    added = backend.get_added_tokens_decoder()
    add_tokens(backend, [token for i, token in _declared(config) if i not in added])
    variables = {name: text for name in _NAMED if (text := _token_text(config.get(name))) is not None}
    known = {token.content for token in backend.get_added_tokens_decoder().values()}
    add_tokens(
        backend,
        [
            AddedToken(text, special=True, normalized=False)
            for text in dict.fromkeys(variables.values())
            if text not in known and backend.token_to_id(text) is not None
        ],
    )
    if "add_bos_token" in config or "add_eos_token" in config:
        # The two switches overrule tokenizer.json, as they do in transformers.
        prefix = [variables["bos_token"]] if config.get("add_bos_token") and "bos_token" in variables else []
        suffix = [variables["eos_token"]] if config.get("add_eos_token") and "eos_token" in variables else []
        if prefix or suffix:
            set_wrapping(backend, prefix, suffix)
        elif backend.num_special_tokens_to_add(False):
            backend.post_processor = processors.TemplateProcessing(single=["$A"], special_tokens=[])
    ids = {name: backend.token_to_id(text) for name, text in variables.items()}
    size = max([backend.get_vocab_size(with_added_tokens=True), *(i + 1 for i in backend.get_added_tokens_decoder())])
    longest = config.get("model_max_length")
    facts = VocabularyFacts(
        vocab_size=size,
        bos_token_id=ids.get("bos_token"),
        eos_token_ids=(ids["eos_token"],) if ids.get("eos_token") is not None else (),
        unk_token_id=ids.get("unk_token"),
        pad_token_id=ids.get("pad_token"),
        chat_template=_chat_template(path, config),
        # transformers writes 1e30 for "no limit"
        model_max_length=int(longest) if isinstance(longest, (int, float)) and 0 < longest < 1e9 else None,
        variables=variables,
    )
    return Tokenizer(backend, facts)


def _declared(config: dict) -> list[tuple[int, AddedToken]]:
    """Tokens of tokenizer_config's `added_tokens_decoder`, by id."""
    table = config.get("added_tokens_decoder") or {}
    flags = ("lstrip", "rstrip", "single_word", "normalized", "special")
    try:
        return sorted(
            (
                (int(i), AddedToken(entry["content"], **{flag: bool(entry[flag]) for flag in flags if flag in entry}))
                for i, entry in table.items()
            ),
            key=lambda item: item[0],
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ModelFileError(f"tokenizer_config.json: added_tokens_decoder is damaged ({error!r}).") from error


def _token_text(value: Any) -> str | None:
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) and value else None


def _chat_template(path: Path, config: dict) -> str | None:
    if (path / "chat_template.jinja").is_file():
        return _read(path / "chat_template.jinja")
    template = _read_json(path / "chat_template.json").get("chat_template") or config.get("chat_template")
    if isinstance(template, list):  # several, by name
        template = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
    if isinstance(template, dict):
        template = template.get("default")
    return template if isinstance(template, str) else None


def _read(path: Path) -> str:
    try:
        if path.stat().st_size > _MAX_JSON:
            raise ModelFileError(f"{path} has {path.stat().st_size} bytes; expected at most {_MAX_JSON}.")
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelFileError(f"{path} cannot be read: {error}") from error


def _read_json(path: Path) -> dict:
    """The object in a JSON file; {} when there is no such file."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(_read(path))
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{path} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelFileError(f"{path}: expected a JSON object, found {type(value).__name__}.")
    return value
