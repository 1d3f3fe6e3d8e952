"""One thread at a time inside the engine, and those who wait come before the one that was just there."""

from __future__ import annotations

import threading
from time import perf_counter, sleep

from forwardpass.errors import ForwardpassError

INSIDE = ("the model is in the middle of a step and cannot be used from inside it; do this outside of "
          "logits_processors, or load the model a second time")

SAYS_SO_S = 1.0


class Turns:
    """A lock, as a context manager, that is handed round fairly.

    A plain lock goes back to the thread that runs step after step: it asks again before a waiting one has woken up.
    Entering it twice from one thread (a logits processor that uses its own model) is an error instead of a deadlock.
    """

    def __init__(self) -> None:
        self._gate = threading.Lock()
        self._lock = threading.Lock()
        self._owner = 0

    @property
    def mine(self) -> bool:
        """Whether the calling thread is inside."""
        return self._owner == threading.get_ident()

    def enter_if_free(self) -> bool:
        """Enter without waiting, if nobody is inside."""
        if not self._lock.acquire(blocking=False):
            return False
        self._owner = threading.get_ident()
        return True

    def leave(self) -> None:
        self._owner = 0
        self._lock.release()

    def recover(self, thread: int) -> None:
        """End the turn of a thread that is no more. Whoever has just got a turn says so at once: if nobody does, it was
        that thread's."""
        until = perf_counter() + SAYS_SO_S
        while self._lock.locked() and self._owner in (0, thread):
            if self._owner == thread or perf_counter() > until:
                self.leave()
                return
            sleep(0.01)

    def __enter__(self) -> None:
        if self.mine:
            raise ForwardpassError(INSIDE)
        with self._gate:  # held while waiting: who leaves and comes straight back waits here
            self._lock.acquire()
        self._owner = threading.get_ident()

    def __exit__(self, *exc: object) -> None:
        self.leave()
