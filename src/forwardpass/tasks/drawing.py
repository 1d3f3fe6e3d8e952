"""`DrawingModel`: what `forwardpass.load` returns for a diffusion pipeline. It makes pictures out of noise."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from forwardpass.contracts import Drawing, DrawingStep
from forwardpass.decoding import _checks as check
from forwardpass.decoding.noise.schedule import NoiseSchedule, read_schedule
from forwardpass.errors import ParameterError, UnsupportedModelError
from forwardpass.models.denoiser import Denoiser
from forwardpass.models.task_settings import TaskSettings
from forwardpass.pictures import PictureEngine
from forwardpass.scheduler.drawing import Drawing as Drawn
from forwardpass.scheduler.drawing import StepDone
from forwardpass.scheduler.pictures import Picture, Prompt
from forwardpass.scheduler.shared import SharedBudget
from forwardpass.stages.pictures import from_pixels
from forwardpass.stages.texts import Limit, encode_texts
from forwardpass.tasks import picture_wishes as wishes
from forwardpass.tasks.abilities import NEEDS, require
from forwardpass.tasks.loaded import CLOSED, Loaded
from forwardpass.tasks.notices import notice
from forwardpass.tasks.pipeline import OpenedPipeline, TextEncoder

if TYPE_CHECKING:
    from PIL.Image import Image

GUIDANCE = {"DiTPipeline": 4.0, "PixArtAlphaPipeline": 4.5, "PixArtSigmaPipeline": 4.5,
            "LatentConsistencyModelPipeline": 8.5}
"""What guidance_scale is unless somebody says otherwise, as diffusers' pipelines have it; of others it is 7.5."""
STEPS = {"LCMScheduler": 4, "DPMSolverMultistepScheduler": 20, "EulerDiscreteScheduler": 30,
         "EulerAncestralDiscreteScheduler": 30}
"""And num_inference_steps, as far as these schedules usually need; of others it is 50."""
_STRENGTH = check.number(0, 1, open_low=True, note="how much of the image is drawn anew")


class DrawingModel(Loaded):
    """A loaded diffusion pipeline. May be used from several threads: their pictures share steps.

    denoiser, autoencoder, text: its parts (see OpenedPipeline);  pipeline: the class that its files name;
    labels: name -> number of what it can be asked for, {} = it takes texts, or numbers alone;
    tasks: what it can do.
    """

    settings = TaskSettings()

    def __init__(self, opened: OpenedPipeline, budget: SharedBudget | None = None):
        """budget: of several models (see Host); None = this one is alone."""
        self.path = opened.path
        self.pipeline = opened.name
        self._opened: OpenedPipeline | None = opened
        self.spec = opened.denoiser.spec
        self.tokenizer = opened.text.tokenizer if opened.text else None
        self.labels = opened.labels
        self.dtype = opened.dtype
        self.kv_dtype = opened.denoiser.kv_dtype
        self.warnings = opened.warnings
        self.stored_bytes = opened.stored
        self.arithmetic = opened.arithmetic
        self.weights_bytes = opened.weights_bytes
        channels = self.autoencoder.image_channels if self.autoencoder else self.denoiser.latent_channels
        if channels not in (1, 3):
            raise UnsupportedModelError(f"{self.path}: a picture has 1 or 3 channels; this model's have {channels}")
        self.tasks = tuple(task for task in NEEDS if task in ("draw", "explain"))
        self.told: set[str] = set()
        self._config = opened.schedule
        self._schedules: dict[str | None, NoiseSchedule] = {}
        self._engine = PictureEngine(opened.denoiser, opened.autoencoder, opened.text.network if opened.text else None,
                                     budget)
        for sentence in opened.warnings:
            warnings.warn(sentence, stacklevel=4)

    @property
    def _parts(self) -> OpenedPipeline:
        """Raises ParameterError once the model is closed, by another thread perhaps and in the middle of a call."""
        opened = self._opened
        if opened is None:
            raise ParameterError(CLOSED)
        return opened

    @property
    def denoiser(self) -> Denoiser:
        return self._parts.denoiser

    @property
    def autoencoder(self) -> Any | None:
        return self._parts.autoencoder

    @property
    def text(self) -> TextEncoder | None:
        return self._parts.text

    def draw(self, prompt: str | int | Sequence[str] | Sequence[int], *,
             negative_prompt: str | Sequence[str] | None = None, num_inference_steps: int | None = None,
             guidance_scale: float | None = None, height: int | None = None, width: int | None = None,
             seed: int | Sequence[int] | None = None, num_images_per_prompt: int = 1, image: Any = None,
             strength: float = 0.8, scheduler: str | None = None, latents: Any = None,
             callback_on_step_end: Callable[..., Any] | None = None) -> Drawing:
        """Pictures of each prompt, those of the first one first. See contracts.Drawing.

        prompt: a text; of models of labels a label, by its name in any case or its number. A list gives pictures of
            each. A text that is longer than the text encoder reads is cut, which Drawing.warnings says, too.
        negative_prompt: what guidance leads away from; None = nothing in particular. One for all, or one a prompt.
        num_inference_steps: denoising steps; None = 4 with LCM, 20 with DPM-Solver++, 30 with Euler's methods, else 50.
        guidance_scale: how far from the negative prompt, or from no label in particular: predicted is
            u + guidance_scale * (c - u). Up to 1 the prompt alone counts, nothing is guided, and each step takes half
            the time. None = as diffusers: 4 (DiT), 4.5 (PixArt), 8.5 (latent consistency), else 7.5.
        height, width: in pixels, multiples of what the model can draw; None = what it was trained at, or those of
            `image` rounded down.
        seed: picture i of each prompt has seed + i and is always the same, in any company. A list has one for each
            picture. None = others each time; Drawing.seeds says which.
        image, strength: to begin with an image (whatever stages/images.py reads; one for all, or one a prompt) instead
            of noise. Of num_inference_steps the last `strength`, in (0, 1], are done: 1 keeps nothing of it.
        scheduler: the name of a diffusers scheduler, to take noise away by another method.
        latents: float32 [pictures, channels, height, width], the noise to begin with, each number normally distributed.
        callback_on_step_end: called as callback(step, timestep, latents) after every step of each picture, in this
            thread; latents float32 [channels, height, width], read-only. If it takes a fourth argument it is given
            the DrawingStep, too: which picture it is, of how many steps, and what it looks like. An error in it ends
            the drawing and is raised here.

        Raises ParameterError for arguments, before anything is computed, CapacityError for pictures that don't fit into
        memory, and ForwardpassError for one that does not come out as numbers.
        """
        started, told = perf_counter(), []
        pictures, shown, parameters = self._wanted(told, prompt, negative_prompt, num_inference_steps, guidance_scale,
                                                   height, width, seed, num_images_per_prompt, image, strength,
                                                   scheduler, latents)
        callback = _callback(callback_on_step_end)
        for sentence in told:
            notice(sentence, 2)
        engine = self.engine
        drawn = engine.add(pictures, callback is not None, started)
        try:
            if callback is None:
                engine.run([drawn])
            else:
                self._follow(engine, drawn, callback)
        finally:
            engine.cancel(drawn)
        begun = perf_counter()
        images = [as_image(picture.pixels) for picture in drawn.pictures]
        timings = drawn.timings()
        timings["postprocess"] += perf_counter() - begun
        timings["total"] += perf_counter() - begun
        return Drawing(images, [picture.seed for picture in pictures], shown, timings, parameters, tuple(told))

    def explain(self, prompt: Any, **params: Any):
        """Draw, and report where the time went: prompts, denoising steps, decoding, against this machine's limits.
        The arguments are those of draw()."""
        from forwardpass.explain.drawing import explain

        return explain(self, prompt, params)

    def close(self) -> None:
        """End all requests and free the model's memory. Closing twice is harmless."""
        super().close()
        self._opened = None

    def __repr__(self) -> str:
        return f"<forwardpass.DrawingModel {self.path.name}: {self.pipeline}, {self.dtype}>"

    # ---- what is asked

    def _wanted(self, told: list[str], prompt, negative_prompt, num_inference_steps, guidance_scale, height, width,
                seed, num_images_per_prompt, image, strength, scheduler, latents
                ) -> tuple[list[Picture], list[str], dict[str, Any]]:
        """The pictures, what each shows, and what they are drawn with. told: gets what the user should know."""
        self.engine  # noqa: B018  the error of a closed model
        denoiser = self.denoiser
        prompts = wishes.prompts(prompt, denoiser.takes)
        each = wishes.count(num_images_per_prompt, len(prompts))
        seeds = wishes.seeds(seed, len(prompts), each)
        scale = wishes.guidance(guidance_scale, GUIDANCE.get(self.pipeline, 7.5))
        guided = scale > 1 and not denoiser.guided
        avoided = self._avoided(told, negative_prompt, len(prompts), guided)
        schedule = self._schedule(scheduler)
        steps = num_inference_steps
        if steps is None:
            steps = min(STEPS.get(schedule.name, 50), schedule.total)
        strength = _STRENGTH("strength", strength)
        trajectory = schedule.trajectory(steps, 1.0 if image is None else strength)
        factor = self.autoencoder.factor if self.autoencoder else 1
        channels = denoiser.latent_channels
        given = None if latents is None else wishes.latents(latents, len(seeds), channels)
        size, images = self._begin(height, width, image, given, factor, len(prompts))
        if given is not None and given.shape[1:3] != size.latent:
            raise ParameterError(f"latents of {given.shape[1]}x{given.shape[2]} make pictures of "
                                 f"{given.shape[1] * factor}x{given.shape[2] * factor} pixels; asked for are "
                                 f"{size.height}x{size.width}")
        shown = self._prompts(told, prompts, scale)
        against = self._prompts(told, avoided, scale) if guided else [None] * len(prompts)
        rows = size.latent[0] * size.latent[1] // denoiser.patch**2
        pictures = []
        for number, seed_of in enumerate(seeds):
            owner = number // each
            both = tuple(one for one in (shown[owner], against[owner]) if one is not None)
            pictures.append(Picture(size.latent, rows * len(both), both, scale, trajectory, seed_of, channels,
                                    None if images is None else images[owner],
                                    None if given is None else given[number]))
        names = [self._name(one) for one in prompts for _ in range(each)]
        parameters = {
            "model": self.path.name, "dtype": self.dtype, "scheduler": schedule.name, "num_inference_steps": int(steps),
            "guidance_scale": scale, "height": size.height, "width": size.width,
            **({"strength": strength} if image is not None else {}),
            **({"negative_prompt": negative_prompt} if negative_prompt and guided else {})}
        return pictures, names, parameters

    def _avoided(self, told: list[str], given: Any, count: int, guided: bool) -> list[Any]:
        """What each prompt is led away from."""
        if self.denoiser.takes == "label":
            if given is not None:
                raise ParameterError("negative_prompt is for models that read texts; this one takes labels and is led "
                                     "away from none in particular: leave it out")
            return [None] * count
        avoided = wishes.negatives(given, count)
        if any(avoided) and not guided:
            told.append("negative_prompt is not used: " + (
                "this model follows guidance_scale without it" if self.denoiser.guided else
                "guidance_scale is at most 1, where nothing is guided"))
        return avoided

    def _prompts(self, told: list[str], given: list[Any], scale: float) -> list[Prompt]:
        """Equal ones are the same, so that they are read once."""
        unique = list(dict.fromkeys(given))
        if self.denoiser.takes == "label":
            made = {one: Prompt(condition=self.denoiser.of_label(None if one is None else self._label(one)))
                    for one in unique}
        else:
            made = {one: Prompt(np.array(ids, np.int32), scale if self.denoiser.guided else None)
                    for one, ids in zip(unique, self._tokens(told, unique), strict=True)}
        return [made[one] for one in given]

    def _tokens(self, told: list[str], texts: list[str]) -> list[list[int]]:
        """Token ids of prompts as the text encoder reads them."""
        text = self.text
        if text.how == "t5":
            texts = [one.lower().strip() for one in texts]  # as PixArt was trained
        found = encode_texts(text.tokenizer, texts, Limit(text.max_length, "right"), types=False)
        for prompt, one in zip(texts, found, strict=True):
            if one.cut:
                told.append(f"the prompt {prompt[:40]!r}... is longer than the {text.max_length} tokens that the text "
                            f"encoder reads: the last {one.cut} were left out")
        fill = text.max_length if text.how == "clip" else 0
        return [[*one.ids, *[text.pad_id] * (fill - len(one.ids))] for one in found]

    def _label(self, given: str | int) -> int:
        return wishes.label(given, self.labels, self.denoiser.labels)

    def _name(self, given: str | int) -> str:
        """Of a prompt."""
        if self.denoiser.takes == "text":
            return given
        number = self._label(given)
        return next((name for name, one in self.labels.items() if one == number), str(number))

    def _schedule(self, name: str | None) -> NoiseSchedule:
        """How steps take noise away; None = as the files say. Read when first wanted, for where it is one that is not
        implemented another may be named."""
        if name is not None and not isinstance(name, str):
            raise ParameterError(f"scheduler must be the name of a diffusers scheduler, not {name!r}")
        if name not in self._schedules:
            self._schedules[name] = read_schedule(self._config, name)
        return self._schedules[name]

    def _begin(self, height: Any, width: Any, image: Any, given: np.ndarray | None, factor: int, prompt_count: int
               ) -> tuple[wishes.Size, list[np.ndarray] | None]:
        """The size of all pictures, and the image that those of each prompt begin with."""
        denoiser = self.denoiser
        default = tuple(denoiser.sample_size) if given is None else given.shape[1:3]
        if image is None:
            return self._size(height, width, factor, default), None
        from forwardpass.stages.images import read_image

        found: dict[int, Image] = {}
        listed = wishes.listed_images(image, prompt_count)
        for number, one in enumerate(listed):
            if id(one) not in found:
                found[id(one)] = read_image(one, None if len(listed) == 1 else f"image {number}")
        if given is None:
            unit = denoiser.patch
            first = found[id(listed[0])]
            default = tuple(max(unit, pixels // factor // unit * unit) for pixels in (first.height, first.width))
        size = self._size(height, width, factor, default)
        channels = self.autoencoder.image_channels if self.autoencoder else denoiser.latent_channels
        ready = {key: _numbers(one, size, channels) for key, one in found.items()}
        return size, [ready[id(one)] for one in listed]

    def _size(self, height: Any, width: Any, factor: int, default: tuple[int, int]) -> wishes.Size:
        size = wishes.size(height, width, factor, self.denoiser, default)
        if self.autoencoder:
            self.autoencoder.check_size(*size.latent)
        return size

    # ---- while they are drawn

    def _follow(self, engine: PictureEngine, drawn: Drawn, callback: Callable[[DrawingStep], Any]) -> None:
        while True:
            engine.advance(drawn)
            while drawn.pieces:
                index, step = drawn.pieces.popleft()
                callback(self._told_of(engine, drawn.pictures[index], step))
            if drawn.done:
                if drawn.error is not None:
                    raise drawn.error
                return

    @staticmethod
    def _told_of(engine: PictureEngine, picture: Picture, step: StepDone) -> DrawingStep:
        latents = step.latents.transpose(2, 0, 1)
        latents.flags.writeable = False
        return DrawingStep(picture.index, picture.seed, step.step, step.steps, step.timestep, latents,
                           lambda: as_image(engine.decode(step.latents)))


def as_image(pixels: np.ndarray) -> Image:
    """Pillow's image of uint8 [height, width, channels]: of one channel in grey, of three in colour."""
    from PIL import Image

    return Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)


def _numbers(image: Image, size: wishes.Size, channels: int) -> np.ndarray:
    """float32 [height, width, channels] in -1..1 of an image, resized if need be, as diffusers does it."""
    from PIL.Image import Resampling

    if channels == 1:
        image = image.convert("L")
    if image.size != (size.width, size.height):
        image = image.resize((size.width, size.height), Resampling.LANCZOS)
    pixels = np.asarray(image)
    return from_pixels(pixels.reshape(size.height, size.width, channels))


def _callback(given: Any) -> Callable[[DrawingStep], Any] | None:
    """One that takes a DrawingStep, of the user's."""
    if given is None:
        return None
    if not callable(given):
        raise ParameterError("callback_on_step_end must be a function of step, timestep and latents, not "
                             f"{type(given).__name__}")
    try:
        taken = inspect.signature(given).parameters.values()
    except (TypeError, ValueError):  # one that is not written in Python
        taken = ()
    places = sum(one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD) for one in taken)
    if places >= 4 or any(one.kind == one.VAR_POSITIONAL for one in taken):
        return lambda step: given(step.step, step.timestep, step.latents, step)
    return lambda step: given(step.step, step.timestep, step.latents)


def _cannot(task: str) -> Callable[..., Any]:
    def call(self: DrawingModel, *args: Any, **params: Any) -> Any:
        require(self, task)

    call.__doc__ = f"This model cannot: {task} needs {NEEDS[task]}."
    return call


_BEGINNINGS: Mapping[str, str] = {f"begin_{task}": task for task in ("generate", "stream", "chat", "complete")}
for _name, _task in {**{task: task for task in NEEDS}, **_BEGINNINGS}.items():
    if not hasattr(DrawingModel, _name):
        setattr(DrawingModel, _name, _cannot(_task))
