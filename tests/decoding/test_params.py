"""Every parameter: accepted values, refused values with interval and value in the message, unknown names."""

import math

import numpy as np
import pytest

from forwardpass.decoding.params import SamplingParams, TokenFacts, decoder_prompt, from_user
from forwardpass.errors import ModelFileError, ParameterError, UnsupportedModelError

NAN, INF = math.nan, math.inf


def ours(**overrides):
    return from_user(None, overrides, vocab_size=64, encode=lambda text: [ord(c) % 64 for c in text])


def test_defaults():
    params = ours()
    assert params == SamplingParams()
    assert (params.max_new_tokens, params.do_sample, params.greedy) == (256, False, True)
    assert (params.temperature, params.top_k, params.top_p, params.seed, params.logprobs) == (1.0, 0, 1.0, None, None)


BAD = {
    "max_new_tokens": ([0, -1, 2**31, 2**63, 1.0, 1.5, "5", True, NAN], "[1, 2147483647]"),
    "min_new_tokens": ([-1, 0.5, "1", False], "[0, 2147483647]"),
    "do_sample": ([0, 1, "yes", 1.0], "True or False"),
    "temperature": ([-1, -1e-9, NAN, INF, -INF, "hot", True, [1.0], 10**400], "[0, infinity)"),
    "top_k": ([-1, 1.5, "all", True, 2**40], "[0, 2147483647]"),
    "top_p": ([-0.1, 1.1, NAN, "0.9", True], "[0, 1]"),
    "min_p": ([-0.1, 1.1, NAN, INF, None.__class__], "[0, 1]"),
    "typical_p": ([0, -0.1, 1.1, NAN], "(0, 1]"),
    "repetition_penalty": ([0, -1, 0.001, 101, NAN, INF, "1"], "[0.01, 100]"),
    "presence_penalty": ([-2.1, 2.1, NAN, INF], "[-2, 2]"),
    "frequency_penalty": ([-2.1, 2.1, NAN, "x"], "[-2, 2]"),
    "no_repeat_ngram_size": ([-1, 2.0, "3"], "[0, 2147483647]"),
    "bad_words_ids": ([5, "x", [5], [[]], [[1, -1]], [[1.0]], [["a"]], {1: 2}], "integers in [0, vocabulary size)"),
    "bad_words": ([5, [""], "", [None], ["x" * 1001], ["x"] * 65], "1 to 1000 characters"),
    "suppress_tokens": ([-1, [-1], [1.5], "3", [True], {1: 1}], "an integer in [0, vocabulary size)"),
    "logit_bias": ([[1], {"x": 1}, {-1: 5}, {"-1": 5}, {1.5: 1}, {True: 1}], "an integer in [0, vocabulary size)"),
    "eos_token_id": ([-1, 1.5, "2", [2, -1], True], "an integer in [0, vocabulary size)"),
    "stop_token_ids": ([-1, [1, "2"], 1.0], "an integer in [0, vocabulary size)"),
    "ignore_eos": ([1, "no"], "True or False"),
    "stop": (["", [""], [None], 5, ["a"] * 1000, {"a": 1}, b"x", "x" * 1001], "1 to 1000 characters"),
    "include_stop": ([1], "True or False"),
    "seed": ([-1, 2**64, 1.5, "7", True], "[0, 18446744073709551615]"),
    "num_return_sequences": ([0, -1, 129, 10**6, 2**31, 1.5, "2", True], "[1, 128]"),
    "logprobs": ([-1, 21, 64, 10**9, 1.0, "1"], "[0, 20]"),
    "logits_processors": ([5, [5], "abc", [None], lambda ids, row: row], "callables"),
    "mask_special_tokens": ([1, "yes"], "True or False"),
    "forced_bos_token_id": ([-1, 1.5, "2", [2], True], "an integer in [0, vocabulary size)"),
    "forced_eos_token_id": ([-1, 1.5, "2", [2, -1]], "an integer in [0, vocabulary size)"),
    "begin_suppress_tokens": ([-1, [1, None], "3"], "an integer in [0, vocabulary size)"),
    "min_length": ([-1, 1.5, "5", True], "[0, 2147483647]"),
    "encoder_repetition_penalty": ([0, -1, 101, NAN, INF, "1"], "[0.01, 100]"),
    "encoder_no_repeat_ngram_size": ([-1, 2.0, "3"], "[0, 2147483647]"),
    "prefix_allowed_tokens_fn": ([5, "fn", [print]], "a callable"),
    "decoder_start_token_id": ([-1, 1.5, "7", [1]], "a token id"),
    "decoder_input_ids": ([-1, [1.5], "7", [[1]]], "an integer in [0, vocabulary size)"),
    "num_beams": ([0, -1, 129, 4.0, "4", True], "[1, 128]"),
    "length_penalty": ([NAN, INF, 11, -11, "1", True], "[-10, 10]"),
    "early_stopping": ([1, 0, "always", "Never", 1.0, ["never"]], 'True, False or "never"'),
    "num_beam_groups": ([0, 129, 2.0, "2"], "[1, 128]"),
    "diversity_penalty": ([-0.1, 101, NAN, "1", True], "[0, 100]"),
    "renormalize_logits": ([1, "yes"], "True or False"),
}


def test_the_table_of_bad_values_is_complete():
    assert set(BAD) == set(SamplingParams.__slots__)


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, (values, _) in BAD.items() for value in values])
def test_bad_values_state_name_interval_and_value(name, value):
    with pytest.raises(ParameterError) as caught:
        ours(**{name: value})
    message = str(caught.value)
    assert message.startswith(name)
    assert BAD[name][1] in message
    assert "got" in message
    assert len(message) < 400
    assert isinstance(caught.value, ValueError)


GOOD = {
    "max_new_tokens": [1, np.int64(7), 2**31 - 1],
    "do_sample": [True, np.bool_(True)],
    "temperature": [0, 0.0, 1e-300, 1e-7, 1e9, np.float32(0.5)],
    "top_k": [0, 1, 10**6],
    "top_p": [0, 1, 0.5],
    "seed": [0, 2**63, 2**64 - 1],
    "num_return_sequences": [1, 128],
    "logprobs": [0, 20],
    "num_beams": [1, 64, np.int32(4)],
    "length_penalty": [-1, 0, 0.6, 10],
    "early_stopping": [True, False, "never", np.bool_(True)],
    "forced_bos_token_id": [0, 63],
    "encoder_repetition_penalty": [0.5, 2],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in GOOD.items() for value in values])
def test_good_values(name, value):
    assert getattr(ours(**{name: value}), name) == value


def test_forms_of_lists():
    params = ours(stop="x", eos_token_id=3, suppress_tokens=np.array([1, 2]), bad_words_ids=[[1, 2], [3]])
    assert (params.stop, params.eos_token_id, params.suppress_tokens) == (("x",), (3,), (1, 2))
    assert params.bad_words_ids == ((1, 2), (3,))
    assert ours(eos_token_id=[]).eos_token_id == ()
    assert ours(stop=[]).stop == ()
    assert ours(stop=["a", "b", "a"]).stop == ("a", "b")
    assert ours(logit_bias={"17": -100, 3: 1.5}).logit_bias == {17: -100.0, 3: 1.5}
    assert (ours(logprobs=True).logprobs, ours(logprobs=False).logprobs) == (0, None)


@pytest.mark.parametrize("name", ["logit_bias"])
@pytest.mark.parametrize("amount", [NAN, INF, 101, -101, "1", True])
def test_bias_amounts(name, amount):
    with pytest.raises(ParameterError, match=r"logit_bias\[3\] must be a finite number in \[-100, 100\]; got"):
        ours(logit_bias={"3": amount})


@pytest.mark.parametrize(
    "overrides",
    [
        {"logit_bias": {"64": 5}},
        {"stop_token_ids": [64]},
        {"eos_token_id": 64},
        {"suppress_tokens": [3, 64]},
        {"bad_words_ids": [[1, 64]]},
        {"eos_token_id": 2**63},
        {"forced_bos_token_id": 64},
        {"forced_eos_token_id": [3, 64]},
        {"begin_suppress_tokens": [64]},
        {"decoder_input_ids": [64]},
        {"decoder_start_token_id": 64},
    ],
)
def test_ids_outside_the_vocabulary(overrides):
    with pytest.raises(ParameterError, match=r"token ids must be in \[0, 63\] .* got (64|9223372036854775808)"):
        ours(**overrides)


def test_none_means_not_given():
    assert ours(**dict.fromkeys(SamplingParams.__slots__)) == SamplingParams()
    assert from_user({"top_k": 50}, {"top_k": None}, vocab_size=64).top_k == 50


def test_min_above_max_names_both():
    with pytest.raises(ParameterError, match="got 9 with max_new_tokens = 4"):
        ours(min_new_tokens=9, max_new_tokens=4)


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("temprature", "temperature"), ("topk", "top_k"), ("max_tokens", "max_new_tokens"),
        ("n", "num_return_sequences"),
        ("stop_strings", "stop"), ("bad_word_ids", "bad_words_ids"), ("max_new_token", "max_new_tokens"),
    ],
)  # fmt: skip
def test_unknown_names_suggest_the_nearest(name, nearest):
    with pytest.raises(ParameterError, match=f"Unknown parameter '{name}'. Did you mean '{nearest}'"):
        ours(**{name: None})


def test_unknown_name_without_a_near_one_lists_all():
    with pytest.raises(ParameterError, match=r"Unknown parameter 'zzzzzz'\. Known: bad_words, bad_words_ids,"):
        ours(zzzzzz=1)


def test_generation_config_gives_defaults_and_the_caller_wins():
    config = {
        "bos_token_id": 1, "eos_token_id": [2, 3], "transformers_version": "4.40.0", "_from_model_config": True,
        "do_sample": True, "temperature": 0.6, "top_p": 0.9, "top_k": 40, "max_length": 4096, "stop_strings": ["END"],
        "num_beams": 1, "guidance_scale": None,
    }  # fmt: skip
    params = from_user(config, {"top_p": 0.5}, vocab_size=64)
    assert (params.do_sample, params.temperature, params.top_p, params.top_k) == (True, 0.6, 0.5, 40)
    assert params.eos_token_id is None and params.stop == ("END",) and params.max_new_tokens == 256
    assert from_user({"min_new_tokens": 10}, {"max_new_tokens": 3}, vocab_size=64).min_new_tokens == 3


def test_a_bad_generation_config_is_a_fault_of_the_model_file():
    with pytest.raises(ModelFileError, match=r"generation_config.json: top_p must be .*got 7"):
        from_user({"top_p": 7}, {}, vocab_size=64)
    with pytest.raises(ModelFileError, match="got 99"):
        from_user({"suppress_tokens": [99]}, {}, vocab_size=64)
    with pytest.raises(ModelFileError, match=r"num_return_sequences must be in \[1, num_beams\]; got 5"):
        from_user({"num_beams": 4, "num_return_sequences": 5}, {}, vocab_size=64)
    with pytest.raises(ModelFileError, match="max_length must be an integer"):
        from_user({"max_length": "long"}, {}, vocab_size=64)
    with pytest.raises(UnsupportedModelError, match=r"penalty_alpha = 0\.6"):
        from_user({"penalty_alpha": 0.6}, {}, vocab_size=64)


BEAMS_THAT_CANNOT_BE = [
    ({"num_beams": 3, "num_return_sequences": 4}, r"num_return_sequences must be in \[1, num_beams\]; got 4 .* 3"),
    ({"num_beams": 6, "num_beam_groups": 4, "diversity_penalty": 1.0}, "num_beam_groups must divide num_beams; got 4"),
    ({"num_beams": 2, "num_beam_groups": 4, "diversity_penalty": 1.0}, "num_beam_groups must divide num_beams; got 4"),
    ({"num_beam_groups": 2, "diversity_penalty": 1.0}, "num_beam_groups must divide num_beams; got 2 with .* = 1"),
    ({"num_beams": 4, "num_beam_groups": 2}, "diversity_penalty must be above 0 with several num_beam_groups"),
    ({"num_beams": 4, "diversity_penalty": 0.5}, "got 0.5 with num_beam_groups = 1"),
    ({"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 0.5, "do_sample": True}, "must be 1 when sampling"),
    ({"num_beams": 65}, "num_beams must be at most the model's vocabulary, 64 tokens; got 65"),
]


@pytest.mark.parametrize(("overrides", "message"), BEAMS_THAT_CANNOT_BE)
def test_beams_that_cannot_be(overrides, message):
    with pytest.raises(ParameterError, match=message):
        ours(**overrides)


def test_beams_that_can_be():
    params = ours(num_beams=6, num_beam_groups=3, diversity_penalty=0.5, num_return_sequences=6)
    assert (params.num_beams, params.num_beam_groups, params.num_return_sequences) == (6, 3, 6)
    assert ours(num_beams=64).num_beams == 64
    assert ours(num_return_sequences=7).num_beams == 1  # without beams: seven answers of their own


TRANSLATOR = {
    "num_beams": 6, "num_return_sequences": 3, "length_penalty": 0.8, "early_stopping": True, "max_length": 40,
    "min_length": 5, "forced_bos_token_id": 7, "forced_eos_token_id": 2, "no_repeat_ngram_size": 3,
    "encoder_no_repeat_ngram_size": 4, "encoder_repetition_penalty": 1.5, "begin_suppress_tokens": [4, 5],
    "renormalize_logits": True, "num_beam_groups": 2, "diversity_penalty": 0.25, "decoder_start_token_id": 2,
    "bad_words_ids": [[60]],
}  # fmt: skip


def test_beams_of_generation_config():
    params = from_user(TRANSLATOR, {}, vocab_size=64, decoder_start=2)
    assert (params.num_beams, params.num_return_sequences, params.length_penalty) == (6, 3, 0.8)
    assert (params.early_stopping, params.min_length, params.max_new_tokens) == (True, 5, 39)
    assert (params.forced_bos_token_id, params.forced_eos_token_id) == (7, (2,))
    assert (params.no_repeat_ngram_size, params.encoder_no_repeat_ngram_size) == (3, 4)
    assert (params.encoder_repetition_penalty, params.begin_suppress_tokens) == (1.5, (4, 5))
    assert (params.num_beam_groups, params.diversity_penalty, params.renormalize_logits) == (2, 0.25, True)


def test_what_the_caller_names_replaces_settings_that_depend_on_it():
    params = from_user(TRANSLATOR, {"num_beams": 1}, vocab_size=64)
    assert (params.num_beam_groups, params.diversity_penalty, params.num_return_sequences) == (1, 0.0, 3)
    params = from_user(TRANSLATOR, {"num_beams": 2}, vocab_size=64)
    assert (params.num_beam_groups, params.diversity_penalty, params.num_return_sequences) == (1, 0.0, 2)
    params = from_user(TRANSLATOR, {"num_beam_groups": 1}, vocab_size=64)
    assert (params.num_beams, params.diversity_penalty) == (6, 0.0)
    params = from_user(TRANSLATOR, {"min_new_tokens": 1}, vocab_size=64)
    assert (params.min_length, params.min_new_tokens) == (0, 1)


def test_max_length_of_generation_config_counts_what_the_answer_begins_with():
    def tokens(config, **overrides):
        return from_user(config, overrides, vocab_size=64, decoder_start=2).max_new_tokens

    assert tokens({"max_length": 20}) == 19
    assert tokens({"max_length": 20}, decoder_input_ids=[2, 8, 9]) == 17
    assert tokens({"max_length": 20}, decoder_input_ids=[8, 9]) == 17
    assert tokens({"max_length": 3}, decoder_input_ids=[8, 9, 10]) == 1
    assert tokens({"max_length": 20}, decoder_start_token_id=8, decoder_input_ids=[8, 9]) == 18
    assert tokens({"max_length": 20, "max_new_tokens": 11}) == 11
    assert tokens({"max_length": 20}, max_new_tokens=30) == 30
    assert tokens({"max_length": 600}, min_new_tokens=300) == 599
    assert from_user({"max_length": 20}, {}, vocab_size=64).max_new_tokens == 256  # of a model without an encoder


def test_what_an_answer_begins_with():
    assert decoder_prompt(2) == [2]
    assert decoder_prompt(2, (8, 9)) == [2, 8, 9] == decoder_prompt(2, (2, 8, 9))
    facts = TokenFacts(64, start_id=2)
    assert SamplingParams().begins(facts) == [2] and SamplingParams(decoder_start_token_id=0).begins(facts) == [0]
    assert SamplingParams(decoder_start_token_id=5, decoder_input_ids=[5, 9]).begins(facts) == [5, 9]
    for name, value in (("decoder_input_ids", [1]), ("decoder_start_token_id", 0)):
        with pytest.raises(ParameterError, match=f"{name} is for models with an encoder"):
            ours(**{name: value})


def test_bad_words_of_one_token_are_banned_by_id_with_and_without_a_space():
    vocabulary = {"cat": [7], " cat": [8], "dog": [9, 10], " dog": [11]}
    params = from_user(None, {"bad_words": ["cat", "dog"], "bad_words_ids": [[1]]}, vocab_size=64,
                       encode=vocabulary.__getitem__)  # fmt: skip
    assert params.bad_words == ("cat", "dog") and params.bad_words_ids == ((1,), (7,), (8,), (11,))
    with pytest.raises(ParameterError, match="bad_words needs the model's tokenizer"):
        from_user(None, {"bad_words": ["cat"]}, vocab_size=64)


def test_greedy():
    assert SamplingParams(do_sample=True, temperature=0).greedy
    assert SamplingParams(temperature=0.7).greedy
    assert not SamplingParams(do_sample=True, temperature=0.7).greedy
