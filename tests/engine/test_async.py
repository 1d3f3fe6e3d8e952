"""Requests that an event loop waits for."""

import asyncio
import gc
import threading
import time

import pytest

from driver_tools import Gate, answers, driven, until
from forwardpass.asynchronous import finished, news, news_of
from forwardpass.errors import DeadlineError, ForwardpassError
from forwardpass.scheduler.terms import Terms
from script_lm import alone, encoder, idle, make, mixed, noisy, start, usable


def test_batches_are_the_answer():
    async def main():
        request = start(engine, max_new_tokens=12)
        batches = [batch async for batch in news(request)]
        assert all(batches) and [piece.token_id for batch in batches for _, piece in batch] == alone([1, 2, 3])[0][:12]
        assert [batch async for batch in news(request)] == []  # all was collected
        ended = start(engine, max_new_tokens=3)
        await finished(ended)
        assert len([piece async for batch in news(ended) for piece in batch]) == 3

    engine = make()
    with driven(engine):
        asyncio.run(main())
        assert idle(engine)


def test_many_requests_of_one_loop_equal_their_solo_runs():
    given = {"do_sample": True, "max_new_tokens": 15, "logprobs": 1, "num_return_sequences": 2}

    async def ask(i):
        request = start(engine, [i] * (11 * i + 1), seed=i, **given)
        if i % 3 == 0:
            await finished(request)
            return answers(request)
        tokens = [[], []]
        async for batch in news(request):
            for choice, piece in batch:
                tokens[choice].append(piece.token_id)
        assert tokens == [one[0] for one in answers(request)]
        return answers(request)

    async def main():
        return await asyncio.gather(*(ask(i) for i in range(12)))

    engine = make(noisy, blocks=20)
    with driven(engine):
        found = asyncio.run(main())
        assert idle(engine)
    for i in range(12):
        engine = make(noisy)
        request = start(engine, [i] * (11 * i + 1), seed=i, **given)
        engine.run([request])
        assert answers(request) == found[i]


def test_news_of_several_engines_at_once():
    async def main():
        requests = [start(engine, [1]), start(other, [2]), start(engine, [3], max_new_tokens=1)]
        tokens = {id(request): [] for request in requests}
        async for batch in news_of(requests):
            for request, choice, piece in batch:
                assert choice == 0
                tokens[id(request)].append(piece.token_id)
        return [tokens[id(request)] for request in requests]

    engine, other = make(), make(noisy)
    with driven(engine, other):
        assert asyncio.run(main()) == [alone([1])[0], alone([2], noisy)[0], alone([3])[0][:1]]
        assert idle(engine) and idle(other)


def test_the_loop_is_woken_once_a_step_for_all_requests_together():
    calls = []

    async def main():
        loop = asyncio.get_running_loop()
        real = loop.call_soon_threadsafe
        loop.call_soon_threadsafe = lambda *args: calls.append(engine.steps) or real(*args)
        gate = Gate(engine)
        requests = [start(engine, [i], max_new_tokens=20) for i in range(10)]
        waiting = asyncio.gather(*(finished(one) if i % 5 == 0 else _all(news(one)) for i, one in enumerate(requests)))
        await asyncio.sleep(0.01)
        gate.open()
        await waiting
        loop.call_soon_threadsafe = real

    engine = make()
    with driven(engine):
        asyncio.run(main())
        assert 1 <= len(calls) <= engine.steps and len(set(calls)) == len(calls)


async def _all(batches):
    return [item async for batch in batches for item in batch]


# ---- ends


LEAVING = ["break", "aclose", "raise", "cancel", "drop", "unstarted"]


@pytest.mark.parametrize("how", LEAVING)
def test_leaving_news_early_cancels_the_request(how):
    async def listen(request):
        batches = news(request)
        async for _ in batches:
            if how == "break":
                break
            if how == "aclose":
                await batches.aclose()
                assert [batch async for batch in batches] == []
                return
            if how == "raise":
                raise KeyError

    async def main():
        request, other = (start(engine, [i], max_new_tokens=5000 if i == 1 else 9) for i in (1, 2))
        if how == "cancel":
            task = asyncio.ensure_future(listen(request))
            await asyncio.sleep(0.02)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        elif how in ("drop", "unstarted"):
            batches = news(request)
            if how == "drop":
                await anext(batches)
            del batches
        elif how == "raise":
            with pytest.raises(KeyError):
                await listen(request)
        else:
            await listen(request)
        gc.collect()
        await finished(other)
        await asyncio.to_thread(until, lambda: request.done)
        assert request.completions()[0].finish_reason == "cancelled" and not request.on_news
        assert other.completions()[0].token_ids == alone([2])[0][:9]

    engine = make()
    with driven(engine):
        asyncio.run(main())
        until(lambda: not engine.busy)
        assert idle(engine)


def test_a_cancelled_wait_cancels_all_it_waited_for():
    async def main():
        requests = [start(engine, [i], max_new_tokens=5000) for i in range(3)]
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(finished(*requests), 0.02)
        await asyncio.to_thread(until, lambda: not engine.busy)
        assert all(request.completions()[0].finish_reason == "cancelled" for request in requests)
        assert not any(request.on_end for request in requests)

    engine = make()
    with driven(engine):
        asyncio.run(main())
        assert idle(engine)


def broken(ids, row):
    if len(ids) == 6:
        raise ValueError("broken")
    return row


def test_errors_are_raised_where_they_are_waited_for():
    async def main():
        failing = start(engine, [1, 2, 3], logits_processors=[broken])
        seen = []
        with pytest.raises(ValueError, match="broken"):
            async for batch in news(failing):
                seen += batch
        assert len(seen) == 3  # what came before the error is not lost
        failing, other, third = (start(engine, [1, 2, 3], logits_processors=[broken] * (i == 0)) for i in range(3))
        with pytest.raises(ValueError, match="broken"):
            await finished(third, failing)
        with pytest.raises(ValueError, match="broken"):
            await _all(news_of([other, start(engine, [1, 2, 3], logits_processors=[broken])]))
        await asyncio.to_thread(until, lambda: not engine.busy)
        assert third.done and other.done

        with Terms() as terms:
            request = start(engine, [1], max_new_tokens=5000)
        batches = news(request)
        await anext(batches)
        terms.cancel("the server is shutting down")  # from the loop: it waits for nothing
        with pytest.raises(ForwardpassError, match="shutting down"):
            await _all(batches)
        with Terms(deadline=time.perf_counter() + 0.2):
            request = start(engine, [1], max_new_tokens=5000)
        with pytest.raises(DeadlineError):
            await _all(news(request))

    engine = make()
    with driven(engine):
        asyncio.run(main())
        until(lambda: not engine.busy)
        assert idle(engine) and usable(engine)


@pytest.mark.parametrize("told", [False, True])
def test_a_loop_that_is_closed_while_its_requests_run_harms_nobody(told):
    """told: when there was news that it has not come to."""
    requests = []

    async def main(keep):
        requests.append(start(engine, [1], max_new_tokens=5000))
        keep.append(news(requests[-1]))
        await anext(keep[-1])
        while told and not requests[-1].pieces:
            time.sleep(0.001)

    engine = make()
    with driven(engine) as driver:
        for _ in range(3):
            keep = []
            loop = asyncio.new_event_loop()
            loop.run_until_complete(main(keep))
            loop.close()
            other = start(engine, [2])
            engine.run([other])
            assert [other.completions()[0].token_ids] == alone([2])
            until(lambda: requests[-1].done)  # nobody will come for it
            assert requests[-1].completions()[0].finish_reason == "cancelled"
            del keep
        until(lambda: not engine.busy)
        assert driver.alive and driver.failures == 0 and idle(engine)


def test_closing_the_engine_or_losing_the_driver_ends_the_wait():
    async def main(end, words):
        request = start(engine, [1], max_new_tokens=5000)
        batches = news(request)
        await anext(batches)
        threading.Timer(0.01, end).start()
        with pytest.raises(ForwardpassError, match=words):
            await _all(batches)

    engine = make()
    with driven(engine) as driver:
        asyncio.run(main(lambda: driver.detach(engine), "nobody computes this"))
        driver.attach(engine)
        until(lambda: not engine.busy)
        asyncio.run(main(engine.close, "closed"))
        assert idle(engine)


def test_without_a_driver_nobody_waits_for_ever():
    async def main():
        with pytest.raises(ForwardpassError, match="AsyncModel or Host"):
            await _all(news(start(engine)))
        with pytest.raises(ForwardpassError, match="AsyncModel or Host"):
            await finished(start(engine))

    engine = make()
    asyncio.run(main())
    assert usable(engine)


def test_the_loop_goes_on_while_a_step_takes_long():
    async def main():
        gate = Gate(reader)
        text = asyncio.ensure_future(asyncio.to_thread(reader.encode, _texts([1]), lambda hidden: [0]))
        await asyncio.to_thread(gate.reached)
        asked = start(engine, [1], max_new_tokens=5000)
        waiting = asyncio.ensure_future(finished(asked))
        for _ in range(5):
            await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.sleep(0)
        gate.open()
        assert await text == [0]
        await asyncio.to_thread(until, lambda: asked.done)

    from script_lm import texts as _texts
    engine, reader = make(), encoder()
    with driven(engine, reader):
        asyncio.run(main())
        until(lambda: not engine.busy)
        assert idle(engine)


def test_random_tasks_come_and_go():
    """Cancelled at random; survivors equal their solo runs, and nothing stays behind."""
    import random
    rng = random.Random(7)

    async def ask(i, size):
        request = start(engine, [i] * size, max_new_tokens=8)
        return [piece.token_id for _, piece in await _all(news(request))]

    async def main():
        survivors = 0
        for _ in range(30):
            sizes = [rng.randrange(1, 90) for _ in range(8)]
            tasks = [asyncio.ensure_future(ask(i, size)) for i, size in enumerate(sizes)]
            for task in rng.sample(tasks, 4):
                await asyncio.sleep(rng.random() * 0.002)
                task.cancel()
            found = await asyncio.gather(*tasks, return_exceptions=True)
            for i, (size, one) in enumerate(zip(sizes, found, strict=True)):
                if not isinstance(one, asyncio.CancelledError):
                    survivors += 1
                    text = [i] * size
                    for _ in range(8):
                        text.append(mixed(text))
                    assert one == text[size:]
        assert survivors >= 120

    engine = make(blocks=12)
    with driven(engine):
        asyncio.run(main())
        until(lambda: not engine.busy)
        assert idle(engine)
