"""DeBERTa (He et al. 2021), 1 to 3: BERT with disentangled attention. Scores also have terms between contents and
relative positions, whose table goes through the layers' own query and key matrices (3) or through others.

1 keeps queries, keys and values head by head in one matrix, without a bias of the keys.
"""

from __future__ import annotations

from dataclasses import replace

from forwardpass.models import decoder, encoder, hf_config, hf_heads
from forwardpass.models.families import bert
from forwardpass.models.hf_config import HfFields
from forwardpass.models.spec import DisentangledSpec, ModelSpec
from forwardpass.models.weight_rows import WeightRow
from forwardpass.models.weight_tables import QKV, fused, part_of

ARCHITECTURES = {"deberta": hf_heads.classes("Deberta"), "deberta-v2": hf_heads.classes("DebertaV2")}
GGUF: dict[str, str] = {}
IGNORED = {
    "safetensors": (*encoder.BUFFERS, r"(deberta\.)?embeddings\.position_embeddings\..+", r"pooler\..+",
                    r"(cls|lm_predictions|mask_predictions)\..+"),
    "gguf": (),
}
_SELF = "encoder.layer.{i}.attention.self."
NAMES = bert.NAMES | {
    "embed.relative": ("encoder.rel_embeddings", ""),
    "embed.relative_norm": ("encoder.LayerNorm", ""),
    "attention.q": (_SELF + "query_proj", ""),
    "attention.k": (_SELF + "key_proj", ""),
    "attention.v": (_SELF + "value_proj", ""),
    "attention.position_q": (_SELF + "pos_query_proj|" + _SELF + "pos_q_proj", ""),
    "attention.position_k": (_SELF + "pos_key_proj|" + _SELF + "pos_proj", ""),
}
HEADS = {
    "lm": {
        "head.dense": ("cls.predictions.transform.dense|lm_predictions.lm_head.dense", ""),
        "head.dense_norm": ("cls.predictions.transform.LayerNorm|lm_predictions.lm_head.LayerNorm", ""),
        "head": ("cls.predictions.decoder|cls.predictions|lm_predictions.lm_head", ""),
    },
    "labels": {"head.dense": ("pooler.dense", ""), "head": ("classifier", "")},
    "tags": {"head": ("classifier", "")},
}


def from_config(f: HfFields) -> ModelSpec:
    n = encoder.read(f, types=0, eps=("layer_norm_eps", 1e-7), learned=f.flag("position_biased_input", True))
    for name, size in (("embedding_size", n["hidden"]), ("pooler_hidden_size", n["hidden"]),
                       ("attention_head_size", n["head_dim"])):
        if f.integer(name, default=size) != size:
            f.unsupported(name, f"a width other than {size}")
    terms = _terms(f)
    n["scale"] = (n["head_dim"] * (1 + len(terms))) ** -0.5
    if f.flag("relative_attention", False):
        n["attention"]["disentangled"] = _positions(f, terms, encoder.norm(n))
    labels = {"dense": n["hidden"], "activation": hf_config.activation(f, "pooler_hidden_act", "gelu")}
    return decoder.build(**n | hf_heads.head(f, lm=encoder.transform(n), labels=labels))


def _terms(f: HfFields) -> set[str]:
    """pos_att_type: a list, or the same with | between."""
    given = f.get("pos_att_type") or []
    terms = given.lower().split("|") if isinstance(given, str) else given
    if not isinstance(terms, list) or not all(isinstance(one, str) for one in terms):
        f.wrong("pos_att_type", "a list of c2p and p2c", given)
    terms = [one.strip() for one in terms]
    if len(set(terms)) < len(terms) or set(terms) - {"c2p", "p2c"}:
        f.unsupported("pos_att_type", "a term of scores other than one c2p and one p2c")
    return set(terms)


def _positions(f: HfFields, terms: set[str], norm) -> DisentangledSpec:
    if not terms:
        f.unsupported("pos_att_type", "relative attention without terms")
    reach = f.integer("max_relative_positions", default=-1, low=-1)
    reach = reach if reach >= 1 else f.integer("max_position_embeddings", default=512)
    first = f.family == "deberta"
    buckets = 0 if first else max(f.integer("position_buckets", default=-1, low=-1), 0)
    normed = "layer_norm" in (one.strip() for one in f.text("norm_rel_ebd", "none").lower().split("|")) and not first
    return DisentangledSpec(buckets or reach, buckets, reach, "c2p" in terms, "p2c" in terms,
                            not first and f.flag("share_att_key", False), norm if normed else None)


def weight_rows(spec: ModelSpec, kind: str) -> tuple[WeightRow, ...]:
    rows = encoder.rows(spec, kind, NAMES, HEADS, ("deberta.",))
    return tuple(_first(spec, rows)) if spec.family == "deberta" else rows


def _first(spec: ModelSpec, rows: tuple[WeightRow, ...]) -> list[WeightRow]:
    """Of DeBERTa 1: its fused matrix, and vectors q_bias and v_bias beside it."""
    found = []
    for row in rows:
        _, part, suffix = part_of(row)
        letter = part.removeprefix("attention.")
        stems = [name.rpartition(".")[0].rpartition(".")[0] for name in row.sources]
        if part in QKV:
            name = "in_proj.weight" if suffix == "weight" else f"{letter}_bias"
            row = replace(row, sources=tuple(f"{stem}.{name}" for stem in stems))
        if (letter, suffix) in (("k", "bias"), ("position_k", "bias")):
            row = replace(row, optional=True)
        found.append(row)
    weights = iter(fused((row for row in found if row.target.endswith(".weight")), QKV,
                         runs=spec.layers[0].attention.num_heads))
    return [next(weights) if row.target.endswith(".weight") else row for row in found]
