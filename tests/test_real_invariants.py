"""test_invariants.py on real weights: SmolLM2-135M, fewer and shorter cases, the same ==."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

import forwardpass
from forwardpass import _native
from forwardpass.engine import Engine

ISAS = _native.isas()
TEXT = ("The tea was cold, the dragon sighed, and outside it began to rain again. Numbers: 1, 22, 333, 4444. "
        "def add(a, b): return a + b. Ein Satz auf Deutsch; une phrase en français. ") * 4
LENGTHS = (1, 7, 70, 150)
GREEDY = {"max_new_tokens": 8, "eos_token_id": [], "logprobs": 0}


@pytest.fixture(scope="module")
def model(smollm2_path):
    with forwardpass.load(smollm2_path) as model:
        yield model


@pytest.fixture(scope="module")
def prompts(model):
    ids = model.tokenizer.encode(TEXT, add_special_tokens=False, parse_special=False)
    assert len(ids) > max(LENGTHS)
    return [ids[3 * i : 3 * i + n] for i, n in enumerate(LENGTHS)]


def facts(completion):
    return completion.token_ids, completion.logprobs


@pytest.fixture(scope="module")
def alone(model, prompts):
    out = []
    for prompt in prompts:
        model.engine.prefixes.clear()
        out.append(facts(model.generate(prompt, **GREEDY)))
    model.engine.prefixes.clear()
    return out


def test_batch(model, prompts, alone):
    model.engine.prefixes.clear()
    assert [facts(one) for one in model.generate(prompts, **GREEDY)] == alone
    model.engine.prefixes.clear()
    assert [facts(one) for one in model.generate(prompts[::-1] + prompts[:2], **GREEDY)] == alone[::-1] + alone[:2]


def test_chunks(model, prompts, alone, monkeypatch):
    whole = model.logits(prompts[3])
    for step in (33, 64):
        monkeypatch.setattr(model.engine.scheduler, "step_tokens", step)
        assert np.array_equal(model.logits(prompts[3]), whole)
        model.engine.prefixes.clear()
        assert [facts(one) for one in model.generate(prompts, **GREEDY)] == alone


def test_prefix_hits(model, prompts, alone):
    for cut in (5, 64, 100):
        model.engine.prefixes.clear()
        model.generate(prompts[3][:cut], max_new_tokens=1)
        assert facts(model.generate(prompts[3], **GREEDY)) == alone[3]
    assert facts(model.generate(prompts[3], **GREEDY)) == alone[3]


def test_preemption(model, prompts, alone, monkeypatch):
    now = model.engine
    batch = [prompts[2][:60], prompts[3][:60], prompts[3][9:69], prompts[1], prompts[3]]  # three grow at the same time
    expected = [facts(model.generate(prompt, **GREEDY)) for prompt in batch[:3]] + [alone[1], alone[3]]
    monkeypatch.setattr(model, "_engine", Engine(now.network, now.facts, now.tokenizer, 5))
    assert [facts(one) for one in model.generate(batch, **GREEDY)] == expected
    assert model.engine.scheduler.preemptions > 0


def test_threads(smollm2_path, model, prompts, alone):
    with forwardpass.load(smollm2_path, threads=1) as single:
        assert [facts(one) for one in single.generate(prompts, **GREEDY)] == alone
        assert np.array_equal(single.logits(prompts[2]), model.logits(prompts[2]))


def test_stream_and_chat(model):
    messages = [{"role": "user", "content": "Name three colours."}]
    answer = model.chat(messages, max_new_tokens=12)
    pieces = list(model.chat(messages, stream=True, max_new_tokens=12))
    assert "".join(piece.text for piece in pieces) == answer.text
    assert [piece.token_id for piece in pieces] == answer.token_ids


# dtype, kv_dtype, tokens of prompt, tokens of answer: scalar code runs them too, so they are few
COMBINATIONS = [("auto", "auto", 20, 3), ("auto", "int8", 5, 1), ("int4", "int8", 5, 1), ("int8", "float32", 5, 1),
                ("bfloat16", "bfloat16", 4, 1), ("float32", "auto", 4, 1)]
PROGRAM = """
import hashlib, json, sys
import forwardpass
path, ids, combinations = json.loads(sys.argv[1])
for dtype, kv_dtype, n, new in combinations:
    with forwardpass.load(path, dtype=dtype, kv_dtype=kv_dtype) as model:
        isa = model.network._layers.program.native.isa
        logits = model.logits(ids[:n])
        answer = model.generate(ids[:n], max_new_tokens=new, eos_token_id=[], logprobs=0)
        digest = hashlib.sha256(logits.tobytes()).hexdigest()
        print(json.dumps([isa, digest, answer.token_ids, answer.logprobs]))
"""


def test_every_isa_equals_scalar(smollm2_path, prompts):
    results = {}
    for isa in ISAS:
        arguments = json.dumps([str(smollm2_path), prompts[3], COMBINATIONS])
        done = subprocess.run([sys.executable, "-c", PROGRAM, arguments], capture_output=True, text=True, timeout=600,
                              env={**os.environ, "FORWARDPASS_ISA": isa})
        assert done.returncode == 0, done.stderr
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        assert len(lines) == len(COMBINATIONS) and {line[0] for line in lines} == {isa}
        results[isa] = [line[1:] for line in lines]
    for isa in ISAS:
        for combination, one, other in zip(COMBINATIONS, results[isa], results["scalar"], strict=True):
            assert one == other, (isa, combination)
