"""Our side of images.py; run by `_worker`. One worker a model and dtype."""

from __future__ import annotations

import json
import time
from pathlib import Path

import _common
import _denoising
import _worker
import numpy as np


def memory(name: str) -> int:
    """Bytes of VmRSS or VmHWM."""
    status = Path("/proc/self/status").read_text()
    return int(status[status.index(name + ":") :].split(None, 2)[1]) * 1024


class Ours:
    """kind: "vit" and "dinov2" see, "dit" and "unet" denoise."""

    def __init__(self, kind: str, model: str, threads: int, dtype: str):
        import forwardpass
        from forwardpass.backends.native import NativeBackend

        self.kind = kind
        start = time.perf_counter()
        if kind in ("vit", "dinov2"):
            self.model = forwardpass.load(model, dtype=dtype, threads=threads)
            self.backend = self.model.network.backend
        else:
            self.backend = NativeBackend(threads)
            self.denoiser, self.weights = open_denoiser(Path(model), dtype, self.backend)
            self.conditions = self.two_conditions()
        Path("/proc/self/clear_refs").write_text("5")  # what loading took is no part of the peak
        self.loaded = memory("VmRSS")
        self.facts = {"ways": [""], "load_s": time.perf_counter() - start, "machine": _common.machine(self.backend)}

    def two_conditions(self):
        if self.kind == "dit":
            return [self.denoiser.of_label(_denoising.LABELS[0]), self.denoiser.of_label(None)]
        return [self.denoiser.of_text(one) for one in _denoising.texts()]

    def see(self, count: int, way: str = "") -> list[float]:
        """[images, seconds] from arrays of pixels to vectors."""
        images = list(_denoising.pictures(count))
        start = time.perf_counter()
        self.model.embed_image(images)
        return [count, time.perf_counter() - start]

    def vectors(self, count: int, file: str) -> None:
        np.save(file, self.model.embed_image(list(_denoising.pictures(count))))

    def pixels(self, count: int, file: str) -> None:
        """What the model reads of the pictures, float32 [count, 3, height, width]."""
        from forwardpass.stages.images import ImageProcessing, read_image

        processing = ImageProcessing(self.model.settings.images)
        np.save(file, np.stack([processing(read_image(one)).transpose(2, 0, 1) for one in _denoising.pictures(count)]))

    def predict(self, latents: np.ndarray, timestep: float) -> np.ndarray:
        return np.stack(self.denoiser.predict(list(latents), np.full(2, timestep, np.float32), self.conditions))

    def step(self, size: list[int], way: str = "") -> list[float]:
        """[1, seconds] of a step: the condition and none of it, in one pass."""
        latents = np.stack([_denoising.noise(tuple(size))] * 2)
        start = time.perf_counter()
        self.predict(latents, 500.0)
        return [1, time.perf_counter() - start]

    def draw(self, size: list[int], steps: int, file: str) -> None:
        guidance = _denoising.GUIDANCE[self.kind]
        np.save(file, _denoising.draw(self.predict, _denoising.noise(tuple(size)), steps, guidance))

    def sizes(self, size: list[int]) -> dict:
        """What the cost model says of a step, and what the process took at most beside what it took when loaded."""
        contexts = [one.tokens for one in self.conditions]
        return {"weights_bytes": self.weights, "peak_bytes": memory("VmHWM") - self.loaded,
                "activation_bytes": self.denoiser.activation_bytes([tuple(size)] * 2, contexts),
                "flops": sum(self.denoiser.flops(*size, context) for context in contexts)}

    def image_flops(self) -> float:
        """Of one image, from pixels to vectors."""
        from forwardpass.models import costs

        spec = self.model.spec
        rows = spec.patches.rows(224, 224)
        each = costs.stage_costs(spec, self.model.stored_bytes, [rows], [0], wanted=0)
        return sum(op.flops for stage in each.values() for op in stage.values())

    def timings(self, size: list[int]) -> dict:
        """Seconds of a step by operation."""
        self.backend.timed = True
        self.denoiser.reset_timings()
        self.step(size)
        self.backend.timed = False
        return dict(self.denoiser.timings()["denoise"])

    def matrix_limit(self, seconds: float) -> float:
        """Operations a second of the int8 matrix instructions."""
        from forwardpass import _native

        return _native.matrix_rate(self.backend.pool, self.backend.isa, True, seconds)


def open_denoiser(folder: Path, dtype: str, backend):
    """(denoiser, bytes of its weights) of one component of a diffusers directory, without the others."""
    from forwardpass.models import components
    from forwardpass.models.components import DENOISERS
    from forwardpass.models.loading import load_weights
    from forwardpass.quant.formats import kv_dtype_in_passes
    from forwardpass.weights.diffusers_folder import open_component

    values = json.loads((folder / "config.json").read_text())
    component, spec = components.read_spec(values, DENOISERS, str(folder / "config.json"))
    with open_component(folder) as source:
        checkpoint = components.read_weights(component, spec, source)
        arena = load_weights(checkpoint, source, dtype, backend)
    made = component.build(checkpoint.spec, arena.weights(), backend, kv_dtype_in_passes(dtype, "auto"))
    return made, arena.nbytes


if __name__ == "__main__":
    _worker.serve(Ours)
