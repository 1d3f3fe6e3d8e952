"""Explain of pictures: every part has its lines, counted as the parts count themselves."""

import warnings

import numpy as np
import pytest

import forwardpass
import tiny_pipelines
from forwardpass.explain import measured
from forwardpass.explain.verdict import Line, verdict

LIMITS = {
    "isa": "test", "threads": 1,
    "read_bytes_s": {"1MiB": 100e9, "16MiB": 50e9, "96MiB": 20e9, "512MiB": 10e9},
    "matrix_ops_s": {"int8": 4e12, "bfloat16": 2e12, "float32": 1e12},
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("sd")
    tiny_pipelines.write_stable_diffusion(path)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*safety checker")
        model = forwardpass.load(path, dtype="float32", threads=1)
    with model:
        yield model


@pytest.fixture(autouse=True)
def limits(monkeypatch):
    monkeypatch.setattr(measured, "measured", lambda *given, **named: LIMITS)


def test_pictures(model):
    size = {"height": 16, "width": 24}
    report = model.explain("a cat", num_inference_steps=3, num_images_per_prompt=2, **size)
    phases = {line.phase for line in report.lines}
    assert phases == {"read", "denoise", "decode"}
    steps = {line.op: line for line in report.lines if line.stage == "denoise"}
    counted = model.denoiser.operations(8, 12, 16)
    assert steps.keys() >= {"conv", "attention", "cross", "group_norm", "time"}
    for op, line in steps.items():  # two pictures with both halves of guidance in each of three passes
        if op in counted:
            assert line.flops == 12 * counted[op].flops and line.bytes == 3 * 4 * counted[op].read
            assert line.seconds > 0
    assert sum(line.flops for line in steps.values()) == 12 * model.denoiser.flops(8, 12, 16)
    decoded = [line for line in report.lines if line.stage == "decode" and line.phase == "decode"]
    assert sum(line.flops for line in decoded) == 2 * model.autoencoder.flops(8, 12)
    assert {line.op for line in report.lines if line.phase == "read"} >= {"qkv", "attention", "cross_kv", "embed"}
    assert [note.split(" of ")[0] for note in report.notes[:1]] == ["6 denoising steps"]
    assert "in 3 passes of" in report.notes[0] and "4 latents in each" in report.notes[0]
    assert any(note.startswith("2 prompt(s) read in") for note in report.notes)
    assert any(note.startswith("2 picture(s) decoded in") for note in report.notes)
    assert "memory: up to" in report.notes[-1] and report.notes[-1] in str(report)
    assert report.to_dict()["notes"] == list(report.notes) and len(report.completion.images) == 2
    assert not model.denoiser.backend.timed and model.engine.noted is None
    begun = model.explain("a cat", num_inference_steps=2, image=np.zeros((16, 24, 3), np.uint8), guidance_scale=1)
    assert any(note.startswith("1 image(s) encoded in") for note in begun.notes)
    assert {line.phase for line in begun.lines} == {"read", "encode", "denoise", "decode"}
    encoded = sum(line.flops for line in begun.lines if line.phase == "encode")
    assert encoded == sum(cost.flops for cost in model.autoencoder.operations(8, 12, True).values())


@pytest.mark.parametrize(("line", "said"), [
    (Line("denoise", "denoise", "conv", 1.0, compute_s=0.8), "take fewer steps"),
    (Line("denoise", "denoise", "conv", 1.0, read_s=0.7), "draw several pictures at once"),
    (Line("denoise", "denoise", "attention", 1.0, compute_s=0.8), "draw smaller pictures"),
])
def test_advice(line, said):
    assert said in verdict([line], drawing=True) and said not in verdict([line])
