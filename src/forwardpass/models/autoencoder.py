"""A loaded autoencoder: latents to pictures, and pictures to latents."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from forwardpass.errors import ParameterError
from forwardpass.models import unet_blocks, unet_costs
from forwardpass.models.blocks import Weights
from forwardpass.models.costs import Cost
from forwardpass.models.unet import described
from forwardpass.models.unet_blocks import RecordedImages
from forwardpass.models.unet_spec import AutoencoderSpec

MAX_LATENTS = 2**18
"""Pixels of one picture's latents."""
LOG_VARIANCE = (-30.0, 20.0)
"""What logarithms of variances are cut to, as in training."""


class Autoencoder:
    """factor: pixels of a picture, up or across, that are one of its latents;  latent_channels, image_channels;
    scaling_factor, shift_factor: a denoiser sees (latent - shift_factor) * scaling_factor.

    Latents here are the autoencoder's own: whoever calls it scales them. Pictures have values from -1 to 1.
    """

    def __init__(self, spec: AutoencoderSpec, weights: Weights, backend, kv_dtype: str):
        self.spec, self.backend, self.kv_dtype = spec, backend, kv_dtype
        self.factor, self.latent_channels, self.image_channels = spec.factor, spec.latent_channels, spec.image_channels
        self.scaling_factor, self.shift_factor = spec.scaling, spec.shift
        self._encoder = unet_blocks.record_encoder(backend, spec, weights, kv_dtype)
        self._decoder = unet_blocks.record_decoder(backend, spec, weights, kv_dtype)

    def check_size(self, height: int, width: int) -> None:
        """Of latents. Raises ParameterError."""
        if height < 1 or width < 1 or height * width > MAX_LATENTS:
            raise ParameterError(f"latents must have 1 to {MAX_LATENTS} pixels, not {height} x {width}")

    def decode(self, latents: np.ndarray) -> np.ndarray:
        """float32 [h, w, latent_channels] -> float32 [h * factor, w * factor, image_channels], which may go beyond -1
        and 1. Raises ParameterError."""
        self._check(latents, "latents", self.latent_channels)
        self.check_size(*latents.shape[:2])
        height, width = (side * self.factor for side in latents.shape[:2])
        return self._run(self._decoder, latents, (height, width), (height, width, self.image_channels))

    def encode(self, image: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """float32 [H, W, image_channels] from -1 to 1 -> (mean, logarithm of the variance) of its latents, float32
        [H / factor, W / factor, latent_channels] each. Raises ParameterError."""
        self._check(image, "a picture", self.image_channels)
        height, width = image.shape[:2]
        if height % self.factor or width % self.factor:
            raise ParameterError(f"a picture's height and width must be multiples of {self.factor}, not {height} x "
                                 f"{width}")
        small = height // self.factor, width // self.factor
        self.check_size(*small)
        found = self._run(self._encoder, image, (height, width), (*small, 2 * self.latent_channels))
        mean, log_variance = np.split(found, 2, axis=2)
        return np.ascontiguousarray(mean), np.clip(log_variance, *LOG_VARIANCE)

    def _check(self, value: np.ndarray, what: str, channels: int) -> None:
        if not (isinstance(value, np.ndarray) and value.dtype == np.float32 and value.ndim == 3
                and value.shape[2] == channels):
            raise ParameterError(f"{what} must be float32 [height, width, {channels}], not {described(value)}")

    def _run(self, parts: RecordedImages, source: np.ndarray, size: tuple[int, int],
             shape: tuple[int, int, int]) -> np.ndarray:
        """size: of the picture, which is level 0. Memory is given back: pictures come seldom, and need much of it."""
        out = np.empty((shape[0] * shape[1], shape[2]), np.float32)
        rows = np.ascontiguousarray(source).reshape(-1, source.shape[2])
        parts.planner.run(np.array([size], np.int32), parts.levels, {parts.source: rows, parts.out: out})
        parts.planner.forget()
        return out.reshape(shape)

    def timings(self) -> Mapping[str, Mapping[str, float]]:
        """Seconds by stage, "encode_image" and "decode_image", and operation; counted while backend.timed is True."""
        return {"encode_image": self._encoder.program.timings(), "decode_image": self._decoder.program.timings()}

    def reset_timings(self) -> None:
        self._encoder.program.reset_timings()
        self._decoder.program.reset_timings()

    def operations(self, height: int, width: int, encode: bool = False) -> dict[str, Cost]:
        """What decoding or encoding latents of this size does, see Denoiser."""
        count = unet_costs.encoder_operations if encode else unet_costs.decoder_operations
        return count(self.spec, height, width)

    def flops(self, height: int, width: int) -> int:
        """Operations of decoding latents of this size."""
        return sum(unet_costs.decoder_flops(self.spec, height, width).values())

    def activation_bytes(self, height: int, width: int) -> int:
        """Memory that decoding latents of this size takes beside the weights."""
        ends = height * width * (self.latent_channels + self.factor**2 * self.image_channels)
        return unet_costs.decoder_activations(self.spec, height, width) + 4 * ends
