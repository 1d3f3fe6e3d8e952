"""Writes the table of docs/weight-formats.md from the code: `python docs/weight_formats.py`. A test compares them."""

from __future__ import annotations

from pathlib import Path

from forwardpass import _native
from forwardpass.quant.formats import bits_a_weight, kernel_format
from forwardpass.weights.source import BLOCKS

PAGE = Path(__file__).with_name("weight-formats.md")
MOST_COLUMNS = 1 << 24  # of a matrix
BEGIN, END = "<!-- made by weight_formats.py -->\n", "<!-- end -->\n"


def table() -> str:
    lines = [
        "| stored type | bits stored | levels | columns a scale | minimum | runs as | bits in memory |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, (values, nbytes) in BLOCKS.items():
        facts = _native.testing.stored_type(name)
        layout = kernel_format(name, "auto")
        levels, span, minimum = "float", "", ""
        if facts["grouped"]:
            levels = f"{facts['least']} to {facts['greatest']}"
            span = "all" if facts["span"] >= MOST_COLUMNS else facts["span"]
            minimum = "yes" if facts["with_min"] else "no"
        bits = f"{8 * nbytes / values:.4g}"
        lines.append(f"| {name} | {bits} | {levels} | {span} | {minimum} | {layout} | {bits_a_weight(layout):g} |")
    return "\n".join(lines) + "\n"


def page(text: str) -> str:
    """The page with its table made anew."""
    before, rest = text.split(BEGIN)
    return before + BEGIN + table() + END + rest.split(END)[1]


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text("utf-8")), "utf-8")
