"""The catalogue's other real models: they agree with transformers, answer in two languages and fill in middles.

Run with `-m models`; fetches the weights.
"""

import warnings

import pytest

import forwardpass
from agreement import check_greedy, reference_logits, relative_error
from forwardpass import catalog

pytestmark = pytest.mark.models

TEXT = {
    "qwen2.5-coder-0.5b": "def median(values):\n    \"\"\"The middle of the sorted values.\"\"\"\n    values = sorted(",
    "gemma3-270m": "The largest cities of Italy are Rome, Milan and Naples. The capital of France is Paris, and the",
}


@pytest.fixture(scope="module")
def coder():
    with forwardpass.load("qwen2.5-coder-0.5b") as model:
        yield model


@pytest.fixture(scope="module")
def gemma():
    with forwardpass.load("gemma3-270m") as model:
        yield model


@pytest.mark.parametrize("name", TEXT)
def test_float32_agrees_with_transformers(name):
    """The same file, dequantised by transformers: logits at every position, then 30 greedy tokens."""
    import torch
    from transformers import AutoModelForCausalLM

    path = catalog.resolve(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32).eval()
    with forwardpass.load(name, dtype="float32") as model:
        ids = model.tokenizer.encode(TEXT[name], add_special_tokens=True, parse_special=False)
        assert relative_error(model.logits(ids), reference_logits(theirs, ids)) < 1e-4
        answer = model.generate(ids, max_new_tokens=30, do_sample=False, eos_token_id=[])
        check_greedy(theirs, ids, answer.token_ids)


@pytest.mark.parametrize(("question", "answer"), [("中国的首都是", "北京"),
                                                  ("What is the capital of France?", "Paris")])
@pytest.mark.parametrize("dtype", ["auto", "int8", "int4"])
def test_answers_in_two_languages(question, answer, dtype):
    with forwardpass.load("qwen2.5-coder-0.5b", dtype=dtype) as model:
        assert answer in model.chat([{"role": "user", "content": question}], max_new_tokens=40, do_sample=False).text


@pytest.mark.parametrize(("prefix", "middle", "suffix"), [
    ("def mean(values):\n    total = sum(values)\n    count = ", "len(values)", "\n    return total / count\n"),
    ("def hypotenuse(a, b):\n    squares = ", "a ** 2 + b ** 2", "\n    return squares ** 0.5\n"),
    ("import json\n\n\ndef load(path):\n    with open(path) as file:\n        settings = ", "json.load(file)",
     "\n    return settings\n"),
])
def test_fills_in_the_middle(coder, prefix, middle, suffix):
    done = coder.complete(prefix, suffix, max_new_tokens=40, do_sample=False)
    assert (done.text.partition("#")[0].strip(), done.finish_reason) == (middle, "stop")


def test_gemma_continues_text(gemma):
    done = gemma.generate("1, 2, 3, 4, 5, 6,", max_new_tokens=12, do_sample=False)
    assert done.text.startswith(" 7, 8, 9")


def test_gemmas_windows_change_no_bit(gemma):
    """Prompts on both sides of the window of 512, in company and alone, whole and in parts, first and second time."""
    text = "".join(f"{number} times {number} is {number * number}. " for number in range(1, 90))
    ids = gemma.tokenizer.encode(text, add_special_tokens=True, parse_special=False)
    prompts = [ids[:length] for length in (700, 512, 40, 513, 3)]
    together = gemma.generate(prompts, max_new_tokens=12, do_sample=False, eos_token_id=[])
    for prompt, one in zip(prompts, together, strict=True):
        gemma.engine.prefixes.clear()
        assert gemma.generate(prompt, max_new_tokens=12, do_sample=False, eos_token_id=[]).token_ids == one.token_ids
        again = gemma.generate(prompt, max_new_tokens=12, do_sample=False, eos_token_id=[])
        assert again.token_ids == one.token_ids
