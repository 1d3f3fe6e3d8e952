"""DINOv2-small of the catalogue: its hidden states against the ONNX graph that its weights come from, and against
transformers' class with the same weights."""

import itertools
import json

import numpy as np
import pytest

import forwardpass
from agreement import relative_error
from forwardpass import catalog
from forwardpass.contracts import EncoderImage
from forwardpass.weights.onnx_folder import open_onnx

pytestmark = pytest.mark.models

SIZES = ((84, 112), (224, 224))


@pytest.fixture(scope="module")
def path():
    return catalog.resolve("dinov2-small")


def waves(height, width, seed=0):
    """Smooth shapes of three colours with some noise, of the size that normalised pixels have."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width] / 20
    shapes = np.stack([np.sin(a * y + b * x + c) for a, b, c in rng.normal(size=(3, 3))], axis=2)
    return (shapes + rng.normal(size=shapes.shape) / 4).astype(np.float32)


def hidden_states(model, *images):
    def read(hidden):
        starts = hidden.packed.starts
        return [hidden.values[start:end].copy() for start, end in itertools.pairwise(starts)]

    return model.engine.encode([EncoderImage(one) for one in images], read)


def test_the_graph_itself(path):
    """Its nodes up to the last norm of the backbone, evaluated by the `onnx` package."""
    import onnx
    from onnx.reference import ReferenceEvaluator

    graph = onnx.load(path / "vit_s_focus.onnx")
    last = max(i for i, node in enumerate(graph.graph.node) if node.name.startswith("/backbone/layernorm/"))
    name = graph.graph.node[last].output[0]
    del graph.graph.node[last + 1 :], graph.graph.output[:]
    graph.graph.output.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None))
    pixels = waves(*SIZES[0])
    [theirs] = ReferenceEvaluator(graph).run(None, {"input_image": pixels.transpose(2, 0, 1)[None]})
    with forwardpass.load(path, dtype="float32") as model:
        [ours] = hidden_states(model, pixels)
    assert ours.shape == theirs[0].shape == (1 + 6 * 8, 384)
    assert relative_error(ours, theirs[0]) < 1e-5


def test_transformers(path, tmp_path):
    """Its class with the same weights; two sizes side by side; and what fewer bits leave of it."""
    import torch
    import transformers

    config = json.loads((path / "config.json").read_text())
    model = transformers.Dinov2Model(transformers.Dinov2Config(**{
        key: value for key, value in config.items() if not key.startswith("onnx") and key != "architectures"})).eval()
    with open_onnx(path, config) as source:
        weights = {name: torch.tensor(source.data(name).view(np.float32).reshape(info.shape).copy())
                   for name, info in source.tensors.items()}
    weights |= {"embeddings.mask_token": torch.zeros(1, 384)}
    model.save_pretrained(tmp_path)
    from safetensors.torch import save_file

    save_file(weights, tmp_path / "model.safetensors")
    model = transformers.Dinov2Model.from_pretrained(tmp_path).eval()
    images = [waves(*size, seed=seed) for seed, size in enumerate(SIZES)]
    with torch.no_grad():
        theirs = [model(torch.tensor(one).permute(2, 0, 1)[None]).last_hidden_state[0].numpy() for one in images]
    with forwardpass.load(path, dtype="float32") as ours:
        for one, other in zip(hidden_states(ours, *images), theirs, strict=True):
            assert relative_error(one, other) < 1e-5
        assert ours.spec.patches.image == (518, 518) and "embed_image" in ours.tasks
    for dtype in ("bfloat16", "int8"):
        with forwardpass.load(path, dtype=dtype) as ours:
            for one, other in zip(hidden_states(ours, *images), theirs, strict=True):
                cosines = (one * other).sum(1) / np.linalg.norm(one, axis=1) / np.linalg.norm(other, axis=1)
                assert cosines[0] > 0.999 and cosines.min() > 0.997, dtype
