"""A loaded model as three functions over arrays, one for each of the stages 2, 3 and 4."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from forwardpass.contracts import CacheView
from forwardpass.models import blocks
from forwardpass.models.cache_groups import cache_groups, cross_group
from forwardpass.models.regimes import regimes
from forwardpass.models.spec import ModelSpec


class Network:
    """spec, kv_dtype: what it is;  backend: where it runs.

    groups: its layers by what they share in the KV cache, () = they keep nothing and each text is computed whole;
    regimes: how its rotary factors follow a text's length;  encoder: the network that reads an encoder-decoder's source
    texts, else None. It writes into the KV memory of the decoder's last group, which is its only one.
    """

    def __init__(self, spec: ModelSpec, weights: blocks.Weights, backend, kv_dtype: str,
                 pair: tuple[ModelSpec, blocks.Weights] | None = None):
        """pair: of the encoder-decoder that `spec` is the encoder of."""
        self.spec = spec
        self.kv_dtype = kv_dtype
        self.backend = backend
        self.groups = (cross_group(pair[0]),) if pair else cache_groups(spec)
        self.regimes = regimes(spec)
        self._embed = blocks.record_embed(backend, spec, weights)
        self._layers = blocks.record_layers(backend, spec, weights, kv_dtype)
        if pair:
            blocks.record_sources(self._layers, *pair, kv_dtype)
        language, labels = spec.head.task == "lm", spec.head.task in ("labels", "tags")
        self._project = blocks.record_project(backend, spec, weights) if language else None
        self._head = blocks.record_head(backend, spec, weights) if labels else None
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
        """Scores float32 [rows, outputs] of the labels, for rows float32 [rows, hidden_size]: one for each text
        ("labels") or token ("tags"). Only of models with such a head."""
        scores = np.empty((rows.shape[0], self.spec.head.outputs), np.float32)
        stage = self._head
        stage.program.run(rows.shape[0], bound=[(stage.source, rows), (stage.out, scores)])
        return scores

    def greedy_steps(self, ids: np.ndarray, positions: np.ndarray, cache: CacheView, memory: Sequence[Any], steps: int,
                     vocab_size: int, ends: list[np.ndarray]) -> tuple[np.ndarray, dict[str, float]]:
        """Several steps of the three stages with the likeliest token fed back (see backends/protocol.py).

        Returns int32 [steps done, sequences] and seconds by stage. The tokens are those of single steps, bit for bit.
        """
        stages = (self._embed, self._layers, self._project)
        tokens, seconds = self.backend.greedy_steps(stages, ids, positions, cache.past, cache.tables, memory, steps,
                                                    vocab_size, ends, cache.regime, cache.lengths, cache.sources)
        return tokens, dict(zip(("embed", "decode", "project"), seconds, strict=True))

    def _stages(self) -> dict[str, blocks.Recorded]:
        stages = {"embed": self._embed, "decode": self._layers, "project": self._project or self._head}
        return {name: stage for name, stage in stages.items() if stage}

    def timings(self) -> dict[str, dict[str, float]]:
        """Seconds by stage and operation, counted while backend.timed is True. An encoder's two stages are "encode"."""
        inner = self.encoder.timings() if self.encoder else {}
        encode = {"encode": inner["embed"] | inner["decode"]} if inner else {}
        return encode | {name: stage.program.timings() for name, stage in self._stages().items()}

    def reset_timings(self) -> None:
        for stage in self._stages().values():
            stage.program.reset_timings()
        if self.encoder:
            self.encoder.reset_timings()
