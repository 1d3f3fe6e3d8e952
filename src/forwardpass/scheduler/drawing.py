"""Pictures that somebody waits for."""

from __future__ import annotations

from collections import deque
from time import perf_counter
from typing import NamedTuple

import numpy as np

from forwardpass.errors import ParameterError
from forwardpass.scheduler.job import Job
from forwardpass.scheduler.pictures import Picture, PictureScheduler

STAGES = ("preprocess", "read", "encode", "denoise", "decode", "postprocess")


class StepDone(NamedTuple):
    """A denoising step of a picture. step: which one, from 0;  steps: how many there are;  latents: float32 [height,
    width, channels] after it, which nobody changes any more."""

    step: int
    steps: int
    timestep: float
    latents: np.ndarray


class Drawing(Job):
    """Pictures of one caller, each drawn as if it were alone.

    pieces: (number of the picture, StepDone) not yet collected, where the caller follows the steps;
    steps_done: denoising steps of all pictures so far.
    """

    def __init__(self, pictures: list[Picture], follow: bool = False, started: float | None = None):
        super().__init__([], started)
        self.seconds = dict.fromkeys(STAGES, 0.0) | {"preprocess": self.seconds["preprocess"]}
        self.pictures = pictures
        self.pieces: deque[tuple[int, StepDone]] = deque()
        self.steps_done = 0
        self._follow = follow
        self._left = len(pictures)
        for index, picture in enumerate(pictures):
            picture.owner, picture.index = self, index
        prompts = {id(prompt): prompt for picture in pictures for prompt in picture.prompts}
        self._given = sum(prompt.tokens.size for prompt in prompts.values() if prompt.tokens is not None)
        # What limits are for: each step computes all rows of a picture again.
        self.tokens = self._given + sum(picture.rows * picture.steps for picture in pictures)

    @property
    def news(self) -> bool:
        return self.done or bool(self.pieces)

    @property
    def read(self) -> int:
        return self._given if self.steps_done else 0

    def start(self, scheduler: PictureScheduler) -> None:
        self.scheduler = scheduler
        for picture in self.pictures:
            scheduler.add(picture, self.terms)

    def stepped(self, picture: Picture, timestep: float) -> None:
        """A step of a picture is done."""
        self.steps_done += 1
        self.generated += picture.rows
        if self._follow:
            self.pieces.append((picture.index, StepDone(picture.step - 1, picture.steps, timestep, picture.sample)))

    def drawn(self, picture: Picture, pixels: np.ndarray) -> None:
        """A picture is finished. pixels: uint8 [height, width, channels]."""
        picture.pixels = pixels
        self.scheduler.drop(picture)
        self._left -= 1
        if not self._left:
            self.end()

    def cancel(self) -> None:
        """What is half drawn is of no use: whoever waits is told that there will be nothing."""
        self.fail(self.error or ParameterError("the model was closed before all pictures were drawn; load it again to "
                                               "use it"))

    def timings(self) -> dict[str, float]:
        """Seconds: total since the request came, and the stages' shares of the steps it was in; and how many denoising
        steps there were."""
        end = self.ended if self.ended is not None else perf_counter()
        return {"total": end - self.started, **self.seconds, "steps": self.steps_done}

    def end(self) -> None:
        for picture in self.pictures if self.scheduler else ():  # None: it never got that far
            self.scheduler.drop(picture)
        self.over()
