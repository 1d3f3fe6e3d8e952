"""An application without sockets, for httpx: unlike httpx's own transport it streams, and closing a response early is a
client that goes away."""

from __future__ import annotations

import asyncio

import httpx


class AsgiTransport(httpx.AsyncBaseTransport):
    def __init__(self, app, client: tuple[str, int] = ("127.0.0.1", 54321)):
        self.app = app
        self.client = client

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        exchange = _Exchange(self.app, request, self.client)
        try:
            await exchange.started()
        except BaseException:
            await exchange.aclose()
            raise
        return httpx.Response(exchange.status, headers=exchange.headers, stream=exchange, request=request)


class _Exchange(httpx.AsyncByteStream):
    """One request and its answer. The app runs as a task of its own; chunks wait in a queue of two, so that a reader
    who stops holds the app up as a full socket would."""

    def __init__(self, app, request: httpx.Request, client: tuple[str, int]):
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self._chunks: asyncio.Queue = asyncio.Queue(2)
        self._ready = asyncio.Event()
        self._gone = asyncio.Event()
        self._request = request
        self._body = request.stream.__aiter__()
        self._more = True
        target = request.url.raw_path
        scope = {
            "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1",
            "method": request.method, "scheme": "http", "root_path": "", "path": request.url.path,
            "raw_path": target.split(b"?")[0], "query_string": request.url.query,
            "headers": [(name.lower(), value) for name, value in request.headers.raw],
            "server": (request.url.host, request.url.port or 80), "client": client, "state": {},
        }
        self._task = asyncio.ensure_future(app(scope, self._receive, self._send))
        self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task) -> None:
        self._ready.set()
        if not task.cancelled():
            task.exception()  # raised by started(), or seen as an answer that breaks off

    async def _receive(self) -> dict:
        if self._more:
            chunk = await anext(self._body, None)
            self._more = chunk is not None
            return {"type": "http.request", "body": chunk or b"", "more_body": self._more}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: dict) -> None:
        if self._gone.is_set():
            return
        if message["type"] == "http.response.start":
            self.status, self.headers = message["status"], message["headers"]
            self._ready.set()
            return
        if message.get("body"):
            await self._chunks.put(message["body"])
        if not message.get("more_body", False):
            await self._chunks.put(None)

    async def started(self) -> None:
        await self._ready.wait()
        if not self.status:
            self._task.result()
            raise httpx.RemoteProtocolError("the application ended without an answer", request=self._request)

    async def __aiter__(self):
        while True:
            get = asyncio.ensure_future(self._chunks.get())
            await asyncio.wait({get, self._task}, return_when=asyncio.FIRST_COMPLETED)
            if not get.done() and self._chunks.empty():
                get.cancel()
                raise httpx.RemoteProtocolError("the answer broke off", request=self._request)
            chunk = await get
            if chunk is None:
                return
            yield chunk

    async def aclose(self) -> None:
        self._gone.set()
        while not self._chunks.empty():
            self._chunks.get_nowait()
        await asyncio.wait({self._task}, timeout=10)
        assert self._task.done(), "the application goes on although its client has gone"
