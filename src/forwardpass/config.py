"""The environment, read in one place. Nothing else in the package looks at `os.environ`.

    FORWARDPASS_CACHE    folder for fetched models, packed files and the measured machine
    FORWARDPASS_THREADS  worker threads (default: the CPUs this process may use)
    FORWARDPASS_ISA      forces one instruction set: scalar, avx2, avx512, amx or neon
    FORWARDPASS_TEXT     text file that perplexity is measured on

Values are read when asked for, not at import, so that a program may set them first.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from .errors import ParameterError

ISAS = ("scalar", "avx2", "avx512", "amx", "neon")
MAX_THREADS = 1024

_UNITS = {"": 1, "b": 1}
for _power, _letter in enumerate("kmgt", start=1):
    _UNITS[_letter] = _UNITS[_letter + "ib"] = 1024**_power
    _UNITS[_letter + "b"] = 1000**_power


def cache_dir() -> Path:
    """The folder that forwardpass may fill. It is not created here."""
    own = os.environ.get("FORWARDPASS_CACHE")
    if own:
        return Path(own).expanduser().absolute()
    shared = os.environ.get("XDG_CACHE_HOME")
    if shared and os.path.isabs(shared):
        return Path(shared) / "forwardpass"
    try:
        home = Path.home()
    except RuntimeError:
        raise ParameterError(
            "no cache folder: this user has no home directory. Set FORWARDPASS_CACHE to a folder that may be written."
        ) from None
    return home / ("Library/Caches" if sys.platform == "darwin" else ".cache") / "forwardpass"


def threads() -> int | None:
    """FORWARDPASS_THREADS as a number, or None when it is not set."""
    text = os.environ.get("FORWARDPASS_THREADS", "").strip()
    if not text:
        return None
    try:
        count = int(text)
    except ValueError:
        count = 0
    if not 1 <= count <= MAX_THREADS:
        raise ParameterError(f"FORWARDPASS_THREADS must be a whole number from 1 to {MAX_THREADS}, got {text!r}.")
    return count


def usable_cpus() -> int:
    """CPUs this process may use: its affinity, and less where a container has a quota."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _cgroup_numbers("cpu.max")
    if quota and len(quota) == 2 and quota[1] > 0:
        count = min(count, max(1, quota[0] // quota[1]))
    return count


def available_memory() -> int:
    """Bytes that could be used now without swapping, inside this process's container."""
    free = 1 << 30
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    free = int(line.split()[1]) * 1024
    except (OSError, ValueError):
        try:
            free = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
        except (ValueError, OSError, AttributeError):
            pass
    limit, used = _cgroup_numbers("memory.max"), _cgroup_numbers("memory.current")
    if not limit or not used:
        return free
    return min(free, max(0, limit[0] - used[0] + _cached_files()))


def _cached_files() -> int:
    """Bytes of files that count as this control group's memory and go as soon as something else needs it."""
    words = (_cgroup("memory.stat") or "").split()
    try:
        return int(words[words.index("inactive_file") + 1])
    except (ValueError, IndexError):
        return 0


def _cgroup_numbers(name: str) -> list[int] | None:
    """The numbers in a file of this process's control group, None where there is no such limit."""
    try:
        return [int(word) for word in (_cgroup(name) or "max").split()]
    except ValueError:  # "max", the word for no limit
        return None


def _cgroup(name: str) -> str | None:
    try:
        with open("/proc/self/cgroup", encoding="ascii") as file:
            group = next(line[3:].strip() for line in file if line.startswith("0::"))
        with open(f"/sys/fs/cgroup{group}/{name}", encoding="ascii") as file:
            return file.read()
    except (OSError, ValueError, StopIteration):
        return None


def isa() -> str | None:
    """FORWARDPASS_ISA, or None when it is not set. Whether this CPU has it is checked where kernels are chosen."""
    text = os.environ.get("FORWARDPASS_ISA", "").strip()
    if not text:
        return None
    if text not in ISAS:
        raise ParameterError(f"FORWARDPASS_ISA must be one of {', '.join(ISAS)}, got {text!r}.")
    return text


def text_path() -> Path | None:
    """The file named by FORWARDPASS_TEXT, or None when it is not set."""
    text = os.environ.get("FORWARDPASS_TEXT")
    if not text:
        return None
    path = Path(text).expanduser()
    if not path.is_file():
        raise ParameterError(f"FORWARDPASS_TEXT must name a text file, but there is no file {text!r}.")
    return path


def parse_memory(value: int | str) -> int:
    """Bytes from a count or a text such as "512MiB", "1.5G" or "2000kB".

    K, M, G, T and KiB, MiB, ... are powers of 1024; kB, MB, GB, TB are powers of 1000. Case does not matter.
    """
    expected = 'a positive size such as 800000000, "512MiB", "1.5G" or "2GB"'
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ParameterError(f"expected {expected}, got {value!r}.")
    if isinstance(value, int):
        size = value
    else:
        text = value.strip().lower()
        digits = len(text) - len(text.lstrip("0123456789."))
        number, unit = text[:digits], text[digits:].strip()
        if unit not in _UNITS or not number:
            raise ParameterError(f"expected {expected}, got {value!r}.")
        try:
            size = int(float(number) * _UNITS[unit]) if "." in number else int(number) * _UNITS[unit]
        except (ValueError, OverflowError):
            raise ParameterError(f"expected {expected}, got {value!r}.") from None
    if not 1 <= size < 2**63:
        raise ParameterError(f"expected {expected}, got {value!r}.")
    return size


def memory_text(nbytes: int, down: bool = False) -> str:
    """Bytes as people and parse_memory read them, "1.5 GiB". down: never more than it is."""
    power = min((max(nbytes, 1).bit_length() - 1) // 10, 4)
    value = nbytes / 1024**power
    return f"{int(value * 10) / 10 if down else value:.{1 if power else 0}f} {('B', 'KiB', 'MiB', 'GiB', 'TiB')[power]}"
