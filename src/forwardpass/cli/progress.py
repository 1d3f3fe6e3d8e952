"""Progress on stderr: rich bars on a terminal, a line every few seconds elsewhere. rich is imported when needed."""

from __future__ import annotations

import sys
from time import monotonic

SECONDS_BEFORE = 0.3  # what takes less is not worth a bar, nor the time to import rich
SECONDS_BETWEEN_LINES = 3.0


class Progress:
    """Call it as progress(what, done, total); a context manager that leaves the terminal in order. unit: of counts."""

    def __init__(self, unit: str = "bytes"):
        self._unit = unit
        self._bars = None
        self._tasks: dict[str, object] = {}
        self._what = ""
        self._next_line = 0.0
        self._started: float | None = None

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_) -> None:
        if self._bars is not None:
            self._bars.stop()

    def __call__(self, what: str, done: int, total: int) -> None:
        if self._started is None:
            self._started = monotonic()
        if monotonic() - self._started < SECONDS_BEFORE:
            return
        if sys.stderr.isatty():
            self._bar(what, done, total)
        else:
            self._line(what, done, total)

    def _bar(self, what: str, done: int, total: int) -> None:
        if self._bars is None:
            from rich.console import Console
            from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as Bars

            self._bars = Bars(
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                DownloadColumn() if self._unit == "bytes" else MofNCompleteColumn(),
                TimeRemainingColumn(),
                console=Console(stderr=True),
                # Else what is printed meanwhile would go to stderr, although stdout may be a file.
                redirect_stdout=sys.stdout.isatty(),
            )
            self._bars.start()
        if what not in self._tasks:
            self._tasks[what] = self._bars.add_task(what, total=total or None)
        self._bars.update(self._tasks[what], completed=done, total=total or None)

    def _line(self, what: str, done: int, total: int) -> None:
        now = monotonic()
        if what == self._what and now < self._next_line:
            return
        self._what, self._next_line = what, now + SECONDS_BETWEEN_LINES
        megabytes = f"{done / 1e6:.0f} of {total / 1e6:.0f} MB"
        amount = megabytes if self._unit == "bytes" else f"{done} of {total} {self._unit}"
        print(f"{what} ({amount})" if total else what, file=sys.stderr, flush=True)


def resolve(model: str):
    """The local path of a model, with progress when it has to be fetched first."""
    from .. import catalog

    with Progress() as progress:
        return catalog.resolve(model, progress=progress)
