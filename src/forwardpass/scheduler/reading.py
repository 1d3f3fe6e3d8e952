"""Texts of which somebody wants the hidden states, not a continuation."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from forwardpass.backends.native import bounds
from forwardpass.contracts import EncoderImage, EncoderText, Hidden, int32
from forwardpass.errors import ContextLengthError, ParameterError
from forwardpass.scheduler.arrays import Part, packed_hidden
from forwardpass.scheduler.job import Job
from forwardpass.scheduler.scheduler import STEP_TOKENS, Scheduler
from forwardpass.scheduler.scheduler import Sequence as Computed
from forwardpass.scheduler.texts import Text

Read = Callable[[Hidden], Sequence[Any]]
Given = tuple[np.ndarray, np.ndarray | None, np.ndarray | None]
"""The tokens, types and pixels of what is read, as scheduler/texts.py describes them."""


def checked(number: int, text: EncoderText, spec) -> Given:
    """The tokens and types of a caller's text, int32 [n]. What is wrong with them must be known before others share a
    step with it: ParameterError, or ContextLengthError for a text that is longer than the model of `spec` reads."""
    ids = int32(f"the tokens of text {number}", np.asarray(text.ids))
    types = None if text.types is None else int32(f"the token types of text {number}", np.asarray(text.types))
    if not ids.size:
        raise ParameterError(f"text {number} has no tokens; every text needs at least one")
    if ids.size > spec.max_position_embeddings:
        raise ContextLengthError(f"text {number} has {ids.size} tokens; the model reads at most "
                                 f"{spec.max_position_embeddings}: shorten it")
    if types is not None and types.size != ids.size:
        raise ParameterError(f"text {number} has {ids.size} tokens and {types.size} token types; every token needs one")
    known = 1 if spec.causal else max(1, spec.token_types)
    for what, values, count in (("token id", ids, spec.vocab_size), ("token type", types, known)):
        least, most = (0, 0) if values is None else bounds(values)
        if least < 0 or most >= count:
            raise ParameterError(f"{what} {least if least < 0 else most} of text {number} is outside the model's: they "
                                 f"run from 0 to {count - 1}")
    return ids, types, None


def checked_image(number: int, image: EncoderImage, spec) -> Given:
    """The same of an image for the model of `spec`, with a token of 0 for each row that it becomes. ParameterError for
    pixels that are no image of this model's, ContextLengthError for one that becomes too many rows."""
    patches, what = spec.patches, image.name or f"image {number}"
    pixels = np.asarray(image.pixels)
    if pixels.ndim != 3 or pixels.dtype.kind not in "fiu" or pixels.shape[2] != patches.channels:
        raise ParameterError(f"{what}: expected float32 [height, width, {patches.channels}], found {pixels.dtype} "
                             f"{list(pixels.shape)}")
    height, width, _ = pixels.shape
    if min(height, width) < patches.size:
        raise ParameterError(f"{what} has {height} x {width} pixels; the model reads squares of {patches.size}: "
                             "enlarge it")
    if not patches.resize and patches.positions == "learned" and patches.grid(height, width) != patches.grid(
            *patches.image):
        raise ParameterError(f"{what} has {height} x {width} pixels; this model reads images of "
                             f"{patches.image[0]} x {patches.image[1]} only: resize it")
    rows = patches.rows(height, width)
    if rows > spec.max_position_embeddings:
        raise ContextLengthError(f"{what} of {height} x {width} pixels becomes {rows} rows; the model reads at most "
                                 f"{spec.max_position_embeddings}: make it smaller")
    pixels = np.ascontiguousarray(pixels, np.float32)
    if not np.isfinite(pixels).all():
        raise ParameterError(f"{what} has pixels that are NaN or infinite; every pixel must be a finite number")
    return np.zeros(rows, np.int32), None, pixels


class Reading(Job):
    """Texts of one caller, computed longest first, so that a step's texts are of like length.

    texts: of each, as `checked` or `checked_image` gives them;  results: what `read` made of each text, in order.
    read: called after each step with the texts that it finished.
    """

    gathers = True

    def __init__(self, texts: list[Given], read: Read):
        super().__init__([])
        self.results: list[Any] = [None] * len(texts)
        self.tokens = sum(one[0].size for one in texts)
        self._texts = texts
        self._read = read
        self._left = len(texts)
        self._line = deque(sorted(range(len(texts)), key=lambda i: -texts[i][0].size))
        self._finished: dict[int, Part] = {}

    def step_done(self) -> None:
        if not self._finished:
            return
        finished, self._finished = self._finished, {}
        results = self._read(packed_hidden([self._texts[i] for i in finished], list(finished.values())))
        if len(results) != len(finished):
            raise ParameterError(f"`read` must return one result a text: it was given {len(finished)} texts and "
                                 f"returned {len(results)} results")
        for i, result in zip(finished, results, strict=True):
            self.results[i] = result
            self.read += self._texts[i][0].size
        self._left -= len(finished)
        if not self._left:
            self.end()

    def cancel(self) -> None:
        self.fail(self.error or ParameterError("the model was closed before all texts were read; load it again to use "
                                               "it"))


class WholeTexts(Reading):
    """For an encoder: each text, or image, in one step."""

    def start(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self._queue = deque(Text(*self._texts[i], owner=self, index=i) for i in self._line)
        scheduler.texts.add(self._queue, self.terms)

    def take(self, text: Text, values: np.ndarray, begin: int, end: int) -> None:
        self._finished[text.index] = values, begin, end

    def end(self) -> None:
        if self.scheduler is not None:
            self.scheduler.drop_texts(self._queue)
        super().end()


class CausalTexts(Reading):
    """For a model that sees only what came before: as sequences, in chunks where they are long.

    sources: of an encoder-decoder, what each text belongs to.
    """

    def __init__(self, texts: list[Given], read: Read,
                 sources: Sequence[Text] | None = None):
        super().__init__(texts, read)
        self._sources = sources

    def start(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self._rows: dict[int, np.ndarray] = {}  # of texts that are computed in part
        self._queue_some()

    def take(self, sequence: Computed, values: np.ndarray, begin: int, end: int) -> None:
        index, size = sequence.index, len(sequence.tokens)
        first = sequence.computed - (end - begin)
        if end - begin < size:
            if index not in self._rows:
                self._rows[index] = np.empty((size, values.shape[1]), np.float32)
            self._rows[index][first : sequence.computed] = values[begin:end]
            values, begin, end = self._rows[index], 0, size
        if not sequence.behind:
            self._rows.pop(index, None)
            self._finished[index] = values, begin, end
            self.sequences.remove(sequence)
            self.scheduler.finish(sequence, keep=False)

    def step_done(self) -> None:
        super().step_done()
        if not self.done:
            self._queue_some()

    def _queue_some(self) -> None:
        """As much as a step computes and no more: whoever comes next waits for that only."""
        queued = sum(sequence.behind for sequence in self.sequences)
        while self._line and queued < STEP_TOKENS:
            index = self._line.popleft()
            source = self._sources[index] if self._sources else None
            sequence = Computed(self._texts[index][0].tolist(), owner=self, index=index, rows=True, source=source)
            self.sequences.append(sequence)
            self.scheduler.add(sequence, self.terms)
            queued += sequence.behind


class TextRows(Job):
    """One text whose rows are passed on as they are computed, each once: consume(first row, hidden states)."""

    def __init__(self, ids: list[int], source: Text | None, consume: Callable[[int, np.ndarray], None]):
        super().__init__([Computed(list(ids), source=source, rows=True)])
        self.tokens = len(ids) + (0 if source is None else len(source))
        self._consume = consume
        self._given = 0

    def take(self, sequence: Computed, values: np.ndarray, begin: int, end: int) -> None:
        again = self._given - (sequence.computed - (end - begin))  # rows of a text that had to start over
        if begin + again < end:
            self._consume(self._given, values[begin + again : end])
            self._given = sequence.computed
        if not sequence.behind:
            self.read = self.tokens
            self.end()
