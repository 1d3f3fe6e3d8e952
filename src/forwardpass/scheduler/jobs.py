"""Who has come to an engine and not left yet. Coming and leaving wait for nothing; a step notices before and after."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from heapq import heapify, heappop, heappush
from itertools import count
from time import perf_counter
from typing import Any

from forwardpass.errors import DeadlineError, ForwardpassError, ParameterError
from forwardpass.scheduler.job import Job, Listener
from forwardpass.scheduler.terms import LATE, TERMS, Terms

NEVER = float("inf")
CLOSED = "the model is closed; load it again to use it"
INTERRUPTED = "interrupted while the results of a step were handed out; send it again"


class Jobs:
    """scheduler: what jobs queue their work at when they start.

    enter, leave: from any thread, and from a destructor at any moment. All else: inside the engine's turn.

    ended: how many, by how: "done", "cancelled", "deadline", "failed".
    deadline: the next one, in seconds of perf_counter(), of those that were there when last looked.
    """

    def __init__(self, scheduler: Any):
        self.scheduler = scheduler
        self.ended: Counter[str] = Counter()
        self.closed = False
        self.deadline = NEVER
        self._known: dict[int, Job] = {}  # id -> all that have not ended
        self._coming: deque[Job] = deque()
        self._leaving: deque[tuple[Job, BaseException | None]] = deque()
        self._deadlines: list[tuple[float, int, Job]] = []
        self._numbers = count()
        self._told: dict[int, Job] = {}  # those whose listeners are to hear of it
        self._door = threading.Lock()  # nobody enters once it has closed

    def __len__(self) -> int:
        return len(self._known)

    def __iter__(self) -> Iterator[Job]:
        return iter(list(self._known.values()))

    @property
    def coming(self) -> bool:
        """Whether somebody has entered since the newest settle()."""
        return bool(self._coming)

    def enter(self, engine, job: Job) -> None:
        """On the terms of the context. Raises what Terms.admit does, and ParameterError once closed."""
        job.engine, job.terms = engine, TERMS.get() or Terms()
        with self._door:
            if self.closed:
                raise ParameterError(CLOSED)
            self._known[id(job)] = job
            try:
                job.terms.admit(job)
            except BaseException:
                del self._known[id(job)]
                raise
            self._coming.append(job)

    def leave(self, job: Job, error: BaseException | None = None) -> None:
        """It is to end. error: what whoever waits for it is told, None = that it was cancelled."""
        self._leaving.append((job, error))

    def close(self, error: BaseException | None) -> None:
        """Nobody enters any more, and all leave."""
        with self._door:
            self.closed = True
        for job in self:
            self.leave(job, error)
        self.settle()

    @property
    def leaving(self) -> bool:
        return bool(self._leaving)

    def settle(self) -> None:
        """Start those who came, end those who leave or whose time is over."""
        while self._coming:
            job = self._coming.popleft()
            if not job.done:  # else it left before it was here
                self._start(job)
        if self._deadlines:
            self._late()
        while self._leaving:
            job, error = self._leaving.popleft()
            if not job.done:
                job.error = error
                self._stop(job, job.cancel)
                self.end(job, "deadline" if isinstance(error, DeadlineError) else "cancelled")

    def _late(self) -> None:
        """Have those leave whose deadline is over."""
        late, now = self._deadlines, perf_counter()
        while late and (late[0][0] <= now or late[0][2].done):
            self.leave(heappop(late)[2], DeadlineError(LATE))
        self.deadline = late[0][0] if late else NEVER

    def fail(self, job: Job, error: BaseException) -> None:
        self._stop(job, lambda: job.fail(error))
        self.end(job, "failed")

    def _start(self, job: Job) -> None:
        if job.terms.deadline is not None:
            if len(self._deadlines) > 2 * len(self._known) + 16:  # most are of jobs that ended in time
                self._deadlines = [one for one in self._deadlines if not one[2].done]
                heapify(self._deadlines)
            heappush(self._deadlines, (job.terms.deadline, next(self._numbers), job))
        try:
            job.start(self.scheduler)
        except Exception as error:
            self.fail(job, error)
        except BaseException:
            self.fail(job, ForwardpassError(INTERRUPTED))
            raise

    @staticmethod
    def _stop(job: Job, how: Callable[[], None]) -> None:
        """Whatever state a failed step has left it in, it ends."""
        try:
            how()
        except Exception as error:
            logged("a request did not end as it should", error)
            job.error = job.error or error
            job.over()

    def end(self, job: Job, how: str = "done") -> None:
        """It has ended. Harmless if that is known."""
        if self._known.pop(id(job), None) is None:
            return
        self.ended[how] += 1
        self._told[id(job)] = job

    def tell(self, jobs: Iterable[Job] = ()) -> None:
        """Call the listeners of those of these jobs that have news, and of all that have ended."""
        for job in jobs:
            if job.on_news and job.news:
                self._told[id(job)] = job
        if not self._told:
            return
        told, self._told = self._told, {}
        _call([listener for job in told.values() for listener in [*job.on_news, *(job.on_end if job.done else ())]])

    def tell_all(self) -> None:
        """Call all listeners, whether there is news or not."""
        _call([listener for job in self for listener in [*job.on_news, *job.on_end]])


def _call(listeners: Iterable[Listener]) -> None:
    later: dict[Callable[[], object], None] = {}
    for listener in listeners:
        then = _safely(listener)
        if then is not None:
            later[then] = None
    for one in later:
        _safely(one)


def _safely(listener: Callable[[], Any]) -> Any:
    try:
        return listener()
    except Exception as error:  # that of whoever listens, no business of those who are computed
        logged("a listener failed", error)
        return None


def logged(what: str, error: BaseException) -> None:
    """Say where something went wrong, without its message: that may have somebody's text in it."""
    import logging  # only here: most programs never come to this
    import traceback

    where = "".join(traceback.format_tb(error.__traceback__)).rstrip()
    logging.getLogger("forwardpass").error("%s: %s\n%s", what, type(error).__name__, where)


def failed(error: BaseException) -> ForwardpassError:
    """What those are told who were in a step that raised `error`."""
    told = ForwardpassError(f"the engine failed in a step that this request was part of ({type(error).__name__}); send "
                            "it again")
    told.__cause__ = error
    return told
