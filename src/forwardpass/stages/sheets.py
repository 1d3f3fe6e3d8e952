"""Pictures side by side, enlarged without blurring, and one after another: what people look at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from forwardpass.errors import ParameterError

if TYPE_CHECKING:
    from PIL.Image import Image

MAX_SHEET_PIXELS = 200_000_000


def enlarged(image: Image, scale: int) -> Image:
    """Each pixel becomes scale x scale of the same colour."""
    from PIL.Image import Resampling

    return image if scale == 1 else image.resize((image.width * scale, image.height * scale), Resampling.NEAREST)


def sheet_size(count: int, columns: int, width: int, height: int, most: int = MAX_SHEET_PIXELS) -> tuple[int, int]:
    """Width and height in pixels of a sheet of `count` cells, before there is any picture for it. Raises ParameterError
    if it would have more than `most` pixels."""
    columns = min(columns, count)
    rows = -(-count // columns)
    if width * columns * height * rows > most:
        raise ParameterError(f"a sheet of {columns} x {rows} pictures of {width} x {height} pixels is too large: at "
                             f"most {most:,} pixels; draw fewer together, or separate files")
    return width * columns, height * rows


def sheet(images: Sequence[Image], columns: int, scale: int = 1) -> Image:
    """All pictures on one, row by row, each in the upper left of a cell as large as the largest; black around them.

    Raises ParameterError if that would be more than MAX_SHEET_PIXELS.
    """
    from PIL import Image as pillow

    columns = min(columns, len(images))
    width, height = (max(getattr(one, edge) for one in images) * scale for edge in ("width", "height"))
    out = pillow.new(images[0].mode, sheet_size(len(images), columns, width, height))
    for number, image in enumerate(images):
        out.paste(enlarged(image, scale), (number % columns * width, number // columns * height))
    return out
