"""The KV cache of a model: which blocks each text holds, in every group of layers.

Layers that see equally far form a group with blocks of its own. Where they see only a window, a text gives back the
blocks that lie before the windows of all its later tokens, so what it holds there stays the same as it grows.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from forwardpass.cache.blocks import BlockPool, Budget, blocks_for
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
class _Group:
    pool: BlockPool
    window: int
    most: int  # pages that the rows of one step, at most, see and fill; only of a window

    def first_page(self, position: int) -> int:
        """The first page that the row at `position` or any later one sees."""
        return max(0, position - self.window + 1) // PAGE if self.window else 0

    def end_page(self, computed: int, positions: int) -> int:
        """The page after the last one to hold for `positions` positions when `computed` of them are done."""
        end = blocks_for(positions)
        return min(end, self.first_page(computed) + self.most) if self.window else end


class KvCache:
    """memories: of each group, see BlockPool;  windows: of each group, positions that its layers see, 0 = all;
    size: bytes that all groups together may use;  step_tokens: rows that a step computes at most;
    source_memory: of the group of cross keys and values, in a model with an encoder.

    A text's tables are a list, one for each group. No method leaves blocks behind that no table names.
    sources: the blocks of encoded sources, or None; they share the bytes.
    """

    def __init__(self, memories: Sequence, windows: Sequence[int], size: int, step_tokens: int, source_memory=None):
        self.budget = Budget(size)
        self.sources = None if source_memory is None else SourceBlocks(source_memory, self.budget)
        # n positions, wherever they begin, lie in at most (n + 62) // 64 + 1 pages
        self._groups = [_Group(BlockPool(memory, self.budget), window, (window - 1 + step_tokens + 62) // PAGE + 1)
                        for memory, window in zip(memories, windows, strict=True)]

    @property
    def size(self) -> int:
        return self.budget.size

    @property
    def free(self) -> int:
        """Bytes that nobody holds."""
        return self.budget.free

    def need(self, positions: int) -> int:
        """Bytes that a text of so many positions holds at most, however it is computed."""
        return self.missing(self.empty(), 0, positions)

    def room(self, positions: int, size: int | None = None) -> int:
        """How many positions, `positions` at most, a text has room for that may use `size` bytes; None = all."""
        size = self.size if size is None else size
        pages = bisect_right(range(blocks_for(positions) + 1), size, key=lambda n: self.need(n * PAGE)) - 1
        return max(0, min(positions, pages * PAGE))

    def empty(self) -> list[Table]:
        return [Table() for _ in self._groups]

    def grow(self, tables: list[Table], computed: int, positions: int) -> bool:
        """Hold blocks for `positions` positions, of a window those that the next step can need, and give back those
        before. False if blocks ran out: what was taken meanwhile stays, and growing may be tried again."""
        for group, table in zip(self._groups, tables, strict=True):
            unseen = group.first_page(computed) - table.first
            if unseen:
                self._give_back(group, table.blocks[:unseen])
                del table.blocks[:unseen]
                table.first += unseen
        for group, table in zip(self._groups, tables, strict=True):
            for _ in range(table.end, group.end_page(computed, positions)):
                block = group.pool.take()
                if block is None:
                    return False
                table.blocks.append(block)
        return True

    def missing(self, tables: list[Table], computed: int, positions: int) -> int:
        """Bytes of the blocks that `grow` would take."""
        return sum(max(0, group.end_page(computed, positions) - table.end) * group.pool.block_bytes
                   for group, table in zip(self._groups, tables, strict=True))

    def covered(self, tables: list[Table]) -> int:
        """Positions up to which there are blocks in every group."""
        return min(table.end for table in tables) * PAGE

    def holds(self, tables: list[Table], positions: int) -> bool:
        """Whether all that a row at `positions` sees is still there; the positions before it are computed."""
        return all(table.first <= group.first_page(positions)
                   for group, table in zip(self._groups, tables, strict=True))

    def share(self, tables: list[Table], positions: int) -> list[Table] | None:
        """Tables for another text with the same first positions: whole blocks are held by both, one that is filled in
        part is copied. None, and nothing is held, if there is no room for the copies."""
        whole, rest = divmod(positions, PAGE)
        out = self.empty()
        for group, table, new in zip(self._groups, tables, out, strict=True):
            new.first = group.first_page(positions)
            for block in table.blocks[new.first - table.first : whole - table.first]:
                group.pool.share(block)
                new.blocks.append(block)
            if rest:
                copied = group.pool.copy(table.blocks[whole - table.first])
                if copied is None:
                    self.release(out)
                    return None
                new.blocks.append(copied)
        return out

    def trim(self, tables: list[Table], positions: int) -> None:
        """Give back the blocks that hold none of the first `positions` positions."""
        for group, table in zip(self._groups, tables, strict=True):
            keep = max(0, blocks_for(positions) - table.first)
            self._give_back(group, table.blocks[keep:])
            del table.blocks[keep:]

    def release(self, tables: list[Table]) -> None:
        """Give all blocks back."""
        self.trim(tables, 0)

    def held_by(self, texts: Iterable[list[Table]]) -> int:
        """Bytes of the blocks that nobody but these texts holds."""
        texts = list(texts)
        total = 0
        for g, group in enumerate(self._groups):
            held = Counter(block for tables in texts for block in tables[g].blocks)
            total += group.pool.block_bytes * sum(group.pool.holders(block) == n for block, n in held.items())
        return total

    @staticmethod
    def _give_back(group: _Group, blocks: list[int]) -> None:
        for block in blocks:
            group.pool.give_back(block)
