"""DistilBERT (Sanh et al. 2019): BERT without token types, and with a classifier of two layers and a ReLU."""

from __future__ import annotations

from forwardpass.models import decoder, encoder, hf_heads
from forwardpass.models.families import bert
from forwardpass.models.hf_config import HfFields
from forwardpass.models.spec import ModelSpec
from forwardpass.models.weight_rows import WeightRow

ARCHITECTURES = {"distilbert": hf_heads.classes("DistilBert")}
GGUF: dict[str, str] = {}
IGNORED = {"safetensors": (*encoder.BUFFERS, r"vocab_(transform|layer_norm|projector)\..+"), "gguf": ()}
NAMES = bert.NAMES | {
    "attention.q": ("transformer.layer.{i}.attention.q_lin", "blk.{i}.attn_q"),
    "attention.k": ("transformer.layer.{i}.attention.k_lin", "blk.{i}.attn_k"),
    "attention.v": ("transformer.layer.{i}.attention.v_lin", "blk.{i}.attn_v"),
    "attention.out": ("transformer.layer.{i}.attention.out_lin", "blk.{i}.attn_output"),
    "attention_norm": ("transformer.layer.{i}.sa_layer_norm", "blk.{i}.attn_output_norm"),
    "mlp.up": ("transformer.layer.{i}.ffn.lin1", "blk.{i}.ffn_up"),
    "mlp.down": ("transformer.layer.{i}.ffn.lin2", "blk.{i}.ffn_down"),
    "mlp_norm": ("transformer.layer.{i}.output_layer_norm", "blk.{i}.layer_output_norm"),
}
HEADS = {
    "lm": {"head.dense": ("vocab_transform", ""), "head.dense_norm": ("vocab_layer_norm", ""),
           "head": ("vocab_projector", "")},
    "labels": {"head.dense": ("pre_classifier", "cls"), "head": ("classifier", "cls.output")},
    "tags": {"head": ("classifier", "")},
}


def from_config(f: HfFields) -> ModelSpec:
    """A position table of sines is stored like a learned one."""
    n = encoder.read(f, types=None, act=("activation", "gelu"), hidden="dim",
                     heads="n_heads", layers="n_layers", inner="hidden_dim")
    labels = {"dense": n["hidden"], "activation": "relu"}
    return decoder.build(**n | hf_heads.head(f, lm=encoder.transform(n), labels=labels))


def weight_rows(spec: ModelSpec, kind: str) -> tuple[WeightRow, ...]:
    return encoder.rows(spec, kind, NAMES, HEADS, ("distilbert.",))
