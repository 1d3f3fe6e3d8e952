"""The examples run as they are written, each in a process of its own; with the default model, unless marked."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import forwardpass
from forwardpass import ParameterError, config
from forwardpass.contracts import CacheView
from forwardpass.stages.decode import decode
from forwardpass.stages.embed import embed
from forwardpass.stages.preprocess import pack

EXAMPLES = Path(__file__).parents[1] / "examples"
QUESTIONS = "Name a colour.\nName another one.\n"


@pytest.fixture(scope="module", autouse=True)
def network(smollm2_path):
    with forwardpass.load(smollm2_path) as model:
        yield model.network


def run(name: str, typed: str = "", arguments: list[str] | None = None) -> str:
    command = [sys.executable, "-W", "error", str(EXAMPLES / name), *(arguments or [])]
    package = str(Path(forwardpass.__path__[0]).parent)
    environment = os.environ | {"FORWARDPASS_CACHE": str(config.cache_dir()), "PYTHONPATH": package}
    done = subprocess.run(command, input=typed, capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def test_five_stages():
    out = run("five_stages.py")
    for stage in ("1 preprocess", "2 embed", "3 decode", "4 project", "5 postprocess"):
        assert stage in out
    assert "hidden states float32 [5, 576]" in out and "logits float32 [1, 49152]" in out
    assert "the same tokens as model.generate: True" in out and "the same bits: True" in out


def test_batch():
    out = run("batch.py")
    assert "the same tokens: True" in out and "choice 2:" in out


def test_logits_processor():
    assert '"e" in the answer: False' in run("logits_processor.py")


def test_chat():
    out = run("chat.py", QUESTIONS)
    assert out.count("tokens of prompt") == 2 and out.rstrip().endswith(">")


def test_many_users():
    out = run("many_users.py")
    assert "KV cache 256.0 MiB" in out and "somebody leaves after" in out and "the same answers alone: True" in out


def test_draw_sheet(tmp_path):
    out = run("draw_sheet.py", arguments=[str(tmp_path / "sheet.png")])
    assert "step 8 of 8" in out and "6 pictures of 28 x 28" in out and "seen on the way: 4 pictures" in out
    assert out.rstrip().endswith("the same picture alone: True")
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert sheet.size == (2 * 28 * 4, 3 * 28 * 4) and len(set(sheet.tobytes())) > 50


@pytest.mark.models
def test_see_folder(tmp_path):
    shutil.copy(EXAMPLES.parent / "docs" / "images" / "ankle-boot.png", tmp_path / "a boot.png")
    for name, colour in (("black.png", 0), ("grey.png", 99)):
        Image.new("L", (40, 30), colour).save(tmp_path / name)
    (tmp_path / "broken.png").write_bytes(b"no image")
    out = run("see_folder.py", arguments=[str(tmp_path)])
    assert "a boot.png: Ankle boot, 1.00" in out and "vectors: float32 [3, 768]" in out
    assert "broken.png: expected a PNG" in out.replace(f"{tmp_path}/broken.png: ", "")
    assert "most alike: black.png and grey.png" in out and "the same bits one by one: True" in out


@pytest.mark.models
def test_complete_code():
    out = run("complete_code.py")
    filled, continued = out.split("without the text behind the cursor:")
    assert "ended: stop" in filled and "the whole is Python: True" in filled and filled.count("return counts") == 1
    assert "def word_counts(path):" in continued


@pytest.mark.models
def test_nearest_sentences():
    out = run("nearest_sentences.py")
    assert "vectors: float32 [6, 384]" in out and "If you lost access to your account" in out.splitlines()[2]
    assert "the same bits one by one: True" in out and "the same sentence is nearest: True" in out
    assert "bytes of a vector: 1536 and 48" in out


@pytest.mark.models
def test_mend_grammar():
    out = run("mend_grammar.py")
    for sentence in ("She has gone home early .", "There are many people in the room ."):
        assert sentence in out
    assert "I have two brothers" in out and "they are older than me ." in out


@pytest.mark.models
def test_translate_file():
    out = run("translate_file.py")
    assert "Das Haus ist wunderbar, und das Wetter ist schön." in out and "{name}" in out
    assert out.count("  -0.") == 4


def test_every_example_is_run():
    """Here, or where there is a server for it."""
    sources = [Path(__file__), Path(__file__).parent / "server" / "test_run.py"]
    source = "".join(path.read_text("utf-8") for path in sources)
    assert all(f'"{path.name}"' in source for path in EXAMPLES.glob("*.py"))


@pytest.mark.parametrize(
    ("past", "table", "said"),
    [
        ([0, 0], [[0], [0]], "describes 2 sequences, the tokens 1"),
        ([62], [[0]], "hold 64 positions, the sequences need 65"),
        ([0], [[-1]], "a block, 0 to 1"),
        ([0], [[2]], "a block, 0 to 1"),
        ([-1], [[0]], "an empty sequence"),
    ],
)
def test_stage_3_by_hand_names_a_wrong_cache_view(network, past, table, said):
    hidden = embed(network, pack([[1, 2, 3]]))
    view = CacheView(np.array(past), np.array(table))
    with pytest.raises(ParameterError, match=said):
        decode(network, hidden, view, network.kv_memory(2))
