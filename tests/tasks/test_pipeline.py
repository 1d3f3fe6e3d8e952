"""Diffusers directories: every supported kind opens and computes what diffusers computes; the rest is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import tiny_pipelines
from forwardpass.backends.native import NativeBackend
from forwardpass.errors import ModelFileError, UnsupportedModelError
from forwardpass.models.dit_spec import targets
from forwardpass.tasks.pipeline import open_pipeline
from forwardpass.tasks.pipeline_index import PIPELINES
from tiny_pipelines import latents, predicted

INDEX = "model_index.json"


@pytest.fixture(scope="module")
def backend():
    return NativeBackend(2)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """(path, models of diffusers) of one pipeline of each layout."""
    made = {}
    for name in ("dit", "pixart", "sd"):
        path = tmp_path_factory.mktemp(name)
        if name == "dit":
            model = tiny_pipelines.dit(in_channels=3, out_channels=6)
            tiny_pipelines.write_dit(path, model, id2label={"0": "cat, tabby", "3": "dog", "6": "cat "})
            made[name] = path, {"transformer": model}
        else:
            write = tiny_pipelines.write_pixart if name == "pixart" else tiny_pipelines.write_stable_diffusion
            made[name] = path, write(path)
    return made


def copied(folders, name, tmp_path):
    return shutil.copytree(folders[name][0], tmp_path / "copy")


def change(path, **values):
    """Values of model_index.json, or of the file that `path` is; None = taken out."""
    path = path / INDEX if path.is_dir() else path
    whole = json.loads(path.read_text()) | values
    path.write_text(json.dumps({name: one for name, one in whole.items() if one is not None}))


def near(ours, theirs, tolerance=2e-5):
    assert ours.shape == theirs.shape
    assert np.abs(ours - theirs).max() <= tolerance * np.abs(theirs).max()


def test_a_pipeline_that_draws_classes_in_pixels(folders, backend):
    path, models = folders["dit"]
    opened = open_pipeline(path, "float32", "auto", backend)
    assert (opened.name, opened.autoencoder, opened.text, opened.dtype) == ("DiTPipeline", None, None, "float32")
    assert opened.labels == {"cat": 6, "tabby": 0, "dog": 3} and opened.warnings == ()
    assert opened.schedule == tiny_pipelines.SCHEDULER
    assert opened.denoiser.takes == "label" and opened.denoiser.kv_dtype == "float32"
    assert opened.arithmetic == "float32" and opened.weights_bytes > 0
    assert opened.stored.keys() == {f"transformer/{name}" for name in targets(opened.denoiser.spec)}
    picture = latents(0, 6, 10, 3)
    condition = opened.denoiser.of_label(opened.labels["dog"])
    got, = opened.denoiser.predict([picture], np.array([3], np.float32), [condition])
    near(got, predicted(models["transformer"], picture, 3.0, class_labels=torch.tensor([3])))


def test_the_layout_of_the_first_checkpoints(folders, backend, tmp_path):
    """Their transformers are of a class that was several."""
    path = copied(folders, "dit", tmp_path)
    change(path, transformer=["diffusers", "Transformer2DModel"])
    change(path / "transformer" / "config.json", _class_name="Transformer2DModel", use_linear_projection=False,
           num_vector_embeds=None, only_cross_attention=False)
    assert open_pipeline(path, "auto", "auto", backend).denoiser.spec.family == "dit"
    change(path / "transformer" / "config.json", norm_type="ada_norm_single")
    refused(path, backend, UnsupportedModelError, "PixArtTransformer2DModel.*supported are DiTTransformer2DModel")


def states(model, ids):
    with torch.no_grad():
        return model(torch.tensor([ids])).last_hidden_state[0].numpy()


def test_a_pipeline_with_t5(folders, backend):
    path, models = folders["pixart"]
    opened = open_pipeline(path, "float32", "auto", backend)
    text = opened.text
    assert (text.how, text.max_length, opened.labels) == ("t5", 120, {})
    assert opened.denoiser.takes == "text" and opened.autoencoder.factor == 2
    ids = text.tokenizer.encode("a cat on a mat", add_special_tokens=True, parse_special=False)
    assert ids[-1] == 1 and text.pad_id == 0
    hidden = read(text.network, ids)
    near(hidden, states(models["text_encoder"], ids))
    picture = latents(0, 8, 12, 4)
    got, = opened.denoiser.predict([picture], np.array([40], np.float32), [opened.denoiser.of_text(hidden)])
    near(got, predicted(models["transformer"], picture, 40.0, encoder_hidden_states=torch.from_numpy(hidden)[None]))


def read(network, ids):
    ids = np.array(ids, np.int32)
    positions = np.arange(len(ids), dtype=np.int32)
    return network.layers(network.embed(ids, positions), positions, np.array([0, len(ids)], np.int32))


def test_a_pipeline_with_clip_and_a_unet(folders, backend):
    path, models = folders["sd"]
    opened = open_pipeline(path, "float32", "auto", backend)
    text, warning = opened.text, opened.warnings[0]
    assert (text.how, text.max_length, text.pad_id) == ("clip", 16, 299)
    assert "safety checker is missing" in warning and len(opened.warnings) == 1
    ids = text.tokenizer.encode("A cat on a DOG", add_special_tokens=True, parse_special=False)
    assert (ids[0], ids[-1]) == (298, 299) and len(ids) == 7
    ids += [text.pad_id] * (text.max_length - len(ids))
    hidden = read(text.network, ids)
    near(hidden, states(models["text_encoder"], ids))
    picture = latents(0, 8, 8, 4)
    got, = opened.denoiser.predict([picture], np.array([40], np.float32), [opened.denoiser.of_text(hidden)])
    with torch.no_grad():
        theirs = models["unet"](torch.from_numpy(picture).permute(2, 0, 1)[None], 40,
                                encoder_hidden_states=torch.from_numpy(hidden)[None]).sample[0]
        pixels = models["vae"].decode(torch.from_numpy(picture).permute(2, 0, 1)[None]).sample[0]
    near(got, theirs.permute(1, 2, 0).numpy(), 1e-4)
    near(opened.autoencoder.decode(picture), pixels.permute(1, 2, 0).numpy(), 1e-4)


def test_kinds_of_pipeline_with_the_same_components(folders, backend, tmp_path):
    for name, first in (("sd", "StableDiffusion"), ("pixart", "PixArt")):
        path = copied(folders, name, tmp_path / name)
        for kind in (kind for kind in PIPELINES if kind.startswith(first) or (name == "sd" and "Consistency" in kind)):
            change(path, _class_name=kind)
            opened = open_pipeline(path, "auto", "auto", backend)
            assert opened.name == kind and opened.text.max_length == {
                "PixArtAlphaPipeline": 120, "PixArtSigmaPipeline": 300}.get(kind, 16)


def test_a_model_that_is_told_the_scale_of_guidance(backend, tmp_path):
    """Latent consistency models: one input more."""
    tiny_pipelines.write_stable_diffusion(tmp_path, kind="LatentConsistencyModelPipeline",
                                          unet={"time_cond_proj_dim": 20})
    opened = open_pipeline(tmp_path, "float32", "auto", backend)
    assert opened.denoiser.guided
    text, picture, step = latents(0, 4, 24), latents(1, 8, 8, 4), np.array([7], np.float32)
    one, two = (opened.denoiser.predict([picture], step, [opened.denoiser.of_text(text, scale)])[0]
                for scale in (None, 8.5))
    assert np.abs(one - two).max() > 1e-3


def test_dtypes(folders, backend):
    """The denoiser's matrices get few bits; autoencoder, steps, patches and the last product stay as stored."""
    path = folders["pixart"][0]
    exact, few = (open_pipeline(path, dtype, "auto", backend) for dtype in ("auto", "int8"))
    assert (exact.arithmetic, few.arithmetic) == ("float32", "int8")
    assert (exact.denoiser.kv_dtype, few.denoiser.kv_dtype) == ("bfloat16", "int8")
    assert few.text.network.kv_dtype == "bfloat16"
    assert open_pipeline(path, "int8", "bfloat16", backend).denoiser.kv_dtype == "bfloat16"
    assert exact.stored.keys() == few.stored.keys()
    assert exact.stored["transformer/patches.weight"] == 4 * 48 * 16
    smaller = {name for name in few.stored if few.stored[name] < exact.stored[name]}
    assert not any(name.startswith("vae/") for name in smaller)
    assert {name for name in smaller if name.startswith("transformer/")} == {
        "transformer/time.modulation.weight", *(f"transformer/caption.{one}.weight" for one in ("first", "second")), *(
            f"transformer/layers.{i}.{one}.weight" for i in (0, 1) for one in (
                *(f"{kind}.{part}" for kind in ("attention", "cross") for part in ("q", "k", "v", "out")),
                "mlp.up", "mlp.down"))}
    assert any(name.startswith("text_encoder/") for name in smaller)
    text = latents(0, 5, 32)
    picture, step = latents(1, 8, 8, 4), np.array([7], np.float32)
    one, two = (opened.denoiser.predict([picture], step, [opened.denoiser.of_text(text)])[0] for opened in (exact, few))
    assert 0 < np.sqrt(np.mean((one - two) ** 2)) < 0.03 * np.sqrt(np.mean(one**2))


def test_progress_runs_once_from_nothing_to_all(folders, backend):
    said = []
    open_pipeline(folders["sd"][0], "auto", "auto", backend, lambda done, total: said.append((done, total)))
    assert len({total for _, total in said}) == 1 and said[-1][0] == said[-1][1]
    assert [done for done, _ in said] == sorted(done for done, _ in said)


def test_shards_and_variants(folders, backend, tmp_path):
    """In whichever way the weights lie in files, they are the same."""
    expected = open_pipeline(folders["dit"][0], "auto", "auto", backend).denoiser
    model = folders["dit"][1]["transformer"]
    picture, step = latents(0, 4, 4, 3), np.array([9], np.float32)
    wanted, = expected.predict([picture], step, [expected.of_label(1)])

    def check(path):
        ours = open_pipeline(path, "auto", "auto", backend).denoiser
        got, = ours.predict([picture], step, [ours.of_label(1)])
        assert np.array_equal(got, wanted)

    for variant in (None, "fp16"):
        path = copied(folders, "dit", tmp_path / str(variant))
        weights = path / "transformer" / "diffusion_pytorch_model.safetensors"
        weights.rename(path / "transformer" / "diffusion_pytorch_model.fp16.safetensors")
        check(path)
        shutil.rmtree(path / "transformer")
        model.save_pretrained(path / "transformer", max_shard_size="100KB", variant=variant)
        assert len(list((path / "transformer").glob("*.safetensors"))) > 2
        check(path)
        shutil.copy(folders["dit"][0] / "transformer" / "diffusion_pytorch_model.safetensors", path / "transformer")
        check(path)  # the plain file comes first
    for name in ("fp16", "non_ema"):
        shutil.copy(folders["dit"][0] / "transformer" / "diffusion_pytorch_model.safetensors",
                    path / "transformer" / f"diffusion_pytorch_model.{name}.safetensors")
    check(path)
    (path / "transformer" / "diffusion_pytorch_model.safetensors").unlink()
    with pytest.raises(ModelFileError, match=r"several: .*fp16.*keep one"):
        check(path)


def refused(path, backend, error, said):
    with pytest.raises(error, match=said):
        open_pipeline(path, "auto", "auto", backend)


@pytest.mark.parametrize(("values", "error", "said"), [
    ({"_class_name": "FluxPipeline"}, UnsupportedModelError, "FluxPipeline.*DiTPipeline.*StableDiffusionPipeline"),
    ({"_class_name": "StableDifusionPipeline"}, UnsupportedModelError, "nearest: StableDiffusionPipeline"),
    ({"_class_name": ["pipeline", "Mine"]}, UnsupportedModelError, "own Python code"),
    ({"_class_name": None}, ModelFileError, "_class_name is missing"),
    ({"_class_name": 3}, ModelFileError, "_class_name"),
    ({"unet": None}, ModelFileError, "unet.*every StableDiffusionPipeline has"),
    ({"unet": [None, None]}, ModelFileError, "unet"),
    ({"unet": "UNet2DConditionModel"}, ModelFileError, "unet"),
    ({"unet": ["diffusers", "UNet2DModel"]}, UnsupportedModelError, "unet.*UNet2DModel.*UNet2DConditionModel"),
    ({"unet": ["my_unet", "UNet2DConditionModel"]}, UnsupportedModelError, "my_unet.*another library"),
    ({"vae": ["diffusers", "AutoencoderTiny"]}, UnsupportedModelError, "vae.*AutoencoderTiny.*AutoencoderKL"),
    ({"vae": None}, ModelFileError, "1 or 3 channels of pixels.*found 4"),
    ({"scheduler": [None, None]}, ModelFileError, "scheduler"),
    ({"text_encoder": ["transformers", "CLIPTextModelWithProjection"]}, UnsupportedModelError, "text_encoder"),
    ({"tokenizer": [None, None]}, ModelFileError, "tokenizer"),
    ({"text_encoder_2": ["transformers", "CLIPTextModel"]}, UnsupportedModelError, "text_encoder_2.*no place"),
    ({"force_zeros_for_empty_prompt": True}, UnsupportedModelError, "force_zeros_for_empty_prompt"),
], ids=str)
def test_an_index_that_is_refused(values, error, said, folders, backend, tmp_path):
    path = copied(folders, "sd", tmp_path)
    change(path, **values)
    refused(path, backend, error, said)


@pytest.mark.parametrize("text", ["", "[]", "{", '"x"', "{\"_class_name\": " + "9" * 5000 + "}", "\xff"])
def test_an_index_that_is_no_index(text, folders, backend, tmp_path):
    path = copied(folders, "dit", tmp_path)
    (path / INDEX).write_bytes(text.encode("latin-1"))
    refused(path, backend, ModelFileError, "model_index.json")


def test_components_that_look_at_pictures_are_left_out(folders, backend, tmp_path):
    path = copied(folders, "sd", tmp_path)
    change(path, safety_checker=["stable_diffusion", "StableDiffusionSafetyChecker"], image_encoder=[None, None],
           feature_extractor=["transformers", "CLIPImageProcessor"], requires_safety_checker=True)
    warning, = open_pipeline(path, "auto", "auto", backend).warnings
    assert "safety checker is not run" in warning


@pytest.mark.parametrize(("labels", "said"), [
    ({"7": "bird"}, "0 to 6"), ({"-1": "bird"}, "0 to 6"), ({"one": "bird"}, "0 to 6"), ({"1": 2}, "0 to 6"),
    ({"1": None}, "0 to 6"), (["cat"], "id2label"), ("cat", "id2label"), ({"\u0664": "bird"}, "0 to 6"),
    ({"9" * 5000: "bird"}, "0 to 6"),
])
def test_labels_that_are_wrong(labels, said, folders, backend, tmp_path):
    path = copied(folders, "dit", tmp_path)
    change(path, id2label=labels)
    refused(path, backend, ModelFileError, said)


def test_folders_and_files_that_are_missing(folders, backend, tmp_path):
    for name in ("unet", "vae", "text_encoder", "tokenizer", "scheduler"):
        path = copied(folders, "sd", tmp_path / name)
        shutil.rmtree(path / name)
        refused(path, backend, ModelFileError, f"{name}.*found none")
    for name in ("unet/config.json", "scheduler/scheduler_config.json", "tokenizer/merges.txt",
                 "vae/diffusion_pytorch_model.safetensors", "text_encoder/model.safetensors"):
        path = copied(folders, "sd", tmp_path / name.replace("/", "."))
        (path / name).unlink()
        refused(path, backend, ModelFileError, name.partition("/")[0])


def test_weights_that_may_run_code(folders, backend, tmp_path):
    for folder, old, new in (("unet", "diffusion_pytorch_model.safetensors", "diffusion_pytorch_model.bin"),
                             ("text_encoder", "model.safetensors", "pytorch_model.bin")):
        path = copied(folders, "sd", tmp_path / folder)
        (path / folder / old).rename(path / folder / new)
        refused(path, backend, ModelFileError, f"only '{new}', which may run code")


def test_components_of_different_models(folders, backend, tmp_path):
    """Each is whole, and they don't fit together. Both numbers are named."""
    path = copied(folders, "sd", tmp_path / "1")
    change(path / "unet" / "config.json", in_channels=9)
    refused(path, backend, ModelFileError, "conv_in.weight|9")
    path = copied(folders, "pixart", tmp_path / "2")
    shutil.rmtree(path / "transformer")
    tiny_pipelines.pixart(caption_channels=20).save_pretrained(path / "transformer")
    refused(path, backend, ModelFileError, "20 columns.*found 32")
    shutil.rmtree(path / "transformer")
    tiny_pipelines.pixart(in_channels=3, out_channels=3).save_pretrained(path / "transformer")
    refused(path, backend, ModelFileError, "autoencoder's 4 latent channels, found 3")
    shutil.rmtree(path / "transformer")
    tiny_pipelines.pixart(out_channels=6).save_pretrained(path / "transformer")
    refused(path, backend, ModelFileError, "predicts 4 channels, or 8 with variances, found 6")
    path = copied(folders, "pixart", tmp_path / "3")
    shutil.rmtree(path / "transformer")
    tiny_pipelines.dit().save_pretrained(path / "transformer")
    refused(path, backend, UnsupportedModelError, "DiTTransformer2DModel.*supported are PixArtTransformer2DModel")
    path = copied(folders, "pixart", tmp_path / "4")
    change(path / "vae" / "config.json", scaling_factor=0)
    refused(path, backend, ModelFileError, "scaling")
    path = copied(folders, "sd", tmp_path / "5")
    words = json.loads((path / "tokenizer" / "vocab.json").read_text())
    (path / "tokenizer" / "vocab.json").write_text(json.dumps(words | {"more": 300}))
    refused(path, backend, ModelFileError, "300 tokens, found 301")


def test_weights_that_are_cut_off(folders, backend, tmp_path):
    """What was opened before is closed again: the files can be taken away, and nothing holds them."""
    path = copied(folders, "sd", tmp_path)
    weights = path / "vae" / "diffusion_pytorch_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    refused(path, backend, ModelFileError, "truncated")
    maps = Path("/proc/self/maps").read_text()
    assert str(path) not in maps
