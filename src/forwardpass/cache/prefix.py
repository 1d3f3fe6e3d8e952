"""Finished texts whose blocks are kept, so that a request that begins the same way computes only what is new.

Tokens are compared, not hashed: a hit is a fact. What a hit gives is bit for bit what recomputing would give, so reuse
never changes an answer. Kept texts are dropped, the least recently used first, as soon as their blocks are needed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from forwardpass.cache.tables import KvCache, Table
from forwardpass.contracts import PAGE
from forwardpass.models.regimes import Regime

MAX_TEXTS = 64


@dataclass(frozen=True, slots=True)
class _Kept:
    tokens: np.ndarray
    tables: list[Table]
    regime: Regime

    def replaces(self, other: _Kept) -> bool:
        """Whether this text serves every request that the other one can serve."""
        n = other.tokens.size
        return (self.regime == other.regime and self.tokens.size >= n and np.array_equal(self.tokens[:n], other.tokens)
                and all(mine.first <= its.first for mine, its in zip(self.tables, other.tables, strict=True)))


class PrefixCache:
    """Keeps blocks held on behalf of texts that are done."""

    def __init__(self, cache: KvCache):
        self._cache = cache
        self._texts: OrderedDict[int, _Kept] = OrderedDict()
        self._next = 0

    def keep(self, tokens: Sequence[int], tables: list[Table], regime: Regime) -> None:
        """Takes over the caller's hold on the blocks of `tables`, which end with the last of `tokens`."""
        new = _Kept(np.asarray(tokens, np.int32), tables, regime)
        for number, kept in list(self._texts.items()):
            if kept.replaces(new):
                self._texts.move_to_end(number)
                self._cache.release(tables)
                return
            if new.replaces(kept):  # an earlier turn of the same chat
                self._cache.release(self._texts.pop(number).tables)
        while len(self._texts) >= MAX_TEXTS:
            self.drop_oldest()
        self._texts[self._next] = new
        self._next += 1

    def reclaimable(self) -> int:
        """Bytes that dropping all kept texts would free."""
        return self._cache.held_by(kept.tables for kept in self._texts.values())

    def match(self, tokens: Sequence[int], limit: int, regime: Regime) -> tuple[int, list[Table]]:
        """(positions that need no computing, blocks held for them), at most `limit` positions.

        A kept text is used as far as it agrees. It must still hold what the next row sees, in every group: where
        another window has moved past that, it is of no use, and for fewer positions even less. Whole blocks are shared;
        blocks of which only a part matches are copied, if there is room for it.
        """
        wanted = np.asarray(tokens[:limit], np.int32)
        best, which = 0, None
        for number, kept in self._texts.items():
            if kept.regime != regime:
                continue
            length = min(kept.tokens.size, wanted.size)
            different = np.flatnonzero(kept.tokens[:length] != wanted[:length])
            same = int(different[0]) if different.size else length
            if same > best and self._cache.holds(kept.tables, same):
                best, which = same, number
        if which is None:
            return 0, self._cache.empty()
        self._texts.move_to_end(which)
        kept = self._texts[which].tables
        shared = self._cache.share(kept, best)
        if shared is None:
            best = best // PAGE * PAGE
            shared = self._cache.share(kept, best) if self._cache.holds(kept, best) else None
        return (0, self._cache.empty()) if shared is None else (best, shared)

    def drop_oldest(self) -> bool:
        """Give the least recently used text's blocks back; False if nothing is kept."""
        if not self._texts:
            return False
        _, kept = self._texts.popitem(last=False)
        self._cache.release(kept.tables)
        return True

    def clear(self) -> None:
        while self.drop_oldest():
            pass
