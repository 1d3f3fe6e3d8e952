"""Stage 1 for images: a file of any kind becomes an RGB image, and that the pixel values that a model reads.

Pillow decodes and resizes. It is imported when the first image is read, so programs without images never load it.
"""

from __future__ import annotations

import os
import threading
import warnings
from contextlib import AbstractContextManager
from io import BytesIO
from math import ceil
from stat import S_ISREG
from typing import TYPE_CHECKING, Any

import numpy as np

from forwardpass.errors import ParameterError
from forwardpass.models.image_settings import ImageSettings, Resize

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

MAX_PIXELS = 100_000_000
"""Of an image, before and after it is resized. Decoding one takes four bytes a pixel, more where it is transparent."""
FORMATS = ("PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF", "AVIF", "JPEG2000", "PPM", "QOI")
"""What files may hold, by Pillow's names: formats that are told by their first bytes and decoded in this process."""
SUFFIXES = (".png", ".apng", ".jpg", ".jpeg", ".jpe", ".jfif", ".gif", ".bmp", ".webp", ".tif", ".tiff", ".avif",
            ".jp2", ".j2k", ".ppm", ".pgm", ".pbm", ".pnm", ".qoi")
"""How names of such files end."""
WORTH = "a PNG, JPEG, WebP, GIF, BMP, TIFF, AVIF, JPEG 2000, PNM or QOI image"
_SIXTEEN_BITS = ("I;16", "I;16L", "I;16B", "I;16N")
_FAX = ("tiff_ccitt", "group3", "group4")
"""Compressions of TIFF files. Of damaged ones libtiff tells on stderr by itself, a line for each of the image's."""
_PREMULTIPLIED = {"RGBa": "RGBA", "La": "LA"}


def read_image(image: Any, name: str | None = None, max_pixels: int = MAX_PIXELS) -> Picture:
    """An RGB image of Pillow's, upright, of what `image` is.

    image: a path, the bytes of a file, a binary file object, an image of Pillow's, or uint8 [h, w], [h, w, 1],
        [h, w, 3] (RGB) or [h, w, 4] (RGBA). Of an animated file the first image counts.
    name: what to call it in errors; None = its path, or what kind of thing it is.
    max_pixels: its header is read first, and one that claims more is refused before anything is decoded.

    It is turned as its EXIF orientation says. Transparent parts lie on white, as transformers' convert_to_rgb has it;
    greyscale, palette and CMYK images become RGB. 16 bits of grey are cut to 8, where Pillow's own conversion would
    make nearly all of them white. Raises ParameterError, which names the file, for whatever is no whole image.
    """
    name = _name(image) if name is None else name
    try:
        with _QUIET:
            picture = _opened(image, name, max_pixels)
            picture.load()  # before its EXIF data are asked for: they may follow the pixels
            return _rgb(_upright(picture), name)
    except (ParameterError, ImportError):
        raise
    except MemoryError:
        raise ParameterError(f"{name}: there is not enough memory to decode this image; make it smaller") from None
    except Exception as error:  # Pillow raises OSError, SyntaxError, ValueError, struct.error, ... for damaged files
        if type(error).__name__ == "DecompressionBombError":  # Pillow's own limit
            raise _too_large(name, "too many", max_pixels) from None
        said = " ".join(str(error).split())[:120] or type(error).__name__
        raise ParameterError(f"{name}: expected a whole image, found damaged or missing data ({said}); get the file "
                             "again, or save it anew") from None


class ImageProcessing:
    """Images to pixel values as a checkpoint's image processor makes them: resized, cropped in the middle, scaled,
    and normalised, to the same bits as transformers' processors that use Pillow."""

    def __init__(self, settings: ImageSettings):
        self.settings = settings
        values = np.arange(256, dtype=np.uint8)
        if settings.rescale is not None:
            table = (values.astype(np.float64) * settings.rescale).astype(np.float32)
        else:
            table = values.astype(np.float32)
        tables = np.stack([table] * 3, axis=1)
        if settings.mean is not None:
            tables = (tables - np.array(settings.mean, np.float32)) / np.array(settings.std, np.float32)
        self._tables = np.ascontiguousarray(tables.T)  # a value of a colour can be nothing else: [3, 256]

    def __call__(self, picture: Picture, name: str = "the image") -> np.ndarray:
        """float32 [height, width, 3] of an RGB image. name: of the image in errors. Raises ParameterError for one
        so narrow that it would be resized to nothing, or to more than MAX_PIXELS."""
        settings = self.settings
        if settings.resize is not None:
            height, width = resized_size(settings.resize, picture.height, picture.width)
            if not 1 <= height * width <= MAX_PIXELS:
                raise ParameterError(f"{name} has {picture.width} x {picture.height} pixels, which the model's files "
                                     f"want resized to {width} x {height}; expected 1 to {MAX_PIXELS:,} pixels then: "
                                     "cut the image to a shape nearer to a square")
            if (height, width) != (picture.height, picture.width):
                picture = picture.resize((width, height), settings.resample)
        values = np.asarray(picture)
        if settings.crop is not None:
            values = _middle(values, *settings.crop)
        pixels = np.empty(values.shape, np.float32)
        for colour, table in enumerate(self._tables):
            np.take(table, values[:, :, colour], out=pixels[:, :, colour])
        return pixels


def resized_size(resize: Resize, height: int, width: int) -> tuple[int, int]:
    """Height and width of an image afterwards; a zero where nothing would be left of an edge.

    Example: the shorter edge of 480 x 640 to 224 gives 224 x 298 (298.67 is cut, not rounded).
    """
    if resize.kind == "exact":
        return resize.first, resize.second
    if resize.kind == "within":
        scale = min(resize.first / height, resize.second / width)
        return int(height * scale), int(width * scale)
    short, long = min(height, width), max(height, width)
    wanted, exact = resize.first, float(resize.first)
    if resize.second and long / short * wanted > resize.second:
        exact = resize.second * short / long
        wanted = round(exact)
    if wanted == short:
        return height, width
    edges = wanted, int(exact * long / short)
    return edges if height <= width else edges[::-1]


def _middle(values: np.ndarray, height: int, width: int) -> np.ndarray:
    """The middle of [h, w, 3]. Where it is smaller than what is wanted, black is around it."""
    top, left = (values.shape[0] - height) // 2, (values.shape[1] - width) // 2
    part = values[max(top, 0) : max(top, 0) + height, max(left, 0) : max(left, 0) + width]
    if part.shape[:2] == (height, width):
        return part
    out = np.zeros((height, width, 3), np.uint8)
    down, right = (ceil((edge - has) / 2) for edge, has in zip((height, width), part.shape[:2], strict=True))
    out[down : down + part.shape[0], right : right + part.shape[1]] = part
    return out


def _name(image: Any) -> str:
    if isinstance(image, (str, os.PathLike)):
        return os.fsdecode(image)[:300]
    found = getattr(image, "filename", None) or getattr(image, "name", None)
    return found[:300] if isinstance(found, str) else "the image"


def _opened(image: Any, name: str, max_pixels: int) -> Picture:
    """Its header is read and believed, its pixels are not there yet."""
    from PIL import Image, UnidentifiedImageError

    if isinstance(image, Image.Image):
        return _sized(image, name, max_pixels)
    if isinstance(image, np.ndarray):
        return _sized(Image.fromarray(_as_colours(image)), name, max_pixels)
    if isinstance(image, (str, os.PathLike)):
        file: Any = _file(image, name)
    elif isinstance(image, (bytes, bytearray, memoryview)):
        file = BytesIO(image)
    elif hasattr(image, "read"):
        file = image
    else:
        raise ParameterError(f"an image must be a path, bytes, a binary file object, an image of Pillow's or a uint8 "
                             f"array, not {type(image).__name__}")
    opened = isinstance(image, (str, os.PathLike))
    try:
        if not isinstance(file.read(0), bytes):
            raise ParameterError(f"{name}: expected a file opened in binary mode ('rb'), found one of text")
        if not getattr(file, "seekable", lambda: True)():
            file = BytesIO(file.read())
        Image.init()
        try:
            picture = Image.open(file, formats=[one for one in FORMATS if one in Image.OPEN])
        except UnidentifiedImageError:
            raise ParameterError(f"{name}: expected {WORTH}, found {_kind(file)}") from None
        except Image.DecompressionBombError:
            raise _too_large(name, "too many", max_pixels) from None
        picture = _sized(picture, name, max_pixels)
        if picture.format == "TIFF" and picture.info.get("compression") in _FAX:
            raise ParameterError(f"{name}: expected a TIFF image with another compression than a fax's (CCITT); save "
                                 "it anew, say as PNG")
        if opened:
            picture.load()
        return picture
    finally:
        if opened:
            file.close()


def _file(path: str | os.PathLike[str], name: str):
    """Opened for reading. Only files: reading from a pipe or a device might never end."""
    try:
        if not S_ISREG(os.stat(path).st_mode):
            raise ParameterError(f"{name}: expected a file with an image, found a folder or a device")
        return open(path, "rb")
    except ParameterError:  # which is a ValueError, too
        raise
    except FileNotFoundError:
        raise ParameterError(f"there is no file {name}; check the path (web addresses are not fetched)") from None
    except (OSError, ValueError) as error:
        said = getattr(error, "strerror", None) or str(error)
        raise ParameterError(f"{name}: the file could not be read: {said}") from None


def _kind(file: Any) -> str:
    """What was there instead of an image."""
    try:
        file.seek(0)
        begin = file.read(12)
    except Exception:
        return "something else"
    return f"something else, which begins with {begin!r}" if begin else "an empty file"


def _as_colours(values: np.ndarray) -> np.ndarray:
    if values.dtype != np.uint8 or values.ndim not in (2, 3) or 0 in values.shape \
            or (values.ndim == 3 and values.shape[2] not in (1, 3, 4)):
        raise ParameterError("an array with an image must be uint8 [height, width], or [height, width, 1, 3 or 4]; "
                             f"found {values.dtype} {list(values.shape)}" + (
                                 ": scale its values to 0 to 255 and convert it" if values.dtype.kind == "f" else ""))
    return values[:, :, 0] if values.ndim == 3 and values.shape[2] == 1 else values


def _sized(picture: Picture, name: str, max_pixels: int) -> Picture:
    width, height = picture.size
    if width * height > max_pixels:
        raise _too_large(name, f"{width} x {height}", max_pixels)
    if width * height == 0:
        raise ParameterError(f"{name}: expected an image with pixels, found {width} x {height}")
    return picture


def _too_large(name: str, size: str, max_pixels: int) -> ParameterError:
    return ParameterError(f"{name} says that it has {size} pixels; at most {max_pixels:,} are decoded: make it smaller")


def _upright(picture: Picture) -> Picture:
    """Turned as its EXIF orientation says (EXIF 2.3, tag 0x0112). What cannot be read of it says nothing."""
    from PIL.Image import Transpose

    turns = {2: Transpose.FLIP_LEFT_RIGHT, 3: Transpose.ROTATE_180, 4: Transpose.FLIP_TOP_BOTTOM,
             5: Transpose.TRANSPOSE, 6: Transpose.ROTATE_270, 7: Transpose.TRANSVERSE, 8: Transpose.ROTATE_90}
    try:
        turn = turns.get(picture.getexif().get(0x0112))
    except Exception:
        return picture
    return picture if turn is None else picture.transpose(turn)


def _rgb(picture: Picture, name: str) -> Picture:
    from PIL import Image

    if picture.mode in _SIXTEEN_BITS:
        return Image.fromarray((np.asarray(picture) >> 8).astype(np.uint8)).convert("RGB")
    if picture.mode in ("I", "F"):
        raise ParameterError(f"{name}: expected 8 or 16 bits a colour, found an image of 32-bit numbers; scale it to "
                             "0 to 255 and save it anew")
    if picture.mode in _PREMULTIPLIED:
        picture = picture.convert(_PREMULTIPLIED[picture.mode])
    if "A" in picture.getbands() or picture.info.get("transparency") is not None:
        picture = picture.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", picture.size, (255, 255, 255, 255)), picture).convert("RGB")
    return picture.convert("RGB")


class _Quiet(AbstractContextManager):
    """Inside, Pillow's warnings of small faults in files are not shown. warnings.catch_warnings would restore what
    another thread has changed meanwhile; this takes out no more than it has put in."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._mine: Any = None

    def __enter__(self) -> None:
        with self._lock:
            self._inside += 1
            warnings.filterwarnings("ignore", module=r"PIL\.")
            self._mine = warnings.filters[0]

    def __exit__(self, *exc: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside and self._mine in warnings.filters:
                warnings.filters.remove(self._mine)


_QUIET = _Quiet()
