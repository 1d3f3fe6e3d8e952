"""Networks of random weights, and texts that are computed by them step by step."""

from __future__ import annotations

import numpy as np

from forwardpass.backends import native
from forwardpass.contracts import PAGE, CacheView
from forwardpass.models.blocks import Weights
from forwardpass.models.network import Network
from forwardpass.models.weight_rows import HEAD, is_matrix
from kernel_tools import pack_floats


def network(spec, weights, threads=1, format="F32", kv_dtype="float32", isa=None):
    """format: of all matrices but the tables and the router."""
    return Network(spec, packed(weights, format), native.NativeBackend(threads, isa), kv_dtype)


def packed(weights, format="F32"):
    kept = ("embed.positions", "embed.tokens", "embed.types", "embed.relative.", "router", HEAD)
    matrices = {name: pack_floats("F32" if any(part in name for part in kept) else format, array).matrix()
                for name, array in weights.items() if is_matrix(name, array.shape)}
    return Weights(matrices, {name: array for name, array in weights.items() if name not in matrices})


def joined(texts):
    """(int32 tokens, positions, starts) of texts side by side."""
    starts = np.cumsum([0] + [len(ids) for ids in texts])
    rows = np.concatenate(texts), np.concatenate([np.arange(len(ids)) for ids in texts]), starts
    return tuple(np.ascontiguousarray(one, np.int32) for one in rows)


def encode(net, texts, types=None):
    """Hidden states float32 [tokens, hidden] of texts that are computed whole, all in one run."""
    ids, positions, starts = joined(texts)
    types = None if types is None else np.ascontiguousarray(np.concatenate(types), np.int32)
    return net.layers(net.embed(ids, positions, types), positions, starts)


def block_tables(texts):
    """int32 [texts, blocks]: a block for every 64 tokens, the last numbers first."""
    blocks = [-(-len(one) // PAGE) for one in texts]
    tables = np.zeros((len(texts), max(blocks)), np.int32)
    numbers = iter(reversed(range(sum(blocks))))
    for row, count in enumerate(blocks):
        tables[row, :count] = [next(numbers) for _ in range(count)]
    return tables


class Texts:
    """The cache of some texts, and their logits step by step. sources: what the encoder of a pair reads of each."""

    def __init__(self, net, ids, sources=None):
        self.net, self.ids, self.sources, self.past = net, ids, sources, [0] * len(ids)
        own = block_tables(ids)
        each = [own] * (len(net.groups) - bool(sources)) + ([block_tables(sources)] if sources else [])
        self.memory = net.kv_memory([int(table.max()) + 1 for table in each])
        width = max(table.shape[1] for table in each)
        self.tables = np.stack([np.pad(table, ((0, 0), (0, width - table.shape[1]))) for table in each])
        if sources:
            self.encode(range(len(ids)))

    def encode(self, who):
        """The sources of some texts, in one run: their final hidden states."""
        ids, positions, starts = joined([self.sources[i] for i in who])
        encoder, view = self.net.encoder, CacheView(np.zeros(len(starts) - 1, np.int32), self.chosen(who)[-1:])
        return encoder.layers(encoder.embed(ids, positions), positions, starts, view, self.memory[-1:])

    def chosen(self, who):
        return np.ascontiguousarray(self.tables[:, list(who)])

    def view(self, past, who):
        lengths = self.sources and np.array([len(self.sources[i]) for i in who], np.int32)
        return CacheView(np.array(past, np.int32), self.chosen(who), sources=lengths)

    def step(self, counts):
        """Logits float32 [rows, vocab] of the next so many tokens of each text (0 = it sits out)."""
        who = [i for i, count in enumerate(counts) if count]
        past = [self.past[i] for i in who]
        ids, positions, starts = joined([self.ids[i][self.past[i] : self.past[i] + counts[i]] for i in who])
        positions += np.repeat(np.array(past, np.int32), np.diff(starts))
        self.past = [p + count for p, count in zip(self.past, counts, strict=True)]
        out = self.net.layers(self.net.embed(ids, positions), positions, starts, self.view(past, who), self.memory)
        return self.net.project(out, np.arange(len(ids), dtype=np.int32))


def whole(net, ids, source=None):
    return Texts(net, [ids], source if source is None else [source]).step([len(ids)])


def tokens(count, seed=0, vocabulary=50):
    return np.random.default_rng(seed).integers(0, vocabulary, count)
