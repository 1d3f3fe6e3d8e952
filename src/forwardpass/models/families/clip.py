"""CLIP (Radford et al. 2021): a tower for texts that looks only back and one for images, trained to agree; and each of
them alone."""

from __future__ import annotations

from forwardpass.models import decoder, hf_heads, vision
from forwardpass.models.hf_config import HfFields
from forwardpass.models.spec import HeadSpec, ModelSpec
from forwardpass.models.weight_rows import VISION, WeightRow, named_rows

ARCHITECTURES = {
    "clip": ("CLIPModel", "CLIPForImageClassification"),
    "clip_text_model": ("CLIPTextModel", "CLIPTextModelWithProjection"),
    "clip_vision_model": ("CLIPVisionModel", "CLIPVisionModelWithProjection"),
}
GGUF: dict[str, str] = {}
IGNORED = {"safetensors": (*vision.BUFFERS, r"vision_model\.post_layernorm\..+"), "gguf": ()}
LAYERS = {  # of both towers, also SigLIP's
    "attention_norm": "encoder.layers.{i}.layer_norm1",
    "attention.q": "encoder.layers.{i}.self_attn.q_proj",
    "attention.k": "encoder.layers.{i}.self_attn.k_proj",
    "attention.v": "encoder.layers.{i}.self_attn.v_proj",
    "attention.out": "encoder.layers.{i}.self_attn.out_proj",
    "mlp_norm": "encoder.layers.{i}.layer_norm2",
    "mlp.up": "encoder.layers.{i}.mlp.fc1",
    "mlp.down": "encoder.layers.{i}.mlp.fc2",
    "embed.places": "embeddings.position_embedding",
}
TEXTS = LAYERS | {"embed.tokens": "embeddings.token_embedding", "embed.positions": "embeddings.position_embedding",
                  "final_norm": "final_layer_norm"}
IMAGES = LAYERS | {"embed.patches": "embeddings.patch_embedding", "embed.class.0": "embeddings.class_embedding=",
                   "embed.norm": "pre_layrnorm", "head.norm": "post_layernorm"}
HEADS = {"vector": {"head": "text_projection"}, "labels": {"head": "classifier"}}
OLD_END = 2
"""The end token that CLIP's first configs name by mistake: there the greatest id of a text is its end."""


def from_config(f: HfFields) -> ModelSpec:
    if f.family == "clip_text_model":
        return texts(f, _projection(f) if f.architecture == "CLIPTextModelWithProjection" else 0)
    if f.family == "clip_vision_model":
        return images(f, _projection(f) if f.architecture == "CLIPVisionModelWithProjection" else 0)
    seeing = vision.inner(f, "vision_config", "clip_vision_model")
    if f.architecture == "CLIPForImageClassification":
        return images(seeing, 0, hf_heads.head(f, labels={"pool": "patches"}), "clip")
    width = _projection(f)
    reading = vision.inner(f, "text_config", "clip_text_model")
    return texts(reading, width, family="clip", vision=images(seeing, width), contrast="softmax")


def _projection(f: HfFields) -> int:
    return f.integer("projection_dim", default=512)


def texts(f: HfFields, outputs: int, family: str = "", **more) -> ModelSpec:
    """The tower of texts. Its vector is that of the row of the end token, with `outputs` numbers, 0 = as it is."""
    n = vision.layers(f, eps=1e-5, act="quick_gelu", hidden=512, heads=8, inner=2048)
    n |= {"vocab": f.integer("vocab_size", default=49408), "whole": True,
          "positions": f.integer("max_position_embeddings", default=77)}
    end = f.integer("eos_token_id", default=49407, low=0)
    head = HeadSpec("vector", outputs, "greatest") if end == OLD_END else HeadSpec("vector", outputs, "end", end=end)
    return decoder.build(**n | {"family": family or f.family}, learned_positions=n["positions"], head=head, **more)


def images(f: HfFields, outputs: int, head: dict | None = None, family: str = "") -> ModelSpec:
    """The tower of images, whose first row has the vector. Its last norm is of that row alone."""
    n = vision.layers(f, eps=1e-5, act="quick_gelu")
    n |= vision.patches(f, patch=32, classes=1, resize="bicubic", bias=False)
    head = head or {"head": HeadSpec("vector", outputs, "first", norm=vision.norm(n))}
    return decoder.build(**n | {"family": family or f.family, "final": False, "embed_norm": vision.norm(n)} | head)


def weight_rows(spec: ModelSpec, kind: str) -> tuple[WeightRow, ...]:
    if spec.vision:
        names = vision.named(TEXTS, ["text_model."]) | vision.named(IMAGES, ["vision_model."], VISION)
        names |= {"head": ("text_projection",), f"{VISION}head": ("visual_projection",),
                  "pair.scale": ("logit_scale=",)}
    elif spec.patches:
        projection = "classifier" if spec.head.task == "labels" else "visual_projection"
        names = vision.named(IMAGES, ["vision_model.", ""]) | {"head": (projection,)}
    else:
        names = vision.named(TEXTS, ["text_model.", ""]) | {"head": ("text_projection",)}
    return tuple(named_rows(spec, names))
