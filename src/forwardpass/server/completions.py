"""/v1/completions: texts and token ids continued, middles filled in, prompts scored."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec
from msgspec import UNSET
from starlette.responses import Response

from forwardpass.contracts import Piece
from forwardpass.decoding.params import SamplingParams
from forwardpass.errors import ParameterError, UnsupportedModelError
from forwardpass.server.errors import ApiError
from forwardpass.server.generation import Answers, Length, check_answers, encoded, fitted, head, parameters, wrong
from forwardpass.server.logprobs import CompletionRows, Offsets, TokenTexts, prompt_offsets
from forwardpass.server.prompt_scores import PromptScores, scores
from forwardpass.server.schemas import prompts
from forwardpass.server.schemas_generation import CompletionChoice, CompletionRequest, TextCompletion
from forwardpass.server.sse import Events, EventStream, Told
from forwardpass.stages.postprocess import Choice
from forwardpass.stages.preprocess import check_ids, encode_prompt
from forwardpass.tasks.complete import completing

ALL = 1 << 30
"""Room for prompt tokens from which nothing is left out."""


@dataclass(slots=True)
class Prompt:
    """written: what the client sent, None = token ids;  params: of the answers;  shown: its text, where it is echoed;
    scores: of its tokens, where they are asked for."""

    written: str | None
    ids: list[int]
    params: SamplingParams
    shown: str = ""
    scores: PromptScores | None = None


async def complete(call, body: CompletionRequest) -> TextCompletion | Response:
    """Continue texts, fill in what is missing in one, or say how likely they are."""
    listed = prompts(body.prompt, "prompt")
    check(body, len(listed))
    model = call.find(body.model, "generate")
    given = await call.prepare(_prepared, call, model, body, listed)
    ids = [one.ids for one in given]
    if body.echo and body.logprobs is not None:
        for one, found in zip(given, await scores(model, ids, body.logprobs), strict=True):
            one.scores = found
    if body.max_tokens == 0:
        answers = Answers(call, model, [], sum(map(len, ids)))
    else:
        answers = await call.prepare(Answers.ask, call, model, ids, [one.params for one in given])
    entries = Entries(model, body, given)
    if body.echo:
        await call.prepare(entries.prepare_echoes)
    if body.stream:
        return EventStream(TextEvents(call, body, answers, entries))
    await answers.finished()

    def whole() -> TextCompletion:
        return TextCompletion(**head(call, model, body, answers, "text_completion"),
                              choices=list(entries.choices(answers)), usage=answers.usage())

    return whole() if body.logprobs is None else await call.prepare(encoded, whole)


def check(body: CompletionRequest, count: int) -> None:
    """Refuse what is not served, whatever the model. count: of prompts."""
    check_answers(body, count, body.best_of)
    if body.max_tokens == 0 and not body.echo:
        raise wrong("max_tokens", "must be at least 1, or 0 with echo: true, which gives the prompt back")
    if body.suffix is not None:
        if not isinstance(body.prompt, str):
            raise wrong("suffix", "goes with a prompt that is one text")
        if body.echo:
            raise wrong("echo", "a prompt with a suffix is not echoed: leave one of them out")
    elif body.context_tokens is not None:
        raise wrong("context_tokens", "goes with a suffix: only then it is known what may be left out")


def _prepared(call, model, body: CompletionRequest, listed: Sequence[str | list[int]]) -> list[Prompt]:
    best = body.best_of or body.answers
    logprobs = body.logprobs if body.logprobs is not None or best == body.answers else 0
    echoed = body.answers if body.echo and body.logprobs is not None else 0
    if model.spec.encoder and echoed:
        raise wrong("echo", "the prompt is read by this model's encoder, and has no log-probabilities: leave out echo "
                    "or logprobs")
    length = Length(body.max_tokens, "max_tokens", "prompt", best, 0 if logprobs is None else logprobs + 1, echoed,
                    body.min_tokens or 0)
    params = parameters(model, body, length, logprobs)
    fields = ["prompt" if len(listed) == 1 else f"prompt[{i}]" for i in range(len(listed))]
    if body.suffix is None:
        ids = [_encoded(model, one, field) if isinstance(one, str) else one
               for one, field in zip(listed, fields, strict=True)]
    else:
        found, params = _around(model, body, params)
        ids = [found]
    each = fitted(call, model, ids, params, length)
    for one, field in zip(listed, fields, strict=True):
        if not isinstance(one, str):  # now that their number is known to be reasonable
            _checked(model, one, field)
    return [Prompt(one if isinstance(one, str) else None, *rest) for one, *rest in zip(listed, ids, each, strict=True)]


def _encoded(model, prompt: str, field: str) -> list[int]:
    if model.tokenizer is None:
        raise wrong(field, "this model has no tokenizer: send token ids")
    try:
        return encode_prompt(model.tokenizer, prompt)
    except ParameterError as error:
        raise wrong(field, str(error)) from None


def _checked(model, ids: list[int], field: str) -> None:
    try:
        check_ids(ids, model.spec.vocab_size)
    except ParameterError as error:
        raise wrong(field, str(error)) from None


def _around(model, body: CompletionRequest, params: SamplingParams) -> tuple[list[int], SamplingParams]:
    """The prompt of a middle that is to be filled in. Nothing is left out unless the client gives a number."""
    room = ALL
    if body.context_tokens is not None:
        answer = 1 if body.max_tokens is None else body.max_tokens
        room = min(body.context_tokens, model.spec.max_position_embeddings - answer)
    if model.spec.encoder or model.tokenizer is None:
        raise wrong("suffix", "this model fills in no middles; leave it out", "unsupported_by_model")
    try:
        return completing(model.tokenizer, body.prompt, body.suffix, room, params)
    except UnsupportedModelError as error:
        raise ApiError(400, f"suffix: {error}", code="unsupported_by_model", param="suffix") from None


def _shown(body: CompletionRequest, choices: Sequence[Choice]) -> Sequence[Choice]:
    """All, or where more were computed than are wanted the likeliest by the token."""
    if (body.best_of or body.answers) == body.answers:
        return choices
    return sorted(choices, key=lambda one: sum(one.logprobs) / len(one.logprobs), reverse=True)[: body.answers]


# ---- answers


class Entries:
    """Texts and log-probabilities of the choices, with the prompts before them where these are echoed."""

    def __init__(self, model, body: CompletionRequest, given: Sequence[Prompt]):
        self.model = model
        self.body = body
        self.given = given
        self.texts = TokenTexts(model.tokenizer)
        self._offsets: list[list[int]] = []
        self._echoes: list[bytes] = []

    def prepare_echoes(self) -> None:
        """The prompts' texts and entries, which may take a while. Needed before anything else where they are echoed."""
        for one in self.given:
            one.shown, offsets = prompt_offsets(self.model.tokenizer, one.written, one.ids)
            self._offsets.append(offsets)
        if self.body.stream:
            for prompt, one in enumerate(self.given):
                rows = b"null" if one.scores is None else msgspec.json.encode(self.rows(prompt).take())
                self._echoes.append(b'"text":' + msgspec.json.encode(one.shown) + b',"logprobs":' + rows)

    def echo(self, prompt: int) -> bytes:
        """What an event of a stream has of an echoed prompt."""
        return self._echoes[prompt]

    def rows(self, prompt: int) -> CompletionRows:
        """Entries of a choice of that prompt, so far those of the prompt itself if it is echoed."""
        rows = CompletionRows(self.texts, bool(self.body.logprobs))
        if self.given[prompt].scores is not None:
            for scored, offset in zip(self.given[prompt].scores, self._offsets[prompt], strict=True):
                rows.add(*scored, offset)
        return rows

    def offsets(self, prompt: int, choice: Choice) -> Offsets:
        """Where a choice's tokens begin. The first ones may go on with a character of the prompt's."""
        tokenizer = self.model.tokenizer
        skip = () if choice.source_ids is None or tokenizer is None else tokenizer.silent_ids
        continues = bool(choice.prompt_ids) and choice.prompt_ids[-1] not in self.model.facts.special_ids
        return Offsets(tokenizer, len(self.given[prompt].shown), skip=skip, continues=continues)

    def add(self, rows: CompletionRows, offsets: Offsets, choice: Choice, place: int) -> None:
        token = choice.token_ids[place]
        rows.add(token, choice.logprobs[place], choice.top_logprobs[place], offsets.push(token))

    def choices(self, answers: Answers) -> Iterator[CompletionChoice]:
        """Of all prompts, in order."""
        nothing = [None] * self.body.answers
        for prompt in range(len(self.given)):
            shown = _shown(self.body, answers.requests[prompt].choices) if answers.requests else nothing
            for place, choice in enumerate(shown):
                yield self.choice(prompt, place, choice)

    def choice(self, prompt: int, place: int, choice: Choice | None) -> CompletionChoice:
        """A whole choice; None: nothing but the prompt was asked for."""
        index, text = prompt * self.body.answers + place, self.given[prompt].shown
        logprobs = None
        if self.body.logprobs is not None:
            rows = self.rows(prompt)
            if choice is not None:
                offsets = self.offsets(prompt, choice)
                for token in range(len(choice.token_ids)):
                    self.add(rows, offsets, choice, token)
            logprobs = rows.take()
        if choice is None:
            return CompletionChoice(text, index, logprobs, "length")
        return CompletionChoice(text + choice.text, index, logprobs, choice.finish_reason,
                                UNSET if choice.score is None else choice.score)


class TextEvents(Events):
    """text_completion. An echoed prompt is an event of its own, the first of its choice."""

    OPEN, LAST = b'"text":', b'"text":""'

    def __init__(self, call, body: CompletionRequest, answers: Answers, entries: Entries):
        self._entries = entries
        self._each = body.answers
        super().__init__(answers, head(call, entries.model, body, answers, "text_completion"), body,
                         body.logprobs is not None)

    def begin(self, told: Told, out: list[bytes]) -> None:
        prompt = told.index // self._each
        if self._entries.body.echo:
            out.append(self.event(told.index, self._entries.echo(prompt)))
        if self._logprobs:
            rows = CompletionRows(self._entries.texts, bool(self._entries.body.logprobs))
            told.held = rows, self._entries.offsets(prompt, told.choice)

    def note(self, told: Told, piece: Piece) -> None:
        self._entries.add(*told.held, told.choice, told.seen)

    def logprobs(self, told: Told) -> bytes:
        rows = told.held[0] if told.held else ()
        return msgspec.json.encode(rows.take()) if len(rows) else b"null"

    def end(self, out: list[bytes]) -> None:
        if not self.answers.requests:
            for index in range(len(self._entries.given) * self._each):
                out.append(self.event(index, self._entries.echo(index // self._each), b'"length"'))
        super().end(out)
