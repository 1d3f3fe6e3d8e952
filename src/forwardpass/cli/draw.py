"""`forwardpass draw LABEL|PROMPT... -o FILE`: pictures out of noise, on one sheet or each in a file of its own."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from ..errors import ParameterError
from .output import one_line, print_json, write
from .progress import Progress
from .reading import given, load

FRAMES = 12
"""Of a preview, about: steps that are alike are not worth the time that decoding them takes."""
MAX_SCALE = 64


def run(prompt, model, dtype, threads, out, scale, columns, separate, preview, json, **options) -> int:
    from ..tasks import picture_files as files
    from ..tasks.abilities import require

    path, gif = _paths(out, preview)
    kind = files.kind_of(path, files.FORMATS, "a picture")
    if gif:
        files.kind_of(gif, {".gif": "GIF"}, "an animation")
    _check("--scale", scale, 1, MAX_SCALE)
    _check("--columns", columns, 1, 1000)
    if separate and columns is not None:
        raise ParameterError("--columns arranges one sheet and --separate makes none: give one of them")
    asked = given(options)
    with load(model, "draw", "a diffusion pipeline", dtype, threads) as loaded, Progress("steps") as progress:
        require(loaded, "draw")
        prompts = _prompts(prompt, loaded)
        count = len(prompts) * max(1, asked.get("num_images_per_prompt", 1))
        columns = columns or _columns(len(prompts), count)
        one = loaded.autoencoder.factor if loaded.autoencoder else 1
        check = partial(_check_sizes, files, path, kind, separate, gif, count, columns, scale * one)
        watch = _Watch(count, columns, scale, progress, check, frames=gif is not None)
        drawing = loaded.draw(prompts[0] if len(prompts) == 1 else prompts, callback_on_step_end=watch, **asked)
    written = _save(drawing, path, kind, columns, scale, separate, files)
    if gif:
        files.write_file(gif, files.animated(watch.frames))
        written.append(str(gif))
    _tell(drawing, written, json)
    return 0


def _paths(out: str | None, preview: str | None) -> tuple[Path, Path | None]:
    if out is None:
        raise ParameterError("draw needs a file for its pictures: name it with -o FILE.png")
    return Path(out).expanduser(), None if preview is None else Path(preview).expanduser()


def _check(flag: str, value: int | None, low: int, high: int) -> None:
    if value is not None and not low <= value <= high:
        raise ParameterError(f"{flag} must be from {low} to {high}, not {value}")


def _prompts(words: list[str] | None, model) -> list[str]:
    """What is asked for; of a model of labels all of them, unless some are named."""
    if words:
        return words
    labels = getattr(model, "labels", None)
    if not labels:
        raise ParameterError("draw needs something to draw: name a label or write a prompt")
    return sorted(labels, key=labels.get)


def _columns(prompts: int, pictures: int) -> int:
    """A row for each prompt if each has several pictures, else about as many rows as columns."""
    each = pictures // prompts
    return each if prompts > 1 and each > 1 else math.ceil(math.sqrt(pictures))


def _check_sizes(files, path: Path, kind: str, separate: bool, gif: Path | None, count: int, columns: int, scale: int,
                 latents, steps: int) -> None:
    """Whether what is drawn can be written, as soon as its size is known. scale: pixels of a latent, there."""
    from ..stages.sheets import MAX_SHEET_PIXELS, sheet_size

    height, width = (side * scale for side in latents.shape[1:])
    files.check_edges(*sheet_size(1 if separate else count, columns, width, height), kind, path)
    if gif:
        frames = steps // max(1, steps // FRAMES) + 1
        files.check_edges(*sheet_size(count, columns, width, height, MAX_SHEET_PIXELS // frames), "GIF", gif)


class _Watch:
    """Sees every step of every picture: counts them, and keeps sheets of what some steps look like. check: called with
    the latents of the first step, and how many steps there are;  frames: whether to keep sheets."""

    def __init__(self, count: int, columns: int, scale: int, progress: Callable, check: Callable, frames: bool):
        self.frames: list = []
        self._check = check
        self._count, self._columns, self._scale, self._progress = count, columns, scale, progress
        self._wanted = frames
        self._done = 0
        self._seen: dict[int, dict[int, object]] = {}

    def __call__(self, step, timestep, latents, about) -> None:
        if not self._done:
            self._check(latents, about.steps)
        self._done += 1
        self._progress("drawing", self._done, self._count * about.steps)
        every = max(1, about.steps // FRAMES)
        if not self._wanted or ((about.steps - 1 - step) % every and step):
            return
        seen = self._seen.setdefault(step, {})
        seen[about.picture] = about.preview()
        if len(seen) == self._count:
            from ..stages.sheets import sheet

            del self._seen[step]
            self.frames.append(sheet([seen[i] for i in range(self._count)], self._columns, self._scale))


def _save(drawing, path: Path, kind: str, columns: int, scale: int, separate: bool, files) -> list[str]:
    from ..stages.sheets import enlarged, sheet

    if len(drawing.images) == 1 or not separate:
        image = sheet(drawing.images, columns, scale)
        files.write_file(path, files.encoded(image, files.facts(drawing), kind))
        return [str(path)]
    digits, written = len(str(len(drawing.images))), []
    for number, image in enumerate(drawing.images):
        one = path.with_stem(f"{path.stem}-{number + 1:0{digits}}")
        files.write_file(one, files.encoded(enlarged(image, scale), files.facts(drawing, [number]), kind))
        written.append(str(one))
    return written


def _tell(drawing, written: list[str], json: bool) -> None:
    if json:
        print_json({"files": written, "images": [{"prompt": prompt, "seed": seed} for prompt, seed in
                                                 zip(drawing.prompts, drawing.seeds, strict=True)],
                    "parameters": drawing.parameters, "timings": drawing.timings, "warnings": drawing.warnings})
        return
    count, timings, seeds = len(drawing.images), drawing.timings, drawing.seeds
    write("".join(one_line(name) + "\n" for name in written))
    run_of = f"seed {seeds[0]}" if len(set(seeds)) == 1 else f"seeds {min(seeds)} to {max(seeds)}"
    print(f"{count} picture{'s' if count > 1 else ''} of {drawing.parameters['width']} x "
          f"{drawing.parameters['height']}, {drawing.parameters['num_inference_steps']} steps, {run_of}, "
          f"{timings['total']:.2f} s", file=sys.stderr)
