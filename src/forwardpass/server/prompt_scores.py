"""How likely the model finds the tokens of a prompt."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from forwardpass.asynchronous import finished
from forwardpass.decoding import sampler

Scored = tuple[int, float | None, dict[int, float] | None]
"""(token, its log-probability, those of the likeliest in its place); the first token has none."""


class PromptScores:
    """ids: the prompt;  top: how many of the likeliest tokens are kept in each place, in 12 bytes each, so that the
    longest prompt needs little memory until it is shown. No parameter of decoding changes them."""

    def __init__(self, ids: Sequence[int], top: int, vocab_size: int):
        self._ids = ids
        self._vocab_size = vocab_size
        width = min(top, vocab_size)
        self._own = np.zeros(len(ids))
        self._top_ids = np.zeros((len(ids), width), np.int32)
        self._top = np.zeros((len(ids), width))

    def take(self, first: int, rows: np.ndarray) -> None:
        """Logits of the prompt's rows from `first` on, float32 [rows, vocab]. A row is about the token after it."""
        for place, row in enumerate(rows, first + 1):
            if place < len(self._ids):
                own, top = sampler.logprobs(row, self._ids[place], self._top.shape[1], self._vocab_size)
                self._own[place] = own
                self._top_ids[place] = list(top)
                self._top[place] = list(top.values())

    def __iter__(self) -> Iterator[Scored]:
        yield self._ids[0], None, None
        for place in range(1, len(self._ids)):
            top = dict(zip(self._top_ids[place].tolist(), self._top[place].tolist(), strict=True))
            yield self._ids[place], float(self._own[place]), top


async def scores(model, prompts: Sequence[Sequence[int]], top: int) -> list[PromptScores]:
    """Of each prompt. They are computed together, in steps that they share with everybody else."""
    found = [PromptScores(ids, top, model.facts.vocab_size) for ids in prompts]
    jobs = []
    try:
        for ids, one in zip(prompts, found, strict=True):
            jobs.append(model.engine.rows(ids, one.take))
        await finished(*jobs)
    finally:
        for job in jobs:
            model.engine.cancel(job, wait=False)
    return found
