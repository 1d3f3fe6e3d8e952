"""Whole tasks on images against transformers' pipelines, and what they promise of batches, streams and errors."""

from __future__ import annotations

import asyncio
import io
import threading

import numpy as np
import pytest
import torch
from PIL import Image

import forwardpass
import tiny_images
from forwardpass.errors import ModelFileError, ParameterError, UnsupportedModelError
from forwardpass.tasks import images as work
from forwardpass.tasks.async_model import AsyncModel

PHOTOS = [tiny_images.photo(*size, seed=i) for i, size in enumerate(((40, 60), (24, 24), (17, 90), (64, 31)))]
WORDS = ["w1 w2", "w3", "paris", "a", "w9 w9 w9"]


class Loaded(dict):
    """Name -> a loaded model, from when it is asked for first."""

    def __init__(self, folders):
        self.folders = folders

    def __missing__(self, name):
        self[name] = forwardpass.load(self.folders[name], dtype="float32", threads=2)
        return self[name]


@pytest.fixture(scope="module")
def made():
    """Name -> a model of transformers."""
    return {name: tiny_images.model(name) for name in tiny_images.CASES}


@pytest.fixture(scope="module")
def folders(made, tmp_path_factory):
    return {name: tiny_images.write(tmp_path_factory.mktemp("seeing") / name, name, one) for name, one in made.items()}


@pytest.fixture(scope="module")
def models(folders):
    found = Loaded(folders)
    yield found
    for model in found.values():
        model.close()


@pytest.fixture(scope="module")
def prepared(folders):
    """What the witness sees of PHOTOS, by model."""
    from transformers import AutoImageProcessor

    processors = {name: AutoImageProcessor.from_pretrained(folder, backend="pil") for name, folder in folders.items()}
    return {name: processor([Image.fromarray(one) for one in PHOTOS], return_tensors="pt")["pixel_values"]
            for name, processor in processors.items()}


def texts_for(folder, template: str, length: int | None):
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    how = {"padding": "max_length", "max_length": length, "truncation": True} if length else {"padding": True}
    # The files of SigLIP's tokenizer ask for no mask: its texts see their padding.
    return tokenizer([template.format(word) for word in WORDS], return_tensors="pt", return_token_type_ids=False,
                     return_attention_mask=not length, **how)


# ---- against transformers


def test_abilities(models):
    assert models["vit"].tasks == ("classify_image", "embed_image") == models["multi"].tasks
    assert models["dinov2"].tasks == ("embed_image",)
    assert models["clip"].tasks == models["siglip"].tasks == ("embed", "embed_image", "zero_shot_image",
                                                               "hidden_states")


@pytest.mark.parametrize("name", ["vit", "multi"])
def test_labels(made, models, prepared, name):
    with torch.no_grad():
        logits = made[name](prepared[name]).logits
    scores = (logits.sigmoid() if name == "multi" else logits.softmax(-1)).numpy()
    for ranked, row in zip(models[name].classify_image(PHOTOS, top_k=None), scores, strict=True):
        order = np.argsort(-row)
        assert [label for label, _ in ranked] == [tiny_images.LABELS[int(i)] for i in order]
        np.testing.assert_allclose([score for _, score in ranked], row[order], atol=2e-5)
    assert [len(one) for one in models[name].classify_image(PHOTOS[:2], top_k=3)] == [3, 3]
    assert len(models[name].classify_image(PHOTOS[0])) == 4  # of 5 at most


def test_vectors(made, models, prepared):
    with torch.no_grad():
        states = made["dinov2"](prepared["dinov2"]).last_hidden_state.numpy()
        ours = models["dinov2"].embed_image(PHOTOS)
        close = dict(atol=2e-4)
        np.testing.assert_allclose(ours, states[:, 0], **close)
        both = models["dinov2"].embed_image(PHOTOS, pooling=["cls", "mean"])
        np.testing.assert_allclose(both, np.concatenate([states[:, 0], states[:, 1:].mean(1)], axis=1), **close)
        greatest = models["dinov2"].embed_image(PHOTOS[0], pooling="max")
        np.testing.assert_allclose(greatest, states[0, 1:].max(0), **close)
        unit = models["dinov2"].embed_image(PHOTOS, normalize=True)
        np.testing.assert_allclose(unit, ours / np.linalg.norm(ours, axis=1, keepdims=True), atol=1e-6)
        for name in ("clip", "siglip"):
            theirs = made[name].get_image_features(prepared[name])
            theirs = getattr(theirs, "pooler_output", theirs).numpy()
            np.testing.assert_allclose(models[name].embed_image(PHOTOS), theirs, **close)
        hidden = made["vit"].vit(prepared["vit"]).last_hidden_state[:, 0].numpy()  # what its head reads
        np.testing.assert_allclose(models["vit"].embed_image(PHOTOS), hidden, **close)


@pytest.mark.parametrize("name", ["clip", "siglip"])
def test_labels_that_nobody_trained(made, models, folders, prepared, name):
    template = "w5 {} w6."
    texts = texts_for(folders[name], template, 16 if name == "siglip" else None)
    with torch.no_grad():
        made[name].logit_scale.copy_(torch.tensor(1.3))
        logits = made[name](pixel_values=prepared[name], **texts).logits_per_image
        features = made[name].get_text_features(**texts)
    with forwardpass.load(tiny_images.write(folders[name].parent / f"{name}-scaled", name, made[name]),
                          dtype="float32") as model:
        ranked = model.zero_shot_image(PHOTOS, WORDS, hypothesis_template=template)
        vectors = model.embed([template.format(word) for word in WORDS])
    np.testing.assert_allclose(vectors, getattr(features, "pooler_output", features).numpy(), atol=2e-4)
    scores = (logits.sigmoid() if name == "siglip" else logits.softmax(-1)).numpy()
    for found, row in zip(ranked, scores, strict=True):
        assert [label for label, _ in found] == [WORDS[i] for i in np.argsort(-row, kind="stable")]
        np.testing.assert_allclose([score for _, score in found], np.sort(row)[::-1], atol=2e-5)


# ---- one, many, streams


def test_one_image_gives_one_result_and_a_list_a_list(models, tmp_path):
    path = tmp_path / "a.png"
    Image.fromarray(PHOTOS[0]).save(path)
    vit, dino = models["vit"], models["dinov2"]
    alone = vit.classify_image(PHOTOS[0])
    for one in (path, str(path), path.read_bytes(), io.BytesIO(path.read_bytes()), Image.fromarray(PHOTOS[0])):
        assert vit.classify_image(one) == alone and vit.classify_image([one]) == [alone]
    square = np.stack([PHOTOS[1]] * 2)
    assert vit.classify_image(square) == vit.classify_image(tuple(square)) == [vit.classify_image(PHOTOS[1])] * 2
    assert dino.embed_image(PHOTOS[0]).shape == (32,) and dino.embed_image([PHOTOS[0]]).shape == (1, 32)
    clip = models["clip"]
    assert clip.zero_shot_image(PHOTOS[0], "w1") == [("w1", 1.0)]
    assert clip.zero_shot_image([PHOTOS[0]], iter(["w1"])) == [[("w1", 1.0)]]


def test_the_same_bits_alone_and_in_a_batch(models):
    many = [PHOTOS[i % 4] for i in range(2 * work.AT_ONCE + 3)]
    for name in ("dinov2", "clip", "siglip"):
        vectors = models[name].embed_image(many)
        for i, image in enumerate(PHOTOS):
            alone = models[name].embed_image(image)
            assert all(row.tobytes() == alone.tobytes() for row in vectors[i::4])
    ranked = models["clip"].zero_shot_image(many, WORDS)
    assert ranked[:4] == [models["clip"].zero_shot_image(image, WORDS) for image in PHOTOS] == ranked[4:8]


def test_streams_hold_a_few_images_at_a_time(models):
    """A generator of images is read only a little ahead of the results."""
    taken = 0

    def endless():
        nonlocal taken
        while True:
            taken += 1
            yield PHOTOS[taken % 4]

    results = models["vit"].classify_image(endless(), stream=True)
    found = [next(results) for _ in range(work.AT_ONCE + 2)]
    assert found[:4] == models["vit"].classify_image([PHOTOS[i % 4] for i in (1, 2, 3, 4)])
    assert taken <= 3 * work.AT_ONCE
    before = threading.active_count()
    results.close()
    assert threading.active_count() < before  # the thread that decodes is gone
    vectors = list(models["dinov2"].embed_image(PHOTOS, stream=True))
    assert np.stack(vectors).tobytes() == models["dinov2"].embed_image(PHOTOS).tobytes()
    assert list(models["vit"].classify_image(PHOTOS[0], stream=True)) == [models["vit"].classify_image(PHOTOS[0])]
    assert list(models["vit"].classify_image(iter(()), stream=True)) == []


# ---- errors


def test_bad_images(models, tmp_path):
    bad = tmp_path / "bad.png"
    bad.write_bytes(b"no image")
    vit = models["vit"]
    for given, said in ((str(bad), r"bad\.png: expected a PNG"), ([PHOTOS[0], bad], r"bad\.png: expected a PNG"),
                        ([PHOTOS[0], b"xx"], "image 1: expected a PNG"), ([PHOTOS[0], 7], "must be a path"),
                        ([], "at least one image"), (np.zeros((0, 2, 2, 3), np.uint8), "at least one image"),
                        (None, "must be a path"), ({"image": bad}, "must be a path")):
        with pytest.raises(ParameterError, match=said):
            vit.classify_image(given)
    told = []
    some = [bad, *PHOTOS[:2], b"", PHOTOS[2]]
    found = vit.classify_image(some, on_error=lambda number, error: told.append((number, str(error))))
    assert found[0] is None is found[3] and [found[i] for i in (1, 2, 4)] == vit.classify_image(PHOTOS[:3])
    assert [number for number, _ in told] == [0, 3] and told[1][1].startswith("image 3: expected a PNG")
    vectors = models["dinov2"].embed_image(some, on_error=lambda *_: None)
    assert np.isnan(vectors).all(axis=1).tolist() == [True, False, False, True, False]
    assert vit.classify_image(bad, on_error=lambda *_: None) is None
    stream = vit.classify_image([PHOTOS[0], bad, PHOTOS[1]], stream=True)
    assert next(stream) == found[1]
    with pytest.raises(ParameterError, match=r"bad\.png"):
        next(stream)


def test_an_image_that_the_model_cannot_read_harms_no_other(folders, tmp_path):
    """Without a fixed size some images are too small, which only the model knows."""
    import json
    import shutil

    folder = shutil.copytree(folders["dinov2"], tmp_path / "free")
    (folder / "preprocessor_config.json").write_text(json.dumps(
        {"image_processor_type": "BitImageProcessor", "do_resize": False, "do_center_crop": False}))
    told = {}
    with forwardpass.load(folder, dtype="float32") as model:
        vectors = model.embed_image([PHOTOS[0], PHOTOS[0][:5], PHOTOS[2]], on_error=told.__setitem__)
        assert vectors[0].tobytes() == model.embed_image(PHOTOS[0]).tobytes()
    assert list(told) == [1] and "image 1 has 5 x 60 pixels" in str(told[1])
    assert np.isnan(vectors).all(axis=1).tolist() == [False, True, False]


def test_arguments_that_make_no_sense(models):
    image = PHOTOS[0]
    for call, said in ((lambda: models["vit"].classify_image(image, top_k=0), "top_k"),
                       (lambda: models["vit"].classify_image(image, top_k=1.5), "top_k"),
                       (lambda: models["vit"].classify_image(image, on_error=3), "on_error"),
                       (lambda: models["dinov2"].embed_image(image, pooling="median"), "one of cls, mean, max"),
                       (lambda: models["dinov2"].embed_image(image, pooling=[]), "one of cls, mean, max"),
                       (lambda: models["dinov2"].embed_image(image, normalize=1), "normalize"),
                       (lambda: models["siglip"].embed_image(image, pooling="cls"), "this model has none"),
                       (lambda: models["clip"].zero_shot_image(image, []), "labels"),
                       (lambda: models["clip"].zero_shot_image(image, ["a", "a"]), "each label once"),
                       (lambda: models["clip"].zero_shot_image(image, ["a", 5]), "labels"),
                       (lambda: models["clip"].zero_shot_image(image, ["a"], hypothesis_template="x"), "one {}")):
        with pytest.raises(ParameterError, match=said):
            call()


def test_what_a_model_cannot_do(models):
    for call, said in ((lambda: models["dinov2"].classify_image(PHOTOS[0]), "which needs a head that labels images"),
                       (lambda: models["vit"].zero_shot_image(PHOTOS[0], ["a"]), "which needs towers"),
                       (lambda: models["vit"].embed("a text"), "can classify_image, embed_image"),
                       (lambda: models["vit"].generate([1, 2]), "can classify_image, embed_image"),
                       (lambda: models["vit"].stream("a text"), "can classify_image, embed_image"),
                       (lambda: models["vit"].hidden_states([1]), "can classify_image, embed_image")):
        with pytest.raises(UnsupportedModelError, match=said):
            call()


@pytest.mark.parametrize(("content", "said"), [
    (None, r"it has no preprocessor_config\.json"), ('{"image_processor_type": "SwinImageProcessor"}', "SwinImagePro")])
def test_files_that_do_not_say_how_images_are_prepared(folders, tmp_path, content, said):
    import shutil

    folder = shutil.copytree(folders["vit"], tmp_path / "unsaid")
    (folder / "preprocessor_config.json").unlink()
    if content:
        (folder / "preprocessor_config.json").write_text(content)
    with forwardpass.load(folder) as model, pytest.raises(UnsupportedModelError, match=said):
        model.classify_image(PHOTOS[0])
    (folder / "preprocessor_config.json").write_text('{"size": -1, "image_processor_type": "ViTImageProcessor"}')
    with pytest.raises(ModelFileError, match="size"):
        forwardpass.load(folder)


def test_a_closed_model(folders):
    model = forwardpass.load(folders["vit"])
    stream = model.classify_image(PHOTOS, stream=True)
    model.close()
    for call in (lambda: model.classify_image(PHOTOS[0]), lambda: next(stream)):
        with pytest.raises(ParameterError, match="closed"):
            call()


# ---- event loops


def test_for_event_loops(models):
    async def ask():
        async with AsyncModel(models["clip"]) as model:
            vectors, ranked = await asyncio.gather(model.embed_image(PHOTOS), model.zero_shot_image(PHOTOS[0], WORDS))
            stream = await model.zero_shot_image(iter(PHOTOS), WORDS, stream=True)
            return vectors, ranked, [one async for one in stream]

    vectors, ranked, streamed = asyncio.run(ask())
    assert vectors.tobytes() == models["clip"].embed_image(PHOTOS).tobytes()
    assert streamed == models["clip"].zero_shot_image(PHOTOS, WORDS) and ranked == streamed[0]


def test_a_packed_model_sees_the_same(folders, models, tmp_path):
    from forwardpass.tasks.quantizing import quantize

    path = tmp_path / "vit.fpk"
    quantize(folders["vit"], path, "float32", 2)
    with forwardpass.load(path) as model:
        assert model.tasks == models["vit"].tasks
        assert model.classify_image(PHOTOS) == models["vit"].classify_image(PHOTOS)
