"""The llama family: RMS norm, rotary positions, gated MLP. LLaMA 1 and 2, SmolLM2, TinyLlama and their kin."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from forwardpass.models import gguf_config, hf_config
from forwardpass.models.rotary import rotary
from forwardpass.models.spec import AttentionSpec, LayerSpec, MlpSpec, ModelSpec, NormSpec
from forwardpass.models.weight_rows import WeightRow, named_rows

NAME = "llama"
ARCHITECTURES = ("LlamaForCausalLM",)
IGNORED = {
    "safetensors": (r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq",),  # a buffer that old checkpoints kept
    "gguf": (r"blk\.\d+\.attn_rot_embd\.weight",),
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
    "final_norm": ("model.norm", "output_norm"),
    "head": ("lm_head", "output"),
}


def build(*, family, vocab, hidden, layers, heads, kv_heads, head_dim, inner, positions, eps, theta, tied,
          act="silu", qkv_bias=False, out_bias=False, mlp_bias=False) -> ModelSpec:
    """The spec out of plain numbers; all layers are alike."""
    norm = NormSpec("rms", eps)
    attention = AttentionSpec(heads, kv_heads, head_dim, head_dim**-0.5, rotary(head_dim, theta),
                              qkv_bias=qkv_bias, out_bias=out_bias)
    layer = LayerSpec(norm, attention, norm, MlpSpec("gated", inner, act, mlp_bias))
    return ModelSpec(family, hidden, vocab, positions, (layer,) * layers, norm, tied).check()


def from_config(values: Mapping) -> ModelSpec:
    """The spec of an HF config.json. Raises ModelFileError or UnsupportedModelError."""
    f = hf_config.fields_of(values, NAME, ARCHITECTURES)
    biases = f.flag("attention_bias", False)
    numbers = hf_config.decoder(f, positions=2048, windows=True)
    return build(family=NAME, **numbers, qkv_bias=biases, out_bias=biases, mlp_bias=f.flag("mlp_bias", False))


def from_gguf(metadata: Mapping, tensors: Mapping) -> ModelSpec:
    """The spec of GGUF metadata. tensors: name -> TensorInfo; they tell what has a bias, and if the head is tied."""
    numbers = gguf_config.decoder(metadata, tensors, NAME)
    return build(family=NAME, **numbers, qkv_bias="blk.0.attn_q.bias" in tensors,
                 out_bias="blk.0.attn_output.bias" in tensors, mlp_bias="blk.0.ffn_up.bias" in tensors)


def weight_rows(spec: ModelSpec, kind: str) -> tuple[WeightRow, ...]:
    """Rows for a "safetensors" or "gguf" checkpoint. GGUF interleaves the halves of each query and key head."""
    column = ("safetensors", "gguf").index(kind)
    rows = named_rows(spec, {target: (names[column],) for target, names in NAMES.items()})
    if kind == "gguf":
        a = spec.layers[0].attention
        heads = {".attention.q.": a.num_heads, ".attention.k.": a.num_kv_heads}
        for n, row in enumerate(rows):
            for part, count in heads.items():
                if part in row.target:
                    rows[n] = replace(row, transform="rotary_rows", heads=count)
    return tuple(rows)
