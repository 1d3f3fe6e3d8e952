"""What `import forwardpass` offers, and what it does not load."""

import inspect
import re
import subprocess
import sys
from types import ModuleType

import pytest

import forwardpass
from forwardpass import errors


def test_all_is_the_flat_public_namespace():
    assert sorted(set(dir(forwardpass)) - {"__version__"}) == sorted(forwardpass.__all__)
    for name in forwardpass.__all__:
        value = getattr(forwardpass, name)
        assert callable(value) and not isinstance(value, ModuleType) and value.__doc__, name
        assert getattr(forwardpass, name) is value
    assert re.fullmatch(r"\d+\.\d+\.\d+", forwardpass.__version__)


def test_all_errors_are_public():
    ours = {name for name, value in vars(errors).items() if inspect.isclass(value)}
    assert ours <= set(forwardpass.__all__) and len(ours) == 11
    assert all(getattr(forwardpass, name) is getattr(errors, name) for name in ours)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="lode"):
        forwardpass.lode  # noqa: B018


def test_star_import():
    names: dict = {}
    exec("from forwardpass import *", names)
    assert set(forwardpass.__all__) <= set(names)


def drawn():
    """(class, parent) as drawn in the docstring of errors.py."""
    found, path = {}, []
    for line in errors.__doc__.splitlines():
        match = re.match(r"    ([│├└─ ]*)(\w+Error)(?:\s|$)", line)
        if match:
            depth = len(match[1]) // 4
            path[depth:] = [match[2]]
            found[match[2]] = path[depth - 1] if depth else None
    return found


def test_the_drawn_hierarchy_is_the_real_one():
    real = {name: value for name, value in vars(errors).items() if inspect.isclass(value)}
    assert drawn() == {name: None if name == "ForwardpassError" else value.__bases__[0].__name__
                       for name, value in real.items()}
    assert issubclass(errors.ParameterError, ValueError) and "also a ValueError" in errors.__doc__
    assert not issubclass(errors.ForwardpassError, ValueError)


LIGHT = "import sys; before = set(sys.modules); import forwardpass; print(*sorted(set(sys.modules) - before))"


def test_import_is_light():
    out = subprocess.run([sys.executable, "-c", LIGHT], capture_output=True, text=True, check=True).stdout.split()
    heavy = {"numpy", "torch", "transformers", "tokenizers", "jinja2", "typer", "rich", "huggingface_hub", "gguf"}
    assert not heavy & {name.split(".")[0] for name in out}
    assert not [name for name in out if name.startswith("forwardpass.") and name != "forwardpass.errors"]


def test_a_model_runs_without_torch_and_transformers():
    code = ("import sys, forwardpass; m = forwardpass.load('smollm2-135m'); m.generate('a', max_new_tokens=1); "
            "print(*{name.split('.')[0] for name in sys.modules})")
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"torch", "transformers", "gguf", "safetensors", "huggingface_hub", "rich", "typer"} & set(out)
