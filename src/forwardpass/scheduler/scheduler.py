"""Continuous batching without modes: each step closes part of the gap between tokens wanted and tokens computed.

A request in its first step is behind by its whole prompt, a running one by the token just chosen. A step takes work of
requests in order of arrival until its token budget is spent; a long prompt is thereby cut into chunks that share steps
with everybody's next tokens. Running out of cache blocks is handled here: kept texts are dropped first, then the
youngest running request gives its blocks up and is computed again later, which changes nothing in its answer. A text
whose growth changes the factors of all its rows is computed again in the same way.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from forwardpass.cache.prefix import PrefixCache
from forwardpass.cache.tables import KvCache, Table
from forwardpass.models.regimes import Regime, Regimes

STEP_TOKENS = 512
"""Rows that one step computes at most: enough to fill the matrix units, few enough to keep others' tokens coming."""


@dataclass(slots=True, eq=False)
class Sequence:
    """One text being computed. tokens: prompt and answer so far;  prompt: how many of them were given;
    computed: how many are in the cache;  tables: the blocks it holds there, while it runs;
    regime: what the rows computed so far depend on;  reused: how many it found in the cache when it was last started.
    """

    tokens: list[int]
    prompt: int = 0
    computed: int = 0
    tables: list[Table] = field(default_factory=list)
    regime: Regime = Regime()  # noqa: RUF009  immutable
    reused: int = 0

    def __post_init__(self) -> None:
        self.prompt = self.prompt or len(self.tokens)

    @property
    def behind(self) -> int:
        return len(self.tokens) - self.computed


@dataclass(frozen=True, slots=True)
class Work:
    """`count` tokens of a sequence, from its first uncomputed one; final: afterwards its next token can be chosen."""

    sequence: Sequence
    count: int
    final: bool


class Scheduler:
    """Sequences wait, run (hold blocks) and end. All methods leave the block counts right, whatever is cancelled."""

    def __init__(self, cache: KvCache, prefixes: PrefixCache, step_tokens: int = STEP_TOKENS,
                 regimes: Regimes = Regimes()):  # noqa: B008  immutable
        self.cache = cache
        self.prefixes = prefixes
        self.step_tokens = step_tokens
        self.regimes = regimes
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.preemptions = 0

    def add(self, sequence: Sequence) -> None:
        self.waiting.append(sequence)

    def plan(self) -> list[Work]:
        """The next step. Empty only if nothing is waiting or running."""
        for sequence in [s for s in reversed(self.running) if self._regime(s) != s.regime]:
            self._send_back(sequence)
        budget = self.step_tokens
        work: list[Work] = []
        planned: set[int] = set()
        # The sequences with one token to compute first: nobody's stream waits for somebody else's prompt.
        for sequence in sorted(self.running, key=lambda s: s.behind > 1):
            if budget == 0:
                break
            if not sequence.behind or not sequence.tables:  # nothing to do; preempted for the sake of an older one
                continue
            if self._make_room(sequence, planned):
                planned.add(id(sequence))
                budget -= self._take_work(sequence, budget, work)
        while self.waiting and budget:
            sequence = self.waiting[0]
            if not self._start(sequence):
                break
            budget -= self._take_work(sequence, budget, work)
        return work

    def ahead(self, plan: list[Work], steps: int) -> int:
        """How many steps, 1 to `steps`, every sequence of a plan has or gets blocks for; nobody yields any for it.

        More than one only if nobody waits and each sequence of the plan is one token behind. None changes its regime.
        """
        if self.waiting or any(work.count != 1 or not work.final for work in plan):
            return 1
        for work in plan:
            sequence = work.sequence
            steps = self.regimes.ahead(sequence.regime, len(sequence.tokens), steps)
            self._grow(sequence, sequence.computed + steps)
            steps = min(steps, self.cache.covered(sequence.tables) - sequence.computed)
        return steps

    def done(self, work: Work) -> None:
        """That work has been computed."""
        work.sequence.computed += work.count

    def finish(self, sequence: Sequence, keep: bool) -> None:
        """A sequence has ended or was cancelled. keep: what it computed may serve later requests."""
        if sequence in self.waiting:
            self.waiting.remove(sequence)
        if sequence in self.running:
            self.running.remove(sequence)
        if keep and sequence.computed:
            self.cache.trim(sequence.tables, sequence.computed)
            self.prefixes.keep(sequence.tokens[: sequence.computed], sequence.tables, sequence.regime)
            sequence.tables = []
        else:
            self._release(sequence)

    def reserve(self, sequence: Sequence, positions: int) -> None:
        """Blocks for a sequence that is computed outside of plans, from the youngest running ones if none are free.

        The cache must be large enough for that many positions.
        """
        if not sequence.tables:
            sequence.tables, sequence.regime = self.cache.empty(), self._regime(sequence)
        while not self._grow(sequence, positions):
            self._preempt(self.running[-1])

    def _start(self, sequence: Sequence) -> bool:
        """Move a waiting sequence among the running if its whole text has room beside what is running."""
        sequence.regime = self._regime(sequence)
        # The last token is always computed: its hidden state is what the next one is chosen from.
        limit = len(sequence.tokens) - 1
        sequence.computed, sequence.tables = self.prefixes.match(sequence.tokens, limit, sequence.regime)
        sequence.reused = sequence.computed
        # Kept texts are dropped only if that is enough.
        missing = self.cache.missing(sequence.tables, sequence.computed, len(sequence.tokens)) - self.cache.free
        if missing > 0 and missing > self.prefixes.reclaimable():
            self._release(sequence)
            return False
        self._grow(sequence, len(sequence.tokens))
        self.waiting.remove(sequence)
        self.running.append(sequence)
        return True

    def _regime(self, sequence: Sequence) -> Regime:
        return self.regimes.of(len(sequence.tokens), sequence.prompt)

    def _take_work(self, sequence: Sequence, budget: int, work: list[Work]) -> int:
        """Add the next `budget` rows of a sequence, or as many as a step can, to its work; how many they are."""
        count = self.regimes.alike(sequence.regime, sequence.computed, min(sequence.behind, budget))
        work.append(Work(sequence, count, count == sequence.behind))
        return count

    def _grow(self, sequence: Sequence, positions: int) -> bool:
        while not self.cache.grow(sequence.tables, sequence.computed, positions):
            if not self.prefixes.drop_oldest():
                return False
        return True

    def _make_room(self, sequence: Sequence, planned: set[int]) -> bool:
        """Blocks for the tokens of a running sequence; False if it had to yield its own.

        The youngest sequence without work in this step yields, which may be the one that asks.
        """
        while not self._grow(sequence, len(sequence.tokens)):
            victim = next(s for s in reversed(self.running) if id(s) not in planned)
            self._preempt(victim)
            if victim is sequence:
                return False
        return True

    def fork(self, sequence: Sequence) -> Sequence:
        """Another continuation of a running sequence: shares its full blocks and owns a copy of the last, if there is
        room for one; otherwise it starts over, waiting, and computes the same values again."""
        twin = Sequence(list(sequence.tokens), sequence.prompt)
        shared = self.cache.share(sequence.tables, sequence.computed)
        if shared is None:
            self.waiting.append(twin)
        else:
            twin.computed, twin.tables, twin.regime = sequence.computed, shared, sequence.regime
            self.running.append(twin)
        return twin

    def _preempt(self, sequence: Sequence) -> None:
        self._send_back(sequence)
        self.preemptions += 1

    def _send_back(self, sequence: Sequence) -> None:
        """Compute a running sequence from its start, as soon as there is room."""
        self.running.remove(sequence)
        self._release(sequence)
        self.waiting.insert(0, sequence)

    def _release(self, sequence: Sequence) -> None:
        if sequence.tables:
            self.cache.release(sequence.tables)
        sequence.tables, sequence.computed, sequence.reused = [], 0, 0
