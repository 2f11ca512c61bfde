"""GGUF files written by the package ``gguf``: the same models as Hugging Face folders, and damaged files."""

from __future__ import annotations

import dataclasses
import struct
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from gguf import GGUFWriter

import specdec
from refusals import refuses_field
from specdec.checkpoints import open_checkpoint
from specdec.errors import (
    CheckpointError,
    CheckpointNotFoundError,
    MissingPackageError,
    UnsupportedModelError,
    UnusedFieldWarning,
)
from tensor_files import GGUF_ARCHITECTURES, forget_gguf, tensors_in
from worlds.folders import write_hf
from worlds.gguf_files import CASES, Case, llama3_factors, turned, write_gguf

SOURCE = [3, 9, 4, 11, 2, 5] * 4


def write_folder(folder: Path, case: Case) -> Path:
    return write_hf(folder / "folder", *case.folder())


def test_every_architecture_has_a_case() -> None:
    assert {case.architecture for case in CASES.values()} == GGUF_ARCHITECTURES - {"mistral3"}


@pytest.mark.parametrize("name", CASES)
def test_the_same_model_as_from_a_folder(tmp_path: Path, name: str) -> None:
    """Logits are equal to the bit, in any tensor order."""
    case = CASES[name]
    folder = specdec.load(write_folder(tmp_path, case))
    model = specdec.load(write_gguf(tmp_path / "model.gguf", case))
    assert model.architecture == folder.architecture and model.core.dtype == "f32"
    ids = np.random.default_rng(5).integers(0, folder.config.n_vocab, min(24, folder.config.n_ctx)).tolist()
    source = None if folder.config.encoder is None else SOURCE
    assert np.array_equal(model.logits(ids, source), folder.logits(ids, source))


def test_queries_keys_and_values_in_one_matrix(tmp_path: Path) -> None:
    """As in the first files of GLM-4."""
    parts = [f"self_attn.{role}_proj" for role in "qkv"]

    def others(name: str, array: np.ndarray, config: Any) -> dict[str, np.ndarray]:
        return {} if any(part in name for part in parts) else {name: array}

    case = dataclasses.replace(CASES["chatglm"], change=others)
    config, weights = case.folder()
    fused = {
        f"blk.{i}.attn_qkv.{kind}": np.concatenate([weights[f"model.layers.{i}.{p}.{kind}"] for p in parts])
        for i in range(config["num_hidden_layers"]) for kind in ("weight", "bias")
    }  # fmt: skip
    model = specdec.load(write_gguf(tmp_path / "model.gguf", case, more=fused))
    ids = list(range(3, 17))
    assert np.array_equal(model.logits(ids), specdec.load(write_folder(tmp_path, case)).logits(ids))


def test_layers_that_predict_further_tokens_are_left_out(tmp_path: Path) -> None:
    case = CASES["glm4moe"]
    config, weights = case.folder()
    ids, table = range(1, 17), np.ones((16, 32), np.float32)
    expected = specdec.load(write_folder(tmp_path, case)).logits(ids)
    more = {"model.layers.2.eh_proj.weight": table}
    folder = write_hf(tmp_path / "more", config | {"num_nextn_predict_layers": 1}, weights | more)
    keys = {"block_count": 3, "nextn_predict_layers": 1}
    path = write_gguf(tmp_path / "model.gguf", case, changes=keys, more={"blk.2.nextn.eh_proj.weight": table})
    assert all(np.array_equal(specdec.load(held).logits(ids), expected) for held in (folder, path))
    for n, expected in ((2, "a whole number below 2"), (1, "a number of blocks with tensors 'blk.1.n")):
        path = write_gguf(tmp_path / "none.gguf", case, changes={"nextn_predict_layers": n})
        with pytest.raises(CheckpointError, match=f"nextn_predict_layers' is {n}; expected {expected}"):
            specdec.load(path)


LONG = {"type": "longrope", "short_factor": [1.0, 1.5, 2.0, 2.5], "long_factor": [2.0, 3.0, 4.0, 5.0]}
LONG_TENSORS = {f"rope_factors_{part}.weight": np.array(LONG[f"{part}_factor"]) for part in ("short", "long")}
LONG_KEYS = {"rope.scaling.original_context_length": 16, "rope.scaling.type": "longrope"}
YARN = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 8}


def llama(scaling: dict[str, Any]) -> Case:
    """Return a Llama with RoPE scaling."""
    return dataclasses.replace(CASES["llama"], config=CASES["llama"].config | {"rope_scaling": scaling})


def with_windows(name: str, letters: str) -> Case:
    """Return a case of three layers: "s" has a window, "f" full attention."""
    names = {"s": "sliding_attention", "f": "full_attention"}
    layers = {"num_hidden_layers": 3, "layer_types": [names[letter] for letter in letters]}
    return dataclasses.replace(CASES[name], config=CASES[name].config | layers)


PATTERNS: list[tuple[str, Any, str]] = [
    ("gemma3", 2, "sfs"), ("gemma3", [False, True, True], "fss"), ("gemma2", 3, "ssf"),
    ("cohere2", [True, False, False], "sff"), ("cohere2", 2, "sfs"), ("gpt-oss", [False, True, True], "fss"),
    ("olmo3", 2, "sfs"), ("exaone4", 2, "sfs"), ("exaone4", [False, True, True], "fss"),
]  # fmt: skip
"""Windows of layers: a flag for each, or the period of those without one."""
MINISTRAL = {
    "rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 8,
    "attention_factor": 1.0, "llama_4_scaling_beta": 0.25,
}  # fmt: skip
LINEAR: list[dict[str, Any]] = [
    {"rope.scaling.factor": 2.0}, {"rope.scale_linear": 2.0},
    {"rope.scale_linear": 3.0, "rope.scaling.factor": 2.0},
    {"rope.scaling.type": "linear", "rope.scale_linear": 2.0},
]  # fmt: skip
ALL_DIM = CASES["llama yarn"].config["rope_scaling"] | {"mscale": 1.0, "mscale_all_dim": 0.5}
DESCRIBED: list[tuple[Case, Case | None, dict[str, Any]]] = [
    (Case("mistral3", "Ministral3ForCausalLM", {"rope_parameters": MINISTRAL}, change=turned), None,
     YARN | {"rope.freq_base": 1e4, "rope.scaling.yarn_log_multiplier": 1.0,
             "attention.temperature_scale": 0.25, "attention.layer_norm_rms_epsilon": 1e-5,
             "attention.layer_norm_epsilon": ...}),
    # long factors are tensors; any architecture with rotary positions may have them
    (Case("phi3", "Phi3ForCausalLM", {"rope_scaling": LONG, "partial_rotary_factor": 1.0}), None, LONG_KEYS),
    (llama(LONG | {"original_max_position_embeddings": 16, "attention_factor": 1.25}), None,
     LONG_KEYS | {"rope.scaling.attn_factor": 1.25}),
    *((CASES["llama linear"], CASES["llama"], keys) for keys in LINEAR),
    # from `mscale_all_dim` transformers computes the factor of cosines and sines
    (llama(ALL_DIM), CASES["llama yarn"], {"rope.scaling.yarn_log_multiplier": 0.5}),
    (CASES["llama"], None, {"attention.head_count": [2, 2], "attention.head_count_kv": [1, 1],
                            "feed_forward_length": [24, 24]}),
    *((with_windows(name, letters), None, {"attention.sliding_window_pattern": pattern})
      for name, pattern, letters in PATTERNS),
]  # fmt: skip
"""Models; others whose files with these further keys are the first, or None for the same; the keys."""


@pytest.mark.parametrize(("case", "of_file", "keys"), DESCRIBED, ids=range(len(DESCRIBED)))
def test_keys_say_what_a_config_json_says(
    tmp_path: Path, case: Case, of_file: Case | None, keys: dict[str, Any]
) -> None:
    more = LONG_TENSORS if "longrope" in keys.values() else {}
    path = write_gguf(tmp_path / "model.gguf", of_file or case, changes=keys, more=more)
    for n_ctx in (None, 32) if more else (None,):
        found, expected = (specdec.load(one, n_ctx=n_ctx) for one in (path, write_folder(tmp_path, case)))
        assert np.array_equal(found.logits(range(1, 17)), expected.logits(range(1, 17)))
        assert found.config.windows == expected.config.windows
    if case is CASES["llama linear"]:
        path = write_gguf(
            tmp_path / "none.gguf", CASES["llama"], changes=keys | {"rope.scaling.type": "none"}
        )
        assert not np.array_equal(specdec.load(path).logits(range(1, 17)), expected.logits(range(1, 17)))


def test_factors_of_frequencies(tmp_path: Path) -> None:
    """Llama 3's scaling is an f32 tensor, so frequencies differ in their last bits."""
    scaling, factors = llama3_factors(8, 16)
    case = llama(scaling)
    more = {"rope_freqs.weight": factors}
    folder = write_folder(tmp_path, case)
    files = write_gguf(tmp_path / "model.gguf", case, more=more), write_gguf(tmp_path / "plain.gguf", case)
    expected, found, plain = (specdec.load(path).logits(range(1, 17)) for path in (folder, *files))
    assert not np.array_equal(expected, plain)
    np.testing.assert_allclose(found, expected, rtol=0, atol=5e-5 * np.abs(expected).max())
    bad = write_gguf(tmp_path / "bad.gguf", case, more={"rope_freqs.weight": factors[:3]})
    with pytest.raises(CheckpointError, match=r"bad.gguf: tensor 'rope_freqs.weight' has"):
        specdec.load(bad)


@pytest.mark.parametrize(
    ("case", "keys", "message"),
    [
        ("llama", LONG_KEYS, 'rope.scaling.type\' is "longrope"'),
        ("glm4", {"rope.dimension_sections": [2, 1, 1, 0]}, "sections' is [2, 1, 1, 0]; expected no such"),
        ("llama yarn", {"rope.scaling.yarn_ext_factor": 0.0}, "yarn_ext_factor' is 0.0"),
        ("llama", {"attention.head_count_kv": [1, 2]}, "'llama.attention.head_count_kv' is [1, 2];"),
        ("llama", {"feed_forward_length": [24, 16]}, "'llama.feed_forward_length' is [24, 16];"),
        ("llama", {"attention.head_count_kv": [0] * 20_000}, "expected at most 10000 values"),
        ("llama", {"block_count": 1}, "has tensors that its metadata does not use"),
    ],
    ids=range(7),
)
def test_models_that_are_not_read(tmp_path: Path, case: str, keys: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModelError) as caught:
        specdec.load(write_gguf(tmp_path / "bad.gguf", CASES[case], changes=keys))
    assert message in str(caught.value)


def test_default_sampling_of_a_file(tmp_path: Path) -> None:
    keys = {"temp": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.0, "penalty_repeat": 1.05}
    changes = {f"general.sampling.{key}": value for key, value in keys.items()}
    model = specdec.load(write_gguf(tmp_path / "model.gguf", CASES["llama"], changes=changes))
    assert model.default_sampling == {
        "temperature": 0.6, "top_k": 20, "top_p": 0.95, "repetition_penalty": 1.05,
    }  # fmt: skip
    changes = {"general.sampling.temp": 0.0, "general.sampling.xtc_probability": 0.5}
    with pytest.warns(UnusedFieldWarning, match="xtc_probability"):
        model = specdec.load(write_gguf(tmp_path / "model.gguf", CASES["llama"], changes=changes))
    assert model.default_sampling == {}
    changes = {"general.sampling.temp": [0.5, 0.7]}
    with pytest.warns(UserWarning, match=r"field 'temperature' is \[.*\]; expected .*; ignoring it"):
        assert specdec.load(write_gguf(tmp_path / "m.gguf", CASES["llama"], changes=changes)) is not None


def test_a_file_in_parts(tmp_path: Path) -> None:
    case = CASES["llama"]
    whole = specdec.load(write_gguf(tmp_path / "whole.gguf", case))
    first = write_gguf(tmp_path / "parts.gguf", case, split=6)
    parts = sorted(tmp_path.glob("parts-*.gguf"))
    assert first == parts[0] and len(parts) > 2
    for part in parts:
        assert np.array_equal(specdec.load(part).logits([1, 2, 3]), whole.logits([1, 2, 3]))
    assert open_checkpoint(first).weight_files == tuple(parts)
    renamed = parts[1].rename(tmp_path / "other.gguf")
    with pytest.raises(CheckpointNotFoundError, match=f"{parts[1].name}: no such file; expected part 2"):
        specdec.load(first)
    with pytest.raises(
        CheckpointError, match=r"other.gguf: is one of \d parts; expected a name that ends like"
    ):
        specdec.load(renamed)
    parts[2].rename(parts[1])
    with pytest.raises(CheckpointError, match="claims to be part 3"):
        specdec.load(first)


# ------------------------------------------------------------------------------------------ bad files


@pytest.mark.parametrize(
    ("changes", "error", "field"),
    [
        ({"embedding_length": ...}, CheckpointError, "llama.embedding_length"),
        ({"block_count": "two"}, CheckpointError, "llama.block_count"),
        ({"block_count": 3}, CheckpointError, "blk.2.attn_norm.weight"),
        ({"attention.head_count": 3}, CheckpointError, "llama.embedding_length"),
        ({"attention.key_length": "x"}, CheckpointError, "llama.attention.key_length"),
        ({"rope.scaling.type": "new"}, UnsupportedModelError, "llama.rope.scaling.type"),
        ({"general.alignment": 48}, CheckpointError, "general.alignment"),
        ({"attention.key_length": 8, "attention.value_length": 4}, UnsupportedModelError,
         "llama.attention.value_length"),
        ({"attention.shared_kv_layers": "x"}, CheckpointError, "gemma4.attention.shared_kv_layers"),
        ({"attention.shared_kv_layers": 2**31}, CheckpointError, "gemma4.attention.shared_kv_layers"),
        ({"rope.scaling.finetuned": "no"}, CheckpointError, "granitehybrid.rope.scaling.finetuned"),
    ],
)  # fmt: skip
def test_bad_metadata(
    tmp_path: Path, changes: dict[str, Any], error: type[CheckpointError], field: str
) -> None:
    case = CASES.get(field.partition(".")[0], CASES["llama"])
    path = write_gguf(tmp_path / "model.gguf", case, changes=changes)
    with refuses_field(path, field, error):
        specdec.load(path)


def test_an_architecture_that_is_not_read(tmp_path: Path) -> None:
    writer = GGUFWriter(tmp_path / "model.gguf", "mamba")
    writer.add_tensor("x", np.zeros((4, 4), np.float32))
    for step in ("write_header_to_file", "write_kv_data_to_file", "write_tensors_to_file", "close"):
        getattr(writer, step)()
    with pytest.raises(UnsupportedModelError, match='"mamba"; expected one of afmoe, '):
        specdec.load(tmp_path / "model.gguf")


def test_a_cut_file_at_every_byte_of_its_head(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "model.gguf", CASES["llama"])
    whole = path.read_bytes()
    first = min(tensor.start for tensor in tensors_in(path).values())
    cut = tmp_path / "cut.gguf"
    for n in [*range(0, first, 7), first, len(whole) - 1]:
        cut.write_bytes(whole[:n])
        with pytest.raises(CheckpointError, match="cut.gguf: "):
            tensors_in(cut)


def test_memory_of_many_small_entries(tmp_path: Path) -> None:
    """Python objects take more memory than their entries in the file."""
    path = tmp_path / "model.gguf"

    def head(n_tensors: int, n_values: int) -> bytes:
        return b"GGUF" + struct.pack("<IQQ", 3, n_tensors, n_values)

    value = struct.pack("<Q7sIB", 7, b"%07d", 0, 1)
    strings = struct.pack("<Q1sIIQ", 1, b"k", 9, 8, (1 << 21) + 1) + bytes(8 << 21) + bytes(8)
    for data, message in (
        (head(0, 70_000) + value * 70_000, "claims 70000 values; expected at most 65536"),
        (head(70_000, 0) + bytes(24) * 70_000, "claims 70000 tensors; expected at most 65536"),
        (head(0, 1) + strings, "'k' is an array of 2097153 strings; expected at most 2097152"),
    ):
        path.write_bytes(data)
        with pytest.raises(CheckpointError, match=message):
            specdec.load(path)


def test_other_versions(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "model.gguf", CASES["llama"])
    whole = path.read_bytes()
    for version, message in ((b"\x01\0\0\0", "of version 1"), (b"\0\0\0\x03", "with big-endian byte order")):
        path.write_bytes(whole[:4] + version + whole[8:])
        with pytest.raises(UnsupportedModelError, match=message):
            specdec.load(path)
    path.write_bytes(whole[:4] + b"\x02\0\0\0" + whole[8:])
    specdec.load(path)


def test_the_package_is_named_where_it_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_gguf(tmp_path / "model.gguf", CASES["llama"])
    monkeypatch.setitem(sys.modules, "gguf", None)
    forget_gguf()
    with pytest.raises(MissingPackageError, match=r"pip install 'specdec-cpu\[gguf\]'"):
        specdec.load(path)


# -------------------------------------------------------------------------------------------- the hub

PARTS = ["M-Q8_0-00001-of-00002.gguf", "M-Q8_0-00002-of-00002.gguf"]
FILES = ["README.md", "M-Q4_K_M.gguf", *PARTS, "x/M.F16.gguf"]


class Hub:
    """A stand-in for ``huggingface_hub`` whose files are all the same."""

    def __init__(self, file: Path) -> None:
        self._file, self.asked = file, list[str]()

    def HfApi(self) -> Any:  # noqa: N802
        return SimpleNamespace(list_repo_files=lambda name, **options: FILES)

    def hf_hub_download(self, name: str, file: str, **options: Any) -> str:
        assert name == "org/name" and set(options) == {"cache_dir", "revision", "token"}
        self.asked.append(file)
        return str(self._file)


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("org/name:Q4_K_M", FILES[1:2]),
        ("org/name:q8_0", FILES[2:4]),
        ("hf://org/name:F16", FILES[4:]),
        ("hf://org/name/x/M.F16.gguf", FILES[4:]),
        ("hf://org/name/M-Q8_0-00002-of-00002.gguf", FILES[2:4]),
    ],
)
def test_a_file_of_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, files: list[str]
) -> None:
    path = write_gguf(tmp_path / "model.gguf", CASES["llama"])
    hub = Hub(path)
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    assert specdec.load(name).path == path and hub.asked == files


def test_a_type_that_the_hub_has_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", Hub(tmp_path))
    with pytest.raises(CheckpointError, match=r"org/name: has 0 GGUF files of type"):
        specdec.load("org/name:Q5_K_M")
    with pytest.raises(CheckpointNotFoundError, match="not a hub name such as"):
        specdec.load("hf://org/name/../x.gguf")
