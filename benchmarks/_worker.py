"""An engine in a process of its own: requests and replies are lines of JSON over its standard input and output.

So engines share no memory, threads or Python, a peer may live in another environment, and the one that is not asked
does nothing. This file is imported by both ends and needs the standard library only.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

HERE = Path(__file__).resolve().parent


class Missing(Exception):
    """The engine is not installed where it was looked for, or cannot run this model at all."""


class Worker:
    """The asking end. script: a file beside this one that calls `serve`;  python: the interpreter that runs it."""

    def __init__(self, script: str, python: str = sys.executable, **arguments):
        self._errors = tempfile.TemporaryFile(mode="w+")  # noqa: SIM115
        try:
            self._process = subprocess.Popen([python, str(HERE / script)], stdin=subprocess.PIPE,
                                             stdout=subprocess.PIPE, stderr=self._errors, text=True)
        except OSError as error:
            raise Missing(f"{python}: {error.strerror}") from None
        try:
            self.facts = self("open", **arguments)
        except BaseException:
            self.close()
            raise

    def __call__(self, call: str, **arguments):
        """Run one method of the engine and wait for what it returns. Raises Missing or RuntimeError."""
        with contextlib.suppress(BrokenPipeError):
            print(json.dumps({"call": call, "arguments": arguments}), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        if not line:
            self._errors.seek(0)
            raise RuntimeError(f"the worker died in {call}:\n{self._errors.read()[-2000:]}")
        reply = json.loads(line)
        if "missing" in reply:
            raise Missing(reply["missing"])
        if "error" in reply:
            raise RuntimeError(reply["error"])
        return reply["value"]

    def close(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
        self._errors.close()


def serve(engine_class) -> None:
    """The answering end: "open" makes the engine and returns its `facts`, other calls are its methods.

    facts: "ways" to run it (strings), "spins_s" that idle threads stay busy after a call, and what the caller needs.
    """
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints must not end up between the replies
    engine = None
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if request["call"] == "open":
                engine = engine_class(**request["arguments"])
                reply = {"value": engine.facts}
            else:
                reply = {"value": getattr(engine, request["call"])(**request["arguments"])}
        except (ImportError, Missing) as error:
            reply = {"missing": f"{error} ({sys.executable})"}
        except Exception:
            reply = {"error": traceback.format_exc()}
        print(json.dumps(reply), file=replies, flush=True)
