"""Everything forwardpass raises on purpose.

    ForwardpassError
    ├── ModelFileError           a model file is missing, corrupt or contradicts itself
    ├── UnsupportedModelError    a well-formed model needs something that is not implemented
    ├── ParameterError           an argument has a wrong name, type or value (also a ValueError)
    │   ├── ContextLengthError   the text does not fit into the model's context
    │   └── UnknownModelError    no model of this name is served
    ├── TemplateError            a chat template refused its input or misbehaved
    ├── FetchError               a model could not be fetched or verified
    ├── CapacityError            the request needs more memory than the engine was given
    ├── BusyError                there is no room for the request now; it may be sent again later
    └── DeadlineError            the request's time was over before its answer was whole

Each message says what was expected, what was found and what to do.
"""

from __future__ import annotations


class ForwardpassError(Exception):
    """Base class of every error that forwardpass raises on purpose."""


class ModelFileError(ForwardpassError):
    """A model file is missing, truncated, corrupt or contradicts itself."""


class UnsupportedModelError(ForwardpassError):
    """The model is well formed but needs something forwardpass does not implement."""


class ParameterError(ForwardpassError, ValueError):
    """An argument has an unknown name, a wrong type or a value outside its interval."""


class ContextLengthError(ParameterError):
    """Prompt plus requested tokens exceed the model's context length."""


class UnknownModelError(ParameterError):
    """No model of this name is served. The message lists those that are."""


class TemplateError(ForwardpassError):
    """A chat template raised, attacked the sandbox or exceeded its limits."""


class FetchError(ForwardpassError):
    """A model could not be fetched, or what arrived is not what was pinned."""


class CapacityError(ForwardpassError):
    """The request can never fit into the memory the engine was given."""


class BusyError(ForwardpassError):
    """There is no room for the request now, but there will be.

    retry_after: seconds after which it is worth another try;  own: True = the limit of whoever asked is reached,
    False = that of the whole engine.
    """

    def __init__(self, message: str, retry_after: float = 1.0, own: bool = False):
        super().__init__(message)
        self.retry_after = retry_after
        self.own = own


class DeadlineError(ForwardpassError):
    """The request's deadline passed before its answer was whole."""
