"""Cancelled, closed, dropped or interrupted at any moment: nothing stays behind, and nobody else notices."""

import gc

import pytest

from forwardpass.errors import ForwardpassError
from forwardpass.tasks.stream import Stream
from script_lm import alone, idle, make, mixed, start, usable


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_cancel_at_any_time(steps):
    engine = make()
    request, other = start(engine, [1] * 600), start(engine, [2])
    for _ in range(steps):
        engine.step()
    engine.cancel(request)
    engine.cancel(request)
    (done,) = request.completions()
    assert done.finish_reason == "cancelled" and len(done.token_ids) <= steps
    engine.run([other])
    assert [other.completions()[0].token_ids] == alone([2]) and usable(engine)


@pytest.mark.parametrize("how", ["close", "with", "del", "cycle", "unstarted"])
def test_an_abandoned_stream_frees_its_blocks(how):
    engine = make()
    stream = Stream(engine, start(engine, [1] * 100, max_new_tokens=1000))
    if how != "unstarted":
        assert next(stream).token_id == mixed([1] * 100)
    if how == "close":
        stream.close()
        assert list(stream) == [] and stream.completion.finish_reason == "cancelled"
    elif how == "with":
        with pytest.raises(KeyError), stream:
            raise KeyError
    elif how == "cycle":
        stream.myself = stream
        del stream
        gc.collect()
    else:
        del stream
    assert idle(engine)


def test_stream_pieces_are_the_answer():
    engine = make()
    stream = Stream(engine, start(engine))
    pieces = list(stream)
    assert [p.token_id for p in pieces] == alone([1, 2, 3])[0]
    assert "".join(p.text for p in pieces) == stream.completion.text and stream.completion.finish_reason == "length"


def test_a_completion_is_a_picture_of_its_moment():
    engine = make()
    stream = Stream(engine, start(engine, logprobs=1))
    next(stream)
    early = stream.completion
    list(stream)
    assert (len(early.token_ids), len(early.logprobs), len(early.top_logprobs)) == (1, 1, 1)


@pytest.mark.parametrize("leave", ["close", "collect"])
def test_streams_may_be_left_in_the_middle_of_a_step(leave):
    """The garbage collector may end any stream while this very thread computes a step that it is part of."""
    engine = make()
    streams = [Stream(engine, start(engine, [i] * 70, max_new_tokens=500)) for i in range(3)]
    kept = start(engine, [9])
    assert all([next(stream) for stream in streams])

    def drop():
        while streams:
            stream = streams.pop()
            stream.close() if leave == "close" else None
            del stream

    engine.network.before = drop
    engine.step()
    engine.network.before = lambda: None
    assert len(engine._jobs) == 1
    engine.run([kept])
    assert [kept.completions()[0].token_ids] == alone([9]) and usable(engine)


def test_interrupt_in_a_step_leaves_every_request_as_it_was():
    engine = make()
    mine, other = start(engine, [1] * 600), start(engine, [2])
    for after in (0, 1, 3):
        for _ in range(after):
            engine.step()
        engine.network.before = interrupt
        with pytest.raises(KeyboardInterrupt):
            engine.step()
        engine.network.before = lambda: None
    engine.run([mine, other])
    assert [mine.completions()[0].token_ids, other.completions()[0].token_ids] == [alone([1] * 600)[0], alone([2])[0]]
    assert usable(engine)


def interrupt():
    raise KeyboardInterrupt


def test_interrupted_run_cancels_its_requests():
    engine = make()
    mine, other = start(engine, [1]), start(engine, [2])
    engine.network.before = interrupt
    with pytest.raises(KeyboardInterrupt):
        engine.run([mine])
    engine.network.before = lambda: None
    engine.run([other])
    assert mine.done and [other.completions()[0].token_ids] == alone([2]) and usable(engine)


def test_interrupt_inside_a_logits_processor():
    def processor(ids, row):
        if len(ids) == 6:
            raise KeyboardInterrupt
        return row

    engine = make()
    others = [start(engine, [2]), start(engine, [1, 2, 3], logits_processors=[processor]), start(engine, [3])]
    with pytest.raises(KeyboardInterrupt):
        engine.run([others.pop(1)])
    engine.run(others)
    assert [r.completions()[0].token_ids for r in others] == [alone([2])[0], alone([3])[0]] and usable(engine)


def test_whose_token_was_interrupted_by_another_thread_is_told():
    """Somebody else's processor was running when the interrupt came: that request cannot go on, nor wait for ever."""
    def processor(ids, row):
        raise KeyboardInterrupt

    engine = make()
    theirs, mine = start(engine, [1], logits_processors=[processor]), start(engine, [2])
    with pytest.raises(KeyboardInterrupt):
        engine.run([mine])
    with pytest.raises(ForwardpassError, match="interrupted"):
        engine.run([theirs])
    assert usable(engine)
