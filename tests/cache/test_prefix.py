"""Kept texts: a hit is exactly the longest common beginning that is still there, and every block comes back."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forwardpass.cache import prefix
from forwardpass.cache.blocks import blocks_for
from forwardpass.cache.prefix import PrefixCache
from forwardpass.contracts import PAGE
from forwardpass.models.regimes import Regime
from token_cache import BLOCK_BYTES, TokenCache

PLAIN = Regime()


class Running:
    """A text that is computed as a request is, from what it finds."""

    def __init__(self, kept, tokens, regime=PLAIN, salt=""):
        self.cache, self.prefixes = kept.cache, kept.prefixes
        self.tokens, self.regime, self.salt = list(tokens), regime, salt
        found = self.prefixes.find(self.tokens, len(self.tokens) - 1, regime, salt)
        tables = self.prefixes.take(found)
        if tables is None:
            found = self.prefixes.find(self.tokens, found.positions // PAGE * PAGE, regime, salt)
            tables = self.prefixes.take(found)
        self.tables, self.found, self.computed, self.last = tables, found.positions, found.positions, found.whole

    def compute(self, end=None, step=40):
        end = len(self.tokens) if end is None else end
        for begin in range(self.computed, end, step):
            self.computed = min(begin + step, end)
            assert self.cache.grow(self.tables, begin, self.computed)
            self.cache.compute(self.tables, self.tokens, begin, self.computed)
            self.last = self.prefixes.publish(self.tokens, self.tables, self.computed, self.regime, self.salt,
                                              self.last)
        return self

    def keep(self):
        self.prefixes.keep(self.tokens, self.tables, self.computed, self.regime, self.salt, self.last)
        return self.found


class Kept:
    """A prefix cache with its blocks."""

    def __init__(self, blocks=64, windows=(0,)):
        self.cache = TokenCache(blocks, windows)
        self.prefixes = PrefixCache(self.cache)

    def match(self, tokens, limit=None, regime=PLAIN, salt=""):
        """Length of the hit; what it gave is checked and given back."""
        found = self.prefixes.find(tokens, len(tokens) - 1 if limit is None else limit, regime, salt)
        tables = self.prefixes.take(found)
        self.cache.check(tables, tokens, found.positions)
        self.cache.release(tables)
        return found.positions

    def run(self, tokens, step=40, regime=PLAIN, salt=""):
        """Compute a text and keep it; how many positions were there already."""
        return Running(self, tokens, regime, salt).compute(step=step).keep()

    def check(self, *running):
        self.cache.check_holders([one.tables for one in running], self.prefixes)

    def pages(self):
        """Of each kept page how many there are up to it, in the order in which they are dropped."""
        return [node.pages for node in self.cache.budget.pages]

    def drop(self, blocks=1):
        """Let others need so many blocks more than are free."""
        assert self.cache.budget.make_room(self.cache.free + blocks * BLOCK_BYTES)


@pytest.fixture
def kept():
    return Kept()


def common(one, other):
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


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
    first, second = sorted(kept.cache.budget.pages, key=lambda node: node.pages)
    other = Running(kept, tokens)
    (table,) = other.tables
    assert other.found == 99 and table.blocks[0] == first.blocks[0] and table.blocks[1] != second.blocks[0]
    kept.cache.compute([table], tokens[:90] + [7] * 20, 90, 110)  # whoever got the copy goes on writing into it
    assert kept.match(tokens) == 99


def test_a_copy_drops_what_is_older(kept):
    """Where all memory is in use by kept texts, as it is sooner or later, a part of a block is still found."""
    kept = Kept(blocks=4)
    kept.run([5] * 100)
    kept.run(list(range(100)))
    assert kept.cache.free == 0 and kept.match(list(range(100))) == 99
    kept.check()
    assert kept.match([5] * 100) == 64


def test_without_room_for_the_copy_whole_blocks_are_shared():
    kept = Kept(blocks=2)
    kept.run(list(range(100)))
    again = Running(kept, range(100))
    assert again.found == 64
    again.compute().keep()
    kept.check()


def test_the_same_middle_after_another_beginning_is_no_hit(kept):
    middle = list(range(1000, 1064))
    kept.run([1] * PAGE + middle)
    assert kept.match([2] * PAGE + middle + [5]) == 0


class WeakKey(bytes):
    """Tokens that nearly always have the hash of others."""

    def __hash__(self):
        return super().__hash__() & 15


@pytest.mark.parametrize("weak", [False, True])
@pytest.mark.parametrize("windows", [(0,), (30, 0), (1,)])
def test_tokens_decide_and_no_hash_does(weak, windows, monkeypatch):
    """Texts that any weak hash confuses (sums, permutations, a difference in one place), also with a hash of four bits:
    each hit is the longest beginning that was ever computed."""
    if weak:
        key = prefix._key
        monkeypatch.setattr(prefix, "_key", lambda tokens: WeakKey(key(tokens)))
    kept, texts, rng = Kept(700, windows), [], random.Random(3)
    for _ in range(200):
        text = [rng.randrange(3) for _ in range(rng.randrange(1, 150))]
        if texts and rng.random() < 0.7:
            other = rng.choice(texts)
            text = other[: rng.randrange(1, len(other) + 1)] + text
        found = kept.run(text)
        assert found == max([min(common(text, other), len(text) - 1) for other in texts], default=0)
        texts.append(text)
    kept.check()
    kept.prefixes.clear()
    assert kept.cache.free == kept.cache.size and not kept.prefixes._roots


class CountedKey(bytes):
    """Tokens that count how often they are compared."""

    comparisons = 0

    def __eq__(self, other):
        CountedKey.comparisons += 1
        return super().__eq__(other)

    def __lt__(self, other):
        CountedKey.comparisons += 1
        return super().__lt__(other)

    __hash__ = bytes.__hash__


def test_looking_costs_what_the_text_is_long_however_many_are_kept(monkeypatch):
    """Texts that differ where a page of all of them begins the same way: the worst place."""
    key = prefix._key
    monkeypatch.setattr(prefix, "_key", lambda tokens: CountedKey(key(tokens)))
    costs = []
    for texts in (100, 3000):
        kept = Kept(blocks=2 * texts + 10)
        for i in range(texts):
            kept.run([5] * 70 + [i // 7, i])
        CountedKey.comparisons = 0
        found = kept.prefixes.find([5] * 70 + [texts // 14, texts // 2, 9, 9], 74, PLAIN)
        assert found.positions == 72
        costs.append(CountedKey.comparisons)
    assert costs[0] <= costs[1] <= costs[0] + 6  # the page is found by halving


def test_the_least_recently_used_is_dropped_first(kept):
    kept.run([1] * 70)
    kept.run([2] * 70)
    kept.match([1] * 70)
    kept.drop(2)
    assert (kept.match([2] * 70), kept.match([1] * 70)) == (0, 69)


def test_the_end_of_a_text_goes_before_its_beginning(kept):
    kept.run(list(range(200)))
    kept.run([*range(64), *[9] * 64])
    assert kept.pages() == [4, 3, 2, 2, 1]
    for blocks, hit in ((1, 192), (1, 128), (1, 64)):
        kept.drop(blocks)
        assert kept.prefixes.find(list(range(200)), 200, PLAIN).positions == hit
    assert kept.prefixes.find([*range(64), *[9] * 64], 128, PLAIN).positions == 128
    assert kept.cache.budget.dropped == 3 * BLOCK_BYTES
    kept.check()


def test_dropping_a_text_leaves_its_blocks_with_those_who_hold_them(kept):
    kept.run(list(range(64)))
    other = Running(kept, [*range(64), 9])
    kept.prefixes.clear()
    kept.cache.check(other.tables, list(range(64)), 64)
    assert kept.cache.used() == [1]
    kept.cache.release(other.tables)
    assert kept.cache.free == kept.cache.size


def test_a_text_replaces_those_it_begins_with(kept):
    """The turns of one chat take the place of one text, and the same prompt a hundred times that of one."""
    turns = [list(range(n)) for n in (10, 64, 70, 150)]
    for tokens in [*turns, *reversed(turns)]:
        kept.run(tokens)
    assert kept.cache.all_used() == [blocks_for(150)] and kept.pages() == [3, 2, 1]
    assert kept.match(list(range(151))) == 150


def test_thousands_of_texts_are_kept_where_there_is_room():
    kept = Kept(blocks=2000)
    for i in range(2000):
        kept.run([i, 1, 2])
    assert kept.cache.free == 0 and kept.match([0, 1, 2]) == 2
    kept.run([5000, 1])
    assert kept.match([0, 1, 2]) == 2 and kept.match([1, 1, 2]) == 0  # the other was used


def test_what_is_kept_is_room_for_others(kept):
    kept.run(list(range(200)))
    kept.run([9] * 64)
    held = Running(kept, range(129))
    assert kept.cache.budget.idle == 3 * BLOCK_BYTES and kept.cache.budget.room == 62 * BLOCK_BYTES
    kept.check(held)
    kept.prefixes.clear()
    assert kept.cache.budget.idle == 0 and kept.cache.free == 62 * BLOCK_BYTES
    kept.cache.release(held.tables)


def test_texts_of_another_regime_or_salt_are_no_match(kept):
    """Tokens alike, keys not: other rotary factors; or somebody who may not learn what others asked. Which of the two
    differs makes a difference, too."""
    tokens = list(range(100))
    long, dynamic = Regime(long=True), Regime(base=100)
    kept.run(tokens)
    assert [kept.match(tokens, regime=one) for one in (long, dynamic)] == [0, 0]
    for one in (long, dynamic):
        kept.run(tokens, regime=one)
    assert [kept.match(tokens, regime=one) for one in (PLAIN, long, dynamic, Regime(base=101))] == [99, 99, 99, 0]
    for salt in ("a", "b", str(long), str(tokens)):
        assert kept.match(tokens, salt=salt) == 0
        assert [kept.run(tokens, salt=salt) for _ in range(2)] == [0, 99]
    assert len(kept.pages()) == 2 * 7 and kept.match(tokens, regime=long, salt="a") == 0
    kept.prefixes.clear()
    assert not kept.prefixes._roots


# ---- texts that still run


def test_a_text_that_runs_serves_others_page_by_page(kept):
    tokens = list(range(300))
    one = Running(kept, tokens)
    for end, hit in ((40, 0), (70, 64), (127, 64), (128, 128), (290, 256)):
        one.compute(end, step=30)
        assert kept.match([*tokens, 5]) == hit
        kept.check(one)
    one.keep()
    assert kept.match([*tokens, 5]) == 290


def test_who_computes_the_same_at_the_same_time_ends_with_the_same_blocks(kept):
    tokens = list(range(150))
    one, other = Running(kept, tokens), Running(kept, tokens)
    one.compute(), other.compute()
    assert kept.cache.used() == [4] and one.tables[0].blocks[:2] == other.tables[0].blocks[:2]
    kept.check(one, other)
    kept.cache.check(other.tables, tokens, 150)
    one.keep(), other.keep()
    assert kept.cache.all_used() == [3]


def test_pages_in_use_are_not_dropped():
    """Others need room: all that is not in use goes, however much older that is."""
    kept = Kept(blocks=8)
    running = Running(kept, range(200)).compute()
    kept.run([9] * 100)
    kept.run([8] * 100)
    kept.drop(4)
    kept.check(running)
    assert kept.match([*range(200), 1]) == 192 and kept.match([9] * 100) == 0
    assert not kept.cache.budget.make_room(kept.cache.free + 1)
    running.keep()
    assert kept.cache.budget.room == kept.cache.size


def test_a_text_whose_pages_are_gone_is_kept_anew(kept):
    for windows in ((0,), (64, 0), (64,)):
        kept = Kept(windows=windows)
        tokens = list(range(400))
        running = Running(kept, tokens).compute(200, step=10)
        kept.prefixes.clear()
        running.compute(300, step=10)
        kept.check(running)
        running.compute(step=10).keep()
        kept.check()
        assert kept.match([*tokens, 1]) == 400
        kept.prefixes.clear()
        assert kept.cache.free == kept.cache.size


# ---- windows


@pytest.mark.parametrize("windows", [(100,), (8, 0), (0, 8), (100, 8, 0)])
def test_windows_serve_any_beginning_as_long_as_there_is_room(windows):
    kept = Kept(blocks=200, windows=windows)
    tokens = list(range(300))
    kept.run(tokens, step=1)
    lengths = [300, 299, 291, 290, 130, 64, 12]
    assert [kept.match([*tokens[:n], 999]) for n in lengths] == lengths


def test_what_windows_moved_past_goes_first():
    """300 tokens with a window of 100: the rows from position 291 on see nothing before position 192. Another text,
    which is older, keeps what it has."""
    kept = Kept(blocks=20, windows=(100,))
    tokens = list(range(300))
    kept.run([7] * 100)
    kept.run(tokens, step=1)
    kept.drop(3)
    kept.check()
    assert [kept.match([*tokens[:n], 999]) for n in (300, 299, 291)] == [300, 299, 291]
    assert [kept.match([*tokens[:n], 999]) for n in (290, 200, 64, 12)] == [0, 0, 0, 0]
    assert kept.match([7] * 100) == 99


def test_where_another_text_went_on_windows_stay():
    """The beginning that many share (a system prompt): each of them moves past it, but not the next one."""
    kept = Kept(blocks=30, windows=(70,))
    system = list(range(200))
    kept.run([*system, *[1] * 200], step=1)
    kept.run([*system, *[2] * 200], step=1)
    left = len(kept.cache.budget.passed)
    assert left == 5
    kept.drop(left)
    assert kept.match([*system, 9]) == 200 and kept.match([*system, *[1] * 100, 9]) == 256
    kept.check()


@pytest.mark.parametrize("windows", [(8, 0), (0, 8), (100, 8, 0), (8, 100)])
def test_the_smallest_window_decides(windows):
    kept = Kept(windows=windows)
    tokens = list(range(200))
    kept.run(tokens, step=1)
    kept.drop(len(kept.cache.budget.passed))
    assert kept.match([*tokens[:199], 999]) == 199
    assert kept.match([*tokens[:120], 999]) == 0  # the window of 8 begins at 192 there
    assert kept.match(tokens) == 199


def test_an_earlier_turn_is_used_where_windows_moved_past_the_rest():
    """Of the longest common beginning a page is lost in one group. What is left is the beginning before that page, the
    last of which the second turn has filled."""
    kept = Kept(blocks=60, windows=(64, 0))
    tokens = list(range(400))
    kept.run(tokens[:200], step=1)
    kept.run(tokens, step=1)
    kept.drop(len(kept.cache.budget.passed))
    assert kept.match([*tokens[:300], 999]) == 256 and kept.match([*tokens, 999]) == 400
    kept.check()


def test_a_second_turn_goes_on_where_the_first_ended():
    kept = Kept(windows=(50, 0))
    first = list(range(500))
    kept.run(first, step=1)
    assert kept.run([*first, *range(1000, 1300)], step=1) == 500
    kept.drop(len(kept.cache.budget.passed))
    assert kept.run([*first, 7, 8, 9]) == 500  # the window at the end of the first turn is kept beside the second's
    kept.check()
    kept.prefixes.clear()
    assert kept.cache.free == kept.cache.size


def test_windows_on_the_way_to_pages_in_use_are_room_too():
    """A text that runs holds what its own rows see; the rest of its windows goes if nothing else does."""
    kept = Kept(blocks=10, windows=(64, 0))
    system = list(range(256))
    kept.run(system)
    running = Running(kept, [*system, *range(300)]).compute(step=1)
    room = kept.cache.budget.room
    assert kept.cache.budget.make_room(room)
    kept.check(running)
    kept.cache.check(running.tables, running.tokens, running.computed)
    assert kept.cache.budget.idle == 0 and not kept.cache.budget.make_room(room + 1)


def test_a_copy_without_room_falls_back_only_to_what_is_held():
    """Whole blocks are shared without the copy if the window before them is there; else there is no hit."""
    for window, hit in ((0, 128), (64, 128), (10, 0)):
        kept = Kept(blocks=4, windows=(window,))
        tokens = list(range(160))
        kept.run(tokens, step=1)
        kept.drop(len(kept.cache.budget.passed))
        held = kept.cache.share(kept.prefixes.find(tokens, 160, PLAIN).tables, 128 if window != 10 else 0)
        other = kept.cache.empty()
        while kept.cache.free:
            assert kept.cache.grow(other, 0, PAGE * (other[0].end + 1))
        again = Running(kept, [*tokens, 1])
        assert again.found == hit
        for tables in (held, other, again.tables):
            kept.cache.release(tables)
        kept.check()


WINDOWS = st.lists(st.sampled_from([0, 1, 8, 64, 100]), min_size=1, max_size=3)
TEXTS = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 300), st.integers(0, 1), st.integers(0, 80)), max_size=14)


@settings(max_examples=80, deadline=None)
@given(WINDOWS, TEXTS, st.integers(14, 30), st.sampled_from([1, 7, 64, 500]))
def test_reuse_gives_what_computing_gives(windows, texts, blocks, step):
    """Whatever is found is this text's, in every group (TokenCache checks each read): A A B B, forks, second turns."""
    kept = Kept(blocks, tuple(windows))
    for beginning, same, tail, more in texts:
        kept.run([beginning] * same + [10 + tail] * more, step)
        kept.check()
    kept.prefixes.clear()
    assert kept.cache.free == kept.cache.size


@settings(max_examples=80, deadline=None)
@given(WINDOWS, TEXTS, st.sampled_from([1, 7, 64, 500]))
def test_with_room_for_all_a_hit_is_the_longest_beginning_ever_computed(windows, texts, step):
    kept, done = Kept(300, tuple(windows)), []
    for beginning, same, tail, more in texts:
        text = [beginning] * same + [10 + tail] * more
        assert kept.run(text, step) == max([min(common(text, one), len(text) - 1) for one in done], default=0)
        done.append(text)
