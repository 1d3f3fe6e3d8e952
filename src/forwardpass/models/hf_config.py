"""Reads a Hugging Face `config.json`, in the spellings of transformers 4 and 5, and `generation_config.json`.

Families read what they understand; settings in REFUSED that change the result and that nobody read stop the loading
(see registry.py).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from forwardpass.errors import ModelFileError
from forwardpass.models import hf_generation, hf_rope
from forwardpass.models.fields import Fields, show
from forwardpass.models.hf_rope import FULL, SLIDING
from forwardpass.models.spec import MAX_LAYERS

MAX_JSON_BYTES = 8 << 20
"""Largest configuration file that is read; real ones have a few kilobytes."""

DTYPES = ("float32", "float16", "bfloat16")
ACTIVATIONS = {
    "silu": "silu", "swish": "silu", "relu": "relu", "quick_gelu": "quick_gelu",
    "tanh": "tanh", "gelu": "gelu_erf", "gelu_python": "gelu_erf",
    "gelu_new": "gelu_tanh", "gelu_fast": "gelu_tanh", "gelu_accurate": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh", "gelu_python_tanh": "gelu_tanh",
}
_OFF = (False, 0, "")
REFUSED = {  # setting that no family may leave unread: (values that mean "off", what it is)
    "num_local_experts": (_OFF, "a mixture of experts in this family"),
    "num_experts": (_OFF, "a mixture of experts in this family"),
    "n_routed_experts": (_OFF, "a mixture of experts in this family"),
    "partial_rotary_factor": ((1, 1.0), "rotating only part of each head in this family"),
    "rope_interleaved": (_OFF, "interleaved rotary pairs in this family"),
    "rope_scaling": (_OFF, "a rotary scaling in this family"),
    "no_rope_layers": (_OFF, "layers without positions in this family"),
    "alibi": (_OFF, "ALiBi positions in this family"),
    "use_mrope": (_OFF, "multimodal rotary positions"),
    "use_qk_norm": (_OFF, "normalised queries and keys in this family"),
    "qk_layernorm": (_OFF, "normalised queries and keys in this family"),
    "attn_logit_softcapping": (_OFF, "attention soft-capping in this family"),
    "final_logit_softcapping": (_OFF, "logit soft-capping in this family"),
    "logit_scale": ((1, 1.0), "scaled logits in this family"),
    "logits_scaling": ((1, 1.0), "scaled logits in this family"),
    "attention_multiplier": (_OFF, "a custom attention scale in this family"),
    "embedding_multiplier": ((1, 1.0), "scaled embeddings in this family"),
    "residual_multiplier": ((1, 1.0), "scaled residuals in this family"),
    "use_bidirectional_attention": (_OFF, "attention that looks ahead"),
    "is_causal": ((True,), "attention that looks ahead"),
    "pruned_heads": (_OFF, "leaving heads out"),
    "is_encoder_decoder": (_OFF, "an encoder-decoder"),
    "add_cross_attention": (_OFF, "cross-attention"),
}


@dataclass(frozen=True, slots=True)
class HfConfig:
    """An HF directory's settings. values, generation: the two files as read ({} if there is no generation file; of an
    encoder-decoder see hf_generation).

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
    if directory.is_dir() and not os.path.lexists(directory / "config.json"):
        raise ModelFileError(f"{directory}: expected a model's folder, with a config.json or, of a pipeline that "
                             "draws, a model_index.json, found neither; check the path or fetch the model again")
    values = read_json(directory / "config.json")
    apart = directory / "quantize_config.json"  # where older tools wrote GPTQ's settings
    if apart.exists() and not values.get("quantization_config"):
        values["quantization_config"] = {"quant_method": "gptq", **read_json(apart)}
    path = directory / "generation_config.json"
    file, pair = read_json(path) if path.exists() else None, str(values.get("model_type")) in hf_generation.DEFAULTS
    generation = hf_generation.generation_settings(values, file) if pair else file or {}
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


class HfFields(Fields):
    """The settings of a config.json, for the family of `family`, its model_type, which computes `architectures`.

    architecture: the one of those classes that the config names, None where it names none.
    """

    def __init__(self, values: Mapping, family: str, architectures: tuple[str, ...]) -> None:
        super().__init__(values, "config.json")
        self.family = family
        self.architecture: str | None = None
        names = self.get("architectures")
        if names is not None:
            if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
                self.wrong("architectures", "a list of class names", names)
            known = {name.lower(): name for name in architectures}
            self.architecture = next((known[name.lower()] for name in names if name.lower() in known), None)
            if names and self.architecture is None:
                self.unsupported("architectures", f"a {family} model other than {', '.join(architectures)}")
        code = self.get("auto_map")
        for auto in ("AutoModel", "AutoModelForCausalLM"):
            own = code.get(auto) if isinstance(code, dict) else None
            if own is not None and str(own)[:200].rpartition(".")[2] not in architectures:
                self.unsupported("auto_map", "a model defined by its own Python code")


def activation(fields: Fields, name: str, default: str) -> str:
    """The activation in the spec's spelling; UnsupportedModelError lists the known ones."""
    found = fields.text(name, default)
    if found not in ACTIVATIONS:
        fields.unsupported(name, f"an activation outside {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[found]


def epsilon(fields: Fields, name: str, default: float) -> float:
    """A norm's epsilon, rounded to float32 as it is used, so that GGUF and HF give the same spec."""
    return float(np.float32(fields.number(name, default=default, low=1e-13, high=0.1)))


def layer_types(fields: Fields, layers: int, slides: Callable[[int], bool] | None) -> tuple[str, ...]:
    """FULL or SLIDING for each layer: `layer_types`, or else what `slides` says (None: all are full)."""
    types = fields.get("layer_types")
    if types is None:
        return tuple(SLIDING if slides and slides(i) else FULL for i in range(layers))
    if not isinstance(types, list) or len(types) != layers:
        fields.wrong("layer_types", f"a list of {layers} layer types, one a layer", types)
    for kind in types:
        if kind not in (FULL, SLIDING):
            fields.unsupported("layer_types", f"a layer type other than {FULL} and {SLIDING}")
    return tuple(types)


def windows(fields: Fields, types: Sequence[str], positions: int, window: int | None = None) -> tuple[int, ...]:
    """Each layer's window, 0 = it sees everything. One as wide as the context is no window. window: where the family
    does not mean what sliding_window says."""
    window = window or fields.integer("sliding_window", default=None, low=0)
    if SLIDING in types and not window and fields.has("layer_types"):
        fields.wrong("sliding_window", "a size of 1 or more, since there are sliding layers", window)
    return tuple(window if kind == SLIDING and window and window < positions else 0 for kind in types)


def layer_count(fields: Fields, *names: str) -> int:
    return fields.integer(*names, high=MAX_LAYERS)


def sizes(fields: HfFields, *, hidden: str = "hidden_size", heads: str = "num_attention_heads",
          layers: str = "num_hidden_layers", inner: str = "intermediate_size",
          act: tuple[str, str] | None = None, positions: tuple[str, int] = ("max_position_embeddings", 2048),
          eps: tuple[str, float] = ("layer_norm_epsilon", 1e-5), tied: bool = True) -> dict:
    """The numbers of a decoder without rotary positions and windows, under the names that models/decoder.py's build
    takes. The arguments are the family's names of settings, some with what absence means; the usual names do, too.
    act: None = the family has no such setting."""
    width, count = fields.integer(hidden, "hidden_size"), fields.integer(heads, "num_attention_heads")
    if width % count:
        fields.wrong(heads, f"a divisor of {hidden} ({width})", count)
    depth = layer_count(fields, layers, "num_hidden_layers")
    return {
        "family": fields.family, "vocab": fields.integer("vocab_size"), "hidden": width, "layers": depth,
        "heads": count, "kv_heads": count, "head_dim": width // count,
        "inner": fields.integer(inner, default=4 * width),
        "positions": fields.integer(positions[0], "max_position_embeddings", default=positions[1]),
        "eps": epsilon(fields, *eps), "tied": fields.flag("tie_word_embeddings", tied),
        "windows": (0,) * depth, "rotary": (None,) * depth,
    } | ({"act": activation(fields, *act)} if act else {})


def decoder(fields: HfFields, *, positions: int = 2048, eps: tuple[str, float] = ("rms_norm_eps", 1e-6),
            head_dim: int | None = None, act: tuple[str, str] = ("hidden_act", "silu"), tied: bool = False,
            window: int | None = None, slides: Callable[[int], bool] | None = None, switch: bool | None = None,
            rotates: Callable[[int, str], bool] = lambda i, kind: True, **rope) -> dict:
    """The numbers of a rotary decoder, under the names that models/decoder.py's build takes.

    The arguments are what absent settings mean, `eps` and `act` with the name of theirs. slides: which layers have the
    window, where layer_types does not say; None: the family has none. window: its size, where that is not what
    sliding_window says. switch: use_sliding_window, None: the family has no such switch. rotates: which layers, by
    number and type, have positions at all; rope: see hf_rope.ropes.
    """
    hidden, heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    width = fields.integer("head_dim", default=head_dim)
    if width is None and hidden % heads:
        fields.wrong("num_attention_heads", f"a divisor of hidden_size ({hidden})", heads)
    width = width or hidden // heads
    layers = layer_count(fields, "num_hidden_layers")
    trained = fields.integer("max_position_embeddings", default=positions)
    off = switch is not None and not fields.flag("use_sliding_window", switch)
    types = layer_types(fields, layers, None if off else slides)
    if off and SLIDING in types:
        fields.wrong("layer_types", f"no {SLIDING}, since use_sliding_window is false", list(types))
    ropes = hf_rope.ropes(fields, **rope)
    specs = {kind: ropes[kind].spec(int(width * ropes[kind].partial), trained) for kind in dict.fromkeys(types)}
    context = trained if rope.get("local") else ropes[FULL].reach(trained)
    cut = windows(fields, types, context, window)
    if slides is None and any(windows(fields, [SLIDING], context)):
        fields.unsupported("sliding_window", "a sliding attention window in this family")
    return {
        "family": fields.family, "vocab": fields.integer("vocab_size"), "hidden": hidden, "layers": layers,
        "heads": heads, "kv_heads": fields.integer("num_key_value_heads", default=heads), "head_dim": width,
        "inner": fields.integer("intermediate_size"), "positions": context, "eps": epsilon(fields, *eps),
        "tied": fields.flag("tie_word_embeddings", tied), "act": activation(fields, *act), "windows": cut,
        "rotary": tuple(specs[kind] if rotates(i, kind) else None for i, kind in enumerate(types)),
    }
