"""A scheduler without a model: its steps are computed by a cache of tokens that checks what they may and must do."""

from __future__ import annotations

from forwardpass.cache.prefix import PrefixCache
from forwardpass.models.regimes import Regimes
from forwardpass.scheduler.scheduler import Scheduler, Sequence
from token_cache import TokenCache


class Bench:
    """A scheduler and a computer that checks what it may and must do."""

    def __init__(self, blocks, budget=512, windows=(0,), regimes=None):
        self.cache = TokenCache(blocks, windows, budget)
        self.prefixes = PrefixCache(self.cache)
        self.regimes = regimes or Regimes()
        self.scheduler = Scheduler(self.cache, self.prefixes, budget, self.regimes)
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
            assert s in self.scheduler.running and s.regime == self.regimes.of(len(s.tokens), s.prompt)
            # The memory keeps with each token the factors of its row: it must be found again as it would be computed.
            factors = [(t, s.regime.long, max(s.regime.base, i + 1) if s.regime.base else 0)
                       for i, t in enumerate(s.tokens)]
            assert len({one[1:] for one in factors[s.computed : s.computed + work.count]}) == 1
            self.cache.compute(s.tables, factors, s.computed, s.computed + work.count)
            self.computed += work.count

    def step(self):
        plan = self.scheduler.plan().work
        self.compute(plan)
        for work in plan:
            self.scheduler.done(work)
        return plan

    def check(self):
        """Holders of every block are exactly the sequences and kept texts that name it."""
        s = self.scheduler
        assert not any(w.tables or w.computed for w in s.waiting)
        self.cache.check_holders([*(one.tables for one in s.running), *self.kept()])

    def kept(self):
        return [kept.tables for kept in self.prefixes._texts.values()]
