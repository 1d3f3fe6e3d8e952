"""NomicBERT (Nussbaum et al. 2024): BERT with rotary positions, a gated MLP and no biases of its layers.

Its published files came with Python code of their own and GPT-2's names of settings; transformers 5 has others.
"""

from __future__ import annotations

from forwardpass.models import decoder, encoder, gguf_config, hf_heads, hf_rope
from forwardpass.models.gguf_config import GgufFields
from forwardpass.models.hf_config import HfFields
from forwardpass.models.hf_rope import FULL
from forwardpass.models.spec import ModelSpec
from forwardpass.models.weight_rows import WeightRow
from forwardpass.models.weight_tables import QKV, fused

ARCHITECTURES = {"nomic_bert": hf_heads.classes("NomicBert", "ForPreTraining")}
GGUF = {"nomic-bert": "nomic_bert"}
IGNORED = {"safetensors": (*encoder.BUFFERS, r"((nomic_)?bert\.)?pooler\..+", r"cls\..+"), "gguf": ()}
NAMES = {  # target: (safetensors, gguf)
    "embed.tokens": ("embeddings.word_embeddings", "token_embd"),
    "embed.types": ("embeddings.token_type_embeddings", "token_types"),
    "embed.norm": ("emb_ln", "token_embd_norm"),
    "attention.q": ("encoder.layers.{i}.attn.Wqkv", "blk.{i}.attn_qkv"),
    "attention.k": ("encoder.layers.{i}.attn.Wqkv", "blk.{i}.attn_qkv"),
    "attention.v": ("encoder.layers.{i}.attn.Wqkv", "blk.{i}.attn_qkv"),
    "attention.out": ("encoder.layers.{i}.attn.out_proj", "blk.{i}.attn_output"),
    "attention_norm": ("encoder.layers.{i}.norm1", "blk.{i}.attn_output_norm"),
    "mlp.up": ("encoder.layers.{i}.mlp.fc11", "blk.{i}.ffn_up"),
    "mlp.gate": ("encoder.layers.{i}.mlp.fc12", "blk.{i}.ffn_gate"),
    "mlp.down": ("encoder.layers.{i}.mlp.fc2", "blk.{i}.ffn_down"),
    "mlp_norm": ("encoder.layers.{i}.norm2", "blk.{i}.layer_output_norm"),
}
HEADS = {
    "lm": {"head.dense": ("cls.predictions.transform.dense", ""),
           "head.dense_norm": ("cls.predictions.transform.layer_norm", ""),
           "head": ("cls.predictions.decoder|cls.predictions", "")},
    "labels": {"head.dense": ("bert.pooler.dense|nomic_bert.pooler.dense|pooler.dense", ""),
               "head": ("classifier", "")},
    "tags": {"head": ("classifier", "")},
}
_OFF = (False, 0, "")
REFUSED = {
    "prenorm": (_OFF, "norms before attention and MLP in this family"),
    "parallel_block": (_OFF, "parallel layers in this family"),
    "use_rms_norm": (_OFF, "RMS norms in this family"),
    "causal": (_OFF, "an encoder that only looks back"),
    "rotary_emb_interleaved": (_OFF, "interleaved rotary pairs in this family"),
    "rotary_emb_scale_base": ((), "scaled rotary positions (xPos)"),
    "rotary_scaling_factor": ((), "a rotary scaling in this family"),
    "scale_attn_weights": ((True,), "scores that are not scaled"),
    "scale_attn_by_inverse_layer_idx": (_OFF, "scores scaled by the layer"),
    "moe_every_n_layers": ((0, -1), "a mixture of experts in this family"),
}
GATES = {"swiglu": "silu", "geglu": "gelu_erf"}


def from_config(f: HfFields) -> ModelSpec:
    f.refuse_unread(REFUSED)
    own = f.has("activation_function")  # the names of the published files
    eps = "layer_norm_epsilon" if f.has("layer_norm_epsilon") else "layer_norm_eps"
    n = encoder.read(f, learned=False, eps=(eps, 1e-12), hidden="n_embd", heads="n_head", layers="n_layer",
                     inner="n_inner" if f.has("n_inner") else "intermediate_size", positions=("n_positions", 2048),
                     act=("hidden_act", "silu"))
    if own:
        name = f.text("activation_function")
        if name not in GATES:
            f.unsupported("activation_function", f"an activation outside {', '.join(GATES)}")
        n["act"] = GATES[name]
        n["vocab"] += -n["vocab"] % f.integer("pad_vocab_size_multiple", default=1)
    n["qkv_bias"] = n["out_bias"] = own and f.flag("qkv_proj_bias", True)
    n["mlp_bias"] = own and f.flag("mlp_fc1_bias", True)
    if own and f.flag("mlp_fc2_bias", True) != n["mlp_bias"]:
        f.unsupported("mlp_fc2_bias", "a bias of one half of the MLP alone")
    share = f.number("rotary_emb_fraction", default=0.0 if own else 1.0, low=0, high=1)
    if not share:
        f.unsupported("rotary_emb_fraction", "learned positions in this family")
    rope = hf_rope.ropes(f, theta=10000.0 if own else 1000.0, partial=share)[FULL]
    n["rotary"] = (rope.spec(int(n["head_dim"] * rope.partial), n["positions"]),) * n["layers"]
    n |= {"mlp": "gated"} | hf_heads.head(f, lm=encoder.transform(n), labels={"dense": n["hidden"]})
    return decoder.build(**n)


def from_gguf(f: GgufFields) -> ModelSpec:
    n = encoder.read_gguf(f, gguf_config.decoder(f, eps="attention.layer_norm_epsilon"))
    return decoder.build(**n | gguf_config.biases(f) | {"mlp": "gated"} | encoder.head_gguf(f, n, "tanh"))


def weight_rows(spec: ModelSpec, kind: str) -> tuple[WeightRow, ...]:
    return tuple(fused(encoder.rows(spec, kind, NAMES, HEADS, ("bert.", "nomic_bert.")), QKV))
