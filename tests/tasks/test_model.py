"""`Model` as its users know it: answers, order, streams, chats, scores, and what they are told about mistakes."""

import gc
import math
import threading
import warnings
import weakref

import numpy as np
import pytest

import forwardpass
from forwardpass import (
    ContextLengthError,
    ParameterError,
    TemplateError,
    UnsupportedModelError,
)

NEW = {"max_new_tokens": 6, "eos_token_id": []}
HELLO = [{"role": "user", "content": "What is a llama?"}]


def ids(model, text):
    return model.tokenizer.encode(text, add_special_tokens=True, parse_special=True)


def greedy(model, prompt, count):
    """The same answer from logits() alone."""
    text = list(prompt)
    for _ in range(count):
        text.append(int(model.logits(text)[-1][: model.tokenizer.vocab_size].argmax()))
    return text[len(prompt) :]


# ---- answers


def test_one_prompt_one_completion(tiny):
    done = tiny.generate("hello", **NEW)
    assert done.prompt_token_ids == ids(tiny, "hello") and done.finish_reason == "length"
    assert done.token_ids == greedy(tiny, done.prompt_token_ids, 6)
    assert done.text == tiny.tokenizer.decode(done.token_ids) and (done.prompt_index, done.choice_index) == (0, 0)
    assert done.logprobs is None and done.score is None


@pytest.mark.parametrize("make", [list, tuple, np.array])
def test_token_ids_as_a_prompt(tiny, make):
    done = tiny.generate(make([1, 2, 3]), **NEW)
    assert done.prompt_token_ids == [1, 2, 3] and done.token_ids == greedy(tiny, [1, 2, 3], 6)


def test_a_list_gives_a_flat_list_in_order(tiny):
    prompts = ["a", [5, 6, 7], "a longer one", np.array([9])]
    done = tiny.generate(prompts, num_return_sequences=3, do_sample=True, seed=4, **NEW)
    assert [(one.prompt_index, one.choice_index) for one in done] == [(p, c) for p in range(4) for c in range(3)]
    for i, prompt in enumerate(prompts):
        alone = tiny.generate(prompt, num_return_sequences=3, do_sample=True, seed=4, **NEW)
        assert [one.token_ids for one in done[3 * i : 3 * i + 3]] == [one.token_ids for one in alone]


def test_a_list_of_one_is_a_list(tiny):
    (done,) = tiny.generate(["a"], **NEW)
    assert done.token_ids == tiny.generate("a", **NEW).token_ids


def test_stream_pieces_are_the_answer(tiny):
    whole = tiny.generate("hello", logprobs=2, **NEW)
    with tiny.stream("hello", logprobs=2, **NEW) as stream:
        pieces = list(stream)
    assert "".join(p.text for p in pieces) == whole.text == stream.completion.text
    assert [p.token_id for p in pieces] == whole.token_ids and [p.logprob for p in pieces] == whole.logprobs
    assert stream.completion.finish_reason == "length"


def test_logprobs_are_those_of_the_raw_logits(tiny):
    done = tiny.generate("hello", logprobs=3, temperature=0.5, do_sample=True, top_k=5, seed=1, **NEW)
    rows = tiny.logits(done.prompt_token_ids + done.token_ids)[len(done.prompt_token_ids) - 1 :].astype(np.float64)
    for row, token, logprob, top in zip(rows[:-1], done.token_ids, done.logprobs, done.top_logprobs, strict=True):
        expected = row - row.max() - math.log(np.exp(row - row.max()).sum())
        assert logprob == pytest.approx(expected[token], abs=1e-5)
        assert list(top) == np.argsort(-expected, kind="stable")[:3].tolist()


def test_timings_add_up(smollm2):
    done = smollm2.generate("A llama is", max_new_tokens=4)
    stages = ["preprocess", "embed", "decode", "project", "postprocess"]
    assert set(done.timings) == {"first_token", "total", *stages}
    assert 0 < done.timings["first_token"] < done.timings["total"]
    assert 0 < sum(done.timings[stage] for stage in stages) <= done.timings["total"]


def test_max_new_tokens_defaults_to_what_fits(tiny):
    assert len(tiny.generate([7] * 100, eos_token_id=[]).token_ids) == 28
    assert len(tiny.generate([7] * 127, eos_token_id=[]).token_ids) == 1


# ---- rows


def test_logits_and_hidden_states(tiny):
    text = list(range(70))
    logits, hidden = tiny.logits(text), tiny.hidden_states(text)
    assert logits.shape == (70, 264) and hidden.shape == (70, 48) and logits.dtype == hidden.dtype == np.float32
    assert np.array_equal(tiny.logits(text[:33]), logits[:33]) and np.array_equal(tiny.hidden_states([0]), hidden[:1])


@pytest.mark.parametrize("prompt", ["hello llama", list(range(100))])
def test_score_is_the_likelihood_in_the_logits(tiny, prompt):
    text = ids(tiny, prompt) if isinstance(prompt, str) else prompt
    rows = tiny.logits(text).astype(np.float64)[:-1]
    each = [row[t] - row.max() - math.log(np.exp(row - row.max()).sum()) for row, t in zip(rows, text[1:], strict=True)]
    score = tiny.score(prompt)
    assert score.num_tokens == len(text) - 1
    assert score.log_likelihood == pytest.approx(sum(each), abs=1e-4)
    assert score.perplexity == pytest.approx(math.exp(-sum(each) / len(each)), rel=1e-6)


# ---- chat


def test_chat_uses_the_template(tiny):
    done = tiny.chat(HELLO, **NEW)
    assert done.prompt_token_ids == ids(tiny, "<|im_start|>user:What is a llama?<|im_end|><|im_start|>a:")
    with tiny.chat(HELLO, stream=True, **NEW) as stream:
        assert "".join(piece.text for piece in stream) == done.text


def test_chat_with_several_answers(tiny):
    done = tiny.chat(HELLO, num_return_sequences=2, do_sample=True, seed=3, **NEW)
    assert [one.choice_index for one in done] == [0, 1] and done[0].token_ids != done[1].token_ids


def test_a_second_turn_computes_only_what_is_new(smollm2):
    first = smollm2.chat(HELLO, max_new_tokens=12)
    messages = [*HELLO, {"role": "assistant", "content": first.text}, {"role": "user", "content": "Where?"}]
    with smollm2.chat(messages, stream=True, max_new_tokens=2) as stream:
        next(stream)
        (sequence,) = stream._request.sequences
        whole = len(stream.completion.prompt_token_ids)
    assert len(first.prompt_token_ids) + 10 <= sequence.reused < whole
    assert smollm2.engine.last[0][0] == [(whole - sequence.reused, sequence.reused)]
    again = smollm2.chat(messages, max_new_tokens=4).token_ids
    smollm2.engine.prefixes.clear()
    assert smollm2.chat(messages, max_new_tokens=4).token_ids == again  # reuse changes nothing


def conversation(*sizes, system=0):
    roles = [("user", "assistant")[i % 2] for i in range(len(sizes))]
    return [{"role": "system", "content": "S" * 5}] * system + [
        {"role": role, "content": str(i) * size} for i, (role, size) in enumerate(zip(roles, sizes, strict=True))]


def test_a_history_too_long_says_both_numbers(tiny):
    messages = conversation(20, 20, 20, 20, 20, system=1)
    length = len(ids(tiny, tiny_text(messages)))
    for answer, given in ((10, {"max_new_tokens": 10}), (1, {})):
        with pytest.raises(ContextLengthError, match=rf"{length} tokens.* {answer} .*128 tokens.*drop_oldest"):
            tiny.chat(messages, **given)


def tiny_text(messages):
    return "".join(f"<|im_start|>{m['role']}:{m['content']}<|im_end|>" for m in messages) + "<|im_start|>a:"


@pytest.mark.parametrize("system", [0, 1, 2])
def test_drop_oldest_drops_whole_turns_and_says_so(tiny, system):
    messages = conversation(20, 20, 20, 20, 20, system=system)
    with pytest.warns(UserWarning, match=r"2 oldest messages|4 oldest messages") as seen:
        done = tiny.chat(messages, on_overflow="drop_oldest", **NEW)
    dropped = int(str(seen[0].message).split("its ")[1].split()[0])
    kept = messages[:system] + messages[system + dropped :]
    assert done.prompt_token_ids == ids(tiny, tiny_text(kept)) and len(done.prompt_token_ids) + 6 <= 128
    assert len(ids(tiny, tiny_text(messages[:system] + messages[system + dropped - 2 :]))) + 6 > 128, "dropped too much"


def test_drop_oldest_makes_room_for_a_decent_answer(tiny):
    """Without a number of tokens asked for: a quarter of the context, but only turns are given up for it."""
    messages = conversation(20, 20, 20, system=1)
    assert len(tiny.chat(messages, eos_token_id=[]).token_ids) == 128 - len(ids(tiny, tiny_text(messages)))
    with pytest.warns(UserWarning, match="2 oldest"):
        assert len(tiny.chat(messages, on_overflow="drop_oldest", eos_token_id=[]).token_ids) >= 32
    alone = conversation(100)
    left = 128 - len(ids(tiny, tiny_text(alone)))
    assert 0 < left < 32 and len(tiny.chat(alone, on_overflow="drop_oldest", eos_token_id=[]).token_ids) == left


def test_drop_oldest_drops_nothing_that_fits(tiny):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert tiny.chat(HELLO, on_overflow="drop_oldest", **NEW).token_ids == tiny.chat(HELLO, **NEW).token_ids


def test_the_last_message_is_never_dropped(tiny):
    with pytest.raises(ContextLengthError, match=r"\d+ tokens.*128 tokens"):
        tiny.chat(conversation(20, 20, 200), on_overflow="drop_oldest")


# ---- wrong arguments


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"max_new_tokens": 0}, r"max_new_tokens.*1.*0"),
        ({"max_new_tokens": -3}, r"max_new_tokens.*-3"),
        ({"max_new_tokens": 1.5}, "max_new_tokens"),
        ({"temperature": math.nan}, "temperature.*nan"),
        ({"temperature": -1}, "temperature.*-1"),
        ({"top_p": 1.5}, r"top_p.*1\.5"),
        ({"top_k": -1}, "top_k"),
        ({"tempurature": 1}, "tempurature.*temperature"),
        ({"max_tokens": 3}, "max_new_tokens"),
        ({"logit_bias": {264: 1}}, "264"),
        ({"stop_token_ids": [-1]}, "-1"),
        ({"suppress_tokens": [2**63]}, "suppress_tokens"),
        ({"num_return_sequences": 10**6}, "num_return_sequences"),
        ({"stop": ""}, "stop"),
        ({"seed": -1}, "seed"),
        ({"min_new_tokens": 9, "max_new_tokens": 3}, "min_new_tokens"),
    ],
)
def test_wrong_parameters_name_what_they_are(tiny, given, words):
    for task in (tiny.generate, tiny.stream, lambda prompt, **params: tiny.chat(HELLO, **params)):
        with pytest.raises(ParameterError, match=words):
            task("a", **given)
    assert not tiny.engine._jobs


@pytest.mark.parametrize("prompt", [[264], [-1], [2**63], [1, "a"], [True], [1.0], [], None, 7, b"ab", {}, [[]], [None],
                                    [["a", "b"]], [["a"]], [[1], "a", [264]], "", [""], np.ones((2, 2), int), [[[1]]]])
def test_wrong_prompts(tiny, prompt):
    with pytest.raises(ParameterError):
        tiny.generate(prompt, **NEW)
    assert not tiny.engine._jobs


@pytest.mark.parametrize("call", ["logits", "hidden_states", "score"])
@pytest.mark.parametrize("prompt", [[264], [], [-1], None, [[1, 2]], [["a", "b"], ["c"]]])
def test_wrong_texts(tiny, call, prompt):
    with pytest.raises(ParameterError):
        getattr(tiny, call)(prompt)


def test_tasks_that_take_one_text(tiny):
    for call in (tiny.stream, tiny.score):
        with pytest.raises(ParameterError, match="one"):
            call(["a b", "c d"])
    with pytest.raises(ParameterError, match="two tokens"):
        tiny.score([1])
    with pytest.raises(ParameterError, match="no encoder"):
        tiny.score([1, 2], source="a")
    with pytest.raises(ParameterError, match="num_return_sequences"):
        tiny.stream("a", num_return_sequences=2)


@pytest.mark.parametrize("messages", [[], "hi", None, [{"content": "x"}], [{"role": "user", "content": 3}], ["x"]])
@pytest.mark.parametrize("overflow", ["error", "drop_oldest"])
def test_wrong_messages(tiny, messages, overflow):
    with pytest.raises(ParameterError):
        tiny.chat(messages, on_overflow=overflow, **NEW)


def test_wrong_on_overflow(tiny):
    with pytest.raises(ParameterError, match=r"drop_oldest.*'cut'"):
        tiny.chat(HELLO, on_overflow="cut")


@pytest.mark.parametrize(
    ("length", "new", "words"),
    [(129, None, "129 tokens.*128"), (128, None, "128 tokens.*128"), (100, 29, "100 tokens.*29.*128"),
     (3, 10**8, "3 tokens.*100000000.*128")],
)
def test_a_prompt_too_long_says_both_numbers(tiny, length, new, words):
    with pytest.raises(ContextLengthError, match=words):
        tiny.generate([1] * length, max_new_tokens=new)
    assert issubclass(ContextLengthError, ParameterError) and not tiny.engine._jobs


def test_rows_of_a_text_too_long(tiny):
    for call in (tiny.logits, tiny.score):
        call([1] * 128)
        with pytest.raises(ContextLengthError, match=r"129 tokens.*128"):
            call([1] * 129)


def test_one_wrong_prompt_leaves_no_request_behind(tiny):
    """The prompts before the wrong one must not be computed for nobody."""
    for wrong in ([1] * 129, [264]):
        with pytest.raises(ParameterError):
            tiny.generate([[1], [2], wrong], max_new_tokens=5)
        assert not tiny.engine._jobs and not tiny.engine.scheduler.waiting


def test_empty_prompt_needs_a_bos(tiny, tiny_folder):
    with pytest.raises(ParameterError, match="BOS"):
        tiny.generate("")
    with forwardpass.load(tiny_folder(bos=True)) as model:
        assert model.generate("", **NEW).prompt_token_ids == [256]
        assert model.generate("<s>hi", **NEW).prompt_token_ids.count(256) == 1
        assert model.chat(HELLO, **NEW).prompt_token_ids.count(256) == 1


def test_a_template_that_raises(tiny):
    with pytest.raises(TemplateError, match="no critics"):
        tiny.chat([{"role": "critic", "content": "bad"}], **NEW)


@pytest.mark.parametrize("template", ["{{ ''.__class__.__mro__ }}", "{{ 'a' * 3000000000 }}", "{% include 'x' %}",
                                      "{% for i in range(99999999) %}{% endfor %}", "{{ nothing.at.all }}", "{% if %}"])
def test_a_template_that_attacks(tiny_folder, template):
    with forwardpass.load(tiny_folder(template=template)) as model:
        with pytest.raises(TemplateError):
            model.chat(HELLO, **NEW)
        assert model.generate("a", **NEW).text is not None


def test_special_tokens_in_a_message_are_text(tiny):
    prompt = tiny.chat([{"role": "user", "content": "<|im_end|></s>"}], **NEW).prompt_token_ids
    assert prompt.count(259) == 1 and 257 not in prompt


# ---- models that lack something, and the end


def test_without_a_tokenizer(tiny, tiny_folder):
    with forwardpass.load(tiny_folder(tokenizer=False)) as model:
        assert model.tokenizer is None
        done = model.generate([1, 2, 3], **NEW)
        assert done.text == "" and done.token_ids == tiny.generate([1, 2, 3], **NEW).token_ids
        assert model.score([1, 2, 3]) == tiny.score([1, 2, 3])
        for call in (lambda: model.generate("a"), lambda: model.chat(HELLO), lambda: model.score("ab")):
            with pytest.raises(UnsupportedModelError, match="no tokenizer"):
                call()
        for given in ({"stop": "x"}, {"bad_words": "x"}):
            with pytest.raises(ParameterError, match="tokenizer"):
                model.generate([1], **given)


def test_without_a_template(tiny_folder):
    with forwardpass.load(tiny_folder(template=None)) as model, pytest.raises(UnsupportedModelError, match="template"):
        model.chat(HELLO)


def test_a_closed_model_says_so(tiny_folder):
    model = forwardpass.load(tiny_folder())
    stream = model.stream("abc", **NEW)
    next(stream)
    model.close()
    model.close()
    assert list(stream) == [] or stream.completion.finish_reason == "cancelled"
    calls = [lambda: model.generate("a"), lambda: model.stream("a"), lambda: model.chat(HELLO),
             lambda: model.score("ab"), lambda: model.logits([1]), lambda: model.hidden_states([1]),
             lambda: model.explain("a")]
    for call in calls:
        with pytest.raises(ParameterError, match="closed"):
            call()
    assert "tiny" in repr(model)


def test_a_closed_model_frees_its_memory_at_once(tiny_folder):
    """Not when the garbage collector comes by: the next model may need it."""
    gc.collect()
    gc.disable()
    try:
        with forwardpass.load(tiny_folder()) as model:
            model.generate(["abc", "abd"], **NEW)
            kept = [weakref.ref(one) for one in (model.engine, model.network, model.engine.cache.groups[0].pool)]
        assert [one() for one in kept] == [None] * 3
    finally:
        gc.enable()


def test_threads_share_a_model(tiny):
    expected = {i: tiny.generate([i, i], **NEW).token_ids for i in range(4)}
    found = {}

    def ask(i):
        found[i] = [tiny.generate([i, i], **NEW).token_ids, [p.token_id for p in tiny.stream([i, i], **NEW)]]
        tiny.logits([i] * 70)

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert found == {i: [tokens, tokens] for i, tokens in expected.items()}
