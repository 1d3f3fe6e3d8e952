"""Configs of encoder-decoders: what absent settings mean, old spellings, and everything that must stop."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

import tiny_pairs
from agreement import relative_error
from forwardpass.errors import ForwardpassError, ModelFileError, UnsupportedModelError
from forwardpass.models import registry, spec_json
from forwardpass.models.families import m2m_100, marian
from forwardpass.models.hf_config import read_config
from forwardpass.models.weight_rows import targets
from numpy_model import numpy_head, numpy_hidden, numpy_logits

SOURCE, TARGET = [5, 9, 61, 33, 7, 2], [2, 40, 11, 60]
T5 = {"model_type": "t5", "architectures": ["T5ForConditionalGeneration"], "is_encoder_decoder": True,
      "vocab_size": 96, "d_model": 48, "d_kv": 20, "d_ff": 80, "num_layers": 2, "num_heads": 3}
BART = {"model_type": "bart", "architectures": ["BartForConditionalGeneration"], "is_encoder_decoder": True,
        "vocab_size": 96, "d_model": 48, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 4,
        "decoder_attention_heads": 3, "encoder_ffn_dim": 80, "decoder_ffn_dim": 72, "max_position_embeddings": 128}


def saved(directory, family, **changes):
    """(transformers model, its config.json, its tensors as arrays)"""
    from safetensors.numpy import load_file

    model = tiny_pairs.make(family, **changes)
    values = read_config(tiny_pairs.save(model, directory)).values
    return model, values, load_file(directory / "model.safetensors")


def read(tools, arrays, values):
    source = tools.FakeSource("safetensors", arrays)
    checkpoint = registry.read(source, values)
    return checkpoint.spec, tools.load_rows(checkpoint, source), checkpoint.warnings


def test_what_absent_settings_mean():
    spec = registry.spec_from_config(T5)
    layer = spec.layers[0]
    assert len(spec.layers) == len(spec.encoder.layers) == 2 and spec.tied and spec.logit_scale == 48**-0.5
    assert (layer.mlp.kind, layer.mlp.activation, layer.attention.scale) == ("plain", "relu", 1.0)
    assert (layer.attention.relative.buckets, layer.attention.relative.max_distance) == (32, 128)
    assert layer.cross.relative is None and spec.final_norm.eps == np.float32(1e-6)
    assert not layer.attention.relative.bidirectional and spec.encoder.layers[0].attention.relative.bidirectional
    spec = registry.spec_from_config(T5 | {"model_type": "mt5", "architectures": ["MT5ForConditionalGeneration"]})
    assert (spec.layers[0].mlp.kind, spec.layers[0].mlp.activation, spec.logit_scale) == ("gated", "gelu_tanh", 1.0)
    spec = registry.spec_from_config(BART)
    assert (spec.learned_positions, spec.position_offset, spec.embed_scale) == (130, 2, 1.0)
    assert spec.layers[0].mlp.activation == "gelu_erf" and spec.final_norm is None and spec.tied
    assert len(spec.layers) == 3 and len(spec.encoder.layers) == 2 and spec.encoder.learned_positions == 130


def test_which_layer_holds_the_table_of_distances():
    five = registry.spec_from_config(T5 | {"num_layers": 3})
    assert [layer.attention.relative.layer for layer in five.layers] == [0, 0, 0]
    umt5 = registry.spec_from_config(T5 | {"model_type": "umt5", "architectures": None, "num_layers": 3})
    assert [layer.attention.relative.layer for layer in umt5.encoder.layers] == [0, 1, 2]


@pytest.mark.parametrize(("settings", "tied", "scale"), [
    ({}, True, 48**-0.5),
    ({"tie_word_embeddings": False}, False, 1.0),  # transformers 4 of v1.1
    ({"tie_word_embeddings": True, "scale_decoder_outputs": False}, False, 1.0),  # transformers 5 of the same
    ({"tie_word_embeddings": True, "scale_decoder_outputs": True}, True, 48**-0.5),
])
def test_what_a_tied_head_reads(settings, tied, scale):
    spec = registry.spec_from_config(T5 | settings)
    assert (spec.tied, spec.logit_scale) == (tied, scale)


def test_positions_by_hand():
    """Four columns: frequencies 1 and 1/100 of Marian, 1 and 1/10000 of M2M-100, whose first row is the third."""
    assert marian.sinusoids(4) == (1.0, 0.01) and m2m_100.sinusoids(4) == (1.0, 1e-4)
    assert math.isclose(marian.sinusoids(512)[1], 10000 ** (-1 / 256))
    assert registry.spec_from_config(BART | {"model_type": "m2m_100", "architectures": None}).position_offset == 2


@pytest.mark.parametrize("base", [T5, T5 | {"model_type": "umt5", "architectures": None}, BART])
def test_a_spec_as_json_and_back(base):
    spec = registry.spec_from_config(base)
    assert spec_json.from_json(json.loads(json.dumps(spec_json.to_json(spec))), "spec") == spec


BAD = {  # what is wrong: (config, changes, what the error says)
    "heads of BART": (BART, {"decoder_attention_heads": 5}, r"decoder_attention_heads: expected a divisor of d_model"),
    "heads by two names": (T5, {"num_attention_heads": 4}, r"num_attention_heads: expected the same as num_heads"),
    "no heads": (T5, {"num_heads": 0}, "num_heads: expected a whole number from 1"),
    "width by two names": (BART, {"hidden_size": 64}, "hidden_size: expected the same as d_model"),
    "no encoder layers": (BART, {"encoder_layers": 0}, "encoder_layers: expected a whole number from 1 to 4096"),
    "too many decoder layers": (BART, {"decoder_layers": 10**6}, "decoder_layers: expected .* to 4096, found 1000000"),
    "decoder layers of T5": (T5, {"num_decoder_layers": "2"}, "num_decoder_layers: expected a whole number"),
    "no MLP like it": (T5, {"feed_forward_proj": "gated-maxout"}, "feed_forward_proj = 'gated-maxout'.*NAME"),
    "a third kind": (T5, {"feed_forward_proj": "sparse-relu"}, "feed_forward_proj"),
    "not a name": (T5, {"feed_forward_proj": 3}, "feed_forward_proj: expected a text"),
    "activation": (BART, {"activation_function": "maxout"}, "activation_function"),
    "buckets": (T5, {"relative_attention_num_buckets": 7}, "buckets of relative positions"),
    "distance": (T5, {"relative_attention_max_distance": 8}, "greatest relative distance"),
    "odd width": (BART | {"model_type": "marian", "architectures": None}, {
        "d_model": 45, "encoder_attention_heads": 3}, "d_model: expected an even width, .* found 45"),
    "two vocabularies and one table": (BART | {"model_type": "marian", "architectures": None}, {
        "decoder_vocab_size": 90}, r"decoder_vocab_size: expected vocab_size \(96\), since both sides share"),
    "half a model": (BART, {"is_encoder_decoder": False}, "is_encoder_decoder = False.*one half"),
    "half of T5": (T5, {"is_encoder_decoder": False}, "is_encoder_decoder = False.*one half"),
    "half by its class": (BART, {"architectures": ["BartForCausalLM"]}, "architectures"),
    "a question answerer": (T5, {"architectures": ["T5ForQuestionAnswering"]}, "architectures"),
    "a huge table": (BART | {"model_type": "pegasus", "architectures": None}, {
        "max_position_embeddings": 2**23}, "positions of 48 columns for at most"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_configs(case):
    base, changes, said = BAD[case]
    with pytest.raises(ForwardpassError, match=said):
        registry.spec_from_config(base | changes)


@pytest.mark.parametrize(("family", "changes", "said"), [
    ("bart", {"encoder_layers": 3}, r"missing: expected model\.encoder\.layers\.2\.self_attn_layer_norm\.weight"),
    ("bart", {"decoder_layers": 2}, r"unexpected: model\.decoder\.layers\.2\."),
    ("t5", {"num_decoder_layers": 1}, r"unexpected: decoder\.block\.1\."),
    ("t5", {"num_layers": 4}, r"missing: expected encoder\.block\.3\.layer\.0\.layer_norm"),
    ("t5", {"num_heads": 4}, r"wrong shape: .*relative_attention_bias\.weight: expected \[8, 4\], found \[8, 3\]"),
    ("t5", {"feed_forward_proj": "gated-gelu"}, r"missing: expected encoder\.block\.0\.layer\.1\.DenseReluDense\.wi_0"),
    ("marian", {"share_encoder_decoder_embeddings": False}, r"missing: expected model\.decoder\.embed_tokens\.weight"),
])
def test_weights_that_do_not_fit(family, changes, said, tmp_path, tools):
    _, values, arrays = saved(tmp_path, family)
    with pytest.raises(ModelFileError, match=said):
        read(tools, arrays, values | changes)


@pytest.mark.parametrize(("case", "prefix", "more"), [
    ("bart", "model.", {"encoder.version": (1,), "decoder.version": (1,), "encoder.embed_tokens.weight": (96, 48),
                        "decoder.embed_tokens.weight": (96, 48)}),
    ("marian", "", {"model.encoder.embed_positions.weight": (128, 48),
                    "model.decoder.embed_positions.weight": (128, 48),
                    "model.encoder.embed_tokens.weight": (96, 48)}),
    ("m2m_100", "", {"model.encoder.embed_positions.weights": (130, 48)}),
    ("t5", "", {"encoder.embed_tokens.weight": (96, 48), "decoder.embed_tokens.weight": (96, 48),
                "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight": (8, 3)}),
])
def test_old_names_and_copies(case, prefix, more, tmp_path, tools):
    """Files of base models lack the outermost name, and old ones hold copies and tables that are not needed."""
    model, values, arrays = saved(tmp_path, case)
    arrays = {name.removeprefix(prefix): array for name, array in arrays.items()}
    arrays |= {name: np.ones(shape, np.float32) for name, shape in more.items()}
    spec, weights, warnings = read(tools, arrays, values | {"architectures": None})
    _, _, logits = tiny_pairs.reference(model, SOURCE, TARGET)
    assert relative_error(numpy_logits(spec, weights, TARGET, source=SOURCE), logits) < 1e-5 and warnings == ()


@pytest.mark.parametrize("family", ["bart", "pegasus"])
def test_without_a_bias_of_the_logits(family, tmp_path, tools):
    """Newer files leave one of zeros out."""
    model, values, arrays = saved(tmp_path, family)
    model.final_logits_bias.zero_()
    del arrays["final_logits_bias"]
    spec, weights, _ = read(tools, arrays, values)
    _, _, logits = tiny_pairs.reference(model, SOURCE, TARGET)
    assert relative_error(numpy_logits(spec, weights, TARGET, source=SOURCE), logits) < 1e-5


def test_a_head_that_the_file_has_after_all(tmp_path, tools):
    """mT5's files say now this, now that; what counts is the head in the file."""
    model, values, arrays = saved(tmp_path, "mt5", tie_word_embeddings=False)
    spec, weights, warnings = read(tools, arrays, values | {"tie_word_embeddings": False})
    _, _, logits = tiny_pairs.reference(model, SOURCE, TARGET)
    assert relative_error(numpy_logits(spec, weights, TARGET, source=SOURCE), logits) < 1e-5 and warnings == ()
    spec, _, warnings = read(tools, arrays, values | {"tie_word_embeddings": True})
    assert not spec.tied and len(warnings) == 1 and "holds a different lm_head.weight" in warnings[0]


@pytest.mark.parametrize("family", ["T5", "MT5", "UMT5"])
def test_an_encoder_by_itself(family, tmp_path, tools):
    import torch
    import transformers
    from safetensors.numpy import load_file

    torch.manual_seed(5)
    config = getattr(transformers, family + "Config")(**tiny_pairs.T5)
    model = getattr(transformers, family + "EncoderModel")(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
        theirs = model(torch.tensor([SOURCE])).last_hidden_state[0].numpy()
    model.save_pretrained(tmp_path)
    values, arrays = read_config(tmp_path).values, load_file(tmp_path / "model.safetensors")
    spec, weights, _ = read(tools, arrays, values)
    assert spec.encoder is None and not spec.causal and spec.head.task == "none" and spec.family == family.lower()
    assert relative_error(numpy_hidden(spec, weights, SOURCE), theirs) < 1e-5
    alone = {name.replace("shared", "encoder.embed_tokens"): array for name, array in arrays.items()}
    spec, weights, _ = read(tools, alone, values)
    assert relative_error(numpy_hidden(spec, weights, SOURCE), theirs) < 1e-5


@pytest.mark.parametrize("family", ["Bart", "MBart"])
def test_labels(family, tmp_path, tools):
    """BartForSequenceClassification: the decoder reads the source, one token behind, and the state at its end token is
    the text's."""
    import torch
    import transformers
    from safetensors.numpy import load_file

    torch.manual_seed(6)
    config = getattr(transformers, family + "Config")(**tiny_pairs.SIDES, num_labels=5)
    model = getattr(transformers, family + "ForSequenceClassification")(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
        theirs = model(torch.tensor([SOURCE])).logits[0].numpy()
    model.save_pretrained(tmp_path)
    values = read_config(tmp_path).values
    spec, weights, _ = read(tools, load_file(tmp_path / "model.safetensors"), values)
    states = numpy_hidden(spec, weights, [tiny_pairs.END, *SOURCE[:-1]], source=SOURCE)
    assert (spec.head.task, spec.head.outputs, spec.head.pool) == ("labels", 5, "last")
    assert relative_error(numpy_head(spec, weights, states), theirs) < 1e-5


JUNK = [None, True, False, 0, 1, -1, 2, 3, 8, 47, 48, 96, 2**31, 10**5000, 0.0, 0.5, 2.0, float("nan"), float("inf"),
        "", "relu", "gelu", "gated-gelu", "gated-", "-relu", "gated-gated-relu", "x" * 1000, [], [1], [None], {},
        {"0": "a"}, ["BartForSequenceClassification"], ["T5EncoderModel"]]
SETTINGS = ("architectures", "hidden_size", "num_attention_heads", "num_hidden_layers", "num_decoder_layers",
            "feed_forward_proj", "activation_function", "relative_attention_num_buckets", "pad_token_id", "id2label",
            "relative_attention_max_distance", "layer_norm_epsilon", "tie_word_embeddings", "scale_decoder_outputs",
            "scale_embedding", "share_encoder_decoder_embeddings", "decoder_vocab_size", "is_encoder_decoder")


@pytest.mark.parametrize("family", tiny_pairs.FAMILIES)
def test_fuzz_configs(family):
    """One or two random changes: an error of ours, or a spec that passes its own check."""
    base = (T5 if family.endswith("t5") else BART) | {"model_type": family, "architectures": None}
    keys, rng, passed = sorted({*base, *SETTINGS} - {"model_type"}), np.random.default_rng(3), 0
    for _ in range(400):
        values = dict(base)
        for key in rng.choice(keys, size=rng.integers(1, 3), replace=False):
            values[str(key)] = JUNK[rng.integers(len(JUNK))]
        try:
            spec = registry.spec_from_config(values).check()
        except ForwardpassError as error:
            assert len(str(error)) < 1000
        else:
            passed += spec is not None and len(list(targets(spec))) > 0
    assert 40 < passed < 360  # the fuzz reached both outcomes


def test_an_unknown_kind_lists_what_is_known():
    with pytest.raises(UnsupportedModelError, match="m2m_100, marian, mbart"):
        registry.spec_from_config(BART | {"model_type": "blenderbot"})
