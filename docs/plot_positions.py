"""Draws the pictures of position-encodings.md from the engine's own tables: `python docs/plot_positions.py`.

Needs matplotlib (the extra "docs"). Each picture carries a hash of the numbers it shows, which a test compares.
"""

from __future__ import annotations

import hashlib
import io
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

from forwardpass.models.alibi import alibi_slopes
from forwardpass.models.relative_bias import buckets

sys.path.insert(0, str(Path(__file__).parent))
import tables

IMAGES = Path(__file__).with_name("images")
NOTE = "numbers"  # where a picture keeps its hash
Data = dict[str, np.ndarray]
SHOWN = ("default", "linear", "dynamic", "yarn", "llama3", "longrope")
LABELS = {"default": "default", "linear": "linear", "dynamic": "dynamic NTK", "yarn": "YaRN", "llama3": "llama3",
          "longrope": "longrope (a made-up list)", "proportional": "proportional (a quarter; others never turn)"}
STYLES = {"default": ("black", "-"), "linear": ("tab:blue", "-"), "dynamic": ("tab:orange", "-"),
          "yarn": ("tab:green", "-"), "llama3": ("tab:red", "--"), "longrope": ("tab:purple", "-."),
          "proportional": ("tab:brown", ":")}
LONGEST = int(tables.TRAINED * tables.FACTOR)
HEADS = (8, 12)
FAR = 512  # greatest distance whose bias is drawn
T5 = {"count": 32, "max_distance": 128}  # as in T5's checkpoints
NEAR = 1.25


def wavelengths() -> Data:
    """Scaling -> tokens in which each pair of dimensions turns once, in a text of LONGEST tokens."""
    return {name: 2 * np.pi / np.array([f for f in tables.example(name).inv_freq if f]) for name in LABELS}


def biases() -> Data:
    """Number of heads -> float64 [heads, FAR + 1], what a score gets at each distance."""
    return {str(heads): -np.outer(alibi_slopes(heads), np.arange(FAR + 1)) for heads in HEADS}


def t5_buckets() -> Data:
    """Bucket of each key - query from -160 to 160."""
    relative = np.arange(-160, 161)
    return {"both": buckets(relative, T5["count"], True, T5["max_distance"]),
            "past": buckets(relative[relative <= 0], T5["count"], False, T5["max_distance"])}


def decay() -> Data:
    """Scaling -> score of equal vectors, every pair of dimensions alike, by distance, as a share of that at distance 0
    without scaling, averaged over distances up to NEAR times smaller or greater; "ALiBi" -> [heads, distances], the
    attention weight beside that of an equal key at distance 0."""
    distance, every = distances(), np.arange(1, LONGEST + 1)
    first, last = (distance / NEAR).astype(int), np.minimum(distance * NEAR, LONGEST).astype(int)
    out = {}
    for name in SHOWN:
        spec = tables.example(name)
        scores = spec.attention_factor**2 * np.cos(np.outer(every, spec.inv_freq)).mean(1)
        sums = np.concatenate([[0], np.cumsum(scores)])
        out[name] = (sums[last] - sums[first]) / (last - first)
    return out | {"ALiBi": np.exp(-np.outer(alibi_slopes(8), distance))}


def distances() -> np.ndarray:
    return np.unique(np.geomspace(1, LONGEST, 400).astype(int))


def digest(data: Data) -> str:
    """The same on every machine: numbers count to four digits."""
    text = "\n".join(f"{name} {' '.join(f'{value:.3e}' for value in np.ravel(values))}"
                     for name, values in data.items())
    return hashlib.sha256(text.encode()).hexdigest()


# ---------------------------------------------------------------- pictures

def _curves(axis, x, data: Data, names) -> None:
    for name in names:
        colour, style = STYLES[name]
        y = data[name]
        axis.plot(x[: len(y)], y, color=colour, linestyle=style, label=LABELS[name])


def draw_wavelengths(figure, data: Data) -> None:
    left, right = figure.subplots(1, 2)
    pairs = np.arange(tables.DIM // 2)
    _curves(left, pairs, data, LABELS)
    for length, said in ((tables.TRAINED, "trained length"), (LONGEST, f"{tables.FACTOR:g} times that")):
        left.axhline(length, color="grey", linewidth=0.8)
        left.text(0, length * 1.15, said, color="grey", fontsize=8)
    left.set(yscale="log", xlabel="dimension pair", ylabel="wavelength (tokens)",
             title="Tokens in which a pair turns once")
    ratios = {name: wave / data["default"][: len(wave)] for name, wave in data.items()}
    _curves(right, pairs, ratios, LABELS)
    right.set_yscale("log", base=2)
    right.set(yticks=[1, 2, 4, 8, 16, 32, 64], yticklabels=[1, 2, 4, 8, 16, 32, 64], xlabel="dimension pair",
              ylabel="wavelength / default's", title="How far each pair is stretched")
    right.legend(fontsize=8)


def draw_biases(figure, data: Data) -> None:
    axes = figure.subplots(1, 3)
    for heads, marker in zip(HEADS, "os", strict=True):
        axes[0].plot(np.arange(1, heads + 1), -data[str(heads)][:, 1], marker, label=f"{heads} heads", fillstyle="none")
    axes[0].set_yscale("log", base=2)
    axes[0].set(xlabel="head", ylabel="slope (per token)", title="Slopes")
    axes[0].legend(fontsize=8)
    for axis, heads in zip(axes[1:], HEADS, strict=True):
        rows = data[str(heads)]
        order = np.argsort(-rows[:, 1])  # gentle slopes first
        for rank, head in enumerate(order):
            axis.plot(np.arange(FAR + 1), rows[head], color=figure.colours(rank / (heads - 1)), linewidth=1.2)
        for head, said, height in ((order[0], "gentlest", 1.8), (order[-1], "steepest", -19.2)):
            power = np.log2(-rows[head, 1])
            axis.text(FAR * 0.99, height, f"{said}: head {head + 1}, slope $2^{{{power:g}}}$", fontsize=8, ha="right",
                      va="top" if height > 0 else "bottom", bbox={"facecolor": "white", "edgecolor": "none", "pad": 1})
        axis.set(ylim=(-20, 2), xlabel="distance (tokens)", ylabel="added to the score",
                 title=f"Bias of each of {heads} heads")


def draw_t5_buckets(figure, data: Data) -> None:
    left, right = figure.subplots(1, 2, sharey=True)
    relative = np.arange(-160, 161)
    left.step(relative[relative <= 0], data["past"], where="mid", color="tab:blue")
    right.step(relative[relative <= 0], data["both"][relative <= 0], where="mid", color="tab:blue", label="keys before")
    right.step(relative[relative > 0], data["both"][relative > 0], where="mid", color="tab:red", label="keys after")
    right.legend(fontsize=8)
    for axis, title in ((left, "Decoder: keys before the query only"), (right, "Encoder: both directions")):
        axis.axvline(-T5["max_distance"], color="grey", linewidth=0.8)
        axis.set(xlabel="key position - query position (tokens)", title=title)
        axis.text(-T5["max_distance"] + 2, 1, "greatest distance\nthat is told apart", color="grey", fontsize=8)
    right.axvline(T5["max_distance"], color="grey", linewidth=0.8)
    left.set_ylabel("bucket")


def draw_decay(figure, data: Data) -> None:
    left, right = figure.subplots(1, 2)
    x = distances()
    _curves(left, x, data, SHOWN)
    left.axvline(tables.TRAINED, color="grey", linewidth=0.8)
    left.text(tables.TRAINED * 0.9, 1.3, "trained length", color="grey", fontsize=8, ha="right")
    left.set(xscale="log", xlabel="distance (tokens)", ylabel="score / unscaled score at distance 0",
             title="Rotary: score of equal vectors")
    left.legend(fontsize=8)
    for head, row in enumerate(data["ALiBi"]):
        right.plot(x, row, color=figure.colours(head / 7), linewidth=1.2)
        at = np.argmin(np.abs(row - 0.5))
        right.text(x[at], 0.5, str(head + 1), fontsize=8, ha="center", va="center",
                   bbox={"facecolor": "white", "edgecolor": "none", "pad": 1})
    right.set(xscale="log", xlim=(1, 8192), xlabel="distance (tokens)", ylabel="weight / weight at distance 0",
              title="ALiBi: weight of equal keys, heads 1 to 8")


PICTURES: dict[str, tuple[Callable[[], Data], Callable, tuple[float, float]]] = {
    "rotary-wavelengths.png": (wavelengths, draw_wavelengths, (10, 4.2)),
    "alibi.png": (biases, draw_biases, (12, 3.8)),
    "t5-buckets.png": (t5_buckets, draw_t5_buckets, (10, 3.8)),
    "score-decay.png": (decay, draw_decay, (10, 4.2)),
}


def save(pictures: dict) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from PIL import Image, PngImagePlugin

    IMAGES.mkdir(exist_ok=True)
    for name, (numbers, draw, size) in pictures.items():
        figure = pyplot.figure(figsize=size, layout="constrained")
        figure.colours = lambda share: matplotlib.colormaps["viridis"](0.9 * share)
        data = numbers()
        draw(figure, data)
        for axis in figure.axes:
            axis.grid(True, alpha=0.25)
        drawn = io.BytesIO()
        figure.savefig(drawn, dpi=100)
        pyplot.close(figure)
        note = PngImagePlugin.PngInfo()
        note.add_text(NOTE, digest(data))
        few = Image.open(drawn).convert("RGB").quantize(64)  # colours: a third of the bytes
        few.save(IMAGES / name, optimize=True, pnginfo=note)


if __name__ == "__main__":
    save(PICTURES)
