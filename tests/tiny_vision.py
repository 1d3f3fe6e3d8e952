"""Tiny random models that read images, made and saved by transformers, and what it computes with them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from forwardpass.contracts import EncoderImage
from forwardpass.stages import project

LABELS, CHANNELS = 5, 3
SIZES = dict(hidden_size=48, num_hidden_layers=2, num_attention_heads=4, intermediate_size=80, image_size=32,
             patch_size=8)
DINO = SIZES | dict(mlp_ratio=2, num_labels=LABELS)
TEXTS = dict(hidden_size=40, num_hidden_layers=2, num_attention_heads=2, intermediate_size=72, vocab_size=99,
             max_position_embeddings=16, bos_token_id=1, eos_token_id=98, pad_token_id=0)
BOTH = dict(text_config=TEXTS | dict(projection_size=48), vision_config=SIZES)
CASES = {  # name: (class, config class, settings)
    "vit": ("ViTModel", "ViTConfig", SIZES),
    "vit-labels": ("ViTForImageClassification", "ViTConfig", SIZES | dict(num_labels=LABELS, qkv_bias=False)),
    "deit": ("DeiTForImageClassification", "DeiTConfig", SIZES | dict(num_labels=LABELS)),
    "deit-teacher": ("DeiTForImageClassificationWithTeacher", "DeiTConfig", SIZES | dict(num_labels=LABELS)),
    "dinov2": ("Dinov2Model", "Dinov2Config", DINO),
    "dinov2-labels": ("Dinov2ForImageClassification", "Dinov2Config", DINO),
    "registers": ("Dinov2WithRegistersModel", "Dinov2WithRegistersConfig", DINO),
    "registers-labels": ("Dinov2WithRegistersForImageClassification", "Dinov2WithRegistersConfig",
                         DINO | dict(use_swiglu_ffn=True, num_register_tokens=3)),
    "clip-vision": ("CLIPVisionModel", "CLIPVisionConfig", SIZES),
    "clip-projection": ("CLIPVisionModelWithProjection", "CLIPVisionConfig", SIZES | dict(projection_dim=24)),
    "clip-labels": ("CLIPForImageClassification", "CLIPConfig", BOTH | dict(num_labels=LABELS)),
    "siglip-vision": ("SiglipVisionModel", "SiglipVisionConfig", SIZES),
    "siglip-headless": ("SiglipVisionModel", "SiglipVisionConfig", SIZES | dict(vision_use_head=False)),
    "siglip-labels": ("SiglipForImageClassification", "SiglipConfig", BOTH | dict(num_labels=LABELS)),
}
FIXED = ("clip-labels",)
"""Whose class in transformers takes images of the trained size only."""
IMAGES = ((32, 32), (40, 24), (57, 33), (8, 9))
"""Height and width: as trained, another shape of the same number of patches short of one, a rest that is cut off, one
patch."""


def make(name: str, config: str, settings: dict):
    """A transformers model with weights, biases and norms large enough to matter."""
    import torch
    import transformers

    torch.set_num_threads(1)
    torch.manual_seed(sum(map(ord, name)))
    model = getattr(transformers, name)(getattr(transformers, config)(**settings))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * (0.15 if parameter.ndim > 1 else 0.05))
    return model.eval()


def save(model, directory: Path) -> Path:
    model.save_pretrained(directory)
    return directory


def images(sizes=IMAGES, channels: int = CHANNELS) -> list[np.ndarray]:
    rng = np.random.default_rng(7)
    return [rng.standard_normal((*size, channels)).astype(np.float32) for size in sizes]


def reference(model, pixels: np.ndarray) -> dict[str, np.ndarray]:
    """"hidden" [rows, width], where the class gives them, and "answer", its scores or vector."""
    import inspect

    import torch

    more = {"interpolate_pos_encoding": True} if "interpolate_pos_encoding" in inspect.signature(
        model.forward).parameters else {}
    with torch.no_grad():
        out = model(pixel_values=torch.tensor(pixels).permute(2, 0, 1)[None], **more)
    found = {}
    for name, keys in (("hidden", ["last_hidden_state"]), ("answer", ["logits", "image_embeds", "pooler_output"])):
        key = next((key for key in keys if out.get(key) is not None), None)
        if key:
            found[name] = out[key][0].float().numpy()
    return found


def ours(model, pixels: list[np.ndarray]) -> list[tuple[np.ndarray, np.ndarray | None]]:
    """(hidden states, what the head makes of them) of each image, all asked for together."""
    network = model.network.vision or model.network

    def read(hidden):
        answers = [None] * len(hidden.packed.lengths)
        if network.spec.head.task != "none":
            answers = (project.label_scores if network.spec.head.task == "labels" else project.vectors)(network, hidden)
        rows = zip(hidden.packed.starts, hidden.packed.starts[1:], strict=False)
        return [(hidden.values[start:end].copy(), answer) for (start, end), answer in zip(rows, answers, strict=True)]

    return model.engine.encode([EncoderImage(one) for one in pixels], read)
