"""For tests of the server: an application in this process, and a server process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx

from asgi_transport import AsgiTransport
from forwardpass.server.app import App
from forwardpass.server.routes import ROUTES
from forwardpass.server.run import make_server
from forwardpass.server.settings import Settings

START_S = 60


class InProcess:
    """An App over a host, and a client of it. `get`, `post` and `request` wait for the whole answer; for streams and
    for several requests at once write a coroutine that uses `client`, and pass it to `run`."""

    def __init__(self, host, routes=ROUTES, keys=None, log=None, **settings):
        self.runner = asyncio.Runner()
        self.app = App(host, Settings(**settings), keys, log, routes)
        self.client = httpx.AsyncClient(transport=AsgiTransport(self.app), base_url="http://test", timeout=60)

    def run(self, coroutine):
        return self.runner.run(coroutine)

    def request(self, method: str, path: str, **more) -> httpx.Response:
        return self.run(self.client.request(method, path, **more))

    def get(self, path: str, **more) -> httpx.Response:
        return self.request("GET", path, **more)

    def post(self, path: str, json=None, **more) -> httpx.Response:
        return self.request("POST", path, json=json, **more)

    def close(self) -> None:
        self.run(self.client.aclose())
        self.runner.close()
        self.app.close()


class Listening:
    """An App over a host on a real socket, served from a thread of this process. Its `app` may be looked into, but only
    its own thread may change it: `call(function)`."""

    def __init__(self, host, routes=ROUTES, keys=None, log=None, **settings):
        self.app = App(host, Settings(**settings), keys, log, routes)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = self.listener.getsockname()
        self.url = f"http://127.0.0.1:{self.address[1]}"
        self._connected: list[socket.socket] = []
        self._server = make_server(self.app)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        wait_until(lambda: self._server.started, START_S)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._server.serve(sockets=[self.listener]))

    def call(self, function):
        async def run():
            return function()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(10)

    @property
    def connections(self) -> int:
        return len(self._server.server_state.connections)

    def connect(self, data: bytes = b"", timeout: float = 10) -> socket.socket:
        """A connection, closed with the server if not before."""
        made = socket.create_connection(self.address, timeout=timeout)
        self._connected.append(made)
        if data:
            made.sendall(data)
        return made

    def exchange(self, data: bytes, timeout: float = 10) -> bytes:
        """All that comes back until the server closes the connection."""
        with self.connect(data, timeout) as made:
            return read_all(made)

    def close(self) -> None:
        for one in self._connected:
            one.close()
        self._server.should_exit = True
        self._thread.join(30)
        assert not self._thread.is_alive()
        self.app.close()


def read_all(connection: socket.socket) -> bytes:
    parts = []
    with contextlib.suppress(ConnectionResetError):
        while part := connection.recv(1 << 16):
            parts.append(part)
    return b"".join(parts)


def wait_until(condition, seconds: float = 10) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it does not happen"
        time.sleep(0.005)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


class ServerProcess:
    """`forwardpass serve ARGUMENTS` in a process of its own, ready to answer at `url`. log: what it wrote so far."""

    def __init__(self, folder: Path, *arguments: str, wait: bool = True, env: dict | None = None):
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.out, self.err = folder / "server.out", folder / "server.err"
        line = [sys.executable, "-m", "forwardpass", "serve", *map(str, arguments), "--port", str(self.port)]
        with open(self.out, "wb") as out, open(self.err, "wb") as err:
            self.process = subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                                            env={**os.environ, **(env or {})})
        if wait:
            self.wait_ready()

    @property
    def log(self) -> str:
        return self.out.read_text("utf-8", "replace") + self.err.read_text("utf-8", "replace")

    def wait_ready(self) -> None:
        end = time.monotonic() + START_S
        while True:
            assert self.process.poll() is None, f"the server ended with {self.process.returncode}: {self.log}"
            try:
                if httpx.get(self.url + "/health", timeout=5).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            assert time.monotonic() < end, f"the server does not answer: {self.log}"
            time.sleep(0.02)

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def wait(self, timeout: float = 30) -> int:
        """Its exit status."""
        return self.process.wait(timeout)

    def stop(self) -> int:
        if self.process.poll() is None:
            self.signal(signal.SIGTERM)
            try:
                return self.wait()
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
                raise
        return self.process.returncode
