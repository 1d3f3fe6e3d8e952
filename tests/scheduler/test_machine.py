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
    PAIR = False

    def __init__(self):
        super().__init__()
        self.bench = Bench(self.BLOCKS, 50, self.WINDOWS, self.REGIMES, self.PAIR, text_rows=90)
        self.left = {}  # sequence -> tokens it still wants
        self.searches = []
        self.queues = []

    def finish(self, sequence, keep):
        del self.left[sequence]
        self.bench.scheduler.finish(sequence, keep)
        assert not sequence.tables

    def hand_out(self, plan):
        for work in plan:
            sequence = work.sequence
            if work.final and sequence.owner is not None:
                sequence.owner.have.add(sequence)
            elif work.final:
                self.left[sequence] -= 1
                sequence.tokens.append(len(sequence.tokens) % 3)
                if self.left[sequence] == 0:
                    self.finish(sequence, keep=True)
        for search in list(self.searches):
            if len(search.have) == len(search.beams):
                self.branch(search)
        self.queues = [queue for queue in self.queues if queue]

    @property
    def busy(self):
        return bool(self.left or self.searches or self.queues)

    @rule(kind=st.integers(0, 2), length=st.integers(1, 300), new=st.integers(1, 80))
    def add(self, kind, length, new):
        length, source = (length, None) if not self.PAIR else (max(1, length // 2), [kind + 5] * (length // 3 + 1))
        room = self.BLOCKS - (len(source) + 63) // PAGE if source else self.BLOCKS
        new = min(new, room * PAGE - length + 1)
        self.left[self.bench.add([kind] * length, source)] = new

    @rule(times=st.integers(1, 30))
    def steps(self, times):
        for _ in range(times):
            plan = self.bench.step()
            assert bool(plan or self.bench.read[-1]) == self.busy
            self.hand_out(plan)
            self.queues = [queue for queue in self.queues if queue]

    @precondition(lambda self: self.busy)
    @rule()
    def interrupted_step(self):
        self.bench.compute(self.bench.scheduler.plan())  # computed, but nobody noted it

    @precondition(lambda self: self.left)
    @rule(which=st.integers(0, 99), keep=st.booleans())
    def cancel(self, which, keep):
        self.finish(list(self.left)[which % len(self.left)], keep)

    @rule(kind=st.integers(0, 2), length=st.integers(1, 90), new=st.integers(1, 60), draws=st.randoms())
    def search(self, kind, length, new, draws):
        """Two or three branches, with room for all of them."""
        search = Search(new, draws, 2 if self.PAIR else self.BLOCKS // 3)
        one = self.bench.add([kind] * length, [kind + 5] * 60 if self.PAIR else None)
        one.owner = search
        search.beams = [one]
        search.new = min(new, (self.BLOCKS - self.PAIR) // search.width * PAGE - length + 1)
        self.searches.append(search)

    def branch(self, search):
        search.new -= 1
        if not search.new:
            return self.end(search)
        parents = [search.draws.randrange(len(search.beams)) for _ in range(search.width)]
        search.beams = self.bench.scheduler.branch(search.beams, parents)
        search.have.clear()
        for i, beam in enumerate(search.beams):
            beam.tokens.append(i)
        return None

    def end(self, search):
        self.searches.remove(search)
        for beam in search.beams:
            self.bench.scheduler.finish(beam, keep=True)

    @precondition(lambda self: self.searches)
    @rule(which=st.integers(0, 99))
    def cancel_search(self, which):
        self.end(self.searches[which % len(self.searches)])

    @rule(lengths=st.lists(st.integers(1, 200), min_size=1, max_size=4))
    def texts(self, lengths):
        self.queues.append(self.bench.queue(lengths))

    @precondition(lambda self: self.queues)
    @rule(which=st.integers(0, 99))
    def drop_texts(self, which):
        self.bench.scheduler.drop_texts(self.queues.pop(which % len(self.queues)))

    @precondition(lambda self: self.bench.scheduler.running)
    @rule(which=st.integers(0, 99))
    def fork(self, which):
        running = self.bench.scheduler.running
        one = running[which % len(running)]
        if one.computed and one.owner is None:
            self.left[self.bench.scheduler.fork(one)] = self.left[one]

    @invariant()
    def every_block_is_accounted_for(self):
        self.bench.check()

    def teardown(self):
        steps = 0
        while self.busy:
            self.hand_out(self.bench.step())
            self.bench.check()
            steps += 1
            assert steps < 20_000, "somebody starves"
        self.bench.prefixes.clear()
        assert self.bench.cache.free == self.bench.cache.size
        assert not self.bench.scheduler.waiting and not self.bench.scheduler.running


class Search:
    """Branches that go on together."""

    def __init__(self, new, draws, width):
        self.new, self.draws, self.width, self.have = new, draws, width, set()


class PairMachine(Machine):
    BLOCKS = 7
    PAIR = True


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
TestPairMachine = PairMachine.TestCase
TestWindowMachine = WindowMachine.TestCase
TestManyWindowsMachine = ManyWindowsMachine.TestCase
TestSwitchMachine = SwitchMachine.TestCase
TestDynamicMachine = DynamicMachine.TestCase
for case in (TestMachine, TestPairMachine, TestWindowMachine, TestManyWindowsMachine, TestSwitchMachine,
             TestDynamicMachine):
    case.settings = settings(max_examples=15, stateful_step_count=25, deadline=None)
