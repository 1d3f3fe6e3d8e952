"""SigLIP (Zhai et al. 2023): towers for texts and images like CLIP's, but texts look both ways and are filled up to
their full length, a learned query pools the image, and each pair is scored by itself."""

from __future__ import annotations

from forwardpass.models import decoder, hf_heads, vision
from forwardpass.models.families import clip
from forwardpass.models.hf_config import HfFields
from forwardpass.models.spec import AttentionPoolSpec, HeadSpec, ModelSpec
from forwardpass.models.weight_rows import VISION, WeightRow, named_rows
from forwardpass.models.weight_tables import fused

ARCHITECTURES = {
    "siglip": ("SiglipModel", "SiglipForImageClassification"),
    "siglip_text_model": ("SiglipTextModel",),
    "siglip_vision_model": ("SiglipVisionModel",),
}
GGUF: dict[str, str] = {}
IGNORED = {"safetensors": (*vision.BUFFERS, r"vision_model\.head\..+"), "gguf": ()}  # a classifier does not use it
TEXTS = clip.TEXTS | {"head": "head"}
IMAGES = clip.LAYERS | {
    "embed.patches": "embeddings.patch_embedding",
    "final_norm": "post_layernorm",
    "head.pool.probe": "head.probe=",
    "head.pool.q": "head.attention.in_proj_",
    "head.pool.k": "head.attention.in_proj_",
    "head.pool.v": "head.attention.in_proj_",
    "head.pool.out": "head.attention.out_proj",
    "head.pool.norm": "head.layernorm",
    "head.pool.up": "head.mlp.fc1",
    "head.pool.down": "head.mlp.fc2",
}
HEADS = {"vector": {"head": "head"}, "labels": {"head": "classifier"}}


def from_config(f: HfFields) -> ModelSpec:
    if f.family == "siglip_text_model":
        return texts(f)
    if f.family == "siglip_vision_model":
        return images(f)
    seeing = vision.inner(f, "vision_config", "siglip_vision_model")
    if f.architecture == "SiglipForImageClassification":
        return images(seeing, hf_heads.head(f, labels={"pool": "patches"}), "siglip")
    reading = vision.inner(f, "text_config", "siglip_text_model")
    return texts(reading, family="siglip", vision=images(seeing), contrast="sigmoid")


def texts(f: HfFields, family: str = "", **more) -> ModelSpec:
    """The tower of texts: the vector is that of the last row, which is a padding token's in most texts."""
    n = vision.layers(f, eps=1e-6, act="gelu_pytorch_tanh")
    n |= {"vocab": f.integer("vocab_size", default=32000), "attention": {"causal": False},
          "positions": f.integer("max_position_embeddings", default=64)}
    head = HeadSpec("vector", f.integer("projection_size", default=n["hidden"]), "last")
    return decoder.build(**n | {"family": family or f.family}, learned_positions=n["positions"], head=head,
                         head_bias=True, padded=n["positions"], pad=f.integer("pad_token_id", default=1, low=0),
                         **more)


def images(f: HfFields, head: dict | None = None, family: str = "") -> ModelSpec:
    n = vision.layers(f, eps=1e-6, act="gelu_pytorch_tanh") | vision.patches(f, resize="bicubic")
    used = f.flag("vision_use_head", True)
    if head is None:
        pool = AttentionPoolSpec(n["heads"], n["inner"], n["act"], vision.norm(n))
        head = {"head": HeadSpec("vector", 0, "attention", attention=pool) if used else HeadSpec("none")}
    return decoder.build(**n | {"family": family or f.family} | head)


def weight_rows(spec: ModelSpec, kind: str) -> tuple[WeightRow, ...]:
    tower = VISION if spec.vision else ""
    if spec.vision:
        names = vision.named(TEXTS, ["text_model."]) | vision.named(IMAGES, ["vision_model."], VISION)
        names |= {"pair.scale": ("logit_scale=",), "pair.bias": ("logit_bias=",)}
    elif spec.patches:
        names = vision.named(IMAGES, ["vision_model.", ""]) | {"head": ("classifier",)}
    else:
        names = vision.named(TEXTS, ["text_model.", ""])
    return tuple(fused(named_rows(spec, names), [f"{tower}head.pool.{one}" for one in "qkv"]))
