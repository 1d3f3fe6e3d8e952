"""`python _hugging_face_copy.py FILE.gguf FOLDER`: the same model as a Hugging Face directory in bfloat16.

Needs torch, transformers, gguf and accelerate. transformers may mark what it read as quantised, and does not save such
a model: its tensors go into a fresh one.
"""

from __future__ import annotations

import os
import sys

import torch
import transformers


def main(file: str, folder: str) -> None:
    transformers.utils.logging.set_verbosity_error()
    place = {"pretrained_model_name_or_path": os.path.dirname(file), "gguf_file": os.path.basename(file)}
    read = transformers.AutoModelForCausalLM.from_pretrained(**place, dtype=torch.bfloat16)
    if hasattr(read.config, "quantization_config"):
        del read.config.quantization_config
    fresh = transformers.AutoModelForCausalLM.from_config(read.config, dtype=torch.bfloat16)
    fresh.load_state_dict(read.state_dict())  # strict: a packed tensor would have another shape
    fresh.save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(**place).save_pretrained(folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
