"""Writes tables of README.md, families.md and position-encodings.md from the code: `python docs/tables.py`. A test
compares.

What a family does is found out by asking it: for the spec of a config.json that has sizes and little else, so the
tables show what a family means where a file says nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from forwardpass.errors import ForwardpassError
from forwardpass.models import hf_heads, registry
from forwardpass.models.rotary import TYPES, ntk_base, rotary
from forwardpass.models.spec import ModelSpec, RotarySpec
from forwardpass.models.weight_rows import row_order

DOCS = Path(__file__).parent
LAYERS, HEADS = 12, 16
WIDTH = 128  # of a head
_DISENTANGLED = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_biased_input": False}
SETTINGS = {"falcon": {"alibi": True}, "mpt": {"attn_config": {"alibi": False}}, "deberta": _DISENTANGLED,
            "deberta-v2": _DISENTANGLED}
"""model_type -> settings under which it has positions of another kind; the first is named."""
TASKS = {"lm": "masks", "labels": "labels of texts", "tags": "labels of tokens"}
SEEING = {"labels": "labels", "vector": "vectors", "none": "none"}
DIM, BASE, TRAINED, FACTOR = 128, 10000.0, 4096, 8.0  # of the examples of scalings


def examples(dim: int = DIM) -> dict[str, dict]:
    """A setting of each scaling, of a model trained on TRAINED positions, for FACTOR times as many."""
    long = np.geomspace(1, FACTOR, dim // 2).tolist()
    return {
        "default": {},
        "linear": {"factor": FACTOR},
        "dynamic": {"factor": FACTOR},
        "yarn": {"factor": FACTOR, "original_max_position_embeddings": TRAINED},
        "llama3": {"factor": FACTOR, "original_max_position_embeddings": TRAINED, "low_freq_factor": 1.0,
                   "high_freq_factor": 4.0},
        "longrope": {"original_max_position_embeddings": TRAINED, "short_factor": [1.0] * (dim // 2),
                     "long_factor": long, "factor": FACTOR},
        "proportional": {"partial_rotary_factor": 0.25},
    }


def example(kind: str, length: int = int(TRAINED * FACTOR)) -> RotarySpec:
    """The example of one scaling, as a text of `length` tokens is rotated."""
    spec = rotary(DIM, BASE, {"rope_type": kind} | examples()[kind], positions=TRAINED)
    if spec.ntk:
        return rotary(DIM, ntk_base(spec.ntk, DIM, length))
    if spec.long_inv_freq and length > spec.switch:
        return RotarySpec(DIM, spec.long_inv_freq, spec.attention_factor)
    return spec


def spec_of(name: str, width: int = WIDTH, **settings) -> ModelSpec | None:
    """What the family makes of these settings, beside sizes in all families' spellings; None if it refuses them."""
    hidden = width * HEADS
    sizes = dict.fromkeys(("hidden_size", "n_embd", "n_embed", "d_model"), hidden)
    sizes |= dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), HEADS)
    sizes |= dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers"), LAYERS)
    sizes |= {"intermediate_size": 4 * hidden, "vocab_size": 1000, "head_dim": width}
    sizes |= {"d_kv": width, "d_ff": 4 * hidden} | settings
    try:
        return registry.spec_from_config({"model_type": name, "text_config": sizes, "vision_config": sizes} | sizes)
    except ForwardpassError:
        return None


def usual(name: str, width: int = WIDTH) -> ModelSpec:
    """With a window, where the family has one."""
    return spec_of(name, width, sliding_window=1024) or spec_of(name, width)


def kind(spec: ModelSpec) -> str:
    """What tells positions apart in this model."""
    later = f", from row {spec.position_offset} on" * bool(spec.position_offset)
    turned = sum(layer.attention.rotary is not None for layer in spec.layers)
    parts = ["learned" + later] * bool(spec.learned_positions)
    parts += ["learned for a grid of patches"] * bool(spec.patches)
    first = spec.layers[0].attention
    parts += ["fixed sines" + later] * bool(spec.sinusoids)
    parts += ["ALiBi"] * bool(first.alibi) + ["numbers by distance"] * bool(first.relative)
    parts += ["vectors by distance"] * bool(first.disentangled)
    parts += ["rotary" + f", none in {LAYERS - turned} of {LAYERS} layers" * (turned < LAYERS)] * bool(turned)
    return "; ".join(parts)


def base(spec: ModelSpec) -> str:
    found = {}
    for layer in spec.layers:
        if turn := layer.attention.rotary:
            text = f"{turn.inv_freq[1] ** (-turn.dim / 2):.4g}".replace("e+0", "e")
            found.setdefault(text, []).append(layer.attention.window > 0)
    return ", ".join(text + " where there is a window" * (all(windows) and len(found) > 1)
                     for text, windows in found.items())


def turned(name: str) -> str:
    """The share of a head that is rotated, or the number of dimensions where that does not depend on the head."""
    narrow, wide = (next((layer.attention.rotary for layer in usual(name, width).layers if layer.attention.rotary),
                         None) for width in (WIDTH, 2 * WIDTH))
    if narrow is None:
        return ""
    if narrow.dim == wide.dim:
        return f"{narrow.dim} dimensions"
    return "all" if narrow.dim == WIDTH else f"1/{WIDTH // narrow.dim}"


def pairs(name: str, spec: ModelSpec) -> str:
    """How the two dimensions of a pair lie in a head, in checkpoints and in GGUF files."""
    if not any(layer.attention.rotary for layer in spec.layers):
        return ""
    module = registry.FAMILIES[name]
    kinds = ["safetensors", *["gguf"] * (name in module.GGUF.values())]
    found = ["neighbours" if any(row.transform == "rotary_rows" for row in module.weight_rows(spec, kind)) else "halves"
             for kind in kinds]
    return found[0] if len(set(found)) == 1 else f"{found[0]}; GGUF: {found[1]}"


def windows(name: str) -> str:
    asked = {"sliding_window": 1024, "use_sliding_window": True, "max_window_layers": LAYERS // 2}
    for settings, said in (({}, ""), ({"sliding_window": 1024}, ""), (asked, "if asked for")):
        spec = spec_of(name, **settings)
        if spec and (count := sum(layer.attention.window > 0 for layer in spec.layers)):
            return said or ("all layers" if count == LAYERS else f"{count} of {LAYERS} layers")
    return ""


def scalings(name: str, spec: ModelSpec) -> str:
    """Scalings that a config.json can ask for in rope_parameters."""
    turn = next((layer.attention.rotary for layer in spec.layers if layer.attention.rotary), None)
    if turn is None:
        return ""
    spec = spec_of(name)
    got = {one: spec_of(name, rope_parameters={"rope_type": one} | given) for one, given in examples(turn.dim).items()}
    read = [one for one in TYPES if one != "default" and got[one] not in (None, spec)]
    return "all" if len(read) == len(TYPES) - 1 else ", ".join(read) or "none"


def families() -> str:
    lines = ["| model_type | positions | base | rotated of a head | pairs | windows | scalings |",
             "|---|---|---|---|---|---|---|"]
    for name in sorted(registry.FAMILIES):
        spec = usual(name)
        cells = [name, kind(spec), base(spec), turned(name), pairs(name, spec), windows(name), scalings(name, spec)]
        lines.append(f"| {' | '.join(cells)} |")
        if name in SETTINGS:
            setting, value = next(iter(SETTINGS[name].items()))
            text = f"`{setting}: {value}`".replace("'", "").replace("True", "true").replace("False", "false")
            lines.append(f"| {name}, {text} | {kind(spec_of(name, **SETTINGS[name]))} | | | | | |")
    return "\n".join(lines).replace("|  ", "| ") + "\n"


def row_orders() -> str:
    lines = ["```"]
    for said, dim in (("8 of 8 dimensions rotated", 0), ("4 of 8", 4)):
        order = row_order(8, 1, dim)
        lines += [f"{said}:", f"  our row      {' '.join(map(str, range(8)))}",
                  f"  stored row   {' '.join(map(str, order))}"]
    return "\n".join(lines) + "\n```\n"


def numbers() -> str:
    """Tokens in which the fastest, the middle and the slowest pair turn once."""
    lines = ["| scaling | fastest | middle | slowest | times the default's | attention factor |",
             "|---|---|---|---|---|---|"]
    plain = 2 * np.pi / np.array(example("default").inv_freq)
    for name in TYPES:
        spec = example(name)
        with np.errstate(divide="ignore"):
            wave = 2 * np.pi / np.array(spec.inv_freq)
        three = [wave[i] for i in (0, DIM // 4, DIM // 2 - 1)]
        shown = [f"{one:,.1f}" if one < 100 else f"{one:,.0f}" if np.isfinite(one) else "never" for one in three]
        shown.append(f"{wave[-1] / plain[-1]:.3g}" if np.isfinite(wave[-1]) else "")
        lines.append(f"| {name} | {' | '.join(shown)} | {spec.attention_factor:.4g} |")
    return "\n".join(lines).replace("|  ", "| ") + "\n"


def registered(wanted: str) -> str:
    """The families of one kind that read texts: "decoders", "encoders" or "pairs" of both."""
    columns = {"decoders": 3, "encoders": 4, "pairs": 2}[wanted]
    rows = [["family", "`model_type`", "GGUF architecture", "heads"]]
    for module in sorted(set(registry.FAMILIES.values()), key=lambda one: one.__name__):
        first = next(iter(module.ARCHITECTURES))
        if usual(first).images:
            continue
        if wanted == ("encoders" if registry.is_encoder(first) else "pairs" if usual(first).encoder else "decoders"):
            rows.append([module.__name__.rpartition(".")[2], ", ".join(module.ARCHITECTURES), ", ".join(module.GGUF),
                         heads(first)])
    lines = [f"| {' | '.join(row[:columns])} |" for row in rows]
    lines.insert(1, "|---" * columns + "|")
    return "\n".join(lines).replace("|  ", "| ") + "\n"


def seeing() -> str:
    """The families that read images, and the towers for texts beside them."""
    lines = ["| `model_type` | classes | heads | rows before the patches | other sizes of images |", "|---" * 5 + "|"]
    for name, module in sorted(registry.FAMILIES.items()):
        if not usual(next(iter(module.ARCHITECTURES))).images:
            continue
        spec = usual(name)
        tasks = {hf_heads.task_of(one, "none") for one in module.ARCHITECTURES[name]} - {"none"} | {spec.head.task}
        before = sizes = ""
        if patches := spec.images and spec.images.patches:
            rows = {"with positions": patches.classes, "without": patches.registers}
            before = ", ".join(f"{count} {said}" for said, count in rows.items() if count) or "none"
            sizes = patches.resize
        cells = [name, ", ".join(module.ARCHITECTURES[name]),
                 ", ".join(said for task, said in SEEING.items() if task in tasks), before, sizes]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines).replace("|  ", "| ") + "\n"


def heads(name: str) -> str:
    tasks = {hf_heads.task_of(one, "none") for one in registry.FAMILIES[name].ARCHITECTURES[name]}
    return ", ".join(said for task, said in TASKS.items() if task in tasks)


BLOCKS: dict[Path, dict[str, Callable[[], str]]] = {
    DOCS / "position-encodings.md": {"families": families, "row orders": row_orders, "scalings": numbers},
    DOCS / "families.md": {"readers of images": seeing},
    DOCS.parent / "README.md": {kind: partial(registered, kind) for kind in ("decoders", "encoders", "pairs")},
}


def page(path: Path, text: str) -> str:
    """The page with its tables made anew."""
    for name, table in BLOCKS[path].items():
        begin, end = f"<!-- {name}: made by docs/tables.py -->\n", f"<!-- end of {name} -->"
        before, rest = text.split(begin)
        text = before + begin + table() + end + rest.split(end)[1]
    return text


if __name__ == "__main__":
    for path in BLOCKS:
        path.write_text(page(path, path.read_text("utf-8")), "utf-8")
