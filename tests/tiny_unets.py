"""Tiny random UNets and autoencoders, made and saved by diffusers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

UNET = dict(sample_size=16, block_out_channels=(16, 32), norm_num_groups=4, layers_per_block=1, attention_head_dim=2,
            cross_attention_dim=24, down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
            up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"))
AUTOENCODER = dict(block_out_channels=(16, 32), norm_num_groups=4, layers_per_block=1,
                   down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2)


def unet(seed: int = 0, **changes):
    from diffusers import UNet2DConditionModel

    return _filled(UNet2DConditionModel(**UNET | changes), seed)


def autoencoder(seed: int = 0, **changes):
    from diffusers import AutoencoderKL

    return _filled(AutoencoderKL(**AUTOENCODER | changes), seed)


def _filled(model, seed: int):
    """Weights that keep images about as large as they are; norms and biases that matter."""
    import torch

    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, value in model.named_parameters():
            value.normal_(0, value[0].numel() ** -0.5 if value.ndim > 1 else 0.2, generator=generator)
            value += "norm" in name and name.endswith("weight")
    return model.eval()


def load(model, directory: Path, dtype: str = "float32", kv_dtype: str = "float32", threads: int = 2, isa=None):
    """The same model here, by way of its files: a UNet or an Autoencoder."""
    model.save_pretrained(directory)
    return open_files(directory, dtype, kv_dtype, threads, isa)


def open_files(directory: Path, dtype: str, kv_dtype: str = "float32", threads: int = 2, isa=None):
    from forwardpass.backends.native import NativeBackend
    from forwardpass.models import components
    from forwardpass.models.loading import load_weights
    from forwardpass.weights.safetensors import open_safetensors

    config = json.loads((directory / "config.json").read_text())
    component, spec = components.read_spec(config, components.DENOISERS | components.AUTOENCODERS, "config.json")
    with open_safetensors(directory) as source:
        checkpoint = components.read_weights(component, spec, source)
        backend = NativeBackend(threads, isa)
        weights = load_weights(checkpoint, source, dtype, backend).weights()
    return component.build(spec, weights, backend, kv_dtype)


def images(seed: int, *sizes: tuple[int, int], channels: int = 4) -> list[np.ndarray]:
    """float32 [height, width, channels] each."""
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((*size, channels)).astype(np.float32) for size in sizes]


def texts(seed: int, *lengths: int, width: int = 24) -> list[np.ndarray]:
    """float32 [tokens, width] each."""
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((tokens, width)).astype(np.float32) for tokens in lengths]


def tensor(image: np.ndarray):
    """[1, channels, height, width], as diffusers has it."""
    import torch

    return torch.from_numpy(np.ascontiguousarray(image.transpose(2, 0, 1)))[None]


def array(found) -> np.ndarray:
    """The opposite."""
    return np.ascontiguousarray(found[0].numpy().transpose(1, 2, 0))


def predicted(model, latent: np.ndarray, timestep: float, text: np.ndarray, **inputs) -> np.ndarray:
    """What diffusers predicts for one picture."""
    import torch

    with torch.no_grad():
        found = model(tensor(latent), torch.tensor([timestep]), torch.from_numpy(text)[None], **inputs)
    return array(found.sample)
