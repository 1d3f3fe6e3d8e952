"""GPTBigCode, the first StarCoder and SantaCoder: GPT-2's layers with one key-value head for all queries."""

from __future__ import annotations

from forwardpass.models import decoder, gguf_config, hf_config
from forwardpass.models.families import gpt2
from forwardpass.models.gguf_config import GgufFields
from forwardpass.models.hf_config import HfFields
from forwardpass.models.spec import ModelSpec
from forwardpass.models.weight_rows import WeightRow
from forwardpass.models.weight_tables import QKV, fused, table_rows

ARCHITECTURES = {"gpt_bigcode": ("GPTBigCodeForCausalLM",)}
GGUF = {"starcoder": "gpt_bigcode"}
IGNORED = gpt2.IGNORED
SHAPE = {"norm": "layer", "norm_bias": True, "mlp": "plain", "qkv_bias": True, "out_bias": True, "mlp_bias": True}


def from_config(f: HfFields) -> ModelSpec:
    n = hf_config.sizes(f, hidden="n_embd", heads="n_head", layers="n_layer", inner="n_inner",
                        positions=("n_positions", 1024), act=("activation_function", "gelu_pytorch_tanh"))
    n["kv_heads"] = 1 if f.flag("multi_query", True) else n["heads"]
    return decoder.build(**n, **SHAPE, scale=None if f.flag("scale_attn_weights", True) else 1.0,
                         learned_positions=n["positions"])


def from_gguf(f: GgufFields) -> ModelSpec:
    n = gguf_config.unrotated(f, "gelu_tanh")
    return decoder.build(**n, **SHAPE, learned_positions=n["positions"])


def weight_rows(spec: ModelSpec, kind: str) -> tuple[WeightRow, ...]:
    """Each key-value head follows its queries."""
    runs = spec.layers[0].attention.num_kv_heads
    return tuple(fused(table_rows(spec, gpt2.NAMES, kind), QKV, runs=runs))
