"""`forwardpass draw` over a denoiser in plain NumPy: files, sheets, what a PNG tells, previews, and what is refused."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image

import forwardpass
import tiny_readers
from forwardpass.cli import main
from forwardpass.tasks.drawing import DrawingModel
from script_pictures import opened

SHORT = ["--num-inference-steps", "3"]


@pytest.fixture
def line(tmp_path, monkeypatch, model_file):
    """line(words..., text=False): the command's status, run in an empty folder; text: with a model of texts."""
    monkeypatch.chdir(tmp_path)

    def run(*words, text=False):
        (tmp_path / "model").mkdir(exist_ok=True)
        monkeypatch.setattr(forwardpass, "load", lambda path, **_: DrawingModel(opened(tmp_path / "model", text=text)),
                            raising=False)
        return main(["draw", *words, "--model", model_file, *SHORT])

    return run


def drawn(tmp_path, *prompts, **params):
    with DrawingModel(opened(tmp_path)) as model:
        return model.draw(list(prompts), num_inference_steps=3, **params)


def values(image):
    return np.asarray(image)


def test_one_picture(line, tmp_path, capsys):
    assert line("owl", "--seed", "5", "-o", "owl.png") == 0
    out, err = capsys.readouterr()
    assert out == "owl.png\n" and "1 picture of 32 x 32, 3 steps, seed 5" in err
    with Image.open("owl.png") as image:
        assert (values(image) == values(drawn(tmp_path, "owl", seed=5).images[0])).all()
        told = json.loads(image.text["parameters"])
    assert told["prompt"] == "owl" and told["seed"] == 5 and told["num_inference_steps"] == 3
    assert told["guidance_scale"] == 4.0 and told["scheduler"] == "DDIMScheduler"


def test_a_sheet_has_a_row_for_each_prompt(line, tmp_path, capsys):
    assert line("Fox", "cat", "--num-images-per-prompt", "3", "--seed", "1", "--scale", "2", "--out=two.png") == 0
    sheet = values(Image.open("two.png"))
    assert sheet.shape == (2 * 64, 3 * 64, 3)
    images = drawn(tmp_path, "Fox", "cat", num_images_per_prompt=3, seed=1).images
    for number, image in enumerate(images):
        cell = sheet[number // 3 * 64 : number // 3 * 64 + 64, number % 3 * 64 : number % 3 * 64 + 64]
        assert (cell == values(image).repeat(2, 0).repeat(2, 1)).all()
    capsys.readouterr()


def test_all_labels_where_none_is_named(line, capsys):
    assert line("--json", "-o", "all.png", "--columns", "3") == 0
    told = json.loads(capsys.readouterr().out)
    assert [one["prompt"] for one in told["images"]] == ["cat", "grey fox", "Fox", "owl"]
    assert told["files"] == ["all.png"] and told["timings"]["steps"] == 12
    with Image.open("all.png") as image:
        assert image.size == (96, 64)
        assert json.loads(image.text["parameters"])["seed"] == [one["seed"] for one in told["images"]]
    assert line("-o", "x.png", text=True) == 1
    assert "draw needs something to draw" in capsys.readouterr().err


def test_separate_files_can_be_drawn_again(line, tmp_path, capsys):
    assert line("owl", "--num-images-per-prompt", "2", "--separate", "--seed", "7", "-o", "o.png") == 0
    assert capsys.readouterr().out == "o-1.png\no-2.png\n"
    with Image.open("o-2.png") as image:
        told = json.loads(image.text["parameters"])
        again = drawn(tmp_path, told["prompt"], seed=told["seed"], guidance_scale=told["guidance_scale"]).images[0]
        assert told["seed"] == 8 and (values(image) == values(again)).all()


def test_a_preview_ends_with_the_pictures(line, capsys):
    assert line("owl", "cat", "--preview", "steps.gif", "--seed", "3", "-o", "two.png") == 0
    assert capsys.readouterr().out == "two.png\nsteps.gif\n"
    with Image.open("steps.gif") as moving, Image.open("two.png") as last:
        assert moving.n_frames == 3 and moving.size == last.size
        moving.seek(2)
        assert np.abs(values(moving.convert("RGB")).astype(int) - values(last)).mean() < 12  # a GIF has 256 colours


@pytest.mark.parametrize("words, said", [
    (["owl"], "name it with -o FILE.png"),
    (["owl", "-o", "owl.bmp"], "a picture whose name ends in .png, .jpg, .jpeg, .webp, found .bmp"),
    (["owl", "-o", "nowhere/owl.png"], "there is no folder nowhere"),
    (["owl", "-o", "o.png", "--preview", "p.png"], "an animation whose name ends in .gif, found .png"),
    (["owl", "-o", "o.png", "--scale", "0"], "--scale must be from 1 to 64, not 0"),
    (["owl", "-o", "o.png", "--columns", "0"], "--columns must be from 1 to 1000, not 0"),
    (["owl", "-o", "o.png", "--columns", "2", "--separate"], "give one of them"),
    (["wol", "-o", "o.png"], "owl"),
    (["owl", "-o", "o.png", "--height", "30"], "30"),
    (["owl", "-o", "o.png", "--image", "not-there.png"], "there is no file not-there.png"),
    (["owl", "-o", "o.png", "--num-images-per-prompt", "0"], "num_images_per_prompt"),
])
def test_what_is_refused(line, tmp_path, capsys, words, said):
    assert line(*words) == 1
    err = capsys.readouterr().err
    assert err.startswith("error: ") and said in err and err.count("\n") == 1
    assert not list(tmp_path.glob("*.png"))


@pytest.mark.parametrize("words, said", [
    (["-o", "/proc/owl.png"], "/proc/owl.png: the file could not be written"),
    (["-o", "o.png", "--preview", "/proc/owl.gif"], "/proc/owl.gif: the file could not be written"),
    (["-o", "o.webp", "--columns", "9", "--scale", "64"], "a WEBP file has at most 16,383 pixels a side"),
    (["-o", "o.jpg", "--columns", "33", "--scale", "64"], "a JPEG file has at most 65,500 pixels a side"),
    (["-o", "o.png", "--columns", "9", "--scale", "64"], "is too large"),
    (["-o", "o.png", "--preview", "o.gif", "--columns", "4", "--scale", "64"], "at most 50,000,000 pixels"),
    (["-o", "o.png", "--separate", "--preview", "o.gif", "--scale", "64"], "at most 50,000,000 pixels"),
])
def test_files_that_cannot_be_written_are_told_of_before_all_is_drawn(line, tmp_path, capsys, monkeypatch, words, said):
    steps = []
    monkeypatch.setattr("forwardpass.cli.progress.Progress.__call__", lambda *given: steps.append(given))
    count = {"9": 9, "33": 33, "4": 16}.get(words[words.index("--columns") + 1] if "--columns" in words else "", 16)
    count = 64 if said == "is too large" else count
    assert line("owl", "--num-images-per-prompt", str(count), *words) == 1
    assert said in capsys.readouterr().err and not steps
    assert not list(tmp_path.glob("o.*"))


def test_what_was_there_stays_until_it_is_replaced(line, tmp_path, capsys):
    (tmp_path / "there.png").write_bytes(b"old")
    (tmp_path / "link.png").symlink_to("new.png")
    assert line("wol", "-o", "there.png") == line("wol", "-o", "link.png") == 1
    assert (tmp_path / "there.png").read_bytes() == b"old" and (tmp_path / "link.png").is_symlink()
    assert not (tmp_path / "new.png").exists()
    assert line("owl", "-o", "link.png") == 0
    with Image.open(tmp_path / "new.png") as image:
        assert image.size == (32, 32)


def test_a_model_that_does_not_draw(monkeypatch, tmp_path, model_file, capsys):
    tiny_readers.save(tiny_readers.make("labels", 3), tmp_path / "labels")
    assert main(["draw", "owl", "--model", str(tmp_path / "labels"), "-o", str(tmp_path / "o.png")]) == 1
    err = capsys.readouterr().err
    assert "cannot draw" in err and "classify" in err and "unexpected" not in err
