"""Group norms: one order of summation, whatever the image's neighbours, threads and instruction set."""

import numpy as np
import pytest

from forwardpass.backends.native import NativeBackend
from forwardpass.backends.protocol import NormWeights
from image_tools import SIZES, Images, pictures
from kernel_tools import ISAS, same

SHAPES = [(32, 32), (48, 4), (320, 32), (20, 5), (7, 1), (130, 2), (1, 1)]
"""Channels and groups."""


def weights(channels, eps=1e-5):
    rng = np.random.default_rng(channels)
    weight, bias = (rng.standard_normal(channels).astype(np.float32) for _ in range(2))
    return NormWeights("layer", eps, weight, bias)


def group_norm(channels, groups, norm=None, activation=None, **options):
    norm = norm or weights(channels)
    return Images(lambda program, source, out: program.group_norm(source, out, groups=groups, norm=norm,
                                                                  activation=activation, label="norm"),
                  (channels, channels), **options)


def exact(image, groups, norm):
    """float64 [h, w, channels]."""
    x = image.astype(np.float64).reshape(-1, groups, image.shape[2] // groups)
    mean = x.mean((0, 2), keepdims=True)
    y = (x - mean) / np.sqrt(x.var((0, 2), keepdims=True) + norm.eps)
    y = y.reshape(image.shape)
    y = y if norm.weight is None else y * norm.weight
    return y if norm.bias is None else y + norm.bias


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("channels, groups", SHAPES)
def test_group_norm(isa, channels, groups):
    sizes, norm = [*SIZES, (19, 21)], weights(channels)
    images = pictures(sizes, channels)
    outs = group_norm(channels, groups, norm, isa=isa).run(sizes, images)
    scalar = group_norm(channels, groups, norm, isa="scalar").run(sizes, images)
    for size, image, out, other in zip(sizes, images, outs, scalar, strict=True):
        expected = exact(image, groups, norm)
        # A product x * scale is rounded once, however near to the mean x is.
        spread = image.reshape(-1, groups, channels // groups).std((0, 2)).min()
        rounding = np.abs(image).max() * np.abs(norm.weight).max() / np.sqrt(spread**2 + norm.eps)
        assert np.abs(out - expected).max() < 2.5e-7 * (rounding + np.abs(expected).max()), size
        assert same(out, other), size


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_an_activation_follows(isa, activation):
    torch = pytest.importorskip("torch")
    norm, sizes = weights(48), [(9, 14), (3, 3)]
    images = pictures(sizes, 48)
    outs = group_norm(48, 4, norm, activation, isa=isa).run(sizes, images)
    scalar = group_norm(48, 4, norm, activation, isa="scalar").run(sizes, images)
    for image, out, other in zip(images, outs, scalar, strict=True):
        x = torch.from_numpy(image).permute(2, 0, 1)[None].double()
        y = torch.nn.functional.group_norm(x, 4, torch.from_numpy(norm.weight).double(),
                                           torch.from_numpy(norm.bias).double(), norm.eps)
        y = torch.nn.functional.silu(y) if activation == "silu" else torch.nn.functional.gelu(y, approximate="tanh")
        assert np.abs(out - y[0].permute(1, 2, 0).numpy()).max() < 1e-5
        assert same(out, other)


@pytest.mark.parametrize("channels, groups", [(64, 8), (20, 5)])
def test_neither_neighbours_nor_threads_change_a_bit(channels, groups):
    sizes = [(33, 30), (1, 1), (16, 16), (2, 128), (20, 1)]
    images = pictures(sizes, channels)
    alone = [group_norm(channels, groups).run([size], [image])[0] for size, image in zip(sizes, images, strict=True)]
    for threads in (1, 2, 3):
        recorded = group_norm(channels, groups, threads=threads)
        for order in (range(5), (4, 2, 0, 3, 1), (1, 3)):
            outs = recorded.run([sizes[i] for i in order], [images[i] for i in order])
            assert all(same(out, alone[i]) for i, out in zip(order, outs, strict=True)), (threads, order)


@pytest.mark.parametrize("isa", ISAS)
def test_a_mean_far_from_zero_costs_no_digits(isa):
    """Differences from a thousand of the size of one: float32 sums of squares would know them to a tenth at best."""
    (image,) = pictures([(40, 33)], 32)
    image = np.round(image * 64) / 64 + np.float32(1000)
    norm = NormWeights("layer", 1e-6, None, None)
    (out,) = group_norm(32, 4, norm, isa=isa).run([(40, 33)], [image])
    assert np.abs(out - exact(image, 4, norm)).max() < 1e-3


def test_an_image_of_one_value():
    recorded = group_norm(16, 4, NormWeights("layer", 1e-5, None, np.arange(16, dtype=np.float32)))
    (out,) = recorded.run([(5, 6)], [np.full((5, 6, 16), 3.7, np.float32)])
    assert np.abs(out - np.arange(16)).max() < 1e-4


@pytest.mark.parametrize("isa", ISAS)
def test_strange_pixels_stay_in_their_image_and_group(isa):
    sizes, images = [(4, 5), (6, 6), (3, 3)], pictures([(4, 5), (6, 6), (3, 3)], 32)
    clean = group_norm(32, 4).run(sizes, images)
    for value in (np.nan, np.inf):
        images[1][2, 2, 9] = value  # of the second group
        outs = group_norm(32, 4, isa=isa).run(sizes, images)
        assert same(outs[0], clean[0]) and same(outs[2], clean[2])
        assert same(outs[1][..., :8], clean[1][..., :8]) and same(outs[1][..., 16:], clean[1][..., 16:])
        assert np.isnan(outs[1][..., 8:16]).any()


def test_in_place_and_at_a_deeper_level():
    norm, size = weights(32), (9, 14)
    (image,) = pictures([size], 32, level=1)
    (expected,) = group_norm(32, 8, norm, "silu", levels=(1, 1)).run([size], [image])
    program = NativeBackend(2).program()
    only = program.buffer(32, 1)
    program.group_norm(only, only, groups=8, norm=norm, activation="silu", label="norm")
    rows = image.reshape(-1, 32).copy()
    program.run(9 * 14, sizes=np.array([size], np.int32), bound=[(only, rows)])
    assert same(rows.reshape(image.shape), expected)
    (alone,) = group_norm(32, 8, norm, "silu").run([(5, 7)], [image])  # the same picture at level 0
    assert same(alone, expected)


@pytest.mark.parametrize("arguments, words", [
    ((32, 32, 0, 0, 5), "groups"), ((32, 32, 0, 0, 0), "groups"), ((32, 32, 0, 0, -4), "groups"),
    ((32, 16, 0, 0, 4), "width"), ((32, 32, 0, 1, 4), "level"), ((32, 32, -1, -1, 4), "level"),
    ((32, 32, -2, -2, 4), "level"),
])
def test_what_does_not_fit_is_refused(arguments, words):
    width, out_width, space, out_space, groups = arguments
    program = NativeBackend(1).program()
    with pytest.raises(ValueError, match=words):
        program.group_norm(program.buffer(width, space), program.buffer(out_width, out_space), groups=groups,
                           norm=weights(width), label="norm")


def test_weights_of_another_length_are_refused():
    program = NativeBackend(1).program()
    with pytest.raises(ValueError, match="length"):
        program.group_norm(program.buffer(32), program.buffer(32), groups=4, norm=weights(16), label="norm")
