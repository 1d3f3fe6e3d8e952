"""Rotary positions out of an HF config.json, in every spelling there was.

Transformers 4 has `rope_theta`, `rope_scaling` and `partial_rotary_factor` (older models: `rotary_pct`,
`rotary_emb_base`), and gemma3 `rope_local_base_freq` for its sliding layers. Transformers 5 puts them all into
`rope_parameters`, either one object or one for each type of layer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from forwardpass.errors import UnsupportedModelError
from forwardpass.models.fields import Fields, show
from forwardpass.models.rotary import rotary
from forwardpass.models.spec import MAX_SIZE, RotarySpec

FULL, SLIDING = "full_attention", "sliding_attention"
"""Types of layers, as transformers names them."""
OLD_NAMES = {"su": "longrope"}  # what the first Phi-3 files called it
_KNOWN = ("rope_theta", "rope_type", "type", "factor", "partial_rotary_factor", "original_max_position_embeddings",
          "attention_factor", "mscale", "mscale_all_dim", "beta_fast", "beta_slow", "truncate", "short_factor",
          "long_factor", "low_freq_factor", "high_freq_factor")


@dataclass(frozen=True, slots=True)
class Rope:
    """theta: the base; partial: the share of each head that is rotated; scaling: as models/rotary.py takes it, None =
    none; where: for errors."""

    theta: float
    partial: float = 1.0
    scaling: dict | None = None
    where: str = "rotary scaling"

    def spec(self, dim: int, positions: int, freq_factors: Sequence[float] | None = None) -> RotarySpec:
        """Of `dim` rotated dimensions, for a model whose file names `positions` as its context."""
        return rotary(dim, self.theta, self.scaling, positions=positions, freq_factors=freq_factors, where=self.where)

    def reach(self, positions: int) -> int:
        """Positions that the scaling gives: of these types a file names the length before it."""
        if self.scaling is None or self.scaling["rope_type"] not in ("linear", "dynamic", "yarn"):
            return positions
        scaling = Fields(self.scaling, self.where)
        trained = scaling.integer("original_max_position_embeddings", default=positions)
        return min(max(positions, int(trained * scaling.number("factor", default=1.0, low=1e-3, high=1e6))), MAX_SIZE)


def ropes(fields: Fields, theta: float = 10000.0, partial: float = 1.0, local: tuple[str, float] | None = None,
          old_names: Mapping[str, str] = OLD_NAMES) -> dict[str, Rope]:
    """Type of layer -> its rotary settings; all types have the same unless the config tells them apart.

    theta, partial: what absent settings mean. local: where sliding layers have their own base, its top-level name and
    what absence means; settings that are not told apart by type are then those of the full layers alone.
    """
    found = {name: value for name in ("rope_parameters", "rope_scaling") if (value := fields.get(name)) is not None}
    for name, value in found.items():
        if not isinstance(value, dict):
            fields.wrong(name, "an object", value)
    partial = fields.number("partial_rotary_factor", "rotary_pct", default=partial, low=0, high=1)
    both = {}
    for kind in (FULL, SLIDING):
        own = local if kind == SLIDING else None
        parts = []
        for name, value in found.items():
            if value.keys() & {FULL, SLIDING}:
                parts.append(_of_type(fields, name, value, kind))
            elif not own:
                parts.append(Fields(value, f"{fields.where}: {name}"))
        names, base = ((own[0],), own[1]) if own else (("rope_theta", "rotary_emb_base"), theta)
        both[kind] = _rope(fields, parts, names, base, partial, old_names)
    return both


def _of_type(fields: Fields, name: str, value: dict, kind: str) -> Fields:
    """What settings by type of layer say of one type."""
    if odd := [key for key in value if key not in (FULL, SLIDING)]:
        raise UnsupportedModelError(f"{fields.where}: {name}: {show(odd[0])} beside {FULL} and {SLIDING} is not "
                                    "implemented; use a model without it")
    if not isinstance(value.get(kind), (dict, type(None))):
        fields.wrong(f"{name}: {kind}", "an object", value[kind])
    return Fields(value.get(kind) or {}, f"{fields.where}: {name}: {kind}")


def _rope(fields: Fields, parts: Sequence[Fields], names: tuple[str, ...], theta: float, partial: float,
          old_names: Mapping[str, str]) -> Rope:
    """One type of layer. parts: the objects that speak of it; names: the top-level spellings of its base."""
    bases = [fields.number(*names, low=1, high=1e12)] if any(fields.has(name) for name in names) else []
    scalings, where = [], fields.where
    for part in parts:
        if part.has("rope_theta"):
            bases.append(part.number("rope_theta", low=1, high=1e12))
        partial = part.number("partial_rotary_factor", default=partial, low=0, high=1)
        if scaling := _scaling(fields, part, old_names):
            scalings.append(scaling)
            where = part.where
    if any(base != bases[0] for base in bases):
        fields.wrong(names[0], "one base in all spellings", bases)
    if any(one != scalings[0] for one in scalings):
        fields.wrong("rope_scaling", f"what rope_parameters says ({show(scalings[0])})", scalings[1])
    scaling = scalings[0] if scalings else None
    if scaling and scaling["rope_type"] == "proportional":  # a share of the frequencies, of pairs over the whole head
        scaling, partial = scaling | {"partial_rotary_factor": partial}, 1.0
    return Rope(bases[0] if bases else theta, partial, scaling, where)


def _scaling(fields: Fields, part: Fields, old_names: Mapping[str, str]) -> dict | None:
    """The settings of a scaling, or None for plain rotary positions. models/rotary.py checks the values."""
    kind = part.text("rope_type", "") or part.text("type", "default")
    if part.text("type", kind) != kind:
        part.wrong("type", f"the same as rope_type ({kind!r})", part.get("type"))
    off = {"factor": ((1,), "a factor without a rotary scaling")} if kind == "default" else {}
    part.refuse_unread(off, _KNOWN)
    if kind == "default":
        return None
    scaling = {name: part.get(name) for name in _KNOWN
               if part.has(name) and name not in ("rope_theta", "type", "partial_rotary_factor")}
    if fields.has("original_max_position_embeddings"):  # phi3 has it beside rope_scaling
        scaling.setdefault("original_max_position_embeddings", fields.get("original_max_position_embeddings"))
    return scaling | {"rope_type": old_names.get(kind, kind)}
