"""Reads what encoders in BERT's shape share, and puts their names of weights together.

Their layers have norms after the additions, biases everywhere and a plain MLP; no position is hidden from any other. A
family says what its settings and tensors are called and what sets it apart.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from forwardpass.errors import UnsupportedModelError
from forwardpass.models import hf_config
from forwardpass.models.gguf_config import GgufFields
from forwardpass.models.hf_config import HfFields
from forwardpass.models.spec import HeadSpec, ModelSpec, NormSpec
from forwardpass.models.weight_rows import WeightRow
from forwardpass.models.weight_tables import table_rows

_OFF = (False, 0, "")
REFUSED = {  # setting: (values that mean "off", what it is)
    "is_decoder": (_OFF, "an encoder that is used as a decoder"),
    "position_embedding_type": (("absolute",), "this kind of positions"),
    "conv_kernel_size": (_OFF, "a convolution after the first layer"),
    "talking_head": (_OFF, "mixing of attention heads"),
}
SHAPE = {"norm": "layer", "norm_bias": True, "norms": "post", "mlp": "plain", "qkv_bias": True, "out_bias": True,
         "mlp_bias": True, "final": False}
"""Of BERT's layers, as models/decoder.py's build takes it."""
BUFFERS = (r"(.+\.)?(position_ids|token_type_ids)",)
"""Constants that old checkpoints kept (for IGNORED)."""


def read(f: HfFields, *, offset: int = 0, types: int | None = 2, learned: bool = True,
         eps: tuple[str, float] = ("layer_norm_eps", 1e-12), act: tuple[str, str] = ("hidden_act", "gelu"),
         positions: tuple[str, int] = ("max_position_embeddings", 512), **names) -> dict:
    """The numbers of an encoder in BERT's shape, under the names that models/decoder.py's build takes.

    offset: row of the position table of a text's first token. types: token types where type_vocab_size is absent, None
    = the family has no such setting. learned: whether there is a position table. eps, act, positions, names: settings
    and what absence means, see hf_config.sizes.
    """
    f.refuse_unread(REFUSED)
    if f.flag("is_causal", False):
        f.unsupported("is_causal", "an encoder that only looks back")
    n = hf_config.sizes(f, positions=positions, eps=eps, act=act, **names)
    if n["positions"] <= offset:
        f.wrong(positions[0], f"more than the {offset} rows before the first position", n["positions"])
    if learned:
        n |= {"learned_positions": n["positions"], "positions": n["positions"] - offset, "position_offset": offset}
    if types is not None:
        n["token_types"] = f.integer("type_vocab_size", default=types, low=0, high=1024)
    return n | SHAPE | {"attention": {"causal": False}, "embed_norm": norm(n)}


def read_gguf(f: GgufFields, n: dict) -> dict:
    """The same for a GGUF file. n: its sizes, as gguf_config reads them. The tensors tell what there is."""
    if f.flag("attention.causal", True):
        f.unsupported("attention.causal", "an encoder that only looks back")
    table = f.tensors.get("token_types.weight")
    if table is not None:
        n["token_types"] = int(table.shape[0])
    return n | SHAPE | {"attention": {"causal": False}, "embed_norm": norm(n)}


def head_gguf(f: GgufFields, n: dict, activation: str, dense_norm: NormSpec | None = None) -> dict:
    """The head of a GGUF file as fields of a ModelSpec: none, or labels of a reranker or classifier, read off the first
    token. The file does not name the activation."""
    f.get("classifier.output_labels")
    output, dense = f.tensors.get("cls.output.weight"), f.tensors.get("cls.weight")
    if output is None and dense is None:
        return {"head": HeadSpec("none"), "tied": False}
    if output is None or dense is None:
        raise UnsupportedModelError(f"GGUF tensors: expected a classifier of two layers, cls.weight and "
                                    f"cls.output.weight, found {'the second' if output else 'the first'} alone; the "
                                    "other was lost in conversion: use the original checkpoint")
    head = HeadSpec("labels", int(output.shape[0]), "first", n["hidden"], "cls.bias" in f.tensors, activation,
                    dense_norm)
    return {"head": head, "head_bias": "cls.output.bias" in f.tensors, "tied": False}


def narrow(f: HfFields, n: dict, always: bool = False) -> dict:
    """The same with tokens, positions and types that may be narrower than the layers (embedding_size): then a product
    with a bias comes after their norm. always: also where they are not narrower."""
    size = f.integer("embedding_size", default=128)
    narrows = always or size != n["hidden"]
    return n | ({"embed_size": size, "project_last": True, "project_bias": True} if narrows else {})


def norm(n: dict) -> NormSpec:
    """The norm that such an encoder has everywhere."""
    return NormSpec("layer", n["eps"], bias=True)


def transform(n: dict, activation: str = "") -> dict:
    """What BERT's fill-mask head does before the product with the token table, for hf_heads.head. activation: "" = that
    of the layers."""
    return {"dense": n.get("embed_size") or n["hidden"], "activation": activation or n["act"], "dense_norm": norm(n)}


def rows(spec: ModelSpec, kind: str, names: Mapping[str, tuple[str, str]],
         heads: Mapping[str, Mapping[str, tuple[str, str]]], prefixes: Iterable[str]) -> tuple[WeightRow, ...]:
    """The rows of one kind of checkpoint. names: of the layers, which models with a head put one of `prefixes` before,
    "|" between spellings; heads: of the head, by its task. Also with the first published names of norms."""
    starts = (*prefixes, "")
    table = {target: ("|".join(start + one for start in starts for one in stored.split("|")), packed)
             for target, (stored, packed) in names.items()}
    return tuple(replace(row, sources=tuple(_spellings(row.sources)))
                 for row in table_rows(spec, table | heads.get(spec.head.task, {}), kind))


def _spellings(sources: Iterable[str]) -> list[str]:
    """Each name, and where it is that of a norm's weight or bias also as gamma or beta."""
    sources = list(sources)
    norms = [name for name in sources if re.search(r"LayerNorm\.(weight|bias)$", name)]
    return sources + [name.replace(".weight", ".gamma").replace(".bias", ".beta") for name in norms]
