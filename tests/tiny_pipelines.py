"""Tiny random models that draw, made by diffusers and saved in its layout."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

DIT = dict(num_attention_heads=3, attention_head_dim=16, in_channels=4, out_channels=8, num_layers=2, sample_size=8,
           num_embeds_ada_norm=7)
PIXART = dict(num_attention_heads=3, attention_head_dim=16, in_channels=4, out_channels=8, num_layers=2, sample_size=8,
              cross_attention_dim=48, caption_channels=32)
SCHEDULER = {"_class_name": "DDIMScheduler", "num_train_timesteps": 1000, "beta_start": 0.0001, "beta_end": 0.02,
             "beta_schedule": "linear", "clip_sample": False, "set_alpha_to_one": False, "steps_offset": 1}


def make(kind: str, seed: int = 0, **settings):
    """A model of diffusers (or, with a config, of transformers) whose weights, biases and tables all matter."""
    import diffusers
    import torch

    torch.set_num_threads(1)
    return filled(getattr(diffusers, kind)(**settings), seed)


def filled(model, seed: int = 0):
    import torch

    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for value in model.parameters():
            inputs = value[0].numel() if value.ndim > 1 else 0
            value.normal_(0, 0.8 / inputs**0.5 if inputs else 0.1, generator=generator)
        for module in model.modules():
            if "Norm" in type(module).__name__ and getattr(module, "weight", None) is not None:
                module.weight += 1
    return model.eval()


def dit(seed: int = 0, shared: bool = False, **changes):
    """shared: all layers have one embedding, as the published models do."""
    model = make("DiTTransformer2DModel", seed, **DIT | changes)
    if shared:
        first = model.transformer_blocks[0].norm1.emb.state_dict()
        for block in model.transformer_blocks:
            block.norm1.emb.load_state_dict(first)
    return model


def pixart(seed: int = 0, **changes):
    return make("PixArtTransformer2DModel", seed, **PIXART | changes)


def latents(seed: int, *size: int) -> np.ndarray:
    """float32 [height, width, channels]"""
    return np.random.default_rng(seed).standard_normal(size).astype(np.float32)


def predicted(model, latent: np.ndarray, timestep: float, **inputs) -> np.ndarray:
    """What diffusers predicts for one picture: float32 [height, width, channels]. inputs: tensors of the model's call.

    The original of DiT puts patches together as if every picture were a square; others are put together here.
    """
    import torch

    rows = []
    last = getattr(model, "proj_out_2", None) or model.proj_out
    hook = last.register_forward_hook(lambda module, args, out: rows.append(out[0]))
    try:
        with torch.no_grad():
            model(torch.from_numpy(np.ascontiguousarray(latent.transpose(2, 0, 1)))[None],
                  timestep=torch.tensor([timestep]), **inputs)
    except RuntimeError:
        if not rows:
            raise
    finally:
        hook.remove()
    p, (height, width) = model.config.patch_size, latent.shape[:2]
    grid = rows[0].reshape(height // p, width // p, p, p, -1).permute(0, 2, 1, 3, 4)
    return grid.reshape(height, width, -1).numpy()


def write_index(path: Path, kind: str, **components) -> None:
    """model_index.json; a component's value is (library, class), any other one is written as it is."""
    values = {name: list(one) if isinstance(one, tuple) else one for name, one in components.items()}
    (path / "model_index.json").write_text(json.dumps({"_class_name": kind, "_diffusers_version": "0.42.0"} | values))


def write_dit(path: Path, model, **index) -> Path:
    """A DiTPipeline that draws latents' four channels or pixels, without an autoencoder unless `index` names one."""
    model.save_pretrained(path / "transformer")
    write_scheduler(path)
    write_index(path, "DiTPipeline", **{"scheduler": ("diffusers", "DDIMScheduler"), "vae": (None, None),
                                        "transformer": ("diffusers", "DiTTransformer2DModel")} | index)
    return path


def write_scheduler(path: Path, **changes) -> None:
    (path / "scheduler").mkdir(exist_ok=True)
    (path / "scheduler" / "scheduler_config.json").write_text(json.dumps(SCHEDULER | changes))
