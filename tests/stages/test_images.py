"""Images of every kind become upright RGB, and then the pixel values of transformers' processors."""

from __future__ import annotations

import io
import os
import random
import struct
import subprocess
import sys
import threading
import warnings
import zlib

import numpy as np
import pytest
from PIL import Image, ImageSequence

from forwardpass.errors import ParameterError
from forwardpass.models.image_settings import Resize, read_image_settings
from forwardpass.stages import images
from forwardpass.stages.images import ImageProcessing, read_image, resized_size


def noise(height: int, width: int, channels: int = 3, seed: int = 7) -> np.ndarray:
    shape = (height, width, channels) if channels else (height, width)
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def saved(picture: Image.Image, kind: str = "PNG", **options) -> bytes:
    file = io.BytesIO()
    picture.save(file, kind, **options)
    return file.getvalue()


def pixels(*args, **kwargs) -> np.ndarray:
    picture = read_image(*args, **kwargs)
    assert picture.mode == "RGB"
    return np.asarray(picture)


# ---- every form and every mode


def test_all_forms_of_one_picture_are_the_same(tmp_path):
    values = noise(9, 14)
    picture = Image.fromarray(values)
    data = saved(picture)
    path = tmp_path / "blick auf den fjörd.png"
    path.write_bytes(data)
    with open(path, "rb") as file:
        forms = [str(path), path, data, bytearray(data), memoryview(data), io.BytesIO(data), file, picture, values]
        for form in forms:
            np.testing.assert_array_equal(pixels(form), values)
    # A pipe cannot be wound back.
    read, write = os.pipe()
    os.write(write, data)
    os.close(write)
    with open(read, "rb", buffering=0) as file:
        np.testing.assert_array_equal(pixels(file), values)


def test_a_picture_that_is_given_stays_as_it_was():
    exif = Image.Exif()
    exif[0x0112] = 6
    picture = Image.open(io.BytesIO(saved(Image.fromarray(noise(3, 5)), "JPEG", exif=exif)))
    assert read_image(picture).size == (3, 5)
    assert picture.size == (5, 3) and picture.getexif()[0x0112] == 6


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "TIFF", "WEBP"])
@pytest.mark.parametrize("turn", range(1, 9))
def test_exif_orientation(kind, turn):
    """The stored rows are those of an image that was turned; a quarter that is red tells where they went."""
    corner = {1: (0, 0), 2: (0, 1), 3: (1, 1), 4: (1, 0), 5: (0, 0), 6: (0, 1), 7: (1, 1), 8: (1, 0)}[turn]
    stored = np.zeros((16, 48, 3), np.uint8)
    stored[:8, :24] = 255, 0, 0  # the first row and column
    exif = Image.Exif()
    exif[0x0112] = turn
    options = {"quality": 95} if kind == "JPEG" else {"lossless": True} if kind == "WEBP" else {}
    found = pixels(saved(Image.fromarray(stored), kind, exif=exif, **options)).astype(int)
    assert found.shape[:2] == ((16, 48) if turn < 5 else (48, 16))
    halves = [np.array_split(half, 2, axis=1) for half in np.array_split(found[:, :, 0], 2, axis=0)]
    means = np.array([[part.mean() for part in row] for row in halves])
    assert np.unravel_index(means.argmax(), (2, 2)) == corner and means[corner] > 200 and np.sort(means.ravel())[2] < 40


def test_broken_exif_says_nothing():
    exif = Image.Exif()
    exif[0x0112] = 6
    data = bytearray(saved(Image.fromarray(noise(4, 6)), "JPEG", exif=exif))
    at = data.index(b"Exif\0\0")
    data[at + 6 : at + 14] = b"\xff" * 8
    assert pixels(bytes(data)).shape == (4, 6, 3)
    exif[0x0112] = 77
    assert pixels(saved(Image.fromarray(noise(4, 6)), "JPEG", exif=exif)).shape == (4, 6, 3)


def test_transparent_parts_lie_on_white_as_in_transformers():
    from transformers.image_transforms import convert_to_rgb

    rgba = noise(23, 31, 4)
    rgba[:4, :, 3], rgba[4:8, :, 3] = 0, 255
    two = Image.fromarray(noise(6, 8, 2), "LA")
    palette = Image.fromarray(noise(12, 12)).quantize(16)
    palette.info["transparency"] = 3
    alphas = Image.fromarray(noise(12, 12)).quantize(16)
    alphas.info["transparency"] = bytes(range(0, 256, 16))
    keyed = Image.fromarray(noise(5, 5))
    keyed.info["transparency"] = tuple(noise(5, 5)[2, 2].tolist())
    for picture in (Image.fromarray(rgba), two, palette, alphas, keyed, palette.convert("PA")):
        np.testing.assert_array_equal(pixels(picture), convert_to_rgb(picture, return_numpy=True))
    assert (pixels(rgba)[:4] == 255).all()
    np.testing.assert_array_equal(pixels(saved(alphas)), pixels(alphas))
    # A colour that was multiplied with its alpha: half black on white is grey.
    half = Image.new("RGBA", (2, 2), (0, 0, 0, 128)).convert("RGBa")
    np.testing.assert_array_equal(pixels(half), 127)


def test_grey_palette_and_cmyk():
    grey = noise(7, 5, 0)
    three = np.repeat(grey[:, :, None], 3, axis=2)
    for form in (grey, grey[:, :, None], Image.fromarray(grey), saved(Image.fromarray(grey), "BMP"),
                 saved(Image.fromarray(grey), "PPM")):
        np.testing.assert_array_equal(pixels(form), three)
    bits = Image.fromarray(grey).convert("1")
    np.testing.assert_array_equal(pixels(saved(bits, "TIFF"))[:, :, 1], np.asarray(bits) * 255)
    with pytest.raises(ParameterError, match="fax: expected a TIFF image with another compression"):
        read_image(saved(bits, "TIFF", compression="group4"), "fax")
    cmyk = Image.new("CMYK", (4, 4), (0, 255, 255, 0))
    np.testing.assert_array_equal(pixels(saved(cmyk, "TIFF")), np.broadcast_to([255, 0, 0], (4, 4, 3)))
    jpeg = pixels(saved(cmyk, "JPEG", quality=95)).reshape(-1, 3).mean(axis=0)
    assert jpeg[0] > 240 and jpeg[1:].max() < 15
    lab = Image.fromarray(noise(4, 4)).convert("YCbCr")
    np.testing.assert_array_equal(pixels(lab), np.asarray(lab.convert("RGB")))


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_sixteen_bits_are_cut_to_eight(kind):
    deep = (np.arange(256, dtype=np.uint16) * 257).reshape(16, 16)  # 0xABAB is 0xAB in eight bits
    np.testing.assert_array_equal(pixels(saved(Image.fromarray(deep), kind))[:, :, 2], np.arange(256).reshape(16, 16))
    colours = np.zeros((2, 2, 3), np.uint8)
    colours[0, 0] = 0xAB, 0xCD, 0xEF
    data = png(2, 2, 16, 2, b"".join(b"\0" + row.astype(">u2").tobytes() for row in colours.astype(np.uint16) * 257))
    np.testing.assert_array_equal(pixels(data), colours)
    for mode in ("I", "F"):
        with pytest.raises(ParameterError, match="scan: expected 8 or 16 bits a colour, found an image of 32-bit"):
            read_image(saved(Image.new(mode, (3, 3)), "TIFF"), "scan")


def test_the_first_picture_of_an_animation():
    frames = [Image.fromarray(noise(8, 8, seed=i)).quantize(32) for i in range(3)]
    for kind, options in (("GIF", {}), ("WEBP", {"lossless": True}), ("PNG", {}), ("TIFF", {})):
        data = saved(frames[0], kind, save_all=True, append_images=frames[1:], **options)
        opened = Image.open(io.BytesIO(data))
        assert sum(1 for _ in ImageSequence.Iterator(opened)) == 3
        np.testing.assert_array_equal(pixels(data), np.asarray(frames[0].convert("RGB")))


# ---- what is no image


def png(width: int, height: int, depth: int, kind: int, rows: bytes) -> bytes:
    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, kind, 0, 0, 0))
            + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


def test_errors_name_the_file(tmp_path):
    for content, said in ((b"", "found an empty file"), (b"%!PS-Adobe-3.0 EPSF-3.0\n", "which begins with b'%!PS"),
                          (b"<svg></svg>", "found something else"), (b"\x89PNG\r\n\x1a\n", "expected a")):
        path = tmp_path / "holiday.jpg"
        path.write_bytes(content)
        with pytest.raises(ParameterError, match=r"holiday\.jpg: expected a") as found:
            read_image(path)
        assert said in str(found.value) and "\n" not in str(found.value)
    with pytest.raises(ParameterError, match=r"there is no file .*missing\.png; check the path"):
        read_image(tmp_path / "missing.png")
    with pytest.raises(ParameterError, match=r"^\S+: expected a file with an image, found a folder or a device"):
        read_image(tmp_path)
    os.mkfifo(tmp_path / "pipe.png")
    with pytest.raises(ParameterError, match="found a folder or a device"):  # and does not wait for a writer
        read_image(tmp_path / "pipe.png")
    with pytest.raises(ParameterError, match="the file could not be read"):
        read_image("a\0b.png")
    with pytest.raises(ParameterError, match="upload 3: expected a PNG"):
        read_image(b"hello", "upload 3")
    with pytest.raises(ParameterError, match="opened in binary mode"):
        read_image(io.StringIO("text"))
    for thing in (None, 7, [b"x"], {"url": "x"}):
        with pytest.raises(ParameterError, match="must be a path, bytes"):
            read_image(thing)
    for array in (np.zeros((2, 2, 3)), np.zeros((2, 2), np.uint16), np.zeros((2, 2, 2), np.uint8),
                  np.zeros((0, 2, 3), np.uint8), np.zeros(4, np.uint8), np.zeros((1, 3, 2, 2), np.uint8)):
        with pytest.raises(ParameterError, match="must be uint8"):
            read_image(array)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "WEBP", "TIFF", "BMP", "PPM"])
def test_files_that_end_too_early(kind):
    data = saved(Image.fromarray(noise(40, 40)), kind)
    for part in (0.3, 0.6, 0.9):
        with pytest.raises(ParameterError, match=r"cut: expected (a whole image|a PNG)"):
            read_image(data[: int(len(data) * part)], "cut")


def test_damaged_files_are_errors_or_pictures_and_say_nothing_else(capfd):
    chance = random.Random(5)
    exif = Image.Exif()
    exif[0x0112], exif[0x010E] = 3, "a description"
    tried = refused = 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for kind in ("PNG", "JPEG", "GIF", "WEBP", "TIFF", "BMP", "AVIF", "JPEG2000"):
            data = saved(Image.fromarray(noise(24, 24)), kind, **({"exif": exif} if kind in ("JPEG", "TIFF") else {}))
            for _ in range(40):
                broken = bytearray(data)
                for _ in range(chance.choice((1, 4, 16))):
                    broken[chance.randrange(min(len(data), 200))] = chance.randrange(256)
                tried += 1
                try:
                    assert read_image(bytes(broken), "it", max_pixels=10**6).mode == "RGB"
                except ParameterError as error:
                    refused += 1
                    assert str(error).startswith(("it: ", "it says ")) and len(str(error)) < 400
    assert refused > tried / 4
    assert capfd.readouterr() == ("", "")


def test_bombs_are_refused_by_their_header():
    """A few bytes that claim gigabytes. The memory that reading them takes is measured in a process of its own."""
    script = """
import io, resource, struct, sys, warnings, zlib
warnings.simplefilter("error")
from forwardpass.stages.images import read_image
from forwardpass.errors import ParameterError
import PIL.Image, PIL.PngImagePlugin, PIL.BmpImagePlugin, PIL.GifImagePlugin
def chunk(name, data):
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
def png(width, height):
    return (b"\\x89PNG\\r\\n\\x1a\\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
            + chunk(b"IDAT", zlib.compress(bytes(10**6))))
gif = b"GIF89a" + struct.pack("<HH", 65535, 65535) + bytes(3)
gif += b"," + struct.pack("<HHHH", 0, 0, 65535, 65535) + bytes(9)
bmp = b"BM" + struct.pack("<IHHI", 54, 0, 0, 54) + struct.pack("<IiiHH6I", 40, 60000, 60000, 1, 24, 0, 0, 0, 0, 0, 0)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for data in (png(10_000, 10_001), png(13_000, 13_000), png(2**31 - 1, 2**31 - 1), gif, bmp):
    try:
        read_image(data, "bomb")
    except ParameterError as error:
        assert str(error).startswith("bomb says that it has ") and "at most 100,000,000" in str(error), error
    else:
        raise SystemExit("was read")
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 20_000  # kB; the smallest of them would take 400 MB
    with pytest.raises(ParameterError, match="the array says that it has 20 x 10 pixels; at most 199 are decoded"):
        read_image(noise(10, 20), "the array", max_pixels=199)
    assert read_image(noise(10, 20), max_pixels=200).size == (20, 10)


def test_warnings_of_others_are_left_alone():
    """Reading images in several threads neither hides other warnings nor leaves a filter behind."""
    data = saved(Image.fromarray(noise(64, 64)))
    with warnings.catch_warnings():
        before = list(warnings.filters)
        threads = [threading.Thread(target=lambda: [read_image(data) for _ in range(20)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert list(warnings.filters) == before


def test_nothing_imports_pillow_until_a_picture_is_read():
    script = ("import sys, forwardpass.stages.images, forwardpass.tasks.model; assert 'PIL' not in sys.modules; "
              "import numpy as np; forwardpass.stages.images.read_image(np.zeros((1, 1), np.uint8)); "
              "assert 'PIL' in sys.modules")
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


# ---- pixel values

SIZES = ((1, 1), (1, 7), (9, 1), (2, 3), (31, 33), (48, 64), (61, 37), (100, 57), (57, 100), (131, 17))
PROCESSORS = {
    "ViT": ({}, {"size": {"height": 30, "width": 17}, "resample": 0}, {"size": 20, "resample": 4},
            {"size": {"shortest_edge": 21, "longest_edge": 40}, "resample": 5},
            {"size": {"max_height": 30, "max_width": 22}, "resample": 1}, {"do_resize": False, "do_normalize": False},
            {"do_rescale": False, "size": 9}, {"rescale_factor": 0.01, "image_mean": [1, 2, 3], "size": 9},
            {"do_center_crop": True, "crop_size": {"height": 50, "width": 30}, "do_resize": False}),
    "DeiT": ({}, {"size": 40, "crop_size": 33}),
    "Beit": ({"size": {"height": 24, "width": 24}, "do_center_crop": True, "crop_size": [15, 12]},),
    "Bit": ({"size": {"shortest_edge": 28}, "crop_size": {"height": 25, "width": 30}},
            {"size": {"shortest_edge": 19}, "do_center_crop": False}, {"do_resize": False, "crop_size": 41}),
    "CLIP": ({"size": 33, "crop_size": 32}, {"size": {"shortest_edge": 25}, "crop_size": 32}),
    "Siglip": ({"size": {"height": 32, "width": 32}}, {"size": 22}),
}


@pytest.mark.parametrize("stem", PROCESSORS)
def test_equal_to_transformers(stem):
    import transformers

    for settings in PROCESSORS[stem]:
        theirs = getattr(transformers, f"{stem}ImageProcessorPil")(**settings)
        stored = {"preprocessor_config.json": settings | {"image_processor_type": f"{stem}ImageProcessor"}}
        written = {"processor_config.json": {"image_processor": theirs.to_dict()}}
        ours = ImageProcessing(read_image_settings(stored))
        assert ImageProcessing(read_image_settings(written)).settings == ours.settings
        for height, width in SIZES if settings else SIZES[-2:]:
            picture = read_image(noise(height, width))
            found = ours(picture)
            expected = np.asarray(theirs(picture, return_tensors="np")["pixel_values"][0]).transpose(1, 2, 0)
            assert found.dtype == np.float32 and found.shape == expected.shape, (settings, height, width)
            assert np.abs(found - expected).max() <= 1e-6, (settings, height, width)


def test_sizes_by_hand():
    assert resized_size(Resize("shortest", 224), 480, 640) == (224, 298)
    assert resized_size(Resize("shortest", 224), 640, 480) == (298, 224)
    assert resized_size(Resize("shortest", 224), 1, 10) == (224, 2240)
    assert resized_size(Resize("shortest", 30, 40), 100, 200) == (20, 40)
    assert resized_size(Resize("within", 50, 100), 100, 100) == (50, 50)
    assert resized_size(Resize("exact", 3, 4), 1000, 1) == (3, 4)


def test_too_narrow_to_be_resized(monkeypatch):
    monkeypatch.setattr(images, "MAX_PIXELS", 10_000)
    ours = ImageProcessing(read_image_settings({"preprocessor_config.json": {
        "image_processor_type": "CLIPImageProcessor", "size": 20, "crop_size": 20}}))
    assert ours(read_image(noise(1, 25))).shape == (20, 20, 3)
    with pytest.raises(ParameterError, match=r"strip has 26 x 1 pixels, .* resized to 520 x 20; expected 1 to 10,000"):
        ours(read_image(noise(1, 26)), "strip")
    inside = ImageProcessing(read_image_settings({"preprocessor_config.json": {
        "image_processor_type": "ViTImageProcessor", "size": {"max_height": 5, "max_width": 5}}}))
    with pytest.raises(ParameterError, match="resized to 5 x 0"):
        inside(read_image(noise(1, 90)))
