"""Phi-1, 1.5 and 2: attention and MLP in parallel after one norm, rotary positions in part of each head, biases."""

from __future__ import annotations

from forwardpass.models import decoder, gguf_config, hf_config
from forwardpass.models.families import llama
from forwardpass.models.gguf_config import ROPE_TENSORS, GgufFields
from forwardpass.models.hf_config import HfFields
from forwardpass.models.spec import ModelSpec
from forwardpass.models.weight_rows import WeightRow
from forwardpass.models.weight_tables import table_rows

ARCHITECTURES = {"phi": ("PhiForCausalLM",)}
GGUF = {"phi2": "phi"}
IGNORED = {"safetensors": llama.IGNORED["safetensors"], "gguf": (ROPE_TENSORS,)}
NAMES = llama.NAMES | {
    "attention.out": ("model.layers.{i}.self_attn.dense", "blk.{i}.attn_output"),
    "attention.q_norm": ("model.layers.{i}.self_attn.q_layernorm", "blk.{i}.attn_q_norm"),
    "attention.k_norm": ("model.layers.{i}.self_attn.k_layernorm", "blk.{i}.attn_k_norm"),
    "mlp.up": ("model.layers.{i}.mlp.fc1", "blk.{i}.ffn_up"),
    "mlp.down": ("model.layers.{i}.mlp.fc2", "blk.{i}.ffn_down"),
    "final_norm": ("model.final_layernorm", "output_norm"),
}
SHAPE = {"norm": "layer", "norm_bias": True, "mlp": "plain", "qkv_bias": True, "out_bias": True, "mlp_bias": True,
         "parallel": True, "shared_norm": True, "head_bias": True}


def from_config(f: HfFields) -> ModelSpec:
    n = hf_config.decoder(f, eps=("layer_norm_eps", 1e-5), act=("hidden_act", "gelu_new"), partial=0.5)
    return decoder.build(**n, **SHAPE, qk_norm="head" if f.flag("qk_layernorm", False) else "", qk_norm_bias=True)


def from_gguf(f: GgufFields) -> ModelSpec:
    return decoder.build(**gguf_config.decoder(f, eps="attention.layer_norm_epsilon", act="gelu_tanh"), **SHAPE)


def weight_rows(spec: ModelSpec, kind: str) -> tuple[WeightRow, ...]:
    return tuple(table_rows(spec, NAMES, kind))
