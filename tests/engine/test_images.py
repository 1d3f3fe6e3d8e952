"""Images in the engine: what is asked of a model that sees is checked first, then read whole, like texts."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import forwardpass
import tiny_vision
from forwardpass.contracts import EncoderImage, EncoderText, Packed
from forwardpass.errors import CapacityError, ContextLengthError, DeadlineError, ParameterError, UnsupportedModelError
from forwardpass.scheduler.limits import TokensInFlight
from forwardpass.scheduler.terms import Terms
from forwardpass.stages.embed import embed

GOOD = np.zeros((32, 32, 3), np.float32)


@pytest.fixture(scope="module")
def vit(tmp_path_factory):
    folder = tiny_vision.save(tiny_vision.make(*tiny_vision.CASES["vit-labels"]), tmp_path_factory.mktemp("vit"))
    with forwardpass.load(folder, dtype="float32", threads=2) as model:
        yield model


def each(hidden):
    rows = zip(hidden.packed.starts, hidden.packed.starts[1:], strict=False)
    return [hidden.values[start:end].copy() for start, end in rows]


def packed_image(*starts):
    """One image of 17 rows, said to be other ones."""
    rows = np.arange(17, dtype=np.int32)
    return Packed(np.zeros(17, np.int32), rows, np.array(starts, np.int32), None, (GOOD,))


def read(model, pixels):
    return model.engine.encode([EncoderImage(one) for one in pixels], each)


def test_many_images_of_many_sizes(vit):
    """More than a step takes, from several threads; each as if it were alone."""
    sizes = [(8 * (1 + i % 7), 8 * (1 + i % 11)) for i in range(40)]
    pixels = tiny_vision.images(sizes)
    alone = [read(vit, [one])[0] for one in pixels[:11]]
    found, steps = {}, vit.engine.steps
    threads = [threading.Thread(target=lambda i=i: found.update({i: read(vit, pixels)})) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for answers in found.values():
        assert [len(one) for one in answers] == [1 + h * w // 64 for h, w in sizes]
        assert all(np.array_equal(one, other) for one, other in zip(answers, alone, strict=False))
    assert vit.engine.steps - steps < 80


@pytest.mark.parametrize(("pixels", "error", "message"), [
    (GOOD[..., 0], ParameterError, r"image 1: expected float32 \[height, width, 3\], found float32 \[32, 32\]"),
    (np.zeros((32, 32, 4), np.float32), ParameterError, r"\[32, 32, 4\]"),
    (np.zeros((3, 32, 32), np.float32), ParameterError, r"found float32 \[3, 32, 32\]"),
    (np.full((32, 32, 3), "x"), ParameterError, "expected float32"),
    (GOOD.astype(complex), ParameterError, "complex"),
    (None, ParameterError, "expected float32"),
    (GOOD[:7], ParameterError, "7 x 32 pixels; the model reads squares of 8: enlarge it"),
    (GOOD[:0], ParameterError, "0 x 32 pixels"),
    (np.zeros((2048, 2048, 3), np.float32), ContextLengthError, "65537 rows; the model reads at most 16384"),
    (np.where(np.arange(32)[:, None, None] == 5, np.nan, GOOD), ParameterError, "NaN or infinite"),
    (np.full((32, 32, 3), np.inf), ParameterError, "NaN or infinite"),
])
def test_what_is_no_image_is_refused_before_a_step(vit, pixels, error, message):
    steps = vit.engine.steps
    with pytest.raises(error, match=message):
        vit.engine.encode([EncoderImage(GOOD), EncoderImage(pixels)], each)
    with pytest.raises(error, match=r"^cat\.png"):
        vit.engine.encode([EncoderImage(pixels, "cat.png")], each)
    assert vit.engine.steps == steps


def test_kinds_of_numbers(vit):
    """Whole numbers and float64 are taken as float32; the caller's array is not written to."""
    pixels = np.arange(32 * 32 * 3).reshape(32, 32, 3) % 7
    kept = pixels.copy()
    assert np.array_equal(read(vit, [pixels])[0], read(vit, [pixels.astype(np.float64)[::1]])[0])
    assert np.array_equal(read(vit, [pixels[::-1, ::-1]])[0], read(vit, [pixels[::-1, ::-1].astype(np.float32)])[0])
    assert np.array_equal(pixels, kept)


def test_texts_and_images_are_told_apart(vit):
    with pytest.raises(UnsupportedModelError, match="reads images, not texts"):
        vit.engine.encode([EncoderText([1, 2])], each)
    with pytest.raises(ParameterError, match="two calls"):
        vit.engine.encode([EncoderText([1, 2]), EncoderImage(GOOD)], each)
    with pytest.raises(UnsupportedModelError):
        vit.generate("a")
    assert vit.engine.encode([], each) == []


def test_a_model_of_texts_says_that_it_does_not_see(tmp_path):
    import tiny_encoders

    with forwardpass.load(tiny_encoders.save(tiny_encoders.make("bert", "none"), tmp_path)) as model:
        with pytest.raises(UnsupportedModelError, match="reads texts, not images"):
            model.engine.encode([EncoderImage(GOOD)], each)
        with pytest.raises(ParameterError, match="this model reads tokens"):
            embed(model.network, packed_image(0, 17))


def test_terms_hold_for_images(vit):
    """Deadlines, cancellation and accounts, as for texts: an image counts as the rows that it becomes."""
    account = TokensInFlight(40)
    with Terms(account=account) as terms:
        assert len(read(vit, [GOOD, GOOD])) == 2
    assert terms.tokens_read == 34
    with pytest.raises(CapacityError), Terms(account=account):
        read(vit, [GOOD] * 3)
    with pytest.raises(DeadlineError), Terms(deadline=0.0):
        read(vit, [GOOD])
    with Terms() as terms:
        terms.cancel("not wanted")
        with pytest.raises(forwardpass.ForwardpassError, match="not wanted"):
            read(vit, [GOOD])
    assert not vit.engine.busy


def test_rows_that_do_not_fit_their_images(vit):
    for starts in ([0, 16], [0, 9, 17]):
        packed = packed_image(*starts)
        with pytest.raises(ParameterError, match="images become"):
            embed(vit.network, packed)
    with pytest.raises(ParameterError, match="this model reads images"):
        embed(vit.network, Packed(np.zeros(3, np.int32), np.arange(3, dtype=np.int32), np.array([0, 3], np.int32)))


def test_an_error_in_what_reads_harms_nobody(vit):
    def fails(hidden):
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        vit.engine.encode([EncoderImage(GOOD)], fails)
    assert read(vit, [GOOD])[0].shape == (17, 48) and not vit.engine.busy


def test_what_other_tasks_say(vit):
    with pytest.raises(UnsupportedModelError, match="hidden_states, which needs a model that reads texts"):
        vit.hidden_states([1, 2])
    with pytest.raises(UnsupportedModelError):
        vit.logits([1, 2])
