"""Programs of one operation on images, run on lists of pictures of any sizes, and what NumPy says to the same."""

from __future__ import annotations

import numpy as np

from forwardpass.backends.native import NativeBackend

SIZES = [(5, 7), (1, 1), (16, 13), (2, 9), (6, 4)]
"""Heights and widths at level 0."""


def at_level(size: tuple[int, int], level: int) -> tuple[int, int]:
    return tuple(-(-one // 2**level) for one in size)


def pictures(sizes, channels: int, level: int = 0, seed: int = 0) -> list[np.ndarray]:
    """float32 [h, w, channels] of each size, its pixels of very different strength."""
    rng = np.random.default_rng(seed)
    return [(rng.standard_normal((*at_level(size, level), channels))
             * np.exp(rng.standard_normal((*at_level(size, level), 1)))).astype(np.float32) for size in sizes]


class Images:
    """record(program, source, out) records what is tested. widths: channels of source and out; levels: theirs."""

    def __init__(self, record, widths, levels=(0, 0), threads=1, isa=None):
        self.program, self.levels = NativeBackend(threads, isa).program(), levels
        self.source, self.out = (self.program.buffer(*one) for one in zip(widths, levels, strict=True))
        self.out_width = widths[1]
        record(self.program, self.source, self.out)

    def run(self, sizes, images, out=None):
        """Outputs [h, w, width] of images of these sizes, all in one run. out: what lies there before."""
        rows = np.concatenate([image.reshape(-1, image.shape[2]) for image in images])
        shapes = [at_level(size, self.levels[1]) for size in sizes]
        ends = np.cumsum([h * w for h, w in shapes])
        if out is None:
            result = np.full((ends[-1], self.out_width), np.nan, np.float32)
        else:
            result = np.concatenate([one.reshape(-1, self.out_width) for one in out])
        self.program.run(sum(h * w for h, w in sizes), sizes=np.array(sizes, np.int32),
                         bound=[(self.source, rows), (self.out, result)])
        return [part.reshape(h, w, -1) for part, (h, w) in zip(np.split(result, ends[:-1]), shapes, strict=True)]
