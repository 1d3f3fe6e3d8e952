"""What a model_index.json says: the kind of pipeline, which components it has, what labels are called.

`PIPELINES` says which components each kind has. Everything that a directory names beside them is refused, or left out
with a warning where it does not take part in drawing.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from forwardpass.errors import ModelFileError, UnsupportedModelError
from forwardpass.models.fields import Fields, show
from forwardpass.models.hf_config import read_json
from forwardpass.weights.diffusers_folder import INDEX


@dataclass(frozen=True, slots=True)
class Reading:
    """How a kind of text encoder is used. classes, tokenizers: of the two components;  max_length: tokens of a prompt
    at most, special ones included;  how: see TextEncoder."""

    classes: tuple[str, ...]
    tokenizers: tuple[str, ...]
    max_length: int
    how: str


@dataclass(frozen=True, slots=True)
class Layout:
    """denoiser: the name of that component, and its classes;  text: None = it takes labels."""

    denoiser: str
    classes: tuple[str, ...]
    text: Reading | None = None

    @property
    def classes_of(self) -> dict[str, tuple[str, ...]]:
        """Component -> its classes, () = any. Beside the autoencoder all are needed."""
        text = {"text_encoder": self.text.classes, "tokenizer": self.text.tokenizers} if self.text else {}
        return {self.denoiser: self.classes, "vae": ("AutoencoderKL",), "scheduler": ()} | text


CLIP = Reading(("CLIPTextModel",), ("CLIPTokenizer", "CLIPTokenizerFast"), 77, "clip")
T5 = Reading(("T5EncoderModel",), ("T5Tokenizer", "T5TokenizerFast"), 120, "t5")
_UNET = Layout("unet", ("UNet2DConditionModel",), CLIP)
_PIXART = Layout("transformer", ("PixArtTransformer2DModel", "Transformer2DModel"), T5)
PIPELINES = {
    "DiTPipeline": Layout("transformer", ("DiTTransformer2DModel", "Transformer2DModel")),
    "StableDiffusionPipeline": _UNET,
    "StableDiffusionImg2ImgPipeline": _UNET,
    "LatentConsistencyModelPipeline": _UNET,
    "LatentConsistencyModelImg2ImgPipeline": _UNET,
    "PixArtAlphaPipeline": _PIXART,
    "PixArtSigmaPipeline": replace(_PIXART, text=replace(T5, max_length=300)),
}
CHECKER = "safety_checker"
BESIDE = (CHECKER, "feature_extractor", "image_encoder")
"""Components that look at pictures and draw none."""
_LIBRARIES = ("diffusers", "transformers")


@dataclass(frozen=True, slots=True)
class PipelineIndex:
    """name: the pipeline's class;  autoencoder: whether it has one;  id2label: as it stands in the file."""

    path: Path
    name: str
    layout: Layout
    autoencoder: bool
    id2label: Any
    warnings: tuple[str, ...]

    def labels(self, count: int) -> dict[str, int]:
        """A label's name -> its number, of `count` classes. A class may have several names, with commas between them;
        of a name that two classes have the later one counts. Raises ModelFileError."""
        if self.id2label is None or not count:
            return {}
        found: dict[str, int] = {}
        whole = isinstance(self.id2label, Mapping)
        for key, names in self.id2label.items() if whole else ():
            whole = whole and key.isascii() and key.isdigit() and len(key) < 8 and int(key) < count \
                and isinstance(names, str)
            if not whole:
                break
            found |= {name.strip(): int(key) for name in names.split(",") if name.strip()}
        if not whole:
            raise ModelFileError(f"{self.path / INDEX}: id2label: expected a name for each of the classes 0 to "
                                 f"{count - 1}, found {show(self.id2label)}; fix the file or fetch the model again")
        return found


def read_index(path: Path) -> PipelineIndex:
    """Raises ModelFileError, or UnsupportedModelError that names the component and what is supported."""
    fields = Fields(read_json(path / INDEX), str(path / INDEX))
    if isinstance(fields.get("_class_name"), list):
        fields.unsupported("_class_name", "a pipeline defined by its own Python code")
    name = fields.text("_class_name")
    if name not in PIPELINES:
        near = difflib.get_close_matches(name[:100], PIPELINES, 1, cutoff=0.7)
        raise UnsupportedModelError(f"{path / INDEX}: _class_name {show(name)} is not supported; supported are "
                                    f"{', '.join(PIPELINES)}{f' (nearest: {near[0]})' if near else ''}; use a model of "
                                    "one of these kinds")
    layout, warnings = PIPELINES[name], []
    present = {component: _component(fields, name, component, classes)
               for component, classes in layout.classes_of.items()}
    for key, value in fields.values.items():
        if not isinstance(key, str) or key.startswith("_") or key in present:
            continue
        if key == CHECKER:
            found = "is missing" if value in (None, [None, None]) else "is not run"
            warnings.append(f"{path}: the safety checker {found}; look at pictures before others see them")
        elif key not in (*BESIDE, "requires_safety_checker", "id2label") and value not in (None, False, [None, None]):
            raise UnsupportedModelError(f"{path / INDEX}: {key[:80]} = {show(value)} has no place in a {name}; it has "
                                        f"{', '.join(present)}; use a model with these alone")
    return PipelineIndex(path, name, layout, present["vae"], fields.get("id2label"), tuple(warnings))


def _component(fields: Fields, pipeline: str, name: str, classes: tuple[str, ...]) -> bool:
    """Whether a component is there, which only the autoencoder need not be."""
    value = fields.get(name)
    pair = isinstance(value, list) and len(value) == 2
    if name == "vae" and value in (None, [None, None]):
        return False
    if not pair or not all(isinstance(one, str) for one in value):
        fields.wrong(name, f"the library and class of a component that every {pipeline} has", value)
    library, kind = value
    if library not in _LIBRARIES:
        fields.unsupported(name, f"a component from another library than {' and '.join(_LIBRARIES)}")
    if classes and kind not in classes:
        fields.unsupported(name, f"a {name} of a class other than {' or '.join(classes)}")
    return True
