"""What the commands that look at images have in common: where images come from, and answers one by one."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from glob import glob
from io import BytesIO
from pathlib import Path
from typing import Any

from ..errors import ForwardpassError, ParameterError
from .output import one_line, print_json
from .progress import Progress

STDIN = "standard input"


def input_images(words: Sequence[str] | None) -> list[Any]:
    """A path for each image, in order: files, whatever their names; of a folder all files below it that are named like
    images, sorted; of a pattern with * or ? what it matches. "-" is one image from standard input. ParameterError where
    nothing is found."""
    found: list[Any] = []
    for word in words or ():
        here = [_stdin()] if word == "-" else _below(Path(word)) if Path(word).is_dir() else [word]
        if here == [word] and not Path(word).exists() and any(c in word for c in "*?["):
            here = [path for match in sorted(glob(word, recursive=True))
                    for path in (_below(Path(match)) if Path(match).is_dir() else [match])]
        if not here:
            raise ParameterError(f"{word}: expected images, found none in it; their names must end in .png, .jpg, ...")
        found += here
    if not found:
        raise ParameterError("expected at least one image, found none: name files or folders, or - for standard input")
    return found


def _below(folder: Path) -> list[str]:
    from ..stages.images import SUFFIXES

    found = []
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        found += [os.path.join(root, name) for name in sorted(names)
                  if not name.startswith(".") and name.lower().endswith(SUFFIXES)]
    return found


class _Stdin(BytesIO):
    name = STDIN


def _stdin() -> BytesIO:
    if sys.stdin.isatty():
        raise ParameterError("expected an image from standard input, and nothing is piped in")
    return _Stdin(sys.stdin.buffer.read())


def named(image: Any) -> str:
    return image if isinstance(image, str) else STDIN


def look(images: Sequence[Any], begin: Callable[..., Iterator[Any]], show: Callable[[str, Any], None], *, json: bool,
         what: str) -> int:
    """show(name, result) for each image, in order, as results come. begin: images, stream and on_error -> results.

    An image that cannot be read is told of on stderr, or in JSON on a line of its own, and the others go on. Returns
    the exit status: 1 if there was such an image.
    """
    errors: dict[int, ForwardpassError] = {}
    with Progress("images") as progress:
        results = begin(images, stream=True, on_error=errors.__setitem__)
        for number, (image, result) in enumerate(zip(images, results, strict=True)):
            if number not in errors:
                show(named(image), result)
            elif json:
                print_json({"image": named(image), "error": str(errors[number])})
            else:
                print(f"error: {one_line(str(errors[number]))}", file=sys.stderr, flush=True)
            if len(images) > 1:
                progress(what, number + 1, len(images))
    return 1 if errors else 0
