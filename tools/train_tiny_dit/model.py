"""A small class-conditional DiT (Peebles and Xie, arXiv:2212.09748) written for training on one CPU core.

It computes what diffusers' DiTTransformer2DModel computes, with less work: images stay cut into patches all the time
(with one channel, the patch embedding's columns and the output's have one order), one embedder of time and label is
shared by all blocks, and the modulations of all blocks are one product. `diffusers_weights` gives the weights under
diffusers' names, where every block holds its own copy of the embedder.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

import torch
import torch.nn.functional as F
from torch import nn

FREQUENCIES = 256


@dataclass(frozen=True)
class Shape:
    """What fixes the model: images of `sample_size` pixels a side and one channel, cut into patches."""

    sample_size: int
    patch_size: int
    layers: int
    heads: int
    head_dim: int
    labels: int

    @property
    def hidden(self) -> int:
        return self.heads * self.head_dim

    @property
    def grid(self) -> int:
        return self.sample_size // self.patch_size

    def as_dict(self) -> dict:
        return asdict(self)


def patches(images: torch.Tensor, size: int) -> torch.Tensor:
    """[n, height, width] -> [n, patches, size * size], patches and their pixels row by row."""
    n, height, width = images.shape
    cut = images.reshape(n, height // size, size, width // size, size).transpose(2, 3)
    return cut.reshape(n, (height // size) * (width // size), size * size)


def images(rows: torch.Tensor, size: int) -> torch.Tensor:
    """The opposite of `patches`, of square images."""
    n, count, _ = rows.shape
    grid = math.isqrt(count)
    return rows.reshape(n, grid, grid, size, size).transpose(2, 3).reshape(n, grid * size, grid * size)


def positions(shape: Shape) -> torch.Tensor:
    """Sines and cosines of a patch's column, then of its row (MAE's order): float32 [patches, hidden]."""
    quarter = shape.hidden // 4
    rates = 1.0 / 10000 ** (torch.arange(quarter, dtype=torch.float64) / quarter)
    places = torch.arange(shape.grid, dtype=torch.float64)
    one = torch.cat([(places[:, None] * rates).sin(), (places[:, None] * rates).cos()], dim=1)
    across = one[None, :, :].expand(shape.grid, shape.grid, -1)
    down = one[:, None, :].expand(shape.grid, shape.grid, -1)
    return torch.cat([across, down], dim=2).reshape(shape.grid**2, shape.hidden).float()


class _Product(torch.autograd.Function):
    """x @ weight.T + bias with bfloat16 factors, float32 in and out: a CPU's fast product without slow bf16 rows."""

    @staticmethod
    def forward(context, x, weight, bias):
        low, low_weight = x.reshape(-1, x.shape[-1]).bfloat16(), weight.bfloat16()
        context.save_for_backward(low, low_weight)
        context.shape = x.shape
        return F.linear(low, low_weight).float().add_(bias).view(*x.shape[:-1], -1)

    @staticmethod
    def backward(context, gradient):
        low, low_weight = context.saved_tensors
        gradient = gradient.reshape(-1, gradient.shape[-1])
        low_gradient = gradient.bfloat16()
        back = (low_gradient @ low_weight).float().view(context.shape)
        return back, (low_gradient.t() @ low).float(), gradient.sum(0)


class Linear(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _Product.apply(x, self.weight, self.bias)


class Block(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads, width = shape.heads, shape.hidden
        self.qkv = Linear(width, 3 * width)
        self.out = Linear(width, width)
        self.up = Linear(width, 4 * width)
        self.down = Linear(4 * width, width)

    def forward(self, x: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
        n, count, width = x.shape
        shift, scale, gate, shift_2, scale_2, gate_2 = by.unsqueeze(1).chunk(6, dim=2)
        y = F.layer_norm(x, (width,), eps=1e-6) * (1 + scale) + shift
        q, k, v = self.qkv(y).view(n, count, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, count, width)
        x = x + gate * self.out(y)
        y = F.layer_norm(x, (width,), eps=1e-5) * (1 + scale_2) + shift_2
        return x + gate_2 * self.down(F.gelu(self.up(y), approximate="tanh"))


class TinyDiT(nn.Module):
    """Predicts from noisy patches [n, patches, size * size], timesteps [n] and labels [n] (`labels` means none)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape, width = shape, shape.hidden
        self.patch = nn.Linear(shape.patch_size**2, width)
        self.time_1 = nn.Linear(FREQUENCIES, width)
        self.time_2 = nn.Linear(width, width)
        self.label = nn.Embedding(shape.labels + 1, width)
        self.modulation = nn.Linear(width, (6 * shape.layers + 2) * width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.last = nn.Linear(width, shape.patch_size**2)
        self.register_buffer("places", positions(shape), persistent=False)
        half = FREQUENCIES // 2
        rates = torch.exp(-math.log(10000) * torch.arange(half, dtype=torch.float32) / (half - 1))
        self.register_buffer("rates", rates, persistent=False)
        for name, parameter in self.named_parameters():
            if name.endswith("bias") or name.startswith(("modulation", "last")):
                nn.init.zeros_(parameter)  # adaLN-zero: every block begins as the identity
            elif name.startswith(("time", "label")):
                nn.init.normal_(parameter, std=0.02)
            else:
                nn.init.xavier_uniform_(parameter)

    def forward(self, x: torch.Tensor, timesteps: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        angles = timesteps.float()[:, None] * self.rates
        time = self.time_2(F.silu(self.time_1(torch.cat([angles.cos(), angles.sin()], dim=1))))
        by = self.modulation(F.silu(time + self.label(labels)))
        width = self.shape.hidden
        x = self.patch(x) + self.places
        for i, block in enumerate(self.blocks):
            x = block(x, by[:, 6 * i * width : 6 * (i + 1) * width])
        shift, scale = by[:, None, -2 * width :].chunk(2, dim=2)
        return self.last(F.layer_norm(x, (width,), eps=1e-6) * (1 + scale) + shift)


def diffusers_config(shape: Shape) -> dict:
    """config.json of diffusers' DiTTransformer2DModel."""
    return {
        "_class_name": "DiTTransformer2DModel",
        "_diffusers_version": "0.42.0",
        "activation_fn": "gelu-approximate",
        "attention_bias": True,
        "attention_head_dim": shape.head_dim,
        "dropout": 0.0,
        "in_channels": 1,
        "norm_elementwise_affine": False,
        "norm_eps": 1e-5,
        "norm_num_groups": 32,
        "norm_type": "ada_norm_zero",
        "num_attention_heads": shape.heads,
        "num_embeds_ada_norm": shape.labels,
        "num_layers": shape.layers,
        "out_channels": 1,
        "patch_size": shape.patch_size,
        "sample_size": shape.sample_size,
        "upcast_attention": False,
    }


def diffusers_weights(shape: Shape, state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """`state` of TinyDiT under the names of diffusers' DiTTransformer2DModel."""
    width, size = shape.hidden, shape.patch_size
    weights: dict[str, torch.Tensor] = {
        "pos_embed.proj.weight": state["patch.weight"].reshape(width, 1, size, size),
        "pos_embed.proj.bias": state["patch.bias"],
        "proj_out_2.weight": state["last.weight"],
        "proj_out_2.bias": state["last.bias"],
    }
    embedder = {"timestep_embedder.linear_1": "time_1", "timestep_embedder.linear_2": "time_2"}
    for kind in ("weight", "bias"):
        modulation = state[f"modulation.{kind}"]
        weights[f"proj_out_1.{kind}"] = modulation[-2 * width :]
        for i in range(shape.layers):
            theirs, ours = f"transformer_blocks.{i}", f"blocks.{i}"
            for target, source in embedder.items():
                weights[f"{theirs}.norm1.emb.{target}.{kind}"] = state[f"{source}.{kind}"]
            weights[f"{theirs}.norm1.emb.class_embedder.embedding_table.weight"] = state["label.weight"]
            weights[f"{theirs}.norm1.linear.{kind}"] = modulation[6 * i * width : 6 * (i + 1) * width]
            parts = state[f"{ours}.qkv.{kind}"].chunk(3)
            for target, part in zip(("to_q", "to_k", "to_v"), parts, strict=True):
                weights[f"{theirs}.attn1.{target}.{kind}"] = part
            weights[f"{theirs}.attn1.to_out.0.{kind}"] = state[f"{ours}.out.{kind}"]
            weights[f"{theirs}.ff.net.0.proj.{kind}"] = state[f"{ours}.up.{kind}"]
            weights[f"{theirs}.ff.net.2.{kind}"] = state[f"{ours}.down.{kind}"]
    return {name: tensor.detach().clone().contiguous() for name, tensor in weights.items()}
