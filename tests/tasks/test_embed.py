"""Vectors against torch, by the files of sentence-transformers directories, and what makes no sense."""

import threading
import warnings
from functools import partial

import numpy as np
import pytest
from safetensors.numpy import save_file

import forwardpass
import tiny_readers
from forwardpass import ContextLengthError, ForwardpassError, ModelFileError, ParameterError, UnsupportedModelError
from forwardpass.tasks.quantizing import quantize
from forwardpass.weights import packed_file
from tiny_readers import ids_of, some_words, torch_hidden, words

TRANSFORMER = {"path": "", "type": "sentence_transformers.models.Transformer"}
POOLING = {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}
DENSE = {"path": "2_Dense", "type": "sentence_transformers.models.Dense"}
NORMALIZE = {"path": "3_Normalize", "type": "sentence_transformers.models.Normalize"}
PROMPTS = {"prompts": {"query": "w7 w8 ", "passage": "w9 "}}
load = partial(forwardpass.load, dtype="float32")
TEXTS = ["w1", "w2 w3 unhappy, w4.", some_words(30), "paris is in france", some_words(17, 1), "w1"]


def sentence_files(pooling="mean_tokens", modules=(POOLING, NORMALIZE), max_length=None, **settings):
    files = {"modules.json": [TRANSFORMER, *modules], "config_sentence_transformers.json": PROMPTS | settings,
             "1_Pooling/config.json": {"word_embedding_dimension": 24, "pooling_mode_mean_tokens": False,
                                       f"pooling_mode_{pooling}": True}}
    return files | ({"sentence_bert_config.json": {"max_seq_length": max_length}} if max_length else {})


@pytest.fixture(scope="module")
def torch_model():
    return tiny_readers.make("none")


@pytest.fixture(scope="module")
def folder(torch_model, tmp_path_factory):
    """folder(**settings of sentence_files) -> a new directory."""
    def write(tokenizer=None, files=None, **settings):
        return tiny_readers.save(torch_model, tmp_path_factory.mktemp("sentences") / "model",
                                 sentence_files(**settings) if files is None else files, tokenizer)
    return write


@pytest.fixture(scope="module")
def model(folder):
    with load(folder(max_length=20)) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def plain(folder):
    """Without any file that says how vectors are made."""
    with load(folder(files={})) as loaded:
        yield loaded


def unit(vectors):
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def rows(torch_model, text, limit=20):
    """Hidden states of a text of which the right is cut."""
    ids = ids_of(text)[0]
    return torch_hidden(torch_model, ids if len(ids) <= limit else [*ids[: limit - 1], ids[-1]])


def close(ours, theirs):
    return ours.shape == theirs.shape and np.abs(ours - theirs).max() < 2e-6 * max(1, np.abs(theirs).max())


@pytest.fixture(autouse=True)
def quiet():
    """Texts above the limit are meant here, unless a test looks at the warning."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "(.*texts are|the text is) longer")
        yield


def test_a_directory_works_as_it_is(model, torch_model):
    found = model.embed(TEXTS)
    assert found.dtype == np.float32 and found.flags.c_contiguous
    assert close(found, np.stack([unit(rows(torch_model, text).mean(0)) for text in TEXTS]))
    assert np.array_equal(found[0], found[-1])


def test_a_single_text_is_a_list_of_one(model):
    assert np.array_equal(model.embed("w1 w2"), model.embed(["w1 w2"])) and model.embed("w1").shape == (1, 24)


def test_the_same_bits_alone_in_any_company_and_order(model):
    texts = TEXTS + [some_words(n, n) for n in (1, 2, 3, 5, 8, 13, 16, 18)]
    together = model.embed(texts)
    for i, text in enumerate(texts):
        assert np.array_equal(model.embed([text])[0], together[i])
    assert np.array_equal(model.embed(texts[::-1])[::-1], together)
    for option in ({"output": "int8"}, {"output": "binary"}, {"dimensions": 7}, {"pooling": "max"}, {"overlap": 3}):
        together = model.embed(texts, **option)
        assert np.array_equal(np.concatenate([model.embed(text, **option) for text in texts]), together)


@pytest.mark.parametrize(("pooling", "expected"), [
    ("cls_token", lambda x: x[0]), ("lasttoken", lambda x: x[-1]), ("max_tokens", lambda x: x.max(0)),
    ("mean_sqrt_len_tokens", lambda x: x.sum(0) / len(x) ** 0.5),
    ("weightedmean_tokens", lambda x: (x * np.arange(1, len(x) + 1)[:, None]).sum(0) / (len(x) * (len(x) + 1) / 2))])
def test_the_pooling_that_the_files_name(folder, torch_model, pooling, expected):
    with load(folder(pooling=pooling, modules=[POOLING])) as model:
        ours = model.embed(TEXTS[:4], max_length=20)
        assert close(ours, np.stack([expected(rows(torch_model, text)) for text in TEXTS[:4]]))


def test_poolings_that_the_caller_names(model, torch_model):
    text = TEXTS[1]
    x = rows(torch_model, text)
    assert close(model.embed(text, pooling="last", normalize=False)[0], x[-1])
    both = model.embed(text, pooling=["max", "cls"], normalize=False)[0]
    assert close(both, np.concatenate([x.max(0), x[0]]))
    assert close(model.embed(text, pooling="lasttoken")[0], unit(x[-1]))


def test_without_files_the_mean_and_a_warning(plain, torch_model):
    with pytest.warns(UserWarning, match=r"1_Pooling/config.json.*'mean'"):
        first = plain.embed("w1 w2")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = plain.embed("w1 w2")  # once is enough
        named = plain.embed("w1 w2", pooling="mean")
    assert close(first[0], rows(torch_model, "w1 w2").mean(0))
    assert np.array_equal(first, again) and np.array_equal(first, named)


@pytest.mark.parametrize("residual", [False, True])
def test_dense_layers(folder, torch_model, residual):
    """Two of them, behind two poolings: tanh(W x + b), then V y, with what went in added through R."""
    import torch

    rng = np.random.default_rng(4)
    first = {"linear.weight": rng.standard_normal((16, 48)), "linear.bias": rng.standard_normal(16)}
    second = {"linear.weight": rng.standard_normal((10, 16)), "residual.weight": rng.standard_normal((10, 16))}
    modules = [POOLING, DENSE, {**DENSE, "path": "3_Dense"}, {**NORMALIZE, "path": "4_Normalize"}]
    path = folder(files=sentence_files(modules=modules) | {
        "1_Pooling/config.json": {"pooling_mode": ["cls", "mean"]},
        "2_Dense/config.json": {"in_features": 48, "out_features": 16, "bias": True},
        "3_Dense/config.json": {"in_features": 16, "out_features": 10, "bias": False, "use_residual": residual,
                                "activation_function": "torch.nn.modules.activation.GELU"}})
    for name, arrays in (("2_Dense", first), ("3_Dense", second)):
        save_file({key: one.astype(np.float32) for key, one in arrays.items()}, path / name / "model.safetensors")
    expected = []
    for text in TEXTS[:4]:
        x = rows(torch_model, text, 40)
        y = np.tanh(first["linear.weight"] @ np.concatenate([x[0], x.mean(0)]) + first["linear.bias"])
        z = torch.nn.functional.gelu(torch.from_numpy(second["linear.weight"] @ y)).numpy()
        expected.append(unit(z + second["residual.weight"] @ y if residual else z))
    with load(path) as model:
        found = model.embed(TEXTS[:4])
        assert close(found, np.stack(expected).astype(np.float32)) and found.shape == (4, 10)
        assert np.array_equal(np.concatenate([model.embed(text) for text in TEXTS[:4]]), found)
        with pytest.raises(ParameterError, match=r"vectors of 24.*takes 48"):
            model.embed("w1", pooling="cls")


def test_a_packed_model_does_all_of_that_without_the_directory(folder, tmp_path):
    """Prompts, pooling, dense layers and limits go into the file."""
    files = sentence_files(modules=[POOLING, DENSE, NORMALIZE], max_length=20, default_prompt_name="query")
    files["1_Pooling/config.json"]["include_prompt"] = False
    path = folder(files=files | {"2_Dense/config.json": {"in_features": 24, "out_features": 16, "use_residual": True}})
    rng = np.random.default_rng(6)
    save_file({name: rng.standard_normal(shape).astype(np.float32) for name, shape in (
        ("linear.weight", (16, 24)), ("linear.bias", (16,)), ("residual.weight", (16, 24)))},
        path / "2_Dense" / "model.safetensors")
    with load(path) as model:
        expected, settings = model.embed(TEXTS), model.settings
    quantize(path, tmp_path / "m.fpk", "float32", 1)
    with forwardpass.load(tmp_path / "m.fpk") as packed:
        assert packed.settings == settings and np.array_equal(packed.embed(TEXTS), expected)


def test_a_packed_model_with_hostile_files(folder, tmp_path):
    """The head's checksum is right: whoever wrote it meant it."""
    quantize(folder(), tmp_path / "m.fpk", "float32", 1)
    head, start, _ = packed_file.read_head(tmp_path / "m.fpk")
    body = (tmp_path / "m.fpk").read_bytes()[start:]
    dense = {"modules.json": [TRANSFORMER, POOLING, DENSE], "1_Pooling/config.json": {},
             "2_Dense/config.json": {"in_features": 24, "out_features": 2**24}}
    for files in ([1], {"modules.json": {}}, {"config.json": [1]}, dense, {"modules.json": [TRANSFORMER, 5]},
                  {"1_Pooling/config.json": 3}, {"transformer": []}):
        (tmp_path / "x.fpk").write_bytes(packed_file.beginning({**head, "files": files}) + body)
        with pytest.raises(ModelFileError):
            forwardpass.load(tmp_path / "x.fpk")


def test_the_same_directory_with_the_transformer_in_a_folder(folder, model, tmp_path):
    old = folder(max_length=20)
    inner = tmp_path / "0_BERT"
    inner.mkdir()
    for path in old.iterdir():
        if path.name not in ("modules.json", "config_sentence_transformers.json", "1_Pooling"):
            path.rename(inner / path.name)
        else:
            path.rename(tmp_path / path.name)
    text = (tmp_path / "modules.json").read_text().replace('"path": ""', '"path": "0_BERT"', 1)
    (tmp_path / "modules.json").write_text(text)
    with load(tmp_path) as moved:
        assert np.array_equal(moved.embed(TEXTS), model.embed(TEXTS))


# ---- limits


def test_the_limit_is_that_of_the_files(folder, torch_model):
    """max_seq_length first, then the tokenizer's, then the positions there are; tokenizer.json's 7 never."""
    text = some_words(60)
    whole = rows(torch_model, text, 40)
    for made, limit in ((folder(max_length=20), 20), (folder(max_length=20, tokenizer={"model_max_length": 10}), 20),
                        (folder(tokenizer={"model_max_length": 10}), 10), (folder(max_length=500), 40),
                        (folder(tokenizer={"model_max_length": 1e30}), 40)):
        with load(made) as model, pytest.warns(UserWarning, match=f"longer than {limit} tokens"):
            assert close(model.embed(text)[0], unit(rows(torch_model, text, limit).mean(0)))
            assert len(whole) == 40


def test_what_was_cut_is_told(model):
    with pytest.warns(UserWarning, match="cut") as told:
        model.embed(some_words(30))
    assert told[0].filename == __file__  # the line of the caller
    with pytest.warns(UserWarning, match=r"2 of 3 texts are longer than 20 tokens: cut on the right, 18 tokens left"):
        model.embed([some_words(30), "w1", some_words(24)])
    with pytest.warns(UserWarning, match=r"the text is longer than 5 tokens: cut on the left, 1 tokens"):
        model.embed(words(1, 2, 3, 4), max_length=5, truncation="left")


def test_texts_that_are_equal_as_far_as_they_are_read(model):
    base = list(range(1, 26))
    other = [*base[:22], 30, *base[23:]]
    assert np.array_equal(model.embed(words(*base)), model.embed(words(*other)))
    assert not np.array_equal(model.embed(words(*base), max_length=40), model.embed(words(*other), max_length=40))
    assert np.array_equal(model.embed(words(*base[-18:])), model.embed(words(*base), truncation="left"))


def test_the_side_that_the_tokenizer_names(folder):
    with load(folder(max_length=8, tokenizer={"truncation_side": "left"})) as model:
        assert np.array_equal(model.embed(words(*range(1, 20))), model.embed(words(*range(14, 20))))


def test_refusing_to_cut(model):
    with pytest.raises(ContextLengthError, match="text 1 has 32 tokens, the limit is 20"):
        model.embed(["w1", some_words(30)], truncation="error")


def test_split_and_pooled(model, torch_model):
    """26 words in parts of 18 that share 4: 1..18 and 15..26, of 20 and 14 tokens."""
    text = list(range(1, 27))
    parts = [unit(rows(torch_model, words(*part)).mean(0)) for part in (text[:18], text[14:])]
    assert close(model.embed(words(*text), overlap=4)[0], unit((20 * parts[0] + 14 * parts[1]) / 34))
    assert np.array_equal(model.embed("w1 w2", overlap=4), model.embed("w1 w2"))
    with pytest.raises(ParameterError, match="one of them"):
        model.embed("w1", overlap=1, truncation="left")
    with pytest.raises(ParameterError, match="overlap must be from 0 to 17"):
        model.embed("w1", overlap=18)


# ---- token ids


def test_token_ids_are_read_as_they_are(model, torch_model):
    ids = [ids_of(text)[0] for text in TEXTS[:2]]
    for texts in (ids, tuple(map(tuple, ids)), [np.array(one, np.int64) for one in ids]):
        assert np.array_equal(model.embed(texts), model.embed(TEXTS[:2]))
    bare = [7, 9, 11]  # no special tokens are put around them
    assert close(model.embed(bare), unit(torch_hidden(torch_model, bare).mean(0))[None])
    assert np.array_equal(model.embed(bare), model.embed([bare]))
    assert np.array_equal(model.embed(np.array(bare)), model.embed([bare]))


def test_a_default_prompt_is_not_for_token_ids(folder):
    files = sentence_files(default_prompt_name="query")
    files["1_Pooling/config.json"]["include_prompt"] = False
    with load(folder(files=files)) as model:
        assert np.array_equal(model.embed([2, 5, 6, 3]), model.embed("w1 w2", prompt=""))


def test_token_ids_that_are_too_many(model):
    whole = ids_of(some_words(30))[0]
    for side in ("right", "left"):
        with pytest.warns(UserWarning, match=f"longer than 20 tokens: cut on the {side}, 12 tokens") as told:
            found = model.embed(whole, truncation=side)
        assert told[0].filename == __file__
        assert np.array_equal(found, model.embed(some_words(30), truncation=side))  # around it stays what was around it
    bare = whole[1:-1]
    assert np.array_equal(model.embed(bare, max_length=8), model.embed(bare[:8]))
    with pytest.raises(ContextLengthError, match="text 1 has 32 tokens, the limit is 20"):
        model.embed([bare[:3], whole], truncation="error")


@pytest.mark.parametrize(("ids", "change", "words_in_it"), [
    ([[2, 3], [2, 46]], {}, r"text 1: token 1 .* 46; expected an id from 0 to 45"), ([2, -1], {}, "token 1 .* -1"),
    ([2, 2**63], {}, "token 1 "), ([2, 3], {"prompt": "query"}, "prompt is for texts"),
    ([2, 3], {"overlap": 2}, "overlap is for texts")])
def test_wrong_token_ids(model, ids, change, words_in_it):
    with pytest.raises(ParameterError, match=words_in_it):
        model.embed(ids, **change)


# ---- prompts


def test_prompts(model):
    for name, text in (("query", "w7 w8 w1"), ("passage", "w9 w1"), ("w5: ", "w5: w1"), ("", "w1"), (None, "w1")):
        assert np.array_equal(model.embed("w1", prompt=name), model.embed(text))
    with pytest.raises(ParameterError, match=r"no prompt 'document'.*query, passage"):
        model.embed("w1", prompt="document")
    with pytest.raises(ParameterError, match="prompt must be a text"):
        model.embed("w1", prompt=3)


def test_the_default_prompt(folder, model):
    with load(folder(max_length=20, default_prompt_name="passage")) as other:
        assert np.array_equal(other.embed("w1"), model.embed("w9 w1"))
        assert np.array_equal(other.embed("w1", prompt=""), model.embed("w1"))


def test_a_prompt_that_is_not_pooled(folder, torch_model):
    files = sentence_files()
    files["1_Pooling/config.json"]["include_prompt"] = False
    with load(folder(files=files)) as model:
        x = rows(torch_model, "w7 w8 w1 w2", 40)
        assert close(model.embed("w1 w2", prompt="query")[0], unit(x[3:].mean(0)))
        assert close(model.embed("w7 w8 w1 w2")[0], unit(x.mean(0)))
        short = rows(torch_model, words(7, 8, *range(1, 11)), 8)
        assert close(model.embed(words(*range(1, 11)), prompt="query", max_length=8)[0], unit(short[3:].mean(0)))


def test_every_part_of_a_split_text_has_the_prompt(model):
    text = list(range(1, 21))
    parts = [model.embed(words(*part), prompt="query")[0] for part in (text[:16], text[16:])]
    assert close(model.embed(words(*text), prompt="query", overlap=0)[0], unit((20 * parts[0] + 8 * parts[1]) / 28))


def test_texts_are_prepared_as_the_files_say(folder):
    files = sentence_files() | {"sentence_bert_config.json": {"do_lower_case": True}}
    with load(folder(files=files)) as model:
        assert np.array_equal(model.embed(["  PARIS is\n"]), model.embed(["paris is"]))


# ---- outputs


def test_fewer_dimensions(model):
    whole, cut = model.embed(TEXTS), model.embed(TEXTS, dimensions=9)
    assert close(cut, unit(whole[:, :9])) and np.allclose(np.linalg.norm(cut, axis=1), 1, atol=1e-6)
    assert np.array_equal(model.embed(TEXTS, dimensions=9, normalize=False),
                          model.embed(TEXTS, normalize=False)[:, :9])
    for wrong in (0, 25, 2.0, True, "9"):
        with pytest.raises(ParameterError, match="dimensions must be a whole number from 1 to 24"):
            model.embed("w1", dimensions=wrong)


def test_small_outputs(model):
    whole = model.embed(TEXTS)
    small = model.embed(TEXTS, output="int8")
    assert small.dtype == np.int8 and (np.abs(small).max(1) == 127).all()
    assert ((unit(small.astype(float)) * whole).sum(1) > 0.999).all()
    bits = model.embed(TEXTS, output="binary")
    assert bits.dtype == np.uint8 and bits.shape == (6, 3)
    assert np.array_equal(np.unpackbits(bits, axis=1), whole > 0)
    with pytest.raises(ParameterError, match="float32, int8, binary"):
        model.embed("w1", output="float16")


def test_normalize(model, plain, torch_model):
    assert close(model.embed("w1 w2", normalize=False)[0], rows(torch_model, "w1 w2").mean(0))
    assert close(plain.embed("w1 w2", pooling="mean", normalize=True)[0], unit(rows(torch_model, "w1 w2").mean(0)))


# ---- similarity


@pytest.mark.parametrize("kind", ["cosine", "dot", "euclidean", "manhattan"])
def test_similarity(folder, kind):
    rng = np.random.default_rng(2)
    a, b = rng.standard_normal((3, 24)).astype(np.float32), rng.standard_normal((5, 24)).astype(np.float32)
    expected = {"cosine": unit(a) @ unit(b).T, "dot": a @ b.T, "euclidean": -np.linalg.norm(a[:, None] - b, axis=2),
                "manhattan": -np.abs(a[:, None] - b).sum(2)}[kind]
    with load(folder(similarity_fn_name=kind)) as model:
        found = model.similarity(a, b)
        assert found.shape == (3, 5) and found.dtype == np.float32 and np.allclose(found, expected, atol=1e-5)
        assert np.array_equal(model.similarity(a[1], b[2:3]), found[1:2, 2:3])
        for wrong in (b[:, :5], b[0:0], b[None], None, "a", [[1, 2], [3]], b.astype(complex), b.astype(object), 3.0):
            with pytest.raises(ParameterError, match="similarity"):
                model.similarity(a, wrong)


def test_similarity_of_small_outputs(model):
    """Bits that are set are 1, the others -1: the cosine of 24 bits of which n differ is 1 - 2 n / 24."""
    vectors = model.embed(TEXTS)
    bits, small = model.embed(TEXTS, output="binary"), model.embed(TEXTS, output="int8")
    differ = np.unpackbits(bits[:, None] ^ bits, axis=2).sum(2)
    assert differ.max() > 0 and np.allclose(model.similarity(bits, bits), 1 - differ / 12, atol=1e-6)
    assert np.allclose(model.similarity(vectors, bits), vectors @ np.where(vectors > 0, 1, -1).T / 24**0.5, atol=1e-6)
    assert np.allclose(model.similarity(vectors, small), model.similarity(vectors, vectors), atol=0.02)


def test_arrays_of_texts(model):
    expected = model.embed(["w1", "w2 w3"])
    for texts in (("w1", "w2 w3"), np.array(["w1", "w2 w3"]), np.array(["w1", "w2 w3"], object)):
        assert np.array_equal(model.embed(texts), expected)


# ---- what makes no sense


@pytest.mark.parametrize(("texts", "words_in_it"), [
    ([], "empty list"), (None, "NoneType"), (3, "int"), (b"ab", "bytes"), ({"a": 1}, "dict"), (["w1", 2], "int at 1"),
    ([["w1", "w2"]], "list at 0"), (["w1", None], "NoneType at 1"), (iter(["a"]), "iterator"),
    (np.array("w1"), "ndarray"), (np.array([1.0, 2.0]), "float64 at 0"),
    ([[2, 3], "w1"], "list at 0"), ([2, "w1"], "int at 0"), ([[2], []], "list at 0"), ([[]], "list at 0"),
    ([True], "bool at 0"), (["w1", "w2 \ud800"], "text 1.*surrogate")])
def test_texts_of_a_wrong_kind(model, texts, words_in_it):
    with pytest.raises(ParameterError, match=words_in_it):
        model.embed(texts)


def test_other_wrong_arguments(model):
    for change, words_in_it in (({"max_length": 41}, "from 1 to 40"), ({"max_length": 0}, "from 1 to 40"),
                                ({"truncation": "middle"}, "right, left, error"), ({"pooling": "median"}, "median"),
                                ({"pooling": []}, "empty list"), ({"pooling": 3}, "not 3"),
                                ({"pooling": [["mean"]]}, "not .'mean'"), ({"pooling": {"mean": 1}}, "must be one of"),
                                ({"normalize": "yes"}, "normalize must be True or False"),
                                ({"overlap": -1}, "overlap")):
        with pytest.raises(ParameterError, match=words_in_it):
            model.embed("w1", **change)
    with pytest.raises(ContextLengthError, match="limit is 1"):
        model.embed("w1", max_length=1)
    with pytest.raises(TypeError):
        model.embed("w1", poling="cls")


def test_an_empty_text_is_its_special_tokens(model, torch_model):
    assert close(model.embed("")[0], unit(torch_hidden(torch_model, [2, 3]).mean(0)))


def test_an_empty_text_without_special_tokens(torch_model, tmp_path):
    path = tiny_readers.save(torch_model, tmp_path, special=False)
    with load(path) as model, pytest.raises(ParameterError, match="text 1 has no tokens"):
        model.embed(["w1", ""], pooling="mean")


def test_vectors_through_modules_of_another_kind(folder):
    files = sentence_files(modules=[POOLING, {"path": "2_CNN", "type": "sentence_transformers.models.CNN"}])
    with (load(folder(files=files)) as model,
          pytest.raises(UnsupportedModelError, match=r"cannot embed: modules.json.*CNN.*this model can hidden_states")):
        model.embed("w1")


def test_half_of_a_directory(folder):
    for name, words_in_it in (("1_Pooling/config.json", "1_Pooling/config.json: expected the settings of a module"),
                              ("model.safetensors", "safetensors"), ("config.json", "config.json")):
        path = folder()
        (path / name).unlink()
        with pytest.raises(ForwardpassError, match=words_in_it):
            load(path)
    path = folder()
    (path / "modules.json").unlink()  # some repositories have lost it
    with load(path) as model:
        assert model.settings.pooling == ("mean",)


def test_states_have_no_source(model):
    for call in (lambda: model.hidden_states([5], source_ids=[5]),
                 lambda: model.hidden_states([5], [0], source_ids=[5])):
        with pytest.raises(ParameterError, match="source_ids"):
            call()


def test_a_closed_model(folder):
    model = load(folder())
    vectors = model.embed("w1")
    model.close()
    for call in (lambda: model.embed("w1"), lambda: model.similarity(vectors, vectors)):
        with pytest.raises(ParameterError, match="closed"):
            call()


# ---- decoders


def test_a_decoder_takes_its_last_token(tiny):
    with pytest.warns(UserWarning, match="'last'"):
        found = tiny.embed(["hello there", "x"])
    for text, vector in zip(["hello there", "x"], found, strict=True):
        ids = tiny.tokenizer.encode(text, add_special_tokens=True, parse_special=True)
        assert np.array_equal(tiny.hidden_states(ids)[-1], vector)
    long = "the same text " * 8
    ids = tiny.tokenizer.encode(long, add_special_tokens=True, parse_special=True)
    assert np.allclose(tiny.embed(long, pooling="mean")[0], tiny.hidden_states(ids).mean(0), atol=1e-5)


def test_threads_share_steps(model):
    """Texts of several callers go through the model together; each gets what it gets alone."""
    lists = [[some_words(1 + (7 * i + j) % 18, i * 10 + j) for j in range(12)] for i in range(4)]
    expected = [model.embed(texts) for texts in lists]
    found = {}

    def ask(i):
        found[i] = [model.embed(lists[i]), np.concatenate([model.embed(text) for text in lists[i]])]

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for i, vectors in enumerate(expected):
        assert all(np.array_equal(one, vectors) for one in found[i])
