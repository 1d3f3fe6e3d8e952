"""Draws the picture of load.md from the figures in serving.json: `python docs/plot_serving.py`.

The figures are what `python benchmarks/serve.py --peer ... --plot FILE --json docs/serving.json` measured. Needs
matplotlib (the extra "docs"). The picture carries a hash of the numbers it shows, which a test compares.
"""

from __future__ import annotations

import hashlib
import io
import json
from pathlib import Path

IMAGES = Path(__file__).with_name("images")
FIGURES = Path(__file__).with_name("serving.json")
NOTE = "numbers"
PICTURE = "serving-curve.png"


def result() -> dict:
    return json.loads(FIGURES.read_text("utf-8"))


def digest(measured: dict) -> str:
    return hashlib.sha256(json.dumps(measured["curves"], sort_keys=True).encode()).hexdigest()


def main() -> None:
    from PIL import Image, PngImagePlugin

    from forwardpass.bench import curve

    measured, drawn = result(), io.BytesIO()
    machine = measured["machine"]
    curve.draw(drawn, measured["curves"], f"{measured['model']}, 128 tokens in, 128 out; {machine['cpu']}, "
               f"{machine['threads']} threads; numbers at points: requests at once")
    note = PngImagePlugin.PngInfo()
    note.add_text(NOTE, digest(measured))
    few = Image.open(drawn).convert("RGB").quantize(64)  # colours: a third of the bytes
    IMAGES.mkdir(exist_ok=True)
    few.save(IMAGES / PICTURE, optimize=True, pnginfo=note)


if __name__ == "__main__":
    main()
