"""Any order of requests, forks, cancellations, preemptions and interrupts: every block is always accounted for.
Every position that is read holds the text's own token, computed under its own factors."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from forwardpass.contracts import PAGE
from forwardpass.models.regimes import Regimes
from scheduler_bench import Bench


class Machine(RuleBasedStateMachine):
    """Requests come, are forked, cancelled and preempted at any moment, and steps are interrupted."""

    BLOCKS = 6
    WINDOWS = (0,)
    REGIMES = Regimes()

    def __init__(self):
        super().__init__()
        self.bench = Bench(self.BLOCKS, 50, self.WINDOWS, self.REGIMES)
        self.left = {}  # sequence -> tokens it still wants

    def finish(self, sequence, keep):
        del self.left[sequence]
        self.bench.scheduler.finish(sequence, keep)
        assert not sequence.tables

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
        self.bench.compute(self.bench.scheduler.plan().work)  # computed, but nobody noted it

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
        assert self.bench.cache.free == self.bench.cache.size
        assert not self.bench.scheduler.waiting and not self.bench.scheduler.running


class WindowMachine(Machine):
    WINDOWS = (40, 0)


class ManyWindowsMachine(Machine):
    WINDOWS = (1, 130, 70)


class SwitchMachine(Machine):
    WINDOWS = (0, 60)
    REGIMES = Regimes(switch=150)


class DynamicMachine(Machine):
    REGIMES = Regimes(trained=100)


TestMachine = Machine.TestCase
TestWindowMachine = WindowMachine.TestCase
TestManyWindowsMachine = ManyWindowsMachine.TestCase
TestSwitchMachine = SwitchMachine.TestCase
TestDynamicMachine = DynamicMachine.TestCase
for case in (TestMachine, TestWindowMachine, TestManyWindowsMachine, TestSwitchMachine, TestDynamicMachine):
    case.settings = settings(max_examples=15, stateful_step_count=25, deadline=None)
