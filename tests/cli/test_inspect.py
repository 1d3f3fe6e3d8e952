"""`forwardpass inspect` on tiny files, some of them hostile."""

import json

import gguf
import numpy as np
import pytest

import tiny_models
import tiny_pipelines
import tiny_readers
from forwardpass.cli import main

HIDDEN, HEADS, INNER, VOCAB, CONTEXT = 32, 4, 64, 64, 128
TEMPLATE = "{% for m in messages %}{{ m.content }}\n{% endfor %}\x1b[2J"


def write_gguf(path, architecture="llama", **metadata):
    """A random two-layer model with byte-like tokens."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(2)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_vocab_size(VOCAB)
    tokens = [chr(ord("!") + i) for i in range(VOCAB - 2)] + ["<s\x1b[31m>", "</s>"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([1] * (VOCAB - 2) + [3, 3])
    writer.add_token_merges(["! !"] if "!!" in tokens else [])
    writer.add_bos_token_id(VOCAB - 2)
    writer.add_eos_token_id(VOCAB - 1)
    writer.add_chat_template(TEMPLATE)
    for key, value in metadata.items():
        writer.add_string(f"general.{key}", value)
    rng = np.random.default_rng(1)

    def add(name, *shape):
        writer.add_tensor(name, rng.standard_normal(shape, dtype=np.float32))

    add("token_embd.weight", VOCAB, HIDDEN)
    add("output_norm.weight", HIDDEN)
    for i in range(2):
        add(f"blk.{i}.attn_norm.weight", HIDDEN)
        add(f"blk.{i}.attn_q.weight", HIDDEN, HIDDEN)
        add(f"blk.{i}.attn_k.weight", HIDDEN // 2, HIDDEN)
        add(f"blk.{i}.attn_v.weight", HIDDEN // 2, HIDDEN)
        add(f"blk.{i}.attn_output.weight", HIDDEN, HIDDEN)
        add(f"blk.{i}.ffn_norm.weight", HIDDEN)
        add(f"blk.{i}.ffn_gate.weight", INNER, HIDDEN)
        add(f"blk.{i}.ffn_up.weight", INNER, HIDDEN)
        add(f"blk.{i}.ffn_down.weight", HIDDEN, INNER)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return str(path)


def test_what_each_stored_type_runs_as(tmp_path, capsys):
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "mystery")
    for kind, nbytes in (("Q4_K", 144), ("IQ2_XS", 74), ("IQ4_XS", 136)):
        data = np.zeros((2, nbytes), np.uint8)
        writer.add_tensor(f"t.{kind}", data, raw_dtype=gguf.GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert main(["inspect", str(tmp_path / "m.gguf")]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "tensors Q4_K 1, 288 B; matrices run as Q4 (5 bits a weight in memory)" in shown
    assert "tensors IQ4_XS 1, 272 B; matrices run as Q8 (8.5 bits a weight in memory)" in shown
    assert "tensors IQ2_XS 1, 148 B; matrices run as Q16 (16 bits a weight in memory, no layout of its own)" in shown


def test_json_tells_spec_tensors_memory_tokenizer_and_template(tmp_path, capsys):
    path = write_gguf(tmp_path / "m.gguf")
    assert main(["inspect", path, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    # Embedding; per layer q, out: 32x32, k, v: 16x32, gate, up, down: 64x32, two norms; the final norm.
    parameters = VOCAB * HIDDEN + 2 * (2 * 32 * 32 + 2 * 16 * 32 + 3 * 64 * 32 + 2 * 32) + 32
    assert facts["spec"]["family"] == "llama" and facts["spec"]["hidden_size"] == HIDDEN
    assert len(facts["spec"]["layers"]) == 2
    assert facts["memory"]["parameters"] == parameters
    assert facts["memory"]["weights_bytes"] == 4 * parameters
    # Keys and values, two layers, two heads of eight float32.
    assert facts["memory"]["kv_bytes_per_position"]["float32"] == 2 * 2 * 2 * 8 * 4
    assert facts["memory"]["kv_bytes_full_context"]["float32"] == 256 * CONTEXT
    in_memory = {"layout": "F32", "bits": 32, "own_layout": True}
    assert facts["types"] == {"F32": {"tensors": 20, "nbytes": 4 * parameters, **in_memory}}
    assert {"name": "blk.0.attn_k.weight", "shape": [16, 32], "type": "F32", "nbytes": 2048} in facts["tensors"]
    assert facts["tokenizer"]["vocab_size"] == VOCAB
    assert facts["tokenizer"]["bos_token_id"] == VOCAB - 2 and facts["tokenizer"]["eos_token_ids"] == [VOCAB - 1]
    assert facts["chat_template"] == TEMPLATE
    assert facts["unsupported"] == []


@pytest.mark.parametrize(("case", "said"), [
    ("olmo2", ["0-1: 6 heads", "norms of queries and keys", "rms norm after attention and MLP, eps 1e-05"]),
    ("mixtral", ["2 of 5 experts, each a gated MLP of 80 (silu); rms norm, eps"]),
    ("qwen2_moe", ["2 of 5 experts, each a gated MLP of 32 (silu); one of 40 for every token", "bias on q/k/v"]),
    ("gemma2", ["layers 0: 6 heads", "window 16; scores capped at 2; ", "layers 1: 6 heads",
                "rms norm before and after attention and MLP"]),
    ("opt-post", ["no rotary", "layer norm after attention and MLP"]), ("bloom", ["ALiBi"]),
    ("stablelm-parallel", ["attention and MLP in parallel"]),
])
def test_a_folder_of_any_family_without_a_tokenizer(case, said, tmp_path, capsys):
    family, changes = tiny_models.CASES[case]
    folder = tiny_models.save(tiny_models.make(family, **changes), tmp_path / "m")
    capsys.readouterr()
    assert main(["inspect", str(folder)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "tokenizer" not in shown
    for words in said:
        assert words in shown


def test_text_escapes_what_would_steer_a_terminal(tmp_path, capsys):
    path = write_gguf(tmp_path / "m.gguf", name="evil\x1b[2J\u202e\nrow")
    assert main(["inspect", path, "--tensors"]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out and "\u202e" not in out
    assert "evil\\x1b[2J\\u202e\\nrow" in out and "<s\\x1b[31m>" in out
    assert "layers" in out and "0-1: 4 heads, 2 for keys and values, of 8; rotary over 8; gated MLP of 64" in out
    assert "blk.1.ffn_down.weight" in out and "32 x 64" in out
    assert "tied to the embedding" in out


def test_an_unknown_architecture_is_still_described(tmp_path, capsys):
    path = write_gguf(tmp_path / "m.gguf", architecture="strange")
    assert main(["inspect", path]) == 0
    out = capsys.readouterr().out
    assert "unsupported" in out and "strange" in out and "llama" in out


@pytest.mark.parametrize("content", [b"", b"GGUF", b"not a model"])
def test_corrupt_files(tmp_path, content, capsys):
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    assert main(["inspect", str(path)]) == 1
    assert capsys.readouterr().err.startswith("error: ")


def test_a_folder_without_a_config(tmp_path, capsys):
    assert main(["inspect", str(tmp_path)]) == 1
    assert "config.json" in capsys.readouterr().err


def test_what_a_model_can_do(tmp_path, capsys):
    """A tiny tagger in the folder of a sentence-transformers directory, and the same packed."""
    made = tiny_readers.make("tags", 2)
    inner = tmp_path / "model" / "0_BERT"
    inner.mkdir(parents=True)
    tiny_readers.save(made, inner, id2label={"0": "O", "1": "\x1b[31mLOC"})
    modules = [{"path": "0_BERT", "type": "sentence_transformers.models.Transformer"},
               {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
               {"path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}]
    (tmp_path / "model" / "modules.json").write_text(json.dumps(modules))
    (tmp_path / "model" / "1_Pooling").mkdir()
    (tmp_path / "model" / "1_Pooling" / "config.json").write_text('{"pooling_mode": ["cls", "mean"]}')
    assert main(["quantize", str(tmp_path / "model"), str(tmp_path / "m.fpk"), "--tokens", "0"]) == 0
    for path in (tmp_path / "model", tmp_path / "m.fpk"):
        capsys.readouterr()
        assert main(["inspect", str(path), "--json"]) == 0
        facts = json.loads(capsys.readouterr().out)
        assert facts["tasks"] == ["embed", "token_classify", "logits", "hidden_states"]
        assert facts["settings"]["labels"] == ["O", "\x1b[31mLOC"] and facts["settings"]["pooling"] == ["cls", "mean"]
        assert main(["inspect", str(path)]) == 0
        shown = " ".join(capsys.readouterr().out.split())
        assert "can embed, token_classify, logits, hidden_states" in shown and "KV cache" not in shown
        assert r"head 2 labels of tokens: O, \x1b[31mLOC" in shown
        assert "vectors cls and mean pooling, normalised" in shown and "sees the whole text" in shown
        assert "longest text 40 tokens" in shown and "begin of text none" in shown


def test_why_a_model_makes_no_vectors(tmp_path, capsys):
    modules = [{"path": "", "type": "sentence_transformers.models.Transformer"}, {"path": "1_X", "type": "own.Code"}]
    files = {"modules.json": modules, "sentence_bert_config.json": {"max_seq_length": 17}}
    tiny_readers.save(tiny_readers.make("tags", 2), tmp_path / "m", files)
    assert main(["inspect", str(tmp_path / "m")]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "can token_classify, logits" in shown and "vectors modules.json: module 1 is 'own.Code'" in shown
    assert "longest text 17 tokens" in shown


def test_what_a_decoder_can_do(tmp_path, capsys):
    assert main(["inspect", write_gguf(tmp_path / "m.gguf")]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "can generate, stream, chat, complete, score, explain, embed, logits, hidden_states" in shown


def test_a_pipeline_shows_its_components(tmp_path, capsys):
    models = tiny_pipelines.write_stable_diffusion(tmp_path)
    assert main(["inspect", str(tmp_path), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    for one in facts["components"]:
        model = models[one["name"]]
        assert one["parameters"] == sum(value.numel() for value in model.parameters())
        assert one["class"] == type(model).__name__
    assert len(facts["components"]) == 3 and facts["tasks"] == ["explain", "draw"] and not facts["unsupported"]
    assert (facts["height"], facts["prompt_tokens"]) == (16 * 2, 16)
    assert main(["inspect", str(tmp_path), "--tensors"]) == 0
    shown = capsys.readouterr().out
    for said in ("StableDiffusionPipeline", "texts of at most 16 tokens", "32 x 32 pixels in colour", "DDIMScheduler",
                 "safety checker is missing", "unet/conv_in.weight", "sees the whole text"):
        assert (said in shown) == (said != "sees the whole text"), said  # CLIP's texts look only back


def test_tiny_dit_shows_its_labels(capsys):
    assert main(["inspect", "tiny-dit"]) == 0
    shown = capsys.readouterr().out
    assert "DiTPipeline" in shown and "28 x 28 pixels in grey" in shown and "Ankle boot" in shown
    assert "sees the whole picture" in shown and "config.json" not in shown


def test_an_unknown_component_is_told_beside_the_rest(tmp_path, capsys):
    tiny_pipelines.write_index(tmp_path, "FluxPipeline", transformer=("diffusers", "FluxTransformer2DModel"))
    assert main(["inspect", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "FluxPipeline" in shown.split("unsupported")[1] and "FluxTransformer2DModel" in shown


def test_a_folder_that_is_no_model(tmp_path, capsys):
    assert main(["inspect", str(tmp_path)]) == 1
    assert "with a config.json or, of a pipeline that draws, a model_index.json, found" in capsys.readouterr().err
