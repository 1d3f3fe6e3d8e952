#!/usr/bin/env python3
"""How fast are models that see and models that draw, and how exact? Shapes of well-known ones with random weights.

    python benchmarks/images.py --only vit --peer torch --peer openvino --peer-python /path/to/peers/bin/python
    python benchmarks/images.py --only unet --peer diffusers --peer-python /path/to/peers/bin/python

vit: ViT-B/16, batches of 8 images, from pixels to vectors: images_s, and the mean cosine of the vectors to those of
float32.  dinov2: the same with real weights (catalogue), the cosine to our float32: its file has no other.
dit, unet: DiT-XL/2 at 256 x 256 and Stable Diffusion 1.5's UNet at 512 x 512. step_s: seconds of a step with guidance,
two latents in one pass. psnr_db: of latents after --steps steps from the same noise, to those of diffusers in float32,
or ours.

The weights are made once by --shapes-python (transformers and diffusers), in --folder if it is to be kept. ratio: ours
in int8 (weights and activations) over the peers. of_limit: operations a second over the int8 matrix rate measured in
this run. memory: what the process takes at most beside the loaded weights, over the activations of the cost model.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

import _common
import _denoising
import numpy as np
from _common import Engine

KINDS = ("vit", "dit", "unet", "dinov2")
LATENTS = {"dit": (32, 32), "unet": (64, 64)}
PEERS = {"vit": ("torch", "openvino"), "dinov2": (), "dit": ("diffusers",), "unet": ("diffusers",)}
BATCH = 8


def main() -> int:
    parser = _common.parser(__doc__, ("torch", "openvino", "diffusers"), rounds=3)
    parser.add_argument("--only", action="append", choices=KINDS, help="repeatable (default: all)")
    parser.add_argument("--dtype", action="append", choices=("float32", "bfloat16", "w8a16", "int8"),
                        help="of ours; repeatable (default: int8, of what sees all, else float32 if no peer is)")
    parser.add_argument("--steps", type=int, default=4, help="drawn for psnr_db (default %(default)s)")
    parser.add_argument("--folder", help="where the random weights are kept (default: a temporary folder)")
    parser.add_argument("--shapes-python", help="interpreter that makes them (default: that of the peers)")
    options = parser.parse_args()
    from forwardpass.tasks.model import thread_count

    threads = thread_count(options.threads)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(options.folder or temporary)
        results = {kind: (seeing if kind in ("vit", "dinov2") else drawing)(options, kind, folder, threads)
                   for kind in options.only or KINDS}
    machines = [one.pop("machine") for one in results.values()]
    result = {"bench": "images", "machine": machines[0], "steps": options.steps}
    for part in ("ours", "peers", "versions", "missing", "ratio", "of_limit", "memory"):
        result[part] = {kind: one[part] for kind, one in results.items() if one.get(part)}
    above = [f"{kind} {dtype} is {share:.2f} of the limit" for kind, one in result["of_limit"].items()
             for dtype, share in one.items() if share > 1]
    return _common.finish(result, options.json, above)


def model_of(options, kind: str, folder: Path) -> str:
    """The folder of a model, made if it is not there."""
    if kind == "dinov2":
        from forwardpass import catalog

        return str(catalog.resolve("dinov2-small"))
    size = "tiny" if options.quick else "full"
    path = folder / f"{kind}-{size}"
    if not (path / "config.json").exists():
        path.mkdir(parents=True, exist_ok=True)
        python = options.shapes_python or _common.pythons(options, PEERS[kind][0])[0]
        print(f"making random weights: {path}", file=sys.stderr, flush=True)
        script = Path(__file__).with_name("_image_shapes.py")
        done = subprocess.run([python, str(script), kind, str(path), size], capture_output=True, text=True)
        if done.returncode:
            raise SystemExit("the shapes need an environment with torch, transformers and diffusers (--shapes-python); "
                             f"{python} said: {done.stderr.strip().splitlines()[-1:]}")
    return str(path)


def open_engines(options, kind: str, model: str, threads: int, dtypes: tuple[str, ...]):
    """(ours by dtype, peers by name, what is missing and why)."""
    peers, missing = {}, {}
    for peer in dict.fromkeys(options.peer):
        if peer not in PEERS[kind]:
            continue
        for dtype in ("bfloat16", "float32"):
            engine = Engine(f"{peer}-{dtype}", "_engine_images_peers.py", _common.pythons(options, peer), kind=kind,
                            model=model, threads=threads, engine=peer, dtype=dtype)
            for problem in engine.problems:
                print(f"missing peer {engine.name}: {problem}", file=sys.stderr)
            if engine.workers:
                peers[engine.name] = engine
            else:
                missing[engine.name] = "; ".join(engine.problems)
    if not any(name.endswith("float32") for name in peers):
        dtypes = (*dtypes, "float32")
    ours = {dtype: Engine(dtype, "_engine_images_ours.py", kind=kind, model=model, threads=threads, dtype=dtype)
            for dtype in options.dtype or dtypes}
    return ours, peers, missing


def limits(ours: dict[str, Engine], quick: bool) -> float:
    return next(iter(ours.values())).workers[0]("matrix_limit", seconds=0.1 if quick else 0.5)


def seeing(options, kind: str, folder: Path, threads: int) -> dict:
    model = model_of(options, kind, folder)
    ours, peers, missing = open_engines(options, kind, model, threads, ("int8", "w8a16", "bfloat16"))
    first, found = next(iter(ours.values())).workers[0], []
    with tempfile.TemporaryDirectory() as temporary:
        pixels = str(Path(temporary) / "pixels.npy")
        first("pixels", count=2 * BATCH, file=pixels)
        for _ in range(1 if options.quick else options.rounds):
            found.append(limits(ours, options.quick))
            for engine in ours.values():
                engine.measure(kind, "images_s", "see", count=BATCH)
            for engine in peers.values():
                engine.measure(kind, "images_s", "see", count=BATCH, file=pixels)
        vectors = {}
        for name, engine in (ours | peers).items():
            file = str(Path(temporary) / "vectors.npy")
            if name in ours:
                engine.workers[0]("vectors", count=2 * BATCH, file=file)
            else:
                engine.workers[0]("vectors", pixels=pixels, file=file)
            one = np.load(file)
            vectors[name] = one / np.linalg.norm(one, axis=1, keepdims=True)
    reference = of_float32(vectors, peers)
    figures = {name: {"images_s": engine.rate(kind, "images_s"),
                      "cosine": float((vectors[name] * reference).sum(1).mean())}
               for name, engine in (ours | peers).items()}
    flops, limit = first("image_flops"), median(found)
    share = {name: figures[name]["images_s"] * flops / limit for name in ours}
    print(f"\n{kind}: images of 224 x 224 in batches of {BATCH}; int8 matrix limit {limit / 1e12:.2f} TOPS")
    _common.print_table(["engine", "images/s", "cosine", "of the int8 limit"],
                        [[name, _common.number(one["images_s"]), f"{one['cosine']:.5f}",
                          f"{share[name]:.0%}" if name in share else ""] for name, one in figures.items()])
    ratio = {name: figures["int8"]["images_s"] / figures[name]["images_s"] for name in peers if "int8" in ours}
    return closed(ours, peers, missing, figures, ratio, share, limit)


def drawing(options, kind: str, folder: Path, threads: int) -> dict:
    model = model_of(options, kind, folder)
    ours, peers, missing = open_engines(options, kind, model, threads, ("int8",))
    size, found = list(LATENTS[kind]), []
    rounds = 1 if options.quick else options.rounds
    for engine in (ours | peers).values():  # to warm up
        engine.workers[0]("step", size=size)
    for number in range(rounds):
        found.append(limits(ours, options.quick))
        for name, engine in (ours | peers).items():
            if number == 0 or not name.endswith("float32"):  # slow ones once: they are compared to with a wide margin
                engine.measure(kind, "step_s", "step", size=size)
    drawn = {}
    with tempfile.TemporaryDirectory() as temporary:
        for name, engine in (ours | peers).items():
            file = str(Path(temporary) / "latents.npy")
            engine.workers[0]("draw", size=size, steps=options.steps, file=file)
            drawn[name] = np.load(file)
    reference = of_float32(drawn, peers)
    costs = {name: engine.workers[0]("sizes", size=size) for name, engine in ours.items()}
    figures = {name: {"step_s": 1 / engine.rate(kind, "step_s"),
                      "psnr_db": _denoising.psnr(drawn[name], reference)} for name, engine in (ours | peers).items()}
    limit = median(found)
    share = {name: costs[name]["flops"] / figures[name]["step_s"] / limit for name in ours}
    memory = {name: {**one, "ratio": one["peak_bytes"] / one["activation_bytes"]} for name, one in costs.items()}
    some = next(iter(costs.values()))
    print(f"\n{kind}: latents of {size[0]} x {size[1]}, {some['flops'] / 1e12:.2f} T operations a step; int8 matrix "
          f"limit {limit / 1e12:.2f} TOPS; PSNR after {options.steps} steps")
    _common.print_table(["engine", "seconds a step", "PSNR, dB", "of the int8 limit", "activations / counted"],
                        [[name, _common.number(one["step_s"]), _common.number(one["psnr_db"]),
                          f"{share[name]:.0%}" if name in share else "",
                          _common.number(memory[name]["ratio"]) if name in memory else ""]
                         for name, one in figures.items()])
    if "int8" in ours:
        seconds = ours["int8"].workers[0]("timings", size=size)
        print("where an int8 step goes: " + ", ".join(f"{label} {one / sum(seconds.values()):.0%}" for label, one in
                                                      sorted(seconds.items(), key=lambda item: -item[1])[:9]))
    ratio = {name: figures[name]["step_s"] / figures["int8"]["step_s"] for name in peers if "int8" in ours}
    return closed(ours, peers, missing, figures, ratio, share, limit) | {"memory": memory}


def of_float32(found: dict[str, np.ndarray], peers: dict[str, Engine]) -> np.ndarray:
    """What others are compared to: a peer's, else ours, else the first."""
    return next((found[name] for name in (*peers, *found) if name.endswith("float32")), next(iter(found.values())))


def closed(ours, peers, missing, figures, ratio, share, limit) -> dict:
    """The result of a kind; its engines are closed."""
    result = {"machine": {**next(iter(ours.values())).workers[0].facts["machine"], "matrix_tops": limit / 1e12},
              "ours": {name: figures[name] for name in ours}, "peers": {name: figures[name] for name in peers},
              "versions": {name: engine.workers[0].facts["version"] for name, engine in peers.items()},
              "missing": missing, "ratio": ratio, "of_limit": share}
    for engine in (*ours.values(), *peers.values()):
        engine.close()
    return result


if __name__ == "__main__":
    sys.exit(main())
