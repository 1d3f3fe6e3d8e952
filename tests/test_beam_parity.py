"""Beam search of every family of decoders in float32 against transformers, tiny random models. Encoder-decoders are in
test_seq2seq_parity.py, the search itself in decoding/test_beams_hf.py."""

import numpy as np
import pytest
import torch

import forwardpass
import tiny_models

PROMPT = np.random.default_rng(2).integers(2, tiny_models.VOCABULARY, 21).tolist()  # beyond windows of 16 tokens
ENDS = [1, *range(40, 48)]  # enough of them that some answers end
SETTINGS = [
    {"num_beams": 3, "length_penalty": 1.5},
    {"num_beams": 4, "early_stopping": True, "no_repeat_ngram_size": 2},
    {"num_beams": 5, "early_stopping": "never", "length_penalty": 0.4, "repetition_penalty": 1.2},
    {"num_beams": 2, "min_new_tokens": 6, "num_return_sequences": 2, "bad_words_ids": [[9], [10, 11]]},
    {"num_beams": 4, "forced_eos_token_id": 1, "length_penalty": 0.0, "encoder_no_repeat_ngram_size": 1},
]


@pytest.mark.parametrize("family", tiny_models.FAMILIES)
def test_beams(family, tmp_path):
    torch.set_num_threads(1)
    reference = tiny_models.make(family)
    path = tiny_models.save(reference, tmp_path)
    number = sorted(tiny_models.FAMILIES).index(family)
    with forwardpass.load(path, dtype="float32") as model:
        for prompt, settings in ((PROMPT, SETTINGS[number % 5]), (PROMPT[:3], SETTINGS[(number + 2) % 5])):
            given = {"num_return_sequences": 3, "max_new_tokens": 12, "eos_token_id": ENDS, **settings}
            with torch.no_grad():
                found = reference.generate(torch.tensor([prompt]), return_dict_in_generate=True, output_scores=True,
                                           do_sample=False, pad_token_id=0, **given)  # fmt: skip
            ours = model.generate(prompt, **given)
            theirs = [trimmed(ids[len(prompt) :]) for ids in found.sequences.tolist()]
            assert [one.token_ids for one in ours] == theirs
            np.testing.assert_allclose([one.score for one in ours], found.sequences_scores, rtol=1e-4, atol=1e-5)


def trimmed(ids):
    """Without the padding after the first end token."""
    end = next((n for n, token in enumerate(ids) if token in ENDS), len(ids))
    return ids[: end + 1]
