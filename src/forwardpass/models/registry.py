"""Finds the family of a checkpoint by its HF `model_type` or GGUF architecture, and reads the checkpoint as a whole.

Adding a family: a file in families/ with NAME, ARCHITECTURES, IGNORED, from_config, from_gguf and weight_rows,
and its line here.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType

from forwardpass.errors import ModelFileError, UnsupportedModelError
from forwardpass.models.families import gpt2, llama, qwen2
from forwardpass.models.fields import Fields, show
from forwardpass.models.spec import ModelSpec
from forwardpass.models.weight_rows import BoundRow, match, resolve_head
from forwardpass.weights.source import Source

FAMILIES: dict[str, ModuleType] = {module.NAME: module for module in (gpt2, llama, qwen2)}
"""By name, which is both the HF model_type and the GGUF architecture."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a checkpoint holds. weights: every tensor the model needs, in the spec's order; a tied head has none.

    warnings: sentences for the user, one for each thing that was decided against what the config says.
    """

    spec: ModelSpec
    weights: tuple[BoundRow, ...]
    warnings: tuple[str, ...]


def family(name: str, what: str) -> ModuleType:
    """The family module of that name. what: where the name stood, for the error, which lists what is known."""
    if name in FAMILIES:
        return FAMILIES[name]
    near = difflib.get_close_matches(name[:100], FAMILIES, 1, cutoff=0.7)
    hint = f" (nearest: {near[0]})" if near else ""
    raise UnsupportedModelError(f"{what} {show(name)} is not supported; supported are {', '.join(FAMILIES)}{hint}; "
                                "use a model of one of these families")


def spec_from_config(values: Mapping) -> ModelSpec:
    """The spec that an HF config.json (any transformers 4 or 5 spelling) describes."""
    return family(Fields(values, "config.json").text("model_type"), "config.json: model_type").from_config(values)


def spec_from_gguf(metadata: Mapping, tensors: Mapping) -> ModelSpec:
    """The spec that GGUF metadata describes. tensors: name -> TensorInfo."""
    name = Fields(metadata, "GGUF metadata").text("general.architecture")
    return family(name, "GGUF metadata: general.architecture").from_gguf(metadata, tensors)


def read(source: Source, config: Mapping | None = None) -> Checkpoint:
    """Spec and weights of an open checkpoint. config: the values of config.json, needed for safetensors.

    Reads no weights, except when a tied model's file also holds a head (both are compared). Raises ModelFileError
    with all problems of the weights at once, or UnsupportedModelError.
    """
    if source.kind == "gguf":
        spec = spec_from_gguf(source.metadata, source.tensors)
    elif config is None:
        raise ModelFileError(f"{source.path}: expected a config.json beside the weights, found none")
    else:
        spec = spec_from_config(config)
    module = FAMILIES[spec.family]
    bound = match(module.weight_rows(spec, source.kind), source, module.IGNORED[source.kind])
    spec, bound, warnings = resolve_head(spec, bound, source)
    return Checkpoint(spec, tuple(bound), tuple(warnings))
