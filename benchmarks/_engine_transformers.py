"""transformers, and the plain loop that computes the whole text again for every token; run by `_worker` in the
environment that has torch. A GGUF file is dequantised by transformers itself.

`python _engine_transformers.py once MODEL THREADS NEW PROMPT` prints an answer as a process of its own.
"""

from __future__ import annotations

import os
import sys
import time

import _worker

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # everything needed is in the model's file


def load(model: str, dtype: str, threads: int):
    import torch
    import transformers

    transformers.utils.logging.set_verbosity_error()
    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    if os.path.isfile(model):
        place = {"pretrained_model_name_or_path": os.path.dirname(model), "gguf_file": os.path.basename(model)}
    else:
        place = {"pretrained_model_name_or_path": model}
    made = transformers.AutoModelForCausalLM.from_pretrained(**place, dtype=getattr(torch, dtype))
    return torch, transformers, made.eval(), place


class Transformers:
    """dtype: "float32" or "bfloat16"."""

    def __init__(self, model: str, threads: int, dtype: str):
        start = time.perf_counter()
        self.torch, self.library, self.model, _ = load(model, dtype, threads)
        self.facts = {
            "ways": [""],
            "spins_s": 0.25,
            "load_s": time.perf_counter() - start,
            "version": f"transformers {self.library.__version__}, torch {self.torch.__version__}",
        }
        self.held: dict[int, tuple] = {}
        self.decode(list(range(10, 40)), 3)
        self.held.clear()

    def prefill(self, ids: list[int], way: str = "") -> list[float]:
        start = time.perf_counter()
        self._step(self.torch.tensor([ids]), self.library.DynamicCache())
        return [len(ids), time.perf_counter() - start]

    def decode(self, ids: list[int], new: int, way: str = "") -> list[float]:
        """The prompt stays in its cache for the next round: only the decoding is measured."""
        if len(ids) not in self.held or self.held[len(ids)][0] != ids:
            cache = self.library.DynamicCache()
            self.held[len(ids)] = ids, cache, self._step(self.torch.tensor([ids]), cache)
        _, cache, token = self.held[len(ids)]
        if (extra := cache.get_seq_length() - len(ids)) > 0:
            cache.crop(-extra)
        start = time.perf_counter()
        for _ in range(new - 1):
            token = self._step(token, cache)
        return [new - 1, time.perf_counter() - start]

    def batch(self, prompts: list[list[int]], new: int, way: str = "") -> list[float]:
        """Prompts of one length, so nothing is padded."""
        start = time.perf_counter()
        cache = self.library.DynamicCache()
        token = self._step(self.torch.tensor(prompts), cache)
        for _ in range(new - 1):
            token = self._step(token, cache)
        return [new * len(prompts), time.perf_counter() - start]

    def whole_text(self, ids: list[int], new: int, way: str = "") -> list[float]:
        """Tokens by the plain loop: the logits of the whole text each time, of which the last row is looked at. The
        text slides so that each token is the same work."""
        text = self.torch.tensor([ids])
        start = time.perf_counter()
        for _ in range(new):
            text = self.torch.cat([text[:, 1:], self._next(text)], 1)
        return [new, time.perf_counter() - start]

    def answer_without_cache(self, ids: list[int], new: int) -> float:
        """Seconds of a whole answer by the plain loop."""
        text = self.torch.tensor([ids])
        start = time.perf_counter()
        for _ in range(new):
            text = self.torch.cat([text, self._next(text)], 1)
        return time.perf_counter() - start

    def _next(self, text):
        return self.model(text, use_cache=False).logits[:, -1].argmax(-1, keepdim=True)

    def _step(self, tokens, cache):
        """The likeliest next token of each row, int64 [batch, 1]; projects the last position only, as generate does."""
        logits = self.model(tokens, past_key_values=cache, use_cache=True, logits_to_keep=1).logits
        return logits[:, -1].argmax(-1, keepdim=True)


def once(model: str, threads: str, new: str, prompt: str, raw: str = "") -> None:
    _, transformers, made, place = load(model, "bfloat16", int(threads))
    tokenizer = transformers.AutoTokenizer.from_pretrained(**place)
    if raw:
        inputs = tokenizer(prompt, return_tensors="pt")
    else:
        messages = [{"role": "user", "content": prompt}]
        inputs = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt",
                                               return_dict=True)
    out = made.generate(**inputs, max_new_tokens=int(new), do_sample=False)
    print(tokenizer.decode(out[0][inputs["input_ids"].shape[1] :]), flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["once"]:
        once(*sys.argv[2:])
    else:
        _worker.serve(Transformers)
