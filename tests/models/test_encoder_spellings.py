"""What published encoder files look like that transformers no longer writes, and configs that must stop."""

from __future__ import annotations

import numpy as np
import pytest

import tiny_encoders
from forwardpass.errors import ForwardpassError, ModelFileError, UnsupportedModelError
from forwardpass.models import hf_heads, registry
from forwardpass.models.fields import Fields
from forwardpass.models.hf_config import read_config
from forwardpass.weights.safetensors import open_safetensors


@pytest.fixture
def saved(tmp_path, tools):
    """Tensors by name, config and what they are read as."""
    def make(case, head):
        directory = tiny_encoders.save(tiny_encoders.make(case, head), tmp_path / f"{case}-{head}")
        values = read_config(directory).values
        with open_safetensors(directory) as source:
            arrays = {name: np.array(np.frombuffer(source.data(name), np.float32).reshape(info.shape))
                      for name, info in source.tensors.items()}
            checkpoint = registry.read(source, values)
            return arrays, values, (checkpoint.spec, tools.load_rows(checkpoint, source))
    return make


def read(tools, arrays, values):
    source = tools.FakeSource("safetensors", arrays)
    checkpoint = registry.read(source, values)
    assert checkpoint.warnings == ()
    return checkpoint.spec, tools.load_rows(checkpoint, source)


def check_same(one, other):
    assert one[0] == other[0] and one[1].keys() == other[1].keys()
    for target in one[1]:
        assert np.array_equal(one[1][target], other[1][target]), target


def old_norms(arrays):
    return {name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): array
            for name, array in arrays.items()}


def test_a_first_bert_with_all_its_heads_read_as_one_without(saved, tools):
    """Norms called gamma and beta, the prefix of a model with heads, buffers, and no class named."""
    arrays, values, known = saved("bert", "none")
    old = {"bert." + name: array for name, array in old_norms(arrays).items()}
    assert "bert.encoder.layer.2.output.LayerNorm.gamma" in old and "bert.pooler.dense.bias" in old
    old |= {"bert.embeddings.position_ids": np.arange(80)[None], "cls.seq_relationship.weight": np.ones((2, 48)),
            "cls.predictions.bias": np.ones(96), "cls.predictions.transform.LayerNorm.gamma": np.ones(48)}
    check_same(read(tools, old, {name: value for name, value in values.items() if name != "architectures"}), known)


def test_a_fill_mask_head_that_keeps_only_what_is_its_own(saved, tools):
    """Tied: neither the table again nor the bias under a second name."""
    arrays, values, known = saved("bert", "lm")
    old = old_norms(arrays)
    old["cls.predictions.bias"] = known[1]["head.bias"]
    old = {name: array for name, array in old.items() if "decoder" not in name}
    assert known[0].tied and "head.weight" not in known[1]
    check_same(read(tools, old, values), known)
    check_same(read(tools, old | {"cls.seq_relationship.bias": np.ones(2)},
                    values | {"architectures": ["BertForPreTraining"]}), known)


def test_a_fill_mask_head_saved_twice(saved, tools):
    arrays, values, known = saved("bert", "lm")
    twice = arrays | {"cls.predictions.decoder.weight": known[1]["embed.tokens.weight"],
                      "cls.predictions.decoder.bias": known[1]["head.bias"],
                      "cls.predictions.bias": known[1]["head.bias"]}
    check_same(read(tools, twice, values), known)


@pytest.mark.parametrize("case", ["bert", "roberta", "mpnet", "distilbert", "modernbert"])
def test_an_embedder_with_the_class_of_the_model_it_was_made_from(case, saved, tools):
    """all-mpnet-base-v2 and its kin: the config names a fill-mask head, the file has none."""
    arrays, values, known = saved(case, "none")
    stem = tiny_encoders.FAMILIES[values["model_type"]][0]
    check_same(read(tools, arrays, values | {"architectures": [stem + "ForMaskedLM"]}), known)
    half = {"roberta": "lm_head.bias", "bert": "cls.predictions.transform.dense.bias"}
    if case in half:
        with pytest.raises(ModelFileError, match="missing"):
            read(tools, arrays | {half[case]: np.zeros(96 if case == "roberta" else 48)},
                 values | {"architectures": [stem + "ForMaskedLM"]})


def test_roberta_positions_begin_after_the_padding_row(saved):
    _, _, (spec, weights) = saved("roberta", "none")
    assert (spec.max_position_embeddings, spec.position_offset, spec.token_types) == (78, 2, 1)
    assert weights["embed.positions.weight"].shape == (80, 48)
    _, _, (spec, _) = saved("roberta-types", "none")
    assert (spec.max_position_embeddings, spec.position_offset, spec.token_types) == (76, 4, 2)


def test_albert_stores_a_layer_for_each_group(saved):
    _, _, (spec, weights) = saved("albert-groups", "none")
    assert spec.layer_weights == (0, 0, 2, 2)
    layers = {target.split(".")[1] for target in weights if target.startswith("layers.")}
    assert layers == {"0", "2"}
    assert not np.array_equal(weights["layers.0.mlp.up.weight"], weights["layers.2.mlp.up.weight"])


def test_the_discriminator_of_electra_counts_as_without_a_head(saved, tools):
    arrays, values, known = saved("electra", "none")
    more = {"electra." + name: array for name, array in arrays.items()} | {
        "discriminator_predictions.dense.weight": np.ones((48, 48)),
        "discriminator_predictions.dense_prediction.weight": np.ones((1, 48))}
    check_same(read(tools, more, values | {"architectures": ["ElectraForPreTraining"]}), known)


def test_published_deberta_3_files_have_leftovers_and_no_class(saved, tools):
    arrays, values, known = saved("deberta-v2", "none")
    more = {"deberta." + name: array for name, array in arrays.items()} | {
        "deberta.embeddings.position_embeddings.weight": np.ones((80, 48)),
        "lm_predictions.lm_head.dense.weight": np.ones((48, 48)), "lm_predictions.lm_head.bias": np.ones(96),
        "mask_predictions.dense.weight": np.ones((48, 48))}
    values = {name: value for name, value in values.items() if name != "architectures"} | {"pos_att_type": "P2C|c2p"}
    check_same(read(tools, more, values), known)


NOMIC = {"model_type": "nomic_bert", "architectures": ["NomicBertModel"], "n_embd": 48, "n_head": 4, "n_layer": 3,
         "n_inner": 80, "n_positions": 80, "vocab_size": 96, "type_vocab_size": 2, "layer_norm_epsilon": 1e-12,
         "activation_function": "swiglu", "qkv_proj_bias": False, "mlp_fc1_bias": False, "mlp_fc2_bias": False,
         "rotary_emb_base": 1000, "rotary_emb_fraction": 1.0, "rotary_emb_interleaved": False, "prenorm": False,
         "rotary_emb_scale_base": None, "rotary_scaling_factor": None, "causal": False, "parallel_block": False,
         "scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False, "use_rms_norm": False,
         "pad_vocab_size_multiple": 64, "max_trained_positions": 80, "tie_word_embeddings": True,
         "auto_map": {"AutoConfig": "x.NomicBertConfig", "AutoModel": "modeling_hf_nomic_bert.NomicBertModel",
                      "AutoModelForMultipleChoice": "x.NomicBertForMultipleChoice"}}
"""As the published files say it."""


def test_nomic_configs_as_published(saved, tools):
    arrays, _, known = saved("nomic_bert", "none")
    assert any(name.startswith("encoder.layers.0.attn.Wqkv") for name in arrays)
    check_same(read(tools, arrays, NOMIC | {"pad_vocab_size_multiple": 32}), known)
    assert registry.spec_from_config(NOMIC | {"vocab_size": 65}).vocab_size == 128
    assert registry.spec_from_config(NOMIC | {"activation_function": "geglu"}).layers[0].mlp.activation == "gelu_erf"


def test_modernbert_configs_of_transformers_4(saved, tools):
    arrays, values, known = saved("modernbert", "none")
    old = {name: value for name, value in values.items() if name not in ("rope_parameters", "layer_types")}
    old |= {"global_attn_every_n_layers": 3, "global_rope_theta": 160000.0, "local_rope_theta": 10000.0}
    check_same(read(tools, arrays, old), known)
    assert [layer.attention.window for layer in known[0].layers] == [0, 9, 9, 0]
    assert known[0].layers[0].attention_norm is None and known[0].layers[1].attention_norm is not None
    turned = [layer.attention.rotary.inv_freq[1] for layer in known[0].layers]
    assert turned[0] == turned[3] != turned[1] == turned[2]


def test_labels_by_their_number():
    """Not by the order of texts, in which "10" comes before "2"."""
    names = {str(i): f"name {i}" for i in reversed(range(12))}
    assert hf_heads.labels(Fields({"id2label": names}, "config.json")) == tuple(f"name {i}" for i in range(12))
    assert hf_heads.labels(Fields({}, "config.json")) == ("LABEL_0", "LABEL_1")
    assert hf_heads.labels(Fields({"num_labels": 1}, "config.json")) == ("LABEL_0",)
    assert hf_heads.labels(Fields({"id2label": {"0": 5}}, "config.json")) == ("5",)
    assert hf_heads.problem(Fields({}, "config.json")) is None
    for kind, ours in hf_heads.PROBLEMS.items():
        assert hf_heads.problem(Fields({"problem_type": kind}, "config.json")) == ours


@pytest.mark.parametrize(("changes", "said"), [
    ({"id2label": {"0": "a", "2": "b"}}, "every label from 0 to 1.*none for 1"),
    ({"id2label": {"1": "a", "2": "b"}}, "none for 0"), ({"id2label": {}}, "id2label"),
    ({"id2label": ["a", "b"]}, "id2label"), ({"id2label": {"0": ["a"]}}, "names"),
    ({"id2label": {"0": None}}, "names"), ({"id2label": {"no": "a"}}, "numbers"),
    ({"id2label": {"-1": "a"}}, "numbers"), ({"id2label": {"0": "a", "00": "b"}}, "id2label"),
    ({"num_labels": 3}, "num_labels: expected 5"), ({"num_labels": 0, "id2label": None}, "num_labels"),
    ({"num_labels": "5"}, "num_labels"), ({"problem_type": "several"}, "regression, single_label"),
    ({"problem_type": "single_label_classification", "id2label": {"0": "a"}}, "several labels"),
])
@pytest.mark.parametrize("head", ["labels", "tags"])
def test_labels_that_contradict_each_other(head, changes, said):
    values = BERT | {"architectures": ["Bert" + tiny_encoders.HEADS[head]], "id2label": LABELS}
    registry.spec_from_config(values)
    with pytest.raises(ModelFileError, match=said) as raised:
        registry.spec_from_config(values | changes)
    assert len(str(raised.value)) < 300


@pytest.mark.parametrize(("case", "head", "name"), [
    ("bert", "labels", "classifier.weight"), ("roberta", "labels", "classifier.out_proj.weight"),
    ("distilbert", "tags", "classifier.weight")])
def test_labels_that_contradict_the_head(case, head, name, saved, tools):
    arrays, values, _ = saved(case, head)
    for names in ({"0": "a", "1": "b", "2": "c"}, None):
        with pytest.raises(ModelFileError, match=f"5 labels, one for each row of {name}, found {3 if names else 2}"):
            read(tools, arrays, values | {"id2label": names})


SIZES = {name: value for name, value in tiny_encoders.SIZES.items() if name != "initializer_range"}
BERT = SIZES | {"model_type": "bert", "architectures": ["BertModel"]}
LABELS = {str(i): f"label {i}" for i in range(5)}


def config(case):
    family, changes = tiny_encoders.CASES[case]
    return {"model_type": family} | tiny_encoders.FAMILIES[family][1] | changes


@pytest.mark.parametrize(("case", "changes", "said"), [
    ("bert", {"position_embedding_type": "relative_key"}, "this kind of positions"),
    ("bert", {"position_embedding_type": "alibi"}, "this kind of positions"),
    ("bert", {"is_decoder": True}, "as a decoder"), ("bert", {"add_cross_attention": True}, "cross-attention"),
    ("bert", {"is_causal": True}, "only looks back"), ("bert", {"pruned_heads": {"0": [1]}}, "leaving heads out"),
    ("bert", {"architectures": ["JinaBertForMaskedLM"]}, "BertForSequenceClassification"),
    ("bert", {"architectures": ["BertForQuestionAnswering"]}, "BertForTokenClassification"),
    ("bert", {"auto_map": {"AutoModel": "jinaai/jina-bert--modeling_bert.JinaBertModel"}}, "own Python code"),
    ("bert", {"hidden_act": "mish"}, "activation"),
    ("roberta", {"is_decoder": True}, "as a decoder"),
    ("albert", {"inner_group_num": 2}, "several different layers"),
    ("mpnet", {"relative_attention_num_buckets": 64}, "buckets than 32"),
    ("deberta-v2", {"conv_kernel_size": 3}, "convolution"), ("deberta-v2", {"embedding_size": 32}, "other than 48"),
    ("deberta-v2", {"attention_head_size": 16}, "other than 12"), ("deberta-v2", {"pos_att_type": ["p2p"]}, "c2p"),
    ("deberta-v2", {"pos_att_type": ["c2p", "c2p"]}, "c2p"), ("deberta-v2", {"pos_att_type": []}, "without terms"),
    ("deberta", {"talking_head": True}, "attention heads"),
    ("modernbert", {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "rotary scaling"),
    ("modernbert", {"is_decoder": True}, "as a decoder"),
    ("nomic_bert", NOMIC | {"activation_function": "gelu"}, "swiglu, geglu"),
    ("nomic_bert", NOMIC | {"prenorm": True}, "norms before"), ("nomic_bert", NOMIC | {"num_experts": 8}, "experts"),
    ("nomic_bert", NOMIC | {"rotary_emb_fraction": 0.0}, "learned positions"),
    ("nomic_bert", NOMIC | {"rotary_scaling_factor": 2.0}, "rotary scaling"),
    ("nomic_bert", NOMIC | {"rotary_emb_interleaved": True}, "interleaved"),
    ("nomic_bert", NOMIC | {"mlp_fc2_bias": True}, "one half"), ("nomic_bert", NOMIC | {"causal": True}, "looks back"),
])
def test_what_is_not_implemented_is_named(case, changes, said):
    values = config(case)
    registry.spec_from_config(values)
    with pytest.raises(UnsupportedModelError, match=said) as raised:
        registry.spec_from_config(values | changes)
    assert "not implemented" in str(raised.value) and len(str(raised.value)) < 400


@pytest.mark.parametrize(("case", "changes", "said"), [
    ("bert", {"num_attention_heads": 5}, "num_attention_heads"), ("bert", {"type_vocab_size": -1}, "type_vocab_size"),
    ("bert", {"hidden_size": None}, "hidden_size is missing"), ("bert", {"max_position_embeddings": 0}, "max_position"),
    ("bert", {"vocab_size": 2**40}, "vocab_size"), ("bert", {"layer_norm_eps": float("nan")}, "layer_norm_eps"),
    ("roberta", {"max_position_embeddings": 2}, "more than the 2 rows"), ("roberta", {"pad_token_id": -1}, "pad_token"),
    ("distilbert", {"n_heads": 7}, "n_heads"), ("albert", {"num_hidden_groups": 4}, "at most num_hidden_layers"),
    ("electra", {"embedding_size": 0}, "embedding_size"), ("deberta-v2", {"pos_att_type": 7}, "pos_att_type"),
    ("deberta-v2", {"max_relative_positions": 3}, "greatest relative distance"),
    ("deberta", {"max_relative_positions": 2**20}, "span of relative positions"),
    ("modernbert", {"classifier_pooling": "max"}, "classifier_pooling"),
    ("modernbert", {"local_attention": 0}, "local_attention"),
    ("modernbert", {"layer_types": ["full_attention"]}, "layer_types"),
    ("modernbert", {"global_attn_every_n_layers": 0, "layer_types": None}, "global_attn_every_n_layers"),
])
def test_contradictions(case, changes, said):
    values = config(case)
    registry.spec_from_config(values)
    with pytest.raises(ModelFileError, match=said) as raised:
        registry.spec_from_config(values | changes)
    assert len(str(raised.value)) < 400


@pytest.mark.parametrize(("case", "changes", "said"), [
    ("bert", {"num_hidden_layers": 4}, r"missing: expected bert\.encoder\.layer\.3\.attention\.self\.query\.weight"),
    ("bert", {"num_hidden_layers": 2}, r"unexpected: .*layer\.2"),
    ("bert", {"type_vocab_size": 3}, r"token_type_embeddings\.weight: expected \[3, 48\], found \[2, 48\]"),
    ("bert", {"max_position_embeddings": 96}, r"position_embeddings\.weight: expected \[96, 48\], found \[80, 48\]"),
    ("albert-groups", {"num_hidden_groups": 1}, r"unexpected: .*layer_groups\.1"),
    ("deberta-v2", {"share_att_key": False}, r"missing: .*pos_query_proj\.weight"),
    ("deberta-v2", {"position_buckets": 10}, r"rel_embeddings\.weight: expected \[20, 48\], found \[16, 48\]"),
    ("deberta-v2", {"norm_rel_ebd": "none"}, r"unexpected: .*encoder\.LayerNorm"),
    ("modernbert", {"classifier_bias": True}, r"missing: .*head\.dense\.bias"),
])
def test_a_config_that_contradicts_the_tensors(case, changes, said, saved, tools):
    arrays, values, _ = saved(case, "labels")
    with pytest.raises(ModelFileError, match=said):
        read(tools, arrays, values | changes)


JUNK = [None, True, False, 0, 1, -1, 2, 5, 48, 2**31, 10**5000, 0.0, 0.5, -1e308, float("nan"), float("inf"), "",
        "gelu", "mean", "c2p", "c2p|p2c", "x" * 1000, [], [1], [None], ["c2p"], ["full_attention"] * 4,
        ["sliding_attention"], {}, {"0": "a"}, {"1": "a"}, {"0": None}, {"full_attention": {"rope_theta": 7.0}},
        {"sliding_attention": [1]}, {"rope_type": "yarn"}, {"a": {}}]
SETTINGS = ("architectures", "id2label", "num_labels", "problem_type", "rope_parameters", "rope_scaling", "layer_types",
            "norm_rel_ebd", "position_buckets", "max_relative_positions", "share_att_key", "legacy", "sliding_window",
            "pooler_hidden_act", "classifier_pooling", "classifier_activation", "global_attn_every_n_layers",
            "global_rope_theta", "position_embedding_type", "is_decoder", "conv_kernel_size", "embedding_size",
            "num_hidden_groups", "inner_group_num", "relative_attention_num_buckets", "type_vocab_size", "auto_map",
            "rotary_emb_fraction", "rotary_emb_base", "pad_vocab_size_multiple", "tie_word_embeddings", "hidden_act")


@pytest.mark.parametrize("case", ["bert", "roberta", "mpnet", "distilbert", "electra", "albert", "deberta",
                                  "deberta-v2", "modernbert", "nomic_bert", "published"])
def test_fuzz_configs(case):
    """One or two random changes: an error of ours, or a spec that passes its own check."""
    base = NOMIC if case == "published" else config(case)
    stem = tiny_encoders.FAMILIES[base["model_type"]][0]
    keys, rng, passed = sorted({*base, *SETTINGS} - {"model_type"}), np.random.default_rng(3), 0
    for _ in range(600):
        ends = list(tiny_encoders.HEADS.values())
        values = base | {"architectures": [stem + ends[rng.integers(len(ends))]]}
        for key in rng.choice(keys, size=rng.integers(1, 3), replace=False):
            values[str(key)] = JUNK[rng.integers(len(JUNK))]
        try:
            passed += registry.spec_from_config(values).check() is not None
        except ForwardpassError as error:
            assert len(str(error)) < 1000
    assert 60 < passed < 540  # the fuzz reached both outcomes
