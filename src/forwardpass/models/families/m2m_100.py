"""M2M-100 and NLLB: norms before attention and MLP and at the end, scaled embeddings, fixed positions that are counted
from the number after the padding token's."""

from __future__ import annotations

from forwardpass.models import encoder_decoder
from forwardpass.models.families import bart, marian
from forwardpass.models.hf_config import HfFields
from forwardpass.models.spec import ModelSpec

ARCHITECTURES = {"m2m_100": ("M2M100ForConditionalGeneration", "M2M100Model")}
GGUF: dict[str, str] = {}
IGNORED = {"safetensors": (*marian.IGNORED["safetensors"], r"(model\.)?(en|de)coder\.embed_positions\.weights")}
weight_rows = bart.weight_rows


def sinusoids(hidden: int) -> tuple[float, ...]:
    """Frequencies from 1 to 1/10000, that end included."""
    half = hidden // 2
    return tuple(10000.0 ** (-i / max(half - 1, 1)) for i in range(half))


def from_config(f: HfFields) -> ModelSpec:
    n = bart.read(f, act="relu", pre=True, scaled=True)
    return encoder_decoder.build(**n, sinusoids=sinusoids(n["hidden"]),
                                 position_offset=f.integer("pad_token_id", default=1, low=0) + 1)
