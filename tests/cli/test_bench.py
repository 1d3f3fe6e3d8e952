"""`forwardpass bench serve` as people type it, against a server with a script."""

import json

import pytest
from aiohttp import web

from fake_openai import in_thread
from forwardpass.cli import bench, main

SMALL = ("--prompt-tokens", "6", "--answer-tokens", "3", "--warm-up", "1")


@pytest.fixture(autouse=True)
def text(tmp_path, monkeypatch):
    """A short text to cut prompts from."""
    path = tmp_path / "text.txt"
    path.write_text(" ".join(f"word{i}" for i in range(9000)))
    monkeypatch.setenv("FORWARDPASS_TEXT", str(path))


def test_a_sweep(tmp_path, capsys):
    report, plot = tmp_path / "report.json", tmp_path / "curve.png"
    with in_thread(gap=0.01) as server:
        status = main(["bench", "serve", server.url, *SMALL, "--concurrency", "1,2,4", "--goodput", "ttft:60000",
                       "--json", "--report", str(report), "--plot", str(plot)])
    result = json.loads(capsys.readouterr().out)
    assert status == 0 and json.loads(report.read_text()) == result
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert result["bench"] == "serve" and result["model"] == "fake" and result["percentiles"] == "nearest rank"
    assert [level["load"]["concurrency"] for level in result["levels"]] == [1, 2, 4]
    assert [level["requests"] for level in result["levels"]] == [4, 8, 16]
    for level in result["levels"]:
        assert level["ok"] == level["requests"] and level["errors"] == {} and level["output_tokens"] == 3
        assert level["prompt_tokens"] == 6 and level["goodput"]["share"] == 1
        for name in ("ttft_ms", "itl_ms", "tpot_ms", "e2e_ms"):
            assert level[name].keys() == {"mean", "p50", "p95", "p99", "max"}
    assert {path for path, _, _ in server.seen} == {"/v1/chat/completions"}
    assert len(server.seen) == 1 + 28 + 3  # the first request, and one to warm up each level


def test_an_open_loop_for_people(capsys):
    def script(number, body):
        return web.json_response({"error": {"message": "full\x1b[2J"}}, status=503) if number == 4 else None

    with in_thread(script=script) as server:
        status = main(["bench", "serve", server.url, *SMALL, "--api", "completions", "--rate", "40", "--requests", "5",
                       "--arrivals", "constant", "--pid", str(__import__("os").getpid()), "--goodput", "itl:60000"])
    out, err = capsys.readouterr()
    title, head, row = out.splitlines()
    assert status == 0 and title.startswith(f"fake at {server.url}, completions; times in ms: p50 / p95 / p99")
    assert "tok/CPU-hour" in head and "in time" in head
    assert row.split()[:4] == ["40/s", "constant", "5", "1"] and "80%, " in row
    assert "failed: 40/s constant: 1 x http 503: full\\x1b[2J" in err and "cut by the server's tokenizer" in err


def test_embeddings(capsys):
    with in_thread(tokenizes=False) as server:
        status = main(["bench", "serve", server.url, *SMALL, "--api", "embeddings", "--requests", "3", "--json"])
    level = json.loads(capsys.readouterr().out)["levels"][0]
    assert status == 0 and level["ok"] == 3 and level["ttft_ms"] is level["itl_ms"] is None
    assert level["output_tok_s"] == 0 < level["total_tok_s"] and level["e2e_ms"]["p50"] > 0 and level["short"] == 0


def test_a_server_that_knows_only_openais_fields(capsys):
    with in_thread(knows_ignore_eos=False) as server:
        assert main(["bench", "serve", server.url, *SMALL, "--json"]) == 0
        assert "does not know ignore_eos" in json.loads(capsys.readouterr().out)["notes"][1]
        assert "ignore_eos" not in server.seen[-1][2]
        assert main(["bench", "serve", server.url, *SMALL, "--ignore-eos"]) == 1
    assert "first request failed: http 400: unknown field ignore_eos" in capsys.readouterr().err


def test_keys_come_from_a_file(tmp_path, capsys):
    key = tmp_path / "key"
    key.write_text("s3cret\nmore\n")
    with in_thread() as server:
        command = ["bench", "serve", server.url, *SMALL, "--json", "--extra-body", '{"top_p": 0.5}', "--name", "mine"]
        assert main([*command, "--key-file", str(key)]) == 0
    out, err = capsys.readouterr()
    assert {headers["Authorization"] for _, headers, _ in server.seen} == {"Bearer s3cret"}
    # All alike, also the first one: a further field may not go with another length of answers.
    assert {(body["top_p"], body["model"], body["max_tokens"]) for _, _, body in server.seen} == {(0.5, "mine", 3)}
    assert "s3cret" not in out + err


def test_nothing_but_failures_is_a_failure(capsys):
    def script(number, body):
        return web.json_response({}, status=500) if number else None

    with in_thread(script=script) as server:
        assert main(["bench", "serve", server.url, *SMALL, "--requests", "2"]) == 1
    out, err = capsys.readouterr()
    assert out.splitlines()[2].split()[:6] == ["1", "at", "once", "2", "2", "-"] and "2 x http 500" in err


@pytest.mark.parametrize("arguments,said", [
    (["decode", "http://127.0.0.1:1"], "expected serve, found 'decode'"),
    (["serve", "localhost:1"], "expected the server's URL"),
    (["serve", "http://127.0.0.1:1"], "expected a server that answers"),
    (["serve", "http://127.0.0.1:1", "--concurrency", "1", "--rate", "2"], "give one of them"),
    (["serve", "http://127.0.0.1:1", "--requests", "1", "--duration", "2"], "give one of them"),
    (["serve", "http://127.0.0.1:1", "--concurrency", "1,x"], "--concurrency: expected numbers with commas"),
    (["serve", "http://127.0.0.1:1", "--concurrency", "1,0"], "concurrency: expected 1 or more"),
    (["serve", "http://127.0.0.1:1", "--prompt-tokens", "many"], "--prompt-tokens: expected N"),
    (["serve", "http://127.0.0.1:1", "--api", "images"], "api: expected chat"),
    (["serve", "http://127.0.0.1:1", "--extra-body", "[1]"], "--extra-body: expected a JSON object, found '[1]'"),
    (["serve", "http://127.0.0.1:1", "--extra-body", "{"], "--extra-body: expected a JSON object"),
    (["serve", "http://127.0.0.1:1", "--key-file", "/no/key"], "--key-file /no/key: expected a readable file"),
    (["serve", "http://127.0.0.1:1", "--plot", "/no/curve.png"], "--plot /no/curve.png: expected the name of a file"),
    (["serve", "http://127.0.0.1:1", "--report", "/"], "--report /: expected the name of a file"),
    (["serve", "http://127.0.0.1:1", "--goodput", "speed:1"], "--goodput: expected ttft:MS"),
    (["serve", "http://127.0.0.1:1", "--pid", "999999999"], "--pid 999999999: expected a process"),
    (["serve", "http://127.0.0.1:1", "--tokenizer", "/no/model"], "/no/model"),
])
def test_mistakes_are_told_in_one_line(arguments, said, capsys):
    assert main(["bench", *arguments]) == 1
    out, err = capsys.readouterr()
    assert out == "" and said in err and err.startswith("error: ") and err.count("\n") == 1


def test_levels():
    options = {"concurrency": None, "rate": None, "arrivals": "poisson", "requests": None, "duration": None,
               "prompt_tokens": "128", "answer_tokens": "uniform:1:9", "shared_prefix": 0, "turns": 1, "think": 0.0,
               "warm_up": None, "seed": None}
    (one,) = bench.levels(**options)
    assert (one.concurrency, one.requests, one.warm_up, one.rate, one.seed) == (1, 4, 2, None, 0)
    slow, fast = bench.levels(**options | {"rate": "0.5,2", "seed": 7})
    assert (slow.rate, slow.duration, slow.requests, fast.rate, fast.seed) == (0.5, 30.0, None, 2.0, 7)
    two, _ = bench.levels(**options | {"concurrency": "2,3", "duration": 5.0, "warm_up": 0})
    assert (two.concurrency, two.duration, two.requests, two.warm_up) == (2, 5.0, None, 0)
