"""The kernel layout for a stored tensor and a requested dtype. The layouts are described in native/kernels.h."""

from __future__ import annotations

from forwardpass.backends import native
from forwardpass.errors import ParameterError

DTYPES = ("auto", "float32", "bfloat16", "int8", "w8a16", "w8a8", "int4")
KV_DTYPES = ("auto", "float32", "bfloat16", "int8")

_AS_STORED = {
    "F32": "F32", "F16": "F16", "BF16": "BF16",
    "Q4_0": "Q4", "Q4_1": "Q4", "Q4_K": "Q4", "TQ1_0": "Q4", "TQ2_0": "Q4",
    "Q5_0": "Q5", "MXFP4": "Q5", "IQ3_S": "Q5", "IQ1_S": "Q5",
    "Q5_1": "Q5M", "Q5_K": "Q5M",
    "Q2_K": "Q4H", "Q3_K": "Q4H",
    "Q6_K": "Q6", "NVFP4": "Q6", "IQ3_XXS": "Q6", "IQ1_M": "Q6",
    "Q8_0": "Q8", "Q8_K": "Q8", "IQ4_NL": "Q8", "IQ4_XS": "Q8", "IQ2_XXS": "Q8",
    "IQ2_XS": "Q16", "IQ2_S": "Q16",
    "G4": "Q4", "G8": "Q8", "C8": "Q8C", "W16": "Q16",
}
_REQUESTED = {"float32": "F32", "bfloat16": "BF16", "w8a16": "Q8C", "w8a8": "Q8A", "int4": "Q4"}


def kernel_format(stored: str, dtype: str, causal: bool = True) -> str:
    """"auto" keeps what is stored, in the smallest layout that holds a type's levels (whole numbers) as they are, for
    as few columns a scale as the type has: their scales become 16-bit integers relative to one float a row, in Q8 half
    precision. Two types fit none; as Q16 every weight is such an integer. Floats stay as they are.

    "int8" is "w8a16" (eight-bit weights, fifteen-bit activations) for a model that generates, whose errors add up from
    token to token, and "w8a8" for one that only reads. causal: ModelSpec.causal.
    """
    if dtype == "auto":
        return _AS_STORED[stored]
    return _REQUESTED[("w8a16" if causal else "w8a8") if dtype == "int8" else dtype]


def has_layout(stored: str) -> bool:
    """Whether a stored type keeps its levels and scales in memory; the others run, in more memory."""
    return _AS_STORED[stored] != "Q16"


def bits_a_weight(layout: str) -> float:
    """In memory, scales included, padding and the one float a row left out."""
    rows, columns = 16, 1 << 16
    return round(8 * native.matrix_bytes(layout, rows, columns) / (rows * columns), 2)


def check_dtype(name: str, value: str, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise ParameterError(f"{name} must be one of {', '.join(allowed)}, not {value!r}")
    return value


def kv_dtype_for(dtype: str, kv_dtype: str) -> str:
    """What "auto" means: a float32 cache in the reference mode, bfloat16 otherwise."""
    if kv_dtype != "auto":
        return kv_dtype
    return "float32" if dtype == "float32" else "bfloat16"


def kv_dtype_in_passes(dtype: str, kv_dtype: str) -> str:
    """The same for a model that makes keys and values anew in every pass, a denoiser or one that reads images: bytes
    where its matrices are multiplied with bytes, since attention is then a product of bytes, too, and takes half the
    time."""
    return "int8" if kv_dtype == "auto" and dtype in ("int8", "w8a8") else kv_dtype_for(dtype, kv_dtype)
