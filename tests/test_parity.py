"""float32 mode against transformers: tiny random models of every family, as safetensors and as GGUF."""

import numpy as np
import pytest

import forwardpass
import tiny_gguf
import tiny_models
from agreement import check_greedy, reference_logits, relative_error

PROMPT = np.random.default_rng(0).integers(2, tiny_models.VOCABULARY, 40).tolist()
TOLERANCE = 1e-4


def check(path, reference, stepwise=False):
    """Logits at every position of the prompt, and 40 greedy tokens. With windows and trained lengths of 16 tokens, both
    go far beyond them."""
    with forwardpass.load(path, dtype="float32") as model:
        ours, theirs = model.logits(PROMPT), reference_logits(reference, PROMPT)
        assert ours.shape == theirs.shape and ours.dtype == np.float32
        for position in range(len(PROMPT)):
            assert relative_error(ours[position], theirs[position]) < TOLERANCE, position
        answer = model.generate(PROMPT, max_new_tokens=40, eos_token_id=[])
        assert len(answer.token_ids) == 40 and answer.finish_reason == "length"
        check_greedy(reference, PROMPT, answer.token_ids, stepwise=stepwise)


@pytest.mark.parametrize("case", tiny_models.CASES)
def test_safetensors(case, tmp_path):
    family, changes = tiny_models.CASES[case]
    reference = tiny_models.make(family, **changes)
    check(tiny_models.save(reference, tmp_path), reference, stepwise=case == "llama-dynamic")


@pytest.mark.parametrize("case", ["llama", "qwen2-tied", "gpt2"])
@pytest.mark.parametrize("type", ["bfloat16", "float16"])
def test_safetensors_of_fewer_bits(case, type, tmp_path):
    """Half precision files are computed exactly: the reference gets the rounded weights as float32."""
    import torch
    from transformers import AutoModelForCausalLM

    family, changes = tiny_models.CASES[case]
    tiny_models.save(tiny_models.make(family, **changes).to(getattr(torch, type)), tmp_path)
    check(tmp_path, AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32))


@pytest.mark.parametrize("case", ["llama-tied", "gpt2"])
def test_sharded_safetensors(case, tmp_path):
    family, changes = tiny_models.CASES[case]
    reference = tiny_models.make(family, **changes)
    tiny_models.save(reference, tmp_path, max_shard_size="60KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    check(tmp_path, reference)


WIDE = {"hidden_size": 64, "intermediate_size": 96}
"""Whole blocks of 32."""


def make_gguf(case, path, type):
    family, changes = tiny_models.CASES[case]
    wide = {"n_embd": 64} if family == "gpt2" else dict(WIDE)
    if tiny_models.FAMILIES[family][2].get("num_attention_heads", 4) not in (2, 4, 8) and "head_dim" not in changes:
        wide |= {"num_attention_heads": 4, "num_key_value_heads": 2}
    return tiny_gguf.save(tiny_models.make(family, **changes | wide), path, type)


@pytest.mark.parametrize("case", [case for case in tiny_models.CASES if case not in tiny_gguf.BEYOND])
def test_gguf(case, tmp_path):
    family, changes = tiny_models.CASES[case]
    path = tiny_gguf.save(tiny_models.make(family, **changes), tmp_path / "m.gguf", "F32")
    check(path, tiny_gguf.reference(path))


@pytest.mark.parametrize("case", ["llama", "llama-tied", "llama-biases", "mixtral", "qwen2", "qwen2_moe", "gemma2",
                                  "gemma3", "phi3", "gpt2"])
@pytest.mark.parametrize("type", ["F16", "BF16", "Q8_0"])
def test_gguf_of_fewer_bits(case, type, tmp_path):
    path = make_gguf(case, tmp_path / "m.gguf", type)
    check(path, tiny_gguf.reference(path))


@pytest.mark.parametrize("type", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
@pytest.mark.parametrize("case", ["llama", "qwen2"])
def test_quantised_gguf_as_stored(case, type, tmp_path):
    """dtype auto rounds activations, so logits agree less closely, but they do agree."""
    path = make_gguf(case, tmp_path / "m.gguf", type)
    with forwardpass.load(path) as model:
        theirs = reference_logits(tiny_gguf.reference(path), PROMPT)
        assert relative_error(model.logits(PROMPT), theirs) < 2e-2


def test_the_row_order_of_a_head():
    assert tiny_gguf.interleaved(np.arange(4)[:, None], 1)[:, 0].tolist() == [0, 2, 1, 3]
    assert tiny_gguf.interleaved(np.arange(8), 2).tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


def test_a_wrong_row_order_would_be_seen(tmp_path, monkeypatch):
    """At position 0 nothing is rotated: only later positions tell whether the rows were put back."""
    reference = tiny_models.make("llama")
    monkeypatch.setattr(tiny_gguf, "interleaved", lambda rows, heads: rows)
    tiny_gguf.save(reference, tmp_path / "m.gguf", "F32")
    theirs = reference_logits(reference, PROMPT)
    with forwardpass.load(tmp_path / "m.gguf", dtype="float32") as model:
        ours = model.logits(PROMPT)
    assert relative_error(ours[0], theirs[0]) < TOLERANCE
    assert relative_error(ours[20], theirs[20]) > 100 * TOLERANCE


@pytest.mark.parametrize("case", ["llama", "gpt2"])
def test_hidden_states(case, tmp_path):
    """After the final norm."""
    import torch

    family, changes = tiny_models.CASES[case]
    reference = tiny_models.make(family, **changes)
    tiny_models.save(reference, tmp_path)
    with torch.no_grad():
        theirs = reference(torch.tensor([PROMPT]), output_hidden_states=True).hidden_states[-1][0].numpy()
    with forwardpass.load(tmp_path, dtype="float32") as model:
        assert relative_error(model.hidden_states(PROMPT), theirs) < TOLERANCE


@pytest.mark.parametrize("case", ["llama", "gpt2"])
def test_score(case, tmp_path):
    import torch

    family, changes = tiny_models.CASES[case]
    reference = tiny_models.make(family, **changes)
    tiny_models.save(reference, tmp_path)
    rows = torch.log_softmax(torch.tensor(reference_logits(reference, PROMPT)).double(), -1)
    expected = float(sum(rows[i, token] for i, token in enumerate(PROMPT[1:])))
    with forwardpass.load(tmp_path, dtype="float32") as model:
        score = model.score(PROMPT)
    assert score.log_likelihood == pytest.approx(expected, rel=1e-5) and score.num_tokens == 39
    assert score.perplexity == pytest.approx(np.exp(-expected / 39), rel=1e-5)
