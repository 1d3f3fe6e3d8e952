"""Images as rows: squares of pixels against a convolution, positions on other grids against torch's interpolation."""

from __future__ import annotations

import numpy as np
import pytest

from forwardpass.models import patches
from forwardpass.models.spec import PatchesSpec

RNG = np.random.default_rng(1)


def test_squares_of_pixels():
    """By hand: line by line, each [y][x][channel]; the rest on the right and at the bottom is in none."""
    pixels = np.arange(5 * 5 * 2, dtype=np.float32).reshape(5, 5, 2)
    rows = patches.patch_rows(pixels, 2)
    assert rows.shape == (4, 8)
    assert rows[0].tolist() == [0, 1, 2, 3, 10, 11, 12, 13]
    assert rows[1].tolist() == [4, 5, 6, 7, 14, 15, 16, 17]
    assert rows[2].tolist() == [20, 21, 22, 23, 30, 31, 32, 33]


@pytest.mark.parametrize(("size", "height", "width"), [(14, 30, 44), (1, 3, 2), (8, 8, 8)])
def test_products_with_squares_are_a_convolution(size, height, width):
    import torch

    pixels = RNG.standard_normal((height, width, 3)).astype(np.float32)
    kernel = RNG.standard_normal((5, 3, size, size)).astype(np.float32)
    theirs = torch.nn.functional.conv2d(torch.tensor(pixels).permute(2, 0, 1)[None], torch.tensor(kernel), stride=size)
    ours = patches.patch_rows(pixels, size) @ kernel.transpose(0, 2, 3, 1).reshape(5, -1).T
    assert np.allclose(ours, theirs.flatten(2)[0].T.numpy(), atol=1e-4)


@pytest.mark.parametrize("antialiased", [False, True])
@pytest.mark.parametrize(("old", "new"), [((7, 7), (5, 9)), ((37, 37), (16, 16)), ((4, 4), (4, 8)), ((3, 3), (11, 2)),
                                          ((5, 5), (1, 1)), ((2, 6), (6, 2))])
def test_other_grids(old, new, antialiased):
    import torch

    table = RNG.standard_normal((old[0] * old[1], 6)).astype(np.float32)
    theirs = torch.nn.functional.interpolate(torch.tensor(table).reshape(1, *old, 6).permute(0, 3, 1, 2), size=new,
                                             mode="bicubic", align_corners=False, antialias=antialiased)
    ours = patches.resized(table, old, new, antialiased)
    assert ours.dtype == np.float32
    assert np.abs(ours - theirs.permute(0, 2, 3, 1).reshape(-1, 6).numpy()).max() < 1e-5


def test_weights_of_neighbours():
    """By hand: halfway between two values, with a = -0.75, each counts 0.59375 and the next ones -0.09375."""
    assert patches.cubic(np.array([0.0, 0.5, 1.0, 1.5, 2.0, -0.5]), -0.75).tolist() == [1, 0.59375, 0, -0.09375, 0,
                                                                                        0.59375]
    assert np.array_equal(patches.resampling(3, 3), np.eye(3))
    for antialiased in (False, True):
        for old, new in ((5, 3), (3, 5), (1, 4), (9, 1)):
            assert np.allclose(patches.resampling(old, new, antialiased).sum(1), 1)


def places(**changes):
    spec = PatchesSpec(4, 3, (8, 8), **dict(classes=2, registers=1, resize="bicubic") | changes)
    table = RNG.standard_normal((spec.classes + 4, 6)).astype(np.float32)
    tokens, registers = (RNG.standard_normal((n, 6)).astype(np.float32) for n in (2, 1))
    bias = RNG.standard_normal(6).astype(np.float32)
    return patches.Places(spec, 6, table, tokens, registers, bias), table, tokens, registers, bias


def test_what_is_added():
    """Class rows have their token and position, registers their token alone, patches their position and the bias."""
    made, table, tokens, registers, bias = places()
    found = made.of(9, 10)  # 2 x 2 patches, as trained
    assert np.array_equal(found, np.concatenate([tokens + table[:2], registers, table[2:] + bias]))
    other = made.of(4, 12)
    assert other.shape == (3 + 3, 6) and np.array_equal(other[:3], found[:3])
    assert np.array_equal(other[3:], patches.resized(table[2:], (2, 2), (1, 3)) + bias)
    assert made.of(9, 10) is found, "places of a grid are kept"


def test_few_grids_are_kept():
    made = places()[0]
    for n in range(1, 2 * patches.GRIDS):
        made.of(4, 4 * n)
    assert len(made._kept) == patches.GRIDS and (1, 2 * patches.GRIDS - 1) in made._kept
    assert np.array_equal(made.of(4, 4), places_again(made, 4, 4))


def places_again(made, height, width):
    made._kept.clear()
    return made.of(height, width)


def test_rows_of_an_image():
    spec = PatchesSpec(14, 3, (518, 518), classes=1, registers=4)
    assert spec.rows(518, 518) == 5 + 37 * 37 and spec.rows(30, 44) == 5 + 6 and spec.grid(27, 14) == (1, 1)
