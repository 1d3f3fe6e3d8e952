"""Norms, prepared activations, addition and the rotary table."""

import numpy as np
import pytest

from forwardpass import _native
from kernel_tools import ISAS, NORMS, from_bf16, int15_values, plane_values, prepare, same, to_bf16

WIDTHS = [1, 15, 16, 17, 33, 48, 64, 80, 100, 576, 1000]
STRANGE = [0.0, 1e-45, 1e-38, 1e-20, 1e19, 1e30, 3.3e38, np.inf, -np.inf, np.nan]


def norm(isa, kind, weight, bias, x, eps=1e-5):
    """Of one row, or of every row."""
    out = np.full_like(np.atleast_2d(x), np.nan)
    _native.testing.norm(isa, NORMS.index(kind), eps, weight, bias, np.atleast_2d(x), out)
    return out.reshape(x.shape)


def vectors(k):
    rng = np.random.default_rng(k)
    return [rng.standard_normal(k).astype(np.float32) for _ in range(3)]


def exact_norm(kind, weight, bias, x, eps=1e-5):
    x = x.astype(np.float64)
    if kind == "layer":
        x = x - x.mean()
    y = x / np.sqrt((x * x).mean() + eps) * weight
    return y if bias is None else y + bias


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", ["rms", "layer"])
def test_norm(isa, kind):
    for k in WIDTHS:
        weight, bias, x = vectors(k)
        for shift in (None, bias):
            got, exact = norm(isa, kind, weight, shift, x), exact_norm(kind, weight, shift, x)
            assert np.abs(got - exact).max() <= 4e-6 * max(1, np.abs(exact).max()), k
            assert same(got, norm("scalar", kind, weight, shift, x)), k


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", ["rms", "layer"])
def test_rows_normalised_together_are_as_alone(isa, kind):
    for k in (1, 17, 64, 100):
        weight, bias, _ = vectors(k)
        for count in (1, 2, 4, 5, 11):
            x = rows_of(count, k)
            alone = np.array([norm("scalar", kind, weight, bias, row) for row in x])
            assert same(norm(isa, kind, weight, bias, x), alone), (k, count)
            wide = np.full((count, k + 3), 7, np.float32)  # outputs further apart than the inputs
            _native.testing.norm(isa, NORMS.index(kind), 1e-5, weight, bias, x, wide)
            assert same(wide[:, :k].copy(), alone) and (wide[:, k:] == 7).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", ["rms", "layer"])
def test_norm_of_strange_rows_is_the_same_everywhere(isa, kind):
    weight, bias, x = vectors(50)
    for value in STRANGE:
        for row in (np.full(50, value, np.float32), np.where(np.arange(50) == 20, np.float32(value), x)):
            assert same(norm(isa, kind, weight, bias, row), norm("scalar", kind, weight, bias, row)), value
    assert not norm(isa, "rms", weight, None, np.zeros(50, np.float32)).any()


def rows_of(count, k):
    rng = np.random.default_rng(count * 1000 + k)
    return (rng.standard_normal((count, k)) * np.exp(2 * rng.standard_normal((count, 1)))).astype(np.float32)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", NORMS)
def test_fifteen_bit_activations(isa, kind):
    for k in WIDTHS:
        weight, bias, _ = vectors(k)
        for count in (1, 3, 16, 17, 33):
            x = rows_of(count, k)
            arguments = (kind, 1e-5, weight, bias) if kind != "none" else ()
            planes, sums, offsets, scale = prepare(isa, "Q4", x, *arguments)
            for one, other in zip((planes, sums, offsets, scale), prepare("scalar", "Q4", x, *arguments), strict=True):
                assert same(one, other), (k, count)
            without_sums = prepare(isa, "Q8C", x, *arguments)
            assert without_sums[1].size == 0
            assert all(same(a, b) for a, b in zip(without_sums[::2], (planes, offsets), strict=True))
            hi, lo = int15_values(planes, count, k)
            assert np.abs(hi).max() <= 127 and lo.min() >= -64 and lo.max() <= 63
            for plane, values in enumerate((hi, lo)):
                assert same(sums[plane, :count].astype(np.int64), values.reshape(count, -1, 16).sum(2))
                assert same(offsets.reshape(-1, 2)[:count, plane].astype(np.int64), -128 * values.sum(1))
            assert not hi[:, k:].any() and not lo[:, k:].any()  # padding columns
            x = x if kind == "none" else np.array([norm("scalar", kind, weight, bias, row) for row in x])
            step = scale[:count, None].astype(np.float64)
            assert (np.abs(step * (128 * hi + lo)[:, :k] - x) <= step * 0.502).all()
            assert (np.abs(scale[:count] / (np.abs(x).max(1) / 16256) - 1) < 1e-6).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", NORMS)
def test_eight_bit_activations(isa, kind):
    for k in WIDTHS:
        weight, bias, _ = vectors(k)
        for count in (1, 3, 16, 17, 33):
            x = rows_of(count, k)
            arguments = (kind, 1e-5, weight, bias) if kind != "none" else ()
            planes, sums, offsets, scale = prepare(isa, "Q8A", x, *arguments)
            for one, other in zip((planes, sums, offsets, scale), prepare("scalar", "Q8A", x, *arguments), strict=True):
                assert same(one, other), (k, count)
            (q,) = plane_values(planes, 1, count, k)
            assert sums.size == 0 and np.abs(q).max() <= 127 and not q[:, k:].any()
            assert same(offsets[:count].astype(np.int64), -128 * q.sum(1))
            x = x if kind == "none" else norm("scalar", kind, weight, bias, x)
            step = scale[:count, None].astype(np.float64)
            assert (np.abs(step * q[:, :k] - x) <= step * 0.5001).all()
            assert (np.abs(scale[:count] / (np.abs(x).max(1) / 127) - 1) < 1e-6).all()


@pytest.mark.parametrize("isa", ISAS)
def test_float_and_bfloat16_activations(isa):
    for k in WIDTHS:
        k_pad = -(-k // 64) * 64
        for count in (1, 3, 16, 17, 33):
            x = rows_of(count, k)
            planes = prepare(isa, "F32", x)[0].view(np.float32).reshape(-1, k_pad)
            assert same(planes[:count, :k], x) and not planes[:count, k:].any()
            planes = prepare(isa, "BF16", x)[0].view(np.uint16)
            planes = planes.reshape(-(-count // 16), k_pad // 32, min(count, 16), 32).transpose(0, 2, 1, 3)
            planes = planes.reshape(-1, k_pad)[:count]
            assert same(planes[:, :k], to_bf16(x)) and not planes[:, k:].any()


@pytest.mark.parametrize("isa", ISAS)
def test_strange_activations(isa):
    """Zero rows and rows without a usable scale count as zero; the rest is finite; all tables agree."""
    x = rows_of(2 * len(STRANGE), 70)
    x[::2, 33] = STRANGE
    x[::4][:, :33] = 0
    x[0] = 0
    infinite = [i for i in range(0, len(x), 2) if np.isinf(x[i]).any()]
    for format in ("F32", "BF16", "Q4", "Q8A", "Q8C"):
        got, expected = prepare(isa, format, x), prepare("scalar", format, x)
        view = {"F32": np.float32, "BF16": np.uint16}.get(format, np.int8)
        assert same(got[0].view(view), expected[0].view(view)), format
        assert all(same(a, b) for a, b in zip(got[1:], expected[1:], strict=True)), format
        if view is np.int8:
            scale = got[3][: len(x)]
            assert np.isfinite(scale).all() and scale[0] == 0
            assert infinite and not scale[infinite].any()


@pytest.mark.parametrize("isa", ISAS)
def test_bfloat16_of_subnormals_and_nan(isa):
    """Subnormals flush and NaN stays NaN: the rules of the AMX unit."""
    x = np.array([[1e-40, -1e-40, np.nan, np.inf, -np.inf, 3.39e38, 1.0039062, 1.0117188]], np.float32)
    got = from_bf16(prepare(isa, "BF16", x)[0].view(np.uint16)[:8])
    expected = np.array([0, 0, np.nan, np.inf, -np.inf, 3.3895314e38, 1.0, 1.015625], np.float32)
    assert same(got, expected)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("scale", [1.0, 0.22, -3.0])
def test_add(isa, scale):
    for k in WIDTHS:
        a, b, _ = vectors(k)
        out = a.copy()
        _native.testing.add(isa, out, b, scale)
        assert same(out, a + np.float32(scale) * b)


@pytest.mark.parametrize("isa", ISAS)
def test_clip(isa):
    for k in WIDTHS:
        x = vectors(k)[0] * 3
        x[: len(STRANGE)] = STRANGE[:k]
        out = x.copy()
        _native.testing.clip(isa, out, 1.5)
        flushed = np.where(np.abs(x) < 1.2e-38, 0, x)  # subnormals count as zero
        assert same(out, np.clip(flushed, np.float32(-1.5), np.float32(1.5))), k


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("scale, softcap", [(0.0625, 0.0), (1.0, 30.0), (0.25, 50.0), (1.0, 0.5)])
def test_cap(isa, scale, softcap):
    for k in WIDTHS:
        x = vectors(k)[0] * np.float32(40)
        got, other = x.copy(), x.copy()
        _native.testing.cap(isa, got, scale, softcap)
        _native.testing.cap("scalar", other, scale, softcap)
        exact = x.astype(np.float64) * scale
        if softcap:
            exact = softcap * np.tanh(exact / softcap)
        assert (np.abs(got - exact) <= 4e-7 * np.abs(exact)).all(), k
        assert same(got, other), k
    strange = np.array(STRANGE * 3, np.float32)
    got, other = strange.copy(), strange.copy()
    _native.testing.cap(isa, got, scale, softcap)
    _native.testing.cap("scalar", other, scale, softcap)
    assert same(got, other)
    assert softcap == 0 or np.abs(got[np.isfinite(got)]).max() <= softcap


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("normalise", [False, True])
def test_route(isa, normalise):
    for count in (1, 2, 7, 16, 33, 128):
        for chosen in sorted({1, min(2, count), min(8, count), count}):
            scores = vectors(count)[0] * 3
            which, share = _native.testing.route(isa, scores.copy(), chosen, normalise)
            exact = np.exp(scores.astype(np.float64) - scores.max())
            exact /= exact.sum()
            best = np.argsort(-scores, kind="stable")[:chosen]
            assert np.array_equal(which, best)
            expected = exact[best] / (exact[best].sum() if normalise else 1)
            assert np.abs(share / expected - 1).max() < 2e-6
            other = _native.testing.route("scalar", scores.copy(), chosen, normalise)
            assert same(which, other[0]) and same(share, other[1])


@pytest.mark.parametrize("isa", ISAS)
def test_route_among_equals_and_strange_scores(isa):
    """The lowest number first; whatever the scores, the chosen are different and exist."""
    which, share = _native.testing.route(isa, np.array([1, 3, 2, 3, 3, 2], np.float32), 4, True)
    assert which.tolist() == [1, 3, 4, 2] and share[0] == share[1] == share[2] > share[3]
    for strange in ([np.nan] * 5, [1, np.nan, 2, np.nan, 3], [np.inf, 1, np.inf, 0, -np.inf], [-np.inf] * 5):
        which, share = _native.testing.route(isa, np.array(strange, np.float32), 3, True)
        assert len(set(which.tolist())) == 3 and which.min() >= 0 and which.max() < 5
        assert same(share, _native.testing.route("scalar", np.array(strange, np.float32), 3, True)[1])


@pytest.mark.parametrize("isa", ISAS)
def test_sigmoid(isa):
    for x in (-200.0, -3.0, -0.1, 0.0, 1.0, 50.0):
        got = _native.testing.sigmoid(isa, x)
        assert abs(got - 1 / (1 + np.exp(-x))) < 1e-6 and got == _native.testing.sigmoid("scalar", x)


@pytest.mark.parametrize("theta, dim", [(10000.0, 64), (100000.0, 16), (1e6, 128)])
def test_rotary_table(theta, dim):
    """Angles are rounded to float32, as the reference implementations do; cos and sin of them are exact to float32."""
    frequencies = (1.0 / theta ** (np.arange(0, dim, 2) / dim)).astype(np.float32)
    positions = 20000
    cos, sin = _native.RotaryTable(list(map(float, frequencies)), 1.0).rows(positions)
    angles = (np.arange(positions, dtype=np.float32)[:, None] * frequencies).astype(np.float64)
    for got, exact in ((cos, np.cos(angles)), (sin, np.sin(angles))):
        got = got.reshape(positions, dim // 2)
        assert np.abs(got - exact).max() <= 3.1e-8  # half a unit in the last place below 1
        assert (got == exact.astype(np.float32)).mean() > 0.9999


def test_rotary_rows_do_not_depend_on_how_the_table_grew():
    frequencies = [1.0, 0.1, 0.01]
    whole = _native.RotaryTable(frequencies, 0.5).rows(1000)
    grown = _native.RotaryTable(frequencies, 0.5)
    for count in (1, 255, 257, 1000):
        for one, other in zip(grown.rows(count), whole, strict=True):
            assert same(one, other[: count * 3])
    assert whole[0][0] == 0.5 and whole[1][0] == 0
