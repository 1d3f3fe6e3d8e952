"""Every stored type in the layout that is chosen for it, and in those that a user may ask for."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from block_tools import bound, sound_blocks
from forwardpass import _native
from forwardpass.backends.native import ARITHMETIC, FORMATS, READS
from forwardpass.models.loading import agree
from forwardpass.quant.formats import DTYPES, bits_a_weight, has_layout, kernel_format
from forwardpass.weights.dequantize import dequantize
from forwardpass.weights.repack import REPACKED
from forwardpass.weights.source import BLOCKS
from kernel_tools import pack, same

STORED = [kind for kind in BLOCKS if kind not in REPACKED]  # the others: tests/native/test_packing.py
ROWS = 19
DOCS = Path(__file__).parents[2] / "docs"


def random_matrix(kind: str, seed: int, columns: int = 768) -> tuple[np.ndarray, np.ndarray]:
    """(stored bytes, their values float32 [ROWS, columns])"""
    values, _ = BLOCKS[kind]
    raw = sound_blocks(kind, ROWS * columns // values, np.random.default_rng(seed))
    exact = dequantize(kind, raw, (ROWS, columns))
    assert np.isfinite(exact).all() and exact.any()
    return raw, exact


@pytest.mark.parametrize("kind", STORED)
def test_as_stored(kind):
    layout = kernel_format(kind, "auto")
    for seed, columns in ((1, 256), (2, 768)):
        raw, exact = random_matrix(kind, seed, columns)
        packed = pack(layout, kind, ROWS, columns, raw)
        assert packed.finite
        error = np.abs(packed.rows().astype(np.float64) - exact)
        assert (error <= bound(packed, kind, exact)).all(), error.max()
        assert (error <= 1e-3 * np.abs(exact).max(1, keepdims=True)).all()  # so the units are small ones


@pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES if dtype != "auto"])
@pytest.mark.parametrize("kind", STORED)
def test_requested(kind, dtype):
    raw, exact = random_matrix(kind, 3)
    packed = pack(kernel_format(kind, dtype), kind, ROWS, exact.shape[1], raw)
    found = packed.rows()
    assert packed.finite
    if dtype == "float32":
        assert same(found, exact)
    elif dtype == "bfloat16":
        assert (np.abs(found - exact) <= np.abs(exact) / 256).all()
    elif dtype in ("int8", "w8a16", "w8a8"):
        assert (np.abs(found - exact) <= np.abs(exact).max(1, keepdims=True) / 127 * 0.501).all()
    else:
        groups = exact.reshape(ROWS, -1, 32)
        step = np.repeat(np.ptp(groups, axis=2) / 15, 32, axis=1)
        assert (np.abs(found - exact) <= step * 0.501 + 4.6 * packed.row_scale()[:, None]).all()


def test_int8_goes_by_kind_of_model():
    """Eight bits of activations for what reads a text once, fifteen for what writes; asked for by name, either way."""
    for kind in ("F32", "BF16", "Q4_K", "C8"):
        assert kernel_format(kind, "int8") == kernel_format(kind, "int8", causal=True) == "Q8C"
        assert kernel_format(kind, "int8", causal=False) == "Q8A"
        for causal in (True, False):
            assert kernel_format(kind, "w8a16", causal) == "Q8C" and kernel_format(kind, "w8a8", causal) == "Q8A"
            assert kernel_format(kind, "auto", causal) == kernel_format(kind, "auto")
    assert READS["Q8C"] == "int15" and READS["Q8A"] == "int8" and ARITHMETIC["Q8C"] == ARITHMETIC["Q8A"] == "int8"


def test_kinds_that_read_one_input_agree():
    """Fifteen and eight bits of activations cannot both be read by q, k and v, nor by gate and up."""
    formats = {f"layers.0.{name}.weight": "Q8C" for name in ("attention.q", "attention.k", "attention.v", "mlp.up")}
    formats |= {"layers.0.mlp.gate.weight": "Q8C", "layers.0.mlp.down.weight": "Q8A"}
    same_kinds = dict(formats)
    agree(same_kinds)
    assert same_kinds == formats
    formats["layers.0.attention.k.weight"] = "Q8A"
    agree(formats)
    assert [name for name, format in formats.items() if format == "F32"] == [
        f"layers.0.attention.{name}.weight" for name in "qkv"]


@pytest.mark.parametrize("kind", sorted({*STORED} - {"MXFP4", "NVFP4"}))  # whose scales are always numbers
@pytest.mark.parametrize("number", [np.inf, np.nan])
def test_a_scale_that_is_no_number_is_reported(kind, number):
    raw, _ = random_matrix(kind, 4)
    bad = sound_blocks(kind, 1, np.random.default_rng(5), number)
    raw[-bad.size :] = bad
    for dtype in DTYPES:
        assert not pack(kernel_format(kind, dtype), kind, ROWS, 768, raw).finite, dtype


def test_a_scale_too_great_for_half_precision_is_reported():
    """Its levels go to Q8 with a half-precision scale: 60000 times 31 has none."""
    raw, _ = random_matrix("IQ4_XS", 6)
    raw[:2] = np.array([60_000], "<f2").view(np.uint8)
    raw[2:8] = 0xFF
    assert not pack("Q8", "IQ4_XS", ROWS, 768, raw).finite


def test_the_chosen_layout_is_the_smallest_that_keeps_the_levels():
    grouped = [kind for kind in STORED if _native.testing.stored_type(kind)["grouped"]]
    for kind in grouped:
        raw, exact = random_matrix(kind, 7)
        fits = []
        for layout in ("Q4", "Q5", "Q4H", "Q5M", "Q6", "Q8"):
            facts = _native.testing.stored_type(kind)
            if layout == "Q4" and (facts["greatest"] - facts["least"] > 15 or facts["span"] < 32):
                continue  # it would be made anew from floats
            try:
                fits.append((bits_a_weight(layout), layout, pack(layout, kind, ROWS, exact.shape[1], raw)))
            except ValueError:
                continue
        chosen = kernel_format(kind, "auto")
        assert chosen == (min(fits, key=lambda fit: fit[0])[1] if fits else "Q16"), fits
        assert has_layout(kind) == bool(fits)


def test_rows_that_are_no_whole_blocks_are_refused():
    for kind, (values, size) in BLOCKS.items():
        if values > 1:
            raw, k = np.zeros(size, np.uint8), values - 16
            out = np.zeros(_native.matrix_bytes(FORMATS.index("F32"), 1, k), np.uint8)
            with pytest.raises(ValueError, match=f"{kind}.*multiple of {values}"):
                _native.pack(_native.Pool(1), FORMATS.index("F32"), 1, k, kind, raw, None, out)


def test_the_table_of_the_docs_is_what_the_code_says():
    spec = importlib.util.spec_from_file_location("weight_formats", DOCS / "weight_formats.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    text = (DOCS / "weight-formats.md").read_text("utf-8")
    assert script.page(text) == text, "run python docs/weight_formats.py"
    for kind in BLOCKS:
        assert f"\n| {kind} |" in text
