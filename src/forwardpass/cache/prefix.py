"""Finished texts whose blocks are kept, so that a request that begins the same way computes only what is new.

Tokens are compared, not hashed: a hit is a fact. What a hit gives is bit for bit what recomputing would give, so reuse
never changes an answer. Kept texts are dropped, the least recently used first, as soon as their blocks are needed.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence

import numpy as np

from forwardpass.cache.blocks import BlockPool
from forwardpass.contracts import PAGE

MAX_TEXTS = 64


class PrefixCache:
    """Keeps blocks held on behalf of texts that are done."""

    def __init__(self, pool: BlockPool):
        self._pool = pool
        self._texts: OrderedDict[int, tuple[np.ndarray, list[int]]] = OrderedDict()
        self._next = 0

    def keep(self, tokens: Sequence[int], blocks: list[int]) -> None:
        """Takes over the caller's hold on `blocks`, which cover exactly the positions of `tokens`."""
        new = np.asarray(tokens, np.int32)
        for number, (kept, _) in list(self._texts.items()):
            if kept.size >= new.size and np.array_equal(kept[: new.size], new):  # nothing that is not kept already
                self._texts.move_to_end(number)
                self._give_back(blocks)
                return
            if kept.size < new.size and np.array_equal(kept, new[: kept.size]):  # an earlier turn of the same chat
                self._give_back(self._texts.pop(number)[1])
        while len(self._texts) >= MAX_TEXTS:
            self.drop_oldest()
        self._texts[self._next] = (new, blocks)
        self._next += 1

    def reclaimable(self) -> int:
        """Blocks that dropping all kept texts would free: nobody else holds them."""
        held = Counter(block for _, blocks in self._texts.values() for block in blocks)
        return sum(self._pool.holders(block) == count for block, count in held.items())

    def match(self, tokens: Sequence[int], limit: int) -> tuple[int, list[int]]:
        """(positions that need no computing, blocks held for them), at most `limit` positions.

        Whole blocks are shared; a block of which only a part matches is copied, if there is room for it.
        """
        wanted = np.asarray(tokens[:limit], np.int32)
        best, which = 0, None
        for number, (kept, _) in self._texts.items():
            length = min(kept.size, wanted.size)
            different = np.flatnonzero(kept[:length] != wanted[:length])
            same = int(different[0]) if different.size else length
            if same > best:
                best, which = same, number
        if which is None:
            return 0, []
        self._texts.move_to_end(which)
        blocks = self._texts[which][1]
        whole, rest = divmod(best, PAGE)
        held = blocks[:whole]
        for block in held:
            self._pool.share(block)
        if rest:
            copied = self._pool.copy(blocks[whole])
            if copied is None:
                return whole * PAGE, held
            held = [*held, copied]
        return best, held

    def drop_oldest(self) -> bool:
        """Give the least recently used text's blocks back; False if nothing is kept."""
        if not self._texts:
            return False
        _, (_, blocks) = self._texts.popitem(last=False)
        self._give_back(blocks)
        return True

    def clear(self) -> None:
        while self.drop_oldest():
            pass

    def _give_back(self, blocks: list[int]) -> None:
        for block in blocks:
            self._pool.give_back(block)
