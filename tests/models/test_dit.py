"""DiT and PixArt against diffusers, and what holds whatever else is drawn."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

import tiny_pipelines
from forwardpass.backends.native import NativeBackend
from forwardpass.backends.protocol import CONTEXT, IMAGES
from forwardpass.errors import ModelFileError, ParameterError, UnsupportedModelError
from forwardpass.models import components, dit_blocks, dit_costs, sinusoids
from forwardpass.models.loading import load_weights
from tiny_pipelines import latents, predicted

TOLERANCE = 2e-5


@pytest.fixture(scope="module")
def backend():
    return NativeBackend(2)


def opened(model, tools, **changes):
    """(its component, checkpoint and source); changes: of the config."""
    values = {**json.loads(json.dumps(dict(model.config))), "_class_name": type(model).__name__, **changes}
    source = tools.FakeSource("safetensors", {name: one.numpy() for name, one in model.state_dict().items()})
    component, spec = components.read_spec(values, components.DENOISERS, "config.json")
    return component, components.read_weights(component, spec, source), source


def loaded(model, backend, tools, dtype="float32", kv_dtype="float32", **changes):
    component, checkpoint, source = opened(model, tools, **changes)
    weights = load_weights(checkpoint, source, dtype, backend).weights()
    return component.build(checkpoint.spec, weights, backend, kv_dtype)


def near(ours, theirs, tolerance=TOLERANCE):
    assert ours.shape == theirs.shape and ours.dtype == np.float32
    assert np.abs(ours - theirs).max() <= tolerance * np.abs(theirs).max()


SIZES = ((8, 8), (12, 6), (4, 4), (2, 10))
STEPS = np.array([999, 0, 37.5, 500], np.float32)


@pytest.mark.parametrize("changes", [
    {"sample_size": 9}, {"shared": True}, {"activation_fn": "geglu", "attention_bias": False},
    {"norm_elementwise_affine": True, "norm_eps": 1e-3, "activation_fn": "gelu"},
    {"patch_size": 1, "out_channels": None, "activation_fn": "geglu-approximate", "sample_size": 5},
    {"patch_size": 4, "in_channels": 1, "out_channels": 1, "sample_size": 32, "activation_fn": "linear-silu"},
], ids=str)
def test_dit_equals_diffusers(changes, backend, tools):
    """Several steps, classes and sizes in one call, also what was trained at another size than any of them."""
    model = tiny_pipelines.dit(**changes)
    ours = loaded(model, backend, tools)
    p = ours.patch
    ours.check_size(*ours.sample_size)
    assert ours.sample_size[0] == model.config.sample_size // p * p
    pictures = [latents(i, height // 2 * p, width // 2 * p, ours.latent_channels)
                for i, (height, width) in enumerate(SIZES)]
    labels = [3, None, 0, 6]
    got = ours.predict(pictures, STEPS, [ours.of_label(one) for one in labels])
    for picture, step, label, one in zip(pictures, STEPS, labels, got, strict=True):
        label = torch.tensor([7 if label is None else label])
        near(one, predicted(model, picture, float(step), class_labels=label))


def test_embeddings_that_are_the_same_are_used_once(backend, tools):
    one, two = (loaded(tiny_pipelines.dit(shared=shared), backend, tools) for shared in (True, False))
    assert one.spec.embedders == () and two.spec.embedders == (0, 1)
    assert one.of_label(2).vector.shape == (48,) and two.of_label(2).vector.shape == (96,)
    model = tiny_pipelines.dit(shared=True, num_layers=3)

    with torch.no_grad():
        model.transformer_blocks[1].norm1.emb.class_embedder.embedding_table.weight[7, 0] += 1
    assert loaded(model, backend, tools).spec.embedders == (0, 1, 0)


@pytest.mark.parametrize("changes", [
    {}, {"caption_channels": None, "activation_fn": "swiglu", "norm_elementwise_affine": True},
    {"use_additional_conditions": True, "interpolation_scale": 3, "attention_bias": False},
], ids=str)
def test_pixart_equals_diffusers(changes, backend, tools):
    """The original fills texts up and hides what it filled them with; ours reads each text as long as it is."""
    model = tiny_pipelines.pixart(**changes)
    ours = loaded(model, backend, tools)
    pictures = [latents(i, *size, 4) for i, size in enumerate(SIZES)]
    texts = [latents(10 + i, tokens, ours.context_width) for i, tokens in enumerate((3, 1, 70, 5))]
    got = ours.predict(pictures, STEPS, [ours.of_text(one) for one in texts])
    for picture, step, text, one in zip(pictures, STEPS, texts, got, strict=True):
        height, width = (8.0 * side for side in picture.shape[:2])
        filled = np.concatenate([text, latents(1, 2, ours.context_width)])
        mask = torch.tensor([[1.0] * len(text) + [0.0] * 2])
        sizes = {"resolution": torch.tensor([[height, width]]), "aspect_ratio": torch.tensor([[height / width]])}
        near(one, predicted(model, picture, float(step), encoder_hidden_states=torch.from_numpy(filled)[None],
                            encoder_attention_mask=mask, added_cond_kwargs=sizes))


def test_positions_equal_the_original_for_every_grid():
    """Also for pictures that are not square, and larger or smaller than those of the training."""
    from diffusers.models.embeddings import get_2d_sincos_pos_embed

    for height, width, base, scale in ((4, 4, 4, 1.0), (3, 5, 4, 1.0), (64, 64, 64, 2.0), (2, 96, 32, 1.5)):
        theirs = get_2d_sincos_pos_embed(24, (height, width), base_size=base, interpolation_scale=scale,
                                         output_type="pt").to(torch.float32).numpy()
        ours = sinusoids.of_grid(height, width, 24, base, scale)
        assert ours.shape == theirs.shape and np.abs(ours - theirs).max() < 2e-6


@pytest.fixture(scope="module", params=["float32", "bfloat16", "int8"])
def mixed(request, backend, tools):
    """(ours, pictures, steps, conditions) of both kinds, for tests of what a picture's neighbours may not change."""
    found = []
    for model in (tiny_pipelines.dit(), tiny_pipelines.pixart(use_additional_conditions=True)):
        ours = loaded(model, backend, tools, request.param, "float32" if request.param == "float32" else "bfloat16")
        pictures = [latents(i, *size, 4) for i, size in enumerate(((8, 8), (12, 6), (2, 2), (8, 8), (16, 16)))]
        if ours.labels:
            conditions = [ours.of_label(one) for one in (1, None, 5, 1, 0)]
        else:
            conditions = [ours.of_text(latents(i, tokens, 32)) for i, tokens in enumerate((3, 1, 70, 3, 2))]
        found.append((ours, pictures, np.array([7, 999, 0, 20.5, 7], np.float32), conditions))
    return request.param, found


def test_a_picture_does_not_depend_on_its_neighbours(mixed):
    """The same bits alone, in any order, and in any number of threads."""
    for ours, pictures, steps, conditions in mixed[1]:
        together = ours.predict(pictures, steps, conditions)
        for i, one in enumerate(together):
            alone, = ours.predict([pictures[i]], steps[i : i + 1], [conditions[i]])
            assert np.array_equal(alone, one)
        order = [3, 1, 4, 0, 2]
        again = ours.predict([pictures[i] for i in order], steps[order], [conditions[i] for i in order])
        assert all(np.array_equal(one, together[i]) for one, i in zip(again, order, strict=True))
        assert ours.predict([], np.empty(0, np.float32), []) == []


def test_few_bits_stay_close(mixed, backend, tools):
    dtype, found = mixed
    if dtype == "float32":
        return
    models = tiny_pipelines.dit(), tiny_pipelines.pixart(use_additional_conditions=True)
    for model, (ours, pictures, steps, conditions) in zip(models, found, strict=True):
        exact = loaded(model, backend, tools)
        if ours.labels:
            true = [exact.of_label(one) for one in (1, None, 5, 1, 0)]
        else:
            true = [exact.of_text(latents(i, tokens, 32)) for i, tokens in enumerate((3, 1, 70, 3, 2))]
        for one, wanted in zip(ours.predict(pictures, steps, conditions), exact.predict(pictures, steps, true),
                               strict=True):
            assert np.abs(one - wanted).max() > 0  # it is another arithmetic
            assert np.sqrt(np.mean((one - wanted) ** 2)) < 0.03 * np.sqrt(np.mean(wanted**2))


def test_int8_keeps_what_every_pixel_feels(backend, tools):
    _, checkpoint, source = opened(tiny_pipelines.dit(), tools)
    formats = {one.bound.target: one.format for one in load_weights(checkpoint, source, "int8", backend).places}
    kept = {name for name, format in formats.items() if format == "F32"}
    assert kept == {"patches.weight", "final.modulation.weight", "final.out.weight", *(
        f"layers.{i}.time.{part}.weight" for i in (0, 1) for part in ("first", "second"))}
    assert {format for name, format in formats.items() if name not in kept} == {"Q8A"}


class Watched:
    """A backend that tells the buffers of the last program: (width, space)."""

    def __init__(self, backend):
        self.backend, self.rotary = backend, backend.rotary

    def program(self):
        program, self.buffers = self.backend.program(), []
        buffer = program.buffer

        def counted(width, space=0):
            self.buffers.append((width, space))
            return buffer(width, space)

        program.buffer = counted
        return program


@pytest.mark.parametrize("model", [
    lambda: tiny_pipelines.dit(), lambda: tiny_pipelines.dit(shared=True, activation_fn="geglu"),
    lambda: tiny_pipelines.pixart()], ids=["own", "shared", "pixart"])
def test_costs_are_those_of_the_recorded_program(model, backend, tools):
    """Memory: every buffer of it. Operations: those of the products, counted here once more by hand."""
    model, watched = model(), Watched(backend)
    _, checkpoint, source = opened(model, tools)
    spec = checkpoint.spec
    dit_blocks.record(watched, spec, load_weights(checkpoint, source, "float32", backend).weights(), "float32")
    sizes, contexts = [(8, 8), (12, 6)], [3, 5]
    rows = {0: (64 + 72) // 4, IMAGES: 2, CONTEXT: sum(contexts)}
    counted = 4 * sum(width * rows[space] for width, space in watched.buffers)
    assert dit_costs.activation_bytes(spec, sizes, contexts) == counted
    patches, wide = 16, 48
    inner = 4 * wide * (2 if model.config.activation_fn == "geglu" else 1)
    products = patches * wide * (16 + 32 + 2 * (4 * wide + inner + 4 * wide)) + 2 * 2 * patches**2 * wide
    if spec.labels:
        products += len(spec.own_embedders) * (256 * wide + wide * wide) + (2 * 6 + 2) * wide * wide
    else:
        products += (256 + 7 * wide) * wide + 2 * 2 * patches * wide * (wide + 3)
        assert dit_costs.flops(spec, 8, 8, 4) - dit_costs.flops(spec, 8, 8, 3) == 2 * 4 * patches * wide
    assert 2 * products < dit_costs.flops(spec, 8, 8, 3) < 2.12 * products


def test_sizes_steps_and_conditions_are_checked(backend, tools):
    ours = loaded(tiny_pipelines.dit(), backend, tools)
    condition, step = ours.of_label(0), np.zeros(1, np.float32)
    for height, width, said in ((7, 8, "height.*2, not 7"), (8, 9, "width.*2, not 9"), (0, 8, "height.*not 0"),
                                (1024, 1024, "65536 patches; 1024 x 1024 have 262144")):
        with pytest.raises(ParameterError, match=said):
            ours.check_size(height, width)
    ours.check_size(512, 512)
    for picture, said in ((latents(0, 7, 8, 4), "height"), (latents(0, 8, 8, 3), r"\[height, width, 4\], not float32 "
                          r"\[8, 8, 3\]"), (latents(0, 8, 8, 4).astype(np.float64), "float64"), ([[0]], "a list")):
        with pytest.raises(ParameterError, match=said):
            ours.predict([picture], step, [condition])
    good = latents(0, 8, 8, 4)
    for steps in (np.zeros(2, np.float32), np.array([np.nan]), np.array([np.inf]), np.array([2e6])):
        with pytest.raises(ParameterError, match="timesteps"):
            ours.predict([good], steps, [condition])
    text = loaded(tiny_pipelines.pixart(), backend, tools)
    written = text.of_text(latents(0, 3, 32))
    with pytest.raises(ParameterError, match="of_label"):
        ours.predict([good], step, [written])
    with pytest.raises(ParameterError, match="of_text"):
        text.predict([good], step, [condition])
    for label in (7, -1, True, 1.0, "2"):
        with pytest.raises(ParameterError, match="0 to 6"):
            ours.of_label(label)
    assert np.array_equal(ours.of_label(np.int64(3)).vector, ours.of_label(3).vector)
    with pytest.raises(ParameterError, match="reads no text"):
        ours.of_text(latents(0, 3, 32))
    with pytest.raises(ParameterError, match="no classes"):
        text.of_label(1)
    with pytest.raises(ParameterError, match="guidance"):
        text.of_text(latents(0, 3, 32), guidance=2.0)
    for hidden in (latents(0, 3, 31), latents(0, 0, 32), latents(0, 3, 32)[0], latents(0, 3, 32).astype(np.float64)):
        with pytest.raises(ParameterError, match=r"\[tokens, 32\]"):
            text.of_text(hidden)


@pytest.mark.parametrize(("changes", "error", "said"), [
    ({"norm_type": "ada_norm"}, UnsupportedModelError, "norm_type"),
    ({"activation_fn": "mish"}, UnsupportedModelError, "activation_fn.*gelu-approximate"),
    ({"num_embeds_ada_norm": None}, UnsupportedModelError, "without classes"),
    ({"num_embeds_ada_norm": 8}, ModelFileError, r"embedding_table.weight: expected \[9, 48\], found \[8, 48\]"),
    ({"num_layers": 3}, ModelFileError, "missing"),
    ({"num_layers": 1}, ModelFileError, "unexpected"),
    ({"num_layers": 10**6}, ModelFileError, "num_layers"),
    ({"num_layers": True}, ModelFileError, "num_layers"),
    ({"patch_size": 0}, ModelFileError, "patch_size"),
    ({"patch_size": 9}, ModelFileError, "sample_size.*9"),
    ({"patch_size": 4}, ModelFileError, r"proj.weight: expected \[48, 4, 4, 4\], found \[48, 4, 2, 2\]"),
    ({"sample_size": "8"}, ModelFileError, "sample_size"),
    ({"sample_size": 10**9}, ModelFileError, "sample_size"),
    ({"attention_head_dim": 7}, ModelFileError, "multiple of 4.*21"),
    ({"attention_head_dim": 4096}, UnsupportedModelError, "4096"),
    ({"num_attention_heads": 2**24, "attention_head_dim": 2**20}, ModelFileError, "hidden_size"),
    ({"norm_eps": float("nan")}, ModelFileError, "norm_eps"),
    ({"attention_type": "gated"}, UnsupportedModelError, "attention_type"),
    ({"cross_attention_dim": 48}, UnsupportedModelError, "cross_attention_dim"),
    ({"only_cross_attention": True}, UnsupportedModelError, "only_cross_attention"),
    ({"rotary": 3}, UnsupportedModelError, "rotary"),
    ({"_class_name": "FluxTransformer2DModel"}, UnsupportedModelError, "FluxTransformer2DModel.*DiTTransformer2DModel"),
    ({"_class_name": ["DiTTransformer2DModel"]}, ModelFileError, "_class_name"),
    ({"_class_name": "Transformer2DModel", "norm_type": "layer_norm"}, UnsupportedModelError, "ada_norm_zero"),
], ids=str)
def test_configs_that_are_refused(changes, error, said, backend, tools):
    with pytest.raises(error, match=said):
        loaded(tiny_pipelines.dit(), backend, tools, **changes)


@pytest.mark.parametrize(("changes", "error", "said"), [
    ({"cross_attention_dim": None}, UnsupportedModelError, "without cross-attention"),
    ({"cross_attention_dim": 40}, ModelFileError, r"width of the layers \(48\)"),
    ({"norm_type": "ada_norm_zero"}, UnsupportedModelError, "ada_norm_single"),
    ({"interpolation_scale": 0}, ModelFileError, "interpolation_scale"),
    ({"use_additional_conditions": True}, ModelFileError, "resolution_embedder"),
    ({"caption_channels": 33}, ModelFileError, r"caption_projection.linear_1.weight: expected \[48, 33\]"),
], ids=str)
def test_configs_of_pixart_that_are_refused(changes, error, said, backend, tools):
    with pytest.raises(error, match=said):
        loaded(tiny_pipelines.pixart(), backend, tools, **changes)


def test_the_class_that_both_were_part_of(backend, tools):
    """Older checkpoints say Transformer2DModel, and which one it is only by its norms."""
    model = tiny_pipelines.dit()
    older = dict(_class_name="Transformer2DModel", num_vector_embeds=None, cross_attention_dim=None,
                 only_cross_attention=False, use_linear_projection=False, double_self_attention=False)
    first, second = loaded(model, backend, tools, **older), loaded(model, backend, tools)
    assert first.spec == second.spec
    model = tiny_pipelines.pixart()
    older |= dict(cross_attention_dim=48, attention_type="default")
    assert loaded(model, backend, tools, **older).spec == loaded(model, backend, tools).spec


def test_a_weight_that_is_not_a_number(backend, tools):
    model = tiny_pipelines.dit()
    with torch.no_grad():
        model.transformer_blocks[1].norm1.emb.class_embedder.embedding_table.weight[3, 3] = float("nan")
    with pytest.raises(ModelFileError, match=r"embedding_table\.weight holds NaN"):
        loaded(model, backend, tools)
