"""What somebody asks of pictures, checked before anything is computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import numpy as np

from forwardpass.decoding import _checks as check
from forwardpass.decoding.rng import SEED_LIMIT, fresh_seed
from forwardpass.errors import ParameterError

MOST = 4096
"""Pictures of one call."""
LISTED = 40
"""Labels that an error lists at most."""
LONGEST_LABEL = 200
"""Characters of a text that may be a label; a longer one is not compared with them."""
_SEED = check.integer(0, SEED_LIMIT - 1)
_GUIDANCE = check.number(0, 1000, note="up to 1 nothing is guided")


@dataclass(frozen=True, slots=True)
class Size:
    """Of a picture in pixels and of its latents."""

    height: int
    width: int
    latent: tuple[int, int]


def prompts(given: Any, takes: str) -> list[Any]:
    """A list of prompts; a single one is a list of one. takes: "text" or "label", as of Denoiser."""
    given = _scalar(given)
    listed = list(given) if isinstance(given, (list, tuple, np.ndarray)) else [given]
    if not listed:
        raise ParameterError("prompt: expected at least one, found an empty list")
    if len(listed) > MOST:
        raise ParameterError(f"prompt: there are {len(listed)}; {MOST} pictures can be drawn in one call")
    for number, one in enumerate(listed):
        if isinstance(one, str) or (takes == "label" and is_whole(one)):
            continue
        raise ParameterError(f"prompt {number} must be {'a text' if takes == 'text' else 'a label or its number'}, "
                             f"not {str(one)[:60]!r}")
    return listed


def negatives(given: Any, count: int) -> list[str]:
    """What each of `count` prompts is to be led away from; None is the empty text, and one serves all."""
    if given is None or isinstance(given, str):
        return [given or ""] * count
    listed = list(given) if isinstance(given, (list, tuple)) else [None]
    if not all(isinstance(one, str) for one in listed):
        raise ParameterError(f"negative_prompt must be a text or a list of texts, not {str(given)[:60]!r}")
    if len(listed) == 1:
        return listed * count
    if len(listed) != count:
        raise ParameterError(f"negative_prompt: there are {len(listed)} for {count} prompts; give one for all, or one "
                             "for each")
    return listed


def label(given: Any, labels: Mapping[str, int], count: int) -> int:
    """The number of a label that is given by its name, in any case, or as a number, also in digits. count: how many
    there are. Raises ParameterError, which lists them."""
    if is_whole(given):
        if 0 <= given < count:
            return int(given)
        raise ParameterError(f"prompt: there is no label {given}: they are numbered from 0 to {count - 1}")
    wanted = given.strip()
    if wanted in labels:
        return labels[wanted]
    folded: dict[str, str] = {}
    for name in labels:
        folded.setdefault(name.casefold(), name)
    if wanted.casefold() in folded:
        return labels[folded[wanted.casefold()]]
    if wanted.isdecimal() and len(wanted) <= LONGEST_LABEL and int(wanted) < count:
        return int(wanted)
    if not labels:
        raise ParameterError(f"prompt: there is no label {given[:60]!r}: this model's files name none; give a "
                             f"number from 0 to {count - 1}")
    near = []
    if len(wanted) <= LONGEST_LABEL:  # the time that comparing takes grows with it
        near = [folded[name] for name in get_close_matches(wanted.casefold(), folded, n=5, cutoff=0.5)]
    listed = near + [name for name in labels if name not in near]
    more = f", ... ({len(labels)} in all)" if len(listed) > LISTED else ""
    raise ParameterError(f"prompt: there is no label {given[:60]!r}; there are: {', '.join(listed[:LISTED])}{more}")


def seeds(given: Any, prompt_count: int, each: int) -> list[int]:
    """Of each picture, those of the first prompt first. Every prompt counts on from the same one, as if it were alone;
    without any, each has one of its own."""
    given = _scalar(given)
    if given is None:
        begin = [fresh_seed() for _ in range(prompt_count)]
    elif is_whole(given):
        begin = [_SEED("seed", given)] * prompt_count
    elif isinstance(given, (list, tuple, np.ndarray)):
        if len(given) != prompt_count * each:
            raise ParameterError(f"seed: there are {len(given)} for {prompt_count * each} picture(s); give one for "
                                 "each picture, or a single one to count on from")
        return [_SEED("seed", one) for one in given]
    else:
        raise ParameterError(f"seed must be a whole number, one for each picture, or None, not {str(given)[:60]!r}")
    return [(first + i) % SEED_LIMIT for first in begin for i in range(each)]


def guidance(given: Any, default: float) -> float:
    return default if given is None else _GUIDANCE("guidance_scale", given)


def count(given: Any, prompt_count: int) -> int:
    """num_images_per_prompt."""
    return check.integer(1, MOST // prompt_count, note=f"{MOST} pictures in one call")(
        "num_images_per_prompt", given)


def size(height: Any, width: Any, factor: int, denoiser: Any, default: tuple[int, int]) -> Size:
    """factor: pixels of a latent's side;  default: of latents. Raises ParameterError, which names the numbers."""
    unit = factor * denoiser.patch
    found = []
    for name, given, normal in (("height", height, default[0]), ("width", width, default[1])):
        pixels = normal * factor if given is None else check.integer(1)(name, given)
        if pixels % unit:
            below, above = pixels // unit * unit, (pixels // unit + 1) * unit
            near = f"{below} or {above}" if below else f"{above}"
            raise ParameterError(f"{name} must be a multiple of {unit} pixels for this model ({factor} pixels a latent "
                                 f"times {denoiser.patch} latents a patch); got {pixels}: take {near}")
        found.append(pixels)
    latent = found[0] // factor, found[1] // factor
    denoiser.check_size(*latent)
    return Size(*found, latent)


def latents(given: Any, pictures: int, channels: int) -> np.ndarray:
    """float32 [pictures, height, width, channels] of what callers give as [pictures, channels, height, width]."""
    try:
        found = np.asarray(given)
    except ValueError:  # rows of several lengths
        found = np.empty(0, object)
    if found.dtype.kind not in "fiu" or found.ndim != 4 or found.shape[:2] != (pictures, channels) or not found.size:
        raise ParameterError(f"latents must be numbers [{pictures}, {channels}, height, width], one for each picture; "
                             f"found {found.dtype} {list(found.shape)}")
    with np.errstate(over="ignore"):
        found = np.ascontiguousarray(found.transpose(0, 2, 3, 1), np.float32)
    if not np.isfinite(found).all():
        raise ParameterError("latents must be finite numbers")
    return found


def _scalar(value: Any) -> Any:
    """An array without axes as what is in it."""
    return value[()] if isinstance(value, np.ndarray) and value.ndim == 0 else value


def is_whole(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, (bool, np.bool_))


def listed_images(given: Any, prompt_count: int) -> Sequence[Any]:
    """An image to begin with for each prompt; one serves all."""
    if not isinstance(given, (list, tuple)):
        return [given] * prompt_count
    if len(given) == 1:
        return list(given) * prompt_count
    if len(given) != prompt_count:
        raise ParameterError(f"image: there are {len(given)} for {prompt_count} prompts; give one for all, or one for "
                             "each")
    return given
