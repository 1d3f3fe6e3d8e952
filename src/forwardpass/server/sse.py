"""Answers as a stream of server-sent events.

What a step brought is joined into one send, and the next pieces are collected only when it has returned: those of a
slow reader wait in their request, which has an end. An event costs the encoding of its text; all that is the same in
every event of an answer is encoded once. (Server-sent events: https://html.spec.whatwg.org/multipage/server-sent-events.html)
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from starlette.responses import Response

from forwardpass.asynchronous import news_of
from forwardpass.contracts import Piece
from forwardpass.scheduler.request import Request
from forwardpass.server.generation import Answers
from forwardpass.server.schemas_generation import Sampling
from forwardpass.stages.postprocess import Choice

PAUSE_S = 15.0
"""After so many seconds without an event a comment is sent, so that nobody on the way takes the connection for dead."""
COMMENT = b": keep-alive\n\n"
DONE = b"data: [DONE]\n\n"
HEADERS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache"),
           (b"x-accel-buffering", b"no")]

_encode = msgspec.json.Encoder().encode


class Told:
    """What has been sent of one choice.

    index: the client's number of it;  seen: tokens of which the pieces have come;  held: entries of log-probabilities
    that wait for the next event.
    """

    def __init__(self, index: int, choice: Choice, before: bytes):
        self.index = index
        self.choice = choice
        self.before = before
        self.seen = 0
        self.held: Any = None


class Events:
    """Makes events of pieces. Subclasses say what a choice looks like: OPEN and CLOSE are what stands around its text,
    LAST what an event has in its place that only says how the answer ended.

    A token whose text is not known yet, since a character or perhaps a stop string is incomplete, waits for the next
    event, and its log-probability with it. A choice ends with an event that has its finish_reason.
    """

    OPEN = CLOSE = LAST = b""

    def __init__(self, answers: Answers, head: dict[str, Any], body: Sampling, logprobs: bool):
        self.answers = answers
        self._with_usage = body.with_usage
        self._logprobs = logprobs
        self._head = b"data: " + _encode(head)[:-1] + b',"choices":['
        self._tail = b'}],"usage":null}\n\n' if self._with_usage else b"}]}\n\n"
        self._after = self.CLOSE + b',"logprobs":null,"finish_reason":null' + self._tail
        self._told: dict[Request, list[Told]] = {}
        number = 0
        for request in answers.requests:
            self._told[request] = []
            for choice in request.choices:
                self._told[request].append(Told(number, choice, self._head + b'{"index":%d,' % number + self.OPEN))
                number += 1

    def take(self, request: Request, number: int, piece: Piece, out: list[bytes]) -> None:
        """A piece of choice `number` of a request came: its events, if there are any, are added to `out`."""
        told = self._told[request][number]
        if not told.seen:
            self.begin(told, out)
        if self._logprobs:
            self.note(told, piece)
        told.seen += 1
        if piece.text:
            out += (told.before, _encode(piece.text))
            out.append(self._after if not self._logprobs else self.CLOSE + b',"logprobs":' + self.logprobs(told)
                       + b',"finish_reason":null' + self._tail)
        choice = told.choice
        if choice.finish_reason is not None and told.seen == len(choice.token_ids):
            out.append(self.event(told.index, self.LAST + b',"logprobs":' + self.logprobs(told),
                                  _encode(choice.finish_reason)))

    def event(self, index: int, content: bytes, finish: bytes = b"null") -> bytes:
        """content: with its log-probabilities."""
        return b'%b{"index":%d,%b,"finish_reason":%b%b' % (self._head, index, content, finish, self._tail)

    def end(self, out: list[bytes]) -> None:
        """All choices have ended."""
        if self._with_usage:
            out.append(self._head + b'],"usage":' + _encode(self.answers.usage()) + b"}\n\n")
        out.append(DONE)

    def begin(self, told: Told, out: list[bytes]) -> None:
        """A choice's first piece has come."""

    def note(self, told: Told, piece: Piece) -> None:
        """Hold the log-probabilities of a piece's token, which is number `told.seen` of its choice."""
        raise NotImplementedError

    def logprobs(self, told: Told) -> bytes:
        """Those that are held, which then no longer are; null if there are none."""
        raise NotImplementedError


class EventStream(Response):
    """The response. It begins with the first news, or with the first comment: an error before that can still have its
    status. Later ones are raised as well, and become the last event (app.py)."""

    def __init__(self, events: Events, pause_s: float = PAUSE_S):
        self._events = events
        self._pause = pause_s

    async def __call__(self, scope: dict, receive, send) -> None:
        wire = Wire(send, self._pause)
        events, answers = self._events, self._events.answers
        side_by_side = sum(len(request.choices) for request in answers.requests)
        out: list[bytes] = []
        try:
            async for batch in news_of(answers.requests):
                answers.call.news(-(-len(batch) // side_by_side))
                for request, number, piece in batch:
                    events.take(request, number, piece, out)
                if out:
                    await wire.send(one_line_each(out))
                    out.clear()
            events.end(out)
            await wire.send(one_line_each(out), last=True)
        finally:
            wire.close()
            answers.cancel()
            answers.note()


SPLITTING = ((b"\xc2\x85", b"\\u0085"), (b"\xe2\x80\xa8", b"\\u2028"), (b"\xe2\x80\xa9", b"\\u2029"))


def one_line_each(events: list[bytes]) -> bytes:
    """Events joined. Characters that end a line for many clients, though not for the standard, are written as escapes:
    they stand only inside of JSON's strings."""
    data = b"".join(events)
    if not data.isascii():
        for character, escape in SPLITTING:
            data = data.replace(character, escape)
    return data


class Wire:
    """Sends the parts of a body, and a comment whenever nothing was sent for `pause_s` seconds."""

    def __init__(self, send, pause_s: float):
        self._send = send
        self._pause = pause_s
        self._begun = self._busy = False
        self._loop = asyncio.get_running_loop()
        self._newest = self._loop.time()
        self._comment: asyncio.Task | None = None
        self._timer = self._loop.call_later(pause_s, self._tick)

    async def send(self, data: bytes, last: bool = False) -> None:
        if self._comment is not None:
            await self._comment
        await self._write(data, not last)

    def close(self) -> None:
        self._timer.cancel()
        if self._comment is not None:
            self._comment.cancel()

    async def _write(self, data: bytes, more: bool) -> None:
        self._busy = True
        try:
            if not self._begun:
                self._begun = True
                await self._send({"type": "http.response.start", "status": 200, "headers": list(HEADERS)})
            await self._send({"type": "http.response.body", "body": data, "more_body": more})
        finally:
            self._busy = False
            self._newest = self._loop.time()

    def _tick(self) -> None:
        """Looks from time to time instead of being set anew for every event."""
        idle = self._loop.time() - self._newest
        wait = self._pause
        if not self._busy and idle < self._pause:
            wait -= idle
        elif not self._busy:
            self._comment = self._loop.create_task(self._write(COMMENT, True))
            self._comment.add_done_callback(self._commented)
        self._timer = self._loop.call_later(wait, self._tick)

    def _commented(self, task: asyncio.Task) -> None:
        self._comment = None
        if not task.cancelled():
            task.exception()  # whoever sends next meets it
