"""Blocks of the KV cache: taken, shared, copied, given back, never lost."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forwardpass.cache.blocks import BlockPool, blocks_for


class Memory:
    """What the pool asked of the memory."""

    def __init__(self):
        self.calls = []

    def clear(self, block):
        self.calls.append(("clear", block))

    def copy(self, source, target):
        self.calls.append(("copy", source, target))


@pytest.mark.parametrize(("positions", "blocks"), [(0, 0), (1, 1), (63, 1), (64, 1), (65, 2), (128, 2), (129, 3)])
def test_blocks_for_positions(positions, blocks):
    assert blocks_for(positions) == blocks


def test_taking_all_then_none():
    pool = BlockPool(Memory(), 3)
    assert {pool.take() for _ in range(3)} == {0, 1, 2}
    assert pool.take() is None and pool.free == 0 and pool.size == 3


def test_a_used_block_is_cleared_before_it_is_used_again():
    memory = Memory()
    pool = BlockPool(memory, 2)
    block = pool.take()
    assert memory.calls == []
    pool.give_back(block)
    assert pool.take() == block and memory.calls == [("clear", block)]


def test_a_shared_block_is_free_when_the_last_holder_gave_it_back():
    pool = BlockPool(Memory(), 1)
    block = pool.take()
    pool.share(block)
    pool.give_back(block)
    assert pool.free == 0 and pool.take() is None and pool.holders(block) == 1
    pool.give_back(block)
    assert pool.free == 1 and pool.holders(block) == 0


def test_copies_go_to_a_block_of_their_own():
    memory = Memory()
    pool = BlockPool(memory, 2)
    block = pool.take()
    copy = pool.copy(block)
    assert copy != block and memory.calls == [("copy", block, copy)]
    assert pool.copy(block) is None


@pytest.mark.parametrize("wrong", ["give_back", "share"])
def test_free_blocks_cannot_be_shared_or_given_back(wrong):
    pool = BlockPool(Memory(), 2)
    block = pool.take()
    pool.give_back(block)
    for free in (block, 1):
        with pytest.raises(AssertionError, match=str(free)):
            getattr(pool, wrong)(free)


def test_a_huge_pool_costs_nothing():
    pool = BlockPool(Memory(), 1 << 40)
    assert pool.free == 1 << 40 and pool.take() == 0


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["take", "share", "give", "copy"]), st.integers(0, 9)), max_size=60))
def test_counts_always_agree(moves):
    pool = BlockPool(Memory(), 5)
    held = []
    for move, which in moves:
        block = held[which % len(held)] if held else None
        if move == "take":
            held += [b for b in [pool.take()] if b is not None]
        elif block is not None and move == "copy":
            held += [b for b in [pool.copy(block)] if b is not None]
        elif block is not None and move == "share":
            pool.share(block)
            held.append(block)
        elif block is not None:
            pool.give_back(block)
            held.remove(block)
        assert pool.free == 5 - len(set(held))
        assert all(pool.holders(b) == held.count(b) for b in range(5))
