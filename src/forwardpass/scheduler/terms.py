"""On what terms something is asked of an engine: how urgent it is, until when, for whom, and whether still at all.

They are those of the context, not arguments of every function: `with terms: model.embed(texts)`. asyncio's tasks and
asyncio.to_thread carry a context along.
"""

from __future__ import annotations

import threading
from contextvars import ContextVar
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from forwardpass.errors import DeadlineError, ForwardpassError
from forwardpass.scheduler.limits import TokensInFlight

LATE = "the deadline passed before the answer was whole; allow more time, or ask for less"
UNWANTED = "cancelled by whoever asked for it"


@dataclass(eq=False)
class Terms:
    """priority: smaller ones first;  deadline: in the seconds of time.perf_counter(), None = none;
    key: whose requests these are, for the order among those who ask;  salt: texts kept from earlier requests are shared
    only among equal salts;  account: what the tokens are taken from.

    tokens_read, tokens_generated: of what has ended. Settings may be changed until something is asked under them.
    """

    priority: int = 0
    deadline: float | None = None
    key: str = ""
    salt: str = ""
    account: TokensInFlight | None = None
    tokens_read: int = field(default=0, init=False)
    tokens_generated: int = field(default=0, init=False)
    _above: Terms | None = field(default=None, init=False, repr=False)
    _jobs: dict[int, Any] = field(default_factory=dict, init=False, repr=False)
    _why: str | None = field(default=None, init=False, repr=False)
    _begun: bool = field(default=False, init=False, repr=False)
    # Entered again by a signal handler, or by the garbage collector's, that cancels.
    _lock: Any = field(default_factory=threading.RLock, init=False, repr=False)

    def part(self) -> Terms:
        """The same terms for one call among several, which can be cancelled by itself and is admitted by itself.
        Cancelling the whole cancels its parts, and what they read and generate counts for the whole, too."""
        one = Terms(self.priority, self.deadline, self.key, self.salt, self.account)
        one._above, one._lock = self, self._lock
        return one

    @property
    def cancelled(self) -> bool:
        return any(one._why is not None for one in self._chain())

    def cancel(self, why: str = UNWANTED) -> None:
        """End all that was asked under these terms, within a step, and refuse whatever is asked under them later: both
        is ForwardpassError(why). From any thread; waits for nothing."""
        with self._lock:
            if self._why is None:
                self._why = why
            jobs = list(self._jobs.values())
        for job in jobs:
            job.engine.cancel(job, wait=False, error=ForwardpassError(why))

    def admit(self, job) -> None:
        """Take a job's tokens from the account. Only the first one under these terms is refused for want of room: what
        has begun is not given up in the middle. Raises BusyError, CapacityError, DeadlineError, ForwardpassError."""
        with self._lock:
            why = next((one._why for one in self._chain() if one._why is not None), None)
            if why is not None:
                raise ForwardpassError(why)
            if self.deadline is not None and perf_counter() >= self.deadline:
                raise DeadlineError(LATE)
            if self.account is not None:
                self.account.take(job.tokens, force=self._begun)
            job.account, self._begun = self.account, True
            for one in self._chain():
                one._jobs[id(job)] = job

    def leave(self, job) -> None:
        """A job has ended, however it did. Harmless if it was not admitted, or that is known."""
        with self._lock:
            if id(job) not in self._jobs:
                return
            for one in self._chain():
                del one._jobs[id(job)]
                one.tokens_read += job.read
                one.tokens_generated += job.generated
        if job.account is not None:
            job.account.give_back(job.tokens)

    def _chain(self) -> list[Terms]:
        chain = [self]
        while chain[-1]._above is not None:
            chain.append(chain[-1]._above)
        return chain

    def __enter__(self) -> Terms:
        _BEFORE.set((*_BEFORE.get(), TERMS.get()))
        TERMS.set(self)
        return self

    def __exit__(self, *exc: object) -> None:
        *before, last = _BEFORE.get()
        TERMS.set(last)
        _BEFORE.set(tuple(before))


TERMS: ContextVar[Terms | None] = ContextVar("TERMS", default=None)
"""Those of the context; None = none in particular."""
_BEFORE: ContextVar[tuple[Terms | None, ...]] = ContextVar("_BEFORE", default=())
"""Those to return to. In the context, since several threads may be inside the same terms."""
