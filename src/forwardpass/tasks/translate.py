"""Translation: documents by the sentence, put together as they stood, and nothing that programs read is lost silently.

Sentences of all texts are in the engine side by side. Where the likeliest translation of one has lost a number, a URL
or {braces}, the best of the other beams that kept them is taken. If none did, what is to be read letter by letter is
kept by translating the pieces between; numbers that are missing are reported in `Completion.lost`.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any

from forwardpass.contracts import Completion
from forwardpass.decoding.params import SamplingParams
from forwardpass.errors import ContextLengthError
from forwardpass.tasks.languages import Direction
from forwardpass.tasks.placeholders import around_codes, codes, lost
from forwardpass.tasks.sentences import segments

AT_ONCE = 64
"""Sentences in the engine together: enough to fill its steps, few enough that the first ones come soon."""
_BLANK = re.compile(r"\s")
LETTERS = 64
"""A sentence with more characters than this for each token that the model reads is too long, whatever its tokens are:
it is cut before somebody's megabyte without a full stop is tokenised again and again."""
LONGER, MORE = 3, 32
"""A translation has at most LONGER times the source's tokens and MORE unless the caller says otherwise: a model that
has lost its way repeats itself to the end."""


@dataclass(slots=True)
class _Part:
    """Something to translate, or text that stays. request: of the engine, None = it stays.

    found: its translations, once they are known;  pieces: what stands around its codes, if those found have lost some.
    """

    text: str
    request: Any = None
    found: list[Completion] | None = None
    pieces: list[_Part] = field(default_factory=list)

    @property
    def requests(self) -> list[Any]:
        own = [] if self.request is None else [self.request]
        return own + [request for piece in self.pieces for request in piece.requests]


class Translation:
    """One call. texts are documents; each is translated `choices` times, best first.

    given: what the caller says of generation, with HF's names.
    """

    def __init__(self, model, way: Direction, given: Mapping[str, Any]):
        self.model, self.engine, self.way, self.given = model, model.engine, way, given
        self.params: SamplingParams = model.answer_params({**way.parameters(), **given}, way.settings)
        self.choices = self.params.num_return_sequences
        self.limit = model.source_limit

    def documents(self, texts: Sequence[str]) -> Iterator[list[Completion]]:
        """The translations of each text, in order, as they become known."""
        split = [segments(text) for text in texts]
        flat = self._sentences([one.text for parts, _ in split for one in parts])
        for number, (parts, end) in enumerate(split):
            done = [next(flat) for _ in parts]
            yield [self._joined([one.before for one in parts], [one[i] for one in done], end, number, i)
                   for i in range(self.choices)]

    def sentences(self, text: str) -> Iterator[Completion]:
        """The translation of one text by the sentence; what stood between them is part of their texts."""
        parts, end = segments(text)
        if not parts:
            yield _kept(end, 0)
        for n, (part, done) in enumerate(zip(parts, self._sentences([one.text for one in parts]), strict=True)):
            yield self._joined([part.before], done[:1], end if n + 1 == len(parts) else "", 0, 0, first=n == 0)

    def _sentences(self, texts: Sequence[str]) -> Iterator[list[Completion]]:
        """The translations of each sentence, in order. What has not been collected is cancelled at the end."""
        waiting: deque[list[_Part]] = deque()
        coming = iter(texts)
        try:
            while True:
                while len(waiting) < AT_ONCE and (text := next(coming, None)) is not None:
                    waiting.append([])
                    self._begin(text, waiting[-1])
                if not waiting:
                    return
                self._run(waiting[0])
                for parts in waiting:  # all that are done by now: their pieces share steps, too
                    for part in parts:
                        self._look_at(part)
                self._run(waiting[0])
                yield self._finished(waiting[0])
                waiting.popleft()
        finally:
            for request in (one for parts in waiting for part in parts for one in part.requests):
                self.engine.cancel(request)

    def _run(self, parts: Sequence[_Part]) -> None:
        self.engine.run([request for part in parts for request in part.requests])

    def _begin(self, text: str, parts: list[_Part]) -> None:
        """Requests for a sentence: one, or several for one that is too long, cut where it is best."""
        if not any(wanted for _, wanted in around_codes(text)):
            parts.append(_Part(text))
            return
        cut = _middle(text) if len(text) > LETTERS * self.limit else None
        ids = [] if cut else self.way.source_ids(self.model.tokenizer, text)
        if cut or len(ids) > self.limit:
            cut = cut or _middle(text)
            if cut is not None:
                self._begin(text[: cut[0]], parts)
                parts.append(_Part(text[cut[0] : cut[1]]))
                self._begin(text[cut[1] :], parts)
            elif text.isascii():  # data of some kind, no word of any language
                parts.append(_Part(text))
            else:
                raise ContextLengthError(f"a word has {len(ids)} tokens; the model reads {self.limit} at once: shorten "
                                         "it, or leave it out")
            return
        wanted = self.choices
        if self.params.num_beams > 1 and (codes(text) or any(sign.isdigit() for sign in text)):
            wanted = self.params.num_beams
        parts.append(_Part(text, self._ask(ids, wanted)))

    def _ask(self, ids: list[int], wanted: int) -> Any:
        """A request for so many translations of a source."""
        params = replace(self.params, num_return_sequences=wanted)
        if "max_new_tokens" not in self.given:
            most = min(params.max_new_tokens, LONGER * len(ids) + MORE)
            params = replace(params, max_new_tokens=most, min_new_tokens=min(most, params.min_new_tokens))
        return self.model.ask(ids, params)

    def _finished(self, parts: list[_Part]) -> list[Completion]:
        """The translations of one sentence."""
        done = [self._choose(part) for part in parts]
        if len(done) == 1:
            return done[0]
        return [_sum([one[i] for one in done], "".join(one[i].text for one in done)) for i in range(self.choices)]

    def _look_at(self, part: _Part) -> None:
        """Choose among the translations of a part, if they are there. Where the model can't carry its codes over, they
        stay where they are, and the pieces between are translated."""
        request = part.request
        if request is None or part.found is not None or not request.done or request.error is not None:
            return
        found = [replace(one, lost=tuple(lost(part.text, one.text))) for one in request.completions()]
        if self.choices == 1:
            found = [next((one for one in found if not one.lost), found[0])]
            if any(one in codes(part.text) for one in found[0].lost):
                for text, wanted in around_codes(part.text):
                    part.pieces.append(_Part(text))
                    if wanted:
                        ids = self.way.source_ids(self.model.tokenizer, text.strip())
                        part.pieces[-1].request = self._ask(ids, 1)
        part.found = found[: self.choices]

    def _choose(self, part: _Part) -> list[Completion]:
        if part.request is None:
            return [_kept(part.text, i) for i in range(self.choices)]
        if not part.pieces:
            return [replace(one, choice_index=i) for i, one in enumerate(part.found)]
        done: list[Completion] = []
        for piece in part.pieces:
            text, one = piece.text, _kept(piece.text, 0)
            if piece.request is not None:
                one = piece.request.completions()[0]
                before, after = text[: len(text) - len(text.lstrip())], text[len(text.rstrip()):]
                one = replace(one, text=before + one.text.strip() + after, lost=tuple(lost(text, one.text)))
            done.append(one)
        return [_sum(done, "".join(one.text for one in done))]

    def _joined(self, before: list[str], done: list[Completion], end: str, number: int, choice: int,
                first: bool = True) -> Completion:
        text = ""
        for n, (blank, one) in enumerate(zip(before, done, strict=True)):
            inside = not (first and n == 0) and not any(sign in blank for sign in "\r\n")
            text += ("" if inside and not self.way.spaced else blank) + one.text
        whole = _sum(done, text + end) if done else _kept(end, choice)
        return replace(whole, prompt_index=number, choice_index=choice)


def _middle(text: str) -> tuple[int, int] | None:
    """(end of the first part, begin of the second) of a sentence that is cut in two: at the blank nearest to its
    middle, or, in a script without blanks, behind a comma or the like; None if it has neither."""
    if _BLANK.search(text):
        blank = next((at for at in _outwards(len(text)) if text[at].isspace()), None)
        if blank is not None:
            return blank, blank + 1
    comma = next((at for at in _outwards(len(text)) if not text[at - 1].isalnum() and text[at - 1] > "\u2fff"), None)
    return None if comma is None else (comma, comma)


def _outwards(length: int) -> Iterator[int]:
    """From 1 to length - 2, the nearest to the middle first, and of two the lower."""
    below, above = length // 2, length // 2 + 1
    while below > 0 or above < length - 1:
        if below > 0 and (above >= length - 1 or length - 2 * below <= 2 * above - length):
            if below < length - 1:
                yield below
            below -= 1
        else:
            yield above
            above += 1


def _kept(text: str, choice: int) -> Completion:
    return Completion(text, [], [], "stop", timings={}, choice_index=choice)


def _sum(parts: Sequence[Completion], text: str) -> Completion:
    """Several answers as one. Its score is the mean of theirs, its end that of the least complete one."""
    if len(parts) == 1:
        return replace(parts[0], text=text)
    scores = [one.score for one in parts if one.score is not None]
    reasons = {one.finish_reason for one in parts}
    timings: dict[str, float] = {}
    for one in parts:
        for name, seconds in (one.timings or {}).items():
            timings[name] = max(timings.get(name, 0.0), seconds)
    return Completion(
        text, [i for one in parts for i in one.token_ids], [i for one in parts for i in one.prompt_token_ids],
        next(reason for reason in ("cancelled", "length", "stop") if reason in reasons),
        score=sum(scores) / len(scores) if scores else None, timings=timings,
        choice_index=parts[0].choice_index, lost=tuple(thing for one in parts for thing in one.lost))


def elapsed(started: float, done: Completion) -> Completion:
    """With the seconds since the call as the total."""
    return replace(done, timings={**(done.timings or {}), "total": perf_counter() - started})
