"""What `Model` does with prompts that are continued: text, chats, code.

Each method is there whole, and as its first half, begin_..., which queues what there is to compute and waits for
nothing: asynchronous callers wait in their own way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import numpy as np

from forwardpass.contracts import Completion
from forwardpass.decoding import params as decoding_params
from forwardpass.decoding.params import SamplingParams
from forwardpass.engine import Engine
from forwardpass.errors import ContextLengthError, ParameterError, UnsupportedModelError
from forwardpass.scheduler.request import Request
from forwardpass.stages.preprocess import check_ids, encode_prompt
from forwardpass.tasks.abilities import require
from forwardpass.tasks.chat import fitting_ids
from forwardpass.tasks.complete import completing
from forwardpass.tasks.notices import notice
from forwardpass.tasks.stream import Stream

Prompt = str | Sequence[int] | Sequence[str] | Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True)
class Asked:
    """What was asked of an engine in one call. requests: one a prompt;  single: it was one prompt, not a list."""

    engine: Engine
    requests: list[Request]
    single: bool = True

    def answers(self) -> Completion | list[Completion]:
        """Once all have ended, or as far as they have come."""
        done = [one for number, request in enumerate(self.requests) for one in request.completions(number)]
        return done[0] if self.single and len(done) == 1 else done

    def wait(self) -> Completion | list[Completion]:
        self.engine.run(self.requests)
        return self.answers()


class Generating:
    """Methods of Model. params: see decoding.params.SamplingParams.

    One prompt and one choice give a Completion; otherwise there is a flat list, prompt by prompt, with `.prompt_index`
    and `.choice_index`. The first halves raise whatever is wrong with the arguments.
    """

    def generate(self, prompt: Prompt, **params: Any) -> Completion | list[Completion]:
        """Continue a prompt: a str, a list of token ids, or a list of either. The chat template is not applied. An
        encoder-decoder answers to it: the prompt is what the encoder reads."""
        return self.begin_generate(prompt, **params).wait()

    def begin_generate(self, prompt: Prompt, **params: Any) -> Asked:
        started = perf_counter()
        require(self, "generate")
        prompts, single = self._prompts(prompt)
        return Asked(self.engine, self._requests(prompts, self._params(params), params, started), single)

    def stream(self, prompt: str | Sequence[int], **params: Any) -> Stream:
        """The same for one prompt, as an iterator of Pieces (text, token_id, logprob)."""
        return _streamed(self.begin_stream(prompt, **params))

    def begin_stream(self, prompt: str | Sequence[int], **params: Any) -> Asked:
        started = perf_counter()
        require(self, "stream")
        prompts, single = self._prompts(prompt)
        if not single:
            raise ParameterError("stream takes one prompt; call it once for each, or generate() for a list")
        return self._begin(prompts[0], self._params(params), params, started, True)

    def chat(self, messages: Sequence[Mapping[str, Any]], stream: bool = False, on_overflow: str = "error",
             **params: Any) -> Completion | list[Completion] | Stream:
        """Answer a conversation, [{"role": ..., "content": ...}, ...], through the model's chat template.

        on_overflow: what to do when the history no longer fits, "error" or "drop_oldest" (whole turns, with a warning).
        """
        asked = self.begin_chat(messages, stream, on_overflow, **params)
        return _streamed(asked) if stream else asked.wait()

    def begin_chat(self, messages: Sequence[Mapping[str, Any]], stream: bool = False, on_overflow: str = "error",
                   **params: Any) -> Asked:
        started = perf_counter()
        if self.spec.encoder:
            require(self, "chat")
        chosen = self._params(params)
        context = self.spec.max_position_embeddings
        # Unless the caller names a number, any answer is better than none, but a turn is dropped for a decent one.
        least = 1 if params.get("max_new_tokens") is None else chosen.max_new_tokens
        wanted = max(least, min(chosen.max_new_tokens, context // 4))
        ids, dropped = fitting_ids(self._tokenizer("chat"), messages, context, least, wanted, on_overflow)
        if dropped:
            notice(f"the conversation no longer fits: its {dropped} oldest messages were dropped", 3)
        return self._begin(ids, chosen, params, started, stream)

    def complete(self, prefix: str, suffix: str | None = None, *, stream: bool = False,
                 context_tokens: int | None = None, **params: Any) -> Completion | list[Completion] | Stream:
        """What belongs between prefix and suffix: source code, or any text. Greedy unless the caller says otherwise.

        suffix: the text after the cursor; without it the prefix is simply continued. With it the model must have tokens
            for filling in the middle; the answer ends where the model says so, or where the suffix would be repeated.
        context_tokens: prompt tokens at most; default and upper bound is what the model has room for. Where the texts
            are longer, what is furthest from the cursor is left out.
        """
        asked = self.begin_complete(prefix, suffix, stream=stream, context_tokens=context_tokens, **params)
        return _streamed(asked) if stream else asked.wait()

    def begin_complete(self, prefix: str, suffix: str | None = None, *, stream: bool = False,
                       context_tokens: int | None = None, **params: Any) -> Asked:
        started = perf_counter()
        if self.spec.encoder:
            require(self, "complete")
        self._tokenizer("complete")
        chosen = self._params(params)
        room = self.spec.max_position_embeddings
        named = params.get("max_new_tokens") is not None
        room -= chosen.max_new_tokens if named else min(chosen.max_new_tokens, room // 4)
        if context_tokens is not None:
            if isinstance(context_tokens, bool) or not isinstance(context_tokens, int) or context_tokens < 1:
                raise ParameterError(f"context_tokens must be a whole number of at least 1, not {context_tokens!r}")
            room = min(room, context_tokens)
        ids, chosen = completing(self.tokenizer, prefix, suffix, room, chosen)
        return self._begin(ids, chosen, params, started, stream)

    def ask(self, ids: list[int], params: SamplingParams, started: float | None = None, number: int = 0) -> Request:
        """A queued request. ids: the prompt, or what the encoder reads;  number: which prompt of the caller's it is."""
        if not self.spec.encoder:
            return self.engine.add(ids, params, started, prompt_index=number)
        return self.engine.add(params.begins(self.facts), params, started, source_ids=ids, prompt_index=number)

    def answer_params(self, params: Mapping[str, Any], settings: Mapping[str, Any] | None = None) -> SamplingParams:
        """Of a request. settings: what the files say of its task, before what they say of all."""
        encode = None if self.tokenizer is None else (
            lambda text: self.tokenizer.encode(text, add_special_tokens=False, parse_special=False))
        return decoding_params.from_user({**self.generation, **(settings or {})}, params, encode=encode,
                                         vocab_size=self.facts.vocab_size, decoder_start=self.facts.start_id)

    # ---- helpers

    def _tokenizer(self, task: str):
        if self.tokenizer is None:
            raise UnsupportedModelError(f"{self.path} has no tokenizer, which {task} needs; "
                                        "pass token ids to generate()")
        return self.tokenizer

    def _prompts(self, prompt: Prompt) -> tuple[list[list[int]], bool]:
        """(token ids of each prompt, whether one prompt was given)."""
        if isinstance(prompt, Sequence) and not isinstance(prompt, (str, bytes)) and prompt \
                and not isinstance(prompt[0], (int, np.integer)):
            return [self._ids(one) for one in prompt], False
        return [self._ids(prompt)], True

    def _ids(self, prompt: str | Sequence[int]) -> list[int]:
        if isinstance(prompt, str):
            return encode_prompt(self._tokenizer("text"), prompt)
        return check_ids(prompt, self.spec.vocab_size)

    def _params(self, params: dict[str, Any]) -> SamplingParams:
        require(self, "generate")
        return self.answer_params(params)

    def _begin(self, ids: list[int], chosen: SamplingParams, given: Mapping[str, Any], started: float, stream: bool
               ) -> Asked:
        """For one prompt."""
        if stream and chosen.num_return_sequences != 1:
            raise ParameterError(f"a stream is one answer: num_return_sequences must be 1, not "
                                 f"{chosen.num_return_sequences}")
        return Asked(self.engine, self._requests([ids], chosen, given, started))

    def _requests(self, prompts: list[list[int]], chosen: SamplingParams, given: Mapping[str, Any],
                  started: float) -> list[Request]:
        """Queued requests for all of these prompts, or for none if one of them cannot be."""
        each = [self._fitted(ids, chosen, given) for ids in prompts]
        requests: list[Request] = []
        try:
            for number, (ids, params) in enumerate(zip(prompts, each, strict=True)):
                requests.append(self.ask(ids, params, started, number))
        except BaseException:
            for request in requests:
                self.engine.cancel(request)
            raise
        return requests

    def _fitted(self, ids: list[int], chosen: SamplingParams, given: Mapping[str, Any]) -> SamplingParams:
        """The parameters with as many new tokens as the context has room for, unless the caller wants a number."""
        if self.spec.encoder:
            self._check_source(ids)
            ids = chosen.begins(self.facts)
        if given.get("max_new_tokens") is None:
            room = max(1, self.spec.max_position_embeddings - len(ids))
            if room < chosen.max_new_tokens:
                chosen = replace(chosen, max_new_tokens=room, min_new_tokens=min(chosen.min_new_tokens, room))
        self._check_length(ids, chosen.max_new_tokens)
        return chosen

    def _check_source(self, ids: list[int]) -> None:
        limit = self.spec.encoder.max_position_embeddings
        if len(ids) > limit:
            raise ContextLengthError(f"the source has {len(ids)} tokens; the model's encoder reads {limit}: shorten it")

    def _check_length(self, ids: list[int], new_tokens: int) -> None:
        limit = self.spec.max_position_embeddings
        if len(ids) + new_tokens > limit:
            asked = f" and {new_tokens} more are to follow" if new_tokens else ""
            raise ContextLengthError(f"the prompt has {len(ids)} tokens{asked}; the model's context is {limit} tokens: "
                                     "shorten the prompt" + (" or lower max_new_tokens" if new_tokens else ""))


def _streamed(asked: Asked) -> Stream:
    return Stream(asked.engine, asked.requests[0])
