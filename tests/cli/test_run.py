"""`forwardpass run` against a fake model: what it calls, prints and returns."""

import io
import json
import re
import sys

import pytest

from forwardpass.cli import main

TEXT = "Light is scattered.\nCafé 猫\x1b[31m"


def test_streams_the_answer_and_then_one_line_on_stderr(models, model_file, capsys):
    assert main(["run", "Why?", "--model", model_file]) == 0
    out, err = capsys.readouterr()
    assert out == TEXT + "\n"
    pattern = r"4 prompt tokens, 5 new tokens, first token after \d+\.\d+ s, \d+\.\d tokens/s\n"
    assert re.fullmatch(pattern, err)
    assert models[0].calls == [("chat", [{"role": "user", "content": "Why?"}], {})]
    assert models[0].options == {"dtype": "auto", "kv_dtype": "auto", "threads": None}
    assert str(models[0].path) == model_file
    assert models[0].closed


def test_options_reach_the_model_under_their_hf_names(models, model_file):
    line = "--dtype int8 --kv-dtype float32 --threads 2 --max-new-tokens 9 --do-sample --temperature 0.5 --top-k 3"
    line += " --seed 0 --stop a --stop b --bad-words c --suppress-tokens 4 --eos-token-id 5 --no-ignore-eos --system S"
    assert main(["run", "x", "--model", model_file, *line.split()]) == 0
    assert models[0].options == {"dtype": "int8", "kv_dtype": "float32", "threads": 2}
    kind, request, params = models[0].calls[0]
    assert (kind, request[0]) == ("chat", {"role": "system", "content": "S"})
    assert params == {
        "max_new_tokens": 9,
        "do_sample": True,
        "temperature": 0.5,
        "top_k": 3,
        "seed": 0,
        "stop": ["a", "b"],
        "bad_words": ["c"],
        "suppress_tokens": [4],
        "eos_token_id": [5],
        "ignore_eos": False,
    }


def test_raw_leaves_out_the_chat_template(models, model_file):
    assert main(["run", "Once", "--raw", "--model", model_file]) == 0
    assert models[0].calls == [("stream", "Once", {})]


def test_encoder_decoders_answer_to_the_text_as_it_is(models, tmp_path, capsys):
    path = tmp_path / "pair.gguf"
    path.write_bytes(b"")
    assert main(["run", "Is it good?", "--model", str(path)]) == 0
    assert models[0].calls == [("stream", "Is it good?", {})]
    assert main(["run", "Once", "--system", "S", "--model", str(path)]) == 1
    assert "has none" in capsys.readouterr().err
    assert main(["chat", "--model", str(path)]) == 1
    assert "cannot chat" in capsys.readouterr().err


def test_raw_and_system_contradict(models, model_file, capsys):
    assert main(["run", "Once", "--raw", "--system", "S", "--model", model_file]) == 1
    assert "--system" in capsys.readouterr().err
    assert not models


def test_json_is_one_object(models, model_file, capsys):
    assert main(["run", "Why?", "--json", "--model", model_file]) == 0
    out, err = capsys.readouterr()
    record = json.loads(out)
    assert record.pop("seconds") >= 0
    assert record == {
        "text": TEXT,
        "finish_reason": "stop",
        "prompt_tokens": 4,
        "new_tokens": 5,
        "token_ids": [0, 1, 2, 3, 4],
        "timings": {"decode": 0.25},
    }
    assert err == ""


def test_several_answers(models, model_file, capsys):
    arguments = ["run", "x", "--raw", "--num-return-sequences", "2", "--model", model_file]
    assert main(arguments) == 0
    out, err = capsys.readouterr()
    assert out == f"[1] {TEXT}\n[2] {TEXT}\n"
    assert "10 new tokens in 2 answers" in err
    assert main([*arguments, "--json"]) == 0
    assert [choice["text"] for choice in json.loads(capsys.readouterr().out)["choices"]] == [TEXT, TEXT]


def test_explain(models, model_file, capsys):
    assert main(["run", "x", "--explain", "--model", model_file]) == 0
    out, err = capsys.readouterr()
    assert out == TEXT + "\n"
    assert "bound by memory" in err
    assert main(["run", "x", "--explain", "--json", "--model", model_file]) == 0
    assert json.loads(capsys.readouterr().out)["explain"] == {"bottleneck": "memory"}


def test_explaining_how_a_text_is_read(models, tmp_path, capsys):
    (tmp_path / "reader.gguf").touch()
    line = ["run", "x", "--explain", "--model", str(tmp_path / "reader.gguf")]
    assert main(line) == 0
    out, err = capsys.readouterr()
    assert out == "" and "bound by memory" in err and models[0].calls == [("explain", "x", {})]
    assert main([*line, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"explain": {"bottleneck": "memory"}}
    assert main([*line, "--system", "s"]) == 1 and "--system" in capsys.readouterr().err


def test_an_error_is_one_clear_line(models, model_file, capsys):
    assert main(["run", "error", "--model", model_file]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "error: temperature must be in [0, 100], got \\x1b[31mnan\n"
    assert models[0].closed


def test_a_bug_is_one_line_too_and_debug_shows_where(models, model_file, capsys):
    assert main(["run", "bug", "--model", model_file]) == 1
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "IndexError: list index out of range" in err
    assert "--debug" in err
    assert main(["run", "bug", "--debug", "--model", model_file]) == 1
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.filterwarnings("default")
def test_a_warning_is_one_plain_line(models, model_file, capsys):
    assert main(["run", "warn", "--model", model_file]) == 0
    assert capsys.readouterr().err.startswith("warning: the oldest turns were dropped\n")


def test_interrupted(models, model_file, capsys):
    assert main(["run", "interrupt", "--model", model_file]) == 130
    out, err = capsys.readouterr()
    assert out == "Light\n"
    assert err == ""
    assert models[0].streams[0].closed
    assert models[0].closed


def test_unknown_model(models, capsys):
    assert main(["run", "x", "--model", "smollm2-135n"]) == 1
    assert "did you mean smollm2-135m?" in capsys.readouterr().err
    assert main(["run", "x", "--model", "/nowhere/m.gguf"]) == 1
    assert "'/nowhere/m.gguf'" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [[], ["run"], ["run", "a", "b"], ["run", "a", "--bogus"], ["run", "a", "--seed", "x"]]
)
def test_usage_errors(arguments, capsys):
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert "Usage: forwardpass" in out + err
    assert "Traceback" not in err


def test_prompt_from_stdin(models, model_file, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("wörter\n".encode()), encoding="ascii"))
    assert main(["run", "-", "--raw", "--model", model_file]) == 0
    assert models[0].calls[0][1] == "wörter\n"


@pytest.mark.parametrize("prompt", ["-", "a\udcff"])
def test_prompt_that_is_not_utf8(prompt, models, model_file, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff\xfe")))
    assert main(["run", prompt, "--model", model_file]) == 1
    assert "UTF-8" in capsys.readouterr().err


def test_a_terminal_is_not_steered(models, model_file, monkeypatch, capsys):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert main(["run", "x", "--model", model_file]) == 0
    assert capsys.readouterr().out == TEXT.replace("\x1b", "\\x1b") + "\n"


def test_beams_show_their_scores(models, model_file, capsys):
    line = ["run", "x", "--raw", "--num-beams", "2", "--length-penalty", "0.5", "--num-return-sequences", "2"]
    assert main([*line, "--model", model_file]) == 0
    assert models[0].calls[0][2] == {"num_beams": 2, "length_penalty": 0.5, "num_return_sequences": 2}
    assert capsys.readouterr().out == f"[1] (-0.250) {TEXT}\n[2] (-0.250) {TEXT}\n"
    assert main([*line, "--json", "--model", model_file]) == 0
    assert [one["score"] for one in json.loads(capsys.readouterr().out)["choices"]] == [-0.25, -0.25]
