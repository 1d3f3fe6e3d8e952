"""Texts that an encoder reads: whole, for every token sees all others, so each is the work of a single step."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from forwardpass.scheduler.terms import Terms

TEXT_ROWS = 512
"""Rows that an encoder computes in one step at most, unless a single text has more."""
IMAGE_ROWS = 2048
"""The same where images are read: they are of like length, and 512 rows are but one or two of them."""


@dataclass(slots=True, eq=False)
class Text:
    """One text for an encoder. tokens: int32 [n];  types: int32 [n], or None = 0 for all.  pixels: of an image, float32
    [height, width, channels]; its tokens are zeros, one for each row that it becomes.

    owner, index: whom its rows are for, and which of their texts it is; the owner of a source is None.
    blocks: of an encoder-decoder, where its keys and values for the cross-attention go;  read: they are there;
    holders: running sequences that attend to it.
    """

    tokens: np.ndarray
    types: np.ndarray | None = None
    pixels: np.ndarray | None = None
    owner: Any = None
    index: int = 0
    blocks: list[int] = field(default_factory=list)
    read: bool = False
    holders: int = 0

    def __len__(self) -> int:
        return self.tokens.size


class TextQueues:
    """Texts that wait to be read, a queue for each who asked. A step reads those of the smallest priority first, and
    among equals some of every key and of each of its queues, so nobody waits for all texts of somebody else."""

    def __init__(self, rows: int = TEXT_ROWS):
        self.rows = rows
        self._keys: dict[int, OrderedDict[str, deque[deque[Text]]]] = {}  # priority -> key -> queues
        self._places: dict[int, tuple[int, str]] = {}  # id of a queue -> its priority and key
        self._chosen: dict[int, deque[Text]] = {}  # id of a text of the newest step -> its queue

    def __bool__(self) -> bool:
        return bool(self._places)

    @property
    def priority(self) -> int:
        """The smallest of those that wait."""
        return min(self._keys)

    def add(self, queue: deque[Text], terms: Terms = Terms()) -> None:  # noqa: B008  only read
        """The queue's first text is read first, and leaves it when it has been."""
        self._places[id(queue)] = terms.priority, terms.key
        self._keys.setdefault(terms.priority, OrderedDict()).setdefault(terms.key, deque()).append(queue)

    def drop(self, queue: deque[Text]) -> None:
        """Forget a queue; harmless if it is not there any more."""
        place = self._places.pop(id(queue), None)
        if place is None:
            return
        priority, key = place
        queues = self._keys[priority][key]
        queues = self._keys[priority][key] = deque(one for one in queues if one is not queue)
        if not queues:
            del self._keys[priority][key]
            if not self._keys[priority]:
                del self._keys[priority]

    def next(self, rows: int) -> list[Text]:
        """Texts for one step, those of a queue side by side: at least one, and no more than fit into `rows` rows."""
        left = max(1, rows)
        chosen: dict[int, list[Text]] = {}  # id of a queue -> texts
        self._chosen.clear()
        for priority in sorted(self._keys):
            keys = self._keys[priority]
            keys.move_to_end(next(iter(keys)))  # another one begins each time: what begins is read however long it is
            turns = deque(_rotated(queues) for queues in keys.values())
            while turns and left > 0:
                queues = turns.popleft()
                while queues:
                    queue, texts = queues.popleft()
                    text = next(texts, None)
                    if text is not None and (len(text) <= left or not chosen):
                        chosen.setdefault(id(queue), []).append(text)
                        self._chosen[id(text)] = queue
                        left -= len(text)
                        queues.append((queue, texts))
                        turns.append(queues)
                        break
        return [text for texts in chosen.values() for text in texts]

    def done(self, text: Text) -> None:
        """A text of `next` has been read. Those of a queue are done in its order."""
        queue = self._chosen.pop(id(text), None)
        if queue and queue[0] is text:
            queue.popleft()
            if not queue:
                self.drop(queue)


def _rotated(queues: deque[deque[Text]]) -> deque[tuple[deque[Text], Iterator[Text]]]:
    """A key's queues, another one first each time, with the texts that they still offer."""
    queues.rotate(-1)
    return deque((queue, iter(queue)) for queue in queues)
