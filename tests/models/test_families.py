"""Each family against transformers: the spec and the weight rows mean what the original model computes."""

from __future__ import annotations

import json

import numpy as np
import pytest

from forwardpass.errors import ModelFileError, UnsupportedModelError
from forwardpass.models import registry
from forwardpass.models.hf_config import read_config
from forwardpass.models.rotary import rotary

IDS = [3, 17, 5, 60, 0, 22, 9, 9, 41, 63, 2, 30]
CASES = {
    "llama": ("llama", {}),
    "llama biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama head_dim": ("llama", {"head_dim": 20, "num_key_value_heads": 4, "tie_word_embeddings": True}),
    "llama theta": ("llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 100000.0}}),
    "qwen2": ("qwen2", {}),
    "qwen2 tied": ("qwen2", {"tie_word_embeddings": True, "num_key_value_heads": 1}),
    "gpt2": ("gpt2", {}),
    "gpt2 scaled by layer": ("gpt2", {"scale_attn_by_inverse_layer_idx": True, "n_inner": 40}),
    "gpt2 unscaled": ("gpt2", {"scale_attn_weights": False, "tie_word_embeddings": False}),
}


@pytest.mark.parametrize("case", CASES)
def test_logits_equal_transformers(case, tiny, tools):
    import torch

    name, changes = CASES[case]
    made = tiny(name, **changes)
    ours = tools.numpy_logits(made.checkpoint.spec, tools.load_rows(made.checkpoint, made.source), IDS)
    with torch.no_grad():
        theirs = made.model(torch.tensor([IDS])).logits[0].numpy()
    assert np.abs(ours - theirs).max() / np.abs(theirs).max() < 1e-5
    assert made.checkpoint.warnings == ()
    assert made.checkpoint.spec.tied == made.model.config.tie_word_embeddings


def as_gguf(made, tools):
    """The same model as llama.cpp's converter would store it: its names, and llama's heads interleaved."""
    spec, weights = made.checkpoint.spec, tools.load_rows(made.checkpoint, made.source)
    module, first = registry.FAMILIES[spec.family], spec.layers[0]
    heads = {"q": first.attention.num_heads, "k": first.attention.num_kv_heads}
    arrays = {}
    for row in module.weight_rows(spec, "gguf"):
        if row.target not in weights:
            continue
        array = weights[row.target]
        part = row.target.split(".")[3] if ".attention." in row.target else ""
        if spec.family == "llama" and part in heads:  # the published conversion, after which rows are 2j + t
            array = array.reshape(heads[part], 2, -1, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)
        if spec.family == "gpt2" and part in ("q", "k", "v"):
            array = np.concatenate([weights[row.target.replace(f".{part}.", f".{p}.")] for p in "qkv"])
        arrays[row.sources[0]] = array
    eps = "layer_norm_epsilon" if spec.family == "gpt2" else "layer_norm_rms_epsilon"
    settings = {"block_count": len(spec.layers), "context_length": spec.max_position_embeddings,
                "embedding_length": spec.hidden_size, "feed_forward_length": first.mlp.intermediate_size,
                "attention.head_count": heads["q"], "attention.head_count_kv": heads["k"],
                f"attention.{eps}": spec.final_norm.eps}
    if spec.family != "gpt2":
        settings |= {"rope.freq_base": 10000.0, "attention.key_length": first.attention.head_dim}
    metadata = {f"{spec.family}.{key}": value for key, value in settings.items()}
    metadata |= {"general.architecture": spec.family, "tokenizer.ggml.tokens": ["x"] * spec.vocab_size}
    return tools.FakeSource("gguf", arrays, metadata)


@pytest.mark.parametrize("case", ["llama", "llama biases", "llama head_dim", "qwen2", "qwen2 tied", "gpt2"])
def test_gguf_gives_the_same_spec_and_weights(case, tiny, tools):
    name, changes = CASES[case]
    made = tiny(name, **changes)
    source = as_gguf(made, tools)
    checkpoint = registry.read(source)
    assert checkpoint.spec == made.checkpoint.spec
    ours, theirs = tools.load_rows(checkpoint, source), tools.load_rows(made.checkpoint, made.source)
    assert ours.keys() == theirs.keys()
    for target in ours:
        assert np.array_equal(ours[target], theirs[target]), target


def test_gpt2_without_prefix_and_with_masks(tiny, tools):
    """The first published gpt2 files: no "transformer.", and causal masks saved as tensors."""
    made = tiny("gpt2")
    arrays = {name.removeprefix("transformer."): t.numpy() for name, t in made.model.state_dict().items()}
    del arrays["lm_head.weight"]
    for i in range(2):
        arrays[f"h.{i}.attn.bias"] = np.ones((1, 1, 128, 128), np.float32)
        arrays[f"h.{i}.attn.masked_bias"] = np.float32([-1e4]).reshape(())
    source = tools.FakeSource("safetensors", arrays)
    checkpoint = registry.read(source, made.config.values)
    ours, theirs = tools.load_rows(checkpoint, source), tools.load_rows(made.checkpoint, made.source)
    assert all(np.array_equal(ours[target], theirs[target]) for target in theirs)


def test_llama_frequency_buffers_are_ignored(tiny, tools):
    made = tiny("llama")
    arrays = {name: t.numpy() for name, t in made.model.state_dict().items()}
    arrays["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(6, np.float32)
    assert registry.read(tools.FakeSource("safetensors", arrays), made.config.values).spec == made.checkpoint.spec


@pytest.mark.parametrize(("dim", "theta"), [(64, 1e4), (64, 1e5), (64, 1e6), (128, 1e4), (128, 5e5), (48, 1e4)])
def test_frequencies_equal_torch(dim, theta):
    import torch

    theirs = (1.0 / (theta ** (torch.arange(0, dim, 2, dtype=torch.float) / dim))).numpy()
    assert np.array_equal(np.float32(rotary(dim, theta).inv_freq), theirs)


@pytest.mark.parametrize("theta", [1e4, 130000.0, 1e6])
@pytest.mark.parametrize("dim", [2, 96, 112, 256])
def test_frequencies_within_one_unit_of_torch(dim, theta):
    """torch's float32 power is not always the nearest float32; ours is."""
    import torch

    theirs = (1.0 / (theta ** (torch.arange(0, dim, 2, dtype=torch.float) / dim))).numpy()
    ours = np.float32(rotary(dim, theta).inv_freq)
    assert np.abs(ours.view(np.int32) - theirs.view(np.int32)).max() <= 1


def test_odd_rotary_dimension():
    with pytest.raises(ModelFileError, match="even"):
        rotary(15, 1e4)


def test_smollm2(smollm2):
    checkpoint = registry.read(smollm2)
    spec, a = checkpoint.spec, checkpoint.spec.layers[0].attention
    assert (spec.family, spec.hidden_size, spec.vocab_size, len(spec.layers)) == ("llama", 576, 49152, 30)
    assert (a.num_heads, a.num_kv_heads, a.head_dim, a.scale) == (9, 3, 64, 0.125)
    assert (spec.tied, spec.max_position_embeddings, checkpoint.warnings) == (True, 8192, ())
    assert len(checkpoint.weights) == len(smollm2.tensors)
    rows = {one.target: one.row for one in checkpoint.weights}
    assert rows["layers.7.attention.q.weight"].heads == 9 and rows["layers.7.attention.k.weight"].heads == 3
    assert rows["layers.7.attention.v.weight"].transform == "none"


@pytest.mark.parametrize(("given", "nearest"), [("lama", "llama"), ("quen2", "qwen2"), ("xlstm", ""),
                                                 pytest.param("x" * 10**6, "", id="huge")])
def test_unknown_family_lists_the_known(given, nearest):
    for call in (lambda: registry.spec_from_config({"model_type": given}),
                 lambda: registry.spec_from_gguf({"general.architecture": given}, {})):
        with pytest.raises(UnsupportedModelError, match=r"gpt2, .*llama, .*qwen2") as error:
            call()
        assert (f"nearest: {nearest}" in str(error.value)) == bool(nearest)
        assert len(str(error.value)) < 500


def test_config_directory(tiny):
    made = tiny("llama", eos_token_id=[1, 4])
    (made.directory / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 1], "top_k": 3}))
    config = read_config(made.directory)
    assert (config.model_type, config.dtype, config.eos_token_ids) == ("llama", "float32", (1, 4, 5))
    assert config.generation["top_k"] == 3
