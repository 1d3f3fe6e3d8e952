"""The same answer every time, with ==: however requests are batched, cut, cached, preempted, threaded and interleaved,
and whatever instruction set runs. On tiny models of every family, number format and kind of window, and in
test_real_invariants.py on real weights."""

import itertools
import threading
from dataclasses import replace

import numpy as np
import pytest

import forwardpass
import tiny_gguf
import tiny_models
from few import few
from forwardpass import _native
from forwardpass.cache.blocks import blocks_for
from forwardpass.contracts import CacheView
from forwardpass.decoding import sampler
from forwardpass.engine import Engine
from forwardpass.models import costs, registry
from forwardpass.models.spec import DynamicNtk
from forwardpass.stages.decode import decode
from forwardpass.stages.embed import embed
from forwardpass.stages.preprocess import pack, pad
from forwardpass.stages.project import project

ISAS = _native.isas()
RNG = np.random.default_rng(1)
PROMPTS = [RNG.integers(2, tiny_models.VOCABULARY, n).tolist() for n in (1, 3, 17, 63, 64, 65, 100, 130)]
DTYPES = ["auto", "float32", "bfloat16", "int8", "int4"]
KV_DTYPES = ["float32", "bfloat16", "int8"]
GREEDY = {"max_new_tokens": 9, "eos_token_id": [], "logprobs": 3}

# Widths 48 and 80 (gpt2: 192) are no multiples of 32; the GGUF files hold formats that only files have.
MODELS = ["llama", "qwen2-tied", "gpt2", "Q4_1", "Q5_1", "Q8_0", "F16"]
CASES = [(name, dtype, kv) for (name, dtype), kv in zip(
    [*itertools.product(MODELS[:3], DTYPES), *itertools.product(MODELS[3:], ["auto"])], itertools.cycle(KV_DTYPES))]
# What is changed in the attention of the llama's two layers.
LONGROPE = {"long_inv_freq": (0.5, 0.05, 0.004, 0.0003, 0.0002, 0.0001), "switch": 68}
VARIANTS = {
    "windows-40": [{"window": 40}] * 2, "windows-0-40": [{"window": 0}, {"window": 40}],
    "windows-70-8": [{"window": 70}, {"window": 8}],
    "longrope": [{"rotary": LONGROPE}] * 2, "ntk": [{"rotary": {"ntk": DynamicNtk(10000.0, 3.0, 68)}}] * 2,
}
WINDOWED = [("windows-40", "auto", "int8"), ("windows-0-40", "int4", "bfloat16"),
            ("windows-70-8", "float32", "float32")]
REGIMES = [("longrope", "auto", "bfloat16"), ("ntk", "int8", "int8")]
CASES += WINDOWED
ALL_CASES = [*CASES, ("llama", "auto", "int8"), ("llama", "int4", "int8"), ("gpt2", "float32", "float32"),
             ("llama", "float32", "float32")]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """path(name) -> a saved tiny model."""
    made = {}

    def get(name):
        name = "llama" if name in VARIANTS else name
        if name not in made:
            directory = tmp_path_factory.mktemp(name)
            if name in tiny_models.CASES:
                family, changes = tiny_models.CASES[name]
                made[name] = tiny_models.save(tiny_models.make(family, **changes), directory)
            else:
                made[name] = directory / "m.gguf"
                tiny_gguf.save(tiny_models.make("llama", hidden_size=64, intermediate_size=96), made[name], name)
        return made[name]

    return get


@pytest.fixture(scope="module")
def fresh(path):
    """fresh(name, dtype, kv_dtype, **options) -> an open model; the caller closes it."""
    def get(name, dtype, kv_dtype, **options):
        with pytest.MonkeyPatch.context() as patch:
            if name in VARIANTS:
                read = registry.read
                patch.setattr(registry, "read", lambda *given: changed(read(*given), VARIANTS[name]))
            return forwardpass.load(path(name), dtype=dtype, kv_dtype=kv_dtype, **options)

    return get


def changed(checkpoint, changes):
    layers = []
    for layer, change in zip(checkpoint.spec.layers, changes, strict=True):
        if "rotary" in change:
            change = {"rotary": replace(layer.attention.rotary, **change["rotary"])}
        layers.append(replace(layer, attention=replace(layer.attention, **change)))
    return replace(checkpoint, spec=replace(checkpoint.spec, layers=tuple(layers)).check())


@pytest.fixture(scope="module")
def load(fresh):
    """load(name, dtype, kv_dtype) -> an open model, one for each combination."""
    models = {}

    def get(*case):
        if case not in models:
            models[case] = fresh(*case)
        return models[case]

    yield get
    for model in models.values():
        model.close()


def facts(completion):
    """What must not change: tokens, and log-probabilities to the last bit."""
    return completion.token_ids, completion.logprobs, completion.top_logprobs, completion.finish_reason


def alone(model, prompts=PROMPTS, **params):
    out = []
    for prompt in prompts:
        model.engine.prefixes.clear()
        out.append(facts(model.generate(prompt, **GREEDY | params)))
    model.engine.prefixes.clear()
    return out


def use_engine(model, monkeypatch, blocks):
    """Give the model another engine, with few cache blocks."""
    now = model.engine
    monkeypatch.setattr(model, "_engine", Engine(now.network, now.facts, now.tokenizer, blocks))
    return model.engine


@pytest.mark.parametrize("case", ALL_CASES, ids="-".join)
def test_every_isa_equals_scalar(case, fresh, monkeypatch):
    results = {}
    for isa in ISAS:
        monkeypatch.setenv("FORWARDPASS_ISA", isa)
        with fresh(*case) as model:
            assert model.network._layers.program.native.isa == isa
            results[isa] = model.logits(PROMPTS[6]), [facts(one) for one in model.generate(PROMPTS[1:4], **GREEDY)]
    assert np.isfinite(results["scalar"][0]).all()
    for isa in ISAS:
        assert np.array_equal(results[isa][0], results["scalar"][0]), isa
        assert results[isa][1] == results["scalar"][1], isa


@pytest.mark.parametrize("case", few(ALL_CASES, *range(0, len(ALL_CASES), 2)), ids="-".join)
def test_threads_change_nothing(case, fresh):
    results = []
    for threads in (1, 2):
        with fresh(*case, threads=threads) as model:
            results.append((model.logits(PROMPTS[7]), [facts(one) for one in model.generate(PROMPTS[:5], **GREEDY)]))
    assert np.array_equal(results[0][0], results[1][0]) and results[0][1] == results[1][1]


@pytest.mark.parametrize("case", ALL_CASES + REGIMES, ids="-".join)
def test_a_batch_equals_each_alone(case, load):
    model = load(*case)
    expected = alone(model)
    for order in ([*range(8)], [7, 0, 5, 5, 2], [3, 4]):
        model.engine.prefixes.clear()
        together = model.generate([PROMPTS[i] for i in order], **GREEDY)
        assert [facts(one) for one in together] == [expected[i] for i in order]


@pytest.mark.parametrize("case", few(CASES, *range(1, len(CASES), 2)), ids="-".join)
def test_generation_sees_the_logits_of_the_whole_text(case, load):
    """Decoding token by token gives the rows that one pass over prompt and answer gives."""
    model = load(*case)
    for prompt, (tokens, logprobs, _, _) in zip(PROMPTS, alone(model), strict=True):
        rows = model.logits(prompt + tokens)[len(prompt) - 1 :]
        for row, token, logprob in zip(rows, tokens, logprobs, strict=False):
            assert sampler.logprobs(row, token, 0, tiny_models.VOCABULARY)[0] == logprob


@pytest.mark.parametrize("case", few(CASES + REGIMES, *range(0, len(CASES) + len(REGIMES), 2)), ids="-".join)
def test_chunks_change_nothing(case, load, monkeypatch):
    model = load(*case)
    logits, answers = model.logits(PROMPTS[7]), alone(model)
    for step in (1, 7, 64, 100):
        monkeypatch.setattr(model.engine.scheduler, "step_tokens", step)
        assert np.array_equal(model.logits(PROMPTS[7]), logits), step
        model.engine.prefixes.clear()
        assert [facts(one) for one in model.generate(PROMPTS, **GREEDY)] == answers, step


@pytest.mark.parametrize("case", few(CASES, *range(0, len(CASES), 2)), ids="-".join)
def test_a_prefix_hit_changes_nothing(case, load, monkeypatch):
    model = load(*case)
    longer = [prompt + PROMPTS[2] for prompt in PROMPTS]
    cold = alone(model, longer)
    hits, take = [], model.engine.prefixes.take

    def recorded(found):
        hits.append(found.positions)
        return take(found)

    monkeypatch.setattr(model.engine.prefixes, "take", recorded)
    for prompt in PROMPTS:
        model.generate(prompt, max_new_tokens=2)
    hits.clear()
    assert [facts(model.generate(prompt, **GREEDY)) for prompt in longer] == cold
    assert all(hit >= len(prompt) for hit, prompt in zip(hits, PROMPTS, strict=True))
    hits.clear()
    assert [facts(one) for one in model.generate(longer, **GREEDY)] == cold
    assert all(hit == len(prompt) - 1 for hit, prompt in zip(hits, longer, strict=True))
    model.engine.prefixes.clear()


@pytest.mark.parametrize("case", few([CASES[0], CASES[4], CASES[11], CASES[15], *WINDOWED, *REGIMES], 0, 3, 5, -1),
                         ids="-".join)
def test_preemption_changes_nothing(case, load, monkeypatch):
    model = load(*case)
    params = {"max_new_tokens": 70}
    expected, preemptions = alone(model, PROMPTS[:6], **params), 0
    for blocks, step_tokens in itertools.product((3, 5), (512, 20)):
        engine = use_engine(model, monkeypatch, blocks)
        monkeypatch.setattr(engine.scheduler, "step_tokens", step_tokens)
        assert [facts(one) for one in model.generate(PROMPTS[:6], **GREEDY | params)] == expected
        preemptions += engine.scheduler.preemptions
        engine.prefixes.clear()
        assert engine.cache.free == engine.cache.size
    assert preemptions > 0


@pytest.mark.parametrize("case", [*CASES[:3], *WINDOWED], ids="-".join)
@pytest.mark.parametrize("blocks", few([100, 4], 1))
def test_several_choices(case, blocks, load, monkeypatch):
    """Choice 0 is the answer to n = 1; every choice has the log-probabilities of its own text; few blocks or many."""
    model = load(*case)
    sampling = {"do_sample": True, "seed": 5, "temperature": 1.5}
    single = alone(model, [PROMPTS[3], PROMPTS[5]], **sampling)
    expected = model.generate([PROMPTS[3], PROMPTS[5]], **GREEDY | sampling, num_return_sequences=3)
    engine = use_engine(model, monkeypatch, blocks)
    got = model.generate([PROMPTS[3], PROMPTS[5]], **GREEDY | sampling, num_return_sequences=3)
    assert [facts(one) for one in got] == [facts(one) for one in expected]
    assert [facts(got[0]), facts(got[3])] == single
    assert len({tuple(one.token_ids) for one in got[:3]}) == 3
    for one in got:
        rows = model.logits(one.prompt_token_ids + one.token_ids)[len(one.prompt_token_ids) - 1 :]
        for row, token, logprob in zip(rows, one.token_ids, one.logprobs, strict=False):
            assert sampler.logprobs(row, token, 0, tiny_models.VOCABULARY)[0] == logprob
    engine.prefixes.clear()
    assert engine.cache.free == engine.cache.size


@pytest.mark.parametrize("case", [*CASES[:3], WINDOWED[1]], ids="-".join)
def test_streams_from_several_threads(case, load):
    model = load(*case)
    params = GREEDY | {"max_new_tokens": 30}
    expected = alone(model, **params)
    got, errors = {}, []

    def work(i):
        try:
            with model.stream(PROMPTS[i], **params) as stream:
                pieces = [piece.token_id for piece in stream]
                got[i] = facts(stream.completion)
                assert pieces == stream.completion.token_ids
        except BaseException as error:
            errors.append(error)

    for _ in range(3):
        threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors and [got[i] for i in range(8)] == expected


def test_streams_pulled_in_turns_by_one_thread(load):
    model = load(*CASES[0])
    expected = alone(model)
    streams = [model.stream(prompt, **GREEDY) for prompt in PROMPTS]
    for _ in itertools.zip_longest(*streams):
        pass
    assert [facts(stream.completion) for stream in streams] == expected


def test_a_cancelled_stream_changes_nothing_for_others(load):
    model = load(*CASES[0])
    expected = alone(model)
    model.engine.prefixes.clear()
    free = model.engine.cache.free
    leaving = model.stream(PROMPTS[7], **GREEDY | {"max_new_tokens": 50})
    staying = model.stream(PROMPTS[5], **GREEDY)
    next(leaving), next(staying), next(leaving)
    leaving.close()
    list(staying)
    assert facts(staying.completion) == expected[5]
    assert leaving.completion.finish_reason == "cancelled"
    model.engine.prefixes.clear()
    assert model.engine.cache.free == free


def stages(model, tokens):
    """Stages 2 to 4 by hand over fresh cache blocks: hidden states and logits of every real row."""
    hidden = embed(model.network, tokens)
    lengths = hidden.packed.lengths
    counts = -(-lengths // 64)
    tables = np.full((len(lengths), counts.max()), -1, np.int32)
    numbers = iter(range(int(counts.sum())))
    for row, count in zip(tables, counts, strict=True):
        row[:count] = list(itertools.islice(numbers, int(count)))
    memory = model.network.kv_memory(int(counts.sum()))
    hidden = decode(model.network, hidden, CacheView(np.zeros(len(lengths), np.int32), tables), memory)
    return hidden.values, project(model.network, hidden, np.arange(len(hidden.values))).values


@pytest.mark.parametrize("case", few(CASES, *range(1, len(CASES), 2)), ids="-".join)
def test_padding_changes_nothing(case, load):
    """The classic rectangle, padded left or right, gives the real rows exactly what packing and what `logits` give."""
    model = load(*case)
    prompts = [PROMPTS[i] for i in (5, 0, 2, 7)]
    hidden, logits = stages(model, pack(prompts))
    assert np.array_equal(logits, np.concatenate([model.logits(prompt) for prompt in prompts]))
    for side in ("left", "right"):
        for options in ({"padding": "longest"}, {"padding": "max_length", "max_length": 150}):
            padded = pad(prompts, side=side, pad_id=3, **options)
            assert padded.attention_mask.sum() == len(logits) < padded.input_ids.size
            for one, other in zip(stages(model, padded), (hidden, logits), strict=True):
                assert np.array_equal(one, other), (side, options)


@pytest.mark.parametrize("case", WINDOWED + REGIMES, ids="-".join)
@pytest.mark.parametrize("blocks", [None, 7])
def test_cold_and_cached_alike_while_texts_grow(blocks, case, load, monkeypatch):
    """A A B B, beginnings, second turns, answers longer than a window or across a switch: each equals a cold run. Also
    in little room, where kept texts lose pages and windows all the time."""
    model = load(*case)
    if blocks:
        use_engine(model, monkeypatch, blocks)
    a, b = PROMPTS[7], PROMPTS[6] + PROMPTS[5]
    prompts = [a, a, b, b, a[:20], a[:12], a, a + PROMPTS[5], b[:90], a[:129], b]
    news = itertools.cycle((5, 45, 1))
    for prompt, new in zip(prompts, news, strict=False):
        warm = facts(model.generate(prompt, **GREEDY | {"max_new_tokens": new}))
        follow = [*prompt, *warm[0], 5, 6]
        second = facts(model.generate(follow, **GREEDY))
        with pytest.MonkeyPatch.context() as patch:
            use_engine(model, patch, 20)
            assert facts(model.generate(prompt, **GREEDY | {"max_new_tokens": new})) == warm
            model.engine.prefixes.clear()
            assert facts(model.generate(follow, **GREEDY)) == second
    assert (model.engine.cache.budget.dropped > 0) == bool(blocks) and model.engine.prefixes.found > 200
    model.engine.prefixes.clear()
    assert model.engine.cache.free == model.engine.cache.size


@pytest.mark.parametrize("case", WINDOWED, ids="-".join)
def test_windows_hold_what_costs_say(case, load, monkeypatch):
    """Bytes in use while a text grows: those of its visible positions, up to a block at either end of each window."""
    model = load(*case)
    engine = use_engine(model, monkeypatch, 20)
    engine.run_ahead_s = 0.0
    each = model.network.block_bytes()
    stream = model.stream(PROMPTS[5], **GREEDY | {"max_new_tokens": 180})
    for length, _ in enumerate(stream, start=len(PROMPTS[5])):
        if length > 80 and not stream._request.done:
            used = engine.cache.size - engine.cache.budget.room  # beside kept texts
            pages = [blocks_for(min(length, window + 126) if window else length) for window in
                     (group.window for group in model.network.groups)]
            assert used <= sum(one * n for one, n in zip(each, pages, strict=True))
            assert used >= costs.kv_text_bytes(model.spec, model.kv_dtype, length)
    assert engine.cache.need(10**6) >= costs.kv_text_bytes(model.spec, model.kv_dtype, 10**6)


@pytest.mark.parametrize("case", REGIMES, ids="-".join)
def test_factors_follow_the_length(case, load):
    """Generation gives the logits of the whole text wherever the factors are those of the whole text: under longrope
    always, under dynamic NTK for the first token. The length does change the logits."""
    model = load(*case)
    ntk = case[0] == "ntk"
    for prompt in (PROMPTS[3], PROMPTS[5], PROMPTS[7]):
        model.engine.prefixes.clear()
        tokens, logprobs, *_ = facts(model.generate(prompt, **GREEDY | {"max_new_tokens": 20}))
        for i in range(len(tokens)) if not ntk else range(1):
            row = model.logits(prompt + tokens[:i])[-1]
            assert sampler.logprobs(row, tokens[i], 0, tiny_models.VOCABULARY)[0] == logprobs[i]
    short, long = model.logits(PROMPTS[7][:68]), model.logits(PROMPTS[7][:69])
    assert not np.array_equal(short, long[:68]) and np.array_equal(short, model.logits(PROMPTS[7][:68]))
