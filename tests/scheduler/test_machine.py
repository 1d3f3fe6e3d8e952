"""Any order of requests, forks, cancellations, preemptions and interrupts, of one model or of several on one budget:
every block is always accounted for, and everybody comes to an end. Every position that is read holds the text's own
token, computed under its own factors and kept with its own salt."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from forwardpass.models.regimes import Regimes
from forwardpass.scheduler.shared import SharedBudget
from forwardpass.scheduler.terms import Terms
from scheduler_bench import Bench

TERMS = st.builds(Terms, priority=st.sampled_from([0, 0, 0, -1, 5]), key=st.sampled_from(["", "a", "b"]),
                  salt=st.sampled_from(["", "", "s"]))
WITHIN = st.sampled_from([None, None, 0.001, 0.05, 10.0])
IDLE_ROUNDS = 2
"""A model's older sequence is let in by those that hold its room in one round, and starts in the next."""


class Machine(RuleBasedStateMachine):
    """Requests come, are forked, cancelled and preempted at any moment, and steps are interrupted."""

    BLOCKS = 6
    MODELS = ({},)

    def __init__(self):
        super().__init__()
        shared = SharedBudget(self.BLOCKS * 10 * len(self.MODELS)) if len(self.MODELS) > 1 else None
        self.benches = []
        for model in self.MODELS:
            bench = Bench(0 if shared else self.BLOCKS, 50, text_rows=90, shared=shared, **model)
            bench.speed = 0.01, 1e-3, 1e-6, 1e-3
            self.benches.append(bench)
        self.left = {}  # sequence -> tokens it still wants
        self.home = {}  # sequence -> where it is computed
        self.searches = []
        self.queues = []
        self.idle = 0

    def bench(self, which):
        return self.benches[which % len(self.benches)]

    def positions(self, bench, source=0, texts=1):
        """The longest text of which so many, beside their source, have room at the same time."""
        size = bench.cache.size - (bench.cache.sources.need(source) if source else 0)
        return bench.cache.room(400, size // texts)

    def finish(self, sequence, keep):
        del self.left[sequence]
        self.home.pop(sequence).scheduler.finish(sequence, keep)
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
        self.queues = [(bench, queue) for bench, queue in self.queues if queue]

    @property
    def busy(self):
        return bool(self.left or self.searches or self.queues)

    def round(self, within=None):
        """A step of every model, as a driver has it."""
        worked, busy = False, self.busy
        for bench in self.benches:
            plan = bench.step(within)
            worked |= bool(plan or bench.read[-1])
            self.hand_out(plan)
        self.idle = 0 if worked or not busy else self.idle + 1
        assert worked <= busy and self.idle <= (IDLE_ROUNDS if len(self.benches) > 1 else 0), "nobody goes on"

    @rule(kind=st.integers(0, 2), length=st.integers(1, 300), new=st.integers(1, 80), which=st.integers(0, 9),
          terms=TERMS)
    def add(self, kind, length, new, which, terms):
        bench = self.bench(which)
        source = [kind + 5] * (length // 3 + 1) if bench.cache.sources else None
        most = self.positions(bench, len(source or ()))
        length = max(1, min(length // 2 if source else length, most))
        sequence = bench.add([kind] * length, source, terms)
        self.left[sequence], self.home[sequence] = min(new, most - length + 1), bench

    @rule(times=st.integers(1, 30), within=WITHIN)
    def steps(self, times, within):
        for _ in range(times):
            self.round(within)

    @precondition(lambda self: self.busy)
    @rule(which=st.integers(0, 9), within=WITHIN)
    def interrupted_step(self, which, within):
        bench = self.bench(which)
        bench.compute(bench.scheduler.plan(within))  # computed, but nobody noted it

    @precondition(lambda self: self.left)
    @rule(which=st.integers(0, 99), keep=st.booleans())
    def cancel(self, which, keep):
        self.finish(list(self.left)[which % len(self.left)], keep)

    @rule(kind=st.integers(0, 2), length=st.integers(1, 90), new=st.integers(1, 60), draws=st.randoms(),
          which=st.integers(0, 9), terms=TERMS)
    def search(self, kind, length, new, draws, which, terms):
        """Two or three branches, with room for all of them."""
        bench = self.bench(which)
        source = [kind + 5] * 60 if bench.cache.sources else None
        width = next(n for n in (3, 2, 1) if self.positions(bench, len(source or ()), n) > 64 or n == 1)
        most = self.positions(bench, len(source or ()), width)
        length = min(length, most)
        one = bench.add([kind] * length, source, terms)
        search = one.owner = Search(bench, min(new, most - length + 1), draws, width)
        search.beams = [one]
        self.searches.append(search)

    def branch(self, search):
        search.new -= 1
        if not search.new:
            return self.end(search)
        parents = [search.draws.randrange(len(search.beams)) for _ in range(search.width)]
        search.beams = search.bench.scheduler.branch(search.beams, parents)
        search.have.clear()
        for i, beam in enumerate(search.beams):
            beam.tokens.append(i)
        return None

    def end(self, search):
        self.searches.remove(search)
        for beam in search.beams:
            search.bench.scheduler.finish(beam, keep=True)

    @precondition(lambda self: self.searches)
    @rule(which=st.integers(0, 99))
    def cancel_search(self, which):
        self.end(self.searches[which % len(self.searches)])

    @rule(lengths=st.lists(st.integers(1, 200), min_size=1, max_size=4), which=st.integers(0, 9), terms=TERMS)
    def texts(self, lengths, which, terms):
        bench = self.bench(which)
        self.queues.append((bench, bench.queue(lengths, terms)))

    @precondition(lambda self: self.queues)
    @rule(which=st.integers(0, 99))
    def drop_texts(self, which):
        bench, queue = self.queues.pop(which % len(self.queues))
        bench.scheduler.drop_texts(queue)

    @precondition(lambda self: any(bench.scheduler.running for bench in self.benches))
    @rule(which=st.integers(0, 99))
    def fork(self, which):
        running = [(bench, one) for bench in self.benches for one in bench.scheduler.running]
        bench, one = running[which % len(running)]
        if one.computed and one.owner is None:
            twin = bench.scheduler.fork(one)
            self.left[twin], self.home[twin] = self.left[one], bench

    @precondition(lambda self: self.benches[0].cache.budget.pages)
    @rule(which=st.integers(0, 9))
    def forget(self, which):
        """All that is kept of a model goes, also of what runs."""
        self.bench(which).prefixes.clear()

    @invariant()
    def every_block_is_accounted_for(self):
        for bench in self.benches:
            bench.check()
        budget = self.benches[0].cache.budget
        assert budget.held == sum(bench.cache.held for bench in self.benches) <= budget.size
        assert budget.idle == sum(bench.cache.kept for bench in self.benches)
        assert len(budget.pages) == sum(len(bench.cache.check_kept(bench.prefixes)) for bench in self.benches)

    def teardown(self):
        """Nobody comes any more: all have what they want within the steps that it takes to compute everything a few
        times, one after another."""
        rows = sum(len(one.tokens) + left for one, left in self.left.items())
        rows += sum((len(search.beams[0].tokens) + search.new) * search.width for search in self.searches)
        most = 50 + len(self.benches) * (sum(map(len, [queue for _, queue in self.queues])) + 4 * rows)
        steps = 0
        while self.busy:
            self.round()
            self.every_block_is_accounted_for()
            steps += 1
            assert steps < most, "somebody starves"
        for bench in self.benches:
            bench.prefixes.clear()
            assert not bench.scheduler.waiting and not bench.scheduler.running and bench.scheduler.claim is None
            assert bench.cache.free == bench.cache.size or bench is not self.benches[-1]


class Search:
    """Branches that go on together."""

    def __init__(self, bench, new, draws, width):
        self.bench, self.new, self.draws, self.width, self.have = bench, new, draws, width, set()


class PairMachine(Machine):
    BLOCKS = 7
    MODELS = ({"pair": True},)


class WindowMachine(Machine):
    MODELS = ({"windows": (40, 0)},)


class ManyWindowsMachine(Machine):
    MODELS = ({"windows": (1, 130, 70)},)


class SwitchMachine(Machine):
    MODELS = ({"windows": (0, 60), "regimes": Regimes(switch=150)},)


class DynamicMachine(Machine):
    MODELS = ({"regimes": Regimes(trained=100)},)


class TwoMachine(Machine):
    """Two models alike but for the size of their blocks."""

    BLOCKS = 5
    MODELS = ({}, {"block_bytes": 25})


class ManyMachine(Machine):
    """An encoder-decoder, one with windows and one whose factors change, on little room for all."""

    BLOCKS = 4
    MODELS = ({"pair": True}, {"windows": (40, 0), "block_bytes": 5}, {"regimes": Regimes(switch=150)})


TestMachine = Machine.TestCase
TestPairMachine = PairMachine.TestCase
TestWindowMachine = WindowMachine.TestCase
TestManyWindowsMachine = ManyWindowsMachine.TestCase
TestSwitchMachine = SwitchMachine.TestCase
TestDynamicMachine = DynamicMachine.TestCase
TestTwoMachine = TwoMachine.TestCase
TestManyMachine = ManyMachine.TestCase
for case in (TestMachine, TestPairMachine, TestWindowMachine, TestManyWindowsMachine, TestSwitchMachine,
             TestDynamicMachine, TestTwoMachine, TestManyMachine):
    case.settings = settings(max_examples=12, stateful_step_count=25, deadline=None)
