"""Each encoder family and head against transformers: the spec and the weight rows mean what the original computes."""

from __future__ import annotations

import numpy as np
import pytest

import tiny_encoders
import tiny_gguf_encoders
import tiny_models
from forwardpass.errors import ModelFileError, UnsupportedModelError
from forwardpass.models import registry
from forwardpass.models.hf_config import read_config
from forwardpass.weights.gguf import open_gguf
from forwardpass.weights.safetensors import open_safetensors
from numpy_model import numpy_head, numpy_hidden


def close(ours, theirs):
    return ours.shape == theirs.shape and np.abs(ours - theirs).max() / np.abs(theirs).max() < 1e-5


@pytest.mark.parametrize("head", tiny_encoders.HEADS)
@pytest.mark.parametrize("case", tiny_encoders.CASES)
def test_a_family_equals_transformers(case, head, tmp_path, tools):
    """Texts one by one, compared with a padded batch. Token types change within a text."""
    model = tiny_encoders.make(case, head)
    batch = tiny_encoders.texts(model)
    with open_safetensors(tiny_encoders.save(model, tmp_path)) as source:
        checkpoint = registry.read(source, read_config(tmp_path).values)
        weights = tools.load_rows(checkpoint, source)
    spec = checkpoint.spec
    assert checkpoint.warnings == () and not spec.causal and spec.head.task == head
    assert spec.family == model.config.model_type
    for (ids, types), (hidden, answer) in zip(batch, tiny_encoders.reference(model, batch), strict=True):
        ours = numpy_hidden(spec, weights, ids, types=types if spec.token_types else None)
        assert close(ours, hidden)
        if head != "none":
            assert close(numpy_head(spec, weights, ours), answer)


@pytest.mark.parametrize(("case", "head"), tiny_gguf_encoders.CASES)
def test_gguf_equals_transformers(case, head, tmp_path, tools):
    model = tiny_encoders.make(case, head)
    batch = tiny_encoders.texts(model)
    with open_gguf(tiny_gguf_encoders.save(model, tmp_path / "m.gguf")) as source:
        checkpoint = registry.read(source)
        weights = tools.load_rows(checkpoint, source)
    spec = checkpoint.spec
    assert checkpoint.warnings == () and not spec.causal and spec.head.task == head
    for (ids, types), (hidden, answer) in zip(batch, tiny_encoders.reference(model, batch), strict=True):
        ours = numpy_hidden(spec, weights, ids, types=types if spec.token_types else None)
        assert close(ours, hidden)
        if head != "none":
            assert close(numpy_head(spec, weights, ours), answer)


def test_gguf_of_a_gemma_that_looks_ahead(tmp_path, tools):
    import torch

    model = tiny_models.make("gemma3_text", "Gemma3TextModel", use_bidirectional_attention=True, sliding_window=15)
    ids = np.random.default_rng(1).integers(2, tiny_models.VOCABULARY, 40)
    with open_gguf(tiny_gguf_encoders.save(model, tmp_path / "m.gguf")) as source:
        checkpoint = registry.read(source)
        weights = tools.load_rows(checkpoint, source)
    assert [layer.attention.window for layer in checkpoint.spec.layers] == [8, 0] and not checkpoint.spec.causal
    with torch.no_grad():
        theirs = model(torch.tensor(ids[None])).last_hidden_state[0].numpy()
    assert close(numpy_hidden(checkpoint.spec, weights, ids), theirs)


@pytest.mark.parametrize(("family", "change", "error", "said"), [
    ("bert", {"bert.attention.causal": True}, UnsupportedModelError, "only looks back"),
    ("bert", {"bert.attention.max_alibi_bias": 8.0}, UnsupportedModelError, "ALiBi"),
    ("bert", {"bert.attention.head_count": 5}, ModelFileError, "head_count"),
    ("nomic_bert", {"nomic-bert.expert_count": 4}, UnsupportedModelError, "experts"),
    ("modernbert", {"modern-bert.attention.sliding_window_pattern": [True]}, ModelFileError, "one for each layer"),
])
def test_gguf_metadata_that_must_stop(family, change, error, said, tmp_path):
    with open_gguf(tiny_gguf_encoders.save(tiny_encoders.make(family, "none"), tmp_path / "m.gguf")) as source:
        metadata = dict(source.metadata)
        registry.spec_from_gguf(metadata, source.tensors)
        with pytest.raises(error, match=said):
            registry.spec_from_gguf(metadata | change, source.tensors)


def test_gguf_with_half_a_classifier(tmp_path):
    """The converter drops BERT's pooler: then scores would be others."""
    with open_gguf(tiny_gguf_encoders.save(tiny_encoders.make("bert", "labels"), tmp_path / "m.gguf")) as source, \
            pytest.raises(UnsupportedModelError, match="the second alone"):
        registry.read(source)
