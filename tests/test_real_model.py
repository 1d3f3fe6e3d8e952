"""SmolLM2-135M: float32 mode answers as transformers does, and quantised arithmetic costs no quality."""

import math

import numpy as np
import pytest

import forwardpass
import texts
from agreement import check_greedy, reference_logits, relative_error

QUESTIONS = [
    "What is the capital of France?",
    "Write a haiku about the sea.",
    "Name three primary colours.",
    "Explain what a hash table is in two sentences.",
    "Translate 'good morning' into Spanish.",
    "def fibonacci(n):",
    "Why is the sky blue?",
    "List the planets of the solar system.",
    "Tell me a short story about a dragon who likes tea.",
    "How many legs does a spider have? ¿Y una araña? 🕷",
]
TOKENS = 8192
"""Both arithmetics see the same tokens: over so many, chance is 0.02% of the ratio of their perplexities."""


@pytest.fixture(scope="module")
def exact(smollm2_path):
    with forwardpass.load(smollm2_path, dtype="float32") as model:
        yield model


@pytest.fixture(scope="module")
def reference(smollm2_path):
    """The same file through transformers, dequantised to float32."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(smollm2_path.parent, gguf_file=smollm2_path.name, dtype=torch.float32)
    return model.eval()


def prompts(model):
    """Half of the questions through the chat template, half as they are."""
    chats = [model.chat([{"role": "user", "content": q}], max_new_tokens=1).prompt_token_ids for q in QUESTIONS[::2]]
    return chats + [model.tokenizer.encode(q, add_special_tokens=True, parse_special=False) for q in QUESTIONS[1::2]]


def test_greedy_answers_equal_those_of_transformers(exact, reference):
    answers = exact.generate(prompts(exact), max_new_tokens=32)
    ends = set(exact.engine.facts.end_ids)
    equal = [check_greedy(reference, one.prompt_token_ids, one.token_ids, ends) for one in answers]
    assert len(answers) == 10 and sum(equal) >= 0.8 * sum(len(one.token_ids) for one in answers)
    assert all(len(one.token_ids) == 32 or one.token_ids[-1] in ends for one in answers)


def test_logits_agree_with_transformers(exact, reference):
    ids = prompts(exact)[3]
    ours, theirs = exact.logits(ids), reference_logits(reference, ids)
    assert max(relative_error(a, b) for a, b in zip(ours, theirs, strict=True)) < 1e-4


def test_as_stored_agrees_with_float32(exact, smollm2_path):
    """Different arithmetic, the same model: close logits and mostly the same best token."""
    ids = texts.windows(exact.tokenizer, texts.WINDOW)[0][:200]
    expected = exact.logits(ids)
    with forwardpass.load(smollm2_path) as model:
        got = model.logits(ids)
    errors = [relative_error(a, b) for a, b in zip(got, expected, strict=True)]
    assert np.median(errors) < 0.01 and np.mean(got.argmax(1) == expected.argmax(1)) > 0.95


def test_quantised_perplexity_is_within_one_percent(exact, smollm2_path):
    """In windows of 512, the first token of each unscored."""
    windows = texts.windows(exact.tokenizer, TOKENS)
    with forwardpass.load(smollm2_path) as model:
        quantised = perplexity(model, windows)
    assert quantised == pytest.approx(perplexity(exact, windows), rel=0.01)
    assert 5 < quantised < 50


def perplexity(model, windows):
    scores = [model.score(window) for window in windows]
    return math.exp(-sum(one.log_likelihood for one in scores) / sum(one.num_tokens for one in scores))


@pytest.mark.soak
@pytest.mark.parametrize("kv_dtype, bound", [("bfloat16", 0.01), ("int8", 0.02)])
def test_cache_types_cost_little(kv_dtype, bound, exact, smollm2_path):
    windows = texts.windows(exact.tokenizer, TOKENS)
    with forwardpass.load(smollm2_path, kv_dtype=kv_dtype) as model:
        assert perplexity(model, windows) == pytest.approx(perplexity(exact, windows), rel=bound)
