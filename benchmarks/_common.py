"""What the benchmarks share: options, text to measure on, processes measured from outside, tables, the last line."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import median

from _worker import Missing, Worker

PEERS = {  # name on the command line -> {name in the results: (script, arguments)}
    "llama.cpp": {"llama.cpp": ("_engine_llama_cpp.py", {})},
    "transformers": {"transformers-float32": ("_engine_transformers.py", {"dtype": "float32"}),
                     "transformers-bfloat16": ("_engine_transformers.py", {"dtype": "bfloat16"})},
    "plain": {"plain": ("_engine_transformers.py", {"dtype": "float32"})},
}
SLOW_S = 10.0


def parser(description: str, peers: Iterable[str] = (), rounds: int = 5) -> argparse.ArgumentParser:
    """The options every benchmark has; run_on_model adds --model where one is needed."""
    made = argparse.ArgumentParser(description=description.strip().splitlines()[0],
                                   epilog="The last line printed is the whole result as one JSON object.")
    if peers:
        made.add_argument("--peer", action="append", default=[], choices=list(peers), help="repeatable")
        made.add_argument("--peer-python", action="append", default=[], metavar="[PEER=]PYTHON",
                          help="interpreter of the environment with the peers (default: FORWARDPASS_PEER_PYTHON, else "
                               "this one); repeat PEER=PYTHON to compare with the best of several builds of a peer")
    made.add_argument("--threads", type=int, help="for every engine alike (default: the CPUs this process may use)")
    made.add_argument("--rounds", type=int, default=rounds, help="medians are over this many (default %(default)s)")
    made.add_argument("--quick", action="store_true", help="one round of small sizes: does it run at all?")
    made.add_argument("--json", metavar="FILE", help="write the result there as well")
    return made


def run_on_model(made: argparse.ArgumentParser, run: Callable[[argparse.Namespace, str, int], int]) -> int:
    """The exit status of run(options, path of the model, threads), with --model among the options."""
    made.add_argument("--model", default=made.get_default("model") or "smollm2-135m",
                      help="a path or a catalogue name (default %(default)s)")
    options = made.parse_args()
    from forwardpass import catalog
    from forwardpass.errors import ForwardpassError
    from forwardpass.tasks.model import thread_count

    try:
        return run(options, str(catalog.resolve(options.model)), thread_count(options.threads))
    except ForwardpassError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def pythons(options: argparse.Namespace, peer: str) -> list[str]:
    """Interpreters in which to look for a peer."""
    named = [text.partition("=")[2] for text in options.peer_python if text.startswith(f"{peer}=")]
    general = [text for text in options.peer_python if "=" not in text]
    return named or general[-1:] or [os.environ.get("FORWARDPASS_PEER_PYTHON") or sys.executable]


class Engine:
    """One column of the table: an engine with all the ways it can be run, of which the best counts for each figure.

    Ways that stay below 0.7 of the best one for two rounds (for one, if a measurement takes longer than SLOW_S) are not
    measured again for that figure; slow figures are measured three times at most.
    """

    def __init__(self, name: str, script: str, pythons: Sequence[str] = (sys.executable,), **arguments):
        self.name = name
        self.workers: list[Worker] = []
        self.problems: list[str] = []
        for python in pythons:
            try:
                self.workers.append(Worker(script, python, **arguments))
            except Missing as problem:
                self.problems.append(str(problem))
        self.ways = [(number, way) for number, worker in enumerate(self.workers) for way in worker.facts["ways"]]
        self.rates: dict[tuple[str, str], dict[tuple[int, str], list[float]]] = {}
        self.longest: dict[tuple[str, str], float] = {}

    def measure(self, group: str, key: str, call: str, **arguments) -> None:
        """One more round of a figure, in every way still in the race. The call returns [units, seconds]."""
        figure = group, key
        rates = self.rates.setdefault(figure, {})
        best = max(map(median, rates.values()), default=0.0)
        for number, way in self.ways:
            known = rates.setdefault((number, way), [])
            slow = self.longest.get(figure, 0) > SLOW_S
            behind = bool(known) and max(known) < 0.7 * best
            if (behind and (slow or len(known) >= 2)) or (slow and len(known) >= 3):
                continue
            print(f"  {self.name} {way}: {group} {key}", file=sys.stderr, flush=True)
            units, seconds = self.workers[number](call, way=way, **arguments)
            time.sleep(self.workers[number].facts.get("spins_s", 0))
            self.longest[figure] = max(self.longest.get(figure, 0), seconds)
            known.append(units / seconds)

    def rate(self, group: str, key: str) -> float | None:
        """The best way's median, None if the figure was not measured."""
        rates = self.rates.get((group, key))
        return max(map(median, rates.values())) if rates else None

    def best_ways(self) -> dict[str, str]:
        """Figure -> the way that was best, where there was a choice."""
        found = {}
        for (group, key), rates in self.rates.items():
            number, way = max(rates, key=lambda one: median(rates[one]))
            if len(self.ways) > 1:
                found[f"{group}.{key}"] = way if len(self.workers) < 2 else f"build {number + 1}, {way}"
        return found

    def close(self) -> None:
        for worker in self.workers:
            worker.close()


def open_peers(options: argparse.Namespace, path: str, threads: int) -> tuple[dict[str, Engine], dict[str, str]]:
    """(engines that could be opened, what is missing and why)."""
    found, missing = {}, {}
    for peer in dict.fromkeys(options.peer):
        for name, (script, arguments) in PEERS[peer].items():
            engine = Engine(name, script, pythons(options, peer), model=path, threads=threads, **arguments)
            for problem in engine.problems:
                print(f"missing peer {name}: {problem}", file=sys.stderr)
            if engine.workers:
                found[name] = engine
            else:
                missing[name] = "; ".join(engine.problems)
    return found, missing


def documentation() -> str:
    """Text to measure on: the file FORWARDPASS_TEXT names, else the docstrings of the standard library (about 1 MB)."""
    from forwardpass.tasks.quality import measuring_text

    return measuring_text()


class Ids:
    """Token ids of real text, a different piece at every call, so that no cache of prefixes helps anybody."""

    def __init__(self, ids: list[int]):
        self.ids, self.at = ids, 0

    def take(self, count: int) -> list[int]:
        if count > len(self.ids):
            raise SystemExit(f"the text has {len(self.ids)} tokens, {count} are needed: "
                             "name a longer one in FORWARDPASS_TEXT")
        self.at = (self.at + 7919) % (len(self.ids) - count + 1)
        return self.ids[self.at : self.at + count]


def our_command() -> list[str]:
    """`forwardpass` as installed beside this interpreter, else the module."""
    script = shutil.which("forwardpass", path=os.path.dirname(sys.executable))
    return [script] if script else [sys.executable, "-m", "forwardpass"]


def first_byte_s(command: Sequence[str]) -> float:
    """Seconds from starting a process to the first byte it prints."""
    start = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        byte = process.stdout.read(1)
        seconds = time.perf_counter() - start
        problem = process.communicate()[1]
    if process.returncode or not byte:
        raise RuntimeError(f"{' '.join(command)}: {problem.decode(errors='replace')[-2000:]}")
    return seconds


def peak_rss_bytes(command: Sequence[str]) -> int:
    """VmHWM of a process that runs to its end. Polled: what the kernel keeps also counts the process that forked it."""
    peak = 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        while process.poll() is None:
            try:
                status = Path(f"/proc/{process.pid}/status").read_text()
            except OSError:
                break
            at = status.find("VmHWM:")
            if at >= 0:
                peak = max(peak, int(status[at:].split(None, 2)[1]) * 1024)
            time.sleep(0.003)
        problem = process.communicate()[1]
    if process.returncode or not peak:
        raise RuntimeError(f"{' '.join(command)}: {problem.decode(errors='replace')[-2000:]}")
    return peak


def number(value: float | None) -> str:
    """Three significant digits: 5230, 204, 52.3, 0.318."""
    if value is None:
        return ""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def print_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A Markdown table whose columns also line up in a terminal."""
    lines = [list(head), ["-"] * len(head), *map(list, rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    for at, line in enumerate(lines):
        fill = "-" if at == 1 else " "
        cells = (cell.ljust(width, fill) for cell, width in zip(line, widths, strict=True))
        print("| " + " | ".join(cells) + " |")


def rounded(value):
    """The same structure with floats of five significant digits."""
    if isinstance(value, dict):
        return {key: rounded(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(one) for one in value]
    return float(f"{value:.5g}") if isinstance(value, float) else value


def finish(result: dict, file: str | None, failures: Sequence[str] = ()) -> int:
    """Print the one JSON line, last, and write it to `file`. Returns the exit status: 1 if something failed."""
    result = rounded({**result, "failed": list(failures)} if failures else result)
    for failure in failures:
        print(f"FAILED: {failure}", file=sys.stderr)
    line = json.dumps(result, allow_nan=False)
    if file:
        Path(file).write_text(line + "\n", "utf-8")
    print(line, flush=True)
    return 1 if failures else 0


def machine(backend) -> dict:
    """What the figures were measured on. backend: forwardpass's, whose threads and instruction set they are."""
    from forwardpass import __version__
    from forwardpass.explain.measured import cpu_name

    return {"cpu": cpu_name(), "isa": backend.isa, "threads": backend.threads, "forwardpass": __version__,
            "python": sys.version.split()[0], "date": datetime.date.today().isoformat()}
