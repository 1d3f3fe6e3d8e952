"""Packing keeps what the checkpoint says: `gguf`'s own dequantisation is the witness."""

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize, quantize

from forwardpass import _native
from forwardpass.backends.native import FORMATS
from kernel_tools import GROUPED, ISAS, from_bf16, pack, pack_floats, random_packed, same, stored, to_bf16

SHAPES = [(1, 32), (16, 64), (17, 96), (33, 160), (50, 576)]
FLOAT_SHAPES = [(1, 1), (5, 48), (16, 64), (17, 33), (31, 80), (33, 100)]


def reference(type, raw, n, k):
    """float32 [n, k] by the gguf package."""
    if type == "F32":
        return raw.view(np.float32).reshape(n, k)
    if type == "F16":
        return raw.view(np.float16).astype(np.float32).reshape(n, k)
    if type == "BF16":
        return from_bf16(raw.view(np.uint16)).reshape(n, k)
    return dequantize(raw.reshape(n, -1), gguf.GGMLQuantizationType[type])


@pytest.mark.parametrize("type, format", [("F32", "F32"), ("F16", "F16"), ("BF16", "BF16"), ("F16", "F32"),
                                          ("BF16", "F32"), ("Q8_0", "Q8"), ("Q5_0", "Q8M"), ("Q5_1", "Q8M"),
                                          ("Q4_0", "Q8"), ("Q4_1", "Q8M"), ("Q4_0", "F32"), ("Q4_1", "F32"),
                                          ("Q5_0", "F32"), ("Q5_1", "F32"), ("Q8_0", "F32")])
def test_exact_formats_keep_every_bit(type, format):
    rng = np.random.default_rng(1)
    for n, k in SHAPES if type in GROUPED else FLOAT_SHAPES:
        raw = stored(type, n, k, rng)
        packed = pack(format, type, n, k, raw)
        assert packed.finite
        assert same(packed.rows(), reference(type, raw, n, k)), (n, k)


@pytest.mark.parametrize("type", ["Q4_0", "Q4_1"])
def test_four_bits_keep_the_stored_levels_within_the_scale(type):
    """D and M become 16-bit integers times one float a row. Rounding them moves a weight by at most
    8 * 0.5 + 0.5 = 4.5 row scales, and the row scale is the least that fits: max(|w|, |d|, |m|) / 32760, or what keeps
    127 * sum |w| below 2^31."""
    rng = np.random.default_rng(2)
    for n, k in [*SHAPES, (3, 8192)]:
        raw = stored(type, n, k, rng)
        packed, exact = pack("Q4", type, n, k, raw), reference(type, raw, n, k)
        scale = packed.row_scale()[:, None].astype(np.float64)
        error = np.abs(packed.rows().astype(np.float64) - exact)
        assert (error <= 4.5 * scale * (1 + 1e-6) + 1e-7 * np.abs(exact)).all()
        block = raw.reshape(n, k // 32, -1)
        d = np.abs(block[:, :, :2].copy().view(np.float16)[:, :, 0].astype(np.float64)).max(1)
        centre = np.abs(dequantize_level(type, block, 8)).max(1)
        greatest = np.maximum(np.abs(exact).max(1), np.maximum(d, centre))
        allowed = 0.999 * (2**31 - 1) / 127 - 4.5 * k
        assert (scale[:, 0] <= np.maximum(greatest / 32760, np.abs(exact).sum(1) / allowed) * (1 + 1e-6)).all()


def dequantize_level(type, block, level):
    """float64 [n, groups]: the value of one stored nibble in each group."""
    halves = block[:, :, : 2 * GROUPED[type][0]].copy().view(np.float16).astype(np.float64)
    return halves[:, :, 0] * (level - 8) if type == "Q4_0" else halves[:, :, 0] * level + halves[:, :, 1]


@pytest.mark.parametrize("type", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_a_tensor_quantised_by_gguf_comes_back(type):
    values = np.random.default_rng(3).standard_normal((20, 96)).astype(np.float32)
    raw = quantize(values, gguf.GGMLQuantizationType[type])
    format = {"Q4_0": "Q4", "Q4_1": "Q4", "Q8_0": "Q8"}.get(type, "Q8M")
    packed = pack(format, type, 20, 96, np.ascontiguousarray(raw).reshape(-1))
    exact = dequantize(raw, gguf.GGMLQuantizationType[type])
    assert np.abs(packed.rows() - exact).max() <= (4e-3 if format == "Q4" else 0)
    assert np.corrcoef(packed.rows().ravel(), values.ravel())[0, 1] > 0.99


@pytest.mark.parametrize("shape", FLOAT_SHAPES)
def test_floats_to_fewer_bits(shape):
    values = np.random.default_rng(4).standard_normal(shape).astype(np.float32)
    n, k = shape
    assert same(pack_floats("F16", values).rows(), values.astype(np.float16).astype(np.float32))
    assert same(pack_floats("BF16", values).rows(), from_bf16(to_bf16(values)))

    int8 = pack_floats("Q8C", values)
    step = np.abs(values).max(1, keepdims=True).astype(np.float64) / 127
    assert (np.abs(int8.rows() - values) <= step * 0.5001).all()

    int4 = pack_floats("Q4", values)  # sixteen levels from the least to the greatest of 32; a short group has a zero
    padded = np.zeros((n, -(-k // 32) * 32))
    padded[:, :k] = values
    groups = padded.reshape(n, -1, 32)
    step = np.repeat((groups.max(2) - groups.min(2)) / 15, 32, axis=1)[:, :k]
    bound = step / 2 * 1.0001 + 4.5 * int4.row_scale()[:, None]
    assert (np.abs(int4.rows() - values) <= bound).all()


def test_half_and_bfloat16_conversions_at_the_edges():
    edges = [0.0, -0.0, 1.0, 65504.0, 65519.9, 65520.0, 6.1e-5, 5.96e-8, 2.98e-8, 2.99e-8, 1e-10, -3.3e-6, 1 + 2**-11,
             1 + 3 * 2**-11, 2.0**-14 - 2.0**-26]
    values = np.array([edges], np.float32)
    with np.errstate(over="ignore"):
        expected = values.astype(np.float16).astype(np.float32)
    assert same(pack_floats("F16", values).rows(), expected)
    ties = np.array([[1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-8, 3.0e38, 1.2e-38]], np.float32)
    assert same(pack_floats("BF16", ties).rows(), from_bf16(to_bf16(ties)))


@pytest.mark.parametrize("format", FORMATS)
def test_every_isa_looks_up_the_same_rows(format):
    packed = random_packed(format, 19, 96, np.random.default_rng(5))
    for isa in ISAS:
        assert same(packed.rows(isa), packed.rows("scalar")), isa


@pytest.mark.parametrize("format", ["F32", "F16", "BF16", "Q4", "Q8C"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_weight_that_is_no_number_is_reported(format, bad):
    values = np.ones((33, 40), np.float32)
    assert pack_floats(format, values).finite
    values[32, 39] = bad
    assert not pack_floats(format, values).finite


@pytest.mark.parametrize("type, format", [("Q4_0", "Q4"), ("Q4_1", "Q4"), ("Q5_0", "Q8M"), ("Q5_1", "Q8M"),
                                          ("Q8_0", "Q8"), ("Q8_0", "F32")])
def test_a_scale_that_is_no_number_is_reported(type, format):
    raw = stored(type, 17, 64, np.random.default_rng(6)).reshape(34, -1)
    assert pack(format, type, 17, 64, raw.reshape(-1)).finite
    raw[33, :2] = np.array([np.nan], np.float16).view(np.uint8)
    assert not pack(format, type, 17, 64, raw.reshape(-1)).finite


def test_zero_weights_stay_zero():
    for format in ("F32", "F16", "BF16", "Q4", "Q8C"):
        assert not pack_floats(format, np.zeros((3, 40), np.float32)).rows().any()


def test_rows_in_another_order():
    values = np.random.default_rng(7).standard_normal((20, 48)).astype(np.float32)
    order = np.random.default_rng(8).permutation(20).astype(np.int32)
    packed = pack("F32", "F32", 20, 48, values.reshape(-1).view(np.uint8), order)
    assert same(packed.rows(), values[order])


@pytest.mark.parametrize("threads", [1, 2, 3, 4])
def test_the_number_of_threads_changes_no_byte(threads):
    raw = stored("F32", 333, 80, np.random.default_rng(9))
    expected = pack("Q4", "F32", 333, 80, raw).data
    assert same(pack("Q4", "F32", 333, 80, raw, pool=_native.Pool(threads)).data, expected)


def test_wrong_sizes_are_refused():
    raw = np.zeros(4 * 3 * 40, np.uint8)
    out = np.zeros(_native.matrix_bytes(0, 3, 40), np.uint8)
    pool = _native.Pool(1)
    for arguments in [(0, 3, 40, "F32", raw[:-1], None, out), (0, 3, 40, "F32", raw, None, out[:-1]),
                      (0, 3, 40, "Q8_0", raw, None, out), (0, 3, 40, "I32", raw, None, out),
                      (9, 3, 40, "F32", raw, None, out), (0, 0, 40, "F32", raw, None, out),
                      (0, 3, 40, "F32", raw, np.array([0, 1, 3], np.int32), out),
                      (0, 3, 40, "F32", raw, np.array([0, 1], np.int32), out),
                      (FORMATS.index("Q8"), 3, 40, "F32", raw, None,
                       np.zeros(_native.matrix_bytes(4, 3, 40), np.uint8)),
                      (FORMATS.index("Q8"), 3, 64, "Q5_1", np.zeros(3 * 48, np.uint8), None,
                       np.zeros(_native.matrix_bytes(4, 3, 64), np.uint8))]:
        with pytest.raises(ValueError):
            _native.pack(pool, *arguments)
