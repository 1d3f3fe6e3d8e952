"""Qwen: llama's layers with biases on queries, keys and values (Qwen2, Qwen2.5 and their coders) or norms of queries
and keys (Qwen3), and the mixtures of experts of both.

Its GGUF files keep each rotary head as two halves, as the checkpoints do, so no rows are reordered.
"""

from __future__ import annotations

from forwardpass.models import decoder, gguf_config, hf_config
from forwardpass.models.families import llama
from forwardpass.models.gguf_config import ROPE_TENSORS, GgufFields
from forwardpass.models.hf_config import HfFields
from forwardpass.models.spec import ExpertsSpec, ModelSpec
from forwardpass.models.weight_rows import WeightRow
from forwardpass.models.weight_tables import table_rows

ARCHITECTURES = {
    "qwen2": ("Qwen2ForCausalLM",), "qwen2_moe": ("Qwen2MoeForCausalLM",),
    "qwen3": ("Qwen3ForCausalLM",), "qwen3_moe": ("Qwen3MoeForCausalLM",),
}
GGUF = {"qwen2": "qwen2", "qwen2moe": "qwen2_moe", "qwen3": "qwen3", "qwen3moe": "qwen3_moe"}
IGNORED = {"safetensors": llama.IGNORED["safetensors"], "gguf": (ROPE_TENSORS,)}
NAMES = llama.NAMES | llama.QK_NORMS | {
    "mlp.router": ("model.layers.{i}.mlp.gate", "blk.{i}.ffn_gate_inp"),
    "mlp.experts.gate": ("model.layers.{i}.mlp.experts.{e}.gate_proj", "blk.{i}.ffn_gate_exps"),
    "mlp.experts.up": ("model.layers.{i}.mlp.experts.{e}.up_proj", "blk.{i}.ffn_up_exps"),
    "mlp.experts.down": ("model.layers.{i}.mlp.experts.{e}.down_proj", "blk.{i}.ffn_down_exps"),
    "mlp.shared.gate": ("model.layers.{i}.mlp.shared_expert.gate_proj", "blk.{i}.ffn_gate_shexp"),
    "mlp.shared.up": ("model.layers.{i}.mlp.shared_expert.up_proj", "blk.{i}.ffn_up_shexp"),
    "mlp.shared.down": ("model.layers.{i}.mlp.shared_expert.down_proj", "blk.{i}.ffn_down_shexp"),
    "mlp.shared_gate": ("model.layers.{i}.mlp.shared_expert_gate", "blk.{i}.ffn_gate_inp_shexp"),
}


def from_config(f: HfFields) -> ModelSpec:
    """Windows are off unless use_sliding_window; then each type has its own rule for the layers that have one."""
    first = f.integer("max_window_layers", default=28, low=0)
    slides = {"qwen2_moe": lambda i: i % 2 == 0 and i < first, "qwen3_moe": lambda i: True}
    n = hf_config.decoder(f, positions=32768, slides=slides.get(f.family, lambda i: i >= first), switch=False,
                          head_dim=128 if f.family == "qwen3" else None)
    if f.family in ("qwen3", "qwen3_moe"):
        biases = f.flag("attention_bias", False)
        n |= {"qk_norm": "head", "qkv_bias": biases, "out_bias": biases}
    else:
        n["qkv_bias"] = f.flag("qkv_bias", True)
    if f.family.endswith("_moe"):
        n |= _experts(f, n["layers"])
    return decoder.build(**n)


def _experts(f: HfFields, layers: int) -> dict:
    shared = f.integer("shared_expert_intermediate_size", default=5632) if f.family == "qwen2_moe" else 0
    spec = ExpertsSpec(f.integer("num_experts", "num_local_experts", default=60 if shared else 128),
                       f.integer("num_experts_per_tok", default=4 if shared else 8), f.flag("norm_topk_prob", False),
                       shared, shared > 0)
    step, dense = f.integer("decoder_sparse_step", default=1), f.get("mlp_only_layers") or []
    if not isinstance(dense, list) or not all(type(one) is int for one in dense):
        f.wrong("mlp_only_layers", "a list of layer numbers", dense)
    return {"experts": spec, "expert_inner": f.integer("moe_intermediate_size", default=1408 if shared else 768),
            "sparse": tuple(i not in dense and (i + 1) % step == 0 for i in range(layers))}


def from_gguf(f: GgufFields) -> ModelSpec:
    biases = {"qkv_bias": "blk.0.attn_q.bias" in f.tensors or f.family in ("qwen2", "qwen2_moe")}
    if f.family in ("qwen3", "qwen3_moe"):
        biases["qk_norm"] = "head"
    experts = gguf_config.experts(f, normalise=f.family == "qwen3_moe", shared_gate=True)
    return decoder.build(**gguf_config.decoder(f), **biases, **experts)


def weight_rows(spec: ModelSpec, kind: str) -> tuple[WeightRow, ...]:
    return tuple(table_rows(spec, NAMES, kind))
