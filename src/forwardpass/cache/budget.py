"""Bytes that the KV caches of one or several models share, and which kept texts go first where bytes are short."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING
from weakref import finalize, ref

if TYPE_CHECKING:
    from forwardpass.cache.blocks import BlockPool
    from forwardpass.cache.prefix import Node, PrefixCache


class Share:
    """What one pool has of a budget, in bytes. held: of blocks that somebody holds;  idle: of those among them that
    only kept texts hold;  resident: of blocks with memory behind them, held or free."""

    __slots__ = ("held", "idle", "resident")

    def __init__(self) -> None:
        self.held = self.idle = self.resident = 0


class Budget:
    """Bytes that several pools may use together. held, idle, resident: the sum of their shares.

    A free block keeps its memory for the next one of its pool, until another pool needs that memory. Pools that share a
    budget are used by one thread at a time.

    pages: those of all kept texts with who keeps each, the least recently used first and each before the one that it
    follows, so that the first is the end of some text.  passed: (page, group) of those whose blocks in that group no
    later row of their text sees: they go before anything else.
    changes: goes up whenever there may be more room than before.  dropped: bytes that kept texts had to give up so far.
    """

    def __init__(self, size: int):
        self.size = size
        self.held = self.idle = self.resident = 0
        self.pages: OrderedDict[Node, ref[PrefixCache]] = OrderedDict()
        self.passed: OrderedDict[tuple[Node, int], ref[PrefixCache]] = OrderedDict()
        self.changes = 0
        self.dropped = 0
        self._pools: list[ref[BlockPool]] = []  # pools hold their budget: in a circle, memory would outlive its model

    @property
    def free(self) -> int:
        return self.size - self.held

    @property
    def room(self) -> int:
        """Bytes there are for whoever needs some, kept texts dropped."""
        return self.size - self.held + self.idle

    def join(self, pool: BlockPool) -> Share:
        share = Share()
        self._pools.append(ref(pool))
        finalize(pool, self._leave, share).atexit = False
        return share

    def add_memory(self, nbytes: int) -> None:
        """A block gets memory; free blocks of other pools give up theirs where there would be too much."""
        self.resident += nbytes
        while self.resident > self.size:
            pools = (pool for one in self._pools if (pool := one()) is not None)
            self.resident -= next(given for pool in pools if (given := pool.give_memory_back()))

    def make_room(self, nbytes: int) -> bool:
        """See that so many bytes are free. False, and nothing is dropped, if dropping all kept texts isn't enough."""
        if self.free >= nbytes:
            return True
        if self.room < nbytes:
            return False
        # A page in use is passed over once: it then counts as just used. So each comes up twice at most.
        for _ in range(len(self.passed) + 2 * len(self.pages)):
            idle = self.idle
            self._drop_oldest()
            self.dropped += idle - self.idle
            if self.free >= nbytes:
                return True
        raise AssertionError(f"{self.idle} bytes should be of kept texts, but no kept page gives any back")

    def _drop_oldest(self) -> None:
        if self.passed:
            (page, group), owner = self.passed.popitem(last=False)
            if (prefixes := owner()) is not None:
                prefixes.give_up(page, group)
            return
        page, owner = next(iter(self.pages.items()))
        prefixes = owner()
        if prefixes is None:  # its model is gone, and its blocks with it
            del self.pages[page]
        else:
            prefixes.evict(page)

    def _leave(self, share: Share) -> None:
        """A pool is gone with its model."""
        self.held -= share.held
        self.idle -= share.idle
        self.resident -= share.resident
        self.changes += 1
