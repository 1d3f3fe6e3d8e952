"""T5 and its kin (T5 v1.1, FLAN, mT5, ByT5, UMT5): encoder-decoders whose positions are learned numbers added to
scores, by buckets of distances. No biases, no scaling of scores, RMS norms before attention and MLP.

The table of those numbers is that of each side's first layer, in UMT5 that of each layer. The first T5 scales what its
tied head reads. T5EncoderModel is the encoder by itself.
"""

from __future__ import annotations

from forwardpass.models import encoder_decoder, hf_config
from forwardpass.models.encoder_decoder import Half
from forwardpass.models.hf_config import HfFields
from forwardpass.models.spec import MAX_LAYERS, ModelSpec, NormSpec, RelativeBiasSpec
from forwardpass.models.weight_rows import WeightRow
from forwardpass.models.weight_tables import table_rows

ALONE = ("T5EncoderModel", "MT5EncoderModel", "UMT5EncoderModel")
ARCHITECTURES = {"t5": ("T5ForConditionalGeneration", "T5WithLMHeadModel", "T5EncoderModel"),
                 "mt5": ("MT5ForConditionalGeneration", "MT5EncoderModel"),
                 "umt5": ("UMT5ForConditionalGeneration", "UMT5EncoderModel")}
GGUF: dict[str, str] = {}
IGNORED = {"safetensors": (
    r"(en|de)coder\.embed_tokens\.weight",  # other names of the shared table
    r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",  # old files; never used
)}
POSITIONS = 2**15
"""The bound is ours: no table ends the positions, since what is further away than any bucket is in the last.
n_positions is the length of the texts in training."""
BLOCK = "{side}.block.{i}.layer."


def _names(gated: bool) -> dict[str, tuple[str, ...]]:
    def side(name: str, mlp: int) -> dict[str, str]:
        return {
            "embed.tokens": f"shared|{name}.embed_tokens",
            "attention_norm": BLOCK + "0.layer_norm",
            **{f"attention.{ours}": f"{BLOCK}0.SelfAttention.{theirs}" for ours, theirs in (
                ("q", "q"), ("k", "k"), ("v", "v"), ("out", "o"), ("relative_bias", "relative_attention_bias"))},
            "cross_norm": BLOCK + "1.layer_norm",
            **{f"cross.{ours}": f"{BLOCK}1.EncDecAttention.{theirs}" for ours, theirs in (
                ("q", "q"), ("k", "k"), ("v", "v"), ("out", "o"))},
            "mlp_norm": f"{BLOCK}{mlp}.layer_norm",
            **{f"mlp.{ours}": f"{BLOCK}{mlp}.DenseReluDense.{theirs}" for ours, theirs in (
                ("gate", "wi_0"), ("up", "wi_1" if gated else "wi"), ("down", "wo"))},
            "final_norm": "{side}.final_layer_norm",
        }

    return {prefix + target: (spelled.replace("{side}", name),)
            for prefix, name, mlp in (("encoder.", "encoder", 1), ("", "decoder", 2))
            for target, spelled in side(name, mlp).items()} | {"head": ("lm_head",)}


def from_config(f: HfFields) -> ModelSpec:
    hidden, vocab = f.integer("d_model", "hidden_size"), f.integer("vocab_size")
    heads, layers = f.integer("num_heads", "num_attention_heads"), hf_config.layer_count(f, "num_layers")
    inner, own_tables = f.integer("d_ff"), f.family == "umt5"

    def half(layers: int, bidirectional: bool) -> Half:
        buckets = f.integer("relative_attention_num_buckets", default=32)
        furthest = f.integer("relative_attention_max_distance", default=128)
        return Half(vocab, layers, heads, inner, tuple(
            RelativeBiasSpec(buckets, furthest, bidirectional, i if own_tables else 0) for i in range(layers)))

    mlp, act = _mlp(f)
    tied = f.flag("tie_word_embeddings", f.family != "mt5")
    if f.family == "mt5":  # has a head of its own, whatever the file says, and never scales what it reads
        scaled = False
    else:  # transformers 5 writes true for all models, and what the others said under another name
        tied = scaled = f.flag("scale_decoder_outputs", tied)
    spec = encoder_decoder.build(
        family=f.family, encoder=half(layers, True), hidden=hidden, head_dim=f.integer("d_kv", default=64),
        decoder=half(f.integer("num_decoder_layers", default=layers, high=MAX_LAYERS), False),
        positions=POSITIONS, norm=NormSpec("rms", hf_config.epsilon(f, "layer_norm_epsilon", 1e-6)), pre=True,
        final_norm=True, act=act, mlp=mlp, biases=False, scale=1.0, tied=tied,
        logit_scale=hidden**-0.5 if scaled else 1.0)
    if f.architecture in ALONE:
        f.get("is_encoder_decoder")  # says true here, too
        return spec.encoder.check()
    if not f.flag("is_encoder_decoder", True):
        f.unsupported("is_encoder_decoder", "one half of an encoder-decoder by itself")
    return spec


def _mlp(f: HfFields) -> tuple[str, str]:
    """(kind, activation) of an MLP. gated-gelu has always meant the approximation."""
    found = f.text("feed_forward_proj", "relu" if f.family == "t5" else "gated-gelu")
    kind, _, act = found.rpartition("-")
    if kind not in ("", "gated") or act not in hf_config.ACTIVATIONS:
        known = ", ".join(hf_config.ACTIVATIONS)
        f.unsupported("feed_forward_proj", f"an MLP other than NAME or gated-NAME, with a NAME of {known},")
    if found == "gated-gelu":
        return "gated", "gelu_tanh"
    return kind or "plain", hf_config.ACTIVATIONS[act]


def weight_rows(spec: ModelSpec, kind: str) -> tuple[WeightRow, ...]:
    names = _names(spec.layers[0].mlp.kind == "gated")
    if spec.encoder is None:
        names = {target.removeprefix("encoder."): spelled for target, spelled in names.items() if "encoder." in target}
    return tuple(table_rows(spec, names, kind))
