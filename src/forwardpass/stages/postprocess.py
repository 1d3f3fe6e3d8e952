"""Stage 5: a row of logits becomes a token, the token becomes text, and something decides whether that was the last.

One Choice is one answer being generated. The engine hands it the logits of the newest position, feeds the token it
returns back into stage 2, and goes on until finish_reason is set:

    choice = Choice(params, facts, prompt_ids, tokenizer)
    while choice.finish_reason is None:
        piece = choice.accept(row)              # row: float32 [rows of the head]
        show(piece.text)
    answer = choice.completion()
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from forwardpass.contracts import Completion, Piece
from forwardpass.decoding import sampler
from forwardpass.decoding.params import SamplingParams, TokenFacts
from forwardpass.decoding.stops import StopStrings, completes
from forwardpass.errors import ParameterError
from forwardpass.stages.text_stream import TextStream

_REFUSALS = 500  # tokens refused for one position before giving up on bad_words


class Choice:
    """The state of one answer.

    prompt_ids:  token ids of the prompt; of an encoder-decoder, those that the answer begins with
    source_ids:  token ids that the encoder read, for the caller the prompt; None = the model has none. An answer to a
                 source begins with a token of its own, perhaps that of its language: those are not shown
    prompt_index: which prompt of its list this is an answer to
    tokenizer:   decode(list of ids) -> str
    index:       which of the prompt's answers this is
    text_stream: push(token_id) -> new text, finish() -> the rest; by default one that never shows half a character

    token_ids, logprobs and top_logprobs grow by one entry a token (the last two stay None unless asked for);
    finish_reason is None, then "stop", "length" or "cancelled".  score: of an answer that a beam search found.
    """

    def __init__(
        self,
        params: SamplingParams,
        facts: TokenFacts,
        prompt_ids: Sequence[int],
        tokenizer: Any,
        *,
        index: int = 0,
        text_stream: Any = None,
        source_ids: Sequence[int] | None = None,
        prompt_index: int = 0,
    ):
        self.params = params
        self.index = index
        self.prompt_ids = [int(i) for i in prompt_ids]
        self.source_ids = None if source_ids is None else [int(i) for i in source_ids]
        self.token_ids: list[int] = []
        self.logprobs: list[float] | None = None if params.logprobs is None else []
        self.top_logprobs: list[dict[int, float]] | None = None if params.logprobs is None else []
        self.finish_reason: str | None = None
        self.score: float | None = None
        self._facts = facts
        self._decode = tokenizer.decode if params.bad_words else None
        self._sampler = sampler.Sampler(
            params, facts, prompt_ids, index, source_ids=source_ids, prompt_index=prompt_index
        )
        # After a special token a new text begins; after ordinary ones the answer goes on with theirs.
        continues = bool(self.prompt_ids) and self.prompt_ids[-1] not in facts.special_ids
        if text_stream is None:
            skip = () if source_ids is None else tokenizer.silent_ids
            text_stream = TextStream(tokenizer, skip=skip, continues=continues)
        self._stream = text_stream
        self._stops = StopStrings(params.stop, include=params.include_stop)
        self._texts: list[str] = []
        self._ends = params.end_ids(facts)

    @property
    def text(self) -> str:
        """The answer so far: the texts of all pieces, joined."""
        return "".join(self._texts)

    @property
    def likeliest(self) -> bool:
        """Whether the next token is simply that of the largest logit, with nothing else to be read off the row."""
        return self._sampler.likeliest and self.logprobs is None and self._decode is None

    @property
    def end_ids(self) -> frozenset[int]:
        """The tokens that end this answer."""
        return self._ends

    @property
    def tokens_left(self) -> int:
        return self.params.max_new_tokens - len(self.token_ids)

    def accept(self, row: np.ndarray) -> Piece:
        """Take the logits that follow the newest token; return the next token with the text it completes.

        row: float32 [rows of the head], only read. An end token is in token_ids, but its text is not shown.
        Raises ParameterError (this answer cannot go on; others are not affected) or ForwardpassError (bad logits).
        """
        if self.finish_reason is not None:
            raise ParameterError(f"This answer has finished ({self.finish_reason}); it accepts no further logits.")
        return self.append(self._pick(row), row)

    def append(self, token_id: int, row: np.ndarray | None = None,
               known: tuple[float, dict[int, float]] | None = None) -> Piece:
        """Take a token picked elsewhere; if log-probabilities were asked for, with the raw logits behind it or with
        what is `known`: its own log-probability and those of the likeliest tokens."""
        logprob = None
        if self.logprobs is not None and self.top_logprobs is not None:
            if known is None:
                if row is None:
                    raise ParameterError("append() needs the logits row when log-probabilities were asked for.")
                known = sampler.logprobs(row, token_id, self.params.logprobs or 0, self._facts.vocab_size)
            logprob, top = known
            self.logprobs.append(logprob)
            self.top_logprobs.append(top)
        self._sampler.accept(token_id)
        self.token_ids.append(token_id)
        if token_id in self._ends:
            return Piece(self._finish("stop", ""), token_id, logprob)
        text, stopped = self._stops.push(self._stream.push(token_id))
        if stopped:
            self.finish_reason = "stop"
            self._texts.append(text)
        elif len(self.token_ids) >= self.params.max_new_tokens:
            text = self._finish("length", text)
        else:
            self._texts.append(text)
        return Piece(text, token_id, logprob)

    def finish(self, reason: str) -> str:
        """End the answer from outside ("cancelled", or "length" for a full context); return the text held back."""
        return self._finish(reason, "") if self.finish_reason is None else ""

    def completion(self, *, prompt_index: int = 0, timings: dict[str, float] | None = None) -> Completion:
        """The finished answer. timings: seconds by stage."""
        return Completion(
            text=self.text,
            token_ids=list(self.token_ids),
            prompt_token_ids=list(self.prompt_ids if self.source_ids is None else self.source_ids),
            finish_reason=self.finish_reason or "cancelled",
            logprobs=None if self.logprobs is None else list(self.logprobs),
            timings=timings,
            score=self.score,
            prompt_index=prompt_index,
            choice_index=self.index,
            top_logprobs=list(self.top_logprobs or ()) if self.params.logprobs else None,
        )

    def _finish(self, reason: str, text: str) -> str:
        """text, then what the text stream and the stop strings held back."""
        tail, stopped = self._stops.push(self._stream.finish())
        text += tail + self._stops.finish()
        self.finish_reason = "stop" if stopped else reason
        self._texts.append(text)
        return text

    def _pick(self, row: np.ndarray) -> int:
        token_id = self._sampler.pick(row)
        if self._decode is None:
            return token_id
        refused: list[int] = []
        while self._completes_bad_word(token_id):
            refused.append(token_id)
            if len(refused) > _REFUSALS:
                raise ParameterError(
                    f"bad_words: none of the {_REFUSALS} likeliest tokens avoids {list(self.params.bad_words)!r}; "
                    f"use fewer or longer words."
                )
            token_id = self._sampler.pick(row, refused)
        return token_id

    def _completes_bad_word(self, token_id: int) -> bool:
        """Whether a bad word would end inside the text this token adds. Text of the prompt does not count."""
        return token_id not in self._ends and completes(self._decode, self.token_ids, token_id, self.params.bad_words)
