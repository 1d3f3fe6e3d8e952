"""Builds a spec out of plain numbers: what most families share.

hf_config.decoder and gguf_config.decoder read a decoder's numbers from the two kinds of files under the same names, and
encoder.read an encoder's; a family adds what sets it apart.
"""

from __future__ import annotations

from collections.abc import Mapping

from forwardpass.models.spec import AttentionSpec, ExpertsSpec, LayerSpec, MlpSpec, ModelSpec, NormSpec, RotarySpec


def build(*, family: str, vocab: int, hidden: int, layers: int, heads: int, kv_heads: int, head_dim: int, inner: int,
          positions: int, eps: float, tied: bool, act: str,
          windows: tuple[int, ...], rotary: tuple[RotarySpec | None, ...],
          norm: str = "rms", norm_bias: bool = False, norms: str = "pre",
          qkv_bias: bool = False, out_bias: bool = False, mlp_bias: bool = False, mlp: str = "gated",
          scale: float | None = None, alibi: tuple[float, ...] = (), softcap: float = 0.0, clip_qkv: float = 0.0,
          qk_norm: str = "", qk_norm_bias: bool = False, experts: ExpertsSpec | None = None, expert_inner: int = 0,
          sparse: tuple[bool, ...] = (), parallel: bool = False, shared_norm: bool = False,
          residual_scale: float = 1.0, final: bool = True, attention: Mapping | None = None,
          branch_norm: NormSpec | None = None, **model) -> ModelSpec:
    """windows, rotary: of each layer. norm, norm_bias: the kind of all norms; norms: where they stand, "pre" (before
    attention and MLP), "after" (only after them, before the addition), "both" or "post" (after the addition).
    scale: None = 1 / sqrt(head_dim). qk_norm: a qk_norm_shape, "" = none. experts: of the layers that are True in
    `sparse` (empty = of all), with MLPs of expert_inner columns. shared_norm: in parallel layers the MLP reads what
    attention reads. final: whether there is a norm after the last layer. branch_norm: what attention and MLP give goes
    through it before it is added. attention, model: other fields of AttentionSpec and ModelSpec.
    """
    every = NormSpec(norm, eps, norm_bias)
    before, after = every if norms != "after" else None, every if norms in ("after", "both") else branch_norm
    dense = MlpSpec(mlp, inner, act, mlp_bias)
    mixed = MlpSpec("gated", expert_inner or inner, act, mlp_bias, experts) if experts else dense
    made: dict[tuple, LayerSpec] = {}
    order = []
    for i in range(layers):
        at = (windows[i], rotary[i], mixed if not sparse or sparse[i] else dense)
        if at not in made:
            attends = AttentionSpec(
                heads, kv_heads, head_dim, head_dim**-0.5 if scale is None else scale, rotary[i], windows[i],
                qkv_bias, out_bias, alibi=alibi, softcap=softcap, clip_qkv=clip_qkv,
                qk_norm=NormSpec(norm, eps, qk_norm_bias) if qk_norm else None, qk_norm_shape=qk_norm or "head",
                **attention or {})
            made[at] = LayerSpec(before, attends, None if shared_norm else before, at[2], after, after,
                                 order="post" if norms == "post" else "pre", parallel=parallel,
                                 residual_scale=residual_scale)
        order.append(made[at])
    last = every if final else None
    return ModelSpec(family, hidden, vocab, positions, tuple(order), last, tied, **model).check()
