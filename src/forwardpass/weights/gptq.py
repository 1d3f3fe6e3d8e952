"""GPTQ checkpoints: qweight, qzeros, scales and g_idx of each linear, packed along the inputs.

qweight int32 [in * bits / 32, out], a stream of bits along the inputs; qzeros int32 [groups, out * bits / 32], along
the outputs; scales [groups, out]; g_idx int32 [in], the group of each input (files without activation order may lack
it).
checkpoint_format "gptq" (v1) stores zeros one too low: weight = (q - (z + 1)) * scale. "gptq_v2" stores them as they
are: weight = (q - z) * scale.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from forwardpass.weights.linear import FLOATS, Linear, Rows, Settings, Tensors, check_groups, columns, modules_with
from forwardpass.weights.repack import row_type, unpack
from forwardpass.weights.source import Source

BITS = (2, 3, 4, 8)
PARTS = ("qweight", "qzeros", "scales", "g_idx")


def linears(source: Source, settings: Settings) -> tuple[list[Linear], list[str]]:
    """(the quantised layers, warnings). Raises ModelFileError or UnsupportedModelError."""
    bits = settings.choice("bits", BITS)
    version = settings.choice("checkpoint_format", ("gptq", "gptq_v2"), "gptq")
    # Whether it is symmetric shows in the zeros; the flag only tells when they are suspicious.
    sym, size = settings.values.get("sym"), settings.group_size()
    tensors, shift = Tensors(source), int(version == "gptq")
    names = modules_with(source, "qweight")
    found = [_linear(tensors, name, bits, size, shift) for name in names]
    warnings = []
    centre = 1 << (bits - 1)
    if sym and shift and names and all((_zeros(tensors, name, bits) == centre).all() for name in names):
        warnings.append(f"{source.path}: quantization_config says checkpoint_format gptq and sym, but every stored "
                        f"zero is {centre}, which is what gptq_v2 files hold ({centre - 1} is usual): if the answers "
                        "are nonsense, set checkpoint_format to gptq_v2 in config.json")
    return found, warnings


def _linear(tensors: Tensors, name: str, bits: int, size: int, shift: int) -> Linear:
    words, out = tensors.need(f"{name}.qweight", ("I32",), (None, None))
    k = words * 32 // bits
    if words * 32 % bits or out * bits % 32:
        tensors.wrong(f"{name}.qweight", f"whole words of {bits} bits", [words, out])
    groups = check_groups(tensors, f"{name}.qweight", size, k)
    tensors.need(f"{name}.scales", FLOATS, (groups, out))
    tensors.need(f"{name}.qzeros", ("I32",), (groups, out * bits // 32))
    group_of = columns(size, k)
    if tensors.has(f"{name}.g_idx"):
        tensors.need(f"{name}.g_idx", ("I32",), (k,))
        group_of = tensors.integers(f"{name}.g_idx").astype(np.int64)
        if (group_of >= groups).any():  # negative ones are huge here
            tensors.wrong(f"{name}.g_idx", f"groups from 0 to {groups - 1}", int(group_of.max()))
    scales = None
    if bits == 8 and (_zeros(tensors, name, bits).astype(np.int32) + shift == 128).all():
        scales = tensors.floats(f"{name}.scales").T
    type = row_type(bits, group_of, scales)
    rows = partial(_rows, tensors, name, bits, shift, signed=type in ("G8", "C8"))
    return Linear(name, (out, k), type, group_of, rows, tuple(f"{name}.{part}" for part in PARTS))


def _zeros(tensors: Tensors, name: str, bits: int) -> np.ndarray:
    """uint8 [groups, out], as stored."""
    return unpack(tensors.integers(f"{name}.qzeros"), bits)


def _rows(tensors: Tensors, name: str, bits: int, shift: int, first: int, last: int, signed: bool) -> Rows:
    codes = unpack(tensors.integers(f"{name}.qweight")[:, first:last].T, bits)
    scales = np.ascontiguousarray(tensors.floats(f"{name}.scales")[:, first:last].T)
    if signed:  # every zero is 128
        return (codes ^ 0x80).view(np.int8), scales, 0
    zeros = _zeros(tensors, name, bits)[:, first:last].T.astype(np.int32)
    return codes, scales, zeros + shift
