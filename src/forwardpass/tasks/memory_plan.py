"""What the memory of a host is for, worked out before it takes requests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from forwardpass import config
from forwardpass.contracts import PAGE
from forwardpass.errors import CapacityError, ParameterError

KV_SHARE = 0.5
"""Part of the memory that is free beside the weights that the KV cache gets unless somebody says otherwise."""
PROCESS_BYTES = 192 << 20
"""What a process needs beside weights and cache, roughly: the rows of a step, the logits of many answers, texts."""


@dataclass(frozen=True, slots=True)
class ModelPlan:
    """weights: bytes in memory;  token_bytes: KV bytes of a position, at most, 0 = it keeps nothing;
    context: positions of its longest text;  tokens: positions that fit into the whole cache;
    full: how many of its longest texts fit at the same time."""

    name: str
    weights: int
    token_bytes: int
    context: int
    tokens: int
    full: int


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
        for one in self.models:
            cache = f"{one.token_bytes:,} bytes a token, room for {one.tokens:,} tokens, {one.full:,} full contexts"
            lines.append(f"{one.name}: weights {size(one.weights)}, context {one.context:,} tokens; KV cache: "
                         + (cache if one.token_bytes else "none, it only reads"))
        return lines


def plan_memory(models: Mapping[str, object], kv_memory: int | str | None) -> MemoryPlan:
    """A plan for loaded models. kv_memory: as of Host.

    Raises CapacityError, which says what would fit, where there is not enough memory for it.
    """
    free = config.available_memory()
    kv = int(free * KV_SHARE) if kv_memory is None else _wanted(kv_memory)
    if kv + PROCESS_BYTES > free:
        fits = max(0, free - PROCESS_BYTES)
        raise CapacityError(
            f"a KV cache of {size(kv)} does not fit: {size(free)} of memory are free with all models loaded, and "
            f"{size(PROCESS_BYTES)} of them are needed for the rest; "
            + (f"kv_memory may be at most {size(fits, down=True)}" if fits >= 1 << 20 else
               "free some memory, or load fewer or smaller models"))
    plan = MemoryPlan(tuple(_plan(name, model, kv) for name, model in models.items()), kv, PROCESS_BYTES, free)
    for one in plan.models:
        if one.token_bytes and not one.tokens:
            raise CapacityError(f"{one.name} needs {size(PAGE * one.token_bytes)} of KV cache for its shortest text; "
                                f"kv_memory is {size(kv)}: give it more")
    return plan


def _wanted(kv_memory: int | str) -> int:
    try:
        return config.parse_memory(kv_memory)
    except ParameterError as error:
        raise ParameterError(f"kv_memory: {error}") from None


def _plan(name: str, model, kv: int) -> ModelPlan:
    each, context = sum(model.network.block_bytes()), model.spec.max_position_embeddings
    if not each:
        return ModelPlan(name, model.weights_bytes, 0, context, 0, 0)
    blocks = kv // each
    return ModelPlan(name, model.weights_bytes, each // PAGE, context, blocks * PAGE, blocks // -(-context // PAGE))


def size(nbytes: int, down: bool = False) -> str:
    """Bytes as people read them, "1.5 GiB". down: never more than it is."""
    unit, name = next(((unit, name) for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB")) if nbytes >= unit),
                      (1 << 10, "KiB"))
    value = nbytes / unit
    return f"{int(value * 10) / 10 if down else value:.1f} {name}"


def total(plans: Iterable[ModelPlan]) -> int:
    """Bytes of all weights."""
    return sum(one.weights for one in plans)
