"""StarCoder2: layer norms, rotary positions, a plain MLP, biases everywhere, a window in every layer.

GGUF files do not name the window.
"""

from __future__ import annotations

from forwardpass.models import decoder, gguf_config, hf_config
from forwardpass.models.families import llama
from forwardpass.models.gguf_config import ROPE_TENSORS, GgufFields
from forwardpass.models.hf_config import HfFields
from forwardpass.models.spec import ModelSpec
from forwardpass.models.weight_rows import WeightRow
from forwardpass.models.weight_tables import table_rows

ARCHITECTURES = {"starcoder2": ("Starcoder2ForCausalLM",)}
GGUF = {"starcoder2": "starcoder2"}
IGNORED = {"safetensors": llama.IGNORED["safetensors"], "gguf": (r"blk\.\d+\.attn_rot_embd\.weight", ROPE_TENSORS)}
NAMES = llama.NAMES | {
    "mlp.up": ("model.layers.{i}.mlp.c_fc", "blk.{i}.ffn_up"),
    "mlp.down": ("model.layers.{i}.mlp.c_proj", "blk.{i}.ffn_down"),
}
SHAPE = {"norm": "layer", "norm_bias": True, "mlp": "plain"}


def from_config(f: HfFields) -> ModelSpec:
    n = hf_config.decoder(f, positions=4096, eps=("norm_epsilon", 1e-5), tied=True, slides=lambda i: True,
                          act=("hidden_act", "gelu_pytorch_tanh"))
    biases = f.flag("use_bias", True)
    return decoder.build(**n, **SHAPE, qkv_bias=biases, out_bias=biases, mlp_bias=biases)


def from_gguf(f: GgufFields) -> ModelSpec:
    n = gguf_config.decoder(f, eps="attention.layer_norm_epsilon", act="gelu_tanh", slides=lambda i: True)
    return decoder.build(**n, **SHAPE, **gguf_config.biases(f))


def weight_rows(spec: ModelSpec, kind: str) -> tuple[WeightRow, ...]:
    return tuple(table_rows(spec, NAMES, kind))
