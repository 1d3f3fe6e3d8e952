"""Calls into the user's own functions, whose mistakes must be named and must stay within their own request."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from forwardpass.errors import ParameterError

_TRANSFORMERS = "transformers.generation.logits_process"


def adapt(processor: Callable) -> Callable:
    """transformers' LogitsProcessor objects take and return torch tensors [1, n]; wrap them. Others stay as they are.

    They are recognised by the module of their base class, so that neither package is imported for anybody else.
    """
    if any(base.__module__ == _TRANSFORMERS for base in type(processor).__mro__):
        return _TransformersProcessor(processor)
    return processor


class _TransformersProcessor:
    def __init__(self, processor: Callable):
        import torch

        self._torch = torch
        self._processor = processor
        self.__name__ = type(processor).__name__

    def __call__(self, token_ids: list[int], row: np.ndarray) -> np.ndarray:
        torch = self._torch
        with torch.no_grad():
            ids = torch.tensor([token_ids], dtype=torch.int64)
            scores = self._processor(ids, torch.from_numpy(row).unsqueeze(0))
        if not isinstance(scores, torch.Tensor) or scores.shape != (1, row.size):
            shape = tuple(scores.shape) if isinstance(scores, torch.Tensor) else type(scores).__name__
            raise ParameterError(
                f"logits_processors: {self.__name__} must return a tensor of shape (1, {row.size}); got {shape}."
            )
        return scores[0].to(torch.float32).cpu().numpy()


def call(processor: Callable, token_ids: list[int], row: np.ndarray) -> np.ndarray:
    """processor(token_ids, row), checked. It gets copies, which it may edit and return.

    row: float32 [rows]. Returns float32 [rows] without NaN or +inf; raises ParameterError otherwise.
    """
    name = getattr(processor, "__name__", type(processor).__name__)
    try:
        result = processor(list(token_ids), row.copy())
    except ParameterError:
        raise
    except Exception as error:
        raise ParameterError(f"logits_processors: {name} raised {type(error).__name__}: {error}") from error
    if result is None:
        raise ParameterError(
            f"logits_processors: {name} returned None; it must return the row, also if edited in place."
        )
    try:
        found = np.asarray(result)
        # Objects, text and complex numbers are no logits, even where numpy could convert them.
        values = np.array(found, np.float32) if found.dtype.kind in "fiu" else None
    except Exception as error:
        raise ParameterError(f"logits_processors: {name} returned a {type(result).__name__}: {error}") from error
    if values is None or values.shape != row.shape:
        raise ParameterError(
            f"logits_processors: {name} must return float32 of shape {row.shape}; "
            f"got {found.dtype} of shape {found.shape}."
        )
    # One pass finds both: a NaN or +inf makes the largest value NaN or +inf.
    peak = float(values.max())
    if peak != peak or peak == np.inf:
        raise ParameterError(
            f"logits_processors: {name} returned {'NaN' if peak != peak else '+inf'}; "
            f"logits must be finite numbers, or -inf for a token that must not be generated."
        )
    return values


def allowed(function: Callable, prompt_index: int, token_ids: list[int], rows: int) -> np.ndarray:
    """The token ids that prefix_allowed_tokens_fn permits next, checked. int64, at least one, all below rows."""
    try:
        ids = np.asarray(list(function(prompt_index, list(token_ids))))
    except ParameterError:
        raise
    except Exception as error:
        raise ParameterError(f"prefix_allowed_tokens_fn raised {type(error).__name__}: {error}") from error
    if not ids.size:
        raise ParameterError(
            f"prefix_allowed_tokens_fn allows no token after {len(token_ids)} tokens of prompt {prompt_index}; it must "
            f"return at least one id, the end token's if nothing else can follow."
        )
    if ids.ndim != 1 or ids.dtype.kind not in "iu" or ids.min() < 0 or ids.max() >= rows:
        raise ParameterError(
            f"prefix_allowed_tokens_fn must return token ids in [0, {rows - 1}]; got {str(ids.tolist())[:80]}."
        )
    return ids.astype(np.int64)
