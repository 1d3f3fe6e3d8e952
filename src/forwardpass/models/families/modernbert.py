"""ModernBERT (Warner et al. 2024): rotary positions, layers that see a window or the whole text and have a rotary base
of their own for either, norms before, a gated MLP, no biases."""

from __future__ import annotations

from dataclasses import replace

from forwardpass.models import decoder, encoder, gguf_config, hf_config, hf_heads
from forwardpass.models.gguf_config import GgufFields
from forwardpass.models.hf_config import HfFields
from forwardpass.models.spec import ModelSpec, NormSpec
from forwardpass.models.weight_rows import WeightRow
from forwardpass.models.weight_tables import QKV, fused

ARCHITECTURES = {"modernbert": hf_heads.classes("ModernBert")}
GGUF = {"modern-bert": "modernbert"}
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
LOCAL_THETA = 10000.0
POOLS = {"cls": "first", "mean": "mean"}


def from_config(f: HfFields) -> ModelSpec:
    """local_attention is a window's size on both sides together."""
    f.refuse_unread(encoder.REFUSED | {"rope_scaling": ((), "a rotary scaling in this family")})
    period = f.integer("global_attn_every_n_layers", default=3)
    n = hf_config.decoder(
        f, positions=8192, eps=("norm_eps", 1e-5), act=("hidden_activation", "gelu"), tied=True,
        window=f.integer("local_attention", default=128) // 2 + 1, slides=lambda i: i % period != 0,
        theta=f.number("global_rope_theta", default=160000.0, low=1, high=1e12),
        local=("local_rope_theta", LOCAL_THETA))
    norm = NormSpec("layer", n["eps"], f.flag("norm_bias", False))
    biases = f.flag("attention_bias", False)
    dense = {"dense": n["hidden"], "dense_bias": f.flag("classifier_bias", False), "dense_norm": norm,
             "activation": hf_config.activation(f, "classifier_activation", "gelu")}
    pool = f.text("classifier_pooling", "cls")
    if pool not in POOLS:
        f.wrong("classifier_pooling", f"one of {', '.join(POOLS)}", pool)
    n |= hf_heads.head(f, lm=dense, labels=dense | {"pool": POOLS[pool]}, tags=dense,
                       lm_bias=f.flag("decoder_bias", True))
    return _build(n, norm, qkv_bias=biases, out_bias=biases, mlp_bias=f.flag("mlp_bias", False))


def from_gguf(f: GgufFields) -> ModelSpec:
    n = gguf_config.decoder(f, eps="attention.layer_norm_epsilon", act="gelu_erf", slides=lambda i: i % 3 != 0,
                            local_theta=LOCAL_THETA, both_sides=True, first=True)
    norm = NormSpec("layer", n["eps"], "token_embd_norm.bias" in f.tensors)
    n = encoder.read_gguf(f, n) | {"final": True, "norms": "pre", "mlp": "gated"}
    return _build(n | encoder.head_gguf(f, n, "gelu_erf", norm), norm, **gguf_config.biases(f))


def _build(n: dict, norm: NormSpec, **biases: bool) -> ModelSpec:
    """The first layer has no norm before its attention: the embeddings were normed just then."""
    spec = decoder.build(**n | biases | {"norm": "layer", "norm_bias": norm.bias, "embed_norm": norm,
                                         "attention": {"causal": False}})
    return replace(spec, layers=(replace(spec.layers[0], attention_norm=None), *spec.layers[1:])).check()


def weight_rows(spec: ModelSpec, kind: str) -> tuple[WeightRow, ...]:
    rows = encoder.rows(spec, kind, NAMES, HEADS, ("model.",))
    return tuple(fused(fused(rows, QKV), ("mlp.gate", "mlp.up")))
