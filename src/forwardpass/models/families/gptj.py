"""GPT-J and CodeGen: attention and MLP in parallel after one norm, rotary pairs of neighbours in part of each head.

CodeGen's matrix for q, k and v was split among four machines: each quarter has rows for q, v and k, in this order.
"""

from __future__ import annotations

from forwardpass.models import decoder, gguf_config, hf_config
from forwardpass.models.gguf_config import ROPE_TENSORS, GgufFields
from forwardpass.models.hf_config import HfFields
from forwardpass.models.hf_rope import Rope
from forwardpass.models.spec import ModelSpec
from forwardpass.models.weight_rows import WeightRow
from forwardpass.models.weight_tables import fused, interleaved, table_rows

ARCHITECTURES = {"gptj": ("GPTJForCausalLM",), "codegen": ("CodeGenForCausalLM",)}
GGUF = {"gptj": "gptj"}
IGNORED = {  # causal masks and tables of sines that old checkpoints kept
    "safetensors": (r"transformer\.h\.\d+\.attn\.(bias|masked_bias|causal_mask|embed_positions)",),
    "gguf": (ROPE_TENSORS,),
}
NAMES = {  # target: (safetensors, gguf)
    "embed.tokens": ("transformer.wte", "token_embd"),
    "attention_norm": ("transformer.h.{i}.ln_1", "blk.{i}.attn_norm"),
    "attention.q": ("transformer.h.{i}.attn.q_proj", "blk.{i}.attn_q"),
    "attention.k": ("transformer.h.{i}.attn.k_proj", "blk.{i}.attn_k"),
    "attention.v": ("transformer.h.{i}.attn.v_proj", "blk.{i}.attn_v"),
    "attention.out": ("transformer.h.{i}.attn.out_proj", "blk.{i}.attn_output"),
    "mlp.up": ("transformer.h.{i}.mlp.fc_in", "blk.{i}.ffn_up"),
    "mlp.down": ("transformer.h.{i}.mlp.fc_out", "blk.{i}.ffn_down"),
    "final_norm": ("transformer.ln_f", "output_norm"),
    "head": ("lm_head", "output"),
}
QVK, QUARTERS = ("attention.q", "attention.v", "attention.k"), 4
SHAPE = {"norm": "layer", "norm_bias": True, "mlp": "plain", "mlp_bias": True, "parallel": True, "shared_norm": True,
         "head_bias": True}


def from_config(f: HfFields) -> ModelSpec:
    n = hf_config.sizes(f, hidden="n_embd", heads="n_head", layers="n_layer", inner="n_inner", tied=False,
                        positions=("n_positions", 2048), act=("activation_function", "gelu_new"))
    if f.family == "codegen" and n["hidden"] % QUARTERS:
        f.wrong("n_embd", f"a multiple of {QUARTERS}", n["hidden"])
    dim = f.integer("rotary_dim", default=64, low=2)
    if dim > n["head_dim"] or dim % 2:
        f.wrong("rotary_dim", f"an even number of up to {n['head_dim']} dimensions of a head", dim)
    n["rotary"] = (Rope(10000.0).spec(dim, n["positions"]),) * n["layers"]
    return decoder.build(**n, **SHAPE)


def from_gguf(f: GgufFields) -> ModelSpec:
    return decoder.build(**gguf_config.decoder(f, eps="attention.layer_norm_epsilon", act="gelu_tanh"), **SHAPE)


def weight_rows(spec: ModelSpec, kind: str) -> tuple[WeightRow, ...]:
    if spec.family == "gptj":
        return tuple(interleaved(table_rows(spec, NAMES, kind), spec))
    names = NAMES | dict.fromkeys(QVK, ("transformer.h.{i}.attn.qkv_proj",))
    return tuple(interleaved(fused(table_rows(spec, names, kind), QVK, runs=QUARTERS), spec))
