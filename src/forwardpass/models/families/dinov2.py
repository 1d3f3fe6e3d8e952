"""DINOv2 (Oquab et al. 2023), also with register tokens (Darcet et al. 2023): what attention and MLP add is scaled by a
learned number a column. Its largest model has a gated MLP."""

from __future__ import annotations

from forwardpass.models import decoder, hf_heads, vision
from forwardpass.models.families import vit
from forwardpass.models.hf_config import HfFields
from forwardpass.models.spec import ModelSpec, NormSpec
from forwardpass.models.weight_rows import WeightRow, named_rows
from forwardpass.models.weight_tables import fused

ARCHITECTURES = {
    "dinov2": ("Dinov2Model", "Dinov2ForImageClassification"),
    "dinov2_with_registers": ("Dinov2WithRegistersModel", "Dinov2WithRegistersForImageClassification"),
}
GGUF: dict[str, str] = {}
IGNORED = {"safetensors": vision.BUFFERS, "gguf": ()}
NAMES = vit.NAMES | {
    "embed.registers": "embeddings.register_tokens=",
    "attention_norm": "encoder.layer.{i}.norm1",
    "post_attention_norm": "encoder.layer.{i}.layer_scale1.lambda1=",
    "mlp_norm": "encoder.layer.{i}.norm2",
    "post_mlp_norm": "encoder.layer.{i}.layer_scale2.lambda1=",
    "mlp.gate": "encoder.layer.{i}.mlp.weights_in",
}
PLAIN = {"mlp.up": "encoder.layer.{i}.mlp.fc1", "mlp.down": "encoder.layer.{i}.mlp.fc2"}
GATED = {"mlp.up": "encoder.layer.{i}.mlp.weights_in", "mlp.down": "encoder.layer.{i}.mlp.weights_out"}
HEADS = vit.HEADS


def from_config(f: HfFields) -> ModelSpec:
    """With a gated MLP two thirds of the inner width, in steps of 8, are gate and up each, whatever hidden_act says."""
    n = vision.layers(f, eps=1e-6, inner=None, qkv_bias=f.flag("qkv_bias", True))
    n["inner"] = int(n["hidden"] * f.number("mlp_ratio", default=4, low=0.1, high=64))
    if f.flag("use_swiglu_ffn", False):
        n |= {"mlp": "gated", "act": "silu", "inner": (int(n["inner"] * 2 / 3) + 7) // 8 * 8}
    registers = f.family == "dinov2_with_registers"
    n |= vision.patches(f, patch=16 if registers else 14, classes=1,
                        registers=f.integer("num_register_tokens", default=4, low=0, high=1024) if registers else 0,
                        resize="antialiased" if registers else "bicubic")
    n |= hf_heads.head(f, labels={"pool": "first+patches"})
    return decoder.build(**n, branch_norm=NormSpec("scale", 0.0))


def weight_rows(spec: ModelSpec, kind: str) -> tuple[WeightRow, ...]:
    gated = spec.layers[0].mlp.kind == "gated"
    names = vision.named(NAMES | (GATED if gated else PLAIN), (f"{spec.family}.", "")) | {"head": ("classifier",)}
    rows = named_rows(spec, names)
    return tuple(fused(rows, ("mlp.gate", "mlp.up")) if gated else rows)
