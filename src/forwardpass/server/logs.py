"""The log: one line of JSON a request. Nothing that goes wrong with it may hold up a request or end the server."""

from __future__ import annotations

import errno
import os
import queue
import sys
import threading
from typing import Any

import msgspec

WAITING, WAITING_BYTES = 4096, 32 << 20
"""Lines, and bytes of them, that wait for a target that takes none. What comes then is lost and counted."""
CLOSE_S = 2.0
BATCH = 256


class RequestLog:
    """target: a file that lines are appended to, or "-" for standard output.

    A thread writes, since a pipe whose reader sleeps or a disk that hangs blocks whoever writes. errors: lines
    that were lost, because the disk was full, the pipe closed or the target too slow.
    """

    def __init__(self, target: str = "-"):
        self.target = target
        self.errors = 0
        self._lines: queue.Queue[bytes | None] = queue.Queue(WAITING)
        self._encoder = msgspec.json.Encoder(enc_hook=str)
        self._queued = self._taken = 0  # bytes ever; each is counted by one thread only
        self._broken_line = False
        self._stale = False
        self._file = self._open()  # a path that cannot be written is an error at the start, not later
        self._thread = threading.Thread(target=self._run, name="forwardpass-log", daemon=True)
        self._thread.start()

    def _open(self) -> int:
        if self.target == "-":
            if sys.stdout is None:
                raise OSError(errno.EBADF, "standard output is closed")
            return os.dup(sys.stdout.fileno())
        return os.open(self.target, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)

    def write(self, record: dict[str, Any]) -> None:
        """Never blocks and never raises."""
        try:
            line = self._encoder.encode(record) + b"\n"
            if self._queued - self._taken + len(line) > WAITING_BYTES:
                raise queue.Full
            self._lines.put_nowait(line)
            self._queued += len(line)
        except Exception:  # full, or something that is no JSON: a line less
            self.errors += 1

    def reopen(self) -> None:
        """The file has been moved away (log rotation): go on in a new one of the same name."""
        self._stale = True

    def close(self) -> None:
        """Write what waits, unless the target takes nothing. Closing twice is harmless."""
        if not self._thread.is_alive():
            return
        try:
            self._lines.put(None, timeout=CLOSE_S)
        except queue.Full:
            return  # the thread is a daemon and ends with the process
        self._thread.join(CLOSE_S)

    def __enter__(self) -> RequestLog:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _run(self) -> None:
        last = False
        while not last:
            lines = [self._lines.get()]
            while len(lines) < BATCH and not self._lines.empty():
                lines.append(self._lines.get())
            last = None in lines
            lines = [line for line in lines if line is not None]
            if self._stale:
                self._stale = False
                self._reopen()
            if lines:
                self._put(lines)
            self._taken += sum(map(len, lines))
        os.close(self._file)

    def _reopen(self) -> None:
        try:
            fresh = self._open()
        except OSError:
            self.errors += 1  # go on with the old one
            return
        os.close(self._file)
        self._file = fresh

    def _put(self, lines: list[bytes]) -> None:
        """All of these lines, or as many as the target takes. One that broke off is ended before the next."""
        data = b"\n" * self._broken_line + b"".join(lines)
        done = 0
        try:
            while done < len(data):
                done += os.write(self._file, data[done:])
        except OSError:
            self.errors += data[done:].count(b"\n") - (self._broken_line and not done)
        if done:
            self._broken_line = not data[:done].endswith(b"\n")
