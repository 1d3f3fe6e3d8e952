"""Loads: as many at once or as often as asked for, and times that count from the plan."""

import asyncio

import pytest
from aiohttp import web

from fake_openai import FakeServer
from forwardpass.bench.client import Client
from forwardpass.bench.lengths import Lengths
from forwardpass.bench.load import Load, Runner
from forwardpass.bench.statistics import summary
from forwardpass.bench.texts import estimated
from forwardpass.errors import ForwardpassError, ParameterError

TEXT = " ".join(f"word{i}" for i in range(9000))


def fixed(tokens):
    return Lengths("fixed", tokens)


def run(*loads, api="completions", first=0, pid=None, texts=None, progress=lambda done, total: None, **options):
    """(levels, the server) of some loads on a fake server."""
    async def all_of_them():
        async with FakeServer(**options) as server, Client(server.url, api=api, model="fake") as client:
            runner = Runner(client, texts or estimated(TEXT, 100), pid, progress, first)
            return [await runner.run(load) for load in loads], server

    return asyncio.run(all_of_them())


def prompts(server):
    return [body["prompt"] for _, _, body in server.seen]


def test_a_closed_loop_keeps_so_many_going():
    (level,), server = run(Load(concurrency=3, requests=9, prompt=fixed(5), answer=fixed(2), warm_up=2), wait=0.02)
    assert server.most == 3 and len(server.seen) == 11 and len(level.records) == 9
    found = summary(level)
    assert found["ok"] == 9 and found["output_tokens"] == 2 and found["prompt_tokens"] == 20  # 4 characters a token
    assert level.stop == max(record.end for record in level.records) and level.start <= level.records[0].sent
    assert found["output_tok_s"] == pytest.approx(18 / (level.stop - level.start)) and found["late_ms"]["max"] == 0
    assert found["load"] == {"concurrency": 3, "requests": 9, "prompt_tokens": "5", "answer_tokens": "2",
                             "shared_prefix": 0, "turns": 1, "think_s": 0.0, "warm_up": 2, "seed": 0}
    assert len(set(prompts(server))) == 11


def test_prompts_go_on_from_level_to_level_and_are_the_same_for_every_server():
    loads = [Load(concurrency=n, requests=3, prompt=Lengths("uniform", 5, 50), answer=Lengths("lognormal", 4, 0.5),
                  warm_up=1) for n in (1, 2)]
    _, server = run(*loads)
    _, again = run(*loads)
    def asked(one):
        return sorted((body["prompt"], body["max_tokens"]) for _, _, body in one.seen)

    assert asked(server) == asked(again) and len({prompt[:20] for prompt in prompts(server)}) == 8
    _, later = run(*loads, first=8)
    assert not set(prompts(server)) & set(prompts(later))


def test_an_open_loop_counts_from_the_plan():
    """A server that needs 40 ms a request, one at a time, and one coming every 10 ms: the last of ten waits for nine.

    A closed loop of the same ten sees 40 ms each: what a server that is too slow does to its users is left out of it.
    """
    (level,), server = run(Load(rate=100.0, spacing="constant", requests=10, prompt=fixed(3), answer=fixed(1)),
                           wait=0.04, one_at_a_time=True)
    records = sorted(level.records, key=lambda record: record.planned)
    assert [record.planned - level.start for record in records] == pytest.approx([i / 100 for i in range(10)])
    for i, record in enumerate(records):
        assert record.ttft >= 0.04 * (i + 1) - i / 100 - 0.002
    assert server.most > 3
    (level,), server = run(Load(concurrency=1, requests=10, prompt=fixed(3), answer=fixed(1)), wait=0.04,
                           one_at_a_time=True)
    assert summary(level)["ttft_ms"]["p50"] < 200 and server.most == 1


def test_a_client_that_is_late_says_so():
    """Something blocks the client for a tenth of a second: requests that should have gone out then count from then."""
    from time import sleep

    def block(number, body):
        if number == 0:
            sleep(0.1)

    (level,), _ = run(Load(rate=100.0, spacing="constant", requests=5, prompt=fixed(3), answer=fixed(1)), script=block)
    found = summary(level)
    assert found["late_ms"]["max"] >= 60 and found["ttft_ms"]["p50"] >= 50


def test_an_open_loop_by_time():
    (level,), _ = run(Load(rate=50.0, spacing="constant", duration=0.2, prompt=fixed(3), answer=fixed(1)), wait=0.3)
    assert len(level.records) == 10 and level.stop == level.start + 0.2
    found = summary(level)  # what has begun is awaited, but came after the window
    assert found["ok"] == 10 and found["output_tok_s"] == 0 and found["ttft_ms"]["p50"] >= 300


def test_a_closed_loop_by_time():
    (level,), server = run(Load(concurrency=2, duration=0.2, prompt=fixed(3), answer=fixed(1)), wait=0.02)
    assert level.stop == level.start + 0.2 and 2 <= len(level.records) <= 22
    assert all(record.sent < level.stop for record in level.records) and len(server.seen) == len(level.records)


def test_turns_carry_what_was_said():
    (level,), server = run(Load(concurrency=1, requests=1, prompt=fixed(4), answer=fixed(2), turns=3, think=0.02,
                                shared_prefix=6), api="chat")
    assert len(level.records) == 3 and summary(level)["ok"] == 3
    first, second, third = (body["messages"] for _, _, body in server.seen)
    assert [one["role"] for one in third] == ["system", "user", "assistant", "user", "assistant", "user"]
    assert third[:4] == second and second[:2] == first and third[2]["content"] == " w0 w1"
    assert len(first[0]["content"]) == 24 and len(third[5]["content"]) == 16 and len({m["content"] for m in third}) == 5
    for before, after in zip(level.records, level.records[1:], strict=False):
        assert after.planned == before.end + 0.02 and after.sent >= after.planned


def test_no_turn_begins_after_the_time():
    (level,), server = run(Load(concurrency=1, duration=0.1, prompt=fixed(4), answer=fixed(1), turns=500), wait=0.02)
    assert 2 <= len(server.seen) <= 6 and all(record.sent < level.stop for record in level.records)
    assert all(len(body["prompt"]) > len(server.seen[0][2]["prompt"]) for _, _, body in server.seen[1:])


def test_turns_of_plain_texts():
    _, server = run(Load(concurrency=1, requests=1, prompt=fixed(4), answer=fixed(1), turns=2, shared_prefix=2))
    first, second = prompts(server)
    assert len(first) == 8 + 16 and second.startswith(first + " w0") and len(second) == len(first) + 3 + 16


def test_a_shared_prefix_is_shared():
    _, server = run(Load(concurrency=2, requests=6, prompt=fixed(4), answer=fixed(1), shared_prefix=10, warm_up=1),
                    Load(concurrency=1, requests=2, prompt=fixed(4), answer=fixed(1), shared_prefix=10))
    assert len({prompt[:40] for prompt in prompts(server)}) == 1 and len({p[40:] for p in prompts(server)}) == 9


def test_a_failed_turn_ends_its_conversation_and_nothing_else():
    def script(number, body):
        return web.json_response({"error": {"message": "no"}}, status=503) if number == 1 else None

    told = []
    (level,), _ = run(Load(concurrency=1, requests=2, prompt=fixed(3), answer=fixed(1), turns=3), script=script,
                      progress=lambda done, total: told.append((done, total)))
    found = summary(level)
    assert (found["requests"], found["ok"], found["errors"]) == (5, 4, {"http 503": 1})
    assert told == [(i, 6) for i in range(1, 6)]


def test_errors_by_kind():
    def script(number, body):
        return {0: web.json_response({}, status=429), 1: b"data: x\n\n", 2: [b": nothing\n\n"]}.get(number)

    (level,), _ = run(Load(concurrency=1, requests=5, prompt=fixed(3), answer=fixed(1)), script=script)
    found = summary(level)
    assert found["errors"] == {"http 429": 1, "bad answer": 1, "cut off": 1} and found["ok"] == 2
    assert found["error_messages"]["bad answer"] == "x"


def test_what_fails_on_our_side_ends_the_run():
    class Broken:
        async def take(self, number, tokens):
            raise ForwardpassError("no more texts")

    with pytest.raises(ForwardpassError, match="no more texts"):
        run(Load(concurrency=2, duration=1.0), texts=Broken())


def test_the_server_process_is_billed():
    import os

    (level,), _ = run(Load(concurrency=1, requests=2, prompt=fixed(3), answer=fixed(1)), pid=os.getpid())
    assert level.server_cpu_s >= 0 and level.client_cpu_s > 0


def test_a_server_that_died_is_not_billed(monkeypatch):
    def gone(pid):
        if times.pop():
            raise ParameterError("no such process")
        return 1.0

    times = [True, False]
    monkeypatch.setattr("forwardpass.bench.load.cpu_seconds", gone)
    (level,), _ = run(Load(concurrency=1, requests=1, prompt=fixed(3), answer=fixed(1)), pid=7)
    assert level.server_cpu_s is None and "tokens_per_cpu_hour" not in summary(level) and not times


@pytest.mark.parametrize("options,said", [
    ({}, "concurrency or a rate"), ({"concurrency": 1, "rate": 1.0}, "concurrency or a rate"),
    ({"concurrency": 1, "requests": None}, "number of requests or after a time"),
    ({"concurrency": 1, "duration": 1.0}, "number of requests or after a time"),
    ({"concurrency": 0}, "concurrency: expected 1 or more, found 0"), ({"rate": 0.0}, "rate: expected a number above"),
    ({"rate": float("nan")}, "rate: expected"), ({"rate": float("inf")}, "rate: expected"),
    ({"concurrency": 1, "turns": 0}, "turns: expected 1"), ({"concurrency": 1, "think": float("nan")}, "think"),
    ({"concurrency": 1, "requests": 0}, "requests: expected 1"), ({"rate": 1.0, "spacing": "bursts"}, "poisson or"),
    ({"concurrency": 10**6}, "concurrency: expected at most 20,000, found 1,000,000"),
    ({"concurrency": 1, "requests": 10**18}, "requests: expected at most 1,000,000"),
    ({"rate": 1e9, "duration": 9.0, "requests": None}, "rate x duration: expected at most 1,000,000 conversations"),
    ({"concurrency": 1, "shared_prefix": -1}, "shared_prefix"), ({"concurrency": 1, "warm_up": -1}, "warm_up")])
def test_loads_are_checked(options, said):
    with pytest.raises(ParameterError, match=said):
        Load(**{"requests": 1, **options})
