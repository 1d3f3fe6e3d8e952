"""Running ahead: several steps in one call, where the next tokens need nobody to choose them."""

from __future__ import annotations

from forwardpass.scheduler.scheduler import Plan, Scheduler

RUN_AHEAD_S = 0.04
"""Greedy requests may be computed this many seconds ahead of Python: nobody notices, and its share becomes small."""
RUN_AHEAD_STEPS = 16


class Pace:
    """How long the newest step took that computed one token of each of so many sequences."""

    def __init__(self) -> None:
        self._sequences = 0
        self._seconds = 0.0

    def note(self, sequences: int, seconds: float) -> None:
        self._sequences, self._seconds = sequences, seconds

    def steps(self, scheduler: Scheduler, plan: Plan, within: float) -> int:
        """Steps that may be computed before Python looks at their tokens: more than one only if each token is simply
        the likeliest, nobody waits to join, and they take no longer than `within` seconds."""
        if self._sequences != len(plan.work):
            return 1
        steps = min(RUN_AHEAD_STEPS, int(within / max(self._seconds, 1e-6)))
        for work in plan.work:
            if steps <= 1:
                return 1
            steps = min(steps, work.sequence.owner.ahead(work.sequence))
        return scheduler.ahead(plan, steps) if steps > 1 else 1
