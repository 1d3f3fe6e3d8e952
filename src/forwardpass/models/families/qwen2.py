"""The qwen2 family (Qwen2, Qwen2.5 and their coders): llama's layers with biases on queries, keys and values.

Its GGUF files keep each rotary head as two halves, as the checkpoints do, so no rows are reordered.
"""

from __future__ import annotations

from collections.abc import Mapping

from forwardpass.models import gguf_config, hf_config
from forwardpass.models.families import llama
from forwardpass.models.spec import ModelSpec
from forwardpass.models.weight_rows import WeightRow, named_rows

NAME = "qwen2"
ARCHITECTURES = ("Qwen2ForCausalLM",)
IGNORED = llama.IGNORED


def from_config(values: Mapping) -> ModelSpec:
    """The spec of an HF config.json. Raises ModelFileError or UnsupportedModelError."""
    f = hf_config.fields_of(values, NAME, ARCHITECTURES)
    numbers = hf_config.decoder(f, positions=32768, windows=False)
    return llama.build(family=NAME, **numbers, qkv_bias=True)


def from_gguf(metadata: Mapping, tensors: Mapping) -> ModelSpec:
    """The spec of GGUF metadata. tensors: name -> TensorInfo; without an output tensor the head is tied."""
    return llama.build(family=NAME, **gguf_config.decoder(metadata, tensors, NAME), qkv_bias=True)


def weight_rows(spec: ModelSpec, kind: str) -> tuple[WeightRow, ...]:
    """Rows for a "safetensors" or "gguf" checkpoint."""
    column = ("safetensors", "gguf").index(kind)
    return tuple(named_rows(spec, {target: (names[column],) for target, names in llama.NAMES.items()}))
