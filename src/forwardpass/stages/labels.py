"""Stage 5 for labels: raw scores of a head become probabilities, and labels in order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..errors import ParameterError

ACTIVATIONS = ("softmax", "sigmoid", "none")


def activation_for(problem: str | None, outputs: int, own: str | None = None) -> str:
    """What turns a head's raw scores into those of labels. problem: "regression" (none), "multi" (sigmoid, each label
    by itself) or "single"; a single row means sigmoid, since its softmax is always 1. own: what a checkpoint names for
    its one score."""
    if problem == "regression":
        return "none"
    if outputs == 1:
        return own or "sigmoid"
    return "sigmoid" if problem == "multi" else "softmax"


def activate(scores: np.ndarray, activation: str) -> np.ndarray:
    """float32 [..., labels] -> float64 of the same shape; softmax is over the last axis."""
    if activation not in ACTIVATIONS:
        raise ParameterError(f"activation must be one of {', '.join(ACTIVATIONS)}, not {activation!r}")
    values = np.asarray(scores, np.float64)
    if activation == "none":
        return values
    if activation == "sigmoid":
        small = np.exp(-np.abs(values))
        return np.where(values >= 0, 1.0, small) / (1.0 + small)
    powers = np.exp(values - values.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def best_first(scores: np.ndarray, top_k: int | None) -> list[int]:
    """Indices of the top_k greatest (None = all), the greatest first and the lower index first among equals."""
    if top_k is None or top_k >= len(scores):
        return np.argsort(-scores, kind="stable").tolist()
    least = np.partition(scores, len(scores) - top_k)[len(scores) - top_k]
    near = np.flatnonzero(scores >= least)
    return near[np.argsort(-scores[near], kind="stable")][:top_k].tolist()


def ranked(labels: Sequence[str], scores: np.ndarray, top_k: int | None) -> list[tuple[str, float]]:
    """(label, score), best first."""
    return [(labels[i], float(scores[i])) for i in best_first(scores, top_k)]
