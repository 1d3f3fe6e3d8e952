"""Bookkeeping of KV blocks: which are free, and how many sequences hold each of the others.

Blocks are numbers; the memory behind them belongs to the backend. A block that several sequences hold is never written.
Having no free block is an ordinary answer (None), for the scheduler to act on.
"""

from __future__ import annotations

from forwardpass.contracts import PAGE


def blocks_for(positions: int) -> int:
    """Blocks that hold this many positions."""
    return -(-positions // PAGE)


class BlockPool:
    """memory: has clear(block) and copy(from, to), e.g. a KvMemory. Blocks never used before need no clearing."""

    def __init__(self, memory, blocks: int):
        self.size = blocks
        self._memory = memory
        self._holders: list[int] = []  # of the blocks that were ever used; there may be room for millions
        self._used: list[int] = []  # returned blocks: they hold old values until cleared

    @property
    def free(self) -> int:
        return len(self._used) + self.size - len(self._holders)

    def holders(self, block: int) -> int:
        """How many hold this block; 0 = it is free."""
        return self._holders[block] if block < len(self._holders) else 0

    def take(self) -> int | None:
        """A zeroed block held once, or None if all are taken."""
        if self._used:
            block = self._used.pop()
            # Rows that nobody may see are multiplied by zero, so what is left there must at least be a number.
            self._memory.clear(block)
            self._holders[block] = 1
        elif len(self._holders) < self.size:
            block = len(self._holders)
            self._holders.append(1)
        else:
            return None
        return block

    def share(self, block: int) -> None:
        """One more sequence holds this block."""
        if self.holders(block) < 1:
            raise AssertionError(f"block {block} is free and cannot be shared")
        self._holders[block] += 1

    def give_back(self, block: int) -> None:
        """One sequence fewer holds this block; the last one frees it."""
        if self.holders(block) < 1:
            raise AssertionError(f"block {block} is free already")
        self._holders[block] -= 1
        if self._holders[block] == 0:
            self._used.append(block)

    def copy(self, block: int) -> int | None:
        """A new block with the same contents, or None if all are taken."""
        new = self.take()
        if new is not None:
            self._memory.copy(block, new)
        return new
