"""A text that is computed, and the rows of it that one step computes."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from forwardpass.cache.prefix import Node
from forwardpass.cache.tables import Table
from forwardpass.models.regimes import Regime
from forwardpass.scheduler.line import Order
from forwardpass.scheduler.texts import Text

NEVER = sys.maxsize


@dataclass(slots=True, eq=False)
class Sequence:
    """One text being computed. tokens: prompt and answer so far;  prompt: how many of them were given;
    computed: how many are in the cache;  tables: the blocks it holds there, while it runs;
    regime: what the rows computed so far depend on;  reused: how many it found in the cache when it was last started;
    cached: the same of its first start, None before.

    owner, index: whom its rows are for, and which of their sequences it is; nobody's once it has ended.
    source: what it attends to in an encoder-decoder.  rows: all of its rows are wanted, so none may be taken from kept
    texts, and no token follows.  salt: see Terms.  order: its place in the line; those of one request share it.

    kept: the last page of it that is among the kept texts;  due: how many tokens fill the next one;
    steady: how many tokens it has blocks for.
    """

    tokens: list[int]
    prompt: int = 0
    computed: int = 0
    tables: list[Table] = field(default_factory=list)
    regime: Regime = Regime()  # noqa: RUF009  immutable
    reused: int = 0
    cached: int | None = None
    owner: Any = None
    index: int = 0
    source: Text | None = None
    rows: bool = False
    salt: str = ""
    order: Order = (0, 0, 0)
    kept: Node | None = None
    due: int = NEVER
    steady: int = 0

    def __post_init__(self) -> None:
        self.prompt = self.prompt or len(self.tokens)

    @property
    def behind(self) -> int:
        return len(self.tokens) - self.computed

    @property
    def reuses(self) -> bool:
        """Whether kept texts serve it and it may be kept: what depends on a source as well is found under no tokens."""
        return self.source is None and not self.rows

    def forget(self) -> None:
        """It holds no blocks any more."""
        self.tables, self.computed = [], 0
        self.kept, self.due, self.steady = None, NEVER, 0


@dataclass(frozen=True, slots=True)
class Work:
    """`count` tokens of a sequence, from its first uncomputed one; final: afterwards its next token can be chosen."""

    sequence: Sequence
    count: int
    final: bool


class Plan(NamedTuple):
    """One step. texts: what the encoder reads;  work: rows of sequences, computed after that."""

    texts: list[Text]
    work: list[Work]
