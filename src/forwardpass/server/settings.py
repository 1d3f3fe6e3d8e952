"""What can be set about the server: on the command line, in a TOML file, or both.

    [server]                      the options of the command line without their dashes in front
    port = 8080
    kv-memory = "2GiB"
    api-key-file = "keys.txt"

    [models.small]                one section a model; its name is what requests ask for
    model = "smollm2-135m"        a path, a name of the catalogue, or hf:org/name; default: the section's name
    dtype = "int8"
    aliases = ["gpt-4o-mini"]

The command line wins over the file. Models named on the command line replace those of the file.
"""

from __future__ import annotations

import ipaddress
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from forwardpass import config
from forwardpass.errors import ParameterError
from forwardpass.quant.formats import DTYPES, KV_DTYPES, check_dtype

LONGEST_NAME = 256
"""Of a model, in requests."""
MOST = 2**53
"""No limit is larger: up to here every JSON reader agrees about a whole number."""


@dataclass(frozen=True, slots=True)
class Served:
    """A model of the file. model: a path, a name of the catalogue, or hf:org/name;  dtype, kv_dtype: None = as for
    all."""

    model: str
    dtype: str | None = None
    kv_dtype: str | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """All that `forwardpass serve` can be told. Sizes are in bytes, times in seconds; None = no limit, or what the
    library does by itself.

    models: words of the command line, MODEL or NAME=MODEL, or name -> model of the file.
    """

    models: tuple[str, ...] | Mapping[str, Served] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)
    host: str = "127.0.0.1"
    port: int = 8000
    api_key_file: str | None = None
    kv_memory: int | None = None
    max_tokens_in_flight: int | None = None
    max_tokens_per_key: int | None = None
    max_tokens_per_request: int | None = None
    max_requests: int = 256
    max_body: int = 10 << 20
    drain_timeout: float = 30.0
    read_timeout: float = 30.0
    write_timeout: float = 60.0
    keep_alive: float = 75.0
    log_file: str = "-"
    log_prompts: bool = False
    cors_origin: tuple[str, ...] = ()
    dtype: str = "auto"
    kv_dtype: str = "auto"
    threads: int | None = None

    @property
    def needs_key(self) -> bool:
        return self.api_key_file is not None

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach the server."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def from_options(options: Mapping[str, Any]) -> Settings:
    """The settings that a command line asks for, with those of the file that --config names. Values that are None were
    not given. ParameterError names the option or the field that is wrong."""
    given = {name: value for name, value in options.items() if value is not None}
    path = given.pop("config", None)
    values, sections = ({}, {}) if path is None else _read(path)
    words, given_aliases = given.pop("model", None), given.pop("alias", None)
    aliases = dict(_pair(one, "--alias", "NAME=MODEL") for one in given_aliases or ())
    if len(aliases) != len(given_aliases or ()):
        raise ParameterError("--alias: the same name is given twice")
    checked = {name: _checked(name, value, f"{path}: server.") for name, value in values.items()}
    checked |= {name: _checked(name, value, "--") for name, value in given.items()}
    if words:
        models = tuple(words)
    else:
        models, of_file = _sections(sections, path)
        aliases = of_file | aliases
    settings = Settings(models=models, aliases=aliases, **checked)
    _agree(settings)
    return settings


def _read(path: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """(what [server] sets, the sections of models) of a TOML file."""
    try:
        with open(path, "rb") as file:
            content = tomllib.load(file)
    except OSError as error:
        raise ParameterError(f"--config: {path!r} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ParameterError(f"{path}: expected a TOML file, found: {error}") from None
    unknown = set(content) - {"server", "models"}
    if unknown:
        raise ParameterError(f"{path}: expected the sections [server] and [models.NAME], found {_quoted(unknown)}")
    for name, value in content.items():
        if not isinstance(value, dict):
            raise ParameterError(f"{path}: {name} must be a section, not {value!r}")
    values = _plain_names(content.get("server", {}), f"{path}: server")
    known = set(CHECKS)
    if set(values) - known:
        raise ParameterError(f"{path}: [server] knows no {_quoted(set(values) - known)}; it knows "
                             f"{', '.join(sorted(name.replace('_', '-') for name in known))}")
    return values, content.get("models", {})


def _sections(sections: Mapping[str, Any], path: str | None) -> tuple[dict[str, Served], dict[str, str]]:
    """(models, aliases) of the sections [models.NAME]."""
    models: dict[str, Served] = {}
    aliases: dict[str, str] = {}
    for name, section in sections.items():
        where = f"{path}: models.{name}"
        if not isinstance(section, dict):
            raise ParameterError(f"{where} must be a section, not {section!r}")
        values = _plain_names(section, where)
        unknown = set(values) - {"model", "dtype", "kv_dtype", "aliases"}
        if unknown:
            raise ParameterError(f"{where} knows no {_quoted(unknown)}; it knows model, dtype, kv-dtype and aliases")
        _check_name(name, where)
        for one in _texts(values.pop("aliases", []), f"{where}.aliases"):
            _check_name(one, f"{where}.aliases")
            if aliases.setdefault(one, name) != name:
                raise ParameterError(f"{where}.aliases: {one!r} already stands for {aliases[one]!r}")
        for option, kinds in (("dtype", DTYPES), ("kv_dtype", KV_DTYPES)):
            if option in values:
                check_dtype(f"{where}.{option}", values[option], kinds)
        models[name] = Served(_text(values.pop("model", name), f"{where}.model"), **values)
    return models, aliases


def _pair(text: str, option: str, form: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    if not name or not value:
        raise ParameterError(f"{option} must be {form}, not {text!r}")
    _check_name(name, option)
    return name, value


def _check_name(name: str, where: str) -> None:
    if not name.strip() or not name.isprintable() or len(name) > LONGEST_NAME:
        raise ParameterError(f"{where}: a model's name is 1 to {LONGEST_NAME} printable characters, not {name!r}")


def _plain_names(section: Mapping[str, Any], where: str) -> dict[str, Any]:
    """kv-memory and kv_memory are the same name."""
    plain: dict[str, Any] = {}
    for name, value in section.items():
        if name.replace("-", "_") in plain:
            raise ParameterError(f"{where}.{name} is set twice")
        plain[name.replace("-", "_")] = value
    return plain


def _quoted(names) -> str:
    return ", ".join(repr(name) for name in sorted(names))


# ---- one check a setting: check(value, its name for messages) -> the value as Settings has it


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str) or not value:
        raise ParameterError(f"{name} must be a text, not {value!r}")
    return value


def _texts(value: Any, name: str) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise ParameterError(f"{name} must be a list of texts, not {value!r}")
    return tuple(_text(one, name) for one in value)


def _flag(value: Any, name: str) -> bool:
    if not isinstance(value, bool):
        raise ParameterError(f"{name} must be true or false, not {value!r}")
    return value


def _whole(least: int, most: int = MOST):
    def check(value: Any, name: str) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise ParameterError(f"{name} must be a whole number from {least} to {most}, not {value!r}")
        return value

    return check


def _seconds(least: float, most: float = 86400.0):
    def check(value: Any, name: str) -> float:
        good = not isinstance(value, bool) and isinstance(value, int | float) and math.isfinite(value)
        if not good or not least <= value <= most:
            raise ParameterError(f"{name} must be seconds from {least:g} to {most:g}, not {value!r}")
        return float(value)

    return check


def _size(least: int, most: int = MOST):
    def check(value: Any, name: str) -> int:
        try:
            size = config.parse_memory(value)
        except ParameterError as error:
            raise ParameterError(f"{name}: {error}") from None
        if not least <= size <= most:
            raise ParameterError(f"{name} must be from {config.memory_text(least)} to {config.memory_text(most)}, not "
                                 f"{value!r}")
        return size

    return check


def _dtype(kinds: Sequence[str]):
    def check(value: Any, name: str) -> str:
        check_dtype(name, value, kinds)
        return value

    return check


def _origins(value: Any, name: str) -> tuple[str, ...]:
    """As browsers send them: scheme, host and port, nothing behind."""
    for origin in _texts(value, name):
        parts = urlsplit(origin)
        if origin != "*" and (parts.scheme not in ("http", "https") or not parts.hostname or
                              origin != f"{parts.scheme}://{parts.netloc}" or "@" in parts.netloc):
            raise ParameterError(f'{name} must be an origin such as "https://chat.example.org", or "*", not {origin!r}')
    return tuple(value)


CHECKS = {
    "host": _text,
    "port": _whole(0, 65535),
    "api_key_file": _text,
    "kv_memory": _size(1),
    "max_tokens_in_flight": _whole(1),
    "max_tokens_per_key": _whole(1),
    "max_tokens_per_request": _whole(1),
    "max_requests": _whole(1, 4096),
    "max_body": _size(1024, 1 << 30),
    "drain_timeout": _seconds(0),
    "read_timeout": _seconds(0.1),
    "write_timeout": _seconds(0.1),
    "keep_alive": _seconds(0.1),
    "log_file": _text,
    "log_prompts": _flag,
    "cors_origin": _origins,
    "dtype": _dtype(DTYPES),
    "kv_dtype": _dtype(KV_DTYPES),
    "threads": _whole(1, config.MAX_THREADS),
}
"""What [server] and the command line may set, besides the models."""


def _checked(name: str, value: Any, where: str) -> Any:
    return CHECKS[name](value, where + name.replace("_", "-"))


def _agree(settings: Settings) -> None:
    """What is right by itself may contradict the rest."""
    if not settings.models:
        raise ParameterError("serve needs a model: name it, as in `forwardpass serve smollm2-135m`, or give a "
                             "[models.NAME] section in the file of --config; `forwardpass models` lists the catalogue")
    if settings.max_tokens_per_key is not None and settings.api_key_file is None:
        raise ParameterError("max-tokens-per-key needs api-key-file: without keys nobody can be told apart")
    above = settings.max_tokens_in_flight
    for name in ("max_tokens_per_key", "max_tokens_per_request"):
        value = getattr(settings, name)
        if value is not None and above is not None and value > above:
            raise ParameterError(f"{name.replace('_', '-')} is {value}, more than the {above} of max-tokens-in-flight: "
                                 "it could never be reached")
