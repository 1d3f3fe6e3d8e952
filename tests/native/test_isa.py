"""Which instruction set runs, and that a forced one really does."""

import os
import platform
import subprocess
import sys

import pytest

import kernel_tools
from forwardpass import _native, config

ISAS = _native.isas()

CODE = """
from forwardpass.backends.native import NativeBackend
backend = NativeBackend(1)
print(backend.isa, backend.program().native.isa)
"""


def run(isa):
    environment = {**os.environ, "FORWARDPASS_ISA": isa}
    return subprocess.run([sys.executable, "-c", CODE], env=environment, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("isa", ISAS)
def test_the_forced_isa_is_taken(isa):
    assert run(isa).stdout.split() == [isa, isa]


def test_without_a_wish_the_best_is_taken():
    assert run("").stdout.split() == [ISAS[0], ISAS[0]]


@pytest.mark.parametrize("isa", ["sse9", "AVX2", "amx-emulated", *(set(config.ISAS) - set(ISAS))])
def test_an_unknown_or_unsupported_isa_is_an_error(isa):
    done = run(isa)
    assert done.returncode != 0 and "ParameterError" in done.stderr and "FORWARDPASS_ISA" in done.stderr
    assert isa in done.stderr


def test_tables_do_not_share_what_they_should_not():
    """A table is its own code: each x86 file compiles every entry anew, AMX replaces the products and attention."""
    tables = {isa: _native.testing.table(isa) for isa in kernel_tools.ISAS}
    for isa, (name, _) in tables.items():
        assert name == isa
    for entry in ("matmul", "prepare", "norm", "lookup", "add", "attention"):
        addresses = [tables[isa][1][entry] for isa in ("scalar", "avx2", "avx512") if isa in ISAS]
        assert len(set(addresses)) == len(addresses), entry
    tiled = [tables[isa][1] for isa in ("amx", "amx-emulated", "avx512") if isa in tables]
    for entry in ("matmul", "attention"):
        assert len({table[entry] for table in tiled}) == len(tiled), entry


@pytest.mark.skipif(platform.system() != "Linux" or platform.machine() != "x86_64", reason="reads Linux's x86 flags")
def test_what_is_offered_agrees_with_linux():
    with open("/proc/cpuinfo") as file:
        flags = set(next(line for line in file if line.startswith("flags")).split())
    assert ("avx2" in ISAS) == ({"avx2", "fma", "f16c"} <= flags)
    assert ("avx512" in ISAS) == ({"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni"} <= flags)
    assert "amx" not in ISAS or {"amx_tile", "amx_int8", "amx_bf16"} <= flags
    emulated = "avx512" in ISAS and {"gfni", "avx512_bf16"} <= flags
    assert _native.testing.isas() == (["amx-emulated"] if emulated else [])
    assert ISAS[-1] == "scalar"
