"""Frequencies of the rotary position encoding (Su et al. 2021, "RoFormer") and of its scalings to longer texts.

Every step is transformers' (float32 exponent, float32 power, float32 reciprocal, then the scaling in float32), so that
the angles at far positions agree with the reference. The power is rounded once from float64; torch's own float32 power
is one unit off in the last place for about 1 frequency in 150.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from forwardpass.errors import ModelFileError, UnsupportedModelError
from forwardpass.models.fields import REQUIRED, Fields, show
from forwardpass.models.spec import MAX_HEAD_DIM, DynamicNtk, RotarySpec

TYPES = ("default", "linear", "dynamic", "yarn", "llama3", "longrope", "proportional")
"""Scalings by their name in transformers (`rope_type`)."""
_MOST = 1e6  # greatest factor that is believed


def rotary(dim: int, theta: float, scaling: Mapping | None = None, *, positions: int = 0,
           freq_factors: Sequence[float] | None = None, where: str = "rotary scaling") -> RotarySpec:
    """Rotary encoding of the first `dim` dimensions of a head: frequency i is theta ** -(2 i / dim), i < dim / 2.

    scaling: what changes the frequencies, under transformers' names: rope_type (one of TYPES), factor,
    original_max_position_embeddings, and those of the type: low_freq_factor, high_freq_factor (llama3); beta_fast,
    beta_slow, mscale, mscale_all_dim, attention_factor, truncate (yarn); short_factor, long_factor, attention_factor
    (longrope); partial_rotary_factor (proportional: `dim` is the whole head, and the frequencies after that share of
    them are 0). None = the plain encoding.
    positions: the model's max_position_embeddings, which some types fall back on. freq_factors: GGUF's rope_freqs, by
    which the frequencies are divided. where: named in errors. What does not fit together is a ModelFileError.
    """
    if dim < 2 or dim % 2:
        raise ModelFileError(f"rotary positions: expected an even head dimension, found {dim}; "
                             "fix the model's config or fetch it again")
    if dim > MAX_HEAD_DIM:  # no table is made for a width that no kernel has
        raise UnsupportedModelError(f"attention heads of {dim} rotated dimensions are not supported, at most "
                                    f"{MAX_HEAD_DIM} are; use another model")
    fields = Fields(scaling or {}, where)
    kind = fields.text("rope_type", "default")
    if kind not in TYPES:
        raise UnsupportedModelError(f"{where}: rope_type = {show(kind)} is not implemented; there are "
                                    f"{', '.join(TYPES)}; use a model with one of these")
    spec = _SCALINGS[kind](fields, dim, theta, positions)
    if freq_factors is None:
        return spec
    if spec.ntk or spec.long_inv_freq:
        fields.wrong("rope_type", "frequencies that stay the same, since they have divisors", kind)
    divisors = _factors(fields, "freq_factors", freq_factors, dim)
    return replace(spec, inv_freq=_tuple(np.array(spec.inv_freq, np.float32) / divisors))


def ntk_base(ntk: DynamicNtk, dim: int, length: int) -> float:
    """The base of the frequencies for a text of `length` tokens; native/program.cpp does the same."""
    if length <= ntk.trained:
        return ntk.base
    return ntk.base * (ntk.factor * length / ntk.trained - (ntk.factor - 1)) ** (dim / (dim - 2))


def _powers(dim: int, theta: float, whole: int = 0) -> np.ndarray:
    """theta ** (2 i / whole), i < dim / 2, float32. whole: `dim` where it is 0."""
    exponent = np.arange(0, dim, 2, dtype=np.float32) / np.float32(whole or dim)
    return np.array([theta ** float(e) for e in exponent], dtype=np.float32)


def _plain(dim: int, theta: float) -> np.ndarray:
    return np.float32(1) / _powers(dim, theta)


def _tuple(frequencies: np.ndarray) -> tuple[float, ...]:
    return tuple(float(f) for f in frequencies)


def _factors(fields: Fields, name: str, values: object, dim: int) -> np.ndarray:
    """One positive divisor for each frequency, float32."""
    values = values.tolist() if hasattr(values, "tolist") else values
    expected = f"{dim // 2} positive numbers, one for each pair of rotated dimensions"
    if not isinstance(values, (list, tuple)) or len(values) != dim // 2:
        fields.wrong(name, expected, len(values) if isinstance(values, (list, tuple)) else values)
    for value in values:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 1e-9 <= value <= 1e9:
            fields.wrong(name, expected, value)
    return np.array(values, np.float32)


def _factor(fields: Fields, default: float | None = None) -> float:
    return fields.number("factor", default=REQUIRED if default is None else default, low=1e-3, high=_MOST)


def _original(fields: Fields, positions: int, low: int = 1) -> int:
    """Positions that the model was trained on before its frequencies were scaled."""
    return fields.integer("original_max_position_embeddings", default=positions or REQUIRED, low=low)


def _stretch(fields: Fields, positions: int, original: int) -> float:
    """factor, or by how much the context is longer than what the model was trained on."""
    return _factor(fields, positions / original if positions else None)


# ---------------------------------------------------------------- the types

def _default(fields: Fields, dim: int, theta: float, positions: int) -> RotarySpec:
    return RotarySpec(dim, _tuple(_plain(dim, theta)))


def _linear(fields: Fields, dim: int, theta: float, positions: int) -> RotarySpec:
    return RotarySpec(dim, _tuple(_plain(dim, theta) / np.float32(_factor(fields))))


def _dynamic(fields: Fields, dim: int, theta: float, positions: int) -> RotarySpec:
    """The base grows with the text (blocks.py and the kernels follow it); these are the frequencies of short texts."""
    if dim < 4:
        raise ModelFileError(f"{fields.where}: dynamic scaling: expected at least 4 rotated dimensions, found {dim}; "
                             "fix the model's config or fetch it again")
    trained = positions or _original(fields, positions)
    factor = fields.number("factor", low=1, high=_MOST)  # below 1 the base would shrink, then be negative
    return RotarySpec(dim, _tuple(_plain(dim, theta)), ntk=DynamicNtk(theta, factor, trained))


def _yarn(fields: Fields, dim: int, theta: float, positions: int) -> RotarySpec:
    """Peng et al. 2023: fast frequencies stay, slow ones are divided by factor, with a ramp between them.

    The bounds of the ramp are the dimensions that turn beta_fast and beta_slow times over the trained positions.
    """
    if theta <= 1:
        raise ModelFileError(f"{fields.where}: yarn scaling: expected a rotary base above 1, found {theta:g}; "
                             "fix the model's config or fetch it again")
    original = _original(fields, positions)
    factor = _stretch(fields, positions, original)
    fast, slow = (fields.number(name, default=0, low=0, high=_MOST) or usual
                  for name, usual in (("beta_fast", 32), ("beta_slow", 1)))

    def dimension(turns: float) -> float:
        return dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = dimension(fast), dimension(slow)
    if fields.flag("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001  # a step instead of a ramp
    ramp = (np.arange(dim // 2, dtype=np.float32) - np.float32(low)) / np.float32(high - low)
    kept = np.float32(1) - np.clip(ramp, np.float32(0), np.float32(1))
    powers = _powers(dim, theta)
    divided = np.float32(1) / (np.float32(factor) * powers)
    mixed = divided * (np.float32(1) - kept) + np.float32(1) / powers * kept
    return RotarySpec(dim, _tuple(mixed), _yarn_attention_factor(fields, factor))


def _yarn_attention_factor(fields: Fields, factor: float) -> float:
    def scale(times: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * times * math.log(factor) + 1.0

    given = fields.number("attention_factor", default=None, low=0, high=_MOST)
    if given is not None:
        return given
    mscale, all_dim = (fields.number(name, default=0, low=0, high=_MOST) for name in ("mscale", "mscale_all_dim"))
    return scale(mscale) / scale(all_dim) if mscale and all_dim else scale(1)


def _llama3(fields: Fields, dim: int, theta: float, positions: int) -> RotarySpec:
    """Llama 3.1: waves shorter than original / high_freq_factor stay, those longer than original / low_freq_factor are
    stretched by factor, and between the two the frequency goes smoothly from one to the other."""
    original, factor = _original(fields, positions), _factor(fields)
    low, high = (fields.number(name, low=1e-6, high=_MOST) for name in ("low_freq_factor", "high_freq_factor"))
    if low >= high:
        fields.wrong("high_freq_factor", f"more than low_freq_factor ({low:g})", high)
    plain = _plain(dim, theta)
    wave = np.float32(2 * math.pi) / plain
    smooth = (np.float32(original) / wave - np.float32(low)) / np.float32(high - low)
    between = (np.float32(1) - smooth) * plain / np.float32(factor) + smooth * plain
    scaled = np.where(wave > np.float32(original / low), plain / np.float32(factor),
                      np.where(wave < np.float32(original / high), plain, between))
    return RotarySpec(dim, _tuple(scaled))


def _longrope(fields: Fields, dim: int, theta: float, positions: int) -> RotarySpec:
    """Ding et al. 2024: a divisor for each frequency, of one list up to the trained positions and of another beyond,
    for the whole text."""
    original = _original(fields, positions, low=2)  # its logarithm is a divisor
    given = fields.number("attention_factor", default=None, low=0, high=_MOST)
    if given is None:
        factor = _stretch(fields, positions, original)
        given = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
    powers = _powers(dim, theta)
    short, long = (_tuple(np.float32(1) / (_factors(fields, name, fields.get(name), dim) * powers))
                   for name in ("short_factor", "long_factor"))
    return RotarySpec(dim, short, given, long, original)


def _proportional(fields: Fields, dim: int, theta: float, positions: int) -> RotarySpec:
    """The frequencies of the whole head, of which only the fastest share is used; the others do not turn."""
    share = fields.number("partial_rotary_factor", default=1.0, low=0, high=1)
    turning = int(share * dim // 2)
    frequencies = np.zeros(dim // 2, np.float32)
    frequencies[:turning] = np.float32(1) / _powers(2 * turning, theta, dim)
    return RotarySpec(dim, _tuple(frequencies / np.float32(_factor(fields, 1.0))))


_SCALINGS = {"default": _default, "linear": _linear, "dynamic": _dynamic, "yarn": _yarn, "llama3": _llama3,
             "longrope": _longrope, "proportional": _proportional}
assert tuple(_SCALINGS) == TYPES
