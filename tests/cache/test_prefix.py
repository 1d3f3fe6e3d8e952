"""Kept texts: a hit is exactly the longest common beginning that is still there, and every block comes back."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forwardpass.cache.blocks import blocks_for
from forwardpass.cache.prefix import MAX_TEXTS, PrefixCache
from forwardpass.contracts import PAGE
from forwardpass.models.regimes import Regime
from token_cache import BLOCK_BYTES, TokenCache

PLAIN = Regime()


class Kept:
    """A prefix cache with its blocks; `run` computes a text as a request does, from what it finds."""

    def __init__(self, blocks=64, windows=(0,)):
        self.cache = TokenCache(blocks, windows)
        self.prefixes = PrefixCache(self.cache)

    def match(self, tokens, limit=None, regime=PLAIN):
        """Length of the hit; what it gave is checked and given back."""
        length, tables = self.prefixes.match(tokens, len(tokens) - 1 if limit is None else limit, regime)
        self.cache.check(tables, tokens, length)
        self.cache.release(tables)
        return length

    def run(self, tokens, step=40, regime=PLAIN):
        """Compute a text and keep it; how many positions were there already."""
        found, tables = self.prefixes.match(tokens, len(tokens) - 1, regime)
        for computed in range(found, len(tokens), step):
            end = min(computed + step, len(tokens))
            while not self.cache.grow(tables, computed, end):
                assert self.prefixes.drop_oldest()
            self.cache.compute(tables, tokens, computed, end)
        self.prefixes.keep(tokens, tables, regime)
        return found

    def used(self):
        return self.cache.used()

    def texts(self):
        return [kept.tables for kept in self.prefixes._texts.values()]


@pytest.fixture
def kept():
    return Kept()


@pytest.mark.parametrize("same", [0, 1, 63, 64, 65, 128, 200])
def test_a_hit_is_the_common_beginning(kept, same):
    tokens = list(range(200))
    kept.run(tokens)
    assert kept.match(tokens[:same] + [999] * 50) == same


def test_at_most_limit_positions(kept):
    kept.run(list(range(130)))
    assert kept.match(list(range(130)), 129) == 129
    assert kept.match([0], 0) == 0


def test_whole_blocks_are_shared_and_a_part_is_copied(kept):
    tokens = list(range(100))
    kept.run(tokens)
    (original,) = kept.texts()[0]
    length, (table,) = kept.prefixes.match(tokens, 99, PLAIN)
    assert length == 99 and table.blocks[0] == original.blocks[0] and table.blocks[1] != original.blocks[1]
    kept.cache.compute([table], tokens[:90] + [7] * 20, 90, 110)  # whoever got the copy goes on writing into it
    kept.cache.check([original], tokens, 100)


def test_without_room_for_the_copy_whole_blocks_are_shared():
    kept = Kept(blocks=2)
    kept.run(list(range(100)))
    assert kept.match(list(range(100))) == 64


def test_the_same_middle_after_another_beginning_is_no_hit(kept):
    middle = list(range(1000, 1064))
    kept.run([1] * PAGE + middle)
    assert kept.match([2] * PAGE + middle + [5]) == 0


def test_tokens_decide_and_no_hash_does(kept):
    """Texts that any weak hash confuses (sums, permutations, a difference in one place)."""
    rng = random.Random(3)
    for _ in range(200):
        kept.run([rng.randrange(3) for _ in range(rng.randrange(1, 150))])
        kept.cache.check_holders(kept.texts())
    kept.prefixes.clear()
    assert kept.cache.free == kept.cache.size


def test_the_least_recently_used_is_dropped_first(kept):
    kept.run([1] * 70)
    kept.run([2] * 70)
    kept.match([1] * 70)
    kept.prefixes.drop_oldest()
    assert (kept.match([2] * 70), kept.match([1] * 70)) == (0, 69)


def test_dropping_a_text_leaves_its_blocks_with_those_who_hold_them(kept):
    kept.run(list(range(64)))
    _, tables = kept.prefixes.match([*range(64), 9], 64, PLAIN)
    kept.prefixes.clear()
    kept.cache.check(tables, list(range(64)), 64)
    assert kept.used() == [1]
    kept.cache.release(tables)
    assert kept.cache.free == kept.cache.size


def test_a_text_replaces_those_it_begins_with(kept):
    """The turns of one chat take the place of one text, and the same prompt a hundred times that of one."""
    turns = [list(range(n)) for n in (10, 64, 70, 150)]
    for tokens in [*turns, *reversed(turns)]:
        kept.run(tokens)
    assert kept.used() == [blocks_for(150)] and len(kept.texts()) == 1
    assert kept.match(list(range(151))) == 150


def test_bounded_number_of_texts():
    kept = Kept(blocks=2 * MAX_TEXTS)
    for i in range(MAX_TEXTS + 5):
        kept.run([i, 1, 2])
    assert kept.used() == [MAX_TEXTS] and kept.match([0, 1, 2]) == 0


def test_reclaimable_counts_what_dropping_everything_frees(kept):
    kept.run(list(range(200)))
    kept.run([9] * 64)
    _, held = kept.prefixes.match(list(range(129)), 128, PLAIN)
    before = kept.cache.free
    assert kept.prefixes.reclaimable() == 3 * BLOCK_BYTES
    kept.prefixes.clear()
    assert kept.cache.free == before + 3 * BLOCK_BYTES
    kept.cache.release(held)


def test_texts_of_another_regime_are_no_match(kept):
    """Tokens alike, keys not: other rotary factors."""
    tokens = list(range(100))
    long, dynamic = Regime(long=True), Regime(base=100)
    kept.run(tokens)
    assert [kept.match(tokens, regime=one) for one in (long, dynamic)] == [0, 0]
    for one in (long, dynamic):
        kept.run(tokens, regime=one)
    assert [kept.match(tokens, regime=one) for one in (PLAIN, long, dynamic, Regime(base=101))] == [99, 99, 99, 0]
    assert len(kept.texts()) == 3


# ---- windows


def test_a_window_that_moved_past_the_common_beginning_is_no_match():
    """300 tokens with a window of 100: blocks from position 192 on are kept, which serve rows from position 291 on."""
    kept = Kept(windows=(100,))
    tokens = list(range(300))
    kept.run(tokens, step=1)
    assert kept.texts()[0][0].first == 3
    assert [kept.match([*tokens[:n], 999]) for n in (300, 299, 291)] == [300, 299, 291]
    assert [kept.match([*tokens[:n], 999]) for n in (290, 200, 64, 12)] == [0, 0, 0, 0]


@pytest.mark.parametrize("windows", [(8, 0), (0, 8), (100, 8, 0), (8, 100)])
def test_the_smallest_window_decides(windows):
    kept = Kept(windows=windows)
    tokens = list(range(200))
    kept.run(tokens, step=1)
    assert kept.match([*tokens[:199], 999]) == 199
    assert kept.match([*tokens[:120], 999]) == 0  # the window of 8 begins at 192 there
    assert kept.match(tokens) == 199


def test_a_second_turn_goes_on_where_the_first_ended():
    kept = Kept(windows=(50, 0))
    first = list(range(500))
    kept.run(first, step=1)
    assert kept.run([*first, *range(1000, 1300)]) == 500
    assert kept.run([*first, 7, 8, 9]) == 500  # the first turn is kept beside the second: its window is another
    kept.prefixes.clear()
    assert kept.cache.free == kept.cache.size


def test_a_shorter_text_that_holds_more_of_its_window_is_the_one_used():
    kept = Kept(windows=(64,))
    tokens = list(range(400))
    kept.run(tokens[:200], step=1)
    kept.run(tokens, step=1)
    assert len(kept.texts()) == 2
    assert kept.match([*tokens[:200], 999]) == 200 and kept.match([*tokens, 999]) == 400


def test_a_copy_without_room_falls_back_only_to_what_is_held():
    """Whole blocks are shared without the copy if the window before them is there; else there is no hit."""
    for window, hit in ((0, 128), (64, 128), (10, 0)):
        kept = Kept(blocks=4, windows=(window,))
        tokens = list(range(160))
        kept.run(tokens, step=1)
        other = kept.cache.empty()
        while kept.cache.free:
            assert kept.cache.grow(other, 0, PAGE * (other[0].end + 1))
        assert kept.match([*tokens, 1]) == hit


WINDOWS = st.lists(st.sampled_from([0, 1, 8, 64, 100]), min_size=1, max_size=3)
TEXTS = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 300), st.integers(0, 1), st.integers(0, 80)), max_size=14)


@settings(max_examples=80, deadline=None)
@given(WINDOWS, TEXTS, st.integers(8, 30), st.sampled_from([1, 7, 64, 500]))
def test_reuse_gives_what_computing_gives(windows, texts, blocks, step):
    """Whatever is found is this text's, in every group (TokenCache checks each read): A A B B, forks, second turns."""
    kept = Kept(blocks, tuple(windows))
    for beginning, same, tail, more in texts:
        kept.run([beginning] * same + [10 + tail] * more, step)
        kept.cache.check_holders(kept.texts())
    kept.prefixes.clear()
    assert kept.cache.free == kept.cache.size
