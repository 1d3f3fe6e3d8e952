"""What the docs say in tables and pictures is what the code says."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import forwardpass
from forwardpass.decoding.params import SamplingParams
from forwardpass.models import hf_rope, registry
from forwardpass.models.rotary import TYPES

DOCS = Path(__file__).parents[1] / "docs"
PAGES = [*DOCS.glob("*.md"), DOCS.parent / "README.md"]


def script(name):
    spec = importlib.util.spec_from_file_location(f"docs_{name}", DOCS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


tables = script("tables")


@pytest.fixture(scope="module")
def plots():
    """Without matplotlib, which only drawing needs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "tables", tables)
        patch.setitem(sys.modules, "matplotlib", None)
        patch.setattr(sys, "path", [*sys.path])
        plots = script("plot_positions")
        patch.setitem(sys.modules, "plot_positions", plots)
        plots.noise = script("plot_noise")
        return plots


@pytest.mark.parametrize("path", tables.BLOCKS, ids=lambda path: path.name)
def test_tables(path):
    text = path.read_text("utf-8")
    assert tables.page(path, text) == text, "run python docs/tables.py"


def test_what_the_table_of_positions_says_of_a_few_families():
    rows = {row.split("|")[1].strip(): row for row in tables.families().splitlines()}
    assert rows["llama"] == "| llama | rotary | 1e4 | all | halves; GGUF: neighbours | | all |"
    assert rows["gpt2"].startswith("| gpt2 | learned | |") and "1/4" in rows["stablelm"]
    assert "1e4 where there is a window, 1e6" in rows["gemma3_text"] and "10 of 12 layers" in rows["gemma3_text"]
    assert rows["cohere2"].startswith("| cohere2 | rotary, none in 3 of 12 layers |")
    assert set(registry.FAMILIES) <= set(rows)


def test_the_page_of_families_has_them_all():
    """Its first three columns; the fourth is for people."""
    said = {}
    for row in re.findall(r"^\| (\w+) \|([^|]*)\|([^|]*)\|[^|]+\|$", (DOCS / "families.md").read_text("utf-8"), re.M):
        said[row[0]] = tuple({name.strip() for name in cell.split(",")} - {""} for cell in row[1:])
    del said["file"]  # the head
    there = {module.__name__.rpartition(".")[2]: (set(module.ARCHITECTURES), set(module.GGUF))
             for module in registry.FAMILIES.values()}
    assert said == there


def test_the_page_of_positions_names_every_setting():
    text = (DOCS / "position-encodings.md").read_text("utf-8")
    for name in (*hf_rope._KNOWN, *hf_rope.OLD_NAMES):
        assert f"`{name}`" in text or f'"{name}"' in text, name
    for name in TYPES:
        assert f"\n| {name} |" in text


def test_the_page_of_decoding_names_every_parameter():
    text = (DOCS / "decoding.md").read_text("utf-8")
    for name in SamplingParams.__slots__:
        assert f"`{name}`" in text or f"`{name}=" in text, name


# ---------------------------------------------------------------- pictures

PHOTOS = ("ankle-boot.png", "tiny-dit.png")
"""What models are shown, and what they drew: no numbers are drawn in them."""


def test_the_sheet_is_what_the_model_draws():
    """Each of its pictures says what it was drawn with; one of every label is drawn again."""
    with Image.open(DOCS / "images" / "tiny-dit.png") as sheet, forwardpass.load("tiny-dit") as model:
        told, cells = json.loads(sheet.text["parameters"]), np.asarray(sheet)
        assert told["model"] == "tiny-dit" and told["prompt"][::8] == list(model.labels)
        again = model.draw(told["prompt"][::8], seed=told["seed"][3], guidance_scale=told["guidance_scale"],
                           num_inference_steps=told["num_inference_steps"])
    edge = 2 * again.images[0].width
    for row, image in enumerate(again.images):
        cell = cells[row * edge : (row + 1) * edge : 2, 3 * edge : 4 * edge : 2]
        assert (cell == np.asarray(image)).all(), told["prompt"][row * 8]


def test_pictures_are_of_these_numbers(plots):
    """Each is small, is shown by a page, and carries the hash of what the code says now."""
    shown = {(path.parent / name).resolve() for path in PAGES
             for name in re.findall(r"!\[[^\]]+\]\(([^)]+)\)", path.read_text("utf-8"))}
    serving = script("plot_serving")
    digests = {name: (plots.digest(numbers()), "plot_positions") for name, (numbers, _, _) in plots.PICTURES.items()}
    digests |= {name: (plots.digest(numbers()), "plot_noise") for name, (numbers, _, _) in plots.noise.PICTURES.items()}
    digests[serving.PICTURE] = serving.digest(serving.result()), "plot_serving"
    assert shown == set(plots.IMAGES.iterdir()) == {plots.IMAGES / name for name in (*digests, *PHOTOS)}
    for name, (digest, made_by) in digests.items():
        raw = (plots.IMAGES / name).read_bytes()
        assert raw.startswith(b"\x89PNG") and len(raw) < 100_000
        noted = re.search(rb"tEXt" + plots.NOTE.encode() + rb"\0([0-9a-f]{64})", raw)
        assert noted and noted[1].decode() == digest, f"{name}: run python docs/{made_by}.py"


def test_wavelengths(plots):
    """Pair i of 64 under base 10^4: 2 pi 10^(i / 16) tokens."""
    data = plots.wavelengths()
    assert np.allclose(data["default"], 2 * np.pi * 10 ** (np.arange(64) / 16), rtol=1e-6)
    assert np.allclose(data["linear"], 8 * data["default"], rtol=1e-6)
    assert np.allclose(data["dynamic"][-1] / data["default"][-1], 57)  # 8 * 8 - 7
    for name in ("yarn", "llama3", "longrope"):
        ratio = data[name] / data["default"]
        assert np.isclose(ratio[0], 1) and np.isclose(ratio[-1], 8) and (np.diff(ratio) > -1e-5).all(), name
    assert len(data["proportional"]) == 16 and np.array_equal(data["proportional"], data["default"][:16])


def test_noise_schedules(plots):
    data = plots.noise.numbers()
    assert data["leading, offset 1"].tolist() == [901, 801, 701, 601, 501, 401, 301, 201, 101, 1]
    assert data["trailing"].tolist() == [999, 899, 799, 699, 599, 499, 399, 299, 199, 99]
    assert data["linspace"].tolist() == [999, 888, 777, 666, 555, 444, 333, 222, 111, 0]
    assert data["Karras"][0] == 999 and data["Karras"][-1] == 0 and (np.diff(data["Karras"]) < 0).all()
    assert data["the same, rescaled to zero"][-1] == 0 < data["squaredcos_cap_v2 (tiny-dit)"][-1] < 1e-4


def test_biases(plots):
    data = plots.biases()
    assert np.array_equal(data["8"], [[-(2.0**-i) * d for d in range(513)] for i in range(1, 9)])
    assert np.array_equal(data["12"][:8], data["8"])
    assert np.allclose(-data["12"][8:, 1], [2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5])


def test_t5_buckets(plots):
    data = plots.t5_buckets()
    at = dict(zip(range(-160, 161), data["both"].tolist(), strict=True))
    assert [at[d] for d in (-160, -20, -8, 0, 1, 8, 20, 160)] == [15, 10, 8, 0, 17, 24, 26, 31]
    assert data["past"][::-1][[0, 1, 15, 16, 20, 64, 160]].tolist() == [0, 1, 15, 16, 17, 26, 31]


def test_decay(plots):
    data, distance = plots.decay(), plots.distances()
    assert distance[0] == 1 and np.isclose(data["default"][0], np.cos(10 ** (-np.arange(64) / 16)).mean(), rtol=1e-5)
    near = np.searchsorted(distance, 1000)
    around = np.arange(int(distance[near] / 1.25) + 1, int(distance[near] * 1.25) + 1)
    mean = np.cos(np.outer(around, 10 ** (-np.arange(64) / 16))).mean()
    assert np.isclose(data["default"][near], mean, rtol=1e-3)
    assert np.isclose(data["yarn"][0] / np.cos(2 * np.pi / plots.wavelengths()["yarn"]).mean(),
                      (0.1 * np.log(8) + 1) ** 2)
    assert np.allclose(data["ALiBi"][7], np.exp(-distance / 256))


def test_every_route_of_the_server_has_a_line():
    from forwardpass.server.routes import ROUTES

    page = (DOCS / "serving.md").read_text("utf-8")
    listed = set(re.findall(r"(?<=[` ])`?(/[a-z][\w/.]*)", "\n".join(re.findall(r"^\| `(?:GET|POST).*$", page, re.M))))
    missing = {route.path for route in ROUTES if route.path.split("{")[0].rstrip("/") not in listed}
    assert not missing
