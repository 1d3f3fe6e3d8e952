"""How a checkpoint's files want images prepared: sizes, resampling, crop, and what pixel values become.

The settings are those of transformers' image processors (preprocessor_config.json, or "image_processor" in
processor_config.json), with the defaults of the class that the file names. stages/images.py does what they say. A
packed model carries the same files' values and reads them the same way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from forwardpass.errors import UnsupportedModelError
from forwardpass.models.fields import Fields, show
from forwardpass.weights.sentence_transformers import PROCESSORS

OWN_FILE, SHARED_FILE = PROCESSORS
"""The second one is of processors for images and texts; what it says of images is under `image_processor`, and counts
first."""
NEAREST, LANCZOS, BILINEAR, BICUBIC = range(4)
"""Codes of resampling filters in the files, which are Pillow's; 4 is its box filter, 5 Hamming."""
LONGEST_EDGE = 2**16
"""Pixels of an edge that a file can ask for."""


@dataclass(frozen=True, slots=True)
class Resize:
    """The size that an image is brought to.

    kind: "exact", height and width are `first` and `second`;  "shortest", the shorter edge becomes `first`, and the
    longer one follows, but both are smaller where it would be longer than `second` (0 = no limit);  "within", as large
    as fits into height `first` and width `second`.
    """

    kind: str
    first: int
    second: int = 0


@dataclass(frozen=True, slots=True)
class ImageSettings:
    """resize: or None, images keep their size;  resample: code of the filter;  crop: height and width of the middle
    that is kept, None = all;  rescale: what pixel values 0 to 255 are multiplied with, None = nothing;
    mean, std: subtracted, then divided by, for red, green and blue; None = neither."""

    resize: Resize | None
    resample: int = BILINEAR
    crop: tuple[int, int] | None = None
    rescale: float | None = 1 / 255
    mean: tuple[float, float, float] | None = None
    std: tuple[float, float, float] | None = None


_HALF = (0.5, 0.5, 0.5)
_CLIP_MEAN, _CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
_SQUARE = {"height": 224, "width": 224}
_OF_CLIP = {"resample": BICUBIC, "size": {"shortest_edge": 224}, "crop": True, "mean": _CLIP_MEAN, "std": _CLIP_STD,
            "square": False}
CLASSES: dict[str, dict[str, Any]] = {
    "ViT": {"resample": BILINEAR, "size": _SQUARE, "crop": False, "mean": _HALF, "std": _HALF, "square": True},
    "DeiT": {"resample": BICUBIC, "size": {"height": 256, "width": 256}, "crop": True, "mean": _HALF, "std": _HALF,
             "square": True},
    "Beit": {"resample": BICUBIC, "size": _SQUARE, "crop": False, "mean": _HALF, "std": _HALF, "square": True},
    "Bit": _OF_CLIP,
    "CLIP": _OF_CLIP,
    "Siglip": {"resample": BICUBIC, "size": _SQUARE, "crop": False, "mean": _HALF, "std": _HALF, "square": False},
}
"""Beginning of a class's name -> what it does where the file says nothing. square: a size that is one number means both
edges; otherwise it is that of the shorter one."""
_ENDS = ("ImageProcessor", "ImageProcessorFast", "ImageProcessorPil", "FeatureExtractor")
_OF_MODEL = {"vit": "ViT", "deit": "DeiT", "beit": "Beit", "data2vec-vision": "Beit", "dinov2": "Bit",
             "dinov2_with_registers": "Bit", "clip": "CLIP", "clip_vision_model": "CLIP", "siglip": "Siglip",
             "siglip_vision_model": "Siglip"}
"""model_type -> class, for files that name none."""
_UNKNOWN_STEPS = {"do_pad": ((False,), "padding"), "crop_pct": ((), "a crop by a part of the size"),
                  "do_flip_channel_order": ((False,), "another order of colours"),
                  "rescale_offset": ((False,), "an offset of pixel values")}


def read_image_settings(files: Mapping[str, Any], model_type: str | None = None) -> ImageSettings | None:
    """files: name -> JSON value of OWN_FILE and SHARED_FILE, where they exist;  model_type: of config.json.

    None where no file says anything of images. Raises ModelFileError for damaged values, UnsupportedModelError for a
    class of processor, or a step of one, that is not implemented.
    """
    shared = files.get(SHARED_FILE)
    if isinstance(shared, Mapping) and shared.get("image_processor") is not None:
        f = Fields(shared["image_processor"], f"{SHARED_FILE}: image_processor")
    elif OWN_FILE in files:
        f = Fields(files[OWN_FILE], OWN_FILE)
    else:
        return None
    default = CLASSES[_class(f, model_type)]
    f.refuse_unread(_UNKNOWN_STEPS)
    mean = std = None
    if f.flag("do_normalize", True):
        mean, std = _three(f, "image_mean", default["mean"], -1e6), _three(f, "image_std", default["std"], 1e-6)
    return ImageSettings(
        resize=_resize(f, default) if f.flag("do_resize", True) else None,
        resample=f.integer("resample", default=default["resample"], low=0, high=5),
        crop=_crop(f) if f.flag("do_center_crop", default["crop"]) else None,
        rescale=f.number("rescale_factor", default=1 / 255, low=1e-9, high=1e9) if f.flag("do_rescale", True) else None,
        mean=mean, std=std)


def _class(f: Fields, model_type: str | None) -> str:
    name = f.text("image_processor_type", None) or f.text("feature_extractor_type", None)
    if name is None:
        found = _OF_MODEL.get(model_type or "")
    else:
        found = next((stem for stem in CLASSES for end in _ENDS if name == stem + end), None)
    if found is None:
        known = ", ".join(f"{stem}ImageProcessor" for stem in CLASSES)
        what = "names no image_processor_type" if name is None else f"image_processor_type = {show(name)}"
        raise UnsupportedModelError(f"{f.where}: {what}: images can be prepared as {known} do it; use a model with "
                                    "one of these")
    return found


def _resize(f: Fields, default: Mapping[str, Any]) -> Resize:
    size = f.get("size")
    if size is None:
        size = default["size"]
    if not isinstance(size, Mapping):
        one = _edges(f, "size", size)
        return Resize("exact", one[0], one[-1]) if len(one) == 2 or default["square"] else Resize("shortest", one[0])
    inner = Fields({name: value for name, value in size.items() if value is not None}, f"{f.where}: size")
    names = set(inner.values)
    if names == {"height", "width"}:
        return Resize("exact", _edge(inner, "height"), _edge(inner, "width"))
    if names == {"max_height", "max_width"}:
        return Resize("within", _edge(inner, "max_height"), _edge(inner, "max_width"))
    if names == {"shortest_edge"}:
        return Resize("shortest", _edge(inner, "shortest_edge"))
    if names == {"shortest_edge", "longest_edge"}:
        return Resize("shortest", _edge(inner, "shortest_edge"), _edge(inner, "longest_edge"))
    f.unsupported("size", "a size other than height and width, max_height and max_width, or shortest_edge, perhaps "
                          "with longest_edge,")


def _crop(f: Fields) -> tuple[int, int]:
    size = f.get("crop_size")
    if size is None:
        return 224, 224
    if not isinstance(size, Mapping):
        edges = _edges(f, "crop_size", size)
        return edges[0], edges[-1]
    inner = Fields(size, f"{f.where}: crop_size")
    return _edge(inner, "height"), _edge(inner, "width")


def _edge(f: Fields, name: str) -> int:
    return f.integer(name, high=LONGEST_EDGE)


def _edges(f: Fields, name: str, value: Any) -> list[int]:
    """One number, or height and width in a list."""
    listed = value if isinstance(value, list) else [value]
    if len(listed) not in (1, 2) or (len(listed) == 1 and isinstance(value, list)):
        f.wrong(name, "a number, height and width, or an object with them", value)
    return [Fields({name: one}, f.where).integer(name, high=LONGEST_EDGE) for one in listed]


def _three(f: Fields, name: str, default: tuple[float, ...], low: float) -> tuple[float, ...]:
    """One number a colour, or one for all."""
    value = f.get(name)
    if value is None:
        return default
    listed = value if isinstance(value, (list, tuple)) else [value] * 3
    if len(listed) != 3:
        f.wrong(name, "three numbers, for red, green and blue", value)
    return tuple(Fields({name: one}, f.where).number(name, low=low, high=1e6) for one in listed)
