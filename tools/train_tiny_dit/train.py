"""Train a small class-conditional DiT on one CPU core, within a time that is given.

    OMP_NUM_THREADS=1 python tools/train_tiny_dit/train.py --minutes 65 --work /tmp/tiny-dit
    python tools/train_tiny_dit/train.py --work /tmp/tiny-dit --export src/forwardpass/catalog/files/tiny-dit

The model predicts v (Salimans and Ho, arXiv:2202.00512) on the squared-cosine schedule (Nichol and Dhariwal,
arXiv:2102.09672); its loss has min-SNR weights with gamma 5 (Hang et al., arXiv:2303.09556). One label in ten is
dropped, for guidance. The matrices of the blocks are trained by Muon, everything else by AdamW; the rate rises for 200
steps, stays, and falls in a line over the last 40% of the time. What is kept is a moving average of the weights.
A run that was stopped goes on where its last checkpoint was. With --steps instead of --minutes the result depends on
the seed alone (and on the machine's arithmetic), not on its speed.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path

import numpy as np
import torch
from data import DATA, Images
from model import Shape, TinyDiT, diffusers_config, diffusers_weights, images, patches

STEPS = 1000
WARM_UP, DECAY_FROM, GAMMA = 200, 0.6, 5.0
SHAPES = {"fashion": (4, 6, 4, 32), "digits": (1, 6, 4, 32)}  # patch, layers, heads, width of a head
SCHEDULER = {
    "_class_name": "DPMSolverMultistepScheduler",
    "_diffusers_version": "0.42.0",
    "algorithm_type": "dpmsolver++",
    "beta_end": 0.02,
    "beta_schedule": "squaredcos_cap_v2",
    "beta_start": 0.0001,
    "clip_sample": False,  # for methods that are chosen instead
    "lower_order_final": True,
    "num_train_timesteps": STEPS,
    "prediction_type": "v_prediction",
    "rescale_betas_zero_snr": False,
    "solver_order": 2,
    "solver_type": "midpoint",
    "steps_offset": 0,
    "thresholding": False,
    "timestep_spacing": "trailing",
    "use_karras_sigmas": False,
}


def kept_signal() -> torch.Tensor:
    """alphas_cumprod of squaredcos_cap_v2: float64 [1000]."""
    bar = [math.cos((i / STEPS + 0.008) / 1.008 * math.pi / 2) ** 2 for i in range(STEPS + 1)]
    betas = [min(1 - bar[i + 1] / bar[i], 0.999) for i in range(STEPS)]
    return torch.cumprod(1 - torch.tensor(betas, dtype=torch.float64), 0)


def loss_of(model: TinyDiT, x: torch.Tensor, labels: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
    n = len(x)
    steps = ((torch.randperm(n) + torch.rand(n)) / n * STEPS).long()  # spread evenly: a quieter loss
    signal, noise_share = kept[steps].sqrt()[:, None, None], (1 - kept[steps]).sqrt()[:, None, None]
    noise = torch.randn_like(x)
    v = model(signal * x + noise_share * noise, steps, labels)
    snr = kept[steps] / (1 - kept[steps])
    weights = snr.clamp(max=GAMMA) / (snr + 1)
    return (weights * (v - (signal * noise - noise_share * x)).square().mean(dim=(1, 2))).mean()


@torch.no_grad()
def sample(model: TinyDiT, labels: torch.Tensor, kept: torch.Tensor, steps: int, guidance: float, seed: int):
    """DDIM (eta 0, trailing steps) for a look while training: float32 [n, height, width], about -1..1."""
    shape = model.shape
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(len(labels), shape.grid**2, shape.patch_size**2, generator=generator)
    times = torch.arange(STEPS, 0, -STEPS / steps).round().long() - 1
    none = torch.full_like(labels, shape.labels)
    for i, step in enumerate(times):
        both = torch.cat([x, x]), step.expand(2 * len(x)), torch.cat([labels, none])
        given, free = model(*both).chunk(2)
        v = free + guidance * (given - free)
        signal, share = kept[step].sqrt(), (1 - kept[step]).sqrt()
        clean, noise = signal * x - share * v, share * x + signal * v
        after = kept[times[i + 1]] if i + 1 < len(times) else torch.tensor(1.0)
        x = after.sqrt() * clean + (1 - after).sqrt() * noise
    return images(x, shape.patch_size)


def save_sheet(pixels: torch.Tensor, path: Path, columns: int, zoom: int = 3) -> None:
    from PIL import Image

    n, height, width = pixels.shape
    grey = ((pixels.clamp(-1, 1) + 1) * 127.5).round().byte().numpy()
    sheet = grey.reshape(n // columns, columns, height, width).transpose(0, 2, 1, 3)
    sheet = sheet.reshape(n // columns * height, columns * width).repeat(zoom, 0).repeat(zoom, 1)
    Image.fromarray(sheet).save(path)


def export(model: TinyDiT, averaged: dict, names: tuple[str, ...], folder: Path) -> None:
    """Save as diffusers' DiTPipeline without an autoencoder, weights in bfloat16."""
    from safetensors.torch import save_file

    for part in ("transformer", "scheduler"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    weights = {name: tensor.bfloat16() for name, tensor in diffusers_weights(model.shape, averaged).items()}
    save_file(weights, folder / "transformer" / "diffusion_pytorch_model.safetensors", {"format": "pt"})
    index = {
        "_class_name": "DiTPipeline",
        "_diffusers_version": "0.42.0",
        "id2label": {str(i): name for i, name in enumerate(names)},
        "scheduler": ["diffusers", SCHEDULER["_class_name"]],
        "transformer": ["diffusers", "DiTTransformer2DModel"],
        "vae": [None, None],
    }
    files = {
        "model_index.json": index,
        "transformer/config.json": diffusers_config(model.shape),
        "scheduler/scheduler_config.json": SCHEDULER,
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=2) + "\n")


class Training:
    """Weights, their moving average, the optimisers and how far they are; `save` and `load` keep all of it."""

    def __init__(self, data: Images, shape: Shape, arguments: argparse.Namespace) -> None:
        torch.manual_seed(arguments.seed)
        self.model = TinyDiT(shape)
        named = list(self.model.named_parameters())
        matrices = [p for name, p in named if name.startswith("blocks") and p.ndim == 2]
        others = [p for name, p in named if not (name.startswith("blocks") and p.ndim == 2)]
        self.rates = (arguments.rate, arguments.rate / 2)
        self.optimisers = [
            torch.optim.Muon(matrices, lr=self.rates[0], weight_decay=0.01, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(others, lr=self.rates[1], weight_decay=0.0, betas=(0.9, 0.98), fused=True),
        ]
        self.averaged = {name: p.detach().clone() for name, p in named}
        self.kept = kept_signal().float()
        self.shape, self.batch = shape, arguments.batch
        self.pixels, self.labels = torch.from_numpy(data.pixels), torch.from_numpy(data.labels)
        self.flips = torch.zeros(shape.labels, dtype=torch.bool)
        self.flips[list(data.flips)] = True
        self.order = torch.empty(0, dtype=torch.long)
        self.done, self.seconds = 0, 0.0

    def next_batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        if len(self.order) < self.batch:
            self.order = torch.cat([self.order, torch.randperm(len(self.labels))])
        chosen, self.order = self.order[: self.batch], self.order[self.batch :]
        pixels, labels = self.pixels[chosen], self.labels[chosen]
        turned = self.flips[labels] & (torch.rand(self.batch) < 0.5)
        pixels = torch.where(turned[:, None, None], pixels.flip(2), pixels)
        labels = torch.where(torch.rand(self.batch) < 0.1, self.shape.labels, labels)
        return patches(pixels, self.shape.patch_size), labels

    def step(self, progress: float) -> float:
        """One step; progress 0..1 sets the rate."""
        factor = min(1.0, (self.done + 1) / WARM_UP, (1 - progress) / (1 - DECAY_FROM))
        for optimiser, rate in zip(self.optimisers, self.rates, strict=True):
            optimiser.param_groups[0]["lr"] = rate * factor
        loss = loss_of(self.model, *self.next_batch(), self.kept)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimiser in self.optimisers:
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        self.done += 1
        old = min(0.999, self.done / (self.done + 10))
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                self.averaged[name].lerp_(parameter, 1 - old)
        return loss.item()

    def save(self, path: Path) -> None:
        state = {
            "shape": self.shape.as_dict(),
            "model": self.model.state_dict(),
            "averaged": self.averaged,
            "optimisers": [optimiser.state_dict() for optimiser in self.optimisers],
            "order": self.order,
            "random": torch.get_rng_state(),
            "done": self.done,
            "seconds": self.seconds,
        }
        torch.save(state, path.with_suffix(".new"))
        path.with_suffix(".new").replace(path)

    def load(self, path: Path) -> None:
        state = torch.load(path, weights_only=True)
        if state["shape"] != self.shape.as_dict():
            raise SystemExit(f"{path} holds a model of another shape: {state['shape']}; name another --work folder")
        self.model.load_state_dict(state["model"])
        for optimiser, theirs in zip(self.optimisers, state["optimisers"], strict=True):
            optimiser.load_state_dict(theirs)
        self.averaged, self.order = state["averaged"], state["order"]
        self.done, self.seconds = state["done"], state["seconds"]
        torch.set_rng_state(state["random"])


def averaged_model(training: Training) -> TinyDiT:
    model = TinyDiT(training.shape)
    model.load_state_dict(training.averaged)
    return model.eval()


def look(training: Training, folder: Path, guidance: float = 2.0) -> None:
    count = training.shape.labels
    labels = torch.arange(count).repeat_interleave(10)
    pixels = sample(averaged_model(training), labels, training.kept, 20, guidance, seed=0)
    save_sheet(pixels, folder / f"sheet-{training.done:06d}.png", columns=10)


def run(training: Training, arguments: argparse.Namespace, file: Path) -> None:
    limit = arguments.minutes * 60
    begun, saved, recent = time.monotonic() - training.seconds, time.monotonic(), []
    while True:
        training.seconds = time.monotonic() - begun
        progress = training.done / arguments.steps if arguments.steps else training.seconds / limit
        if progress >= 1:
            break
        recent.append(training.step(progress))
        if training.done % 100 == 0:
            rate = training.done * training.batch / training.seconds
            mean = np.mean(recent)
            print(f"step {training.done}  {training.seconds:.0f} s  loss {mean:.4f}  {rate:.0f} images/s", flush=True)
            recent = []
        if time.monotonic() - saved > arguments.save_every * 60:
            training.save(file)
            look(training, arguments.work)
            saved = time.monotonic()
    training.save(file)
    look(training, arguments.work)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", choices=tuple(DATA), default="fashion")
    parser.add_argument("--minutes", type=float, default=65, help="time to train for, all runs together")
    parser.add_argument("--steps", type=int, default=0, help="train for this many steps instead")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save-every", type=float, default=5, metavar="MINUTES")
    parser.add_argument("--work", type=Path, required=True, help="folder for the checkpoint and sheets of samples")
    parser.add_argument("--export", type=Path, help="don't train: save the checkpoint here as a diffusers pipeline")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    arguments.work.mkdir(parents=True, exist_ok=True)
    data = DATA[arguments.data]("train")
    patch, layers, heads, head_dim = SHAPES[arguments.data]
    training = Training(data, Shape(data.pixels.shape[1], patch, layers, heads, head_dim, len(data.names)), arguments)
    file = arguments.work / "training.pt"
    if file.exists():
        training.load(file)
    if arguments.export:
        export(training.model, training.averaged, data.names, arguments.export)
        return
    run(training, arguments, file)


if __name__ == "__main__":
    main()
