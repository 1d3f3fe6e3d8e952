"""Blocks of the KV cache: taken, shared, copied, given back, never lost."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forwardpass.cache.blocks import BlockPool, blocks_for
from forwardpass.cache.budget import Budget


class Memory:
    """What the pool asked of the memory."""

    def __init__(self, blocks, block_bytes=10):
        self.blocks, self.block_bytes = blocks, block_bytes
        self.calls = []

    def clear(self, block):
        self.calls.append(("clear", block))

    def copy(self, source, target):
        self.calls.append(("copy", source, target))

    def release(self, block):
        self.calls.append(("release", block))


@pytest.mark.parametrize(("positions", "blocks"), [(0, 0), (1, 1), (63, 1), (64, 1), (65, 2), (128, 2), (129, 3)])
def test_blocks_for_positions(positions, blocks):
    assert blocks_for(positions) == blocks


def test_taking_all_then_none():
    pool = BlockPool(Memory(3))
    assert {pool.take() for _ in range(3)} == {0, 1, 2}
    assert pool.take() is None and pool.free == 0 and pool.size == 3


def test_a_used_block_is_cleared_before_it_is_used_again():
    memory = Memory(2)
    pool = BlockPool(memory)
    block = pool.take()
    assert memory.calls == []
    pool.give_back(block)
    assert pool.take() == block and memory.calls == [("clear", block)]


def test_a_shared_block_is_free_when_the_last_holder_gave_it_back():
    pool = BlockPool(Memory(1))
    block = pool.take()
    pool.share(block)
    pool.give_back(block)
    assert pool.free == 0 and pool.take() is None and pool.holders(block) == 1
    pool.give_back(block)
    assert pool.free == 1 and pool.holders(block) == 0


def test_copies_go_to_a_block_of_their_own():
    memory = Memory(2)
    pool = BlockPool(memory)
    block = pool.take()
    copy = pool.copy(block)
    assert copy != block and memory.calls == [("copy", block, copy)]
    assert pool.copy(block) is None
    pool.give_back(copy)
    assert pool.copy(block) == copy and memory.calls == [("copy", block, copy)] * 2  # nothing to clear before
    pool.give_back(copy)
    assert pool.take() == copy and memory.calls[2:] == [("clear", copy)]


def test_a_kept_block_is_idle_while_nobody_else_holds_it():
    pool = BlockPool(Memory(2))
    budget, block = pool.budget, pool.take()
    pool.keep(block)
    assert not pool.idle(block) and (budget.held, budget.idle, pool.holders(block)) == (10, 0, 2)
    for _ in range(2):
        pool.give_back(block)
        assert pool.idle(block) and (budget.held, budget.idle, budget.room) == (10, 10, 20)
        pool.share(block)
        assert not pool.idle(block) and (budget.idle, budget.room) == (0, 10)
    pool.drop(block)
    assert not pool.idle(block) and (budget.held, budget.idle) == (10, 0)
    pool.keep(block)
    pool.give_back(block)
    pool.drop(block)
    assert (budget.held, budget.idle, pool.free) == (0, 0, 2)


@pytest.mark.parametrize("wrong", ["give_back", "share"])
def test_free_blocks_cannot_be_shared_or_given_back(wrong):
    pool = BlockPool(Memory(2))
    block = pool.take()
    pool.give_back(block)
    for free in (block, 1):
        with pytest.raises(AssertionError, match=str(free)):
            getattr(pool, wrong)(free)


def test_a_huge_pool_costs_nothing():
    pool = BlockPool(Memory(1 << 40))
    assert pool.free == 1 << 40 and pool.take() == 0


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["take", "share", "give", "copy"]), st.integers(0, 9)), max_size=60))
def test_counts_always_agree(moves):
    pool = BlockPool(Memory(5))
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


# ---- pools that share a budget


def shared(size, *block_bytes):
    """Pools with blocks of these sizes, and their memories, on one budget."""
    budget = Budget(size)
    memories = [Memory(size // each, each) for each in block_bytes]
    return [BlockPool(memory, budget) for memory in memories], memories, budget


def test_a_budget_is_of_all_pools_together():
    (large, small), _, budget = shared(100, 30, 10)
    assert (large.free, small.free) == (3, 10)
    taken = [large.take(), large.take(), *(small.take() for _ in range(4))]
    assert None not in taken and large.take() is None and small.take() is None and budget.free == 0
    small.give_back(taken[-1])
    assert (large.free, small.free) == (0, 1)
    large.give_back(taken[0])
    assert (large.free, small.free) == (1, 4)


def test_a_free_block_keeps_its_memory_until_another_pool_needs_it():
    (large, small), (memory, _), _ = shared(100, 50, 10)
    first, second = large.take(), large.take()
    large.give_back(first)
    large.give_back(second)
    assert large.take() == second and memory.calls == [("clear", second)]  # its own memory again
    large.give_back(second)
    memory.calls.clear()
    held = [small.take() for _ in range(5)]
    assert memory.calls == [("release", second)]
    assert large.take() == first and large.take() is None
    for block in held:
        small.give_back(block)
    assert large.take() == second and memory.calls[-1] == ("clear", second)  # a part of a page may hold old values


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 2), st.integers(0, 9)), max_size=120))
def test_memory_in_use_never_exceeds_the_budget(moves):
    pools, memories, budget = shared(100, 30, 17, 5)
    held, touched = [], [set(), set(), set()]
    for take, which, index in moves:
        if take:
            fits = budget.free >= memories[which].block_bytes
            block = pools[which].take()
            assert (block is not None) == fits
            if fits:
                assert (which, block) not in held
                held.append((which, block))
                touched[which].add(block)
        elif held:
            which, block = held.pop(index % len(held))
            pools[which].give_back(block)
        for g, memory in enumerate(memories):
            touched[g] -= {block for call, block, *_ in memory.calls if call == "release"}
            memory.calls.clear()
        assert budget.held == sum(memories[g].block_bytes for g, _ in held)
        assert all((g, block) not in held or block in touched[g] for g in range(3) for block in range(20))
        assert sum(len(touched[g]) * memories[g].block_bytes for g in range(3)) <= budget.size
