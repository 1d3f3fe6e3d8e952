"""What all that is asked of the engine has in common: sequences that are computed, and somebody who waits."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np

from forwardpass.scheduler.limits import TokensInFlight
from forwardpass.scheduler.scheduler import Scheduler, Sequence
from forwardpass.scheduler.terms import Terms

STAGES = ("preprocess", "embed", "decode", "project", "postprocess")

Listener = Callable[[], "Callable[[], object] | None"]
"""Called by the thread that steps the engine. What it returns is called once at the end of the step, however many
listeners return the same."""


class Job:
    """error: why it ended before it was done, if so, known before it has ended;  sequences: what it computes;
    seconds: by stage; "preprocess" is the time before the engine got it, the others are of the steps it took part in.

    started: when whoever asks began with it; None = now.
    gathers: more is to be done once all that a step computed of it has been taken: step_done, or a step of its search.

    engine, terms: who computes it and on what terms, known once it was admitted;  account: what its tokens came from.
    on_news, on_end: called after each step that brought news of it, its end among them, and after its end alone.
    tokens: that it may come to, what is read and what is generated;  read, generated: how many of them there are yet.
    """

    gathers = False
    failed = False
    engine: Any = None
    terms: Terms = Terms()
    account: TokensInFlight | None = None
    scheduler: Scheduler | None = None
    tokens = 0
    read = 0
    generated = 0

    def __init__(self, sequences: list[Sequence], started: float | None = None):
        now = perf_counter()
        self.started = now if started is None else started
        self.ended: float | None = None
        self.error: BaseException | None = None
        self.on_news: list[Listener] = []
        self.on_end: list[Listener] = []
        self.seconds = dict.fromkeys(STAGES, 0.0)
        self.seconds["preprocess"] = now - self.started
        self.sequences = sequences
        for sequence in sequences:
            sequence.owner = self

    @property
    def done(self) -> bool:
        return self.ended is not None

    @property
    def news(self) -> bool:
        """Whether there is something to tell whoever waits for it."""
        return self.done

    def start(self, scheduler: Scheduler) -> None:
        """Queue what there is to compute."""
        self.scheduler = scheduler
        for sequence in self.sequences:
            scheduler.add(sequence, self.terms)

    def take(self, item: Any, values: np.ndarray, begin: int, end: int) -> None:
        """Rows begin to end of `values` are what a step computed of one of its sequences or texts: hidden states, or
        where the next token is to be chosen the logits that follow the last one."""
        raise NotImplementedError

    def step_done(self) -> None:
        """All that a step computed of it has been taken."""

    def ahead(self, sequence: Sequence) -> int:
        """How many tokens of a sequence may be chosen, each the likeliest, before they are looked at; 1 = none."""
        return 1

    def cancel(self) -> None:
        """Nobody waits for it any more."""
        self.end()

    def fail(self, error: BaseException) -> None:
        self.error, self.failed = error, True
        self.end()

    def end(self) -> None:
        """Free what it holds. What was computed may serve others, unless that failed."""
        for sequence in self.sequences if self.scheduler else ():  # None: it never got that far
            if sequence.owner is not None:
                self.scheduler.finish(sequence, keep=not self.failed)
        self.over()

    def over(self) -> None:
        """It has ended: whoever looks from another thread finds all that it took given back."""
        self.terms.leave(self)
        self.ended = perf_counter()
