"""The languages of a model that translates: their tokens, and where a text and its answer have them.

There are four ways. M2M-100, NLLB and mBART-50 put the source's token before the text, mBART and the first NLLB files
after its end token; the target's is the first token that is generated, of mBART what the answer begins with. Marian's
models for several targets are told by a token before the text (">>fra<<"). Its others know one pair of languages, which
they may name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..errors import ParameterError
from . import language_names

MAX_NAMED = 60
"""Languages that an error lists with their names."""


@dataclass(frozen=True, slots=True)
class Languages:
    """tokens: code -> token id, in the model's order, {} = the model has no such tokens;  end: the token at the end of
    a text.

    source_place: of the source's token, "before" the text, "after" its end token, "" = the text has none.
    target_place: of the target's token, the "first" one generated, the "start" of the answer, before the "text", or "".
    source, target: what is meant where nothing is said; None = it has to be said. Of a model without tokens: the only
    ones it knows, None = the files don't say.
    """

    end: int
    tokens: Mapping[str, int] = field(default_factory=dict)
    source_place: str = ""
    target_place: str = ""
    source: str | None = None
    target: str | None = None

    @property
    def codes(self) -> tuple[str, ...]:
        """How the model calls its languages."""
        return tuple(self.tokens) or tuple(dict.fromkeys(one for one in (self.source, self.target) if one))

    def find(self, language: str, among: Sequence[str] | None = None, side: str = "") -> str:
        """The model's code of a language given by that code, another one or its English name, in any case.

        "de", "deu", "German" and "de-AT" all find deu_Latn or de_DE. Where a language is written in several ways the
        script may be said ("zho_Hant", "zh-Hant"), otherwise the model's first counts. among: only these of its codes;
        side: "source" or "target", for errors. Raises ParameterError, which lists what the model knows.
        """
        codes = self.codes if among is None else among
        found = language_names.matching(language, codes)
        if not found:
            raise ParameterError(f"{side or 'language'}: {language[:40]!r} is unknown to this model; it knows "
                                 f"{_listed(codes)}.")
        return found[0]

    def source_ids(self, text_ids: Sequence[int], source: str | None = None, target: str | None = None) -> list[int]:
        """What the encoder reads: the tokens of a text, encoded without special ones, with those that belong around it.

        source, target: see `find`; None = what the files say. Raises ParameterError for a language that the model does
        not know, or that has to be said.
        """
        ids = [*text_ids, self.end]
        said = self._code("source", source, self.source)
        if self.source_place == "before":
            ids.insert(0, self.tokens[said])
        elif self.source_place == "after":
            ids.append(self.tokens[said])
        if self.target_place == "text":
            ids.insert(0, self.tokens[self._code("target", target, self.target)])
        elif target is not None:
            self._code("target", target, self.target)
        return ids

    def start_id(self, target: str | None = None) -> int | None:
        """The token that answers in this language begin with; None = they begin as all of the model's do."""
        code = self._code("target", target, self.target)
        return self.tokens[code] if self.target_place == "start" else None

    def first_id(self, target: str | None = None) -> int | None:
        """The token that must be generated first for an answer in this language; None = none must."""
        code = self._code("target", target, self.target)
        return self.tokens[code] if self.target_place == "first" else None

    def _code(self, side: str, language: str | None, usual: str | None) -> str | None:
        place = self.source_place if side == "source" else self.target_place
        if language is None:
            if place and usual is None:
                raise ParameterError(f"{side}: this model must be told the {side} language; it knows "
                                     f"{_listed(self.codes)}.")
            return usual
        if place:
            return self.find(language, side=side)
        # Nothing can be said to the model. It is right if it is the one language that the model is made for; some are
        # for a group of them, which has a name of its own ("mul", "ROMANCE").
        one = usual is not None and language_names.name_of(usual)
        return self.find(language, [usual], side) if one else usual


def _listed(codes: Sequence[str]) -> str:
    """Codes for an error, with names unless there are many."""
    known = list(codes)
    if len(codes) <= MAX_NAMED:
        known = [f"{code} ({name})" if (name := language_names.name_of(code)) else code for code in codes]
    return ", ".join(known) or "none by name"


# -- from a vocabulary

_RULES = {  # tokenizer class: (spelling of a language's token, place of the source's, of the target's, usual source)
    "M2M100": (r"__(\w+)__", "before", "first", "en"),
    "Nllb": (r"([a-z]{3}_[A-Z][a-z]{3})", "before", "first", "eng_Latn"),
    "MBart": (r"([a-z]{2}_[A-Z]{2})", "after", "start", "en_XX"),
    "MBart50": (r"([a-z]{2}_[A-Z]{2})", "before", "first", "en_XX"),
    "Marian": (r">>(.+)<<", "", "text", None),
}


def languages_of(kind: str, config: Mapping, vocabulary: Mapping[str, int], end: int | None) -> Languages | None:
    """The languages of a vocabulary, token -> id; None if it has nothing to do with languages.

    kind: the tokenizer's class without "Tokenizer";  config: the values of tokenizer_config.json.
    """
    if kind not in _RULES or end is None:
        return None
    spelling, source_place, target_place, usual = _RULES[kind]
    tokens = {found[1]: i for token, i in sorted(vocabulary.items(), key=lambda item: item[1])
              if (found := re.fullmatch(spelling, token))}
    if kind == "Nllb" and config.get("legacy_behaviour"):
        source_place = "after"
    source, target = (config.get(one) for one in (("source_lang", "target_lang") if kind == "Marian" else
                                                  ("src_lang", "tgt_lang")))
    source, target = (one if isinstance(one, str) and one else None for one in (source, target))
    if not tokens:
        return Languages(end, source=source, target=target) if kind == "Marian" else None
    if kind != "Marian":
        source = source if source in tokens else usual if usual in tokens else None
    return Languages(end, tokens, source_place, target_place, source, target if target in tokens else None)
