"""Gemma 1, 2 and 3: norms of 1 + w, embeddings scaled by the root of the width, a GELU gate.

2 and 3 have norms before and after, and windows in most layers; 2 also soft caps, 3 norms of queries and keys and, for
layers with a window, a rotary base of their own. GGUF files hold the norms as 1 + w and rotary heads as two halves.
"""

from __future__ import annotations

from forwardpass.models import decoder, gguf_config, hf_config
from forwardpass.models.families import llama
from forwardpass.models.gguf_config import GgufFields
from forwardpass.models.hf_config import HfFields
from forwardpass.models.spec import ModelSpec
from forwardpass.models.weight_rows import WeightRow
from forwardpass.models.weight_tables import added, table_rows

ARCHITECTURES = {
    "gemma": ("GemmaForCausalLM",), "gemma2": ("Gemma2ForCausalLM",),
    "gemma3_text": ("Gemma3ForCausalLM", "Gemma3TextModel"),
}
GGUF = {"gemma": "gemma", "gemma2": "gemma2", "gemma3": "gemma3_text"}
IGNORED = llama.IGNORED
NAMES = llama.NAMES | {
    "attention.q_norm": ("model.layers.{i}.self_attn.q_norm", "blk.{i}.attn_q_norm"),
    "attention.k_norm": ("model.layers.{i}.self_attn.k_norm", "blk.{i}.attn_k_norm"),
}
NAMES_2 = NAMES | {
    "post_attention_norm": ("model.layers.{i}.post_attention_layernorm", "blk.{i}.post_attention_norm"),
    "mlp_norm": ("model.layers.{i}.pre_feedforward_layernorm", "blk.{i}.ffn_norm"),
    "post_mlp_norm": ("model.layers.{i}.post_feedforward_layernorm", "blk.{i}.post_ffw_norm"),
}
PERIOD = {"gemma2": 2, "gemma3_text": 6}
"""Where nothing else is said, every such layer sees everything and the others have the window."""
LOCAL_THETA = 10000.0


def from_config(f: HfFields) -> ModelSpec:
    common = {"positions": 8192, "head_dim": 256, "tied": True}
    if f.family == "gemma":
        n = hf_config.decoder(f, **common, act=("hidden_act", "gelu_pytorch_tanh"))
        n["act"] = "gelu_tanh" if n["act"] == "gelu_erf" else n["act"]  # the first configs said gelu and meant this one
        return _build(f, n, biases=f.flag("attention_bias", False))
    period = f.integer("sliding_window_pattern", default=PERIOD[f.family])
    common |= {"slides": lambda i: (i + 1) % period != 0, "act": ("hidden_activation", "gelu_pytorch_tanh")}
    if f.family == "gemma3_text":
        common |= {"positions": 131072, "theta": 1e6, "local": ("rope_local_base_freq", LOCAL_THETA)}
    caps = [f.number(name, default=default if f.family == "gemma2" else 0.0, low=0, high=1e6)
            for name, default in (("attn_logit_softcapping", 50.0), ("final_logit_softcapping", 30.0))]
    scalar = f.number("query_pre_attn_scalar", default=256.0, low=1e-3, high=1e9)
    return _build(f, hf_config.decoder(f, **common), biases=f.flag("attention_bias", False), scale=scalar**-0.5,
                  softcap=caps[0], logit_softcap=caps[1])


def from_gguf(f: GgufFields) -> ModelSpec:
    """The 27B models, known by their number of layers, scale scores by the width a head would have without head_dim."""
    if f.family == "gemma":
        return _build(f, gguf_config.decoder(f, act="gelu_tanh"))
    period = PERIOD[f.family]
    n = gguf_config.decoder(f, act="gelu_tanh", slides=lambda i: (i + 1) % period != 0,
                            local_theta=LOCAL_THETA if f.family == "gemma3_text" else None)
    large = n["layers"] == {"gemma2": 46, "gemma3_text": 62}[f.family]
    caps = [f.number(name, default=0.0, low=0, high=1e6) for name in ("attn_logit_softcapping",
                                                                      "final_logit_softcapping")]
    return _build(f, n, scale=(n["hidden"] / n["heads"] if large else n["head_dim"]) ** -0.5, softcap=caps[0],
                  logit_softcap=caps[1])


def _build(f: HfFields | GgufFields, n: dict, biases: bool = False, **more) -> ModelSpec:
    return decoder.build(**n, **more, qkv_bias=biases, out_bias=biases, embed_scale=n["hidden"] ** 0.5,
                         norms="pre" if f.family == "gemma" else "both",
                         qk_norm="head" if f.family == "gemma3_text" else "")


def weight_rows(spec: ModelSpec, kind: str) -> tuple[WeightRow, ...]:
    rows = table_rows(spec, NAMES if spec.family == "gemma" else NAMES_2, kind)
    return tuple(added(rows, 1.0) if kind == "safetensors" else rows)
