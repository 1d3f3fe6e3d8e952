"""What a denoising network is to those who draw with it: a function of noisy latents, steps and conditions.

Two kinds of network are denoisers: diffusion transformers (models/dit.py) and UNets. Both are made of the same
operations as every other model, and both take any mixture of pictures in one call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from forwardpass.models.costs import Cost


@dataclass(frozen=True, slots=True, eq=False)
class Condition:
    """What one picture is to show, in the form that its denoiser reads. Made once, used in every step.

    vector: float32 [n] that is added to what a network knows of the step: the embedding of a class, or of a scale of
    guidance that the network was trained to follow;  rows: float32 [tokens, width], the keys and values of every
    attention to a text, so that the text is multiplied with the network's matrices once and not in every step.
    """

    vector: np.ndarray | None = None
    rows: np.ndarray | None = None

    @property
    def tokens(self) -> int:
        """Rows of context, 0 = none."""
        return 0 if self.rows is None else self.rows.shape[0]


class Denoiser(Protocol):
    """latent_channels, out_channels: of what it reads and predicts; where the second is twice the first, its second
    half predicts variances, and whoever does not use these drops it.

    patch: height and width of latents must be multiples of it;  sample_size: (height, width) of latents that it was
    trained at;  takes: "label" or "text";  labels: number of classes, 0 = none;  context_width: columns of the text
    encoder's hidden states, 0 = it reads no text;  guided: it takes a scale of guidance as an input (latent consistency
    models), and needs no second pass for it.
    """

    spec: Any
    kv_dtype: str
    latent_channels: int
    out_channels: int
    patch: int
    sample_size: tuple[int, int]
    takes: str
    labels: int
    context_width: int
    guided: bool

    def of_label(self, label: int | None) -> Condition:
        """The condition of a class, None = of no class in particular. Raises ParameterError."""

    def of_text(self, hidden: np.ndarray, guidance: float | None = None) -> Condition:
        """The condition of a text. hidden: float32 [tokens, context_width], its encoder's last hidden states.

        guidance: the scale that a `guided` network is told, None = 1, which guides nowhere. Raises ParameterError."""

    def check_size(self, height: int, width: int) -> None:
        """Raises ParameterError that names both numbers where latents of this height or width cannot be cut into
        patches or are larger than anything drawn."""

    def predict(self, latents: Sequence[np.ndarray], timesteps: np.ndarray,
                conditions: Sequence[Condition]) -> list[np.ndarray]:
        """One forward pass over any number of pictures: latents float32 [height, width, latent_channels] of any sizes,
        float32 [pictures] timesteps -> float32 [height, width, out_channels] each.

        What is predicted for one does not depend on the others, bit for bit. Arguments are not changed. Raises
        ParameterError.
        """

    def timings(self) -> Mapping[str, Mapping[str, float]]:
        """Seconds by stage and operation, counted while backend.timed is True."""

    def reset_timings(self) -> None: ...

    def operations(self, height: int, width: int, context: int = 0) -> dict[str, Cost]:
        """What a pass over one picture with latents of this size does, by the operations of timings()["denoise"];
        Cost.read counts weights, not bytes. context: tokens of its text."""

    def flops(self, height: int, width: int, context: int = 0) -> int:
        """Operations of one forward pass over one picture with latents of this size. context: tokens of its text."""

    def activation_bytes(self, sizes: Sequence[tuple[int, int]], contexts: Sequence[int] = ()) -> int:
        """Memory that a pass over pictures of these sizes takes beside the weights."""
