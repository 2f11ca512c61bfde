"""`specdec.convert`: folders as GGUF files of the same models, and back."""

from __future__ import annotations

import json
import shutil
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type

import specdec
from chat_templates import library_tokenizer
from command_line import run
from refusals import refuses
from specdec import _core
from specdec.errors import CheckpointError, InputError, TokenizerError, UnsupportedModelError
from specdec.models.checkpoints.gguf_file import read_gguf
from specdec.models.checkpoints.gguf_writing import weighted_blocks
from trained import TARGET
from worlds.folders import llama2c_tensors, write_hf, write_llama2c, write_llama2c_tokenizer
from worlds.gguf_files import CASES, Case, llama3_factors

SOURCE = [3, 9, 4, 11, 2, 5] * 4
TEXTS = ["Once upon a time, there was 1 naïve café.\n\n  12345 x", "<|endoftext|> We're here", ""]


def folder_of(path: Path, case: Case) -> Path:
    return write_hf(path, *case.folder())


@pytest.mark.parametrize("name", CASES)
def test_a_file_is_the_model_of_the_folder(tmp_path: Path, name: str) -> None:
    """So is a folder written from the file."""
    folder = folder_of(tmp_path / "folder", CASES[name])
    path = specdec.convert(folder, tmp_path / "model.gguf", "F32")
    back = specdec.convert(path, tmp_path / "back")
    model = specdec.load(folder)
    ids = np.random.default_rng(5).integers(0, model.config.n_vocab, min(24, model.config.n_ctx)).tolist()
    source = None if model.config.encoder is None else SOURCE
    expected = model.logits(ids, source)
    for made in (path, back):
        again = specdec.load(made)
        assert again.architecture == model.architecture
        assert np.array_equal(again.logits(ids, source), expected)


_TIED = {"tie_word_embeddings": True, "embedding_multiplier": 1.0, "lm_head_multiplier": 1.0}


@pytest.mark.parametrize("changes", [{"mlp_bias": True}, _TIED], ids=["biases", "tied"])
def test_factors_of_projections_are_part_of_the_weights(tmp_path: Path, changes: dict[str, Any]) -> None:
    """The same logits up to rounding."""
    folder = folder_of(tmp_path / "folder", Case("falcon-h1", "FalconH1ForCausalLM", changes))
    path = specdec.convert(folder, tmp_path / "model.gguf", "F32")
    model, expected = specdec.load(path), specdec.load(folder)
    assert model.config["mixer_scales"] == () and expected.config["mixer_scales"]
    ids = np.random.default_rng(2).integers(3, 17, 20)
    found = expected.logits(ids)
    np.testing.assert_allclose(model.logits(ids), found, rtol=0, atol=1e-5 * np.abs(found).max())


def test_factors_of_a_shared_table_cannot_be_part_of_it(tmp_path: Path) -> None:
    case = Case("falcon-h1", "FalconH1ForCausalLM", {"tie_word_embeddings": True})
    folder = folder_of(tmp_path / "folder", case)
    with pytest.raises(UnsupportedModelError, match="embedding_scale is 5.7, but model.gguf would"):
        specdec.convert(folder, tmp_path / "model.gguf", "F32")


def test_scaled_frequencies(tmp_path: Path) -> None:
    """Llama 3's frequency factors are an f32 tensor."""
    scaling, factors = llama3_factors(8, 16)
    case = Case("llama", "LlamaForCausalLM", {"rope_scaling": scaling}, change=CASES["llama"].change)
    path = specdec.convert(folder_of(tmp_path / "folder", case), tmp_path / "model.gguf", "F32")
    np.testing.assert_allclose(read_gguf(path)[1]["rope_freqs.weight"].numbers(), factors, rtol=1e-6)
    with pytest.raises(UnsupportedModelError, match=r"config.json cannot describe: inv_freq is \("):
        specdec.convert(path, tmp_path / "back")


@pytest.mark.parametrize("ggml_type", ["F16", "BF16", "Q8_0", "Q4_0"])
def test_types(tmp_path: Path, ggml_type: str) -> None:
    """Every matrix has the type, with the bytes of the package ``gguf``."""
    config = {**CASES["llama"].config, "hidden_size": 64, "intermediate_size": 96}
    case = Case("llama", "LlamaForCausalLM", config)
    folder = folder_of(tmp_path / "folder", case)
    whole = read_gguf(specdec.convert(folder, tmp_path / "f32.gguf", "F32"))[1]
    file, held = read_gguf(specdec.convert(folder, tmp_path / "model.gguf", ggml_type))
    assert file.get("general.file_type") == gguf.LlamaFileType[f"MOSTLY_{ggml_type}"]
    for name, tensor in held.items():
        assert tensor.dtype == (ggml_type if len(tensor.shape) > 1 else "F32")
        if tensor.dtype != "F32":
            expected = gguf.quants.quantize(whole[name].numbers(), Type[ggml_type])
            assert np.array_equal(tensor.blocks().view(np.uint8), expected.view(np.uint8))


def wide(path: Path, n_layer: int = 1, **more: object) -> Path:
    """Write a model folder whose rows are multiples of 256."""
    config = {
        **CASES["llama"].config, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": n_layer,
        **more,
    }  # fmt: skip
    return folder_of(path, Case("llama", "LlamaForCausalLM", config))


ERRORS = {"Q4_K": 0.08, "Q5_K": 0.04, "Q6_K": 0.02}
"""Root mean square errors of normal numbers, in standard deviations; of Q4_0, Q5_0 0.086, 0.043."""


@pytest.mark.parametrize("ggml_type", ERRORS)
def test_quantizing(ggml_type: str) -> None:
    """Errors after decoding by ``gguf``, smaller where inputs are important; also with threads."""
    rows = np.random.default_rng(2).standard_normal((12, 512)).astype(np.float32)
    rows[1] *= 1e-2
    rows[2] = 0.0
    rows[3] = 2.5
    rows[4] += 3.0
    blocks = _core.quantize(rows, ggml_type.lower())
    assert _core.quantize(rows, ggml_type.lower(), n_threads=3) == blocks
    found = gguf.quants.dequantize(np.frombuffer(blocks, np.uint8).reshape(12, -1), Type[ggml_type])
    errors = np.sqrt(np.mean((found - rows) ** 2, axis=1))
    assert (errors[[0, *range(5, 12)]] < ERRORS[ggml_type]).all() and errors[1] < ERRORS[ggml_type] * 1.1e-2
    assert errors[2] == 0.0 and errors[3] < 0.01 and errors[4] < 2.5 * ERRORS[ggml_type]
    importance = np.full(512, 0.001, np.float32)
    importance[::8] = 1.0
    blocks = _core.quantize(rows, ggml_type.lower(), importance=importance)
    weighed = gguf.quants.dequantize(np.frombuffer(blocks, np.uint8).reshape(12, -1), Type[ggml_type])
    assert np.square(weighed - rows)[5:, ::8].mean() < 0.8 * np.square(found - rows)[5:, ::8].mean()


@pytest.mark.parametrize("ggml_type", ["Q4_0", "Q5_0"])
def test_weighted_blocks(ggml_type: str) -> None:
    """Compared with unweighted blocks of ``gguf``: smaller errors where inputs are important."""
    rows = np.random.default_rng(4).standard_normal((40, 96)).astype(np.float32)
    rows[3, :32], rows[4] = 0.0, 1.5
    importance = np.full(96, 0.01, np.float32)
    importance[::6] = 1.0
    size = 18 if ggml_type == "Q4_0" else 22
    plain = gguf.quants.dequantize(gguf.quants.quantize(rows, Type[ggml_type]), Type[ggml_type])

    def error(weights: np.ndarray) -> np.ndarray:
        blocks = weighted_blocks(rows, ggml_type, weights)
        assert blocks.shape == (40 * 3 * size,)
        found = gguf.quants.dequantize(blocks.reshape(40, -1), Type[ggml_type])
        assert not found[3, :32].any() and np.abs(found[4] - 1.5).max() < 1e-3
        return found - rows

    even, uneven = error(np.ones(96, np.float32)), error(importance)
    assert np.square(even).mean() < 0.95 * np.square(plain - rows).mean()
    assert np.square(uneven[:, ::6]).mean() < 0.7 * np.square(even[:, ::6]).mean()


@pytest.mark.parametrize(
    ("n_in", "ggml_type", "n_importance", "message"),
    [
        (256, "q3_k", None, 'type is "q3_k", expected'),
        (256, "q4_k", 3, "importance has 3 numbers, expected 256"),
        (255, "q4_k", None, "rows have 255 numbers, expected a multiple of 256"),
    ],
)  # fmt: skip
def test_arguments_of_the_quantizer(
    n_in: int, ggml_type: str, n_importance: int | None, message: str
) -> None:
    importance = None if n_importance is None else np.zeros(n_importance, np.float32)
    with pytest.raises(ValueError, match=message):
        _core.quantize(np.zeros((2, n_in), np.float32), ggml_type, importance=importance)


def test_a_mixture(tmp_path: Path) -> None:
    """Matrix types as in llama-quantize, an importance file, and a model close to the original."""
    folder = wide(tmp_path / "folder", n_layer=8)
    whole = specdec.convert(folder, tmp_path / "whole.gguf", "F32")
    name = "blk.0.ffn_up.weight"
    imatrix(tmp_path / "imatrix.gguf", {name: np.linspace(0, 9, 256)}, {name: [3.0]})
    held = {
        name: read_gguf(specdec.convert(whole, tmp_path / f"{name}.gguf", "Q4_K_M", importance=file))[1]
        for name, file in (("plain", None), ("weighed", tmp_path / "imatrix.gguf"))
    }
    types = {name: tensor.dtype for name, tensor in held["plain"].items()}
    assert types["output.weight"] == "Q6_K" and types["token_embd.weight"] == "Q4_K"
    more = [i for i in range(8) if types[f"blk.{i}.attn_v.weight"] == "Q6_K"]
    assert more == [i for i in range(8) if types[f"blk.{i}.ffn_down.weight"] == "Q6_K"] == [0, 3, 6, 7]
    assert types["blk.0.attn_q.weight"] == types["blk.3.ffn_up.weight"] == "Q4_K"
    differ = [
        name for name in types
        if not np.array_equal(held["plain"][name].numbers(), held["weighed"][name].numbers())
    ]  # fmt: skip
    assert differ == ["blk.0.ffn_up.weight"]
    with pytest.raises(CheckpointError, match="expected output of llama-imatrix"):
        specdec.convert(folder, tmp_path / "m.gguf", "Q4_K", importance=whole)


def imatrix(path: Path, sums: dict[str, np.ndarray], counts: dict[str, list[float]]) -> Path:
    """Write a file as llama-imatrix does."""
    writer = gguf.GGUFWriter(path, "imatrix")
    for name, squares in sums.items():
        writer.add_tensor(f"{name}.in_sum2", np.atleast_2d(squares).astype(np.float32))
        writer.add_tensor(f"{name}.counts", np.array(counts[name], np.float32)[:, None])
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file):
        step()
    writer.close()
    return path


def test_importance_of_a_text(tmp_path: Path) -> None:
    """The importance of a text equals sums of a decoder, in the format of llama-imatrix."""
    folder = wide(tmp_path / "folder", n_layer=1, vocab_size=4096)
    shutil.copy(TARGET / "tokenizer.json", folder)
    text = tmp_path / "text.txt"
    text.write_text("It was the best of times, it was the worst of times. " * 8)
    model = specdec.load(folder)
    ids = model.check_ids(text.read_text(), maximum=1000)
    assert len(ids) > model.config.n_ctx
    ours = ("attn_q", "attn_k", "attn_v", "attn_out", "mlp_gate", "mlp_up", "mlp_down")
    theirs = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
    names = {f"layers.0.{a}.weight": f"blk.0.{b}.weight" for a, b in zip(ours, theirs, strict=True)}
    names["head"] = "output.weight"
    sums, counts = dict.fromkeys(names, 0.0), dict.fromkeys(names, 0)
    for first in range(0, len(ids), model.config.n_ctx):
        piece = ids[first : first + model.config.n_ctx]
        decoder = _core.Decoder(model.core, capacity=len(piece), input_sums=True)
        decoder.prefill(piece, last=True)
        for name in names:
            squares, n_rows = decoder.input_sums(name)
            sums[name], counts[name] = sums[name] + squares, counts[name] + n_rows
    assert counts["layers.0.attn_q.weight"] == len(ids) > counts["head"]
    means = {stored: sums[name] / counts[name] for name, stored in names.items()}
    file = imatrix(tmp_path / "imatrix.gguf", means, {key: [1.0] for key in means})
    found = [
        specdec.convert(folder, tmp_path / f"{i}.gguf", "Q4_K", importance=given).read_bytes()
        for i, given in enumerate((text, file, None))
    ]
    assert found[0] == found[1] != found[2]


def test_importance_of_experts(tmp_path: Path) -> None:
    """Each expert has its own sums; one that was never chosen has none."""
    config = {**CASES["qwen3moe"].config, "hidden_size": 256, "moe_intermediate_size": 256, "vocab_size": 40}
    folder = folder_of(tmp_path / "folder", Case("qwen3moe", "Qwen3MoeForCausalLM", config))
    whole = read_gguf(specdec.convert(folder, tmp_path / "whole.gguf", "F32"))[1]
    name = "blk.0.ffn_up_exps.weight"
    means = np.random.default_rng(1).random((whole[name].shape[0], 256)).astype(np.float32) + 0.1
    counts = [2.0] * len(means)
    means[1], counts[1] = 0.0, 0.0
    file = imatrix(tmp_path / "imatrix.gguf", {name: 2 * means}, {name: counts})
    held = read_gguf(specdec.convert(folder, tmp_path / "m.gguf", "Q4_K", importance=file))[1][name]
    for expert, weights in enumerate(means):
        relative = (weights / weights.mean(dtype=np.float64)).astype(np.float32) if expert != 1 else None
        expected = _core.quantize(whole[name].numbers()[expert], "q4_k", importance=relative)
        assert held.blocks(expert).tobytes() == expected


def test_importance_that_cannot_be_had(tmp_path: Path) -> None:
    folder, text = wide(tmp_path / "folder"), tmp_path / "text.txt"
    text.write_text("one two")
    with pytest.raises(InputError, match="a text was given, but .* was loaded without tokenizer"):
        specdec.convert(folder, tmp_path / "m.gguf", "Q4_K", importance=text)
    with pytest.raises(InputError, match="has an encoder; expected a decoder-only model"):
        t5 = folder_of(tmp_path / "t5", CASES["t5"])
        specdec.convert(t5, tmp_path / "m.gguf", "Q4_K", importance=text)
    text.write_bytes(b"\xff\xfe")
    with pytest.raises(CheckpointError, match="is neither a GGUF file nor UTF-8 text"):
        specdec.convert(folder, tmp_path / "m.gguf", "Q4_K", importance=text)
    name = "blk.0.ffn_up.weight"
    short = imatrix(tmp_path / "short.gguf", {name: np.ones(3)}, {name: [1.0]})
    with pytest.raises(CheckpointError, match=f"tensor '{name}' is for .3. inputs; expected 256"):
        specdec.convert(folder, tmp_path / "m.gguf", "Q4_K", importance=short)
    assert not (tmp_path / "m.gguf").exists()


def test_rows_that_are_no_multiple_of_a_block(tmp_path: Path) -> None:
    path = specdec.convert(folder_of(tmp_path / "folder", CASES["llama"]), tmp_path / "model.gguf", "Q8_0")
    assert {tensor.dtype for tensor in read_gguf(path)[1].values()} == {"F32", "F16"}


def test_numbers_that_a_type_cannot_hold(tmp_path: Path) -> None:
    config, weights = CASES["llama"].folder()
    weights["model.layers.0.mlp.up_proj.weight"][1, 2] = 1e5
    folder = write_hf(tmp_path / "folder", config, weights)
    with pytest.raises(CheckpointError, match=r"'blk.0.ffn_up.weight' has values too large for F16"):
        specdec.convert(folder, tmp_path / "model.gguf", "F16")
    assert not (tmp_path / "model.gguf").exists()
    assert specdec.convert(folder, tmp_path / "model.gguf", "BF16").is_file()


def test_tokenizer_and_chat_template(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    shutil.copytree(TARGET, folder)
    template = "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}"
    settings = {"chat_template": template, "bos_token": "<|endoftext|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    model = specdec.load(folder)
    path = specdec.convert(folder, tmp_path / "model.gguf")
    back = specdec.convert(path, tmp_path / "back")
    prompt = [{"role": "user", "content": "Hello"}]
    for made in (path, back):
        again = specdec.load(made)
        assert again.core.dtype == "bf16"
        assert again.tokenizer.bos_id == model.tokenizer.bos_id
        assert again.tokenizer.eos_ids == model.tokenizer.eos_ids
        for text in TEXTS:
            assert again.tokenizer.encode(text) == model.tokenizer.encode(text)
        assert again.chat_template.render(prompt) == model.chat_template.render(prompt)
        assert np.array_equal(again.logits(TEXTS[0]), model.logits(TEXTS[0]))


def test_pieces(tmp_path: Path) -> None:
    """SentencePiece vocabularies; ids without token are unused."""
    import sentencepiece

    corpus = tmp_path / "corpus.txt"
    corpus.write_text("the quick brown fox jumps over the lazy dog. it was a dark and stormy night\n" * 40)
    config = {**CASES["llama"].config, "vocab_size": 80}
    folder = folder_of(tmp_path / "folder", Case("llama", "LlamaForCausalLM", config))
    for model_type in ("bpe", "unigram"):
        sentencepiece.SentencePieceTrainer.train(
            input=str(corpus), model_prefix=str(tmp_path / model_type), vocab_size=78, model_type=model_type,
            hard_vocab_limit=False, normalization_rule_name="identity", remove_extra_whitespaces=False,
            character_coverage=1.0, minloglevel=2,
        )  # fmt: skip
        shutil.copy(tmp_path / f"{model_type}.model", folder / "tokenizer.model")
        model = specdec.load(folder)
        path = specdec.convert(folder, tmp_path / f"{model_type}.gguf", "F32")
        assert read_gguf(path)[0].get("tokenizer.ggml.model") == {"bpe": "llama", "unigram": "t5"}[model_type]
        again = specdec.load(path)
        for text in ("the dog  jumps", " over it", "dark"):
            assert again.tokenizer.encode(text) == model.tokenizer.encode(text)


def test_what_a_file_cannot_say(tmp_path: Path) -> None:
    windows = Case("llama", "MistralForCausalLM", {"sliding_window": 5}, change=CASES["llama"].change)
    with pytest.raises(UnsupportedModelError, match="cannot describe: sliding_window is 5, but m.gguf would"):
        specdec.convert(folder_of(tmp_path / "windows", windows), tmp_path / "m.gguf")
    other = Case("", "OPTForCausalLM")
    with pytest.raises(UnsupportedModelError, match="is a OPTForCausalLM, which cannot be written as GGUF"):
        specdec.convert(folder_of(tmp_path / "opt", other), tmp_path / "m.gguf")
    folder = tmp_path / "embedded"
    shutil.copytree(TARGET, folder)
    (folder / "tokenizer_config.json").write_text("{}")
    whole = json.loads((folder / "tokenizer.json").read_text())
    whole["pre_tokenizer"] = {"type": "Whitespace"}
    (folder / "tokenizer.json").write_text(json.dumps(whole))
    with pytest.raises(TokenizerError, match="a pre-tokenizer other than those of GGUF"):
        specdec.convert(folder, tmp_path / "m.gguf")
    assert specdec.load(specdec.convert(folder, tmp_path / "m.gguf", tokenizer=False)).tokenizer is None


def test_arguments(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "folder", CASES["llama"])
    with refuses("type", "Q9"):
        specdec.convert(folder, tmp_path / "m.gguf", "Q9")
    path = specdec.convert(folder, tmp_path / "m.gguf")
    for out in ("m.specdec", "new"):
        with pytest.raises(
            InputError, match="importance is given for .*; expected None, or out to end in .gguf"
        ):
            specdec.convert(path, tmp_path / out, importance=path)
    for ggml_type in (None, "Q8_0"):
        with pytest.raises(InputError, match="importance is given for type .*; expected None, or one of Q4"):
            specdec.convert(path, tmp_path / "n.gguf", ggml_type, importance=path)
    small = specdec.convert(folder, tmp_path / "small.gguf", "q8_0")
    assert read_gguf(small)[0].get("general.file_type") == 7
    packed = specdec.convert(folder, tmp_path / "m.specdec", "INT8")
    assert specdec.load(packed).dtype == "int8"
    for out in ("n.gguf", "other.specdec", "other"):
        with pytest.raises(CheckpointError, match=r"m.specdec: is a packed file"):
            specdec.convert(packed, tmp_path / out)
        assert not (tmp_path / out).exists()
    with pytest.raises(CheckpointError, match=r"has no config.json and has m.gguf, m.specdec, small.gguf;"):
        specdec.load(tmp_path)


def test_the_verb(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "folder", CASES["llama"])
    done = run("convert", folder, tmp_path / "m.gguf", "--type", "BF16")
    assert done.exit_code == 0 and "m.gguf: 0.0 MB" in done.output
    done = run("convert", "embedded", tmp_path / "e.specdec", "--type", "bf16")
    assert done.exit_code == 0 and specdec.load(tmp_path / "e.specdec").config.n_vocab == 8192
    again = run("convert", folder, tmp_path / "m.gguf")
    assert again.exit_code != 0 and "--force" in again.output
    assert specdec.load(tmp_path / "m.gguf").core.dtype == "bf16"
    done = run("convert", folder, tmp_path / "m.gguf", "--type", "F32", "--force")
    assert done.exit_code == 0 and specdec.load(tmp_path / "m.gguf").core.dtype == "f32"


def test_names_of_outputs(tmp_path: Path) -> None:
    """Dots in model names are not suffixes; an existing empty folder counts as a folder."""
    folder = folder_of(tmp_path / "folder", CASES["llama"])
    for out in ("d4.bin", "model.safetensors", "model.GGUF", "model.gguf.part", "m.pt"):
        with pytest.raises(InputError, match=r"expected .gguf, .specdec, or no suffix"):
            specdec.convert(folder, tmp_path / out)
    (tmp_path / "named.folder").mkdir()
    for out in ("plain", "Llama-3.2-1B", "model-v1.5", "named.folder"):
        assert (specdec.convert(folder, tmp_path / out) / "config.json").is_file()


@pytest.mark.parametrize("out", ["m.gguf", "m.specdec", "made"])
def test_an_output_that_exists_is_kept_without_force(tmp_path: Path, out: str) -> None:
    """With force it is replaced once the new one is complete, and kept after a failure."""
    folder = folder_of(tmp_path / "folder", CASES["llama"])
    other = folder_of(
        tmp_path / "other", replace(CASES["llama"], config=CASES["llama"].config | {"rope_theta": 500.0})
    )
    first, second = (specdec.load(path).logits(SOURCE) for path in (folder, other))
    assert not np.array_equal(first, second)
    made = specdec.convert(folder, tmp_path / out, "f32")
    before = sorted(tmp_path.iterdir())
    with pytest.raises(InputError, match="force=True"):
        specdec.convert(other, made, "f32")
    with pytest.raises((InputError, UnsupportedModelError, CheckpointError)):
        specdec.convert(tmp_path / "none", made, "f32", force=True)
    assert np.array_equal(specdec.load(made).logits(SOURCE), first)
    assert specdec.convert(other, made, "f32", force=True) == made
    assert np.array_equal(specdec.load(made).logits(SOURCE), second)
    assert sorted(tmp_path.iterdir()) == before


def test_force_takes_no_folder_of_other_things(tmp_path: Path) -> None:
    """Nor a folder with other files, such as the file being converted."""
    folder = folder_of(tmp_path / "folder", CASES["llama"])
    source = specdec.convert(folder, folder / "model.gguf")
    for name in ("home", "d.gguf"):
        (tmp_path / name).mkdir()
    (tmp_path / "home" / "thesis.tex").write_text("years of work")
    (tmp_path / "file").write_text("a file")
    before = sorted(tmp_path.rglob("*"))
    for out in ("home", "file", "d.gguf", "folder"):
        with pytest.raises(InputError, match="expected"):
            specdec.convert(source, tmp_path / out, force=True)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_folder_replaces_its_own_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure midway changes nothing."""
    folder = folder_of(tmp_path / "folder", CASES["llama"])
    expected, before = specdec.load(folder).logits(SOURCE), sorted(folder.iterdir())

    def refuse(*_: object) -> None:
        raise OSError("no room")

    with monkeypatch.context() as patched:
        patched.setattr("specdec.models.conversion.model_as_folder._write_json", refuse)
        for out in (folder, tmp_path / "new"):
            with pytest.raises(OSError, match="no room"):
                specdec.convert(folder, out, force=True)
    assert sorted(folder.iterdir()) == before and sorted(tmp_path.iterdir()) == [folder]
    assert np.array_equal(specdec.load(folder).logits(SOURCE), expected)
    specdec.convert(folder, folder, force=True)
    assert np.array_equal(specdec.load(folder).logits(SOURCE), expected)
    assert sorted(tmp_path.iterdir()) == [folder]


@pytest.mark.parametrize("n_kv", [1, 2, 4])
@pytest.mark.parametrize("vocabulary", [97, -97])
def test_a_llama2c_file(tmp_path: Path, vocabulary: int, n_kv: int) -> None:
    """The head is tied, or separate with a negative vocabulary size."""
    header = (32, 70, 3, 4, n_kv, vocabulary, 40)
    path = write_llama2c(tmp_path / "model.bin", header, llama2c_tensors(header, seed=n_kv))
    made = specdec.convert(path, tmp_path / "model.gguf", "F32")
    assert ("output.weight" in read_gguf(made)[1]) == (vocabulary < 0)
    assert np.array_equal(specdec.load(made).logits(SOURCE), specdec.load(path).logits(SOURCE))
    for ggml_type in ("Q8_0", "Q4_K_M", "BF16"):
        small = specdec.load(specdec.convert(path, tmp_path / f"{ggml_type}.gguf", ggml_type))
        assert np.isfinite(small.logits(SOURCE)).all()


@pytest.mark.parametrize("name", ["stories260K/stories260K.bin", "chars105/model5000.bin"])
def test_a_trained_llama2c_file(shared: Path, tmp_path: Path, name: str) -> None:
    """Its vocabulary is then encoded by SentencePiece."""
    model = specdec.load(shared / "models" / name)
    again = specdec.load(specdec.convert(model.path, tmp_path / "model.gguf", "F32"))
    assert np.array_equal(again.logits(SOURCE), model.logits(SOURCE))
    ours, theirs = again.tokenizer, model.tokenizer
    assert (ours.eos_ids, ours.bos_id) == (theirs.eos_ids, theirs.bos_id)
    for text in ("Once upon a time, there was a girl.\nTom", "na\u00efve \u4e2d\U0001f600x", "  two  ", ""):
        ids = theirs.encode(text)
        assert ours.encode(text) == ids and ours.decode(ids) == theirs.decode(ids)


def test_a_llama2c_vocabulary_that_a_gguf_file_cannot_say(tmp_path: Path) -> None:
    header = (32, 70, 1, 4, 4, 8, 40)
    path = write_llama2c(tmp_path / "model.bin", header)
    tokens = [b"<unk>", b"\n<s>\n", b"\n</s>\n", b"a", b"b", b"\xff", b" ", b"c"]
    write_llama2c_tokenizer(tmp_path / "tok8.bin", [(token, 0.0) for token in tokens])
    with pytest.raises(TokenizerError, match="token 5, .*which is not UTF-8"):
        specdec.convert(path, tmp_path / "model.gguf")
    assert specdec.convert(path, tmp_path / "model.gguf", tokenizer=False).is_file()


SAID: list[dict[str, Any]] = [
    {"do_sample": True, "temperature": 0.7, "top_k": 5, "top_p": 0.9, "repetition_penalty": 1.1}, {},
    {"do_sample": True}, {"repetition_penalty": 1.3}, {"do_sample": True, "suppress_tokens": [3, 5]},
]  # fmt: skip


@pytest.mark.parametrize("fields", SAID)
def test_default_settings_of_texts_survive(make_llama: Any, tmp_path: Path, fields: dict[str, Any]) -> None:
    """GGUF has no field for token biases, which causes a warning."""
    folder = make_llama()
    (folder / "generation_config.json").write_text(json.dumps(fields))
    expected = specdec.load(folder).default_sampling
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        specdec.convert(folder, tmp_path / "model.gguf", "F32", tokenizer=False)
    biases = expected.pop("logit_bias", None)
    assert ["logit_bias" in str(one.message) for one in caught] == [True] * (biases is not None)
    specdec.convert(tmp_path / "model.gguf", tmp_path / "back")
    for path in (tmp_path / "model.gguf", tmp_path / "back"):
        assert specdec.load(path).default_sampling == expected


@pytest.mark.parametrize("tokenizer", [None, False])
def test_default_settings_of_a_config_survive(make_llama: Any, tmp_path: Path, tokenizer: Any) -> None:
    """Settings of a folder without generation_config.json."""
    fields = {"suppress_tokens": [3], "bad_words_ids": [[4, 5], [6]], "min_new_tokens": 2}
    folder = make_llama(**fields)
    made = specdec.convert(folder, tmp_path / "made", "int8", tokenizer=tokenizer)
    expected = {"logit_bias": {3: -np.inf, 6: -np.inf}, "bad_words": [[4, 5]], "min_tokens": 2}
    assert specdec.load(made).default_sampling == specdec.load(folder).default_sampling == expected


def test_added_tokens_that_gguf_readers_hide(make_llama: Any, tmp_path: Path) -> None:
    """Readers treat names of end-of-message tokens as special, whatever a file says."""
    from tokenizers import AddedToken

    library = library_tokenizer([])
    for special in (True, False):
        folder = make_llama(vocab_size=257, eos_token_id=None)
        library.add_tokens([AddedToken("<|im_end|>", special=special, normalized=False)])
        library.save(str(folder / "tokenizer.json"))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            specdec.convert(folder, tmp_path / "model.gguf", "F32", force=True)
        assert ["<|im_end|>" in str(one.message) for one in caught] == [True] * (not special)
        read = specdec.load(tmp_path / "model.gguf").tokenizer
        assert read is not None and read.decode([256]) == ""
