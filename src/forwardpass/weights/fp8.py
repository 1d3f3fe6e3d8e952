"""FP8 checkpoints as storage: weight F8_E4M3 or F8_E5M2 [out, in], times a scale of the tensor, the row or the block.

Scales are called weight_scale or weight_scale_inv; both are factors. weight_block_size [bn, bk] in the config gives
them the shape [ceil(out / bn), ceil(in / bk)]. Activations are not rounded to eight bits: their scales are not used.
A product of value and scale has more bits than bfloat16 keeps (4 and 24 against 8), so rows are W16: relative to the
greatest weight of its row a weight moves by 2^-16 at most, where bfloat16 would move each by up to 2^-9 of itself.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from forwardpass.weights.linear import FLOATS, Linear, Rows, Settings, Tensors, elements, modules_with
from forwardpass.weights.source import Source

TYPES = ("F8_E4M3", "F8_E5M2")
SCALES = ("weight_scale", "weight_scale_inv")
UNUSED = ("input_scale", "activation_scale", "input_scale_ub", "output_scale", "k_scale", "v_scale", "q_scale")


def _values(exponent_bits: int, bias: int, finite: bool) -> np.ndarray:
    """float32 [256] of every code. finite: the greatest exponent is ordinary, only its last fraction is NaN (e4m3fn);
    otherwise it is infinity and NaN, as in IEEE formats (e5m2)."""
    codes = np.arange(256)
    bits = 7 - exponent_bits
    exponent, fraction = (codes & 127) >> bits, codes & (1 << bits) - 1
    scaled = np.where(exponent > 0, fraction + (1 << bits), fraction).astype(np.float64)
    values = np.ldexp(scaled, np.maximum(exponent, 1) - bias - bits)
    if finite:
        values[(codes & 127) == 127] = np.nan
    else:
        top = exponent == (1 << exponent_bits) - 1
        values = np.where(top, np.where(fraction > 0, np.nan, np.inf), values)
    return np.where(codes >= 128, -values, values).astype(np.float32)


VALUES = {"F8_E4M3": _values(4, 7, True), "F8_E5M2": _values(5, 15, False)}


def linears(source: Source, settings: Settings) -> tuple[list[Linear], list[str]]:
    """(the quantised layers, warnings). Raises ModelFileError or UnsupportedModelError."""
    tensors, block = Tensors(source), block_size(settings, settings.values.get("weight_block_size"))
    names = [name for name in modules_with(source, "weight") if source.tensors[f"{name}.weight"].type in TYPES]
    return [linear(tensors, name, block) for name in names], []


def block_size(settings: Settings, value: object) -> tuple[int, int] | None:
    if value is None:
        return None
    good = isinstance(value, list) and len(value) == 2 and all(type(n) is int and 1 <= n < 1 << 24 for n in value)
    if not good:
        settings.wrong("weight_block_size", "two numbers of rows and columns")
    return value[0], value[1]


def linear(tensors: Tensors, name: str, block: tuple[int, int] | None) -> Linear:
    """The layer with these scales; also used for compressed-tensors."""
    weight = f"{name}.weight"
    n, k = tensors.need(weight, TYPES, (None, None))
    scale = next((f"{name}.{part}" for part in SCALES if tensors.has(f"{name}.{part}")), f"{name}.{SCALES[0]}")
    shape = tensors.need(scale, (*FLOATS, "F8_E8M0"))
    if elements(shape) == 1:
        high, wide = n, k
    elif shape in ((n,), (n, 1)):
        high, wide = 1, k
    elif block and shape == (math.ceil(n / block[0]), math.ceil(k / block[1])):
        high, wide = block
    else:
        blocks = f" or [{math.ceil(n / block[0])}, {math.ceil(k / block[1])}] (blocks of {block})" if block else ""
        tensors.wrong(scale, f"one value, [{n}, 1]{blocks}", list(shape))
    group_of = np.arange(k, dtype=np.int32) // wide
    parts = (weight, *(f"{name}.{part}" for part in (*SCALES, *UNUSED)))
    return Linear(name, (n, k), "W16", group_of, partial(_rows, tensors, weight, scale, high), parts)


def _rows(tensors: Tensors, weight: str, scale: str, high: int, first: int, last: int) -> Rows:
    info = tensors.source.tensors[weight]
    raw = tensors.source.raw(weight).reshape(info.shape)
    scales = _scales(tensors, scale).reshape(-(-info.shape[0] // high), -1)
    return VALUES[info.type][raw[first:last]], scales[np.arange(first, last) // high], 0


def _scales(tensors: Tensors, name: str) -> np.ndarray:
    if tensors.source.tensors[name].type == "F8_E8M0":  # an exponent and nothing else
        codes = tensors.source.raw(name)
        return np.where(codes == 255, np.nan, np.ldexp(1.0, codes.astype(np.int32) - 127)).astype(np.float32)
    return tensors.floats(name)
