"""What a result is accompanied by: warnings, or values for those who ask for them."""

import asyncio
import threading
import warnings

import numpy as np
import pytest

import forwardpass
import tiny_readers
from forwardpass.tasks.notices import collected, notice
from tiny_readers import some_words


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A directory that does not say how vectors are made."""
    folder = tiny_readers.save(tiny_readers.make("labels"), tmp_path_factory.mktemp("notices"))
    with forwardpass.load(folder, dtype="float32") as loaded:
        yield loaded


def test_a_notice_is_a_warning_of_the_callers_line():
    with pytest.warns(UserWarning, match="seven") as told:
        notice("seven")
    assert told[0].filename == __file__


def test_collected_notices_are_no_warnings(model):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with collected() as found:
            model.classify(some_words(60))
            with collected() as inner:
                model.classify([some_words(70), "w1"])
            model.embed("w1")
            model.embed("w1")
    assert len(found) == 3 and len(inner) == 1
    assert "longer than 40 tokens" in found[0] and "1 of 2 texts" in inner[0]
    assert found[1] == found[2] and "1_Pooling" in found[1]  # each time: each may be another user's
    with pytest.warns(UserWarning, match="1_Pooling"):  # and nobody has been warned yet
        model.embed("w1")


def test_neighbours_do_not_hear_of_it(model):
    """Threads and tasks at the same time, each with texts of its own length."""
    def cut(words):
        with collected() as found:
            for _ in range(5):
                model.classify(some_words(words))
        return found

    async def several():
        with collected() as mine:
            found = await asyncio.gather(*(asyncio.to_thread(cut, words) for words in (50, 3, 60)))
            await asyncio.to_thread(model.classify, some_words(45))  # inherits the context
        return found, mine

    others = []
    thread = threading.Thread(target=lambda: others.append(cut(70)))
    thread.start()
    (first, second, third), mine = asyncio.run(several())
    thread.join()
    for found, count, left in ((first, 5, 12), (second, 0, 0), (third, 5, 22), (others[0], 5, 32), (mine, 1, 7)):
        assert len(found) == count and all(f" {left} tokens left out" in one for one in found)
    assert np.isfinite(model.classify("w1")[0][0][1])
