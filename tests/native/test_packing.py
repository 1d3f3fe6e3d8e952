"""Packing keeps what the checkpoint says: `gguf`'s own dequantisation is the witness."""

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize, quantize

from forwardpass import _native
from forwardpass.backends.native import FORMATS
from forwardpass.quant.formats import kernel_format
from forwardpass.weights.source import BLOCKS
from kernel_tools import (
    GROUPED,
    ISAS,
    LEVELS,
    MOST_UNITS,
    encode,
    from_bf16,
    pack,
    pack_floats,
    random_packed,
    same,
    stored,
    to_bf16,
)

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
                                          ("BF16", "F32"), ("Q8_0", "Q8"), ("Q5_0", "Q8"), ("Q4_0", "Q8"),
                                          ("Q4_0", "F32"), ("Q4_1", "F32"), ("Q5_0", "F32"), ("Q5_1", "F32"),
                                          ("Q8_0", "F32")])
def test_exact_formats_keep_every_bit(type, format):
    rng = np.random.default_rng(1)
    for n, k in SHAPES if type in GROUPED else FLOAT_SHAPES:
        raw = stored(type, n, k, rng)
        packed = pack(format, type, n, k, raw)
        assert packed.finite
        assert same(packed.rows(), reference(type, raw, n, k)), (n, k)


LEVEL_PAIRS = [("Q4_0", "Q4"), ("Q4_1", "Q4"), ("Q4_K", "Q4"), ("Q2_K", "Q4H"), ("Q4_1", "Q4H"), ("Q5_0", "Q5"),
               ("Q5_1", "Q5M"), ("Q5_K", "Q5M"), ("Q4_0", "Q5M"), ("Q6_K", "Q6"), ("Q3_K", "Q6"), ("Q5_0", "Q6")]


@pytest.mark.parametrize("type, format", LEVEL_PAIRS)
def test_stored_levels_are_kept_and_scales_to_half_a_unit(type, format):
    """D and M become 16-bit integers in units of one float a row. Rounding them moves a weight by at most zero / 2
    units, and 1 / 2 more where there is an M; the unit is the least that fits: max(|w|, |d|, |M|) / 32750, or what
    keeps 127 * sum |w| below 2^31 after rounding."""
    bits, _, minimum = LEVELS[format]
    zero = 1 << (bits - 1)
    moved = zero / 2 + minimum / 2
    values = BLOCKS[type][0]
    rng = np.random.default_rng(2)
    for n, k in [(1, values), (16, 2 * values), (17, 3 * values), (3, 8192), (2, 32768)]:
        raw = stored(type, n, k, rng)
        packed = pack(format, type, n, k, raw)
        assert packed.finite
        q, d, m = (part.reshape(n, k // 16, -1).astype(np.float64)
                   for part in _native.testing.stored_groups(type, raw, n * k))
        exact = (q * d + m).reshape(n, k)
        scale = packed.row_scale()[:, None].astype(np.float64)
        error = np.abs(packed.rows().astype(np.float64) - exact)
        assert (error <= moved * scale * (1 + 1e-6) + 1e-7 * np.abs(exact)).all()
        centre = m + d * (zero + _native.testing.stored_type(type)["least"]) if minimum else m
        greatest = np.maximum(np.abs(exact).max(1), np.maximum(np.abs(d), np.abs(centre)).max((1, 2)))
        allowed = MOST_UNITS - moved * (-(-k // 64) * 64)
        assert np.allclose(scale[:, 0], np.maximum(greatest / 32750, np.abs(exact).sum(1) / allowed), rtol=1e-6, atol=0)
        assert np.abs(np.rint(packed.rows() / scale)).max() <= 32767


def test_sixteen_bits_of_any_values():
    rng = np.random.default_rng(13)
    for n, k in [*FLOAT_SHAPES, (3, 16384)]:
        values = (rng.standard_normal((n, k)) * np.exp(3 * rng.standard_normal((n, 1)))).astype(np.float32)
        packed = pack_floats("Q16", values)
        scale = packed.row_scale()[:, None].astype(np.float64)
        assert (np.abs(packed.rows() - values.astype(np.float64)) <= scale * 0.501).all()
        unit = np.maximum(np.abs(values).max(1) / 32750, np.abs(values.astype(np.float64)).sum(1) / (MOST_UNITS - k))
        assert (scale[:, 0] <= unit * (1 + 1e-6)).all()
    for type in GROUPED:
        raw = stored(type, 2, 512, rng)
        packed, exact = pack("Q16", type, 2, 512, raw), reference(type, raw, 2, 512)
        assert (np.abs(packed.rows() - exact.astype(np.float64)) <= packed.row_scale()[:, None] * 0.501).all()


def test_weights_of_every_size_fit_integers():
    """Subnormal weights count as zero; the greatest floats there are stay finite and in their place."""
    for size in (1e-45, 1e-38, 3e-35, 1e-30, 1.0, 1e30, 3.4e38):
        values = np.float32(size) * np.array([[1, -1, 0.5, 0.25] * 16], np.float32)
        for format in ("Q4", "Q8A", "Q8C", "Q16"):
            packed = pack_floats(format, values)
            assert packed.finite
            coarse = 2 * np.float64(size) / 15 if format == "Q4" else np.float64(size) / 100
            assert (np.abs(packed.rows() - values.astype(np.float64)) <= max(coarse, 4e-34)).all()


@pytest.mark.parametrize("type, format", [("Q6_K", "Q8"), ("Q4_1", "Q8"), ("Q4_1", "Q5"), ("Q5_1", "Q6"),
                                          ("Q6_K", "Q5"), ("Q2_K", "Q5M"), ("Q5_1", "Q4H"), ("Q8_0", "Q6"),
                                          ("F32", "Q5"), ("F32", "Q6"), ("F32", "Q4H"), ("F32", "Q8")])
def test_groups_that_a_layout_cannot_hold_are_refused(type, format):
    raw = stored(type, 2, 256, np.random.default_rng(14))
    with pytest.raises(ValueError, match=f"layout {format} can't hold .* {type}"):
        pack(format, type, 2, 256, raw)


@pytest.mark.parametrize("format", LEVELS)
def test_levels_lie_where_the_layout_says(format):
    """The packer's bytes against those of the tests' own encoder."""
    bits, span, minimum = LEVELS[format]
    type, zero = {"Q4": "Q4_1", "Q4H": "Q4_1", "Q5": "Q5_0", "Q5M": "Q5_1", "Q6": "Q5_0"}[format], 1 << (bits - 1)
    for n, k in [(16, 64), (48, 320)]:  # what stands in padding is nobody's, as long as its scales are zero
        raw = stored(type, n, k, np.random.default_rng(n))
        packed = pack(format, type, n, k, raw)
        q, d, m = (part.reshape(n, k // 16, -1) for part in _native.testing.stored_groups(type, raw, n * k))
        least = _native.testing.stored_type(type)["least"]
        centre = zero + least if minimum else 0
        scale = packed.row_scale()[:, None].astype(np.float64)
        units, middle = (np.rint(part[:, :: span // 16, 0] / scale).astype(np.int16)
                         for part in (d, m.astype(np.float64) + d * np.float64(centre)))
        expected = encode(format, q.reshape(n, k) - centre + zero, units, middle, packed.row_scale())
        assert same(packed.data, expected.data), (n, k)


@pytest.mark.parametrize("type", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_a_tensor_quantised_by_gguf_comes_back(type):
    values = np.random.default_rng(3).standard_normal((20, 96)).astype(np.float32)
    raw = quantize(values, gguf.GGMLQuantizationType[type])
    format = kernel_format(type, "auto")
    packed = pack(format, type, 20, 96, np.ascontiguousarray(raw).reshape(-1))
    exact = dequantize(raw, gguf.GGMLQuantizationType[type])
    assert np.abs(packed.rows() - exact).max() <= (0 if format == "Q8" else 4e-3)
    assert np.corrcoef(packed.rows().ravel(), values.ravel())[0, 1] > 0.99


@pytest.mark.parametrize("shape", FLOAT_SHAPES)
def test_floats_to_fewer_bits(shape):
    values = np.random.default_rng(4).standard_normal(shape).astype(np.float32)
    n, k = shape
    assert same(pack_floats("F16", values).rows(), values.astype(np.float16).astype(np.float32))
    assert same(pack_floats("BF16", values).rows(), from_bf16(to_bf16(values)))

    int8 = pack_floats("Q8C", values)
    assert same(pack_floats("Q8A", values).data, int8.data)  # the same bytes
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


@pytest.mark.parametrize("format", ["F32", "F16", "BF16", "Q4", "Q8A", "Q8C", "Q16"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_weight_that_is_no_number_is_reported(format, bad):
    values = np.ones((33, 40), np.float32)
    assert pack_floats(format, values).finite
    values[32, 39] = bad
    assert not pack_floats(format, values).finite


@pytest.mark.parametrize("type, format", [("Q4_0", "Q4"), ("Q4_1", "Q4H"), ("Q5_0", "Q5"), ("Q5_1", "Q5M"),
                                          ("Q5_0", "Q6"), ("Q5_0", "Q8"), ("Q8_0", "Q8"), ("Q8_0", "F32"),
                                          ("Q8_0", "Q16")])
def test_a_scale_that_is_no_number_is_reported(type, format):
    raw = stored(type, 17, 64, np.random.default_rng(6)).reshape(34, -1)
    assert pack(format, type, 17, 64, raw.reshape(-1)).finite
    raw[33, :2] = np.array([np.nan], np.float16).view(np.uint8)
    assert not pack(format, type, 17, 64, raw.reshape(-1)).finite


def test_zero_weights_stay_zero():
    for format in ("F32", "F16", "BF16", "Q4", "Q8A", "Q8C", "Q16"):
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
                      (len(FORMATS), 3, 40, "F32", raw, None, out), (0, 0, 40, "F32", raw, None, out),
                      (0, 3, 40, "F32", raw, np.array([0, 1, 3], np.int32), out),
                      (0, 3, 40, "F32", raw, np.array([0, 1], np.int32), out),
                      (FORMATS.index("Q8"), 3, 40, "F32", raw, None,
                       np.zeros(_native.matrix_bytes(4, 3, 40), np.uint8)),
                      (FORMATS.index("Q8"), 3, 64, "Q5_1", np.zeros(3 * 48, np.uint8), None,
                       np.zeros(_native.matrix_bytes(4, 3, 64), np.uint8))]:
        with pytest.raises(ValueError):
            _native.pack(pool, *arguments)


@pytest.mark.parametrize("n, k", SHAPES)
def test_rows_of_quantised_linears(n, k):
    """G8 and C8 keep every bit, C8 its one scale a row too; G4 is within the unit of its row, as Q4_1 is."""
    rng = np.random.default_rng(5)
    q = rng.integers(-128, 128, (n, k // 32, 32)).astype(np.int8)
    halves = rng.uniform(0.001, 0.01, (n, k // 32, 1)).astype(np.float16).astype(np.float32)
    rows = np.repeat(rng.uniform(0.001, 0.01, (n, 1, 1)).astype(np.float32), k // 32, axis=1)
    for type, format, d in (("G8", "Q8", halves), ("C8", "Q8C", rows)):
        raw = np.concatenate([d.view(np.uint8), q.view(np.uint8)], axis=2)
        packed = pack(format, type, n, k, np.ascontiguousarray(raw).reshape(-1))
        assert same(packed.rows(), (q.astype(np.float32) * d).reshape(n, k)), type
    levels, m = rng.integers(0, 16, (n, k // 32, 32)).astype(np.uint8), -8 * halves
    nibbles = levels[:, :, :16] | levels[:, :, 16:] << 4
    raw = np.concatenate([halves.view(np.uint8), m.view(np.uint8), nibbles], axis=2)
    packed = pack("Q4", "G4", n, k, np.ascontiguousarray(raw).reshape(-1))
    exact = (levels * halves + m).reshape(n, k)
    error = np.abs(packed.rows() - exact) / packed.row_scale()[:, None]
    assert (error <= 4.5 + 1e-3).all()
