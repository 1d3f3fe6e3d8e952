"""GPT-Neo: GPT-2's layers with a window in every second one, scores that are not scaled, and no bias for q, k and v."""

from __future__ import annotations

from forwardpass.models import decoder, hf_config
from forwardpass.models.hf_config import HfFields
from forwardpass.models.spec import MAX_LAYERS, ModelSpec
from forwardpass.models.weight_rows import WeightRow
from forwardpass.models.weight_tables import table_rows

ARCHITECTURES = {"gpt_neo": ("GPTNeoForCausalLM",)}
GGUF: dict[str, str] = {}
IGNORED = {"safetensors": (r"transformer\.h\.\d+\.attn\.attention\.(bias|masked_bias)",)}  # causal masks
NAMES = {  # target: (safetensors,)
    "embed.tokens": ("transformer.wte",),
    "embed.positions": ("transformer.wpe",),
    "attention_norm": ("transformer.h.{i}.ln_1",),
    "attention.q": ("transformer.h.{i}.attn.attention.q_proj",),
    "attention.k": ("transformer.h.{i}.attn.attention.k_proj",),
    "attention.v": ("transformer.h.{i}.attn.attention.v_proj",),
    "attention.out": ("transformer.h.{i}.attn.attention.out_proj",),
    "mlp_norm": ("transformer.h.{i}.ln_2",),
    "mlp.up": ("transformer.h.{i}.mlp.c_fc",),
    "mlp.down": ("transformer.h.{i}.mlp.c_proj",),
    "final_norm": ("transformer.ln_f",),
    "head": ("lm_head",),
}


def from_config(f: HfFields) -> ModelSpec:
    n = hf_config.sizes(f, heads="num_heads", layers="num_layers", act=("activation_function", "gelu_new"))
    window = f.integer("window_size", default=256)
    cut = window if window < n["positions"] else 0
    n["windows"] = tuple(cut if kind == "local" else 0 for kind in _kinds(f, n["layers"]))
    return decoder.build(**n, norm="layer", norm_bias=True, mlp="plain", mlp_bias=True, out_bias=True, scale=1.0,
                         learned_positions=n["positions"])


def _kinds(f: HfFields, layers: int) -> list[str]:
    """"global" or "local" for each layer: attention_types is a list of [kinds of some layers, repetitions]."""
    types = f.get("attention_types")
    if types is None:
        return ["local" if i % 2 else "global" for i in range(layers)]
    kinds: list[object] = []
    for one in types if isinstance(types, list) else [types]:
        if not (isinstance(one, list) and len(one) == 2 and isinstance(one[0], list) and type(one[1]) is int
                and 0 <= one[1] <= MAX_LAYERS and len(one[0]) <= MAX_LAYERS):
            f.wrong("attention_types", "a list of [kinds of layers, repetitions]", types)
        kinds += one[0] * one[1]
        if len(kinds) > layers:
            break
    if len(kinds) != layers or not all(kind in ("global", "local") for kind in kinds):
        f.wrong("attention_types", f"{layers} layers that are global or local", types)
    return kinds


def weight_rows(spec: ModelSpec, kind: str) -> tuple[WeightRow, ...]:
    return tuple(table_rows(spec, NAMES, kind))
