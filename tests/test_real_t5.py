"""The catalogue's flan-t5-small searches as transformers does with the same weights, read by the onnx package."""

import re

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import forwardpass
from forwardpass import catalog

pytestmark = pytest.mark.models

TEXTS = ["translate English to German: The house is wonderful and the weather is nice today.",
         "translate English to German: Where is the next station, and when does the train leave?",
         "translate English to German: She has lived in Berlin for three years.",
         "translate English to French: The children are playing in the garden.",
         "summarize: The council met on Monday evening. After two hours of debate it decided to build the new bridge "
         "north of the town, because the ground in the south is too soft.",
         "Is the following review positive or negative? This movie was terrible and boring.",
         "What is the capital of Portugal?"]  # fmt: skip
SEARCHES = [
    {"num_beams": 4, "num_return_sequences": 4},
    {"num_beams": 3, "num_return_sequences": 2, "length_penalty": 2.0, "early_stopping": True},
    {"num_beams": 5, "num_return_sequences": 5, "no_repeat_ngram_size": 2, "early_stopping": "never"},
    {"num_beams": 2, "repetition_penalty": 1.4, "encoder_no_repeat_ngram_size": 3, "min_new_tokens": 12},
]


@pytest.fixture(scope="module")
def path():
    return catalog.resolve("flan-t5-small")


def onnx_weights(path, prefix, own):
    """Names as transformers has them -> float32, from one of the two files. own: what takes the place of prefix."""
    graph = onnx.load(path).graph
    arrays = {one.name: numpy_helper.to_array(one) for one in graph.initializer}

    def named(name):
        return own + name.removeprefix(prefix) if name.startswith(prefix) else name

    def dequantised(base):
        codes = arrays[base + "_quantized"].astype(np.float32)
        return (codes - arrays[base + "_zero_point"].astype(np.float32)) * arrays[base + "_scale"]

    found = {}
    for node in graph.node:
        if node.op_type == "MatMulInteger" and node.input[1].endswith("_quantized"):
            module = re.sub(r"/MatMul_quant$", "", node.name.strip("/")).replace("/", ".")
            found[named(module) + ".weight"] = dequantised(node.input[1].removesuffix("_quantized")).T
    for name, array in arrays.items():
        if name.endswith(".weight_quantized"):
            found[named(name.removesuffix("_quantized"))] = dequantised(name.removesuffix("_quantized"))
        elif name.endswith("layer_norm.weight"):
            found[named(name)] = array.astype(np.float32)
    return found


@pytest.fixture(scope="module")
def reference(path):
    import torch
    from transformers import T5Config, T5ForConditionalGeneration

    torch.set_num_threads(1)
    model = T5ForConditionalGeneration(T5Config.from_pretrained(path)).eval()
    weights = onnx_weights(path / "encoder.onnx", "enc.", "encoder.") | onnx_weights(path / "decoder.onnx", "m.", "")
    weights = {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in weights.items()}
    model.lm_head.weight = torch.nn.Parameter(weights["lm_head.weight"])  # not tied to the embedding
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert {name.rpartition(".")[0] for name in missing} <= {"encoder.embed_tokens", "decoder.embed_tokens"}
    assert not unexpected
    return model


@pytest.mark.parametrize("search", SEARCHES, ids=str)
def test_beams_of_the_real_model(path, reference, search):
    import torch

    with forwardpass.load(path, dtype="float32") as model:
        ours = model.generate(TEXTS, max_new_tokens=40, **search)
    each = search.get("num_return_sequences", 1)
    for number in range(len(TEXTS)):
        mine = ours[number * each : (number + 1) * each]
        assert [(one.prompt_index, one.choice_index) for one in mine] == [(number, i) for i in range(each)]
        with torch.no_grad():
            found = reference.generate(torch.tensor([mine[0].prompt_token_ids]), max_new_tokens=40,
                                       return_dict_in_generate=True, output_scores=True, **search)  # fmt: skip
        texts = [ids[1 : ids.index(1) + 1] if 1 in ids else ids[1:] for ids in found.sequences.tolist()]
        assert [one.token_ids for one in mine] == texts
        np.testing.assert_allclose([one.score for one in mine], found.sequences_scores, atol=1e-4)
