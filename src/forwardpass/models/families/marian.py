"""Marian (the OPUS-MT models): BART with fixed positions of sines and cosines. The two sides may have vocabularies of
their own."""

from __future__ import annotations

from dataclasses import replace

from forwardpass.models import encoder_decoder
from forwardpass.models.families import bart
from forwardpass.models.hf_config import HfFields
from forwardpass.models.spec import ModelSpec
from forwardpass.models.weight_rows import WeightRow
from forwardpass.models.weight_tables import table_rows

ARCHITECTURES = {"marian": ("MarianMTModel", "MarianModel")}
GGUF: dict[str, str] = {}
POSITIONS = r"(model\.)?(en|de)coder\.embed_positions\.weight"
"""Old files keep the fixed table."""
IGNORED = {"safetensors": (*bart.IGNORED["safetensors"], POSITIONS)}
NAMES = bart.NAMES
APART = NAMES | {target: ("|".join(f"{model}{side}.embed_tokens" for model in ("model.", "")),)
                 for target, side in (("embed.tokens", "decoder"), ("encoder.embed.tokens", "encoder"))}
"""Where each side has its own table of tokens."""


def sinusoids(hidden: int) -> tuple[float, ...]:
    """Frequencies of the positions of Vaswani et al. 2017: those of sines first, then the same of cosines."""
    return tuple(10000.0 ** (-2 * i / hidden) for i in range(hidden // 2))


def from_config(f: HfFields) -> ModelSpec:
    n, shared = bart.read(f, act="gelu", pre=False), f.flag("share_encoder_decoder_embeddings", True)
    vocab = f.integer("decoder_vocab_size", default=n["decoder"].vocab)
    if shared and vocab != n["decoder"].vocab:
        f.wrong("decoder_vocab_size", f"vocab_size ({n['decoder'].vocab}), since both sides share one table", vocab)
    n["decoder"] = replace(n["decoder"], vocab=vocab)
    return encoder_decoder.build(**n, shared=shared, sinusoids=sinusoids(n["hidden"]), head_bias=True)


def weight_rows(spec: ModelSpec, kind: str) -> tuple[WeightRow, ...]:
    return tuple(bart.named(table_rows(spec, NAMES if spec.shared_embedding else APART, kind)))
