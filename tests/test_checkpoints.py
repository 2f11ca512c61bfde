"""Loaders: the formats they read, their output for the core, and every type of damaged file."""

from __future__ import annotations

import gc
import json
import os
import re
import struct
import sys
import time
import types
import weakref
from bisect import bisect_left
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import specdec
from chat_templates import library_tokenizer
from refusals import refuses, refuses_field
from specdec import progress
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
from specdec.models.checkpoints.safetensors_file import read_safetensors
from tensor_files import canonical
from worlds.folders import (
    gpt2_config,
    gpt2_tensors,
    llama2c_tensors,
    llama_config,
    llama_tensors,
    mistral_config,
    raw_safetensors,
    safetensors_bytes,
    tensors_for,
    write_hf,
    write_llama2c,
    write_llama2c_tokenizer,
)


def test_systems_without_preadv_read_the_same(make_llama, monkeypatch):
    """macOS before 11 reads by pread, Windows by a mapping."""
    file = make_llama() / "model.safetensors"
    short = file.with_name("short")
    short.write_bytes(file.read_bytes()[:-1])
    wanted = {name: tensor.array() for name, tensor in read_safetensors(file).items()}
    for function in ("preadv", "pread"):
        monkeypatch.delattr(os, function)
        found = {name: tensor.array() for name, tensor in read_safetensors(file).items()}
        assert found.keys() == wanted.keys()
        assert all(np.array_equal(found[name], wanted[name]) for name in wanted)
        with pytest.raises(CheckpointError, match="short"):
            read_safetensors(short)


def test_llama_config_and_tensors(make_llama):
    biases = {"attention_bias": True, "mlp_bias": True}
    folder = make_llama(**biases)
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
    stored = llama_tensors(llama_config(**biases))["model.layers.1.self_attn.k_proj.bias"]
    assert np.array_equal(canonical(folder)["layers.1.attn_k.bias"], stored)


@pytest.mark.parametrize("file_format", ["llama", "gpt2", "llama2c"])
def test_a_file_that_shrinks_is_a_checkpoint_error(file_format, make_llama, make_gpt2, tmp_path):
    """Truncation by another program raises, instead of SIGBUS as for a mapped file."""
    if file_format == "llama2c":
        checkpoint = open_checkpoint(write_llama2c(tmp_path / "model.bin"))
        file = checkpoint.path
    else:
        checkpoint = open_checkpoint((make_llama if file_format == "llama" else make_gpt2)())
        file = checkpoint.path / "model.safetensors"
    size, read = file.stat().st_size, []
    ends = rf"{re.escape(str(file))}: ends at byte \d+, within tensor '\S+'; expected {size} bytes"
    with pytest.raises(CheckpointError, match=ends):
        for name, array, _ in checkpoint.tensors():
            read.append((name, array.sum()))
            os.truncate(file, 4096)
    assert read


def test_one_tensor_is_in_memory_at_a_time(make_llama, tmp_path):
    for path in (make_llama(), write_llama2c(tmp_path / "model.bin")):
        before = None
        for _, array, _ in open_checkpoint(path).tensors():
            assert before is None or before() is None
            before = weakref.ref(array if array.base is None else array.base)
            del array


@pytest.mark.parametrize("dtype", ["F32", "BF16"])
def test_shards_equal_one_file(make_llama, dtype):
    whole, parts = (canonical(make_llama(f"{n}", dtype=dtype, n_shards=n)) for n in (1, 3))
    assert whole.keys() == parts.keys()
    assert all(np.array_equal(whole[name], parts[name]) for name in whole)


def test_tensor_at_an_unaligned_byte(make_llama):
    file, tensors = make_llama() / "model.safetensors", llama_tensors(llama_config())
    whole = file.read_bytes()
    size = 8 + int.from_bytes(whole[:8], "little")
    file.write_bytes(raw_safetensors(whole[8:size] + b" " * ((3 - size) % 4), whole[size:], pad_to=1))
    found = canonical(file.parent)["head"]
    assert found.flags.aligned and np.array_equal(found, tensors["lm_head.weight"])


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


def test_end_ids(make_llama):
    def tokenizer(name: str, generation: str = "", settings: str = "", **config: Any) -> Any:
        folder = make_llama(name, **config)
        for file, text in ("generation_config", generation), ("tokenizer_config", settings):
            if text:
                (folder / f"{file}.json").write_text(text)
        (folder / "tokenizer.json").write_text(library_tokenizer([]).to_str())
        return open_checkpoint(folder).tokenizer

    assert tokenizer("a", eos_token_id=2).eos_ids == (2,)
    assert tokenizer("b", eos_token_id=[3, 5, 3]).eos_ids == (3, 5)
    found = tokenizer("c", '{"eos_token_id": [7, 8], "bos_token_id": 6}', eos_token_id=3)
    assert (found.eos_ids, found.bos_id) == ((7, 8), 6)
    settings = '{"eos_token": {"content": "!"}, "bos_token": "\\""}'
    found = tokenizer("d", settings=settings, eos_token_id=..., bos_token_id=...)
    assert (found.eos_ids, found.bos_id) == ((0,), 1)
    with pytest.warns(UserWarning) as caught:
        outside = '{"eos_token_id": 50256, "bos_token_id": 50256}'
        found = tokenizer("e", outside, eos_token_id=[2, 61], bos_token_id=-1)
    assert (found.eos_ids, found.bos_id) == ((2,), None)
    (one,) = caught
    assert "'bos_token_id' is 50256, 'bos_token_id' is -1, 'eos_token_id' is 50256, " in str(one.message)
    assert "'eos_token_id' is [2, 61]; expected ids from 0 to 60" in str(one.message)


def test_a_tokenizer_with_more_ids_than_the_model_is_warned_of(make_llama, tmp_path):
    (tmp_path / "tokenizer.json").write_text(library_tokenizer([]).to_str())
    folder = make_llama(vocab_size=5)
    with pytest.warns(UserWarning, match=r"the tokenizer has \d+ ids; expected at most 5"):
        specdec.load(folder, tokenizer=tmp_path)


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ({}, {}),
        ({"temperature": 0.6, "top_p": 0.9, "top_k": 50}, {}),  # greedy, as in transformers
        ({"do_sample": False, "temperature": 0.6, "repetition_penalty": 1.1}, {"repetition_penalty": 1.1}),
        ({"no_repeat_ngram_size": 3}, {"no_repeat_ngram_size": 3}),  # it applies to greedy decoding too
        ({"min_new_tokens": 3, "bad_words_ids": [[5, 6]]}, {"min_tokens": 3, "bad_words": [[5, 6]]}),
        ({"do_sample": True}, {"temperature": 1.0}),
        ({"do_sample": True, "temperature": 0.6, "top_k": 20, "min_p": 0}, {"temperature": 0.6, "top_k": 20}),
        ({"do_sample": True, "top_k": 0, "top_p": 1, "min_p": 0.1, "repetition_penalty": 1.0},
         {"temperature": 1.0, "min_p": 0.1}),
    ],
)  # fmt: skip
def test_default_sampling(make_llama, said, found):
    folder = make_llama()
    (folder / "generation_config.json").write_text(json.dumps(said))
    model = specdec.load(folder)
    assert model.default_sampling == found
    specdec.Sampling(**model.default_sampling)
    plain = specdec.generate(model, None, [1, 2, 3], max_new_tokens=5, ignore_eos=True)
    same = specdec.generate(model, None, [1, 2, 3], max_new_tokens=5, ignore_eos=True, temperature=0.0)
    assert plain.tokens == same.tokens  # never applied unless requested
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
    with pytest.warns(UserWarning, match=f"generation_config.json: field '{name}' is .*; ignoring it"):
        assert specdec.load(folder).default_sampling == {"temperature": 1.0}


NOWHERE = ["nowhere", "no/such/folder", "./org/name", "/no/such/file.bin", "../x", "/x"]


@pytest.mark.parametrize("name", NOWHERE)
def test_nothing_there(name, monkeypatch):
    """The path is not a hub name either."""
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(CheckpointNotFoundError, match=re.escape(name)):
        open_checkpoint(name)
    with pytest.raises(FileNotFoundError):
        specdec.load(name)


def test_unsupported_paths(tmp_path, make_llama):
    folder = make_llama()
    (tmp_path / "notes.txt").write_text("hello")
    for path, message in (
        (folder / "config.json", "pass the folder"), (folder / "model.safetensors", "pass the folder"),
        (tmp_path / "notes.txt", r"expected a Hugging Face folder, a GGUF file or a llama2\.c"),
        (tmp_path, r"config\.json"),
    ):  # fmt: skip
        with pytest.raises(CheckpointError, match=message):
            open_checkpoint(path)


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
    ("path", "name", "value"),
    [
        ("org/name", "revision", 3), ("org/name", "revision", ""), ("org/name", "token", 3.5),
        ("org/name", "cache_dir", b"x"), (".", "revision", "main"),
    ],
)  # fmt: skip
def test_bad_hub_options(path, name, value):
    with pytest.raises(InputError, match=f"^{name} is "):
        open_checkpoint(path, **{name: value})


@pytest.mark.oracle
def test_patterns_of_the_hub():
    """Download patterns match by the library's own rule."""
    from huggingface_hub.utils import filter_repo_objects as filtered

    there = ["config.json", "model.safetensors", "onnx/model.safetensors", "chat_template.jinja", "README.md"]
    found = filtered(there, allow_patterns=hub._WANTED, ignore_patterns=hub._UNWANTED)
    assert list(found) == ["config.json", "model.safetensors", "chat_template.jinja"]
    there = ["x.jinja", "additional_chat_templates/rag.jinja", "additional_chat_templates/x.txt"]
    assert list(filtered(there, allow_patterns=[hub.TEMPLATES])) == ["additional_chat_templates/rag.jinja"]


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:%s\nsize 1000\n" % (b"0" * 64)


def test_git_lfs_pointers_are_named(make_llama, tmp_path):
    folder = make_llama()
    (folder / "model.safetensors").write_bytes(POINTER)
    for path in (folder, tmp_path / "model.bin", tmp_path / "model.specdec"):
        if path != folder:
            path.write_bytes(POINTER)
        with pytest.raises(CheckpointError, match=r"is a Git LFS pointer.*git lfs pull"):
            specdec.load(path)


def test_weights_in_other_formats_are_named(make_llama):
    folder = make_llama()
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(CheckpointNotFoundError, match=r"but pytorch_model\.bin; expected"):
        open_checkpoint(folder)


def test_hub_failures(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(CheckpointError, match=r"pip install 'specdec-cpu\[hub\]'") as caught:
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


BAD_LLAMA: dict[type[CheckpointError], dict[str, list[Any]]] = {
    UnsupportedModelError: {
        "architectures": [
            ["BertModel"], ["MambaForCausalLM"], ["JambaForCausalLM"], ["DbrxForCausalLM"],
            ["PegasusModel"], ["T5EncoderModel"], ["T5GemmaModel"], ["WhisperModel"],
            ["LlavaForConditionalGeneration"], ["Gemma3nForCausalLM"], ["Gemma4AssistantForCausalLM"],
        ],
        "hidden_act": ["mish"], "quantization_config": [{"bits": 4}], "partial_rotary_factor": [0.5],
        "layer_types": [["full_attention", "sliding_attention"]],
        "rope_scaling.type": [{"type": "axial", "factor": 2.0}],
        "rope_parameters.full_attention": [{"full_attention": {"rope_theta": 1e4}}],
    },
    CheckpointError: {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": [0, -32, 32.0, "32", True, 10**30, 30], "vocab_size": [None],
        "num_hidden_layers": [10**9], "head_dim": [10**9, 7], "num_key_value_heads": [3],
        "rms_norm_eps": [0, "small", 10**400], "rope_theta": [-1.0], "hidden_act": [3],
        "tie_word_embeddings": [1], "attention_bias": ["no"], "eos_token_id": [[1, "2"]],
        "rope_scaling": [["linear", 2]],
        "rope_scaling.factor": [
            {"rope_type": "dynamic"}, {"type": "linear"}, {"type": "linear", "factor": 0}
        ],
        "rope_scaling.short_factor": [{"rope_type": "longrope", "short_factor": [1.0]}],
        "rope_scaling.short_factor[0]": [{"rope_type": "longrope", "short_factor": [10**400] * 4}],
        "rope_scaling.high_freq_factor": [
            {"type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 4}
        ],
    },
}  # fmt: skip
"""Values of fields that are refused; of a field in an object the object."""


@pytest.mark.parametrize(
    ("error", "field", "value"),
    [(error, field, value) for error, of in BAD_LLAMA.items() for field in of for value in of[field]],
)
def test_bad_llama_config(make_llama, error, field, value):
    folder = make_llama(tensors=llama_tensors(llama_config()), **{field.partition(".")[0]: value})
    with refuses_field(folder / "config.json", field, error):
        specdec.load(folder)


@pytest.mark.parametrize(
    ("config", "changes", "field", "error"),
    [
        (llama_config, {"architectures": ..., "model_type": "bert"}, "model_type", UnsupportedModelError),
        (llama_config, {"architectures": ..., "model_type": ["llama"]}, "model_type", UnsupportedModelError),
        (llama_config, {"rope_parameters": {"rope_type": "default"}, "rope_scaling": {"type": "linear"}},
         "rope_scaling", CheckpointError),
        (mistral_config, {"attention_bias": True}, "attention_bias", UnsupportedModelError),
        (mistral_config, {"sliding_window": 0}, "sliding_window", CheckpointError),
        (gpt2_config, {"scale_attn_weights": False}, "scale_attn_weights", UnsupportedModelError),
        (gpt2_config, {"reorder_and_upcast_attn": True}, "reorder_and_upcast_attn", UnsupportedModelError),
        (gpt2_config, {"add_cross_attention": True}, "add_cross_attention", UnsupportedModelError),
        (gpt2_config, {"activation_function": "mish"}, "activation_function", UnsupportedModelError),
        (gpt2_config, {"n_inner": 0}, "n_inner", CheckpointError),
        (gpt2_config, {"layer_norm_epsilon": -1}, "layer_norm_epsilon", CheckpointError),
        (gpt2_config, {"n_head": 5}, "n_embd", CheckpointError),
    ],
)  # fmt: skip
def test_bad_configs(tmp_path, config, changes, field, error):
    folder = write_hf(tmp_path / "model", config(**changes), tensors_for(config()))
    with refuses_field(folder / "config.json", field, error):
        open_checkpoint(folder)


def test_an_absent_size_is_that_of_the_class(make_gpt2):
    with pytest.raises(CheckpointError, match=r"wpe.weight' has shape \[\d+, 32\]; expected \[1024, 32\]"):
        open_checkpoint(make_gpt2(n_positions=..., tensors=gpt2_tensors(gpt2_config())))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "not valid JSON"), (b"[1]", "JSON list; expected an object"), (b"\xff\xfe", "not valid JSON"),
        (b'{"vocab_size": NaN}', "NaN is not a JSON number"), (b"[" * 100_000, "not valid JSON"),
        (b'{"vocab_size": ' + b"9" * 10_000 + b"}", "not valid JSON"),
    ],
    ids=range(6),
)  # fmt: skip
def test_bad_config_file(make_llama, text, message):
    folder = make_llama()
    (folder / "config.json").write_bytes(text)
    with pytest.raises(CheckpointError, match=message):
        specdec.load(folder)


def test_tensors_that_are_missing_or_of_another_shape(make_llama):
    name = "model.layers.0.self_attn.k_proj.weight"
    for changed, message in (
        (None, "is missing"),
        (np.zeros((32, 16)), r"shape \[32, 16\]; expected \[16, 32\]"),
    ):
        tensors = llama_tensors(llama_config()) | {name: changed}
        held = {name: array for name, array in tensors.items() if array is not None}
        with pytest.raises(CheckpointError, match=f"'{name}'.* {message}"):
            specdec.load(make_llama(tensors=held))


@pytest.mark.parametrize(
    "name",
    ["model.layers.0.self_attn.q_proj.bias", "model.layers.2.mlp.up_proj.weight", "score.weight", "x.lora_A"],
)
def test_tensor_that_the_config_does_not_use(make_llama, name):
    harmless = {"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(4, np.float32)}
    tensors = llama_tensors(llama_config()) | harmless
    open_checkpoint(make_llama(tensors=tensors))
    tensors[name] = np.ones(3, np.float32)
    with pytest.raises(UnsupportedModelError, match=re.escape(f"'{name}'")):
        specdec.load(make_llama(tensors=tensors))


def test_both_names_of_one_tensor(make_gpt2):
    tensors = gpt2_tensors(gpt2_config())
    tensors["wte.weight"] = tensors["transformer.wte.weight"]
    with pytest.raises(CheckpointError, match=r"'wte\.weight' is a duplicate of 'transformer\.wte\.weight'"):
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


def entry(dtype: str = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


TWICE = b'{"a": %b, "a": %b}' % ((json.dumps(entry()).encode(),) * 2)
BAD_FILES: dict[str, tuple[Any, int | bytes, str]] = {
    "empty": (None, b"", "has 0 bytes; expected at least 8"),
    "no header": (None, struct.pack("<Q", 10), "header length is 10; expected at most 0"),
    "huge length": (None, b"\xff" * 8 + b"{}", "header length is 18446744073709551615"),
    "not JSON": (b"{nothing", 0, "header is not valid JSON"),
    "not UTF-8": (b'{"\xff": 1}', 0, "header is not valid JSON"),
    "a list": (b"[]", 0, "header starts with b'\\['"),
    "space first": (b" {}", 0, "header starts with b' '"),
    "deep": (b'{"a":' * 50_000, 0, "header is not valid JSON"),
    "duplicate": (TWICE, 8, "'a' occurs more than once"),
    "metadata": ({"__metadata__": {"a": 1}}, 0, "'__metadata__'"),
    "entry": ({"a": [1]}, 0, "tensor 'a' has the header entry"),
    "dtype": ({"a": entry("F33")}, 8, "'a' has dtype \"F33\"; expected one of F4"),
    "no dtype": ({"a": {"shape": [2], "data_offsets": [0, 8]}}, 8, "dtype null"),
    "shape": ({"a": entry(shape=[-2])}, 8, "shape \\[-2\\]"),
    "shape bool": ({"a": entry(shape=[True, 2])}, 8, "shape \\[true, 2\\]"),
    "shape size": ({"a": entry(shape=[3])}, 8, "expected 96 bits for shape \\[3\\]"),
    "shape overflow": ({"a": entry(shape=[2**62, 4, 1])}, 8, "expected more than 147573952589676412928 bits"),
    "offsets": ({"a": entry(offsets=[0])}, 8, "data_offsets \\[0\\]; expected"),
    "offsets order": ({"a": entry(offsets=[8, 0])}, 8, "begin <= end <= 8"),
    "truncated": ({"a": entry()}, 7, "is the file truncated"),
    "outside": ({"a": entry(offsets=[8, 16])}, 8, "begin <= end <= 8"),
    "trailing": ({"a": entry()}, 9, "1 bytes follow tensor 'a'"),
    "overlap": ({"a": entry(), "b": entry(offsets=[4, 12])}, 12, "byte 4 and overlaps tensor 'a'; expected"),
    "hole": ({"a": entry(), "b": entry(offsets=[12, 20])}, 20, "leaves unused bytes after tensor 'a'"),
}
"""Header, bytes of data or the whole file, and the message."""


def test_what_is_no_regular_file(tmp_path):
    """A pipe is refused without waiting."""
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, Path("/dev/zero")):
        with pytest.raises(CheckpointError, match=f"{path}: cannot be read: not a regular file"):
            read_safetensors(path)
    with pytest.raises(CheckpointError, match=r"no\\x00: cannot be read"):
        read_safetensors(tmp_path / "no\0")


def test_files_are_closed(make_llama):
    """Descriptors are closed with the checkpoint, and after a refusal."""
    folder, refused = make_llama("a", n_shards=3), make_llama("b", n_shards=3, hidden_act="none")
    gc.collect()  # left open by other tests
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
    header, data, message = BAD_FILES[case]
    path = tmp_path / "bad.safetensors"
    path.write_bytes(data if isinstance(data, bytes) else raw_safetensors(header, bytes(data)))
    with pytest.raises(CheckpointError, match=message) as caught:
        read_safetensors(path)
    assert str(path) in str(caught.value)


def test_safetensors_agrees_with_the_library_on_damaged_files(tmp_path):
    """Random damage gives a CheckpointError, or the same tensors as the library."""
    from safetensors import safe_open

    rng = np.random.default_rng(5)
    tensors = {"b": rng.normal(size=(2, 3)), "a": rng.normal(size=4), "c": rng.normal(size=())}
    good = safetensors_bytes({name: np.asarray(array, np.float32) for name, array in tensors.items()})
    n_header = 8 + int.from_bytes(good[:8], "little")
    path = tmp_path / "damaged.safetensors"
    outcomes = {"both read": 0, "both refuse": 0, "we refuse": 0}
    for _ in range(1500):
        data, damage = bytearray(good), rng.integers(5)
        if damage == 0:
            del data[rng.integers(len(data)) :]
        for _ in range(rng.integers(1, 4) if damage else 0):  # of the header, where damage may still be valid
            at = rng.integers(n_header if damage < 4 else len(data))
            flipped, written = data[at] ^ (1 << rng.integers(8)), rng.choice(list(b'0123456789[]{}",: FU'))
            data[at] = flipped if damage == 2 else written
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


MANY = b",".join(b'"%d":%b' % (min(i, 19_998), json.dumps(entry()).encode()) for i in range(20_000))
LONG: list[tuple[Any, str]] = [
    (b"{%b}" % MANY, "the name '19998' occurs more than once"),
    *(({"a": entry(shape=[n] * 100_000)}, "'a' has data_offsets .* bits for") for n in (1, 3, 2**62)),
]


@pytest.mark.parametrize(("header", "message"), LONG, ids=["names", "ones", "threes", "large"])
def test_headers_that_take_no_longer_than_their_length(tmp_path, header, message):
    """Time is linear: names are not rescanned, products stop early."""
    path = tmp_path / "x.safetensors"
    path.write_bytes(raw_safetensors(header, bytes(8)))
    start = time.thread_time()
    with pytest.raises(CheckpointError, match=message) as caught:
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
    """It may be too deep to print or compare, but not to refuse."""
    file = make_llama() / "config.json"
    rope, more = {"a": "HERE"}, {"a": "HERE", "type": "linear"}
    configs = [
        llama_config(hidden_size="HERE"),
        llama_config(rope_scaling=rope, rope_parameters=rope | {"factor": 0}),
        llama_config(rope_scaling=more, rope_parameters=more | {"type": 1}),
    ]
    deepest = bisect_left(range(10**6), True, key=lambda depth: not can_be_read(depth))
    for depth in range(deepest - 80, deepest + 5):
        nested = b"[" * depth + b"]" * depth
        for config in configs:
            file.write_bytes(json.dumps(config).encode().replace(b'"HERE"', nested))
            with pytest.raises(CheckpointError, match=r"config\.json: (field|not valid JSON)"):
                open_checkpoint(file.parent)


@pytest.mark.filterwarnings("ignore")  # of an end id of 4,000 digits
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
    with pytest.raises(CheckpointError, match="config.json: ") as caught:
        open_checkpoint(folder)
        raise CheckpointError("config.json: was read")
    assert len(str(caught.value)) < 1000


def test_what_a_file_holds_reaches_no_terminal_unescaped(make_llama, tmp_path):
    """Escape sequences, bidirectional marks, lone surrogates, endless names."""
    bad = "\x1b[31mred\x07\u202e\x9b2J\n\ud800"
    path = tmp_path / "x.safetensors"
    index = {"weight_map": {bad: "model-00001-of-00002.safetensors"}}

    def with_index(name: str, edit: Any) -> None:
        folder = make_llama(name, n_shards=2)
        edit_index(folder, edit)
        open_checkpoint(folder)

    def with_header(header: Any) -> None:
        path.write_bytes(raw_safetensors(header, b""))
        read_safetensors(path)

    cases = [
        lambda: with_header({bad: [1]}),
        lambda: with_header({"a": entry(bad)}),
        lambda: with_header({"a" * 10**6: [1]}),
        lambda: open_checkpoint(make_llama("a", hidden_act=bad + "long " * 100_000)),
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
    ("changes", "message"),
    [
        (None, "'weight_map'"), ([], "'weight_map'"), ({"new": "model-00001-of-00002.safetensors"}, "'new'"),
        ({NAME: None}, f"'{NAME}'.* does not list it"), ({NAME: "/etc/passwd"}, '"/etc/passwd"; expected'),
        ({NAME: "model-00003-of-00002.safetensors"}, "00003-of-00002.safetensors"),
        ({NAME: "../model.safetensors"}, '"../model.safetensors"'), ({NAME: 7}, "no such file|which"),
    ],
    ids=range(8),
)  # fmt: skip
def test_bad_index(make_llama, changes, message):
    folder = make_llama(n_shards=2)

    def edit(index: Any) -> None:
        known = index.pop("weight_map") | (changes or {})
        if changes is not None:
            index["weight_map"] = changes and {key: file for key, file in known.items() if file is not None}

    edit_index(folder, edit)
    with pytest.raises(CheckpointError, match=message):
        specdec.load(folder)


def test_shards_that_do_not_hold_what_the_index_says(make_llama):
    folder = make_llama(n_shards=2)
    index = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    other = next(file for file in index.values() if file != index[NAME])
    edit_index(folder, lambda i: i["weight_map"].update({NAME: other}))
    with pytest.raises(CheckpointError, match=f"'{NAME}' .*index.json lists it in '{other}'"):
        specdec.load(folder)
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(CheckpointNotFoundError, match="model-00002-of-00002"):
        specdec.load(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({0: 0}, "'dim' is 0; expected at least 1"), ({5: 0}, "'vocab_size' is 0"),
        ({6: -3}, "'seq_len' is -3"), ({3: 5}, "'dim' is 24; expected an even multiple of n_heads, 5"),
        ({4: 3}, "'n_kv_heads' is 3; expected a divisor of n_heads, 4"),
        ({2: 3}, "bytes; expected .* n_layers 3"), ({0: 0x616B3432, 1: 1}, "of version 1; expected version"),
        ({0: 2**31 - 8, 1: 2**31 - 1, 2: 2**31 - 1}, "bytes; expected"),
    ],
    ids=range(8),
)  # fmt: skip
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
    with pytest.raises(
        InputError, match=r"found .*tok512\.bin; expected token ids, or load the model with tokenizer="
    ):
        specdec.load(folder).logits("text")


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([], "there are 0 token ids; expected at least 1"), ([3] * 49, "49 token ids; expected at most 48"),
        ([1, 2, 61], "position 2 is 61; expected 0 to 60"), ([1, -1], "position 1 is -1; expected 0 to 60"),
        ([2**40, 1], "position 0 is 1099511627776"), ([1, 2.0], "position 1 is 2.0, a float; expected"),
        ([1, "2"], "position 1 is '2', a str"), ([True, 2], "position 0 is True, a bool"),
        ([[1, 2], [3, 4]], r"position 0 is \[1, 2\], a list"), (np.array([1.0]), "dtype float64"),
        (np.array([[1, 2], [3, 4]]), r"array of shape \[2, 2\]"), (b"ab", "token ids are bytes"),
        (7, "token ids are int"), ("text", "loaded without tokenizer"),
    ],
    ids=range(14),
)  # fmt: skip
def test_bad_ids(make_llama, ids, message):
    model = specdec.load(make_llama())
    before = model.logits([1, 2, 3])
    with pytest.raises(InputError, match=message):
        model.logits(ids)
    if not np.ndim(ids) == 2:  # else these are two texts
        with pytest.raises(InputError, match=message.replace("at least 1", "at least 2")):
            model.score(ids)
    assert np.array_equal(model.logits([1, 2, 3]), before)


BAD_ARGUMENTS = {
    "dtype": ["f16", "F32", "", 4, ["f32"]], "cache_dtype": ["int4", "BF16", 4], "prefill": ["tile", None],
    "n_threads": [0, -1, 65, 1.5, True, "2"],
}  # fmt: skip


@pytest.mark.parametrize(("name", "value"), [(n, value) for n in BAD_ARGUMENTS for value in BAD_ARGUMENTS[n]])
def test_bad_arguments(make_llama, name, value):
    folder = make_llama()
    with refuses(name, value):
        specdec.load(folder, **{name: value})
    if name == "n_threads":
        with refuses(name, value):
            specdec.load(folder).logits([1], n_threads=value)


def mixed(name: str) -> dict[str, str]:
    """Write matrices in bf16, except one."""
    matrices = (of for of, array in llama_tensors(llama_config()).items() if array.ndim == 2)
    return dict.fromkeys(matrices, "BF16") | ({name: "F32"} if name else {})


@pytest.mark.parametrize(
    ("stored", "dtype", "cache_dtype", "expected"),
    [
        ("F32", None, None, ("f32", "f32")), ("F16", None, None, ("f32", "f32")),
        ("BF16", None, None, ("bf16", "bf16")), ("BF16", "f32", None, ("f32", "f32")),
        ("BF16", None, "f32", ("bf16", "f32")), ("F32", "bf16", None, ("bf16", "bf16")),
        ("F32", "int8", None, ("int8", "bf16")), ("F16", "int4", "f32", ("int4", "f32")),
        ("F32", "f32", "int8", ("f32", "int8")), (mixed(""), None, None, ("bf16", "bf16")),
        (mixed("lm_head.weight"), None, None, ("f32", "f32")),
    ],
    ids=range(11),
)  # fmt: skip
def test_formats_of_a_model(make_llama, stored, dtype, cache_dtype, expected):
    """The default is bf16 only if every matrix is stored in it; norms may be wider."""
    folder = make_llama(dtype=stored)
    model, checkpoint = specdec.load(folder, dtype, cache_dtype=cache_dtype), open_checkpoint(folder)
    assert (model.dtype, model.cache_dtype) == expected
    assert f" in {model.dtype} (" in repr(model)
    assert model.n_bytes == model.core.n_bytes > model.n_parameters / 2
    assert checkpoint.n_bytes == sum(array.nbytes for _, array, _ in checkpoint.tensors())


def test_a_weight_too_large_for_a_format_is_named(make_llama):
    tensors = llama_tensors(llama_config())
    tensors["lm_head.weight"][5, 7] = 1e8
    folder = make_llama(tensors=tensors)
    specdec.load(folder, "bf16")
    with pytest.raises(CheckpointError, match=f"{re.escape(str(folder))}: .*head"):
        specdec.load(folder, "int8")


def test_loading_shows_a_bar(make_llama, capsys, monkeypatch):
    """When requested, and by default for large checkpoints in a terminal with tqdm."""
    folder = make_llama()
    specdec.load(folder)
    assert capsys.readouterr().err == ""
    specdec.load(folder, progress=True)
    assert "loading in f32: 100%" in capsys.readouterr().err
    cases = (
        (10**6, True, None, False),
        (1000, False, None, False),
        (1000, True, None, True),
        (1000, True, False, False),
    )
    for large, in_terminal, given, is_shown in cases:
        monkeypatch.setattr(progress, "_LARGE", large)
        monkeypatch.setattr(sys.stderr, "isatty", lambda answer=in_terminal: answer)
        specdec.load(folder, progress=given)
        assert ("loading in f32: 100%" in capsys.readouterr().err) == is_shown
    monkeypatch.setitem(sys.modules, "tqdm", None)
    specdec.load(folder)
    assert capsys.readouterr().err == ""
    for error_type in (InputError, MissingPackageError):
        with pytest.raises(error_type, match=r"pip install 'specdec-cpu\[progress\]'"):
            specdec.load(folder, progress=True)
