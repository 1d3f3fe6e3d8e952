"""Tiny random models that draw, made by diffusers and saved in its layout."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

import tiny_unets

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


CLIP = dict(vocab_size=300, hidden_size=24, num_hidden_layers=2, num_attention_heads=2, intermediate_size=40,
            max_position_embeddings=16, bos_token_id=298, eos_token_id=299, pad_token_id=299)
T5 = dict(vocab_size=512, d_model=32, d_kv=8, d_ff=40, num_layers=2, num_heads=4, feed_forward_proj="gated-gelu",
          relative_attention_num_buckets=8, relative_attention_max_distance=20)


def write_stable_diffusion(path: Path, seed: int = 0, kind: str = "StableDiffusionPipeline", unet: dict | None = None,
                           **index) -> dict:
    """The directory of a text-to-image pipeline with a UNet, and the models that were written: name -> model.

    unet: changes of its settings;  index: of model_index.json.
    """
    import transformers

    models = {"unet": tiny_unets.unet(seed, **(unet or {})), "vae": tiny_unets.autoencoder(seed + 1),
              "text_encoder": filled(transformers.CLIPTextModel(transformers.CLIPTextConfig(**CLIP)), seed + 2)}
    for name, model in models.items():
        model.save_pretrained(path / name)
    write_clip_tokenizer(path / "tokenizer")
    write_scheduler(path)
    write_index(path, kind, **{
        "unet": ("diffusers", "UNet2DConditionModel"), "vae": ("diffusers", "AutoencoderKL"),
        "text_encoder": ("transformers", "CLIPTextModel"), "tokenizer": ("transformers", "CLIPTokenizer"),
        "scheduler": ("diffusers", "DDIMScheduler"), "safety_checker": (None, None),
        "feature_extractor": (None, None), "requires_safety_checker": False} | index)
    return models


def write_pixart(path: Path, seed: int = 0, kind: str = "PixArtAlphaPipeline", transformer: dict | None = None,
                 **index) -> dict:
    """The same of one with a diffusion transformer and T5."""
    import transformers

    import piece_files

    text = transformers.T5EncoderModel(transformers.T5Config(**T5))
    models = {"transformer": pixart(seed, **(transformer or {})), "vae": tiny_unets.autoencoder(seed + 1),
              "text_encoder": filled(text, seed + 2)}
    for name, model in models.items():
        model.save_pretrained(path / name)
    (path / "tokenizer").mkdir()
    piece_files.write(path / "tokenizer", "t5")
    write_scheduler(path)
    write_index(path, kind, **{
        "transformer": ("diffusers", "PixArtTransformer2DModel"), "vae": ("diffusers", "AutoencoderKL"),
        "text_encoder": ("transformers", "T5EncoderModel"), "tokenizer": ("transformers", "T5Tokenizer"),
        "scheduler": ("diffusers", "DDIMScheduler")} | index)
    return models


def write_clip_tokenizer(path: Path) -> None:
    """vocab.json and merges.txt of single bytes and a few words, as CLIP's first checkpoints have them."""
    from tokenizers import pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    plain = [letter for letter in letters if letter.isascii() or letter.isalpha()][:140]
    ends = [letter + "</w>" for letter in letters if letter.isascii()]
    merges = [("c", "a"), ("ca", "t</w>"), ("d", "o"), ("do", "g</w>"), ("o", "n</w>")]
    tokens = [*plain, *ends, *("".join(pair) for pair in merges)]
    tokens += [f"unused{i}" for i in range(298 - len(tokens))] + ["<|startoftext|>", "<|endoftext|>"]
    path.mkdir()
    (path / "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(tokens)}, ensure_ascii=False))
    (path / "merges.txt").write_text("#version: 0.2\n" + "\n".join(map(" ".join, merges)) + "\n")
    settings = {"tokenizer_class": "CLIPTokenizer", "model_max_length": 16}
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
