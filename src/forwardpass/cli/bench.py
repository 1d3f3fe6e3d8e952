"""`forwardpass bench serve URL`: load on a server that speaks the OpenAI API, and what became of the answers' times."""

from __future__ import annotations

import gc
import json as json_format
import sys
from dataclasses import replace
from pathlib import Path

from ..errors import ForwardpassError, ParameterError
from .output import one_line, print_json, print_table, write
from .progress import Progress

WARM_UP = 2
REQUESTS_EACH = 4  # by default so many conversations for each that runs at once
SPREADS = (("ttft_ms", "TTFT"), ("itl_ms", "inter-token"), ("e2e_ms", "end to end"))


def run(what, url, json, plot, report, **options) -> int:
    import asyncio

    from ..bench import curve

    if what != "serve":
        raise ParameterError(f"bench: expected serve, found {what!r}")
    for name, file in (("--plot", plot), ("--report", report)):
        if file is not None and (Path(file).is_dir() or not Path(file).absolute().parent.is_dir()):
            raise ParameterError(f"{name} {file}: expected the name of a file in a folder that exists")
    if plot is not None:
        curve.library()
    gc.enable()
    result = asyncio.run(measure(url, **options))
    if report is not None:
        _save(report, result)
    if plot is not None:
        curve.draw(plot, {result["model"]: result["levels"]}, _about(result))
    if json:
        print_json(result)
    else:
        show(result)
    return 0 if any(level["ok"] for level in result["levels"]) else 1


async def measure(url, api, name, key_file, extra_body, timeout, ignore_eos, tokenizer, goodput, pid,
                  **options) -> dict:
    """All levels of one command line, one after the other."""
    from ..bench import statistics, texts
    from ..bench.client import Client
    from ..bench.load import Runner
    from ..bench.processes import cpu_seconds
    from ..tasks.quality import measuring_text

    loads = levels(**options)
    targets = statistics.parse_targets(goodput or ())
    if pid is not None:
        cpu_seconds(pid)
    local = None if tokenizer is None else _tokenizer(tokenizer)
    longest, seed = max(load.longest for load in loads), loads[0].seed
    client = Client(url, api=api, model=name, key=_key(key_file), extra=_extra(extra_body), timeout=timeout,
                    ignore_eos=ignore_eos is not False)
    notes = []
    async with client:
        await client.find_model()
        text = measuring_text()
        source = texts.from_tokenizer(local, text, longest, seed) if local else \
            await texts.from_server(client, text, longest, seed)
        notes.append(source.how)
        notes += await _first_request(client, source, round(loads[0].answer.first), asked=ignore_eos is True)
        with Progress("requests") as progress:
            def tell(done: int, total: int) -> None:
                progress(said, done, total)

            runner, found = Runner(client, source, pid, tell), []
            for load in loads:
                said = f"concurrency {load.concurrency}" if load.rate is None else f"rate {load.rate:g}/s"
                found.append(statistics.summary(await runner.run(load), targets))
    return {"bench": "serve", "url": url, "api": api, "model": client.model, "percentiles": statistics.METHOD,
            "notes": notes, "levels": found}


async def _first_request(client, source, wanted: int, asked: bool) -> list[str]:
    """Find out before the load whether the server answers at all, and whether it knows ignore_eos. Sentences on what it
    does not know. wanted: tokens of its answer;  asked: whether the user asked for ignore_eos."""
    text = await source.take(-2, 8)
    content = [{"role": "user", "content": text}] if client.api == "chat" else text
    record = await client.ask(content, wanted)
    notes = []
    if record.error in ("http 400", "http 422") and client.ignore_eos and not asked:
        client.ignore_eos = False
        record = await client.ask(content, wanted)
        notes.append("the server does not know ignore_eos: answers may be shorter than asked for")
    if record.error:
        raise ForwardpassError(f"{client.root}: the first request failed: {record.error}: {record.message}")
    return notes


def levels(concurrency, rate, arrivals, requests, duration, prompt_tokens, answer_tokens, shared_prefix, turns, think,
           warm_up, seed) -> list:
    """The loads that a command line asks for. ParameterError for what contradicts itself."""
    from ..bench.lengths import Lengths
    from ..bench.load import Load

    if concurrency is not None and rate is not None:
        raise ParameterError("--concurrency is a closed loop and --rate an open one: give one of them")
    if requests is not None and duration is not None:
        raise ParameterError("--requests and --duration both say when a level ends: give one of them")
    common = Load(concurrency=1, requests=1, spacing=arrivals, prompt=Lengths.parse(prompt_tokens, "--prompt-tokens"),
                  answer=Lengths.parse(answer_tokens, "--answer-tokens"), shared_prefix=shared_prefix, turns=turns,
                  think=think, warm_up=WARM_UP if warm_up is None else warm_up, seed=seed or 0)
    found = []
    if rate is not None:
        for one in _numbers("--rate", rate, float):
            end = {"requests": requests} if requests is not None else {"duration": duration or 30.0, "requests": None}
            found.append(replace(common, concurrency=None, rate=one, **end))
    else:
        for one in _numbers("--concurrency", concurrency or "1", int):
            end = {"requests": requests or REQUESTS_EACH * one}
            if duration is not None:
                end = {"duration": duration, "requests": None}
            found.append(replace(common, concurrency=one, **end))
    return found


def _numbers(option: str, text: str, kind: type) -> list:
    try:
        return [kind(word) for word in text.split(",")]
    except ValueError:
        raise ParameterError(f"{option}: expected numbers with commas between them, found {text!r}") from None


def _key(file: str | None) -> str | None:
    if file is None:
        return None
    try:
        key = Path(file).read_text("utf-8").split("\n")[0].strip()
    except (OSError, ValueError) as error:
        raise ParameterError(f"--key-file {file}: expected a readable file with an API key, found: {error}") from None
    if not key or not key.isascii() or not key.isprintable():
        raise ParameterError(f"--key-file {file}: expected an API key in its first line, found none")
    return key


def _extra(text: str | None) -> dict:
    try:
        value = {} if text is None else json_format.loads(text)
    except ValueError as error:
        raise ParameterError(f"--extra-body: expected a JSON object, found: {error}") from None
    if not isinstance(value, dict):
        raise ParameterError(f"--extra-body: expected a JSON object, found {text!r}")
    return value


def _tokenizer(model: str):
    from ..tasks.opening import open_source, read_tokenizer
    from .progress import resolve

    path = resolve(model)
    source, _ = open_source(path)
    with source:
        found = read_tokenizer(path, source)
    if found is None:
        raise ParameterError(f"--tokenizer {model}: the model has none")
    return found


def _save(file: str, result: dict) -> None:
    try:
        Path(file).write_text(json_format.dumps(result, indent=1, allow_nan=False) + "\n", "utf-8")
    except OSError as error:
        raise ParameterError(f"--report {file}: the file could not be written: {error.strerror}") from None


def show(result: dict) -> None:
    """For people: a table, a row a level, then what it does not show."""
    write(f"{_about(result)}; times in ms: p50 / p95 / p99 by nearest rank, from the planned time of sending\n")
    head = ["load", "requests", "failed", *(said for _, said in SPREADS), "output tok/s", "total tok/s", "requests/s"]
    billed = any("server_cpu_s" in level for level in result["levels"])
    head += ["in time"] * ("goodput" in result["levels"][0]) + ["tok/CPU-hour"] * billed
    print_table(head, [_row(level, billed) for level in result["levels"]])
    for note in result["notes"]:
        print(f"note: {note}", file=sys.stderr)
    for level in result["levels"]:
        for kind, count in level["errors"].items():
            message = level["error_messages"].get(kind, "")
            print(f"failed: {_load(level)}: {count} x {kind}{': ' if message else ''}{one_line(message)}",
                  file=sys.stderr)
        if level["short"]:
            print(f"note: {_load(level)}: {level['short']} answers were shorter than asked for", file=sys.stderr)


def _about(result: dict) -> str:
    # Some servers name a model by the whole path of its file.
    return one_line(f"{result['model'].rpartition('/')[2]} at {result['url']}, {result['api']}")


def _row(level: dict, billed: bool) -> list[str]:
    times = [" / ".join(_short(level[name][p]) for p in ("p50", "p95", "p99")) if level[name] else "-"
             for name, _ in SPREADS]
    row = [_load(level), level["requests"], level["requests"] - level["ok"], *times,
           *(_short(level[name]) for name in ("output_tok_s", "total_tok_s", "requests_s"))]
    if "goodput" in level:
        row.append(f"{level['goodput']['share']:.0%}, {_short(level['goodput']['requests_s'])}/s")
    if billed:
        bill = level.get("tokens_per_cpu_hour")  # None where the server is gone
        row.append("-" if bill is None else f"{bill:,.0f}")
    return row


def _load(level: dict) -> str:
    load = level["load"]
    return f"{load['concurrency']} at once" if "concurrency" in load else f"{load['rate']:g}/s {load['arrivals']}"


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
