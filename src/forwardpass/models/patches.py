"""Images as rows: squares of pixels, and what is added to each row for its place in the image.

An image is cut into squares of `size` pixels a side, line by line; what is left over on the right and at the bottom is
in none (as with a convolution without padding). Example: 30 x 44 pixels and squares of 14 are 2 lines of 3 patches.

Positions that were learned for one grid of patches serve other grids by cubic interpolation (Keys 1981) between the
centres of patches, each half a patch from its border. "bicubic" has Keys's a = -0.75 and looks at four neighbours in
each direction, as torch.nn.functional.interpolate does; "antialiased" has a = -0.5 and looks further where the grid
becomes coarser, as it does with antialias=True. Both are products with two small matrices.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np

from forwardpass.models.spec import PatchesSpec

GRIDS = 32
"""Grids of patches whose places are kept, at most; those of the newest images stay."""
MAX_KEPT = 2**24
"""Numbers that kept places may have together."""


def patch_rows(pixels: np.ndarray, size: int, out: np.ndarray | None = None) -> np.ndarray:
    """float32 [height, width, channels] -> float32 [patches, size * size * channels], columns [y][x][channel].

    out: where to write them.
    """
    lines, columns, channels = pixels.shape[0] // size, pixels.shape[1] // size, pixels.shape[2]
    cut = pixels[: lines * size, : columns * size].reshape(lines, size, columns, size, channels)
    if out is None:
        out = np.empty((lines * columns, size * size * channels), np.float32)
    out.reshape(lines, columns, size, size, channels)[...] = cut.transpose(0, 2, 1, 3, 4)
    return out


def cubic(distance: np.ndarray, a: float) -> np.ndarray:
    """Keys's kernel: the weight of a neighbour at this distance, 0 from a distance of 2 on."""
    x = np.abs(distance)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return np.where(x <= 1, near, np.where(x < 2, far, 0))


def resampling(old: int, new: int, antialiased: bool = False) -> np.ndarray:
    """float64 [new, old]: what each of `old` values in a line weighs in each of `new`.

    Without antialiasing a neighbour beyond the border counts as the value at the border; with it, it is left out and
    the others' weights grow to a sum of 1. Example: resampling(2, 2) is the identity.
    """
    scale = old / new
    weights = np.zeros((new, old))
    if not antialiased:
        centres = np.float32(scale) * (np.arange(new, dtype=np.float32) + np.float32(0.5)) - np.float32(0.5)
        first = np.floor(centres)
        for k in range(-1, 3):
            places = np.clip(first + k, 0, old - 1).astype(int)
            np.add.at(weights, (np.arange(new), places), cubic(centres - first - k, -0.75))
        return weights
    stretch, reach = max(scale, 1.0), 2 * max(scale, 1.0)
    for i in range(new):
        centre = scale * (i + 0.5)
        low, high = max(int(centre - reach + 0.5), 0), min(int(centre + reach + 0.5), old)
        some = cubic((np.arange(low, high) - centre + 0.5) / stretch, -0.5)
        weights[i, low:high] = some / some.sum()
    return weights


def resized(table: np.ndarray, grid: tuple[int, int], new: tuple[int, int], antialiased: bool = False) -> np.ndarray:
    """float32 [lines * columns of grid, width] -> float32 [lines * columns of new, width]."""
    down = resampling(grid[0], new[0], antialiased)
    across = resampling(grid[1], new[1], antialiased)
    values = table.reshape(*grid, -1).astype(np.float64)
    values = np.tensordot(down, values, (1, 0))  # [new lines, columns, width]
    values = np.tensordot(across, values, (1, 1)).transpose(1, 0, 2)
    return values.reshape(new[0] * new[1], -1).astype(np.float32)


class Places:
    """What is added to the rows of images, float32 [rows, hidden] for each grid of patches: to a patch its position and
    the bias of the patches' matrix, to a row before them its token and, where it has one, its position.

    table: learned positions, float32 [classes + patches, hidden], or None;  tokens: float32 [classes, hidden];
    registers: float32 [registers, hidden];  bias: float32 [hidden] or None.
    """

    def __init__(self, spec: PatchesSpec, hidden: int, table: np.ndarray | None, tokens: np.ndarray | None,
                 registers: np.ndarray | None, bias: np.ndarray | None):
        self.spec = spec
        first = np.zeros((spec.first, hidden), np.float32)
        if spec.classes:
            first[: spec.classes] = tokens
        if spec.registers:
            first[spec.classes :] = registers
        if table is not None:
            first[: spec.classes] += table[: spec.classes]
        self._first = first
        self._table = None if table is None else table[spec.classes :]
        self._bias = np.zeros(hidden, np.float32) if bias is None else bias
        self._kept: OrderedDict[tuple[int, int], np.ndarray] = OrderedDict()

    def of(self, height: int, width: int) -> np.ndarray:
        """Of an image of so many pixels; not to be written to."""
        grid = self.spec.grid(height, width)
        found = self._kept.pop(grid, None)
        if found is None:
            found = np.concatenate([self._first, self._positions(grid) + self._bias])
        self._kept[grid] = found
        while len(self._kept) > 1 and (len(self._kept) > GRIDS or sum(one.size for one in self._kept.values())
                                       > MAX_KEPT):
            self._kept.popitem(last=False)
        return found

    def _positions(self, grid: tuple[int, int]) -> np.ndarray:
        """float32 [patches, hidden]"""
        own = self.spec.grid(*self.spec.image)
        if self._table is None:
            return np.zeros((grid[0] * grid[1], self._bias.size), np.float32)
        if grid == own:
            return self._table
        return resized(self._table, own, grid, self.spec.resize == "antialiased")


def places_of(spec: PatchesSpec, hidden: int, vectors, bias: np.ndarray | None) -> Places:
    """Places out of a model's float32 arrays by target."""
    classes = [vectors[name] for name in class_targets(spec)]
    return Places(spec, hidden, vectors.get("embed.places.weight"), np.stack(classes) if classes else None,
                  vectors.get("embed.registers.weight"), bias)


def class_targets(spec: PatchesSpec) -> Sequence[str]:
    """Targets of the tokens before the patches that have positions: "embed.class.0.weight", ..."""
    return [f"embed.class.{i}.weight" for i in range(spec.classes)]
