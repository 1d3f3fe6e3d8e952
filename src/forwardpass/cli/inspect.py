"""`forwardpass inspect MODEL`: what a model is made of. Its weights are not run, and only their names are read.

Everything shown comes from a file that may be hostile, so control characters are escaped and long values cut.
"""

from __future__ import annotations

from dataclasses import asdict
from itertools import groupby
from pathlib import Path

from ..errors import ModelFileError, UnsupportedModelError
from .output import escape, print_json, print_table, size, write
from .progress import resolve

LONGEST_VALUE = 100
KV_DTYPES = ("float32", "bfloat16", "int8")


def run(model, tensors, json) -> int:
    from ..weights.diffusers_folder import is_pipeline
    from . import inspect_pipeline

    path = resolve(model)
    pipeline = is_pipeline(path)
    facts = inspect_pipeline.describe(path) if pipeline else describe(path)
    if json:
        print_json(facts)
    elif pipeline:
        inspect_pipeline.show(facts)
        _show_files(facts, tensors)
    else:
        _show(facts, tensors)
    return 0


def describe(path: Path) -> dict:
    """All facts, JSON-ready. What forwardpass can't run is told under "unsupported" beside the facts that hold."""
    from ..models import costs, registry
    from ..models.hf_config import read_config
    from ..models.task_settings import read_task_settings
    from ..tasks.opening import read_task_files
    from ..weights.packed_file import is_packed
    from ..weights.sentence_transformers import transformer_folder

    if is_packed(path):
        return _describe_packed(path)
    inner = transformer_folder(path) if path.is_dir() else path
    settings = read_config(inner) if path.is_dir() else None
    config = settings.values if settings else None
    with _open(inner, config) as source:
        facts = {
            "path": str(path),
            "kind": source.kind,
            "file_bytes": _file_bytes(inner),
            "metadata": {key: short(value) for key, value in (config or source.metadata).items()},
            "tensors": [asdict(info) for info in source.tensors.values()],
            "types": types_of(source.tensors.values()),
            "unsupported": [],
        }
        tokenizer = None
        try:
            tokenizer = _tokenizer(inner, source)
            facts |= _vocabulary(tokenizer)
        except UnsupportedModelError as error:
            facts["unsupported"].append(str(error))
        try:
            checkpoint = registry.read(source, config)
            facts |= _spec(checkpoint.spec, costs.stored_bytes(checkpoint.weights), checkpoint.warnings)
            said = read_task_settings(read_task_files(path, source, settings), checkpoint.spec)
            facts |= _tasks(checkpoint.spec, said, tokenizer, settings.generation if settings else {})
        except UnsupportedModelError as error:
            facts["unsupported"].append(str(error))
    return facts


def _describe_packed(path: Path) -> dict:
    """The same facts of a file that `quantize` wrote; a matrix's kernel layout is its type."""
    from ..models.packed_model import open_packed
    from ..weights.tokenizer import Tokenizer

    model = open_packed(path)
    tensors, text = model.tensors(), model.tokenizer_text()
    tokenizer = None if text is None else Tokenizer.from_json(text)
    return {
        "path": str(path),
        "kind": "packed",
        "file_bytes": _file_bytes(path),
        "metadata": {"dtype": model.dtype, **{key: short(value) for key, value in model.generation.items()}},
        "tensors": [asdict(info) for info in tensors],
        "types": types_of(tensors),
        "unsupported": [],
        **_spec(model.spec, model.stored, ()),
        **_vocabulary(tokenizer),
        **_tasks(model.spec, model.settings, tokenizer, model.generation),
    }


def _open(path: Path, config: dict | None):
    if path.is_dir():
        from ..weights.folder import open_folder

        return open_folder(path, config)
    if path.suffix == ".safetensors":
        from ..weights.safetensors import open_safetensors

        return open_safetensors(path)
    if path.is_file():
        from ..weights.gguf import open_gguf

        return open_gguf(path)
    raise ModelFileError(f"{path}: expected a model folder or a GGUF file, found something else.")


def _file_bytes(path: Path) -> int:
    if path.is_dir():
        from ..weights.folder import folder_files

        return sum(file.stat().st_size for file in folder_files(path) if file.suffix != ".json")
    from ..weights.gguf_parts import gguf_files

    return sum(file.stat().st_size for file in gguf_files(path))


def short(value):
    """A metadata value small enough to show: lists become their length."""
    if isinstance(value, str | bool | int | float) or value is None:
        return value
    if hasattr(value, "__len__") and not isinstance(value, dict) and len(value) > 16:
        return f"[{len(value)} values]"
    return value.tolist() if hasattr(value, "tolist") else value


def types_of(infos) -> dict[str, dict]:
    """Stored types, and for those that can be read what a matrix of them becomes in memory with dtype "auto"."""
    from ..quant.formats import bits_a_weight, has_layout, kernel_format
    from ..weights.source import BLOCKS

    totals: dict[str, dict] = {}
    for info in infos:
        entry = totals.setdefault(info.type, {"tensors": 0, "nbytes": 0})
        entry["tensors"] += 1
        entry["nbytes"] += info.nbytes
    for kind in totals.keys() & BLOCKS.keys():
        layout = kernel_format(kind, "auto")
        totals[kind] |= {"layout": layout, "bits": bits_a_weight(layout), "own_layout": has_layout(kind)}
    return totals


def in_memory(total: dict) -> str:
    if "layout" not in total:
        return ""
    slow = "" if total["own_layout"] else ", no layout of its own"
    return f"; matrices run as {total['layout']} ({total['bits']:g} bits a weight in memory{slow})"


def _spec(spec, nbytes, warnings) -> dict:
    from ..models import costs

    per_position = {kind: costs.kv_position_bytes(spec, kind) for kind in KV_DTYPES}
    step = costs.total(costs.stage_costs(spec, nbytes, [1], [0], sources=[1] if spec.encoder else None))
    return {
        "spec": asdict(spec),
        "layers": layer_groups(spec, "image" if spec.patches else "text"),
        "seeing_layers": layer_groups(spec.vision, "image") if spec.vision else [],
        "warnings": list(warnings),
        "memory": {
            "parameters": costs.parameters(spec),
            "weights_bytes": sum(nbytes.values()),
            "kv_bytes_per_position": per_position,
            "kv_bytes_full_context": {kind: costs.kv_text_bytes(spec, kind, spec.max_position_embeddings)
                                      for kind in KV_DTYPES},
            "read_bytes_per_token": step.read,
        },
    }


def layer_groups(spec, seen: str = "text", other: str = "encoder") -> list[str]:
    """One sentence for each run of equal layers. seen: what its rows are of;  other: what they also attend to."""
    lines, first = [], 0
    for layer, group in groupby(spec.layers):
        last = first + len(list(group)) - 1
        number = f"{first}" if first == last else f"{first}-{last}"
        lines.append(f"{number}: " + "; ".join(_layer(layer, seen, other)))
        first = last + 1
    return lines


def _layer(layer, seen: str, other: str) -> list[str]:
    """What sets a layer apart."""
    attention, mlp, experts = layer.attention, layer.mlp, layer.mlp.experts
    parts = [f"{attention.num_heads} heads, {attention.num_kv_heads} for keys and values, of {attention.head_dim}",
             f"rotary over {attention.rotary.dim}" if attention.rotary else "no rotary"]
    if not attention.causal:
        parts.append(f"sees the whole {seen}" if not attention.window else "sees both sides")
    if attention.relative or attention.disentangled:
        parts.append("relative bias" if attention.relative else "disentangled attention")
    if layer.cross:
        parts.append(f"attention to the {other}")
    if attention.window:
        parts.append(f"window {attention.window}")
    if attention.alibi:
        parts.append("ALiBi")
    if attention.qk_norm:
        parts.append("norms of queries and keys")
    if attention.softcap:
        parts.append(f"scores capped at {attention.softcap:g}")
    inner = f"{mlp.kind} MLP of {mlp.intermediate_size} ({mlp.activation})"
    parts.append(f"{experts.chosen} of {experts.count} experts, each a {inner}" if experts else inner)
    if experts and experts.shared_size:
        parts.append(f"one of {experts.shared_size} for every token")
    if layer.parallel:
        parts.append("attention and MLP in parallel")
    before, after = (layer.attention_norm, layer.mlp_norm), (layer.post_attention_norm, layer.post_mlp_norm)
    if any(norm and norm.kind == "scale" for norm in after):
        after = ()
        parts.append("what attention and MLP add is scaled")
    if layer.order == "post":
        before, after = (), before
    places = [name for name, norms in (("before", before), ("after", after)) if any(norms)]
    norm = next((norm for norm in (*before, *after) if norm), None)
    if norm:
        where = "" if places == ["before"] else f" {' and '.join(places)} attention and MLP"
        parts.append(f"{norm.kind} norm{where}, eps {norm.eps:g}")
    biases = [("q/k/v", attention.qkv_bias), ("output", attention.out_bias), ("MLP", mlp.bias)]
    if any(there for _, there in biases):
        parts.append("bias on " + ", ".join(name for name, there in biases if there))
    return parts


def _tasks(spec, settings, tokenizer, generation) -> dict:
    """What the model can do, and what its files say about that."""
    from ..tasks.abilities import abilities
    from ..tasks.texts import longest_text

    tasks = list(abilities(spec, settings, tokenizer, generation))
    longest = longest_text(spec, settings, tokenizer) if tokenizer and "generate" not in tasks else None
    return {"tasks": tasks, "settings": asdict(settings), "longest_text": longest}


def _vectors(settings: dict) -> str:
    """How a text's vector is made, or why it isn't."""
    if settings["obstacle"]:
        return settings["obstacle"]
    if not settings["pooling"]:
        return "the files don't say"
    steps = [f"dense layer of {step['outputs']}" if isinstance(step, dict) else "normalised"
             for step in settings["steps"]]
    return ", ".join([" and ".join(settings["pooling"]) + " pooling", *steps])


def _images(spec: dict) -> str:
    """What a model that reads images makes of one."""
    patches = spec["patches"]
    height, width = patches["image"]
    rows = (height // patches["size"]) * (width // patches["size"])
    first = patches["classes"] + patches["registers"]
    sizes = f"others up to {spec['max_position_embeddings']} rows" if patches["resize"] else "no others"
    return (f"{height} x {width} pixels of {patches['channels']} channels, {rows} patches of {patches['size']} and "
            f"{first} rows before them; {sizes}")


def _head(spec: dict, settings: dict) -> str:
    if spec["head"]["task"] == "none":
        return "none"
    if spec["head"]["task"] == "vector":
        return f"a vector of {spec['head']['outputs'] or spec['hidden_size']} numbers"
    if labels := settings["labels"]:
        what = "images" if spec["patches"] else "tokens" if spec["head"]["task"] == "tags" else "texts"
        return f"{len(labels)} labels of {what}: {', '.join(labels)}"
    return "tied to the embedding" if spec["tied"] else "its own matrix"


def _tokenizer(path: Path, source):
    from ..weights.vocabulary import has_tokenizer, tokenizer_from_directory, tokenizer_from_gguf

    if source.kind == "gguf":
        return tokenizer_from_gguf(source.metadata)
    return tokenizer_from_directory(path) if path.is_dir() and has_tokenizer(path) else None


def _vocabulary(tokenizer) -> dict:
    if tokenizer is None:
        return {}
    specials = sorted(tokenizer.special_ids)
    return {
        "tokenizer": {
            "vocab_size": tokenizer.vocab_size,
            "bos_token_id": tokenizer.bos_token_id,
            "eos_token_ids": list(tokenizer.eos_token_ids),
            "special_tokens": {tokenizer.id_to_token(token_id): token_id for token_id in specials},
        },
        "chat_template": tokenizer.chat_template,
    }


def _show(facts: dict, list_tensors: bool) -> None:
    rows = [["file", facts["path"]], ["kind", facts["kind"]], ["size", size(facts["file_bytes"])]]
    if "spec" in facts:
        spec, memory = facts["spec"], facts["memory"]
        seen = spec if spec["patches"] else spec["vision"]
        rows += [
            ["family", spec["family"]],
            ["hidden size", spec["hidden_size"]],
            *([["vocabulary", spec["vocab_size"]], ["context", f"{spec['max_position_embeddings']} tokens"]]
              if not spec["patches"] else []),
            *([["images", _images(seen)]] if seen else []),
            ["can", ", ".join(facts["tasks"])],
            ["head", cut(_head(spec, facts["settings"]), 400)],
            *([["longest text", f"{facts['longest_text']} tokens"]] if facts["longest_text"] else []),
            *([["vectors", _vectors(facts["settings"])]]
              if "embed" in facts["tasks"] or facts["settings"]["obstacle"] else []),
            *(["layers", line] for line in facts["layers"]),
            *(["layers that see", line] for line in facts["seeing_layers"]),
            ["parameters", f"{memory['parameters']:,}"],
            ["weights", size(memory["weights_bytes"])],
            ["read per image" if spec["patches"] else "read per token", size(memory["read_bytes_per_token"])],
            *(
                [
                    f"KV cache, {kind}",
                    f"{size(n)} a token, {size(memory['kv_bytes_full_context'][kind])} at full context",
                ]
                for kind, n in memory["kv_bytes_per_position"].items()
                if n  # an encoder keeps nothing
            ),
        ]
    for kind, total in facts["types"].items():
        rows.append([f"tensors {kind}", f"{total['tensors']}, {size(total['nbytes'])}{in_memory(total)}"])
    if "tokenizer" in facts:
        tokenizer = facts["tokenizer"]
        specials = ", ".join(f"{token}={token_id}" for token, token_id in tokenizer["special_tokens"].items())
        rows += [
            ["tokenizer", f"{tokenizer['vocab_size']} tokens"],
            ["begin of text", "none" if tokenizer["bos_token_id"] is None else tokenizer["bos_token_id"]],
            ["end of text", ", ".join(map(str, tokenizer["eos_token_ids"])) or "none"],
            ["special tokens", cut(specials, 400) or "none"],
        ]
    rows += [["warning", warning] for warning in facts.get("warnings", ())]
    rows += [["unsupported", message] for message in facts["unsupported"]]
    print_table(["what", "value"], rows)
    _show_files(facts, list_tensors)


def _show_files(facts: dict, list_tensors: bool) -> None:
    """What stands in the files as it is."""
    write("\nmetadata\n")
    print_table(
        ["", ""], [[key, cut(str(value))] for key, value in facts["metadata"].items() if not _is_template(key)]
    )
    if list_tensors:
        write("\n")
        shapes = [
            [info["name"], info["type"], " x ".join(map(str, info["shape"])), size(info["nbytes"])]
            for info in facts["tensors"]
        ]
        print_table(["tensor", "type", "shape", "size"], shapes)
    if facts.get("chat_template"):
        write(f"\nchat template\n{escape(facts['chat_template'], keep=chr(10))}\n")


def _is_template(key: str) -> bool:
    return key.endswith("chat_template")


def cut(text: str, longest: int = LONGEST_VALUE) -> str:
    return text if len(text) <= longest else f"{text[:longest]}... ({len(text)} characters)"
