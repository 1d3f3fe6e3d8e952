"""What engines have in common that share their KV memory."""

from __future__ import annotations

from forwardpass.cache.budget import Budget
from forwardpass.errors import CapacityError
from forwardpass.scheduler.line import Line
from forwardpass.scheduler.turns import Turns


class SharedBudget(Budget):
    """Bytes of KV memory for several engines. Kept texts of all of them go by age. Whoever waits for room, in any of
    them, stands in one line; and one thread at a time is inside them."""

    def __init__(self, size: int):
        super().__init__(size)
        self.line = Line()
        self.turns = Turns()


def kv_memory(network, budget: Budget) -> list:
    """KV memory of each group of a network's layers. Each has addresses for the whole budget, since any may come to
    need it; where the system does not grant so many, the budget becomes smaller."""
    each = network.block_bytes()
    while True:
        try:
            return network.kv_memory([budget.size // one for one in each])
        except MemoryError:
            if budget.size <= sum(each):
                raise CapacityError("there is no memory for a single KV block; free some memory") from None
            budget.size = max(budget.size // 2, sum(each))
