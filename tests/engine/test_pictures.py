"""Pictures come out the same whatever else is drawn, and one that fails or is not wanted any more harms nobody."""

import asyncio
import random
import threading
import time

import numpy as np
import pytest

import script_lm
from driver_tools import driven, until
from forwardpass.asynchronous import finished
from forwardpass.engine import Engine
from forwardpass.errors import BusyError, CapacityError, DeadlineError, ForwardpassError, ParameterError
from forwardpass.scheduler.limits import TokensInFlight
from forwardpass.scheduler.pictures import Prompt
from forwardpass.scheduler.shared import SharedBudget
from forwardpass.scheduler.terms import Terms
from script_lm import FACTS, Letters, ScriptLM
from script_pictures import CHANNELS, ScriptDenoiser, drawn, idle, make, picture

# ---- exact, whatever else goes on


def image(seed, size=(4, 6)):
    return np.random.default_rng(seed).uniform(-1, 1, (size[0] * 4, size[1] * 4, 3)).astype(np.float32)


def some(rng):
    """What a picture may be: its size, steps, guidance and how it begins."""
    size = rng.choice([(4, 6), (8, 8), (2, 2), (6, 12)])
    return {"shown": rng.randrange(5), "avoided": rng.choice([None, 5]), "size": size, "steps": rng.randint(1, 9),
            "seed": rng.randrange(2**64), "guidance": rng.choice([1.5, 4.0]),
            "image": image(rng.randrange(99), size) if rng.random() < 0.3 else None}


@pytest.fixture(scope="module")
def pool():
    """(how it is asked for, what it is alone) of many pictures."""
    rng = random.Random(4)
    given = [some(rng) for _ in range(24)]
    return [(one, drawn(make(), picture(**one))[0]) for one in given]


def test_a_picture_in_company_is_the_one_it_is_alone(pool):
    assert len({pixels.tobytes() for _, pixels in pool}) == len(pool)
    engine = make()
    for (_, alone), pixels in zip(pool, drawn(engine, *(picture(**one) for one, _ in pool)), strict=True):
        assert (pixels == alone).all()
    assert max(engine.denoiser.passes) > 12 and idle(engine)  # they did share passes


@pytest.mark.parametrize("seed", range(3))
def test_any_mix_of_requests_that_come_and_go(pool, seed):
    rng = random.Random(seed)
    engine = make(variances=True)
    engine.scheduler.step_rows = rng.choice([1, 30, 90])
    waiting, ready = rng.sample(pool, len(pool)), []
    while waiting or engine.busy:
        if waiting and rng.random() < 0.4:
            asked = [waiting.pop() for _ in range(min(len(waiting), rng.randint(1, 4)))]
            with Terms(priority=rng.randint(0, 2), key=rng.choice("ab")):
                drawing = engine.add([picture(**one) for one, _ in asked], follow=True)
            if rng.random() < 0.25:
                for _ in range(rng.randint(0, 4)):
                    engine.step()
                engine.cancel(drawing)
                assert not any(one.sample is not None for one in drawing.pictures)
            else:
                ready.append((asked, drawing))
        engine.step(within=rng.choice([None, 1e-9]), alone=rng.random() < 0.5)
    for asked, drawing in ready:
        assert drawing.error is None
        for (one, alone), made in zip(asked, drawing.pictures, strict=True):
            assert (made.pixels == alone).all()
            count = sum(index == made.index for index, _ in drawing.pieces)
            assert count == one["steps"] == made.step
    assert idle(engine)


@pytest.mark.parametrize("threads", [6])
def test_threads_with_a_driver_and_without(pool, threads):
    engine = make()
    found = {}

    def draw(number):
        mine = pool[number::threads]
        found[number] = drawn(engine, *(picture(**one) for one, _ in mine))

    def all_of_them():
        found.clear()
        running = [threading.Thread(target=draw, args=(number,)) for number in range(threads)]
        for one in running:
            one.start()
        for one in running:
            one.join(60)
        for number in range(threads):
            for (_, alone), pixels in zip(pool[number::threads], found[number], strict=True):
                assert (pixels == alone).all()

    all_of_them()
    with driven(engine):
        all_of_them()
    assert idle(engine)


def test_an_event_loop_waits_for_pictures(pool):
    engine = make()

    async def draw():
        asked = [engine.add([picture(**one)]) for one, _ in pool[:5]]
        await asyncio.gather(*(finished(one) for one in asked))
        return asked

    with driven(engine):
        for (_, alone), drawing in zip(pool, asyncio.run(draw()), strict=False):
            assert (drawing.pictures[0].pixels == alone).all()


def test_prompts_are_read_once_for_all_pictures_of_a_request():
    engine = make(text=True)
    shown, avoided = Prompt(np.int32([3, 4, 5])), Prompt(np.int32([9]))
    pictures = [picture(shown, avoided, seed=seed) for seed in range(4)] + [picture([3, 4], seed=9)]
    together = drawn(engine, *pictures)
    assert engine.encoder.read == [[3, 1, 2]]
    for seed in range(4):
        alone = drawn(make(text=True), picture([3, 4, 5], [9], seed=seed))
        assert (together[seed] == alone[0]).all()
    assert (together[4] == drawn(make(text=True), picture([3, 4], seed=9))[0]).all()


def test_a_prompt_is_read_when_the_picture_can_begin():
    engine = make(text=True)
    engine.scheduler.step_rows = 12
    drawing = engine.add([picture([i + 1, 2], [7], steps=3) for i in range(4)])  # 12 rows each
    engine.step()
    engine.step()
    assert engine.encoder.read == [[2, 1]] and engine.denoiser.passes == [2]
    engine.run([drawing])
    assert engine.encoder.read == [[2, 1]] * 4


def test_a_network_that_takes_the_scale_is_told_it_and_passes_once():
    engine = make(text=True, guided=True)
    drawn(engine, picture(Prompt(np.int32([3, 4]), guidance=7.5)))
    assert engine.denoiser.told == [7.5] and set(engine.denoiser.passes) == {1}


def test_guidance_leads_away_from_what_is_avoided():
    """By hand: one step of a network that predicts 0.2 everywhere without and 0.6 with the prompt."""
    class Constant(ScriptDenoiser):
        def predict(self, latents, timesteps, conditions):
            self.passes.append(len(latents))
            return [np.full_like(one, 0.6 if condition.vector[0] == 1 else 0.2)
                    for one, condition in zip(latents, conditions, strict=True)]

    given = np.zeros((4, 6, CHANNELS), np.float32)
    for scale, halves, expected in ((1.5, 2, 0.8), (7.5, 2, 3.2), (1.0, 1, 0.6), (0.0, 1, 0.6)):
        engine = make(pixels=True)
        engine.denoiser = Constant()
        one = picture(1, 5 if halves == 2 else None, guidance=scale, steps=1, given=given)
        drawing = engine.add([one], follow=True)
        engine.run([drawing])
        ((_, step),) = drawing.pieces
        noise = picture(1, steps=1).noise(2)
        np.testing.assert_allclose(step.latents, -0.3 * expected + 0.05 * noise, atol=1e-6)
        assert engine.denoiser.passes == [halves]


def test_latents_are_decoded_for_whoever_wants_to_look():
    engine = make()
    drawing = engine.add([picture(steps=3)], follow=True)
    engine.run([drawing])
    steps = [step for _, step in drawing.pieces]
    assert [(one.step, one.steps, one.timestep) for one in steps] == [(0, 3, 900.0), (1, 3, 450.0), (2, 3, 0.0)]
    assert (engine.decode(steps[-1].latents) == drawing.pictures[0].pixels).all()
    assert (engine.decode(steps[0].latents) != drawing.pictures[0].pixels).any()
    with driven(engine):
        assert (engine.decode(steps[-1].latents) == drawing.pictures[0].pixels).all()
    assert idle(engine)


def test_an_image_to_begin_with():
    """It is encoded, scaled, and noise is added; without an autoencoder the image itself."""
    begun = picture(1, image=image(1), seed=4, steps=1)
    engine = make()
    drawing = engine.add([begun], follow=True)
    mean, variance = engine.autoencoder.encode(image(1))
    clean = (mean + np.exp(variance / 2) * begun.noise(1) - 0.25) * 0.5
    engine.step()
    np.testing.assert_allclose(begun.sample, clean * 0.6 + begun.noise(0) * 0.8, rtol=1e-5, atol=1e-6)
    engine.run([drawing])
    pixels = np.random.default_rng(2).uniform(-1, 1, (4, 6, CHANNELS)).astype(np.float32)
    bare = picture(1, image=pixels, seed=4, steps=1)
    engine = make(pixels=True)
    drawing = engine.add([bare])
    engine.step()
    np.testing.assert_allclose(bare.sample, pixels * 0.6 + bare.noise(0) * 0.8, rtol=1e-6)
    engine.run([drawing])


# ---- one that fails harms nobody


def test_latents_that_are_no_numbers_are_that_pictures_error():
    engine = make()
    well = engine.add([picture(2, steps=4)])
    given = np.zeros((4, 6, CHANNELS), np.float32)
    given[1, 2, 0] = np.inf
    bad = engine.add([picture(1, steps=4, seed=77, given=given), picture(1)])
    with pytest.raises(ForwardpassError, match=r"picture 0 \(seed 77\).*finite.* after step 1 of 4.*dtype='float32'"):
        engine.run([bad])
    engine.run([well])
    assert (well.pictures[0].pixels == drawn(make(), picture(2, steps=4))[0]).all() and idle(engine)
    assert engine.stats().ended == {"failed": 1, "done": 1}


def test_what_a_decoder_makes_must_be_numbers_too():
    engine = make()
    engine.autoencoder.decode = lambda latents: np.full((16, 24, 3), np.nan, np.float32)
    with pytest.raises(ForwardpassError, match="finite numbers decoded"):
        drawn(engine, picture())
    assert idle(engine)


@pytest.mark.parametrize("error", [RuntimeError("kernel"), MemoryError()])
def test_a_pass_that_fails_ends_those_in_it_and_nobody_else(error):
    engine = make()
    engine.scheduler.step_rows = 1
    first, second = engine.add([picture(1)]), engine.add([picture(2)])

    def fail():
        engine.denoiser.before = lambda: None
        raise error

    engine.denoiser.before = fail
    with pytest.raises(type(error)):
        engine.run([first])
    engine.run([second])
    assert (second.pictures[0].pixels == drawn(make(), picture(2))[0]).all() and idle(engine)


def test_an_interrupt_lands_where_the_caller_is_and_the_step_is_planned_again():
    engine = make(text=True)
    mine = engine.add([picture([1, 2], [3])])

    def interrupt(part):
        def before():
            part.before = lambda: None
            raise KeyboardInterrupt

        part.before = before

    for part in (engine.encoder, engine.denoiser, engine.autoencoder):
        interrupt(part)
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            while True:
                engine.step()
    other = engine.add([picture([1, 2], [3])])
    engine.run([mine, other])
    expected = drawn(make(text=True), picture([1, 2], [3]))[0]
    assert all((one.pictures[0].pixels == expected).all() for one in (mine, other)) and idle(engine)


def test_steps_that_nobody_collects_in_time_come_before_the_error():
    engine = make()
    drawing = engine.add([picture(steps=3)], follow=True)
    for _ in range(2):
        engine.step()
    engine.cancel(drawing, error=ForwardpassError("enough"))
    engine.advance(drawing)
    assert [step.step for _, step in drawing.pieces] == [0, 1]
    drawing.pieces.clear()
    with pytest.raises(ForwardpassError, match="enough"):
        engine.advance(drawing)


# ---- terms


def test_deadlines_cancelling_and_closing():
    engine = make()
    with Terms(deadline=0.0), pytest.raises(DeadlineError):
        engine.add([picture()])
    with driven(engine):
        hold, go = threading.Event(), threading.Event()
        engine.denoiser.before = lambda: (hold.set(), go.wait(20))
        terms = Terms()
        with terms:
            drawing = engine.add([picture()])
        assert hold.wait(20)
        terms.cancel("the client has gone")
        go.set()
        with pytest.raises(ForwardpassError, match="the client has gone"):
            engine.run([drawing])
        assert idle(engine)
        late = Terms(deadline=time.perf_counter() + 0.02)
        with late, pytest.raises(DeadlineError):
            engine.run([engine.add([picture(steps=10**6)])])
    drawing = engine.add([picture()])
    engine.close()
    assert drawing.done and drawing.pictures[0].pixels is None and idle(engine)
    with pytest.raises(ParameterError, match="closed"):
        engine.add([picture()])


def test_an_account_is_charged_for_every_row_of_every_step():
    engine, account = make(text=True), TokensInFlight(125)
    with Terms(account=account) as terms:
        drawing = engine.add([picture([1, 2, 3], [4], steps=10)])  # 12 rows in each of 10 steps, 4 tokens
        assert account.taken == 124 and drawing.tokens == 124
        with Terms(account=account), pytest.raises(BusyError):
            engine.add([picture(steps=1)])
        engine.run([drawing])
    assert account.taken == 0 and terms.tokens_read == 4 and terms.tokens_generated == 120
    with Terms(account=account), pytest.raises(CapacityError, match="limit is 125"):
        engine.add([picture(steps=21)])


def test_pictures_that_do_not_fit_are_refused_before_anything_is_computed(monkeypatch):
    engine = make()
    monkeypatch.setattr("forwardpass.config.available_memory", lambda: 3_000_000)
    with pytest.raises(CapacityError, match=r"1 picture\(s\) of up to 256x256 pixels need 3.9 MiB.* 2.9 MiB are free"):
        engine.add([picture(size=(64, 64))])
    with pytest.raises(CapacityError, match=r"20000 picture\(s\)"):
        engine.add([picture()] * 20000)
    drawn(engine, picture())
    assert engine.denoiser.passes == [1] * 5 and idle(engine)


def test_smaller_priorities_are_drawn_first_and_the_others_go_on_afterwards():
    engine = make()
    engine.scheduler.step_rows = 12
    late = engine.add([picture(2, 5, steps=6)])
    for _ in range(3):
        engine.step()
    with Terms(priority=-1):
        urgent = engine.add([picture(1, 5, steps=6)])
    while not urgent.done:
        engine.step()
    assert late.pictures[0].step == 3
    engine.run([late])
    assert (late.pictures[0].pixels == drawn(make(), picture(2, 5, steps=6))[0]).all()


# ---- beside an engine of texts


def test_texts_and_pictures_take_turns_under_one_driver():
    budget = SharedBudget(100 * script_lm.Memory.block_bytes)
    pictures, texts = make(budget=budget), Engine(ScriptLM(script_lm.mixed), FACTS, Letters(), budget=budget)
    with pytest.raises(ParameterError, match="attach them all to one Driver"):
        pictures.add([picture()])
    with driven(pictures, texts):
        drawing = pictures.add([picture(seed=seed, steps=30) for seed in range(8)])
        request = script_lm.start(texts, [1, 2, 3], max_new_tokens=30)
        texts.run([request])
        pictures.run([drawing])
    assert request.completions()[0].token_ids == script_lm.alone([1, 2, 3], max_new_tokens=30)[0]
    expected = drawn(make(), picture(seed=5, steps=30))[0]
    assert (drawing.pictures[5].pixels == expected).all()


def test_counts():
    engine = make(text=True)
    drawn(engine, picture([1, 2], [3], steps=4), picture([1], steps=2))
    found = engine.stats()
    assert found.rows == 4 * 12 + 2 * 6 + 4 and found.generated == 4 * 12 + 2 * 6
    assert set(found.step_seconds) == {"read", "denoise", "postprocess", "decode"}
    assert found.steps == engine.steps == 1 + 4 + 2 and found.ended == {"done": 1}
    assert (found.requests, found.running, found.waiting) == (0, 0, 0)
    drawing = engine.add([picture(), picture()])
    engine.scheduler.step_rows = 1
    engine.step()
    engine.step()
    found = engine.stats()
    assert (found.requests, found.running, found.waiting) == (1, 1, 1)
    engine.cancel(drawing)
    until(lambda: idle(engine))
