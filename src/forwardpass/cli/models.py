"""`forwardpass models`: the catalogue."""

from __future__ import annotations

from .. import catalog
from .output import print_json, print_table, size


def run(json) -> int:
    records = [
        {
            "name": entry.name,
            "summary": entry.summary,
            "source": entry.source,
            "fetch_bytes": sum(wheel.nbytes for wheel in entry.wheels),
            "nbytes": entry.nbytes,
            "licence": entry.licence,
            "sha256": entry.sha256 or entry.wheels[0].sha256,
            "path": None if (path := catalog.installed_path(entry)) is None else str(path),
            "default": entry.name == catalog.DEFAULT,
        }
        for entry in catalog.ENTRIES
    ]
    if json:
        print_json(records)
        return 0
    rows = [
        [
            record["name"] + (" (default)" if record["default"] else ""),
            record["summary"],
            size(record["nbytes"]),
            record["licence"],
            record["source"],
            record["sha256"][:16],
            "yes" if record["path"] else "no",
        ]
        for record in records
    ]
    print_table(["name", "what", "size", "licence", "source", "sha256", "fetched"], rows)
    return 0
