"""The order in which sequences come, of one model or of several that share their memory: by priority, and among equals
so that nobody waits for all that somebody else has asked for.

That is start-time fair queueing (Goyal, Vin, Cheng 1996) with requests that count alike: each is numbered from the one
that was started last, or from the newest of the same key if that one has still to come. So whoever asks for a hundred
answers has the second one after the first of everybody else; a key alone is served in the order of arrival.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple
from weakref import ref

if TYPE_CHECKING:
    from forwardpass.scheduler.scheduler import Scheduler

Order = tuple[int, int, int]
"""(priority, number in the fair order, arrival): smaller ones first."""
FIRST = -1
"""A number that comes before all others."""


class Claim(NamedTuple):
    """Somebody who waits for so many bytes of room."""

    order: Order
    need: int


class Line:
    def __init__(self) -> None:
        self._newest: dict[tuple[int, str], int] = {}  # (priority, key) -> number of its newest
        self._started: dict[int, int] = {}  # priority -> greatest number that was started
        self._arrivals = 0
        self._tidy = 64
        self._members: list[ref[Scheduler]] = []

    def join(self, scheduler: Scheduler) -> None:
        self._members = [one for one in self._members if one() is not None]
        self._members.append(ref(scheduler))

    def place(self, priority: int, key: str) -> Order:
        """Where whoever comes now stands."""
        self._arrivals += 1
        now = self._started.get(priority, 0)
        number = max(now, self._newest.get((priority, key), 0)) + 1
        self._newest[priority, key] = number
        if len(self._newest) > self._tidy:  # most have been started, and count for nothing any more
            self._newest = {one: newest for one, newest in self._newest.items()
                            if newest > self._started.get(one[0], 0)}
            self._tidy = 2 * len(self._newest) + 64
        return priority, number, self._arrivals

    def started(self, order: Order) -> None:
        priority, number, _ = order
        if number > self._started.get(priority, 0):
            self._started[priority] = number

    def claim(self, besides: Scheduler | None = None) -> Claim | None:
        """Of those who wait for room the one that comes first, not counting one scheduler's."""
        return min((one.claim for one in self._schedulers() if one.claim is not None and one is not besides),
                   default=None)

    def growth(self, order: Order) -> int:
        """Bytes of a block more for each sequence that runs, except those of this place in the line."""
        return sum(one.growth(order) for one in self._schedulers())

    def _schedulers(self) -> Iterator[Scheduler]:
        for one in self._members:
            scheduler = one()
            if scheduler is not None:
                yield scheduler
