"""Phi-3, Phi-3.5 and Phi-4: llama's layers with one fused matrix for q, k and v and one for gate and up; longrope."""

from __future__ import annotations

from forwardpass.models import decoder, gguf_config, hf_config
from forwardpass.models.families import llama
from forwardpass.models.gguf_config import ROPE_TENSORS, GgufFields
from forwardpass.models.hf_config import HfFields
from forwardpass.models.hf_rope import OLD_NAMES
from forwardpass.models.spec import ModelSpec
from forwardpass.models.weight_rows import WeightRow
from forwardpass.models.weight_tables import QKV, fused, table_rows

ARCHITECTURES = {"phi3": ("Phi3ForCausalLM",)}
GGUF = {"phi3": "phi3"}
IGNORED = {"safetensors": llama.IGNORED["safetensors"], "gguf": (ROPE_TENSORS,)}
GATE_UP = ("mlp.gate", "mlp.up")
NAMES = llama.NAMES | {
    **dict.fromkeys(QKV, ("model.layers.{i}.self_attn.qkv_proj", "blk.{i}.attn_qkv")),
    **dict.fromkeys(GATE_UP, ("model.layers.{i}.mlp.gate_up_proj", "blk.{i}.ffn_up")),
}


def from_config(f: HfFields) -> ModelSpec:
    f.integer("original_max_position_embeddings", default=4096)
    n = hf_config.decoder(f, positions=4096, eps=("rms_norm_eps", 1e-5), slides=lambda i: True,
                          old_names=OLD_NAMES | {"yarn": "longrope"})
    return decoder.build(**n)


def from_gguf(f: GgufFields) -> ModelSpec:
    return decoder.build(**gguf_config.decoder(f, slides=lambda i: True))


def weight_rows(spec: ModelSpec, kind: str) -> tuple[WeightRow, ...]:
    return tuple(fused(fused(table_rows(spec, NAMES, kind), QKV), GATE_UP))
