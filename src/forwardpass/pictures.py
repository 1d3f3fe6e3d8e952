"""The engine of pictures: noise in, pictures out, one denoising step at a time (see stepping.py)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from forwardpass import config
from forwardpass.config import memory_text as size
from forwardpass.errors import CapacityError, ForwardpassError
from forwardpass.models.denoiser import Denoiser
from forwardpass.scheduler.arrays import packed_texts
from forwardpass.scheduler.drawing import Drawing
from forwardpass.scheduler.pictures import (
    DECODE,
    DENOISE,
    ENCODE,
    READ,
    SAMPLE,
    STEPS,
    Picture,
    PicturePlan,
    PictureScheduler,
    Prompt,
)
from forwardpass.scheduler.shared import SharedBudget
from forwardpass.scheduler.stats import EngineStats
from forwardpass.scheduler.texts import Text
from forwardpass.scheduler.turns import Turns
from forwardpass.stages.decode import decode
from forwardpass.stages.embed import embed
from forwardpass.stages.pictures import guided, to_pixels
from forwardpass.stepping import Stepping

DAMAGED = ("; the model's weights are damaged, or too large for this dtype: try dtype='float32'. A smaller "
           "guidance_scale helps where it was large")


class PictureStep(NamedTuple):
    """What a step computed. kind: as of PicturePlan;  sizes: (height, width) of the latents of each pass over the
    denoiser or the autoencoder, both halves of guidance counted;  contexts: tokens of the text that each pass looks at,
    or of each text that was read."""

    kind: str
    sizes: list[tuple[int, int]]
    contexts: list[int]
    seconds: float


class PictureEngine(Stepping):
    """denoiser: what predicts;  autoencoder: between pictures and latents, None = latents are pictures;
    encoder: the network that reads prompts, None = the denoiser takes labels.
    budget: of engines that share their turns; these need a driver, the same for all.

    noted: every step is added to it while it is a list.
    """

    def __init__(self, denoiser: Denoiser, autoencoder: Any = None, encoder: Any = None,
                 budget: SharedBudget | None = None):
        self.denoiser = denoiser
        self.autoencoder = autoencoder
        self.encoder = encoder
        self.scheduler = PictureScheduler()
        self.steps = 0
        self.noted: list[PictureStep] | None = None
        self._channels = denoiser.latent_channels
        self._compute: dict[str, Callable[[PicturePlan], list[tuple]]] = {
            READ: self._read, ENCODE: self._encode, DENOISE: self._denoise, DECODE: self._decode}
        super().__init__(self.scheduler, Turns() if budget is None else budget.turns, budget is not None)

    def add(self, pictures: Sequence[Picture], follow: bool = False, started: float | None = None) -> Drawing:
        """Queue pictures of one caller. follow: their steps are to be told, see Drawing.pieces.

        Raises CapacityError if they can never fit into this machine's memory.
        """
        self._room(pictures)
        drawing = Drawing(list(pictures), follow, started)
        self._admit(drawing)
        return drawing

    def decode(self, latents: np.ndarray) -> np.ndarray:
        """uint8 [height, width, channels], what latents of any step look like. Waits its turn like everything else."""
        if self.autoencoder is None:
            return to_pixels(latents)
        drawing = self.add([Picture(latents.shape[:2], channels=self._channels, sample=latents)])
        self.run([drawing])
        return drawing.pictures[0].pixels

    def stats(self) -> EngineStats:
        meter, waiting = self._meter, self.scheduler.pictures
        begun = sum(picture.sample is not None for picture in list(waiting))
        return EngineStats(self.steps, meter.rows, meter.generated, meter.step_seconds(), meter.batch(),
                           len(self._jobs), begun, len(waiting) - begun, dict(self._jobs.ended),
                           preemptions=0, kv_held=0, kv_size=0, prefix_asked=0, prefix_found=0, kv_kept=0, kv_dropped=0)

    def _room(self, pictures: Sequence[Picture]) -> None:
        """What the largest step of one of these takes, and all that is kept of them meanwhile."""
        need, free = 0, config.available_memory()
        one = self.autoencoder
        factor, colours = (1, self._channels) if one is None else (one.factor, one.image_channels)
        kinds = Counter((one.size, one.rows, len(one.prompts)) for one in pictures)
        for ((height, width), rows, halves), count in kinds.items():
            if halves:
                at_once = halves * max(1, min(count, self.scheduler.step_rows // rows))
                need = max(need, self.denoiser.activation_bytes([(height, width)] * at_once))
            if self.autoencoder is not None:
                need = max(need, self.autoencoder.activation_bytes(height, width))
        kept = sum(one.size[0] * one.size[1] * (8 * self._channels + colours * factor**2) for one in pictures)
        if need + kept > free:
            height, width = max((one.size for one in pictures), key=lambda it: it[0] * it[1])
            raise CapacityError(
                f"{len(pictures)} picture(s) of up to {height * factor}x{width * factor} pixels need {size(need)} of "
                f"memory while they are drawn and {size(kept)} until they are all done; {size(free)} are free: draw "
                "smaller ones or fewer")

    def _step(self, within: float | None = None, alone: bool = True) -> bool:
        plan = self.scheduler.plan(None if alone else within)
        if plan is None:
            return False
        jobs = {id(picture.owner): picture.owner for picture in plan.pictures}
        generated = sum(job.generated for job in jobs.values())
        start = perf_counter()
        try:
            results = self._compute[plan.kind](plan)
        except Exception as error:  # not an interrupt: nothing is noted yet, so that step is planned again
            self._step_failed(jobs.values(), error)
            return True
        self.steps += 1
        computed = perf_counter()
        seconds = {plan.kind: computed - start}
        step = self._noted(plan, seconds[plan.kind])
        self._hand_out(results)
        after = "postprocess" if plan.kind == DENOISE else plan.kind
        seconds[after] = seconds.get(after, 0.0) + perf_counter() - computed
        if plan.kind == READ:
            self.scheduler.reading_pace.note_texts(plan.rows, seconds[READ])
        elif plan.kind == DENOISE:
            self.scheduler.pace.note_texts(plan.rows, sum(seconds.values()))
        if self.noted is not None:
            self.noted.append(step)
        self._meter.steps(1, len(plan.pictures), plan.rows, sum(job.generated for job in jobs.values()) - generated,
                          seconds)
        self._step_done(jobs.values(), seconds)
        return True

    # ---- the four kinds of steps: each gives (job, who takes a result of its, the result's parts)

    def _read(self, plan: PicturePlan) -> list[tuple]:
        packed, _ = packed_texts([Text(prompt.tokens) for prompt in plan.prompts])
        hidden = decode(self.encoder, embed(self.encoder, packed)).values
        rows = {id(prompt): hidden[begin:end] for prompt, begin, end in zip(
            plan.prompts, packed.starts[:-1], packed.starts[1:], strict=True)}
        return [(picture.owner, self._understood, (picture, rows)) for picture in plan.pictures]

    def _understood(self, picture: Picture, rows: dict[int, np.ndarray]) -> None:
        for prompt in picture.prompts:
            if prompt.condition is None and id(prompt) in rows:
                prompt.condition = self.denoiser.of_text(rows[id(prompt)], prompt.guidance)

    def _encode(self, plan: PicturePlan) -> list[tuple]:
        (picture,) = plan.pictures
        mean = variance = None
        if self.autoencoder is not None:
            mean, variance = self.autoencoder.encode(picture.image)
        return [(picture.owner, self._encoded, (picture, mean, variance))]

    def _encoded(self, picture: Picture, mean: np.ndarray | None, variance: np.ndarray | None) -> None:
        """variance: its logarithm."""
        clean = picture.image
        if mean is not None:
            one = self.autoencoder
            clean = mean + np.exp(np.float32(0.5) * variance) * picture.noise(SAMPLE)
            clean = (clean - np.float32(one.shift_factor or 0)) * np.float32(one.scaling_factor)
        picture.begin(_finite(clean, picture, "encoded"))

    def _denoise(self, plan: PicturePlan) -> list[tuple]:
        latents, timesteps, conditions = [], [], []
        for picture in plan.pictures:
            if picture.sample is None:
                picture.begin()
            sample = picture.stepper.scale_input(picture.step, picture.sample)
            for prompt in picture.prompts:
                latents.append(sample)
                timesteps.append(picture.trajectory.timesteps[picture.step])
                conditions.append(prompt.condition)
        predicted = iter(self.denoiser.predict(latents, np.array(timesteps, np.float32), conditions))
        return [(picture.owner, self._denoised, (picture, [next(predicted) for _ in picture.prompts]))
                for picture in plan.pictures]

    def _denoised(self, picture: Picture, predicted: list[np.ndarray]) -> None:
        shown, *avoided = [one[..., : self._channels] for one in predicted]  # behind them may be variances
        with np.errstate(all="ignore"):  # what is no number is looked for below
            if avoided:
                shown = guided(shown, avoided[0], picture.guidance)
            sample = picture.stepper.step(picture.step, shown, picture.sample,
                                          lambda step: picture.noise(STEPS + step))
        timestep = float(picture.trajectory.timesteps[picture.step])
        picture.sample = _finite(sample, picture, f"after step {picture.step + 1} of {picture.steps}")
        picture.step += 1
        picture.owner.stepped(picture, timestep)
        if picture.step == picture.steps and self.autoencoder is None:
            picture.owner.drawn(picture, to_pixels(picture.sample))

    def _decode(self, plan: PicturePlan) -> list[tuple]:
        (picture,) = plan.pictures
        one = self.autoencoder
        values = one.decode(picture.sample / np.float32(one.scaling_factor) + np.float32(one.shift_factor or 0))
        return [(picture.owner, self._decoded, (picture, values))]

    @staticmethod
    def _decoded(picture: Picture, values: np.ndarray) -> None:
        picture.owner.drawn(picture, to_pixels(_finite(values, picture, "decoded")))

    def _noted(self, plan: PicturePlan, seconds: float) -> PictureStep:
        if plan.kind == READ:
            return PictureStep(plan.kind, [], [prompt.tokens.size for prompt in plan.prompts], seconds)
        halves: list[tuple[tuple[int, int], Prompt | None]] = [
            (picture.size, prompt) for picture in plan.pictures
            for prompt in (picture.prompts if plan.kind == DENOISE else [None])]
        return PictureStep(plan.kind, [one for one, _ in halves],
                           [prompt.condition.tokens if prompt else 0 for _, prompt in halves], seconds)


def _finite(values: np.ndarray, picture: Picture, when: str) -> np.ndarray:
    if not np.isfinite(values).all():
        raise ForwardpassError(f"picture {picture.index} (seed {picture.seed}) does not consist of finite numbers "
                               f"{when}{DAMAGED}")
    return values
