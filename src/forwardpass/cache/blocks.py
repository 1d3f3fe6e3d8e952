"""Bookkeeping of KV blocks: which are free, and how many texts hold each of the others.

Blocks are numbers; the memory behind them belongs to the backend. A block that several texts hold is never written.
Having no free block is an ordinary answer (None), for the scheduler to act on.
"""

from __future__ import annotations

from weakref import ref

from forwardpass.contracts import PAGE


def blocks_for(positions: int) -> int:
    """Blocks that hold this many positions."""
    return -(-positions // PAGE)


class Budget:
    """Bytes that several pools may use together. held: of the blocks that somebody holds.

    A free block keeps its memory for the next one of its pool, until another pool needs that memory.
    """

    def __init__(self, size: int):
        self.size = size
        self.held = 0
        self._pools: list[ref[BlockPool]] = []  # pools hold their budget: in a circle, memory would outlive its model
        self._resident = 0  # of blocks with memory behind them, held or free

    @property
    def free(self) -> int:
        return self.size - self.held

    def join(self, pool: BlockPool) -> None:
        self._pools.append(ref(pool))

    def add_memory(self, nbytes: int) -> None:
        """A block gets memory; free blocks of other pools give up theirs where there would be too much."""
        self._resident += nbytes
        while self._resident > self.size:
            pools = (pool for one in self._pools if (pool := one()) is not None)
            self._resident -= next(given for pool in pools if (given := pool.give_memory_back()))


class BlockPool:
    """memory: has blocks, block_bytes, clear(block), copy(from, to) and release(block), e.g. a KvMemory.

    budget: shared with other pools; None = the whole memory. Blocks never used before need no clearing.
    """

    def __init__(self, memory, budget: Budget | None = None):
        self.size = memory.blocks
        self.block_bytes = memory.block_bytes
        self.budget = budget or Budget(memory.blocks * memory.block_bytes)
        self.budget.join(self)
        self._memory = memory
        self._holders: list[int] = []  # of the blocks that were ever used; there may be room for millions
        self._used: list[int] = []  # returned blocks: they hold old values until cleared
        self._released: list[int] = []  # returned blocks without memory

    @property
    def free(self) -> int:
        numbers = len(self._used) + len(self._released) + self.size - len(self._holders)
        return min(numbers, self.budget.free // self.block_bytes)

    def holders(self, block: int) -> int:
        """How many hold this block; 0 = it is free."""
        return self._holders[block] if block < len(self._holders) else 0

    def take(self, cleared: bool = True) -> int | None:
        """A zeroed block held once, or None if all are taken. cleared: False for one that is overwritten as a whole."""
        if not self.free:
            return None
        block = self._used.pop() if self._used else self._with_new_memory()
        if block == len(self._holders):
            self._holders.append(1)
        else:
            # Rows that nobody may see are multiplied by zero, so what is left there must at least be a number.
            if cleared:
                self._memory.clear(block)
            self._holders[block] = 1
        self.budget.held += self.block_bytes
        return block

    def share(self, block: int) -> None:
        """One more text holds this block."""
        if self.holders(block) < 1:
            raise AssertionError(f"block {block} is free and cannot be shared")
        self._holders[block] += 1

    def give_back(self, block: int) -> None:
        """One text fewer holds this block; the last one frees it."""
        if self.holders(block) < 1:
            raise AssertionError(f"block {block} is free already")
        self._holders[block] -= 1
        if self._holders[block] == 0:
            self._used.append(block)
            self.budget.held -= self.block_bytes

    def copy(self, block: int) -> int | None:
        """A new block with the same contents, or None if all are taken."""
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
        return self.block_bytes

    def _with_new_memory(self) -> int:
        self.budget.add_memory(self.block_bytes)
        return self._released.pop() if self._released else len(self._holders)
