"""What all loaded models have in common, whatever they do: an engine, until they are closed."""

from __future__ import annotations

from typing import Any, Self

from forwardpass.errors import ParameterError
from forwardpass.scheduler.jobs import CLOSED


class Loaded:
    """_engine: that of a subclass, None = closed."""

    _engine: Any = None

    @property
    def engine(self) -> Any:
        engine = self._engine  # read once: another thread may close the model
        if engine is None:
            raise ParameterError(CLOSED)
        return engine

    def close(self) -> None:
        """End all requests and free the model's memory. Closing twice is harmless."""
        engine = self._engine
        if engine is not None:
            engine.close()
            self._engine = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
