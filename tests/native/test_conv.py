"""Convolutions: products of the pixels under a window, whatever the size of the image and whoever is beside it."""

import numpy as np
import pytest

from forwardpass import _native
from forwardpass.backends.native import FORMATS, NativeBackend
from image_tools import SIZES, Images, at_level, pictures
from kernel_tools import ISAS, matmul, pack_floats, random_packed, same

KINDS = {
    "plain": {"size": 3},
    "point": {"size": 1},
    "wide": {"size": 5},
    "halved": {"size": 3, "stride": 2},
    "halved wide": {"size": 7, "stride": 2},
    "halved at the end": {"size": 3, "stride": 2, "padding": "end"},
    "grown": {"size": 3, "upsample": True},
}


def levels(kind, low=0):
    """Of source and out, the lower one `low`."""
    return low + (kind.get("upsample", False)), low + (kind.get("stride", 1) == 2)


def rows_of(image, size, kind):
    """float32 [h * w, size * size * channels]: what the window sees from each pixel of the output of an image, whose
    size is that of the lower level."""
    n, stride, (h, w) = kind["size"], kind.get("stride", 1), size
    if kind.get("upsample"):
        image = image.repeat(2, axis=0).repeat(2, axis=1)[:h, :w]
    before = 0 if kind.get("padding") == "end" else n // 2
    padded = np.pad(image, ((before, n + 1), (before, n + 1), (0, 0)))
    if stride == 2:
        h, w = -(-h // 2), -(-w // 2)
    return np.array([padded[y * stride : y * stride + n, x * stride : x * stride + n].reshape(-1)
                     for y in range(h) for x in range(w)])


def conv(kind, matrix, bias=None, **options):
    """A recorded convolution with a packed matrix."""
    low = options.pop("low", 0)
    channels = matrix.k // kind["size"] ** 2
    more = {name: options.pop(name) for name in ("mode", "activation") if name in options}
    return Images(lambda program, source, out: program.conv(source, out, (matrix.matrix(), bias), label="conv",
                                                            **kind, **more),
                  (channels, matrix.n), levels(kind, low), **options)


def packed(format, n, k, seed=1):
    return random_packed(format, n, k, np.random.default_rng(seed))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_those_of_a_product(isa, kind):
    kind = KINDS[kind]
    for format, channels, n in (("Q8A", 64, 48), ("Q8A", 5, 7), ("F32", 3, 20), ("BF16", 64, 17)):
        w = packed(format, n, kind["size"] ** 2 * channels)
        bias = np.linspace(-1, 1, n, dtype=np.float32)
        images = pictures(SIZES, channels, levels(kind)[0])
        outs = conv(kind, w, bias, isa=isa).run(SIZES, images)
        for size, image, out in zip(SIZES, images, outs, strict=True):
            expected = matmul("scalar", w, rows_of(image, size, kind), bias=bias)
            assert same(out.reshape(-1, n), expected), (format, size)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("format", FORMATS)
def test_every_format(isa, format):
    for channels in (64, 128, 20, 1):  # 64 columns of a pixel at once, and less
        k = 9 * channels if format in ("Q8C", "Q8A", "F32", "F16", "BF16", "Q16", "Q4") or channels % 32 == 0 else 0
        if not k:
            continue
        w, sizes = packed(format, 21, k), [(7, 6), (3, 4)]
        images = pictures(sizes, channels)
        outs = conv(KINDS["plain"], w, isa=isa).run(sizes, images)
        for size, image, out in zip(sizes, images, outs, strict=True):
            expected = matmul("scalar", w, rows_of(image, size, KINDS["plain"]))
            assert same(out.reshape(-1, 21), expected), (channels, size)


@pytest.mark.parametrize("kind", KINDS)
def test_against_torch_and_float64(kind):
    torch = pytest.importorskip("torch")
    kind = KINDS[kind]
    channels, n, size = 12, 10, (14, 9) if kind.get("padding") != "end" else (14, 8)
    values = np.random.default_rng(3).standard_normal((n, kind["size"], kind["size"], channels)).astype(np.float32)
    (image,) = pictures([size], channels, levels(kind)[0])
    (out,) = conv(kind, pack_floats("F32", values.reshape(n, -1))).run([size], [image])

    x = torch.from_numpy(image).permute(2, 0, 1)[None].double()
    if kind.get("upsample"):
        x = torch.nn.functional.interpolate(x, size=size, mode="nearest")
    if kind.get("padding") == "end":
        x = torch.nn.functional.pad(x, (0, 1, 0, 1))
    weight = torch.from_numpy(values).permute(0, 3, 1, 2).double()
    exact = torch.nn.functional.conv2d(x, weight, stride=kind.get("stride", 1),
                                       padding=0 if kind.get("padding") == "end" else kind["size"] // 2)[0].numpy()
    assert np.abs(out - exact.transpose(1, 2, 0)).max() < 3e-6 * np.abs(exact).max()
    wide = rows_of(image, size, kind).astype(np.float64) @ values.reshape(n, -1).astype(np.float64).T
    assert np.abs(out.reshape(-1, n) - wide).max() < 3e-6 * np.abs(wide).max()


@pytest.mark.parametrize("kind", ["plain", "halved", "grown"])
@pytest.mark.parametrize("format", ["Q8A", "F32", "Q4"])
def test_neither_neighbours_nor_threads_change_a_bit(format, kind):
    """Images large enough that threads take some rows at a time, and that all together make them in several parts."""
    kind, sizes = KINDS[kind], [(3, 5), (33, 26), (1, 40), (17, 18)]
    w = packed(format, 40, 9 * 64)
    images = pictures(sizes, 64, levels(kind)[0])
    alone = [conv(kind, w).run([size], [image])[0] for size, image in zip(sizes, images, strict=True)]
    for threads in (1, 2, 3):
        recorded = conv(kind, w, threads=threads)
        for order in (range(4), (3, 1, 0, 2), (0, 2)):
            outs = recorded.run([sizes[i] for i in order], [images[i] for i in order])
            assert all(same(out, alone[i]) for i, out in zip(order, outs, strict=True)), (threads, order)


def test_rows_that_threads_make_together_in_several_parts():
    kind, size = {"size": 7}, (27, 25)
    w = packed("Q4", 16, 49 * 64)  # 675 rows of more than 7 KB
    (image,) = pictures([size], 64)
    expected = matmul("scalar", w, rows_of(image, size, kind))
    for threads in (1, 2):
        (out,) = conv(kind, w, threads=threads).run([size], [image])
        assert same(out.reshape(-1, 16), expected)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("activation", [None, "silu", "gelu_erf"])
def test_the_end_of_a_convolution(isa, activation):
    w, bias, sizes = packed("Q8A", 24, 9 * 64), np.linspace(-2, 2, 24, dtype=np.float32), SIZES[:3]
    images, before = pictures(sizes, 64), pictures(sizes, 24, seed=7)
    for mode in ("store", "add"):
        recorded = conv(KINDS["plain"], w, bias, mode=mode, activation=activation, isa=isa, threads=2)
        outs = recorded.run(sizes, images, before)
        for size, image, out, there in zip(sizes, images, outs, before, strict=True):
            expected = matmul("scalar", w, rows_of(image, size, KINDS["plain"]), mode=mode, act=activation or "none",
                              bias=bias, out=there.reshape(-1, 24))
            assert same(out.reshape(-1, 24), expected), size


@pytest.mark.parametrize("kind", ["plain", "halved", "halved at the end", "grown"])
def test_deeper_levels_of_odd_images(kind):
    """Sizes that are odd at some level on the way down: each level rounds up."""
    kind, sizes = KINDS[kind], [(21, 13), (4, 9), (1, 2)]
    w = packed("F32", 6, 9 * 4)
    images = pictures(sizes, 4, levels(kind, 2)[0])
    outs = conv(kind, w, low=2).run(sizes, images)
    for size, image, out in zip(sizes, images, outs, strict=True):
        expected = matmul("scalar", w, rows_of(image, at_level(size, 2), kind))
        assert same(out.reshape(-1, 6), expected), size


def test_strange_pixels_stay_where_a_window_sees_them():
    """NaN and infinity reach the pixels around them and nobody else: no other row, no other image."""
    w, sizes = packed("Q8A", 8, 9 * 64), [(9, 9), (4, 4)]
    images = pictures(sizes, 64)
    clean = conv(KINDS["plain"], w).run(sizes, images)
    for value in (np.nan, np.inf):
        images[0][4, 4, 10] = value
        for isa in ISAS:
            outs = conv(KINDS["plain"], w, isa=isa).run(sizes, images)
            changed = np.array([[not same(a, b) for a, b in zip(*rows, strict=True)]
                                for rows in zip(outs[0], clean[0], strict=True)])
            assert same(outs[1], clean[1]) and changed.sum() <= 9 and not np.delete(changed, (3, 4, 5), 0).any()
            assert same(outs[0], conv(KINDS["plain"], w, isa="scalar").run(sizes, images)[0])


@pytest.mark.parametrize("change, words", [
    ({"size": 2}, "window"), ({"size": 9}, "window"), ({"size": 0}, "window"), ({"size": -3}, "window"),
    ({"stride": 3}, "stride"), ({"stride": 0}, "stride"), ({"size": 5}, "shape"),
    ({"stride": 2}, "level"), ({"upsample": True}, "level"), ({"stride": 2, "upsample": True}, "grows"),
    ({"padding": "end"}, "padding"),
])
def test_what_does_not_fit_is_refused(change, words):
    with pytest.raises(ValueError, match=words):
        program = NativeBackend(1).program()
        arguments = {"size": 3, **change}
        program.conv(program.buffer(8), program.buffer(5), (packed("F32", 5, 72).matrix(), None), label="conv",
                     **arguments)


def test_buffers_that_hold_no_images_are_refused():
    w = packed("F32", 8, 72).matrix()
    for source, out in ((-1, -1), (-2, -2), (0, -1), (1, 0), (0, 1)):
        program = NativeBackend(1).program()
        with pytest.raises(ValueError, match=r"level|images"):
            program.conv(program.buffer(8, source), program.buffer(8, out), (w, None), size=3, label="conv")
    program = NativeBackend(1).program()
    one = program.buffer(8)
    with pytest.raises(ValueError, match="in place"):
        program.conv(one, one, (w, None), size=3, label="conv")
    with pytest.raises(ValueError, match="length"):
        program.conv(one, program.buffer(8), (w, np.zeros(7, np.float32)), size=3, label="conv")
    with pytest.raises(IndexError):
        program.conv(one, 17, (w, None), size=3, label="conv")


def test_a_run_without_sizes_is_refused():
    recorded = conv(KINDS["plain"], packed("F32", 8, 72))
    x, y = np.zeros((6, 8), np.float32), np.zeros((6, 8), np.float32)
    bound = [(recorded.source, x), (recorded.out, y)]
    starts = np.array([0, 6], np.int32)
    for more in ({}, {"starts": starts}, {"sizes": np.array([[2, 2]], np.int32)}, {"sizes": np.array([[6]], np.int32)},
                 {"sizes": np.array([[-2, -3]], np.int32)}, {"sizes": np.zeros((0, 2), np.int32)}):
        with pytest.raises((ValueError, TypeError)):
            recorded.program.run(6, bound=bound, **more)
    recorded.program.run(6, bound=bound, sizes=np.array([[2, 3]], np.int32))


def test_a_convolution_is_timed():
    recorded = conv(KINDS["plain"], packed("Q8A", 8, 9 * 64), isa=_native.isas()[0])
    recorded.program._backend.timed = True
    recorded.run([(20, 20)], pictures([(20, 20)], 64))
    assert recorded.program.timings()["conv"] > 0
