"""Reads a Hugging Face `config.json`, in the spellings of transformers 4 and 5, and `generation_config.json`.

Settings that change the result and are not implemented stop here with an UnsupportedModelError that names them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from forwardpass.errors import ModelFileError, UnsupportedModelError
from forwardpass.models.fields import Fields, show
from forwardpass.models.spec import MAX_LAYERS

MAX_JSON_BYTES = 8 << 20
"""Largest configuration file that is read; real ones have a few kilobytes."""

DTYPES = ("float32", "float16", "bfloat16")
ACTIVATIONS = {
    "silu": "silu", "swish": "silu", "relu": "relu", "quick_gelu": "quick_gelu",
    "gelu": "gelu_erf", "gelu_python": "gelu_erf",
    "gelu_new": "gelu_tanh", "gelu_fast": "gelu_tanh", "gelu_accurate": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh", "gelu_python_tanh": "gelu_tanh",
}
_OFF = (False, 0, "")
REFUSED = {  # setting: (values that mean "off", what it is)
    "quantization_config": (_OFF, "a quantised Hugging Face checkpoint"),
    "compression_config": (_OFF, "a compressed Hugging Face checkpoint"),
    "num_local_experts": (_OFF, "a mixture of experts"),
    "num_experts": (_OFF, "a mixture of experts"),
    "n_routed_experts": (_OFF, "a mixture of experts"),
    "partial_rotary_factor": ((1, 1.0), "rotating only part of each head"),
    "rope_interleaved": (_OFF, "interleaved rotary pairs"),
    "no_rope_layers": (_OFF, "layers without positions"),
    "alibi": (_OFF, "ALiBi positions"),
    "use_mrope": (_OFF, "multimodal rotary positions"),
    "use_qk_norm": (_OFF, "normalised queries and keys"),
    "qk_layernorm": (_OFF, "normalised queries and keys"),
    "attn_logit_softcapping": (_OFF, "attention soft-capping"),
    "final_logit_softcapping": (_OFF, "logit soft-capping"),
    "logit_scale": ((1, 1.0), "scaled logits"),
    "logits_scaling": ((1, 1.0), "scaled logits"),
    "attention_multiplier": (_OFF, "a custom attention scale"),
    "embedding_multiplier": ((1, 1.0), "scaled embeddings"),
    "residual_multiplier": ((1, 1.0), "scaled residuals"),
    "is_encoder_decoder": (_OFF, "an encoder-decoder"),
    "add_cross_attention": (_OFF, "cross-attention"),
}


@dataclass(frozen=True, slots=True)
class HfConfig:
    """An HF directory's settings. values, generation: the two files as read ({} if there is no generation file).

    dtype: of the weights as config.json names it, or None. eos_token_ids: union of both files, in their order.
    """

    model_type: str
    values: dict
    generation: dict
    dtype: str | None
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]


def read_json(path: Path) -> dict:
    """The object in a JSON file. ModelFileError if it is missing, too large, not JSON or not an object."""
    try:
        if path.exists() and not path.is_file():  # opening a pipe would wait for ever
            raise ModelFileError(f"{path}: expected a file, found something else; check the path")
        with open(path, "rb") as file:
            raw = file.read(MAX_JSON_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise ModelFileError(f"{path}: expected a readable file, found: {getattr(error, 'strerror', None) or error}; "
                             "check the path or fetch the model again") from error
    if len(raw) > MAX_JSON_BYTES:
        raise ModelFileError(f"{path}: expected at most {MAX_JSON_BYTES} bytes; fetch the model again")
    try:
        value = json.loads(raw.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:  # ValueError: bad UTF-8, bad JSON, a number of 5,000 digits
        raise ModelFileError(f"{path}: expected JSON, found: {str(error)[:200]}; fetch the model again") from error
    if not isinstance(value, dict):
        raise ModelFileError(f"{path}: expected a JSON object, found {show(value)}; fetch the model again")
    return value


def read_config(directory: str | Path) -> HfConfig:
    """config.json (required) and generation_config.json (optional) of an HF directory, checked and normalised."""
    directory = Path(directory)
    values = read_json(directory / "config.json")
    path = directory / "generation_config.json"
    generation = read_json(path) if path.exists() else {}
    config, also = Fields(values, "config.json"), Fields(generation, "generation_config.json")
    ends = dict.fromkeys(end_tokens(config) + end_tokens(also))
    bos = config.integer("bos_token_id", default=None, low=0)
    return HfConfig(config.text("model_type"), values, generation, dtype_of(config), bos, tuple(ends))


def end_tokens(fields: Fields) -> tuple[int, ...]:
    """eos_token_id: absent, one id or a list of ids."""
    value = fields.get("eos_token_id")
    ids = value if isinstance(value, list) else [] if value is None else [value]
    for one in ids:
        if isinstance(one, bool) or not isinstance(one, int) or not 0 <= one < 2**31:
            fields.wrong("eos_token_id", "token ids of 0 or more", one)
    return tuple(ids)


def dtype_of(fields: Fields) -> str | None:
    """The stored element type: `dtype` (transformers 5) or `torch_dtype` (4), or None when neither is there."""
    present = [name for name in ("dtype", "torch_dtype") if fields.has(name)]
    for name in present:
        found = fields.text(name).removeprefix("torch.")
        if found not in DTYPES:
            fields.unsupported(name, f"an element type outside {', '.join(DTYPES)}")
    return fields.text(present[0]).removeprefix("torch.") if present else None


def fields_of(values: Mapping, model_type: str, architectures: tuple[str, ...]) -> Fields:
    """The settings of a config.json for a family that computes only `architectures` and nothing in REFUSED."""
    fields = Fields(values, "config.json")
    if fields.text("model_type", model_type) != model_type:
        fields.wrong("model_type", repr(model_type), fields.get("model_type"))
    names = fields.get("architectures")
    if names is not None:
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            fields.wrong("architectures", "a list of class names", names)
        if names and not {name.lower() for name in names} & {name.lower() for name in architectures}:
            fields.unsupported("architectures", f"a {model_type} model other than {', '.join(architectures)}")
    code = fields.get("auto_map")
    if isinstance(code, dict) and "AutoModelForCausalLM" in code:
        fields.unsupported("auto_map", "a model defined by its own Python code")
    fields.refuse(REFUSED)
    return fields


def activation(fields: Fields, name: str, default: str) -> str:
    """The activation in the spec's spelling; UnsupportedModelError lists the known ones."""
    found = fields.text(name, default)
    if found not in ACTIVATIONS:
        fields.unsupported(name, f"an activation outside {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[found]


def epsilon(fields: Fields, name: str, default: float) -> float:
    """A norm's epsilon, rounded to float32 as it is used, so that GGUF and HF give the same spec."""
    return float(np.float32(fields.number(name, default=default, low=1e-12, high=0.1)))


def rope_theta(fields: Fields, default: float = 10000.0) -> float:
    """The base of plain rotary positions, out of `rope_parameters` (5), or `rope_theta` and `rope_scaling` (4).

    Any scaling is an UnsupportedModelError; a base that the two spellings disagree on is a ModelFileError.
    """
    bases = [fields.number("rope_theta", low=1, high=1e12)] if fields.has("rope_theta") else []
    for name in ("rope_parameters", "rope_scaling"):
        value = fields.get(name)
        if value is None:
            continue
        if not isinstance(value, dict):
            fields.wrong(name, "an object", value)
        inner = Fields(value, f"{fields.where}: {name}")
        for spelling in ("rope_type", "type"):
            if inner.text(spelling, "default") != "default":
                raise UnsupportedModelError(f"{fields.where}: {name}: the rotary scaling {show(value[spelling])} is "
                                            "not implemented; use a model with plain rotary positions")
        inner.refuse({"factor": ((1, 1.0), "a rotary scaling factor"),
                      "partial_rotary_factor": ((1, 1.0), "rotating only part of each head")})
        inner.only(("rope_theta", "rope_type", "type", "factor", "partial_rotary_factor",
                    "original_max_position_embeddings"))
        if inner.has("rope_theta"):
            bases.append(inner.number("rope_theta", low=1, high=1e12))
    if any(base != bases[0] for base in bases):
        fields.wrong("rope_theta", "one base in all spellings", bases)
    return bases[0] if bases else default


def refuse_windows(fields: Fields, num_layers: int, positions: int, default: bool) -> None:
    """Stop at a sliding window that some layer would use. One as wide as the context is no window.

    default: what an absent `use_sliding_window` means for the family (False for qwen2, which has that switch).
    """
    types = fields.get("layer_types")
    if types is not None:
        if not isinstance(types, list) or len(types) != num_layers:
            fields.wrong("layer_types", f"a list of {num_layers} layer types", types)
        if all(kind == "full_attention" for kind in types):
            return
        if any(kind not in ("full_attention", "sliding_attention") for kind in types):
            fields.unsupported("layer_types", "a layer that is not full attention")
    window = fields.integer("sliding_window", default=0, low=0)
    if types is not None and not window:
        fields.wrong("sliding_window", "a size, since layer_types has sliding layers", fields.get("sliding_window"))
    used = types is not None or fields.flag("use_sliding_window", default)
    if types is None and fields.has("max_window_layers"):  # qwen2: the first layers see everything
        used = used and fields.integer("max_window_layers", low=0) < num_layers
    if used and 0 < window < positions:
        fields.unsupported("sliding_window", "a sliding attention window")


def layer_count(fields: Fields, *names: str) -> int:
    return fields.integer(*names, high=MAX_LAYERS)


def decoder(fields: Fields, *, positions: int, windows: bool) -> dict:
    """The numbers of a rotary, gated decoder (llama and its kin), under the names that families/llama.py's build takes.

    positions: what an absent max_position_embeddings means; windows: what an absent use_sliding_window means.
    """
    hidden, heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    if hidden % heads:
        fields.wrong("num_attention_heads", f"a divisor of hidden_size ({hidden})", heads)
    layers = layer_count(fields, "num_hidden_layers")
    context = fields.integer("max_position_embeddings", default=positions)
    refuse_windows(fields, layers, context, windows)
    return {
        "vocab": fields.integer("vocab_size"), "hidden": hidden, "layers": layers, "heads": heads,
        "kv_heads": fields.integer("num_key_value_heads", default=heads),
        "head_dim": fields.integer("head_dim", default=hidden // heads),
        "inner": fields.integer("intermediate_size"), "positions": context,
        "eps": epsilon(fields, "rms_norm_eps", 1e-6), "theta": rope_theta(fields),
        "tied": fields.flag("tie_word_embeddings", False), "act": activation(fields, "hidden_act", "silu"),
    }
