"""The kernel layout for a stored tensor and a requested dtype. The layouts are described in native/kernels.h."""

from __future__ import annotations

from forwardpass.errors import ParameterError

DTYPES = ("auto", "float32", "bfloat16", "int8", "int4")
KV_DTYPES = ("auto", "float32", "bfloat16", "int8")

_AS_STORED = {"F32": "F32", "F16": "F16", "BF16": "BF16", "Q4_0": "Q4", "Q4_1": "Q4", "Q5_0": "Q5", "Q5_1": "Q5M",
              "Q8_0": "Q8"}
_REQUESTED = {"float32": "F32", "bfloat16": "BF16", "int8": "Q8C", "int4": "Q4"}


def kernel_format(stored: str, dtype: str) -> str:
    """"auto" keeps every stored level. Types of four to six bits go to layouts whose scales are 16-bit integers relative
    to one float a row; eight-bit ones keep their scales; floats stay as they are."""
    return _AS_STORED[stored] if dtype == "auto" else _REQUESTED[dtype]


def check_dtype(name: str, value: str, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise ParameterError(f"{name} must be one of {', '.join(allowed)}, not {value!r}")
    return value


def kv_dtype_for(dtype: str, kv_dtype: str) -> str:
    """What "auto" means: a float32 cache in the reference mode, bfloat16 otherwise."""
    if kv_dtype != "auto":
        return kv_dtype
    return "float32" if dtype == "float32" else "bfloat16"
