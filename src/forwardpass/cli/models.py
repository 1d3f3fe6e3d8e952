"""`forwardpass models`: the catalogue."""

from __future__ import annotations

from .. import catalog
from .output import print_json, size


def run(json) -> int:
    records = [
        {
            "name": entry.name,
            "summary": entry.summary,
            "tasks": list(entry.tasks),
            "source": entry.source,
            "fetch_bytes": sum(wheel.nbytes for wheel in entry.wheels),
            "nbytes": entry.nbytes,
            "licence": entry.licence,
            "sha256": entry.pin,
            "path": None if (path := catalog.installed_path(entry)) is None else str(path),
            "default": entry.name == catalog.DEFAULT,
        }
        for entry in catalog.ENTRIES
    ]
    if json:
        print_json(records)
        return 0
    for record in records:
        # Two lines a model: a table of all this is wider than a terminal.
        print(record["name"] + (" (default)" if record["default"] else "") + ": " + record["summary"])
        facts = [
            *([f"for {' and '.join(record['tasks'])}"] if record["tasks"] else []),
            size(record["nbytes"]),
            record["licence"],
            record["source"],
            *([f"sha256 {record['sha256'][:16]}..."] if record["sha256"] else []),
            record["path"] or "not fetched",
        ]
        print("    " + ", ".join(facts))
    return 0
