"""Encoder-decoder families against transformers: the spec and the weight rows mean what the original model computes."""

from __future__ import annotations

import numpy as np
import pytest

import tiny_pairs
from agreement import relative_error
from forwardpass.models import registry
from forwardpass.models.hf_config import read_config
from forwardpass.weights.safetensors import open_safetensors
from numpy_model import numpy_hidden, numpy_logits

RNG = np.random.default_rng(3)
SOURCE, TARGET = RNG.integers(3, 70, 31).tolist(), RNG.integers(3, 70, 40).tolist()


@pytest.mark.parametrize("case", tiny_pairs.CASES)
def test_logits_equal_transformers(case, tmp_path, tools):
    """Both sides' final states and the logits at every position, beyond the furthest bucket of distances."""
    model = tiny_pairs.case(case)
    with open_safetensors(tiny_pairs.save(model, tmp_path)) as source:
        checkpoint = registry.read(source, read_config(tmp_path).values)
        weights = tools.load_rows(checkpoint, source)
    spec = checkpoint.spec
    encoded, decoded, logits = tiny_pairs.reference(model, SOURCE, TARGET)
    inside = {name.removeprefix("encoder."): array for name, array in weights.items() if name.startswith("encoder.")}
    assert relative_error(numpy_hidden(spec.encoder, weights | inside, SOURCE), encoded) < 1e-5
    assert relative_error(numpy_hidden(spec, weights, TARGET, source=SOURCE), decoded) < 1e-5
    assert relative_error(numpy_logits(spec, weights, TARGET, source=SOURCE), logits) < 1e-5
    assert checkpoint.warnings == () and spec.family == tiny_pairs.CASES[case][0]
