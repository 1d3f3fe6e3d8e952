"""Rows of every stored type as the packers read them, against the definition in numpy."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forwardpass import _native
from forwardpass.weights import iq_tables
from forwardpass.weights.dequantize import dequantize
from forwardpass.weights.source import BLOCKS

# C8 has the bytes of G8 and one scale for a whole row, which random bytes have not.
GROUPED = [kind for kind in BLOCKS if kind not in ("F32", "F16", "BF16", "W16", "C8")]


def floats(kind: str, raw: np.ndarray) -> np.ndarray:
    out = np.empty(raw.size // BLOCKS[kind][1] * BLOCKS[kind][0], np.float32)
    _native.testing.stored_floats(kind, raw, out)
    return out


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    """Every bit, but for what kind of not-a-number it is."""
    return np.array_equal(np.where(np.isnan(a), np.nan, a).view("u4"), np.where(np.isnan(b), np.nan, b).view("u4"))


def random_row(kind: str, blocks: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, blocks * BLOCKS[kind][1], dtype=np.uint8)


@pytest.mark.parametrize("kind", BLOCKS)
def test_floats_have_the_bits_of_the_definition(kind):
    raw = random_row(kind, 20_000 // BLOCKS[kind][1] * 10, 1)  # enough for every byte at every place
    expected = dequantize(kind, raw, (raw.size // BLOCKS[kind][1] * BLOCKS[kind][0],))
    assert same_bits(floats(kind, raw), expected)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(list(BLOCKS)), st.integers(1, 3), st.sampled_from([None, 0, 0x7F, 0x80, 0xFF]), st.data())
def test_any_bytes(kind, blocks, filler, data):
    size = blocks * BLOCKS[kind][1]
    raw = np.frombuffer(data.draw(st.binary(min_size=size, max_size=size)), np.uint8)
    if filler is not None:  # runs of one byte: scales of 0, infinity and not-a-number
        raw = np.where(raw < 128, raw, np.uint8(filler)).astype(np.uint8)
    with np.errstate(all="ignore"):
        assert same_bits(floats(kind, raw), dequantize(kind, raw, (blocks * BLOCKS[kind][0],)))


@pytest.mark.parametrize("kind", GROUPED)
def test_groups_are_the_same_numbers(kind):
    facts = _native.testing.stored_type(kind)
    assert (facts["values"], facts["bytes"]) == BLOCKS[kind] and facts["grouped"]
    raw = random_row(kind, 300, 2)
    q, d, m = _native.testing.stored_groups(kind, raw, 300 * facts["values"])
    with np.errstate(all="ignore"):
        values = np.repeat(d, 16) * q.astype(np.float32)
        values = values + np.repeat(m, 16) if facts["with_min"] else values
    assert same_bits(values, floats(kind, raw))
    assert (q.min(), q.max()) == (facts["least"], facts["greatest"])  # no level is missing, none beyond
    assert facts["with_min"] or not m.any()
    for scales in (d, m):  # all groups of a span share them, and no longer span would do
        spans = scales.view("u4").reshape(-1, facts["span"] // 16)
        assert (spans == spans[:, :1]).all()
    blocks = d.reshape(300, -1)
    assert facts["span"] == facts["values"] or (blocks[:, :1] != blocks[:, facts["span"] // 16 :]).any()


def test_floats_have_no_groups_and_rows_have_their_size():
    assert not _native.testing.stored_type("F16")["grouped"]
    with pytest.raises(ValueError, match="Q9_9"):
        _native.testing.stored_type("Q9_9")
    with pytest.raises(ValueError, match="no groups"):
        _native.testing.stored_groups("F16", np.zeros(64, np.uint8), 32)
    for kind, size, k in [("Q4_K", 144, 255), ("Q4_K", 143, 256), ("Q4_K", 0, 0), ("Q4_0", 18, -32), ("F32", 8, 1)]:
        with pytest.raises(ValueError, match="stored row"):
            _native.testing.stored_groups(kind, np.zeros(size, np.uint8), k)


def test_the_script_writes_the_tables_that_python_uses(tmp_path):
    """CMake runs it with nothing but the standard library."""
    path = tmp_path / "iq_tables.inl"
    subprocess.run([sys.executable, "-I", "-S", iq_tables.__file__, str(path)], check=True)
    found = {}
    for line in path.read_text().splitlines():
        name, values = line.removeprefix("constexpr int8_t ").removesuffix("};").split("[", 1)
        found[name] = list(map(int, values.split("{")[1].split(",")))
    assert found.pop("kIQ4Levels") == list(iq_tables.IQ4_LEVELS)
    assert found.pop("kFp4Levels") == list(iq_tables.FP4_LEVELS)
    assert found == {f"kGrid_{name}": np.frombuffer(iq_tables.vectors(grid), np.int8).tolist()
                     for name, grid in iq_tables.GRIDS.items()}
