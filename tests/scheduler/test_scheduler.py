"""The scheduler without a model: budgets, room, fairness, and every block accounted for at every moment."""

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from forwardpass.cache.blocks import BlockPool, blocks_for
from forwardpass.cache.prefix import PrefixCache
from forwardpass.contracts import PAGE
from forwardpass.scheduler.scheduler import Scheduler, Sequence


class Memory:
    """Blocks that remember the tokens computed into them."""

    def __init__(self):
        self.blocks = {}

    def clear(self, block):
        self.blocks[block] = {}

    def copy(self, source, target):
        self.blocks[target] = dict(self.blocks[source])


class Bench:
    """A scheduler and a computer that checks what it may and must do."""

    def __init__(self, blocks, budget=512):
        self.memory = Memory()
        self.pool = BlockPool(self.memory, blocks)
        self.prefixes = PrefixCache(self.pool)
        self.scheduler = Scheduler(self.pool, self.prefixes, budget)
        self.computed = 0

    def add(self, tokens):
        sequence = Sequence(list(tokens))
        self.scheduler.add(sequence)
        return sequence

    def compute(self, plan):
        """What a forward pass does: reads every earlier position of a sequence and writes the new ones."""
        assert sum(work.count for work in plan) <= self.scheduler.step_tokens
        assert len({id(work.sequence) for work in plan}) == len(plan)
        for work in plan:
            s = work.sequence
            assert 1 <= work.count <= s.behind and work.final == (work.count == s.behind)
            end = s.computed + work.count
            assert len(s.blocks) >= blocks_for(end) and s in self.scheduler.running
            for position in range(end):
                block, slot = s.blocks[position // PAGE], position % PAGE
                if position >= s.computed:
                    assert self.pool.holders(block) == 1, "a shared block would be written"
                    self.memory.blocks.setdefault(block, {})[slot] = s.tokens[position]
                assert self.memory.blocks[block][slot] == s.tokens[position], "a block holds another text"
            self.computed += work.count

    def step(self):
        plan = self.scheduler.plan()
        self.compute(plan)
        for work in plan:
            self.scheduler.done(work)
        return plan

    def check(self):
        """Holders of every block are exactly the sequences and kept texts that name it."""
        s = self.scheduler
        assert not any(w.blocks or w.computed for w in s.waiting)
        texts = [blocks for _, blocks in self.prefixes._texts.values()]
        held = Counter(b for blocks in [*(one.blocks for one in s.running), *texts] for b in blocks)
        for blocks in [*(one.blocks for one in s.running), *texts]:
            assert len(set(blocks)) == len(blocks)
        assert all(self.pool.holders(b) == held[b] for b in range(self.pool.size))
        assert self.pool.free == self.pool.size - len(held)


def test_a_prompt_is_cut_into_chunks():
    bench = Bench(blocks=30, budget=100)
    bench.add(range(250))
    assert [(w.count, w.final) for w in [bench.step()[0] for _ in range(3)]] == [(100, False), (100, False), (50, True)]


def test_running_answers_go_on_beside_a_long_prompt():
    bench = Bench(blocks=60, budget=64)
    short = bench.add([1, 2, 3])
    bench.step()
    long = bench.add(range(1000))
    while long.behind:
        short.tokens.append(7)
        plan = bench.step()
        assert (short, 1) in [(w.sequence, w.count) for w in plan]
        assert sum(w.count for w in plan) == 64 or not long.behind


def test_first_come_first_served():
    bench = Bench(blocks=60, budget=100)
    texts = [bench.add([i] * 80) for i in range(4)]
    order = []
    while len(order) < 4:
        order += [w.sequence for w in bench.step() if w.final]
    assert order == texts


def test_a_text_waits_until_it_fits_as_a_whole_and_nobody_passes_it():
    bench = Bench(blocks=4)
    first, large, small = bench.add([1] * 128), bench.add([2] * 200), bench.add([3])
    assert [w.sequence for w in bench.step()] == [first]
    first.tokens.append(1)
    assert [w.sequence for w in bench.step()] == [first]
    bench.scheduler.finish(first, keep=True)
    assert [w.sequence for w in bench.step()] == [large]
    bench.scheduler.finish(large, keep=True)
    assert [w.sequence for w in bench.step()] == [small]


def test_waiting_in_vain_drops_no_kept_text():
    bench = Bench(blocks=6)
    kept = bench.add([5] * 64)
    bench.step()
    bench.scheduler.finish(kept, keep=True)
    running, large = bench.add([1] * 200), bench.add([2] * 200)
    bench.step()
    for _ in range(3):
        running.tokens.append(1)
        assert [w.sequence for w in bench.step()] == [running]
    assert large in bench.scheduler.waiting
    assert bench.prefixes.match([5] * 65, 64)[0] == 64


def test_the_youngest_yields_and_nothing_is_lost():
    bench = Bench(blocks=4)
    old, young = bench.add([1] * 120), bench.add([2] * 120)
    bench.step()
    for _ in range(20):
        for one in (old, young):
            if not one.behind:
                one.tokens.append(9)
        bench.step()
        bench.check()
    assert bench.scheduler.preemptions == 1 and len(old.tokens) == 140 and young in bench.scheduler.waiting
    bench.scheduler.finish(old, keep=True)
    assert [w.sequence for w in bench.step()] == [young]


def test_second_turn_computes_only_what_is_new():
    bench = Bench(blocks=20)
    turn = bench.add(range(100))
    bench.step()
    turn.tokens.append(500)
    bench.scheduler.finish(turn, keep=True)  # the end token was chosen but not computed
    bench.computed = 0
    again = bench.add([*range(100), 500, 501, 502])
    bench.step()
    assert (again.reused, bench.computed) == (100, 3)


def test_the_same_prompt_again_computes_its_last_token():
    bench = Bench(blocks=20)
    bench.scheduler.finish([bench.add(range(100)), bench.step()][0], keep=True)
    again = bench.add(range(100))
    (work,) = bench.step()
    assert (again.reused, work.count, work.final) == (99, 1, True)


@pytest.mark.parametrize(("length", "shared"), [(64, 1), (100, 1), (128, 2)])
def test_fork_shares_whole_blocks(length, shared):
    bench = Bench(blocks=9)
    one = bench.add(range(length))
    bench.step()
    twin = bench.scheduler.fork(one)
    assert twin.blocks[:shared] == one.blocks[:shared]
    assert not set(twin.blocks[shared:]) & set(one.blocks[shared:])
    for token, sequence in enumerate((one, twin)):
        sequence.tokens.append(token)
    for _ in range(70):
        bench.step()
        for token, sequence in enumerate((one, twin)):
            sequence.tokens.append(token)
    bench.check()


def test_fork_without_room_starts_over():
    bench = Bench(blocks=2)
    one = bench.add(range(100))
    bench.step()
    twin = bench.scheduler.fork(one)
    assert twin in bench.scheduler.waiting and twin.tokens == one.tokens and not twin.blocks


def test_a_fork_does_not_wait_for_a_long_prompt_that_came_before_it():
    bench = Bench(blocks=30, budget=100)
    one, long = bench.add([1] * 70), bench.add([2] * 900)
    assert [w.count for w in bench.step()] == [70, 30]
    twin = bench.scheduler.fork(one)
    one.tokens.append(5), twin.tokens.append(6)
    assert {(id(w.sequence), w.count) for w in bench.step()} == {(id(one), 1), (id(twin), 1), (id(long), 98)}


def test_reserve_takes_room_from_the_youngest():
    bench = Bench(blocks=4)
    old, young = bench.add([1] * 100), bench.add([2] * 100)
    bench.step()
    outside = Sequence([3] * 128)
    bench.scheduler.reserve(outside, 128)
    assert bench.scheduler.running == [old] and bench.scheduler.waiting == [young]
    bench.scheduler.finish(outside, keep=False)
    bench.check()


class Machine(RuleBasedStateMachine):
    """Requests come, are forked, cancelled and preempted at any moment, and steps are interrupted."""

    BLOCKS = 6

    def __init__(self):
        super().__init__()
        self.bench = Bench(self.BLOCKS, budget=50)
        self.left = {}  # sequence -> tokens it still wants

    def finish(self, sequence, keep):
        del self.left[sequence]
        self.bench.scheduler.finish(sequence, keep)
        assert not sequence.blocks

    def hand_out(self, plan):
        for work in plan:
            sequence = work.sequence
            if work.final:
                self.left[sequence] -= 1
                sequence.tokens.append(len(sequence.tokens) % 3)
                if self.left[sequence] == 0:
                    self.finish(sequence, keep=True)

    @rule(kind=st.integers(0, 2), length=st.integers(1, 300), new=st.integers(1, 80))
    def add(self, kind, length, new):
        new = min(new, self.BLOCKS * PAGE - length + 1)
        self.left[self.bench.add([kind] * length)] = new

    @rule(times=st.integers(1, 30))
    def steps(self, times):
        for _ in range(times):
            plan = self.bench.step()
            assert bool(plan) == bool(self.left)
            self.hand_out(plan)

    @precondition(lambda self: self.left)
    @rule()
    def interrupted_step(self):
        self.bench.compute(self.bench.scheduler.plan())  # computed, but nobody noted it

    @precondition(lambda self: self.left)
    @rule(which=st.integers(0, 99), keep=st.booleans())
    def cancel(self, which, keep):
        self.finish(list(self.left)[which % len(self.left)], keep)

    @precondition(lambda self: self.bench.scheduler.running)
    @rule(which=st.integers(0, 99))
    def fork(self, which):
        running = self.bench.scheduler.running
        one = running[which % len(running)]
        if one.computed:
            self.left[self.bench.scheduler.fork(one)] = self.left[one]

    @precondition(lambda self: self.bench.scheduler.running)
    @rule(length=st.integers(1, 380))
    def outside(self, length):
        sequence = Sequence([0] * length)
        self.bench.scheduler.reserve(sequence, length)
        self.bench.scheduler.finish(sequence, keep=False)

    @invariant()
    def every_block_is_accounted_for(self):
        self.bench.check()

    def teardown(self):
        steps = 0
        while self.left:
            self.hand_out(self.bench.step())
            self.bench.check()
            steps += 1
            assert steps < 20_000, "somebody starves"
        self.bench.prefixes.clear()
        assert self.bench.pool.free == self.BLOCKS
        assert not self.bench.scheduler.waiting and not self.bench.scheduler.running


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)
