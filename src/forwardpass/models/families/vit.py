"""ViT (Dosovitskiy et al. 2021) and DeiT (Touvron et al. 2021), which has a second token and a second head, trained to
agree with a teacher."""

from __future__ import annotations

from forwardpass.models import decoder, hf_heads, vision
from forwardpass.models.hf_config import HfFields
from forwardpass.models.spec import ModelSpec
from forwardpass.models.weight_rows import WeightRow, named_rows

ARCHITECTURES = {
    "vit": ("ViTModel", "ViTForImageClassification"),
    "deit": ("DeiTModel", "DeiTForImageClassification", "DeiTForImageClassificationWithTeacher"),
}
GGUF: dict[str, str] = {}
IGNORED = {"safetensors": (*vision.BUFFERS, r"((vit|deit)\.)?pooler\..+"), "gguf": ()}
NAMES = {
    "embed.patches": "embeddings.patch_embeddings.projection",
    "embed.class.0": "embeddings.cls_token=",
    "embed.class.1": "embeddings.distillation_token=",
    "embed.places": "embeddings.position_embeddings=",
    "attention_norm": "encoder.layer.{i}.layernorm_before",
    "attention.q": "encoder.layer.{i}.attention.attention.query",
    "attention.k": "encoder.layer.{i}.attention.attention.key",
    "attention.v": "encoder.layer.{i}.attention.attention.value",
    "attention.out": "encoder.layer.{i}.attention.output.dense",
    "mlp_norm": "encoder.layer.{i}.layernorm_after",
    "mlp.up": "encoder.layer.{i}.intermediate.dense",
    "mlp.down": "encoder.layer.{i}.output.dense",
    "final_norm": "layernorm",
}
HEADS = {"labels": {"head": "classifier"}}


def from_config(f: HfFields) -> ModelSpec:
    n = vision.layers(f, eps=1e-12, qkv_bias=f.flag("qkv_bias", True))
    n |= vision.patches(f, classes=2 if f.family == "deit" else 1, resize="bicubic")
    taught = f.architecture == "DeiTForImageClassificationWithTeacher"
    return decoder.build(**n | hf_heads.head(f, labels={"pool": "both" if taught else "first"}))


def weight_rows(spec: ModelSpec, kind: str) -> tuple[WeightRow, ...]:
    head = {"head": ("cls_classifier" if spec.head.pool == "both" else "classifier",),
            "head.teacher": ("distillation_classifier",)}
    return tuple(named_rows(spec, vision.named(NAMES, (f"{spec.family}.", "")) | head))
