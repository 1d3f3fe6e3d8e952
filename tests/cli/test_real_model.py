"""The command line on the real default model, in processes of their own."""

import json
import os
import subprocess
import sys

import pytest

from forwardpass import catalog, config

from_user = config.cache_dir()  # before any test moves the cache

# What must not be imported on the way to the first token: each costs more than the token itself.
BANNED = {"aiohttp", "anyio", "asyncio", "click", "httptools", "huggingface_hub", "matplotlib", "msgspec",
          "multiprocessing", "prometheus_client", "pydantic", "rich", "starlette", "torch", "transformers", "typer",
          "uvicorn"}


@pytest.fixture(autouse=True)
def users_cache(cache, monkeypatch):
    monkeypatch.setenv("FORWARDPASS_CACHE", str(from_user))
    entry = catalog.find(catalog.DEFAULT)
    assert catalog.installed_path(entry), f"the tests need {entry.name}: run `forwardpass pull {entry.name}` first"


def forwardpass(*arguments, code="from forwardpass.cli import main; status = main(sys.argv[1:])", stdin=b""):
    program = f"import sys; {code}; print(*sys.modules, file=sys.stderr); sys.exit(status)"
    done = subprocess.run([sys.executable, "-c", program, *arguments], input=stdin, capture_output=True, env=os.environ)
    *lines, modules = done.stderr.decode().splitlines()
    return done.returncode, done.stdout.decode(), lines, modules.split()


def test_run_imports_nothing_heavy():
    status, out, lines, modules = forwardpass("run", "Why is the sky blue?", "--max-new-tokens", "4")
    assert status == 0 and out.strip() and "4 new tokens" in lines[-1]
    assert not BANNED & {module.partition(".")[0] for module in modules}


def test_json_and_stream_agree():
    line = ("-", "--max-new-tokens", "8", "--system", "Be brief.")
    streamed = forwardpass("run", *line, stdin=b"Name a colour.")
    whole = forwardpass("run", *line, "--json", stdin=b"Name a colour.")
    assert streamed[0] == whole[0] == 0
    record = json.loads(whole[1])
    assert record["text"] + "\n" == streamed[1]
    assert f"{record['prompt_tokens']} prompt tokens, {record['new_tokens']} new tokens" in streamed[2][-1]


def test_chat_remembers():
    lines = b"My name is Ada.\nWhat is my name?\n"
    status, out, _, _ = forwardpass("chat", "--json", "--max-new-tokens", "24", stdin=lines)
    first, second = (json.loads(line) for line in out.splitlines())
    assert status == 0 and second["prompt_tokens"] > first["prompt_tokens"] + first["new_tokens"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--temperature", "nan"], "temperature"),
        (["--max-new-tokens", "0"], "max_new_tokens"),
        (["--raw", "--max-new-tokens", "9000"], "8192"),
        (["--dtype", "int9"], "int9"),
        (["--suppress-tokens", "49152"], "49152"),
    ],
)
def test_bad_values_are_one_clear_line(arguments, said):
    status, out, lines, _ = forwardpass("run", "hello", *arguments)
    assert (status, out, len(lines)) == (1, "", 1)
    assert lines[0].startswith("error: ") and said in lines[0]


def test_inspect():
    status, out, _, _ = forwardpass("inspect", catalog.DEFAULT, "--json")
    facts = json.loads(out)
    assert status == 0
    assert facts["memory"]["parameters"] == 134_515_008
    assert len(facts["tensors"]) == 272 and "<|im_start|>" in facts["chat_template"]
