"""A KV cache whose memory keeps tokens instead of keys and values, and a forward pass that checks what it reads."""

from __future__ import annotations

from collections import Counter

from forwardpass.cache.blocks import blocks_for
from forwardpass.cache.budget import Budget
from forwardpass.cache.prefix import _key
from forwardpass.cache.tables import KvCache, Table
from forwardpass.contracts import PAGE

BLOCK_BYTES = 10


class Memory:
    """Blocks that remember the tokens computed into them."""

    def __init__(self, blocks, block_bytes=BLOCK_BYTES):
        self.blocks, self.block_bytes = blocks, block_bytes
        self.slots = {}

    def clear(self, block):
        self.slots[block] = {}

    def copy(self, source, target):
        self.slots[target] = dict(self.slots[source])

    def release(self, block):
        self.slots.pop(block, None)


class TokenCache(KvCache):
    """blocks: of each group, if all hold as many;  windows: of each group, 0 = none;  pair: there are sources too,
    which share the bytes;  budget: in place of blocks, shared with other caches."""

    def __init__(self, blocks, windows=(0,), step_tokens=512, pair=False, budget=None, block_bytes=BLOCK_BYTES):
        budget = budget or Budget(blocks * len(windows) * block_bytes)
        self.memories = [Memory(budget.size // block_bytes, block_bytes) for _ in windows]
        self.windows = windows
        self.block_bytes = block_bytes
        self.source_memory = Memory(budget.size // block_bytes, block_bytes) if pair else None
        super().__init__(self.memories, windows, budget, step_tokens, self.source_memory)
        self.pools = [group.pool for group in self.groups]

    def compute(self, tables, tokens, begin, end):
        """Positions begin to end of a text, as a step does: what it sees must be there and be this text's."""
        for pool, memory, window, table in zip(self.pools, self.memories, self.windows, tables, strict=True):
            for position in range(begin, end):
                block = table.blocks[position // PAGE - table.first]
                assert pool.holders(block) == 1, "a shared block would be written"
                memory.slots.setdefault(block, {})[position % PAGE] = tokens[position]
            self._read(memory, table, tokens, max(0, begin - window + 1) if window else 0, end)

    def check(self, tables, tokens, position):
        """What a row at `position` would see of the positions before it."""
        for memory, window, table in zip(self.memories, self.windows, tables, strict=True):
            self._read(memory, table, tokens, max(0, position - window + 1) if window else 0, position)

    @staticmethod
    def _read(memory, table, tokens, begin, end):
        for position in range(begin, end):
            assert position // PAGE >= table.first, "a block that was given back would be read"
            block = table.blocks[position // PAGE - table.first]
            assert memory.slots[block][position % PAGE] == tokens[position], "a block holds another text"

    def write_source(self, blocks, tokens):
        """What an encoder does."""
        assert len(blocks) == blocks_for(len(tokens))
        for i, token in enumerate(tokens):
            self.source_memory.slots.setdefault(blocks[i // PAGE], {})[i % PAGE] = token

    def read_source(self, blocks, tokens):
        """What cross-attention sees."""
        for i, token in enumerate(tokens):
            assert self.source_memory.slots[blocks[i // PAGE]][i % PAGE] == token, "a block holds another source"

    def used(self):
        """Blocks that somebody holds besides kept texts, by group."""
        return [sum(pool.holders(block) > 0 and not pool.idle(block) for block in range(pool.size))
                for pool in self.pools]

    def all_used(self):
        """Blocks that somebody holds, by group."""
        return [sum(pool.holders(block) > 0 for block in range(pool.size)) for pool in self.pools]

    def check_holders(self, texts, prefixes=None, sources=()):
        """The holders of every block are exactly the tables, the kept pages, or the one source, that name it."""
        texts = list(texts)
        if prefixes is not None:
            pages = self.check_kept(prefixes)
            texts += [[Table(0, [block] if block is not None else []) for block in node.blocks] for node in pages]
        for g, pool in enumerate(self.pools):
            held = Counter(block for tables in texts for block in tables[g].blocks)
            assert all(len(set(tables[g].blocks)) == len(tables[g].blocks) for tables in texts)
            assert all(pool.holders(block) == held[block] for block in range(pool.size))
        held = [block for blocks in sources for block in blocks]
        assert len(set(held)) == len(held) and all(self.sources.pool.holders(block) == 1 for block in held)
        assert self.held == (sum(self.all_used()) + len(held)) * self.block_bytes

    def check_kept(self, prefixes):
        """The kept pages, each before the one it follows; they are found by their tokens, hold what these say, and what
        nobody else holds of them counts as idle."""
        order = {node: i for i, (node, owner) in enumerate(self.budget.pages.items()) if owner() is prefixes}
        seen, idle = [], 0
        for root in prefixes._roots.values():
            assert root.followers and root.parent is None
            nodes = [root]
            for node in nodes:
                assert node.keys == sorted(node.followers) and all(key == f.key for key, f in node.followers.items())
                nodes += node.followers.values()
                if node is root:
                    continue
                seen.append(node)
                assert node.pages == node.parent.pages + 1 and len(node.key) <= 4 * PAGE
                assert len(node.key) == 4 * PAGE or not node.followers
                assert node.parent is root or order[node] < order[node.parent]
                for pool, memory, block in zip(self.pools, self.memories, node.blocks, strict=True):
                    if block is not None:
                        idle += self.block_bytes * (pool.holders(block) == 1)
                        tokens = [memory.slots[block][i] for i in range(len(node.key) // 4)]
                        assert _key([t[0] if isinstance(t, tuple) else t for t in tokens]) == node.key
        assert set(seen) == set(order) and len(seen) == len(order)
        assert self.kept == idle
        passed = [place for place, owner in self.budget.passed.items() if owner() is prefixes]
        assert all(node in order and node.blocks[g] is not None for node, g in passed)
        return seen
