"""From a diffusers directory to what draws: a denoiser, an autoencoder, a text encoder and a schedule of noise."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from forwardpass import config
from forwardpass.backends.native import NativeBackend
from forwardpass.errors import ModelFileError, UnsupportedModelError
from forwardpass.models import components, registry
from forwardpass.models.components import AUTOENCODERS, DENOISERS
from forwardpass.models.denoiser import Denoiser
from forwardpass.models.hf_config import read_json
from forwardpass.models.loading import Arena, load_weights, plan
from forwardpass.models.network import Network
from forwardpass.models.registry import Checkpoint
from forwardpass.models.spec import ModelSpec
from forwardpass.quant.formats import kv_dtype_for, kv_dtype_in_passes
from forwardpass.tasks.opening import arithmetic, stored_bytes
from forwardpass.tasks.pipeline_index import PipelineIndex, Reading, read_index
from forwardpass.weights import packed
from forwardpass.weights.diffusers_folder import component_files, component_folder, open_component
from forwardpass.weights.quantized import open_quantized
from forwardpass.weights.source import Source
from forwardpass.weights.tokenizer import Tokenizer
from forwardpass.weights.vocabulary import tokenizer_from_directory


@dataclass(frozen=True, slots=True)
class TextEncoder:
    """Reads prompts. max_length: tokens of a prompt, its special ones included; what is longer is cut.

    how: "clip", a prompt is filled up with `pad_id` to max_length, and the rows of all tokens are its states; "t5",
    only real tokens are read.
    """

    network: Network
    tokenizer: Tokenizer
    max_length: int
    how: str
    pad_id: int


@dataclass(frozen=True, slots=True)
class OpenedPipeline:
    """What a diffusers directory holds, ready to run.

    name: the pipeline's class;  autoencoder: None = the denoiser works on pixels;  text: None = the denoiser takes
    labels;  schedule: the values of the scheduler's config, for decoding/noise;  labels: a label's name -> its number,
    {} where the directory names none;  warnings: sentences for the user.

    dtype: as asked for;  stored: "component/target" -> bytes of that tensor, in the checkpoint's own format unless
    another dtype was asked for;  arithmetic: what most of the denoiser's weights are multiplied in;  weights_bytes: of
    all components in memory.
    """

    path: Path
    name: str
    dtype: str
    denoiser: Denoiser
    autoencoder: Any | None
    text: TextEncoder | None
    schedule: Mapping[str, Any]
    labels: Mapping[str, int]
    warnings: tuple[str, ...]
    stored: Mapping[str, int]
    arithmetic: str
    weights_bytes: int


@dataclass(frozen=True, slots=True)
class Part:
    """A component that is open, its weights matched but not read. name: of its folder;  build: from its spec and
    weights to what runs."""

    name: str
    source: Source
    checkpoint: Checkpoint
    dtype: str
    files: list[Path]
    build: Callable[..., Any]


def open_pipeline(path: Path, dtype: str, kv_dtype: str, backend: NativeBackend,
                  progress: Callable[[int, int], None] | None = None) -> OpenedPipeline:
    """Open a directory with a model_index.json. kv_dtype: of keys and values, which are kept only while a pass runs;
    progress: called as progress(done bytes, all bytes).

    dtype: "auto", every tensor as stored; "float32" and "bfloat16", all components. The dtypes of fewer bits are those
    of the denoiser's matrices ("int8" is "w8a8"): what it makes of steps, classes and patches, its last product and the
    autoencoder stay as stored, since an error there is felt in every pixel. Where its activations have eight bits, so
    have its keys and values, unless kv_dtype says otherwise: that changes a prediction less than the products do. A
    text encoder then has "w8a16" weights, or those of "int4": it runs once a prompt, and its states go into every step.

    Everything is checked before weights are read. Raises ModelFileError, UnsupportedModelError, ParameterError or
    CapacityError; nothing stays open.
    """
    index = read_index(path)
    layout = index.layout
    with ExitStack() as sources:
        parts = open_parts(index, dtype, sources)
        specs = {role: part.checkpoint.spec for role, part in parts.items()}
        reads = read_reader(path, layout.text, specs["text"]) if layout.text else {}
        schedule = read_scheduler(path)
        labels = index.labels(getattr(specs["denoiser"], "labels", 0))
        arenas = _load(parts, backend, progress)
    weights = {role: arena.weights() for role, arena in arenas.items()}
    kv_dtypes = {"denoiser": kv_dtype_in_passes(dtype, kv_dtype)}
    made = {role: part.build(specs[role], weights[role], backend, kv_dtypes.get(role, kv_dtype_for(dtype, kv_dtype)))
            for role, part in parts.items()}
    stored = {f"{part.name}/{target}": size for role, part in parts.items()
              for target, size in stored_bytes(part.checkpoint, arenas[role], part.dtype).items()}
    warnings = (*index.warnings, *(said for part in parts.values() for said in part.checkpoint.warnings))
    return OpenedPipeline(path, index.name, dtype, made["denoiser"], made.get("vae"),
                          TextEncoder(made["text"], **reads) if layout.text else None, schedule, labels, warnings,
                          stored, arithmetic(weights["denoiser"]), sum(arena.nbytes for arena in arenas.values()))


def open_parts(index: PipelineIndex, dtype: str, sources: ExitStack) -> dict[str, Part]:
    """The "denoiser", and as far as the pipeline has them "vae" and "text", which fit together. sources: closes their
    files. Raises as open_pipeline does."""
    path, layout, few_bits = index.path, index.layout, dtype not in ("auto", "float32", "bfloat16")
    parts = {"denoiser": _component(path, layout.denoiser, DENOISERS, layout.classes, dtype, sources)}
    if index.autoencoder:
        parts["vae"] = _component(path, "vae", AUTOENCODERS, tuple(AUTOENCODERS),
                                  "auto" if few_bits else dtype, sources)
    if layout.text:
        parts["text"] = _text_encoder(path, "w8a16" if few_bits and dtype != "int4" else dtype, sources)
    specs = {role: part.checkpoint.spec for role, part in parts.items()}
    denoiser = parts["denoiser"]
    spec = _fitting(path, specs["denoiser"], specs.get("vae"), specs.get("text"))
    return parts | {"denoiser": replace(denoiser, checkpoint=replace(denoiser.checkpoint, spec=spec))}


def read_scheduler(path: Path) -> dict[str, Any]:
    """The scheduler's config."""
    return read_json(component_folder(path, "scheduler") / "scheduler_config.json")


def _component(path: Path, name: str, known: Mapping[str, components.Component], classes: tuple[str, ...], dtype: str,
               sources: ExitStack) -> Part:
    folder = component_folder(path, name)
    values = read_json(folder / "config.json")
    known = {kind: one for kind, one in known.items() if kind in classes}
    component, spec = components.read_spec(values, known, str(folder / "config.json"))
    source = sources.enter_context(open_component(folder))
    checkpoint = components.read_weights(component, spec, source)
    return Part(name, source, checkpoint, dtype, component_files(folder), component.build)


def _text_encoder(path: Path, dtype: str, sources: ExitStack) -> Part:
    folder = component_folder(path, "text_encoder")
    values = read_json(folder / "config.json")
    source = sources.enter_context(open_quantized(open_component(folder), values))
    checkpoint = registry.read(source, values)
    if checkpoint.spec.causal or checkpoint.spec.patches:
        raise UnsupportedModelError(f"{folder / 'config.json'}: expected an encoder of texts, found a model of family "
                                    f"{checkpoint.spec.family} that is none; use a model whose text encoder is one")
    return Part("text_encoder", source, checkpoint, dtype, component_files(folder), Network)


def _fitting(path: Path, denoiser: Any, vae: Any | None, text: ModelSpec | None) -> Any:
    """The denoiser's spec, told what the others say. Raises ModelFileError where they don't fit together."""
    latents = denoiser.latent_channels
    if vae and vae.latent_channels != latents:
        raise ModelFileError(f"{path}: expected a denoiser of the autoencoder's {vae.latent_channels} latent channels, "
                             f"found {latents}; a model for inpainting, or parts of two models: use another")
    if not vae and latents not in (1, 3):
        raise ModelFileError(f"{path}: expected 1 or 3 channels of pixels in a model without an autoencoder, found "
                             f"{latents}; fetch the whole model again")
    if denoiser.out_channels not in (latents, 2 * latents):
        raise ModelFileError(f"{path}: expected a denoiser that predicts {latents} channels, or {2 * latents} with "
                             f"variances, found {denoiser.out_channels}; fix its config or fetch the model again")
    if denoiser.context_width != (text.hidden_size if text else 0):
        raise ModelFileError(f"{path}: expected a text encoder whose states have the {denoiser.context_width} columns "
                             f"that the denoiser reads, found {text.hidden_size if text else 'none'}; fetch the whole "
                             "model again")
    return replace(denoiser, factor=vae.factor if vae else 1) if getattr(denoiser, "micro", False) else denoiser


def read_reader(path: Path, reading: Reading, spec: ModelSpec) -> dict[str, Any]:
    """The fields of a TextEncoder beside its network."""
    folder = component_folder(path, "tokenizer")
    tokenizer = tokenizer_from_directory(folder)
    if tokenizer.vocab_size > spec.vocab_size:
        raise ModelFileError(f"{folder}: expected a tokenizer of at most the text encoder's {spec.vocab_size} tokens, "
                             f"found {tokenizer.vocab_size}; fetch the whole model again")
    longest = min(reading.max_length, spec.max_position_embeddings)
    if reading.how == "clip":  # the others cut prompts at a length of the pipeline's own
        longest = min(longest, tokenizer.model_max_length or longest)
    if tokenizer.pad_token_id is None or not tokenizer.eos_token_ids:
        raise ModelFileError(f"{folder}: expected tokens for padding and for the end of a text, found "
                             f"{tokenizer.pad_token_id} and {tokenizer.eos_token_ids}; fetch the tokenizer again")
    return {"tokenizer": tokenizer, "max_length": longest, "how": reading.how, "pad_id": tokenizer.pad_token_id}


def _load(parts: Mapping[str, Part], backend: NativeBackend, progress: Callable[[int, int], None] | None
          ) -> dict[str, Arena]:
    """All weights, or those kept in the cache."""
    totals = {role: plan(part.checkpoint, part.dtype)[1] for role, part in parts.items()}
    arenas, before = {}, 0
    for role, part in parts.items():
        def tell(done: int, total: int, before: int = before) -> None:
            progress(before + done, sum(totals.values()))

        arenas[role] = load_weights(part.checkpoint, part.source, part.dtype, backend, config.cache_dir(),
                                    packed.source_key(part.files, part.dtype), tell if progress else None)
        before += totals[role]
    return arenas
