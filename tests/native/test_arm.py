"""The scalar kernels on 64-bit Arm give the bits they give here (marker `arm`).

Needs g++-aarch64-linux-gnu and qemu-user from the distribution.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

NATIVE = Path(__file__).resolve().parents[2] / "native"
MAIN = Path(__file__).with_name("kernel_hashes.cpp")
SOURCES = [MAIN, *(NATIVE / name for name in ("scalar.cpp", "pack.cpp", "pool.cpp"))]
FLAGS = ["-std=c++20", "-O2", "-ffp-contract=off", "-fno-math-errno", "-pthread", "-static", f"-I{NATIVE}"]


def hashes(folder: Path, compiler: str, *run: str) -> list[str]:
    program = folder / compiler
    subprocess.run([compiler, *FLAGS, *map(str, SOURCES), "-o", str(program)], check=True)
    return subprocess.run([*run, str(program)], check=True, capture_output=True, text=True).stdout.splitlines()


@pytest.mark.arm
def test_scalar_kernels_give_the_same_bits_on_arm(tmp_path):
    here = hashes(tmp_path, "g++")
    assert len(here) == 5 * 4 + 3
    assert hashes(tmp_path, "aarch64-linux-gnu-g++", "qemu-aarch64") == here
