"""compressed-tensors checkpoints: weights packed into words (2, 4, 8 bits), int8 weights, FP8 weights.

Packed: weight_packed int32 [out, words], each word 32 / bits codes of one row, code = q + 2^(bits - 1); weight_scale
[out, groups]; weight_zero_point, if any, int8 [out, groups] or packed the same way along the outputs, int32
[out * bits / 32, groups]; weight_shape int64 [2]; weight_g_idx int32 [in], if the columns were put into groups out of
order. int8: weight I8 [out, in], weight_scale of the tensor, of rows or of groups. weight = (q - zero_point) * scale.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from forwardpass.weights import fp8
from forwardpass.weights.linear import FLOATS, Linear, Rows, Settings, Tensors, elements, modules_with
from forwardpass.weights.repack import row_type, unpack
from forwardpass.weights.source import Source

FORMATS = ("pack-quantized", "int-quantized", "float-quantized", "naive-quantized", "mixed-precision", "dense")
BITS = (2, 4, 8)
PARTS = ("weight_scale", "weight_zero_point", "weight_g_idx", "weight_shape", "input_zero_point", *fp8.UNUSED)
_INTEGERS = ("I32", "I64")


def linears(source: Source, settings: Settings) -> tuple[list[Linear], list[str]]:
    """(the quantised layers, warnings). Raises ModelFileError or UnsupportedModelError."""
    settings.choice("format", FORMATS, "dense")
    sparse = settings.values.get("sparsity_config") or {}
    if isinstance(sparse, dict) and sparse.get("format", "dense") not in ("dense", None):
        settings.unsupported("sparsity_config", "dense")
    tensors, widths, block = Tensors(source), set(), None
    kinds = _weight_arguments(settings)
    zeros = bool(kinds) and all(one.get("symmetric") is False for one in kinds)
    for arguments in kinds:
        if type(arguments.get("num_bits")) is not int or arguments["num_bits"] not in BITS:
            settings.unsupported("config_groups", f"weights of {', '.join(map(str, BITS))} bits")
        widths.add(arguments["num_bits"])
        block = fp8.block_size(settings, arguments.get("block_structure")) or block
    found = [_packed(tensors, name, widths, zeros) for name in modules_with(source, "weight_packed")]
    for name in modules_with(source, "weight"):
        kind = source.tensors[f"{name}.weight"].type
        if kind in fp8.TYPES:
            found.append(fp8.linear(tensors, name, block))
        elif kind == "I8":
            found.append(_int8(tensors, name, zeros))
    return found, []


def _weight_arguments(settings: Settings) -> list[dict]:
    groups = settings.values.get("config_groups")
    if not isinstance(groups, dict) or not all(isinstance(group, dict) for group in groups.values()):
        settings.wrong("config_groups", "an object of groups")
    found = [group["weights"] for group in groups.values() if group.get("weights") is not None]
    if not all(isinstance(one, dict) for one in found):
        settings.wrong("config_groups", "an object under weights")
    return found


def _packed(tensors: Tensors, name: str, widths: set[int], needs_zeros: bool) -> Linear:
    weight = f"{name}.weight_packed"
    n, words = tensors.need(weight, ("I32",), (None, None))
    tensors.need(f"{name}.weight_shape", _INTEGERS, (2,))
    rows, k = (int(size) for size in tensors.integers(f"{name}.weight_shape"))
    bits = next((bits for bits in sorted(widths) if rows == n and k > 0 and -(-k * bits // 32) == words), 0)
    if not bits:
        tensors.wrong(weight, f"the words of [{rows}, {k}] (weight_shape) in {sorted(widths)} bits", [n, words])
    groups, group_of = _groups(tensors, name, n, k)
    zeros = f"{name}.weight_zero_point"
    if tensors.has(zeros) and tensors.source.tensors[zeros].type == "I32":
        tensors.need(zeros, ("I32",), (-(-n * bits // 32), groups))
    elif tensors.has(zeros) or needs_zeros:
        tensors.need(zeros, ("I8",), (n, groups))
    return _finish(tensors, name, (n, k), bits, group_of, weight)


def _int8(tensors: Tensors, name: str, needs_zeros: bool) -> Linear:
    n, k = tensors.need(f"{name}.weight", ("I8",), (None, None))
    groups, group_of = _groups(tensors, name, n, k)
    if tensors.has(f"{name}.weight_zero_point") or needs_zeros:
        shape = tensors.need(f"{name}.weight_zero_point", ("I8",))
        if elements(shape) not in (1, n * groups):
            tensors.wrong(f"{name}.weight_zero_point", f"the shape of the scales, [{n}, {groups}]", list(shape))
    return _finish(tensors, name, (n, k), 8, group_of, f"{name}.weight")


def _groups(tensors: Tensors, name: str, n: int, k: int) -> tuple[int, np.ndarray]:
    """(number of groups, the group of each column) from the shape of the scales and g_idx."""
    scale = f"{name}.weight_scale"
    shape = tensors.need(scale, FLOATS)
    groups = 1 if elements(shape) == 1 or shape == (n,) else shape[1] if len(shape) == 2 and shape[0] == n else 0
    if groups == 0 or k % groups:
        tensors.wrong(scale, f"[{n}, groups] with {k} inputs in whole groups", list(shape))
    if not tensors.has(f"{name}.weight_g_idx"):
        return groups, np.arange(k, dtype=np.int32) // (k // groups)
    tensors.need(f"{name}.weight_g_idx", ("I32",), (k,))
    group_of = tensors.integers(f"{name}.weight_g_idx").astype(np.int64)
    if (group_of >= groups).any():  # negative ones are huge here
        tensors.wrong(f"{name}.weight_g_idx", f"groups from 0 to {groups - 1}", int(group_of.max()))
    return groups, group_of


def _finish(tensors: Tensors, name: str, shape: tuple[int, int], bits: int, group_of: np.ndarray,
            weight: str) -> Linear:
    scales = None
    zero_free = not tensors.has(f"{name}.weight_zero_point") or not _zeros(tensors, name, shape[0], bits).any()
    if bits == 8 and zero_free:
        scales = _scales(tensors, name, shape[0])
    type = row_type(bits, group_of, scales)
    rows = partial(_rows, tensors, name, weight, shape, bits, zero_free)
    return Linear(name, shape, type, group_of, rows, (weight, *(f"{name}.{part}" for part in PARTS)))


def _scales(tensors: Tensors, name: str, n: int) -> np.ndarray:
    """float32 [n, groups]."""
    scales = tensors.floats(f"{name}.weight_scale")
    return np.broadcast_to(scales.reshape(1, 1), (n, 1)) if scales.size == 1 else scales.reshape(n, -1)


def _zeros(tensors: Tensors, name: str, n: int, bits: int) -> np.ndarray:
    """int32 [n, groups], signed as q is."""
    stored = tensors.integers(f"{name}.weight_zero_point")
    if stored.dtype != np.uint32:
        return np.broadcast_to(stored.reshape(1, 1), (n, 1)) if stored.size == 1 else stored.reshape(n, -1)
    return unpack(stored.T, bits)[:, :n].T.astype(np.int32) - (1 << bits - 1)


def _rows(tensors: Tensors, name: str, weight: str, shape: tuple[int, int], bits: int, zero_free: bool, first: int,
          last: int) -> Rows:
    stored = tensors.integers(weight)[first:last]
    if stored.dtype == np.uint32:
        codes, centre = unpack(stored, bits)[:, : shape[1]], 1 << bits - 1
    else:
        codes, centre = stored, 0
    if bits == 8 and centre:
        codes, centre = (codes ^ 0x80).view(np.int8), 0
    scales = np.ascontiguousarray(_scales(tensors, name, shape[0])[first:last])
    if zero_free:
        return codes, scales, np.full(scales.shape, centre, np.int32) if centre else 0
    zeros = _zeros(tensors, name, shape[0], bits)[first:last].astype(np.int32) + centre
    return codes, scales, np.broadcast_to(zeros, scales.shape)  # one zero may serve rows of several groups
