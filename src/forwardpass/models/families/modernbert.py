"""ModernBERT (Warner et al. 2024): rotary positions, layers that see a window or the whole text and have a rotary base
of their own for either, norms before, a gated MLP, no biases."""

from __future__ import annotations

from dataclasses import replace

from forwardpass.models import decoder, encoder, hf_config, hf_heads
from forwardpass.models.hf_config import HfFields
from forwardpass.models.spec import ModelSpec, NormSpec
from forwardpass.models.weight_rows import WeightRow
from forwardpass.models.weight_tables import QKV, fused

ARCHITECTURES = {"modernbert": hf_heads.classes("ModernBert")}
GGUF: dict[str, str] = {}
IGNORED = {"safetensors": (r"head\..+", r"decoder\..+"), "gguf": ()}
NAMES = {  # target: (safetensors, gguf)
    "embed.tokens": ("embeddings.tok_embeddings", "token_embd"),
    "embed.norm": ("embeddings.norm", "token_embd_norm"),
    "attention_norm": ("layers.{i}.attn_norm", "blk.{i}.attn_norm"),
    "attention.q": ("layers.{i}.attn.Wqkv", "blk.{i}.attn_qkv"),
    "attention.k": ("layers.{i}.attn.Wqkv", "blk.{i}.attn_qkv"),
    "attention.v": ("layers.{i}.attn.Wqkv", "blk.{i}.attn_qkv"),
    "attention.out": ("layers.{i}.attn.Wo", "blk.{i}.attn_output"),
    "mlp_norm": ("layers.{i}.mlp_norm", "blk.{i}.ffn_norm"),
    "mlp.gate": ("layers.{i}.mlp.Wi", "blk.{i}.ffn_up"),
    "mlp.up": ("layers.{i}.mlp.Wi", "blk.{i}.ffn_up"),
    "mlp.down": ("layers.{i}.mlp.Wo", "blk.{i}.ffn_down"),
    "final_norm": ("final_norm", "output_norm"),
}
_HEAD = {"head.dense": ("head.dense", "cls"), "head.dense_norm": ("head.norm", "cls.norm")}
HEADS = {"lm": _HEAD | {"head": ("decoder", "")}, "labels": _HEAD | {"head": ("classifier", "cls.output")},
         "tags": _HEAD | {"head": ("classifier", "")}}
POOLS = {"cls": "first", "mean": "mean"}


def from_config(f: HfFields) -> ModelSpec:
    """local_attention is a window's size on both sides together."""
    f.refuse_unread(encoder.REFUSED | {"rope_scaling": ((), "a rotary scaling in this family")})
    period = f.integer("global_attn_every_n_layers", default=3)
    n = hf_config.decoder(
        f, positions=8192, eps=("norm_eps", 1e-5), act=("hidden_activation", "gelu"), tied=True,
        window=f.integer("local_attention", default=128) // 2 + 1, slides=lambda i: i % period != 0,
        theta=f.number("global_rope_theta", default=160000.0, low=1, high=1e12), local=("local_rope_theta", 10000.0))
    norm = NormSpec("layer", n["eps"], f.flag("norm_bias", False))
    biases = f.flag("attention_bias", False)
    dense = {"dense": n["hidden"], "dense_bias": f.flag("classifier_bias", False), "dense_norm": norm,
             "activation": hf_config.activation(f, "classifier_activation", "gelu")}
    pool = f.text("classifier_pooling", "cls")
    if pool not in POOLS:
        f.wrong("classifier_pooling", f"one of {', '.join(POOLS)}", pool)
    n |= hf_heads.head(f, lm=dense, labels=dense | {"pool": POOLS[pool]}, tags=dense,
                       lm_bias=f.flag("decoder_bias", True))
    spec = decoder.build(**n, norm="layer", norm_bias=norm.bias, qkv_bias=biases, out_bias=biases,
                         mlp_bias=f.flag("mlp_bias", False), embed_norm=norm, attention={"causal": False})
    first = replace(spec.layers[0], attention_norm=None)  # the embeddings were normed just before
    return replace(spec, layers=(first, *spec.layers[1:])).check()


def weight_rows(spec: ModelSpec, kind: str) -> tuple[WeightRow, ...]:
    rows = encoder.rows(spec, kind, NAMES, HEADS, ("model.",))
    return tuple(fused(fused(rows, QKV), ("mlp.gate", "mlp.up")))
