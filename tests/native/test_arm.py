"""The scalar kernels on 64-bit Arm give the bits they give here (marker `arm`).

Needs g++-aarch64-linux-gnu and qemu-user from the distribution.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

NATIVE = Path(__file__).resolve().parents[2] / "native"
MAIN = Path(__file__).with_name("kernel_hashes.cpp")
SOURCES = [MAIN, *(NATIVE / name for name in ("scalar.cpp", "pack.cpp", "pool.cpp", "stored_rows.cpp", "stored_k.cpp",
                                            "stored_iq.cpp"))]
TABLES = NATIVE.parent / "src/forwardpass/weights/iq_tables.py"
FLAGS = ["-std=c++20", "-O2", "-ffp-contract=off", "-fno-math-errno", "-pthread", "-static", f"-I{NATIVE}"]


def hashes(folder: Path, compiler: str, *run: str) -> list[str]:
    program = folder / compiler
    subprocess.run([sys.executable, "-I", TABLES, folder / "iq_tables.inl"], check=True)
    subprocess.run([compiler, *FLAGS, f"-I{folder}", *map(str, SOURCES), "-o", str(program)], check=True)
    return subprocess.run([*run, str(program)], check=True, capture_output=True, text=True).stdout.splitlines()


@pytest.mark.arm
def test_scalar_kernels_give_the_same_bits_on_arm(tmp_path):
    here = hashes(tmp_path, "g++")
    assert len(here) == 12 * 4 + 3  # every format packed and multiplied, three caches
    assert hashes(tmp_path, "aarch64-linux-gnu-g++", "qemu-aarch64") == here
