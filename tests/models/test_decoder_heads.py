"""Decoder families without their usual head: as embedders, and with heads of labels."""

from __future__ import annotations

import json

import numpy as np
import pytest

import tiny_models
from forwardpass.errors import ModelFileError, UnsupportedModelError
from forwardpass.models import registry
from forwardpass.models.hf_config import read_config
from forwardpass.weights.safetensors import open_safetensors
from numpy_model import numpy_head, numpy_hidden

IDS = np.random.default_rng(1).integers(2, tiny_models.VOCABULARY, 40).tolist()
STEMS = {"llama": "Llama", "mistral": "Mistral", "mixtral": "Mixtral", "qwen2": "Qwen2", "qwen3": "Qwen3",
         "gemma": "Gemma", "gemma2": "Gemma2", "gemma3_text": "Gemma3Text", "phi3": "Phi3", "gpt2": "GPT2",
         "gpt_neox": "GPTNeoX", "falcon": "Falcon", "opt": "OPT", "starcoder2": "Starcoder2"}
AHEAD = {"use_bidirectional_attention": True, "sliding_window": 15}


def close(ours, theirs):
    return ours.shape == theirs.shape and np.abs(ours - theirs).max() / np.abs(theirs).max() < 1e-5


def load(directory, tools):
    with open_safetensors(directory) as source:
        checkpoint = registry.read(source, read_config(directory).values)
        return checkpoint, tools.load_rows(checkpoint, source)


def states(model):
    import torch

    with torch.no_grad():
        return getattr(model, model.base_model_prefix, model)(torch.tensor([IDS])).last_hidden_state[0].numpy()


def logits(model):
    import torch

    with torch.no_grad():
        return model(torch.tensor([IDS])).logits[0].numpy()


@pytest.mark.parametrize("family", STEMS)
def test_without_a_head(family, tmp_path, tools):
    """The class alone: its tensors have no prefix, and there is nothing to complain about."""
    model = tiny_models.make(family, STEMS[family] + "Model")
    checkpoint, weights = load(tiny_models.save(model, tmp_path), tools)
    assert checkpoint.warnings == () and checkpoint.spec.head.task == "none" and checkpoint.spec.causal
    assert close(numpy_hidden(checkpoint.spec, weights, IDS), states(model))


@pytest.mark.parametrize("family", [name for name in STEMS if name != "gemma3_text"])
def test_labels_of_the_last_token(family, tmp_path, tools):
    model = tiny_models.make(family, STEMS[family] + "ForSequenceClassification", num_labels=5)
    model.config.pad_token_id = 0
    checkpoint, weights = load(tiny_models.save(model, tmp_path), tools)
    head = checkpoint.spec.head
    assert (head.task, head.outputs, head.pool, checkpoint.spec.head_bias) == ("labels", 5, "last", False)
    hidden = numpy_hidden(checkpoint.spec, weights, IDS)
    assert close(hidden, states(model)) and close(numpy_head(checkpoint.spec, weights, hidden), logits(model))


@pytest.mark.parametrize("family", ["llama", "qwen3", "gpt2", "gpt_neox"])
def test_labels_of_every_token(family, tmp_path, tools):
    model = tiny_models.make(family, STEMS[family] + "ForTokenClassification", num_labels=5)
    checkpoint, weights = load(tiny_models.save(model, tmp_path), tools)
    assert checkpoint.spec.head.task == "tags" and checkpoint.spec.head_bias
    hidden = numpy_hidden(checkpoint.spec, weights, IDS)
    assert close(numpy_head(checkpoint.spec, weights, hidden), logits(model))


@pytest.mark.parametrize("kind", ["Gemma3TextModel", "Gemma3TextForSequenceClassification"])
def test_gemma_that_looks_ahead(kind, tmp_path, tools):
    """EmbeddingGemma. A sliding window of 15 is 7 tokens on each side."""
    model = tiny_models.make("gemma3_text", kind, **AHEAD | {"num_labels": 3})
    model.config.pad_token_id = 0
    checkpoint, weights = load(tiny_models.save(model, tmp_path), tools)
    spec = checkpoint.spec
    assert not spec.causal and [layer.attention.window for layer in spec.layers] == [8, 0]
    hidden = numpy_hidden(spec, weights, IDS)
    assert close(hidden, states(model))
    if spec.head.task == "labels":
        assert close(numpy_head(spec, weights, hidden), logits(model))


def test_a_model_that_looks_ahead_has_no_head(tmp_path):
    """Whatever its config calls it: it cannot generate."""
    model = tiny_models.make("gemma3_text", **AHEAD)
    values = read_config(tiny_models.save(model, tmp_path)).values
    assert values["architectures"] == ["Gemma3ForCausalLM"]
    assert registry.spec_from_config(values).head.task == "none"


def test_published_embedders_that_say_they_generate(tmp_path, tools):
    """Qwen3-Embedding: a config of a model with a head, tensors without prefix, the head tied."""
    model = tiny_models.make("qwen3", "Qwen3Model", tie_word_embeddings=True)
    tiny_models.save(model, tmp_path)
    values = json.loads((tmp_path / "config.json").read_text()) | {"architectures": ["Qwen3ForCausalLM"]}
    (tmp_path / "config.json").write_text(json.dumps(values))
    checkpoint, weights = load(tmp_path, tools)
    assert checkpoint.spec.head.task == "lm" and checkpoint.spec.tied and checkpoint.warnings == ()
    assert close(numpy_hidden(checkpoint.spec, weights, IDS), states(model))


def test_a_head_that_the_class_does_not_use_is_left_alone(tmp_path, tools):
    model = tiny_models.make("llama")
    tiny_models.save(model, tmp_path)
    values = json.loads((tmp_path / "config.json").read_text()) | {"architectures": ["LlamaModel"]}
    (tmp_path / "config.json").write_text(json.dumps(values))
    checkpoint, weights = load(tmp_path, tools)
    assert "head.weight" not in weights
    assert close(numpy_hidden(checkpoint.spec, weights, IDS), states(model))


@pytest.mark.parametrize(("changes", "error", "said"), [
    ({"is_causal": False}, UnsupportedModelError, "looks ahead"),
    ({"auto_map": {"AutoModel": "modeling_own.OwnModel"}}, UnsupportedModelError, "own Python code"),
    ({"architectures": ["LlamaForQuestionAnswering"]}, UnsupportedModelError, "LlamaForSequenceClassification"),
    ({"architectures": ["LlamaForSequenceClassification"], "id2label": {"0": "a", "2": "b"}}, ModelFileError,
     "none for 1"),
    ({"architectures": ["LlamaForSequenceClassification"], "problem_type": "guess"}, ModelFileError, "problem_type"),
])
def test_configs_that_must_stop(changes, error, said, tmp_path):
    values = read_config(tiny_models.save(tiny_models.make("llama"), tmp_path)).values
    with pytest.raises(error, match=said) as raised:
        registry.spec_from_config(values | changes)
    assert len(str(raised.value)) < 400


def test_a_family_that_has_no_word_for_it_stays_refused(tmp_path):
    """use_bidirectional_attention, where the family does not read it."""
    values = read_config(tiny_models.save(tiny_models.make("gemma2"), tmp_path)).values
    with pytest.raises(UnsupportedModelError, match="looks ahead"):
        registry.spec_from_config(values | {"use_bidirectional_attention": True})
