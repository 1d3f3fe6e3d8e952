"""A model for transformers' own generate() whose logits are a function of the tokens so far: a witness for searches."""

from __future__ import annotations

import numpy as np
import torch
from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput, CausalLMOutput, Seq2SeqLMOutput


class ScriptConfig(PretrainedConfig):
    model_type = "script"


class Script(PreTrainedModel, GenerationMixin):
    """f: token ids so far -> float32 [vocab]."""

    config_class = ScriptConfig
    main_input_name = "input_ids"

    def __init__(self, f, vocab_size, **config):
        super().__init__(ScriptConfig(vocab_size=vocab_size, **config))
        self.f = f
        self.anchor = torch.nn.Parameter(torch.zeros(1))
        self.generation_config.use_cache = False

    def forward(self, input_ids=None, **kwargs):
        return CausalLMOutput(logits=self.rows(input_ids))

    def prepare_inputs_for_generation(self, input_ids, **kwargs):
        return {"input_ids": input_ids}

    def rows(self, input_ids):
        rows = np.stack([self.f(row) for row in input_ids.tolist()])
        return torch.from_numpy(rows)[:, None]


class ScriptPair(Script):
    """f: (source ids, token ids so far) -> float32 [vocab]."""

    def __init__(self, f, vocab_size, **config):
        super().__init__(f, vocab_size, is_encoder_decoder=True, **config)
        self.encoder = _Encoder()

    def get_encoder(self, *args, **kwargs):
        return self.encoder

    def forward(self, input_ids=None, decoder_input_ids=None, encoder_outputs=None, **kwargs):
        sources = encoder_outputs.last_hidden_state[..., 0].long().tolist()
        rows = [self.f(source, row) for source, row in zip(sources, decoder_input_ids.tolist(), strict=True)]
        return Seq2SeqLMOutput(logits=torch.from_numpy(np.stack(rows))[:, None])

    def prepare_inputs_for_generation(self, input_ids, encoder_outputs=None, **kwargs):
        return {"decoder_input_ids": input_ids, "encoder_outputs": encoder_outputs}


class _Encoder(torch.nn.Module):
    main_input_name = "input_ids"

    def forward(self, input_ids=None, **kwargs):
        return BaseModelOutput(last_hidden_state=input_ids[..., None].float())


def best(model, prompt, ends, start=None, **settings):
    """(token ids, score) of generate()'s results for one prompt: the generated ones, an end token included.

    start: what the answer of a pair begins with; without it, the prompt. What generate() fills up with is left out.
    """
    settings["eos_token_id"] = list(ends) or None
    if start is not None:
        settings |= {"decoder_input_ids": torch.tensor([start]), "decoder_start_token_id": start[0]}
    out = model.generate(torch.tensor([prompt]), return_dict_in_generate=True, output_scores=True, pad_token_id=0,
                         **settings)
    length = len(prompt if start is None else start)
    scores = out.sequences_scores.tolist() if settings.get("num_beams", 1) > 1 else [0.0] * len(out.sequences)
    found = []
    for ids, score in zip(out.sequences[:, length:].tolist(), scores, strict=True):
        last = next((i for i, token in enumerate(ids) if token in ends), len(ids))
        if score > -1e8:
            found.append((ids[: last + 1], score))
    return found
