"""What an event loop hears of requests that a driver computes.

However many requests of a loop a step brings news of, the loop is woken once for it. Whoever stops listening, because
its task is cancelled, its loop was closed or it was simply dropped, cancels what it listened to.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary, ref

from forwardpass.contracts import Piece
from forwardpass.errors import ForwardpassError
from forwardpass.scheduler.job import Job
from forwardpass.scheduler.request import Request

NO_DRIVER = "nobody computes this while an event loop waits for it: use AsyncModel or Host, or attach a Driver"


def news(request: Request) -> News:
    """Iterate to receive batches of a request's pieces, [(choice index, Piece), ...], as they come.

    Raises the request's error where it ends with one. Leaving early, however, cancels it."""
    return News([request], lambda _, choice, piece: (choice, piece))


def news_of(requests: Sequence[Request]) -> News:
    """The same of several requests, all of one engine or of several: [(request, choice index, Piece), ...]. The first
    error among them cancels the others."""
    return News(requests, lambda request, choice, piece: (request, choice, piece))


async def finished(*jobs: Job) -> None:
    """Until these have ended. The first error among them is raised once the others are cancelled, as all are if the
    task is."""
    try:
        with _Waiting([job.on_end for job in jobs], jobs) as waiting:
            left = list(jobs)
            while left:
                waited, left = left, [job for job in left if not job.done]
                for job in waited:
                    if job.error is not None:
                        raise job.error
                if left:
                    _check_driven(left)
                    await waiting.woken()
    finally:
        _cancel(jobs)


class News(AsyncIterator[list[Any]]):
    """What is iterated over. aclose() ends it early, as does dropping it."""

    def __init__(self, requests: Sequence[Request], item: Callable[[Request, int, Piece], Any]):
        self._waiting: _Waiting | None = None
        self._requests = list(requests)
        self._item = item

    def __aiter__(self) -> News:
        return self

    async def __anext__(self) -> list[Any]:
        try:
            while not (batch := self._batch()):
                if not self._requests:
                    raise StopAsyncIteration
                _check_driven(self._requests)
                if self._waiting is None:  # only now is it known which loop listens
                    self._waiting = _Waiting([one.on_news for one in self._requests], self._requests)
                    continue  # what came before was told to nobody
                await self._waiting.woken()
            return batch
        except BaseException:
            self._end()
            raise

    def _batch(self) -> list[Any]:
        """What has come of all requests. The ended ones of which nothing is left are forgotten, or raise."""
        batch: list[Any] = []
        for request in self._requests:
            done = request.done  # before looking: nothing follows its end
            pieces = request.pieces
            while pieces:
                choice, piece = pieces.popleft()
                batch.append(self._item(request, choice, piece))
            if done and request.error is not None and not batch:
                raise request.error
        if not batch:
            self._requests = [one for one in self._requests if not one.done or one.pieces or one.error is not None]
        return batch

    async def aclose(self) -> None:
        self._end()

    def _end(self) -> None:
        if self._waiting is not None:
            self._waiting.end()
        _cancel(self._requests)
        self._requests = []

    def __del__(self) -> None:
        self._end()


class _Waiting:
    """Somebody in the running loop who waits for listeners in any of these lists to be called."""

    def __init__(self, listened: Sequence[list], jobs: Sequence[Job]):
        self.jobs = jobs
        self._loop = _loop()
        self._listened = listened
        self._future: asyncio.Future | None = None
        self._queued = False
        self._listener = self._news
        for listeners in listened:
            listeners.append(self._listener)

    async def woken(self) -> None:
        """Until there was news since the last time."""
        self._future = asyncio.get_running_loop().create_future()
        try:
            await self._future
        finally:
            self._future = None

    def _news(self) -> Callable[[], None]:
        """By the thread that steps."""
        if not self._queued:
            self._queued = True
            self._loop.ready.append(self)
        return self._loop.ring

    def wake(self) -> None:
        """By its loop."""
        self._queued = False
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    def end(self) -> None:
        for listeners in self._listened:
            if self._listener in listeners:
                listeners.remove(self._listener)

    def __enter__(self) -> _Waiting:
        return self

    def __exit__(self, *exc: object) -> None:
        self.end()


class _Loop:
    """ready: those in an event loop of whom there is news that it does not know of."""

    def __init__(self, loop: asyncio.AbstractEventLoop):
        self.ready: deque[_Waiting] = deque()
        self._loop = ref(loop)
        self._rung = False

    def ring(self) -> None:
        """By the thread that steps, once a step."""
        loop = self._loop()
        if loop is not None and not loop.is_closed():
            if self._rung:
                return  # it has been told and has not come to it yet
            self._rung = True
            try:
                loop.call_soon_threadsafe(self._wake)
                return
            except RuntimeError:  # closed in this very moment
                pass
        while self.ready:  # nobody will ever come for these
            _cancel(self.ready.popleft().jobs)

    def _wake(self) -> None:
        self._rung = False
        while self.ready:
            self.ready.popleft().wake()


_LOOPS: WeakKeyDictionary[asyncio.AbstractEventLoop, _Loop] = WeakKeyDictionary()


def _loop() -> _Loop:
    loop = asyncio.get_running_loop()
    if loop not in _LOOPS:
        _LOOPS[loop] = _Loop(loop)
    return _LOOPS[loop]


def _check_driven(jobs: Sequence[Job]) -> None:
    for job in jobs:
        if not job.done and job.engine.driver is None:
            raise ForwardpassError(NO_DRIVER)


def _cancel(jobs: Sequence[Job]) -> None:
    for job in jobs:
        if not job.done:
            job.engine.cancel(job, wait=False)
