"""Models that read images against transformers: tiny random ones of every class, in float32 and with fewer bits, images
as large as in training and otherwise, alone and beside others, which must not differ in a single bit."""

import numpy as np
import pytest

import forwardpass
import tiny_vision
from agreement import relative_error
from few import few
from forwardpass.contracts import EncoderText
from forwardpass.errors import ModelFileError
from forwardpass.stages import project
from forwardpass.tasks.quantizing import quantize

TOLERANCE = 1e-5
POOLERS = ("vit", "dinov2", "registers")
"""Whose pooler_output is something that is not kept, or a row that needs no head."""


@pytest.mark.parametrize("case", few(list(tiny_vision.CASES), 1, 3, 4, 7, 9, 11, 13))
def test_every_class(case, tmp_path):
    reference = tiny_vision.make(*tiny_vision.CASES[case])
    pixels = tiny_vision.images()[: 1 if case in tiny_vision.FIXED else None]
    with forwardpass.load(tiny_vision.save(reference, tmp_path), dtype="float32") as model:
        together = tiny_vision.ours(model, pixels)
        for one, (hidden, answer) in zip(pixels, together, strict=True):
            theirs = tiny_vision.reference(reference, one)
            if "hidden" in theirs:
                assert hidden.shape == theirs["hidden"].shape
                assert relative_error(hidden, theirs["hidden"]) < TOLERANCE
            if "answer" in theirs and case not in POOLERS:
                assert answer.shape == theirs["answer"].shape and answer.dtype == np.float32
                assert relative_error(answer, theirs["answer"]) < TOLERANCE
            [(alone, other)] = tiny_vision.ours(model, [one])
            assert np.array_equal(alone, hidden) and (answer is None or np.array_equal(other, answer))


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
@pytest.mark.parametrize("case", few(["dinov2-labels", "siglip-vision", "clip-projection"], 0))
def test_fewer_bits(case, dtype, tmp_path):
    """Close, and still the same alone and beside others."""
    reference = tiny_vision.make(*tiny_vision.CASES[case])
    pixels = tiny_vision.images()
    with forwardpass.load(tiny_vision.save(reference, tmp_path), dtype=dtype) as model:
        for one, (hidden, answer) in zip(pixels, tiny_vision.ours(model, pixels), strict=True):
            theirs = tiny_vision.reference(reference, one)["answer"]
            assert relative_error(answer, theirs) < {"bfloat16": 0.05, "int8": 0.15}[dtype]
            [(alone, other)] = tiny_vision.ours(model, [one])
            assert np.array_equal(alone, hidden) and np.array_equal(other, answer)


def vectors(model, texts):
    network = model.network
    return np.array(model.engine.encode([EncoderText(ids) for ids in texts],
                                        lambda hidden: list(project.vectors(network, hidden))))


@pytest.mark.parametrize(("name", "config", "more"), [("CLIPModel", "CLIPConfig", {"projection_dim": 24}),
                                                      ("SiglipModel", "SiglipConfig", {})])
def test_texts_and_images(name, config, more, tmp_path):
    """Both towers and what a pair of them scores."""
    import torch

    reference = tiny_vision.make(name, config, tiny_vision.BOTH | more)
    rng = np.random.default_rng(3)
    full = rng.integers(2, 97, (3, 16))
    full[:, -1] = 98
    pixels = np.stack(tiny_vision.images([(32, 32)] * 2))
    with torch.no_grad():
        theirs = reference(input_ids=torch.tensor(full), pixel_values=torch.tensor(pixels).permute(0, 3, 1, 2))
    with forwardpass.load(tiny_vision.save(reference, tmp_path), dtype="float32") as model:
        texts = vectors(model, full)
        assert np.array_equal(texts[1:2], vectors(model, full[1:2]))
        images = np.stack([answer for _, answer in tiny_vision.ours(model, list(pixels))])
        texts, images = (one / np.linalg.norm(one, axis=1, keepdims=True) for one in (texts, images))
        assert relative_error(texts, theirs.text_embeds.numpy()) < TOLERANCE
        assert relative_error(images, theirs.image_embeds.numpy()) < TOLERANCE
        scale, bias = model.network.pair
        assert relative_error(images @ texts.T * scale + bias, theirs.logits_per_image.numpy()) < TOLERANCE
        assert model.spec.contrast == ("softmax" if name == "CLIPModel" else "sigmoid")
        assert model.spec.padded == (0 if name == "CLIPModel" else 16) and not model.spec.causal


@pytest.mark.parametrize(("end", "ids", "row"), [
    (61, [3, 88, 61, 61, 12, 61], 2),  # an added token above the end token, which also fills the text up
    (2, [3, 40, 2, 12, 90, 90, 2], 4),  # old files say 2 and mean the greatest
    (61, [33, 9, 60, 4], 0),  # none: the first row, as transformers
])
def test_the_row_that_stands_for_a_text(end, ids, row, tmp_path):
    """CLIP's text tower alone, with and without its projection: which row is taken, and its numbers."""
    import torch

    for name in ("CLIPTextModel", "CLIPTextModelWithProjection"):
        reference = tiny_vision.make(name, "CLIPTextConfig",
                                     tiny_vision.TEXTS | dict(eos_token_id=end, projection_dim=24))
        with torch.no_grad():
            theirs = reference(input_ids=torch.tensor([ids]))
        wanted = theirs.pooler_output if name == "CLIPTextModel" else theirs.text_embeds
        with forwardpass.load(tiny_vision.save(reference, tmp_path / name), dtype="float32") as model:
            hidden = model.hidden_states(ids)
            assert relative_error(hidden, theirs.last_hidden_state[0].numpy()) < TOLERANCE
            [answer] = vectors(model, [ids, [7, *ids]])[:1]
            assert relative_error(answer, wanted[0].numpy()) < TOLERANCE
            if name == "CLIPTextModel":
                assert np.array_equal(answer, hidden[row])


def test_a_packed_file_gives_the_same(tmp_path):
    """quantize writes a model that reads images, and a vision tower, into one file."""
    for name, config, settings in (("SiglipModel", "SiglipConfig", tiny_vision.BOTH),
                                   tiny_vision.CASES["registers-labels"]):
        folder = tiny_vision.save(tiny_vision.make(name, config, settings), tmp_path / name)
        packed = tmp_path / f"{name}.fpk"
        quantize(folder, packed, "int8", threads=1)
        pixels = tiny_vision.images()[:2]
        with forwardpass.load(folder, dtype="int8") as one, forwardpass.load(packed) as other:
            assert one.spec == other.spec
            for mine, theirs in zip(tiny_vision.ours(one, pixels), tiny_vision.ours(other, pixels), strict=True):
                assert np.array_equal(mine[0], theirs[0]) and np.array_equal(mine[1], theirs[1])


def stored(folder):
    from safetensors.numpy import load_file

    return load_file(folder / "model.safetensors")


@pytest.mark.parametrize(("case", "lost", "message"), [
    ("vit-labels", "classifier.weight", r"missing: expected classifier.weight \[5, 48\]"),
    ("deit-teacher", "distillation_classifier.bias", "missing: expected distillation_classifier.bias"),
    ("vit-labels", "vit.embeddings.position_embeddings", "missing: expected vit.embeddings.position_embeddings"),
    ("siglip-vision", "head.probe", "missing: expected .*head.probe"),
])
def test_files_that_lack_something(case, lost, message, tmp_path):
    from safetensors.numpy import save_file

    folder = tiny_vision.save(tiny_vision.make(*tiny_vision.CASES[case]), tmp_path)
    tensors = stored(folder)
    kept = tensors.pop(lost)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ModelFileError, match=message):
        forwardpass.load(folder)
    save_file(tensors | {lost: kept[..., :-1].copy()}, folder / "model.safetensors")
    with pytest.raises(ModelFileError, match="wrong shape"):
        forwardpass.load(folder)
    save_file(tensors | {lost: kept, "stranger": kept}, folder / "model.safetensors")
    with pytest.raises(ModelFileError, match="unexpected: stranger"):
        forwardpass.load(folder)


def test_a_scale_that_cannot_be(tmp_path):
    from safetensors.numpy import save_file

    folder = tiny_vision.save(tiny_vision.make("CLIPModel", "CLIPConfig", tiny_vision.BOTH), tmp_path)
    for scale, message in ((1e6, "logit_scale: expected a logarithm of at most 20"), (np.nan, "NaN or infinite")):
        save_file(stored(folder) | {"logit_scale": np.array(scale, np.float32)}, folder / "model.safetensors")
        with pytest.raises(ModelFileError, match=message):
            forwardpass.load(folder)


def test_what_old_files_hold_beside_the_weights(tmp_path):
    """Constants and what only training reads."""
    from safetensors.numpy import save_file

    for case, more in (("vit", {"embeddings.mask_token": np.zeros((1, 1, 48), np.float32)}),
                       ("clip-projection", {"vision_model.embeddings.position_ids": np.arange(17)[None]})):
        folder = tiny_vision.save(tiny_vision.make(*tiny_vision.CASES[case]), tmp_path / case)
        save_file(stored(folder) | more, folder / "model.safetensors")
        with forwardpass.load(folder) as model:
            assert model.spec.patches.size == 8
