"""What a user should hear of beside a result: a text was cut, a number was lost. A warning, unless whoever asks wants
them as values: a server answers with them, for what its users ask is nothing that its own log should be full of."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_WANTED: ContextVar[list[str] | None] = ContextVar("notices", default=None)


@contextmanager
def collected() -> Iterator[list[str]]:
    """The notices of what runs inside, in order, none of which is a warning then. Other threads and other asyncio
    tasks are not concerned, except those that inherit this context."""
    found: list[str] = []
    before = _WANTED.set(found)
    try:
        yield found
    finally:
        _WANTED.reset(before)


def notice(sentence: str, stacklevel: int = 1, told: set[str] | None = None, name: str = "") -> None:
    """Say a sentence to whoever asks.

    stacklevel: as of warnings.warn, 1 = the line of the caller;  told: names of what the user has been warned of once
    and for all, `name` is this one's. Who collects notices hears of it each time, since each may be another user.
    """
    wanted = _WANTED.get()
    if wanted is not None:
        wanted.append(sentence)
        return
    if told is not None:
        if name in told:
            return
        told.add(name)
    warnings.warn(sentence, stacklevel=stacklevel + 1)
