"""POST /v1/images/generations."""

from __future__ import annotations

import base64
import time
from typing import Any

from forwardpass.server.errors import ApiError
from forwardpass.server.reading import run_task
from forwardpass.server.schemas_images import LONGEST_EDGE, ImagesBody, Picture, Pictures
from forwardpass.tasks.picture_files import encoded, facts

MOST_AREA = 4
"""A picture has at most so many times the pixels that its model was trained at: a step of one is computed as a whole
while everybody waits, and with attention it takes the square of this longer."""
FIELDS = {"texts": "prompt", "num_images_per_prompt": "n", "height": "size", "width": "size"}


async def generations(call, body: ImagesBody) -> Pictures:
    """Pictures of a prompt or a label. Requests at different steps share the passes of the model, and each gets what it
    would get alone."""
    model = call.find(body.model, "draw")
    width, height = _size(body.size, model)
    kind = body.output_format or "png"
    done = await run_task(
        call, body, FIELDS, _drawn, model, body.prompt, kind.upper(), num_images_per_prompt=body.n, width=width,
        height=height, seed=body.seed, negative_prompt=body.negative_prompt,
        num_inference_steps=body.num_inference_steps, guidance_scale=body.guidance_scale, scheduler=body.scheduler)
    pictures, size = done.result
    return Pictures(created=int(time.time()), data=pictures, model=body.model, output_format=kind, size=size,
                    warnings=done.warnings)


def _drawn(model, prompt: str, kind: str, **given: Any) -> tuple[list[Picture], str]:
    """The pictures as files, and their size."""
    drawing = model.draw(prompt, **given)
    files = [encoded(image, facts(drawing, [i]), kind) for i, image in enumerate(drawing.images)]
    size = f"{drawing.parameters['width']}x{drawing.parameters['height']}"
    return [Picture(b64_json=base64.b64encode(file).decode(), seed=seed)
            for file, seed in zip(files, drawing.seeds, strict=True)], size


def _size(text: str | None, model) -> tuple[int | None, int | None]:
    if text in (None, "auto"):
        return None, None
    width, height = map(int, text.split("x"))
    factor = model.autoencoder.factor if model.autoencoder else 1
    own_height, own_width = (side * factor for side in model.denoiser.sample_size)
    most = MOST_AREA * own_height * own_width
    if max(width, height) > LONGEST_EDGE or width * height > most:
        raise ApiError(400, f"size: expected at most {LONGEST_EDGE} pixels a side and {most:,} in all, {MOST_AREA} "
                       f"times what this model was trained at ({own_width}x{own_height}); found {text}",
                       code="invalid_value", param="size")
    return width, height
