"""Bookkeeping of KV blocks: which are free, and how many texts hold each of the others.

Blocks are numbers; the memory behind them belongs to the backend. A block that several texts hold is never written.
Having no free block is an ordinary answer (None), for the scheduler to act on.
"""

from __future__ import annotations

from forwardpass.cache.budget import Budget
from forwardpass.contracts import PAGE


def blocks_for(positions: int) -> int:
    """Blocks that hold this many positions."""
    return -(-positions // PAGE)


class BlockPool:
    """memory: has blocks, block_bytes, clear(block), copy(from, to) and release(block), e.g. a KvMemory.

    budget: shared with other pools; None = the whole memory. Blocks never used before need no clearing.
    """

    def __init__(self, memory, budget: Budget | None = None):
        self.size = memory.blocks
        self.block_bytes = memory.block_bytes
        self.budget = budget or Budget(memory.blocks * memory.block_bytes)
        self.share_of_budget = self.budget.join(self)
        self._memory = memory
        self._holders: list[int] = []  # of the blocks that were ever used; there may be room for millions
        self._used: list[int] = []  # returned blocks: they hold old values until cleared
        self._released: list[int] = []  # returned blocks without memory
        self._kept: set[int] = set()  # blocks that one of their holders keeps for later texts

    @property
    def free(self) -> int:
        """Blocks that can be taken without dropping a kept text."""
        numbers = len(self._used) + len(self._released) + self.size - len(self._holders)
        return min(numbers, self.budget.free // self.block_bytes)

    def holders(self, block: int) -> int:
        """How many hold this block; 0 = it is free."""
        return self._holders[block] if block < len(self._holders) else 0

    def idle(self, block: int) -> bool:
        """Whether only kept texts hold this block."""
        return self._holders[block] == 1 and block in self._kept

    def take(self, cleared: bool = True) -> int | None:
        """A zeroed block held once, or None if all are in use; kept texts are dropped for it. cleared: False for one
        that is overwritten as a whole."""
        if not self.budget.make_room(self.block_bytes) or not self.free:
            return None
        block = self._used.pop() if self._used else self._with_new_memory()
        if block == len(self._holders):
            self._holders.append(1)
        else:
            # Rows that nobody may see are multiplied by zero, so what is left there must at least be a number.
            if cleared:
                self._memory.clear(block)
            self._holders[block] = 1
        self._count(self.block_bytes, 0)
        return block

    def share(self, block: int) -> None:
        """One more text holds this block."""
        if self.holders(block) < 1:
            raise AssertionError(f"block {block} is free and cannot be shared")
        if self.idle(block):
            self._count(0, -self.block_bytes)
        self._holders[block] += 1

    def give_back(self, block: int) -> None:
        """One text fewer holds this block; the last one frees it."""
        if self.holders(block) < 1:
            raise AssertionError(f"block {block} is free already")
        self._holders[block] -= 1
        if self._holders[block] == 0:
            self._used.append(block)
            self._count(-self.block_bytes, 0)
            self.budget.changes += 1
        elif self.idle(block):
            self._count(0, self.block_bytes)
            self.budget.changes += 1

    def keep(self, block: int) -> None:
        """One more holds this block: for later texts, until `drop`. Whoever else holds it goes on doing so."""
        self.share(block)
        self._kept.add(block)
        self.budget.changes += 1

    def drop(self, block: int) -> None:
        """It is not kept for later texts any more."""
        if self.idle(block):
            self._count(0, -self.block_bytes)
        self._kept.remove(block)
        self.give_back(block)

    def copy(self, block: int) -> int | None:
        """A new block with the same contents, or None if all are in use. Somebody besides kept texts must hold it."""
        new = self.take(cleared=False)
        if new is not None:
            self._memory.copy(block, new)
        return new

    def give_memory_back(self) -> int:
        """Let a free block's memory go; the bytes of it, 0 if no free block has any."""
        if not self._used:
            return 0
        block = self._used.pop()
        self._memory.release(block)
        self._released.append(block)
        self.share_of_budget.resident -= self.block_bytes
        return self.block_bytes

    def _with_new_memory(self) -> int:
        self.budget.add_memory(self.block_bytes)
        self.share_of_budget.resident += self.block_bytes
        return self._released.pop() if self._released else len(self._holders)

    def _count(self, held: int, idle: int) -> None:
        for one in (self.budget, self.share_of_budget):
            one.held += held
            one.idle += idle
