"""Rotary factors that depend on a text's length, and so which of its rows may be computed together or used again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from forwardpass.models.spec import ModelSpec


class Regime(NamedTuple):
    """What the factors of a text's rows follow from; texts of different regimes have different keys and values.

    long: longrope's long frequencies are in use.
    base: dynamic NTK: the row at position p is computed with the factors of max(base, p + 1) tokens.
    """

    long: bool = False
    base: int = 0


@dataclass(frozen=True, slots=True)
class Regimes:
    """switch: a text of more tokens uses the long frequencies, for all its rows; 0 = there are none.
    trained: dynamic NTK factors change from this length on; 0 = there are none.
    """

    switch: int = 0
    trained: int = 0

    def of(self, length: int, prompt: int) -> Regime:
        """Of a text that has `length` tokens by now, of which the first `prompt` were given.

        The prompt's rows all use its whole length, and a generated token's row the length up to itself. Since that is
        max(trained, prompt, p + 1) for the row at p, two texts agree in their first rows only if their bases agree.
        """
        return Regime(0 < self.switch < length, max(self.trained, prompt) if self.trained else 0)

    def alike(self, regime: Regime, computed: int, rows: int) -> int:
        """How many of the next `rows` rows have the same factors: what one step may compute of a text."""
        return min(rows, max(1, regime.base - computed)) if self.trained else rows

    def ahead(self, regime: Regime, length: int, steps: int) -> int:
        """How many of the next `steps` tokens of a text of `length` tokens belong to the regime it has now."""
        return min(steps, self.switch - length + 1) if self.switch and not regime.long else steps


def regimes(spec: ModelSpec) -> Regimes:
    rotary = [layer.attention.rotary for layer in spec.layers if layer.attention.rotary]
    return Regimes(max((one.switch for one in rotary if one.long_inv_freq), default=0),
                   max((one.ntk.trained for one in rotary if one.ntk), default=0))
