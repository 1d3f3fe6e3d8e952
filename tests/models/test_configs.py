"""Spellings of HF configs and GGUF metadata, and everything that must stop with a named error."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from forwardpass.errors import ForwardpassError, ModelFileError, UnsupportedModelError
from forwardpass.models import registry
from forwardpass.models.fields import Fields
from forwardpass.models.hf_config import dtype_of, read_config
from forwardpass.weights.source import TensorInfo

LLAMA4 = {  # as transformers 4 wrote it
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 64, "hidden_size": 48,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 80,
    "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "rope_theta": 50000.0, "rope_scaling": None,
    "hidden_act": "silu", "tie_word_embeddings": True, "torch_dtype": "bfloat16", "attention_bias": False,
    "pretraining_tp": 1, "use_cache": True, "rope_interleaved": False, "transformers_version": "4.42.3",
}
QWEN4 = LLAMA4 | {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "sliding_window": 32,
                  "use_sliding_window": False, "max_window_layers": 2}
GPT4 = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": 64, "n_embd": 48, "n_layer": 2,
        "n_head": 4, "n_positions": 128, "n_ctx": 128, "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new"}
MISTRAL4 = LLAMA4 | {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": 32}
MIXTRAL4 = MISTRAL4 | {"model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "num_local_experts": 8,
                       "num_experts_per_tok": 2}
BASES = {"llama": LLAMA4, "qwen2": QWEN4, "gpt2": GPT4, "mistral": MISTRAL4, "mixtral": MIXTRAL4}


def without(config, *names):
    return {name: value for name, value in config.items() if name not in names}


def test_spellings_of_4_and_5_are_one_spec():
    five = without(LLAMA4, "rope_theta", "rope_scaling", "torch_dtype") | {
        "dtype": "bfloat16", "head_dim": 12, "rope_parameters": {"rope_theta": 50000.0, "rope_type": "default"}}
    assert registry.spec_from_config(LLAMA4) == registry.spec_from_config(five)
    assert dtype_of(Fields(LLAMA4, "c")) == dtype_of(Fields(five, "c")) == "bfloat16"
    assert dtype_of(Fields({"torch_dtype": "torch.float16"}, "c")) == "float16"
    old = {"n_embd": "hidden_size", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads"}
    renamed = {old.get(name, name): value for name, value in GPT4.items()}
    assert registry.spec_from_config(GPT4) == registry.spec_from_config(renamed)


def test_defaults_are_those_of_transformers():
    spec = registry.spec_from_config(without(LLAMA4, "num_key_value_heads", "rope_theta", "rms_norm_eps",
                                             "tie_word_embeddings", "max_position_embeddings", "hidden_act"))
    layer = spec.layers[0]
    assert layer.attention.num_kv_heads == 4 and layer.mlp.activation == "silu" and not spec.tied
    assert spec.max_position_embeddings == 2048 and spec.final_norm.eps == np.float32(1e-6)
    assert np.isclose(layer.attention.rotary.inv_freq[1], 1e4 ** (-2 / 12))
    spec = registry.spec_from_config(without(GPT4, "n_positions", "activation_function", "layer_norm_epsilon"))
    assert spec.learned_positions == 1024 and spec.tied and spec.layers[0].mlp.intermediate_size == 4 * 48


@pytest.mark.parametrize(("name", "changes"), [
    ("llama", {"rope_scaling": {"rope_type": "default"}}), ("llama", {"rope_scaling": {}}),
    ("llama", {"quantization_config": None}), ("llama", {"architectures": None}), ("llama", {"sliding_window": None}),
    ("llama", {"sliding_window": 128}), ("llama", {"partial_rotary_factor": 1.0}), ("llama", {"num_experts": 0}),
    ("llama", {"rope_parameters": {"type": "default", "rope_theta": 50000}}),
    ("qwen2", {"use_sliding_window": True}),  # max_window_layers covers every layer
    ("qwen2", {"layer_types": ["full_attention"] * 2, "sliding_window": None}),
    ("qwen2", {"use_sliding_window": True, "max_window_layers": 0, "sliding_window": 500}),
    ("gpt2", {"activation_function": "gelu_pytorch_tanh"}), ("gpt2", {"n_inner": None}),
])
def test_settings_without_effect(name, changes):
    assert registry.spec_from_config(BASES[name] | changes).family == name


@pytest.mark.parametrize(("name", "changes", "said"), [
    ("llama", {"rope_scaling": {"type": "ntk-by-hand", "factor": 2.0}}, "ntk-by-hand"),
    ("llama", {"rope_parameters": {"rope_type": "default", "factor": 8.0}}, "factor"),
    ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 8.0, "mrope_section": [1, 2]}}, "mrope_section"),
    ("llama", {"rope_parameters": {"full_attention": {}, "other_attention": {}}}, "other_attention"),
    ("gpt2", {"rope_scaling": {"type": "linear", "factor": 2.0}}, "linear"),
    ("gpt2", {"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
    ("llama", {"hidden_act": "xielu"}, "xielu"),
    ("llama", {"num_local_experts": 8}, "mixture of experts"), ("llama", {"logits_scaling": 2.0}, "scaled logits"),
    ("llama", {"use_qk_norm": True}, "normalised queries"), ("llama", {"attention_multiplier": 0.5}, "attention scale"),
    ("llama", {"sliding_window": 32}, "sliding"),
    ("llama", {"architectures": ["LlamaForQuestionAnswering"]}, "LlamaForQuestionAnswering"),
    ("llama", {"auto_map": {"AutoModelForCausalLM": "code.Model"}}, "Python code"),
    ("llama", {"no_rope_layers": [1, 0]}, "no_rope_layers"),
    ("qwen2", {"layer_types": ["full_attention", "linear_attention"]}, "linear_attention"),
    ("qwen2", {"use_mrope": True}, "use_mrope"),
    ("gpt2", {"add_cross_attention": True}, "cross-attention"),
    ("gpt2", {"activation_function": "relu6"}, "relu6"),
])
def test_what_is_not_implemented_is_named(name, changes, said):
    with pytest.raises(UnsupportedModelError, match="not implemented") as error:
        registry.spec_from_config(BASES[name] | changes)
    assert said in str(error.value)


@pytest.mark.parametrize(("name", "changes", "said"), [
    ("llama", {"num_attention_heads": 5}, "num_attention_heads"),
    ("llama", {"num_key_value_heads": 3}, "key-value heads"),
    ("llama", {"num_key_value_heads": 0}, "num_key_value_heads"),
    ("llama", {"head_dim": 13}, "even"), ("llama", {"head_dim": 0}, "head_dim"),
    ("llama", {"head_dim": -2}, "head_dim"),
    ("llama", {"hidden_size": 48.0}, "hidden_size"), ("llama", {"hidden_size": "48"}, "hidden_size"),
    ("llama", {"hidden_size": True}, "hidden_size"), ("llama", {"vocab_size": 2**60}, "vocab_size"),
    ("llama", {"num_hidden_layers": 10**9}, "num_hidden_layers"),
    ("llama", {"num_hidden_layers": 0}, "num_hidden_layers"),
    ("llama", {"num_hidden_layers": 10**6000}, "num_hidden_layers"),
    ("llama", {"rms_norm_eps": float("nan")}, "rms_norm_eps"), ("llama", {"rms_norm_eps": 0}, "rms_norm_eps"),
    ("llama", {"rope_theta": float("inf")}, "rope_theta"), ("llama", {"rope_theta": 0}, "rope_theta"),
    ("llama", {"rope_parameters": {"rope_theta": 10000.0}}, "rope_theta"),  # 4.x spelling says 50000
    ("llama", {"rope_parameters": [1]}, "rope_parameters"),
    ("llama", {"tie_word_embeddings": 1}, "tie_word_embeddings"),
    ("llama", {"architectures": "LlamaForCausalLM"}, "architectures"), ("llama", {"model_type": 3}, "model_type"),
    ("llama", {"intermediate_size": None}, "intermediate_size"), ("llama", {"hidden_act": ["silu"]}, "hidden_act"),
    ("qwen2", {"layer_types": ["full_attention"]}, "layer_types"), ("qwen2", {"layer_types": 3}, "layer_types"),
    ("qwen2", {"layer_types": ["full_attention", "sliding_attention"]}, "use_sliding_window is false"),
    ("qwen2", {"use_sliding_window": True, "layer_types": ["sliding_attention"] * 2, "sliding_window": None},
     "sliding_window"),
    ("mistral", {"sliding_window": -1}, "sliding_window"), ("mistral", {"sliding_window": 16.0}, "sliding_window"),
    ("mistral", {"sliding_window": "16"}, "sliding_window"), ("mistral", {"sliding_window": True}, "sliding_window"),
    ("mistral", {"sliding_window": [16, 16]}, "sliding_window"),
    ("mixtral", {"num_local_experts": 2000}, "experts"), ("mixtral", {"num_experts_per_tok": 9}, "9 of 8"),
    ("mixtral", {"num_experts_per_tok": 0}, "num_experts_per_tok"),
    ("mixtral", {"num_local_experts": 2.5}, "num_local_experts"),
    ("llama", {"rope_scaling": {"type": "linear"}}, "factor"),
    ("llama", {"rope_scaling": {"type": "linear", "factor": "2"}}, "factor"),
    ("llama", {"rope_scaling": {"type": "linear", "rope_type": "dynamic", "factor": 2.0}}, "type"),
    ("llama", {"rope_scaling": {"type": "linear", "factor": 2.0},
               "rope_parameters": {"rope_type": "linear", "factor": 4.0}}, "rope_scaling"),
    ("llama", {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "low_freq_factor"),
    ("llama", {"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 4, "high_freq_factor": 1}},
     "high_freq_factor"),
    ("llama", {"rope_scaling": {"rope_type": "longrope", "short_factor": [1.0] * 6, "long_factor": [1.0] * 5}},
     "long_factor"),
    ("llama", {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": "many"}},
     "original_max_position_embeddings"),
    ("llama", {"rope_scaling": {"type": "dynamic", "factor": 2.0, "original_max_position_embeddings": "64"}},
     "original_max_position_embeddings"),
    ("llama", {"rope_scaling": {"type": "linear", "factor": 2.0}, "original_max_position_embeddings": [64]},
     "original_max_position_embeddings"),
    ("llama", {"rope_scaling": {"type": "longrope", "short_factor": [1.0] * 6, "long_factor": [2.0] * 6,
                                "original_max_position_embeddings": 1}}, "original_max_position_embeddings"),
    ("llama", {"partial_rotary_factor": 1.5}, "partial_rotary_factor"),
    ("llama", {"partial_rotary_factor": 0.1}, "even"),
    ("gpt2", {"n_head": 7}, "n_head"), ("gpt2", {"hidden_size": 64}, "n_embd"),
    ("gpt2", {"n_positions": 2**40}, "n_pos"),
])
def test_contradictions(name, changes, said):
    with pytest.raises(ModelFileError) as error:
        registry.spec_from_config(BASES[name] | changes)
    assert said in str(error.value) and "expected" in str(error.value) and len(str(error.value)) < 600


@pytest.mark.parametrize(("name", "changes", "expected"), [
    ("mistral", {}, [32, 32]), ("mistral", {"sliding_window": None}, [0, 0]),
    ("mistral", {"sliding_window": 0}, [0, 0]),
    ("mistral", {"sliding_window": 128}, [0, 0]), ("mistral", {"sliding_window": 10**6}, [0, 0]),
    ("mistral", {"sliding_window": 127}, [127, 127]),
    ("mixtral", {"layer_types": ["full_attention", "sliding_attention"]}, [0, 32]),
    ("qwen2", {}, [0, 0]), ("qwen2", {"use_sliding_window": True, "max_window_layers": 1}, [0, 32]),
    ("qwen2", {"use_sliding_window": True, "layer_types": ["sliding_attention", "full_attention"]}, [32, 0]),
])
def test_windows(name, changes, expected):
    spec = registry.spec_from_config(BASES[name] | changes)
    assert [layer.attention.window for layer in spec.layers] == expected


YARN = {"factor": 4.0, "original_max_position_embeddings": 64}


@pytest.mark.parametrize(("old", "new", "reach"), [
    ({"rope_scaling": {"type": "linear", "factor": 2.0}}, {"rope_type": "linear", "factor": 2.0}, 256),
    ({"rope_scaling": {"type": "dynamic", "factor": 3.0}}, {"rope_type": "dynamic", "factor": 3.0}, 384),
    ({"rope_scaling": {"type": "yarn", **YARN}}, {"rope_type": "yarn", **YARN}, 256),
    ({"rope_scaling": {"type": "yarn", "rope_type": "yarn", "factor": 4.0}, "original_max_position_embeddings": 64},
     {"rope_type": "yarn", **YARN}, 256),
    ({"rope_scaling": {"type": "su", "short_factor": [1.0] * 6, "long_factor": [2.0] * 6},
      "original_max_position_embeddings": 64},
     {"rope_type": "longrope", "short_factor": [1.0] * 6, "long_factor": [2.0] * 6,
      "original_max_position_embeddings": 64}, 128),
    ({"partial_rotary_factor": 0.5}, {"partial_rotary_factor": 0.5}, 128),
    ({"rotary_pct": 0.5}, {"partial_rotary_factor": 0.5}, 128),
    ({}, {"full_attention": {"rope_theta": 50000.0}, "sliding_attention": None}, 128),
])
def test_rope_spellings_of_4_and_5(old, new, reach):
    """And the context: linear, dynamic and yarn scalings stretch the length that the file names."""
    new = new if "full_attention" in new else {"rope_theta": 50000.0} | new
    five = without(LLAMA4, "rope_theta", "rope_scaling") | {"rope_parameters": new}
    spec = registry.spec_from_config(LLAMA4 | old)
    assert spec == registry.spec_from_config(five) and spec.max_position_embeddings == reach
    assert (spec == registry.spec_from_config(LLAMA4)) == (not old)


@pytest.mark.parametrize("text", [
    b"", b"{", b"[]", b"3", b"\xff\xfe\x00", b'{"model_type": ' + b"9" * 5000 + b"}", b"[" * 200_000, b"{} x",
    b'{"model_type": "llama", "eos_token_id": -1}', b'{"model_type": "llama", "eos_token_id": [1, "2"]}',
    b'{"model_type": "llama", "eos_token_id": true}', b'{"hidden_size": 3}', b'{"model_type": null}',
])
def test_broken_config_files(text, tmp_path):
    (tmp_path / "config.json").write_bytes(text)
    with pytest.raises(ModelFileError):
        read_config(tmp_path)


def test_heads_that_the_kernels_have_no_room_for():
    assert registry.spec_from_config({**LLAMA4, "head_dim": 1024}).layers[0].attention.head_dim == 1024
    with pytest.raises(UnsupportedModelError, match=r"1026.*1024"):
        registry.spec_from_config({**LLAMA4, "head_dim": 1026})


@pytest.mark.parametrize(("name", "changes", "said"), [
    ("llama", {"head_dim": 2**24}, "1024"), ("qwen2", {"hidden_size": 2**24, "num_attention_heads": 4}, "1024"),
    ("mixtral", {"num_local_experts": 1024, "num_hidden_layers": 4096}, "4194304"),
])
def test_absurd_sizes_stop_before_anything_is_made(name, changes, said):
    tracemalloc.start()
    try:
        with pytest.raises(ForwardpassError, match=said):
            registry.spec_from_config(BASES[name] | changes)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_missing_config_and_strange_places(tmp_path):
    for path in (tmp_path, tmp_path / "nowhere", "bad\0name"):
        with pytest.raises(ModelFileError):
            read_config(path)
    (tmp_path / "config.json").mkdir()
    with pytest.raises(ModelFileError, match=r"config\.json"):
        read_config(tmp_path)


def test_unknown_dtype_is_named():
    with pytest.raises(UnsupportedModelError, match="float8_e4m3fn"):
        dtype_of(Fields({"torch_dtype": "float8_e4m3fn"}, "config.json"))


def gguf(**changes):
    """Metadata of a tiny llama; names in `changes` have "__" for "."; None removes."""
    base = {"general.architecture": "llama", "llama.block_count": 2, "llama.context_length": 128,
            "llama.embedding_length": 48, "llama.feed_forward_length": 80, "llama.attention.head_count": 4,
            "llama.attention.head_count_kv": 2, "llama.attention.layer_norm_rms_epsilon": float(np.float32(1e-5)),
            "llama.rope.freq_base": 50000.0, "llama.rope.dimension_count": 12, "llama.vocab_size": 64}
    base |= {name.replace("__", "."): value for name, value in changes.items()}
    return {name: value for name, value in base.items() if value is not None}


def test_gguf_metadata_equals_config():
    assert registry.spec_from_gguf(gguf(), {}) == registry.spec_from_config(LLAMA4)


def test_gguf_defaults():
    spec = registry.spec_from_gguf(gguf(llama__attention__head_count_kv=None, llama__rope__dimension_count=None,
                                        llama__rope__freq_base=None, llama__vocab_size=None),
                                   {"token_embd.weight": TensorInfo("token_embd.weight", (70, 48), "F32", 70 * 48 * 4)})
    assert spec.vocab_size == 70 and spec.layers[0].attention.num_kv_heads == 4
    lists = gguf(llama__attention__head_count_kv=[2, 2], llama__feed_forward_length=np.array([80, 80]))
    assert registry.spec_from_gguf(lists, {}) == registry.spec_from_gguf(gguf(), {})
    neutral = gguf(llama__rope__scaling__type="none", llama__rope__scaling__factor=1.0, llama__expert_count=0)
    assert registry.spec_from_gguf(neutral, {}) == registry.spec_from_gguf(gguf(), {})
    assert not registry.spec_from_gguf(gguf(), {"output.weight": None}).tied


@pytest.mark.parametrize(("key", "value", "said"), [
    ("llama.rope.scaling.type", "su", "rotary scaling"),
    ("llama.attention.value_length", 16, "value width"),
    ("llama.rope.scaling.yarn_log_multiplier", 0.1, "this setting"),
    ("llama.attention.head_count_kv", [2, 4], "layer to layer"), ("llama.logit_scale", 0.5, "scaled logits"),
    ("llama.expert_gating_func", 2, "router"),
    ("llama.something.new", 1, "this setting"),
])
def test_gguf_what_is_not_implemented_is_named(key, value, said):
    with pytest.raises(UnsupportedModelError, match="not implemented") as error:
        registry.spec_from_gguf(gguf() | {key: value}, {})
    assert said in str(error.value) and key in str(error.value)


def gguf_rope(**changes):
    """The rotary positions of the tiny llama with scaling settings, as GGUF and as config.json."""
    return registry.spec_from_gguf(gguf(**{f"llama__rope__{key}": value for key, value in changes.items()}), {})


def test_gguf_scalings_equal_those_of_a_config():
    linear = registry.spec_from_config(LLAMA4 | {"rope_scaling": {"type": "linear", "factor": 4.0}})
    assert gguf_rope(scaling__type="linear", scaling__factor=4.0) == linear
    assert gguf_rope(scaling__factor=4.0) == linear == gguf_rope(scale_linear=4.0)  # llama.cpp's default type
    assert gguf_rope(scaling__type="none", scaling__factor=4.0) == registry.spec_from_config(LLAMA4)
    yarn = registry.spec_from_config(LLAMA4 | {"rope_scaling": {"type": "yarn", "beta_fast": 16, **YARN}})
    assert gguf_rope(scaling__type="yarn", scaling__factor=4.0, scaling__original_context_length=64,
                     scaling__yarn_beta_fast=16.0) == yarn
    partial = registry.spec_from_config(LLAMA4 | {"partial_rotary_factor": 0.5})
    assert gguf_rope(dimension_count=6) == partial


def vectors(**arrays):
    """TensorInfos and a reader of vectors by name."""
    arrays = {f"{name}.weight": np.asarray(array, np.float32) for name, array in arrays.items()}
    return {name: TensorInfo(name, a.shape, "F32", a.nbytes) for name, a in arrays.items()}, arrays.get


def test_gguf_frequency_factors():
    """llama3's are divisors of the frequencies, computed by the converter; longrope's come as they are."""
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": 64}
    theirs = registry.spec_from_config(LLAMA4 | {"rope_scaling": scaling}).layers[0].attention.rotary
    plain = registry.spec_from_config(LLAMA4).layers[0].attention.rotary
    ours = registry.spec_from_gguf(gguf(), *vectors(rope_freqs=np.divide(plain.inv_freq, theirs.inv_freq)))
    assert np.allclose(ours.layers[0].attention.rotary.inv_freq, theirs.inv_freq, rtol=1e-6, atol=0)
    short, long = np.linspace(1, 2, 6).astype(np.float32).tolist(), np.linspace(1, 9, 6).astype(np.float32).tolist()
    scaling = {"type": "longrope", "short_factor": short, "long_factor": long}
    theirs = registry.spec_from_config(LLAMA4 | {"rope_scaling": scaling, "original_max_position_embeddings": 64})
    ours = registry.spec_from_gguf(gguf(llama__rope__scaling__original_context_length=64),
                                   *vectors(rope_factors_short=short, rope_factors_long=long))
    assert ours == theirs


@pytest.mark.parametrize("arrays", [
    {"rope_freqs": [1.0] * 5}, {"rope_freqs": [[1.0] * 6]}, {"rope_freqs": [0.0] * 6}, {"rope_freqs": [np.nan] * 6},
    {"rope_factors_long": [1.0] * 6}, {"rope_factors_long": [1.0] * 6, "rope_factors_short": [1.0] * 7},
])
def test_gguf_frequency_factors_that_do_not_fit(arrays):
    with pytest.raises(ModelFileError, match=r"rope_f|long_factor|short_factor"):
        registry.spec_from_gguf(gguf(), *vectors(**arrays))


def test_gguf_experts_and_windows():
    spec = registry.spec_from_gguf(gguf(llama__expert_count=8, llama__expert_used_count=2), {})
    mixtral = registry.spec_from_config(MIXTRAL4 | {"sliding_window": None})
    assert spec.layers == mixtral.layers
    spec = registry.spec_from_gguf(gguf(llama__attention__sliding_window=32), {})
    assert spec.layers == registry.spec_from_config(MISTRAL4).layers
    shapes = {"blk.0.ffn_gate_exps.weight": (8, 24, 48), "blk.0.ffn_gate_shexp.weight": (40, 48)}
    tensors = {name: TensorInfo(name, shape, "F32", 4 * int(np.prod(shape))) for name, shape in shapes.items()}
    mlp = registry.spec_from_gguf(gguf(llama__expert_count=8, llama__expert_used_count=2), tensors).layers[0].mlp
    assert (mlp.intermediate_size, mlp.experts.shared_size) == (24, 40)
    with pytest.raises(ModelFileError, match="expert_used_count"):
        registry.spec_from_gguf(gguf(llama__expert_count=8), {})
    with pytest.raises(ModelFileError, match="9 of 8"):
        registry.spec_from_gguf(gguf(llama__expert_count=8, llama__expert_used_count=9), {})


@pytest.mark.parametrize("changes", [
    {"llama__block_count": 2**40}, {"llama__block_count": None}, {"llama__attention__head_count": 0},
    {"llama__attention__head_count": 7}, {"llama__attention__key_length": 13, "llama__rope__dimension_count": 13},
    {"llama__vocab_size": None}, {"llama__vocab_size": 5, "tokenizer__ggml__tokens": ["x"] * 6},
    {"llama__attention__layer_norm_rms_epsilon": float("nan")}, {"llama__context_length": 4.5},
    {"llama__attention__head_count_kv": []}, {"tokenizer__ggml__tokens": 3}, {"general__architecture": 1},
    {"llama__rope__freq_base": -1.0},
])
def test_gguf_contradictions(changes):
    with pytest.raises(ModelFileError):
        registry.spec_from_gguf(gguf(**changes), {})


JUNK = [None, True, False, 0, 1, -1, 2, 3, 7, 48, 2**31, 2**63, 10**5000, 0.0, 0.5, 1.0, -1e308, float("nan"),
        float("inf"), "", "silu", "default", "none", "llama", "x" * 1000, [], [1], [None], [2, 2], [2, 3],
        ["full_attention"] * 2, ["sliding_attention"] * 2, {}, {"rope_type": "default"}, {"rope_theta": 1e4},
        {"factor": 2}, {"rope_type": "linear", "factor": 2}, {"type": "dynamic", "factor": 1e300},
        {"rope_type": "yarn"},
        {"rope_type": "longrope", "short_factor": [1] * 6, "long_factor": [2] * 6}, {"full_attention": {}},
        {"full_attention": {"rope_type": "llama3"}}, {"sliding_attention": [1]},
        {"rope_type": "dynamic", "factor": 2, "original_max_position_embeddings": ""},
        {"x": {}}, {"type": 5}]


def probe(read, base, keys, rng):
    """One or two random changes: an error of ours, or a spec that passes its own check."""
    values = dict(base)
    for key in rng.choice(keys, size=rng.integers(1, 3), replace=False):
        values[str(key)] = JUNK[rng.integers(len(JUNK))]
    try:
        return int(read(values).check() is not None)
    except ForwardpassError as error:
        assert len(str(error)) < 1000
        return 0


@pytest.mark.parametrize("name", BASES)
def test_fuzz_configs(name):
    from forwardpass.models.hf_config import REFUSED

    keys = sorted({*BASES[name], *REFUSED, "rope_parameters", "use_sliding_window",
                   "max_window_layers", "layer_types", "sliding_window", "head_dim", "mlp_bias",
                   "n_inner", "dtype", "auto_map", "scale_attn_weights", "scale_attn_by_inverse_layer_idx"})
    rng = np.random.default_rng(1)
    passed = sum(probe(registry.spec_from_config, BASES[name], keys, rng) for _ in range(3000))
    assert 300 < passed < 2700  # the fuzz reached both outcomes


def test_fuzz_gguf_metadata():
    from forwardpass.models.gguf_config import REFUSED, WITHOUT_EFFECT

    keys = sorted({*gguf(), *(f"llama.{key}" for key in WITHOUT_EFFECT | REFUSED.keys()), "llama.rope.scaling.factor",
                   "llama.attention.sliding_window_pattern", "llama.expert_feed_forward_length",
                   "tokenizer.ggml.tokens"})
    rng = np.random.default_rng(2)
    junk_arrays = [np.array([2, 2]), np.zeros((2, 2)), np.array([1.5]), np.array(["a"])]
    JUNK.extend(junk_arrays)
    try:
        passed = sum(probe(lambda v: registry.spec_from_gguf(v, {}), gguf(), keys, rng) for _ in range(3000))
    finally:
        del JUNK[-len(junk_arrays):]
    assert 200 < passed < 2700
