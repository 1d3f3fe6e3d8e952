"""Perplexity and divergence against numbers computed the long way, and the report of `quantize`."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

import forwardpass
import tiny_pairs
import tiny_readers
import word_tokenizer
from forwardpass.cli import main
from forwardpass.errors import ParameterError, UnsupportedModelError
from forwardpass.tasks import quality

TEXT = "The quick brown fox jumps over the lazy dog. " * 12


@pytest.fixture(scope="module")
def models(tiny_folder):
    folder = tiny_folder()
    with forwardpass.load(folder, dtype="float32") as one, forwardpass.load(folder, dtype="int4") as other:
        yield one, other


def log_softmax(row: np.ndarray) -> np.ndarray:
    row = row.astype(np.float64)
    return row - math.log(sum(math.exp(x - row.max()) for x in row)) - row.max()


def test_against_a_plain_loop(models):
    """The tiny model's context of 128 is its window; 300 tokens are two whole windows and one of 44."""
    one, other = models
    ids = quality.text_ids(one, TEXT, 300)
    assert len(ids) == 300
    loss = [0.0, 0.0]
    divergence = same = count = 0
    for at in (0, 128, 256):
        window = ids[at : at + 128]
        both = [one.logits(window), other.logits(window)]
        for i, target in enumerate(window[1:]):
            p, q = (log_softmax(rows[i]) for rows in both)
            loss[0] -= p[target]
            loss[1] -= q[target]
            divergence += sum(math.exp(a) * (a - b) for a, b in zip(p, q, strict=True))
            same += int(p.argmax() == q.argmax())
            count += 1
    done = []
    reference, found, scored = quality.compare(one, {"int4": other}, ids, lambda *now: done.append(now))
    assert scored == count == 297 and done == [(128, 300), (256, 300), (300, 300)]
    assert reference.perplexity == pytest.approx(math.exp(loss[0] / count), rel=1e-9)
    assert found["int4"].perplexity == pytest.approx(math.exp(loss[1] / count), rel=1e-9)
    assert found["int4"].kl == pytest.approx(divergence / count, rel=1e-9) and found["int4"].kl > 1e-5
    assert found["int4"].same_top == same / count


def test_a_model_against_itself(models):
    one, _ = models
    ids = quality.text_ids(one, TEXT, 129)  # a last window of one token has nothing to score
    reference, found, scored = quality.compare(one, {"same": one}, ids)
    assert scored == 127 and found["same"] == quality.Quality(reference.perplexity, 0.0, 1.0)
    assert reference.perplexity == pytest.approx(one.score(ids[:128]).perplexity, rel=1e-6)


@pytest.fixture(scope="module")
def readers(tmp_path_factory):
    """Models that do not continue texts: an encoder, one with labels, and an encoder-decoder."""
    folders = [tiny_readers.save(tiny_readers.make(head), tmp_path_factory.mktemp("readers") / head)
               for head in ("none", "labels")]
    pair = tiny_pairs.save(tiny_pairs.make("bart"), tmp_path_factory.mktemp("readers") / "pair")
    word_tokenizer.write(pair)
    return [*folders, pair]


def test_how_alike_readers_are(readers):
    """The tiny encoders' context of 40 is their window: 100 tokens are two whole windows and one of 20."""
    ids = np.random.default_rng(0).integers(5, 40, 100).tolist()
    for path, window in zip(readers, (40, 40, 100), strict=True):
        with forwardpass.load(path, dtype="float32") as one, forwardpass.load(path, dtype="int4") as other:
            assert not quality.predicts(one)
            done = []
            found = quality.likeness(one, other, ids, lambda *now, done=done: done.append(now))
            cosines = []
            for at in range(0, 100, window):
                a, b = (model.hidden_states(ids[at : at + window]).astype(np.float64) for model in (one, other))
                cosines += [float(x @ y / np.sqrt((x @ x) * (y @ y))) for x, y in zip(a, b, strict=True)]
            assert [now for now, _ in done] == [min(at + window, 100) for at in range(0, 100, window)]
            assert found.cosine == pytest.approx(np.mean(cosines), rel=1e-12)
            assert found.least == pytest.approx(min(cosines), rel=1e-12) and found.least < found.cosine < 1
            assert quality.likeness(one, one, ids) == quality.Likeness(pytest.approx(1), pytest.approx(1))
            with pytest.raises(ParameterError, match="one token"):
                quality.likeness(one, other, [])


def test_texts(models, tmp_path, monkeypatch, tiny_folder):
    with pytest.raises(ParameterError, match="two tokens"):
        quality.compare(models[0], {}, [5])
    assert len(quality.measuring_text()) > 100_000
    (tmp_path / "t.txt").write_text("caf\u00e9", "utf-8")
    monkeypatch.setenv("FORWARDPASS_TEXT", str(tmp_path / "t.txt"))
    assert quality.measuring_text() == "caf\u00e9" == quality.measuring_text(tmp_path / "t.txt")
    (tmp_path / "bad.txt").write_bytes(b"\xff")
    for name in ("bad.txt", "none.txt", "nul\0"):
        with pytest.raises(ParameterError, match="cannot be read"):
            quality.measuring_text(tmp_path / name)
    bare = tiny_folder(tokenizer=False)
    with forwardpass.load(bare) as model, pytest.raises(UnsupportedModelError, match="tokenizer"):
        quality.text_ids(model, "abc", 5)


# --- the command ------------------------------------------------------------------------------------------------


@pytest.fixture
def text(tmp_path):
    (tmp_path / "text.txt").write_text(TEXT)
    return tmp_path / "text.txt"


def test_the_report(tiny_folder, tmp_path, text, capsys):
    source, out = tiny_folder(), tmp_path / "m.fpk"
    arguments = ["quantize", str(source), str(out), "--dtype", "int4", "--text", str(text), "--tokens", "256"]
    assert main([*arguments, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["bytes"] == out.stat().st_size and report["dtype"] == "int4" and report["path"] == str(out)
    found = report["quality"]
    with forwardpass.load(source) as one, forwardpass.load(source, dtype="int4") as other:
        ids = quality.text_ids(one, TEXT, 256)
        reference, others, scored = quality.compare(one, {"x": other}, ids)
    assert found["source"]["perplexity"] == reference.perplexity and found["scored_tokens"] == scored == 254
    assert found["packed"] == {"perplexity": others["x"].perplexity, "kl": others["x"].kl,
                               "same_top": others["x"].same_top}
    assert main(arguments) == 1
    assert "--force" in capsys.readouterr().err
    assert main([*arguments, "--force"]) == 0
    assert "mean KL divergence" in capsys.readouterr().out


def test_the_report_of_readers(readers, tmp_path, text, capsys):
    for number, source in enumerate(readers):
        out = tmp_path / f"{number}.fpk"
        arguments = ["quantize", str(source), str(out), "--dtype", "bfloat16", "--text", str(text), "--tokens", "64"]
        assert main([*arguments, "--json"]) == 0
        report = json.loads(capsys.readouterr().out)["quality"]
        assert 0.99 < report["least"] <= report["cosine"] <= 1 and report["compared_tokens"] == 64
        assert main([*arguments, "--force"]) == 0
        assert f"cosine {report['cosine']:.6f}" in capsys.readouterr().out


def test_the_report_of_a_model_that_sees(tmp_path, text, capsys):
    """Made images of the trained size; the same ones each time."""
    import tiny_vision

    source = tiny_vision.save(tiny_vision.make(*tiny_vision.CASES["dinov2"]), tmp_path / "m")
    arguments = ["quantize", str(source), str(tmp_path / "m.fpk"), "--dtype", "int8", "--tokens", "40", "--json"]
    assert main(arguments) == 0
    report = json.loads(capsys.readouterr().out)["quality"]
    assert 0.99 < report["least"] <= report["cosine"] < 1 and report["compared_images"] == 2  # 17 rows each
    with forwardpass.load(source, dtype="float32") as one:
        assert quality.image_likeness(one, one, 1) == quality.Likeness(1.0, pytest.approx(1))
    assert main([*arguments[:-1], "--force"]) == 0
    assert "2 made ones compared" in capsys.readouterr().out


def test_without_a_report(tiny_folder, tmp_path, capsys):
    source = tiny_folder(tokenizer=False)
    assert main(["quantize", str(source), str(tmp_path / "m.fpk"), "--tokens", "0", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["quality"] is None
    for tokens in ("1", "-4"):
        assert main(["quantize", str(source), str(tmp_path / "n.fpk"), f"--tokens={tokens}"]) == 1
        assert "--tokens must be 0" in capsys.readouterr().err
    assert main(["quantize", str(source), str(tmp_path / "n.fpk"), "--text", str(tmp_path / "none")]) == 1
    assert "cannot be read" in capsys.readouterr().err and not (tmp_path / "n.fpk").exists()


def test_help_has_examples(capsys):
    assert main(["quantize", "--help"]) == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert "forwardpass quantize smollm2-135m smollm2.fpk --dtype int8" in lines
    assert main(["quantize", "one"]) == 2


def test_inspect_a_packed_model(tiny_folder, tmp_path, capsys):
    source, out = tiny_folder(), tmp_path / "m.fpk"
    assert main(["quantize", str(source), str(out), "--tokens", "0", "--dtype", "int8"]) == 0
    capsys.readouterr()
    shown = {}
    for path in (source, out):
        assert main(["inspect", str(path), "--json"]) == 0
        shown[path] = json.loads(capsys.readouterr().out)
    ours, theirs = shown[out], shown[source]
    assert ours["kind"] == "packed" and ours["metadata"]["dtype"] == "int8" and ours["unsupported"] == []
    assert ours["spec"] == theirs["spec"] and ours["tokenizer"] == theirs["tokenizer"]
    assert ours["chat_template"] == theirs["chat_template"] and set(ours["types"]) == {"Q8C", "F32"}
    assert ours["file_bytes"] == out.stat().st_size
