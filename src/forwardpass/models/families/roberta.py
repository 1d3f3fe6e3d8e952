"""RoBERTa (Liu et al. 2019) and those made like it, XLM-RoBERTa and CamemBERT: BERT with positions that start after the
padding token's row, one token type, and heads of its own."""

from __future__ import annotations

from forwardpass.models import decoder, encoder, hf_heads
from forwardpass.models.families import bert
from forwardpass.models.hf_config import HfFields
from forwardpass.models.spec import ModelSpec
from forwardpass.models.weight_rows import WeightRow

ARCHITECTURES = {"roberta": hf_heads.classes("Roberta"), "xlm-roberta": hf_heads.classes("XLMRoberta"),
                 "camembert": hf_heads.classes("Camembert")}
GGUF: dict[str, str] = {}
IGNORED = {"safetensors": (*encoder.BUFFERS, r"(roberta\.)?pooler\..+", r"lm_head\..+"), "gguf": ()}
HEADS = {  # also MPNet's
    "lm": {"head.dense": ("lm_head.dense", ""), "head.dense_norm": ("lm_head.layer_norm", ""),
           "head": ("lm_head.decoder|lm_head", "")},
    "labels": {"head.dense": ("classifier.dense", "cls"), "head": ("classifier.out_proj", "cls.output")},
    "tags": {"head": ("classifier", "")},
}


def from_config(f: HfFields) -> ModelSpec:
    """The exact GELU of the fill-mask head does not follow hidden_act."""
    n = encoder.read(f, offset=f.integer("pad_token_id", default=1, low=0) + 1)
    lm = encoder.transform(n, "gelu_erf")
    return decoder.build(**n | hf_heads.head(f, lm=lm, labels={"dense": n["hidden"]}))


def weight_rows(spec: ModelSpec, kind: str) -> tuple[WeightRow, ...]:
    return encoder.rows(spec, kind, bert.NAMES, HEADS, ("roberta.",))
