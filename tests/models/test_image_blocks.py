"""Models that read images, and text towers beside them: recorded programs against the plain NumPy meaning of their
spec, and the same bits whatever the company, the threads and the instructions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from few import few
from forwardpass.contracts import Hidden, Packed
from forwardpass.models.rotary import rotary
from forwardpass.models.spec import (
    AttentionPoolSpec,
    AttentionSpec,
    HeadSpec,
    LayerSpec,
    MlpSpec,
    ModelSpec,
    NormSpec,
    PatchesSpec,
)
from forwardpass.stages import decode, embed, project
from kernel_tools import ISAS
from numpy_model import numpy_head, numpy_hidden, numpy_image, random_weights
from program_tools import network, tokens

RMS, LAYER, BIASED = NormSpec("rms", 1e-6), NormSpec("layer", 1e-5), NormSpec("layer", 1e-5, bias=True)
VIT = LayerSpec(BIASED, AttentionSpec(6, 6, 10, 10**-0.5, qkv_bias=True, out_bias=True, causal=False), BIASED,
                MlpSpec("plain", 52, "gelu_erf", bias=True))
MODERN = LayerSpec(LAYER, AttentionSpec(6, 2, 10, 10**-0.5, rotary(10, 1e4), causal=False), LAYER,
                   MlpSpec("gated", 36, "gelu_tanh"))
NONE = HeadSpec("none")
SCALE, BARE = NormSpec("scale", 0.0), NormSpec("layer", 1e-5, weight=False)
PATCHES = PatchesSpec(3, 2, (9, 12), classes=1, resize="bicubic")
POOL = AttentionPoolSpec(4, 20, "gelu_tanh", BIASED)


def model(*layers, patches=PATCHES, **changes):
    return ModelSpec("test", 28, 0, 512, layers or (VIT, VIT), changes.pop("final_norm", LAYER), False,
                     head=changes.pop("head", NONE), patches=patches, **changes).check()


def patched(*layers, changes, **more):
    return model(*layers, patches=replace(PATCHES, **changes), **more)


def vector(pool, outputs=0, **changes):
    return HeadSpec("vector", outputs, pool, **changes)


IMAGES = {
    "a class token": model(),
    "registers": patched(changes=dict(registers=3, resize="antialiased", bias=False)),
    "no first rows": patched(changes=dict(classes=0), final_norm=None, embed_norm=BIASED),
    "no positions": patched(changes=dict(positions="none", resize="", classes=2)),
    "scales and bare norms": model(replace(VIT, attention_norm=BARE, post_attention_norm=SCALE, post_mlp_norm=SCALE),
                                   replace(MODERN, post_mlp_norm=replace(SCALE, bias=True)), final_norm=BARE),
    "labels of the first": model(head=HeadSpec("labels", 3, "first", norm=BIASED), head_bias=True),
    "labels of the patches": patched(changes=dict(registers=2), head=HeadSpec("labels", 3, "patches", 14)),
    "labels of both": patched(changes=dict(registers=1), head=HeadSpec("labels", 3, "first+patches", norm=None)),
    "two heads": patched(changes=dict(classes=2), head=HeadSpec("labels", 5, "both"), head_bias=True),
    "a vector": model(head=vector("first", 6, norm=RMS)),
    "a row": model(head=vector("mean", norm=BIASED), final_norm=None),
    "attention": model(head=vector("attention", attention=POOL)),
    "attention, then a product": model(head=vector("attention", 9, attention=replace(POOL, num_heads=1)),
                                       head_bias=True),
}
SIZES = [(9, 12), (3, 3), (14, 10), (4, 12), (30, 6)]


def pixels(height, width, channels=2):
    return np.random.default_rng(height * 100 + width).standard_normal((height, width, channels)).astype(np.float32)


def packed(spec, images):
    counts = [spec.patches.rows(*one.shape[:2]) for one in images]
    starts = np.cumsum([0, *counts]).astype(np.int32)
    positions = np.concatenate([np.arange(count) for count in counts]).astype(np.int32)
    return Packed(np.zeros(starts[-1], np.int32), positions, starts, None, tuple(images))


def seen(net, images):
    """(hidden states, what the head makes of each image or None) of images side by side."""
    hidden = decode.decode(net, embed.embed(net, packed(net.spec, images)))
    if net.spec.head.task == "none":
        return hidden.values, None
    return hidden.values, (project.label_scores if net.spec.head.task == "labels" else project.vectors)(net, hidden)


@pytest.mark.parametrize("case", IMAGES)
def test_images_mean_what_the_spec_says(case):
    spec = IMAGES[case]
    weights = random_weights(spec)
    net, images = network(spec, weights), [pixels(*size) for size in SIZES]
    rows, answers = seen(net, images)
    exact = [numpy_image(spec, weights, one) for one in images]
    assert np.abs(rows - np.concatenate(exact)).max() <= 2e-5 * max(np.abs(one).max() for one in exact)
    for i, one in enumerate(exact if answers is not None else ()):
        wanted = numpy_head(spec, weights, one)
        assert answers[i].shape == wanted.shape and np.abs(answers[i] - wanted).max() <= 2e-5 * np.abs(wanted).max()


def random_spec(seed):
    """Fields that may stand together, drawn at random."""
    rng = np.random.default_rng(seed)

    def one(*values):
        return values[rng.integers(len(values))]

    pool = one("first", "mean", "patches", "first+patches", "both", "attention", "last")
    classes = 2 if pool == "both" else int(rng.integers(3))
    positions = one("learned", "none")
    resize = one("bicubic", "antialiased") if positions == "learned" else ""
    patches = PatchesSpec(one(1, 2, 5), one(1, 3, 4), (int(rng.integers(10, 16)), int(rng.integers(10, 16))), classes,
                          int(rng.integers(3)), positions, resize, bool(rng.integers(2)))
    norm, branch = one(RMS, LAYER, BIASED, BARE, None), one(None, SCALE, LAYER)
    layer = replace(one(VIT, MODERN), attention_norm=norm, post_attention_norm=branch, post_mlp_norm=branch)
    task = "labels" if pool == "both" else one("labels", "vector")
    dense = 0 if pool == "both" else one(0, 11)
    outputs = int(rng.integers(1, 5)) if task == "labels" or dense else int(rng.integers(5))
    head = HeadSpec(task, outputs, pool, dense, norm=None if pool == "both" else one(None, BIASED),
                    attention=POOL if pool == "attention" else None)
    return model(layer, VIT, patches=patches, head=head, final_norm=one(None, LAYER), embed_norm=one(None, BIASED),
                 head_bias=bool(rng.integers(2)) and outputs > 0)


@pytest.mark.parametrize("seed", few(range(40), *range(0, 40, 5)))
def test_any_fields_together(seed):
    spec = random_spec(seed)
    weights, channels = random_weights(spec), spec.patches.channels
    images = [pixels(*size, channels) for size in (spec.patches.image, (5, 9))]
    rows, answers = seen(network(spec, weights), images)
    exact = [numpy_image(spec, weights, one) for one in images]
    assert np.abs(rows - np.concatenate(exact)).max() <= 5e-5 * max(np.abs(one).max() for one in exact)
    for found, one in zip(answers, exact, strict=True):
        wanted = numpy_head(spec, weights, one)
        assert found.shape == wanted.shape and np.abs(found - wanted).max() <= 5e-5 * np.abs(wanted).max()


@pytest.mark.parametrize("case", ["registers", "scales and bare norms", "labels of both", "attention"])
def test_an_image_is_the_same_alone_and_in_company(case):
    """And with another number of threads, other instructions, and whatever it was beside."""
    spec = IMAGES[case]
    weights, images = random_weights(spec), [pixels(*size) for size in SIZES]
    one = network(spec, weights)
    alone = [seen(one, [image]) for image in images]
    for threads, isa in [(1, None), *[(2, isa) for isa in ISAS]]:
        rows, answers = seen(network(spec, weights, threads, isa=isa), images)
        assert np.array_equal(rows, np.concatenate([first for first, _ in alone])), isa
        assert answers is None or np.array_equal(answers, np.concatenate([second for _, second in alone])), isa
    rows, _ = seen(one, images[::-1])
    assert np.array_equal(rows, np.concatenate([first for first, _ in alone[::-1]]))


TEXTS = {
    "end": HeadSpec("vector", 6, "end", end=7),
    "greatest": HeadSpec("vector", 0, "greatest", norm=BIASED),
}


@pytest.mark.parametrize("pool", TEXTS)
def test_texts_that_look_back_and_are_read_whole(pool):
    """CLIP's: nothing is cached, every token sees those before it, and a text is the same alone and beside others."""
    layer = replace(VIT, attention=replace(VIT.attention, causal=True))
    spec = ModelSpec("test", 28, 50, 128, (layer, replace(MODERN, attention=replace(MODERN.attention, causal=True))),
                     LAYER, False, learned_positions=128, head=TEXTS[pool], whole=True).check()
    weights, texts = random_weights(spec), [tokens(count, count) for count in (70, 3, 128, 1)]
    for ids in texts:
        ids[len(ids) // 2] = 49 if pool == "greatest" else 7
        ids[len(ids) // 2 + 1 :: 2] = ids[len(ids) // 2]
    alone = []
    net = network(spec, weights)
    assert not net.groups
    for ids in texts:
        rows, answers = read(net, [ids])
        exact = numpy_hidden(spec, weights, ids)
        assert np.abs(rows - exact).max() <= 2e-5 * np.abs(exact).max()
        wanted = numpy_head(spec, weights, exact, ids.tolist())
        assert np.abs(answers[0] - wanted).max() <= 2e-5 * np.abs(wanted).max()
        alone.append((rows, answers))
    for isa in ISAS:
        rows, answers = read(network(spec, weights, 2, isa=isa), texts)
        assert np.array_equal(rows, np.concatenate([first for first, _ in alone])), isa
        assert np.array_equal(answers, np.concatenate([second for _, second in alone])), isa


def read(net, texts):
    starts = np.cumsum([0, *map(len, texts)]).astype(np.int32)
    positions = np.concatenate([np.arange(len(ids)) for ids in texts]).astype(np.int32)
    hidden = decode.decode(net, embed.embed(net, Packed(np.concatenate(texts).astype(np.int32), positions, starts)))
    return hidden.values, project.vectors(net, hidden)


def test_a_text_without_an_end_is_read_off_its_first_token():
    spec = ModelSpec("test", 4, 50, 128, (VIT,), None, False, head=TEXTS["end"], whole=False)
    hidden = Hidden(np.arange(20, dtype=np.float32).reshape(5, 4),
                    Packed(np.array([3, 7, 7, 4, 5]), np.arange(5), np.array([0, 3, 5])))
    rows = project.pooled(type("Net", (), {"spec": spec})(), hidden)
    assert rows.tolist() == [[4, 5, 6, 7], [12, 13, 14, 15]]
