"""Reads what models that read images share, and puts their names of weights together.

Their layers have norms before attention and MLP, biases everywhere and a plain MLP; every patch sees all others. A
family says what its settings and tensors are called and what sets it apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from forwardpass.models import hf_config
from forwardpass.models.fields import Fields
from forwardpass.models.hf_config import HfFields
from forwardpass.models.spec import MAX_SIZE, NormSpec, PatchesSpec
from forwardpass.models.spec_checks import MAX_PATCH

MAX_ROWS = 2**14
"""Rows that an image may become, where positions can be had for any grid: 1780 x 1780 pixels with patches of 14."""
MAX_TABLE_ROWS = 2**16
"""Rows of images as in training: beyond it a file is corrupt, not for big images."""
SHAPE = {"norm": "layer", "norm_bias": True, "mlp": "plain", "out_bias": True, "mlp_bias": True, "tied": False}
"""Of the layers, as models/decoder.py's build takes it."""
BUFFERS = (r"(.+\.)?position_ids", r"(.+\.)?mask_token")
"""Constants that old checkpoints kept, and what only training reads (for IGNORED)."""


def layers(f: HfFields, *, eps: float, act: str = "gelu", hidden: int = 768, depth: int = 12, heads: int = 12,
           inner: int | None = 3072, qkv_bias: bool = True) -> dict:
    """The numbers of a tower's layers, under the names that models/decoder.py's build takes. The arguments are what
    absent settings mean; inner: None = the family says it otherwise."""
    width, count = f.integer("hidden_size", default=hidden), f.integer("num_attention_heads", default=heads)
    if width % count:
        f.wrong("num_attention_heads", f"a divisor of hidden_size ({width})", count)
    number = f.integer("num_hidden_layers", default=depth, high=hf_config.MAX_LAYERS)
    n = {"family": f.family, "hidden": width, "layers": number, "heads": count, "kv_heads": count,
         "head_dim": width // count, "eps": hf_config.epsilon(f, "layer_norm_eps", eps),
         "act": hf_config.activation(f, "hidden_act", act), "windows": (0,) * number, "rotary": (None,) * number,
         "qkv_bias": qkv_bias}
    return n | SHAPE | ({} if inner is None else {"inner": f.integer("intermediate_size", default=inner)})


def patches(f: Fields, *, image: int = 224, patch: int = 16, **more) -> dict:
    """Patches, and the length of the rows that they become, as fields of build. more: of PatchesSpec."""
    size = sides(f, "patch_size", patch, MAX_PATCH)
    if size[0] != size[1]:
        f.unsupported("patch_size", "a patch that is no square")
    found = sides(f, "image_size", image, MAX_SIZE)
    if min(found) < size[0]:
        f.wrong("image_size", f"at least one patch of {size[0]} pixels", f.get("image_size"))
    spec = PatchesSpec(size[0], f.integer("num_channels", default=3, high=4096), found, **more)
    rows = spec.rows(*found)
    if rows > MAX_TABLE_ROWS:
        f.wrong("image_size", f"at most {MAX_TABLE_ROWS} rows of patches", rows)
    return {"patches": spec, "vocab": 0, "positions": max(MAX_ROWS, rows) if spec.resize else rows,
            "attention": {"causal": False}}


def sides(f: Fields, name: str, default: int, high: int) -> tuple[int, int]:
    """(height, width) of a setting that is one number for both or a list of two."""
    value = f.get(name)
    if not isinstance(value, list):
        one = f.integer(name, default=default, high=high)
        return one, one
    if len(value) != 2:
        f.wrong(name, "a whole number or a list of two", value)
    pair = Fields({name: value[0], f"{name} (2)": value[1]}, f.where)
    return pair.integer(name, high=high), pair.integer(f"{name} (2)", high=high)


def norm(n: Mapping) -> NormSpec:
    """The norm that such a model has everywhere."""
    return NormSpec("layer", n["eps"], bias=True)


def inner(f: HfFields, name: str, family: str) -> HfFields:
    """The settings of a tower inside of a config: config[name], over which old files have those of name_dict."""
    values: dict = {}
    for one in (name, f"{name}_dict"):
        found = f.get(one)
        if found is not None and not isinstance(found, Mapping):
            f.wrong(one, "an object with a tower's settings", found)
        values |= {key: value for key, value in (found or {}).items() if value is not None}
    values.pop("architectures", None)
    fields = HfFields(values, family, ())
    fields.where = f"{f.where}: {name}"
    fields.refuse_unread(hf_config.REFUSED)
    return fields


def named(names: Mapping[str, str], prefixes: Iterable[str] = ("",), target: str = "") -> dict[str, tuple[str, ...]]:
    """names with each of `prefixes` before them, "|" between spellings, for weight_rows.named_rows. target: before the
    targets."""
    prefixes = tuple(prefixes)
    return {target + one: tuple(prefix + name for prefix in prefixes for name in stored.split("|"))
            for one, stored in names.items()}
