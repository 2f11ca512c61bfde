"""The recurrent draft: its distribution at a node is the network's after the node's text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import specdec
from specdec import drafts
from toy_pair import load_pair
from trained import small_pair
from worlds.learned import (
    check_distributions,
    open_session,
    recurrent_logits,
    recurrent_network,
    recurrent_tensors,
    recurrent_weights,
)  # fmt: skip

SHAPE = (12, 37, 2)
N_VOCAB = 61
SAMPLED: dict[str, Any] = {"temperature": 1.0, "ignore_eos": True}


def core_of(tensors: dict[str, Any], shape: Any = SHAPE, **options: Any) -> Any:
    return recurrent_network(N_VOCAB, shape, tensors=tensors, **options)


def text(n: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, N_VOCAB, n).tolist()


@pytest.mark.parametrize(("dtype", "tolerance"), [("f32", 1e-5), ("bf16", 0.1), ("int8", 0.4), ("int4", 3.0)])
def test_the_network_is_the_equations(dtype: str, tolerance: float) -> None:
    tensors, ids = recurrent_tensors(N_VOCAB, N_VOCAB, SHAPE), text(25)
    found = core_of(tensors, dtype=dtype).logits(ids)
    np.testing.assert_allclose(found, recurrent_logits(tensors, ids, SHAPE[2]), atol=tolerance)


def test_fewer_tokens_than_the_targets_are_scattered() -> None:
    tokens = [40, 3, 17, 60]
    tensors, ids = recurrent_tensors(N_VOCAB, len(tokens), SHAPE), text(9)
    found = core_of(tensors, tokens=tokens).logits(ids)
    np.testing.assert_allclose(found[:, tokens], recurrent_logits(tensors, ids, SHAPE[2]), atol=1e-5)
    assert (np.delete(found, tokens, axis=1) == -np.inf).all()


TREES: dict[str, Any] = {
    "chain": None, "chains": drafts.ParallelChains(3), "samples": drafts.StaticTree((3, 2, 2))
}  # fmt: skip


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("tokens", [None, list(range(1, 61, 2))], ids=["all", "reduced"])
def test_nodes_are_drawn_from_the_network(target: specdec.Model, tree: str, tokens: Any) -> None:
    """After a prompt, and after rounds whose nodes became text or were dropped; three texts together."""
    draft = drafts.RecurrentDraft(recurrent_weights(target, text(300), (8, 16, 2), tokens), tree=TREES[tree])

    def expected(known: list[int], path: list[int]) -> Any:
        return draft.probabilities([*known, *path])[-1]

    prompts = [text(1), text(7, 1), text(30, 2)]
    assert check_distributions(target, draft, prompts, expected, atol=1e-6)[1] > 0


def test_prompts_are_read_in_slices(tmp_path: Path) -> None:
    """Of a network so wide that a slice has fewer tokens than the longest prompt."""
    target, _ = load_pair(tmp_path, max_position_embeddings=400)
    draft = drafts.RecurrentDraft(recurrent_weights(target, text(300), (8, 600, 1)))
    prompts = [text(250), text(3, 1), text(90, 2)]
    session = open_session(target, draft, prompts, gamma=1)
    for prompt, record in zip(prompts, session.round(), strict=True):
        np.testing.assert_allclose(record["draft_probs"][1], draft.probabilities(prompt)[-1], atol=1e-6)
    session.close()


def test_threads_change_no_bit() -> None:
    """Of a head so large that threads share it."""
    target, _ = small_pair()
    draft = drafts.RecurrentDraft(recurrent_weights(target, text(300), (8, 16, 1)))
    options = SAMPLED | {"max_new_tokens": 12, "seed": 3}
    one, three = (specdec.generate(target, draft, text(9), n_threads=n, **options) for n in (1, 3))
    assert [r.drafted for r in one.trace.rounds] == [r.drafted for r in three.trace.rounds]


def test_it_drafts_for_a_draft(tmp_path: Path) -> None:
    """A round equals that of a session with its text as prompt: earlier draft tokens change nothing.

    The network reads the text with draft tokens, and loses them: a few, or more than the kept states, so that
    it reads the text again.
    """
    target, small = load_pair(tmp_path, max_position_embeddings=400)
    weights = recurrent_weights(target, text(300), (16, 24, 1))
    nested = drafts.ModelDraft(small, draft=drafts.RecurrentDraft(weights, gamma=2))

    def rounds(known: list[int], gamma: int, n: int) -> list[Any]:
        session = open_session(target, nested, [known], gamma=gamma, max_new_tokens=380 - len(known))
        records = [record for _ in range(n) for record in session.round()]
        session.close()
        return records

    for gamma in (5, 200):
        known = text(5)
        for record in rounds(known, gamma, 4):
            (first,) = rounds(known, gamma, 1)
            assert (first["drafted"], first["tokens"]) == (record["drafted"], record["tokens"])
            known = known + record["tokens"]
