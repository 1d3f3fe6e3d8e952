"""What the memory of a host is for, worked out before it takes requests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from forwardpass import config
from forwardpass.cache.blocks import blocks_for
from forwardpass.config import memory_text as size
from forwardpass.contracts import PAGE
from forwardpass.errors import CapacityError, ParameterError
from forwardpass.scheduler.scheduler import STEP_TOKENS
from forwardpass.scheduler.texts import IMAGE_ROWS
from forwardpass.tasks.texts import longest_text

KV_SHARE = 0.5
"""Part of the memory that is free beside the weights that the KV cache gets unless somebody says otherwise."""
BASE_BYTES = 96 << 20
"""What a process needs beside weights, cache and steps, roughly: requests, their texts and answers."""
ANSWERS = 128
"""Texts at the same time whose logits are thought of; each row of them is there once more while tokens are chosen."""
WIDTHS = 16
"""Numbers of a row in a step, in multiples of the hidden size: residual stream, queries, keys, values, the MLP's."""


@dataclass(frozen=True, slots=True)
class ModelPlan:
    """weights: bytes in memory;  token_bytes: KV bytes of a position, at most, 0 = it keeps nothing;
    context: positions of its longest text;  tokens: positions that fit into the whole cache;
    full: how many of its longest texts fit at the same time;
    picture: height and width in pixels of what it draws, and bytes that one such picture takes meanwhile."""

    name: str
    weights: int
    token_bytes: int
    context: int
    tokens: int = 0
    full: int = 0
    picture: tuple[int, int, int] | None = None


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """models: each by itself;  kv: bytes of the cache that all share;  process: bytes set aside for everything else;
    free: bytes that were free for both once all models were loaded."""

    models: tuple[ModelPlan, ...]
    kv: int
    process: int
    free: int

    def lines(self) -> list[str]:
        """For people."""
        lines = [f"KV cache {size(self.kv)}, shared by all models; {size(self.free)} were free beside the weights"]
        return (lines if self.kv else []) + [_line(one) for one in self.models]


def _line(one: ModelPlan) -> str:
    if one.picture is not None:
        height, width, nbytes = one.picture
        return f"{one.name}: weights {size(one.weights)}, pictures of {width}x{height} pixels take {size(nbytes)} each"
    said = f"{one.name}: weights {size(one.weights)}, context {one.context:,} tokens; KV cache: "
    if not one.token_bytes:
        return said + "none, it only reads"
    contexts = f"full contexts: {one.full:,}" if one.full else f"not one full context: texts of {one.tokens:,} at most"
    return f"{said}{one.token_bytes:,} bytes a token, room for {one.tokens:,} tokens, {contexts}"


def plan_memory(models: Mapping[str, Any], kv_memory: int | str | None) -> MemoryPlan:
    """A plan for loaded models. kv_memory: as of Host.

    Raises CapacityError, which says what would fit, where there is not enough memory for it.
    """
    free = config.available_memory()
    process = BASE_BYTES + max(_working(model) for model in models.values())
    fits = max(0, free - process)
    kv = min(fits, int(free * KV_SHARE)) if kv_memory is None else _wanted(kv_memory)
    if not any(model.network.groups for model in models.values() if not _draws(model)):
        kv = 0  # they only read or draw
    elif kv > fits:
        raise CapacityError(
            f"a KV cache of {size(kv)} does not fit: {size(free)} of memory are free with all models loaded, and about "
            f"{size(process)} of them are needed for the rest; "
            + (f"kv_memory may be at most {size(fits, down=True)}" if fits >= 1 << 20 else
               "free some memory, or load fewer or smaller models"))
    plans = tuple(_plan(name, model, kv) for name, model in models.items())
    for one in plans:
        if one.token_bytes and not one.tokens:
            raise CapacityError(f"{one.name} needs {size(PAGE * one.token_bytes)} of KV cache for its shortest text; "
                                f"there are {size(kv)}: give kv_memory more, or free some memory")
    return MemoryPlan(plans, kv, process, free)


def _draws(model: Any) -> bool:
    """Whether it is an OpenedPipeline."""
    return hasattr(model, "denoiser")


def _picture(pipeline: Any) -> tuple[int, int, int]:
    """See ModelPlan: of the size that it was trained at, with guidance."""
    height, width = pipeline.denoiser.sample_size
    need = pipeline.denoiser.activation_bytes([(height, width)] * 2)
    if pipeline.autoencoder is None:
        return height, width, need
    factor = pipeline.autoencoder.factor
    return height * factor, width * factor, max(need, pipeline.autoencoder.activation_bytes(height, width))


def _working(model: Any) -> int:
    """Bytes that a step needs, at most, roughly."""
    if _draws(model):
        return _picture(model)[2]
    spec = model.spec
    rows = IMAGE_ROWS if spec.images else STEP_TOKENS
    width = max(one.hidden_size for one in (spec, spec.images) if one)
    return 4 * (rows * WIDTHS * width + 2 * ANSWERS * spec.vocab_size)


def _wanted(kv_memory: int | str) -> int:
    try:
        return config.parse_memory(kv_memory)
    except ParameterError as error:
        raise ParameterError(f"kv_memory: {error}") from None


def _context(model: Any) -> int:
    """Tokens of a model's longest text: what continues texts has its positions, what reads them the limit of its
    files, which may be less."""
    spec = model.spec
    if model.tokenizer is None or (model.network.groups and not spec.encoder):
        return spec.max_position_embeddings
    return longest_text(spec, model.settings, model.tokenizer)


def _plan(name: str, model: Any, kv: int) -> ModelPlan:
    if _draws(model):
        return ModelPlan(name, model.weights_bytes, 0, 0, picture=_picture(model))
    network, context = model.network, _context(model)
    blocks = network.block_bytes()
    each = sum(blocks)
    if not each:
        return ModelPlan(name, model.weights_bytes, 0, context)
    # Where layers see a window, a long text holds no more than that and what a step adds.
    pages = [blocks_for(min(context, group.window + STEP_TOKENS + PAGE) if group.window else context)
             for group in network.groups]
    whole = sum(count * nbytes for count, nbytes in zip(pages, blocks, strict=True))
    return ModelPlan(name, model.weights_bytes, each // PAGE, context, kv // each * PAGE, kv // whole)
