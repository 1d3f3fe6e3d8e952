"""Tiny random models that see, made and saved by transformers with their image processors, and what they see."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

import word_tokenizer

LAYERS = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, initializer_range=0.2)
VISION = LAYERS | dict(image_size=24, patch_size=8)
TEXT = LAYERS | dict(vocab_size=len(word_tokenizer.SPECIALS) + len(word_tokenizer.WORDS), max_position_embeddings=16)
LABELS = {0: "cat", 1: "dog", 2: "boat", 3: "Ankle boot"}
SQUARE = {"image_processor_type": "ViTImageProcessor", "size": {"height": 24, "width": 24}}
MIDDLE = {"image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": 28}, "crop_size": 24}
CASES = {  # name: (class, config class, settings, image processor)
    "vit": ("ViTForImageClassification", "ViTConfig", VISION | {"id2label": LABELS}, SQUARE),
    "multi": ("ViTForImageClassification", "ViTConfig",
              VISION | {"id2label": LABELS, "problem_type": "multi_label_classification"}, SQUARE),
    "dinov2": ("Dinov2Model", "Dinov2Config", VISION | {"layerscale_value": 0.5}, MIDDLE | {
        "image_processor_type": "BitImageProcessor"}),
    "clip": ("CLIPModel", "CLIPConfig", {
        "projection_dim": 20, "vision_config": VISION | {"projection_dim": 20},
        "text_config": TEXT | {"eos_token_id": word_tokenizer.SEP, "bos_token_id": word_tokenizer.CLS,
                               "projection_dim": 20}}, MIDDLE),
    "siglip": ("SiglipModel", "SiglipConfig", {
        "vision_config": VISION, "text_config": TEXT | {"pad_token_id": 0, "projection_size": 32}},
        SQUARE | {"image_processor_type": "SiglipImageProcessor"}),
}


def model(name: str):
    """A random one in float32."""
    import torch
    import transformers

    kind, config, settings, _ = CASES[name]
    torch.manual_seed(len(name))
    made = getattr(transformers, kind)(getattr(transformers, config)(**settings))
    with torch.no_grad():
        for parameter_name, parameter in made.named_parameters():
            if parameter_name.endswith(("position_embeddings", "position_embedding.weight", "class_embedding",
                                        "cls_token", "probe", "bias")):
                parameter.normal_(0, 0.3)
    return made.eval()


def write(folder: Path, name: str, made=None) -> Path:
    """The model's folder, with its image processor and, where it reads texts, a tokenizer of a few words."""
    (made or model(name)).save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(CASES[name][3]))
    if "text_config" in CASES[name][2]:
        word_tokenizer.write(folder)
    return folder


def photo(height: int, width: int, seed: int = 0) -> np.ndarray:
    """uint8 [height, width, 3] with some structure: waves and noise."""
    random = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width] / 9
    waves = np.stack([np.sin(a * y + b * x + c) for a, b, c in random.normal(size=(3, 3))], axis=2)
    return np.clip(128 + 90 * waves + 25 * random.normal(size=waves.shape), 0, 255).astype(np.uint8)
