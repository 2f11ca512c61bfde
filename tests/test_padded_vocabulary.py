"""Models of one vocabulary with different numbers of padding ids: which pairs fit, and exactness."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import specdec
from chat_templates import write_tokenizer
from compiled import Decoder
from specdec import drafts
from worlds.folders import llama_config, tensors_for, write_hf

N_TOKENS, N_CTX = 256 + 4, 64


def make(folder: Path, n_vocab: int, seed: int) -> specdec.Model:
    """A model with `n_vocab` ids; rows of its tokenizer's ids do not depend on that number."""
    config = llama_config(vocab_size=n_vocab, max_position_embeddings=N_CTX, tie_word_embeddings=False)
    tensors = tensors_for(llama_config(vocab_size=300, max_position_embeddings=N_CTX), seed)
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        tensors[name] = 4.0 * tensors[name][:n_vocab]
    return specdec.load(write_tokenizer(write_hf(folder, config, tensors), ["<a>", "<b>", "<c>", "<d>"]))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, int], specdec.Model]:
    folder = tmp_path_factory.mktemp("padded")
    return {
        (name, n): make(folder / f"{name}{n}", n, seed)
        for name, seed in (("target", 0), ("draft", 1))
        for n in (N_TOKENS, 261, 300)
    }


PAIRS = [(N_TOKENS, 300), (300, N_TOKENS), (261, 300), (300, 261)]
TREES = {
    "samples": drafts.StaticTree((2, 1, 2)),
    "without replacement": drafts.StaticTree((2, 1), "without replacement"),
    "top-k": drafts.StaticTree((3, 2), "top-k"), "dynamic tree": drafts.DynamicTree(8, width=3, steps=3),
}  # fmt: skip
DRAFTS: dict[str, Callable[[specdec.Model], Any]] = {
    "model": lambda draft: draft,
    **{name: partial(drafts.ModelDraft, tree=tree) for name, tree in TREES.items()},
    "drafted": lambda draft: drafts.ModelDraft(draft, draft=draft),
    "drafted by copying": lambda draft: drafts.ModelDraft(draft, draft=drafts.PromptLookup(min_match=1)),
    "ensemble": lambda draft: drafts.Ensemble(drafts.PromptLookup(), draft, adaptive=False),
}


@pytest.mark.parametrize("name", DRAFTS)
@pytest.mark.parametrize("sizes", PAIRS)
def test_output_is_plain_output(models: Any, sizes: tuple[int, int], name: str) -> None:
    """Greedy and coupled; prompts contain padding ids that the draft lacks."""
    target, draft = models["target", sizes[0]], models["draft", sizes[1]]
    drafting = DRAFTS[name](draft)
    for ids in ([5, 9, 7, 5, 9], [5, sizes[0] - 1, 7, sizes[0] - 1]):
        for options in ({}, {"temperature": 1.0, "verify": "coupled", "seed": 3}):
            options = {"max_new_tokens": 30, "ignore_eos": True, "logits": True, **options}
            plain = specdec.generate(target, None, ids, **options)
            found = specdec.generate(target, drafting, ids, **options)
            assert found.tokens == plain.tokens and np.array_equal(found.logits, plain.logits)
            if name not in ("ensemble", "drafted by copying"):
                assert all(token < sizes[1] for round_ in found.trace.rounds for token in round_.drafted)


@pytest.mark.parametrize("sizes", PAIRS)
def test_draft_tokens_are_never_padding(models: Any, sizes: tuple[int, int]) -> None:
    """The draft's distribution covers the ids that both have, normalized; elsewhere it is 0."""
    draft, ids = models["draft", sizes[1]], [5, 9, 7]
    decoder = Decoder(draft.core, capacity=8, n_vocab=sizes[0])
    logits = decoder.prefill(ids, logits=True)
    assert logits is not None and logits.shape == (3, sizes[0])
    n = min(sizes)
    assert np.array_equal(logits[:, :n], draft.logits(ids)[:, :n])
    assert np.all(np.isneginf(logits[:, n:]))
    # an id that the draft lacks is read as its last
    if sizes[1] < sizes[0]:
        last = decoder.forward([sizes[0] - 1], [-1])
        assert np.array_equal(last, decoder.forward([sizes[1] - 1], [-1]))
    with pytest.raises(ValueError, match=f"expected 0 to {sizes[0] - 1}"):
        decoder.forward([sizes[0]], [-1])


@pytest.mark.parametrize("sizes", PAIRS)
def test_beam_search_and_measurements(models: Any, sizes: tuple[int, int]) -> None:
    target, draft = models["target", sizes[0]], models["draft", sizes[1]]
    options: dict[str, Any] = {"width": 3, "max_new_tokens": 12}
    found = specdec.beam_search(target, draft, [5, 9, 7], **options)
    plain = specdec.beam_search(target, None, [5, 9, 7], **options)
    one, other = ([(beam.tokens, beam.score) for beam in run.beams] for run in (found, plain))
    assert one == other
    once: dict[str, Any] = {"temperatures": [1.0], "gammas": [2], "timing": False}
    measured = specdec.measure(target, draft, [[5, 9, 7]], n_tokens=20, **once)
    text, (betas,) = [5, 9, 7, *measured.tokens[1.0][0][:-1]], measured.betas[1.0]
    read = [min(token, sizes[1] - 1) for token in text]  # an id that the draft lacks is read as its last
    for i, beta in enumerate(betas, start=2):  # of the ids that both have, normalized
        p = specdec.distribution(target.logits(text)[i], temperature=1.0)
        q = specdec.distribution(draft.logits(read)[i, : min(sizes)], temperature=1.0)
        assert beta == pytest.approx(np.minimum(p[: len(q)], q).sum(), abs=1e-6)
