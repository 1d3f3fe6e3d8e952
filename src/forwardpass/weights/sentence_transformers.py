"""The small files of a sentence-transformers directory: which modules there are, and what each one's config says.

Format: https://sbert.net/docs/sentence_transformer/usage/custom_models.html. modules.json lists modules by class and
folder: the transformer itself (in the directory or in a folder of it), then pooling, dense layers, a normalisation.
What the settings mean is read in models/task_settings.py; here they are only found.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from ..errors import ModelFileError
from .dequantize import dequantize
from .safetensors import open_safetensors
from .source import TensorInfo, damaged
from .text_files import read_list, read_object
from .torch_files import open_torch

MODULES = "modules.json"
SETTINGS = "config_sentence_transformers.json"
TRANSFORMER = "transformer"
"""Under this name the settings of the transformer module are kept, whatever its file is called."""
MOST_MODULES = 16
_TRANSFORMER_FILES = tuple(f"sentence_{kind}_config.json" for kind in (
    "bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet"))
PROCESSORS = ("preprocessor_config.json", "processor_config.json")
"""What says how images are prepared (models/image_settings.py)."""
_CONFIG_KEYS = ("model_type", "id2label", "num_labels", "problem_type", "sentence_transformers",
                "sbert_ce_default_activation_function")
"""What is wanted of config.json here."""
_GGUF_POOLINGS = {1: "mean", 2: "cls", 3: "lasttoken"}


def task_files(directory: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """File name -> its JSON value, of every file that says something about embedding or classifying texts.

    directory: the model's, where modules.json is if there is one;  config: the values of config.json. Raises
    ModelFileError for a damaged file, or one whose modules lie elsewhere.
    """
    found: dict[str, Any] = {"config.json": {key: config[key] for key in _CONFIG_KEYS if config.get(key) is not None}}
    if (directory / MODULES).is_file():
        found[MODULES] = read_list(directory / MODULES)
        for folder in module_folders(found[MODULES], directory):
            if folder and (directory / folder / "config.json").is_file() and folder != _first(found[MODULES]):
                found[f"{folder}/config.json"] = read_object(directory / folder / "config.json")
    elif (directory / "1_Pooling" / "config.json").is_file():  # some repositories have lost the list
        found["1_Pooling/config.json"] = read_object(directory / "1_Pooling" / "config.json")
    if (directory / SETTINGS).is_file():
        found[SETTINGS] = read_object(directory / SETTINGS)
    inner = transformer_folder(directory)
    for name in PROCESSORS:
        if (inner / name).is_file():
            found[name] = read_object(inner / name)
    for name in _TRANSFORMER_FILES:
        if (inner / name).is_file():
            found[TRANSFORMER] = read_object(inner / name)
            break
    return found


def gguf_task_files(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The same of a GGUF file, which says no more than how to pool (llama.cpp's pooling types 1 to 3) and what its
    labels are called."""
    family, found = metadata.get("general.architecture"), {}
    number = metadata.get(f"{family}.pooling_type")
    if isinstance(number, int) and number in _GGUF_POOLINGS:
        found["1_Pooling/config.json"] = {"pooling_mode": _GGUF_POOLINGS[number]}
    names = metadata.get(f"{family}.classifier.output_labels")
    if isinstance(names, list) and names:
        found["config.json"] = {"id2label": {str(i): name for i, name in enumerate(names)}}
    return found


def transformer_folder(directory: Path) -> Path:
    """Where config.json, the weights and the tokenizer are: older directories keep them in `0_Transformer` or so."""
    if (directory / "config.json").is_file() or not (directory / MODULES).is_file():
        return directory
    modules = read_list(directory / MODULES)
    module_folders(modules, directory)
    inner = directory / _first(modules)
    return inner if (inner / "config.json").is_file() else directory


def module_folders(modules: list, where: Path | str) -> list[str]:
    """The folder of each module, "" for the directory itself. None may lie outside of it."""
    if not 1 <= len(modules) <= MOST_MODULES:
        raise ModelFileError(f"{where}: {MODULES}: expected 1 to {MOST_MODULES} modules, found {len(modules)}; fetch "
                             "the model again")
    folders = []
    for module in modules:
        path, kind = (module.get("path", ""), module.get("type")) if isinstance(module, dict) else (None, None)
        if not isinstance(path, str) or not isinstance(kind, str) or len(path) > 200 or not path.isprintable() \
                or "\\" in path or PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts:
            raise ModelFileError(f"{where}: {MODULES}: expected modules with a type and a folder inside the model's, "
                                 f"found {str(module)[:80]!r}; fetch the model again")
        folders.append("" if path == "." else path.rstrip("/"))
    return folders


def _first(modules: list) -> str:
    return module_folders(modules[:1], MODULES)[0]


def dense_arrays(directory: Path, folder: str, inputs: int, outputs: int, bias: bool, residual: bool
                 ) -> dict[str, np.ndarray]:
    """float32 weights of a dense module: "weight" [outputs, inputs], "bias" [outputs], "residual" [outputs, inputs].

    Raises ModelFileError if one is missing, has another shape or holds a number that is not finite.
    """
    wanted = {"linear.weight": (outputs, inputs)}
    if bias:
        wanted["linear.bias"] = (outputs,)
    if residual and inputs != outputs:
        wanted["residual.weight"] = (outputs, inputs)
    path = directory / folder / "model.safetensors"
    source = open_safetensors(path) if path.is_file() else open_torch(directory / folder / "pytorch_model.bin")
    arrays = {}
    with source:
        stored = {name.removeprefix("model."): info for name, info in source.tensors.items()}
        for name, shape in wanted.items():
            info: TensorInfo | None = stored.get(name)
            if info is None or info.shape != shape:
                found = "none" if info is None else f"one of shape {list(info.shape)}"
                raise damaged(source.path, f"a tensor {name} of shape {list(shape)}", found)
            values = dequantize(info.type, source.data(info.name), shape)
            if not np.isfinite(values).all():
                raise damaged(source.path, f"finite numbers in {name}", "NaN or infinity")
            key = "residual" if name.startswith("residual") else name.removeprefix("linear.")
            arrays[key] = np.ascontiguousarray(values, np.float32)
    return arrays
