"""The quantization report: its statistics against their definitions, and its text."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest

import specdec
from distributions import stories260k
from specdec import reference
from specdec.errors import CheckpointError, CheckpointNotFoundError
from trained import DRAFT
from worlds.canonical import DTYPES
from worlds.folders import gpt2_config, llama_config, llama_tensors, write_hf

TEXT = (Path(specdec.__file__).parent / "embedded" / "novel.txt").read_text("utf-8")
IDS = [1, 5, 9, 60, 0, 33, 2, 2, 17]


def weights(model: specdec.Model) -> dict[str, np.ndarray]:
    """The matrices of a model in f32, by canonical name."""
    held = specdec.load(model.path, "f32").quantization_report().matrices
    core = specdec.load(model.path, "f32").core
    return {matrix.name: core.matrix(matrix.name) for matrix in held}


@pytest.mark.parametrize("config", [llama_config(), gpt2_config()], ids=["llama", "gpt2"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_errors_of_matrices(tmp_path, config, dtype):
    model = specdec.load(write_hf(tmp_path / "model", config), dtype)
    report = model.quantization_report()
    assert (report.path, report.dtype, report.cache_dtype) == (model.path, dtype, model.cache_dtype)
    assert report.n_bytes == model.n_bytes
    expected = weights(model)
    assert len(expected) == 1 + 2 * (7 if config["model_type"] == "llama" else 6)
    for matrix in report.matrices:
        wide = expected[matrix.name].astype(np.float64)
        difference = wide - reference.stored(expected[matrix.name], dtype)
        assert matrix.shape == wide.shape
        assert matrix.relative_error == pytest.approx(np.linalg.norm(difference) / np.linalg.norm(wide))
        assert matrix.largest_error == np.abs(difference).max()
        assert (matrix.relative_error > 0) == (dtype != "f32")
    lost = [np.linalg.norm(w - reference.stored(w, dtype)) for w in expected.values()]
    held = [np.linalg.norm(w) for w in expected.values()]
    assert report.relative_error == pytest.approx(math.hypot(*lost) / math.hypot(*held), rel=1e-5)
    low, high = {"f32": (0, 0), "bf16": (1e-3, 2e-3), "int8": (4e-3, 7e-3), "int4": (0.06, 0.1)}[dtype]
    assert low <= report.relative_error <= high


def test_a_checkpoint_in_its_own_format_has_no_errors(make_llama):
    """A matrix of zeros has none in any format."""
    zeros = {"model.layers.0.mlp.up_proj.weight": np.zeros((56, 32), np.float32)}
    folder = make_llama("zeros", tensors=llama_tensors(llama_config()) | zeros)
    errors = {m.name: m.relative_error for m in specdec.load(folder, "int4").quantization_report().matrices}
    assert errors["layers.0.mlp_up.weight"] == 0 < errors["layers.0.mlp_gate.weight"]
    for stored, dtype in (("F16", None), ("BF16", None), ("BF16", "f32")):
        report = specdec.load(make_llama(stored, dtype=stored), dtype).quantization_report(IDS)
        assert report.relative_error == 0
        assert all((m.relative_error, m.largest_error) == (0, 0) for m in report.matrices)
        if report.dtype == "f32":
            assert report.cross_entropy == report.cross_entropy_f32


@pytest.mark.parametrize(("dtype", "whole", "padded"), [
    ("f32", 32, 32), ("bf16", 16, 16), ("int8", 8.5, 8.5 * 64 / 56), ("int4", 4.5, 4.5 * 64 / 56)
])  # fmt: skip
def test_bits_per_weight(make_llama, dtype, whole, padded):
    """For rows of 32 weights, and of 56, which take two blocks."""
    report = specdec.load(make_llama(), dtype).quantization_report()
    bits = {matrix.name: matrix.bits_per_weight for matrix in report.matrices}
    assert bits["layers.1.mlp_up.weight"] == whole
    assert bits["layers.1.mlp_down.weight"] == padded
    assert whole <= report.bits_per_weight <= padded


def test_cross_entropy(make_llama):
    """In pieces of the context, 48 tokens; the last piece, one token, predicts nothing."""
    folder = make_llama()
    model = specdec.load(folder, "int4")
    wide = specdec.load(folder, "f32")
    ids = np.random.default_rng(1).integers(0, 61, 2 * 48 + 1)
    for given, pieces in ((IDS, [IDS]), (ids, [ids[:48], ids[48:96]])):
        report = model.quantization_report(given, n_threads=2)
        assert report.n_tokens == sum(len(piece) - 1 for piece in pieces)
        for core, found in ((model, report.cross_entropy), (wide, report.cross_entropy_f32)):
            assert found == -np.concatenate([core.score(piece) for piece in pieces]).mean()
        assert report.cross_entropy != report.cross_entropy_f32
        assert report.perplexity == math.exp(report.cross_entropy)
        assert report.perplexity_f32 == math.exp(report.cross_entropy_f32)


def test_what_it_says(make_llama):
    model = specdec.load(make_llama(), "int8")
    report = model.quantization_report()  # without a text
    assert (report.n_tokens, report.cross_entropy, report.cross_entropy_f32) == (0, None, None)
    assert report.perplexity is report.perplexity_f32 is None and "perplexity" not in str(report)
    json.dumps(report.to_dict())
    report = model.quantization_report(IDS)
    assert "\n" not in repr(report) and "int8: 8.73 bits" in repr(report) and "perplexity" in repr(report)
    text, html = str(report), report._repr_html_()
    for matrix in report.matrices:
        assert f"\n{matrix.name} " in text and f"<td>{matrix.name}</td>" in html
    assert str(model.path) in text and f"perplexity {report.perplexity:.4g}" in text
    found = json.loads(json.dumps(report.to_dict()))
    assert found["perplexity"] == report.perplexity and found["dtype"] == "int8"
    assert found["matrices"][0] == {**vars(report.matrices[0]), "shape": list(report.matrices[0].shape)}


def test_the_checkpoint_must_still_be_there(make_llama):
    folder = make_llama()
    model = specdec.load(folder, "int8")
    write_hf(folder, llama_config(intermediate_size=24))
    with pytest.raises(CheckpointError, match="another configuration"):
        model.quantization_report()
    shutil.rmtree(folder)
    with pytest.raises(CheckpointNotFoundError, match="no such file"):
        model.quantization_report()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["small", "stories260K"])
def test_a_trained_model(request, name, dtype):
    """Perplexity hardly changes except in int4: the model has few weights."""
    file = DRAFT if name == "small" else stories260k(request.getfixturevalue("shared"))
    model = specdec.load(file, dtype)
    story = "Once upon a time, there was a little girl named Lily. She loved to play outside in the park."
    report = model.quantization_report(story)
    allowed = {"f32": 0.0, "bf16": 0.02, "int8": 0.02, "int4": 0.3}[dtype]
    assert abs(report.cross_entropy - report.cross_entropy_f32) <= allowed
    assert report.cross_entropy_f32 == pytest.approx(
        -specdec.load(file, "f32").score(story).mean(), abs=1e-12
    )
    own = model.quantization_report()
    assert own.n_tokens == len(model.tokenizer.encode(TEXT)) - own.n_tokens // 511 - 1
