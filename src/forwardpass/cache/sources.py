"""Blocks for the sources of an encoder-decoder: what all layers of the decoder attend to beside their own text.

A source is encoded once, whole, so its blocks are taken together and given back together. Whoever uses one is counted
by the scheduler.
"""

from __future__ import annotations

from forwardpass.cache.blocks import BlockPool, blocks_for
from forwardpass.cache.budget import Budget


class SourceBlocks:
    """memory: of the group of cross keys and values, see BlockPool;  budget: shared with the decoder's own groups."""

    def __init__(self, memory, budget: Budget):
        self.pool = BlockPool(memory, budget)

    def need(self, tokens: int) -> int:
        """Bytes that a source of so many tokens holds."""
        return blocks_for(tokens) * self.pool.block_bytes

    def take(self, tokens: int) -> list[int] | None:
        """Blocks for so many tokens, or None, and nothing is held, if there are not enough."""
        if not self.pool.budget.make_room(self.need(tokens)):
            return None
        return [self.pool.take() for _ in range(blocks_for(tokens))]

    def give_back(self, blocks: list[int]) -> None:
        for block in blocks:
            self.pool.give_back(block)
