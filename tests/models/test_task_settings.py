"""What a directory's files say about labels and vectors, and what is refused."""

import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from forwardpass.errors import ForwardpassError, ModelFileError, UnsupportedModelError
from forwardpass.models.spec import AttentionSpec, HeadSpec, LayerSpec, MlpSpec, ModelSpec, NormSpec
from forwardpass.models.task_settings import NORMALIZE, DenseSpec, TaskSettings, read_task_settings
from forwardpass.weights.sentence_transformers import (
    dense_arrays,
    gguf_task_files,
    task_files,
    transformer_folder,
)

NORM = NormSpec("layer", 1e-12, bias=True)
LAYER = LayerSpec(NORM, AttentionSpec(2, 2, 4, 0.5, causal=False), NORM, MlpSpec("plain", 16, "gelu_erf"), order="post")


def spec(outputs=0, task="labels"):
    head = HeadSpec(task, outputs, "first") if outputs else HeadSpec("none")
    return ModelSpec("bert", 8, 50, 64, (LAYER,), None, False, head=head).check()


TRANSFORMER = {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}
POOLING = {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}
DENSE = {"path": "2_Dense", "type": "sentence_transformers.models.Dense"}
NORMALIZED = {"path": "3_Normalize", "type": "sentence_transformers.models.Normalize"}
LAYER_OF_12 = {"in_features": 8, "out_features": 12, "bias": True,
               "activation_function": "torch.nn.modules.activation.Tanh"}


def write(folder, files):
    for name, value in files.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(value if isinstance(value, str) else json.dumps(value))
    return folder


def settings(folder, files, config=None, outputs=0):
    write(folder, {"config.json": {}, **files})
    return read_task_settings(task_files(folder, config or {}), spec(outputs))


def full(**changes):
    """A directory with every kind of module."""
    return {"modules.json": [TRANSFORMER, POOLING, DENSE, NORMALIZED],
            "1_Pooling/config.json": {"word_embedding_dimension": 8, "pooling_mode_cls_token": True,
                                      "pooling_mode_mean_tokens": False, "include_prompt": False},
            "2_Dense/config.json": LAYER_OF_12,
            "sentence_bert_config.json": {"max_seq_length": 32, "do_lower_case": True},
            "config_sentence_transformers.json": {
                "prompts": {"query": "query: ", "passage": "passage: "}, "default_prompt_name": "query",
                "similarity_fn_name": "dot"}, **changes}


def test_everything(tmp_path):
    assert settings(tmp_path, full()) == TaskSettings(
        pooling=("cls",), include_prompt=False, steps=(DenseSpec("2_Dense", 8, 12, True, "tanh"), NORMALIZE),
        max_length=32, lower=True, strip=True, prompts={"query": "query: ", "passage": "passage: "},
        default_prompt="query", similarity="dot")


def test_nothing(tmp_path):
    assert settings(tmp_path, {}) == TaskSettings()
    assert read_task_settings({}, spec()) == TaskSettings()


@pytest.mark.parametrize(("pooling", "expected"), [
    ({}, ("mean",)),
    ({"pooling_mode_max_tokens": True, "pooling_mode_cls_token": True, "pooling_mode_lasttoken": True,
      "pooling_mode_mean_sqrt_len_tokens": True, "pooling_mode_weightedmean_tokens": True,
      "pooling_mode_mean_tokens": True}, ("cls", "max", "mean", "mean_sqrt_len", "weightedmean", "last")),
    ({"pooling_mode": "lasttoken", "embedding_dimension": 8}, ("last",)),
    ({"pooling_mode": ["mean_sqrt_len_tokens", "cls"]}, ("mean_sqrt_len", "cls")),
])
def test_poolings(tmp_path, pooling, expected):
    found = settings(tmp_path, {"modules.json": [TRANSFORMER, POOLING], "1_Pooling/config.json": pooling})
    assert found.pooling == expected and found.steps == () and found.include_prompt


def test_dense_layers_after_several_poolings(tmp_path):
    """Side by side they are 16 wide; then 12, then 8 with what went in added."""
    files = full(**{
        "modules.json": [TRANSFORMER, POOLING, {**DENSE, "type": "sentence_transformers.models.Dropout"}, DENSE,
                         {**DENSE, "path": "4_Dense"}],
        "1_Pooling/config.json": {"pooling_mode": ["mean", "max"]},
        "2_Dense/config.json": LAYER_OF_12 | {"in_features": 16},
        "4_Dense/config.json": {"in_features": 12, "out_features": 8, "bias": False, "use_residual": True,
                                "activation_function": "torch.nn.modules.linear.Identity"}})
    assert settings(tmp_path, files).steps == (DenseSpec("2_Dense", 16, 12, True, "tanh"),
                                               DenseSpec("4_Dense", 12, 8, False, None, True))


def test_a_pooling_without_a_list_of_modules(tmp_path):
    found = settings(tmp_path, {"1_Pooling/config.json": {"pooling_mode_cls_token": True}})
    assert found.pooling == ("cls",) and not found.strip


def test_gguf_says_how_to_pool():
    for number, name in ((1, "mean"), (2, "cls"), (3, "last")):
        files = gguf_task_files({"general.architecture": "qwen3", "qwen3.pooling_type": number})
        assert read_task_settings(files, spec()).pooling == (name,)
    assert gguf_task_files({"general.architecture": "qwen3", "qwen3.pooling_type": 0}) == {}
    assert gguf_task_files({"general.architecture": "bert", "bert.classifier.output_labels": ["b", "a"]}) == {
        "config.json": {"id2label": {"0": "b", "1": "a"}}}
    assert gguf_task_files({"general.architecture": "qwen3", "qwen3.pooling_type": [1]}) == {}


def test_gguf_names_labels():
    files = gguf_task_files({"general.architecture": "bert", "bert.pooling_type": 4,
                             "bert.classifier.output_labels": ["no", "yes"]})
    assert read_task_settings(files, spec(2)).labels == ("no", "yes")
    with pytest.raises(ModelFileError, match="id2label"):
        read_task_settings(files, spec(3))
    assert gguf_task_files({"general.architecture": "bert", "bert.classifier.output_labels": 3}) == {}


@pytest.mark.parametrize("inner", ["", "0_Transformer"])
def test_where_the_transformer_is(tmp_path, inner):
    files = full(**{"modules.json": [{**TRANSFORMER, "path": inner}, POOLING]})
    files[f"{inner}/sentence_roberta_config.json".lstrip("/")] = {"max_seq_length": 17}
    files.pop("sentence_bert_config.json")
    write(tmp_path, files | {f"{inner}/config.json".lstrip("/"): {}})
    assert transformer_folder(tmp_path) == (tmp_path / inner if inner else tmp_path)
    assert read_task_settings(task_files(tmp_path, {}), spec()).max_length == 17


@pytest.mark.parametrize("modules", [
    [TRANSFORMER, POOLING, {"path": "2_CNN", "type": "sentence_transformers.models.CNN"}],
    [{"path": "", "type": "custom_st.Transformer"}, POOLING],
    [TRANSFORMER, {"path": "1", "type": "sentence_transformers.sparse_encoder.models.SpladePooling"}],
    [TRANSFORMER, DENSE],
    [TRANSFORMER, NORMALIZED],
    [{"path": "0_WordEmbeddings", "type": "sentence_transformers.models.WordEmbeddings"}, POOLING],
])
def test_modules_that_are_not_implemented_only_stop_embedding(tmp_path, modules):
    found = settings(tmp_path, full(**{"modules.json": modules}))
    assert "modules.json" in found.obstacle and found.pooling == ()


@pytest.mark.parametrize("change", [
    {"activation_function": "torch.nn.modules.activation.Hardtanh"}, {"activation_function": "os.system"},
    {"module_input_name": "token_embeddings"}])
def test_dense_layers_that_are_not_implemented(tmp_path, change):
    assert next(iter(change)) in settings(tmp_path, full(**{"2_Dense/config.json": LAYER_OF_12 | change})).obstacle


# ---- labels


def test_labels_go_by_number():
    """As texts "10" comes before "2"."""
    names = {str(i): f"L{i}" for i in (3, 11, 0, 10, 2, 5, 1, 4, 7, 6, 9, 8)}
    found = read_task_settings({"config.json": {"id2label": names}}, spec(12))
    assert found.labels == tuple(f"L{i}" for i in range(12))


def test_labels_without_names():
    for files in ({}, {"config.json": {"num_labels": 3}}):
        assert read_task_settings(files, spec(3)).labels == ("LABEL_0", "LABEL_1", "LABEL_2")
    assert read_task_settings({"config.json": {"id2label": {"0": "a", "1": "b"}}}, spec()).labels == ()


@pytest.mark.parametrize("names", [{"0": "a"}, {"0": "a", "1": "b", "2": "c", "3": "d"}, {"1": "a", "2": "b", "3": "c"},
                                   {}])
def test_labels_that_contradict_the_head(names):
    with pytest.raises(ModelFileError, match=r"id2label.*expected .*name for e"):
        read_task_settings({"config.json": {"id2label": names}}, spec(3))


@pytest.mark.parametrize("names", [["a", "b"], {"x": "a"}, {"-1": "a"}, {"0": ["a"]}, {"0": "a", "00": "b"}, "ab",
                                   {"9" * 5000: "a"}, {"²": "a"}, {"0": None, "1": "b"}])
def test_labels_that_are_none(names):
    with pytest.raises(ModelFileError, match="id2label") as error:
        read_task_settings({"config.json": {"id2label": names}}, spec(2))
    assert len(str(error.value)) < 500


@pytest.mark.parametrize(("config", "expected"), [
    ({}, (None, None)),
    ({"problem_type": "regression"}, ("regression", None)),
    ({"problem_type": "multi_label_classification"}, ("multi", None)),
    ({"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}, (None, "none")),
    ({"sbert_ce_default_activation_function": "torch.nn.modules.activation.Sigmoid"}, (None, "sigmoid")),
    ({"sbert_ce_default_activation_function": "torch.nn.modules.activation.Tanh"},
     (None, "torch.nn.modules.activation.Tanh")),
    ({"sentence_transformers": {"activation_fn": "my_code.Squash", "version": "5"}}, (None, None)),
])
def test_how_scores_are_meant(config, expected):
    found = read_task_settings({"config.json": {"num_labels": 1, **config}}, spec(1))
    assert (found.problem, found.score_activation) == expected


# ---- hostile files


@pytest.mark.parametrize("files", [
    {"modules.json": "{"}, {"modules.json": {}}, {"modules.json": []}, {"modules.json": [1]},
    {"modules.json": [TRANSFORMER] * 100}, {"modules.json": [{"path": 3, "type": "x"}]},
    {"modules.json": [{"path": "", "type": None}]}, {"modules.json": [TRANSFORMER, {**POOLING, "path": "../x"}]},
    {"modules.json": [TRANSFORMER, {**POOLING, "path": "/etc"}]},
    {"modules.json": [TRANSFORMER, {**POOLING, "path": "a\x00b"}]},
    {"modules.json": [{**TRANSFORMER, "path": "a\\..\\b"}]}, {"modules.json": [{**TRANSFORMER, "path": "x" * 5000}]},
    {"1_Pooling/config.json": {"word_embedding_dimension": 9}}, {"1_Pooling/config.json": []},
    {"1_Pooling/config.json": {"pooling_mode_cls_token": "yes"}}, {"1_Pooling/config.json": {"pooling_mode": {}}},
    {"1_Pooling/config.json": {"pooling_mode": ["mean"] * 99}}, {"1_Pooling/config.json": {"include_prompt": 0}},
    {"1_Pooling/config.json": {"pooling_mode_mean_tokens": False}},
    {"modules.json": [TRANSFORMER, {**POOLING, "path": "gone"}]},
    {"modules.json": [TRANSFORMER, POOLING, {**DENSE, "path": "gone"}]}, {"2_Dense/config.json": {}},
    {"2_Dense/config.json": LAYER_OF_12 | {"in_features": 9}},
    {"2_Dense/config.json": LAYER_OF_12 | {"out_features": 10**12}},
    {"2_Dense/config.json": LAYER_OF_12 | {"out_features": -1}}, {"2_Dense/config.json": LAYER_OF_12 | {"bias": 1}},
    {"2_Dense/config.json": LAYER_OF_12 | {"activation_function": 7}},
    {"sentence_bert_config.json": {"max_seq_length": 0}}, {"sentence_bert_config.json": {"max_seq_length": "32"}},
    {"sentence_bert_config.json": {"do_lower_case": "no"}}, {"sentence_bert_config.json": [1]},
    {"config_sentence_transformers.json": {"prompts": ["a"]}},
    {"config_sentence_transformers.json": {"prompts": {"a": 1}}},
    {"config_sentence_transformers.json": {"prompts": {"a": "b"}, "default_prompt_name": "c"}},
    {"config_sentence_transformers.json": {"similarity_fn_name": "euclid"}},
    {"config_sentence_transformers.json": "[" * 100_000},
])
def test_damaged_files(tmp_path, files):
    with pytest.raises(ModelFileError) as error:
        settings(tmp_path, full(**files))
    assert len(str(error.value)) < 800


@pytest.mark.parametrize("config", [{"problem_type": "other"}, {"problem_type": 1}, {"sentence_transformers": [1]},
                                    {"sbert_ce_default_activation_function": 5},
                                    {"sentence_transformers": {"activation_fn": {}}}])
def test_damaged_configs(config):
    with pytest.raises(ModelFileError):
        read_task_settings({"config.json": config}, spec(2))


# ---- weights of dense layers


def arrays(rng, **changes):
    return {"linear.weight": rng.standard_normal((12, 8)).astype(np.float32),
            "linear.bias": rng.standard_normal(12).astype(np.float32), **changes}


def test_dense_weights(tmp_path):
    (tmp_path / "2_Dense").mkdir()
    stored = arrays(np.random.default_rng(0), **{"residual.weight": np.ones((12, 8), np.float32)})
    save_file(stored, tmp_path / "2_Dense" / "model.safetensors")
    found = dense_arrays(tmp_path, "2_Dense", 8, 12, True, True)
    assert {name: np.array_equal(found[name], stored[key]) for name, key in (
        ("weight", "linear.weight"), ("bias", "linear.bias"), ("residual", "residual.weight"))} == dict.fromkeys(
        ("weight", "bias", "residual"), True)
    assert set(dense_arrays(tmp_path, "2_Dense", 8, 12, False, False)) == {"weight"}


def test_dense_weights_of_torch(tmp_path):
    import torch

    (tmp_path / "2_Dense").mkdir()
    stored = arrays(np.random.default_rng(0))
    torch.save({name: torch.from_numpy(one).double() for name, one in stored.items()},
               tmp_path / "2_Dense" / "pytorch_model.bin")
    with pytest.raises(UnsupportedModelError, match="F64"):
        dense_arrays(tmp_path, "2_Dense", 8, 12, True, False)
    torch.save({name: torch.from_numpy(one) for name, one in stored.items()},
               tmp_path / "2_Dense" / "pytorch_model.bin")
    assert np.array_equal(dense_arrays(tmp_path, "2_Dense", 8, 12, True, False)["weight"], stored["linear.weight"])


@pytest.mark.parametrize("change", [
    {"linear.weight": np.zeros((8, 12), np.float32)}, {"linear.weight": np.full((12, 8), np.nan, np.float32)},
    {"linear.bias": np.zeros(8, np.float32)}])
def test_damaged_dense_weights(tmp_path, change):
    (tmp_path / "2_Dense").mkdir()
    with pytest.raises(ForwardpassError):
        dense_arrays(tmp_path, "2_Dense", 8, 12, True, False)  # no file at all
    save_file(arrays(np.random.default_rng(0), **change), tmp_path / "2_Dense" / "model.safetensors")
    with pytest.raises(ModelFileError, match=next(iter(change))):
        dense_arrays(tmp_path, "2_Dense", 8, 12, True, False)
