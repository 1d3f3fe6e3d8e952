"""`forwardpass pull NAME`: fetch a model of the catalogue, or take it from local files."""

from __future__ import annotations

import sys

from .. import catalog
from .output import print_json, write
from .progress import Progress


def run(name, json, **others) -> int:
    # "from" is a Python keyword, so the option cannot be a named parameter.
    with Progress() as progress:
        path = catalog.pull(name, sources=tuple(others["from"] or ()), progress=progress)
    licence = catalog.find(name).licence
    if json:
        print_json({"name": name, "path": str(path), "licence": licence})
    else:
        write(f"{path}\n")
        print(f"{name}: licence {licence}", file=sys.stderr)
    return 0
