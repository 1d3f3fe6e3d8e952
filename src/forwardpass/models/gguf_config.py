"""Reads the architecture settings of a GGUF file's metadata. Unknown settings stop here."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from forwardpass.errors import ModelFileError, UnsupportedModelError
from forwardpass.models.fields import Fields, show
from forwardpass.models.spec import MAX_LAYERS

KNOWN = {  # read by the families or without effect on the result
    "vocab_size", "context_length", "embedding_length", "block_count", "feed_forward_length",
    "attention.head_count", "attention.head_count_kv", "attention.key_length", "attention.value_length",
    "attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon",
    "rope.dimension_count", "rope.freq_base", "rope.scaling.original_context_length",
}
_OFF = (False, 0, "", "none")
REFUSED = {  # setting: (values that mean "off", what it is)
    "rope.scaling.type": (_OFF, "a rotary scaling"),
    "rope.scaling.factor": ((0, 1), "a rotary scaling"),
    "rope.scale_linear": ((0, 1), "a rotary scaling"),
    "rope.scaling.attn_factor": ((0, 1), "a rotary scaling"),
    "rope.scaling.finetuned": (_OFF, "a rotary scaling"),
    "attention.sliding_window": (_OFF, "a sliding attention window"),
    "attention.causal": ((True,), "attention that looks ahead"),
    "attention.clamp_kqv": (_OFF, "clamped projections"),
    "attention.max_alibi_bias": (_OFF, "ALiBi positions"),
    "attention.scale": (_OFF, "a custom attention scale"),
    "expert_count": (_OFF, "a mixture of experts"),
    "expert_used_count": (_OFF, "a mixture of experts"),
    "use_parallel_residual": (_OFF, "a parallel residual"),
    "logit_scale": ((1,), "scaled logits"),
    "residual_scale": ((1,), "scaled residuals"),
    "embedding_scale": ((1,), "scaled embeddings"),
    "pooling_type": (_OFF, "a model that embeds instead of generating"),
    "tensor_data_layout": ((*_OFF, "Meta AI original pth"), "this tensor layout"),
}
REFUSED_TENSORS = {
    "rope_freqs.weight": "rotary frequency factors (a rotary scaling)",
    "rope_factors_long.weight": "rotary frequency factors (a rotary scaling)",
    "rope_factors_short.weight": "rotary frequency factors (a rotary scaling)",
    "blk.0.ffn_gate_inp.weight": "a mixture of experts",
}


def fields_of(metadata: Mapping, tensors: Mapping, architecture: str) -> Fields:
    """The settings under `architecture`, with everything refused that the engine does not compute."""
    general = Fields(metadata, "GGUF metadata")
    if general.text("general.architecture") != architecture:
        general.wrong("general.architecture", repr(architecture), general.get("general.architecture"))
    fields = Fields(metadata, "GGUF metadata", prefix=f"{architecture}.")
    fields.refuse(REFUSED)
    fields.only(KNOWN | REFUSED.keys())
    for name, what in REFUSED_TENSORS.items():
        if name in tensors:
            raise UnsupportedModelError(f"tensor {name}: {what} is not implemented; use a model without it")
    return fields


def vocab_size(fields: Fields, tensors: Mapping) -> int:
    """Rows of the embedding table: `vocab_size`, else the token list's length, else the table's own."""
    tokens = fields.values.get("tokenizer.ggml.tokens")
    if tokens is not None and not hasattr(tokens, "__len__"):
        raise ModelFileError(f"GGUF metadata: tokenizer.ggml.tokens: expected a list, found {show(tokens)}; "
                             "fetch the model again")
    count = None if tokens is None else len(tokens)
    table = tensors.get("token_embd.weight")
    rows = int(table.shape[0]) if table is not None and len(table.shape) == 2 else None
    size = fields.integer("vocab_size", default=count or rows)
    if size is None:
        fields.integer("vocab_size")
    if count is not None and count > size:
        fields.wrong("vocab_size", f"at least {count} (the length of the token list)", size)
    return size


def head_dim(fields: Fields, hidden_size: int, heads: int) -> int:
    """Width of one head: `attention.key_length`, or the hidden size divided among the heads."""
    if not fields.has("attention.key_length") and hidden_size % heads:
        fields.wrong("attention.head_count", f"a divisor of the hidden size {hidden_size}", heads)
    dim = fields.integer("attention.key_length", default=hidden_size // heads)
    if fields.integer("attention.value_length", default=dim) != dim:
        fields.unsupported("attention.value_length", f"a value width other than the key width {dim}")
    if fields.integer("rope.dimension_count", default=dim) != dim:
        fields.unsupported("rope.dimension_count", f"rotating only part of each head ({dim} wide)")
    return dim


def sizes(metadata: Mapping, tensors: Mapping, architecture: str, eps: str) -> dict:
    """The numbers every decoder has, under the names that the families' build functions take."""
    fields = fields_of(metadata, tensors, architecture)
    hidden, heads = fields.integer("embedding_length"), fields.integer("attention.head_count")
    return {
        "vocab": vocab_size(fields, tensors), "hidden": hidden, "heads": heads,
        "layers": fields.integer("block_count", high=MAX_LAYERS),
        "kv_heads": fields.integer("attention.head_count_kv", default=heads),
        "head_dim": head_dim(fields, hidden, heads),
        "inner": fields.integer("feed_forward_length"), "positions": fields.integer("context_length"),
        # rounded to float32, as it is used, so that GGUF and HF give the same spec
        "eps": float(np.float32(fields.number(eps, low=1e-12, high=0.1))),
        "tied": "output.weight" not in tensors,
    }


def decoder(metadata: Mapping, tensors: Mapping, architecture: str) -> dict:
    """The numbers of a rotary, gated decoder (llama and its kin)."""
    numbers = sizes(metadata, tensors, architecture, "attention.layer_norm_rms_epsilon")
    fields = Fields(metadata, "GGUF metadata", prefix=f"{architecture}.")
    return numbers | {"theta": fields.number("rope.freq_base", default=10000.0, low=1, high=1e12)}
