"""Quantised linears of Hugging Face checkpoints, written from each format's definition: slow loops, nothing shared with
the readers they test."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass
class Codes:
    """weight[o, i] = (q[o, i] - z[o, g]) * s[o, g] with g = group[i]; q and z are unsigned codes of `bits` bits."""

    q: np.ndarray
    z: np.ndarray
    s: np.ndarray
    group: np.ndarray
    bits: int

    @property
    def weights(self) -> np.ndarray:
        out = np.empty(self.q.shape, np.float32)
        for o in range(out.shape[0]):
            for i in range(out.shape[1]):
                g = self.group[i]
                out[o, i] = (int(self.q[o, i]) - int(self.z[o, g])) * float(self.s[o, g])
        return out


def quantise(w: np.ndarray, bits: int = 4, group: int = 32, sym: bool = False, order=None,
             scale_type=np.float16) -> Codes:
    """Round a matrix to codes. order: the group of each column, if they are not neighbours."""
    n, k = w.shape
    size = k if group == -1 else group
    of = np.arange(k) // size if order is None else np.asarray(order)
    top = 2**bits - 1
    q, z, s = np.zeros((n, k), int), np.zeros((n, k // size), int), np.zeros((n, k // size), scale_type)
    for g in range(k // size):
        part = w[:, of == g].astype(np.float64)
        if sym:
            scale = np.abs(part).max(1) * 2 / top
            zero = np.full(n, 2 ** (bits - 1))
        else:
            low, high = np.minimum(part.min(1), 0), np.maximum(part.max(1), 0)
            scale = (high - low) / top
            zero = np.clip(np.round(-low / scale), 1, top)  # zero 0 cannot be written in v1 GPTQ
        s[:, g], z[:, g] = scale, zero
        q[:, of == g] = np.clip(np.round(part / s[:, g, None].astype(np.float64)) + zero[:, None], 0, top)
    return Codes(q, z, s, of, bits)


def words(values, bits: int) -> list[int]:
    """A stream of codes, the first in the lowest bits, as int32 words."""
    stream = 0
    for at, value in enumerate(values):
        stream |= int(value) << (bits * at)
    count = -(-len(values) * bits // 32)
    return [int(np.uint32(stream >> 32 * at & 0xFFFFFFFF).view(np.int32)) for at in range(count)]


def gptq(name: str, c: Codes, version: int = 1, g_idx: bool = True) -> dict[str, np.ndarray]:
    less = 1 if version == 1 else 0
    stored = (c.z - less) % 2**c.bits
    out = {
        f"{name}.qweight": np.array([words(c.q[o], c.bits) for o in range(len(c.q))], np.int32).T,
        f"{name}.qzeros": np.array([words(stored[:, g], c.bits) for g in range(c.z.shape[1])], np.int32),
        f"{name}.scales": c.s.T,
    }
    if g_idx:
        out[f"{name}.g_idx"] = c.group.astype(np.int32)
    return out


def awq(name: str, c: Codes) -> dict[str, np.ndarray]:
    def lines(table: np.ndarray) -> np.ndarray:  # [rows, out] -> int32 [rows, out / 8]
        packed = []
        for row in table:
            line = []
            for at in range(0, len(row), 8):
                line += words([row[at + column] for column in (0, 2, 4, 6, 1, 3, 5, 7)], 4)
            packed.append(line)
        return np.array(packed, np.int32)

    return {f"{name}.qweight": lines(c.q.T), f"{name}.qzeros": lines(c.z.T), f"{name}.scales": c.s.T}


def packed_words(name: str, c: Codes, zeros: str = "packed") -> dict[str, np.ndarray]:
    """compressed-tensors "pack-quantized". zeros: "packed", "plain" or "none" (they are then all in the middle)."""
    out = {
        f"{name}.weight_packed": np.array([words(row, c.bits) for row in c.q], np.int32),
        f"{name}.weight_scale": c.s,
        f"{name}.weight_shape": np.array(c.q.shape, np.int64),
    }
    if zeros == "packed":
        columns = [words(c.z[:, g], c.bits) for g in range(c.z.shape[1])]
        out[f"{name}.weight_zero_point"] = np.array(columns, np.int32).T
    elif zeros == "plain":
        out[f"{name}.weight_zero_point"] = (c.z - 2 ** (c.bits - 1)).astype(np.int8)
    if (np.diff(c.group) < 0).any():
        out[f"{name}.weight_g_idx"] = c.group.astype(np.int32)
    return out


def int8(name: str, c: Codes, zeros: bool = False) -> dict[str, np.ndarray]:
    out = {f"{name}.weight": (c.q - 128).astype(np.int8), f"{name}.weight_scale": c.s}
    return out | ({f"{name}.weight_zero_point": (c.z - 128).astype(np.int8)} if zeros else {})


def save(tensors: dict[str, np.ndarray], path) -> None:
    """As safetensors; arrays, or torch tensors for types that numpy lacks."""
    import torch
    from safetensors.torch import save_file

    save_file({name: (torch.from_numpy(np.ascontiguousarray(one)) if isinstance(one, np.ndarray) else one).contiguous()
               for name, one in tensors.items()}, path)
