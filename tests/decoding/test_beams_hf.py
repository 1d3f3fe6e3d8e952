"""Beam search against transformers' own, both driven by the same script, over random settings."""

import math

import numpy as np
import pytest
import torch
from transformers.generation import LogitsProcessor, LogitsProcessorList

from forwardpass.decoding.beams import BeamSearch
from forwardpass.decoding.params import SamplingParams, TokenFacts
from forwardpass.decoding.sampler import Sampler
from hf_script import Script, ScriptPair, best

VOCAB = 13


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def scripted(seed, ends, spread, bonus):
    """A row of logits for every text; bonus: of the end tokens."""

    def f(*texts):
        key = hash((seed, *map(tuple, texts))) & 0xFFFFFFFF
        row = np.random.default_rng(key).normal(0, spread, VOCAB).astype(np.float32)
        row[list(ends)] += np.float32(bonus)
        return row

    return f


def ours(f, prompt, ends, start=None, vocab=VOCAB, **settings):
    given = prompt if start is None else start
    search = BeamSearch(SamplingParams(**settings), TokenFacts(vocab, end_ids=tuple(ends)), given,
                        source_ids=None if start is None else prompt)  # fmt: skip
    texts = [list(given)]
    while not search.done:
        assert search.live == len(texts) <= settings["num_beams"]
        step = search.advance(np.stack([f(text) if start is None else f(prompt, text) for text in texts]))
        texts = [texts[p] + [t] for p, t in zip(step.parents.tolist(), step.tokens.tolist(), strict=True)]
        assert not any(set(text[len(given) :]) & set(ends) for text in texts)
    found = search.results()
    assert [score for _, score in found] == sorted((score for _, score in found), reverse=True)
    assert len({tuple(ids) for ids, _ in found}) == len(found)
    return found


def same(found, expected):
    assert [ids for ids, _ in found] == [ids for ids, _ in expected]
    np.testing.assert_allclose([s for _, s in found], [s for _, s in expected], rtol=1e-5, atol=1e-5)


def drawn(generator, pair):
    """Random settings of the search and of processors, few of them at a time."""
    beams = int(generator.integers(2, 7))
    settings = {
        "num_beams": beams,
        "num_return_sequences": int(generator.integers(1, beams + 1)),
        "length_penalty": float(generator.choice([-1.0, 0.0, 0.6, 1.0, 1.7, 3.0])),
        "early_stopping": [False, True, "never"][generator.integers(3)],
        "max_new_tokens": int(generator.integers(1, 10)),
    }
    possible = {
        "repetition_penalty": float(generator.choice([0.7, 1.3, 2.5])),
        "no_repeat_ngram_size": int(generator.integers(2, 4)),
        "encoder_repetition_penalty": float(generator.choice([0.6, 1.8])),
        "encoder_no_repeat_ngram_size": int(generator.integers(2, 4)),
        "min_new_tokens": int(generator.integers(1, settings["max_new_tokens"] + 1)),
        "min_length": int(generator.integers(1, 9)),
        "bad_words_ids": [[4], [5, 6], [7, 8, 9]],
        "suppress_tokens": [11],
        "begin_suppress_tokens": [10, 12],
        "forced_bos_token_id": int(generator.integers(1, 10)),
        "forced_eos_token_id": int(generator.integers(1, 10)),
        "renormalize_logits": True,
        "prefix_allowed_tokens_fn": lambda index, ids: [t for t in range(VOCAB) if (t + int(ids[-1])) % 4],
    }
    for name in generator.permutation(sorted(possible))[: generator.integers(0, 4)]:
        settings[name] = possible[name]
    if "min_new_tokens" in settings:
        settings.pop("min_length", None)  # transformers lets the other one win
    return settings


def a_case(seed, pair):
    generator = np.random.default_rng(seed)
    ends = sorted(generator.permutation(VOCAB - 1)[: generator.integers(0, 4)] + 1)
    ends = [int(i) for i in ends]
    f = scripted(seed, ends, float(generator.choice([0.5, 1.5, 3.0])), float(generator.choice([-1.0, 0.0, 2.0])))
    prompt = generator.integers(1, VOCAB, generator.integers(1, 6)).tolist()
    start = generator.integers(1, VOCAB, generator.integers(1, 3)).tolist() if pair else None
    return f, prompt, ends, start, drawn(generator, pair)


@pytest.mark.filterwarnings("ignore:Unfeasible length constraints:UserWarning")
@pytest.mark.parametrize("pair", [False, True])
@pytest.mark.parametrize("block", range(6))
def test_random_settings_give_transformers_results(block, pair):
    for seed in range(1000 * block, 1000 * block + 30):
        f, prompt, ends, start, settings = a_case(seed, pair)
        model = (ScriptPair if pair else Script)(f, VOCAB)
        same(ours(f, prompt, ends, start, **settings), best(model, prompt, ends, start, **settings))


@pytest.mark.filterwarnings("ignore:Unfeasible length constraints:UserWarning")
@pytest.mark.parametrize("pair", [False, True])
def test_the_same_settings_without_beams(pair):
    """The likeliest token at each step: the processors edit logits, not log-probabilities."""
    for seed in range(7000, 7030):
        f, prompt, ends, start, settings = a_case(seed, pair)
        settings |= {"num_beams": 1, "num_return_sequences": 1}
        given = prompt if start is None else start
        sampler = Sampler(SamplingParams(**settings), TokenFacts(VOCAB, end_ids=tuple(ends)), given,
                          source_ids=None if start is None else prompt)  # fmt: skip
        tokens = []
        while len(tokens) < settings["max_new_tokens"] and not set(tokens) & set(ends):
            text = [*given, *tokens]
            tokens.append(sampler.pick(f(text) if start is None else f(prompt, text)))
            sampler.accept(tokens[-1])
        for name in ("length_penalty", "early_stopping", "renormalize_logits"):  # of beams
            settings.pop(name, None)
        model = (ScriptPair if pair else Script)(f, VOCAB)
        assert tokens == best(model, prompt, ends, start, **settings)[0][0]


class Lower(LogitsProcessor):
    """One of the user's own: tokens that are in the text cost what their place says."""

    def __call__(self, input_ids, scores):
        scores = scores.clone()
        for row, text in zip(scores, input_ids, strict=True):
            row[text] -= 0.1 * len(text)
        return scores


def test_a_users_processor_sees_each_beams_text():
    for seed in range(10):
        f, prompt, ends, _, _ = a_case(seed, False)
        settings = {"num_beams": 4, "num_return_sequences": 4, "max_new_tokens": 7, "repetition_penalty": 1.2}
        expected = best(Script(f, VOCAB), prompt, ends, logits_processor=LogitsProcessorList([Lower()]), **settings)
        same(ours(f, prompt, ends, logits_processors=[Lower()], **settings), expected)


def test_a_large_vocabulary():
    def f(text):
        return np.random.default_rng(hash(tuple(text)) & 0xFFFFFFFF).normal(0, 3, 5000).astype(np.float32)

    settings = {"num_beams": 5, "num_return_sequences": 5, "max_new_tokens": 6}
    same(ours(f, [3], [7], vocab=5000, **settings), best(Script(f, 5000), [3], [7], **settings))


# ---- sampling beams: the same distribution, not the same numbers

SAMPLED = [
    {"temperature": 1.0},
    {"temperature": 0.4, "length_penalty": 0.0},
    {"temperature": 1.5, "top_p": 0.6},
    {"top_k": 1, "early_stopping": True},  # two tokens stay all the same
    {"min_p": 0.5, "renormalize_logits": True, "repetition_penalty": 1.7},
    {"typical_p": 0.3},
]


@pytest.mark.parametrize("settings", SAMPLED)
def test_sampling_beams_has_transformers_distribution(settings):
    count, ends, prompt = 2000, [1], [2]
    known = {}

    def f(text):
        key = tuple(text)
        if key not in known:
            known[key] = np.random.default_rng(hash(key) & 0xFFFFFFFF).normal(0, 1, 5).astype(np.float32)
        return known[key]

    settings = {"num_beams": 2, "max_new_tokens": 3, "do_sample": True, "top_k": 0, **settings}
    torch.manual_seed(1)
    out = Script(f, 5).generate(
        torch.tensor([prompt] * count), eos_token_id=ends, pad_token_id=0, output_scores=True,
        return_dict_in_generate=True, **settings,
    )  # fmt: skip
    theirs = {}
    for ids, score in zip(out.sequences[:, 1:].tolist(), out.sequences_scores.tolist(), strict=True):
        text = tuple(ids[: ids.index(1) + 1] if 1 in ids else ids)
        theirs.setdefault(text, []).append(score)
    found = {}
    for seed in range(count):
        ((ids, score),) = ours(f, prompt, ends, vocab=5, seed=seed, **settings)
        found.setdefault(tuple(ids), []).append(score)
    # The same text has the same score in both, and comes as often: chi-square of the two samples.
    for text in found.keys() & theirs.keys():
        np.testing.assert_allclose(found[text] + theirs[text], found[text][0], rtol=1e-5)
    texts = [text for text in found.keys() | theirs.keys() if len(found.get(text, [])) + len(theirs.get(text, [])) > 9]
    pairs = np.array([(len(found.get(text, [])), len(theirs.get(text, []))) for text in texts])
    chi_square = float(((pairs[:, 0] - pairs[:, 1]) ** 2 / pairs.sum(1)).sum())
    assert chi_square < len(texts) + 3.1 * math.sqrt(2 * len(texts)) + 5  # beyond its 99.9 % point

