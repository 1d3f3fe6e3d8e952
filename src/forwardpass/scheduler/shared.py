"""What engines have in common that share their KV memory."""

from __future__ import annotations

from forwardpass.cache.budget import Budget
from forwardpass.scheduler.line import Line
from forwardpass.scheduler.turns import Turns


class SharedBudget(Budget):
    """Bytes of KV memory for several engines. Kept texts of all of them go by age. Whoever waits for room, in any of
    them, stands in one line; and one thread at a time is inside them."""

    def __init__(self, size: int):
        super().__init__(size)
        self.line = Line()
        self.turns = Turns()
