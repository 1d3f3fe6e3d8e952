"""The tasks as coroutines: the results of Model's methods, and nothing left behind when a task is cancelled."""

import asyncio
import inspect
import threading
import time

import numpy as np
import pytest

import forwardpass
import tiny_pairs
import tiny_readers
from driver_tools import until
from forwardpass.errors import BusyError, ContextLengthError, ForwardpassError, ParameterError
from forwardpass.scheduler.limits import TokensInFlight
from forwardpass.scheduler.terms import Terms
from forwardpass.tasks.async_model import AsyncModel
from forwardpass.tasks.model import Model

CHAT = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def model(tiny_folder):
    with forwardpass.load(tiny_folder(), threads=1) as model:
        yield model


@pytest.fixture(scope="module")
def reader(tmp_path_factory):
    folder = tiny_readers.save(tiny_readers.make("labels", 3), tmp_path_factory.mktemp("labels") / "model")
    with forwardpass.load(folder, threads=1) as model:
        yield model


def slow(ids, row):
    time.sleep(0.003)
    return row


SLOW = {"max_new_tokens": 100, "logits_processors": [slow], "eos_token_id": []}


def plain(found):
    if isinstance(found, list):
        return [plain(one) for one in found]
    return found.token_ids, found.text, found.finish_reason, found.logprobs, found.prompt_index, found.choice_index


def test_every_task_of_a_model_is_there():
    life = {"close", "engine", "ask", "answer_params", "explain", "source_limit"}
    tasks = {name for name in dir(Model) if not name.startswith(("_", "begin_"))} - life
    assert tasks == {name for name in dir(AsyncModel) if not name.startswith("_")} - {"aclose"}
    for name in tasks - {"stream", "similarity"}:
        method = getattr(AsyncModel, name)
        assert inspect.iscoroutinefunction(method) and method.__doc__
        assert list(inspect.signature(method).parameters) == list(inspect.signature(getattr(Model, name)).parameters)


CALLS = [
    ("generate", ("ab",), {"max_new_tokens": 9}), ("generate", ([5, 6],), {"max_new_tokens": 5, "logprobs": 1}),
    ("generate", (["ab", "cde"],), {"max_new_tokens": 7, "num_return_sequences": 2, "do_sample": True, "seed": 4}),
    ("generate", (["x"],), {"max_new_tokens": 4, "num_beams": 3}), ("chat", (CHAT,), {"max_new_tokens": 8}),
    ("complete", ("def f(",), {"max_new_tokens": 8}),
]


@pytest.mark.parametrize("name, args, given", CALLS)
def test_answers_are_those_of_the_model(model, name, args, given):
    async def main():
        async with AsyncModel(model) as wrapped:
            return await getattr(wrapped, name)(*args, **given)

    expected = getattr(model, name)(*args, **given)
    assert plain(asyncio.run(main())) == plain(expected)
    assert model.engine.driver is None and getattr(model, name)(*args, **given)


@pytest.mark.parametrize("name, args", [("stream", ("ab",)), ("chat", (CHAT,)), ("complete", ("def f(",))])
def test_streams_are_those_of_the_model(model, name, args):
    async def main():
        async with AsyncModel(model) as wrapped:
            if name == "stream":
                stream = wrapped.stream(*args, max_new_tokens=12)
                with pytest.raises(ParameterError, match="iterate"):
                    stream.completion  # noqa: B018
            else:
                stream = await getattr(wrapped, name)(*args, stream=True, max_new_tokens=12)
            pieces = [piece async for piece in stream]
            assert [piece async for piece in stream] == []
            return pieces, stream.completion

    pieces, completion = asyncio.run(main())
    expected = list(model.stream("ab", max_new_tokens=12)) if name == "stream" else list(
        getattr(model, name)(*args, stream=True, max_new_tokens=12))
    assert pieces == expected and "".join(piece.text for piece in pieces) == completion.text


def test_texts_are_read_as_the_model_reads_them(reader, model):
    async def main():
        wrapped, other = AsyncModel(reader), AsyncModel(model)
        found = await asyncio.gather(
            wrapped.classify(["w1 w2", "w3"]), wrapped.hidden_states([5, 6, 7]), other.logits([1, 2, 3]),
            other.score("abc"), other.embed(["ab", "c"], pooling="last"))
        await wrapped.aclose()
        await other.aclose()
        return found

    labels, hidden, logits, score, vectors = asyncio.run(main())
    assert labels == reader.classify(["w1 w2", "w3"]) and score == model.score("abc")
    assert np.array_equal(hidden, reader.hidden_states([5, 6, 7])) and np.array_equal(logits, model.logits([1, 2, 3]))
    assert np.array_equal(vectors, model.embed(["ab", "c"], pooling="last"))
    assert np.array_equal(AsyncModel(model).similarity(vectors, vectors), model.similarity(vectors, vectors))


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pair") / "model"
    tiny_pairs.write_translator(folder)
    with forwardpass.load(folder, threads=1) as model:
        yield model


@pytest.mark.filterwarnings("ignore:not found in the translation")
def test_translations(pair):
    text, given = "One sentence. And another! 12.", {"target": "de", "max_new_tokens": 12}

    async def main():
        async with AsyncModel(pair) as wrapped:
            whole = await wrapped.translate(text, **given)
            parts = [one async for one in await wrapped.translate(text, stream=True, **given)]
            async for _ in await wrapped.translate(text * 30, stream=True, **given):
                break
            return whole, parts, await wrapped.summarize("abc def", max_new_tokens=9)

    whole, parts, summary = asyncio.run(main())
    assert whole.text == pair.translate(text, **given).text == "".join(one.text for one in parts) and len(parts) == 3
    assert plain(summary) == plain(pair.summarize("abc def", max_new_tokens=9))
    until(lambda: not pair.engine.busy)
    _free(pair)


@pytest.mark.filterwarnings("ignore:not found in the translation")
def test_a_cancelled_translation_asks_for_nothing_more(pair):
    async def main():
        async with AsyncModel(pair) as wrapped:
            terms = Terms()
            with terms:
                task = asyncio.ensure_future(wrapped.translate("Words and words. " * 300, target="de"))
            await asyncio.to_thread(until, lambda: terms.tokens_generated > 0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.to_thread(until, lambda: not pair.engine.busy)
            generated = terms.tokens_generated
            await asyncio.sleep(0.05)
            assert terms.tokens_generated == generated and not pair.engine.busy

    asyncio.run(main())
    _free(pair)


def test_many_tasks_at_once_share_steps(model):
    def hold(ids, row):
        until(lambda: len(model.engine._jobs) == 9)
        return row

    async def main():
        async with AsyncModel(model) as wrapped:
            first = wrapped.generate([9], max_new_tokens=1, logits_processors=[hold])
            return await asyncio.gather(first, *(wrapped.generate([i] * 5, max_new_tokens=10) for i in range(1, 9)))

    before = model.engine.steps
    found = asyncio.run(main())[1:]
    assert model.engine.steps - before < 30
    assert plain(found) == [plain(model.generate([i] * 5, max_new_tokens=10)) for i in range(1, 9)]


# ---- leaving


CANCELLED = [
    lambda wrapped: wrapped.generate("a", **SLOW), lambda wrapped: wrapped.generate(["a", "b", "c"], **SLOW),
    lambda wrapped: wrapped.chat(CHAT, **SLOW), lambda wrapped: _listen(wrapped.stream("a", **SLOW)),
    lambda wrapped: _some(wrapped.embed, [[1 + i % 9] * 120 for i in range(400)]),
]


async def _listen(stream):
    return [piece async for piece in stream]


async def _some(method, ids):
    return await method(ids, pooling="last")


@pytest.mark.parametrize("call", CANCELLED)
def test_cancelling_a_task_ends_what_it_asked_for(model, call):
    async def main():
        async with AsyncModel(model) as wrapped:
            task = asyncio.ensure_future(call(wrapped))
            await asyncio.to_thread(until, lambda: model.engine.busy)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.to_thread(until, lambda: not model.engine.busy)
            return await wrapped.generate("ab", max_new_tokens=5)

    assert plain(asyncio.run(main())) == plain(model.generate("ab", max_new_tokens=5))
    _free(model)


def _free(model):
    model.engine.prefixes.clear()
    assert model.engine.cache.free == model.engine.cache.size


@pytest.mark.parametrize("how", ["break", "aclose", "with"])
def test_leaving_a_stream_cancels_it(model, how):
    async def main():
        async with AsyncModel(model) as wrapped:
            stream = wrapped.stream("a", **SLOW)
            if how == "with":
                with pytest.raises(KeyError):
                    async with stream:
                        await anext(stream)
                        raise KeyError
            elif how == "aclose":
                await anext(stream)
                await stream.aclose()
                assert await _listen(stream) == [] and stream.completion.finish_reason in ("cancelled", "length")
            else:
                async for _ in stream:
                    break
                del stream
            await asyncio.to_thread(until, lambda: not model.engine.busy)
            unbegun = wrapped.stream("a", **SLOW)
            await unbegun.aclose()
            assert await _listen(unbegun) == [] and not model.engine.busy

    asyncio.run(main())
    _free(model)


def test_terms_of_the_context_hold_for_all_tasks(model):
    account = TokensInFlight(300)

    async def main():
        async with AsyncModel(model) as wrapped:
            terms = Terms(account=account)
            with terms:
                await wrapped.generate("abc", max_new_tokens=4, eos_token_id=[])
                await wrapped.embed(["ab", "c"], pooling="last")
                assert (terms.tokens_read, terms.tokens_generated) == (3 + 3, 4)
                one = asyncio.ensure_future(wrapped.generate("a", **SLOW))
                two = asyncio.ensure_future(wrapped.generate("b", **SLOW))
                await asyncio.to_thread(until, lambda: len(model.engine._jobs) == 2)
                with pytest.raises(BusyError):  # each call is admitted by itself
                    await wrapped.generate("c", max_new_tokens=100)
                one.cancel()
                await asyncio.to_thread(until, lambda: account.taken == 101)
                assert not two.done()
                terms.cancel("enough")
                with pytest.raises(ForwardpassError, match="enough"):
                    await two
                with pytest.raises(ForwardpassError, match="enough"):
                    await wrapped.embed("abc", pooling="last")
            with Terms(deadline=time.perf_counter() + 0.05), pytest.raises(forwardpass.DeadlineError):
                await wrapped.generate("a", **SLOW)

    asyncio.run(main())
    assert account.taken == 0
    _free(model)


def test_wrong_arguments_raise_where_they_are_awaited(model):
    async def main():
        async with AsyncModel(model) as wrapped:
            with pytest.raises(ParameterError, match="temperatur"):
                await wrapped.generate("a", temperatur=1)
            with pytest.raises(ContextLengthError):
                await wrapped.generate([1] * 200)
            with pytest.raises(ParameterError, match="one prompt"):
                await anext(wrapped.stream(["a", "b"]))
            with pytest.raises(forwardpass.TemplateError):
                await wrapped.chat([{"role": "critic", "content": "x"}], stream=True)
            with pytest.raises(forwardpass.UnsupportedModelError):
                await wrapped.classify("a")
            assert not model.engine.busy

    asyncio.run(main())


# ---- life


def test_the_driver_is_there_while_it_is_needed(model):
    async def main():
        before = threading.active_count()
        wrapped = AsyncModel(model)
        assert model.engine.driver is None and threading.active_count() == before
        await wrapped.generate("a", max_new_tokens=2)
        driver = model.engine.driver
        other = AsyncModel(model)  # uses what is there
        await other.generate("a", max_new_tokens=2)
        await other.aclose()
        assert model.engine.driver is driver and driver.alive
        await wrapped.aclose()
        await wrapped.aclose()
        assert model.engine.driver is None and not driver.alive
        with pytest.raises(ParameterError, match="closed"):
            await wrapped.generate("a", max_new_tokens=2)

    asyncio.run(main())
    assert model.generate("a", max_new_tokens=2)


def test_a_dropped_one_leaves_no_thread(model):
    before = threading.active_count()
    wrapped = AsyncModel(model)
    asyncio.run(wrapped.generate("a", max_new_tokens=2))
    assert model.engine.driver is not None
    del wrapped
    assert model.engine.driver is None
    until(lambda: threading.active_count() <= before)


def test_several_loops_one_after_the_other(model):
    wrapped = AsyncModel(model)
    found = [asyncio.run(wrapped.generate("ab", max_new_tokens=5)) for _ in range(3)]
    asyncio.run(wrapped.aclose())
    assert plain(found) == [plain(model.generate("ab", max_new_tokens=5))] * 3


def test_a_closed_model_says_so(tiny_folder):
    async def main():
        model = forwardpass.load(tiny_folder(), threads=1)
        async with AsyncModel(model) as wrapped:
            stream = wrapped.stream("a", **SLOW)
            await anext(stream)
            await asyncio.to_thread(model.close)
            with pytest.raises(ForwardpassError, match="closed"):
                await _listen(stream)
            with pytest.raises(ParameterError, match="closed"):
                await wrapped.generate("a")

    asyncio.run(main())


def test_a_model_of_a_host_keeps_its_driver(tiny_folder):
    async def main(host):
        async with AsyncModel(host.find("m")) as wrapped:
            return await wrapped.generate("ab", max_new_tokens=5)

    with forwardpass.Host({"m": tiny_folder()}, kv_memory="8MiB", threads=1) as host:
        found = asyncio.run(main(host))
        assert host.find("m").engine.driver is host.driver and host.driver.alive
        assert plain(found) == plain(host.find("m").generate("ab", max_new_tokens=5))
