"""A diffusers directory: a model_index.json that names components, and a folder for each.

https://huggingface.co/docs/diffusers/using-diffusers/loading#diffusionpipeline  Only the names below are looked for, so
nothing in the file can point anywhere else.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from forwardpass.errors import ModelFileError
from forwardpass.weights.safetensors import is_index, open_safetensors
from forwardpass.weights.source import MappedSource, damaged

INDEX = "model_index.json"
WEIGHTS = ("diffusion_pytorch_model", "model")
"""What the files of a component are called: diffusers' own, and those of transformers."""
_PICKLED = (".bin", ".pt", ".pth", ".ckpt")


def is_pipeline(path: Path) -> bool:
    """Whether a path is a diffusers directory."""
    return (path / INDEX).is_file()


def component_folder(path: Path, name: str) -> Path:
    """The folder of a component that the index names. Raises ModelFileError."""
    folder = path / name
    if not folder.is_dir():
        raise ModelFileError(f"{path / INDEX} names a component {name!r}: expected the folder {folder}, found none; "
                             "fetch the whole model again")
    return folder


def weights_file(folder: Path) -> Path:
    """The safetensors file, or the index of shards, of a component.

    Names without a variant come first; of variants ("fp16") there must be one alone. Raises ModelFileError.
    """
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        raise damaged(folder, "a readable folder", f"an error: {error}", "check the path") from None
    candidates = [name for name in names if is_index(name)]
    candidates += [name for name in names if name.endswith(".safetensors") and not re.search(r"-\d+-of-\d+", name)]
    for stem in WEIGHTS:
        for plain in (f"{stem}.safetensors", f"{stem}.safetensors.index.json"):
            if plain in candidates:
                return folder / plain
    if len(candidates) == 1:
        return folder / candidates[0]
    if candidates:
        raise damaged(folder, f"{WEIGHTS[0]}.safetensors, or weights of one variant",
                      f"several: {', '.join(candidates[:4])}", "keep one of them")
    pickles = [name for name in names if name.endswith(_PICKLED)]
    found = f"only {pickles[0]!r}, which may run code when loaded" if pickles else f"{len(names)} other files"
    raise damaged(folder, f"weights in {WEIGHTS[0]}.safetensors", found,
                  "save the model with save_pretrained(..., safe_serialization=True)")


def open_component(folder: Path) -> MappedSource:
    """The weights of a component. The caller closes the source."""
    return open_safetensors(weights_file(folder))


def component_files(folder: Path) -> list[Path]:
    """Every file that a component's weights depend on."""
    found = weights_file(folder)
    shards = sorted(folder.glob("*.safetensors")) if is_index(found.name) else [found]
    return [*shards, *(one for one in (found, folder / "config.json") if one.exists() and one not in shards)]
