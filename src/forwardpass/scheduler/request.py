"""What the engine was asked, and what has become of it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from time import perf_counter

from forwardpass.contracts import Completion
from forwardpass.scheduler.scheduler import Sequence
from forwardpass.stages.postprocess import Choice

STAGES = ("preprocess", "embed", "decode", "project", "postprocess")


@dataclass(eq=False)
class Request:
    """One prompt with its parameters, and what has become of it.

    pieces: (choice index, Piece) not yet collected;  error: why it ended before it was done, if so;
    seconds: by stage; "preprocess" is the time before the engine got it, the others are of the steps it took part in.
    """

    prompt_ids: list[int]
    choices: list[Choice]
    sequences: list[Sequence]
    started: float
    pieces: deque = field(default_factory=deque)
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(STAGES, 0.0))
    first_token: float | None = None
    ended: float | None = None
    error: BaseException | None = None

    @property
    def done(self) -> bool:
        return self.ended is not None

    def timings(self) -> dict[str, float]:
        """Seconds: first_token and total since the request came, and the stages' shares of the steps it was in."""
        end = self.ended if self.ended is not None else perf_counter()
        first = self.first_token if self.first_token is not None else end
        return {"first_token": first - self.started, "total": end - self.started, **self.seconds}

    def completions(self, prompt_index: int = 0) -> list[Completion]:
        return [choice.completion(prompt_index=prompt_index, timings=self.timings()) for choice in self.choices]


class NoText:
    """The text of an answer whose model has no tokenizer: token ids are all there is."""

    def push(self, token_id: int) -> str:
        return ""

    def finish(self) -> str:
        return ""
