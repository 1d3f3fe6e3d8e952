"""Falcon: one matrix in which each key-value head follows its queries, and a GELU MLP.

7B has one key-value head; attention and MLP are parallel after one norm. 40B and later (new_decoder_architecture) have
several, and two norms or one. The RW models have ALiBi and ordinary layers. In GGUF files q, k and v follow one
another, and where there are two norms "attn_norm" is that of the MLP.
"""

from __future__ import annotations

from forwardpass.models import decoder, gguf_config, hf_config, hf_rope
from forwardpass.models.alibi import alibi_slopes
from forwardpass.models.gguf_config import ROPE_TENSORS, GgufFields
from forwardpass.models.hf_config import HfFields
from forwardpass.models.hf_rope import FULL
from forwardpass.models.spec import ModelSpec
from forwardpass.models.weight_rows import WeightRow
from forwardpass.models.weight_tables import QKV, fused, table_rows

ARCHITECTURES = {"falcon": ("FalconForCausalLM", "RWForCausalLM")}
GGUF = {"falcon": "falcon"}
IGNORED = {"safetensors": (r"transformer\.h\.\d+\.self_attention\.rotary_emb\.inv_freq",), "gguf": (ROPE_TENSORS,)}
NAMES = {  # target: (safetensors, gguf)
    "embed.tokens": ("transformer.word_embeddings", "token_embd"),
    "attention_norm": ("transformer.h.{i}.input_layernorm", "blk.{i}.attn_norm"),
    **dict.fromkeys(QKV, ("transformer.h.{i}.self_attention.query_key_value", "blk.{i}.attn_qkv")),
    "attention.out": ("transformer.h.{i}.self_attention.dense", "blk.{i}.attn_output"),
    "mlp_norm": ("transformer.h.{i}.post_attention_layernorm", "blk.{i}.ffn_norm"),
    "mlp.up": ("transformer.h.{i}.mlp.dense_h_to_4h", "blk.{i}.ffn_up"),
    "mlp.down": ("transformer.h.{i}.mlp.dense_4h_to_h", "blk.{i}.ffn_down"),
    "final_norm": ("transformer.ln_f", "output_norm"),
    "head": ("lm_head", "output"),
}
TWO_NORMS = {
    "attention_norm": ("transformer.h.{i}.ln_attn", "blk.{i}.attn_norm_2"),
    "mlp_norm": ("transformer.h.{i}.ln_mlp", "blk.{i}.attn_norm"),
}
SHAPE = {"norm": "layer", "norm_bias": True, "mlp": "plain"}


def from_config(f: HfFields) -> ModelSpec:
    """Settings of the old architecture are left over in files of the new one, and the other way round."""
    n = hf_config.sizes(f, hidden="n_embed", heads="n_head", layers="n_layer", inner="ffn_hidden_size",
                        act=("activation", "gelu"))
    new = f.flag("new_decoder_architecture", False)
    kv, multi_query = f.integer("num_kv_heads", "n_head_kv", default=n["heads"]), f.flag("multi_query", True)
    if not new and not multi_query and kv != n["heads"]:
        f.wrong("num_kv_heads", f"{n['heads']}, one for each head", kv)
    n["kv_heads"] = kv if new else 1 if multi_query else n["heads"]
    parallel = f.flag("parallel_attn", True) or new
    norms = f.integer("num_ln_in_parallel_attn", default=2 if new else 1, high=2)
    if norms == 2 and not new:
        f.wrong("num_ln_in_parallel_attn", "1, since new_decoder_architecture is false", norms)
    rope = hf_rope.ropes(f)[FULL]
    if f.flag("alibi", False):
        if rope.scaling:
            f.wrong("rope_parameters", "no rotary scaling, since alibi is true", rope.scaling)
        # The bias joins the scores before they are scaled. (transformers also rounds it to bfloat16 at each position.)
        n["alibi"] = tuple(slope * n["head_dim"] ** -0.5 for slope in alibi_slopes(n["heads"]))
    else:
        n["rotary"] = (rope.spec(n["head_dim"], n["positions"]),) * n["layers"]
        n["positions"] = rope.reach(n["positions"])
    biases = f.flag("bias", False)
    return decoder.build(**n, **SHAPE, qkv_bias=biases, out_bias=biases, mlp_bias=biases, parallel=parallel,
                         shared_norm=parallel and norms == 1)


def from_gguf(f: GgufFields) -> ModelSpec:
    if f.text("tensor_data_layout", "jploski") != "jploski":
        f.unsupported("tensor_data_layout", "this tensor layout")
    n = gguf_config.decoder(f, eps="attention.layer_norm_epsilon", act="gelu_erf")
    return decoder.build(**n, **SHAPE, parallel=True, shared_norm="blk.0.attn_norm_2.weight" not in f.tensors)


def weight_rows(spec: ModelSpec, kind: str) -> tuple[WeightRow, ...]:
    layer = spec.layers[0]
    names = NAMES | (TWO_NORMS if layer.parallel and layer.mlp_norm else {})
    runs = layer.attention.num_kv_heads if kind == "safetensors" else 1
    return tuple(fused(table_rows(spec, names, kind), QKV, runs=runs))
