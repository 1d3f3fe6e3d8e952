"""What serve.py asks of a server: jobs, each with the load it sends and the figures it takes from the answers.

All go through the load tool of `forwardpass bench serve`, and all engines get the same texts. A job returns figure ->
a rate (number) or times (list of seconds), and may return the summary of its load for the curve.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from itertools import pairwise

from _servers import NAME, Process

from forwardpass.bench.client import Client
from forwardpass.bench.lengths import Lengths
from forwardpass.bench.load import Load, Runner
from forwardpass.bench.records import Record
from forwardpass.bench.statistics import summary
from forwardpass.bench.texts import Texts

HELLOS = ("Hello", "Hi", "Good morning", "Good evening", "Hey there")
WHOM = ("!", ", how are you?", ", I am Ada.", ", what is new?", ", my friend.", " from Rome!")
RUNNING = 4  # streams that are running when a long prompt comes
RUN_IN_TOKENS = 16  # each has so many before that
NOTICE_S = 0.5  # in which a server notices that nobody waits for its streams any more


class Sizes:
    """What is measured. --quick keeps the figures and shrinks the work, so they mean nothing."""

    def __init__(self, quick: bool):
        self.prompt, self.answer = (16, 6) if quick else (128, 128)
        # Concurrency -> requests: enough to be more than one moment, few enough for slow peers.
        self.requests = {1: 1, 8: 8, 32: 32} if quick else {1: 2, 8: 16, 32: 32}
        self.greetings = 2 if quick else 6
        self.greeting_tokens = 4 if quick else 20
        self.prefix = 96 if quick else 1000
        self.questions = 2 if quick else 4
        self.long = 256 if quick else 4000
        self.running_tokens = 600 if quick else 3000
        self.starts = 1 if quick else 5

    @property
    def longest(self) -> int:
        return max(self.long, self.prefix, self.prompt)


@dataclass(frozen=True)
class Job:
    """measure: (server, texts, number of the first text) -> (figures, summary);  decides: the figure that says which
    way of running a server is best;  like: a figure that says so when that one was never measured;  slots: requests at
    once;  context: tokens that each needs;  texts: how many it uses."""

    name: str
    decides: str
    slots: int
    context: int
    texts: int
    measure: Callable[[Process, Texts, int], Awaitable[tuple[dict, dict | None]]]
    like: str = ""

    def __call__(self, server: Process, texts: Texts, first: int) -> tuple[dict, dict | None]:
        return asyncio.run(self.measure(server, texts, first))


def jobs(sizes: Sizes, more_levels: bool = False) -> list[Job]:
    """All of them; more_levels: also the other powers of two up to 32, for the curve."""
    requests = dict(sizes.requests)
    if more_levels:
        requests |= {n: max(4, n) for n in (2, 4, 16)}
    context = sizes.prompt + sizes.answer + 64
    found = [Job(f"at {n}", f"output_tok_s {n}", n, context, count + 1, _throughput(sizes, n, count),
                 "" if n == 1 else "output_tok_s 8") for n, count in sorted(requests.items())]
    return [*found,
            Job("greeting", "greeting_s", 1, 256, sizes.greetings + 1, _greeting(sizes)),
            Job("prefix", "prefix_cold_s", 1, sizes.prefix + 256, sizes.questions + 1, _prefix(sizes)),
            Job("long prompt", "itl_while_long_s", RUNNING + 1, max(sizes.long, sizes.running_tokens) + 256,
                RUNNING + 2, _long(sizes))]


def _throughput(sizes: Sizes, concurrency: int, requests: int):
    """Output tokens a second, prompts included, and the time to the first token, so many requests at once."""

    async def measure(server: Process, texts: Texts, first: int):
        load = Load(concurrency=concurrency, requests=requests, prompt=Lengths("fixed", sizes.prompt),
                    answer=Lengths("fixed", sizes.answer), warm_up=1)
        async with Client(server.url, api="completions", model=NAME) as client:
            level = await Runner(client, texts, server.pid, first=first).run(load)
        good(level.records)
        found = summary(level)
        return {f"output_tok_s {concurrency}": found["output_tok_s"],
                f"ttft_s {concurrency}": [record.ttft for record in level.records],
                f"itl_s {concurrency}": [gap for record in level.records for gap in record.gaps()]}, found

    return measure


def _greeting(sizes: Sizes):
    """A short greeting in the chat template, end to end."""

    async def measure(server: Process, texts: Texts, first: int):
        records = []
        async with Client(server.url, model=NAME) as client:
            for number in range(first, first + sizes.greetings + 1):
                text = HELLOS[number % len(HELLOS)] + WHOM[number // len(HELLOS) % len(WHOM)]
                records.append(await client.ask([{"role": "user", "content": text}], sizes.greeting_tokens))
        good(records)
        return {"greeting_s": [record.e2e for record in records[1:]]}, None

    return measure


def _prefix(sizes: Sizes):
    """Time to the first token behind a system prompt that is new, and behind one that another question had before."""

    async def measure(server: Process, texts: Texts, first: int):
        system, records = await texts.take(first, sizes.prefix), []
        async with Client(server.url, model=NAME) as client:
            good([await client.ask([{"role": "user", "content": "Hello!"}], 4)])  # awake, and its code in the caches
            for number in range(sizes.questions):
                asked = await texts.take(first + 1 + number, 12)
                records.append(await client.ask([{"role": "system", "content": system},
                                                 {"role": "user", "content": asked}], 4))
        good(records)
        cold, *hits = [record.ttft for record in records]
        return {"prefix_cold_s": [cold], "prefix_hit_s": hits}, None

    return measure


def _long(sizes: Sizes):
    """Gaps of running streams that overlap with the reading of a long prompt, and that prompt's time to first token."""

    async def measure(server: Process, texts: Texts, first: int):
        async with Client(server.url, api="completions", model=NAME) as client:
            running = [Record() for _ in range(RUNNING)]
            tasks = []
            for number, record in enumerate(running):
                text = await texts.take(first + 1 + number, 32)
                tasks.append(asyncio.create_task(client.ask(text, sizes.running_tokens, record=record)))
            while min(len(record.times) for record in running) < RUN_IN_TOKENS and not any(t.done() for t in tasks):
                await asyncio.sleep(0.01)
            long = await client.ask(await texts.take(first, sizes.long), 1)
            await asyncio.sleep(0.1)  # the gap in which the prompt ended has an end too
            ended = [record for record, task in zip(running, tasks, strict=True) if task.done()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.sleep(NOTICE_S)
        good([long, *ended])
        gaps = [after - before for record in running for before, after in pairwise(record.times)
                if after > long.sent and before < long.times[0]]
        return {"itl_while_long_s": gaps, "long_ttft_s": [long.ttft]}, None

    return measure


def good(records: list[Record]) -> None:
    """A figure of failed or short requests is none."""
    for record in records:
        if record.error:
            raise RuntimeError(f"a request failed: {record.error}: {record.message}")
        if record.output_tokens < record.wanted:
            raise RuntimeError(f"an answer has {record.output_tokens} tokens, {record.wanted} were asked for")
