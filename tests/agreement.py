"""How answers of two engines are compared."""

from __future__ import annotations

import numpy as np


def relative_error(ours: np.ndarray, theirs: np.ndarray) -> float:
    """max|a - b| / max|b|."""
    return float(np.abs(ours.astype(np.float64) - theirs).max() / np.abs(theirs).max())


def reference_logits(model, ids) -> np.ndarray:
    """float32 [tokens, vocab] of a transformers model for one text."""
    import torch

    with torch.no_grad():
        return model(torch.tensor([list(ids)])).logits[0].float().numpy()


def check_greedy(model, prompt, answer, ends=(), stepwise=False) -> int:
    """`answer` is what the transformers model `model` would choose, token by token; at the first difference its own two
    best logits must be less than 1e-3 apart, and what follows may differ. Returns the number of equal tokens.

    stepwise: the model's positions depend on the length of the text, so that each token needs a pass of its own.
    """
    text = [*prompt, *answer]
    if stepwise:
        rows = np.array([reference_logits(model, text[:end])[-1] for end in range(len(prompt), len(text))])
    else:
        rows = reference_logits(model, text)[len(prompt) - 1 :]
    for step, token in enumerate(answer):
        best = int(rows[step].argmax())
        if best != token:
            second, first = np.sort(rows[step])[-2:]
            assert first - second < 1e-3, f"token {step}: {token} instead of {best}, {first - second:.4f} apart"
            return step
        assert token not in ends or step == len(answer) - 1, "the answer goes on after an end token"
    return len(answer)
