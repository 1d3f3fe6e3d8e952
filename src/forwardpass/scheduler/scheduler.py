"""Continuous batching without modes: each step closes part of the gap between tokens wanted and tokens computed.

A request in its first step is behind by its whole prompt, a running one by the token just chosen. A step takes work of
requests in order of arrival until its token budget is spent; a long prompt is thereby cut into chunks that share steps
with everybody's next tokens. Running out of cache blocks is handled here: kept texts are dropped first, then the
youngest running request gives its blocks up and is computed again later, which changes nothing in its answer. What was
computed of it is a kept text meanwhile. A text whose growth changes the factors of all its rows is computed again, too.

What an encoder reads is part of a step too, before the rows of sequences. A source is read in the step that starts the
first sequence that attends to it, and keeps its blocks as long as any of them runs.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort_left, insort_right
from collections import deque
from operator import attrgetter

import numpy as np

from forwardpass.cache.prefix import Found, PrefixCache
from forwardpass.cache.tables import KvCache
from forwardpass.contracts import PAGE
from forwardpass.models.regimes import Regime, Regimes
from forwardpass.scheduler.line import FIRST, Claim, Line, Order
from forwardpass.scheduler.pace import Pace
from forwardpass.scheduler.sequence import Plan, Sequence, Work
from forwardpass.scheduler.terms import Terms
from forwardpass.scheduler.texts import TEXT_ROWS, Text, TextQueues

STEP_TOKENS = 512
"""Rows that one step computes at most: enough to fill the matrix units, few enough to keep others' tokens coming."""


STEP_S = 0.05
"""Seconds that a step takes at most while somebody's next token is in it, where the scheduler can choose."""

_order = attrgetter("order")


class Scheduler:
    """Sequences wait, run (hold blocks) and end. All methods leave the block counts right, whatever is cancelled.

    waiting, running: sequences in the order in which they come;  texts: what an encoder reads for its own sake.
    pace: how long steps take;  line: the order of those who wait, perhaps for several models that share their memory.
    claim: what the first of those that wait needs, if there was no room for it in the newest plan.
    """

    def __init__(self, cache: KvCache, prefixes: PrefixCache, step_tokens: int = STEP_TOKENS,
                 regimes: Regimes = Regimes(), text_rows: int = TEXT_ROWS, line: Line | None = None):  # noqa: B008
        self.cache = cache
        self.prefixes = prefixes
        self.step_tokens = step_tokens
        self.regimes = regimes
        self.texts = TextQueues(text_rows)
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.preemptions = 0
        self.pace = Pace()
        self.line = line or Line()
        self.claim: Claim | None = None
        self._refused: tuple[Sequence | None, int, Claim | None] = (None, 0, None)
        self._lent: list[Text] = []  # texts that got blocks for the newest step
        self._source_rows = text_rows  # of sources that a step reads, at most, unless a single one has more
        self.line.join(self)

    def add(self, sequence: Sequence, terms: Terms = Terms()) -> None:  # noqa: B008  only read
        sequence.order = self.line.place(terms.priority, terms.key)
        sequence.salt = terms.salt
        insort_right(self.waiting, sequence, key=_order)

    def plan(self, within: float | None = None) -> Plan:
        """The next step. Both parts are empty only if nothing is waiting or running, or if all that waits has to wait
        for another model's sequences.

        within: seconds that it should take at most, because others wait for its end; None = as long as is good for who
        is in it. At least one text and some rows are computed however long they take.
        """
        if self.regimes.switch:
            for sequence in [s for s in reversed(self.running) if self._regime(s) != s.regime]:
                self._send_back(sequence)
        while self._yields(urgent=True):
            pass
        self.claim = None
        ones, prompts = self._gaps()
        spare = self.pace.spare(STEP_S if within is None and ones else within, len(ones))
        texts = self._next_texts(self.pace.text_rows(spare, self.texts.rows)) if self.texts else []
        spare -= self.pace.text_seconds(sum(map(len, texts)))
        self._source_rows = self.pace.text_rows(spare, self.texts.rows)
        rows = self.pace.rows(spare, self.step_tokens)
        plan = self._plan_rows(texts, ones, prompts, rows)
        while not plan.work and not plan.texts and self._yields(urgent=False):
            plan = self._plan_rows(texts, *self._gaps(), rows)
        return plan

    def _gaps(self) -> tuple[list[Sequence], deque[Sequence]]:
        """The running sequences with one token to compute, and those with more."""
        ones: list[Sequence] = []
        prompts: deque[Sequence] = deque()
        for sequence in self.running:
            behind = len(sequence.tokens) - sequence.computed
            if behind:
                (ones if behind == 1 else prompts).append(sequence)
        return ones, prompts

    def _plan_rows(self, texts: list[Text], ones: list[Sequence], prompts: deque[Sequence], rows: int) -> Plan:
        """rows: of prompts, at most."""
        left = self.step_tokens
        work: list[Work] = []
        sources: list[Text] = []
        planned: set[int] = set()
        # The sequences with one token to compute first: nobody's stream waits for somebody else's prompt.
        for sequence in ones:
            if left and self._goes_on(sequence, planned, sources):
                work.append(Work(sequence, 1, not sequence.rows))
                left -= 1
        left = min(left, rows)
        long, kept = None, 0
        waits = bool(self.waiting)
        while left and (prompts or waits):
            if prompts and not (waits and self.waiting[0].order < prompts[0].order):
                sequence = prompts.popleft()
                if (long is not None and sequence.behind > left) or not self._goes_on(sequence, planned, sources):
                    continue
            else:
                sequence = self.waiting[0]
                if not self._start(sequence, None if long is None else left) or not self._sees(sequence, sources):
                    break
                planned.add(id(sequence))
                waits = bool(self.waiting)
            if sequence.behind > left and (prompts or waits):
                # Of a prompt that takes several steps, half a step: whoever needs less than the other half gets it.
                long, kept = sequence, left - left // 2
                left -= kept
            else:
                left -= self._take_work(sequence, left, work)
        if long is not None:
            self._take_work(long, kept + left, work)
        return Plan(sources + texts, work)

    def ahead(self, plan: Plan, steps: int) -> int:
        """How many steps, 1 to `steps`, every sequence of a plan has or gets blocks for; nobody yields any for it.

        More than one only if nobody waits and each sequence of the plan is one token behind. None changes its regime.
        """
        if self.waiting or plan.texts or any(work.count != 1 or not work.final for work in plan.work):
            return 1
        for work in plan.work:
            sequence = work.sequence
            steps = self.regimes.ahead(sequence.regime, len(sequence.tokens), steps)
            self.cache.grow(sequence.tables, sequence.computed, sequence.computed + steps)
            steps = min(steps, self.cache.covered(sequence.tables) - sequence.computed)
        return steps

    def done(self, work: Work) -> None:
        """That work has been computed."""
        sequence = work.sequence
        sequence.computed += work.count
        if sequence.computed >= sequence.due:
            sequence.kept = self.prefixes.publish(sequence.tokens, sequence.tables, sequence.computed, sequence.regime,
                                                  sequence.salt, sequence.kept)
            sequence.due = (sequence.computed // PAGE + 1) * PAGE

    def text_done(self, text: Text) -> None:
        """The encoder has read that text."""
        if text.holders:
            text.read = True
        else:
            self.texts.done(text)
            self._give_back(text)

    def give(self, work: Work, values: np.ndarray, begin: int, end: int) -> None:
        """Work is done, and its rows (see Job.take) go to whom they are for."""
        self.done(work)
        work.sequence.owner.take(work.sequence, values, begin, end)

    def give_text(self, text: Text, values: np.ndarray, begin: int, end: int) -> None:
        self.text_done(text)
        text.owner.take(text, values, begin, end)

    def finish(self, sequence: Sequence, keep: bool) -> None:
        """A sequence has ended or was cancelled. keep: what it computed may serve later requests."""
        sequence.owner = None
        self._drop_claim(sequence)
        if sequence in self.waiting:
            self.waiting.remove(sequence)
        if sequence in self.running:
            self.running.remove(sequence)
        self._release(sequence, keep)

    def drop_texts(self, queue: deque[Text]) -> None:
        """Nobody wants these texts any more."""
        self.texts.drop(queue)
        for text in queue:
            self._give_back(text)

    def fork(self, sequence: Sequence) -> Sequence:
        """Another continuation of a sequence: shares its full blocks and owns a copy of the last, if there is room for
        one; otherwise, or if that one waits itself, it starts over and computes the same values again."""
        twin = Sequence(list(sequence.tokens), sequence.prompt, owner=sequence.owner, source=sequence.source,
                        rows=sequence.rows, salt=sequence.salt, order=sequence.order, cached=sequence.cached)
        shared = self.cache.share(sequence.tables, sequence.computed) if sequence.tables else None
        if shared is None:
            insort_right(self.waiting, twin, key=_order)
        else:
            twin.computed, twin.tables, twin.regime = sequence.computed, shared, sequence.regime
            twin.kept, twin.due = sequence.kept, sequence.due
            if twin.source is not None:
                twin.source.holders += 1
            insort_right(self.running, twin, key=_order)
        return twin

    def branch(self, sequences: list[Sequence], parents: list[int]) -> list[Sequence]:
        """Sequences of which the i-th continues sequences[parents[i]], all of one request. The first to continue one
        takes it over, others are forks of it, and those that nobody continues end, which makes room for the forks."""
        for number, sequence in enumerate(sequences):
            if number not in parents:
                self.finish(sequence, keep=False)
        out: list[Sequence] = []
        for i, parent in enumerate(parents):
            sequence = sequences[parent]
            out.append(sequence if parent not in parents[:i] else self.fork(sequence))
        # In this order in every step, so that their rows lie side by side.
        first, last = (side(self.running, out[0].order, key=_order) for side in (bisect_left, bisect_right))
        self.running[first:last] = [sequence for sequence in out if sequence.tables]
        return out

    def growth(self, order: Order) -> int:
        """See Line.growth, which asks for it."""
        return self.cache.page_bytes * sum(not one.rows and one.order != order for one in self.running)

    def _room(self, order: Order) -> int:
        """Bytes for a sequence that starts. Whoever started with the last ones would send somebody back as soon as the
        others grow, perhaps itself."""
        return self.cache.budget.room - self.line.growth(order)

    def _start(self, sequence: Sequence, rows: int | None) -> bool:
        """Move a waiting sequence among the running if its whole text and its source have room beside what is running.
        rows: only if not more than these are to be computed of it."""
        elsewhere = self.line.claim(besides=self)
        if elsewhere is not None and elsewhere.order < sequence.order:
            self.claim = self.claim or Claim(sequence.order, 0)
            return False
        refused, changes, claim = self._refused
        if refused is sequence and changes == self.cache.budget.changes:
            self.claim = self.claim or claim
            return False
        sequence.regime, source = self._regime(sequence), sequence.source
        found, need = self._fitting(sequence)
        if found is None:
            self.claim = self.claim or Claim(sequence.order, need)
            self._refused = sequence, self.cache.budget.changes, Claim(sequence.order, need)
            return False
        if rows is not None and len(sequence.tokens) - found.positions > rows:
            return False
        sequence.tables, sequence.computed = self.prefixes.take(found), found.positions
        sequence.reused = found.positions
        if sequence.cached is None:
            sequence.cached = found.positions
            if sequence.reuses:
                self.prefixes.asked += len(sequence.tokens)
                self.prefixes.found += found.positions
        if sequence.reuses:
            sequence.kept, sequence.due = found.whole, (found.positions // PAGE + 1) * PAGE
        self.cache.grow(sequence.tables, sequence.computed, len(sequence.tokens))
        if source is not None:
            if not source.holders:
                source.blocks = self.cache.sources.take(len(source))
            source.holders += 1
        self.waiting.remove(sequence)
        insort_right(self.running, sequence, key=_order)
        self.line.started(sequence.order)
        self._drop_claim(sequence)
        return True

    def _drop_claim(self, sequence: Sequence) -> None:
        """It waits no more."""
        if self.claim is not None and self.claim.order == sequence.order:
            self.claim = None

    def _fitting(self, sequence: Sequence) -> tuple[Found | None, int]:
        """What is kept of a sequence, if there is room for the rest of it, and the bytes that this takes. Nothing is
        dropped here: kept texts are only if that is enough."""
        length, room = len(sequence.tokens), self._room(sequence.order)
        source = 0
        if sequence.source is not None and not sequence.source.holders:
            source = self.cache.sources.need(len(sequence.source))
        # The last token is always computed: its hidden state is what the next one is chosen from.
        limit = length - 1 if sequence.reuses else 0
        while True:
            found = self.prefixes.find(sequence.tokens, limit, sequence.regime, sequence.salt)
            need = source + self.cache.need(length, found.positions) + self.cache.idle(found.tables)
            if need <= room:
                return found, need
            if not found.positions % PAGE:
                return None, need
            limit = found.positions // PAGE * PAGE  # with no copy of a block there may be room

    def _goes_on(self, sequence: Sequence, planned: set[int], sources: list[Text]) -> bool:
        """Whether a running sequence has what its next rows need; if so, it is among the planned."""
        if sequence.tables and self._make_room(sequence, planned) and self._sees(sequence, sources):
            planned.add(id(sequence))
            return True
        return False  # perhaps it yielded its blocks to an older one

    def _sees(self, sequence: Sequence, sources: list[Text]) -> bool:
        """Whether a sequence's source has been read or is among `sources`, those of this step, to which it is added if
        its rows are not too many."""
        source = sequence.source
        if source is None or source.read or source in sources:
            return True
        if sources and sum(map(len, sources)) + len(source) > self._source_rows:
            return False
        sources.append(source)
        return True

    def _regime(self, sequence: Sequence) -> Regime:
        return self.regimes.of(len(sequence.tokens), sequence.prompt)

    def _take_work(self, sequence: Sequence, budget: int, work: list[Work]) -> int:
        """Add the next `budget` rows of a sequence, or as many as a step can, to its work; how many they are."""
        count = self.regimes.alike(sequence.regime, sequence.computed, min(sequence.behind, budget))
        work.append(Work(sequence, count, count == sequence.behind and not sequence.rows))
        return count

    def _next_texts(self, rows: int) -> list[Text]:
        """Texts that are read in the next step; in an encoder-decoder those that get blocks for it, none only where
        another model's sequences hold all there are."""
        texts = self.texts.next(rows)
        if self.cache.sources is None:
            return texts
        for text in self._lent:  # if the step they were lent for was interrupted
            self._give_back(text)
        self._lent = texts
        for number, text in enumerate(texts):
            while not text.blocks:
                text.blocks = self.cache.sources.take(len(text)) or []
                if not text.blocks:
                    if number:
                        return texts[:number]
                    if not self.running:
                        self.claim = Claim((self.texts.priority, FIRST, 0), self.cache.sources.need(len(text)))
                        return []
                    self._preempt(self.running[-1])
        return texts

    def _make_room(self, sequence: Sequence, planned: set[int]) -> bool:
        """Blocks for the tokens of a running sequence; False if it had to yield its own.

        The youngest sequence without work in this step yields, which may be the one that asks.
        """
        if len(sequence.tokens) <= sequence.steady:
            return True
        while not self.cache.grow(sequence.tables, sequence.computed, len(sequence.tokens)):
            victim = next(s for s in reversed(self.running) if id(s) not in planned)
            self._preempt(victim)
            if victim is sequence:
                return False
        sequence.steady = self.cache.steady(sequence.tables)
        return True

    def _yields(self, urgent: bool) -> bool:
        """Send the last running sequence back if one that comes before it waits for room, of this model or of one that
        shares its memory; whether it was.

        urgent: only if the priority of that one is smaller. Otherwise this is needed only where all that run wait for
        others of their requests, and these for room.
        """
        claim = self.line.claim()
        if claim is None or not self.running:
            return False
        last = self.running[-1].order
        if (last[0] <= claim.order[0] if urgent else last <= claim.order) or self._room(claim.order) >= claim.need:
            return False
        self._preempt(self.running[-1])
        return True

    def _preempt(self, sequence: Sequence) -> None:
        self._send_back(sequence, keep=True)
        self.preemptions += 1

    def _send_back(self, sequence: Sequence, keep: bool = False) -> None:
        """Compute a running sequence from its start, or from what is still kept of it, as soon as there is room."""
        self.running.remove(sequence)
        self._release(sequence, keep)
        insort_left(self.waiting, sequence, key=_order)

    def _release(self, sequence: Sequence, keep: bool) -> None:
        """Give the blocks of a sequence back. keep: what it computed may serve later requests."""
        if sequence.tables:
            if keep and sequence.computed and sequence.reuses:
                self.prefixes.keep(sequence.tokens, sequence.tables, sequence.computed, sequence.regime, sequence.salt,
                                   sequence.kept)
            else:
                self.cache.release(sequence.tables)
            source = sequence.source
            if source is not None:
                source.holders -= 1
                if not source.holders:
                    self._give_back(source)
            self.cache.budget.changes += 1
        sequence.forget()

    def _give_back(self, text: Text) -> None:
        if text.blocks:
            self.cache.sources.give_back(text.blocks)
        text.blocks, text.read = [], False
