"""Gemma 1 and 2: norms of 1 + w, embeddings scaled by the root of the width, a GELU gate.

2 has norms before and after, windows in every other layer, and soft caps. GGUF files hold the norms as 1 + w and rotary
heads as two halves.
"""

from __future__ import annotations

from forwardpass.models import decoder, gguf_config, hf_config
from forwardpass.models.families import llama
from forwardpass.models.fields import Fields
from forwardpass.models.gguf_config import GgufFields
from forwardpass.models.hf_config import HfFields
from forwardpass.models.spec import ModelSpec
from forwardpass.models.weight_rows import WeightRow
from forwardpass.models.weight_tables import added, table_rows

ARCHITECTURES = {"gemma": ("GemmaForCausalLM",), "gemma2": ("Gemma2ForCausalLM",)}
GGUF = {"gemma": "gemma", "gemma2": "gemma2"}
IGNORED = llama.IGNORED
NAMES = llama.NAMES | {
    "post_attention_norm": ("model.layers.{i}.post_attention_layernorm", "blk.{i}.post_attention_norm"),
    "mlp_norm": ("model.layers.{i}.pre_feedforward_layernorm", "blk.{i}.ffn_norm"),
    "post_mlp_norm": ("model.layers.{i}.post_feedforward_layernorm", "blk.{i}.post_ffw_norm"),
}
"""Of Gemma 2; the first has llama's."""


def slides(i: int) -> bool:
    return i % 2 == 0


def from_config(f: HfFields) -> ModelSpec:
    common = {"positions": 8192, "head_dim": 256, "tied": True}
    if f.family == "gemma2":
        n = hf_config.decoder(f, **common, act=("hidden_activation", "gelu_pytorch_tanh"), slides=slides)
        return build(f, n, **caps(f, 50.0, 30.0), **scale(f), norms="both")
    n = hf_config.decoder(f, **common, act=("hidden_act", "gelu_pytorch_tanh"))
    n["act"] = "gelu_tanh" if n["act"] == "gelu_erf" else n["act"]  # the first configs said gelu and meant this one
    return build(f, n)


def from_gguf(f: GgufFields) -> ModelSpec:
    if f.family == "gemma":
        return build(f, gguf_config.decoder(f, act="gelu_tanh"))
    n = gguf_config.decoder(f, act="gelu_tanh", slides=slides)
    return build(f, n, **caps(f), **gguf_scale(n, layers_of_27b=46), norms="both")


def build(f: Fields, n: dict, **more) -> ModelSpec:
    biases = isinstance(f, HfFields) and f.flag("attention_bias", False)
    return decoder.build(**n, **more, qkv_bias=biases, out_bias=biases, embed_scale=n["hidden"] ** 0.5)


def caps(f: Fields, attention: float = 0.0, logits: float = 0.0) -> dict:
    """Soft caps, and what absence of each means. Both kinds of files name them alike."""
    return {ours: f.number(name, default=default, low=0, high=1e6) for ours, name, default in (
        ("softcap", "attn_logit_softcapping", attention), ("logit_softcap", "final_logit_softcapping", logits))}


def scale(f: HfFields) -> dict:
    return {"scale": f.number("query_pre_attn_scalar", default=256.0, low=1e-3, high=1e9) ** -0.5}


def gguf_scale(n: dict, layers_of_27b: int) -> dict:
    """A GGUF file does not say: the 27B models scale scores by the width a head would have without head_dim."""
    width = n["hidden"] / n["heads"] if n["layers"] == layers_of_27b else n["head_dim"]
    return {"scale": width**-0.5}


def weight_rows(spec: ModelSpec, kind: str) -> tuple[WeightRow, ...]:
    rows = table_rows(spec, llama.NAMES if spec.family == "gemma" else NAMES, kind)
    return tuple(added(rows, 1.0) if kind == "safetensors" else rows)
