"""The KV cache of a model: which blocks each text holds, in every group of layers.

Layers that see equally far form a group with blocks of its own. Where they see only a window, a text gives back the
blocks that lie before the windows of all its later tokens, so what it holds there stays the same as it grows.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

from forwardpass.cache.blocks import BlockPool, blocks_for
from forwardpass.cache.budget import Budget
from forwardpass.cache.sources import SourceBlocks
from forwardpass.contracts import PAGE


@dataclass(slots=True)
class Table:
    """The blocks that a text holds in one group: of page `first` and those after it. Page i is positions 64 i on."""

    first: int = 0
    blocks: list[int] = field(default_factory=list)

    @property
    def end(self) -> int:
        """The page after the last."""
        return self.first + len(self.blocks)


@dataclass(frozen=True, slots=True)
class Group:
    """window: positions that its layers see, 0 = all;  most: pages that the rows of one step, at most, see and fill;
    only of a window."""

    pool: BlockPool
    window: int
    most: int

    def first_page(self, position: int) -> int:
        """The first page that the row at `position` or any later one sees."""
        return max(0, position - self.window + 1) // PAGE if self.window else 0

    def end_page(self, computed: int, positions: int) -> int:
        """The page after the last one to hold for `positions` positions when `computed` of them are done."""
        end = blocks_for(positions)
        return min(end, self.first_page(computed) + self.most) if self.window else end


class KvCache:
    """memories: of each group, see BlockPool;  windows: of each group, positions that its layers see, 0 = all;
    budget: bytes that all groups together may use, and other models' if it is theirs too;  step_tokens: rows that a
    step computes at most;  source_memory: of the group of cross keys and values, in a model with an encoder.

    A text's tables are a list, one for each group. No method leaves blocks behind that no table names. Where blocks are
    short, kept texts are dropped.
    sources: the blocks of encoded sources, or None; they share the bytes.
    """

    def __init__(self, memories: Sequence, windows: Sequence[int], budget: Budget, step_tokens: int,
                 source_memory=None):
        self.budget = budget
        self.sources = None if source_memory is None else SourceBlocks(source_memory, budget)
        # n positions, wherever they begin, lie in at most (n + 62) // 64 + 1 pages
        self.groups = [Group(BlockPool(memory, budget), window, (window - 1 + step_tokens + 62) // PAGE + 1)
                       for memory, window in zip(memories, windows, strict=True)]
        self._pools = [group.pool for group in self.groups] + ([] if self.sources is None else [self.sources.pool])
        self.page_bytes = sum(group.pool.block_bytes for group in self.groups)

    @property
    def size(self) -> int:
        return self.budget.size

    @property
    def free(self) -> int:
        """Bytes that nobody holds."""
        return self.budget.free

    @property
    def held(self) -> int:
        """Bytes that texts of this model hold, kept ones included."""
        return sum(pool.share_of_budget.held for pool in self._pools)

    @property
    def kept(self) -> int:
        """Bytes that only kept texts of this model hold."""
        return sum(pool.share_of_budget.idle for pool in self._pools)

    def need(self, positions: int, shared: int = 0) -> int:
        """Bytes that a text of so many positions takes, the first `shared` of which are those of another one; of no
        other one, that is what it holds at most, however it is computed."""
        return sum(max(0, group.end_page(shared, positions) - shared // PAGE) * group.pool.block_bytes
                   for group in self.groups)

    def room(self, positions: int, size: int | None = None) -> int:
        """How many positions, `positions` at most, a text has room for that may use `size` bytes; None = all."""
        size = self.size if size is None else size
        pages = bisect_right(range(blocks_for(positions) + 1), size, key=lambda n: self.need(n * PAGE)) - 1
        return max(0, min(positions, pages * PAGE))

    def empty(self) -> list[Table]:
        return [Table() for _ in self.groups]

    def grow(self, tables: list[Table], computed: int, positions: int) -> bool:
        """Hold blocks for `positions` positions, of a window those that the next step can need, and give back those
        before. False if blocks ran out: what was taken meanwhile stays, and growing may be tried again."""
        for group, table in zip(self.groups, tables, strict=True):
            unseen = group.first_page(computed) - table.first
            if unseen:
                self._give_back(group, table.blocks[:unseen])
                del table.blocks[:unseen]
                table.first += unseen
        for group, table in zip(self.groups, tables, strict=True):
            for _ in range(table.end, group.end_page(computed, positions)):
                block = group.pool.take()
                if block is None:
                    return False
                table.blocks.append(block)
        return True

    def steady(self, tables: list[Table]) -> int:
        """As long as a text has no more positions than these, growing changes nothing, if it goes on one by one."""
        return min(min(table.end * PAGE, (table.first + 1) * PAGE + group.window - 1) if group.window else
                   table.end * PAGE for group, table in zip(self.groups, tables, strict=True))

    def covered(self, tables: list[Table]) -> int:
        """Positions up to which there are blocks in every group."""
        return min(table.end for table in tables) * PAGE

    def share(self, tables: list[Table], positions: int) -> list[Table] | None:
        """Tables for another text with the same first positions: whole blocks are held by both, one that is filled in
        part is copied. None, and nothing is held, if there is no room for the copies."""
        out = self.empty()
        for group, table, new in zip(self.groups, tables, out, strict=True):
            new.first = group.first_page(positions)
            for block in table.blocks[new.first - table.first : blocks_for(positions) - table.first]:
                group.pool.share(block)
                new.blocks.append(block)
        if positions % PAGE:
            copies = [group.pool.copy(new.blocks[-1]) for group, new in zip(self.groups, out, strict=True)]
            full = None in copies
            for group, new, copied in zip(self.groups, out, copies, strict=True):
                if copied is not None:  # in place of what was copied, which nobody could drop meanwhile
                    group.pool.give_back(new.blocks[-1])
                    new.blocks[-1] = copied
            if full:
                self.release(out)
                return None
        return out

    def idle(self, tables: list[Table]) -> int:
        """Bytes of the blocks in these tables that only kept texts hold."""
        return sum(group.pool.block_bytes * sum(map(group.pool.idle, table.blocks))
                   for group, table in zip(self.groups, tables, strict=True))

    def release(self, tables: list[Table]) -> None:
        """Give all blocks back."""
        for group, table in zip(self.groups, tables, strict=True):
            self._give_back(group, table.blocks)
            table.blocks.clear()

    @staticmethod
    def _give_back(group: Group, blocks: list[int]) -> None:
        for block in blocks:
            group.pool.give_back(block)
