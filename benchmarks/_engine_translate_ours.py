"""Our side of translate.py; run by `_worker`."""

from __future__ import annotations

import json
import time
from pathlib import Path

import _common
import _worker
import numpy as np


class Ours:
    """dtype: of load."""

    def __init__(self, model: str, threads: int, dtype: str = "auto"):
        import forwardpass

        start = time.perf_counter()
        self.model = forwardpass.load(model, dtype=dtype, threads=threads)
        self.facts = {"ways": [""], "load_s": time.perf_counter() - start,
                      "machine": _common.machine(self.model.network.backend)}

    def translate(self, texts: list[str], beams: int, batch: int, most: int, way: str = "") -> list[float]:
        """[output tokens, seconds], texts in groups of `batch`."""
        start = time.perf_counter()
        count = sum(len(one.token_ids) for one in self._answers(texts, beams, batch, most))
        return [count, time.perf_counter() - start]

    def texts(self, texts: list[str], beams: int, batch: int, most: int, way: str = "") -> list[str]:
        return [one.text for one in self._answers(texts, beams, batch, most)]

    def _answers(self, texts: list[str], beams: int, batch: int, most: int) -> list:
        found = []
        for at in range(0, len(texts), batch):
            found += self.model.generate(texts[at : at + batch], num_beams=beams, max_new_tokens=most, do_sample=False)
        return found

    def step(self, rows: int) -> list[float]:
        """[bytes of weights that a decoding step reads, multiplications and additions of `rows` tokens' products]."""
        from forwardpass.models import costs

        each = costs.stage_costs(self.model.spec, self.model.stored_bytes, [1] * rows, [20] * rows,
                                 sources=[30] * rows)
        total = costs.total({name: each[name] for name in ("embed", "decode", "project")})
        return [total.bytes, total.flops]

    def limits(self, size: int, seconds: float) -> list[float]:
        """[bytes a second read from `size` bytes, int8 operations a second]."""
        from forwardpass import _native

        backend = self.model.network.backend
        return [_native.read_bandwidth(backend.pool, int(size), seconds),
                _native.matrix_rate(backend.pool, backend.isa, True, seconds)]


def float_copy(model: str, folder: str) -> None:
    """The checkpoint's weights as float32 arrays, its settings and tokenizer, for peers that can't read its files."""
    from forwardpass.models.hf_config import read_config
    from forwardpass.weights.dequantize import dequantize
    from forwardpass.weights.folder import open_folder

    path, out = Path(model), Path(folder)
    with open_folder(path, read_config(path).values) as source:
        arrays = {name: dequantize(info.type, source.data(name), info.shape) for name, info in source.tensors.items()}
    np.savez(out / "weights.npz", **arrays)
    for name in ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "spiece.model"):
        if (path / name).exists():
            (out / name).write_bytes((path / name).read_bytes())
    settings = json.loads((out / "config.json").read_text())
    settings.pop("onnx_files", None)
    (out / "config.json").write_text(json.dumps(settings))


if __name__ == "__main__":
    _worker.serve(Ours)
