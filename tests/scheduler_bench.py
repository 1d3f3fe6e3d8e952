"""A scheduler without a model: its steps are computed by a cache of tokens that checks what they may and must do."""

from __future__ import annotations

from collections import Counter, deque

import numpy as np

from forwardpass.cache.prefix import PrefixCache
from forwardpass.models.regimes import Regimes
from forwardpass.scheduler.scheduler import Scheduler, Sequence
from forwardpass.scheduler.terms import Terms
from forwardpass.scheduler.texts import Text
from token_cache import BLOCK_BYTES, TokenCache

PLAIN = Terms()


class Bench:
    """A scheduler and a computer that checks what it may and must do. budget: rows of a step;  shared: a SharedBudget
    in place of blocks;  seconds: of each step, if rows are said to take some, see `speed`."""

    def __init__(self, blocks=0, budget=512, windows=(0,), regimes=None, pair=False, text_rows=512, shared=None,
                 block_bytes=BLOCK_BYTES):
        self.cache = TokenCache(blocks, windows, budget, pair, shared, block_bytes)
        self.prefixes = PrefixCache(self.cache)
        self.regimes = regimes or Regimes()
        self.scheduler = Scheduler(self.cache, self.prefixes, budget, self.regimes, text_rows,
                                   None if shared is None else shared.line)
        self.computed = 0
        self.read = []  # texts of each step
        self.seconds = []
        self.speed = None  # (seconds of a step, of one more row, of each position that a row sees, of a text's row)

    def add(self, tokens, source=None, terms=PLAIN):
        """source: tokens, or the Text that another sequence has."""
        if source is not None and not isinstance(source, Text):
            source = Text(np.array(source, np.int32))
        sequence = Sequence(list(tokens), source=source)
        self.scheduler.add(sequence, terms)
        return sequence

    def queue(self, lengths, terms=PLAIN):
        """Texts that somebody wants to have read; the first token of each is its length."""
        queue = deque(Text(np.full(n, n, np.int32), owner=self) for n in lengths)
        self.scheduler.texts.add(queue, terms)
        return queue

    def compute(self, plan):
        """What a forward pass does: an encoder reads texts; then every earlier position of a sequence is read, and its
        source, and the new ones are written."""
        texts, plan = plan
        assert len({id(text) for text in texts}) == len(texts)
        for own in ([text for text in texts if text.owner], [text for text in texts if not text.owner]):
            assert sum(map(len, own)) <= self.scheduler.texts.rows or len(own) == 1
        for text in texts:
            assert not text.read
            if self.cache.sources is not None:
                self.cache.write_source(text.blocks, text.tokens.tolist())
        self.read.append([len(text) for text in texts])
        assert sum(work.count for work in plan) <= self.scheduler.step_tokens
        assert len({id(work.sequence) for work in plan}) == len(plan)
        for work in plan:
            s = work.sequence
            assert 1 <= work.count <= s.behind and work.final == (work.count == s.behind)
            assert s in self.scheduler.running and s.regime == self.regimes.of(len(s.tokens), s.prompt)
            # The memory keeps with each token the factors of its row: it must be found again as it would be computed.
            # And the salt: nobody may come upon what was kept with another one.
            factors = [(t, s.regime.long, max(s.regime.base, i + 1) if s.regime.base else 0, s.salt)
                       for i, t in enumerate(s.tokens)]
            assert len({one[1:] for one in factors[s.computed : s.computed + work.count]}) == 1
            self.cache.compute(s.tables, factors, s.computed, s.computed + work.count)
            if s.source is not None:
                assert s.source.read or s.source in texts
                self.cache.read_source(s.source.blocks, s.source.tokens.tolist())
            self.computed += work.count
        if self.speed:
            self.take_time(texts, plan)

    def take_time(self, texts, plan):
        step, row, seen, text_row = self.speed
        reading = sum(map(len, texts)) * text_row
        computing = 0.0
        if plan:
            depths = [depth for w in plan for depth in range(w.sequence.computed, w.sequence.computed + w.count)]
            computing = step + len(depths) * row + sum(depths) * seen
            ones = sum(w.count == 1 for w in plan)
            self.scheduler.pace.note(ones, len(depths) - ones, computing)
        if texts:
            self.scheduler.pace.note_texts(sum(map(len, texts)), reading)
        self.seconds.append(reading + computing)

    def step(self, within=None):
        plan = self.scheduler.plan(within)
        self.compute(plan)
        for text in plan.texts:
            self.scheduler.text_done(text)
        for work in plan.work:
            self.scheduler.done(work)
        return plan.work

    def check(self):
        """Holders of every block are exactly the sequences and kept texts that name it; sources have theirs while one
        that attends to them runs."""
        s = self.scheduler
        assert not any(w.tables or w.computed for w in s.waiting)
        for sequences in (s.waiting, s.running):
            assert [one.order for one in sequences] == sorted(one.order for one in sequences)
        assert s.claim is None or any(one.order == s.claim.order for one in s.waiting) or s.texts
        sources = Counter(one.source for one in s.running if one.source is not None)
        assert all(source.holders == n and source.blocks for source, n in sources.items())
        assert not any(one.source.blocks or one.source.read for one in s.waiting
                       if one.source is not None and one.source not in sources)
        self.cache.check_holders([one.tables for one in s.running], self.prefixes,
                                 [text.blocks for text in [*sources, *s._lent]])
