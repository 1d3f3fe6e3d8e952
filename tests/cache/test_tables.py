"""What texts hold in every group of layers: windows give back what nobody sees any more, and never more than that."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forwardpass.cache.blocks import blocks_for
from forwardpass.contracts import PAGE
from token_cache import BLOCK_BYTES, TokenCache


def pages(cache, tables):
    return [(table.first, table.end) for table in tables]


def test_a_group_that_sees_everything_holds_everything():
    cache = TokenCache(10)
    tables = cache.empty()
    for computed in range(0, 600, 50):
        assert cache.grow(tables, computed, computed + 50)
        assert pages(cache, tables) == [(0, blocks_for(computed + 50))]
    assert cache.free == 0 and not cache.grow(tables, 600, 641)


@pytest.mark.parametrize("window", [1, 2, 63, 64, 65, 100, 500])
def test_a_window_holds_a_constant_number_of_blocks(window):
    """2,000 tokens one by one: all pages of the window and no other, so two numbers of blocks alternate at most."""
    cache = TokenCache(200, (window, 0))
    tables, used = cache.empty(), set()
    tokens = [i % 7 for i in range(2000)]
    for position in range(2000):
        assert cache.grow(tables, position, position + 1)
        cache.compute(tables, tokens, position, position + 1)
        assert tables[0].first == max(0, position - window + 1) // PAGE and tables[0].end == position // PAGE + 1
        if position >= window + PAGE:
            used.add(cache.used()[0])
    assert max(used) <= (window + 62) // PAGE + 1 and max(used) - min(used) <= 1
    assert cache.used()[1] == blocks_for(2000)
    cache.release(tables)
    assert cache.free == cache.size


@pytest.mark.parametrize("window", [1, 64, 100, 300])
@pytest.mark.parametrize("step", [1, 40, 64, 512])
def test_a_prompt_holds_no_more_than_a_step_needs_and_keeps_it(window, step):
    """The blocks of a prompt's first step suffice to its end: what moves out makes room for what comes."""
    cache = TokenCache(100, (window,), step)
    tables, tokens = cache.empty(), list(range(1500))
    most = None
    for computed in range(0, 1500, step):
        end = min(1500, computed + step)
        assert cache.grow(tables, computed, 1500)
        cache.compute(tables, tokens, computed, end)
        most = most or cache.used()[0]
        assert cache.used()[0] <= most <= (window - 1 + step + 62) // PAGE + 1


def test_what_is_needed_and_how_much_room_there_is():
    full, windowed, mixed = TokenCache(4), TokenCache(20, (100,), 64), TokenCache(6, (0, 100), 64)
    assert [full.need(n) for n in (0, 1, 64, 65)] == [0, 10, 10, 20]
    assert (full.room(10**6), full.room(200)) == (256, 200)
    assert windowed.need(10**6) == (100 - 1 + 64 + 62) // 64 * 10 + 10 and windowed.room(10**6) == 10**6
    assert mixed.size == 120 and mixed.need(64 * 8) == 120
    assert (mixed.room(10**6), mixed.room(5)) == (64 * 8, 5)
    assert TokenCache(1, (100,), 64).room(10**6) == 64


def test_growing_can_be_tried_again():
    cache = TokenCache(3, (0, 0))
    one, other = cache.empty(), cache.empty()
    assert cache.grow(one, 0, 64)
    assert not cache.grow(other, 0, 190)
    cache.check_holders([one, other])
    cache.release(one)
    assert cache.grow(other, 0, 190) and cache.covered(other) == 192
    cache.check_holders([one, other])


@pytest.mark.parametrize("positions", [64, 70, 128, 300, 384])
@pytest.mark.parametrize("windows", [(0,), (100,), (0, 10), (1, 64, 200)])
def test_another_text_shares_what_a_row_after_the_beginning_sees(windows, positions):
    cache = TokenCache(30, windows)
    tokens = list(range(400))
    tables = cache.empty()
    for position in range(400):
        assert cache.grow(tables, position, position + 1)
        cache.compute(tables, tokens, position, position + 1)
        if position + 1 == positions:
            other = cache.share(tables, positions)
            cache.check(other, tokens, positions)
            theirs = tokens[:positions] + [7] * (400 - positions)
    assert cache.grow(other, positions, 400)  # each goes its own way
    cache.compute(other, theirs, positions, 400)
    cache.check(tables, tokens, 400)
    cache.check_holders([tables, other])
    cache.release(tables)
    cache.release(other)
    assert cache.free == cache.size


def test_no_room_for_a_copy_leaves_nothing_held():
    cache = TokenCache(2, (0, 0))
    tables = cache.empty()
    assert cache.grow(tables, 0, 100)
    assert cache.share(tables, 100) is None
    cache.check_holders([tables])
    assert cache.share(tables, 64) is not None
    cache = TokenCache(3, (0, 0))
    tables, other = cache.empty(), cache.empty()
    assert cache.grow(tables, 0, 100) and not cache.grow(other, 0, 128)
    cache.compute(tables, list(range(100)), 0, 100)
    cache.release(other)
    cache.groups[1].pool.take()  # so that one of the two copies has room
    assert cache.share(tables, 100) is None and cache.free == BLOCK_BYTES


@pytest.mark.parametrize("windows", [(0,), (100,), (0, 50), (1,), (64, 300)])
def test_what_a_text_still_needs_beside_what_it_shares(windows):
    cache = TokenCache(60, windows, 64)
    one = cache.empty()
    for computed in range(700):
        assert cache.grow(one, computed, computed + 1)
        cache.compute(one, list(range(700)), computed, computed + 1)
    for positions in (700, 699, 690):
        free, other = cache.free, cache.share(one, positions)
        assert cache.grow(other, positions, 900)
        assert free - cache.free == cache.need(900, positions)
        cache.release(other)
    cache.release(one)
    assert cache.free == cache.size


@pytest.mark.parametrize("windows", [(0,), (100,), (0, 50), (1,), (64, 300)])
def test_as_long_as_tables_are_steady_growing_changes_nothing(windows):
    cache = TokenCache(60, windows)
    tables, steady, grown = cache.empty(), 0, 0
    for computed in range(700):
        if computed < steady:
            before = pages(cache, tables)
            assert cache.grow(tables, computed, computed + 1) and pages(cache, tables) == before
            continue
        assert cache.grow(tables, computed, computed + 1)
        steady, grown = cache.steady(tables), grown + 1
        assert steady > computed
    assert grown <= 12 * (len(windows) + 1)  # at the ends of pages, and where windows leave one


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from([0, 1, 5, 64, 100, 250]), min_size=1, max_size=3), st.integers(1, 200),
       st.lists(st.integers(1, 200), max_size=12))
def test_any_cut_finds_what_it_reads(windows, step, cuts):
    cache = TokenCache(60, tuple(windows), step)
    tables, tokens, computed = cache.empty(), list(range(3000)), 0
    for cut in cuts:
        end = computed + min(cut, step)
        assert cache.grow(tables, computed, end + cut % 3 * 50)
        cache.compute(tables, tokens, computed, end)
        computed = end
        assert cache.size - cache.free <= cache.need(computed + 100)
        before = cache.free
        assert cache.grow(tables, computed, computed) and cache.free >= before
