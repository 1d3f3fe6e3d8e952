"""Settings: the command line, the file, both, and what contradicts itself."""

from dataclasses import fields

import pytest

from forwardpass.cli import fastparse, typer_app
from forwardpass.cli.options import COMMANDS
from forwardpass.errors import ParameterError
from forwardpass.server.settings import CHECKS, Served, Settings, from_options

SERVE = next(command for command in COMMANDS if command.name == "serve")


def of_line(*words):
    """The settings of a command line."""
    command, values = fastparse.parse(["serve", *words]) or typer_app.parse(["serve", *words])
    assert command is SERVE
    values.pop("debug")
    return from_options(values)


@pytest.fixture
def file(tmp_path):
    def write(text):
        path = tmp_path / "server.toml"
        path.write_text(text, "utf-8")
        return str(path)

    return write


def test_nothing_but_a_model():
    assert of_line("smollm2-135m") == Settings(models=("smollm2-135m",))
    assert Settings().host == "127.0.0.1" and not Settings().cors_origin and not Settings().log_prompts


def test_the_whole_command_line():
    line = ("a=smollm2-135m minilm-l6 --host 0.0.0.0 --port 81 --api-key-file k --kv-memory 2GiB --alias x=a "
            "--alias y=a --max-tokens-in-flight 9000 --max-tokens-per-key 800 --max-tokens-per-request 700 "
            "--max-requests 5 --drain-timeout 1.5 --max-body 1MiB --read-timeout 2 --write-timeout 3 --keep-alive 4 "
            "--log-file l --log-prompts --cors-origin https://a.b --cors-origin http://c:80 --dtype int8 "
            "--kv-dtype float32 --threads 2")
    assert of_line(*line.split()) == Settings(
        models=("a=smollm2-135m", "minilm-l6"), aliases={"x": "a", "y": "a"}, host="0.0.0.0", port=81,
        api_key_file="k", kv_memory=2 << 30, max_tokens_in_flight=9000, max_tokens_per_key=800,
        max_tokens_per_request=700, max_requests=5, drain_timeout=1.5, max_body=1 << 20, read_timeout=2.0,
        write_timeout=3.0, keep_alive=4.0, log_file="l",
        log_prompts=True, cors_origin=("https://a.b", "http://c:80"), dtype="int8", kv_dtype="float32", threads=2)


def test_every_setting_has_an_option_and_a_check():
    names = {field.name for field in fields(Settings)} - {"models", "aliases"}
    assert set(CHECKS) == names
    assert {option.name for option in SERVE.options} == names | {"alias", "config", "debug"}
    for option in SERVE.options:  # the file may set what was not given
        assert SERVE.default(option) is None or option.name == "debug"


WHOLE = """
[server]
host = "::1"
port = 99
kv-memory = "1GiB"
kv_dtype = "int8"
cors-origin = ["https://a.b"]
log-prompts = true
drain-timeout = 5
max-body = 2097152

[models.small]
model = "smollm2-135m"
dtype = "int4"
kv-dtype = "float32"
aliases = ["gpt-4o-mini", "gpt-4o"]

[models."org/search"]
"""


def test_the_file(file):
    assert of_line("--config", file(WHOLE)) == Settings(
        models={"small": Served("smollm2-135m", "int4", "float32"), "org/search": Served("org/search")},
        aliases={"gpt-4o-mini": "small", "gpt-4o": "small"}, host="::1", port=99, kv_memory=1 << 30, kv_dtype="int8",
        cors_origin=("https://a.b",), log_prompts=True, drain_timeout=5.0, max_body=2 << 20)


def test_the_command_line_wins(file):
    settings = of_line("--config", file(WHOLE), "--port", "7", "--no-log-prompts", "--kv-dtype", "auto", "--alias",
                       "gpt-4o=org/search")
    assert (settings.port, settings.log_prompts, settings.kv_dtype, settings.host) == (7, False, "auto", "::1")
    assert settings.aliases == {"gpt-4o-mini": "small", "gpt-4o": "org/search"}
    settings = of_line("--config", file(WHOLE), "only-this", "--alias", "a=only-this")
    assert settings.models == ("only-this",) and settings.aliases == {"a": "only-this"}


@pytest.mark.parametrize("text, said", [
    ("[server", "expected a TOML file"),
    ("server = 1", "server must be a section"),
    ("[sever]\nport = 1", r"\[server\] and \[models.NAME\], found 'sever'"),
    ("[server]\nprot = 1", r"knows no 'prot'; it knows .*port"),
    ("[server]\nmodels = 1", "knows no 'models'"),
    ("[server]\nconfig = 'x'", "knows no 'config'"),
    ("[server]\nport = '80'", "server.port must be a whole number from 0 to 65535, not '80'"),
    ("[server]\nport = true", "server.port"),
    ("[server]\nport = 65536", "server.port"),
    ("[server]\nkv-memory = 1\nkv_memory = 1", "kv_memory is set twice"),
    ("[server]\nkv-memory = 'much'", "server.kv-memory"),
    ("[server]\ncors-origin = 'https://a.b'", "a list of texts"),
    ("[server]\ncors-origin = ['a.b']", "must be an origin"),
    ("[server]\ncors-origin = ['https://a.b/c']", "must be an origin"),
    ("[server]\ncors-origin = ['https://u@a.b']", "must be an origin"),
    ("[server]\nlog-prompts = 'yes'", "true or false"),
    ("[server]\ndrain-timeout = -1", "seconds from 0"),
    ("[server]\ndrain-timeout = nan", "seconds from 0"),
    ("[server]\ndtype = 'int5'", "int5"),
    ("[server]\nhost = ''", "must be a text"),
    ("[models]\nx = 1", "models.x must be a section"),
    ("[models.x]\npath = 'y'", "models.x knows no 'path'"),
    ("[models.x]\ndtype = 'int5'", "models.x.dtype"),
    ("[models.x]\nmodel = 5", "models.x.model must be a text"),
    ("[models.x]\naliases = 'y'", "a list of texts"),
    ("[models.x]\naliases = ['']", "must be a text"),
    ("[models.x]\naliases = ['z']\n[models.y]\naliases = ['z']", "'z' already stands for 'x'"),
    ("[models.' ']", "printable characters"),
    ("[server]\nport = 1", "serve needs a model"),
])
def test_files_that_are_refused(file, text, said):
    path = file(text)
    with pytest.raises(ParameterError, match=said) as info:
        of_line("--config", path)
    assert path in str(info.value) or "serve needs a model" in said


@pytest.mark.parametrize("line, said", [
    ("", "serve needs a model"),
    ("m --port 65536", "--port must be"),
    ("m --max-requests 0", "--max-requests must be"),
    ("m --max-requests 5000", "--max-requests must be"),
    ("m --max-body 10", "--max-body must be from 1.0 KiB"),
    ("m --max-body 2GiB", "--max-body must be"),
    ("m --kv-memory lots", "--kv-memory: expected"),
    ("m --keep-alive 0", "--keep-alive must be seconds"),
    ("m --alias x", "--alias must be NAME=MODEL, not 'x'"),
    ("m --alias =m", "--alias must be"),
    ("m --alias x=m --alias x=n", "given twice"),
    ("m --max-tokens-per-key 5", "needs api-key-file"),
    ("m --max-tokens-in-flight 10 --max-tokens-per-request 11", "max-tokens-per-request is 11, more than the 10"),
    ("m --api-key-file k --max-tokens-in-flight 10 --max-tokens-per-key 11", "max-tokens-per-key is 11"),
    ("m --config /nowhere.toml", "/nowhere.toml' cannot be read"),
    ("m --dtype int5", "int5"),
    ("m --threads 0", "--threads must be"),
    ("m --cors-origin *.b", "must be an origin"),
])
def test_lines_that_are_refused(line, said):
    with pytest.raises(ParameterError, match=said):
        of_line(*line.split())


def test_limits_of_one_kind_do_not_contradict_each_other(tmp_path):
    assert of_line("m", "--max-tokens-in-flight", "10", "--max-tokens-per-request", "10").max_tokens_per_request == 10


@pytest.mark.parametrize("host, loopback", [
    ("127.0.0.1", True), ("127.1.2.3", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("::", False),
    ("192.168.1.5", False), ("myhost", False)])
def test_who_can_reach_it(host, loopback):
    assert Settings(host=host).loopback is loopback
