"""How a thread waits for what a driver computes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from forwardpass.errors import ForwardpassError
from forwardpass.scheduler.job import Job, Listener
from forwardpass.scheduler.turns import INSIDE

HEARTBEAT_S = 1.0
"""How often whoever waits for a driver looks whether it is still there."""


@contextmanager
def waiting_for(engine, listened: Sequence[list[Listener]]) -> Iterator[Callable[[], bool]]:
    """Gives a function that waits until listeners in any of these lists are called, or for a moment; False if the
    engine has no driver any more. What was there before must be looked at first: nobody calls for that."""
    driver = engine.driver
    if driver is not None and driver.mine:
        raise ForwardpassError(INSIDE)
    event = threading.Event()
    for listeners in listened:
        listeners.append(event.set)

    def wait() -> bool:
        if not event.wait(HEARTBEAT_S) and engine.driver is not None:
            engine.driver.wake()
        event.clear()
        return engine.driver is not None

    try:
        yield wait
    finally:
        for listeners in listened:
            listeners.remove(event.set)


def unfinished(jobs: Sequence[Job]) -> list[Job]:
    """Those that have not ended; raises the first error among them."""
    left = [job for job in jobs if not job.done]
    for job in jobs:  # only then, since another thread may end one meanwhile
        if job.error is not None:
            raise job.error
    return left
