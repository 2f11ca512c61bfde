"""Loaders: what they read, what they hand to the core, and every way in which a file can be wrong."""

from __future__ import annotations

import gc
import json
import os
import re
import struct
import sys
import time
import types
import warnings
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import specdec
from refusals import refuses_field
from specdec import _core, progress
from specdec.checkpoints import open_checkpoint
from specdec.errors import (
    CheckpointError,
    CheckpointNotFoundError,
    InputError,
    MissingPackageError,
    TokenizerError,
    UnsupportedModelError,
)
from specdec.models.checkpoints import hub
from specdec.models.checkpoints.file_tensor import FileRows
from specdec.models.checkpoints.safetensors_file import read_safetensors
from specdec.models.loading import _checked
from worlds.folders import (
    bf16_values,
    encode,
    gpt2_config,
    gpt2_tensors,
    llama2c_tensors,
    llama_config,
    llama_tensors,
    mistral_config,
    raw_safetensors,
    safetensors_bytes,
    write_hf,
    write_llama2c,
    write_llama2c_tokenizer,
)


def canonical(path: Path) -> dict[str, np.ndarray]:
    """Every tensor of a checkpoint as float32."""
    arrays = {}
    for name, array, form in open_checkpoint(path).tensors():
        assert form in {"f32", "f16", "bf16"}
        if form == "bf16":
            assert array.dtype == np.uint16
            array = (array.astype(np.uint32) << 16).view(np.float32)
        arrays[name] = np.asarray(array, dtype=np.float32)
    return arrays


# ── What is read
# ─────────────────────────────────────────────────────────────────────────────────────────────


def test_llama_config_and_tensors(make_llama):
    folder = make_llama(attention_bias=True, mlp_bias=True)
    checkpoint = open_checkpoint(folder)
    assert checkpoint.architecture == "LlamaForCausalLM"
    inv_freq = checkpoint.config["inv_freq"]
    assert {**checkpoint.config, "inv_freq": None} == {
        "n_vocab": 61, "n_ctx": 48, "n_layer": 2, "n_head": 4, "n_kv_head": 2, "d_model": 32, "d_head": 8,
        "d_ff": 56, "norm": "rms", "norm_eps": 1e-5, "position": "rotary", "inv_freq": None,
        "activation": "silu", "gated": True,
        "tied": False, "qkv_bias": True, "out_bias": True, "mlp_bias": True, "sliding_window": 0,
    }  # fmt: skip
    np.testing.assert_allclose(inv_freq, [1.0, 0.1, 0.01, 0.001], rtol=1e-7)
    stored = llama_tensors(llama_config(attention_bias=True, mlp_bias=True))
    ours = canonical(folder)
    assert np.array_equal(ours["token_embedding"], stored["model.embed_tokens.weight"])
    assert np.array_equal(ours["head"], stored["lm_head.weight"])
    assert np.array_equal(ours["layers.1.attn_k.bias"], stored["model.layers.1.self_attn.k_proj.bias"])
    assert np.array_equal(ours["layers.0.mlp_gate.weight"], stored["model.layers.0.mlp.gate_proj.weight"])
    assert np.array_equal(
        ours["layers.0.mlp_norm.weight"], stored["model.layers.0.post_attention_layernorm.weight"]
    )
    assert len(ours) == len(stored)


@pytest.mark.parametrize(
    "changes",
    [{}, {"tie_word_embeddings": True}, {"attention_bias": True, "mlp_bias": True}, {"head_dim": 6}],
    ids=["plain", "tied", "biases", "head_dim"],
)
def test_llama_tensors_are_those_the_core_asks_for(make_llama, changes):
    checkpoint = open_checkpoint(make_llama(**changes))
    given = {name: tuple(array.shape) for name, array, _ in checkpoint.tensors()}
    assert given == _core.tensor_shapes(checkpoint.config)


@pytest.mark.parametrize("changes", [{}, {"n_inner": 40}, {"tie_word_embeddings": False}], ids=str)
def test_gpt2_tensors_are_those_the_core_asks_for(make_gpt2, changes):
    checkpoint = open_checkpoint(make_gpt2(**changes))
    given = {name: tuple(array.shape) for name, array, _ in checkpoint.tensors()}
    assert given == _core.tensor_shapes(checkpoint.config)


def test_gpt2_matrices_are_transposed_views(make_gpt2):
    folder = make_gpt2()
    stored = gpt2_tensors(gpt2_config())
    ours = canonical(folder)
    c_attn = stored["transformer.h.1.attn.c_attn.weight"]
    for part, name in enumerate(("attn_q", "attn_k", "attn_v")):
        assert np.array_equal(ours[f"layers.1.{name}.weight"], c_attn[:, 32 * part : 32 * (part + 1)].T)
        bias = stored["transformer.h.1.attn.c_attn.bias"][32 * part : 32 * (part + 1)]
        assert np.array_equal(ours[f"layers.1.{name}.bias"], bias)
    assert np.array_equal(ours["layers.0.mlp_up.weight"], stored["transformer.h.0.mlp.c_fc.weight"].T)
    for name, array, _ in open_checkpoint(folder).tensors():
        if name.endswith(("attn_q.weight", "mlp_down.weight")):
            assert not array.flags.owndata and not array.flags.c_contiguous, name


@pytest.mark.parametrize("kind", ["llama", "gpt2", "llama2c"])
def test_a_file_that_shrinks_is_a_checkpoint_error(kind, make_llama, make_gpt2, tmp_path):
    """Not a SIGBUS, as a mapped file gives: opened whole, cut short by another program, then read."""
    if kind == "llama2c":
        checkpoint = open_checkpoint(write_llama2c(tmp_path / "model.bin"))
        file = checkpoint.path
    else:
        checkpoint = open_checkpoint((make_llama if kind == "llama" else make_gpt2)())
        file = checkpoint.path / "model.safetensors"
    size, read = file.stat().st_size, []
    ends = rf"{re.escape(str(file))}: ends at byte \d+, within tensor '\S+'; expected {size} bytes"
    with pytest.raises(CheckpointError, match=ends):
        for name, array, _ in checkpoint.tensors():
            read.append((name, array.sum()))
            os.truncate(file, 4096)
    assert read


def test_one_tensor_is_in_memory_at_a_time(make_llama, tmp_path):
    """From the loaders to the core, which is given the tensors one by one."""
    for path in (make_llama(), write_llama2c(tmp_path / "model.bin")):
        checkpoint, before = open_checkpoint(path), None
        for tensor in _checked(checkpoint, None, None):
            assert before is None or before() is None
            array = None if isinstance(tensor[1], FileRows) else tensor[1]  # rows are not read by then
            before = None if array is None else weakref.ref(array if array.base is None else array.base)
            del array
            del tensor


def test_tensors_can_be_read_twice(make_llama):
    checkpoint = open_checkpoint(make_llama())
    first, second = ([(n, a.copy(), f) for n, a, f in checkpoint.tensors()] for _ in range(2))
    assert len(first) == len(second) > 10
    for (n1, a1, f1), (n2, a2, f2) in zip(first, second, strict=True):
        assert (n1, f1) == (n2, f2) and np.array_equal(a1, a2)


@pytest.mark.parametrize("dtype", ["F16", "BF16"])
def test_half_precision_values(make_llama, dtype):
    stored = llama_tensors(llama_config())["model.layers.0.mlp.up_proj.weight"]
    ours = canonical(make_llama(dtype=dtype))["layers.0.mlp_up.weight"]
    kept = bf16_values(stored) if dtype == "BF16" else stored.astype(np.float16).astype(np.float32)
    assert np.array_equal(ours, kept)
    assert not np.array_equal(ours, stored)


@pytest.mark.parametrize("dtype", ["F32", "BF16"])
def test_shards_equal_one_file(make_llama, dtype):
    whole, parts = (
        canonical(make_llama("one", dtype=dtype)),
        canonical(make_llama("three", dtype=dtype, n_shards=3)),
    )
    assert whole.keys() == parts.keys()
    for name in whole:
        assert np.array_equal(whole[name], parts[name])


def test_tensor_at_an_unaligned_byte(tmp_path):
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    header = {"odd": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}
    text = json.dumps(header).encode()
    text += b" " * ((3 - len(text)) % 4)
    path = tmp_path / "x.safetensors"
    path.write_bytes(raw_safetensors(text, array.tobytes(), pad_to=1))
    found = read_safetensors(path)["odd"].array()
    assert found.flags.aligned and np.array_equal(found, array)


def test_architecture_from_model_type_alone(make_llama, make_gpt2):
    assert open_checkpoint(make_llama(architectures=...)).architecture == "LlamaForCausalLM"
    assert open_checkpoint(make_gpt2(architectures=None)).architecture == "GPT2LMHeadModel"


def test_bare_gpt2_names_and_old_buffers(tmp_path):
    config = gpt2_config()
    stored = gpt2_tensors(config)
    bare = {name.removeprefix("transformer."): array for name, array in stored.items()}
    bare["h.0.attn.bias"] = np.ones((1, 1, 4, 4), np.float32)
    bare["h.0.attn.masked_bias"] = np.float32(-1e4).reshape(())
    bare["lm_head.weight"] = stored["transformer.wte.weight"]
    one = canonical(write_hf(tmp_path / "full", config, stored))
    two = canonical(write_hf(tmp_path / "bare", config, bare))
    assert one.keys() == two.keys() and all(np.array_equal(one[name], two[name]) for name in one)


def test_rope_in_both_spellings(make_llama):
    old = open_checkpoint(make_llama("old", rope_theta=5e5)).config["inv_freq"]
    new = open_checkpoint(
        make_llama("new", rope_theta=..., rope_parameters={"rope_type": "default", "rope_theta": 5e5})
    ).config["inv_freq"]
    assert old == new and old[1] == pytest.approx(5e5**-0.25)
    linear = open_checkpoint(
        make_llama("linear", rope_theta=5e5, rope_scaling={"type": "linear", "factor": 4.0})
    ).config["inv_freq"]
    np.testing.assert_allclose(linear, np.asarray(old) / 4, rtol=1e-6)


def test_llama3_rope_by_its_definition(make_llama):
    rope = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64}  # fmt: skip
    plain = np.asarray(open_checkpoint(make_llama("plain")).config["inv_freq"])
    found = open_checkpoint(make_llama("llama3", rope_scaling=rope)).config["inv_freq"]
    expected = []
    for frequency in plain:
        wavelength = 2 * np.pi / frequency
        if wavelength < 64 / 4.0:
            expected.append(frequency)
        elif wavelength > 64 / 1.0:
            expected.append(frequency / 8)
        else:
            smooth = (64 / wavelength - 1.0) / (4.0 - 1.0)
            expected.append((1 - smooth) * frequency / 8 + smooth * frequency)
    assert len({round(f / p, 6) for f, p in zip(expected, plain, strict=True)}) > 2  # all three branches
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_llama2c_layout(tmp_path):
    stored = llama2c_tensors()
    ours = canonical(write_llama2c(tmp_path / "m.bin"))
    config = open_checkpoint(tmp_path / "m.bin").config
    assert {n: a.shape for n, a in ours.items()} == _core.tensor_shapes(config)
    assert config["tied"] and config["norm_eps"] == 1e-5 and config["n_vocab"] == 19
    assert np.array_equal(ours["layers.1.mlp_gate.weight"], stored["w1"][1])
    assert np.array_equal(ours["layers.1.mlp_down.weight"], stored["w2"][1])
    assert np.array_equal(ours["layers.1.mlp_up.weight"], stored["w3"][1])
    # Row 2j + p of a head moves to p * d_head/2 + j.
    wq, moved = stored["wq"][0].reshape(4, 6, 24), ours["layers.0.attn_q.weight"].reshape(4, 6, 24)
    for j in range(3):
        for p in range(2):
            assert np.array_equal(moved[:, 3 * p + j], wq[:, 2 * j + p])
    assert np.array_equal(ours["layers.0.attn_v.weight"], stored["wv"][0])


def test_llama2c_untied_head(tmp_path):
    header = (24, 40, 2, 4, 2, -19, 16)
    ours = canonical(write_llama2c(tmp_path / "m.bin", header))
    assert np.array_equal(ours["head"], llama2c_tensors(header)["wcls"])


def test_end_ids(make_llama):
    def tokenizer(folder: Path) -> Any:
        (folder / "tokenizer.json").write_text(_byte_level_json())
        return open_checkpoint(folder).tokenizer

    assert tokenizer(make_llama("a", eos_token_id=2)).eos_ids == (2,)
    assert tokenizer(make_llama("b", eos_token_id=[3, 5, 3])).eos_ids == (3, 5)
    folder = make_llama("c", eos_token_id=3)
    (folder / "generation_config.json").write_text('{"eos_token_id": [7, 8], "bos_token_id": 6}')
    assert (tokenizer(folder).eos_ids, tokenizer(folder).bos_id) == ((7, 8), 6)
    folder = make_llama("d", eos_token_id=..., bos_token_id=...)
    (folder / "tokenizer_config.json").write_text('{"eos_token": {"content": "!"}, "bos_token": "\\""}')
    assert (tokenizer(folder).eos_ids, tokenizer(folder).bos_id) == ((0,), 1)


def test_end_ids_outside_the_vocabulary_are_left_out(make_llama):
    folder = make_llama(eos_token_id=[2, 61], bos_token_id=-1)
    (folder / "tokenizer.json").write_text(_byte_level_json())
    (folder / "generation_config.json").write_text('{"eos_token_id": 50256, "bos_token_id": 50256}')
    with pytest.warns(UserWarning) as caught:
        tokenizer = open_checkpoint(folder).tokenizer
    assert (tokenizer.eos_ids, tokenizer.bos_id) == ((2,), None)
    assert [str(warning.message) for warning in caught] == [
        f"{folder}: 'bos_token_id' is 50256, 'bos_token_id' is -1, 'eos_token_id' is 50256, "
        "'eos_token_id' is [2, 61]; expected ids from 0 to 60, and others are left out"
    ]


def test_warnings_are_of_the_line_that_loads(make_llama):
    folder = make_llama(eos_token_id=61)
    for load in (specdec.load, open_checkpoint):
        with pytest.warns(UserWarning, match="eos_token_id") as caught:
            load(folder)
        assert [warning.filename for warning in caught] == [__file__]


def test_a_tokenizer_with_more_ids_than_the_model_is_warned_of(make_llama, tmp_path):
    (tmp_path / "tokenizer.json").write_text(_byte_level_json())
    folder = make_llama(vocab_size=5)
    with pytest.warns(UserWarning, match=r"the tokenizer has \d+ ids; expected at most 5"):
        specdec.load(folder, tokenizer=tmp_path)


def test_one_warning_tells_of_ids_that_both_files_have(make_gpt2):
    """As ``transformers`` saves a GPT-2 of a small vocabulary."""
    folder = make_gpt2(eos_token_id=50256, bos_token_id=50256)
    (folder / "generation_config.json").write_text('{"eos_token_id": 50256, "bos_token_id": 50256}')
    with pytest.warns(UserWarning) as caught:
        open_checkpoint(folder)
    (message,) = [str(warning.message) for warning in caught]
    assert message.startswith(f"{folder}: 'bos_token_id' is 50256, 'eos_token_id' is 50256; expected ids")


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ({}, {}),
        ({"temperature": 0.6, "top_p": 0.9, "top_k": 50}, {}),  # greedy, as in transformers
        ({"do_sample": False, "temperature": 0.6, "repetition_penalty": 1.1}, {"repetition_penalty": 1.1}),
        ({"no_repeat_ngram_size": 3}, {"no_repeat_ngram_size": 3}),  # greedy decoding heeds it, too
        ({"min_new_tokens": 3, "bad_words_ids": [[5, 6]]}, {"min_tokens": 3, "bad_words": [[5, 6]]}),
        ({"do_sample": True}, {"temperature": 1.0}),
        (
            {"do_sample": True, "temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0},
            {"temperature": 0.6, "top_p": 0.95, "top_k": 20},
        ),
        (
            {"do_sample": True, "top_k": 0, "top_p": 1, "min_p": 0.1, "repetition_penalty": 1.0},
            {"temperature": 1.0, "min_p": 0.1},
        ),
    ],
)
def test_default_sampling(make_llama, said, found):
    folder = make_llama()
    (folder / "generation_config.json").write_text(json.dumps(said))
    model = specdec.load(folder)
    assert model.default_sampling == found
    specdec.Sampling(**model.default_sampling)
    plain = specdec.generate(model, None, [1, 2, 3], max_new_tokens=5, ignore_eos=True)
    same = specdec.generate(model, None, [1, 2, 3], max_new_tokens=5, ignore_eos=True, temperature=0.0)
    assert plain.tokens == same.tokens  # never applied unasked
    model.default_sampling["temperature"] = 7.0
    assert model.default_sampling == found


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", 0), ("temperature", "warm"), ("temperature", 10**400), ("top_k", 2.5), ("top_k", -1),
        ("top_p", 0.0), ("top_p", True), ("min_p", 1.5), ("repetition_penalty", -1), ("top_p", []),
        ("min_new_tokens", -1), ("min_new_tokens", 1.5),
    ],
)  # fmt: skip
def test_default_sampling_out_of_range_is_left_out(make_llama, name, value):
    folder = make_llama()
    (folder / "generation_config.json").write_text(json.dumps({"do_sample": True, name: value}))
    with pytest.warns(UserWarning, match=f"generation_config.json: field '{name}' is .*; it is left out"):
        assert specdec.load(folder).default_sampling == {"temperature": 1.0}


def _byte_level_json() -> str:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({char: i for i, char in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer.to_str()


# ── Which loader
# ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ["nowhere", "no/such/folder", "./org/name", "/no/such/file.bin"])
def test_nothing_there(name):
    with pytest.raises(CheckpointNotFoundError, match=re.escape(name)):
        open_checkpoint(name)
    with pytest.raises(FileNotFoundError):
        specdec.load(name)


def test_wrong_kind_of_path(tmp_path, make_llama):
    folder = make_llama()
    for path in (folder / "config.json", folder / "model.safetensors"):
        with pytest.raises(CheckpointError, match="give the folder"):
            open_checkpoint(path)
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(CheckpointError, match=r"expected a Hugging Face folder, a GGUF file or a llama2\.c"):
        open_checkpoint(tmp_path / "notes.txt")
    with pytest.raises(CheckpointNotFoundError, match=r"config\.json"):
        open_checkpoint(tmp_path)


def test_hub_name_is_downloaded(monkeypatch, make_llama, tmp_path):
    folder, asked = make_llama(), []

    def snapshot_download(name, *, allow_patterns, ignore_patterns=None, **options):
        asked.append((name, options))
        assert "*.safetensors" in allow_patterns or allow_patterns == ["additional_chat_templates/*.jinja"]
        return str(folder)

    fake = types.SimpleNamespace(snapshot_download=snapshot_download)
    monkeypatch.setitem(sys.modules, "huggingface_hub", fake)
    assert open_checkpoint("org/name-1.0").path == folder
    plain = {"revision": None, "cache_dir": None, "token": None}
    assert asked == [("org/name-1.0", plain)] * 2  # the weights, and templates in a folder of their own
    options = {"revision": "v1.1", "cache_dir": tmp_path, "token": "hf_x"}
    assert specdec.load("org/name", **options).path == folder
    assert asked[2:] == [("org/name", options)] * 2
    specdec.load("gpt2")
    assert asked[4:] == [("openai-community/gpt2", plain)] * 2


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("org/name", {"revision": 3}, "revision is 3; expected a branch"),
        ("org/name", {"revision": ""}, "revision is ''; expected a branch"),
        ("org/name", {"token": 3.5}, "token is a float"),
        ("org/name", {"cache_dir": b"x"}, "cache_dir is b'x'; expected a path"),
        (".", {"revision": "main"}, "revision is 'main'; expected None, as . is on disk"),
    ],
)
def test_bad_hub_options(name, options, message):
    with pytest.raises(InputError, match=re.escape(message)):
        open_checkpoint(name, **options)


@pytest.mark.oracle
def test_patterns_of_the_hub():
    """What is asked for, by the library's own rule of patterns."""
    from huggingface_hub.utils import filter_repo_objects as filtered

    there = ["config.json", "model.safetensors", "onnx/model.safetensors", "chat_template.jinja", "README.md"]
    found = filtered(there, allow_patterns=hub._WANTED, ignore_patterns=hub._UNWANTED)
    assert list(found) == ["config.json", "model.safetensors", "chat_template.jinja"]
    there = ["x.jinja", "additional_chat_templates/rag.jinja", "additional_chat_templates/x.txt"]
    assert list(filtered(there, allow_patterns=[hub.TEMPLATES])) == ["additional_chat_templates/rag.jinja"]


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:%s\nsize 1000\n" % (b"0" * 64)


@pytest.mark.parametrize(("n", "written"), [(1, " 1 layer,"), (2, " 2 layers,")])
def test_the_number_of_layers_is_written_out(make_llama, n, written):
    assert written in repr(specdec.load(make_llama(num_hidden_layers=n)))


def test_git_lfs_pointers_are_named(make_llama, tmp_path):
    folder = make_llama()
    (folder / "model.safetensors").write_bytes(POINTER)
    (tmp_path / "model.bin").write_bytes(POINTER)
    for path in (folder, tmp_path / "model.bin"):
        with pytest.raises(CheckpointError, match=r"is a Git LFS pointer.*git lfs pull"):
            open_checkpoint(path)


def test_weights_in_other_formats_are_named(make_llama):
    folder = make_llama()
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(CheckpointNotFoundError, match=r"it has pytorch_model\.bin"):
        open_checkpoint(folder)


def test_hub_failures(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(CheckpointError, match="pip install huggingface_hub") as caught:
        open_checkpoint("org/name")
    assert isinstance(caught.value, MissingPackageError)

    def snapshot_download(name, **_):
        raise OSError("the network\nis down")

    monkeypatch.setitem(
        sys.modules, "huggingface_hub", types.SimpleNamespace(snapshot_download=snapshot_download)
    )
    with pytest.raises(CheckpointError, match=r"org/name.*OSError: the network is down") as failed:
        open_checkpoint("org/name")
    assert failed.value.args[0].count("\n") == 0


@pytest.mark.parametrize(
    ("name", "is_hub"),
    [
        ("org/name", True),
        ("a.b/c_d-1", True),
        ("name", False),
        ("gpt2", True),
        ("gpt2-xl", True),
        ("a/b/c", False),
        ("../x", False),
        ("/x", False),
    ],
)
def test_hub_names(name, is_hub):
    assert hub.is_repository_name(name) == is_hub


# ── Bad configurations
# ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("changes", "error", "field"),
    [
        ({"architectures": ["BertModel"]}, UnsupportedModelError, "architectures"),
        ({"architectures": ["MambaForCausalLM"]}, UnsupportedModelError, "architectures"),
        ({"architectures": ["Qwen3NextForCausalLM"]}, UnsupportedModelError, "architectures"),
        ({"architectures": ["DbrxForCausalLM"]}, UnsupportedModelError, "architectures"),
        ({"architectures": ["PegasusModel"]}, UnsupportedModelError, "architectures"),
        ({"architectures": ["T5EncoderModel"]}, UnsupportedModelError, "architectures"),
        ({"architectures": ["T5GemmaModel"]}, UnsupportedModelError, "architectures"),
        ({"architectures": ["WhisperModel"]}, UnsupportedModelError, "architectures"),
        ({"architectures": ["LlavaForConditionalGeneration"]}, UnsupportedModelError, "architectures"),
        ({"architectures": ["Gemma3nForCausalLM"]}, UnsupportedModelError, "architectures"),
        ({"architectures": ["Gemma4ForCausalLM"]}, UnsupportedModelError, "architectures"),
        ({"architectures": ["LagunaForCausalLM"]}, UnsupportedModelError, "architectures"),
        ({"architectures": ..., "model_type": "bert"}, UnsupportedModelError, "model_type"),
        ({"architectures": ..., "model_type": ["llama"]}, UnsupportedModelError, "model_type"),
        ({"architectures": "LlamaForCausalLM"}, CheckpointError, "architectures"),
        ({"hidden_size": 0}, CheckpointError, "hidden_size"),
        ({"hidden_size": -32}, CheckpointError, "hidden_size"),
        ({"hidden_size": 32.0}, CheckpointError, "hidden_size"),
        ({"hidden_size": "32"}, CheckpointError, "hidden_size"),
        ({"hidden_size": True}, CheckpointError, "hidden_size"),
        ({"hidden_size": 10**30}, CheckpointError, "hidden_size"),
        ({"hidden_size": 30}, CheckpointError, "hidden_size"),
        ({"vocab_size": None}, CheckpointError, "vocab_size"),
        ({"num_hidden_layers": 10**9}, CheckpointError, "num_hidden_layers"),
        ({"head_dim": 10**9}, CheckpointError, "head_dim"),
        ({"head_dim": 7}, CheckpointError, "head_dim"),
        ({"num_key_value_heads": 3}, CheckpointError, "num_key_value_heads"),
        ({"rms_norm_eps": 0}, CheckpointError, "rms_norm_eps"),
        ({"rms_norm_eps": "small"}, CheckpointError, "rms_norm_eps"),
        ({"rms_norm_eps": 10**400}, CheckpointError, "rms_norm_eps"),
        ({"rope_theta": -1.0}, CheckpointError, "rope_theta"),
        ({"hidden_act": "mish"}, UnsupportedModelError, "hidden_act"),
        ({"hidden_act": 3}, CheckpointError, "hidden_act"),
        ({"tie_word_embeddings": 1}, CheckpointError, "tie_word_embeddings"),
        ({"attention_bias": "no"}, CheckpointError, "attention_bias"),
        ({"quantization_config": {"bits": 4}}, UnsupportedModelError, "quantization_config"),
        ({"partial_rotary_factor": 0.5}, UnsupportedModelError, "partial_rotary_factor"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, UnsupportedModelError, "layer_types"),
        ({"rope_scaling": {"type": "axial", "factor": 2.0}}, UnsupportedModelError, "rope_scaling.type"),
        ({"rope_scaling": {"rope_type": "dynamic"}}, CheckpointError, "rope_scaling.factor"),
        (
            {"rope_scaling": {"rope_type": "longrope", "short_factor": [10**400] * 4}},
            CheckpointError,
            "rope_scaling.short_factor[0]",
        ),
        (
            {"rope_scaling": {"rope_type": "longrope", "short_factor": [1.0]}},
            CheckpointError,
            "rope_scaling.short_factor",
        ),
        ({"rope_scaling": {"type": "linear"}}, CheckpointError, "rope_scaling.factor"),
        ({"rope_scaling": {"type": "linear", "factor": 0}}, CheckpointError, "rope_scaling.factor"),
        ({"rope_scaling": ["linear", 2]}, CheckpointError, "rope_scaling"),
        (
            {"rope_scaling": {"type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 4}},
            CheckpointError,
            "rope_scaling.high_freq_factor",
        ),
        (
            {"rope_parameters": {"full_attention": {"rope_theta": 1e4}}},
            UnsupportedModelError,
            "rope_parameters.full_attention",
        ),
        (
            {"rope_parameters": {"rope_type": "default"}, "rope_scaling": {"type": "linear", "factor": 2}},
            CheckpointError,
            "rope_scaling",
        ),
        ({"eos_token_id": [1, "2"]}, CheckpointError, "eos_token_id"),
    ],
)
def test_bad_llama_config(make_llama, changes, error, field):
    folder = make_llama(tensors=llama_tensors(llama_config()), **changes)
    with refuses_field(folder / "config.json", field, error):
        specdec.load(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scale_attn_weights": False}, "'scale_attn_weights' is false"),
        ({"reorder_and_upcast_attn": True}, "'reorder_and_upcast_attn' is true"),
        ({"add_cross_attention": True}, "'add_cross_attention' is true"),
        ({"activation_function": "mish"}, "'activation_function' is \"mish\""),
        ({"n_head": 5}, "'n_embd' is 32; expected a multiple of n_head"),
        ({"n_positions": ...}, r"wpe.weight' has shape \[\d+, 32\]; expected \[1024, 32\]"),
        ({"n_inner": 0}, "'n_inner' is 0"),
        ({"layer_norm_epsilon": -1}, "'layer_norm_epsilon' is -1"),
    ],
)
def test_bad_gpt2_config(make_gpt2, changes, message):
    folder = make_gpt2(tensors=gpt2_tensors(gpt2_config()), **changes)
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(folder)


def test_mistral_has_no_biases_and_a_positive_window(make_mistral):
    tensors = llama_tensors(mistral_config())
    with pytest.raises(UnsupportedModelError, match="'attention_bias' is true"):
        open_checkpoint(make_mistral(attention_bias=True, tensors=tensors))
    with pytest.raises(CheckpointError, match="'sliding_window' is 0"):
        open_checkpoint(make_mistral(sliding_window=0, tensors=tensors))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"[1]", "JSON list; expected an object"),
        (b"\xff\xfe\x00", "not valid JSON"),
        (b'{"vocab_size": NaN}', "NaN is not a JSON number"),
        (b"[" * 100_000, "not valid JSON"),
        (b'{"vocab_size": ' + b"9" * 10_000 + b"}", "not valid JSON"),
    ],
    ids=range(7),
)
def test_bad_config_file(make_llama, text, message):
    folder = make_llama()
    (folder / "config.json").write_bytes(text)
    with pytest.raises(CheckpointError, match=message):
        specdec.load(folder)


# ── Bad weights
# ──────────────────────────────────────────────────────────────────────────────────────────────


def test_missing_tensor(make_llama):
    tensors = llama_tensors(llama_config())
    del tensors["model.layers.1.mlp.up_proj.weight"]
    with pytest.raises(CheckpointError, match=r"'model\.layers\.1\.mlp\.up_proj\.weight'"):
        specdec.load(make_llama(tensors=tensors))


def test_wrong_shape(make_llama):
    tensors = llama_tensors(llama_config())
    name = "model.layers.0.self_attn.k_proj.weight"
    tensors[name] = tensors[name].T.copy()
    with pytest.raises(
        CheckpointError, match=rf"model\.safetensors.*'{name}' has shape \[32, 16\]; expected \[16, 32\]"
    ):
        specdec.load(make_llama(tensors=tensors))


@pytest.mark.parametrize(
    "name",
    ["model.layers.0.self_attn.q_proj.bias", "model.layers.2.mlp.up_proj.weight", "score.weight", "x.lora_A"],
)
def test_tensor_that_the_config_does_not_use(make_llama, name):
    tensors = {**llama_tensors(llama_config()), name: np.ones(3, np.float32)}
    with pytest.raises(UnsupportedModelError, match=re.escape(f"'{name}'")):
        specdec.load(make_llama(tensors=tensors))


def test_harmless_llama_buffer(make_llama):
    tensors = llama_tensors(llama_config())
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(4, np.float32)
    open_checkpoint(make_llama(tensors=tensors))


def test_a_tied_head_that_differs_is_the_head(make_llama):
    """As in transformers 5; see test_absent_fields.py for its logits."""
    tensors = llama_tensors(llama_config(tie_word_embeddings=True))
    same = {**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"]}
    assert "head" not in canonical(make_llama("same", tensors=same, tie_word_embeddings=True))
    other = {**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"] + 1}
    found = canonical(make_llama("other", tensors=other, tie_word_embeddings=True))
    np.testing.assert_array_equal(found["head"], other["lm_head.weight"])


def test_both_names_of_one_tensor(make_gpt2):
    tensors = gpt2_tensors(gpt2_config())
    tensors["wte.weight"] = tensors["transformer.wte.weight"]
    with pytest.raises(CheckpointError, match=r"'wte\.weight' is held beside 'transformer\.wte\.weight'"):
        open_checkpoint(make_gpt2(tensors=tensors))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_weights_that_are_not_finite(make_llama, value, dtype):
    tensors = llama_tensors(llama_config())
    tensors["model.layers.1.mlp.down_proj.weight"][3, 50] = value
    folder = make_llama(tensors=tensors, dtype=dtype)
    with pytest.raises(CheckpointError, match=r"layers\.1\.mlp_down\.weight") as caught:
        specdec.load(folder)
    assert str(folder) in str(caught.value)


def test_integer_weights(make_llama):
    folder = make_llama()
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content.replace(b'"F32"', b'"I32"'))
    with pytest.raises(UnsupportedModelError, match="has dtype I32; expected F32, F16, BF16"):
        open_checkpoint(folder)


def test_no_weights(make_llama):
    folder = make_llama()
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(CheckpointNotFoundError, match=r"neither model\.safetensors nor .*pytorch_model\.bin"):
        open_checkpoint(folder)


def entry(dtype: str = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


BIG = 2**63
BAD_FILES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "has 0 bytes; expected at least 8"),
    "short": (b"\x01\0\0", "has 3 bytes"),
    "no header": (struct.pack("<Q", 10), "header length is 10; expected at most 0"),
    "lying length": (struct.pack("<Q", 10**6) + b"{}", "header length is 1000000; expected at most 2"),
    "huge length": (b"\xff" * 8 + b"{}", "header length is 18446744073709551615"),
    "not JSON": (raw_safetensors(b"{nothing", b""), "header is not valid JSON"),
    "not UTF-8": (raw_safetensors(b'{"\xff": 1}', b""), "header is not valid JSON"),
    "a list": (raw_safetensors(b"[]", b""), "header begins with b'\\['"),
    "space first": (raw_safetensors(b" {}", b""), "header begins with b' '"),
    "deep": (raw_safetensors(b'{"a":' * 50_000, b""), "header is not valid JSON"),
    "duplicate": (
        raw_safetensors(b'{"a": %b, "a": %b}' % ((json.dumps(entry()).encode(),) * 2), bytes(8)),
        "'a' occurs more than once",
    ),
    "metadata": (raw_safetensors({"__metadata__": {"a": 1}}, b""), "'__metadata__'"),
    "entry": (raw_safetensors({"a": [1]}, b""), "tensor 'a' has the header entry"),
    "dtype": (
        raw_safetensors({"a": entry("F33")}, bytes(8)),
        "tensor 'a' has dtype \"F33\"; expected one of F4",
    ),
    "dtype kind": (raw_safetensors({"a": entry(["F32"])}, bytes(8)), "tensor 'a' has dtype"),
    "no dtype": (raw_safetensors({"a": {"shape": [2], "data_offsets": [0, 8]}}, bytes(8)), "dtype null"),
    "shape": (raw_safetensors({"a": entry(shape=[-2])}, bytes(8)), "shape \\[-2\\]"),
    "shape float": (raw_safetensors({"a": entry(shape=[2.0])}, bytes(8)), "shape \\[2.0\\]"),
    "shape bool": (raw_safetensors({"a": entry(shape=[True, 2])}, bytes(8)), "shape \\[true, 2\\]"),
    "shape size": (
        raw_safetensors({"a": entry(shape=[3])}, bytes(8)),
        "expected 96 bits for shape \\[3\\]",
    ),
    "shape overflow": (
        raw_safetensors({"a": entry(shape=[2**62, 4, 1])}, bytes(8)),
        "expected more than 147573952589676412928 bits for shape",
    ),
    "shape big": (raw_safetensors({"a": entry(shape=[BIG])}, bytes(8)), "has shape"),
    "offsets": (
        raw_safetensors({"a": entry(offsets=[0])}, bytes(8)),
        "data_offsets \\[0\\]; expected",
    ),
    "offsets sign": (raw_safetensors({"a": entry(offsets=[-8, 0])}, bytes(8)), "data_offsets \\[-8, 0\\]"),
    "offsets order": (raw_safetensors({"a": entry(offsets=[8, 0])}, bytes(8)), "begin <= end <= 8"),
    "truncated": (raw_safetensors({"a": entry()}, bytes(7)), "is the file truncated"),
    "outside": (raw_safetensors({"a": entry(offsets=[8, 16])}, bytes(8)), "begin <= end <= 8"),
    "trailing": (raw_safetensors({"a": entry()}, bytes(9)), "1 bytes follow tensor 'a'"),
    "overlap": (
        raw_safetensors({"a": entry(), "b": entry(offsets=[4, 12])}, bytes(12)),
        "tensor 'b' begins at byte 4 and overlaps tensor 'a'; expected 8",
    ),
    "hole": (
        raw_safetensors({"a": entry(), "b": entry(offsets=[12, 20])}, bytes(20)),
        "tensor 'b' begins at byte 12 and leaves unused bytes after tensor 'a'",
    ),
}


def test_what_is_no_regular_file(tmp_path):
    """A pipe is refused, not waited for."""
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, Path("/dev/zero")):
        with pytest.raises(CheckpointError, match=f"{path}: cannot be read: not a regular file"):
            read_safetensors(path)
    with pytest.raises(CheckpointError, match=r"no\\x00: cannot be read"):
        read_safetensors(tmp_path / "no\0")


def test_files_are_closed(make_llama):
    """When the checkpoint goes; also one that was refused."""
    folder, refused = make_llama("a", n_shards=3), make_llama("b", n_shards=3, hidden_act="none")
    gc.collect()  # what other tests left open
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        checkpoint = open_checkpoint(folder)
        assert len(os.listdir("/proc/self/fd")) == before + 3
        del checkpoint
        specdec.load(folder)
        with pytest.raises(UnsupportedModelError):
            specdec.load(refused)
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("case", BAD_FILES)
def test_bad_safetensors(tmp_path, case):
    from safetensors import safe_open

    content, message = BAD_FILES[case]
    path = tmp_path / "bad.safetensors"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=message) as caught:
        read_safetensors(path)
    assert str(path) in str(caught.value)
    if case in {"duplicate", "space first"}:
        return  # the library lets these pass: the last of two names wins, and the format forbids the space
    with pytest.raises(
        Exception, match=r"(?i)header|metadata|offset|json|utf-8|file|size|shape|small|length"
    ):
        safe_open(str(path), framework="np").__enter__()


def test_safetensors_agrees_with_the_library_on_damaged_files(tmp_path):
    """Whatever happens to the bytes: a CheckpointError, or the same tensors as the library reads."""
    from safetensors import safe_open

    rng = np.random.default_rng(5)
    tensors = {"b": rng.normal(size=(2, 3)), "a": rng.normal(size=4), "c": rng.normal(size=())}
    good = safetensors_bytes({name: np.asarray(array, np.float32) for name, array in tensors.items()})
    n_header = 8 + int.from_bytes(good[:8], "little")
    path = tmp_path / "damaged.safetensors"
    outcomes = {"both read": 0, "both refuse": 0, "we refuse": 0}
    for _ in range(1500):
        data = bytearray(good)
        kind = rng.integers(5)
        if kind == 0:
            del data[rng.integers(len(data)) :]
        elif kind == 1:
            data += bytes(rng.integers(1, 9))
        else:  # digits and punctuation of the header, where damage is likeliest to pass for sense
            for _ in range(rng.integers(1, 4)):
                at = rng.integers(n_header) if kind < 4 else rng.integers(len(data))
                data[at] = (
                    rng.choice(list(b'0123456789[]{}",: FU'))
                    if kind != 2
                    else data[at] ^ (1 << rng.integers(8))
                )
        path.write_bytes(data)
        try:
            with safe_open(str(path), framework="np") as library:
                theirs = {name: library.get_tensor(name).tobytes() for name in library.keys()}
        except Exception:
            theirs = None
        try:
            ours = {name: tensor.read().tobytes() for name, tensor in read_safetensors(path).items()}
        except CheckpointError:
            ours = None
        assert ours is None or ours == theirs, bytes(data)
        outcomes["both refuse" if theirs is None else "we refuse" if ours is None else "both read"] += 1
    assert outcomes["both read"] > 30 and outcomes["both refuse"] > 500, outcomes
    assert outcomes["we refuse"] <= 15, outcomes  # duplicate names, after a letter of one became another's


def test_header_with_many_names_of_which_one_is_twice(tmp_path):
    """In time that grows with their number; counting each name anew would take most of a minute."""
    text = b",".join(b'"%d":%b' % (min(i, 19_998), json.dumps(entry()).encode()) for i in range(20_000))
    path = tmp_path / "x.safetensors"
    path.write_bytes(raw_safetensors(b"{%b}" % text, bytes(8)))
    start = time.thread_time()
    with pytest.raises(CheckpointError, match="the name '19998' occurs more than once"):
        read_safetensors(path)
    assert time.thread_time() - start < 5.0


@pytest.mark.parametrize("extent", [1, 3, 2**62])
def test_shape_of_many_extents(tmp_path, extent):
    """The product is not followed to its end, a number of a million bits."""
    path = tmp_path / "x.safetensors"
    path.write_bytes(raw_safetensors({"a": entry(shape=[extent] * 100_000)}, bytes(8)))
    start = time.thread_time()
    with pytest.raises(CheckpointError, match="tensor 'a' has data_offsets \\[0, 8\\]; expected ") as caught:
        read_safetensors(path)
    assert time.thread_time() - start < 5.0
    assert len(str(caught.value)) < 500


def can_be_read(depth: int) -> bool:
    try:
        json.loads(b"[" * depth + b"]" * depth)
    except RecursionError:
        return False
    return True


def test_a_value_nested_as_deeply_as_can_be_read(make_llama):
    """It may be too deep to be shown or compared, but not to be refused."""
    file = make_llama() / "config.json"
    configs = [
        llama_config(hidden_size="HERE"),
        llama_config(rope_scaling={"a": "HERE"}, rope_parameters={"a": "HERE", "factor": 0}),
        llama_config(rope_scaling={"a": "HERE", "type": "linear"}, rope_parameters={"a": "HERE", "type": 1}),
    ]
    low, high = 100, 200
    while can_be_read(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if can_be_read(middle) else (low, middle)
    for depth in range(low - 80, low + 5):
        nested = b"[" * depth + b"]" * depth
        for config in configs:
            file.write_bytes(json.dumps(config).encode().replace(b'"HERE"', nested))
            with pytest.raises(CheckpointError, match=r"config\.json: (field|not valid JSON)"):
                open_checkpoint(file.parent)


@pytest.mark.parametrize(
    "value", [b"1" + b"0" * 4000, b'"' + b"long " * 100_000 + b'"'], ids=["huge", "long"]
)
@pytest.mark.parametrize(
    "field", ["hidden_size", "architectures", "layer_types", "rope_scaling", "eos_token_id", "rms_norm_eps"]
)
def test_values_that_cannot_be_shown(make_llama, field, value):
    folder = make_llama()
    text = json.dumps(llama_config(**{field: "HERE", "model_type": None})).encode()
    (folder / "config.json").write_bytes(text.replace(b'"HERE"', value))
    with pytest.raises(CheckpointError, match="config.json: ") as caught, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of an end id of 4000 digits
        open_checkpoint(folder)
        raise CheckpointError("config.json: was read")
    assert len(str(caught.value)) < 1000


def test_what_a_file_holds_reaches_no_terminal_unescaped(make_llama, tmp_path):
    """Escape sequences, marks that turn the direction of text, lone surrogates, names without end."""
    bad = "\x1b[31mred\x07\u202e\x9b2J\n\ud800"
    path = tmp_path / "x.safetensors"
    index = {"weight_map": {bad: "model-00001-of-00002.safetensors"}}

    def with_index(name: str, edit: Any) -> None:
        folder = make_llama(name, n_shards=2)
        edit_index(folder, edit)
        open_checkpoint(folder)

    cases = [
        lambda: (path.write_bytes(raw_safetensors({bad: [1]}, b"")), read_safetensors(path)),
        lambda: (path.write_bytes(raw_safetensors({"a": entry(bad)}, b"")), read_safetensors(path)),
        lambda: (path.write_bytes(raw_safetensors({"a" * 10**6: [1]}, b"")), read_safetensors(path)),
        lambda: open_checkpoint(make_llama("a", hidden_act=bad)),
        lambda: open_checkpoint(make_llama("b", architectures=[bad])),
        lambda: open_checkpoint(make_llama("c", tensors={**llama_tensors(llama_config()), bad: np.ones(1)})),
        lambda: with_index("d", lambda i: i.update(index)),
        lambda: with_index("e", lambda i: i["weight_map"].update({NAME: bad})),
    ]
    for case in cases:
        with pytest.raises(CheckpointError) as caught:
            case()
        assert str(caught.value).isprintable() and len(str(caught.value)) < 5000


def edit_index(folder: Path, edit: Any) -> None:
    file = folder / "model.safetensors.index.json"
    index = json.loads(file.read_text())
    edit(index)
    file.write_text(json.dumps(index))


NAME = "model.layers.0.mlp.up_proj.weight"


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda i: i.pop("weight_map"), "'weight_map'"),
        (lambda i: i.update(weight_map=[]), "'weight_map'"),
        (lambda i: i["weight_map"].update({"new": "model-00001-of-00002.safetensors"}), "'new'"),
        (lambda i: i["weight_map"].pop(NAME), f"'{NAME}'.* does not list"),
        (
            lambda i: i["weight_map"].update({NAME: "model-00003-of-00002.safetensors"}),
            "00003-of-00002.safetensors",
        ),
        (lambda i: i["weight_map"].update({NAME: "../model.safetensors"}), '"../model.safetensors"'),
        (lambda i: i["weight_map"].update({NAME: "/etc/passwd"}), '"/etc/passwd"; expected'),
        (lambda i: i["weight_map"].update({NAME: 7}), "no such file|which"),
    ],
    ids=range(8),
)
def test_bad_index(make_llama, edit, message):
    folder = make_llama(n_shards=2)
    edit_index(folder, edit)
    with pytest.raises(CheckpointError, match=message):
        specdec.load(folder)


def test_missing_shard(make_llama):
    folder = make_llama(n_shards=2)
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(CheckpointNotFoundError, match="model-00002-of-00002"):
        specdec.load(folder)


def test_tensor_in_the_wrong_shard(make_llama):
    folder = make_llama(n_shards=2)
    index = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    other = next(file for file in index.values() if file != index[NAME])
    edit_index(folder, lambda i: i["weight_map"].update({NAME: other}))
    with pytest.raises(CheckpointError, match=f"'{NAME}'.* puts in '{other}'"):
        specdec.load(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({0: 0}, "'dim' is 0; expected at least 1"),
        ({5: 0}, "'vocab_size' is 0"),
        ({6: -3}, "'seq_len' is -3"),
        ({3: 5}, "'dim' is 24; expected an even multiple of n_heads, 5"),
        ({3: 8}, "'dim' is 24; expected an even multiple of n_heads, 8"),
        ({4: 3}, "'n_kv_heads' is 3; expected a divisor of n_heads, 4"),
        ({2: 3}, "bytes; expected .* n_layers 3"),
        ({0: 2**31 - 8, 1: 2**31 - 1, 2: 2**31 - 1}, "bytes; expected"),
        ({0: 0x616B3432, 1: 1}, "of version 1; expected version 0"),
    ],
    ids=range(9),
)
def test_bad_llama2c_header(tmp_path, change, message):
    path = write_llama2c(tmp_path / "m.bin")
    content = bytearray(path.read_bytes())
    for field, value in change.items():
        content[4 * field : 4 * field + 4] = struct.pack("<i", value)
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=message):
        specdec.load(path)


def test_bad_llama2c_size(tmp_path):
    path = write_llama2c(tmp_path / "m.bin")
    content = path.read_bytes()
    for wrong in (content[:-1], content[:-4], content + bytes(4), content[:28], content[:27], b""):
        path.write_bytes(wrong)
        with pytest.raises(CheckpointError, match=f"has {len(wrong)} bytes; expected"):
            specdec.load(path)


def test_llama2c_of_another_rotation(tmp_path):
    tensors = llama2c_tensors()
    tensors["freq_cis_real"], tensors["freq_cis_imag"] = tensors["freq_cis_imag"], tensors["freq_cis_real"]
    with pytest.raises(UnsupportedModelError, match="base 10000"):
        specdec.load(write_llama2c(tmp_path / "m.bin", tensors=tensors))


def test_llama2c_finds_its_tokenizer(tmp_path):
    path = write_llama2c(tmp_path / "m.bin")
    assert open_checkpoint(path).tokenizer is None
    tokens = [(b"<unk>", 0.0), (b"\n<s>\n", 0.0), (b"\n</s>\n", 0.0)]
    tokens += [(bytes([97 + i]), 0.0) for i in range(16)]
    write_llama2c_tokenizer(tmp_path / "tokenizer.bin", tokens[:-1])
    with pytest.raises(TokenizerError, match=r"tokenizer\.bin: has 18 tokens; expected 19"):
        open_checkpoint(path)
    assert open_checkpoint(path, tokenizer=False).tokenizer is None
    assert open_checkpoint(path, tokenizer=tmp_path / "tokenizer.bin").tokenizer.n_vocab == 18
    write_llama2c_tokenizer(tmp_path / "tok19.bin", tokens)
    assert open_checkpoint(path).tokenizer.n_vocab == 19
    assert open_checkpoint(path).tokenizer.eos_ids == (1, 2)


# ── The model object
# ─────────────────────────────────────────────────────────────────────────────────────────


def test_model_attributes(make_llama):
    folder = make_llama()
    model = specdec.load(folder)
    assert model.path == folder and model.tokenizer is None and model.architecture == "LlamaForCausalLM"
    assert model.config.n_vocab == model.config["n_vocab"] == 61
    assert dict(model.config)["norm"] == "rms" and {"n_ctx", "windows"} <= set(model.config)
    assert model.n_parameters == sum(a.size for a in llama_tensors(llama_config()).values())
    assert "LlamaForCausalLM" in repr(model) and str(folder) in repr(model)
    with pytest.raises(AttributeError):
        model.config.n_vocab = 3
    with pytest.raises(AttributeError):
        model.config = None
    with pytest.raises(KeyError):
        model.config["from_canonical"]


def test_a_tokenizer_that_is_there_under_another_name_is_mentioned(make_llama):
    folder = make_llama()
    (folder / "tok512.bin").write_bytes(b"")
    with pytest.raises(InputError, match=r"found .*tok512\.bin; expected tokenizer="):
        specdec.load(folder).logits("text")


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([], "there are 0 token ids; expected at least 1"),
        ([3] * 49, "there are 49 token ids; expected at most 48"),
        ([1, 2, 61], "position 2 is 61; expected 0 to 60"),
        ([1, -1], "position 1 is -1; expected 0 to 60"),
        ([2**40, 1], "position 0 is 1099511627776"),
        ([1, 2.0], "position 1 is 2.0, a float; expected an integer"),
        ([1, "2"], "position 1 is '2', a str"),
        ([True, 2], "position 0 is True, a bool"),
        ([[1, 2], [3, 4]], r"position 0 is \[1, 2\], a list"),
        (np.array([[1, 2], [3, 4]]), r"array of shape \[2, 2\]"),
        (np.array([1.0]), "dtype float64"),
        (b"ab", "token ids are bytes"),
        (7, "token ids are int"),
        ("text", "loaded without tokenizer"),
    ],
    ids=range(14),
)
def test_bad_ids(make_llama, ids, message):
    model = specdec.load(make_llama())
    before = model.logits([1, 2, 3])
    with pytest.raises(InputError, match=message):
        model.logits(ids)
    if not np.ndim(ids) == 2:  # else these are two texts
        with pytest.raises(InputError, match=message.replace("at least 1", "at least 2")):
            model.score(ids)
    assert np.array_equal(model.logits([1, 2, 3]), before)


def test_unknown_formats_are_refused(make_llama):
    folder = make_llama()
    for dtype in ("f16", "F32", "", 4, ["f32"]):
        with pytest.raises(InputError, match=r"^dtype is .*; expected None or one of 'f32', 'bf16', 'int8'"):
            specdec.load(folder, dtype)
    for dtype in ("int8", "BF16", 4):
        with pytest.raises(InputError, match=r"^cache_dtype is .*; expected None or one of 'f32', 'bf16'$"):
            specdec.load(folder, cache_dtype=dtype)


def test_a_checkpoint_says_what_it_holds(tmp_path):
    """bf16 only if every matrix is stored in it; norms may be wider."""
    config = llama_config()
    tensors = llama_tensors(config)
    matrices = {name: "BF16" for name, array in tensors.items() if array.ndim == 2}
    cases = {"F32": "f32", "F16": "f32", "BF16": "bf16", "matrices": "bf16", "but one": "f32"}
    for case, expected in cases.items():
        dtype = {"matrices": matrices, "but one": {**matrices, "lm_head.weight": "F32"}}.get(case, case)
        checkpoint = open_checkpoint(write_hf(tmp_path / case, config, tensors, dtype=dtype))
        assert checkpoint.dtype == expected
        assert checkpoint.n_bytes == sum(array.nbytes for _, array, _ in checkpoint.tensors())
    for other in (
        write_hf(tmp_path / "gpt2", gpt2_config(), dtype="BF16"), write_llama2c(tmp_path / "model.bin")
    ):  # fmt: skip
        checkpoint = open_checkpoint(other)
        assert checkpoint.dtype == ("f32" if other.suffix else "bf16")
        assert checkpoint.n_bytes == sum(array.nbytes for _, array, _ in checkpoint.tensors())


@pytest.mark.parametrize(
    ("stored", "dtype", "cache_dtype", "expected"),
    [
        ("F32", None, None, ("f32", "f32")),
        ("F16", None, None, ("f32", "f32")),
        ("BF16", None, None, ("bf16", "bf16")),
        ("BF16", "f32", None, ("f32", "f32")),
        ("BF16", None, "f32", ("bf16", "f32")),
        ("F32", "bf16", None, ("bf16", "bf16")),
        ("F32", "int8", None, ("int8", "bf16")),
        ("F16", "int4", "f32", ("int4", "f32")),
        ("F32", "f32", "bf16", ("f32", "bf16")),
    ],
)
def test_formats_of_a_model(make_llama, stored, dtype, cache_dtype, expected):
    model = specdec.load(make_llama(dtype=stored), dtype, cache_dtype=cache_dtype)
    assert (model.dtype, model.cache_dtype) == expected
    assert f" in {model.dtype} (" in repr(model)
    assert model.n_bytes == model.core.n_bytes > model.n_parameters / 2


def test_a_weight_too_large_for_a_format_is_named(make_llama):
    tensors = llama_tensors(llama_config())
    tensors["lm_head.weight"][5, 7] = 1e8
    folder = make_llama(tensors=tensors)
    specdec.load(folder, "bf16")
    with pytest.raises(CheckpointError, match=f"{re.escape(str(folder))}: .*head"):
        specdec.load(folder, "int8")


def test_loading_shows_a_bar(make_llama, capsys, monkeypatch):
    """When asked to; and unasked for large checkpoints, in a terminal, with tqdm."""
    folder = make_llama()
    specdec.load(folder)
    assert capsys.readouterr().err == ""
    specdec.load(folder, progress=True)
    shown = capsys.readouterr().err
    assert "loading in f32: 100%" in shown
    for large, in_terminal in ((10**6, True), (1000, False)):
        monkeypatch.setattr(progress, "_LARGE", large)
        monkeypatch.setattr(sys.stderr, "isatty", lambda answer=in_terminal: answer)
        specdec.load(folder)
        assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    specdec.load(folder)
    assert "loading in f32: 100%" in capsys.readouterr().err
    specdec.load(folder, progress=False)
    assert capsys.readouterr().err == ""
    monkeypatch.setitem(sys.modules, "tqdm", None)
    specdec.load(folder)
    assert capsys.readouterr().err == ""
    for kind in (InputError, MissingPackageError):
        with pytest.raises(kind, match="pip install tqdm"):
            specdec.load(folder, progress=True)


@pytest.mark.parametrize("n_threads", [0, -1, 65, 1.5, True, "2"])
def test_bad_n_threads(make_llama, n_threads):
    model = specdec.load(make_llama())
    for call in (lambda **how: specdec.load(model.path, **how), lambda **how: model.logits([1], **how)):
        with pytest.raises(InputError, match=r"^n_threads is .*; expected an integer from 1 to 64"):
            call(n_threads=n_threads)


def test_half_precision_model_equals_the_widened_one(tmp_path):
    config = llama_config()
    tensors = llama_tensors(config)
    for dtype in ("F16", "BF16"):
        half = specdec.load(write_hf(tmp_path / dtype, config, tensors, dtype=dtype), "f32")
        wide = {
            n: bf16_values(a) if dtype == "BF16" else np.frombuffer(encode(a, "F16"), "<f2").reshape(a.shape)
            for n, a in tensors.items()
        }
        widened = specdec.load(
            write_hf(tmp_path / f"{dtype}-wide", config, {n: a.astype(np.float32) for n, a in wide.items()})
        )
        assert np.array_equal(half.logits([1, 2, 3]), widened.logits([1, 2, 3]))
