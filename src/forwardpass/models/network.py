"""A loaded model as three functions over arrays, one for each of the stages 2, 3 and 4."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from forwardpass.contracts import CacheView
from forwardpass.errors import ModelFileError
from forwardpass.models import blocks, image_blocks
from forwardpass.models.cache_groups import cache_groups, cross_group
from forwardpass.models.patches import patch_rows, places_of
from forwardpass.models.regimes import regimes
from forwardpass.models.spec import ModelSpec
from forwardpass.models.weight_rows import VISION

MAX_LOG_SCALE = 20
"""Of what cosines are multiplied by: CLIP was trained with at most 4.6."""


class Network:
    """spec, kv_dtype: what it is;  backend: where it runs.

    groups: its layers by what they share in the KV cache, () = they keep nothing and each text is computed whole;
    regimes: how its rotary factors follow a text's length;  encoder: the network that reads an encoder-decoder's source
    texts, else None. It writes into the KV memory of the decoder's last group, which is its only one.
    vision: the network that reads images, of a model with two towers, else None;  pair: (what the cosine of a text and
    an image is multiplied by, what is then added) of such a model.
    """

    def __init__(self, spec: ModelSpec, weights: blocks.Weights, backend, kv_dtype: str,
                 pair: tuple[ModelSpec, blocks.Weights] | None = None):
        """pair: of the encoder-decoder that `spec` is the encoder of."""
        self.spec = spec
        self.kv_dtype = kv_dtype
        self.backend = backend
        self.groups = (cross_group(pair[0]),) if pair else cache_groups(spec)
        self.regimes = regimes(spec)
        if spec.patches:
            self._embed = image_blocks.record_patches(backend, spec, weights)
            bias = weights.vectors.get("embed.patches.bias")
            self._places = places_of(spec.patches, spec.hidden_size, weights.vectors, bias)
        else:
            self._embed = blocks.record_embed(backend, spec, weights)
        self._layers = blocks.record_layers(backend, spec, weights, kv_dtype)
        if pair:
            blocks.record_sources(self._layers, *pair, kv_dtype)
        head = spec.head
        self._project = blocks.record_project(backend, spec, weights) if head.task == "lm" else None
        self._head = (blocks.record_head(backend, spec, weights) if head.task in ("labels", "tags", "vector") else None)
        self._teacher = image_blocks.record_teacher(backend, spec, weights) if head.pool == "both" else None
        self._pool = (image_blocks.record_attention_pool(backend, spec, weights, kv_dtype) if head.attention else None)
        self._probe = weights.vectors.get("head.pool.probe.weight")
        self.vision = Network(spec.vision, weights.under(VISION), backend, kv_dtype) if spec.vision else None
        self.pair = _pair(spec, weights) if spec.vision else None
        self.encoder = (Network(spec.encoder, weights.encoder(), backend, kv_dtype, (spec, weights)) if spec.encoder
                        else None)

    def kv_memory(self, blocks: int | Sequence[int]) -> list[Any]:
        """Address space for so many cache blocks of 64 positions, in each group; memory is used when a block is.

        One number is that of every group: then the same block numbers can serve all of them.
        """
        each = [blocks] * len(self.groups) if isinstance(blocks, int) else blocks
        return [self.backend.kv_memory(self.kv_dtype, len(group.layers), group.num_kv_heads, group.head_dim, n)
                for group, n in zip(self.groups, each, strict=True)]

    def block_bytes(self) -> list[int]:
        """Bytes of one cache block, by group."""
        return [memory.block_bytes for memory in self.kv_memory(1)]

    def embed(self, ids: np.ndarray, positions: np.ndarray, types: np.ndarray | None = None) -> np.ndarray:
        """int32 [tokens] each -> float32 [tokens, hidden_size]. types: None = all 0; read only by models with a table
        of them."""
        hidden = np.empty((ids.size, self.spec.hidden_size), np.float32)
        stage = self._embed
        stage.program.run(ids.size, ids=ids, positions=positions, types=types, bound=[(stage.out, hidden)])
        return hidden

    def embed_images(self, pixels: Sequence[np.ndarray]) -> np.ndarray:
        """float32 [height, width, channels] of each image -> float32 [rows, hidden_size], those of all side by side."""
        spec, stage = self.spec.patches, self._embed
        starts = np.cumsum([0, *(spec.rows(*one.shape[:2]) for one in pixels)])
        rows = np.zeros((starts[-1], spec.size * spec.size * spec.channels), np.float32)
        places = np.empty((starts[-1], self.spec.hidden_size), np.float32)
        for one, start, end in zip(pixels, starts, starts[1:], strict=False):
            patch_rows(one, spec.size, rows[start + spec.first : end])
            places[start:end] = self._places.of(*one.shape[:2])
        hidden = np.empty_like(places)
        stage.program.run(len(rows), bound=[(stage.source, rows), (stage.places, places), (stage.out, hidden)])
        return hidden

    def layers(self, hidden: np.ndarray, positions: np.ndarray, starts: np.ndarray, cache: CacheView | None = None,
               memory: Sequence[Any] = ()) -> np.ndarray:
        """All layers and the final norm. Overwrites `hidden`; returns a new float32 [tokens, hidden_size].

        cache, memory: of networks that have groups.
        """
        out = np.empty_like(hidden)
        stage = self._layers
        bound = [(stage.source, hidden), (stage.out, out)]
        view = {} if cache is None else dict(past=cache.past, tables=cache.tables, memory=memory, regime=cache.regime,
                                             lengths=cache.lengths, sources=cache.sources)
        stage.program.run(hidden.shape[0], positions=positions, starts=starts, bound=bound, **view)
        return out

    def project(self, hidden: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Logits float32 [rows, vocab_size] of the wanted rows of `hidden`. Only of models with a language head."""
        logits = np.empty((rows.size, self.spec.vocab_size), np.float32)
        stage = self._project
        stage.program.run(rows.size, wanted=rows, bound=[(stage.source, hidden), (stage.out, logits)])
        return logits

    def head(self, rows: np.ndarray) -> np.ndarray:
        """Scores float32 [rows, outputs] of the labels, or vectors, for rows float32 [rows, hidden_size]: one for each
        text or image ("labels", "vector") or token ("tags"). Only of models with such a head. Where it pools
        "first+patches" or "both" its rows are twice as wide."""
        if self._teacher is None:
            return self._scores(self._head, rows)
        first, second = np.split(rows, 2, axis=1)
        scores = [self._scores(self._head, first), self._scores(self._teacher, second)]
        return (scores[0] + scores[1]) / np.float32(2)

    def _scores(self, stage: blocks.Recorded, rows: np.ndarray) -> np.ndarray:
        rows = np.ascontiguousarray(rows)
        scores = np.empty((rows.shape[0], self.spec.head.outputs or rows.shape[1]), np.float32)
        stage.program.run(rows.shape[0], bound=[(stage.source, rows), (stage.out, scores)])
        return scores

    def pool_by_attention(self, rows: np.ndarray, starts: np.ndarray) -> np.ndarray:
        """float32 [rows, hidden_size], int32 [images + 1] -> float32 [images, hidden_size]: what the head's learned
        query finds in each image. Only of models whose head pools so."""
        stage, images = self._pool, starts.size - 1
        probe = np.tile(self._probe, (images, 1))
        pooled = np.empty_like(probe)
        bound = [(stage.source, rows), (stage.probe, probe), (stage.out, pooled)]
        stage.program.run(images, starts=np.arange(images + 1, dtype=np.int32), context_starts=starts, bound=bound)
        return pooled

    def greedy_steps(self, ids: np.ndarray, positions: np.ndarray, cache: CacheView, memory: Sequence[Any], steps: int,
                     vocab_size: int, ends: list[np.ndarray]) -> tuple[np.ndarray, dict[str, float]]:
        """Several steps of the three stages with the likeliest token fed back (see backends/protocol.py).

        Returns int32 [steps done, sequences] and seconds by stage. The tokens are those of single steps, bit for bit.
        """
        stages = (self._embed, self._layers, self._project)
        tokens, seconds = self.backend.greedy_steps(stages, ids, positions, cache.past, cache.tables, memory, steps,
                                                    vocab_size, ends, cache.regime, cache.lengths, cache.sources)
        return tokens, dict(zip(("embed", "decode", "project"), seconds, strict=True))

    def _stages(self) -> dict[str, list[blocks.Recorded]]:
        heads = [one for one in (self._project, self._pool, self._head, self._teacher) if one]
        return {"embed": [self._embed], "decode": [self._layers]} | ({"project": heads} if heads else {})

    def timings(self) -> dict[str, dict[str, float]]:
        """Seconds by stage and operation, counted while backend.timed is True. An encoder's two stages are "encode",
        all of a vision tower's "see"."""
        inner = self.encoder.timings() if self.encoder else {}
        encode = {"encode": inner["embed"] | inner["decode"]} if inner else {}
        if self.vision:
            encode["see"] = {op: time for stage in self.vision.timings().values() for op, time in stage.items()}
        return encode | {name: _added(stage.program.timings() for stage in stages)
                         for name, stages in self._stages().items()}

    def reset_timings(self) -> None:
        for stages in self._stages().values():
            for stage in stages:
                stage.program.reset_timings()
        for inner in (self.encoder, self.vision):
            if inner:
                inner.reset_timings()


def _added(timings: Iterable[dict[str, float]]) -> dict[str, float]:
    total: Counter[str] = Counter()
    for one in timings:
        total.update(one)
    return dict(total)


def _pair(spec: ModelSpec, weights: blocks.Weights) -> tuple[float, float]:
    bias = weights.vectors["pair.bias.weight"] if spec.contrast == "sigmoid" else [0.0]
    scale = float(weights.vectors["pair.scale.weight"][0])
    if scale > MAX_LOG_SCALE:
        raise ModelFileError(f"the model's logit_scale: expected a logarithm of at most {MAX_LOG_SCALE}, found "
                             f"{scale:g}; fetch the model again")
    return math.exp(scale), float(bias[0])
