"""What processor files say of images, and what is refused of them."""

from __future__ import annotations

import pytest

from forwardpass.errors import ModelFileError, UnsupportedModelError
from forwardpass.models.image_settings import BICUBIC, BILINEAR, ImageSettings, Resize, read_image_settings


def own(kind: str | None = "ViTImageProcessor", **values) -> dict:
    return {"preprocessor_config.json": values | ({} if kind is None else {"image_processor_type": kind})}


def test_defaults_of_the_classes():
    assert read_image_settings(own()) == ImageSettings(
        Resize("exact", 224, 224), BILINEAR, None, 1 / 255, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    assert read_image_settings(own("CLIPImageProcessor")) == ImageSettings(
        Resize("shortest", 224), BICUBIC, (224, 224), 1 / 255, (0.48145466, 0.4578275, 0.40821073),
        (0.26862954, 0.26130258, 0.27577711))
    assert read_image_settings(own("DeiTFeatureExtractor")).crop == (224, 224)
    assert read_image_settings(own("BitImageProcessorFast")).resize == Resize("shortest", 224)
    old = {"preprocessor_config.json": {"feature_extractor_type": "CLIPFeatureExtractor", "size": 336}}
    assert read_image_settings(old).resize == Resize("shortest", 336)


def test_where_they_are_said():
    assert read_image_settings({}) is None
    assert read_image_settings({"processor_config.json": {"processor_class": "CLIPProcessor"}}) is None
    both = own(size=10) | {"processor_config.json": {"image_processor": {
        "image_processor_type": "SiglipImageProcessor", "size": {"height": 3, "width": 4}}}}
    assert read_image_settings(both).resize == Resize("exact", 3, 4)
    assert read_image_settings(own(None), "dinov2").resample == BICUBIC
    with pytest.raises(UnsupportedModelError, match="names no image_processor_type"):
        read_image_settings(own(None), "swin")
    with pytest.raises(UnsupportedModelError, match=r"'LlavaNextImageProcessor'.*prepared as ViTImageProcessor, DeiT"):
        read_image_settings(own("LlavaNextImageProcessor"))


@pytest.mark.parametrize(("values", "name"), [
    ({"size": "big"}, "size"), ({"size": 0}, "size"), ({"size": True}, "size"), ({"size": [1]}, "size"),
    ({"size": [3, 2**17]}, "size"), ({"size": {"height": -1, "width": 3}}, "height"),
    ({"size": {"shortest_edge": 1.5}}, "shortest_edge"), ({"resample": 6}, "resample"),
    ({"resample": "cubic"}, "resample"),
    ({"do_resize": 1}, "do_resize"), ({"do_center_crop": True, "crop_size": {"height": 3}}, "width"),
    ({"rescale_factor": float("nan")}, "rescale_factor"), ({"rescale_factor": 0}, "rescale_factor"),
    ({"image_std": [0.5, 0.5, 0.0]}, "image_std"), ({"image_mean": [0.5, 0.5]}, "image_mean"),
    ({"image_mean": ["0.5"] * 3}, "image_mean"), ({"image_processor_type": 5}, "image_processor_type"),
])
def test_damaged_values(values, name):
    with pytest.raises(ModelFileError, match=name):
        read_image_settings({"preprocessor_config.json": {"image_processor_type": "ViTImageProcessor"} | values})


@pytest.mark.parametrize("values", [
    {"size": {"longest_edge": 5}}, {"size": {"min_pixels": 5, "max_pixels": 9}}, {"size": {}}, {"do_pad": True},
    {"crop_pct": 0.9}, {"do_flip_channel_order": True}, {"rescale_offset": True},
])
def test_steps_that_are_not_implemented(values):
    with pytest.raises(UnsupportedModelError, match=next(iter(values))):
        read_image_settings(own(**values))


def test_files_that_are_no_objects():
    for files in ({"preprocessor_config.json": [1]}, {"processor_config.json": {"image_processor": "x"}}):
        with pytest.raises(ModelFileError, match="expected names with values"):
            read_image_settings(files)
