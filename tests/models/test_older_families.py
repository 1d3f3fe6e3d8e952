"""Families from GPT-Neo to MPT: old spellings, what transformers' own classes leave out, and what must stop."""

from __future__ import annotations

import numpy as np
import pytest

import forwardpass
import tiny_models
from agreement import reference_logits, relative_error
from forwardpass.errors import ContextLengthError, ModelFileError, UnsupportedModelError
from forwardpass.models import registry
from forwardpass.models.hf_config import read_config
from forwardpass.weights.safetensors import open_safetensors

IDS = np.random.default_rng(2).integers(2, tiny_models.VOCABULARY, 40).tolist()


def saved(directory, family, **changes):
    """(transformers model, its config.json, its tensors as arrays)"""
    from safetensors.numpy import load_file

    model = tiny_models.make(family, **changes)
    values = read_config(tiny_models.save(model, directory)).values
    return model, values, load_file(directory / "model.safetensors")


def logits(tools, arrays, values):
    source = tools.FakeSource("safetensors", arrays)
    checkpoint = registry.read(source, values)
    return tools.numpy_logits(checkpoint.spec, tools.load_rows(checkpoint, source), IDS)


def agrees(ours, model):
    return relative_error(ours, reference_logits(model, IDS)) < 1e-5


@pytest.mark.parametrize(("family", "prefix", "buffers"), [
    ("opt", "model.", {}),
    ("bloom", "transformer.", {}),
    ("gpt_bigcode", "transformer.", {"h.0.attn.bias": (1, 64, 64), "h.1.attn.masked_bias": ()}),
    ("gpt_neo", "", {"transformer.h.0.attn.attention.bias": (1, 1, 64, 64),
                     "transformer.h.1.attn.attention.masked_bias": ()}),
    ("gptj", "", {"transformer.h.0.attn.bias": (1, 1, 64, 64), "transformer.h.1.attn.masked_bias": (),
                  "transformer.h.1.attn.embed_positions": (64, 6)}),
    ("codegen", "", {"transformer.h.0.attn.causal_mask": (1, 1, 64, 64)}),
    ("gpt_neox", "", {"gpt_neox.layers.0.attention.bias": (1, 1, 64, 64),
                      "gpt_neox.layers.0.attention.masked_bias": (),
                      "gpt_neox.layers.1.attention.rotary_emb.inv_freq": (2,)}),
    ("falcon", "", {"transformer.h.0.self_attention.rotary_emb.inv_freq": (4,)}),
])
def test_old_names_and_buffers(family, prefix, buffers, tmp_path, tools):
    """The first published files: some lack the outermost name, and most hold masks or tables that are no weights."""
    model, values, arrays = saved(tmp_path, family)
    arrays = {name.removeprefix(prefix): array for name, array in arrays.items()}
    arrays |= {name: np.ones(shape, np.float32) for name, shape in buffers.items()}
    assert agrees(logits(tools, arrays, values), model)


@pytest.mark.parametrize(("family", "old"), [
    ("falcon", {"hidden_size": "n_embed", "num_attention_heads": "n_head", "num_hidden_layers": "n_layer"}),
    ("bloom", {"hidden_size": "n_embed", "n_head": "num_attention_heads", "n_layer": "num_hidden_layers"}),
    ("gptj", {"n_embd": "hidden_size", "n_positions": "max_position_embeddings"}),
    ("mpt", {"d_model": "hidden_size", "n_heads": "num_attention_heads"}),
])
def test_other_spellings_are_the_same_spec(family, old, tmp_path):
    _, values, _ = saved(tmp_path, family)
    renamed = {old.get(name, name): value for name, value in values.items()}
    assert renamed.keys() != values.keys()
    assert registry.spec_from_config(renamed) == registry.spec_from_config(values)


def test_rotary_settings_of_neox_4_are_those_of_5(tmp_path):
    _, values, _ = saved(tmp_path, "gpt_neox", rotary_pct=0.5, rotary_emb_base=5000)
    old = {name: value for name, value in values.items() if name != "rope_parameters"}
    spec = registry.spec_from_config(values)
    assert registry.spec_from_config(old | {"rotary_pct": 0.5, "rotary_emb_base": 5000}) == spec
    assert registry.spec_from_config(old).layers[0].attention.rotary.dim == 4  # a quarter of 16, where nothing is said
    assert spec.layers[0].attention.rotary.dim == 8


def test_neo_windows(tmp_path):
    """attention_types, [kinds, repetitions] again and again; without it, every second layer has the window."""
    _, values, _ = saved(tmp_path, "gpt_neo")
    values |= {"num_layers": 5, "attention_types": [[["global"], 1], [["local", "global"], 2]]}

    def windows(values):
        return [layer.attention.window for layer in registry.spec_from_config(values).layers]

    assert windows(values) == [0, 16, 0, 16, 0]
    assert windows(values | {"attention_types": None}) == [0, 16, 0, 16, 0]
    assert windows(values | {"window_size": 256}) == [0] * 5  # as wide as the context


def test_mpt_with_all_that_its_authors_foresaw(tmp_path, tools):
    """transformers' class leaves out biases, norms of q and k, logit_scale and other slopes: here it gets them."""
    import torch
    from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor

    model, values, arrays = saved(tmp_path, "mpt", n_heads=6)
    rng = np.random.default_rng(3)

    def draw(name, size=48, around=0.0):
        arrays[name] = np.float32(around + 0.3 * rng.standard_normal(size))
        return torch.nn.Parameter(torch.from_numpy(arrays[name]))

    class Normed(torch.nn.Module):
        """The fused product with a bias, then a norm of all queries and one of all keys."""

        def __init__(self, linear, at):
            super().__init__()
            self.linear = linear
            self.norms = [(draw(f"{at}.{one}_ln.weight", around=1.0), draw(f"{at}.{one}_ln.bias")) for one in "qk"]

        def forward(self, x):
            parts = list(self.linear(x).chunk(3, 2))
            for n, (weight, bias) in enumerate(self.norms):
                parts[n] = torch.nn.functional.layer_norm(parts[n], (48,), weight, bias, 1e-5)
            return torch.cat(parts, 2)

    for i, block in enumerate(model.transformer.blocks):
        at = f"transformer.blocks.{i}"
        for name, module in (("norm_1", block.norm_1), ("norm_2", block.norm_2), ("attn.out_proj", block.attn.out_proj),
                             ("ffn.up_proj", block.ffn.up_proj), ("ffn.down_proj", block.ffn.down_proj),
                             ("attn.Wqkv", block.attn.Wqkv)):
            module.bias = draw(f"{at}.{name}.bias", len(module.weight))
        block.attn.Wqkv = Normed(block.attn.Wqkv, f"{at}.attn")
    model.transformer.norm_f.bias = draw("transformer.norm_f.bias")
    model.transformer.build_mpt_alibi_tensor = lambda heads, length, device=None: build_mpt_alibi_tensor(
        heads, length, 16)
    values |= {"no_bias": False, "logit_scale": "inv_sqrt_d_model", "attn_config": {"qk_ln": True,
                                                                                    "alibi_bias_max": 16}}
    theirs = reference_logits(model, IDS) * 48**-0.5
    assert relative_error(logits(tools, arrays, values), theirs) < 1e-5
    assert registry.spec_from_config(values | {"logit_scale": 0.25}).logit_scale == 0.25


def test_mpt_without_alibi_has_learned_positions(tmp_path, tools):
    model, values, arrays = saved(tmp_path, "mpt")
    arrays["transformer.wpe.weight"] = np.random.default_rng(4).standard_normal((256, 48)).astype(np.float32)
    arrays["transformer.wpe.weight"][:] = arrays["transformer.wpe.weight"][0]
    values["attn_config"]["alibi"] = False
    spec = registry.spec_from_config(values)
    assert (spec.learned_positions, spec.layers[0].attention.alibi) == (256, ())
    # The same vector at every position, and slopes of nearly nothing: as if it were added to every token.
    import torch
    from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor

    with torch.no_grad():
        head = model.lm_head.weight.clone()
        model.lm_head.weight = torch.nn.Parameter(head)
        model.transformer.wte.weight = torch.nn.Parameter(head + torch.from_numpy(arrays["transformer.wpe.weight"][0]))
    model.transformer.build_mpt_alibi_tensor = lambda heads, length, device=None: 0 * build_mpt_alibi_tensor(
        heads, length)
    assert agrees(logits(tools, arrays, values), model)


def test_falcon_keeps_what_the_other_architecture_would_need(tmp_path):
    """num_kv_heads counts only in the new architecture, multi_query and parallel_attn only in the old one."""
    _, values, _ = saved(tmp_path, "falcon")
    spec = registry.spec_from_config(values)
    assert values["num_kv_heads"] == 6 and spec.layers[0].attention.num_kv_heads == 1
    new = values | {"new_decoder_architecture": True, "num_kv_heads": 2}
    assert registry.spec_from_config(new) == registry.spec_from_config(new | {"parallel_attn": False,
                                                                             "multi_query": False})


@pytest.mark.parametrize("family", ["gpt_neo", "opt", "gpt_bigcode"])
def test_positions_beyond_the_learned_table(family, tmp_path):
    name = "n_positions" if family == "gpt_bigcode" else "max_position_embeddings"
    tiny_models.save(tiny_models.make(family, **{name: 32}), tmp_path)
    with forwardpass.load(tmp_path, dtype="float32") as model:
        assert model.logits(IDS[:32]).shape == (32, tiny_models.VOCABULARY)
        with pytest.raises(ContextLengthError, match=r"33.* 32 "):
            model.logits((IDS * 2)[:33])
        with pytest.raises(ContextLengthError, match="32"):
            model.generate(IDS[:32], max_new_tokens=4)
        answer = model.generate(IDS[:30], max_new_tokens=2, eos_token_id=[])
        assert len(answer.token_ids) == 2


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
@pytest.mark.parametrize("case", ["codegen", "neox", "falcon-new", "bigcode-heads"])
def test_rows_of_fused_matrices_in_fewer_bits(case, dtype, tmp_path):
    """Packed matrices take the same rows as float32 ones."""
    family, changes = tiny_models.CASES[case]
    model = tiny_models.make(family, **changes)
    tiny_models.save(model, tmp_path)
    with forwardpass.load(tmp_path, dtype=dtype) as ours:
        assert relative_error(ours.logits(IDS), reference_logits(model, IDS)) < 5e-2


@pytest.mark.parametrize(("family", "changes", "said"), [
    ("gpt_neox", {"intermediate_size": 96}, r"dense_h_to_4h\.weight: expected \[96, 48\]"),
    ("gpt_neox", {"attention_bias": False}, r"unexpected: .*query_key_value\.bias"),
    ("gpt_neox", {"use_parallel_residual": False, "num_hidden_layers": 3}, r"missing: .*layers\.2"),
    ("codegen", {"n_embd": 60}, r"qkv_proj\.weight: expected \[180, 60\], found \[144, 48\]"),
    ("gptj", {"n_inner": 100}, r"fc_in\.weight: expected \[100, 48\]"),
    ("falcon", {"multi_query": False}, r"query_key_value\.weight: expected \[144, 48\], found \[64, 48\]"),
    ("falcon", {"new_decoder_architecture": True}, r"missing: .*ln_attn\.weight"),
    ("falcon", {"new_decoder_architecture": True, "num_kv_heads": 3, "num_ln_in_parallel_attn": 1},
     r"query_key_value\.weight: expected \[96, 48\], found \[64, 48\]"),
    ("falcon", {"parallel_attn": False}, r"missing: .*post_attention_layernorm"),
    ("falcon", {"bias": True}, r"missing: .*query_key_value\.bias \[64\]"),
    ("gpt_bigcode", {"multi_query": False}, r"c_attn\.weight: expected \[144, 48\], found \[80, 48\]"),
    ("opt", {"word_embed_proj_dim": 32}, r"missing: expected .*project_in"),
    ("opt", {"do_layer_norm_before": False}, r"unexpected: model\.decoder\.final_layer_norm"),
    ("opt", {"max_position_embeddings": 254}, r"embed_positions\.weight: expected \[256, 48\], found \[258, 48\]"),
    ("opt", {"enable_bias": False}, r"unexpected: .*q_proj\.bias"),
    ("mpt", {"no_bias": False}, r"missing: .*norm_1\.bias"),
    ("mpt", {"attn_config": {"qk_ln": True}}, r"missing: .*q_ln\.weight \[48\]"),
    ("mpt", {"attn_config": {"alibi": False}}, r"missing: .*wpe\.weight \[256, 48\]"),
    ("mpt", {"expansion_ratio": 3}, r"up_proj\.weight: expected \[144, 48\]"),
    ("phi", {"qk_layernorm": True}, r"missing: .*q_layernorm\.weight \[16\]"),
    ("phi", {"num_key_value_heads": 1}, r"k_proj\.weight: expected \[16, 48\], found \[48, 48\]"),
])
def test_a_config_that_contradicts_the_tensors(family, changes, said, tmp_path):
    tiny_models.save(tiny_models.make(family), tmp_path)
    with open_safetensors(tmp_path) as source, pytest.raises(ModelFileError, match=said):
        registry.read(source, read_config(tmp_path).values | changes)


@pytest.mark.parametrize(("family", "changes", "error", "said"), [
    ("gpt_neo", {"attention_types": [[["global", "local"], 2]]}, ModelFileError, "2 layers that are global or local"),
    ("gpt_neo", {"attention_types": [[["global", "sparse"], 1]]}, ModelFileError, "2 layers that are global or local"),
    ("gpt_neo", {"attention_types": [[["global"], 10**9]]}, ModelFileError, "repetitions"),
    ("gpt_neo", {"attention_types": ["global", "local"]}, ModelFileError, "repetitions"),
    ("gpt_neo", {"window_size": 0}, ModelFileError, "window_size"),
    ("gpt_neo", {"num_heads": 5}, ModelFileError, "a divisor of hidden_size"),
    ("gptj", {"rotary_dim": 18}, ModelFileError, "up to 16"),
    ("gptj", {"rotary_dim": 5}, ModelFileError, "even"),
    ("gptj", {"n_head": 7}, ModelFileError, "n_head"),
    ("codegen", {"n_embd": 54, "n_head": 3, "rotary_dim": 4}, ModelFileError, "a multiple of 4"),
    ("gpt_neox", {"num_key_value_heads": 1}, ModelFileError, "num_key_value_heads"),
    ("gpt_neox", {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 1.5}}, ModelFileError,
     "partial_rotary_factor"),
    ("opt", {"layer_norm_elementwise_affine": False}, UnsupportedModelError, "without weights"),
    ("opt", {"word_embed_proj_dim": 0}, ModelFileError, "word_embed_proj_dim"),
    ("bloom", {"apply_residual_connection_post_layernorm": True}, UnsupportedModelError, "residual stream"),
    ("bloom", {"n_head": 5}, ModelFileError, "n_head"),
    ("mpt", {"attn_config": [1]}, ModelFileError, "attn_config"),
    ("mpt", {"attn_config": {"alibi_bias_max": 0}}, ModelFileError, "alibi_bias_max"),
    ("mpt", {"attn_config": {"clip_qkv": -1}}, ModelFileError, "clip_qkv"),
    ("mpt", {"attn_config": {"softmax_scale": float("nan")}}, ModelFileError, "softmax_scale"),
    ("mpt", {"attn_config": {"attn_type": "multiquery_attention"}}, UnsupportedModelError, "attn_type"),
    ("mpt", {"attn_config": {"prefix_lm": True}}, UnsupportedModelError, "looks ahead"),
    ("mpt", {"attn_config": {"rope": True}}, UnsupportedModelError, "rotary"),
    ("mpt", {"attn_config": {"sliding_window_size": 64}}, UnsupportedModelError, "window"),
    ("mpt", {"norm_type": "rmsnorm"}, UnsupportedModelError, "norm_type"),
    ("mpt", {"logit_scale": "big"}, ModelFileError, "logit_scale"),
    ("falcon", {"new_decoder_architecture": True, "num_kv_heads": 4}, ModelFileError, "multiple of key-value heads"),
    ("falcon", {"multi_query": False, "num_kv_heads": 3}, ModelFileError, "one for each head"),
    ("falcon", {"num_ln_in_parallel_attn": 2}, ModelFileError, "new_decoder_architecture is false"),
    ("falcon", {"alibi": True, "rope_parameters": {"rope_type": "linear", "factor": 2.0}}, ModelFileError,
     "alibi is true"),
    ("gpt_bigcode", {"multi_query": 1}, ModelFileError, "multi_query"),
    ("phi", {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.05}}, ModelFileError, "even"),
    ("phi", {"alibi": True}, UnsupportedModelError, "ALiBi"),
    ("phi", {"num_key_value_heads": 2}, ModelFileError, "multiple of key-value heads"),
])
def test_settings_that_must_stop(family, changes, error, said, tmp_path):
    """Before any weight is looked at."""
    _, values, _ = saved(tmp_path, family)
    registry.spec_from_config(values)
    with pytest.raises(error, match=said) as raised:
        registry.spec_from_config(values | changes)
    assert len(str(raised.value)) < 600


JUNK = [None, True, False, 0, 1, -1, 3, 2**63, 10**5000, 0.5, float("nan"), "", "x" * 1000, [], [1], [[["local"], 2]],
        [[["global"], -1]], [[[1], 2]], [[["local", "global"], 1]], {}, {"alibi": 1}, {"attn_type": [1]},
        {"qk_ln": True}, {"rope_type": "linear", "factor": 2.0}, {"partial_rotary_factor": 1e-9}]


@pytest.mark.parametrize("family", ["gpt_neo", "gptj", "codegen", "gpt_neox", "opt", "bloom", "mpt", "falcon", "phi",
                                    "gpt_bigcode"])
def test_every_setting_with_junk(family, tmp_path):
    """A spec that passes its own check, or an error of ours."""
    _, values, _ = saved(tmp_path, family)
    passed = 0
    for name in values:
        for junk in JUNK:
            try:
                passed += registry.spec_from_config(values | {name: junk}).check() is not None
            except (ModelFileError, UnsupportedModelError) as error:
                assert len(str(error)) < 1000
    assert 0 < passed < len(values) * len(JUNK)


@pytest.mark.parametrize(("name", "changes", "error", "said"), [
    ("falcon", {"tensor_data_layout": "rows"}, UnsupportedModelError, "tensor_data_layout"),
    ("falcon", {"attention.max_alibi_bias": 8.0}, UnsupportedModelError, "ALiBi"),
    ("bloom", {"attention.head_count_kv": 1}, ModelFileError, "keys for each of 4 heads"),
    ("bloom", {"rope.freq_base": 5e4}, UnsupportedModelError, "rope.freq_base"),
    ("mpt", {"attention.clamp_kqv": -1.0}, ModelFileError, "clamp_kqv"),
    ("mpt", {"attention.max_alibi_bias": float("nan")}, ModelFileError, "max_alibi_bias"),
    ("gptneox", {"use_parallel_residual": 1}, ModelFileError, "use_parallel_residual"),
    ("gptneox", {"rope.dimension_count": 20}, ModelFileError, "rope.dimension_count"),
    ("phi2", {"rope.dimension_count": 7}, ModelFileError, "even"),
])
def test_gguf_settings_that_must_stop(name, changes, error, said):
    settings = {"block_count": 2, "context_length": 128, "embedding_length": 48, "feed_forward_length": 80,
                "vocab_size": 9, "attention.head_count": 4, "attention.layer_norm_epsilon": 1e-5}

    def read(more):
        metadata = {"general.architecture": name} | {f"{name}.{key}": one for key, one in (settings | more).items()}
        return registry.spec_from_gguf(metadata, {})

    read({})
    with pytest.raises(error, match=said):
        read(changes)
