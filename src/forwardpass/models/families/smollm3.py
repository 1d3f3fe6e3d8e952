"""SmolLM3: llama's layers, every fourth of them without rotary positions."""

from __future__ import annotations

from forwardpass.models import decoder, gguf_config, hf_config
from forwardpass.models.families import llama
from forwardpass.models.gguf_config import GgufFields
from forwardpass.models.hf_config import HfFields
from forwardpass.models.spec import ModelSpec

ARCHITECTURES = {"smollm3": ("SmolLM3ForCausalLM",)}
GGUF = {"smollm3": "smollm3"}
IGNORED = llama.IGNORED
weight_rows = llama.weight_rows


def from_config(f: HfFields) -> ModelSpec:
    """no_rope_layers: 1 for a layer that does have rotary positions. Windows, if any, are in the others."""
    layers = hf_config.layer_count(f, "num_hidden_layers")
    step = f.integer("no_rope_layer_interval", default=4)
    rotates = f.get("no_rope_layers")
    rotates = [int((i + 1) % step != 0) for i in range(layers)] if rotates is None else rotates
    if not isinstance(rotates, list) or len(rotates) != layers or not all(one in (0, 1) for one in rotates):
        f.wrong("no_rope_layers", f"a list of {layers} ones and zeros", rotates)
    n = hf_config.decoder(f, positions=32768, theta=2e6, tied=True, switch=False, slides=lambda i: not rotates[i],
                          rotates=lambda i, kind: bool(rotates[i]))
    biases = f.flag("attention_bias", False)
    return decoder.build(**n, qkv_bias=biases, out_bias=biases, mlp_bias=f.flag("mlp_bias", False))


def from_gguf(f: GgufFields) -> ModelSpec:
    n = gguf_config.decoder(f, rotates=lambda i, kind: (i + 1) % 4 != 0)
    return decoder.build(**n, **gguf_config.biases(f))
