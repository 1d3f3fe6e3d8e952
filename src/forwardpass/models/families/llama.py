"""The llama family: RMS norm, rotary positions, gated MLP. LLaMA 1 to 3, Mistral, Mixtral, SmolLM2 and their kin."""

from __future__ import annotations

from forwardpass.models import decoder, gguf_config, hf_config
from forwardpass.models.gguf_config import ROPE_TENSORS, GgufFields
from forwardpass.models.hf_config import HfFields
from forwardpass.models.spec import ExpertsSpec, ModelSpec
from forwardpass.models.weight_rows import WeightRow
from forwardpass.models.weight_tables import interleaved, table_rows

ARCHITECTURES = {
    "llama": ("LlamaForCausalLM",), "mistral": ("MistralForCausalLM",), "mixtral": ("MixtralForCausalLM",),
}
GGUF = {"llama": "llama"}
IGNORED = {
    "safetensors": (r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq",),  # a buffer that old checkpoints kept
    "gguf": (r"blk\.\d+\.attn_rot_embd\.weight", ROPE_TENSORS),
}
NAMES = {  # target: (safetensors, gguf)
    "embed.tokens": ("model.embed_tokens", "token_embd"),
    "attention_norm": ("model.layers.{i}.input_layernorm", "blk.{i}.attn_norm"),
    "attention.q": ("model.layers.{i}.self_attn.q_proj", "blk.{i}.attn_q"),
    "attention.k": ("model.layers.{i}.self_attn.k_proj", "blk.{i}.attn_k"),
    "attention.v": ("model.layers.{i}.self_attn.v_proj", "blk.{i}.attn_v"),
    "attention.out": ("model.layers.{i}.self_attn.o_proj", "blk.{i}.attn_output"),
    "mlp_norm": ("model.layers.{i}.post_attention_layernorm", "blk.{i}.ffn_norm"),
    "mlp.gate": ("model.layers.{i}.mlp.gate_proj", "blk.{i}.ffn_gate"),
    "mlp.up": ("model.layers.{i}.mlp.up_proj", "blk.{i}.ffn_up"),
    "mlp.down": ("model.layers.{i}.mlp.down_proj", "blk.{i}.ffn_down"),
    "mlp.router": ("model.layers.{i}.block_sparse_moe.gate", "blk.{i}.ffn_gate_inp"),
    "mlp.experts.gate": ("model.layers.{i}.block_sparse_moe.experts.{e}.w1", "blk.{i}.ffn_gate_exps"),
    "mlp.experts.up": ("model.layers.{i}.block_sparse_moe.experts.{e}.w3", "blk.{i}.ffn_up_exps"),
    "mlp.experts.down": ("model.layers.{i}.block_sparse_moe.experts.{e}.w2", "blk.{i}.ffn_down_exps"),
    "final_norm": ("model.norm", "output_norm"),
    "head": ("lm_head", "output"),
}
QK_NORMS = {  # of the families that normalise queries and keys
    "attention.q_norm": ("model.layers.{i}.self_attn.q_norm", "blk.{i}.attn_q_norm"),
    "attention.k_norm": ("model.layers.{i}.self_attn.k_norm", "blk.{i}.attn_k_norm"),
}


def from_config(f: HfFields) -> ModelSpec:
    """LLaMA has no window; Mistral and Mixtral have one in every layer unless it is null."""
    if f.family == "llama":
        biases = f.flag("attention_bias", False)
        return decoder.build(**hf_config.decoder(f), qkv_bias=biases, out_bias=biases,
                             mlp_bias=f.flag("mlp_bias", False))
    mixed = f.family == "mixtral"
    n = hf_config.decoder(f, positions=131072, slides=lambda i: True, theta=1e6 if mixed else 1e4,
                          eps=("rms_norm_eps", 1e-5 if mixed else 1e-6))
    experts = ExpertsSpec(f.integer("num_local_experts", "num_experts", default=8),
                          f.integer("num_experts_per_tok", default=2)) if mixed else None
    return decoder.build(**n, experts=experts)


def from_gguf(f: GgufFields) -> ModelSpec:
    """The tensors tell what has a bias. Mistral and Mixtral are stored as llama, too."""
    n = gguf_config.decoder(f, slides=lambda i: True)
    return decoder.build(**n, **gguf_config.experts(f, normalise=True), **gguf_config.biases(f))


def weight_rows(spec: ModelSpec, kind: str) -> tuple[WeightRow, ...]:
    """GGUF interleaves the halves of each query and key head."""
    rows = table_rows(spec, NAMES, kind)
    return tuple(interleaved(rows, spec) if kind == "gguf" else rows)
