"""Granite: llama's layers with multipliers on embeddings, scores, what each layer adds, and logits."""

from __future__ import annotations

from forwardpass.models import decoder, gguf_config, hf_config
from forwardpass.models.families import llama
from forwardpass.models.gguf_config import GgufFields
from forwardpass.models.hf_config import HfFields
from forwardpass.models.spec import ModelSpec

ARCHITECTURES = {"granite": ("GraniteForCausalLM",)}
GGUF = {"granite": "granite"}
IGNORED = llama.IGNORED
weight_rows = llama.weight_rows  # GGUF interleaves the rotary rows here, too


def from_config(f: HfFields) -> ModelSpec:
    biases = f.flag("attention_bias", False)
    scales = {ours: f.number(name, default=1.0, low=1e-9, high=1e9) for ours, name in (
        ("scale", "attention_multiplier"), ("embed_scale", "embedding_multiplier"),
        ("residual_scale", "residual_multiplier"))}
    return decoder.build(**hf_config.decoder(f), **scales, qkv_bias=biases, out_bias=biases,
                         mlp_bias=f.flag("mlp_bias", False),
                         logit_scale=1 / f.number("logits_scaling", default=1.0, low=1e-9, high=1e9))


def from_gguf(f: GgufFields) -> ModelSpec:
    """As in a config.json, logits are divided by logit_scale."""
    if not f.flag("rope.scaling.finetuned", True):
        f.unsupported("rope.scaling.finetuned", "a granite model without positions")
    n, scales = gguf_config.decoder(f), {}
    for ours, name in (("scale", "attention.scale"), ("embed_scale", "embedding_scale"),
                       ("residual_scale", "residual_scale"), ("logit_scale", "logit_scale")):
        if value := f.number(name, default=0.0, low=0, high=1e9):
            scales[ours] = 1 / value if ours == "logit_scale" else value
    return decoder.build(**n, **scales, **gguf_config.biases(f))
