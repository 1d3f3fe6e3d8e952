"""torch (through transformers and diffusers) and OpenVINO on images; run by `_worker` in the environment that has them.
They get pixels or latents that are ready, as tensors."""

from __future__ import annotations

import os
import time

import _denoising
import _worker
import numpy as np

os.environ.setdefault("HF_HUB_OFFLINE", "1")


class Peer:
    """engine: "torch", "openvino" (vit) or "diffusers" (dit, unet);  dtype: "float32" or
    "bfloat16"."""

    def __init__(self, kind: str, model: str, threads: int, engine: str, dtype: str):
        self.kind, self.facts = kind, {"ways": [""], "spins_s": 0.25}
        import torch

        torch.set_num_threads(threads)
        torch.set_grad_enabled(False)
        self.torch, self.type = torch, getattr(torch, dtype if engine != "openvino" else "float32")
        self.facts["version"] = f"torch {torch.__version__}"
        {"torch": self.open_torch, "openvino": self.open_openvino, "diffusers": self.open_diffusers}[engine](
            model, threads, dtype)

    def open_torch(self, model: str, threads: int, dtype: str) -> None:
        import transformers

        made = transformers.ViTModel.from_pretrained(model, add_pooling_layer=False, dtype=self.type).eval()
        self.facts["version"] += f", transformers {transformers.__version__}"
        self.read = lambda pixels: made(self.torch.from_numpy(pixels).to(self.type)).last_hidden_state[:, 0].float()

    def open_openvino(self, model: str, threads: int, dtype: str) -> None:
        import openvino
        import transformers

        made = transformers.ViTModel.from_pretrained(model, add_pooling_layer=False, dtype=self.type).eval()
        converted = openvino.convert_model(made, example_input=self.torch.zeros(2, 3, 224, 224))
        settings = {"INFERENCE_PRECISION_HINT": "bf16" if dtype == "bfloat16" else "f32",
                    "INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
        compiled = openvino.Core().compile_model(converted, "CPU", settings)
        self.facts["version"] = f"openvino {openvino.__version__}"
        self.read = lambda pixels: compiled(pixels)[0][:, 0]

    def open_diffusers(self, model: str, threads: int, dtype: str) -> None:
        import diffusers

        kinds = {"dit": diffusers.DiTTransformer2DModel, "unet": diffusers.UNet2DConditionModel}
        self.made = kinds[self.kind].from_pretrained(model, torch_dtype=self.type).eval()
        self.made = self.made.to(memory_format=self.torch.channels_last) if self.kind == "unet" else self.made
        self.facts["version"] += f", diffusers {diffusers.__version__}"
        if self.kind == "dit":
            self.extra = {"class_labels": self.torch.tensor(_denoising.LABELS)}
        else:
            self.extra = {"encoder_hidden_states": self.torch.from_numpy(_denoising.texts()).to(self.type)}

    def see(self, file: str, count: int, way: str = "") -> list[float]:
        """[images, seconds] from pixels to vectors."""
        pixels = np.load(file)[:count]
        start = time.perf_counter()
        self.read(pixels)
        return [count, time.perf_counter() - start]

    def vectors(self, pixels: str, file: str) -> None:
        np.save(file, np.asarray(self.read(np.load(pixels))))

    def predict(self, latents: np.ndarray, timestep: float) -> np.ndarray:
        x = self.torch.from_numpy(latents).permute(0, 3, 1, 2).to(self.type)
        times = self.torch.full((2,), int(timestep))
        return self.made(x, timestep=times, **self.extra).sample.float().permute(0, 2, 3, 1).numpy()

    def step(self, size: list[int], way: str = "") -> list[float]:
        """[1, seconds] of a step: the condition and none of it, in one pass."""
        latents = np.stack([_denoising.noise(tuple(size))] * 2)
        start = time.perf_counter()
        self.predict(latents, 500.0)
        return [1, time.perf_counter() - start]

    def draw(self, size: list[int], steps: int, file: str) -> None:
        guidance = _denoising.GUIDANCE[self.kind]
        np.save(file, _denoising.draw(self.predict, _denoising.noise(tuple(size)), steps, guidance))


if __name__ == "__main__":
    _worker.serve(Peer)
