"""The gpt2 family: layer norm, learned positions, plain MLP, biases everywhere, one fused matrix for q, k and v."""

from __future__ import annotations

from dataclasses import replace

from forwardpass.errors import ModelFileError
from forwardpass.models import gguf_config, hf_config
from forwardpass.models.gguf_config import GgufFields
from forwardpass.models.hf_config import HfFields
from forwardpass.models.spec import AttentionSpec, LayerSpec, MlpSpec, ModelSpec, NormSpec
from forwardpass.models.weight_rows import WeightRow
from forwardpass.models.weight_tables import QKV, fused, table_rows

ARCHITECTURES = {"gpt2": ("GPT2LMHeadModel", "GPT2Model")}
GGUF = {"gpt2": "gpt2"}
IGNORED = {
    "safetensors": (r"(transformer\.)?h\.\d+\.attn\.(bias|masked_bias)",),  # causal masks that old checkpoints kept
    "gguf": (),
}
NAMES = {  # target: (safetensors, gguf). Old checkpoints lack the "transformer." in front.
    "embed.tokens": ("transformer.wte|wte", "token_embd"),
    "embed.positions": ("transformer.wpe|wpe", "position_embd"),
    "attention_norm": ("transformer.h.{i}.ln_1|h.{i}.ln_1", "blk.{i}.attn_norm"),
    "attention.q": ("transformer.h.{i}.attn.c_attn|h.{i}.attn.c_attn", "blk.{i}.attn_qkv"),
    "attention.k": ("transformer.h.{i}.attn.c_attn|h.{i}.attn.c_attn", "blk.{i}.attn_qkv"),
    "attention.v": ("transformer.h.{i}.attn.c_attn|h.{i}.attn.c_attn", "blk.{i}.attn_qkv"),
    "attention.out": ("transformer.h.{i}.attn.c_proj|h.{i}.attn.c_proj", "blk.{i}.attn_output"),
    "mlp_norm": ("transformer.h.{i}.ln_2|h.{i}.ln_2", "blk.{i}.ffn_norm"),
    "mlp.up": ("transformer.h.{i}.mlp.c_fc|h.{i}.mlp.c_fc", "blk.{i}.ffn_up"),
    "mlp.down": ("transformer.h.{i}.mlp.c_proj|h.{i}.mlp.c_proj", "blk.{i}.ffn_down"),
    "final_norm": ("transformer.ln_f|ln_f", "output_norm"),
    "head": ("lm_head", "output"),
}


def build(*, vocab, hidden, layers, heads, inner, positions, eps, tied, act, scales) -> ModelSpec:
    """The spec out of plain numbers. scales: the attention scale of each layer."""
    norm, mlp = NormSpec("layer", eps, bias=True), MlpSpec("plain", inner, act, bias=True)
    made = {scale: LayerSpec(norm, AttentionSpec(heads, heads, hidden // heads, scale, qkv_bias=True, out_bias=True),
                             norm, mlp) for scale in dict.fromkeys(scales)}
    return ModelSpec("gpt2", hidden, vocab, positions, tuple(made[s] for s in scales), norm, tied,
                     learned_positions=positions).check()


def from_config(f: HfFields) -> ModelSpec:
    hidden, heads = f.integer("n_embd", "hidden_size"), f.integer("n_head", "num_attention_heads")
    layers = hf_config.layer_count(f, "n_layer", "num_hidden_layers")
    if hidden % heads:
        f.wrong("n_head", f"a divisor of n_embd ({hidden})", heads)
    base = (hidden // heads) ** -0.5 if f.flag("scale_attn_weights", True) else 1.0
    by_layer = f.flag("scale_attn_by_inverse_layer_idx", False)
    return build(vocab=f.integer("vocab_size"), hidden=hidden, layers=layers, heads=heads,
                 inner=f.integer("n_inner", default=4 * hidden),
                 positions=f.integer("n_positions", "max_position_embeddings", default=1024),
                 eps=hf_config.epsilon(f, "layer_norm_epsilon", 1e-5), tied=f.flag("tie_word_embeddings", True),
                 act=hf_config.activation(f, "activation_function", "gelu_new"),
                 scales=[base / (i + 1) if by_layer else base for i in range(layers)])


def from_gguf(f: GgufFields) -> ModelSpec:
    n = gguf_config.sizes(f, "attention.layer_norm_epsilon")
    if n["kv_heads"] != n["heads"] or n["head_dim"] * n["heads"] != n["hidden"]:
        raise ModelFileError(f"GGUF metadata: gpt2: expected heads that share {n['hidden']} columns, each with its own "
                             f"keys; found {n['heads']} heads, {n['kv_heads']} key-value heads of {n['head_dim']}; "
                             "fetch the model again")
    del n["family"], n["kv_heads"], n["head_dim"]
    scale = (n["hidden"] // n["heads"]) ** -0.5
    return build(**n, act="gelu_tanh", scales=[scale] * n["layers"])


def weight_rows(spec: ModelSpec, kind: str) -> tuple[WeightRow, ...]:
    """Rows for a "safetensors" checkpoint (matrices stored [in, out]) or a "gguf" one ([out, in])."""
    rows = fused(table_rows(spec, NAMES, kind), QKV)
    for n, row in enumerate(rows):
        if kind == "safetensors" and row.target.startswith("layers.") and len(row.shape) == 2:
            rows[n] = replace(row, transform="transpose")
    return tuple(rows)
