"""The answer to a request on its way out."""

from __future__ import annotations

import os

from starlette.exceptions import HTTPException

from forwardpass.server.errors import ApiError, api_error
from forwardpass.server.sse import one_line_each

EVENTS = b"text/event-stream"


class Reply:
    """What responses are sent through. It adds the headers that every answer has, and it can still turn into an error:
    before it has begun that is an answer of its own, within a stream of events the last event.

    status: 0 until it has begun.
    """

    def __init__(self, call, send, headers: list[tuple[bytes, bytes]]):
        self.call = call
        self.status = 0
        self._send = send
        self._headers = headers
        self._events = False

    async def __call__(self, message: dict) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            own = message.get("headers", [])
            self._events = any(name.lower() == b"content-type" and value.startswith(EVENTS) for name, value in own)
            message = {**message, "headers": [*own, *self._headers]}
        elif not message.get("more_body", False):
            self.call.answered = True
        await self._send(message)

    async def fail(self, error: BaseException) -> None:
        """Answer with an error, if that is still possible. Raises it where only breaking the connection off is left."""
        if self.call.answered:
            return
        said = api_error(self._of_starlette(error))
        said.message = self._without_paths(said.message)
        self.call.note_error(said, error)
        if not self.status:
            await said.response()(self.call.request.scope, self.call.receive, self)
        elif self._events:
            event = one_line_each([b"data: ", said.body(), b"\n\n"])
            await self({"type": "http.response.body", "body": event, "more_body": False})
        else:  # uvicorn logs what it gets, and the error's message may have somebody's words in it
            raise RuntimeError(f"the answer to {self.call.id} broke off after it had begun; the log says why") from None

    def _of_starlette(self, error: BaseException) -> BaseException:
        if not isinstance(error, HTTPException):
            return error
        headers, scope = error.headers or {}, self.call.request.scope
        if error.status_code == 405:
            return ApiError(405, f"{scope['path']!r} takes {headers.get('Allow', 'other methods')}, not "
                            f"{scope['method']}", code="method_not_allowed", headers=headers)
        return ApiError(error.status_code, str(error.detail), headers=headers)

    def _without_paths(self, message: str) -> str:
        """Messages of the library name a model by its path, which is nothing that a client should see."""
        paths = {str(model.path): name for name, model in self.call.host.models.items()}
        for path in sorted(paths, key=len, reverse=True):  # one may begin like another
            if os.sep in path:
                message = message.replace(path, paths[path])
        return message
