"""Each family against transformers: the spec and the weight rows mean what the original model computes."""

from __future__ import annotations

import json

import numpy as np
import pytest

import tiny_gguf
import tiny_models
from forwardpass.errors import ModelFileError, UnsupportedModelError
from forwardpass.models import registry
from forwardpass.models.hf_config import read_config
from forwardpass.models.rotary import rotary
from forwardpass.weights.gguf import open_gguf
from forwardpass.weights.safetensors import open_safetensors

IDS = np.random.default_rng(1).integers(2, tiny_models.VOCABULARY, 40).tolist()
CASES = tiny_models.CASES | {
    "gpt2-by-layer": ("gpt2", {"scale_attn_by_inverse_layer_idx": True, "n_inner": 40}),
    "llama-proportional": ("llama", {"rope_parameters": dict(rope_type="proportional", rope_theta=1e4, factor=2.0,
                                                             partial_rotary_factor=0.5)}),
    "gpt2-unscaled": ("gpt2", {"scale_attn_weights": False, "tie_word_embeddings": False}),
}
GGUF_CASES = [case for case in tiny_models.CASES if case not in tiny_gguf.BEYOND]


def reference(model):
    import torch

    with torch.no_grad():
        return model(torch.tensor([IDS])).logits[0].numpy()


def close(ours, theirs):
    return np.abs(ours - theirs).max() / np.abs(theirs).max() < 1e-5


@pytest.mark.parametrize("case", CASES)
def test_logits_equal_transformers(case, tmp_path, tools):
    """The plain meaning of the spec, with the weights put where its rows say."""
    family, changes = CASES[case]
    model = tiny_models.make(family, **changes)
    with open_safetensors(tiny_models.save(model, tmp_path)) as source:
        checkpoint = registry.read(source, read_config(tmp_path).values)
        ours = tools.numpy_logits(checkpoint.spec, tools.load_rows(checkpoint, source), IDS)
    assert close(ours, reference(model)) and checkpoint.warnings == ()
    assert checkpoint.spec.tied == model.config.tie_word_embeddings and checkpoint.spec.family == family


@pytest.mark.parametrize("case", GGUF_CASES)
def test_gguf_logits_equal_transformers(case, tmp_path, tools):
    family, changes = tiny_models.CASES[case]
    model = tiny_models.make(family, **changes)
    with open_gguf(tiny_gguf.save(model, tmp_path / "m.gguf", "F32")) as source:
        checkpoint = registry.read(source)
        ours = tools.numpy_logits(checkpoint.spec, tools.load_rows(checkpoint, source), IDS)
    assert close(ours, reference(model)) and checkpoint.warnings == ()


@pytest.mark.parametrize("case", ["llama", "llama-biases", "llama-heads", "llama-yarn", "qwen2-tied", "qwen3",
                                  "qwen3_moe", "gemma2", "gemma3", "phi3-long", "stablelm-parallel", "olmo2", "gpt2",
                                  "bigcode", "gptj", "neox", "neox-sequential", "bloom", "mpt-clipped", "falcon",
                                  "falcon-new", "falcon-one-norm", "phi"])
def test_gguf_gives_the_same_spec_and_weights(case, tmp_path, tools):
    family, changes = tiny_models.CASES[case]
    path = tiny_gguf.save(tiny_models.make(family, **changes), tmp_path / "m.gguf", "F32")
    directory = path.with_suffix("")
    with open_gguf(path) as stored, open_safetensors(directory) as source:
        ours, theirs = registry.read(stored), registry.read(source, read_config(directory).values)
        assert ours.spec == theirs.spec
        ours, theirs = tools.load_rows(ours, stored), tools.load_rows(theirs, source)
        assert ours.keys() == theirs.keys()
        for target in ours:
            assert np.array_equal(ours[target], theirs[target]), target


@pytest.mark.parametrize(("family", "changes", "said"), [
    ("mixtral", {"num_local_experts": 6}, r"missing: expected .*experts\.5\.w1\.weight \[80, 48\]"),
    ("mixtral", {"num_local_experts": 4}, r"unexpected: .*experts\.4\.w1\.weight"),
    ("qwen2_moe", {"moe_intermediate_size": 40}, r"experts\.0\.gate_proj\.weight: expected \[40, 48\], found \[32"),
    ("qwen2_moe", {"mlp_only_layers": [1]}, r"missing: expected model\.layers\.1\.mlp\.gate_proj"),
    ("qwen3", {"head_dim": 24}, r"q_norm\.weight: expected \[24\], found \[20\]"),
    ("phi3", {"num_key_value_heads": 3}, r"qkv_proj\.weight: expected \[144, 48\], found \[80, 48\]"),
    ("phi3", {"intermediate_size": 88}, r"gate_up_proj\.weight: expected \[176, 48\], found \[160, 48\]"),
    ("gemma2", {"num_hidden_layers": 3, "layer_types": None}, r"missing: .*layers\.2"),
    ("stablelm", {"use_qkv_bias": False}, r"unexpected: .*q_proj\.bias"),
    ("stablelm", {"qk_layernorm": True}, r"missing: .*q_layernorm\.norms\.2\.weight \[16\]"),
    ("cohere", {"use_qk_norm": True}, r"missing: .*q_norm\.weight \[6, 8\]"),
    ("granite", {"mlp_bias": True}, r"missing: .*up_proj\.bias"),
])
def test_a_config_that_contradicts_the_tensors(family, changes, said, tmp_path):
    tiny_models.save(tiny_models.make(family), tmp_path)
    with open_safetensors(tmp_path) as source, pytest.raises(ModelFileError, match=said):
        registry.read(source, read_config(tmp_path).values | changes)


@pytest.mark.parametrize(("family", "changes", "error", "said"), [
    ("smollm3", {"no_rope_layers": [1, 0]}, ModelFileError, "a list of 4 ones and zeros"),
    ("smollm3", {"no_rope_layers": [1, 0, 2, 1]}, ModelFileError, "a list of 4 ones and zeros"),
    ("gemma3_text", {"layer_types": ["sliding_attention"]}, ModelFileError, "a list of 2 layer types"),
    ("gemma3_text", {"layer_types": ["sliding_attention", "chunked_attention"]}, UnsupportedModelError, "chunked"),
    ("gemma3_text", {"sliding_window": None}, ModelFileError, "sliding_window"),
    ("gemma3_text", {"rope_parameters": {"full_attention": {"rope_type": "spiral"}}}, UnsupportedModelError, "llama3"),
    ("gemma2", {"attn_logit_softcapping": -1.0}, ModelFileError, "attn_logit_softcapping"),
    ("gemma2", {"query_pre_attn_scalar": 0}, ModelFileError, "query_pre_attn_scalar"),
    ("gemma3", {"text_config": None}, ModelFileError, "text_config"),
    ("granite", {"logits_scaling": 0.0}, ModelFileError, "logits_scaling"),
    ("granite", {"attention_multiplier": float("nan")}, ModelFileError, "attention_multiplier"),
    ("qwen3_moe", {"num_experts_per_tok": 6}, ModelFileError, "6 of 5"),
    ("qwen3_moe", {"mlp_only_layers": "1"}, ModelFileError, "mlp_only_layers"),
    ("qwen3_moe", {"decoder_sparse_step": 0}, ModelFileError, "decoder_sparse_step"),
    ("phi3", {"rope_parameters": tiny_models.LONG | {"long_factor": [1.0] * 3}}, ModelFileError, "long_factor"),
    ("phi3", {"rope_parameters": tiny_models.LONG | {"short_factor": [0.0] * 6}}, ModelFileError, "short_factor"),
])
def test_settings_that_must_stop(family, changes, error, said, tmp_path):
    """Before any weight is looked at."""
    values = read_config(tiny_models.save(tiny_models.make(family), tmp_path)).values
    registry.spec_from_config(values)
    with pytest.raises(error, match=said) as raised:
        registry.spec_from_config(values | changes)
    assert len(str(raised.value)) < 600


@pytest.mark.parametrize("case", ["gemma", "gemma2", "gemma3"])
def test_every_gemma_norm_is_one_more_than_it_says(case, tmp_path, tools):
    """In a checkpoint; a GGUF file already holds 1 + w."""
    import torch

    model = tiny_models.make(tiny_models.CASES[case][0])
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.fill_(0.25)
    path = tiny_gguf.save(model, tmp_path / "m.gguf", "F32")
    with open_gguf(path) as stored, open_safetensors(tmp_path / "m") as source:
        ours = tools.load_rows(registry.read(stored), stored)
        theirs = registry.read(source, read_config(tmp_path / "m").values)
        for weights in (ours, tools.load_rows(theirs, source)):
            norms = {target: array for target, array in weights.items() if "norm" in target}
            assert len(norms) == {"gemma": 5, "gemma2": 9, "gemma3": 13}[case]
            assert all((array == 1.25).all() for array in norms.values())


@pytest.mark.parametrize(("name", "full"), [("gemma2", [1, 3, 5]), ("gemma3", [5]), ("cohere2", [3])])
def test_gguf_layers_with_windows_where_the_file_does_not_say(name, full):
    """Every second or every sixth layer of Gemma, every fourth of Command R7B sees everything."""
    eps = "layer_norm_epsilon" if name == "cohere2" else "layer_norm_rms_epsilon"
    settings = {"block_count": 7, "context_length": 128, "embedding_length": 48, "feed_forward_length": 80,
                "vocab_size": 9, "attention.head_count": 4, f"attention.{eps}": 1e-5}
    metadata = {"general.architecture": name} | {f"{name}.{key}": value for key, value in settings.items()}
    whole = registry.spec_from_gguf(metadata, {})
    assert not any(layer.attention.window for layer in whole.layers)
    spec = registry.spec_from_gguf(metadata | {f"{name}.attention.sliding_window": 16}, {})
    assert [i for i, layer in enumerate(spec.layers) if not layer.attention.window] == full


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
        assert len(str(error.value)) < 900


def test_config_directory(tiny):
    made = tiny("llama", eos_token_id=[1, 4])
    (made.directory / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 1], "top_k": 3}))
    config = read_config(made.directory)
    assert (config.model_type, config.dtype, config.eos_token_ids) == ("llama", "float32", (1, 4, 5))
    assert config.generation["top_k"] == 3
