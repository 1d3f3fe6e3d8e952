"""MPT: ALiBi, q, k and v one after another in one matrix, mostly without any bias; some clip or normalise q, k and v.

This is the model as its authors published it: transformers' class ignores qk_ln, no_bias, logit_scale, alibi: false
and an alibi_bias_max other than 8.
"""

from __future__ import annotations

from forwardpass.models import decoder, gguf_config, hf_config
from forwardpass.models.alibi import alibi_slopes
from forwardpass.models.fields import Fields
from forwardpass.models.gguf_config import GgufFields
from forwardpass.models.hf_config import HfFields
from forwardpass.models.spec import ModelSpec
from forwardpass.models.weight_rows import WeightRow
from forwardpass.models.weight_tables import QKV, fused, table_rows

ARCHITECTURES = {"mpt": ("MptForCausalLM", "MPTForCausalLM")}
GGUF = {"mpt": "mpt"}
IGNORED: dict[str, tuple[str, ...]] = {"safetensors": (), "gguf": ()}
NAMES = {  # target: (safetensors, gguf)
    "embed.tokens": ("transformer.wte", "token_embd"),
    "embed.positions": ("transformer.wpe", "position_embd"),
    "attention_norm": ("transformer.blocks.{i}.norm_1", "blk.{i}.attn_norm"),
    **dict.fromkeys(QKV, ("transformer.blocks.{i}.attn.Wqkv", "blk.{i}.attn_qkv")),
    "attention.q_norm": ("transformer.blocks.{i}.attn.q_ln", "blk.{i}.attn_q_norm"),
    "attention.k_norm": ("transformer.blocks.{i}.attn.k_ln", "blk.{i}.attn_k_norm"),
    "attention.out": ("transformer.blocks.{i}.attn.out_proj", "blk.{i}.attn_output"),
    "mlp_norm": ("transformer.blocks.{i}.norm_2", "blk.{i}.ffn_norm"),
    "mlp.up": ("transformer.blocks.{i}.ffn.up_proj", "blk.{i}.ffn_up"),
    "mlp.down": ("transformer.blocks.{i}.ffn.down_proj", "blk.{i}.ffn_down"),
    "final_norm": ("transformer.norm_f", "output_norm"),
    "head": ("lm_head", "output"),
}
_OFF = (False,)
REFUSED = {  # in attn_config: (values that are computed, what another would be)
    "attn_type": (("multihead_attention",), "another attention"), "prefix_lm": (_OFF, "attention that looks ahead"),
    "rope": (_OFF, "rotary positions in this family"), "sliding_window_size": ((-1,), "a window in this family"),
    "qk_gn": (_OFF, "grouped norms of queries and keys"),
}


def from_config(f: HfFields) -> ModelSpec:
    n = hf_config.sizes(f, hidden="d_model", heads="n_heads", layers="n_layers",
                        positions=("max_seq_len", 2048))
    n["act"], n["inner"] = "gelu_erf", f.integer("expansion_ratio", default=4, high=64) * n["hidden"]
    if f.text("norm_type", "low_precision_layernorm") not in ("low_precision_layernorm", "layernorm"):
        f.unsupported("norm_type", "a norm other than layernorm")
    a = f.get("attn_config") or {}
    if not isinstance(a, dict):
        f.wrong("attn_config", "an object", a)
    a = Fields(a, "config.json: attn_config")
    a.refuse_unread(REFUSED)
    if f.get("logit_scale") == "inv_sqrt_d_model":
        n["logit_scale"] = n["hidden"] ** -0.5
    else:
        n["logit_scale"] = f.number("logit_scale", default=1.0, low=1e-9, high=1e9)
    biases = not f.flag("no_bias", True)
    return _build(n, bias_max=a.number("alibi_bias_max", default=8, low=1e-3, high=1e3) if a.flag("alibi", True) else 0,
                  scale=a.number("softmax_scale", default=None, low=1e-9, high=1e9),
                  clip_qkv=a.number("clip_qkv", default=0.0, low=0, high=1e9), normed=a.flag("qk_ln", False),
                  norm_bias=biases, qkv_bias=biases, out_bias=biases, mlp_bias=biases)


def from_gguf(f: GgufFields) -> ModelSpec:
    return _build(gguf_config.unrotated(f, "gelu_erf"), **gguf_config.biases(f),
                  bias_max=f.number("attention.max_alibi_bias", default=0.0, low=0, high=1e3),
                  clip_qkv=f.number("attention.clamp_kqv", default=0.0, low=0, high=1e9),
                  normed="blk.0.attn_q_norm.weight" in f.tensors, norm_bias="blk.0.attn_norm.bias" in f.tensors)


def _build(n: dict, *, bias_max: float, normed: bool, norm_bias: bool, **more) -> ModelSpec:
    """Models without ALiBi have learned positions."""
    return decoder.build(**n, **more, norm="layer", norm_bias=norm_bias, mlp="plain",
                         alibi=alibi_slopes(n["heads"], bias_max) if bias_max else (),
                         learned_positions=0 if bias_max else n["positions"],
                         qk_norm="all" if normed else "", qk_norm_bias=norm_bias)


def weight_rows(spec: ModelSpec, kind: str) -> tuple[WeightRow, ...]:
    return tuple(fused(table_rows(spec, NAMES, kind), QKV))
