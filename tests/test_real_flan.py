"""The catalogue's encoder-decoder: it agrees with transformers, and does what its name promises.

Run with `-m models`; fetches the weights.
"""

from __future__ import annotations

import json

import numpy as np
import pytest

import forwardpass
from agreement import relative_error
from forwardpass import catalog
from forwardpass.tasks.opening import open_source
from forwardpass.weights.dequantize import dequantize

pytestmark = pytest.mark.models

GERMAN = "translate English to German: The house is wonderful and the weather is nice today."
REVIEW = "Is the following review positive or negative? This movie was terrible and boring."
LONG = "summarize: " + " ".join([
    "A shared block is never written. A finished text hands its blocks over together with its tokens, and a new one "
    "takes the longest beginning that they have in common."] * 12)
TEXTS = {"German": GERMAN, "review": REVIEW, "long": LONG}


@pytest.fixture(scope="module")
def reference():
    """transformers' T5 with the weights of the same file, made float32."""
    import torch
    from transformers import T5Config, T5ForConditionalGeneration

    torch.set_num_threads(2)
    path = catalog.resolve("flan-t5-small")
    source, settings = open_source(path)
    with source:
        tensors = {name: torch.from_numpy(np.array(dequantize(info.type, source.data(name), info.shape), np.float32))
                   for name, info in source.tensors.items()}
    model = T5ForConditionalGeneration(T5Config(**json.loads(json.dumps(settings.values))))
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())  # of its own, not the shared table
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    assert not unexpected and set(missing) <= {"encoder.embed_tokens.weight", "decoder.embed_tokens.weight"}
    assert not model.config.scale_decoder_outputs
    return model.eval()


@pytest.fixture(scope="module")
def model():
    with forwardpass.load("flan-t5-small", dtype="float32") as loaded:
        yield loaded


def ids_of(model, text):
    return model.tokenizer.encode(text, add_special_tokens=True, parse_special=False)


@pytest.mark.parametrize("text", TEXTS)
def test_logits_and_states(model, reference, text):
    import torch

    source = ids_of(model, TEXTS[text])
    answer = model.generate(source, max_new_tokens=30, num_beams=1, eos_token_id=[]).token_ids
    target = [0, *answer]
    with torch.no_grad():
        out = reference(input_ids=torch.tensor([source]), decoder_input_ids=torch.tensor([target]))
    theirs = out.logits[0].numpy()
    ours = model.logits(target, source_ids=source)
    assert relative_error(model.hidden_states(source), out.encoder_last_hidden_state[0].numpy()) < 1e-4
    assert relative_error(ours, theirs) < 1e-4
    for step, token in enumerate(answer):
        row = theirs[step, : model.facts.vocab_size]
        if int(row.argmax()) != token:
            second, first = np.sort(row)[-2:]
            assert first - second < 1e-3
            break


@pytest.mark.parametrize("settings", [
    {"num_beams": 4, "num_return_sequences": 4}, {"num_beams": 3, "length_penalty": 2.0, "early_stopping": True},
    {"num_beams": 4, "no_repeat_ngram_size": 2, "early_stopping": "never"},
    {"num_beams": 4, "num_return_sequences": 2, "repetition_penalty": 1.4, "min_new_tokens": 12},
], ids=str)
def test_beams(model, reference, settings):
    import torch

    for text in (GERMAN, REVIEW):
        source = ids_of(model, text)
        with torch.no_grad():
            found = reference.generate(torch.tensor([source]), max_new_tokens=16, return_dict_in_generate=True,
                                       output_scores=True, **settings)
        theirs = [ids[1 : ids.index(1) + 1 if 1 in ids else None] for ids in found.sequences.tolist()]
        done = model.generate(source, max_new_tokens=16, **settings)
        done = done if isinstance(done, list) else [done]
        assert [one.token_ids for one in done] == theirs
        assert np.allclose([one.score for one in done], found.sequences_scores, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", ["auto", "int8", "bfloat16"])
def test_what_it_is_for(dtype):
    with forwardpass.load("flan-t5-small", dtype=dtype) as model:
        assert model.generate(GERMAN, num_beams=4, max_new_tokens=40).text == (
            "Das Haus ist wunderbar, und das Wetter ist schön.")
        assert model.text2text(REVIEW, max_new_tokens=8).text == "negative"
        done = model.translate(["The house is small.", "I am hungry.\n\nWho are you?"], "English", "German")
        assert done[0].text.startswith("Das Haus ist") and "\n\n" in done[1].text
