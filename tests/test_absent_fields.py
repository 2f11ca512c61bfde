"""Absent fields of a config.json, and what the files say against it, mean what they mean to transformers."""

from __future__ import annotations

import copy
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import specdec
from lazily import torch, transformers
from worlds.families import ARCHITECTURES, MODEL_TYPES, SIZES, read_config

pytestmark = pytest.mark.oracle

NOT_OF_TRANSFORMERS = {"MiMoForCausalLM", "LamdaForCausalLM"}
OF_OTHERS = {"Mistral3ForConditionalGeneration", "Gemma3ForConditionalGeneration"}


def as_written(config: Any, name: str) -> dict[str, Any]:
    return json.loads(config.to_json_string(use_diff=False)) | {"architectures": [name]}


def meaning(fields: dict[str, Any]) -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a field that takes no part without another
        return read_config(fields)


@pytest.mark.parametrize("name", sorted(set(ARCHITECTURES) - NOT_OF_TRANSFORMERS - OF_OTHERS))
def test_an_absent_field_has_the_default_of_the_class(name: str) -> None:
    """Each field of the class left out: specdec reads what transformers makes of the rest."""
    kind = transformers.CONFIG_MAPPING[MODEL_TYPES[name]]
    whole = as_written(kind(), name)
    for absent in set(whole) - {"architectures", "model_type"}:
        rest = {field: value for field, value in whole.items() if field != absent}
        completed = as_written(kind.from_dict(copy.deepcopy(rest)), name)
        assert meaning(rest) == meaning(completed), absent
    named = {"architectures": [name], "model_type": whole["model_type"]}
    assert meaning(named) == meaning(whole)


@pytest.mark.parametrize("inner", ["Gemma3TextConfig", "MistralConfig", "Ministral3Config"])
def test_absent_fields_of_an_inner_configuration(inner: str) -> None:
    name = f"{'Gemma' if inner.startswith('Gemma') else 'Mistral'}3ForConditionalGeneration"
    config = getattr(transformers, inner)()
    fields = {"architectures": [name], "text_config": {"model_type": config.model_type}}
    whole = {"architectures": [name], "text_config": as_written(config, name)}
    assert meaning(fields) == meaning(whole)


TIED = {"Qwen3Config": {"head_dim": 8}, "LlamaConfig": {}, "Gemma2Config": {"head_dim": 8}}


@pytest.mark.parametrize("kind", TIED)
@pytest.mark.parametrize("held", ["both", "equal", "table", "head"])
@pytest.mark.parametrize("tied", [True, False])
def test_which_head_counts(tmp_path: Path, kind: str, held: str, tied: bool) -> None:
    """A table and a head in one folder, with each value of ``tie_word_embeddings``."""
    from safetensors.torch import load_file, save_file

    torch.manual_seed(3)
    config = getattr(transformers, kind)(**SIZES, **TIED[kind], tie_word_embeddings=False)
    network = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.3)
    network.save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    if held == "equal":
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    elif held != "both":
        del tensors["lm_head.weight" if held == "table" else "model.embed_tokens.weight"]
    save_file(tensors, file, metadata={"format": "pt"})
    fields = json.loads((tmp_path / "config.json").read_text()) | {"tie_word_embeddings": tied}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    if not tied and held in ("table", "head"):  # transformers takes random numbers, with a warning
        with pytest.raises(specdec.errors.CheckpointError, match="is missing"):
            specdec.load(tmp_path)
        return
    ids = np.arange(3, 40)
    with torch.no_grad():
        network = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager")
        expected = network.float()(torch.from_numpy(ids)[None]).logits[0].numpy()
    model = specdec.load(tmp_path)
    assert model.config.tied == (tied and held != "both")
    np.testing.assert_allclose(model.logits(ids), expected, rtol=0, atol=2e-5 * np.abs(expected).max())
    if held == "both" and kind != "Gemma2Config":
        again = specdec.load(specdec.convert(tmp_path, tmp_path / "model.gguf", "F32"))
        assert np.array_equal(again.logits(ids), model.logits(ids))
        folder = specdec.load(specdec.convert(tmp_path, tmp_path / "folder", "F32"))
        assert np.array_equal(folder.logits(ids), model.logits(ids))
