"""Gemma 3: Gemma 2's norms, with norms of queries and keys instead of soft caps; windows in five of six layers, which
have a rotary base of their own. Of models with an image encoder, the language model alone. EmbeddingGemma's layers look
ahead as far as they look back."""

from __future__ import annotations

from dataclasses import replace

from forwardpass.models import gguf_config, hf_config
from forwardpass.models.families import gemma, llama
from forwardpass.models.gguf_config import GgufFields
from forwardpass.models.hf_config import HfFields
from forwardpass.models.spec import HeadSpec, ModelSpec
from forwardpass.models.weight_rows import WeightRow
from forwardpass.models.weight_tables import added, table_rows

ARCHITECTURES = {
    "gemma3_text": ("Gemma3ForCausalLM", "Gemma3TextModel", "Gemma3TextForSequenceClassification"),
    "gemma3": ("Gemma3ForConditionalGeneration",),  # with an image encoder
}
GGUF = {"gemma3": "gemma3_text", "gemma-embedding": "gemma3_text"}
IGNORED = {
    "safetensors": (*gemma.IGNORED["safetensors"], r"(model\.)?(vision_tower|multi_modal_projector)\..+"),
    "gguf": gemma.IGNORED["gguf"],
}
NAMES = gemma.NAMES | llama.QK_NORMS
PREFIXES = ("model.language_model.", "language_model.model.")  # instead of "model." beside an image encoder
LEFT_OUT = {"vocab_size": 262208, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
            "num_attention_heads": 8, "num_key_value_heads": 4}
"""What the published text_config objects do not say."""
LOCAL_THETA = 10000.0
SHAPE = {"norms": "both", "qk_norm": "head"}


def from_config(f: HfFields) -> ModelSpec:
    if f.family == "gemma3":
        return _text_config(f)
    period = f.integer("sliding_window_pattern", default=6)
    ahead = f.flag("use_bidirectional_attention", False)  # then a window's size is that of both sides together
    window = f.integer("sliding_window", default=4096) // 2 + 1 if ahead else None
    n = hf_config.decoder(f, positions=131072, head_dim=256, tied=True, act=("hidden_activation", "gelu_pytorch_tanh"),
                          window=window, slides=lambda i: (i + 1) % period != 0, theta=1e6,
                          local=("rope_local_base_freq", LOCAL_THETA))
    return gemma.build(f, n, **gemma.caps(f), **gemma.scale(f), **SHAPE, attention={"causal": not ahead})


def _text_config(f: HfFields) -> ModelSpec:
    inner = f.get("text_config")
    if not isinstance(inner, dict):
        f.wrong("text_config", "an object", inner)
    tied = {"tie_word_embeddings": f.flag("tie_word_embeddings", True)}
    text = HfFields(LEFT_OUT | inner | tied, "gemma3_text", ARCHITECTURES["gemma3_text"])
    spec = replace(from_config(text), family=f.family)
    text.refuse_unread(hf_config.REFUSED)
    return spec


def from_gguf(f: GgufFields) -> ModelSpec:
    ahead = not f.flag("attention.causal", True) or f.prefix == "gemma-embedding."
    n = gguf_config.decoder(f, act="gelu_tanh", slides=lambda i: (i + 1) % 6 != 0, local_theta=LOCAL_THETA,
                            both_sides=ahead)
    head = {"attention": {"causal": False}, "head": HeadSpec("none")} if ahead else {}
    n["tied"] &= not ahead
    return gemma.build(f, n, **gemma.caps(f), **gemma.gguf_scale(n, layers_of_27b=62), **SHAPE, **head)


def weight_rows(spec: ModelSpec, kind: str) -> tuple[WeightRow, ...]:
    rows = table_rows(spec, NAMES, kind)
    if kind == "gguf":
        return tuple(rows)
    if spec.family == "gemma3":
        rows = [replace(row, sources=tuple(name.replace("model.", start, 1) for name in row.sources
                                           for start in PREFIXES)) for row in rows]
    return tuple(added(rows, 1.0))
