"""DiT, diffusion transformers that draw classes (Peebles & Xie 2023), in diffusers' layout.

Every layer keeps its own embedding of steps and classes. Those of the published models were made by copying one, and
where a checkpoint's are the same bytes one of them is used.
"""

from __future__ import annotations

from dataclasses import replace

from forwardpass.models import diffusers_weights
from forwardpass.models.diffusers_config import DiffusersFields
from forwardpass.models.dit_spec import DitSpec, targets
from forwardpass.models.hf_config import epsilon
from forwardpass.models.spec import MAX_LAYERS, AttentionSpec, LayerSpec, MlpSpec, NormSpec
from forwardpass.models.weight_rows import BoundRow, WeightRow, same_values
from forwardpass.weights.source import Source

IGNORED = (r"pos_embed\.pos_embed",)
OFF = {"only_cross_attention": (), "double_self_attention": (), "num_vector_embeds": (), "attention_type": ("default",),
       "interpolation_scale": (1,)}
"""Settings of the class that this one was part of -> their usual values, beside null and false."""
WITHOUT_EFFECT = ("dropout", "norm_num_groups", "upcast_attention", "use_linear_projection")
"""upcast_attention: scores are never less than float32."""
BLOCK = "transformer_blocks.{i}."
NAMES = {
    "patches": "pos_embed.proj",
    "layers.{i}.time.first": BLOCK + "norm1.emb.timestep_embedder.linear_1",
    "layers.{i}.time.second": BLOCK + "norm1.emb.timestep_embedder.linear_2",
    "layers.{i}.labels": BLOCK + "norm1.emb.class_embedder.embedding_table",
    "layers.{i}.modulation": BLOCK + "norm1.linear",
    "layers.{i}.mlp_norm": BLOCK + "norm3",
    **{"layers.{i}." + target: BLOCK + name for target, name in diffusers_weights.LAYER.items()},
    "final.modulation": "proj_out_1",
    "final.out": "proj_out_2",
}


def from_config(f: DiffusersFields) -> DitSpec:
    norm_type = f.text("norm_type", "ada_norm_zero")
    if norm_type != "ada_norm_zero":
        f.unsupported("norm_type", "a DiT with a norm_type other than ada_norm_zero")
    n = numbers(f, sample=32)
    if f.is_null("num_embeds_ada_norm"):
        f.unsupported("num_embeds_ada_norm", "a DiT without classes")
    labels = f.integer("num_embeds_ada_norm", default=1000)
    if f.has("cross_attention_dim"):
        f.unsupported("cross_attention_dim", "a DiT with cross-attention")
    affine = f.flag("norm_elementwise_affine", False)
    norm = NormSpec("layer", epsilon(f, "norm_eps", 1e-5), bias=affine, weight=affine)
    plain = NormSpec("layer", 1e-6, weight=False)
    layer = LayerSpec(plain, n["attention"], norm, n["mlp"], modulation="zero")
    f.close(OFF, WITHOUT_EFFECT)
    return DitSpec("dit", n["hidden"], (layer,) * n["layers"], n["channels"], n["out"], n["patch"], n["sample_size"],
                   n["sample_size"] // n["patch"], 1.0, 1.0, plain, labels=labels,
                   embedders=tuple(range(n["layers"]))).check()


def numbers(f: DiffusersFields, sample: int, out: int | None = None) -> dict:
    """What DiT and PixArt have alike. sample, out: sample_size and out_channels where the config lacks them; channels
    of null are those of what is read."""
    heads, size = f.integer("num_attention_heads", default=16), f.integer("attention_head_dim", default=72)
    channels, patch = f.integer("in_channels", default=4), f.integer("patch_size", default=2)
    sample = f.integer("sample_size", default=sample, low=patch)
    out = channels if out is None or f.is_null("out_channels") else out
    activation = f.text("activation_fn", "gelu-approximate")
    if activation not in diffusers_weights.ACTIVATIONS:
        f.unsupported("activation_fn", f"an activation outside {', '.join(diffusers_weights.ACTIVATIONS)}")
    kind, act = diffusers_weights.ACTIVATIONS[activation]
    width = heads * size
    attention = AttentionSpec(heads, heads, size, size**-0.5, qkv_bias=f.flag("attention_bias", True), out_bias=True,
                              causal=False)
    return {"hidden": width, "channels": channels, "patch": patch, "sample_size": sample, "attention": attention,
            "out": f.integer("out_channels", default=out), "mlp": MlpSpec(kind, 4 * width, act, bias=True),
            "layers": f.integer("num_layers", default=28, high=MAX_LAYERS)}


def weight_rows(spec: DitSpec) -> list[WeightRow]:
    return reordered(diffusers_weights.named(targets(spec), NAMES), spec)


def reordered(rows: list[WeightRow], spec: DitSpec) -> list[WeightRow]:
    """Rows whose stored order differs from ours: patches, fused matrices."""
    return [replace(row, transform="pixels", kernel=spec.patch) if row.target == "patches.weight" else row
            for row in diffusers_weights.gated(rows)]


def finish(spec: DitSpec, bound: list[BoundRow], source: Source) -> tuple[DitSpec, list[BoundRow]]:
    """Embeddings that are the same as an earlier layer's are left out."""
    stems = ("time.first.weight", "time.first.bias", "time.second.weight", "time.second.bias", "labels.weight")
    infos = {one.target: one.info for one in bound}
    own: list[int] = []
    embedders = []
    for i in range(len(spec.layers)):
        used = next((j for j in own if all(same_values(infos[f"layers.{j}.{stem}"], infos[f"layers.{i}.{stem}"], source)
                                           for stem in stems)), i)
        embedders.append(used)
        if used == i:
            own.append(i)
    spec = replace(spec, embedders=tuple(embedders) if len(own) > 1 else ()).check()
    kept = targets(spec)
    return spec, [one for one in bound if one.target in kept]
