"""The picture is drawn, also of levels without answers."""

import sys

import pytest

from forwardpass.bench import curve
from forwardpass.errors import ForwardpassError, ParameterError


def level(load, tok_s, ttft, itl):
    def spread(value):
        return value and {"p95": value}

    return {"load": load, "output_tok_s": tok_s, "requests_s": 1.0, "ttft_ms": spread(ttft), "itl_ms": spread(itl)}


def test_a_picture(tmp_path):
    engines = {"one": [level({"concurrency": 1}, 20.0, 40.0, 10.0), level({"concurrency": 8}, 80.0, 300.0, 22.0)],
               "two": [level({"rate": 0.5}, 10.0, 90.0, None), level({"rate": 2.0}, 0.0, None, None)]}
    curve.draw(tmp_path / "curve.png", engines, "title")
    raw = (tmp_path / "curve.png").read_bytes()
    assert raw.startswith(b"\x89PNG\r\n\x1a\n") and len(raw) > 5000
    curve.draw(tmp_path / "less.png", {"one": engines["one"][:1]}, "title")
    assert (tmp_path / "less.png").read_bytes() != raw


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(ParameterError, match="could not be written: No such file"):
        curve.draw(tmp_path / "no" / "curve.png", {}, "title")


def test_without_matplotlib(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ForwardpassError, match=r"needs matplotlib.*forwardpass\[bench\]"):
        curve.library()
