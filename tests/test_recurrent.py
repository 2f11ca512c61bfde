"""The recurrent draft: its distribution at a node is that of the network after the node's text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import specdec
from refusals import refuses
from specdec import drafts
from toy_pair import load_pair
from worlds.learned import (
    check_distributions,
    learned_weights,
    open_session,
    recurrent_logits,
    recurrent_network,
    recurrent_tensors,
    recurrent_weights,
    tensors_of,
)  # fmt: skip

SHAPE = (12, 37, 2)
N_VOCAB = 61
FIELDS = {"d_embed": 5, "d_hidden": 9, "n_layers": 1}
SAMPLED: dict[str, Any] = {"temperature": 1.0, "ignore_eos": True}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> specdec.Model:
    return load_pair(tmp_path_factory.mktemp("pair"))[0]


def core_of(tensors: dict[str, Any], shape: Any = SHAPE, **options: Any) -> Any:
    return recurrent_network(N_VOCAB, shape, tensors=tensors, **options)


def small_tensors(n_draft_vocab: int = N_VOCAB) -> dict[str, Any]:
    return recurrent_tensors(N_VOCAB, n_draft_vocab, (5, 9, 1))


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
    draft = drafts.Recurrent(recurrent_weights(target, text(300), (8, 16, 2), tokens), tree=TREES[tree])

    def expected(known: list[int], path: list[int]) -> Any:
        return draft.probabilities([*known, *path])[-1]

    prompts = [text(1), text(7, 1), text(30, 2)]
    assert check_distributions(target, draft, prompts, expected, atol=1e-6)[1] > 0


def test_the_output_does_not_depend_on_the_company(target: specdec.Model) -> None:
    """What is drafted has equal bits alone and in a batch, with prompts read in slices beside others."""
    draft = drafts.Recurrent(recurrent_weights(target, text(300), (8, 16, 1)))
    prompts, seeds = [text(3), text(20, 1), text(40, 2)], (3, 4, 5)
    options = SAMPLED | {"max_new_tokens": 8}
    batch = specdec.generate(target, draft, prompts, seed=list(seeds), n_threads=2, **options)
    for prompt, seed, one in zip(prompts, seeds, batch, strict=True):
        alone = specdec.generate(target, draft, prompt, seed=seed, n_threads=1, **options)
        assert alone.tokens == one.tokens
        assert [r.drafted for r in alone.trace.rounds] == [r.drafted for r in one.trace.rounds]


def test_prompts_are_read_in_slices(tmp_path: Path) -> None:
    """Of a network so wide that a slice has fewer tokens than the longest prompt."""
    target, _ = load_pair(tmp_path, max_position_embeddings=400)
    draft = drafts.Recurrent(recurrent_weights(target, text(300), (8, 600, 1)))
    prompts = [text(250), text(3, 1), text(90, 2)]
    session = open_session(target, draft, prompts, gamma=1)
    for prompt, record in zip(prompts, session.round(), strict=True):
        np.testing.assert_allclose(record["draft_probs"][1], draft.probabilities(prompt)[-1], atol=1e-6)
    session.close()


def test_threads_change_no_bit() -> None:
    """Of a head so large that threads share it."""
    target, _ = specdec.embedded_pair()
    draft = drafts.Recurrent(recurrent_weights(target, text(300), (8, 16, 1)))
    options = SAMPLED | {"max_new_tokens": 12, "seed": 3}
    one, three = (specdec.generate(target, draft, text(9), n_threads=n, **options) for n in (1, 3))
    assert [r.drafted for r in one.trace.rounds] == [r.drafted for r in three.trace.rounds]


def test_it_is_measured_by_its_distribution(target: specdec.Model) -> None:
    draft = drafts.Recurrent(recurrent_weights(target, text(300)))
    found = specdec.measure(target, draft, [text(5)], n_tokens=20, timing=False)
    assert any(0.0 < row.alpha < 1.0 for row in found.rows if row.temperature == 1.0)


def test_it_drafts_for_a_draft(tmp_path: Path) -> None:
    """A round is what it is where its text is the prompt: draft tokens of earlier rounds change nothing.

    The network reads the draft's text with its draft tokens, and loses them: few, or more than the lengths
    whose states are kept, so that it is read again.
    """
    target, small = load_pair(tmp_path, max_position_embeddings=400)
    weights = recurrent_weights(target, text(300), (16, 24, 1))
    nested = drafts.ModelDraft(small, draft=drafts.Recurrent(weights, gamma=2))

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


# ------------------------------------------------------------------------------------------- folders


def test_a_folder_is_loaded(target: specdec.Model, tmp_path: Path) -> None:
    weights = recurrent_weights(target, text(300), SHAPE)
    tree = drafts.StaticTree((2, 2))
    loaded = drafts.load(weights.save(tmp_path / "draft", "f32"), target, tree=tree)
    assert isinstance(loaded, drafts.Recurrent) and loaded.tree == tree and loaded.gamma == tree.gamma
    assert np.array_equal(loaded.core.logits(text(9)), drafts.Recurrent(weights).core.logits(text(9)))
    assert loaded.core.n_parameters == sum(array.size for array in tensors_of(weights).values())
    assert "parameters" in repr(loaded)


@pytest.mark.parametrize(
    ("fields", "tensors", "named"),
    [
        ({"d_embed": 0}, {}, "'d_embed'"),
        ({"d_hidden": 8}, {}, r"'cells\.0\.weight_ih' has shape \[27, 5\]; expected it with shape \[24, 5\]"),
        ({"n_layers": 17}, {}, "'n_layers'"),
        ({"n_layers": 2}, {}, r"'cells\.1\.weight_ih' is missing"),
        ({}, {"more": np.zeros(3)}, "'more' is not part"),
        ({}, {"output.bias": np.full(N_VOCAB, np.inf)}, r"output\.bias: element \[0\] is inf"),
        ({}, {"cells.0.weight_hh": np.full((27, 9), np.nan)}, r"cells\.0\.weight_hh: element \[0, 0\]"),
    ],
)
def test_what_does_not_fit_is_named(
    target: specdec.Model, fields: dict[str, Any], tensors: dict[str, Any], named: str
) -> None:
    weights = learned_weights("recurrent", target, FIELDS | fields, small_tensors() | tensors)
    with pytest.raises(specdec.CheckpointError, match=f"the draft: .*{named}"):
        drafts.Recurrent(weights)


def test_another_method_is_named(target: specdec.Model) -> None:
    with pytest.raises(specdec.CheckpointError, match="'method'"):
        drafts.Recurrent(learned_weights("some", target, FIELDS, small_tensors()))


def test_other_tokens_are_refused(target: specdec.Model) -> None:
    embedded, _ = specdec.embedded_pair()
    draft = drafts.Recurrent(recurrent_weights(target, text(300)))
    with pytest.raises(specdec.InputError, match=f"n_vocab {embedded.config.n_vocab}; expected {N_VOCAB}"):
        specdec.generate(embedded, draft, [1, 2, 3])
    with pytest.raises(ValueError, match="the draft has 61 tokens and the target 4096"):  # the core by itself
        open_session(embedded, ("model", {"model": draft.core}), [[1]])


@pytest.mark.parametrize("name", ["output.weight", "cells.0.weight_ih"])
def test_a_network_that_overflows_is_named(target: specdec.Model, name: str) -> None:
    tensors = small_tensors()
    large = {name: np.full_like(tensors[name], 3e38), "embedding.weight": np.full((N_VOCAB, 5), 9.0)}
    draft = drafts.Recurrent(learned_weights("recurrent", target, FIELDS, tensors | large))
    with pytest.raises(specdec.NotFiniteError, match="the draft: .* not finite"):
        specdec.generate(target, draft, [1, 2, 3])


def test_bad_input_of_the_core() -> None:
    network, three = core_of(recurrent_tensors(N_VOCAB, N_VOCAB, SHAPE)), recurrent_tensors(N_VOCAB, 3, SHAPE)
    for tokens, named in (
        ([0, 1, 61], r"tokens\[2\] is 61"),
        ([0, 1], "there are 2 tokens"),
        (None, "there are no tokens"),
    ):
        with pytest.raises(ValueError, match=named):
            core_of(three, tokens=tokens)
    with pytest.raises(TypeError, match="n_vocab is missing"):
        type(network)({}, [])
    with pytest.raises(ValueError, match=r"ids\[1\] is 61"):
        network.logits([1, 61])


def test_bad_arguments(target: specdec.Model) -> None:
    weights = recurrent_weights(target, text(300))
    with refuses("ids[0]", -1):
        drafts.Recurrent(weights).probabilities([-1])
    with refuses("weights", 3):
        drafts.Recurrent(3)  # type: ignore[arg-type]
    for name, value in {"gamma": 0, "dtype": "f64", "n_threads": 0}.items():
        with refuses(name, value):
            drafts.Recurrent(weights, **{name: value})  # type: ignore[arg-type]
    with pytest.raises(specdec.InputError, match="tree is"):
        drafts.Recurrent(weights, tree=3)  # type: ignore[arg-type]
