"""Kept texts: a hit is exactly the longest common beginning, and every block comes back."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forwardpass.cache.blocks import BlockPool, blocks_for
from forwardpass.cache.prefix import MAX_TEXTS, PrefixCache
from forwardpass.contracts import PAGE


class Memory:
    """Blocks that remember the tokens computed into them, as real ones remember keys and values."""

    def __init__(self):
        self.blocks = {}

    def clear(self, block):
        self.blocks[block] = []

    def copy(self, source, target):
        self.blocks[target] = list(self.blocks[source])

    def write(self, tokens, blocks):
        for i, block in enumerate(blocks):
            self.blocks[block] = list(tokens[i * PAGE : (i + 1) * PAGE])

    def read(self, blocks, length):
        return [token for block in blocks for token in self.blocks[block]][:length]


class Cache:
    """A prefix cache with its pool and memory."""

    def __init__(self, blocks=64):
        self.memory = Memory()
        self.pool = BlockPool(self.memory, blocks)
        self.prefixes = PrefixCache(self.pool)

    def compute(self, tokens):
        """Blocks as a sequence that computed `tokens` holds them."""
        blocks = [self.pool.take() for _ in range(blocks_for(len(tokens)))]
        self.memory.write(tokens, blocks)
        return blocks

    def keep(self, tokens):
        self.prefixes.keep(tokens, self.compute(tokens))

    def give_back(self, blocks):
        for block in blocks:
            self.pool.give_back(block)


@pytest.fixture
def cache():
    return Cache()


@pytest.mark.parametrize("same", [0, 1, 63, 64, 65, 128, 200])
def test_a_hit_is_the_common_beginning(cache, same):
    kept = list(range(200))
    cache.keep(kept)
    length, blocks = cache.prefixes.match(kept[:same] + [999] * 50, same + 49)
    assert length == same and len(blocks) == blocks_for(same)
    assert cache.memory.read(blocks, length) == kept[:same]


def test_at_most_limit_positions(cache):
    cache.keep(list(range(130)))
    length, blocks = cache.prefixes.match(list(range(130)), 129)
    assert (length, len(blocks)) == (129, 3)
    assert cache.prefixes.match([0], 0) == (0, [])


def test_whole_blocks_are_shared_and_a_part_is_copied(cache):
    tokens = list(range(100))
    original = cache.compute(tokens)
    cache.prefixes.keep(tokens, list(original))
    _, blocks = cache.prefixes.match(tokens, 99)
    assert blocks[0] == original[0] and blocks[1] not in original
    cache.memory.blocks[blocks[1]][40:] = [7] * 24  # whoever got the copy goes on writing into it
    assert cache.memory.read(original, 100) == tokens


def test_without_room_for_the_copy_whole_blocks_are_shared():
    cache = Cache(blocks=2)
    cache.keep(list(range(100)))
    length, blocks = cache.prefixes.match(list(range(100)), 99)
    assert (length, len(blocks)) == (64, 1)


def test_the_same_middle_after_another_beginning_is_no_hit(cache):
    middle = list(range(1000, 1064))
    cache.keep([1] * PAGE + middle)
    assert cache.prefixes.match([2] * PAGE + middle + [5], 128) == (0, [])


def test_tokens_decide_and_no_hash_does(cache, monkeypatch):
    """Kin of KVC-01: texts that any weak hash confuses (sums, permutations, a difference in one place)."""
    rng = random.Random(3)
    texts = [[rng.randrange(3) for _ in range(rng.randrange(1, 150))] for _ in range(200)]
    for tokens in texts:
        length, blocks = cache.prefixes.match(tokens, len(tokens) - 1)
        assert cache.memory.read(blocks, length) == tokens[:length]
        cache.give_back(blocks)
        while cache.pool.free < blocks_for(len(tokens)):
            assert cache.prefixes.drop_oldest()
        cache.keep(tokens)
    cache.prefixes.clear()
    assert cache.pool.free == cache.pool.size


def test_the_least_recently_used_is_dropped_first(cache):
    cache.keep([1] * 70)
    cache.keep([2] * 70)
    cache.give_back(cache.prefixes.match([1] * 70, 69)[1])
    cache.prefixes.drop_oldest()
    assert cache.prefixes.match([2] * 70, 69) == (0, [])
    assert cache.prefixes.match([1] * 70, 69)[0] == 69


def test_dropping_a_text_leaves_its_blocks_with_those_who_hold_them(cache):
    cache.keep(list(range(64)))
    _, blocks = cache.prefixes.match([*range(64), 9], 64)
    cache.prefixes.clear()
    assert cache.memory.read(blocks, 64) == list(range(64)) and cache.pool.free == cache.pool.size - 1
    cache.give_back(blocks)
    assert cache.pool.free == cache.pool.size


def test_a_text_replaces_those_it_begins_with(cache):
    """The turns of one chat take the place of one text, and the same prompt a hundred times that of one."""
    turns = [list(range(n)) for n in (10, 64, 70, 150)]
    for tokens in turns:
        cache.keep(tokens)
    assert cache.pool.size - cache.pool.free == blocks_for(150)
    for tokens in reversed(turns):
        cache.keep(tokens)
    assert cache.pool.size - cache.pool.free == blocks_for(150)
    assert cache.prefixes.match(list(range(151)), 150)[0] == 150


def test_bounded_number_of_texts():
    cache = Cache(blocks=2 * MAX_TEXTS)
    for i in range(MAX_TEXTS + 5):
        cache.keep([i, 1, 2])
    assert cache.pool.size - cache.pool.free == MAX_TEXTS
    assert cache.prefixes.match([0, 1, 2], 2) == (0, [])


def test_reclaimable_counts_what_dropping_everything_frees(cache):
    cache.keep(list(range(200)))
    cache.keep([9] * 64)
    _, held = cache.prefixes.match(list(range(128)), 128)
    before = cache.pool.free
    assert cache.prefixes.reclaimable() == 3
    cache.prefixes.clear()
    assert cache.pool.free == before + 3
    cache.give_back(held)


TEXTS = st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=150), max_size=12)


@settings(max_examples=40, deadline=None)
@given(TEXTS, st.integers(3, 12))
def test_reuse_gives_what_computing_gives(texts, blocks):
    cache = Cache(blocks)
    for tokens in texts:
        length, held = cache.prefixes.match(tokens, len(tokens) - 1)
        assert length < len(tokens) and len(held) == blocks_for(length)
        assert cache.memory.read(held, length) == tokens[:length]
        while len(held) < blocks_for(len(tokens)):
            block = cache.pool.take()
            if block is None:
                assert cache.prefixes.drop_oldest()
            else:
                held.append(block)
        for i in range(length // PAGE, len(held)):  # the first `length` positions are there; the rest is computed
            cache.memory.write(tokens[i * PAGE : (i + 1) * PAGE], held[i : i + 1])
        cache.prefixes.keep(tokens, held)
    cache.prefixes.clear()
    assert cache.pool.free == blocks
