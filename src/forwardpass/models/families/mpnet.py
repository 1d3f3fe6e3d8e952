"""MPNet (Song et al. 2020): BERT's layers with a relative bias that all of them share, RoBERTa's positions and heads,
and no token types."""

from __future__ import annotations

from forwardpass.models import decoder, encoder, hf_heads
from forwardpass.models.families import bert, roberta
from forwardpass.models.hf_config import HfFields
from forwardpass.models.spec import ModelSpec, RelativeBiasSpec
from forwardpass.models.weight_rows import WeightRow

ARCHITECTURES = {"mpnet": hf_heads.classes("MPNet")}
GGUF: dict[str, str] = {}
IGNORED = {"safetensors": (*encoder.BUFFERS, r"(mpnet\.)?pooler\..+", r"lm_head\..+"), "gguf": ()}
NAMES = bert.NAMES | {
    "attention.q": ("encoder.layer.{i}.attention.attn.q", ""),
    "attention.k": ("encoder.layer.{i}.attention.attn.k", ""),
    "attention.v": ("encoder.layer.{i}.attention.attn.v", ""),
    "attention.out": ("encoder.layer.{i}.attention.attn.o", ""),
    "attention.relative_bias": ("encoder.relative_attention_bias", ""),
    "attention_norm": ("encoder.layer.{i}.attention.LayerNorm", ""),
}
HEADS = roberta.HEADS
PADDING = 1  # it is not asked for: the family's vocabularies have it there
BUCKETS, MAX_DISTANCE = 32, 128


def from_config(f: HfFields) -> ModelSpec:
    n = encoder.read(f, offset=PADDING + 1, types=None)
    if f.integer("relative_attention_num_buckets", default=BUCKETS) != BUCKETS:
        f.unsupported("relative_attention_num_buckets", f"another number of buckets than {BUCKETS}")
    n["attention"]["relative"] = RelativeBiasSpec(BUCKETS, MAX_DISTANCE, bidirectional=True)
    lm = encoder.transform(n, "gelu_erf")
    return decoder.build(**n | hf_heads.head(f, lm=lm, labels={"dense": n["hidden"]}))


def weight_rows(spec: ModelSpec, kind: str) -> tuple[WeightRow, ...]:
    return encoder.rows(spec, kind, NAMES, HEADS, ("mpnet.",))
