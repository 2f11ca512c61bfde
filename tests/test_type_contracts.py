"""Models in GGUF types: logits equal the specification bit for bit; texts are invariant."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

import specdec
from blocks import random_blocks
from specdec import drafts, reference
from specdec.checkpoints import open_checkpoint
from test_gguf_types import MIXTURES, write
from worlds.canonical import LLAMA, VARIANTS, random_tensors
from worlds.canonical import MIXTURES as EXPERTS
from worlds.encoder_decoders import model_of
from worlds.folders import write_hf
from worlds.gguf_files import CASES, Case, write_gguf

CONFIGS = [
    LLAMA | {"sliding_window": 7, "tied": True, "attn_gate": "whole"},
    EXPERTS["mixture-softmax"] | {"attn_gate": "head"},
    EXPERTS["mixture-corrected-groups-dense-first"] | {"d_shared_expert": 0, "mixtures": []},
    VARIANTS["delta"],
    VARIANTS["mamba2-and-attention-factors"],
]

TYPES = {"q4_k": ("Q4_K",), "q5_k": ("Q5_K",), "q6_k": ("Q6_K",), "mixture": ("Q4_K", "Q6_K", "Q4_K")}
WITH_EACH_TYPE = pytest.mark.parametrize("types", TYPES.values(), ids=TYPES)
PROMPTS = [[5, 17, 3], [1], [40, 2, 9] * 10, [5, 17, 3, 8]]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A model in these types, with prompts in rows, and a draft that often agrees: the same in int4."""
    folder, made = tmp_path_factory.mktemp("types"), dict[tuple[str, ...], Any]()

    def of(types: tuple[str, ...]) -> tuple[specdec.Model, specdec.Model]:
        if types not in made:
            path = write(folder / f"{len(made)}.gguf", types)
            how: Any = {"tokenizer": False, "prefill": "rows"}
            made[types] = tuple(specdec.load(path, dtype, **how) for dtype in (None, "int4"))
        return made[types]

    return of


def stored(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Canonical tensors as stored in the file, and their formats."""
    checkpoint = open_checkpoint(path, tokenizer=False)
    tensors, formats = {}, {}
    for name, array, row_format in checkpoint.tensors(checkpoint.stored.blocks):
        tensors[name] = array if row_format != "bf16" else (array.astype(np.uint32) << 16).view(np.float32)
        if name in checkpoint.stored.formats:
            formats[name] = row_format
    return tensors, formats


@pytest.mark.parametrize("cache", [pytest.param("f32", marks=pytest.mark.slow), "bf16", "int8"])
@pytest.mark.parametrize("types", [TYPES["mixture"], *MIXTURES], ids="-".join)
def test_logits_have_the_bits_of_the_specification(
    tmp_path: Path, types: tuple[str, ...], cache: str
) -> None:
    path = write(tmp_path / "model.gguf", types)
    model = specdec.load(path, tokenizer=False, cache_dtype=cache, prefill="rows")
    tensors, formats = stored(path)
    assert set(formats.values()) == {block_type.lower() for block_type in types}
    ids = np.random.default_rng(3).integers(0, 70, 19).tolist()
    expected = reference.exact_logits(model.config, tensors, ids, formats=formats, cache_format=cache)
    assert np.array_equal(model.logits(ids), expected)
    near = reference.logits(model.config, tensors, ids, format=formats, cache_format=cache)
    assert np.median(np.abs(expected - near)) < 0.01 * np.abs(expected).max()


@pytest.mark.parametrize("cache", [pytest.param("f32", marks=pytest.mark.slow), "bf16", "int8"])
@pytest.mark.parametrize("config", CONFIGS, ids=len)
def test_one_format_and_experts(config: dict[str, Any], cache: str) -> None:
    tensors, ids = random_tensors(config), np.random.default_rng(3).integers(0, 101, 23).tolist()
    for dtype in ("f32", "bf16", "int8", "int4"):
        found = model_of(config, tensors, dtype=dtype, cache_dtype=cache).logits(ids)
        expected = reference.exact_logits(config, tensors, ids, formats=dtype, cache_format=cache)
        assert np.array_equal(found, expected)


def test_experts_in_types_of_blocks(tmp_path: Path) -> None:
    changes = {"hidden_size": 256, "intermediate_size": 256, "vocab_size": 40}
    case = Case("llama", "MixtralForCausalLM", {**CASES["mixtral"].config, **changes})
    folder = write_hf(tmp_path / "folder", *case.folder())
    path = specdec.convert(folder, tmp_path / "model.gguf", "Q4_K_M")
    model = specdec.load(path, tokenizer=False, prefill="rows")
    tensors, formats = stored(path)
    assert {"q4_k", "q6_k"} <= set(formats.values())
    ids = np.random.default_rng(3).integers(0, 40, 11).tolist()
    expected = reference.exact_logits(model.config, tensors, ids, formats=formats, cache_format="bf16")
    assert np.array_equal(model.logits(ids), expected)


CROSS = {
    "one type": ("Q4_K", "Q4_K", "Q4_K", "Q4_K"),
    "across layers": ("Q4_K", "Q4_K", "Q6_K", "Q6_K"),
    "within layers": ("Q4_K", "Q6_K", "Q6_K", "Q4_K"),
    "codes and floats": ("Q4_K", "F32", "Q4_K", "Q4_K"),
    "floats, then codes": ("F32", "F32", "Q6_K", "Q6_K"),
    "codes, then bf16": ("Q4_K", "Q4_K", "BF16", "BF16"),
}
"""Types of keys and values of cross-attention, layer by layer: all meet the rows of one source."""


@pytest.mark.parametrize("types", CROSS.values(), ids=CROSS)
def test_cross_attention_in_several_types(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, types: tuple[str, ...]
) -> None:
    """Mixed types become f32 with the file's values, with a warning."""
    quantize, rng = gguf.quants.quantize, np.random.default_rng(6)

    def quantized(array: np.ndarray, block_type: Any) -> np.ndarray:
        if not block_type.name.endswith("_K"):
            return quantize(array, block_type)
        return random_blocks(rng, block_type.name.lower(), *array.shape)

    def type_of(name: str) -> Any:
        parts = name.split(".")
        if parts[-2] in ("cross_attn_k", "cross_attn_v"):
            return gguf.GGMLQuantizationType[types[2 * int(parts[2]) + (parts[-2] == "cross_attn_v")]]
        is_plain = "norm" in name or "rel_b" in name or len(parts) < 4
        return gguf.GGMLQuantizationType["F32" if is_plain else "Q4_K"]

    monkeypatch.setattr(gguf.quants, "quantize", quantized)
    sizes = {"d_model": 256, "d_kv": 64, "num_heads": 4, "d_ff": 256, "vocab_size": 40}
    layers = {"num_layers": 2, "num_decoder_layers": 2}
    case = Case("t5", "T5ForConditionalGeneration", {**CASES["t5"].config, **sizes, **layers})
    path = write_gguf(tmp_path / "model.gguf", case, types=type_of)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        model = specdec.load(path, tokenizer=False, cache_dtype="f32", prefill="rows")
    crossing = {
        row_format for name, row_format in model.formats.items() if ".cross_k" in name or ".cross_v" in name
    }
    mixed = len({block_type.endswith("_K") for block_type in types}) > 1
    assert crossing == ({"f32"} if mixed else {block_type.lower() for block_type in types})
    assert bool(warned) == mixed
    tensors, formats = stored(path)
    source, ids = [5, 17, 9, 33, 3, 2, 7, 1], [0, 11, 30, 2, 9]
    found = model.logits(ids, source)
    expected = reference.logits(model.config, tensors, ids, source=source, dtype=np.float32, format=formats)
    assert np.median(np.abs(found - expected)) < 0.01 * np.abs(expected).max()
    plain = specdec.generate(model, None, source, max_new_tokens=12)
    for draft, gamma in ((model, 4), (drafts.PromptLookup(), 3)):
        drafted = specdec.generate(model, draft, source, max_new_tokens=12, gamma=gamma)
        assert list(drafted.tokens) == list(plain.tokens)
    assert np.array_equal(model.logits(ids[:2], source), found[:2])


def texts(results: Any) -> list[list[int]]:
    return [list(result.tokens) for result in results]


@WITH_EACH_TYPE
@pytest.mark.parametrize("how", [{}, {"temperature": 0.8, "verify": "coupled", "seed": 4}], ids=len)
def test_speculation_changes_nothing(models: Any, types: tuple[str, ...], how: dict[str, Any]) -> None:
    """For any gamma and tree, alone and in batches, by any number of threads."""
    target, small = models(types)
    plain = specdec.generate(target, None, PROMPTS, max_new_tokens=20, **how)
    first = specdec.generate(target, None, PROMPTS[0], max_new_tokens=20, n_threads=2, **how)
    assert list(first.tokens) == list(plain[0].tokens)
    calls: list[tuple[Any, dict[str, Any]]] = [
        *((small, {"gamma": gamma}) for gamma in (1, 4, 8)),
        (drafts.ModelDraft(small, tree=drafts.StaticTree((2, 2, 1))), {}),
        (drafts.ModelDraft(small, tree=drafts.DynamicTree(9, steps=4)), {}),
        (drafts.PromptLookup(), {}),
    ]
    for i, (draft, options) in enumerate(calls):
        settings = {"max_new_tokens": 20, **options, **how}
        found = specdec.generate(target, draft, PROMPTS, n_threads=1 + i % 2, **settings)
        assert texts(found) == texts(plain)
        alone = specdec.generate(target, draft, PROMPTS[0], n_threads=2 - i % 2, **settings)
        assert list(alone.tokens) == list(first.tokens)
        n_rounds = sum(len(result.trace.rounds) for result in found)
        assert draft is not small or n_rounds < sum(map(len, texts(found))), "none accepted"


@WITH_EACH_TYPE
def test_log_probabilities_are_those_of_the_text_alone(models: Any, types: tuple[str, ...]) -> None:
    target, small = models(types)
    found = specdec.generate(target, small, PROMPTS, max_new_tokens=12, gamma=3, logprobs=0)
    for prompt, result in zip(PROMPTS, found, strict=True):
        whole = [*prompt, *result.tokens]
        assert np.array_equal(result.logprobs, target.score(whole)[len(prompt) - 1 :])
