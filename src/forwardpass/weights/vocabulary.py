"""Vocabularies from model files: the GGUF metadata keys, or the tokenizer files of a Hugging Face directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, normalizers, processors
from tokenizers import Tokenizer as Backend

from ..errors import ModelFileError, UnsupportedModelError
from .gguf_vocabulary import tokenizer_from_gguf
from .hf_forms import older_form
from .languages import languages_of
from .piece_forms import Form, tokenizer_kind
from .recipes import add_tokens, set_wrapping
from .renumbered import Renumbered
from .text_files import MAX_HOLES, read_object, read_text
from .tokenizer import Tokenizer, VocabularyFacts, backend_from_json

__all__ = ["Tokenizer", "has_tokenizer", "tokenizer_from_directory", "tokenizer_from_gguf"]

_NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def has_tokenizer(path: Path) -> bool:
    """Whether a Hugging Face directory holds a tokenizer in a form that can be read."""
    if (path / "tokenizer.json").is_file():
        return True
    return older_form(path, tokenizer_kind(path, read_object(path / "tokenizer_config.json"))) is not None


def tokenizer_from_directory(path: str | Path) -> Tokenizer:
    """The tokenizer of a Hugging Face directory: tokenizer.json or an older form (hf_forms), tokenizer_config.json,
    special_tokens_map.json and the chat template in any of its places (chat_template.jinja, chat_template.json,
    tokenizer_config.json).

    Raises ModelFileError for a missing or damaged file, UnsupportedModelError for a form that is not implemented.
    """
    path = Path(path)
    config = {**read_object(path / "special_tokens_map.json"), **read_object(path / "tokenizer_config.json")}
    variables = {name: text for name in _NAMED if (text := _token_text(config.get(name))) is not None}
    current, kind = (path / "tokenizer.json").is_file(), tokenizer_kind(path, config)
    if current:
        form = Form(backend_from_json(read_text(path / "tokenizer.json")), variables)
    elif (read := older_form(path, kind)) is not None:
        form = read(path, config, variables)
    elif (path / "sentencepiece.bpe.model").is_file():
        raise UnsupportedModelError(
            f"{path} has sentencepiece.bpe.model but no tokenizer.json; that form numbers its tokens differently for "
            "every family. Save the tokenizer once as tokenizer.json."
        )
    else:
        raise ModelFileError(
            f"{path} has no tokenizer.json; expected one beside the model's config.json, or tokenizer.model, "
            "vocab.json with merges.txt, or vocab.txt."
        )
    backend, variables = form.backend, dict(form.names)
    if kind == "Siglip":
        _canonical(backend, config.get("do_lower_case", True) is not False)

    added, declared = backend.get_added_tokens_decoder(), _declared(config)
    if form.tokens is not None:
        _check_numbers(declared, form.tokens, path)
    add_tokens(backend, [token for i, token in declared if i not in added])
    known = {token.content for token in backend.get_added_tokens_decoder().values()}
    add_tokens(
        backend,
        [
            AddedToken(text, special=True, normalized=False)
            for text in dict.fromkeys(variables.values())
            if text not in known and backend.token_to_id(text) is not None
        ],
    )
    if current and ("add_bos_token" in config or "add_eos_token" in config):
        # The two switches overrule tokenizer.json, as they do in transformers.
        prefix = [variables["bos_token"]] if config.get("add_bos_token") and "bos_token" in variables else []
        suffix = [variables["eos_token"]] if config.get("add_eos_token") and "eos_token" in variables else []
        _wrap(backend, prefix, suffix, path)
    if form.tokens is None:
        number, size = backend.token_to_id, _rows(backend, path)
    else:
        number, size = {token: i for i, token in enumerate(form.tokens)}.get, len(form.tokens)
    ids = {name: number(text) for name, text in variables.items()}
    end = variables.get("eos_token")
    languages = languages_of(kind, config, _marks(backend, form), None if end is None else backend.token_to_id(end))
    if languages and languages.source_place:
        source = [] if languages.source is None else [backend.id_to_token(languages.tokens[languages.source])]
        before, after = (source, [end]) if languages.source_place == "before" else ([], [end, *source])
        _wrap(backend, before, after, path)
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
        truncation_side="left" if config.get("truncation_side") == "left" else "right",
        languages=languages,
    )
    return Tokenizer(backend, facts) if form.tokens is None else Renumbered(backend, facts, form.tokens, form.spelled)


def _canonical(backend: Backend, lower: bool) -> None:
    """SigLIP reads texts in small letters, without ASCII's punctuation and with single blanks between words."""
    steps = [normalizers.Lowercase()] if lower else []
    steps += [normalizers.Replace(Regex(r"[!-/:-@\[-`{-~]"), ""), normalizers.Replace(Regex(r"\s+"), " "),
              normalizers.Strip()]
    backend.normalizer = normalizers.Sequence([*steps, *([backend.normalizer] if backend.normalizer else [])])


def _wrap(backend: Backend, prefix: list[str], suffix: list[str], path: Path) -> None:
    """What goes around a text, instead of what did so far."""
    for text in (*prefix, *suffix):
        if backend.token_to_id(text) is None:
            raise ModelFileError(f"{path / 'tokenizer_config.json'} puts {text[:80]!r} around texts; expected a "
                                 "token of the vocabulary; fetch the file again.")
    if prefix or suffix:
        set_wrapping(backend, prefix, suffix)
    elif backend.num_special_tokens_to_add(False):
        backend.post_processor = processors.TemplateProcessing(single=["$A"], special_tokens=[])


def _rows(backend: Backend, path: Path) -> int:
    """The greatest id and one: more than there are tokens where ids have holes."""
    taken = backend.get_vocab(with_added_tokens=True)
    size = max(taken.values(), default=-1) + 1
    if size > len(taken) + MAX_HOLES:
        raise ModelFileError(f"{path}: expected token ids below {len(taken) + MAX_HOLES}, found {size - 1}; fetch the "
                             "tokenizer again.")
    return size


def _marks(backend: Backend, form: Form) -> dict[str, int]:
    """The tokens among which those of languages are: Marian's are ordinary ones of a vocabulary that numbers itself."""
    if form.tokens is not None and form.spelled is None:
        return {token: i for i, token in enumerate(form.tokens)}
    return {token.content: i for i, token in backend.get_added_tokens_decoder().items()}


def _check_numbers(declared: list[tuple[int, AddedToken]], tokens: list[str], path: Path) -> None:
    for i, token in declared:
        if not (0 <= i < len(tokens) and tokens[i] == token.content):
            raise UnsupportedModelError(
                f"{path / 'tokenizer_config.json'}: token {i} is {token.content[:80]!r}; tokens beside those of "
                "vocab.json can't be added to this kind of vocabulary. Save the tokenizer once as tokenizer.json."
            )


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
        return read_text(path / "chat_template.jinja")
    template = read_object(path / "chat_template.json").get("chat_template") or config.get("chat_template")
    if isinstance(template, list):  # several, by name
        template = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
    if isinstance(template, dict):
        template = template.get("default")
    return template if isinstance(template, str) else None
