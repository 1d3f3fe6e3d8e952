"""BLOOM: ALiBi, a norm of the embeddings, biases everywhere; q, k and v side by side for each head in one matrix.

GGUF files hold q, k and v one after another.
"""

from __future__ import annotations

from forwardpass.errors import ModelFileError
from forwardpass.models import decoder, gguf_config, hf_config
from forwardpass.models.alibi import alibi_slopes
from forwardpass.models.gguf_config import GgufFields
from forwardpass.models.hf_config import HfFields
from forwardpass.models.spec import ModelSpec, NormSpec
from forwardpass.models.weight_rows import WeightRow
from forwardpass.models.weight_tables import QKV, fused, table_rows

ARCHITECTURES = {"bloom": ("BloomForCausalLM", "BloomModel")}
GGUF = {"bloom": "bloom"}
IGNORED: dict[str, tuple[str, ...]] = {"safetensors": (), "gguf": ()}
NAMES = {target: (f"transformer.{name}|{name}", gguf) for target, (name, gguf) in {  # base models lack "transformer."
    "embed.tokens": ("word_embeddings", "token_embd"),
    "embed.norm": ("word_embeddings_layernorm", "token_embd_norm"),
    "attention_norm": ("h.{i}.input_layernorm", "blk.{i}.attn_norm"),
    **dict.fromkeys(QKV, ("h.{i}.self_attention.query_key_value", "blk.{i}.attn_qkv")),
    "attention.out": ("h.{i}.self_attention.dense", "blk.{i}.attn_output"),
    "mlp_norm": ("h.{i}.post_attention_layernorm", "blk.{i}.ffn_norm"),
    "mlp.up": ("h.{i}.mlp.dense_h_to_4h", "blk.{i}.ffn_up"),
    "mlp.down": ("h.{i}.mlp.dense_4h_to_h", "blk.{i}.ffn_down"),
    "final_norm": ("ln_f", "output_norm"),
}.items()} | {"head": ("lm_head", "output")}


def _build(n: dict) -> ModelSpec:
    return decoder.build(**n, norm="layer", norm_bias=True, mlp="plain", qkv_bias=True, out_bias=True, mlp_bias=True,
                         alibi=alibi_slopes(n["heads"]), embed_norm=NormSpec("layer", n["eps"], bias=True))


def from_config(f: HfFields) -> ModelSpec:
    """seq_length: of training. Where it is absent, that of the published models."""
    if f.flag("apply_residual_connection_post_layernorm", False):
        f.unsupported("apply_residual_connection_post_layernorm", "a residual stream of normalised values")
    n = hf_config.sizes(f, hidden="n_embed", heads="n_head", layers="n_layer", inner="n_inner",
                        positions=("seq_length", 2048))
    return _build(n | {"act": "gelu_tanh"})


def from_gguf(f: GgufFields) -> ModelSpec:
    n = gguf_config.unrotated(f, "gelu_tanh")
    if n["kv_heads"] != n["heads"]:
        raise ModelFileError(f"GGUF metadata: bloom: expected keys for each of {n['heads']} heads, found "
                             f"{n['kv_heads']}; fetch the model again")
    return _build(n)


def weight_rows(spec: ModelSpec, kind: str) -> tuple[WeightRow, ...]:
    runs = spec.layers[0].attention.num_heads if kind == "safetensors" else 1
    return tuple(fused(table_rows(spec, NAMES, kind), QKV, runs=runs))
