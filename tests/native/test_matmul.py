"""Matrix products: every format, instruction set and ragged shape equals the scalar definition with ==, and float64."""

import math
from functools import lru_cache

import numpy as np
import pytest

from forwardpass import _native
from forwardpass.backends.native import FORMATS
from kernel_tools import (
    ACTIVATIONS,
    ISAS,
    LEVELS,
    MODES,
    MOST_UNITS,
    OTHER_ISAS,
    ROW_SCALED,
    encode,
    from_bf16,
    int15_values,
    integer_weights,
    matmul,
    pack,
    pack_floats,
    plane_values,
    prepare,
    random_levels,
    random_packed,
    same,
    stored,
    to_bf16,
)

ROWS = [1, 2, 3, 4, 5, 8, 15, 16, 17, 31, 32, 33, 47, 64, 65, 70]
SHAPES = [(16, 64), (1, 32), (17, 96), (31, 160), (48, 320), (65, 576), (33, 1536)]
RAGGED = [(1, 1), (5, 48), (16, 31), (17, 33), (33, 80), (47, 100), (64, 65), (7, 127)]


def shapes(format):
    """Stored groups need whole groups of 32 columns; every other format takes any width."""
    return SHAPES if format == "Q8" else SHAPES + RAGGED


@lru_cache
def problem(format, shape):
    """(weights, 70 rows of activations, their scalar product)."""
    rng = np.random.default_rng([FORMATS.index(format), *shape])
    w = random_packed(format, *shape, rng)
    x = (rng.standard_normal((max(ROWS), shape[1])) * np.exp(rng.standard_normal((max(ROWS), 1)))).astype(np.float32)
    return w, x, matmul("scalar", w, x)


@pytest.mark.parametrize("isa", OTHER_ISAS)
@pytest.mark.parametrize("format", FORMATS)
def test_equals_scalar(format, isa):
    for shape in shapes(format):
        w, x, expected = problem(format, shape)
        for rows in ROWS:
            assert same(matmul(isa, w, x[:rows]), expected[:rows]), (shape, rows)


@pytest.mark.parametrize("format", FORMATS)
def test_scalar_rows_do_not_depend_on_their_company(format):
    for shape in shapes(format):
        w, x, expected = problem(format, shape)
        for rows in (1, 3, 17):
            assert same(matmul("scalar", w, x[20 : 20 + rows]), expected[20 : 20 + rows]), (shape, rows)


@pytest.mark.parametrize("format", FORMATS)
def test_float64_agrees(format):
    """Against the exact product of what the kernel was given (rounded activations, stored weights): only the roundings
    of float32 sums may remain, k of them for float formats, one a group of 32 for Q8, a few for the others."""
    for shape in shapes(format):
        w, x, got = problem(format, shape)
        k = shape[1]
        weights, rounded = w.rows().astype(np.float64), as_seen(format, x, k)
        if format in ROW_SCALED:  # the look-up rounds q * row_scale to float32, the product does not
            scale = w.row_scale()[:, None].astype(np.float64)
            weights = np.where(scale > 0, np.rint(weights / np.where(scale > 0, scale, 1)) * scale, 0)
        exact, size = rounded @ weights.T, np.abs(rounded) @ np.abs(weights).T
        steps = {"F32": k, "F16": k, "BF16": k, "Q8": k // 32 + 4}.get(format, 6)
        assert (np.abs(got - exact) <= steps * 2.0**-24 * size * 1.01 + 1e-30).all(), shape


def as_seen(format, x, k):
    """float64 [rows, k]: the activations in the form that a format's product reads."""
    if format in ("F32", "F16"):
        return x.astype(np.float64)
    if format == "BF16":
        return from_bf16(to_bf16(x)).astype(np.float64)
    planes, _, _, scale = prepare("scalar", format, x)
    if format == "Q8A":
        values = plane_values(planes, 1, len(x), k)[0]
    else:
        hi, lo = int15_values(planes, len(x), k)
        values = 128 * hi + lo
    return (values * scale[: len(x), None].astype(np.float64))[:, :k]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("format", FORMATS)
def test_any_panels_alone_give_the_same(format, isa):
    w, x, expected = problem(format, (65, 576))
    for rows in (1, 5, 33):
        out = np.full((rows, 65), np.nan, np.float32)
        for panels in [(3, 5), (0, 1), (1, 3)]:
            out = matmul(isa, w, x[:rows], out=out, panels=panels)
            untouched = np.isnan(out).all(0)
            assert not untouched[panels[0] * 16 : panels[1] * 16].any()
        assert same(out, expected[:rows])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("format", FORMATS)
def test_only_the_outputs_are_written(format, isa):
    w, x, expected = problem(format, (17, 96))
    for rows in (1, 17):
        out = matmul(isa, w, x[:rows], out=np.full((rows, 40), 7, np.float32))
        assert same(out[:, :17], expected[:rows]) and (out[:, 17:] == 7).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("format", FORMATS)
def test_bias_activation_and_mode(format, isa):
    w, x, product = problem(format, (17, 96))
    rng = np.random.default_rng(5)
    bias, before = (rng.standard_normal(shape).astype(np.float32) for shape in (17, (33, 17)))
    for rows in (1, 3, 33):
        for given in (None, bias):
            for act in ACTIVATIONS:
                y = (product[:rows] if given is None else product[:rows] + given)
                y = matmul_free_activation(act, y)
                for mode in MODES:
                    old = before[:rows]
                    expected = {"store": y, "add": old + y, "gate": y * old}[mode]
                    got = matmul(isa, w, x[:rows], mode=mode, act=act, bias=given, out=old)
                    assert same(got, expected), (rows, act, mode)


def matmul_free_activation(act, y):
    """act(y) by the scalar table: as the bias of a product with zeros."""
    flat = np.ascontiguousarray(y.reshape(-1))
    return activation("scalar", act, flat).reshape(y.shape)


@lru_cache
def zeros(n):
    return pack_floats("F32", np.zeros((n, 1), np.float32))


def activation(isa, act, values):
    return matmul(isa, zeros(values.size), np.zeros((1, 1), np.float32), act=act, bias=values)[0]


# ---------------------------------------------------------------- activations

GRID = np.concatenate([np.linspace(-30, 30, 4001), np.linspace(-1, 1, 2001), np.geomspace(1e-30, 1e4, 500),
                       -np.geomspace(1e-30, 1e4, 500)]).astype(np.float32)
SPECIAL = np.array([np.nan, np.inf, -np.inf, 3.4e38, -3.4e38, 1e-45, -1e-45, 1e-38, 0.0, -0.0, 88.7, 89.0, -87.3, -87.4,
                    -88.0, -103.9, -104.1, 0.625, 0.5, -0.5], np.float32)
EXACT = {
    "none": lambda x: x,
    "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "gelu_erf": lambda x: 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))),
    "relu": lambda x: np.maximum(x, 0),
    "quick_gelu": lambda x: x / (1 + np.exp(-1.702 * x)),
    "tanh": np.tanh,
}


@pytest.mark.parametrize("act", ACTIVATIONS)
def test_activations_agree_with_float64(act):
    x = GRID.astype(np.float64)
    with np.errstate(over="ignore"):
        exact = EXACT[act](x)
    error = np.abs(activation("scalar", act, GRID) - exact)
    # Relative to x: where the result is a small difference (gelu of -5), x sets the size of the rounding.
    assert (error <= 4e-7 * np.abs(x) + 1e-37).all(), (error / np.maximum(np.abs(x), 1e-30)).max()


@pytest.mark.parametrize("isa", OTHER_ISAS)
@pytest.mark.parametrize("act", ACTIVATIONS)
def test_activations_have_the_same_bits(act, isa):
    for values in (GRID, SPECIAL, *(GRID[:n] for n in (1, 15, 16, 17))):
        assert same(activation(isa, act, values), activation("scalar", act, values))


@pytest.mark.parametrize("act", ACTIVATIONS)
def test_activations_at_the_ends(act):
    large = activation("scalar", act, np.array([1e4, 3e38, np.inf, -1e4, np.nan], np.float32))
    if act == "tanh":
        assert large[:4].tolist() == [1, 1, 1, -1]
    else:
        assert large[0] == np.float32(1e4) and large[1] == np.float32(3e38) and large[2] == np.inf
        assert large[3] == (-1e4 if act == "none" else 0)
    assert np.isnan(large[4]) or act == "relu"


# ---------------------------------------------------------------- worst cases of the integers

def q8_constant(n, k, level, scale=1.0):
    """Q8_0 blocks that all hold one level."""
    block = np.empty((n * k // 32, 34), np.uint8)
    block[:, :2] = np.array([scale], np.float16).view(np.uint8)
    block[:, 2:] = np.array([level], np.int8).view(np.uint8)
    return pack("Q8", "Q8_0", n, k, block.reshape(-1))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("level", [-128, -127, -1, 127])
@pytest.mark.parametrize("sign", [1, -1])
def test_extreme_bytes_do_not_saturate(isa, level, sign):
    """u8 255 x s8 127 over 64 columns is 2,072,640; pairs summed in 16 bits would give 1,048,544."""
    for n, k in [(17, 64), (16, 96), (33, 4128)]:
        w = q8_constant(n, k, level)
        for rows in (1, 2, 5, 17, 33):
            got = matmul(isa, w, np.full((rows, k), sign, np.float32))
            assert np.abs(got / (sign * level * k) - 1).max() < 1e-5
            assert same(got, matmul("scalar", w, np.full((rows, k), sign, np.float32)))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("format", ["Q8A", "Q8C"])
def test_extreme_row_scaled_bytes(isa, format, sign):
    for k in (64, 100, 16384):
        w = pack_floats(format, np.full((18, k), sign * 3.0, np.float32))
        for rows in (1, 17):
            x = np.full((rows, k), -2.0, np.float32)
            got = matmul(isa, w, x)
            assert np.abs(got / (-6.0 * sign * k) - 1).max() < 1e-5
            assert same(got, matmul("scalar", w, x))


def exact_result(weights, row_scale, x):
    """float32 [rows, n], bit for bit, of whole-number weights [n, k] in units of row_scale: the three roundings of
    docs/architecture.md after exact sums, which must fit 32 bits. Also the greatest of these sums."""
    planes, _, _, scale = prepare("scalar", "Q4", x)
    acc_h, acc_l = (values[:, : x.shape[1]] @ weights.T for values in int15_values(planes, len(x), x.shape[1]))
    assert max(np.abs(acc_h).max(), np.abs(acc_l).max()) < 2**31
    high, low = (acc.astype(np.float32).astype(np.float64) for acc in (acc_h, acc_l))
    y = (high * 128 + low).astype(np.float32)  # exact in float64: one rounding, as of a fused multiply-add
    return y * (scale[: len(x), None] * row_scale[None]), int(np.abs(acc_h).max())


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("sign", [1, -1])
def test_the_widest_sums_of_bytes_fit(isa, sign):
    """131,072 columns of stored bytes -128 (one scale a row) times 127: 2,130,706,432, 0.8% below 2^31."""
    k = 131072
    row = np.empty((1, k // 32, 36), np.uint8)
    row[:, :, :4] = np.array([0.5], np.float32).view(np.uint8)
    row[:, :, 4:] = 128  # the byte of -128
    w = pack("Q8A", "C8", 1, k, row.reshape(-1))
    x = np.full((9, k), 127.0 * sign, np.float32)
    for rows in (1, 2, 9):
        got = matmul(isa, w, x[:rows])
        assert same(got, np.full((rows, 1), np.float32(-128 * 127 * k * sign) * np.float32(0.5), np.float32))


@pytest.mark.parametrize("isa", ISAS)
def test_eight_bit_activations_are_whole_numbers_of_their_scale(isa):
    """One scale a row, |q| <= 127: the product of whole numbers at that scale is exact, to the bit."""
    rng = np.random.default_rng(21)
    for n, k, rows in [(5, 70, 1), (33, 192, 3), (48, 384, 40), (17, 1000, 17)]:
        q, weights = rng.integers(-127, 128, (rows, k)), rng.integers(-127, 128, (n, k))
        q[:, 3], weights[:, 5] = 127, -127
        unit, scale = np.float32(0.25), np.float32(2.0)  # powers of two: every product is exact
        w = pack_floats("Q8A", weights.astype(np.float32) * scale)
        got = matmul(isa, w, q.astype(np.float32) * unit)
        assert same(got, (q @ weights.T).astype(np.float32) * (unit * scale))


@pytest.mark.parametrize("format", LEVELS)
def test_levels_are_what_the_layout_says(format):
    """Written by the tests' own encoder, looked up and multiplied by the definition: == to whole-number arithmetic."""
    for n, k in SHAPES + RAGGED:
        rng = np.random.default_rng([n, k])
        q, d, m, row_scale = random_levels(format, n, k, rng)
        w, weights = encode(format, q, d, m, row_scale), integer_weights(format, q, d, m)
        assert same(w.rows(), weights.astype(np.float32) * row_scale[:, None]), (n, k)
        x = (rng.standard_normal((5, k)) * np.exp(rng.standard_normal((5, 1)))).astype(np.float32)
        assert same(matmul("scalar", w, x), exact_result(weights, row_scale, x)[0]), (n, k)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("format", LEVELS)
@pytest.mark.parametrize("end", ["least", "greatest"])
@pytest.mark.parametrize("d", [1, -1])
def test_extreme_levels_at_every_width(isa, format, end, d):
    """All levels at one end, the scales as great as they may be, all activations at their end: no step saturates."""
    bits, span, minimum = LEVELS[format]
    zero = 1 << (bits - 1)
    for k in (16, 32, 96, 2048, 16384):
        q = np.full((17, k), 0 if end == "least" else 2 * zero - 1)
        most = int(min(32760, MOST_UNITS / k)) // zero
        scales = np.full((17, -(-k // span)), d * max(most - 1, 1), np.int16)
        m = np.sign((q[0, 0] - zero) * scales) * np.int16(zero - 1) if minimum else None
        row_scale = np.linspace(1e-3, 1e-2, 17).astype(np.float32)
        w, weights = encode(format, q, scales, m, row_scale), integer_weights(format, q, scales, m)
        for sign in (1, -1):
            x = np.full((33, k), sign * 2.0, np.float32)
            expected = np.repeat(exact_result(weights, row_scale, x[:1])[0], 33, 0)
            for rows in (1, 2, 4, 6, 33):
                assert same(matmul(isa, w, x[:rows]), expected[:rows]), (k, rows, sign)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("type, format", [("Q4_0", "Q4"), ("Q4_1", "Q4"), ("Q2_K", "Q4H"), ("Q4_1", "Q4H"),
                                          ("Q5_0", "Q5"), ("Q5_1", "Q5M"), ("Q5_K", "Q5M"), ("Q6_K", "Q6"),
                                          ("Q3_K", "Q6"), ("F32", "Q16")])
def test_the_packer_leaves_room_for_every_sum(isa, type, format):
    """Activations with the signs of a row's weights, all at their end: the greatest sums there can be. Rows so long
    that the rule against overflow sets their scale come near 2^31, and not past it."""
    rng, greatest = np.random.default_rng(12), 0
    for k in (256, 16384, 40960):
        w = pack(format, type, 3, k, stored(type, 3, k, rng, size=1.0))
        assert w.finite
        scale = w.row_scale()
        weights = np.rint(w.rows().astype(np.float64) / scale[:, None]).astype(np.int64)
        x = (np.where(weights < 0, -1, 1) * np.float32(0.5)).astype(np.float32)
        for rows in (x, -x, np.repeat(x, 3, axis=0)):
            expected, most = exact_result(weights, scale, rows)
            assert same(matmul(isa, w, rows), expected), k
            greatest = max(greatest, most)
    assert greatest > 0.98 * 2**31


@pytest.mark.parametrize("isa", ISAS)
def test_groups_of_very_different_size_share_a_row(isa):
    rng = np.random.default_rng(11)
    block = np.empty((17, 64, 20), np.uint8)
    scales = (10.0 ** rng.uniform(-4, 2, (17, 64, 2)) * rng.choice([-1, 1], (17, 64, 2))).astype(np.float16)
    block[:, :, :4] = scales.view(np.uint8).reshape(17, 64, 4)
    block[:, :, 4:] = rng.choice([0x00, 0x0F, 0xF0, 0xFF], (17, 64, 16))
    w = pack("Q4", "Q4_1", 17, 2048, block.reshape(-1))
    x = rng.choice([-1.0, 1.0], (33, 2048)).astype(np.float32)
    for rows in (1, 5, 33):
        got = matmul(isa, w, x[:rows])
        assert same(got, matmul("scalar", w, x[:rows]))
        exact = as_seen("Q4", x[:rows], 2048) @ w.rows().astype(np.float64).T
        size = np.abs(x[:rows]) @ np.abs(w.rows().astype(np.float64)).T
        assert (np.abs(got - exact) <= 1e-6 * size).all()


# ---------------------------------------------------------------- strange activations

@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("format", FORMATS)
def test_strange_rows_do_not_disturb_their_neighbours(isa, format):
    """Zero, subnormal, tiny, huge, infinite and NaN rows: the same as scalar, and the rows between them as alone."""
    w, x, _ = problem(format, (17, 96))
    strange = np.array([0.0, 1e-45, 1e-38, 1e-30, 1e30, 3.3e38, np.inf, -np.inf, np.nan], np.float32)
    rows = x[:18].copy()
    rows[::2] *= 0
    rows[::2, 40] = strange
    for count in (1, 2, 5, 18):
        got = matmul(isa, w, rows[-count:])
        assert same(got, matmul("scalar", w, rows[-count:]))
    alone = matmul("scalar", w, x[1:18:2].copy())
    assert same(matmul(isa, w, rows)[1::2], alone)


@pytest.mark.parametrize("isa", ISAS)
def test_wrong_table_names_are_refused(isa):
    with pytest.raises(ValueError):
        _native.testing.table(isa + "x")
