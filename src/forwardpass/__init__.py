"""forwardpass: Transformer inference, fast and exact, on the hardware people have.

    import forwardpass

    with forwardpass.load("smollm2-135m") as model:
        print(model.chat([{"role": "user", "content": "What is a llama?"}]).text)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forwardpass.errors import (
    BusyError,
    CapacityError,
    ContextLengthError,
    DeadlineError,
    FetchError,
    ForwardpassError,
    ModelFileError,
    ParameterError,
    TemplateError,
    UnknownModelError,
    UnsupportedModelError,
)

if TYPE_CHECKING:
    from forwardpass.contracts import Candidate, Completion, Drawing, DrawingStep, Entity, Piece, Score
    from forwardpass.tasks.async_model import AsyncModel
    from forwardpass.tasks.drawing import DrawingModel
    from forwardpass.tasks.host import Host
    from forwardpass.tasks.model import Model, load

__version__ = "0.1.0"

_LAZY = {"load": "forwardpass.tasks.model", "Model": "forwardpass.tasks.model", "Completion": "forwardpass.contracts",
         "Piece": "forwardpass.contracts", "Score": "forwardpass.contracts", "Entity": "forwardpass.contracts",
         "Candidate": "forwardpass.contracts", "Host": "forwardpass.tasks.host",
         "AsyncModel": "forwardpass.tasks.async_model", "Drawing": "forwardpass.contracts",
         "DrawingStep": "forwardpass.contracts", "DrawingModel": "forwardpass.tasks.drawing"}

__all__ = ["AsyncModel", "BusyError", "Candidate", "CapacityError", "Completion", "ContextLengthError",
           "DeadlineError", "Drawing", "DrawingModel", "DrawingStep", "Entity", "FetchError", "ForwardpassError",
           "Host", "Model", "ModelFileError", "ParameterError", "Piece", "Score", "TemplateError", "UnknownModelError",
           "UnsupportedModelError", "load"]


def __getattr__(name: str) -> Any:
    """Names that need NumPy and the kernels are imported when first used: `--help` does without them."""
    if name not in _LAZY:
        raise AttributeError(f"module 'forwardpass' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
