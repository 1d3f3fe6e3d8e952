"""Texts that an encoder reads: whole, for every token sees all others, so each is the work of a single step."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np

TEXT_ROWS = 512
"""Rows that an encoder computes in one step at most, unless a single text has more."""


@dataclass(slots=True, eq=False)
class Text:
    """One text for an encoder. tokens: int32 [n];  types: int32 [n], or None = 0 for all.

    owner, index: whom its rows are for, and which of their texts it is; the owner of a source is None.
    blocks: of an encoder-decoder, where its keys and values for the cross-attention go;  read: they are there;
    holders: running sequences that attend to it.
    """

    tokens: np.ndarray
    types: np.ndarray | None = None
    owner: Any = None
    index: int = 0
    blocks: list[int] = field(default_factory=list)
    read: bool = False
    holders: int = 0

    def __len__(self) -> int:
        return self.tokens.size


class TextQueues:
    """Texts that wait to be read, a queue for each who asked. A step reads some of every queue, so nobody waits for all
    texts of somebody else."""

    def __init__(self, rows: int = TEXT_ROWS):
        self.rows = rows
        self._queues: deque[deque[Text]] = deque()

    def __bool__(self) -> bool:
        return bool(self._queues)

    def add(self, queue: deque[Text]) -> None:
        """The queue's first text is read first, and leaves it when it has been."""
        self._queues.append(queue)

    def drop(self, queue: deque[Text]) -> None:
        """Forget a queue; harmless if it is not there any more."""
        self._queues = deque(one for one in self._queues if one is not queue)

    def next(self) -> list[Text]:
        """Texts for one step, those of a queue side by side: at least one, and no more than fit into its rows."""
        left = self.rows
        self._queues.rotate(-1)  # another queue begins each time, since what begins is read however long it is
        chosen: list[list[Text]] = [[] for _ in self._queues]
        turns = [(iter(queue), mine) for queue, mine in zip(self._queues, chosen, strict=True)]
        while turns:
            going = []
            for texts, mine in turns:
                text = next(texts, None)
                if text is not None and (len(text) <= left or left == self.rows):
                    mine.append(text)
                    left -= len(text)
                    going.append((texts, mine))
            turns = going
        return [text for mine in chosen for text in mine]

    def done(self, text: Text) -> None:
        """A text of `next` has been read. Those of a queue are done in its order."""
        for queue in self._queues:
            if queue and queue[0] is text:
                queue.popleft()
                if not queue:
                    self.drop(queue)
                return
