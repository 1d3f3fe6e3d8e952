"""Continuous batching without modes: each step closes part of the gap between tokens wanted and tokens computed.

A request in its first step is behind by its whole prompt, a running one by the token just chosen. A step takes work of
requests in order of arrival until its token budget is spent; a long prompt is thereby cut into chunks that share steps
with everybody's next tokens. Running out of cache blocks is handled here: kept texts are dropped first, then the
youngest running request gives its blocks up and is computed again later, which changes nothing in its answer.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from forwardpass.cache.blocks import BlockPool, blocks_for
from forwardpass.cache.prefix import PrefixCache
from forwardpass.contracts import PAGE

STEP_TOKENS = 512
"""Rows that one step computes at most: enough to fill the matrix units, few enough to keep others' tokens coming."""


@dataclass(slots=True, eq=False)
class Sequence:
    """One text being computed. tokens: prompt and answer so far;  computed: how many of them are in the cache;
    reused: how many it found there when it was last started.
    """

    tokens: list[int]
    computed: int = 0
    blocks: list[int] = field(default_factory=list)
    reused: int = 0

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

    def __init__(self, pool: BlockPool, prefixes: PrefixCache, step_tokens: int = STEP_TOKENS):
        self.pool = pool
        self.prefixes = prefixes
        self.step_tokens = step_tokens
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.preemptions = 0

    def add(self, sequence: Sequence) -> None:
        self.waiting.append(sequence)

    def plan(self) -> list[Work]:
        """The next step. Empty only if nothing is waiting or running."""
        budget = self.step_tokens
        work: list[Work] = []
        planned: set[int] = set()
        # The sequences with one token to compute first: nobody's stream waits for somebody else's prompt.
        for sequence in sorted(self.running, key=lambda s: s.behind > 1):
            if budget == 0:
                break
            if not sequence.blocks:  # preempted for the sake of an older one
                continue
            count = self._make_room(sequence, min(sequence.behind, budget), planned)
            if count:
                budget -= count
                planned.add(id(sequence))
                work.append(Work(sequence, count, count == sequence.behind))
        while self.waiting and budget:
            sequence = self.waiting[0]
            if not self._start(sequence):
                break
            count = min(sequence.behind, budget)
            budget -= count
            work.append(Work(sequence, count, count == sequence.behind))
        return work

    def ahead(self, plan: list[Work], steps: int) -> int:
        """How many steps, 1 to `steps`, every sequence of a plan has or gets blocks for; nobody yields any for it.

        More than one only if nobody waits and each sequence of the plan is one token behind.
        """
        if self.waiting or any(work.count != 1 or not work.final for work in plan):
            return 1
        for work in plan:
            sequence = work.sequence
            if not self._grow(sequence, sequence.computed + steps):
                steps = len(sequence.blocks) * PAGE - sequence.computed
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
        covered = blocks_for(sequence.computed)
        for block in sequence.blocks[covered:]:
            self.pool.give_back(block)
        held, sequence.blocks = sequence.blocks[:covered], []
        if keep and held:
            self.prefixes.keep(sequence.tokens[: sequence.computed], held)
        else:
            for block in held:
                self.pool.give_back(block)

    def reserve(self, sequence: Sequence, positions: int) -> None:
        """Blocks for a sequence that is computed outside of plans, from the youngest running ones if none are free.

        The pool must be large enough for that many positions.
        """
        while not self._grow(sequence, positions):
            self._preempt(self.running[-1])

    def _start(self, sequence: Sequence) -> bool:
        """Move a waiting sequence among the running if its whole text has room beside what is running."""
        # The last token is always computed: its hidden state is what the next one is chosen from.
        sequence.computed, sequence.blocks = self.prefixes.match(sequence.tokens, len(sequence.tokens) - 1)
        sequence.reused = sequence.computed
        # Kept texts are dropped only if that is enough.
        missing = blocks_for(len(sequence.tokens)) - len(sequence.blocks) - self.pool.free
        if missing > 0 and missing > self.prefixes.reclaimable():
            self._release(sequence)
            return False
        self._grow(sequence, len(sequence.tokens))
        self.waiting.remove(sequence)
        self.running.append(sequence)
        return True

    def _grow(self, sequence: Sequence, positions: int) -> bool:
        while len(sequence.blocks) < blocks_for(positions):
            block = self.pool.take()
            while block is None and self.prefixes.drop_oldest():
                block = self.pool.take()
            if block is None:
                return False
            sequence.blocks.append(block)
        return True

    def _make_room(self, sequence: Sequence, count: int, planned: set[int]) -> int:
        """`count` if there are blocks for that many more positions, 0 if the sequence had to yield its own.

        The youngest sequence without work in this step yields, which may be the one that asks.
        """
        while not self._grow(sequence, sequence.computed + count):
            victim = next(s for s in reversed(self.running) if id(s) not in planned)
            self._preempt(victim)
            if victim is sequence:
                return 0
        return count

    def fork(self, sequence: Sequence) -> Sequence:
        """Another continuation of a running sequence: shares its full blocks and owns a copy of the last, if there is
        room for one; otherwise it starts over, waiting, and computes the same values again."""
        whole = sequence.computed // PAGE
        last = self.pool.copy(sequence.blocks[whole]) if sequence.computed % PAGE else -1
        if last is None:
            twin = Sequence(list(sequence.tokens))
            self.waiting.append(twin)
            return twin
        held = sequence.blocks[:whole]
        for block in held:
            self.pool.share(block)
        twin = Sequence(list(sequence.tokens), sequence.computed, held + ([last] if last >= 0 else []))
        self.running.append(twin)
        return twin

    def _preempt(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self._release(sequence)
        self.waiting.insert(0, sequence)
        self.preemptions += 1

    def _release(self, sequence: Sequence) -> None:
        for block in sequence.blocks:
            self.pool.give_back(block)
        sequence.blocks, sequence.computed, sequence.reused = [], 0, 0
