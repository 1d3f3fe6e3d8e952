"""The qwen2 family (Qwen2, Qwen2.5 and their coders): llama's layers with biases on queries, keys and values.

Its GGUF files keep each rotary head as two halves, as the checkpoints do, so no rows are reordered.
"""

from __future__ import annotations

from forwardpass.models import decoder, gguf_config, hf_config
from forwardpass.models.families import llama
from forwardpass.models.gguf_config import ROPE_TENSORS, GgufFields
from forwardpass.models.hf_config import HfFields
from forwardpass.models.spec import ModelSpec
from forwardpass.models.weight_rows import WeightRow
from forwardpass.models.weight_tables import table_rows

ARCHITECTURES = {"qwen2": ("Qwen2ForCausalLM",)}
GGUF = {"qwen2": "qwen2"}
IGNORED = {"safetensors": llama.IGNORED["safetensors"], "gguf": (ROPE_TENSORS,)}


def from_config(f: HfFields) -> ModelSpec:
    first = f.integer("max_window_layers", default=28, low=0)
    n = hf_config.decoder(f, positions=32768, slides=lambda i: i >= first, switch=False)
    return decoder.build(**n, qkv_bias=True)


def from_gguf(f: GgufFields) -> ModelSpec:
    return decoder.build(**gguf_config.decoder(f), qkv_bias=True)


def weight_rows(spec: ModelSpec, kind: str) -> tuple[WeightRow, ...]:
    return tuple(table_rows(spec, llama.NAMES, kind))
