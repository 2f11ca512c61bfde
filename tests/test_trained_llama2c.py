"""Trained weights in llama2.c's format: the embedded draft, written as such a file, is the same model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import specdec
from distributions import EMBEDDED_DRAFT, embedded_llama2c

TEXT = "It was a dark and stormy night, and the rain fell in torrents upon the roof of the old house."


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[specdec.Model, specdec.Model]:
    """The llama2.c file, without a tokenizer, and the Hugging Face folder that its weights come from."""
    file: Path = embedded_llama2c(tmp_path_factory.mktemp("models"))
    return specdec.load(file, "f32", tokenizer=False), specdec.load(EMBEDDED_DRAFT, "f32")


def test_it_is_the_same_model(pair: tuple[specdec.Model, specdec.Model]) -> None:
    found, wanted = pair
    assert found.config == wanted.config
    assert found.n_parameters == wanted.n_parameters


def test_logits_have_the_same_bits(pair: tuple[specdec.Model, specdec.Model]) -> None:
    found, wanted = pair
    ids = wanted.tokenizer.encode(TEXT)
    assert np.array_equal(found.logits(ids), wanted.logits(ids))


def test_a_trained_model_expects_the_text(pair: tuple[specdec.Model, specdec.Model]) -> None:
    """Words in order are far likelier than in reverse, and greedy text is the folder's."""
    found, wanted = pair
    ids = wanted.tokenizer.encode(TEXT)
    assert found.score(ids).mean() > found.score(ids[::-1]).mean() + 1.0
    runs = [specdec.generate(model, None, ids, max_new_tokens=40).tokens for model in pair]
    assert runs[0] == runs[1]
