"""One request of a client, from its head to the last byte of its answer."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import secrets
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from datetime import UTC, datetime
from functools import partial
from time import perf_counter
from typing import Any

from starlette.requests import Request

from forwardpass.errors import DeadlineError, ForwardpassError
from forwardpass.scheduler.terms import Terms
from forwardpass.server.errors import ApiError
from forwardpass.tasks.abilities import NEEDS

LONGEST_ID = 128
LONGEST_PATH = 200
FRAMES = 8
"""Of a bug's traceback that the log gets."""


class Call:
    """What handlers work with.

    app: the application;  host: its models;  settings;  metrics;  request: starlette's
    id: made here, unique;  client_id: the client's own X-Request-Id, only ever echoed (None: none that is sane)
    key: whose API key it came with (None: the server has no keys)
    terms: priority, deadline and account of all that is computed for it. Handlers run under them, also in `run`.
    log: what its line in the log says besides the usual: model, prompt_tokens, completion_tokens, finish, ttft, ...
    reason: why it was ended from outside, None = it was not;  client_gone: nobody reads the answer;
    answered: the last byte of the answer has been handed on.
    """

    def __init__(self, app, request: Request, receive: Callable):
        self.app = app
        self.host = app.host
        self.settings = app.settings
        self.metrics = app.metrics
        self.request = request
        self.started = perf_counter()
        self.id = "req-" + secrets.token_hex(12)
        self.client_id = _sane(request.headers.get("x-request-id"))
        self.key = None
        self.terms = Terms(account=app.host.account)
        self.log: dict[str, Any] = {}
        self.route = ""  # the pattern that its path fits, once that is known
        self.held = 0  # bytes of its body
        self.reason: ApiError | DeadlineError | None = None
        self.client_gone = False
        self.answered = False
        self.threads: set[Future] = set()
        self.ended = False
        self._receive = receive
        self._left = asyncio.Event()
        self._task: asyncio.Task | None = None
        self._alarm: asyncio.TimerHandle | None = None
        self._newest: float | None = None

    def find(self, name: str, task: str):
        """The model of this name or alias, which can do the task, a method of Model. UnknownModelError lists those that
        are served; ApiError 400 says what this one can do instead."""
        model = self.host.find(name)
        self.log["model"] = name
        if task not in model.tasks:
            obstacle = model.settings.obstacle if task == "embed" and model.tokenizer is not None else ""
            why = f": {obstacle}" if obstacle else f", which needs {NEEDS[task]}"
            raise ApiError(400, f"the model {name!r} cannot {task}{why}; it can {', '.join(model.tasks)}",
                           code="unsupported_by_model", param="model")
        return model

    async def run(self, function: Callable, *args: Any, **keywords: Any) -> Any:
        """function(*args, **keywords) in a thread, under the call's terms. If the call ends meanwhile, its terms are
        cancelled, so what the function waits for ends within a step."""
        return await self._in(self.app.waiting, function, args, keywords)

    async def prepare(self, function: Callable, *args: Any, **keywords: Any) -> Any:
        """Like `run` for what computes and waits for nobody, such as tokenising and templates: few of these run at a
        time, so that many requests that arrive together leave the processor to those that are being answered."""
        return await self._in(self.app.preparing, function, args, keywords)

    async def _in(self, pool, function: Callable, args: tuple, keywords: dict) -> Any:
        loop = asyncio.get_running_loop()
        future = pool.submit(contextvars.copy_context().run, partial(function, *args, **keywords))
        self.threads.add(future)
        future.add_done_callback(lambda _: _call_soon(loop, self._thread_done, future))
        return await asyncio.wrap_future(future)

    def _thread_done(self, future: Future) -> None:
        self.threads.discard(future)
        if self.ended and not self.threads:
            self.app.calls.discard(self)

    def end(self) -> None:
        """It is no longer one of those that are answered, once what it left to threads has noticed, too."""
        self.ended = True
        if self._alarm is not None:
            self._alarm.cancel()
        if not self.threads:
            self.app.calls.discard(self)

    def extra(self, priority: int = 0, timeout: float | None = None, cache_salt: str | None = None) -> None:
        """Set the terms from the fields that every body may have. timeout: seconds from when the request came."""
        self.terms.priority = priority
        self.terms.salt = cache_salt or ""
        if timeout is not None:
            self.terms.deadline = self.started + timeout
            left = max(0.0, self.terms.deadline - perf_counter())
            self._alarm = asyncio.get_running_loop().call_later(left, self._late, timeout)

    def _late(self, timeout: float) -> None:
        self.stop(DeadlineError(f"the answer was not whole after the {timeout:g} s that the request gave it"))

    @property
    def age(self) -> float:
        """Seconds since its head was there."""
        return perf_counter() - self.started

    def news(self, count: int) -> None:
        """Each of its answers has got so many tokens, together: for the metrics, and for the log's time to the first
        one."""
        now = perf_counter()
        if self._newest is None:
            self.log["ttft"] = round(now - self.started, 6)
        else:
            self.metrics.next_tokens(self.app.model_name(self.log["model"]), now - self._newest, count)
        self._newest = now

    def note_error(self, said: ApiError, error: BaseException) -> None:
        """For the log. What a message quotes may come from a prompt, so it is left out unless prompts are logged;
        where a bug is, is not."""
        about: dict[str, Any] = {"type": said.type, "code": said.code, "param": said.param}
        if said.status >= 500 and not isinstance(error, ApiError | ForwardpassError):
            about["exception"] = type(error).__name__
            about["at"] = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in
                           traceback.extract_tb(error.__traceback__)[-FRAMES:]]
        if self.settings.log_prompts:
            about["message"] = str(error)
        self.log["error"] = {name: value for name, value in about.items() if value is not None}

    def record(self, status: int) -> dict[str, Any]:
        """Its line in the log."""
        scope = self.request.scope
        return {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"), "id": self.id, "client_id": self.client_id,
            "key": self.key and self.key.name, "method": scope["method"], "path": scope["path"][:LONGEST_PATH],
            "status": status, "duration": round(self.age, 6), "client_gone": self.client_gone, **self.log,
        }

    async def gone(self) -> None:
        """Returns when the client has gone."""
        await self._left.wait()

    def stop(self, reason: ApiError | DeadlineError | None = None) -> None:
        """End it from outside: what it computes is cancelled, and it answers with the reason if it still can. None: the
        client has gone."""
        if reason is None:
            self.client_gone = True
            self._left.set()
        elif self.reason is None:
            self.reason = reason
        self.terms.cancel()
        if self._task is not None:
            self._task.cancel()

    async def watched(self, work) -> None:
        """Await a coroutine, and end it when the client goes away. The body must have been read before."""
        self._task = asyncio.ensure_future(work)
        watch = asyncio.ensure_future(self._watch())
        try:
            await self._task
        finally:
            watch.cancel()
            self._task = None

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass  # what still comes of a body that nobody wants
        if not self.answered:
            self.stop()

    async def receive(self) -> dict:
        """For responses that watch for the client themselves."""
        await self._left.wait()
        return {"type": "http.disconnect"}


def _call_soon(loop: asyncio.AbstractEventLoop, function: Callable, *args: Any) -> None:
    """From any thread; a loop that has been closed has nobody left who wants to know."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(function, *args)


def _sane(text: str | None) -> str | None:
    """The client's id if it is short and printable: it goes back into a header and into a log."""
    return text if text and len(text) <= LONGEST_ID and text.isascii() and text.isprintable() else None
