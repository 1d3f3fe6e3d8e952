"""ELECTRA (Clark et al. 2020): BERT whose tokens, positions and types may be narrower than its layers.

Of its two pretrained models the generator fills masks. The discriminator (ForPreTraining) tells replaced tokens, which
nobody asks for afterwards: it counts as a model without a head.
"""

from __future__ import annotations

from forwardpass.models import decoder, encoder, hf_heads
from forwardpass.models.families import bert
from forwardpass.models.hf_config import HfFields
from forwardpass.models.spec import HeadSpec, ModelSpec
from forwardpass.models.weight_rows import WeightRow

ARCHITECTURES = {"electra": hf_heads.classes("Electra", "ForPreTraining")}
GGUF: dict[str, str] = {}
IGNORED = {"safetensors": (*encoder.BUFFERS, r"(generator|discriminator)_predictions\..+", r"generator_lm_head\..+"),
           "gguf": ()}
NAMES = bert.NAMES | {"embed.project_in": ("embeddings_project", "")}
HEADS = {
    "lm": {"head.dense": ("generator_predictions.dense", ""),
           "head.dense_norm": ("generator_predictions.LayerNorm", ""), "head": ("generator_lm_head", "")},
    "labels": {"head.dense": ("classifier.dense", ""), "head": ("classifier.out_proj", "")},
    "tags": {"head": ("classifier", "")},
}


def from_config(f: HfFields) -> ModelSpec:
    n = encoder.narrow(f, encoder.read(f))
    labels = {"dense": n["hidden"], "activation": "gelu_erf"}
    n |= hf_heads.head(f, lm=encoder.transform(n, "gelu_erf"), labels=labels)
    if f.architecture == "ElectraForPreTraining":
        n |= {"head": HeadSpec("none"), "head_bias": False, "tied": False}
    return decoder.build(**n)


def weight_rows(spec: ModelSpec, kind: str) -> tuple[WeightRow, ...]:
    return encoder.rows(spec, kind, NAMES, HEADS, ("electra.",))
