"""Encoder-decoders in float32 against transformers, tiny random models of every family; and what must hold with `==`:
steps with a cache, and sources beside one another."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

import forwardpass
import tiny_pairs
from agreement import relative_error
from forwardpass.contracts import EncoderText
from forwardpass.decoding.params import from_user
from forwardpass.stages.project import label_scores

END = 2
PADDING = [0, 1, 4, 69, 95]
"""Padding of one or the other model; M2M-100 does not count its positions."""
RNG = np.random.default_rng(4)
SOURCE, OTHER = RNG.integers(3, 68, 33).tolist(), RNG.integers(3, 68, 70).tolist()
TOLERANCE = 1e-4


def saved(case, tmp_path, **generation):
    reference = tiny_pairs.case(case)
    return reference, tiny_pairs.save(reference, tmp_path / case, **generation)


def states(model, texts):
    """The encoder's final states of each text, float32 [tokens, hidden]."""
    def read(hidden):
        starts = hidden.packed.starts
        return [hidden.values[a:b].copy() for a, b in pairwise(starts)]

    return model.engine.encode([EncoderText(ids) for ids in texts], read)


def logits(model, source, target):
    """float32 [target, vocab] of the decoder, whose own text is `target`."""
    out = np.empty((len(target), model.spec.vocab_size), np.float32)

    def store(first, rows):
        out[first : first + len(rows)] = rows

    model.engine.forward(target, store, source_ids=source)
    return out


def answers(model, sources, tokens=30, **params):
    """Token ids of greedy answers without repetition (random models say the same thing over and over), all sources at
    once."""
    never = [i for i in PADDING if i < model.facts.vocab_size]
    params |= {"max_new_tokens": tokens, "eos_token_id": [], "no_repeat_ngram_size": 1, "suppress_tokens": never}
    chosen = from_user({}, params, vocab_size=model.facts.vocab_size, decoder_start=model.facts.start_id)
    requests = [model.engine.add([model.facts.start_id], chosen, source_ids=source) for source in sources]
    model.engine.run(requests)
    return [one.token_ids for request in requests for one in request.completions()]


def check_greedy(reference, source, start, answer):
    """The answer is what transformers would choose, token by token; at the first difference its own two best logits
    must be close."""
    text = [start, *answer]
    rows = tiny_pairs.reference(reference, source, text[:-1])[2]
    for step, token in enumerate(answer):
        never = [i for i in (*text[: step + 1], *PADDING) if i < rows.shape[1]]
        rows[step, never] = -np.inf
        best = int(rows[step].argmax())
        if best != token:
            second, first = np.sort(rows[step])[-2:]
            assert first - second < 1e-3, f"token {step}: {token} instead of {best}, {first - second:.4f} apart"
            return


@pytest.mark.parametrize("case", tiny_pairs.CASES)
def test_parity(case, tmp_path):
    """Both sides' states, the logits at every position, and a greedy answer; lengths beyond the furthest bucket."""
    reference, path = saved(case, tmp_path)
    with forwardpass.load(path, dtype="float32") as model:
        answer = answers(model, [SOURCE])[0]
        text = [model.facts.start_id, *answer]
        encoded, _, theirs = tiny_pairs.reference(reference, SOURCE, text)
        ours = logits(model, SOURCE, text)
        assert relative_error(states(model, [SOURCE])[0], encoded) < TOLERANCE
        for position in range(len(text)):
            assert relative_error(ours[position], theirs[position]) < TOLERANCE, position
        assert len(answer) == 30
        check_greedy(reference, SOURCE, text[0], answer)


BEAMS = {  # case: (settings of the search, settings of the files)
    "t5": ({"length_penalty": 2.0}, {}),
    "t5-gated": ({"early_stopping": True, "num_beams": 4}, {}),
    "mt5": ({"early_stopping": "never", "length_penalty": -1.0}, {}),
    "umt5": ({"no_repeat_ngram_size": 2}, {}),
    "bart": ({"encoder_no_repeat_ngram_size": 1}, {"forced_bos_token_id": 40, "forced_eos_token_id": 2}),
    "mbart": ({}, {"forced_eos_token_id": 2, "num_beams": 4, "early_stopping": True, "max_length": 9, "min_length": 4}),
    "marian": ({"num_beams": 6}, {"bad_words_ids": [[95], [30, 31]]}),
    "m2m_100": ({"repetition_penalty": 1.3}, {"forced_bos_token_id": 17}),
    "pegasus": ({"length_penalty": 0.0, "min_new_tokens": 5}, {"num_beams": 5, "max_length": 20}),
}


@pytest.mark.parametrize("case", BEAMS)
def test_beams(case, tmp_path):
    """Sequences and scores of generate(), with settings that stand in the files and others that the caller names."""
    import torch

    asked, stored = BEAMS[case]
    reference, path = saved(case, tmp_path, **stored)
    asked = asked | ({} if "num_beams" in {**asked, **stored} else {"num_beams": 3})
    ends = [END, *range(20, 32)]  # enough of them that some answers end
    asked = {"num_return_sequences": 3, "eos_token_id": ends} | asked
    asked |= {} if "max_length" in stored else {"max_new_tokens": 12}
    for source in (SOURCE[:5], OTHER):
        with torch.no_grad():
            found = reference.generate(torch.tensor([source]), return_dict_in_generate=True, output_scores=True,
                                       **asked)
        theirs = [trimmed(ids[1:], ends) for ids in found.sequences.tolist()]
        with forwardpass.load(path, dtype="float32") as model:
            ours = model.generate(source, **asked)
        assert [one.token_ids for one in ours] == theirs
        assert np.allclose([one.score for one in ours], found.sequences_scores, rtol=1e-4, atol=1e-5)
        assert all(one.prompt_token_ids == source for one in ours)


def trimmed(ids, ends):
    """Without the padding after the first end token."""
    end = next((n for n, token in enumerate(ids) if token in ends), len(ids))
    return ids[: end + 1]


@pytest.mark.parametrize("case", ["t5", "umt5", "bart", "mbart", "marian", "m2m_100", "pegasus"])
def test_steps_with_a_cache_equal_a_whole_text(case, tmp_path):
    """40 steps: the bias is that of the query's own position, also when one token is computed at a time."""
    _, path = saved(case, tmp_path)
    rows = []

    def keep(token_ids, row):
        rows.append(row.copy())
        return row

    with forwardpass.load(path, dtype="float32") as model:
        answer = answers(model, [SOURCE], 40, logits_processors=[keep])[0]
        text = [model.facts.start_id, *answer]
        whole = logits(model, SOURCE, text[:-1])
        assert len(rows) == 40 and all(np.array_equal(row[np.isfinite(row)], theirs[np.isfinite(row)])
                                       for row, theirs in zip(rows, whole, strict=True))
        for end in (1, 2, 21, 39):
            assert np.array_equal(logits(model, SOURCE, text[:end]), whole[:end])


@pytest.mark.parametrize("case", ["t5", "bart", "m2m_100"])
def test_no_source_sees_another(case, tmp_path):
    """Sources of 3, 33 and 70 tokens side by side, and each alone: the same bits. A change in one changes no other."""
    _, path = saved(case, tmp_path)
    sources = [SOURCE[:3], SOURCE, OTHER]
    with forwardpass.load(path, dtype="float32") as model:
        alone, together = [states(model, [one])[0] for one in sources], states(model, sources)
        assert all(np.array_equal(a, b) for a, b in zip(alone, together, strict=True))
        each, all_ = [answers(model, [one])[0] for one in sources], answers(model, sources)
        assert each == all_ and len({tuple(one) for one in each}) == 3
        beams = {"num_beams": 3, "num_return_sequences": 2}
        assert answers(model, sources, **beams) == [one for ids in sources for one in answers(model, [ids], **beams)]
        changed = answers(model, [sources[0], OTHER[::-1], sources[2]])
        assert changed[0] == each[0] and changed[2] == each[2] and changed[1] != each[1]


@pytest.mark.parametrize("case", ["t5", "umt5", "bart", "mbart", "marian", "m2m_100", "pegasus"])
def test_equals_the_padded_rectangle_of_transformers(case, tmp_path):
    """Where transformers pads sources of two lengths and masks the rest, we have nothing to mask."""
    import torch

    reference, path = saved(case, tmp_path)
    pad = reference.config.pad_token_id
    short, target = SOURCE[:12], [reference.config.decoder_start_token_id, *OTHER[:9]]
    width = len(SOURCE)
    sides = {"right": short + [pad] * (width - 12)}
    if case in ("t5", "umt5", "m2m_100"):  # relative positions, or positions that padding does not count for
        sides["left"] = [pad] * (width - 12) + short
    with forwardpass.load(path, dtype="float32") as model:
        ours = [logits(model, SOURCE, target), logits(model, short, target)]
        for row in sides.values():
            ids = torch.tensor([SOURCE, row])
            mask = torch.tensor([[1] * width, [int(i != pad) for i in row]])
            with torch.no_grad():
                theirs = reference(input_ids=ids, attention_mask=mask,
                                   decoder_input_ids=torch.tensor([target] * 2)).logits.numpy()
            assert all(relative_error(a, b) < TOLERANCE for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("case", ["t5", "marian"])
def test_kept_answers_belong_to_their_source(case, tmp_path):
    """The same beginning of an answer under two sources: one after the other, together, and in a model that has seen
    neither."""
    _, path = saved(case, tmp_path)
    with forwardpass.load(path, dtype="float32") as model:
        first, second = answers(model, [SOURCE])[0], answers(model, [OTHER])[0]
        assert answers(model, [OTHER, SOURCE, OTHER]) == [second, first, second]
        text = [model.facts.start_id, *first]
        one, two = logits(model, SOURCE, text), logits(model, OTHER, text)
        assert not np.array_equal(one[0], two[0])
    with forwardpass.load(path, dtype="float32") as model:
        assert np.array_equal(logits(model, OTHER, text), two)
        assert answers(model, [OTHER])[0] == second


def test_labels(tmp_path):
    """The decoder reads each text one token behind, beside others and alone; scores of texts of several lengths."""
    import torch
    import transformers

    torch.manual_seed(6)
    config = transformers.BartConfig(**tiny_pairs.SIDES, num_labels=4)
    reference = transformers.BartForSequenceClassification(config).eval()
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    reference.save_pretrained(tmp_path)
    texts = [[*ids, END] for ids in (SOURCE, OTHER, SOURCE[:1], [])]
    with forwardpass.load(tmp_path, dtype="float32") as model:
        def scores(hidden):
            return list(label_scores(model.network, hidden))

        together = model.engine.encode(list(map(EncoderText, texts)), scores, begin=END)
        for ids, ours in zip(texts, together, strict=True):
            with torch.no_grad():
                theirs = reference(torch.tensor([ids])).logits[0].numpy()
            assert relative_error(ours, theirs) < TOLERANCE
            assert np.array_equal(ours, model.engine.encode([EncoderText(ids)], scores, begin=END)[0])


def test_t5_without_its_bias_would_be_seen(tmp_path):
    """The buckets matter: with distances of the other kind the numbers are far off."""
    import torch

    reference, path = saved("t5", tmp_path)
    with torch.no_grad():
        for stack in (reference.encoder, reference.decoder):
            table = stack.block[0].layer[0].SelfAttention.relative_attention_bias.weight
            table.copy_(table.flip(0))
    target = [0, *OTHER[:20]]
    with forwardpass.load(path, dtype="float32") as model:
        theirs = tiny_pairs.reference(reference, SOURCE, target)[2]
        assert relative_error(logits(model, SOURCE, target), theirs) > 100 * TOLERANCE


@pytest.mark.parametrize(("settings", "said"), [
    ({"decoder_start_token_id": None}, "decoder_start_token_id is missing"),
    ({"decoder_start_token_id": 500}, "decoder_start_token_id: expected a whole number from 0 to 95"),
])
def test_a_bad_first_token_stops_the_loading(settings, said, tmp_path):
    import json

    _, path = saved("t5", tmp_path)
    for name in ("config.json", "generation_config.json"):
        values = json.loads((path / name).read_text()) | settings
        (path / name).write_text(json.dumps(values))
    with pytest.raises(forwardpass.ModelFileError, match=said):
        forwardpass.load(path)
