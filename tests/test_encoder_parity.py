"""float32 mode against transformers: tiny random encoders of every family with every head, and decoders as embedders.

The reference computes padded batches; ours are texts alone, several side by side, and a padded rectangle that is
unpacked, which must not differ from each other in a single bit.
"""

import numpy as np
import pytest

import forwardpass
import tiny_encoders
import tiny_gguf_encoders
import tiny_models
from agreement import relative_error
from forwardpass.contracts import Padded
from forwardpass.stages.decode import decode
from forwardpass.stages.embed import embed

TOLERANCE = 1e-4


def padded(batch, kinds):
    """The rectangle, padded on the left with tokens that would be felt."""
    width = max(len(ids) for ids, _ in batch)
    ids, mask, types = (np.full((len(batch), width), fill, np.int32) for fill in (7, 0, 0))
    for row, (one, each) in enumerate(batch):
        ids[row, width - len(one):], types[row, width - len(one):] = one, each
        mask[row, width - len(one):] = 1
    return Padded(ids, mask, types if kinds else None)


def check(path, batch, theirs, dtype="float32", tolerance=TOLERANCE):
    """Hidden states and what the head gives, of each text alone; then the hidden states of all together."""
    with forwardpass.load(path, dtype=dtype) as model:
        kinds = bool(model.spec.token_types)
        alone = []
        for (ids, types), (hidden, answer) in zip(batch, theirs, strict=True):
            types = types if kinds else None
            alone.append(model.hidden_states(ids, types))
            assert alone[-1].shape == hidden.shape and alone[-1].dtype == np.float32
            assert relative_error(alone[-1], hidden) < tolerance
            if answer is not None:
                ours = model.logits(ids, types)
                assert ours.shape == np.atleast_2d(answer).shape and relative_error(ours, answer) < tolerance
        together = decode(model.network, embed(model.network, padded(batch, kinds)))
        assert np.array_equal(together.values, np.concatenate(alone))


@pytest.mark.parametrize("head", tiny_encoders.HEADS)
@pytest.mark.parametrize("case", tiny_encoders.CASES)
def test_safetensors(case, head, tmp_path):
    reference = tiny_encoders.make(case, head)
    batch = tiny_encoders.texts(reference)
    check(tiny_encoders.save(reference, tmp_path), batch, tiny_encoders.reference(reference, batch))


@pytest.mark.parametrize(("case", "head"), tiny_gguf_encoders.CASES)
def test_gguf(case, head, tmp_path):
    reference = tiny_encoders.make(case, head)
    reference.config.id2label = {i: f"kind {i}" for i in range(tiny_encoders.LABELS)}
    batch = tiny_encoders.texts(reference)
    theirs = tiny_encoders.reference(reference, batch)
    path = tiny_gguf_encoders.save(reference, tmp_path / "m.gguf")
    check(path, batch, theirs)
    if head == "labels":
        with forwardpass.load(path) as model:
            assert model.settings.labels == tuple(reference.config.id2label.values())


@pytest.mark.parametrize(("family", "kind", "changes"), [
    ("gemma3_text", "Gemma3TextModel", {"use_bidirectional_attention": True, "sliding_window": 15}),
    ("gemma3_text", "Gemma3TextForSequenceClassification", {"use_bidirectional_attention": True, "num_labels": 3}),
])
def test_a_gemma_that_looks_ahead(family, kind, changes, tmp_path):
    reference = tiny_models.make(family, kind, **changes)
    reference.config.pad_token_id = 0
    batch = tiny_encoders.texts(reference)
    check(tiny_models.save(reference, tmp_path), batch, tiny_encoders.reference(reference, batch))


@pytest.mark.parametrize(("family", "kind"), [
    ("qwen3", "Qwen3Model"), ("llama", "LlamaModel"), ("mistral", "MistralModel"), ("gpt2", "GPT2Model"),
    ("llama", "LlamaForSequenceClassification"), ("qwen3", "Qwen3ForSequenceClassification"),
    ("qwen3", "Qwen3ForTokenClassification"), ("gemma2", "Gemma2ForSequenceClassification"),
])
def test_decoders_that_read(family, kind, tmp_path):
    """As embedders and with heads of labels: their texts go through the cache."""
    reference = tiny_models.make(family, kind, num_labels=4)
    reference.config.pad_token_id = 0
    batch = tiny_encoders.texts(reference)
    with forwardpass.load(tiny_models.save(reference, tmp_path), dtype="float32") as model:
        for (ids, _), (hidden, answer) in zip(batch, tiny_encoders.reference(reference, batch), strict=True):
            assert relative_error(model.hidden_states(ids), hidden) < TOLERANCE
            if answer is not None:
                ours = model.logits(ids)
                assert ours.shape == np.atleast_2d(answer).shape and relative_error(ours, answer) < TOLERANCE


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
@pytest.mark.parametrize(("case", "head"), [("bert", "labels"), ("roberta", "lm"), ("albert", "tags"),
                                            ("mpnet", "none"), ("modernbert", "labels"), ("deberta-v2", "labels"),
                                            ("nomic_bert", "none")])
def test_fewer_bits(case, head, dtype, tmp_path):
    """Weights and activations rounded: less close, but the same function. The weights of these tiny models are far
    from what training makes of them, and their errors add up in only a few columns."""
    reference = tiny_encoders.make(case, head)
    batch = tiny_encoders.texts(reference)
    check(tiny_encoders.save(reference, tmp_path), batch, tiny_encoders.reference(reference, batch), dtype,
          {"bfloat16": 0.05, "int8": 0.15}[dtype])
