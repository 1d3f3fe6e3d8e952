"""A ModelSpec as JSON and back. What is read may be hostile: the type of each field is checked, then the whole spec."""

from __future__ import annotations

from dataclasses import MISSING, asdict, fields, is_dataclass
from typing import Any, get_args, get_origin, get_type_hints

from forwardpass.errors import ModelFileError
from forwardpass.models.fields import show
from forwardpass.models.spec import MAX_LAYERS, LayerSpec, ModelSpec

INNER = ("encoder", "vision")
"""Fields that are specs themselves. Those have no inner specs of their own."""


def to_json(spec: ModelSpec) -> dict[str, Any]:
    """Layers that are alike are written once: "layers" numbers the entries of "kinds"."""
    kinds = {layer: number for number, layer in enumerate(dict.fromkeys(spec.layers))}
    values = {one.name: getattr(spec, one.name) for one in fields(spec) if one.name not in ("layers", *INNER)}
    plain = {name: asdict(value) if is_dataclass(value) else value for name, value in values.items()}
    for name in INNER:
        inner = getattr(spec, name)
        plain[name] = to_json(inner) if inner else None
    return plain | {"kinds": [asdict(layer) for layer in kinds], "layers": [kinds[layer] for layer in spec.layers]}


def from_json(value: Any, where: str) -> ModelSpec:
    """The spec that `to_json` wrote. where: named in errors. Raises ModelFileError."""
    inner = {name: value.get(name) for name in INNER} if isinstance(value, dict) else {}
    made = {}
    for name, one in inner.items():
        if one is None:
            continue
        if not isinstance(one, dict) or any(one.get(other) is not None for other in INNER):
            raise _wrong(f"{where}.{name}", "a spec without an encoder of its own or a vision tower", one)
        made[name] = _spec(one, f"{where}.{name}", {})
    return _spec(value, where, made).check()


def _spec(value: Any, where: str, inner: dict[str, ModelSpec]) -> ModelSpec:
    if not isinstance(value, dict):
        raise _wrong(where, "an object", value)
    value = {name: one for name, one in value.items() if name not in INNER}
    kinds, order = value.pop("kinds", None), value.pop("layers", None)
    if not isinstance(kinds, list) or not isinstance(order, list) or not 1 <= len(order) <= MAX_LAYERS:
        raise _wrong(f"{where}.layers", f"kinds, and 1 to {MAX_LAYERS} layers", order)
    made = [_build(LayerSpec, kind, f"{where}.kinds") for kind in kinds[:MAX_LAYERS]]
    for number in order:
        if type(number) is not int or not 0 <= number < len(made):
            raise _wrong(f"{where}.layers", f"numbers below {len(made)}", number)
    return _build(ModelSpec, value, where, layers=tuple(made[number] for number in order),
                  **{name: inner.get(name) for name in INNER})


def _build(kind: type, value: Any, where: str, **known: Any) -> Any:
    if not isinstance(value, dict):
        raise _wrong(where, "an object", value)
    hints = get_type_hints(kind)
    wanted = {one.name: one for one in fields(kind) if one.name not in known}
    for name in value:
        if name not in wanted:
            raise _wrong(where, f"only {', '.join(wanted)}", name)
    for name, one in wanted.items():
        if name not in value and one.default is MISSING:
            raise _wrong(where, name, "nothing")
    return kind(**{name: _value(hints[name], one, f"{where}.{name}") for name, one in value.items()}, **known)


def _value(hint: Any, value: Any, where: str) -> Any:
    choices = get_args(hint)
    if type(None) in choices:
        if value is None:
            return None
        hint = next(one for one in choices if one is not type(None))
        choices = get_args(hint)
    if get_origin(hint) is tuple:
        if not isinstance(value, list):
            raise _wrong(where, "a list", value)
        return tuple(_value(choices[0], one, where) for one in value)
    if is_dataclass(hint):
        return _build(hint, value, where)
    if hint is float and type(value) is int and abs(value) < 2**53:
        value = float(value)
    if type(value) is not hint:
        raise _wrong(where, f"a value of type {hint.__name__}", value)
    return value


def _wrong(where: str, expected: str, found: object) -> ModelFileError:
    return ModelFileError(f"{where}: expected {expected}, found {show(found)}; quantize the source again")
