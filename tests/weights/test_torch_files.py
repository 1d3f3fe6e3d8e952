"""Torch checkpoints: read through torch's weights-only loader, refused where they hold anything else."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch

import forwardpass
import tiny_models
from agreement import reference_logits, relative_error
from forwardpass.errors import ModelFileError, UnsupportedModelError
from forwardpass.weights.dequantize import dequantize
from forwardpass.weights.folder import folder_files, open_folder
from forwardpass.weights.torch_files import open_torch

PROMPT = list(range(2, 30))


def save(model, directory, name="pytorch_model.bin", **options):
    state = model.state_dict()
    torch.save(state, directory / name, **options)
    model.config.save_pretrained(directory)
    return state


@pytest.mark.parametrize("name", ["pytorch_model.bin", "weights.pt", "last.pth"])
@pytest.mark.parametrize("zipped", [True, False])
def test_logits(tmp_path, name, zipped):
    """A tied head is the same storage under two names; old files cannot be mapped."""
    reference = tiny_models.make("llama", tie_word_embeddings=True)
    save(reference, tmp_path, name, _use_new_zipfile_serialization=zipped)
    with forwardpass.load(tmp_path, dtype="float32") as model:
        assert model.spec.tied
        assert relative_error(model.logits(PROMPT), reference_logits(reference, PROMPT)) < 1e-4


def test_shards(tmp_path):
    reference = tiny_models.make("llama")
    state = list(reference.state_dict().items())
    files = {f"pytorch_model-0000{part + 1}-of-00002.bin": dict(state[part::2]) for part in range(2)}
    for name, part in files.items():
        torch.save(part, tmp_path / name)
    index = {"weight_map": {key: name for name, part in files.items() for key in part}}
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    reference.config.save_pretrained(tmp_path)
    with forwardpass.load(tmp_path, dtype="float32") as model:
        assert relative_error(model.logits(PROMPT), reference_logits(reference, PROMPT)) < 1e-4
    assert {file.name for file in folder_files(tmp_path)} == {*files, "pytorch_model.bin.index.json", "config.json"}
    (tmp_path / "pytorch_model-00002-of-00002.bin").unlink()
    with pytest.raises(ModelFileError, match="nothing at this path"):
        open_torch(tmp_path / "pytorch_model.bin.index.json")
    for bad in ({"a": "../x.bin"}, {"a": "x.exe"}, {}, [], None):
        (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": bad}))
        with pytest.raises(ModelFileError, match="index"):
            open_torch(tmp_path / "pytorch_model.bin.index.json")


def test_values_of_every_type_and_nested_dictionaries(tmp_path):
    tensors = {"a": torch.randn(3, 5), "b": torch.randn(4).to(torch.bfloat16), "c": torch.randn(2, 2).half(),
               "t": torch.randn(3, 4).T, "s": torch.tensor(2.5)}
    torch.save({"state_dict": tensors, "epoch": 3}, tmp_path / "m.pt")
    with open_torch(tmp_path / "m.pt") as source:
        for name, tensor in tensors.items():
            info = source.tensors[name]
            values = dequantize(info.type, source.data(name), info.shape)
            assert np.array_equal(values, tensor.float().numpy()) and not source.data(name).flags.writeable
    with pytest.raises(ModelFileError, match="closed"):
        source.data("a")


class Attack:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_a_pickle_that_runs_code_does_not_run_it(tmp_path):
    trap = tmp_path / "ran"
    torch.save({"w": torch.zeros(2), "x": Attack(trap)}, tmp_path / "pytorch_model.bin")
    (tmp_path / "plain.pt").write_bytes(pickle.dumps(Attack(trap)))
    (tmp_path / "inside.pt").write_bytes(pickle.dumps({"w": Attack(trap)}, protocol=2))
    for name in ("pytorch_model.bin", "plain.pt", "inside.pt"):
        with pytest.raises(ModelFileError, match="weights and nothing else"):
            open_torch(tmp_path / name)
    assert not trap.exists()


@pytest.mark.parametrize(("value", "match"), [
    ([torch.zeros(2)], "dictionary of tensors, found a list"), ({}, "dictionary of tensors"),
    ({"a": 3}, "tensors by name"), ({1: torch.zeros(2)}, "tensors by name"),
    ({"a": torch.zeros(1).expand(1 << 40)}, "bytes for tensor 'a', found 4 bytes"),
])
def test_what_is_not_a_dictionary_of_tensors(tmp_path, value, match):
    torch.save(value, tmp_path / "m.pt")
    with pytest.raises(ModelFileError, match=match):
        open_torch(tmp_path / "m.pt")


def test_sparse_tensors(tmp_path):
    torch.save({"a": torch.eye(3).to_sparse()}, tmp_path / "m.pt")
    with pytest.raises(UnsupportedModelError, match="sparse"):
        open_torch(tmp_path / "m.pt")


@pytest.mark.parametrize("raw", [b"", b"x", b"PK\3\4", b"PK\3\4" + bytes(200), bytes(4000), b"\x80\x02}q\0."])
def test_damaged_files(tmp_path, raw):
    (tmp_path / "m.pt").write_bytes(raw)
    with pytest.raises(ModelFileError):
        open_torch(tmp_path / "m.pt")
    torch.save({"a": torch.zeros(1000)}, tmp_path / "m.pt")
    whole = (tmp_path / "m.pt").read_bytes()
    (tmp_path / "m.pt").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ModelFileError, match="weights and nothing else"):
        open_torch(tmp_path / "m.pt")
    os.mkfifo(tmp_path / "pipe.pt")
    with pytest.raises(ModelFileError, match="regular file"):
        open_torch(tmp_path / "pipe.pt")


def test_without_torch_the_error_says_how_to_convert_and_that_works(tmp_path, monkeypatch):
    reference = tiny_models.make("llama")
    save(reference, tmp_path)
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "torch", None)
        with pytest.raises(UnsupportedModelError, match="only torch can read") as caught:
            forwardpass.load(tmp_path)
    code = str(caught.value).split("\n", 1)[1]
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, timeout=120)
    (tmp_path / "pytorch_model.bin").write_bytes(b"no longer looked at")
    with forwardpass.load(tmp_path, dtype="float32") as model:
        assert relative_error(model.logits(PROMPT), reference_logits(reference, PROMPT)) < 1e-4


def test_torch_is_imported_for_nothing_else(tmp_path):
    tiny_models.save(tiny_models.make("llama"), tmp_path)
    code = ("import sys, forwardpass; forwardpass.load(sys.argv[1]).close(); "
            "assert 'torch' not in sys.modules, 'imported'")
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, timeout=120)


def test_safetensors_come_first(tmp_path):
    model = tiny_models.make("llama")
    tiny_models.save(model, tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"not a checkpoint")
    with open_folder(tmp_path, {}) as source:
        assert source.path.name == "model.safetensors"
