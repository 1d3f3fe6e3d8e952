"""BERT (Devlin et al. 2019): learned positions and token types, norms after the additions, biases everywhere.

Its GGUF files also hold RoBERTa (without the rows before the first position) and DistilBERT.
"""

from __future__ import annotations

from forwardpass.models import decoder, encoder, gguf_config, hf_heads
from forwardpass.models.gguf_config import GgufFields
from forwardpass.models.hf_config import HfFields
from forwardpass.models.spec import ModelSpec
from forwardpass.models.weight_rows import WeightRow

ARCHITECTURES = {"bert": hf_heads.classes("Bert", "ForPreTraining")}
GGUF = {"bert": "bert"}
IGNORED = {"safetensors": (*encoder.BUFFERS, r"(bert\.)?pooler\..+", r"cls\..+"), "gguf": ()}
NAMES = {  # target: (safetensors, gguf)
    "embed.tokens": ("embeddings.word_embeddings", "token_embd"),
    "embed.positions": ("embeddings.position_embeddings", "position_embd"),
    "embed.types": ("embeddings.token_type_embeddings", "token_types"),
    "embed.norm": ("embeddings.LayerNorm", "token_embd_norm"),
    "attention.q": ("encoder.layer.{i}.attention.self.query", "blk.{i}.attn_q"),
    "attention.k": ("encoder.layer.{i}.attention.self.key", "blk.{i}.attn_k"),
    "attention.v": ("encoder.layer.{i}.attention.self.value", "blk.{i}.attn_v"),
    "attention.out": ("encoder.layer.{i}.attention.output.dense", "blk.{i}.attn_output"),
    "attention_norm": ("encoder.layer.{i}.attention.output.LayerNorm", "blk.{i}.attn_output_norm"),
    "mlp.up": ("encoder.layer.{i}.intermediate.dense", "blk.{i}.ffn_up"),
    "mlp.down": ("encoder.layer.{i}.output.dense", "blk.{i}.ffn_down"),
    "mlp_norm": ("encoder.layer.{i}.output.LayerNorm", "blk.{i}.layer_output_norm"),
}
HEADS = {
    "lm": {
        "head.dense": ("cls.predictions.transform.dense", ""),
        "head.dense_norm": ("cls.predictions.transform.LayerNorm", ""),
        "head": ("cls.predictions.decoder|cls.predictions", ""),
    },
    "labels": {"head.dense": ("bert.pooler.dense|pooler.dense", "cls"), "head": ("classifier", "cls.output")},
    "tags": {"head": ("classifier", "")},
}


def from_config(f: HfFields) -> ModelSpec:
    n = encoder.read(f)
    return decoder.build(**n | hf_heads.head(f, lm=encoder.transform(n), labels={"dense": n["hidden"]}))


def from_gguf(f: GgufFields) -> ModelSpec:
    n = encoder.read_gguf(f, gguf_config.unrotated(f, "gelu_erf"))
    n["learned_positions"] = n["positions"]
    return decoder.build(**n | encoder.head_gguf(f, n, "tanh"))


def weight_rows(spec: ModelSpec, kind: str) -> tuple[WeightRow, ...]:
    return encoder.rows(spec, kind, NAMES, HEADS, ("bert.",))
