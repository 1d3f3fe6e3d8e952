"""CTranslate2 translating with a copy of the same weights; run by `_worker` in the environment that has it, with
transformers (whose checkpoint it converts) and, to compare texts, sacrebleu."""

from __future__ import annotations

import os
import time
from pathlib import Path

import _worker

os.environ.setdefault("HF_HUB_OFFLINE", "1")


class CTranslate2:
    """model: a folder that `_engine_translate_ours.float_copy` wrote;  compute: "int8" or "float32"."""

    def __init__(self, model: str, threads: int, compute: str):
        import ctranslate2
        import transformers

        transformers.utils.logging.set_verbosity_error()
        converted = Path(model) / "ctranslate2"
        if not converted.exists():
            class Converter(ctranslate2.converters.TransformersConverter):
                def load_model(self, model_class, path, **options):
                    return checkpoint(Path(path))

            Converter(model).convert(str(converted))
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(model)
        ways = {"one stream": (1, threads)} | ({"a stream a thread": (threads, 1)} if threads > 1 else {})
        self.translators = {way: ctranslate2.Translator(str(converted), compute_type=compute, inter_threads=inter,
                                                        intra_threads=intra) for way, (inter, intra) in ways.items()}
        self.facts = {"ways": list(ways), "version": f"ctranslate2 {ctranslate2.__version__}", "spins_s": 0.25}
        for way in ways:
            self.translate(["translate English to German: The house is green."], 1, 1, 8, way)

    def _run(self, texts: list[str], beams: int, batch: int, most: int, way: str) -> list:
        sources = [self.tokenizer.convert_ids_to_tokens(self.tokenizer(text)["input_ids"]) for text in texts]
        found = []
        for at in range(0, len(sources), batch):
            found += self.translators[way].translate_batch(sources[at : at + batch], beam_size=beams,
                                                           max_decoding_length=most, return_end_token=True)
        return found

    def translate(self, texts: list[str], beams: int, batch: int, most: int, way: str) -> list[float]:
        """[output tokens, seconds], texts in groups of `batch`."""
        start = time.perf_counter()
        count = sum(len(one.hypotheses[0]) for one in self._run(texts, beams, batch, most, way))
        return [count, time.perf_counter() - start]

    def texts(self, texts: list[str], beams: int, batch: int, most: int, way: str) -> list[str]:
        found = self._run(texts, beams, batch, most, way)
        ids = [self.tokenizer.convert_tokens_to_ids(one.hypotheses[0]) for one in found]
        return [self.tokenizer.decode(one, skip_special_tokens=True) for one in ids]

    def compare(self, texts: list[str], reference: list[str]) -> dict[str, float]:
        import sacrebleu

        return {"bleu": sacrebleu.corpus_bleu(texts, [reference]).score,
                "chrf": sacrebleu.corpus_chrf(texts, [reference]).score}


def checkpoint(folder: Path):
    """The transformers model of the arrays. Its own loader would tie a T5's head to the token table in any case."""
    import json

    import numpy as np
    import torch
    import transformers

    config = transformers.AutoConfig.from_pretrained(folder)
    settings = json.loads((folder / "config.json").read_text())
    config.tie_word_embeddings = settings.get("tie_word_embeddings", True)
    made = transformers.AutoModelForSeq2SeqLM.from_config(config)
    arrays = np.load(folder / "weights.npz")
    weights = {name: torch.from_numpy(arrays[name]) for name in arrays.files}
    if "shared.weight" in weights:
        weights |= {f"{stack}.embed_tokens.weight": weights["shared.weight"] for stack in ("encoder", "decoder")}
    missing, unexpected = made.load_state_dict(weights, strict=False)
    if unexpected or missing:
        raise RuntimeError(f"the weights do not fit: missing {missing[:5]}, unexpected {unexpected[:5]}")
    return made.eval()


if __name__ == "__main__":
    _worker.serve(CTranslate2)
