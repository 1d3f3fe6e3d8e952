"""A prompt that is to be continued, and the answers to it."""

from __future__ import annotations

from collections import deque
from time import perf_counter

import numpy as np

from forwardpass.contracts import Completion, Piece
from forwardpass.scheduler.job import Job
from forwardpass.scheduler.scheduler import Sequence, Work
from forwardpass.scheduler.texts import Text
from forwardpass.stages.postprocess import Choice


class Request(Job):
    """One prompt with its parameters, and what has become of it. Each answer is a sequence; they fork after the prompt.

    source: what an encoder-decoder answers to; the prompt is then how the answer begins.
    pieces: (choice index, Piece) not yet collected.
    """

    def __init__(self, prompt_ids: list[int], choices: list[Choice], source: Text | None = None,
                 started: float | None = None):
        super().__init__([Sequence(list(prompt_ids), source=source)], started)
        self.prompt_ids = prompt_ids
        self.choices = choices
        self.pieces: deque[tuple[int, Piece]] = deque()
        self.first_token: float | None = None
        params = choices[0].params
        self._given = len(prompt_ids if source is None else source)
        self.tokens = self._given + max(len(choices), params.num_beams) * params.max_new_tokens

    @property
    def news(self) -> bool:
        return self.done or bool(self.pieces)

    @property
    def read(self) -> int:
        return 0 if self.first_token is None else self._given

    @property
    def cached(self) -> int | None:
        """How many tokens of the prompt were found in the cache when it was first computed; None before."""
        return self.sequences[0].cached

    def timings(self) -> dict[str, float]:
        """Seconds: first_token and total since the request came, and the stages' shares of the steps it was in."""
        end = self.ended if self.ended is not None else perf_counter()
        first = self.first_token if self.first_token is not None else end
        return {"first_token": first - self.started, "total": end - self.started, **self.seconds}

    def completions(self, prompt_index: int = 0) -> list[Completion]:
        return [choice.completion(prompt_index=prompt_index, timings=self.timings()) for choice in self.choices]

    def take(self, sequence: Sequence, values: np.ndarray, begin: int, end: int) -> None:
        """The next token of a sequence; after the prompt, the first token of every choice."""
        row = values[begin]
        if len(self.sequences) < len(self.choices):
            for other in range(1, len(self.choices)):
                twin = self.scheduler.fork(sequence)
                twin.index = other
                self.sequences.append(twin)
            chosen = self.sequences
        else:
            chosen = [sequence]
        for one in chosen:
            if self.choices[one.index].finish_reason is None:
                self._note(one, self.choices[one.index].accept(row))

    def ahead(self, sequence: Sequence) -> int:
        choice = self.choices[sequence.index]
        return choice.tokens_left if choice.likeliest and choice.token_ids else 1

    def ends(self, sequence: Sequence) -> frozenset[int]:
        """The tokens that end a sequence."""
        return self.choices[sequence.index].end_ids

    def take_ahead(self, work: Work, tokens: list[int]) -> None:
        """The tokens that running ahead gave a sequence; those after its end count for nothing."""
        choice = self.choices[work.sequence.index]
        for token in tokens:
            self.scheduler.done(work)
            self._note(work.sequence, choice.append(token))
            if choice.finish_reason is not None:
                return

    def cancel(self) -> None:
        for choice in self.choices:
            choice.finish("cancelled")
        self.end()

    def _note(self, sequence: Sequence, piece: Piece) -> None:
        """A token was chosen: for whoever collects it, and as the next one to compute."""
        if self.first_token is None:
            self.first_token = perf_counter()
        self.pieces.append((sequence.index, piece))
        self.generated += 1
        sequence.tokens.append(piece.token_id)
        if self.choices[sequence.index].finish_reason is not None:
            self.scheduler.finish(sequence, keep=True)
            if all(other.finish_reason is not None for other in self.choices):
                self.end()


class NoText:
    """The text of an answer whose model has no tokenizer: token ids are all there is."""

    def push(self, token_id: int) -> str:
        return ""

    def finish(self) -> str:
        return ""
