"""Beam search in the engine: the beams of a prompt are sequences that go on together.

Each beam is computed like any other sequence, perhaps in a step of its own where blocks are short. Once the rows of all
of a prompt's beams are there, decoding/beams.py says which live on, and their sequences fork and end accordingly.
"""

from __future__ import annotations

from collections.abc import Iterable
from time import perf_counter
from typing import Any

import numpy as np

from forwardpass.decoding.beams import BeamSearch, Step, advance_all
from forwardpass.scheduler.request import Request
from forwardpass.scheduler.scheduler import Sequence
from forwardpass.scheduler.texts import Text
from forwardpass.stages.postprocess import Choice


class BeamRequest(Request):
    """A prompt of which the best continuations are searched. Sequence i is the search's beam i.

    Nothing is known of the answers before the end, so all pieces come then.
    """

    gathers = True

    def __init__(self, prompt_ids: list[int], choices: list[Choice], search: BeamSearch, source: Text | None = None,
                 started: float | None = None):
        super().__init__(prompt_ids, choices, source, started)
        self.search = search
        self._rows: dict[int, tuple[np.ndarray, int]] = {}  # beam -> logits of a step, and which row of them is its own

    @property
    def ready(self) -> bool:
        """Whether the logits after every beam are there."""
        return len(self._rows) == len(self.sequences)

    def take(self, sequence: Sequence, values: np.ndarray, begin: int, end: int) -> None:
        self._rows[sequence.index] = values, begin  # perhaps again, and the same, if it had to start over

    def ahead(self, sequence: Sequence) -> int:
        return 1

    def rows(self) -> tuple[np.ndarray, np.ndarray]:
        """Logits, and which of their rows follow the beams, in order. They are copied where they are of several steps.
        """
        found = [self._rows[i] for i in range(len(self.sequences))]
        logits = found[0][0]
        if all(one is logits for one, _ in found):
            return logits, np.array([row for _, row in found], np.int32)
        return np.stack([one[row] for one, row in found]), np.arange(len(found), dtype=np.int32)

    def move(self, step: Step | Exception) -> None:
        """Go on as the search says, or end with what it found."""
        if isinstance(step, Exception):
            raise step
        self._rows.clear()
        if self.first_token is None:
            self.first_token = perf_counter()
        if self.search.done:
            self._answer()
            self.end()
            return
        self.sequences = self.scheduler.branch(self.sequences, step.parents.tolist())
        for index, (sequence, token) in enumerate(zip(self.sequences, step.tokens.tolist(), strict=True)):
            sequence.index = index
            sequence.tokens.append(token)

    def end(self) -> None:
        for sequence in self.sequences[1:]:  # one is enough of what they have in common
            if sequence.owner is not None:
                self.scheduler.finish(sequence, keep=False)
        super().end()

    def _answer(self) -> None:
        found = self.search.finished()
        del self.choices[len(found) :]  # of a small vocabulary there may be fewer than were asked for
        for choice, best in zip(self.choices, found, strict=True):
            choice.score = best.score
            tops = best.top_logprobs or [{}] * len(best.token_ids)
            for i, token in enumerate(best.token_ids):
                known = None if best.logprobs is None else (best.logprobs[i], tops[i])
                self.pieces.append((choice.index, choice.append(token, known=known)))
                self.generated += 1
                if choice.finish_reason is not None:
                    break
            choice.finish("length")


def advance_beams(requests: Iterable[BeamRequest], pool: Any) -> list[tuple]:
    """A step of every search whose rows are there, as (request, who takes the step, the step). Searches whose logits
    lie in one array share the pass over it."""
    together: dict[int, tuple[np.ndarray, list[BeamRequest], list[np.ndarray]]] = {}
    for request in requests:
        logits, rows = request.rows()
        _, group, all_rows = together.setdefault(id(logits), (logits, [], []))
        group.append(request)
        all_rows.append(rows)
    results: list[tuple] = []
    for logits, group, all_rows in together.values():
        steps = advance_all([request.search for request in group], logits, all_rows, pool)
        results += [(request, request.move, (step,)) for request, step in zip(group, steps, strict=True)]
    return results
