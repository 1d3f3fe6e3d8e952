"""Hundreds of random mixes: whatever else an engine does, each request's tokens, text, log-probabilities and finish
reasons are == those of the same request alone on an idle engine.

Prompts that share beginnings, sampled and greedy, several answers, beams, stop strings, priorities, salts, deadlines,
requests given up at any moment, a KV memory that is too small for all of them, steps of any size. By hand, where every
step is decided by the seed; driven by a thread, with several models on one memory; and over HTTP.

A failure names the seed of its mix: `-k` and the seed run it again.
"""

import asyncio
import random
import re
from time import perf_counter

import httpx
import pytest

import tiny_chat
from forwardpass.asynchronous import news
from forwardpass.errors import DeadlineError
from forwardpass.scheduler.terms import Terms
from forwardpass.tasks.host import Host
from http_mixes import GONE, Got, HttpWish, check_answer, fetch
from mixes import Alone, Mixer, begins_alike, seen
from server_tools import ServerProcess

CONTEXT = 1024
KINDS = {  # name -> changes of the tiny model's configuration
    "llama": {},
    "windows": {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": 70},
    "growing": {"max_position_embeddings": 96, "rope_parameters": {
        "rope_type": "dynamic", "rope_theta": 1e4, "factor": 8.0}},
}
BY_HAND, DRIVEN, HTTP, REAL = 12, 4, 4, 1
"""Mixes of a default run. The marker `soak` runs many more."""
CROWDS = (46,)
"""Seeds of mixes by hand in which requests yield to others."""
MEMORY = 1 << 20
"""KV bytes of the server: little more than its largest request needs."""
WRONG = [  # requests that are refused in the middle of it all
    {"prompt": [264], "max_tokens": 4}, {"prompt": "x", "max_tokens": 0}, {"prompt": "x", "n": 129},
    {"prompt": "x", "logit_bias": {"264": 1}}, {"prompt": "x", "stop_token_ids": [-1]}, {"prompt": "x", "tempo": 1},
    {"prompt": "x" * 1100}, {"prompt": []}, {"prompt": "x", "best_of": 1, "n": 2},
]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """alone[kind]: the answers of a tiny model of that kind, each computed alone."""
    made = tmp_path_factory.mktemp("mixes")
    found = {kind: Alone(tiny_chat.write(made / kind, **{"max_position_embeddings": CONTEXT} | changes))
             for kind, changes in KINDS.items()}
    yield found
    for one in found.values():
        one.close()


def nothing_is_left(*engines):
    """Whatever became of their requests, engines hold nothing but kept texts, and these can go."""
    for engine in engines:
        assert not engine.busy and not engine.scheduler.running and not engine.scheduler.waiting
        engine.prefixes.clear()
    for engine in engines:
        assert engine.cache.free == engine.cache.size and engine.stats().kv_held == 0


def check(wish, request, pieces):
    """Of a request that has ended, the whole answer; of one that left, its beginning."""
    if wish.beams == 1:
        assert begins_alike([(number, piece.token_id) for number, piece in pieces], wish.expected)
    if request.error is not None:
        assert isinstance(request.error, DeadlineError) and wish.deadline is not None
        return
    if any(choice.finish_reason == "cancelled" for choice in request.choices):
        assert wish.leaves is not None
        return
    assert seen(request) == wish.expected
    for number, choice in enumerate(request.choices):
        text = "".join(piece.text for one, piece in pieces if one == number)
        assert text == choice.text or (wish.leaves is not None and choice.text.startswith(text))


def by_hand(seed, alone):
    rng = random.Random(seed)
    kind = rng.choice(list(alone))
    solo = alone[kind]
    mixer = Mixer(rng, solo)
    wishes = mixer.wishes(rng.choice([2, 8, 8, 16]))
    engine = solo.engine(mixer.blocks(wishes))
    engine.scheduler.step_tokens = rng.choice([5, 16, 64, 100, 512])
    waiting, running, got = list(wishes), {}, {}
    steps = 0
    while waiting or running:
        for wish in [one for one in waiting if one.after <= steps]:
            waiting.remove(wish)
            with Terms(priority=wish.priority, salt=wish.salt):
                running[wish.number] = engine.add(wish.ids, solo.model.answer_params(wish.params))
            got[wish.number] = []
        engine.step(rng.choice([None, 0.0, 0.01]), rng.random() < 0.7)
        steps += 1
        for number, request in list(running.items()):
            got[number] += request.pieces
            request.pieces.clear()
            wish = wishes[number]
            if wish.leaves is not None and len(got[number]) >= wish.leaves:
                engine.cancel(request)
            if request.done:
                check(wish, request, got[number])
                del running[number]
        assert steps < 20_000, "nothing happens any more"
    preemptions = engine.scheduler.preemptions
    nothing_is_left(engine)
    engine.close()
    return preemptions


@pytest.mark.parametrize("seed", range(BY_HAND))
def test_by_hand(alone, seed):
    by_hand(seed, alone)


def driven(seed, alone, **sizes):
    """All kinds of models at the same time, on one memory, stepped by one thread."""
    rng = random.Random(seed)
    mixers = {kind: Mixer(rng, solo, **sizes) for kind, solo in alone.items()}
    wishes = {kind: mixer.wishes(rng.randint(1, 8)) for kind, mixer in mixers.items()}
    least = max(mixers[kind].blocks(some) * alone[kind].block_bytes() for kind, some in wishes.items())
    host = Host({kind: solo.opened.path for kind, solo in alone.items()}, kv_memory=least, threads=None if sizes else 1)
    for model in host.models.values():
        model.engine.scheduler.step_tokens = rng.choice([5, 16, 64, 512])

    async def ask(kind, wish):
        model = host.models[kind]
        await asyncio.sleep(wish.after * 1e-3)
        if rng.random() < 0.1:
            wish.deadline = rng.random() * 0.05
        until = None if wish.deadline is None else perf_counter() + wish.deadline
        terms, pieces = Terms(wish.priority, until, "", wish.salt, host.account), []
        try:
            with terms:
                request = model.ask(wish.ids, model.answer_params(wish.params))
        except DeadlineError:
            assert wish.deadline is not None
            return
        stream = news(request)
        try:
            while wish.leaves is None or len(pieces) < wish.leaves:
                pieces += await anext(stream)
        except (StopAsyncIteration, DeadlineError):
            pass
        await stream.aclose()
        while not request.done:
            await asyncio.sleep(0.001)
        check(wish, request, pieces)

    async def all_of_them():
        await asyncio.gather(*(ask(kind, wish) for kind, some in wishes.items() for wish in some))

    with host:
        asyncio.run(asyncio.wait_for(all_of_them(), 60))
        assert host.account.taken == 0 and host.driver.restarts == 0 and host.driver.failures == 0
        nothing_is_left(*(model.engine for model in host.models.values()))


@pytest.mark.parametrize("seed", range(DRIVEN))
def test_driven(alone, seed):
    driven(seed, alone)


def test_the_mixes_do_what_they_are_for(alone):
    """Some of them really have too little memory."""
    assert all(by_hand(seed, alone) for seed in CROWDS)


@pytest.fixture(scope="module")
def real(smollm2_path):
    one = Alone(smollm2_path, threads=None)
    yield {"smollm2": one}
    one.close()


@pytest.mark.parametrize("seed", range(REAL))
def test_the_real_model(real, seed):
    driven(seed, real, longest=160, answer=10)


@pytest.fixture(scope="module")
def served(alone, tmp_path_factory):
    """A server process of all kinds of models."""
    server = ServerProcess(tmp_path_factory.mktemp("served"),
                           *(f"{kind}={solo.opened.path}" for kind, solo in alone.items()),
                           "--kv-memory", str(MEMORY), "--threads", "1")
    yield server
    server.stop()


def over_http(seed, alone, served):
    rng = random.Random(seed)
    asked = []
    for kind, solo in alone.items():
        mixer = Mixer(rng, solo)
        asked += [HttpWish(mixer, wish, kind) for wish in mixer.wishes(rng.randint(1, 8))]
    for one in asked:
        if rng.random() < 0.1:
            one.body["timeout"] = one.wish.deadline = rng.random() * 0.2 + 0.001

    async def ask(client, one):
        await asyncio.sleep(one.wish.after * 1e-3)
        if one.streams or one.wish.leaves is None:
            return await fetch(client, one.path, one.body, one.wish.leaves)
        try:
            return await asyncio.wait_for(fetch(client, one.path, one.body), one.wish.leaves * 1e-3)
        except TimeoutError:
            got = Got()
            got.end = GONE
            return got

    async def refused(client, body):
        await asyncio.sleep(rng.random() * 0.05)
        got = await fetch(client, "/v1/completions", {"model": "llama", **body})
        assert got.status == 400, (body, got.status, got.end)

    async def all_of_them():
        async with httpx.AsyncClient(base_url=served.url, timeout=60) as client:
            wrong = [refused(client, body) for body in rng.sample(WRONG, 3)]
            gots, _ = await asyncio.gather(asyncio.gather(*(ask(client, one) for one in asked)),
                                           asyncio.gather(*wrong))
            for one, got in zip(asked, gots, strict=True):
                check_answer(one, got)
            while (figures := await metrics(client))["forwardpass_requests_in_flight"]:
                await asyncio.sleep(0.005)
            assert figures["forwardpass_driver_restarts_total"] == 0

    asyncio.run(asyncio.wait_for(all_of_them(), 120))


async def metrics(client):
    """The figures without labels."""
    text = (await client.get("/metrics")).text
    return {name: float(value) for name, value in re.findall(r"^(\w+) (\S+)$", text, re.MULTILINE)}


@pytest.mark.parametrize("seed", range(HTTP))
def test_over_http(alone, served, seed):
    over_http(seed, alone, served)


@pytest.mark.soak
@pytest.mark.parametrize("how, count", [("by_hand", 600), ("driven", 200), ("over_http", 200), ("real", 40)])
def test_many_more(alone, real, served, how, count):
    mix = {"by_hand": lambda seed: by_hand(seed, alone), "driven": lambda seed: driven(seed, alone),
           "over_http": lambda seed: over_http(seed, alone, served),
           "real": lambda seed: driven(seed, real, longest=300, answer=30)}[how]
    for seed in range(1000, 1000 + count):
        try:
            mix(seed)
        except BaseException as error:
            error.add_note(f"{how} with seed {seed}")
            raise
