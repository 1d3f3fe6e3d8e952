"""Imports go downwards only. The order is the architecture: each layer imports from those below it."""

import ast
from pathlib import Path

import pytest

import forwardpass

PACKAGE = Path(forwardpass.__path__[0])

# From top to bottom; modules of one layer may import each other.
ORDER = [
    {"__main__"},
    {"cli", "server", "bench"},
    {"tasks"},
    {"asynchronous", "driver", "engine", "stepping", "pictures", "scheduler"},
    {"stages", "explain"},
    {"decoding", "cache"},
    {"models"},
    {"weights", "quant", "catalog"},
    {"backends"},
    {"contracts", "config", "errors"},
    {"_native"},
]
LEVEL = {name: level for level, names in enumerate(ORDER) for name in names}
# The package's front door hands out what the layers define, so anything below the command line may stand there.
FRONT = "__init__"
STAGES = {"preprocess", "embed", "decode", "project", "postprocess"}


def modules():
    return sorted(path for path in PACKAGE.rglob("*.py") if "__pycache__" not in path.parts)


def name_of(path: Path) -> tuple[str, ...]:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts


def imports(path: Path):
    """(module parts below forwardpass, line) of every import, also of those inside functions."""
    inside = path.relative_to(PACKAGE).parent.parts
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                parts = alias.name.split(".")
                if parts[0] == "forwardpass":
                    yield tuple(parts[1:]), node.lineno
        elif isinstance(node, ast.ImportFrom):
            named = tuple(node.module.split(".")) if node.module else ()
            if node.level:
                base = inside[: len(inside) - (node.level - 1)] + named
            elif named[:1] == ("forwardpass",):
                base = named[1:]
            else:
                continue
            if base:
                yield from (((*base, alias.name), node.lineno) for alias in node.names)
            else:
                yield from (((alias.name,), node.lineno) for alias in node.names)


@pytest.mark.parametrize("path", modules(), ids=lambda path: "/".join(name_of(path)))
def test_imports_go_down(path):
    own = name_of(path)[0]
    if own == FRONT:
        return
    assert own in LEVEL, f"give {own} a place in the order of layers"
    for target, line in imports(path):
        if not target:
            assert own in ("cli", "server"), f"{path}:{line} imports the whole package"
            continue
        assert target[0] in LEVEL, f"{path}:{line} imports {target[0]}, which has no place in the order of layers"
        assert LEVEL[target[0]] >= LEVEL[own], f"{path}:{line}: {own} imports {target[0]}, which lies above it"


def test_stages_never_import_one_another():
    for path in modules():
        name = name_of(path)
        if name[0] == "stages" and name[-1] in STAGES:
            others = {target[1] for target, _ in imports(path) if target[:1] == ("stages",) and len(target) > 1}
            assert not others & (STAGES - {name[-1]}), path


def test_only_config_reads_the_environment():
    for path in modules():
        if name_of(path) in (("config",), ("catalog", "pip")):  # pip.py hands the environment on to pip
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            assert not (isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv")), path


def test_no_heavy_imports():
    """torch, transformers and huggingface_hub are never needed to import a module."""
    for path in modules():
        for node in ast.parse(path.read_text("utf-8")).body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names = [node.module]
            for name in names:
                assert name.split(".")[0] not in ("torch", "transformers", "huggingface_hub", "gguf", "safetensors"), (
                    path
                )
