"""Trained weights in llama2.c's format: known text and cross-entropy, and the small draft converted to it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import specdec
from distributions import small_llama2c
from trained import DRAFT

TEXT = "It was a dark and stormy night, and the rain fell in torrents upon the roof of the old house."
REFERENCE = 1.3065  # nats per token, as the shared folder's README measured it in float32
TOLERANCE = 1e-3


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[specdec.Model, specdec.Model]:
    """Write the llama2.c file, without tokenizer, and the Hugging Face folder of its weights."""
    file: Path = small_llama2c(tmp_path_factory.mktemp("models"))
    return specdec.load(file, "f32", tokenizer=False), specdec.load(DRAFT, "f32")


def test_it_is_the_same_model(pair: tuple[specdec.Model, specdec.Model]) -> None:
    found, wanted = pair
    assert (found.config, found.n_parameters) == (wanted.config, wanted.n_parameters)
    ids = wanted.tokenizer.encode(TEXT)
    assert np.array_equal(found.logits(ids), wanted.logits(ids))
    assert found.score(ids).mean() > found.score(ids[::-1]).mean() + 1.0  # words in order are far likelier
    runs = [specdec.generate(model, None, ids, max_new_tokens=40).tokens for model in pair]
    assert runs[0] == runs[1]


@pytest.fixture(scope="module")
def stories260k(shared: Path) -> specdec.Model:
    return specdec.load(shared / "models" / "stories260K" / "stories260K.bin")


def stories(shared: Path) -> list[str]:
    """Return stories 20 to 59 of those longer than 100 characters."""
    text = (shared / "data" / "tinystories" / "tiny.txt").read_text(encoding="utf-8")
    stripped = [story.strip() for story in text.split("<|endoftext|>")]
    return [story for story in stripped if len(story) > 100][20:60]


def test_mean_cross_entropy(stories260k, shared):
    losses = [-stories260k.score(stories260k.tokenizer.encode(story)[:512]) for story in stories(shared)]
    assert len(losses) == 40 and sum(map(len, losses)) > 10_000
    assert np.concatenate(losses).mean() == pytest.approx(REFERENCE, abs=TOLERANCE)


def test_greedy_continuation(stories260k, shared):
    """By path and by model; the comma belongs to the continuation."""
    path = shared / "models" / "stories260K" / "stories260K.bin"
    for target in (path, stories260k):
        out = specdec.generate(target, None, "Once upon a time", max_new_tokens=40, temperature=0.0)
        assert out.text.startswith(", there was a little girl named Lily."), out.text


def test_chars105(shared):
    """A character model generates English words, and prefers stories to their reverse."""
    model = specdec.load(shared / "models" / "chars105" / "model5000.bin")
    assert (model.config.n_vocab, model.config.n_ctx) == (105, 256)
    story = stories(shared)[0][:200]
    forward, backward = (model.score(text).mean() for text in (story, story[::-1]))
    assert forward > -1.2 and backward < forward - 2.0
