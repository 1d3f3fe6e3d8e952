"""Reads the architecture settings of a GGUF file's metadata.

A setting that is neither read by the family nor known to be without effect stops the loading (see registry.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from forwardpass.errors import ModelFileError
from forwardpass.models.fields import Fields, show
from forwardpass.models.hf_rope import FULL, SLIDING, Rope
from forwardpass.models.spec import MAX_HEAD_DIM, MAX_LAYERS, MAX_SIZE, ExpertsSpec, RotarySpec

WITHOUT_EFFECT = {"vocab_size", "rope.scaling.finetuned", "rope.scaling.original_context_length", "pooling_type"}
_OFF = (False, 0, "", "none")
REFUSED = {  # setting that no family may leave unread: (values that mean "off", what it is)
    "rope.scaling.type": (_OFF, "a rotary scaling in this family"),
    "rope.scaling.factor": ((0, 1), "a rotary scaling in this family"),
    "rope.scale_linear": ((0, 1), "a rotary scaling in this family"),
    "rope.scaling.attn_factor": ((0, 1), "a rotary scaling in this family"),
    "attention.sliding_window": (_OFF, "a sliding attention window in this family"),
    "attention.causal": ((True,), "attention that looks ahead"),
    "attention.clamp_kqv": (_OFF, "clamped projections in this family"),
    "attention.max_alibi_bias": (_OFF, "ALiBi positions in this family"),
    "attention.scale": (_OFF, "a custom attention scale in this family"),
    "attention.temperature_scale": (_OFF, "an attention scale that grows with the position"),
    "attn_logit_softcapping": (_OFF, "attention soft-capping in this family"),
    "final_logit_softcapping": (_OFF, "logit soft-capping in this family"),
    "expert_count": (_OFF, "a mixture of experts in this family"),
    "expert_used_count": (_OFF, "a mixture of experts in this family"),
    "expert_shared_count": (_OFF, "a shared expert in this family"),
    "expert_gating_func": ((0, 1), "a router other than softmax"),
    "expert_weights_scale": ((0, 1), "scaled experts"),
    "leading_dense_block_count": (_OFF, "leading layers without experts"),
    "nextn_predict_layers": (_OFF, "layers that predict further tokens"),
    "use_parallel_residual": (_OFF, "a parallel residual in this family"),
    "logit_scale": ((1,), "scaled logits in this family"),
    "residual_scale": ((1,), "scaled residuals in this family"),
    "embedding_scale": ((1,), "scaled embeddings in this family"),
    "tensor_data_layout": ((*_OFF, "Meta AI original pth"), "this tensor layout"),
}
ROPE_TENSORS = r"rope_freqs\.weight|rope_factors_(long|short)\.weight"
"""They are read when the spec is built and are no weights (for IGNORED)."""


class GgufFields(Fields):
    """The settings under an architecture's prefix and the file's tensors, for the family named `family`.

    vector: reads a small tensor of floats by name.
    """

    lists = True

    def __init__(self, metadata: Mapping, tensors: Mapping, architecture: str, family: str,
                 vector: Callable[[str], np.ndarray]) -> None:
        super().__init__(metadata, "GGUF metadata", prefix=f"{architecture}.")
        self.family, self.tensors = family, tensors
        self._vector = vector

    def vector(self, name: str) -> np.ndarray | None:
        """The values of a small tensor, or None if there is no such tensor."""
        info = self.tensors.get(name)
        if info is None:
            return None
        if len(info.shape) != 1 or info.shape[0] > MAX_HEAD_DIM:
            raise ModelFileError(f"GGUF tensor {name}: expected one number for each rotary frequency, found "
                                 f"{list(info.shape)}; fetch or convert the model again")
        return self._vector(name)

    def per_layer(self, name: str, layers: int) -> list[int] | None:
        """A list of one number a layer, or None where the setting is absent or a single number."""
        value = self.get(name)
        value = value.tolist() if hasattr(value, "tolist") else value
        if not isinstance(value, list):
            return None
        if len(value) != layers:
            self.wrong(name, f"a list of {layers}, one for each layer", value)
        return [int(one) if isinstance(one, bool) else self._whole(name, one, 0, MAX_SIZE) for one in value]


def vocab_size(fields: GgufFields) -> int:
    """Rows of the embedding table: `vocab_size`, else the token list's length, else the table's own."""
    tokens = fields.values.get("tokenizer.ggml.tokens")
    if tokens is not None and not hasattr(tokens, "__len__"):
        raise ModelFileError(f"GGUF metadata: tokenizer.ggml.tokens: expected a list, found {show(tokens)}; "
                             "fetch the model again")
    count = None if tokens is None else len(tokens)
    table = fields.tensors.get("token_embd.weight")
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
    return dim


def sizes(fields: GgufFields, eps: str) -> dict:
    """The numbers every decoder has, under the names that the families' build functions take."""
    hidden, heads = fields.integer("embedding_length"), fields.integer("attention.head_count")
    return {
        "family": fields.family, "vocab": vocab_size(fields), "hidden": hidden, "heads": heads,
        "layers": fields.integer("block_count", high=MAX_LAYERS),
        "kv_heads": fields.integer("attention.head_count_kv", default=heads),
        "head_dim": head_dim(fields, hidden, heads),
        "inner": fields.integer("feed_forward_length"), "positions": fields.integer("context_length"),
        # rounded to float32, as it is used, so that GGUF and HF give the same spec
        "eps": float(np.float32(fields.number(eps, low=1e-13, high=0.1))),
        "tied": "output.weight" not in fields.tensors,
    }


def unrotated(fields: GgufFields, act: str) -> dict:
    """The numbers of a decoder without rotary positions and windows, under the names that models/decoder.py's build
    takes."""
    numbers = sizes(fields, "attention.layer_norm_epsilon")
    return numbers | {"act": act, "windows": (0,) * numbers["layers"], "rotary": (None,) * numbers["layers"]}


def rope(fields: GgufFields, positions: int) -> Rope:
    """The base and the scaling that the metadata describe. Factors that lie in tensors come later (`rotary`)."""
    base = fields.number("rope.freq_base", default=10000.0, low=1, high=1e12)
    kind = fields.text("rope.scaling.type", "linear")
    if kind not in ("none", "linear", "yarn", "longrope"):
        fields.unsupported("rope.scaling.type", "a rotary scaling other than none, linear, yarn and longrope")
    factor = fields.number("rope.scaling.factor", "rope.scale_linear", default=0.0, low=0, high=1e6) or 1.0
    trained = fields.integer("rope.scaling.original_context_length", default=positions)
    if kind == "yarn":
        scaling = {"rope_type": kind, "original_max_position_embeddings": trained, "factor": factor}
        for key, ours in (("yarn_attn_factor", "attention_factor"), ("yarn_beta_fast", "beta_fast"),
                          ("yarn_beta_slow", "beta_slow")):
            if fields.has(f"rope.scaling.{key}"):
                scaling[ours] = fields.number(f"rope.scaling.{key}", low=1e-3, high=1e6)
    else:
        scaling = {"rope_type": kind, "factor": factor} if kind == "linear" and factor != 1 else None
    return Rope(base, scaling=scaling, where=fields.where)


def rotary(fields: GgufFields, one: Rope, dim: int, positions: int) -> RotarySpec:
    """Rotary positions with the divisors of frequencies that the file may keep in tensors: for short and long texts
    (longrope), or for all (llama3)."""
    long, short = fields.vector("rope_factors_long.weight"), fields.vector("rope_factors_short.weight")
    if (long is None) != (short is None):
        raise ModelFileError("GGUF tensors: expected both rope_factors_long.weight and rope_factors_short.weight or "
                             "neither, found one of them; fetch or convert the model again")
    if long is not None:
        trained = fields.integer("rope.scaling.original_context_length", default=positions)
        scaling = {"rope_type": "longrope", "long_factor": long.tolist(), "short_factor": short.tolist(),
                   "original_max_position_embeddings": trained}
        if fields.has("rope.scaling.attn_factor"):
            scaling["attention_factor"] = fields.number("rope.scaling.attn_factor", low=1e-3, high=1e3)
        return replace(one, scaling=scaling, where="GGUF tensors rope_factors_*.weight").spec(dim, positions)
    divisors = fields.vector("rope_freqs.weight")
    one = one if divisors is None else replace(one, where="GGUF tensor rope_freqs.weight")
    return one.spec(dim, positions, divisors)


def sliding(fields: GgufFields, layers: int, slides: Callable[[int], bool] | None, first: bool) -> tuple[bool, ...]:
    """Which layers have the window: `sliding_window_pattern` (a flag a layer, or of every n one is full), else
    `slides`. first: of n layers the first is the full one, not the last."""
    flags = fields.per_layer("attention.sliding_window_pattern", layers)
    if flags is not None:
        return tuple(bool(flag) for flag in flags)
    period = fields.integer("attention.sliding_window_pattern", default=None, low=0)
    if period is not None:
        return tuple(period == 0 or (i if first else i + 1) % period != 0 for i in range(layers))
    return tuple(bool(slides and slides(i)) for i in range(layers))


def decoder(fields: GgufFields, *, eps: str = "attention.layer_norm_rms_epsilon", act: str = "silu",
            slides: Callable[[int], bool] | None = None, rotates: Callable[[int, str], bool] = lambda i, kind: True,
            local_theta: float | None = None, both_sides: bool = False, first: bool = False) -> dict:
    """The numbers of a rotary decoder, under the names that models/decoder.py's build takes.

    slides: which layers have the window, None = none has one; first: see `sliding`. rotates: which, by number and type,
    have positions at all. local_theta: the base of layers with a window where they have their own, without the scaling
    of the others. both_sides: the file counts a window's keys before and after the token together.
    """
    numbers = sizes(fields, eps)
    layers, width, trained = numbers["layers"], numbers["head_dim"], numbers["positions"]
    dim = fields.integer("rope.dimension_count", default=width, low=2, high=width)
    one = rope(fields, trained)
    context = trained if local_theta else one.reach(trained)
    window = fields.integer("attention.sliding_window", default=0, low=0) if slides else 0
    window = window // 2 + 1 if both_sides and window else window
    types = [SLIDING if cut else FULL for cut in sliding(fields, layers, slides if window else None, first)]
    local = whole = rotary(fields, one, dim, trained)
    if local_theta:
        base = fields.number("rope.freq_base_swa", default=local_theta, low=1, high=1e12)
        local = Rope(base).spec(dim, trained)
    return numbers | {
        "act": act, "positions": context,
        "windows": tuple(window if kind == SLIDING and window < context else 0 for kind in types),
        "rotary": tuple((local if kind == SLIDING else whole) if rotates(i, kind) else None
                        for i, kind in enumerate(types)),
    }


def experts(fields: GgufFields, *, normalise: bool, shared_gate: bool = False) -> dict:
    """What models/decoder.py's build takes for experts; nothing where the file has none.

    Old files lack the widths: then the tensors tell them.
    """
    count = fields.integer("expert_count", default=0, low=0)
    if not count:
        return {}
    widths = [tuple(info.shape)[-2:-1] if info else () for info in (
        fields.tensors.get(f"blk.0.ffn_gate_{kind}.weight") for kind in ("exps", "shexp"))]
    inner, shared = (fields.integer(name, default=int(width[0]) if width else 0, low=0) for name, width in zip(
        ("expert_feed_forward_length", "expert_shared_feed_forward_length"), widths, strict=True))
    spec = ExpertsSpec(count, fields.integer("expert_used_count"), fields.flag("expert_weights_norm", normalise),
                       shared, shared_gate and shared > 0)
    return {"experts": spec, "expert_inner": inner}


def biases(fields: GgufFields) -> dict:
    """Which linear layers have a bias, as the first layer's tensors tell."""
    names = {"qkv_bias": ("attn_q", "attn_qkv"), "out_bias": ("attn_output",), "mlp_bias": ("ffn_up",)}
    return {ours: any(f"blk.0.{name}.bias" in fields.tensors for name in theirs) for ours, theirs in names.items()}
