"""deploy/: what the files there say fits what the program takes. Nothing is started."""

import json
import re
import shlex
from pathlib import Path

import pytest

from forwardpass.cli import fastparse
from forwardpass.server.routes import ROUTES
from forwardpass.server.settings import from_options

DEPLOY = Path(__file__).parents[1] / "deploy"
UNIT = (DEPLOY / "forwardpass.service").read_text()
CONTAINER = (DEPLOY / "Containerfile").read_text()


def parsed(words):
    """The options of a line of `forwardpass serve`, through the parser of plain lines."""
    command, values = fastparse.parse(list(words))
    assert command.name == "serve"
    values.pop("debug")
    return values


def unit(name):
    return re.findall(rf"^{name}=(.*)$", UNIT, re.MULTILINE)


def test_the_settings_file():
    settings = from_options({"config": str(DEPLOY / "server.toml")})
    assert set(settings.models) == {"chat", "search"} and settings.needs_key and settings.loopback
    assert settings.api_key_file == f"/run/credentials/forwardpass.service/{unit('LoadCredential')[0].split(':')[0]}"


def test_the_unit():
    program, *words = shlex.split(unit("ExecStart")[0])
    assert Path(program).name == "forwardpass"
    values = parsed(words)
    assert values["config"] == "/etc/forwardpass/server.toml"
    values["config"] = str(DEPLOY / "server.toml")
    settings = from_options(values)
    assert settings.drain_timeout + 5 < int(unit("TimeoutStopSec")[0])
    assert unit("DynamicUser") == ["yes"] and unit("ProtectSystem") == ["strict"] and unit("NoNewPrivileges") == ["yes"]
    assert unit("CapabilityBoundingSet") == [""] and "User" not in dict(re.findall(r"^(\w+)=(.*)$", UNIT, re.MULTILINE))
    assert unit("Environment") == [f"FORWARDPASS_CACHE=/var/cache/{unit('CacheDirectory')[0]}"]
    assert unit("ExecReload") == ["/bin/kill -HUP $MAINPID"]


def test_the_container():
    instructions = re.findall(r"^([A-Z]+) (.*)$", CONTAINER, re.MULTILINE)
    last = instructions[[name for name, _ in instructions].index("FROM", 1) :]
    found = dict(last)
    assert int(found["USER"]) > 0
    assert [name for name, _ in last].index("USER") < [name for name, _ in last].index("CMD")
    assert f"FORWARDPASS_CACHE={found['VOLUME']}" in found["ENV"]
    assert json.loads(found["ENTRYPOINT"]) == ["forwardpass"] and found["STOPSIGNAL"] == "SIGTERM"
    settings = from_options(parsed(json.loads(found["CMD"])))
    assert str(settings.port) == found["EXPOSE"] and settings.host == "0.0.0.0"
    check = json.loads(found["HEALTHCHECK"].split("CMD ")[1])
    compile(check[2], "HEALTHCHECK", "exec")
    path = re.search(rf"http://127.0.0.1:{settings.port}([^']*)'", check[2])[1]
    assert next(route for route in ROUTES if route.path == path).public
    for source in re.findall(r"^COPY (?!--)(.*) \S+$", CONTAINER, re.MULTILINE):
        assert all((DEPLOY.parent / name).exists() for name in source.split())


@pytest.mark.parametrize("line", [line for text in (CONTAINER, (DEPLOY / "README.md").read_text())
                                  for line in re.findall(r"forwardpass serve ([^\n`]*)", text)])
def test_lines_in_comments(line):
    words = [word for word in shlex.split(line.rstrip("; ")) if word != "..."]
    from_options({**parsed(["serve", *words]), "config": None} | ({"model": ["m"]} if "--help" in words else {}))
