"""Which of many cases a default run takes; the others run with the marker `soak`."""

from collections.abc import Sequence
from typing import Any

import pytest


def few(cases: Sequence[Any], *kept: int) -> list[Any]:
    """The cases for parametrize, all but those numbered `kept` marked."""
    kept = {number % len(cases) for number in kept}
    return [case if number in kept else pytest.param(case, marks=pytest.mark.soak)
            for number, case in enumerate(cases)]
