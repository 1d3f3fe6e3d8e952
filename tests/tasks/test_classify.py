"""Labels, relevance and inference against torch and transformers' pipelines, and what makes no sense."""

from functools import partial

import numpy as np
import pytest

import forwardpass
import tiny_readers
from forwardpass import ContextLengthError, ModelFileError, ParameterError, UnsupportedModelError
from forwardpass.tasks.abilities import inference_labels
from tiny_readers import ids_of, some_words, torch_scores, words

load = partial(forwardpass.load, dtype="float32")
LABELS = {"0": "NEGATIVE", "1": "NEUTRAL", "2": "POSITIVE"}
TEXTS = ["w1 w2", some_words(12), "paris is in france.", ("w1", "w2 w3"), (some_words(5), some_words(20, 1))]


@pytest.fixture(scope="module")
def three():
    return tiny_readers.make("labels", 3)


@pytest.fixture(scope="module")
def one():
    return tiny_readers.make("labels", 1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return lambda model, **more: tiny_readers.save(model, tmp_path_factory.mktemp("labels") / "model", **more)


@pytest.fixture(scope="module")
def model(folder, three):
    with load(folder(three, id2label=LABELS)) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def ranker(folder, one):
    with load(folder(one, files={"modules.json": [{"path": "", "type": "sentence_transformers.models.Transformer"}]},
                     sentence_transformers={"activation_fn": "torch.nn.modules.linear.Identity"})) as loaded:
        yield loaded


def softmax(x):
    x = np.exp(x - x.max())
    return x / x.sum()


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def raw(torch_model, text):
    return torch_scores(torch_model, *ids_of(*([text] if isinstance(text, str) else text)))


def same(ours, names, scores):
    """(label, score) pairs, best first."""
    order = sorted(range(len(scores)), key=lambda i: -scores[i])
    return [label for label, _ in ours] == [names[i] for i in order] \
        and np.allclose([score for _, score in ours], [scores[i] for i in order], atol=2e-6)


# ---- classify


def test_texts_and_pairs(model, three):
    found = model.classify(TEXTS)
    for text, ranked in zip(TEXTS, found, strict=True):
        assert same(ranked, list(LABELS.values()), softmax(raw(three, text)))
    assert model.classify(list(map(list, TEXTS[3:]))) == found[3:]
    assert model.classify("w1 w2") == found[:1]


def test_as_the_pipeline_of_transformers(model, three):
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(model.path)
    three.config.id2label = {int(i): name for i, name in LABELS.items()}
    pipeline = transformers.pipeline("text-classification", model=three, tokenizer=tokenizer, top_k=None)
    texts = [text for text in TEXTS if isinstance(text, str)]
    pairs = [{"text": a, "text_pair": b} for a, b in TEXTS[3:]]
    for ours, theirs in zip(model.classify(TEXTS), pipeline(texts) + pipeline(pairs), strict=True):
        assert [label for label, _ in ours] == [each["label"] for each in theirs]
        assert np.allclose([score for _, score in ours], [each["score"] for each in theirs], atol=1e-5)


def test_the_same_bits_alone_in_any_company_and_order(model, ranker):
    found = model.classify(TEXTS)
    assert [model.classify([text])[0] for text in TEXTS] == found and model.classify(TEXTS[::-1])[::-1] == found
    documents = [some_words(n, n) for n in (3, 9, 1, 17)]
    scores = dict(ranker.rerank("w1 w2", documents))
    assert [ranker.rerank("w1 w2", [one])[0][1] for one in documents] == [scores[i] for i in range(4)]


def test_the_second_text_has_types_of_its_own(model, three):
    assert model.classify([("w1 w2", "w3")]) != model.classify([("w3", "w1 w2")])
    ids, _ = ids_of("w1 w2", "w3")
    assert not same(model.classify([("w1 w2", "w3")])[0], list(LABELS.values()), softmax(torch_scores(three, ids)))


def test_the_best_few(model):
    whole = model.classify("w1 w2")[0]
    assert [model.classify("w1 w2", top_k=k)[0] for k in (1, 2, 3, 9)] == [whole[:1], whole[:2], whole, whole]
    for wrong in (0, -1, 1.5, True, "1"):
        with pytest.raises(ParameterError, match="top_k"):
            model.classify("w1", top_k=wrong)


@pytest.mark.parametrize(("problem", "expected"), [
    (None, softmax), ("single_label_classification", softmax), ("multi_label_classification", sigmoid),
    ("regression", lambda x: x)])
def test_scores_by_the_kind_of_problem(folder, three, problem, expected):
    with load(folder(three, id2label=LABELS, problem_type=problem)) as model:
        scores = raw(three, "w1 w2")
        assert same(model.classify("w1 w2")[0], list(LABELS.values()), expected(scores))
        assert same(model.classify("w1 w2", activation="none")[0], list(LABELS.values()), scores)
        with pytest.raises(ParameterError, match="softmax, sigmoid, none"):
            model.classify("w1", activation="tanh")


@pytest.mark.parametrize(("config", "expected"), [
    ({}, sigmoid), ({"problem_type": "regression"}, lambda x: x),
    ({"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}, lambda x: x)])
def test_one_label(folder, one, config, expected):
    with load(folder(one, **config)) as model:
        assert same(model.classify("w1 w2")[0], ["LABEL_0"], expected(raw(one, "w1 w2")))


def test_labels_go_by_number(folder):
    """Twelve of them, written in an order that is not theirs."""
    made = tiny_readers.make("labels", 12)
    names = {str(i): f"name {i}" for i in (11, 2, 10, 0, 1, 9, 3, 8, 4, 7, 5, 6)}
    with load(folder(made, id2label=names)) as model:
        assert same(model.classify("w1")[0], [f"name {i}" for i in range(12)], softmax(raw(made, "w1")))


def test_labels_that_contradict_the_head(folder, three):
    path = folder(three, id2label={"0": "a", "1": "b"})
    with pytest.raises(ModelFileError, match="label"):
        load(path)


# ---- pairs that are too long


@pytest.mark.parametrize(("side", "kind"), [("left", "longest_first"), ("left", "only_second"),
                                            ("right", "longest_first"), ("right", "only_second")])
def test_ids_and_types_are_cut_together(model, three, side, kind):
    """3 and 20 words in 10 tokens: the second keeps 4 of its own."""
    first, second = words(1, 2, 3), list(range(4, 24))
    kept = second[-4:] if side == "left" else second[:4]
    with pytest.warns(UserWarning, match=rf"longer than 10 tokens: cut on the {side}.*16 tokens"):
        found = model.classify([(first, words(*second))], max_length=10, truncation=side, pair_truncation=kind)
    assert same(found[0], list(LABELS.values()), softmax(raw(three, (first, words(*kept)))))


def test_pairs_that_cannot_be_cut(model):
    long = words(*range(1, 21))
    for options in ({"pair_truncation": "only_second"}, {"truncation": "error"}):
        with pytest.raises(ContextLengthError, match="limit is 10"):
            model.classify([(long, "w1")], max_length=10, **options)
    with pytest.raises(ParameterError, match="longest_first, only_first, only_second"):
        model.classify([("w1", "w2")], pair_truncation="both")


# ---- rerank


def test_documents_by_relevance(ranker, one):
    documents = [some_words(n, n) for n in (3, 9, 1, 17)]
    expected = [float(raw(one, (" w1 w2".strip(), text))[0]) for text in documents]
    found = ranker.rerank(" w1 w2", [f"{text}\n" for text in documents])
    assert [i for i, _ in found] == sorted(range(4), key=lambda i: -expected[i])
    assert np.allclose([score for _, score in found], sorted(expected, reverse=True), atol=2e-6)
    assert ranker.rerank("w1 w2", documents, top_k=2) == found[:2]
    through = ranker.rerank("w1 w2", documents, activation="sigmoid")
    assert np.allclose([score for _, score in through], sigmoid(np.sort(expected)[::-1]), atol=1e-6)


@pytest.mark.parametrize(("config", "expected"), [
    ({}, sigmoid), ({"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}, lambda x: x),
    ({"problem_type": "regression"}, sigmoid)])
def test_scores_as_a_cross_encoder_names_them(folder, one, config, expected):
    with load(folder(one, **config)) as model:
        score = expected(raw(one, ("w1", "w2"))[0])
        assert np.isclose(model.rerank("w1", ["w2"])[0][1], score, atol=2e-6)


def test_equal_documents_keep_their_order(ranker):
    assert [i for i, _ in ranker.rerank("w1", ["w2", "w2", "w2"])] == [0, 1, 2]


def test_an_activation_that_is_not_implemented(folder, one):
    path = folder(one, sentence_transformers={"activation_fn": "torch.nn.modules.activation.Tanh"})
    with load(path) as model:
        with pytest.raises(UnsupportedModelError, match="Tanh"):
            model.rerank("w1", ["w2"])
        assert np.isclose(model.rerank("w1", ["w2"], activation="none")[0][1], raw(one, ("w1", "w2"))[0], atol=2e-6)


def test_one_text_out_of_a_template(ranker, one):
    """[SEP] of the template is the token; what a document spells out is not."""
    found = ranker.rerank("w1", ["w2 [SEP]", "w3"], template="{query} is [SEP] {document}", activation="none")
    ids = [2, ids_of("w1")[0][1], ids_of("is")[0][1], 3, *ids_of("w3")[0][1:]]
    assert np.isclose(dict(found)[1], torch_scores(one, ids)[0], atol=2e-6)
    plain = [2, ids_of("w1")[0][1], ids_of("is")[0][1], 3, ids_of("w2")[0][1], 1, 1, 1, 3]
    assert np.isclose(dict(found)[0], torch_scores(one, plain)[0], atol=2e-6)
    with pytest.warns(UserWarning, match=r"of 2 texts are longer than 8 tokens: cut on the right of the document, 10"
                      ) as told:
        cut = ranker.rerank("w1", [words(*range(1, 14)), "w3"], template="{query} is [SEP] {document}", max_length=8)
    assert len(cut) == 2 and told[0].filename == __file__
    for wrong in ("{query}", "{document} {document} {query}", 3):
        with pytest.raises(ParameterError, match="template"):
            ranker.rerank("w1", ["w2"], template=wrong)


def test_a_decoder_that_scores_one_text(tmp_path):
    """Through a template; the score is that of the last token."""
    import torch
    import transformers

    torch.manual_seed(3)
    config = transformers.Qwen3Config(vocab_size=46, hidden_size=24, num_hidden_layers=2, num_attention_heads=2,
                                      num_key_value_heads=1, head_dim=12, intermediate_size=40, num_labels=1,
                                      max_position_embeddings=64, pad_token_id=0, initializer_range=0.2,
                                      tie_word_embeddings=False)
    made = transformers.Qwen3ForSequenceClassification(config).eval()
    tiny_readers.save(made, tmp_path, special=False)
    with load(tmp_path) as model:
        assert {"classify", "rerank", "embed"} <= set(model.tasks) and "generate" not in model.tasks
        found = dict(model.rerank("w1", ["w2 w3", "w4"], template="{query} is {document} .", activation="none"))
        for i, text in enumerate(("w1 is w2 w3 .", "w1 is w4 .")):
            ids = ids_of(text)[0][1:-1]
            assert np.isclose(found[i], torch_scores(made, ids)[0], atol=2e-5)


@pytest.mark.parametrize(("query", "documents", "words_in_it"), [
    (3, ["a"], "query must be a text"), ("a", [], "documents: expected at least one"), ("a", [1], "int at 0"),
    ("a", None, "documents must be")])
def test_wrong_questions(ranker, query, documents, words_in_it):
    with pytest.raises(ParameterError, match=words_in_it):
        ranker.rerank(query, documents)


# ---- zero_shot


@pytest.fixture(scope="module")
def nli(folder, three):
    with load(folder(three, id2label={"0": "CONTRADICTION", "1": "neutral", "2": "entailment"})) as loaded:
        yield loaded


TOPICS = ["paris", "france", "w5"]


@pytest.mark.parametrize("multi", [False, True])
def test_labels_of_ones_own(nli, three, multi):
    pairs = [raw(three, ("w1 w2", f"w9 is {label}.")) for label in TOPICS]
    expected = [softmax(row[[0, 2]])[1] for row in pairs] if multi else softmax(np.array([row[2] for row in pairs]))
    options = {"hypothesis_template": "w9 is {}.", "multi_label": multi}
    found = nli.zero_shot("w1 w2", TOPICS, **options)
    assert same(found, TOPICS, np.array(expected))
    assert nli.zero_shot(["w3", "w1 w2"], TOPICS, **options)[1] == found
    assert nli.zero_shot("w1 w2", "paris", **options) == nli.zero_shot("w1 w2", ["paris"], **{**options,
                                                                                             "multi_label": True})


def test_as_the_zero_shot_pipeline(nli, three):
    import transformers

    three.config.label2id = {"CONTRADICTION": 0, "neutral": 1, "entailment": 2}
    three.config.id2label = {i: name for name, i in three.config.label2id.items()}
    tokenizer = transformers.AutoTokenizer.from_pretrained(nli.path, model_max_length=40)
    pipeline = transformers.pipeline("zero-shot-classification", model=three, tokenizer=tokenizer)
    for multi in (False, True):
        theirs = pipeline("w1 w2", TOPICS, multi_label=multi, hypothesis_template="w9 {} w8")
        ours = nli.zero_shot("w1 w2", TOPICS, multi_label=multi, hypothesis_template="w9 {} w8")
        assert [label for label, _ in ours] == theirs["labels"]
        assert np.allclose([score for _, score in ours], theirs["scores"], atol=1e-5)


def test_the_text_is_cut_and_the_hypothesis_never(nli):
    with pytest.warns(UserWarning, match="the text is longer than 9 tokens: cut on the right, 25 tokens") as told:
        long = nli.zero_shot(words(*range(1, 31)), TOPICS, hypothesis_template="{}", max_length=9)
    assert long == nli.zero_shot(words(*range(1, 6)), TOPICS, hypothesis_template="{}")
    assert len(told) == 1 and told[0].filename == __file__
    with pytest.warns(UserWarning, match="1 of 2 texts are longer than 9 tokens"):  # not of 2 times 3 pairs
        nli.zero_shot(["w1", words(*range(1, 31))], TOPICS, hypothesis_template="{}", max_length=9)


@pytest.fixture(scope="module")
def bart(tmp_path_factory):
    """(the model, transformers' own): an encoder-decoder with labels, whose decoder reads the text once more."""
    import torch
    import transformers

    torch.manual_seed(8)
    config = transformers.BartConfig(
        vocab_size=46, d_model=24, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2, num_labels=3,
        decoder_attention_heads=2, encoder_ffn_dim=40, decoder_ffn_dim=40, max_position_embeddings=40, init_std=0.2,
        pad_token_id=0, bos_token_id=2, eos_token_id=3, decoder_start_token_id=3, forced_eos_token_id=None)
    made = transformers.BartForSequenceClassification(config)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    path = tmp_path_factory.mktemp("bart")
    tiny_readers.save(made.eval(), path, tokenizer={"eos_token": "[SEP]"},
                      id2label={"0": "contradiction", "1": "neutral", "2": "entailment"})
    with load(path) as loaded:
        yield loaded, made


def bart_scores(made, text):
    """Pairs as the tokenizer of these tests writes them; torch scores the last of several end tokens."""
    import torch

    ids, _ = ids_of(*([text] if isinstance(text, str) else text))
    with torch.no_grad():
        return made(input_ids=torch.tensor([ids])).logits[0].numpy()


def test_an_encoder_decoder_with_labels(bart):
    model, made = bart
    assert model.tasks == ("embed", "classify", "zero_shot", "logits", "hidden_states")
    texts = ["w1 w2 w3", some_words(20, 5), ("w1", "w2 w3")]
    found = model.classify(texts)
    for text, ranked in zip(texts, found, strict=True):
        assert same(ranked, model.settings.labels, softmax(bart_scores(made, text)))
    assert [model.classify([text])[0] for text in texts] == found
    ids, _ = ids_of("w1 w2 w3")
    assert np.allclose(model.logits(ids)[0], bart_scores(made, "w1 w2 w3"), atol=1e-5)
    rows = [bart_scores(made, ("w1 w2", f"w9 {label}"))[2] for label in TOPICS]
    assert same(model.zero_shot("w1 w2", TOPICS, hypothesis_template="w9 {}"), TOPICS, softmax(np.array(rows)))
    with pytest.raises(UnsupportedModelError, match="cannot generate"):
        model.generate("w1")


def test_the_states_of_both_halves(bart):
    import torch

    model, made = bart
    source, answer = ids_of("w1 w2 w3")[0], [3, 7, 8]
    with torch.no_grad():
        theirs = made.model(input_ids=torch.tensor([source]), decoder_input_ids=torch.tensor([answer]))
    assert np.allclose(model.hidden_states(source), theirs.encoder_last_hidden_state[0], atol=1e-5)
    assert np.allclose(model.hidden_states(answer, source_ids=source), theirs.last_hidden_state[0], atol=1e-5)
    assert np.allclose(model.embed("w1 w2 w3", pooling="mean")[0], theirs.encoder_last_hidden_state[0].mean(0),
                       atol=1e-5)


@pytest.mark.parametrize(("labels", "expected"), [
    (("contradiction", "neutral", "entailment"), (2, 0)), (("ENTAILMENT", "Neutral", "CONTRADICTION"), (0, 2)),
    (("entailment", "not_entailment"), (0, 1)), (("not-entailment", "entailment"), (1, 0)),
    (("positive", "negative"), None), (("entailment", "neutral"), None), ((), None),
    (("entailment", "entails", "contradiction"), None)])
def test_which_labels_are_those_of_inference(labels, expected):
    assert inference_labels(labels) == expected


@pytest.mark.parametrize(("change", "words_in_it"), [
    ({"labels": []}, "labels: expected at least one"), ({"labels": ["a", "a"]}, "each label once"),
    ({"labels": [1]}, "int at 0"), ({"hypothesis_template": "This is it."}, "one {}"),
    ({"hypothesis_template": "{} or {}"}, "one {}"), ({"hypothesis_template": None}, "one {}"),
    ({"text": []}, "empty list"), ({"multi_label": "no"}, "multi_label must be True or False")])
def test_wrong_labels(nli, change, words_in_it):
    with pytest.raises(ParameterError, match=words_in_it):
        nli.zero_shot(**{"text": "w1", "labels": TOPICS, **change})


# ---- what a model can do


def test_what_models_can_do(model, ranker, nli, folder):
    assert model.tasks == ("embed", "classify", "logits", "hidden_states")
    assert set(ranker.tasks) - set(model.tasks) == {"rerank"} and set(nli.tasks) - set(model.tasks) == {"zero_shot"}
    for call, words_in_it in (
            (lambda: model.rerank("a", ["b"]), "one score"), (lambda: model.zero_shot("a", ["b"]), "entailment"),
            (lambda: model.token_classify("a"), "labels tokens"), (lambda: model.fill_mask("[MASK]"), "mask"),
            (lambda: model.generate("a"), "causal"), (lambda: model.stream("a"), "causal"),
            (lambda: model.complete("a"), "causal"), (lambda: model.score("w1 w2"), "causal"),
            (lambda: model.chat([{"role": "user", "content": "a"}]), "causal")):
        with pytest.raises(UnsupportedModelError, match=rf"cannot .*{words_in_it}.*can embed, classify, logits, hid"):
            call()


def test_raw_scores_by_token_ids(model, three):
    ids, types = ids_of("w1", "w2 w3")
    assert np.allclose(model.logits(ids, types), [torch_scores(three, ids, types)], atol=1e-5)
    assert np.allclose(model.hidden_states(ids, types), tiny_readers.torch_hidden(three, ids, types), atol=1e-5)
    assert np.allclose(model.hidden_states(ids), tiny_readers.torch_hidden(three, ids), atol=1e-5)
    for wrong in ([0], [0] * (len(ids) - 1) + [2], [-1] * len(ids)):
        with pytest.raises(ParameterError, match="type"):
            model.hidden_states(ids, wrong)
    with pytest.raises(ContextLengthError, match=r"41 tokens.*40"):
        model.hidden_states([5] * 41)


@pytest.mark.parametrize("texts", [[], None, [("a",)], [("a", "b", "c")], [("a", 1)], [None], 5])
def test_texts_of_a_wrong_kind(model, texts):
    with pytest.raises(ParameterError, match="text"):
        model.classify(texts)

