"""What every engine has in common: requests come, wait, share steps and end, whatever it is that steps compute.

Every thread that wants an answer drives the same engine: it takes its turn and runs a step, which advances all requests
in it, its own and everybody else's. So there is no background thread to start, stop or leak, and an interrupt lands
where the caller is: the step it hit is planned again. A request that fails takes nobody with it, and its error is
raised where it is waited for. What is cancelled in the middle of a step, perhaps by the garbage collector, ends after
it.

Where many ask at once, or an event loop does, a driver (driver.py) steps the engine instead, and everybody else waits.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from forwardpass.errors import ForwardpassError, ParameterError
from forwardpass.scheduler.computing import Results
from forwardpass.scheduler.job import Job
from forwardpass.scheduler.jobs import INTERRUPTED, Jobs, logged
from forwardpass.scheduler.stats import EngineStats, Meter
from forwardpass.scheduler.turns import INSIDE, Turns
from forwardpass.scheduler.waiting import unfinished, waiting_for


class Stepping:
    """An engine says what a step is (_step) and what it has done (stats).

    driver: whose thread steps it, None = whoever waits for something.
    answering: whether somebody was in the middle of an answer after the newest step.
    """

    def __init__(self, scheduler: Any, turns: Turns, shares: bool):
        """scheduler: what jobs queue their work at;  turns: one thread at a time inside it, and inside all engines with
        the same ones;  shares: it has something in common with other engines, so that a driver must step them all."""
        self.driver: Any = None
        self.answering = False
        self._shares = shares
        self._turns = turns
        self._jobs = Jobs(scheduler)
        self._meter = Meter()

    def advance(self, request: Job) -> None:
        """Run one step unless the request has something to collect already; with a driver, wait until it has. Raises
        the request's error, if any."""
        if self.driver is None:
            with self._turn():
                if not request.news:
                    self._step()
        else:
            with waiting_for(self, [request.on_news]) as wait:
                while not request.news and wait():
                    pass
        if request.error is not None and not request.pieces:
            raise request.error

    def run(self, jobs: Sequence[Job]) -> None:
        """Until all of these are done; the first error among them is raised once the others are cancelled."""
        try:
            waiting = list(jobs)
            while waiting:
                if self.driver is None:
                    with self._turn():
                        if not any(job.done for job in waiting):
                            self._step()
                    waiting = unfinished(waiting)
                    continue
                with waiting_for(self, [job.on_end for job in waiting]) as wait:
                    while (waiting := unfinished(waiting)) and wait():
                        pass
        finally:
            self._cancel([job for job in jobs if not job.done])

    def cancel(self, job: Job, wait: bool = True, error: BaseException | None = None) -> None:
        """End a request and free what it holds. Harmless for one that has ended.

        wait: return when that is so; otherwise whoever is inside the engine now does it on leaving, as it does for a
        call from inside a step.  error: what whoever waits for it is told.
        """
        if not job.done:
            self._cancel([job], wait, error)

    def step(self, within: float | None = None, alone: bool = True) -> bool:
        """Compute one planned step and hand its results out; False if there was nothing to do. An error of a request is
        kept for who waits for it.

        within: seconds that it should take at most, where the scheduler can choose; None = as it thinks best;
        alone: nobody waits for its end.
        """
        with self._turn():
            return self._step(within, alone)

    def close(self) -> None:
        """Cancel all requests, whoever waits for them, and take no more."""
        driver = self.driver
        with self._turn():
            self._jobs.close(None if driver is None else ForwardpassError(
                "the model was closed before the answer was whole; load it again to use it"))
            self._closed()
        if driver is not None:
            driver.detach(self)

    def _closed(self) -> None:
        """Free what it keeps, for nobody will come any more."""

    @property
    def busy(self) -> bool:
        """Whether anything that was asked of it has not ended."""
        return bool(self._jobs)

    @property
    def deadline(self) -> float:
        """The next one of what was asked of it, in seconds of perf_counter()."""
        return self._jobs.deadline

    def stats(self) -> EngineStats:
        """What it has done and what is going on. From any thread; waits for nothing."""
        raise NotImplementedError

    def recover(self, thread: int) -> None:
        """A thread has ended, perhaps inside a step: its turn is over, and whatever was asked ends with an error."""
        self._turns.recover(thread)
        self.fail_all(ForwardpassError("the thread that computed this request has ended; send it again"))

    def rouse(self) -> None:
        """There is another driver, or none: whoever waits looks again who it is that computes."""
        with self._turn():
            if self._shares and self.driver is None:
                for job in self._jobs:
                    self._jobs.fail(job, ForwardpassError("the driver was closed before the answer was whole"))
            self._jobs.tell_all()

    def fail_all(self, error: BaseException) -> None:
        """End all requests with an error."""
        with self._turn():
            for job in self._jobs:
                self._jobs.fail(job, error)

    def _admit(self, job: Job) -> None:
        driver = self.driver
        if self._turns.mine or (driver is not None and driver.mine):
            raise ForwardpassError(INSIDE)
        if driver is None and self._shares:
            raise ParameterError("this engine shares its memory with others: attach them all to one Driver")
        self._jobs.enter(self, job)
        try:
            if driver is not None:
                driver.wake()
                return
            with self._turn():  # it starts
                pass
        except BaseException:
            self._jobs.leave(job)
            raise
        if job.error is not None:
            raise job.error

    def _cancel(self, jobs: Sequence[Job], wait: bool = True, error: BaseException | None = None) -> None:
        for job in jobs:
            self._jobs.leave(job, error)
        if jobs and wait and not self._turns.mine:
            with self._turn():
                pass
        elif jobs and self.driver is not None:
            self.driver.wake()
        else:
            self._settle()

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Alone in the engine. Those who came or left meanwhile are seen to before and after."""
        try:
            with self._turns:
                self._jobs.settle()
                try:
                    yield
                finally:
                    self._jobs.settle()
                    self._jobs.tell()
        finally:
            self._settle()

    def _settle(self) -> None:
        """Show out who is leaving, unless somebody is inside: they do it before and after."""
        while self._jobs.leaving and self._turns.enter_if_free():
            try:
                self._jobs.settle()
                self._jobs.tell()
            finally:
                self._turns.leave()

    def _step(self, within: float | None = None, alone: bool = True) -> bool:
        """See step(); inside its turn."""
        raise NotImplementedError

    def _step_failed(self, jobs: Collection[Job], error: Exception) -> None:
        """Nothing is known of what a step should have computed of these jobs."""
        if self.driver is not None:
            self.driver.failed("a step failed", error)
        for job in jobs:
            self._jobs.fail(job, error)

    def _step_done(self, jobs: Collection[Job], seconds: Mapping[str, float]) -> None:
        """These jobs have taken what a step computed of them, in so many seconds by stage."""
        for job in jobs:
            for stage, time in seconds.items():
                job.seconds[stage] += time
            if job.done:
                self._jobs.end(job)
        self._jobs.tell(jobs)

    def _hand_out(self, results: Results) -> None:
        for job, give, result in results:
            if job.done:  # failed by another of its results
                continue
            try:
                give(*result)
            except Exception as error:
                self._jobs.fail(job, error)
            except BaseException as error:
                # Which half of a result was noted is unknown. Later ones of the plan are simply planned again.
                self._jobs.fail(job, ForwardpassError(INTERRUPTED))
                if self.driver is None:
                    raise
                logged("interrupted while results were handed out", error)  # by what was called: nobody else is here
