"""Random weights in the shapes of well-known models, saved by transformers and diffusers: python _image_shapes.py NAME
FOLDER SIZE. Run in an environment that has them; SIZE is "full", or "tiny" for a look whether all of it runs."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

PROCESSOR = {"image_processor_type": "ViTImageProcessor", "do_resize": True, "size": {"height": 224, "width": 224},
             "resample": 2, "do_rescale": True, "rescale_factor": 1 / 255, "do_normalize": True,
             "image_mean": [0.5] * 3, "image_std": [0.5] * 3}


def vit(folder: Path, tiny: bool) -> None:
    """ViT-B/16 (Dosovitskiy et al. 2021) with 1000 labels."""
    from transformers import ViTConfig, ViTForImageClassification

    small = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
    config = ViTConfig(num_labels=1000, **(small if tiny else {}))
    ViTForImageClassification(config).save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(PROCESSOR), "utf-8")


def dit(folder: Path, tiny: bool) -> None:
    """DiT-XL/2 (Peebles and Xie 2023) for latents of 32 by 32."""
    from diffusers import DiTTransformer2DModel

    sizes = (2, 8, 2) if tiny else (16, 72, 28)
    model = DiTTransformer2DModel(num_attention_heads=sizes[0], attention_head_dim=sizes[1], num_layers=sizes[2],
                                  in_channels=4, out_channels=8, sample_size=32, patch_size=2, num_embeds_ada_norm=1000)
    model.to(torch.bfloat16).save_pretrained(folder)


def unet(folder: Path, tiny: bool) -> None:
    """The UNet of Stable Diffusion 1.5 (Rombach et al. 2022) for latents of 64 by 64."""
    from diffusers import UNet2DConditionModel

    widths = (32, 64, 64, 64) if tiny else (320, 640, 1280, 1280)
    model = UNet2DConditionModel(sample_size=64, cross_attention_dim=768, block_out_channels=widths,
                                 attention_head_dim=8)
    model.to(torch.bfloat16).save_pretrained(folder)


if __name__ == "__main__":
    name, folder, size = sys.argv[1:]
    torch.manual_seed(20)
    torch.set_num_threads(1)
    {"vit": vit, "dit": dit, "unet": unet}[name](Path(folder), size == "tiny")
