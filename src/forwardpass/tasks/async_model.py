"""`AsyncModel`: the tasks of a Model as coroutines, for programs that run on asyncio."""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar
from weakref import finalize

import numpy as np

from forwardpass.asynchronous import News, finished, news
from forwardpass.contracts import Completion, Piece
from forwardpass.driver import Driver
from forwardpass.errors import ParameterError
from forwardpass.scheduler.terms import TERMS, Terms
from forwardpass.tasks.generating import Asked, Prompt
from forwardpass.tasks.model import Model

WAITING = 64
"""Threads in which tasks that read texts wait for the engine. More such calls at the same time wait for a thread."""
_END = object()

P = ParamSpec("P")
R = TypeVar("R")


def _in_thread(method: Callable[Concatenate[Any, P], R]
               ) -> Callable[Concatenate[AsyncModel, P], Coroutine[Any, Any, R]]:
    """A method of Model as a coroutine: it runs in a thread, which waits for the engine. What it asks ends with the
    task that awaits it."""

    @wraps(method)
    async def call(self: AsyncModel, *args: P.args, **given: P.kwargs) -> R:
        terms = self._terms()
        try:
            return await self._run(terms, partial(getattr(self.model, method.__name__), *args, **given))
        except asyncio.CancelledError:
            terms.cancel()
            raise

    return call


def _streamed(method: Callable[Concatenate[Any, P], R]
              ) -> Callable[Concatenate[AsyncModel, P], Coroutine[Any, Any, Any]]:
    """The same of a method that gives an iterator where it is asked to stream: that becomes an asynchronous one."""

    @wraps(method)
    async def call(self: AsyncModel, *args: P.args, **given: P.kwargs) -> Any:
        terms = self._terms()
        try:
            found = await self._run(terms, partial(method, self.model, *args, **given))
        except asyncio.CancelledError:
            terms.cancel()
            raise
        return self._pulled(terms, found) if given.get("stream") else found

    return call


class AsyncModel:
    """The tasks of a loaded model, for an event loop. Arguments, results and errors are those of Model's methods.

        model = AsyncModel(forwardpass.load("smollm2-135m"))
        async for piece in model.stream("The capital of France is"):
            print(piece.text, end="")

    Texts are tokenised in threads, and a driver's thread steps the engine, so the loop is never held up. Cancelling a
    task that awaits one of these, or leaving a stream, ends what it asked for within a step and frees what it held.
    A model of a Host has a driver; otherwise the first call starts one, and aclose() or leaving an `async with` ends
    it. The model stays open. May be used by several event loops.
    """

    def __init__(self, model: Model):
        self.model = model
        self._driver: Driver | None = None
        self._closed = False
        self._waiting = ThreadPoolExecutor(WAITING, "forwardpass-wait")

    async def generate(self, prompt: Prompt, **params: Any) -> Completion | list[Completion]:
        """See Model.generate."""
        return await self._answers(partial(self.model.begin_generate, prompt, **params))

    def stream(self, prompt: str | Sequence[int], **params: Any) -> AsyncStream:
        """See Model.stream. It begins when it is first iterated, which is also when wrong arguments raise."""
        return AsyncStream(partial(self._begun, partial(self.model.begin_stream, prompt, **params)))

    async def chat(self, messages: Sequence[Mapping[str, Any]], stream: bool = False, on_overflow: str = "error",
                   **params: Any) -> Completion | list[Completion] | AsyncStream:
        """See Model.chat. stream: for an AsyncStream that has begun."""
        return await self._answers(partial(self.model.begin_chat, messages, stream, on_overflow, **params), stream)

    async def complete(self, prefix: str, suffix: str | None = None, *, stream: bool = False,
                       context_tokens: int | None = None, **params: Any
                       ) -> Completion | list[Completion] | AsyncStream:
        """See Model.complete. stream: for an AsyncStream that has begun."""
        return await self._answers(partial(self.model.begin_complete, prefix, suffix, stream=stream,
                                           context_tokens=context_tokens, **params), stream)

    async def translate(self, texts: str | Sequence[str], source: str | None = None, target: str | None = None, *,
                        stream: bool = False, **params: Any
                        ) -> Completion | list[Completion] | AsyncIterator[Completion]:
        """See Model.translate. stream: for an asynchronous iterator of sentences."""
        terms = self._terms()
        call = partial(self.model.translate, texts, source, target, stream=stream, **params)
        try:
            found = await self._run(terms, call)
        except asyncio.CancelledError:
            terms.cancel()
            raise
        return self._pulled(terms, found) if stream else found

    embed = _in_thread(Model.embed)
    classify_image = _streamed(Model.classify_image)
    embed_image = _streamed(Model.embed_image)
    zero_shot_image = _streamed(Model.zero_shot_image)
    classify = _in_thread(Model.classify)
    rerank = _in_thread(Model.rerank)
    zero_shot = _in_thread(Model.zero_shot)
    token_classify = _in_thread(Model.token_classify)
    fill_mask = _in_thread(Model.fill_mask)
    summarize = _in_thread(Model.summarize)
    text2text = _in_thread(Model.text2text)
    logits = _in_thread(Model.logits)
    hidden_states = _in_thread(Model.hidden_states)
    score = _in_thread(Model.score)
    draw = _in_thread(Model.draw)

    def similarity(self, vectors: np.ndarray, others: np.ndarray) -> np.ndarray:
        """See Model.similarity; it computes at once."""
        return self.model.similarity(vectors, others)

    async def aclose(self) -> None:
        """End what was asked from event loops, and the driver if it was started here. Harmless if it was before."""
        self._closed = True
        self._waiting.shutdown(wait=False)
        driver, self._driver = self._driver, None
        if driver is not None:
            await asyncio.to_thread(driver.close)

    async def __aenter__(self) -> AsyncModel:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    def _terms(self) -> Terms:
        """Of one call: a part of those of the context."""
        return (TERMS.get() or Terms()).part()

    async def _run(self, terms: Terms, call: Callable[[], R]) -> R:
        """In a thread that may wait for the engine."""
        self._drive()
        with terms:
            context = contextvars.copy_context()
        return await asyncio.get_running_loop().run_in_executor(self._waiting, context.run, call)

    async def _begun(self, begin: Callable[[], Asked]) -> Asked:
        """Texts are tokenised in a thread, which waits for nobody."""
        self._drive()
        terms = self._terms()
        try:
            with terms:
                return await asyncio.to_thread(begin)
        except asyncio.CancelledError:
            terms.cancel()
            raise

    async def _answers(self, begin: Callable[[], Asked], stream: bool = False
                       ) -> Completion | list[Completion] | AsyncStream:
        asked = await self._begun(begin)
        if stream:
            return AsyncStream(asked)
        await finished(*asked.requests)
        return asked.answers()

    async def _pulled(self, terms: Terms, results: Iterator[R]) -> AsyncIterator[R]:
        try:
            while (one := await self._run(terms, partial(next, results, _END))) is not _END:
                yield one
        finally:
            terms.cancel()

    def _drive(self) -> None:
        """Have a driver for the engine."""
        engine = self.model.engine
        if self._closed:
            raise ParameterError("this AsyncModel is closed; make another one of the model")
        if engine.driver is not None:
            return
        if self._driver is None:
            self._driver = Driver()
            finalize(self, self._driver.close).atexit = False  # when it is dropped without having been closed
        self._driver.attach(engine)


class AsyncStream(AsyncIterator[Piece]):
    """Iterate to receive pieces; their texts concatenate to `completion.text`. Leaving it, by aclose(), `async with` or
    by dropping it, cancels what is still running. Made by AsyncModel."""

    def __init__(self, asked: Asked | Callable[[], Coroutine[Any, Any, Asked]]):
        self._begin = asked
        self._asked = asked if isinstance(asked, Asked) else None
        self._news: News | None = None
        self._pieces: deque[Piece] = deque()
        if self._asked is not None:
            self._news = news(self._asked.requests[0])

    def __aiter__(self) -> AsyncStream:
        return self

    async def __anext__(self) -> Piece:
        if self._asked is None:
            if self._begin is None:
                raise StopAsyncIteration
            self._asked = await self._begin()
            self._news = news(self._asked.requests[0])
        if not self._pieces:
            self._pieces.extend(piece for _, piece in await anext(self._news))
        return self._pieces.popleft()

    @property
    def completion(self) -> Completion:
        """The answer so far, the whole one once the iteration has ended."""
        if self._asked is None:
            raise ParameterError("the stream has not begun: iterate over it first")
        return self._asked.answers()

    async def aclose(self) -> None:
        self._begin = None
        self._pieces.clear()
        if self._news is not None:
            await self._news.aclose()

    async def __aenter__(self) -> AsyncStream:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()
