"""GPT-NeoX and Pythia: attention and MLP in parallel, each after its own norm; rotary positions in part of each head;
q, k and v side by side for each head in one matrix. GGUF files hold q, k and v one after another."""

from __future__ import annotations

from forwardpass.models import decoder, gguf_config, hf_config
from forwardpass.models.gguf_config import ROPE_TENSORS, GgufFields
from forwardpass.models.hf_config import HfFields
from forwardpass.models.spec import ModelSpec
from forwardpass.models.weight_rows import WeightRow
from forwardpass.models.weight_tables import QKV, fused, table_rows

ARCHITECTURES = {"gpt_neox": ("GPTNeoXForCausalLM",)}
GGUF = {"gptneox": "gpt_neox"}
IGNORED = {  # causal masks and frequencies that old checkpoints kept
    "safetensors": (r"gpt_neox\.layers\.\d+\.attention\.(bias|masked_bias|rotary_emb\.inv_freq)",),
    "gguf": (ROPE_TENSORS,),
}
NAMES = {  # target: (safetensors, gguf)
    "embed.tokens": ("gpt_neox.embed_in", "token_embd"),
    "attention_norm": ("gpt_neox.layers.{i}.input_layernorm", "blk.{i}.attn_norm"),
    **dict.fromkeys(QKV, ("gpt_neox.layers.{i}.attention.query_key_value", "blk.{i}.attn_qkv")),
    "attention.out": ("gpt_neox.layers.{i}.attention.dense", "blk.{i}.attn_output"),
    "mlp_norm": ("gpt_neox.layers.{i}.post_attention_layernorm", "blk.{i}.ffn_norm"),
    "mlp.up": ("gpt_neox.layers.{i}.mlp.dense_h_to_4h", "blk.{i}.ffn_up"),
    "mlp.down": ("gpt_neox.layers.{i}.mlp.dense_4h_to_h", "blk.{i}.ffn_down"),
    "final_norm": ("gpt_neox.final_layer_norm", "output_norm"),
    "head": ("embed_out|lm_head", "output"),
}
SHAPE = {"norm": "layer", "norm_bias": True, "mlp": "plain"}


def from_config(f: HfFields) -> ModelSpec:
    n = hf_config.decoder(f, eps=("layer_norm_eps", 1e-5), act=("hidden_act", "gelu"), partial=0.25)
    if n["kv_heads"] != n["heads"]:
        f.wrong("num_key_value_heads", f"keys for each of {n['heads']} heads", n["kv_heads"])
    biases = f.flag("attention_bias", True)
    return decoder.build(**n, **SHAPE, qkv_bias=biases, out_bias=biases, mlp_bias=True,
                         parallel=f.flag("use_parallel_residual", True))


def from_gguf(f: GgufFields) -> ModelSpec:
    """The file does not say which GELU it is: Pythia's, the one without an approximation."""
    n = gguf_config.decoder(f, eps="attention.layer_norm_epsilon", act="gelu_erf")
    return decoder.build(**n, **SHAPE, **gguf_config.biases(f), parallel=f.flag("use_parallel_residual", True))


def weight_rows(spec: ModelSpec, kind: str) -> tuple[WeightRow, ...]:
    runs = spec.layers[0].attention.num_heads if kind == "safetensors" else 1
    return tuple(fused(table_rows(spec, NAMES, kind), QKV, runs=runs))
