"""The same answer every time, with ==, for models that read whole texts: a text's states alone and in any batch, and
the answers of encoder-decoders, greedy, sampled and searched, alone, crowded, run ahead and with other threads."""

import itertools

import numpy as np
import pytest

import tiny_encoders
import tiny_models
import tiny_pairs
from forwardpass import _native
from forwardpass.backends.native import NativeBackend
from forwardpass.decoding.params import from_user
from forwardpass.engine import EncoderText, Engine
from forwardpass.scheduler.reading import CausalTexts, WholeTexts
from forwardpass.tasks.opening import open_model

RNG = np.random.default_rng(4)
LENGTHS = [1, 2, 5, 17, 31, 33, 64, 65, 78]
ISAS = _native.isas()
DTYPES = ["auto", "float32", "bfloat16", "int8", "int4"]
KV_DTYPES = ["float32", "bfloat16", "int8"]

ENCODERS = ["bert", "modernbert", "mpnet", "albert", "distilbert"]
ENCODER_CASES = list(zip(itertools.chain(ENCODERS, ["bert"] * 4), [*DTYPES, *DTYPES[1:]], strict=True))
PAIRS = list(zip(["t5", "bart", "t5-gated", "marian", "pegasus", "m2m_100", "t5"], [*DTYPES, "auto", "int8"],
                 itertools.cycle(KV_DTYPES), strict=False))


def tokens(length, most=70):
    return RNG.integers(3, most, length).tolist()


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    """opened(module, case, dtype, kv) -> the open model, one for each combination."""
    paths, models = {}, {}

    def get(module, case, dtype, kv="auto", threads=2):
        key = (module.__name__, case)
        if key not in paths:
            made = {tiny_pairs: lambda: tiny_pairs.case(case), tiny_encoders: lambda: tiny_encoders.make(case, "none"),
                    tiny_models: lambda: tiny_models.make(case)}[module]()
            paths[key] = module.save(made, tmp_path_factory.mktemp(case))
        full = (*key, dtype, kv, threads)
        if full not in models:
            models[full] = open_model(paths[key], dtype, kv, NativeBackend(threads))
        return models[full]

    return get


def engine_of(model, blocks=200):
    return Engine(model.network, model.facts, None, blocks)


# ---- texts


def states(engine, texts):
    def each(hidden):
        return [hidden.values[a:b].copy() for a, b in itertools.pairwise(hidden.packed.starts)]

    return engine.encode(texts, each)


def equal(ours, theirs):
    return len(ours) == len(theirs) and all(np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize(("case", "dtype"), ENCODER_CASES)
def test_a_text_gives_the_same_alone_and_in_any_batch(case, dtype, opened):
    model = opened(tiny_encoders, case, dtype)
    texts = [EncoderText(tokens(n), [0] * (n // 2) + [1] * (n - n // 2) if case == "bert" else None) for n in LENGTHS]
    engine = engine_of(model)
    alone = [states(engine, [text])[0] for text in texts]
    assert [one.shape for one in alone] == [(n, 48) for n in LENGTHS]
    for _ in range(4):
        order = RNG.permutation(len(texts) * 3) % len(texts)
        engine.scheduler.texts.rows = int(RNG.choice([1, 70, 150, 512, 5000]))
        assert equal(states(engine, [texts[i] for i in order]), [alone[i] for i in order])
    one = opened(tiny_encoders, case, dtype, threads=1)
    assert equal(states(engine_of(one), texts), alone)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_every_isa_reads_a_text_alike(isa, dtype, opened, monkeypatch, tmp_path):
    case = "modernbert"
    texts = [EncoderText(tokens(n)) for n in LENGTHS[:7]]
    expected = states(engine_of(opened(tiny_encoders, case, dtype)), texts)
    monkeypatch.setenv("FORWARDPASS_ISA", isa)
    path = tiny_encoders.save(tiny_encoders.make(case, "none"), tmp_path)
    assert equal(states(engine_of(open_model(path, dtype, "auto", NativeBackend(2))), texts), expected)


@pytest.mark.parametrize("case", ["t5", "bart"])
def test_the_encoder_of_a_pair_reads_texts_beside_answers(case, opened):
    model = opened(tiny_pairs, case, "auto")
    texts = [EncoderText(tokens(n)) for n in LENGTHS]
    alone = [states(engine_of(model), [text])[0] for text in texts]
    engine = engine_of(model, 8)
    (expected,) = answers(engine_of(model), [(texts[6].ids, {"max_new_tokens": 60})])
    request = asked(engine, texts[6].ids, max_new_tokens=60)
    for _ in range(3):
        engine.step()
    assert equal(states(engine, texts), alone)
    engine.run([request])
    assert facts(request) == expected and engine.cache.free == engine.cache.size


@pytest.mark.parametrize(("case", "dtype", "kv"), [("llama", "auto", "float32"), ("gpt2", "int8", "bfloat16")])
def test_a_decoder_as_embedder_in_chunks_beside_answers(case, dtype, kv, opened):
    model = opened(tiny_models, case, dtype, kv)
    texts = [EncoderText(tokens(n)) for n in LENGTHS]
    alone = [states(engine_of(model), [text])[0] for text in texts]
    engine = engine_of(model, 6)
    engine.scheduler.step_tokens = 37
    request = asked(engine, tokens(20), pair=False, max_new_tokens=60)
    engine.step()
    assert equal(states(engine, texts), alone)
    engine.run([request])
    engine.prefixes.clear()
    assert engine.cache.free == engine.cache.size


def test_callers_and_their_texts_never_mix(opened):
    """Jobs that share every step, of an encoder and of a decoder."""
    for module, case, kind in ((tiny_encoders, "bert", WholeTexts), (tiny_models, "llama", CausalTexts)):
        model = opened(module, case, "auto")
        engine, single = engine_of(model), engine_of(model)
        groups = [[np.array(tokens(n), np.int32) for n in RNG.choice(LENGTHS, 6)] for _ in range(3)]
        jobs = [kind([(ids, None) for ids in group],
                     lambda hidden: [hidden.values[a:b].copy() for a, b in itertools.pairwise(hidden.packed.starts)])
                for group in groups]
        for job in jobs:
            engine._admit(job)
        engine.run(jobs)
        for job, group in zip(jobs, groups, strict=True):
            assert equal(job.results, [states(single, [EncoderText(ids)])[0] for ids in group])


# ---- answers to sources


KINDS = [{}, {"do_sample": True, "seed": 3, "num_return_sequences": 3, "logprobs": 1},
         {"num_beams": 3, "num_return_sequences": 2}, {"repetition_penalty": 1.2, "logprobs": 2},
         {"num_beams": 4, "no_repeat_ngram_size": 3, "length_penalty": 0.5, "logprobs": 1},
         {"num_beams": 2, "do_sample": True, "seed": 5}]
SOURCES = [tokens(n) for n in (1, 9, 40, 64, 65, 100)]
REQUESTS = [(source, kind | {"max_new_tokens": 40 + 7 * i}) for i, (source, kind) in
            enumerate(zip(SOURCES, KINDS, strict=True))]


def asked(engine, source, pair=True, **given):
    params = from_user(None, given, vocab_size=engine.facts.vocab_size)
    start = engine.facts.start_id if pair else None
    return engine.add([start] if pair else source, params, source_ids=source if pair else None)


def facts(request):
    """What must not change: tokens, scores and log-probabilities, to the last bit."""
    return [(done.token_ids, done.score, done.logprobs, done.top_logprobs, done.finish_reason)
            for done in request.completions()]


def answers(engine, requests):
    found = []
    for source, given in requests:
        request = asked(engine, source, **given)
        engine.run([request])
        found.append(facts(request))
    return found


@pytest.mark.parametrize(("case", "dtype", "kv"), PAIRS)
def test_answers_are_the_same_in_any_company(case, dtype, kv, opened):
    model = opened(tiny_pairs, case, dtype, kv)
    alone = engine_of(model)
    alone.run_ahead_s = 0.0
    expected = answers(alone, REQUESTS)
    assert all(len(tokens) == given["max_new_tokens"] for (_, given), found in zip(REQUESTS, expected, strict=True)
               for tokens, *_ in found)
    assert answers(engine_of(model), REQUESTS) == expected  # running ahead
    for blocks, step_tokens, rows in ((200, 512, 512), (6, 5, 120)):
        engine = engine_of(model, blocks)
        engine.scheduler.step_tokens, engine.scheduler.texts.rows = step_tokens, rows
        requests = {i: asked(engine, REQUESTS[i][0], **REQUESTS[i][1]) for i in (4, 5, 0, 1, 3, 2)}
        leaving = asked(engine, SOURCES[4], num_beams=3, max_new_tokens=50)
        for _ in range(5):
            engine.step()
        if blocks < 200:
            engine.scheduler._preempt(engine.scheduler.running[-1])
        engine.cancel(leaving)
        engine.run(list(requests.values()))
        assert [facts(requests[i]) for i in range(len(REQUESTS))] == expected
        assert engine.cache.free == engine.cache.size and (engine.scheduler.preemptions > 0) == (blocks < 200)
    assert answers(engine_of(opened(tiny_pairs, case, dtype, kv, threads=1)), REQUESTS) == expected


@pytest.mark.parametrize("case", ["t5", "bart"])
def test_a_text_given_with_its_source_has_the_rows_of_its_answer(case, opened):
    """Forty steps one by one, and the same rows of the whole text at once: a decoder's bias and positions with a cache.
    """
    model = opened(tiny_pairs, case, "float32")
    engine = engine_of(model)
    request = asked(engine, SOURCES[4], max_new_tokens=40, logprobs=0)
    engine.run([request])
    (done,) = request.completions()
    text, rows = [model.facts.start_id, *done.token_ids], {}
    engine.forward(text, lambda first, values: rows.update(enumerate(values, start=first)), source_ids=SOURCES[4])
    for i, (token, logprob) in enumerate(zip(done.token_ids, done.logprobs, strict=True)):
        row = rows[i].astype(np.float64)
        assert row.argmax() == token
        assert logprob == pytest.approx(row[token] - np.log(np.exp(row - row.max()).sum()) - row.max(), abs=1e-6)


@pytest.mark.parametrize("case", ["t5", "marian"])
def test_only_the_own_source_matters(case, opened):
    model = opened(tiny_pairs, case, "auto")
    for given in ({"logprobs": 0}, {"num_beams": 3}):  # tiny models may say the same to both, but not as surely
        found = []
        for second in (SOURCES[1], SOURCES[5]):
            engine = engine_of(model)
            first = asked(engine, SOURCES[2], max_new_tokens=15, **given)
            other = asked(engine, second, max_new_tokens=15, **given)
            engine.run([first, other])
            found.append((facts(first), facts(other)))
        assert found[0][0] == found[1][0] and found[0][1] != found[1][1]
