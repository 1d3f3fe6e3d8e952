"""OPT: learned positions whose table starts with two rows that are never used, ReLU. The 350M model has its norms after
the additions, none at the end, and a table of tokens that is narrower than its layers."""

from __future__ import annotations

from dataclasses import replace

from forwardpass.models import decoder, hf_config
from forwardpass.models.hf_config import HfFields
from forwardpass.models.spec import ModelSpec
from forwardpass.models.weight_rows import WeightRow
from forwardpass.models.weight_tables import table_rows

ARCHITECTURES = {"opt": ("OPTForCausalLM",)}
GGUF: dict[str, str] = {}
IGNORED: dict[str, tuple[str, ...]] = {"safetensors": ()}
LAYER = "model.decoder.layers.{i}."
NAMES = {target: (f"{name}|{name.removeprefix('model.')}",) for target, name in {  # the first files lack "model."
    "embed.tokens": "model.decoder.embed_tokens",
    "embed.project_in": "model.decoder.project_in",
    "embed.project_out": "model.decoder.project_out",
    "embed.positions": "model.decoder.embed_positions",
    "attention_norm": LAYER + "self_attn_layer_norm",
    "attention.q": LAYER + "self_attn.q_proj",
    "attention.k": LAYER + "self_attn.k_proj",
    "attention.v": LAYER + "self_attn.v_proj",
    "attention.out": LAYER + "self_attn.out_proj",
    "mlp_norm": LAYER + "final_layer_norm",
    "mlp.up": LAYER + "fc1",
    "mlp.down": LAYER + "fc2",
    "final_norm": "model.decoder.final_layer_norm",
    "head": "lm_head",
}.items()}
OFFSET = 2


def from_config(f: HfFields) -> ModelSpec:
    n = hf_config.sizes(f, inner="ffn_dim", act=("activation_function", "relu"))
    if not f.flag("layer_norm_elementwise_affine", True):
        f.unsupported("layer_norm_elementwise_affine", "a norm without weights")
    width, before = f.integer("word_embed_proj_dim", default=n["hidden"]), f.flag("do_layer_norm_before", True)
    biases = f.flag("enable_bias", True)
    spec = decoder.build(**n, norm="layer", norm_bias=True, norms="pre" if before else "post", mlp="plain",
                         qkv_bias=biases, out_bias=biases, mlp_bias=biases, position_offset=OFFSET,
                         learned_positions=n["positions"] + OFFSET, embed_size=width if width != n["hidden"] else 0)
    bare = not before or f.flag("_remove_final_layer_norm", False)
    return replace(spec, final_norm=None) if bare else spec


def weight_rows(spec: ModelSpec, kind: str) -> tuple[WeightRow, ...]:
    return tuple(table_rows(spec, NAMES, kind))
