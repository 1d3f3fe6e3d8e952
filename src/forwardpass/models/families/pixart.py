"""PixArt-alpha and PixArt-sigma, diffusion transformers that draw what a text says (Chen et al. 2024).

One embedding of the step serves all layers, and each adds a table of its own. A text's states come from T5; they pass a
small MLP once, and layers attend to the result.
"""

from __future__ import annotations

from dataclasses import replace

from forwardpass.models import diffusers_weights
from forwardpass.models.diffusers_config import DiffusersFields
from forwardpass.models.dit_spec import DitSpec, targets
from forwardpass.models.families import dit
from forwardpass.models.hf_config import epsilon
from forwardpass.models.spec import LayerSpec, NormSpec
from forwardpass.models.weight_rows import WeightRow

IGNORED = (*dit.IGNORED, r"caption_projection\.y_embedding")
BLOCK, EMBEDDING = dit.BLOCK, "adaln_single.emb."
NAMES = {
    "patches": "pos_embed.proj",
    **{f"{ours}.{place}": f"{theirs}_{number}" for ours, theirs in (
        ("time", EMBEDDING + "timestep_embedder.linear"), ("resolution", EMBEDDING + "resolution_embedder.linear"),
        ("aspect", EMBEDDING + "aspect_ratio_embedder.linear"), ("caption", "caption_projection.linear"))
       for place, number in (("first", 1), ("second", 2))},
    "time.modulation": "adaln_single.linear",
    "layers.{i}.attention_norm": BLOCK + "norm1",
    "layers.{i}.mlp_norm": BLOCK + "norm2",
    **{"layers.{i}." + target: BLOCK + name for target, name in diffusers_weights.LAYER.items()},
    "final.out": "proj_out",
}
TABLES = {"layers.{i}.modulation": BLOCK + "scale_shift_table", "final": "scale_shift_table"}
MICRO = 128
"""sample_size of the models that are told a picture's size, where the config does not say."""


def from_config(f: DiffusersFields) -> DitSpec:
    norm_type = f.text("norm_type", "ada_norm_single")
    if norm_type != "ada_norm_single":
        f.unsupported("norm_type", "a PixArt with a norm_type other than ada_norm_single")
    n = dit.numbers(f, sample=MICRO, out=8)
    sample, width = n["sample_size"], n["hidden"]
    micro = f.flag("use_additional_conditions", sample == MICRO)
    captions = f.integer("caption_channels", default=None)
    if f.is_null("cross_attention_dim"):
        f.unsupported("cross_attention_dim", "a PixArt without cross-attention")
    text = f.integer("cross_attention_dim", default=1152)
    if captions and text != width:
        f.wrong("cross_attention_dim", f"the width of the layers ({width}), which captions are brought to", text)
    scale = f.number("interpolation_scale", default=None, low=1e-3, high=1e6)
    affine = f.flag("norm_elementwise_affine", False)
    norm = NormSpec("layer", epsilon(f, "norm_eps", 1e-6), bias=affine, weight=affine)
    layer = LayerSpec(norm, n["attention"], norm, n["mlp"], cross=n["attention"], modulation="single")
    f.close({**dit.OFF, "interpolation_scale": ()}, (*dit.WITHOUT_EFFECT, "num_embeds_ada_norm"))
    return DitSpec("pixart", width, (layer,) * n["layers"], n["channels"], n["out"], n["patch"], sample,
                   sample // n["patch"], max(sample // 64, 1) if scale is None else scale, 0.0,
                   NormSpec("layer", 1e-6, weight=False), context_width=captions or text, caption=bool(captions),
                   micro=micro).check()


def weight_rows(spec: DitSpec) -> list[WeightRow]:
    tables = {target: shape for target, shape in targets(spec).items() if target.endswith(".table")}
    rows = dit.reordered(diffusers_weights.named({target: shape for target, shape in targets(spec).items()
                                                  if target not in tables}, NAMES), spec)
    for row in diffusers_weights.named(tables, TABLES):
        source = row.sources[0].removesuffix(".table")
        rows.append(replace(row, sources=(source,), stack=row.shape[0] // spec.hidden_size))
    return rows
