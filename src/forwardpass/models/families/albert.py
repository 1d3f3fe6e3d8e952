"""ALBERT (Lan et al. 2020): BERT with tokens narrower than its layers, and layers that share their weights."""

from __future__ import annotations

import re
from dataclasses import replace

from forwardpass.models import decoder, encoder, hf_heads
from forwardpass.models.families import bert
from forwardpass.models.hf_config import HfFields
from forwardpass.models.spec import ModelSpec
from forwardpass.models.weight_rows import WeightRow

ARCHITECTURES = {"albert": hf_heads.classes("Albert", "ForPreTraining")}
GGUF: dict[str, str] = {}
IGNORED = {"safetensors": (*encoder.BUFFERS, r"(albert\.)?pooler\..+", r"(predictions|sop_classifier)\..+"), "gguf": ()}
_LAYER = "encoder.albert_layer_groups.{i}.albert_layers.0."
NAMES = bert.NAMES | {
    "embed.project_in": ("encoder.embedding_hidden_mapping_in", ""),
    "attention.q": (_LAYER + "attention.query", ""),
    "attention.k": (_LAYER + "attention.key", ""),
    "attention.v": (_LAYER + "attention.value", ""),
    "attention.out": (_LAYER + "attention.dense", ""),
    "attention_norm": (_LAYER + "attention.LayerNorm", ""),
    "mlp.up": (_LAYER + "ffn", ""),
    "mlp.down": (_LAYER + "ffn_output", ""),
    "mlp_norm": (_LAYER + "full_layer_layer_norm", ""),
}
HEADS = {
    "lm": {"head.dense": ("predictions.dense", ""), "head.dense_norm": ("predictions.LayerNorm", ""),
           "head": ("predictions.decoder|predictions", "")},
    "labels": {"head.dense": ("albert.pooler|pooler", ""), "head": ("classifier", "")},
    "tags": {"head": ("classifier", "")},
}


def from_config(f: HfFields) -> ModelSpec:
    """`num_hidden_groups` groups of layers that follow one another, each with the weights of one layer."""
    n = encoder.narrow(f, encoder.read(f, act=("hidden_act", "gelu_new")), always=True)
    if f.integer("inner_group_num", default=1) != 1:
        f.unsupported("inner_group_num", "a group of several different layers")
    layers, groups = n["layers"], f.integer("num_hidden_groups", default=1)
    if groups > layers:
        f.wrong("num_hidden_groups", f"at most num_hidden_layers ({layers})", groups)
    of = [int(i / (layers / groups)) for i in range(layers)]
    n["layer_weights"] = tuple(of.index(group) for group in of)
    return decoder.build(**n | hf_heads.head(f, lm=encoder.transform(n), labels={"dense": n["hidden"]}))


def weight_rows(spec: ModelSpec, kind: str) -> tuple[WeightRow, ...]:
    """A group is named by its number, not by that of its first layer."""
    groups = {str(i): str(group) for group, i in enumerate(sorted(set(spec.layer_weights)))}
    numbered = re.compile(r"(?<=layer_groups\.)\d+")
    return tuple(replace(row, sources=tuple(numbered.sub(lambda i: groups[i[0]], name) for name in row.sources))
                 for row in encoder.rows(spec, kind, NAMES, HEADS, ("albert.",)))
