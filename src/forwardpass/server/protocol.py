"""HTTP/1.1 on one connection: uvicorn's protocol with the limits that it leaves to a proxy in front.

A head has a size and a time in which it must arrive; a connection without a request is closed after a while; who reads
nothing of an answer for long loses it; and what is no HTTP gets an error of the same shape as any other. Whatever is
refused here never reaches the application.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import resource
import sys
import termios
from time import monotonic

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from forwardpass.server.errors import ApiError

MAX_HEAD = 32 << 10
MAX_HEADERS = 128
MAX_DISCARDED = 64 << 20
"""Bytes of a body that is thrown away because its request has been answered: so the client sees the answer, an error,
instead of a broken connection."""
SPARE_FILES = 128
"""File descriptors that are not for connections."""


def most_connections() -> int:
    """What this process's limit of open files leaves room for."""
    return max(16, min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], 1 << 16) - SPARE_FILES)


class Protocol(HttpToolsProtocol):
    """The times come from the settings of the application that uvicorn was given."""

    def __init__(self, *args, **more):
        super().__init__(*args, **more)
        self._settings = self.config.app.settings
        self._refused: ApiError | None = None
        self._running = None  # the cycle that the application works on; `cycle` may be one that waits behind it
        self._timer: asyncio.TimerHandle | None = None  # for a request's head, or until there is one
        self._stall: asyncio.TimerHandle | None = None
        self._idle_since = monotonic()
        self._silent = 0  # bytes since the parser last had something to say: part of a line that does not end
        self._head = self._discarded = 0

    @property
    def idle(self) -> bool:
        return self._running is None or self._running.response_complete

    # ---- connections

    def connection_made(self, transport) -> None:
        super().connection_made(transport)
        if len(self.connections) > self.config.app.max_connections and not self._make_room():
            self._refuse(ApiError(503, "the server has no room for another connection", code="too_many_connections",
                                  headers={"Retry-After": "1"}))
            return
        self._wait_for_a_request()

    def _make_room(self) -> bool:
        """Close the connections that have been idle for longest, as many as are too many. Whether they were enough."""
        there = [one for one in self.connections if not one.transport.is_closing()]
        idle = sorted((one for one in there if one.idle and one is not self), key=lambda one: one._idle_since)
        excess = len(there) - self.config.app.max_connections
        for one in idle[: max(0, excess)]:
            one.transport.abort()
        return len(idle) >= excess

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timers()
        if self._running is not None and self._running is not self.cycle and not self._running.response_complete:
            self._running.disconnected = True
            self._running.message_event.set()
        self.pipeline.clear()
        super().connection_lost(exc)

    def _stop_timers(self) -> None:
        for timer in (self._timer, self._stall):
            if timer is not None:
                timer.cancel()
        self._timer = self._stall = None

    def _set_timer(self, seconds: float | None, then=None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if seconds is None else self.loop.call_later(seconds, then)

    def _wait_for_a_request(self) -> None:
        self._idle_since = monotonic()
        self._set_timer(self._settings.keep_alive, self._leave)

    def _leave(self) -> None:
        """Nobody asked for anything. What is still unread of an answer after all that time is not waited for."""
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            self.transport.close()

    # ---- reading

    def data_received(self, data: bytes) -> None:
        if self._refused is not None:
            return
        self._silent += len(data)
        super().data_received(data)
        if self._silent > MAX_HEAD and self._refused is None and self.parser is not None:
            self._refuse(_head_too_large())

    def on_message_begin(self) -> None:
        self._silent = self._head = self._discarded = 0
        super().on_message_begin()
        if self.idle:
            self._set_timer(self._settings.read_timeout, self._head_is_late)

    def on_url(self, url: bytes) -> None:
        self._count_head(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count_head(len(name) + len(value))
        if len(self.headers) >= MAX_HEADERS:
            self._refused = _head_too_large()
            raise ValueError("too many headers")
        super().on_header(name, value)

    def _count_head(self, size: int) -> None:
        self._silent = 0
        self._head += size
        if self._head > MAX_HEAD:
            self._refused = _head_too_large()
            raise ValueError("the head is too large")

    def on_headers_complete(self) -> None:
        self._silent = 0
        idle = self.idle
        if idle:
            self._set_timer(None)
        super().on_headers_complete()
        if idle:
            self._running = self.cycle

    def on_body(self, body: bytes) -> None:
        self._silent = 0
        if self.cycle.response_complete:
            self._discarded += len(body)
            if self._discarded > MAX_DISCARDED:
                self.transport.abort()
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._silent = 0
        super().on_message_complete()

    def _head_is_late(self) -> None:
        self._refuse(ApiError(408, f"the head of the request did not arrive within {self._settings.read_timeout:g} s",
                              code="request_timeout"))

    # ---- answering

    def on_response_complete(self) -> None:
        if self.pipeline and not self.transport.is_closing():
            self._running = self.pipeline[-1][0]  # uvicorn begins with it now
        super().on_response_complete()
        self._unset_keepalive_if_required()  # uvicorn's own timer, which a single byte stops for ever
        if self.idle and not self.transport.is_closing():
            self._wait_for_a_request()

    def send_400_response(self, msg: str) -> None:
        """The parser stopped, at our wish or at its own."""
        self._refuse(self._refused or ApiError(400, "this is not a well-formed HTTP/1.1 request", code="invalid_http"))

    def _refuse(self, error: ApiError) -> None:
        """Answer without the application, and close. Into the middle of another answer nothing can be written; a
        request whose body is not whole has none yet: it ends as if its client had left, and this is its answer."""
        self._refused = error
        self._set_timer(None)
        running = self._running
        if not self.idle:
            if running is not self.cycle or running.response_started or not running.more_body:
                self.transport.abort()
                return
            running.disconnected = True
            running.message_event.set()
        body = error.body()
        headers = {"content-type": "application/json", "content-length": str(len(body)), "connection": "close"}
        lines = [f"{name.lower()}: {value}\r\n".encode() for name, value in (headers | error.headers).items()]
        self.transport.write(b"".join([STATUS_LINE[error.status], *lines, b"\r\n", body]))
        self.transport.close()
        self._set_timer(1.0, self.transport.abort)

    # ---- readers who do not read

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread, self._unread_since = self._untaken(), monotonic()
        self._stall = self.loop.call_later(self._settings.write_timeout / 4, self._look_at_the_reader)

    def resume_writing(self) -> None:
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None
        super().resume_writing()

    def _untaken(self) -> int:
        """Bytes of the answer that the client has not taken: here and in the kernel, which has megabytes of its own."""
        waiting = bytearray(4)
        with contextlib.suppress(OSError, AttributeError):
            fcntl.ioctl(self.transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, waiting)
        return self.transport.get_write_buffer_size() + int.from_bytes(waiting, sys.byteorder)

    def _look_at_the_reader(self) -> None:
        """Cut off a reader who took nothing for the whole time; a slow one may stay. Its request is then cancelled like
        that of any client who leaves."""
        size, now = self._untaken(), monotonic()
        if size < self._unread:
            self._unread, self._unread_since = size, now
        elif now - self._unread_since >= self._settings.write_timeout:
            self.transport.abort()
            return
        self._stall = self.loop.call_later(self._settings.write_timeout / 4, self._look_at_the_reader)


def _head_too_large() -> ApiError:
    return ApiError(431, f"the head of the request is larger than {MAX_HEAD} bytes or {MAX_HEADERS} headers",
                    code="request_head_too_large")
