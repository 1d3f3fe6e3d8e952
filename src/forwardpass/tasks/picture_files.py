"""Drawn pictures as files. A PNG holds what it was drawn with, so that it can be drawn again."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forwardpass.contracts import Drawing
from forwardpass.errors import ParameterError

if TYPE_CHECKING:
    from PIL.Image import Image

PARAMETERS = "parameters"
"""The text of a PNG file (a tEXt or iTXt chunk) that holds them, as JSON."""
FORMATS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".webp": "WEBP"}
LONGEST = {"JPEG": 65_500, "WEBP": 16_383, "GIF": 65_535}
"""Pixels of an edge at most, in formats that cannot say more."""
FRAME_MS, LAST_MS = 120, 1500
"""How long an animation shows its pictures, and the last of them."""


def facts(drawing: Drawing, numbers: Sequence[int] | None = None) -> dict[str, Any]:
    """What some of the pictures were drawn with. numbers: which ones, None = all on one sheet."""
    which = range(len(drawing.images)) if numbers is None else numbers
    one = len(which) == 1
    prompts, seeds = [drawing.prompts[i] for i in which], [drawing.seeds[i] for i in which]
    return {"prompt": prompts[0] if one else prompts, "seed": seeds[0] if one else seeds, **drawing.parameters}


def encoded(image: Image, about: Mapping[str, Any], kind: str = "PNG") -> bytes:
    """The bytes of a file. about: what it was drawn with, kept in PNG files only."""
    from PIL.PngImagePlugin import PngInfo

    file, options = BytesIO(), {}
    if kind == "PNG":
        info = PngInfo()
        info.add_itxt(PARAMETERS, json.dumps(dict(about), ensure_ascii=False))
        options = {"pnginfo": info}
    elif kind == "JPEG":
        options = {"quality": 95}
    image.save(file, kind, **options)
    return file.getvalue()


def animated(frames: Sequence[Image]) -> bytes:
    """A GIF of pictures of one size, which stops for a while at the last one and begins again."""
    file = BytesIO()
    shown = [one.convert("P" if one.mode == "RGB" else "L") for one in frames]
    shown[0].save(file, "GIF", save_all=True, append_images=shown[1:], loop=0,
                  duration=[FRAME_MS] * (len(shown) - 1) + [LAST_MS])
    return file.getvalue()


def kind_of(path: Path, kinds: Mapping[str, str], what: str) -> str:
    """The format that a file's name stands for, and that it can be written, before anything is computed for it."""
    kind = kinds.get(path.suffix.lower())
    if kind is None:
        raise ParameterError(f"{path}: expected {what} whose name ends in {', '.join(kinds)}, found "
                             f"{path.suffix or 'no ending'}")
    if not path.parent.is_dir():
        raise ParameterError(f"{path}: there is no folder {path.parent}; make it, or name another file")
    if path.is_dir():
        raise ParameterError(f"{path}: expected a file, found a folder")
    try:
        _try_to_write(path)
    except OSError as error:
        raise _not_written(path, error) from None
    return kind


def check_edges(width: int, height: int, kind: str, path: Path) -> None:
    """Raises ParameterError for a picture that its format cannot hold."""
    most = LONGEST.get(kind, 2**31 - 1)
    if max(width, height) > most:
        raise ParameterError(f"{path}: a {kind} file has at most {most:,} pixels a side, and this would be {width} x "
                             f"{height}: name a .png file, or make it smaller")


def write_file(path: Path, data: bytes) -> None:
    try:
        path.write_bytes(data)
    except OSError as error:
        raise _not_written(path, error) from None


def _try_to_write(path: Path) -> None:
    """Open it for that, and leave everything as it was. What is no file, such as a pipe, is not touched."""
    target = Path(os.path.realpath(path))  # a link stays, also where it leads to nothing
    if target.is_file():
        target.open("ab").close()
    elif not target.exists():
        target.open("xb").close()
        target.unlink()


def _not_written(path: Path, error: OSError) -> ParameterError:
    return ParameterError(f"{path}: the file could not be written: {error.strerror or error}")
