"""Pegasus: Marian's positions with the norms before attention and MLP, and one at the end."""

from __future__ import annotations

from forwardpass.models import encoder_decoder
from forwardpass.models.families import bart, marian
from forwardpass.models.hf_config import HfFields
from forwardpass.models.spec import ModelSpec

ARCHITECTURES = {"pegasus": ("PegasusForConditionalGeneration", "PegasusModel")}
GGUF: dict[str, str] = {}
IGNORED = marian.IGNORED
weight_rows = bart.weight_rows


def from_config(f: HfFields) -> ModelSpec:
    n = bart.read(f, act="gelu", pre=True)
    return encoder_decoder.build(**n, sinusoids=marian.sinusoids(n["hidden"]), head_bias=True)
