"""On what terms something is asked: limits, deadlines, cancellation, and what is counted."""

import asyncio
import contextvars
import threading
import time

import numpy as np
import pytest

from driver_tools import driven
from forwardpass.errors import BusyError, CapacityError, DeadlineError, ForwardpassError, ParameterError
from forwardpass.scheduler.limits import TokensInFlight
from forwardpass.scheduler.terms import TERMS, Terms
from script_lm import alone, each, encoder, idle, make, start, texts

# ---- accounts


def test_an_account_refuses_what_is_too_much_now_and_what_always_will_be():
    account = TokensInFlight(100, name="ann")
    account.take(60)
    with pytest.raises(BusyError, match=r"ann's limit of 100 tokens in flight is reached: 60 are, .* 41") as busy:
        account.take(41)
    assert busy.value.own is False and busy.value.retry_after > 0
    with pytest.raises(CapacityError, match=r"101 tokens.* is 100"):
        account.take(101)
    account.take(40)
    account.take(500, force=True)
    assert account.taken == 600
    for tokens in (500, 40, 60):
        account.give_back(tokens)
    assert account.taken == 0


def test_whose_limit_it_is():
    everybody = TokensInFlight(100)
    ann, bob = TokensInFlight(70, everybody, "ann"), TokensInFlight(None, everybody, "bob")
    ann.take(60)
    with pytest.raises(BusyError) as busy:
        ann.take(20)
    assert busy.value.own
    with pytest.raises(BusyError, match="the engine's limit") as busy:
        bob.take(50)
    assert not busy.value.own and (ann.taken, bob.taken, everybody.taken) == (60, 0, 60)
    bob.take(40)
    ann.give_back(60)
    assert (ann.taken, bob.taken, everybody.taken) == (0, 40, 40)


def test_retry_after_follows_how_fast_tokens_come_back(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("forwardpass.scheduler.limits.perf_counter", lambda: now[0])
    account = TokensInFlight(1000)
    account.take(1000)
    for _ in range(10):  # 10 tokens a second
        now[0] += 1
        account.give_back(10)
        account.take(10)
    with pytest.raises(BusyError) as busy:
        account.take(50)
    assert 4 < busy.value.retry_after < 6 and f"{busy.value.retry_after:.0f} s" in str(busy.value)
    with pytest.raises(BusyError) as busy:
        account.take(1000)
    assert busy.value.retry_after == 60


@pytest.mark.parametrize("limit", [0, -1, 1.5, True, "5"])
def test_what_is_no_limit(limit):
    with pytest.raises(ParameterError, match="whole number"):
        TokensInFlight(limit)


def test_an_account_used_by_many_threads_stays_right():
    above = TokensInFlight(300)
    accounts = [TokensInFlight(120, above) for _ in range(4)]
    most = []

    def use(account):
        for _ in range(300):
            try:
                account.take(50)
            except BusyError:
                continue
            most.append((account.taken, above.taken))
            account.give_back(50)

    threads = [threading.Thread(target=use, args=(accounts[i % 4],)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(one for one, _ in most) <= 120 and max(all_ for _, all_ in most) <= 300 and most
    assert above.taken == 0 and all(account.taken == 0 for account in accounts)


# ---- terms of a context


def test_terms_are_those_of_the_context():
    outer, inner = Terms(priority=3), Terms(key="k")
    assert TERMS.get() is None
    with outer:
        with inner, outer, inner:
            assert TERMS.get() is inner
        assert TERMS.get() is outer
        kept = contextvars.copy_context()
    assert TERMS.get() is None and kept.run(TERMS.get) is outer


def test_several_threads_and_tasks_may_be_inside_the_same_terms():
    terms, seen = Terms(), []
    inside = threading.Barrier(3)

    def enter():
        with terms:
            inside.wait(10)
            seen.append(TERMS.get())
        seen.append(TERMS.get())

    threads = [threading.Thread(target=enter) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert seen.count(terms) == 3 and seen.count(None) == 3

    async def task():
        with terms:
            await asyncio.sleep(0)
            return TERMS.get(), await asyncio.to_thread(TERMS.get)

    async def main():
        return await asyncio.gather(task(), task()), TERMS.get()

    assert asyncio.run(main()) == ([(terms, terms)] * 2, None)


def test_an_engine_asks_on_the_terms_of_its_caller():
    engine = make()
    with Terms(priority=-2, key="ann", salt="s") as terms:
        request = start(engine, max_new_tokens=2)
    other = start(engine, max_new_tokens=2)
    assert request.terms is terms and other.terms is not terms and other.terms.priority == 0
    engine.run([request, other])
    assert idle(engine)


# ---- what is counted


def test_tokens_read_and_generated_are_counted_at_the_end():
    engine, reader, pair = make(), encoder(), make(pair=True)
    whole = Terms()
    with whole:
        first = start(engine, range(9), max_new_tokens=5)
        engine.step()
        assert (whole.tokens_read, whole.tokens_generated) == (0, 0)
        engine.run([first])
        assert (whole.tokens_read, whole.tokens_generated) == (9, 5)
        engine.run([start(engine, range(9), max_new_tokens=4, num_return_sequences=3, do_sample=True, seed=1)])
        assert (whole.tokens_read, whole.tokens_generated) == (18, 5 + 12)
        reader.encode(texts([1] * 40, [2] * 2), each)
        assert whole.tokens_read == 18 + 42
        pair.run([start(pair, [0], [7] * 11, max_new_tokens=3)])  # what the encoder reads counts, not how answers begin
        assert (whole.tokens_read, whole.tokens_generated) == (18 + 42 + 11, 17 + 3)
        engine.forward([1] * 30, lambda first, rows: None)
        assert whole.tokens_read == 71 + 30
    assert idle(engine) and idle(pair)


def test_what_was_cancelled_counts_as_far_as_it_came():
    engine = make()
    with Terms() as terms:
        request = start(engine, [1] * 5)
        waits = start(engine, [2] * 7)
    engine.cancel(waits)
    for _ in range(4):
        engine.step()
    engine.cancel(request)
    assert (terms.tokens_read, terms.tokens_generated) == (5, 4) and idle(engine)


@pytest.mark.parametrize("given, tokens", [
    ({}, 6 + 20), ({"max_new_tokens": 3}, 9), ({"num_return_sequences": 4, "do_sample": True, "seed": 0}, 6 + 80),
    ({"num_beams": 5, "num_return_sequences": 2, "max_new_tokens": 7}, 6 + 35),
])
def test_tokens_that_a_request_may_come_to(given, tokens):
    engine = make()
    account = TokensInFlight(None)
    with Terms(account=account):
        request = start(engine, range(6), **given)
    assert account.taken == request.tokens == tokens
    engine.run([request])
    assert account.taken == 0 and idle(engine)


def test_only_the_first_of_a_call_is_refused():
    engine, account = make(), TokensInFlight(30)
    with Terms(account=account):
        requests = [start(engine, range(6), max_new_tokens=20) for _ in range(3)]
        assert account.taken == 78
        with Terms(account=account), pytest.raises(BusyError):
            start(engine, [1], max_new_tokens=1)
        engine.run(requests)
    with Terms(account=account):
        engine.run([start(engine, [1], max_new_tokens=1)])
    assert account.taken == 0 and idle(engine)


# ---- parts


def test_a_part_is_cancelled_by_itself_and_with_the_whole():
    engine = make()
    whole = Terms(priority=4, deadline=time.perf_counter() + 1000, key="k", salt="s", account=TokensInFlight(500))
    one, two = whole.part(), whole.part()
    assert (one.priority, one.deadline, one.key, one.salt, one.account) == (4, whole.deadline, "k", "s", whole.account)
    requests = []
    for terms in (one, two, whole):
        with terms:
            requests.append(start(engine, [1], max_new_tokens=60))
    one.cancel("not any more")
    assert one.cancelled and not whole.cancelled and not two.cancelled
    with pytest.raises(ForwardpassError, match="not any more"):
        engine.run(requests[:1])
    assert not requests[1].done
    whole.cancel()
    assert two.cancelled
    for request in requests[1:]:
        with pytest.raises(ForwardpassError, match="cancelled"):
            engine.run([request])
    with two, pytest.raises(ForwardpassError, match="cancelled"):
        start(engine)
    assert whole.account.taken == 0 and idle(engine)


def test_a_part_counts_for_the_whole():
    engine = make()
    whole = Terms(account=TokensInFlight(40))
    for _ in range(2):
        with whole.part() as part:
            engine.run([start(engine, [1, 2], max_new_tokens=3)])
        assert (part.tokens_read, part.tokens_generated) == (2, 3)
    assert (whole.tokens_read, whole.tokens_generated) == (4, 6)
    with whole.part():
        first = start(engine, [1] * 20, max_new_tokens=10)
    with whole.part(), pytest.raises(BusyError):  # each part is a call of its own
        start(engine, [1] * 20, max_new_tokens=10)
    engine.run([first])
    assert idle(engine)


# ---- cancelled, and late


def test_terms_cancelled_before_anything_was_asked():
    engine, reader = make(), encoder()
    terms = Terms(account=TokensInFlight(10**6))
    terms.cancel("gone")
    terms.cancel("later")
    with terms:
        for call in (lambda: start(engine), lambda: reader.encode(texts([1]), each),
                     lambda: engine.forward([1], lambda *_: None)):
            with pytest.raises(ForwardpassError, match="gone"):
                call()
    assert terms.account.taken == 0 and idle(engine) and idle(reader)


def test_terms_cancelled_while_another_thread_reads():
    reader, account = encoder(), TokensInFlight(10**6)
    terms = Terms(account=account)
    reader.network.before = terms.cancel
    with terms, pytest.raises(ForwardpassError, match="cancelled"):
        reader.encode(texts(*([i] * 400 for i in range(8))), each)
    assert len(reader.network.read) <= 1 and account.taken == 0 and idle(reader)


def test_half_computed_texts_of_cancelled_terms_serve_the_next():
    """Cancelling is no failure: what was computed is kept."""
    engine = make()
    with driven(engine):
        with Terms() as terms:
            request = start(engine, [1] * 100, max_new_tokens=1000)
        while not request.pieces:
            time.sleep(0.001)
        terms.cancel()
        with pytest.raises(ForwardpassError):
            engine.run([request])
        (done,) = request.completions()
        assert done.finish_reason == "cancelled" and done.token_ids == alone([1] * 100, max_new_tokens=1000)[0][
            : len(done.token_ids)]
        again = start(engine, [1] * 100, max_new_tokens=5)
        engine.run([again])
        assert [again.completions()[0].token_ids] == alone([1] * 100, max_new_tokens=5) and idle(engine)
        assert engine.stats().ended == {"cancelled": 1, "done": 1}


def test_a_deadline_that_has_passed_is_refused_at_once():
    engine, account = make(), TokensInFlight(100)
    with Terms(deadline=time.perf_counter(), account=account), pytest.raises(DeadlineError, match="allow more time"):
        start(engine)
    assert account.taken == 0 and not engine.busy


def test_a_reading_that_is_late(monkeypatch):
    reader, now = encoder(), [0.0]
    for module in ("jobs", "terms"):
        monkeypatch.setattr(f"forwardpass.scheduler.{module}.perf_counter", lambda: now[0])
    reader.network.before = lambda: now.__setitem__(0, now[0] + 1.0)
    with Terms(deadline=4.5) as terms, pytest.raises(DeadlineError):
        reader.encode(texts(*(np.full(400, i) for i in range(30))), each)
    assert terms.tokens_read == 5 * 400 and idle(reader)
