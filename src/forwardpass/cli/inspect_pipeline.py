"""`forwardpass inspect` of a folder with a model_index.json: a pipeline that draws, and what it is made of."""

from __future__ import annotations

import math
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..errors import UnsupportedModelError
from ..weights.diffusers_folder import INDEX, component_folder
from .inspect import cut, in_memory, layer_groups, short, types_of
from .output import print_table, size

SCHEDULE = ("prediction_type", "beta_schedule", "timestep_spacing", "num_train_timesteps")


def describe(path: Path) -> dict:
    """All facts, JSON-ready, as inspect.describe gives those of other models."""
    from ..models.hf_config import read_json
    from ..tasks.pipeline import open_parts, read_scheduler
    from ..tasks.pipeline_index import read_index

    facts = {"path": str(path), "kind": "pipeline", "file_bytes": 0, "components": [], "types": {}, "tensors": [],
             "metadata": {key: short(value) for key, value in read_json(path / INDEX).items()},
             "warnings": [], "unsupported": []}
    try:
        index = read_index(path)
        facts |= {"pipeline": index.name, "warnings": list(index.warnings)}
        facts["scheduler"] = read_scheduler(path)
        with ExitStack() as sources:
            parts = open_parts(index, "auto", sources)
            infos = []
            for part in parts.values():
                found = list(part.source.tensors.values())
                infos += found
                facts["components"].append(_component(part, found, read_json(component_folder(path, part.name)
                                                                             / "config.json")))
                facts["tensors"] += [asdict(info) | {"name": f"{part.name}/{info.name}"} for info in found]
                facts["warnings"] += part.checkpoint.warnings
                facts["file_bytes"] += sum(file.stat().st_size for file in part.files if file.suffix != ".json")
            facts["types"] = types_of(infos)
            facts |= _asked(path, index, parts)
    except UnsupportedModelError as error:
        facts["unsupported"].append(str(error))
    return facts


def _component(part: Any, infos: list, config: dict) -> dict:
    kinds = config.get("_class_name") or (config.get("architectures") or [""])[0]
    return {"name": part.name, "class": kinds, "parameters": sum(math.prod(info.shape) for info in infos),
            "weights_bytes": sum(info.nbytes for info in infos), "made_of": _made_of(part.checkpoint.spec),
            "spec": asdict(part.checkpoint.spec)}


def _made_of(spec: Any) -> list[str]:
    """A sentence for each run of equal layers or stages."""
    from ..models.dit_spec import DitSpec
    from ..models.unet_spec import AutoencoderSpec, UNetSpec

    if isinstance(spec, AutoencoderSpec):
        return [f"{spec.factor} pixels up and across are a latent of {spec.latent_channels} channels",
                *(_stage(f"decoder {name}", stage) for name, stage in spec.decoder.stages.items())]
    if isinstance(spec, UNetSpec):
        return [_stage(name, stage) for name, stage in spec.stages.items()]
    if isinstance(spec, DitSpec):
        return [f"patches of {spec.patch} x {spec.patch} latents",
                *(f"layers {line}" for line in layer_groups(spec, "picture", "text"))]
    return [f"layers {line}" for line in layer_groups(spec)]


def _stage(name: str, stage: Any) -> str:
    """One of a UNet or of an autoencoder."""
    layers = sum(len(getattr(one, "layers", (one,))) for one in stage.attentions if one)
    count = len(stage.resnets)
    attention = f", {layers} layer{'s' if layers > 1 else ''} of attention" if layers else ""
    place = f"at 1/{2**stage.level} of the size" if stage.level else "at full size"
    after = {"": "", "double": "; then twice as high and wide"}.get(stage.resample, "; then half as high and wide")
    return (f"{name}: {count} resnet{'s' if count > 1 else ''} of {stage.channels} channels{attention}, "
            f"{place}{after}")


def _asked(path: Path, index: Any, parts: dict) -> dict:
    """What the pipeline draws, and what it can be asked for."""
    from ..tasks.pipeline import read_reader

    spec, vae = parts["denoiser"].checkpoint.spec, parts["vae"].checkpoint.spec if "vae" in parts else None
    factor, channels = (vae.factor, vae.image_channels) if vae else (1, spec.latent_channels)
    sides = spec.sample_size if isinstance(spec.sample_size, tuple) else (spec.sample_size,) * 2
    text = read_reader(path, index.layout.text, parts["text"].checkpoint.spec) if index.layout.text else {}
    return {"tasks": ["explain", "draw"], "height": sides[0] * factor, "width": sides[1] * factor,
            "channels": channels, "latent_channels": spec.latent_channels,
            "labels": list(index.labels(getattr(spec, "labels", 0))), "label_count": getattr(spec, "labels", 0),
            "prompt_tokens": text.get("max_length")}


def show(facts: dict) -> None:
    rows = [["file", facts["path"]], ["kind", "a pipeline that draws"], ["size", size(facts["file_bytes"])]]
    if "pipeline" in facts:
        rows.append(["pipeline", facts["pipeline"]])
    if "tasks" in facts:
        names = f": {', '.join(facts['labels'])}" if facts["labels"] else ", by number"
        asked = (f"{facts['label_count']} labels{names}" if facts["prompt_tokens"] is None
                 else f"texts of at most {facts['prompt_tokens']} tokens")
        colour = "in grey" if facts["channels"] == 1 else "in colour"
        rows += [["can", ", ".join(facts["tasks"])],
                 ["draws", f"{facts['height']} x {facts['width']} pixels {colour}, or other sizes"],
                 ["asked for", cut(asked, 400)]]
    for one in facts["components"]:
        rows.append([one["name"], f"{one['class']}, {one['parameters']:,} parameters, {size(one['weights_bytes'])}"])
        rows += [["", line] for line in one["made_of"]]
    if "scheduler" in facts:
        config = facts["scheduler"]
        said = ", ".join(f"{key} {config[key]}" for key in SCHEDULE if key in config)
        rows.append(["scheduler", cut(f"{config.get('_class_name')}: {said}" if said else
                                      str(config.get("_class_name")), 400)])
    rows += [[f"tensors {kind}", f"{total['tensors']}, {size(total['nbytes'])}{in_memory(total)}"]
             for kind, total in facts["types"].items()]
    rows += [["warning", warning] for warning in facts["warnings"]]
    rows += [["unsupported", message] for message in facts["unsupported"]]
    print_table(["what", "value"], rows)
