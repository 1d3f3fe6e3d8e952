"""What a pass of a diffusion transformer must do, and the memory that it takes beside the weights.

Operations are counted as in costs.py: a multiply-add is two. Products that are computed once a prompt or once a class
are no part of a pass.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from forwardpass.models.costs import Cost
from forwardpass.models.dit_spec import DitSpec, targets

_NORM, _MODULATE = 6, 2
"""Operations an element: mean, difference, squares and their sum, scale; times 1 + scale, plus shift."""
_ONCE = ("caption.", "resolution.", "aspect.")
"""What is not part of a pass, beside keys and values of texts."""
_BY_PICTURE = ("time.first", "time.second", "time.modulation", ".modulation", "final.modulation", "final.table")
"""What reads a row a picture; all else reads a row a patch."""


_LABELS = {"attention.q": "qkv", "attention.k": "qkv", "attention.v": "qkv", "attention.out": "out",
           "cross.q": "cross_q", "cross.out": "cross_out", "mlp.gate": "gate_up", "mlp.up": "gate_up",
           "mlp.down": "down"}
"""End of a target's name -> label in dit_blocks.py, where these differ."""


def operations(spec: DitSpec, height: int, width: int, context: int = 0) -> dict[str, Cost]:
    """What a pass over one picture with latents of this size does, by the labels of dit_blocks.py; Cost.read counts
    weights, not bytes, each as often as it is read. context: tokens of the picture's text."""
    patches, hidden = height * width // spec.patch**2, spec.hidden_size
    done: Counter[str] = Counter()
    weights: Counter[str] = Counter()
    done["patches"] += 2 * patches * hidden  # positions
    done["final"] += patches * hidden * (_NORM + _MODULATE)
    for name, shape in targets(spec).items():
        stem, _, suffix = name.rpartition(".")
        if name.startswith(_ONCE) or stem.endswith((".cross.k", ".cross.v", "norm", ".labels")):
            continue
        by_picture = stem.endswith(_BY_PICTURE) or name.endswith(".table")
        label = _label(stem)
        done[label] += (1 if by_picture else patches) * math.prod(shape) * (2 if suffix == "weight" else 1)
        weights[label] += math.prod(shape)
    for layer in spec.layers:
        a, norm = layer.attention, patches * hidden * (_NORM + layer.mlp_norm.bias + _MODULATE)
        done["attention"] += 4 * patches * patches * a.num_heads * a.head_dim
        for reads, adds in (("qkv", "out"), ("gate_up", "down")):
            done[reads] += norm
            done[adds] += 2 * patches * hidden  # its gate
        if layer.cross:
            done["cross"] += 4 * patches * context * layer.cross.num_heads * layer.cross.head_dim
    return {label: Cost(done[label], weights[label]) for label in done}


def flops(spec: DitSpec, height: int, width: int, context: int = 0) -> int:
    """Operations of a pass over one picture with latents of this size. context: tokens of its text."""
    return sum(cost.flops for cost in operations(spec, height, width, context).values())


def _label(stem: str) -> str:
    """Of an operation that reads a target."""
    for end, label in _LABELS.items():
        if stem.endswith(end):
            return label
    parts = stem.split(".")
    named = parts[2] if parts[0] == "layers" else parts[0]
    return "modulation" if stem == "time.modulation" else named


def activation_bytes(spec: DitSpec, sizes: Sequence[tuple[int, int]], contexts: Sequence[int] = ()) -> int:
    """float32 rows of every buffer that dit_blocks.record makes, for pictures with latents of these sizes.

    contexts: tokens of each one's text.
    """
    patches = sum(height * width for height, width in sizes) // spec.patch**2
    return 4 * (patches * _columns(spec) + len(sizes) * _columns_by_picture(spec) + sum(contexts) * spec.context_size)


def _columns(spec: DitSpec) -> int:
    """Of the rows of patches: what goes in and out, the residual stream, and one buffer of each kind and width."""
    area, hidden = spec.patch**2, spec.hidden_size
    kinds = set()
    for layer in spec.layers:
        wide = layer.attention.num_heads * layer.attention.head_dim
        kinds |= {("branch", hidden), ("qkv", 3 * wide), ("mixed", wide), ("inner", layer.mlp.intermediate_size)}
        if layer.cross:
            wide = layer.cross.num_heads * layer.cross.head_dim
            kinds |= {("cross_q", wide), ("mixed", wide)}
    return area * (spec.latent_channels + spec.out_channels) + hidden + sum(width for _, width in kinds)


def _columns_by_picture(spec: DitSpec) -> int:
    embeddings, hidden = len(spec.own_embedders), spec.hidden_size
    shared = 6 * hidden if spec.modulation == "single" else 0
    return spec.waves + hidden + 2 * hidden + 2 * hidden * embeddings + 6 * hidden * len(spec.layers) + shared
