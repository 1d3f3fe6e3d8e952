"""BART and mBART (1 and 50): encoder-decoders with learned positions that start at row 2, a norm of the embeddings, and
biases everywhere, also of the logits. BART has its norms after the additions; mBART before them, and one at the end.

Marian, M2M-100 and Pegasus are the same with other positions, and read and name their parts through this file.
"""

from __future__ import annotations

from dataclasses import replace

from forwardpass.models import encoder_decoder, hf_config, hf_heads
from forwardpass.models.encoder_decoder import Half
from forwardpass.models.hf_config import HfFields
from forwardpass.models.spec import MAX_LAYERS, ModelSpec, NormSpec
from forwardpass.models.weight_rows import WeightRow
from forwardpass.models.weight_tables import table_rows

ARCHITECTURES = {"bart": ("BartForConditionalGeneration", "BartModel", "BartForSequenceClassification"),
                 "mbart": ("MBartForConditionalGeneration", "MBartModel", "MBartForSequenceClassification")}
GGUF: dict[str, str] = {}
IGNORED = {"safetensors": (
    r"(model\.)?(en|de)coder\.version",
    r"(model\.)?(en|de)coder\.embed_tokens\.weight",  # other names of the shared table
)}
LAYER = "model.{side}.layers.{i}."
NAMES = {target: tuple(f"{name}|{name.removeprefix('model.')}" for name in spelled)  # base models lack "model."
         for target, spelled in encoder_decoder.sided({
             "embed.tokens": ("model.shared",),
             "embed.positions": ("model.{side}.embed_positions",),
             "embed.norm": ("model.{side}.layernorm_embedding",),
             "attention_norm": (LAYER + "self_attn_layer_norm",),
             "attention.q": (LAYER + "self_attn.q_proj",),
             "attention.k": (LAYER + "self_attn.k_proj",),
             "attention.v": (LAYER + "self_attn.v_proj",),
             "attention.out": (LAYER + "self_attn.out_proj",),
             "cross_norm": (LAYER + "encoder_attn_layer_norm",),
             "cross.q": (LAYER + "encoder_attn.q_proj",),
             "cross.k": (LAYER + "encoder_attn.k_proj",),
             "cross.v": (LAYER + "encoder_attn.v_proj",),
             "cross.out": (LAYER + "encoder_attn.out_proj",),
             "mlp_norm": (LAYER + "final_layer_norm",),
             "mlp.up": (LAYER + "fc1",),
             "mlp.down": (LAYER + "fc2",),
             "final_norm": ("model.{side}.layer_norm",),
         }).items()} | {"head": ("lm_head",)}
LABELS = {"head.dense": ("classification_head.dense",), "head": ("classification_head.out_proj",)}
OFFSET = 2
EPSILON = 1e-5
"""Of all norms; the files do not say."""


def read(f: HfFields, *, act: str, pre: bool, scaled: bool = False, waves: bool = True) -> dict:
    """The numbers under the names that encoder_decoder.build takes; the arguments are what absent settings mean.

    waves: positions are sines and cosines.
    """
    if not f.flag("is_encoder_decoder", True):
        f.unsupported("is_encoder_decoder", "one half of an encoder-decoder by itself")
    hidden, vocab = f.integer("d_model", "hidden_size"), f.integer("vocab_size")
    if waves and hidden % 2:
        f.wrong("d_model", "an even width, half of it for the sines of positions and half for their cosines", hidden)

    def half(side: str) -> Half:
        heads = f.integer(f"{side}_attention_heads", default=16)
        if hidden % heads:
            f.wrong(f"{side}_attention_heads", f"a divisor of d_model ({hidden})", heads)
        layers = f.integer(f"{side}_layers", default=12, high=MAX_LAYERS)
        return Half(vocab, layers, heads, f.integer(f"{side}_ffn_dim", default=4096))

    return {
        "family": f.family, "hidden": hidden, "encoder": half("encoder"), "decoder": half("decoder"),
        "positions": f.integer("max_position_embeddings", default=1024), "norm": NormSpec("layer", EPSILON, bias=True),
        "pre": pre, "final_norm": pre, "act": hf_config.activation(f, "activation_function", act),
        "embed_scale": hidden**0.5 if f.flag("scale_embedding", scaled) else 1.0,
        "tied": f.flag("tie_word_embeddings", True),
    }


def from_config(f: HfFields) -> ModelSpec:
    n = read(f, act="gelu", pre=f.family == "mbart", waves=False)
    head = {"head_bias": True}
    if hf_heads.task_of(f.architecture, "lm") == "labels":
        # The decoder reads the source once more, one token behind. Its last state, at the end token, is the text's.
        head = hf_heads.head(f, labels={"pool": "last", "dense": n["hidden"]})
    return encoder_decoder.build(**n | head, learned_positions=n["positions"] + OFFSET, position_offset=OFFSET,
                                 embed_norm=n["norm"])


def weight_rows(spec: ModelSpec, kind: str) -> tuple[WeightRow, ...]:
    if spec.head.task == "labels":
        return tuple(table_rows(spec, NAMES | LABELS, kind))
    return tuple(named(table_rows(spec, NAMES, kind)))


def named(rows: list[WeightRow]) -> list[WeightRow]:
    """The bias of the logits has a name of its own, and newer files leave one of zeros out."""
    return [replace(row, sources=("final_logits_bias",), optional=True) if row.target == "head.bias" else row
            for row in rows]
