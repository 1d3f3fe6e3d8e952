"""A Hugging Face directory: which files in it hold the weights, and a Source of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from forwardpass.weights.onnx_folder import find_onnx_files, open_onnx
from forwardpass.weights.quantized import open_quantized
from forwardpass.weights.safetensors import open_safetensors
from forwardpass.weights.source import Source
from forwardpass.weights.torch_files import files_of, find_torch_files, open_torch


def open_folder(directory: Path, values: Mapping[str, Any]) -> Source:
    """The weights of a directory, its quantised layers presented as tensors. values: config.json.

    Safetensors come first; a torch checkpoint is looked at only where there are none, and ONNX files after that, unless
    config.json names some: then safetensors beside them hold the rest.
    """
    if values.get("onnx_files") is not None:
        return open_onnx(directory, values, open_safetensors(directory) if _has_safetensors(directory) else None)
    path = _torch_checkpoint(directory)
    if path is None and not _has_safetensors(directory) and find_onnx_files(directory, values):
        return open_onnx(directory, values)
    return open_quantized(open_safetensors(directory) if path is None else open_torch(path), values)


def folder_files(directory: Path) -> list[Path]:
    """Every file that the weights depend on."""
    path = _torch_checkpoint(directory)
    weights = sorted(directory.glob("*.safetensors")) if path is None else list(files_of(path))
    weights += sorted(directory.glob("*.onnx"))
    settings = [directory / name for name in ("config.json", "quantize_config.json")]
    return weights + [file for file in settings if file.exists()]


def _has_safetensors(directory: Path) -> bool:
    return any(directory.glob("*.safetensors")) or any(directory.glob("*.safetensors.index.json"))


def _torch_checkpoint(directory: Path) -> Path | None:
    return None if _has_safetensors(directory) else find_torch_files(directory)

