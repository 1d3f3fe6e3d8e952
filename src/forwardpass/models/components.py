"""Finds the family of a diffusers component by its class, and reads the component as a whole.

Adding one: a family file and its name here. A family file has from_config(DiffusersFields) -> spec, weight_rows(spec),
IGNORED, regular expressions of stored names that carry no weights, and perhaps finish(spec, bound rows, source), which
may leave out what a checkpoint holds twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from forwardpass.errors import UnsupportedModelError
from forwardpass.models.autoencoder import Autoencoder
from forwardpass.models.diffusers_config import DiffusersFields
from forwardpass.models.dit import Dit
from forwardpass.models.families import autoencoder_kl, dit, pixart, unet
from forwardpass.models.fields import Fields, show
from forwardpass.models.registry import Checkpoint
from forwardpass.models.unet import UNet
from forwardpass.models.weight_rows import match
from forwardpass.weights.source import Source


@dataclass(frozen=True, slots=True)
class Component:
    """family: its file;  build: called as build(spec, weights, backend, kv_dtype)."""

    family: ModuleType
    build: Callable[..., Any]


DENOISERS = {"DiTTransformer2DModel": Component(dit, Dit), "PixArtTransformer2DModel": Component(pixart, Dit),
             unet.CLASS: Component(unet, UNet)}
AUTOENCODERS = {autoencoder_kl.CLASS: Component(autoencoder_kl, Autoencoder)}
OLDER = {"Transformer2DModel": {"ada_norm_zero": "DiTTransformer2DModel",
                                "ada_norm_single": "PixArtTransformer2DModel"}}
"""A class that was several -> what it became, by norm_type."""


def read_spec(config: Mapping, known: Mapping[str, Component], where: str) -> tuple[Component, Any]:
    """The kind and spec that a component's config describes. known: DENOISERS or AUTOENCODERS;  where: the config's
    place, for errors. Raises ModelFileError, or UnsupportedModelError that names the class and what is supported."""
    name = Fields(config, where).text("_class_name")
    if name in OLDER:
        kinds = OLDER[name]
        norm_type = Fields(config, where).text("norm_type", "layer_norm")
        if norm_type not in kinds:
            raise UnsupportedModelError(f"{where}: norm_type = {show(norm_type)}: a {name} with another norm_type than "
                                        f"{', '.join(kinds)} is not implemented; use another model")
        name = kinds[norm_type]
        config = {**config, "_class_name": name}
    if name not in known:
        raise UnsupportedModelError(f"{where}: _class_name = {show(name)} is not supported; supported are "
                                    f"{', '.join(known)}; use a model with one of these")
    return known[name], known[name].family.from_config(DiffusersFields(config, name, where))


def read_weights(component: Component, spec: Any, source: Source) -> Checkpoint:
    """The spec with the weights of an open component. Reads none, except to compare what may be there twice. Raises
    ModelFileError with all problems of the weights at once."""
    bound = match(component.family.weight_rows(spec), source, component.family.IGNORED)
    if hasattr(component.family, "finish"):
        spec, bound = component.family.finish(spec, bound, source)
    return Checkpoint(spec, tuple(bound), source.warnings)
