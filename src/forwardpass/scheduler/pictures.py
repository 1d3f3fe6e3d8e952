"""Pictures that are drawn step by step, and which of them the next step of the engine advances.

A denoising step of a picture does not depend on the others, so pictures at different steps, of different sizes and of
different callers share a pass over the denoiser. What a picture needs beside that, its prompts read, an image to begin
with encoded, its latents decoded, is work of steps of its own.
"""

from __future__ import annotations

from bisect import insort_right
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from forwardpass.decoding.noise.normal import normals
from forwardpass.models.denoiser import Condition
from forwardpass.scheduler.line import Line, Order
from forwardpass.scheduler.pace import Pace
from forwardpass.scheduler.terms import Terms
from forwardpass.scheduler.texts import TEXT_ROWS

STEP_ROWS = 4096
"""Rows of pictures that a step computes at most, unless a single one has more: enough to read weights for many at once,
few enough to keep the memory of a step small."""
STEP_S = 1.0
"""Seconds that a step takes at most where the scheduler can choose and nobody waits for its end: so soon is noticed who
comes or leaves."""

NOISE, SAMPLE, STEPS = 0, 1, 2
"""Streams of a picture's random numbers: what it begins as; its place among what an image to begin with may be encoded
as; and from then on one a step."""

READ, ENCODE, DENOISE, DECODE = "read", "encode", "denoise", "decode"
_order = attrgetter("order")


@dataclass(slots=True, eq=False)
class Prompt:
    """What pictures are to show, or to avoid. Those of one request may share it.

    tokens: int32 [n] for the text encoder, None where nothing need be read;  guidance: see Denoiser.of_text;
    condition: what the denoiser is given, None = not known yet.
    """

    tokens: np.ndarray | None = None
    guidance: float | None = None
    condition: Condition | None = None


@dataclass(slots=True, eq=False)
class Picture:
    """One picture being drawn.

    size: (height, width) of its latents;  rows: that the denoiser computes for one step of it;
    prompts: what to show and, with guidance, what to lead away from;  guidance: how far;
    trajectory: its steps (decoding/noise), None = there are only latents to be decoded;  seed: of all its noise;
    image: float32 [pixels high, pixels wide, channels] in -1..1 to begin with;  given: latents to begin with instead of
    noise of its own, float32 [height, width, channels].

    sample: its latents now, None before the first step;  step: how many are done;  pixels: uint8 [height, width,
    channels] in the end.  owner, index: whose it is, and which of theirs;  order: its place in the line.
    """

    size: tuple[int, int]
    rows: int = 0
    prompts: tuple[Prompt, ...] = ()
    guidance: float = 1.0
    trajectory: Any = None
    seed: int = 0
    channels: int = 0
    image: np.ndarray | None = None
    given: np.ndarray | None = None
    sample: np.ndarray | None = None
    step: int = 0
    pixels: np.ndarray | None = None
    owner: Any = None
    index: int = 0
    order: Order = (0, 0, 0)
    stepper: Any = field(default=None, init=False)

    @property
    def steps(self) -> int:
        return 0 if self.trajectory is None else len(self.trajectory.timesteps)

    @property
    def needs(self) -> str:
        """What is to be done of it next."""
        if any(prompt.condition is None for prompt in self.prompts):
            return READ
        if self.step < self.steps:
            return ENCODE if self.image is not None else DENOISE
        return DECODE

    def noise(self, stream: int) -> np.ndarray:
        """float32 [height, width, channels], each number normally distributed."""
        return normals(self.seed, stream, (*self.size, self.channels))

    def begin(self, clean: np.ndarray | None = None) -> None:
        """What it is before the first step: noise, or `clean` latents that noise is added to."""
        noise = self.noise(NOISE) if self.given is None else self.given
        self.stepper = self.trajectory.stepper()
        self.sample = (noise * np.float32(self.trajectory.init_noise_sigma) if clean is None else
                       self.trajectory.add_noise(clean, noise))
        self.image = self.given = None

    def forget(self) -> None:
        """It is drawn, or nobody wants it any more: only its pixels are kept."""
        self.prompts, self.sample, self.image, self.given, self.stepper = (), None, None, None, None


class PicturePlan(NamedTuple):
    """One step. kind: READ, ENCODE, DENOISE or DECODE, of these pictures;  prompts: those to read."""

    kind: str
    pictures: list[Picture]
    prompts: list[Prompt]

    @property
    def rows(self) -> int:
        """How many are computed, those of a decoder not counted."""
        if self.kind == READ:
            return sum(prompt.tokens.size for prompt in self.prompts)
        return sum(picture.rows for picture in self.pictures) if self.kind == DENOISE else 0


class PictureScheduler:
    """pictures: all that are not finished, in the order of the line;  pace, reading_pace: how long rows of pictures and
    of prompts take."""

    def __init__(self, step_rows: int = STEP_ROWS, text_rows: int = TEXT_ROWS):
        self.step_rows = step_rows
        self.text_rows = text_rows
        self.pictures: list[Picture] = []
        self.pace = Pace()
        self.reading_pace = Pace()
        self._line = Line()

    def add(self, picture: Picture, terms: Terms = Terms()) -> None:  # noqa: B008  only read
        picture.order = self._line.place(terms.priority, terms.key)
        insort_right(self.pictures, picture, key=_order)

    def drop(self, picture: Picture) -> None:
        """It is finished, or nobody wants it any more. Harmless if that is known."""
        if picture in self.pictures:
            self.pictures.remove(picture)
        picture.forget()

    def plan(self, within: float | None = None) -> PicturePlan | None:
        """The next step, None if there is nothing to do.

        within: seconds that it should take at most, because others wait for its end; None = as long as is good for who
        is in it. One step of one picture is computed however long it takes.
        """
        seconds = STEP_S if within is None else within
        chosen = self._first(self.pace.text_rows(seconds, self.step_rows))
        if not chosen:
            return None
        # Those of the smallest priority that need something else get it first: then the rest of what they need is in
        # the same pass as everybody's. Others' prompts and decoding wait until these are done.
        urgent = [one for one in chosen if one.order[0] == chosen[0].order[0]]
        by_need = {kind: [one for one in urgent if one.needs == kind] for kind in (READ, ENCODE, DECODE)}
        if by_need[READ]:
            return self._reading(by_need[READ], seconds)
        for kind in (ENCODE, DECODE):
            if by_need[kind]:
                return PicturePlan(kind, by_need[kind][:1], [])
        return PicturePlan(DENOISE, [one for one in chosen if one.needs == DENOISE], [])

    def _first(self, rows: int) -> list[Picture]:
        """The first in the line, and of those after it whoever still fits. Whoever has no more rows to compute takes
        no room."""
        chosen: list[Picture] = []
        for picture in self.pictures:
            need = picture.rows if picture.step < picture.steps else 0
            if need <= rows or not chosen:
                chosen.append(picture)
                rows -= need
                self._line.started(picture.order)
                if rows <= 0:
                    break
        return chosen

    def _reading(self, pictures: list[Picture], seconds: float) -> PicturePlan:
        left = self.reading_pace.text_rows(seconds, self.text_rows)
        prompts: dict[int, Prompt] = {}
        readers = []
        for picture in pictures:
            new = {id(one): one for one in picture.prompts if one.condition is None and id(one) not in prompts}
            need = sum(one.tokens.size for one in new.values())
            if need > left and prompts:
                break
            prompts |= new
            left -= need
            readers.append(picture)
        return PicturePlan(READ, readers, list(prompts.values()))
