"""What `Model` does with encoder-decoders beside `generate`: translate, summarise, answer a text with a text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from time import perf_counter
from typing import Any

from forwardpass.contracts import Completion
from forwardpass.errors import ContextLengthError, ParameterError
from forwardpass.models.hf_generation import NamedTask, named_tasks
from forwardpass.stages.preprocess import truncate
from forwardpass.tasks.abilities import require
from forwardpass.tasks.languages import direction
from forwardpass.tasks.notices import notice
from forwardpass.tasks.texts import checked_texts
from forwardpass.tasks.translate import Translation, elapsed

SUMMARY = "summarization"
SHOWN = 10
"""Things lost that a warning lists."""


class Answering:
    """Methods of Model. params: see decoding.params.SamplingParams; what the model's files say of the task comes first.

    One text and one answer give a Completion, otherwise there is a flat list, text by text, with `.prompt_index` and
    `.choice_index`. Each raises UnsupportedModelError if the model can't do the task, ParameterError for arguments that
    make no sense, among them a text without anything in it.
    """

    @property
    def source_limit(self) -> int:
        """Tokens that the encoder reads at most."""
        files = self.settings.max_length or self.tokenizer.model_max_length
        positions = self.spec.encoder.max_position_embeddings
        return min(positions, files) if files else positions

    def translate(self, texts: str | Sequence[str], source: str | None = None, target: str | None = None, *,
                  stream: bool = False, **params: Any) -> Completion | list[Completion] | Iterator[Completion]:
        """Texts in another language: whole documents, translated by the sentence and put together with their lines and
        paragraphs as they were.

        source, target: languages, by the model's code, another code or their English name ("de", "deu_Latn", "German").
            Where the model's files leave no choice they need not be said.
        stream: one text's sentences as Completions, each as soon as it is translated; their texts concatenate to the
            translation.
        num_return_sequences, num_beams: n-best translations with scores; the score of several sentences is the mean.

        `.lost` of a result has what stands in the source and not in the translation: numbers, URLs, {braces}, tags. A
        warning says so of the best ones, unless they are streamed.
        """
        require(self, "translate")
        started = perf_counter()
        listed = _texts(texts)
        work = Translation(self, direction(self.tokenizer, self.generation, source, target), params)
        if stream:
            if not isinstance(texts, str) or work.choices != 1:
                raise ParameterError("a stream is one text and one translation; call translate() for more")
            return work.sentences(texts)
        done = [elapsed(started, one) for choices in work.documents(listed) for one in choices]
        missing = [thing for one in done if one.choice_index == 0 for thing in one.lost]
        if missing:
            more = "" if len(missing) <= SHOWN else f" and {len(missing) - SHOWN} more"
            notice(f"not found in the translation: {', '.join(missing[:SHOWN])}{more}", 2)
        return done[0] if isinstance(texts, str) and len(done) == 1 else done

    def summarize(self, texts: str | Sequence[str], *, truncation: str = "right", **params: Any
                  ) -> Completion | list[Completion]:
        """A shorter text that says the same.

        truncation: the end at which a text with more tokens than the model reads is cut, "right" or "left", with a
            warning that says how much was; "error" refuses it.
        """
        require(self, "summarize")
        return self._answer_texts(texts, named_tasks(self.generation).get(SUMMARY, NamedTask()), truncation, params)

    def text2text(self, texts: str | Sequence[str], *, truncation: str = "error", **params: Any
                  ) -> Completion | list[Completion]:
        """The model's answer to a text as it is: instructions ("Is this review positive? ..."), questions, anything.

        truncation: as of summarize()."""
        require(self, "text2text")
        return self._answer_texts(texts, NamedTask(), truncation, params)

    def _answer_texts(self, texts: str | Sequence[str], task: NamedTask, truncation: str, params: dict[str, Any]
                      ) -> Completion | list[Completion]:
        started = perf_counter()
        if truncation not in ("right", "left", "error"):
            raise ParameterError(f"truncation must be 'right', 'left' or 'error', not {truncation!r}")
        sources = [self._source_ids(task.prefix, text, truncation) for text in _texts(texts)]
        chosen = self.answer_params(params, task.settings)
        requests = []
        try:
            for number, ids in enumerate(sources):
                requests.append(self.ask(ids, chosen, started, number))
            self.engine.run(requests)
        finally:
            for request in requests:
                self.engine.cancel(request)
        done = [one for number, request in enumerate(requests) for one in request.completions(number)]
        return done[0] if isinstance(texts, str) and len(done) == 1 else done

    def _source_ids(self, prefix: str, text: str, truncation: str) -> list[int]:
        tokenizer, limit = self.tokenizer, self.source_limit
        ids = tokenizer.encode(prefix + text, add_special_tokens=True, parse_special=False)
        if len(ids) <= limit:
            return ids
        if truncation == "error":
            raise ContextLengthError(f"the text has {len(ids)} tokens; the model reads {limit}: shorten it, or have it "
                                     "cut with truncation='right'")
        notice(f"a text of {len(ids)} tokens was cut to the {limit} that the model reads", 4)
        opening = len(tokenizer.encode(prefix, add_special_tokens=True, parse_special=False)) - len(
            tokenizer.suffix_ids) if prefix else len(tokenizer.prefix_ids)
        return truncate(ids, limit, side=truncation, opening=min(opening, limit), closing=len(tokenizer.suffix_ids))


def _texts(texts: str | Sequence[str]) -> list[str]:
    listed = checked_texts(texts)
    for number, text in enumerate(listed):
        if not text.strip():
            raise ParameterError(f"texts: expected text, found nothing but blanks at {number}")
    return listed
