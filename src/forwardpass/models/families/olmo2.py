"""OLMo 2 and 3: llama's layers with norms only after attention and MLP, and one norm over all queries and all keys.

OLMo 3 adds windows in three of four layers, whose rotary positions are never scaled. Its GGUF files say olmo2.
"""

from __future__ import annotations

from forwardpass.models import decoder, gguf_config, hf_config
from forwardpass.models.families import llama
from forwardpass.models.gguf_config import ROPE_TENSORS, GgufFields
from forwardpass.models.hf_config import HfFields
from forwardpass.models.spec import ModelSpec
from forwardpass.models.weight_rows import WeightRow
from forwardpass.models.weight_tables import table_rows

ARCHITECTURES = {"olmo2": ("Olmo2ForCausalLM",), "olmo3": ("Olmo3ForCausalLM",)}
GGUF = {"olmo2": "olmo2"}
IGNORED = {"safetensors": llama.IGNORED["safetensors"], "gguf": (ROPE_TENSORS,)}
NAMES = llama.NAMES | llama.QK_NORMS | {
    "post_attention_norm": ("model.layers.{i}.post_attention_layernorm", "blk.{i}.post_attention_norm"),
    "post_mlp_norm": ("model.layers.{i}.post_feedforward_layernorm", "blk.{i}.post_ffw_norm"),
}
SHAPE = {"norms": "after", "qk_norm": "all"}


def _slides(i: int) -> bool:
    return (i + 1) % 4 != 0


def from_config(f: HfFields) -> ModelSpec:
    third = {"slides": _slides, "theta": 5e5, "local": ("rope_theta", 5e5)} if f.family == "olmo3" else {}
    n = hf_config.decoder(f, eps=("rms_norm_eps", 1e-5), **third)
    biases = f.flag("attention_bias", False)
    return decoder.build(**n, **SHAPE, qkv_bias=biases, out_bias=biases)


def from_gguf(f: GgufFields) -> ModelSpec:
    windowed = f.has("attention.sliding_window")
    theta = f.number("rope.freq_base", default=10000.0, low=1, high=1e12) if windowed else None
    n = gguf_config.decoder(f, slides=_slides if windowed else None, local_theta=theta)
    return decoder.build(**n, **SHAPE, **gguf_config.biases(f))


def weight_rows(spec: ModelSpec, kind: str) -> tuple[WeightRow, ...]:
    return tuple(table_rows(spec, NAMES, kind))
