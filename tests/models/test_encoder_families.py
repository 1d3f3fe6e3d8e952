"""Each encoder family and head against transformers: the spec and the weight rows mean what the original computes."""

from __future__ import annotations

import numpy as np
import pytest

import tiny_encoders
from forwardpass.models import registry
from forwardpass.models.hf_config import read_config
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
