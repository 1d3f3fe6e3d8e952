"""How long rows take: learned from the steps themselves, so that the next step takes no longer than it should.

Only when something is computed follows from it, never what comes out.
"""

from __future__ import annotations

from math import inf

LEAST_ROWS = 16
"""Rows of prompts that a step computes in any case: as many as the matrix units take together."""


class Pace:
    """ones: (sequences, seconds) of the newest step that computed one token of each and nothing else."""

    def __init__(self) -> None:
        self.ones = (0, 0.0)
        self._row = 0.0  # seconds for one more row of a prompt; 0 = not known
        self._text_row = 0.0  # and of a text for the encoder

    def note(self, ones: int, rows: int, seconds: float) -> None:
        """A step took so long for one token each of `ones` sequences, and `rows` rows of prompts."""
        if not rows:
            self.ones = ones, seconds
            return
        # Beside others' tokens a row costs what it adds, but a measurement that says next to nothing is wrong.
        each = max(seconds - self.ones[1], seconds / 4) / rows if ones else seconds / rows
        self._row = _newer(self._row, each)

    def note_texts(self, rows: int, seconds: float) -> None:
        """An encoder took so long for texts of so many rows."""
        self._text_row = _newer(self._text_row, seconds / rows)

    def spare(self, within: float | None, ones: int) -> float:
        """Seconds for prompts and texts in a step that should take `within` seconds, None = any time, and also computes
        one token each of `ones` sequences. Where these alone take longer, a step may take twice as long as they do, or
        prompts would come to nothing."""
        if within is None:
            return inf
        base = self.ones[1] if ones else 0.0
        return max(within - base, base)

    def rows(self, seconds: float, most: int) -> int:
        """How many rows of prompts, `most` at most, are computed in so many seconds; some in any case."""
        return _fitting(seconds, self._row, most)

    def text_rows(self, seconds: float, most: int) -> int:
        """The same for texts."""
        return _fitting(seconds, self._text_row, most)

    def text_seconds(self, rows: int) -> float:
        return rows * self._text_row


def _newer(known: float, measured: float) -> float:
    """Deeper in a text rows take longer, so what was measured last counts most."""
    return (known + measured) / 2 if known else measured


def _fitting(seconds: float, each: float, most: int) -> int:
    if most * each <= seconds or not each:
        return most
    return min(most, max(LEAST_ROWS, int(seconds / each) // LEAST_ROWS * LEAST_ROWS))
