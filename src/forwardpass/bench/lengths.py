"""How long prompts and answers are, and when they come: distributions that a seed makes repeatable."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from forwardpass.errors import ParameterError

KINDS = {"fixed": 1, "uniform": 2, "lognormal": 2}  # name -> how many numbers it has
EXPECTED = "N, uniform:LEAST:MOST or lognormal:MEDIAN:SIGMA, lengths from 1 to 1,000,000 tokens"
LONGEST = 1_000_000
SPREAD = 3.0
"""Lognormal lengths are cut this many sigmas away from their median, so that their bounds are known beforehand."""
ARRIVALS = ("poisson", "constant")


@dataclass(frozen=True, slots=True)
class Lengths:
    """Numbers of tokens. fixed: always `first`;  uniform: `first` to `second`, both included;  lognormal: median
    `first`, and `second` is the standard deviation of its logarithm."""

    kind: str
    first: float
    second: float = 0.0

    @classmethod
    def parse(cls, text: str, what: str) -> Lengths:
        """From "128", "uniform:64:256" or "lognormal:128:0.7". what: named in the ParameterError of anything else."""
        words = text.strip().split(":")
        kind, numbers = ("fixed", words) if len(words) == 1 else (words[0], words[1:])
        try:
            values = [float(number) for number in numbers]
        except ValueError:
            values = []
        if KINDS.get(kind) != len(values) or not all(map(math.isfinite, values)):
            raise ParameterError(f"{what}: expected {EXPECTED}, found {text!r}")
        made = cls(kind, *values)
        whole = values[:1] if kind == "lognormal" else values
        if any(value != int(value) for value in whole) or not 1 <= made.least <= made.most <= LONGEST or (
                kind == "lognormal" and not 0 <= made.second <= 3):
            raise ParameterError(f"{what}: expected {EXPECTED}, the least first and sigma from 0 to 3, found {text!r}")
        return made

    @property
    def least(self) -> int:
        if self.kind == "lognormal":
            return max(1, round(self.first * math.exp(-SPREAD * self.second)))
        return int(self.first)

    @property
    def most(self) -> int:
        if self.kind == "lognormal":
            return round(self.first * math.exp(SPREAD * self.second))
        return int(self.second if self.kind == "uniform" else self.first)

    def draw(self, chance: np.random.Generator) -> int:
        if self.kind == "fixed":
            return int(self.first)
        if self.kind == "uniform":
            return int(chance.integers(int(self.first), int(self.second) + 1))
        return min(max(round(self.first * math.exp(self.second * chance.standard_normal())), self.least), self.most)

    def __str__(self) -> str:
        return f"{self.first:g}" if self.kind == "fixed" else f"{self.kind}:{self.first:g}:{self.second:g}"


def arrivals(kind: str, rate: float, seed: int) -> Iterator[float]:
    """Seconds from the start at which requests come, without end. constant: the first at 0, then one every 1 / rate;
    poisson: gaps from the exponential distribution with that mean, also before the first."""
    if kind == "constant":
        number = 0
        while True:
            yield number / rate
            number += 1
    chance, at = np.random.default_rng([seed, 1]), 0.0
    while True:
        at += chance.exponential(1 / rate)
        yield at
