"""A thread that steps engines, so that whoever asks only waits: for servers, event loops and several models at once.

Steppings with work get a step each in turn. Whatever a step raises ends that engine's requests and nobody else's.
"""

from __future__ import annotations

import atexit
import threading
from queue import Empty, SimpleQueue
from time import perf_counter, sleep
from weakref import WeakSet

from forwardpass.errors import ParameterError
from forwardpass.scheduler.jobs import failed, logged
from forwardpass.stepping import Stepping

ANSWERING_S, READING_S = 0.075, 0.15
"""Seconds that a step should take at most while somebody is in the middle of an answer, and otherwise."""
IDLE_S = 0.1
"""How long engines are left alone that have requests and nothing to compute: they wait for room."""
RESTART_S = 0.05
"""Pause before a thread that ended is replaced: whatever ended it may do so again."""


class Driver:
    """alive: whether its thread runs;  restarts: how often it had to be replaced;  failures: steps in which something
    went wrong that was not a request's own."""

    def __init__(self) -> None:
        self.restarts = 0
        self.failures = 0
        self._engines: tuple[Stepping, ...] = ()
        self._stepping: Stepping | None = None
        self._closed = False
        self._rung = False
        self._bell: SimpleQueue[None] = SimpleQueue()  # unlike a lock, it may be rung by a destructor at any moment
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        _DRIVERS.add(self)

    @property
    def alive(self) -> bool:
        thread = self._thread
        return thread is not None and thread.is_alive()

    @property
    def mine(self) -> bool:
        """Whether the calling thread is its own: then nothing may be waited for."""
        return self._thread is threading.current_thread()

    def attach(self, engine: Stepping) -> None:
        """From now on it steps this engine, and nobody else need. Raises ParameterError if another driver does."""
        with self._lock:
            if self._closed:
                raise ParameterError("the driver is closed; make a new one")
            if engine.driver is not None:
                raise ParameterError("this engine has a driver; an engine has one at most")
            engine.driver = self
            self._engines += (engine,)
        self.wake()

    def detach(self, engine: Stepping) -> None:
        """Callers step the engine again: threads that wait for it do. Event loops can't, and nobody can where engines
        share their memory, so what these are asked ends with an error. Harmless if it is none of its engines."""
        with self._lock:
            if engine.driver is not self:
                return
            self._engines = tuple(one for one in self._engines if one is not engine)
            engine.driver = None
        engine.rouse()

    def close(self) -> None:
        """Detach all engines and end the thread. Closing twice is harmless."""
        with self._lock:  # whoever attaches an engine or starts a thread meanwhile has done so, or sees this
            self._closed = True
        for engine in self._engines:
            self.detach(engine)
        self.wake()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def wake(self) -> None:
        """There is something to do. From any thread; waits for nothing."""
        if not self._rung:
            self._rung = True
            self._bell.put(None)
        if not self.alive and not self._closed and self._lock.acquire(blocking=False):
            try:
                if not self.alive and not self._closed:
                    self._start()
            finally:
                self._lock.release()

    def failed(self, what: str, error: BaseException) -> None:
        """Something went wrong in a step."""
        self.failures += 1
        logged(what, error)

    def _start(self) -> None:
        """With the lock held."""
        before = self._thread
        number = 0 if before is None else before.ident
        self._thread = threading.Thread(target=self._run, args=(number,), name="forwardpass-driver", daemon=True)
        self.restarts += before is not None  # known before anybody hears of what the new thread does first
        try:
            self._thread.start()
        except BaseException:  # no threads left: the next one that rings tries again
            self._thread = before
            self.restarts -= before is not None
            raise

    def _run(self, before: int) -> None:
        """What the thread does. It never ends of its own; if something ends it, another one takes its place."""
        try:
            if self._stepping is not None:  # by the thread before this one
                self._stepping.recover(before)
                self._stepping = None
            while not self._look():
                if not self._round():
                    self._wait()
        except BaseException as error:
            logged("the driver's thread ended", error)
        finally:
            if not self._closed:
                sleep(RESTART_S)
                with self._lock:
                    if not self._closed:
                        self._start()

    def _look(self) -> bool:
        """Whether it was closed. Who rang before this is served by the next round, who rings from now on by the one
        after; in between the bell may be heard twice, but never missed: what is rung for is there before."""
        try:
            while True:
                self._bell.get_nowait()
        except Empty:
            pass
        self._rung = False
        return self._closed

    def _round(self) -> bool:
        """A step of each engine that has work; whether there was any."""
        busy = [engine for engine in self._engines if engine.busy]
        within = ANSWERING_S if any(engine.answering for engine in busy) else READING_S
        progress = False
        for engine in busy:
            self._stepping = engine
            try:
                progress |= engine.step(within, len(busy) == 1)
            except BaseException as error:
                self.failed("a step failed", error)
                engine.fail_all(failed(error))
                progress = True
            self._stepping = None
        return progress

    def _wait(self) -> None:
        """Until the bell rings, or a deadline passes, or what waits for room should be looked at again."""
        busy = [engine for engine in self._engines if engine.busy]
        until = min([IDLE_S, *(engine.deadline - perf_counter() for engine in busy)]) if busy else None
        try:
            self._bell.get(timeout=None if until is None else max(0.0, until))
        except Empty:
            pass


_DRIVERS: WeakSet[Driver] = WeakSet()


@atexit.register
def _close_all() -> None:
    """A thread that is computing while the interpreter goes away would take the process with it."""
    for driver in list(_DRIVERS):
        driver.close()
