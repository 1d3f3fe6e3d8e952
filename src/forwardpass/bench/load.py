"""Send a load to a server: a closed loop (so many at once) or an open one (so many a second, whatever it does)."""

from __future__ import annotations

import asyncio
import math
import resource
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from itertools import islice, takewhile
from time import perf_counter

import numpy as np

from forwardpass.bench.client import Client
from forwardpass.bench.lengths import ARRIVALS, Lengths, arrivals
from forwardpass.bench.processes import cpu_seconds
from forwardpass.bench.records import Level, Record
from forwardpass.bench.texts import Texts
from forwardpass.errors import ParameterError

MEDIUM = Lengths("fixed", 128)
MOST = {"concurrency": 20_000, "requests": 1_000_000, "turns": 1000}
"""More would fill the client's memory, or its file descriptors, before anything is sent."""


@dataclass(frozen=True, slots=True)
class Load:
    """One level of load.

    concurrency: conversations at once, a new one for each that ends (closed loop);  rate: conversations a second,
    `spacing` ("poisson" or "constant") saying how they come (open loop). One of the two.
    requests: so many conversations;  duration: seconds in which requests begin. One of the two; requests that have
    begun are awaited.  turns: of a conversation, each with the answers so far in its prompt;  think: seconds between an
    answer and the next turn;  shared_prefix: tokens that all prompts begin with;  warm_up: conversations before, not
    counted.
    """

    concurrency: int | None = None
    rate: float | None = None
    spacing: str = "poisson"
    requests: int | None = None
    duration: float | None = None
    prompt: Lengths = MEDIUM
    answer: Lengths = MEDIUM
    shared_prefix: int = 0
    turns: int = 1
    think: float = 0.0
    warm_up: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        if (self.concurrency is None) == (self.rate is None):
            raise ParameterError("a load is closed or open: give a concurrency or a rate, not both")
        if (self.requests is None) == (self.duration is None):
            raise ParameterError("a load ends after a number of requests or after a time: give one of them")
        for name, least in (("concurrency", 1), ("requests", 1), ("turns", 1), ("shared_prefix", 0), ("warm_up", 0),
                            ("seed", 0), ("think", 0)):
            value = getattr(self, name)
            if value is not None and not value >= least:
                raise ParameterError(f"{name}: expected {least} or more, found {value}")
            if value is not None and value > MOST.get(name, value):
                raise ParameterError(f"{name}: expected at most {MOST[name]:,}, found {value:,}")
        for name in ("rate", "duration"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise ParameterError(f"{name}: expected a number above 0, found {value}")
        if self.rate is not None and self.rate * (self.duration or 0) > MOST["requests"]:
            raise ParameterError(f"rate x duration: expected at most {MOST['requests']:,} conversations, found "
                                 f"{self.rate * self.duration:,.0f}")
        if self.spacing not in ARRIVALS:
            raise ParameterError(f"arrivals: expected {' or '.join(ARRIVALS)}, found {self.spacing!r}")

    @property
    def longest(self) -> int:
        """Tokens of the longest piece of text that it needs."""
        return max(self.prompt.most, self.shared_prefix)

    def about(self) -> dict:
        how = {"concurrency": self.concurrency} if self.rate is None else {"rate": self.rate, "arrivals": self.spacing}
        much = {"requests": self.requests} if self.duration is None else {"duration_s": self.duration}
        return {**how, **much, "prompt_tokens": str(self.prompt), "answer_tokens": str(self.answer),
                "shared_prefix": self.shared_prefix, "turns": self.turns, "think_s": self.think,
                "warm_up": self.warm_up, "seed": self.seed}


@dataclass(frozen=True, slots=True)
class Talk:
    """A conversation: what the user says in each turn, and how many tokens are to answer it."""

    prefix: str
    says: tuple[str, ...]
    wanted: tuple[int, ...]


class Talks:
    """The conversations of a run, by number: the same text and lengths for each server, and none twice."""

    def __init__(self, load: Load, texts: Texts):
        self._load, self._texts, self._prefix = load, texts, ""

    async def make(self, number: int) -> Talk:
        load = self._load
        if load.shared_prefix and not self._prefix:
            self._prefix = await self._texts.take(-1, load.shared_prefix)
        chance = np.random.default_rng([load.seed, 2, number])
        lengths = [(load.prompt.draw(chance), load.answer.draw(chance)) for _ in range(load.turns)]
        says = [await self._texts.take(number * load.turns + turn, one) for turn, (one, _) in enumerate(lengths)]
        return Talk(self._prefix, tuple(says), tuple(wanted for _, wanted in lengths))


class Runner:
    """Runs level after level against one server.

    pid: the server's process, if it is on this machine;  progress: called as progress(requests done, all or 0);
    first: number of the first conversation. Numbers go on from level to level, so that none repeats another's prompts.
    """

    def __init__(self, client: Client, texts: Texts, pid: int | None = None,
                 progress: Callable[[int, int], None] = lambda done, total: None, first: int = 0):
        self._client, self._texts, self._pid, self._progress, self._next = client, texts, pid, progress, first

    async def run(self, load: Load) -> Level:
        talks, records = Talks(load, self._texts), []
        for _ in range(load.warm_up):
            await self._talk(await talks.make(self._number()), load, None, [])
        talk_list: list[Talk] = []
        if load.rate is not None:
            times = arrivals(load.spacing, load.rate, load.seed)
            times = list(islice(times, load.requests) if load.duration is None
                         else takewhile(lambda at: at < load.duration, times))
            talk_list = [await talks.make(self._number()) for _ in times]  # before the clock runs
        elif load.requests is not None:
            talk_list = [await talks.make(self._number()) for _ in range(load.requests)]
        server, own = self._server_cpu(), _own_cpu()
        start = perf_counter()
        if load.rate is not None:
            await self._open(load, talk_list, times, start, records)
        else:
            await self._closed(load, talks, talk_list, start, records)
        last = max((record.end for record in records), default=perf_counter())
        stop = start + load.duration if load.duration is not None else last
        return Level(load.about(), records, start, stop, _own_cpu() - own, self._used_since(server))

    def _number(self) -> int:
        self._next += 1
        return self._next - 1

    def _server_cpu(self) -> float | None:
        return None if self._pid is None else cpu_seconds(self._pid)

    def _used_since(self, before: float | None) -> float | None:
        try:
            return None if before is None else self._server_cpu() - before
        except ParameterError:  # the server is gone, which the records tell
            return None

    async def _closed(self, load: Load, talks: Talks, talk_list: list[Talk], start: float, records: list) -> None:
        source = self._source(load, talks, talk_list, start)
        lock = asyncio.Lock()  # an asynchronous generator serves one at a time

        async def user() -> None:
            while True:
                async with lock:
                    talk = await anext(source, None)
                if talk is None:
                    return
                await self._talk(talk, load, None, records, start + (load.duration or math.inf))

        await _together([user() for _ in range(load.concurrency)])

    async def _source(self, load: Load, talks: Talks, talk_list: list[Talk], start: float) -> AsyncIterator[Talk]:
        for talk in talk_list:
            yield talk
        while load.duration is not None and perf_counter() < start + load.duration:
            yield await talks.make(self._number())

    async def _open(self, load: Load, talk_list: list[Talk], times: list[float], start: float, records: list) -> None:
        async def later(talk: Talk, at: float) -> None:
            await _until(at)
            await self._talk(talk, load, at, records, start + (load.duration or math.inf))

        await _together([later(talk, start + at) for talk, at in zip(talk_list, times, strict=True)])

    async def _talk(self, talk: Talk, load: Load, planned: float | None, records: list[Record],
                    stop: float = math.inf) -> None:
        """One conversation, turn by turn, until it ends, a turn fails or the time is over."""
        chat, so_far = [], talk.prefix
        if talk.prefix and self._client.api == "chat":
            chat.append({"role": "system", "content": talk.prefix})
        for turn, (text, wanted) in enumerate(zip(talk.says, talk.wanted, strict=True)):
            last = turn == load.turns - 1
            so_far += text
            chat.append({"role": "user", "content": text})
            record = await self._client.ask(list(chat) if self._client.api == "chat" else so_far, wanted,
                                            planned=planned, keep_text=not last)
            records.append(record)
            self._progress(len(records), (load.requests or 0) * load.turns)
            if record.error or last or perf_counter() + load.think >= stop:
                return
            so_far += record.text
            chat.append({"role": "assistant", "content": record.text})
            record.text = ""
            planned = record.end + load.think
            await _until(planned)


async def _until(time: float) -> None:
    while (left := time - perf_counter()) > 0:
        await asyncio.sleep(left)


async def _together(coroutines: list) -> None:
    """All of them; if one raises, the others end too."""
    try:
        async with asyncio.TaskGroup() as group:
            for one in coroutines:
                group.create_task(one)
    except ExceptionGroup as several:
        raise several.exceptions[0] from None


def _own_cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
