"""How well a model predicts a text, alone and against another: perplexity and Kullback-Leibler divergence. Of models
that do not continue texts, how alike their hidden states are.

The text is cut into windows of 512 tokens that do not see one another; the first token of each is not scored.
Everything that states a perplexity uses this, so that the numbers can be compared.
"""

from __future__ import annotations

import ast
import math
import sysconfig
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from forwardpass import config
from forwardpass.contracts import EncoderImage
from forwardpass.errors import ParameterError, UnsupportedModelError
from forwardpass.tasks.model import Model

WINDOW = 512


@dataclass(frozen=True, slots=True)
class Quality:
    """perplexity: of the text;  kl: mean divergence from the reference, nats a token;  same_top: share of tokens whose
    likeliest successor is the reference's. The reference itself has 0 and 1."""

    perplexity: float
    kl: float
    same_top: float


@dataclass(frozen=True, slots=True)
class Likeness:
    """Cosines between two models' hidden states of the same tokens: their mean, and the least."""

    cosine: float
    least: float


def predicts(model: Model) -> bool:
    """Whether a model continues a text by itself, so that `compare` can tell its quality; otherwise `likeness` can."""
    return "score" in model.tasks and model.spec.encoder is None


def likeness(reference: Model, other: Model, ids: Sequence[int],
             progress: Callable[[int, int], None] | None = None) -> Likeness:
    """How alike the two models' hidden states of a text are, an encoder-decoder's those of its encoder.

    progress: called as progress(tokens done, all tokens). Raises ParameterError for a text without tokens.
    """
    if not ids:
        raise ParameterError("quality needs a text of at least one token; name a longer text")
    size = min(WINDOW, *((model.spec.encoder or model.spec).max_position_embeddings for model in (reference, other)))
    total, least = 0.0, 1.0
    for at in range(0, len(ids), size):
        window = list(ids[at : at + size])
        a, b = (model.hidden_states(window).astype(np.float64) for model in (reference, other))
        cosines = _cosines(a, b)
        total, least = total + float(cosines.sum()), min(least, float(cosines.min()))
        if progress:
            progress(min(at + size, len(ids)), len(ids))
    return Likeness(total / len(ids), least)


def _cosines(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """float64 [rows]"""
    norms = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    return np.minimum((a * b).sum(1) / np.maximum(norms, np.finfo(np.float64).tiny), 1.0)


def image_likeness(reference: Model, other: Model, count: int,
                   progress: Callable[[int, int], None] | None = None) -> Likeness:
    """The same of models that read images, for `count` made ones of the trained size: coarse spots and noise."""
    patches, total, least, rows = reference.spec.images.patches, 0.0, 1.0, 0
    rng = np.random.default_rng(0)
    for number in range(count):
        height, width = patches.image
        spots = rng.standard_normal((-(-height // 16), -(-width // 16), patches.channels))
        pixels = np.kron(spots, np.ones((16, 16, 1)))[:height, :width]
        image = EncoderImage((pixels + rng.standard_normal(pixels.shape) / 4).astype(np.float32))
        a, b = (model.engine.encode([image], lambda hidden: [hidden.values.astype(np.float64)])[0]
                for model in (reference, other))
        cosines = _cosines(a, b)
        total, least, rows = total + float(cosines.sum()), min(least, float(cosines.min())), rows + len(cosines)
        if progress:
            progress(number + 1, count)
    return Likeness(total / rows, least)


def compare(reference: Model, others: Mapping[str, Model], ids: Sequence[int],
            progress: Callable[[int, int], None] | None = None) -> tuple[Quality, dict[str, Quality], int]:
    """(the reference's quality, that of each other model by name, scored tokens). All read the same token ids.

    progress: called as progress(tokens done, all tokens). Raises ParameterError for a text of less than two tokens.
    """
    if len(ids) < 2:
        raise ParameterError("quality needs a text of at least two tokens: the first is not scored; name a longer text")
    size = min(WINDOW, *(model.spec.max_position_embeddings for model in (reference, *others.values())))
    sums = {name: np.zeros(3) for name in others}
    loss, scored = 0.0, 0
    for at in range(0, len(ids) - 1, size):
        window = list(ids[at : at + size])
        if len(window) < 2:
            break
        targets = np.asarray(window[1:])
        rows = reference.logits(window)[:-1]
        loss += sum(_losses(_log_softmax(rows[i : i + 64]), targets[i : i + 64]) for i in range(0, len(rows), 64))
        scored += len(targets)
        for name, model in others.items():
            model.engine.forward(window, _adder(rows, targets, sums[name]))
        if progress:
            progress(min(at + size, len(ids)), len(ids))
    qualities = {name: Quality(_perplexity(total[0], scored), max(0.0, total[1] / scored), total[2] / scored)
                 for name, total in sums.items()}
    return Quality(_perplexity(loss, scored), 0.0, 1.0), qualities, scored


def _adder(reference: np.ndarray, targets: np.ndarray, sums: np.ndarray) -> Callable[[int, np.ndarray], None]:
    """What takes a model's rows as they come and adds (loss, divergence, same likeliest token) to `sums`."""

    def add(first: int, rows: np.ndarray) -> None:
        theirs = reference[first : first + len(rows)]
        if not len(theirs):  # the window's last row predicts what is not in it
            return
        ours, expected = _log_softmax(rows[: len(theirs)]), _log_softmax(theirs)
        sums[0] += _losses(ours, targets[first : first + len(theirs)])
        sums[1] += float((np.exp(expected) * (expected - ours)).sum())
        sums[2] += int((ours.argmax(1) == expected.argmax(1)).sum())

    return add


def _log_softmax(rows: np.ndarray) -> np.ndarray:
    """float64 [rows, vocab]."""
    shifted = rows.astype(np.float64) - rows.max(1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(1, keepdims=True))


def _losses(log_probabilities: np.ndarray, targets: np.ndarray) -> float:
    return -float(log_probabilities[np.arange(len(targets)), targets].sum())


def _perplexity(loss: float, count: int) -> float:
    return math.exp(min(loss / count, 700.0))


def text_ids(model: Model, text: str, limit: int) -> list[int]:
    """The first `limit` tokens of a text, without any that the tokenizer would add."""
    if model.tokenizer is None:
        raise UnsupportedModelError(f"{model.path} has no tokenizer, so a text cannot be measured")
    ids = model.tokenizer.encode(text[: 16 * limit], add_special_tokens=False, parse_special=False)
    return ids[:limit]


def measuring_text(path: str | Path | None = None) -> str:
    """The text in a file; without one what FORWARDPASS_TEXT names, else the standard library's docstrings (1 MB)."""
    path = config.text_path() if path is None else Path(path)
    if path is None:
        return _docstrings()
    try:
        return path.read_text("utf-8")
    except (OSError, ValueError) as error:  # ValueError: not UTF-8, or a NUL in the path
        raise ParameterError(f"the text {str(path)!r} cannot be read: {error}") from None


def _docstrings() -> str:
    texts: list[str] = []
    for file in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        try:
            nodes = ast.walk(ast.parse(file.read_bytes()))
        except (SyntaxError, ValueError):
            continue
        kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        texts += [text for node in nodes if isinstance(node, kinds) and (text := ast.get_docstring(node))]
    return "\n\n".join(texts)
