"""Cohere's Command R and R7B: layer norms without bias, attention and MLP in parallel after one norm, scaled logits.

Rotary pairs are neighbours, in checkpoints as in GGUF files. Command R+ normalises queries and keys, each head with
weights of its own. R7B (cohere2) has windows in three of four layers and no positions in the fourth.
"""

from __future__ import annotations

from forwardpass.models import decoder, gguf_config, hf_config
from forwardpass.models.families import llama
from forwardpass.models.gguf_config import ROPE_TENSORS, GgufFields
from forwardpass.models.hf_config import HfFields
from forwardpass.models.hf_rope import SLIDING
from forwardpass.models.spec import ModelSpec
from forwardpass.models.weight_rows import WeightRow
from forwardpass.models.weight_tables import by_head, interleaved, table_rows

ARCHITECTURES = {"cohere": ("CohereForCausalLM",), "cohere2": ("Cohere2ForCausalLM",)}
GGUF = {"command-r": "cohere", "cohere2": "cohere2"}
IGNORED = {"safetensors": llama.IGNORED["safetensors"], "gguf": (ROPE_TENSORS,)}
NAMES = llama.NAMES | llama.QK_NORMS
SHAPE = {"norm": "layer", "parallel": True, "shared_norm": True}


def from_config(f: HfFields) -> ModelSpec:
    """model_max_length: the context that Command R was trained on, longer than max_position_embeddings."""
    second = {}
    if f.family == "cohere2":
        period = f.integer("sliding_window_pattern", default=4)
        second = {"slides": lambda i: (i + 1) % period != 0, "rotates": lambda i, kind: kind == SLIDING}
    n = hf_config.decoder(f, positions=8192, eps=("layer_norm_eps", 1e-5), tied=True,
                          theta=1e4 if second else 5e5, **second)
    n["positions"] = max(n["positions"], f.integer("model_max_length", default=1))
    biases = f.flag("attention_bias", False)
    return decoder.build(**n, **SHAPE, qkv_bias=biases, out_bias=biases,
                         logit_scale=f.number("logit_scale", default=0.0625, low=1e-9, high=1e9),
                         qk_norm="heads" if f.flag("use_qk_norm", False) else "")


def from_gguf(f: GgufFields) -> ModelSpec:
    second = {}
    if f.family == "cohere2":
        second = {"slides": lambda i: (i + 1) % 4 != 0, "rotates": lambda i, kind: kind == SLIDING}
    n = gguf_config.decoder(f, eps="attention.layer_norm_epsilon", **second)
    return decoder.build(**n, **SHAPE, **gguf_config.biases(f),
                         logit_scale=f.number("logit_scale", default=1.0, low=1e-9, high=1e9),
                         qk_norm="heads" if "blk.0.attn_q_norm.weight" in f.tensors else "")


def weight_rows(spec: ModelSpec, kind: str) -> tuple[WeightRow, ...]:
    return tuple(interleaved(by_head(table_rows(spec, NAMES, kind), spec), spec))
