"""Whole quantised checkpoints: tiny random models, quantised here, against transformers with the decoded weights."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

import forwardpass
import hf_packers as packers
import tiny_models
from agreement import reference_logits, relative_error
from forwardpass.errors import ModelFileError, UnsupportedModelError
from forwardpass.tasks.quantizing import quantize

PROMPT = np.random.default_rng(7).integers(2, tiny_models.VOCABULARY, 40).tolist()
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": False}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm"}


def compressed(bits: int, format: str) -> dict:
    group = {"targets": ["Linear"], "weights": {"num_bits": bits, "type": "int"}}
    return {"quant_method": "compressed-tensors", "format": format, "config_groups": {"group_0": group},
            "ignore": ["lm_head"]}


def codes(w: np.ndarray, bits: int, **options) -> packers.Codes:
    return packers.quantise(w, bits, **options)


def fp8(name: str, w: np.ndarray):
    """(tensors, dequantised) with scales of blocks of 32 x 64."""
    n, k = w.shape
    scale = np.empty((-(-n // 32), -(-k // 64)), np.float32)
    for i, j in np.ndindex(scale.shape):
        scale[i, j] = np.abs(w[32 * i : 32 * i + 32, 64 * j : 64 * j + 64]).max() / 448
    whole = np.repeat(np.repeat(scale, 32, 0)[:n], 64, 1)[:, :k]
    stored = torch.from_numpy(w / whole).to(torch.float8_e4m3fn)
    tensors = {f"{name}.weight": stored, f"{name}.weight_scale_inv": torch.from_numpy(scale)}
    return tensors, stored.float().numpy() * whole


def of_codes(packer, bits: int = 4, **options):
    def make(name: str, w: np.ndarray):
        one = codes(w, bits, **options)
        return packer(name, one), one.weights

    return make


def activation_order(name: str, w: np.ndarray):
    order = np.random.default_rng(w.shape[1]).permutation(np.arange(w.shape[1]) // 32)
    one = codes(w, 4, order=order)
    return packers.gptq(name, one), one.weights


KINDS = {  # name: (quantization_config, quantiser of one linear)
    "gptq": (GPTQ, of_codes(packers.gptq)),
    "gptq-v2": (GPTQ | {"checkpoint_format": "gptq_v2"}, of_codes(lambda n, c: packers.gptq(n, c, 2))),
    "gptq-order": (GPTQ | {"desc_act": True}, activation_order),
    "gptq-8": (GPTQ | {"bits": 8, "sym": True}, of_codes(packers.gptq, 8, sym=True)),
    "gptq-3": (GPTQ | {"bits": 3}, of_codes(packers.gptq, 3)),
    "awq": (AWQ, of_codes(packers.awq)),
    "packed-4": (compressed(4, "pack-quantized"), of_codes(packers.packed_words)),
    "packed-8": (compressed(8, "pack-quantized"), of_codes(packers.packed_words, 8)),
    "int8": (compressed(8, "int-quantized"),
             of_codes(packers.int8, 8, group=-1, sym=True, scale_type=np.float32)),
    "fp8": ({"quant_method": "fp8", "weight_block_size": [32, 64]}, fp8),
}


def save(tmp_path, reference, settings, quantiser, wanted=lambda name: True):
    """Write the model with its wanted linears quantised, and give the reference the values they stand for."""
    tensors, state = {}, reference.state_dict()
    linears = {name for name, module in reference.named_modules() if isinstance(module, torch.nn.Linear)}
    for name, tensor in state.items():
        stem = name.removesuffix(".weight")
        if stem == "lm_head" and reference.config.tie_word_embeddings:
            continue
        if stem in linears and stem != "lm_head" and name.endswith(".weight") and wanted(stem):
            stored, values = quantiser(stem, tensor.numpy())
            tensors |= stored
            tensor.copy_(torch.from_numpy(values))
        else:
            tensors[name] = tensor.clone()
    packers.save(tensors, tmp_path / "model.safetensors")
    config = reference.config.to_dict() | ({"quantization_config": settings} if settings else {})
    config["architectures"], config["eos_token_id"] = [type(reference).__name__], None
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tensors


def check(tmp_path, reference, close: float = 2e-2):
    theirs = reference_logits(reference, PROMPT)
    with forwardpass.load(tmp_path, dtype="float32") as model:
        assert relative_error(model.logits(PROMPT), theirs) < 1e-4
    with forwardpass.load(tmp_path) as model:
        assert relative_error(model.logits(PROMPT), theirs) < close


def tiny(family: str = "llama", **changes):
    return tiny_models.make(family, hidden_size=64, intermediate_size=96, **changes)


@pytest.mark.parametrize("kind", KINDS)
def test_logits(kind, tmp_path):
    reference = tiny()
    save(tmp_path, reference, *KINDS[kind])
    check(tmp_path, reference)


@pytest.mark.parametrize("kind", ["gptq", "awq", "fp8"])
def test_biases_and_a_tied_embedding(kind, tmp_path):
    """Linears are quantised; the embedding, which is the head too, is not."""
    reference = tiny("qwen2", tie_word_embeddings=True)
    tensors = save(tmp_path, reference, *KINDS[kind])
    assert "lm_head.weight" not in tensors
    check(tmp_path, reference)


@pytest.mark.parametrize("kind", ["gptq", "packed-8", "fp8"])
def test_half_of_the_modules_quantised(kind, tmp_path):
    """q but not k of the same input, and a whole layer left as it was."""
    reference = tiny()
    save(tmp_path, reference, *KINDS[kind], wanted=lambda name: ".1." in name and "k_proj" not in name)
    check(tmp_path, reference)


def test_a_quantised_head(tmp_path):
    reference = tiny()
    tensors = save(tmp_path, reference, *KINDS["gptq"])
    stored, values = KINDS["gptq"][1]("lm_head", reference.lm_head.weight.detach().numpy())
    del tensors["lm_head.weight"]
    packers.save(tensors | stored, tmp_path / "model.safetensors")
    with torch.no_grad():
        reference.lm_head.weight.copy_(torch.from_numpy(values))
    check(tmp_path, reference)


@pytest.mark.parametrize("kind", ["gptq", "awq"])
def test_a_fused_layer_stored_inputs_first(kind, tmp_path):
    """GPT-2's linears are [in, out] in checkpoints, but packed formats always mean [out, in]; q, k and v are one."""
    reference = tiny_models.make("gpt2", n_embd=64)
    settings, quantiser = KINDS[kind]
    tensors = {}
    for name, tensor in reference.state_dict().items():
        stem = name.removesuffix(".weight")
        if stem.endswith(("c_attn", "c_proj", "c_fc")):
            stored, values = quantiser(stem, tensor.numpy().T.copy())
            tensors |= stored
            tensor.copy_(torch.from_numpy(values.T.copy()))
        elif stem != "lm_head":
            tensors[name] = tensor.clone()
    packers.save(tensors, tmp_path / "model.safetensors")
    config = reference.config.to_dict() | {"quantization_config": settings, "architectures": ["GPT2LMHeadModel"]}
    (tmp_path / "config.json").write_text(json.dumps(config | {"eos_token_id": None}))
    check(tmp_path, reference)


@pytest.mark.parametrize("dtype", ["bfloat16", "int8", "int4"])
def test_a_tied_head_multiplies_with_what_the_embedding_looks_up(dtype, tmp_path):
    """Both are one table, rounded once: its rows, as embedding gives them, are the rows of the head."""
    tiny_models.save(tiny_models.make("llama", tie_word_embeddings=True), tmp_path)
    with forwardpass.load(tmp_path, dtype=dtype) as model:
        every = np.arange(tiny_models.VOCABULARY, dtype=np.int32)
        rows = model.network.embed(every, every)
        expected = model.hidden_states(PROMPT) @ rows.T
        assert relative_error(model.logits(PROMPT), expected) < 1e-2  # activations have eight bits


def test_settings_under_older_names(tmp_path):
    reference = tiny()
    save(tmp_path, reference, None, KINDS["gptq"][1])
    (tmp_path / "quantize_config.json").write_text(json.dumps({"bits": 4, "group_size": 32, "desc_act": False}))
    check(tmp_path, reference)
    (tmp_path / "quantize_config.json").unlink()
    save(tmp_path, tiny(), None, KINDS["packed-4"][1])
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"compression_config": KINDS["packed-4"][0]}))
    with forwardpass.load(tmp_path) as model:
        assert len(model.logits(PROMPT)) == len(PROMPT)


def test_biases_that_tools_add_are_ignored_only_where_they_are_zero(tmp_path):
    reference = tiny()
    tensors = save(tmp_path, reference, *KINDS["gptq"])
    bias = "model.layers.0.mlp.up_proj.bias"
    packers.save(tensors | {bias: np.zeros(96, np.float16)}, tmp_path / "model.safetensors")
    check(tmp_path, reference)
    packers.save(tensors | {bias: np.ones(96, np.float16)}, tmp_path / "model.safetensors")
    with pytest.raises(ModelFileError, match=bias):
        forwardpass.load(tmp_path)


def test_warnings_of_the_checkpoint_reach_the_user(tmp_path):
    save(tmp_path, tiny(), GPTQ | {"sym": True}, of_codes(lambda n, c: packers.gptq(n, c, 2), sym=True))
    with pytest.warns(UserWarning, match="every stored zero is 8"):
        forwardpass.load(tmp_path).close()


def test_faults_stop_before_anything_is_packed(tmp_path, monkeypatch):
    reference = tiny()
    tensors = save(tmp_path, reference, *KINDS["awq"])
    monkeypatch.setattr("forwardpass.tasks.opening.load_weights", lambda *_: pytest.fail("weights were packed"))
    del tensors["model.layers.1.self_attn.q_proj.scales"]
    packers.save(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ModelFileError, match=r"expected the tensor model\.layers\.1\.self_attn\.q_proj\.scales"):
        forwardpass.load(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": "quip"}}))
    with pytest.raises(UnsupportedModelError, match=r"quip.*known are gptq, awq"):
        forwardpass.load(tmp_path)


@pytest.mark.parametrize("dtype", ["int8", "int4", "bfloat16"])
def test_other_dtypes(dtype, tmp_path):
    reference = tiny()
    save(tmp_path, reference, *KINDS["awq"])
    with forwardpass.load(tmp_path, dtype=dtype) as model:
        assert relative_error(model.logits(PROMPT), reference_logits(reference, PROMPT)) < 0.1


def test_scales_that_are_not_finite(tmp_path):
    tensors = save(tmp_path, tiny(), *KINDS["gptq"])
    tensors["model.layers.0.mlp.up_proj.scales"][0, 5] = np.inf
    packers.save(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ModelFileError, match=r"mlp\.up_proj\.weight holds NaN or infinite"):
        forwardpass.load(tmp_path)


@pytest.mark.parametrize("case", tiny_models.CASES)
def test_every_family_packs_into_one_file(case, tmp_path):
    """What a family's spec holds survives the packed file: windows, experts, scales, norms of every kind."""
    family, changes = tiny_models.CASES[case]
    source = tiny_models.save(tiny_models.make(family, **changes), tmp_path / "source")
    quantize(source, tmp_path / "m.fpk", "int8", 2)
    with forwardpass.load(source, dtype="int8") as model, forwardpass.load(tmp_path / "m.fpk") as again:
        assert again.spec == model.spec
        assert np.array_equal(again.logits(PROMPT), model.logits(PROMPT))
