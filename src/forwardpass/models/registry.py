"""Finds the family of a checkpoint by its HF `model_type` or GGUF architecture, and reads the checkpoint as a whole.

Adding a family: a file in families/ and its name here. A family file has

- ARCHITECTURES: HF model_type -> the class names it computes. A file may serve several types.
- GGUF: GGUF architecture -> the model_type it stands for.
- IGNORED: kind of checkpoint ("safetensors", "gguf") -> regular expressions of stored names that carry no weights.
- HEADS: of an encoder, task -> the names of its head's weights; a file without it is a decoder's, whose heads are
  those of hf_heads.py.
- from_config(fields: HfFields) and from_gguf(fields: GgufFields): the ModelSpec; `fields.family` is the model_type.
- weight_rows(spec, kind): where the weights are.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType

import numpy as np

from forwardpass.errors import ModelFileError, UnsupportedModelError
from forwardpass.models import gguf_config, hf_config, hf_heads
from forwardpass.models.families import (
    albert,
    bart,
    bert,
    bloom,
    clip,
    cohere,
    deberta,
    dinov2,
    distilbert,
    electra,
    falcon,
    gemma,
    gemma3,
    gpt2,
    gpt_bigcode,
    gpt_neo,
    gpt_neox,
    gptj,
    granite,
    llama,
    m2m_100,
    marian,
    modernbert,
    mpnet,
    mpt,
    nomic_bert,
    olmo2,
    opt,
    pegasus,
    phi,
    phi3,
    qwen,
    roberta,
    siglip,
    smollm3,
    stablelm,
    starcoder2,
    t5,
    vit,
)
from forwardpass.models.fields import Fields, show
from forwardpass.models.spec import ModelSpec
from forwardpass.models.weight_rows import BoundRow, match, resolve_head
from forwardpass.weights.dequantize import dequantize
from forwardpass.weights.source import Source

_MODULES = (albert, bart, bert, bloom, clip, cohere, deberta, dinov2, distilbert, electra, falcon, gemma, gemma3, gpt2,
            gpt_bigcode, gpt_neo, gpt_neox, gptj, granite, llama, m2m_100, marian, modernbert, mpnet, mpt, nomic_bert,
            olmo2, opt, pegasus, phi, phi3, qwen, roberta, siglip, smollm3, stablelm, starcoder2, t5, vit)
FAMILIES: dict[str, ModuleType] = {name: module for module in _MODULES for name in module.ARCHITECTURES}
"""HF model_type -> its family file; a ModelSpec's `family` is such a name."""
GGUF: dict[str, str] = {name: kind for module in _MODULES for name, kind in module.GGUF.items()}
"""GGUF architecture -> HF model_type."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a checkpoint holds. weights: every tensor the model needs, in the spec's order; a tied head has none.

    warnings: sentences for the user, one for each thing that was decided against what the config says.
    """

    spec: ModelSpec
    weights: tuple[BoundRow, ...]
    warnings: tuple[str, ...]


def known(name: str, names: Mapping[str, object], what: str) -> str:
    """`name` if it is one of `names`. what: where it stood, for the error, which lists what is known."""
    if name in names:
        return name
    near = difflib.get_close_matches(name[:100], names, 1, cutoff=0.7)
    hint = f" (nearest: {near[0]})" if near else ""
    raise UnsupportedModelError(f"{what} {show(name)} is not supported; supported are {', '.join(sorted(names))}{hint};"
                                " use a model of one of these families")


def spec_from_config(values: Mapping) -> ModelSpec:
    """The spec that an HF config.json (any transformers 4 or 5 spelling) describes."""
    name = known(Fields(values, "config.json").text("model_type"), FAMILIES, "config.json: model_type")
    module = FAMILIES[name]
    classes = module.ARCHITECTURES[name]
    fields = hf_config.HfFields(values, name, classes if is_encoder(name) else hf_heads.with_heads(classes))
    spec = module.from_config(fields)
    fields.refuse_unread(hf_config.REFUSED)
    return spec if is_encoder(name) else hf_heads.of_decoder(fields, spec)


def is_encoder(family: str) -> bool:
    """Whether a family's file is that of an encoder, by its model_type."""
    return hasattr(FAMILIES[family], "HEADS")


def spec_from_gguf(metadata: Mapping, tensors: Mapping, vector: Callable[[str], np.ndarray] | None = None) -> ModelSpec:
    """The spec that GGUF metadata describes. tensors: name -> TensorInfo; vector: reads a small tensor by name."""
    name = known(Fields(metadata, "GGUF metadata").text("general.architecture"), GGUF,
                 "GGUF metadata: general.architecture")
    fields = gguf_config.GgufFields(metadata, tensors, name, GGUF[name], vector)
    spec = FAMILIES[GGUF[name]].from_gguf(fields)
    fields.refuse_unread(gguf_config.REFUSED, gguf_config.WITHOUT_EFFECT)
    return spec


def read(source: Source, config: Mapping | None = None) -> Checkpoint:
    """Spec and weights of an open checkpoint. config: the values of config.json, needed for safetensors.

    Reads no weights, except when a tied model's file also holds a head (both are compared), and rotary factors. Raises
    ModelFileError with all problems of the weights at once, or UnsupportedModelError.
    """
    if source.kind == "gguf":
        spec = spec_from_gguf(source.metadata, source.tensors, lambda name: _vector(source, name))
    elif config is None:
        raise ModelFileError(f"{source.path}: expected a config.json beside the weights, found none")
    else:
        spec = spec_from_config(config)
    module = FAMILIES[spec.family]
    ignored = [*module.IGNORED[source.kind], *map(re.escape, source.idle)]
    rows = module.weight_rows(spec, source.kind)
    if source.kind == "safetensors":
        if is_encoder(spec.family) and hf_heads.left_out(spec, rows, source.tensors):
            spec = hf_heads.bare(spec)
            rows = module.weight_rows(spec, source.kind)
        if not is_encoder(spec.family) and not spec.encoder:
            rows = hf_heads.decoder_rows(spec, rows)
            ignored += [hf_heads.UNUSED] * (spec.head.task != "lm")
        hf_heads.check_labels(spec, rows, source.tensors, config)
    bound = match(rows, source, ignored)
    spec, bound, warnings = resolve_head(spec, bound, source)
    return Checkpoint(spec, tuple(bound), (*source.warnings, *warnings))


def _vector(source: Source, name: str) -> np.ndarray:
    info = source.tensors[name]
    return dequantize(info.type, source.data(name), info.shape)
