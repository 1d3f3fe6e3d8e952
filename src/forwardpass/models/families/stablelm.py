"""StableLM: layer norms, rotary positions in a quarter of each head, a gated MLP; the 12B model computes attention and
MLP in parallel and normalises queries and keys, each head with weights of its own."""

from __future__ import annotations

from forwardpass.models import decoder, gguf_config, hf_config
from forwardpass.models.families import llama
from forwardpass.models.gguf_config import ROPE_TENSORS, GgufFields
from forwardpass.models.hf_config import HfFields
from forwardpass.models.spec import ModelSpec
from forwardpass.models.weight_rows import WeightRow
from forwardpass.models.weight_tables import by_head, table_rows

ARCHITECTURES = {"stablelm": ("StableLmForCausalLM",)}
GGUF = {"stablelm": "stablelm"}
IGNORED = {"safetensors": llama.IGNORED["safetensors"], "gguf": (ROPE_TENSORS,)}
NAMES = llama.NAMES | {
    "attention.q_norm": ("model.layers.{i}.self_attn.q_layernorm.norms.{h}", "blk.{i}.attn_q_norm"),
    "attention.k_norm": ("model.layers.{i}.self_attn.k_layernorm.norms.{h}", "blk.{i}.attn_k_norm"),
}


def from_config(f: HfFields) -> ModelSpec:
    n = hf_config.decoder(f, positions=4096, eps=("layer_norm_eps", 1e-5), partial=0.25)
    return _build(n, f.flag("use_qkv_bias", False), f.flag("qk_layernorm", False),
                  f.flag("use_parallel_residual", False))


def from_gguf(f: GgufFields) -> ModelSpec:
    """The tensors tell what is parallel: converters wrote the flag of that name wrongly."""
    f.flag("use_parallel_residual", False)
    n = gguf_config.decoder(f, eps="attention.layer_norm_epsilon")
    return _build(n, "blk.0.attn_q.bias" in f.tensors, "blk.0.attn_q_norm.weight" in f.tensors,
                  "blk.0.ffn_norm.weight" not in f.tensors)


def _build(n: dict, biases: bool, normed: bool, parallel: bool) -> ModelSpec:
    return decoder.build(**n, norm="layer", norm_bias=True, qkv_bias=biases, qk_norm="heads" if normed else "",
                         parallel=parallel, shared_norm=parallel)


def weight_rows(spec: ModelSpec, kind: str) -> tuple[WeightRow, ...]:
    """The norms of the heads are single tensors in a checkpoint and stacked in a GGUF file."""
    return tuple(by_head(table_rows(spec, NAMES, kind), spec))
