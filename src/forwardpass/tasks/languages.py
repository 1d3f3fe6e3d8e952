"""From the languages that a caller names to what a model must be told, in whichever way the model wants it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from forwardpass.errors import ParameterError
from forwardpass.models.hf_generation import named_tasks
from forwardpass.weights import language_names
from forwardpass.weights.languages import Languages

TRANSLATION = "translation_"
_UNSPACED = {"zh", "zho", "ja", "jpn", "th", "tha", "lo", "lao", "km", "khm", "my", "mya", "yue", "bo", "bod"}


@dataclass(frozen=True, slots=True)
class Direction:
    """How a model is told to translate. prefix: text before the source;  languages, source, target: of a model whose
    tokens say it;  settings: defaults of generation for it;  spaced: blanks stand between the target's sentences.
    """

    prefix: str = ""
    languages: Languages | None = None
    source: str | None = None
    target: str | None = None
    settings: Mapping[str, Any] | None = None
    spaced: bool = True

    def source_ids(self, tokenizer, text: str) -> list[int]:
        """What the encoder reads of a text."""
        if self.languages is None:
            return tokenizer.encode(self.prefix + text, add_special_tokens=True, parse_special=False)
        ids = tokenizer.encode(text, add_special_tokens=False, parse_special=False)
        return self.languages.source_ids(ids, self.source, self.target)

    def parameters(self) -> dict[str, Any]:
        """What generation must begin with: HF's names."""
        if self.languages is None:
            return {}
        start, first = self.languages.start_id(self.target), self.languages.first_id(self.target)
        found = {"decoder_start_token_id": start, "forced_bos_token_id": first}
        return {name: token for name, token in found.items() if token is not None}


def pairs(generation: Mapping[str, Any]) -> dict[tuple[str, str], str]:
    """(source, target) codes -> the name of a task, of models that are told by a prefix ("translation_en_to_de")."""
    found = {}
    for name in named_tasks(generation):
        source, _, target = name.removeprefix(TRANSLATION).partition("_to_")
        if name.startswith(TRANSLATION) and source and target:
            found[source, target] = name
    return found


def translates(tokenizer, generation: Mapping[str, Any]) -> bool:
    return tokenizer is not None and (tokenizer.languages is not None or bool(pairs(generation)))


def direction(tokenizer, generation: Mapping[str, Any], source: str | None, target: str | None) -> Direction:
    """For a model that translates. ParameterError, which lists what the model knows, for a language that it doesn't."""
    languages = tokenizer.languages
    if languages is not None:
        languages.source_ids([], source, target)  # complains of languages that are unknown or have to be said
        languages.first_id(target)
        found = languages.find(target) if target is not None and languages.codes else languages.target
        return Direction("", languages, source, target, None, _spaced(found or target))
    known = pairs(generation)
    listed = ", ".join(f"{a} to {b}" for a, b in known)
    if target is None and len(known) == 1:
        target = next(iter(known))[1]
    if target is None:
        raise ParameterError(f"target: the model must be told the target language; it translates {listed}")
    sources, targets = [one for one, _ in known], [one for _, one in known]
    targets = language_names.matching(target, targets)
    sources = sources if source is None else language_names.matching(source, sources)
    fits = [pair for pair in known if pair[0] in sources and pair[1] in targets]
    if not fits:
        asked = f"to {target!r}" if source is None else f"from {source!r} to {target!r}"
        raise ParameterError(f"target: this model knows no translation {asked}; it translates {listed}")
    task = named_tasks(generation)[known[fits[0]]]
    return Direction(task.prefix, settings=task.settings, spaced=_spaced(fits[0][1]))


def _spaced(code: str | None) -> bool:
    return code is None or language_names.subtags(code)[0] not in _UNSPACED
