"""torch (through transformers) and OpenVINO computing sentence embeddings: mean of the last hidden states, normalised.
Run by `_worker` in the environment that has them. Both take padded batches, of sentences as they come or sorted by
length."""

from __future__ import annotations

import os
import time
from statistics import median

import _worker

os.environ.setdefault("HF_HUB_OFFLINE", "1")
BATCH = 32


class Peer:
    """engine: "torch" or "openvino";  dtype: "float32" or "bfloat16"."""

    def __init__(self, model: str, threads: int, engine: str, dtype: str):
        import torch
        import transformers

        transformers.utils.logging.set_verbosity_error()
        torch.set_num_threads(threads)
        torch.set_grad_enabled(False)
        self.torch = torch
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(model)
        kind = torch.bfloat16 if (engine, dtype) == ("torch", "bfloat16") else torch.float32
        made = transformers.AutoModel.from_pretrained(model, dtype=kind).eval()
        version = f"transformers {transformers.__version__}, torch {torch.__version__}"
        if engine == "openvino":
            import openvino

            version = f"openvino {openvino.__version__}"
            texts = ["an example", "another, which is longer"]
            example = dict(self.tokenizer(texts, padding=True, return_tensors="pt"))
            converted = openvino.convert_model(made, example_input=example)
            settings = {"INFERENCE_PRECISION_HINT": "bf16" if dtype == "bfloat16" else "f32",
                        "INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
            compiled = openvino.Core().compile_model(converted, "CPU", settings)
            names = {name for port in compiled.inputs for name in port.names}
            self.run = lambda inputs: torch.from_numpy(
                compiled({name: value.numpy() for name, value in inputs.items() if name in names})[0])
        else:
            self.run = lambda inputs: made(**inputs).last_hidden_state.float()
        self.facts = {"ways": ["as they come", "sorted"], "version": version, "spins_s": 0.25}
        for way in self.facts["ways"]:
            self.encode(["to warm up, a sentence of some words"] * 64, way)

    def embed(self, texts: list[str]):
        inputs = self.tokenizer(texts, padding=True, truncation=True, max_length=256, return_tensors="pt")
        hidden = self.run(dict(inputs))
        mask = inputs["attention_mask"][..., None]
        pooled = (hidden * mask).sum(1) / mask.sum(1)
        return self.torch.nn.functional.normalize(pooled, dim=1)

    def encode(self, texts: list[str], way: str = "sorted") -> list[float]:
        start = time.perf_counter()
        order = range(len(texts)) if way != "sorted" else sorted(range(len(texts)), key=lambda i: -len(texts[i]))
        vectors = [None] * len(texts)
        order = list(order)
        for at in range(0, len(texts), BATCH):
            for i, vector in zip(order[at : at + BATCH], self.embed([texts[i] for i in order[at : at + BATCH]]),
                                 strict=True):
                vectors[i] = vector
        return [len(vectors), time.perf_counter() - start]

    def query(self, text: str, times: int, way: str = "") -> list[float]:
        """[1, median seconds of so many]."""
        seconds = []
        for _ in range(times):
            start = time.perf_counter()
            self.embed([text])
            seconds.append(time.perf_counter() - start)
        return [1, median(seconds)]

    def vectors(self, texts: list[str], file: str) -> None:
        import numpy as np

        np.save(file, self.torch.cat([self.embed([text]) for text in texts]).numpy())


if __name__ == "__main__":
    _worker.serve(Peer)
