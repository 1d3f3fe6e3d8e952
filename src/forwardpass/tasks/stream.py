"""An answer that arrives piece by piece."""

from __future__ import annotations

from collections.abc import Iterator

from forwardpass.contracts import Completion, Piece
from forwardpass.engine import Engine
from forwardpass.scheduler.request import Request


class Stream(Iterator[Piece]):
    """Iterate to receive pieces; their texts concatenate to `completion.text`.

    Closing it, leaving a `with` block or dropping the last reference cancels what is still running and frees its cache
    blocks. `completion` is the answer so far, the whole one once the iteration has ended.
    """

    def __init__(self, engine: Engine, request: Request):
        self._engine = engine
        self._request = request

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Piece:
        request = self._request
        while True:
            done = request.done  # before looking for pieces: another thread may add some and end it
            if request.pieces:
                return request.pieces.popleft()[1]
            if done:
                if request.error is not None:
                    raise request.error
                raise StopIteration
            self._engine.advance(request)

    @property
    def completion(self) -> Completion:
        return self._request.completions()[0]

    def close(self) -> None:
        self._engine.cancel(self._request)
        self._request.pieces.clear()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        # Perhaps in the middle of a step, when the garbage collector comes round: never wait here.
        if hasattr(self, "_request"):
            self._engine.cancel(self._request, wait=False)
