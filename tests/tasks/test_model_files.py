"""`forwardpass.load` as its users know it: every dtype, and what is said about files and options that are wrong."""

import struct

import numpy as np
import pytest

import forwardpass
from forwardpass import ForwardpassError, ModelFileError, ParameterError, UnsupportedModelError

NEW = {"max_new_tokens": 6, "eos_token_id": []}


def test_missing_file(tmp_path):
    for path in (tmp_path / "none.gguf", "no-such-model"):
        with pytest.raises(ForwardpassError, match=str(getattr(path, "name", path))):
            forwardpass.load(path)


@pytest.mark.parametrize("content", [b"", b"GGUF", b"not a model at all, only text"])
def test_corrupt_file(tmp_path, content):
    path = tmp_path / "broken.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelFileError, match=r"broken\.gguf"):
        forwardpass.load(path)


def test_corrupt_directory(tiny_folder, tmp_path):
    with pytest.raises(ForwardpassError):
        forwardpass.load(tmp_path)
    wrong = {"config.json": b"{", "model.safetensors": struct.pack("<Q", 1 << 63), "tokenizer.json": b"[]"}
    for name, content in wrong.items():
        folder = tiny_folder()
        (folder / name).write_bytes(content)
        with pytest.raises(ModelFileError):
            forwardpass.load(folder)


def test_truncated_weights(tiny_folder):
    folder = tiny_folder()
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ModelFileError, match="safetensors"):
        forwardpass.load(folder)


def test_unsupported_models_say_what_is_supported(tiny_folder, tiny_arrays):
    with pytest.raises(UnsupportedModelError, match=r"mamba.*llama"):
        forwardpass.load(tiny_folder(model_type="mamba"))
    arrays = tiny_arrays()
    arrays["model.norm.weight"] = np.ones(48, np.int64)
    with pytest.raises(UnsupportedModelError, match=r"I64.*F32"):
        forwardpass.load(tiny_folder(arrays=arrays))


def test_a_shape_that_does_not_fit_names_the_tensor(tiny_folder, tiny_arrays):
    arrays = tiny_arrays()
    arrays["model.layers.1.mlp.up_proj.weight"] = np.ones((80, 47), np.float32)
    del arrays["model.layers.0.self_attn.q_proj.weight"]
    with pytest.raises(ModelFileError, match=r"q_proj[\s\S]*up_proj|up_proj[\s\S]*q_proj"):
        forwardpass.load(tiny_folder(arrays=arrays))


def test_weights_that_are_no_numbers(tiny_folder, tiny_arrays):
    for name in ("model.norm.weight", "model.layers.0.mlp.down_proj.weight"):
        arrays = tiny_arrays()
        arrays[name].flat[3] = np.nan
        with pytest.raises(ModelFileError, match=name):
            forwardpass.load(tiny_folder(arrays=arrays))


@pytest.mark.parametrize("given", [{"dtype": "int5"}, {"kv_dtype": "int4"}, {"device": "cuda"}, {"threads": 0},
                                   {"threads": "2"}, {"threads": True}])
def test_wrong_options_of_load(tiny_folder, given):
    with pytest.raises(ParameterError, match=str(next(iter(given.values())))):
        forwardpass.load(tiny_folder(), **given)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "int4"])
@pytest.mark.parametrize("kv_dtype", ["auto", "int8"])
def test_every_dtype_answers_alike_alone_and_together(tiny_folder, dtype, kv_dtype):
    with forwardpass.load(tiny_folder(), dtype=dtype, kv_dtype=kv_dtype) as model:
        assert model.kv_dtype == (kv_dtype if kv_dtype != "auto" else {"float32": "float32"}.get(dtype, "bfloat16"))
        together = model.generate([[1, 2, 3], [9] * 70], **NEW)
        assert [one.token_ids for one in together] == [model.generate(one.prompt_token_ids, **NEW).token_ids
                                                       for one in together]
