"""The recurrent draft: its law at a node is that of the network after the node's text, however that came."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import specdec
from sessions import Session
from specdec import _core, drafts, reference
from specdec.drafts.learned.folder import LearnedWeights
from toy_pair import load_pair
from worlds.learned import (
    open_session,
    recurrent_logits,
    recurrent_network,
    recurrent_tensors,
    recurrent_weights,
)

SHAPE = (12, 37, 2)
N_VOCAB = 61


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> specdec.Model:
    return load_pair(tmp_path_factory.mktemp("pair"))[0]


def core_of(tensors: dict[str, Any], n_vocab: int = N_VOCAB, shape: Any = SHAPE, **options: Any) -> Any:
    return recurrent_network(n_vocab, shape, tensors=tensors, **options)


def text(n: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, N_VOCAB, n).tolist()


@pytest.mark.parametrize(("dtype", "tolerance"), [("f32", 1e-5), ("bf16", 0.1), ("int8", 0.4), ("int4", 3.0)])
def test_the_network_is_the_equations(dtype: str, tolerance: float) -> None:
    tensors, ids = recurrent_tensors(N_VOCAB, N_VOCAB, SHAPE), text(25)
    found = core_of(tensors, dtype=dtype).logits(ids)
    np.testing.assert_allclose(found, recurrent_logits(tensors, ids, SHAPE[2]), atol=tolerance)


@pytest.mark.oracle
def test_the_network_is_torchs() -> None:
    import torch

    d_embed, d_hidden, n_layers = SHAPE
    torch.manual_seed(0)
    modules = torch.nn.Embedding(N_VOCAB, d_embed), torch.nn.GRU(d_embed, d_hidden, n_layers)
    embedding, gru, output = *modules, torch.nn.Linear(d_hidden, N_VOCAB)
    tensors = {
        "embedding.weight": embedding.weight,
        "output.weight": output.weight,
        "output.bias": output.bias,
    }
    for i in range(n_layers):
        for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
            tensors[f"cells.{i}.{name}"] = getattr(gru, f"{name}_l{i}")
    ids = text(40)
    with torch.no_grad():
        wanted = output(gru(embedding(torch.tensor(ids)))[0]).numpy()
    found = core_of({name: tensor.detach().numpy() for name, tensor in tensors.items()}).logits(ids)
    np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_fewer_tokens_than_the_targets_are_scattered() -> None:
    tokens = [40, 3, 17, 60]
    tensors, ids = recurrent_tensors(N_VOCAB, len(tokens), SHAPE), text(9)
    found = core_of(tensors, tokens=tokens).logits(ids)
    np.testing.assert_allclose(found[:, tokens], recurrent_logits(tensors, ids, SHAPE[2]), atol=1e-5)
    assert (np.delete(found, tokens, axis=1) == -np.inf).all()


TREES: dict[str, Any] = {
    "chain": None,
    "chains": drafts.ParallelChains(3),
    "samples": drafts.StaticTree((3, 2, 2)),
}


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("tokens", [None, list(range(1, 61, 2))], ids=["all", "reduced"])
def test_nodes_are_drawn_from_the_networks_law(target: specdec.Model, tree: str, tokens: Any) -> None:
    """After a prompt, and after rounds whose nodes became text or were dropped; three texts together."""
    weights = recurrent_weights(target, text(300), (8, 16, 2), tokens)
    draft = drafts.Recurrent(weights, tree=TREES[tree])
    texts = [text(1), text(7, 1), text(30, 2)]
    session = open_session(target, draft, texts)
    n_accepted = 0
    while records := session.round():
        for record in records:
            known = texts[record["sequence"]]
            for node, parent in enumerate(record["parents"], 1):
                path = []
                while parent > 0:
                    path.insert(0, record["drafted"][parent - 1])
                    parent = record["parents"][parent - 1]
                wanted = draft.probabilities([*known, *path])[-1]
                np.testing.assert_allclose(record["draft_probs"][node], wanted, atol=1e-6)
            n_accepted += len(record["accepted"])
            texts[record["sequence"]] = known + record["tokens"]
    session.close()
    assert n_accepted > 0


def test_the_output_does_not_depend_on_the_company(target: specdec.Model) -> None:
    """What is drafted has equal bits alone and in a batch, with prompts read in slices beside others."""
    draft = drafts.Recurrent(recurrent_weights(target, text(300), (8, 16, 1)))
    prompts = [text(3), text(20, 1), text(40, 2)]
    options: dict[str, Any] = {"max_new_tokens": 8, "temperature": 1.0, "ignore_eos": True}
    batch = specdec.generate(target, draft, prompts, seed=[3, 4, 5], n_threads=2, **options)
    for prompt, seed, one in zip(prompts, (3, 4, 5), batch, strict=True):
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
        wanted = draft.probabilities(prompt)[-1]
        np.testing.assert_allclose(record["draft_probs"][1], wanted, atol=1e-6)
    session.close()


def test_threads_change_no_bit() -> None:
    """Of a head so large that threads share it."""
    target, _ = specdec.embedded_pair()
    draft = drafts.Recurrent(recurrent_weights(target, text(300), (8, 16, 1)))
    options: dict[str, Any] = {"max_new_tokens": 12, "temperature": 1.0, "ignore_eos": True, "seed": 3}
    one, three = (specdec.generate(target, draft, text(9), n_threads=n, **options) for n in (1, 3))
    assert [r.drafted for r in one.trace.rounds] == [r.drafted for r in three.trace.rounds]


def test_it_is_measured_by_its_law(target: specdec.Model) -> None:
    draft = drafts.Recurrent(recurrent_weights(target, text(300)))
    found = specdec.measure(target, draft, [text(5)], n_tokens=20, timing=False)
    assert any(0.0 < row.alpha < 1.0 for row in found.rows if row.temperature == 1.0)


def test_it_drafts_for_a_draft(tmp_path: Path) -> None:
    """A round is what it is where its text is the prompt: guesses of earlier rounds change nothing.

    The draft's text is shown to the network with its guesses, and loses them: few, or more than the lengths
    whose states are kept, so that it is read again.
    """
    target, small = load_pair(tmp_path, max_position_embeddings=400)
    weights = recurrent_weights(target, text(300), (16, 24, 1))
    nested = drafts.ModelDraft(small, draft=drafts.Recurrent(weights, gamma=2))
    prompt = text(5)
    for gamma in (5, 200):
        options: dict[str, Any] = {"gamma": gamma, "max_new_tokens": 380 - len(prompt)}
        session = open_session(target, nested, [prompt], **options)
        records = [record for _ in range(4) for record in session.round()]
        session.close()
        known = prompt
        for record in records:
            alone = open_session(target, nested, [known], gamma=gamma, max_new_tokens=380 - len(known))
            (first,) = alone.round()
            alone.close()
            assert (first["drafted"], first["tokens"]) == (record["drafted"], record["tokens"])
            known = known + record["tokens"]


# ------------------------------------------------------------------------------------------- folders


def test_a_folder_is_loaded(target: specdec.Model, tmp_path: Path) -> None:
    weights = recurrent_weights(target, text(300), SHAPE)
    folder = weights.save(tmp_path / "draft", "f32")
    tree = drafts.StaticTree((2, 2))
    loaded = drafts.load(folder, target, tree=tree)
    assert isinstance(loaded, drafts.Recurrent) and loaded.tree == tree and loaded.gamma == tree.gamma
    assert np.array_equal(loaded.core.logits(text(9)), drafts.Recurrent(weights).core.logits(text(9)))
    assert loaded.core.n_parameters == sum(array.size for _, array, _ in weights.tensors(shapes_of(weights)))
    assert "parameters" in repr(loaded)


def shapes_of(weights: LearnedWeights) -> dict[str, tuple[int, ...]]:
    return {name: tensor.shape for name, tensor in weights._held.items()}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"d_embed": 0}, "'d_embed' is 0; expected a whole number from 1"),
        (
            {"d_hidden": 8},
            r"tensor 'cells\.0\.weight_ih' has shape \[27, 5\]; expected it with shape \[24, 5\]",
        ),
        ({"n_layers": 17}, "'n_layers' is 17; expected a whole number from 1 to 16"),
        ({"n_layers": 2}, r"tensor 'cells\.1\.weight_ih' is missing"),
    ],
)
def test_fields_that_do_not_fit_are_named(
    target: specdec.Model, fields: dict[str, Any], message: str
) -> None:
    tensors = recurrent_tensors(N_VOCAB, N_VOCAB, (5, 9, 1))
    given = {"d_embed": 5, "d_hidden": 9, "n_layers": 1} | fields
    with pytest.raises(specdec.CheckpointError, match=message):
        drafts.Recurrent(LearnedWeights.of("recurrent", target, given, tensors))


def test_tensors_that_do_not_fit_are_named(target: specdec.Model) -> None:
    fields = {"d_embed": 5, "d_hidden": 9, "n_layers": 1}
    tensors = recurrent_tensors(N_VOCAB, N_VOCAB, (5, 9, 1))
    for changes, message in (
        ({"more": np.zeros(3)}, "tensor 'more' is not part of this draft"),
        ({"output.bias": np.full(N_VOCAB, np.inf)}, r"tensor output\.bias: element \[0\] is inf"),
        (
            {"cells.0.weight_hh": np.full((27, 9), np.nan)},
            r"tensor cells\.0\.weight_hh: element \[0, 0\] is nan",
        ),
    ):
        with pytest.raises(specdec.CheckpointError, match=f"the draft: {message}"):
            drafts.Recurrent(LearnedWeights.of("recurrent", target, fields, tensors | changes))
    with pytest.raises(specdec.CheckpointError, match='\'method\' is "some"; expected "recurrent"'):
        drafts.Recurrent(LearnedWeights.of("some", target, fields, tensors))


def test_other_tokens_are_refused(target: specdec.Model) -> None:
    embedded, _ = specdec.embedded_pair()
    draft = drafts.Recurrent(recurrent_weights(target, text(300)))
    with pytest.raises(specdec.InputError, match=f"n_vocab {embedded.config.n_vocab}; expected {N_VOCAB}"):
        specdec.generate(embedded, draft, [1, 2, 3])
    with pytest.raises(ValueError, match="the draft has 61 tokens and the target 4096"):
        Session(
            embedded.core, ("model", {"model": draft.core}), [[1]], gamma=1, max_new_tokens=1,
            sampling={"temperature": 0.0}, draft_sampling={"temperature": 0.0}, seeds=[(0, 0)], n_threads=1,
        )  # fmt: skip


def test_a_network_that_overflows_is_named(target: specdec.Model) -> None:
    tensors = recurrent_tensors(N_VOCAB, N_VOCAB, (5, 9, 1))
    fields = {"d_embed": 5, "d_hidden": 9, "n_layers": 1}
    for name in ("output.weight", "cells.0.weight_ih"):
        large = {name: np.full_like(tensors[name], 3e38), "embedding.weight": np.full((N_VOCAB, 5), 9.0)}
        draft = drafts.Recurrent(LearnedWeights.of("recurrent", target, fields, tensors | large))
        with pytest.raises(specdec.NotFiniteError, match="the draft: .* not finite"):
            specdec.generate(target, draft, [1, 2, 3])


class TestBadInput:
    def test_core(self) -> None:
        tensors = recurrent_tensors(N_VOCAB, N_VOCAB, SHAPE)
        with pytest.raises(ValueError, match=r"tokens\[2\] is 61, expected 0 to 60"):
            core_of(recurrent_tensors(N_VOCAB, 3, SHAPE), tokens=[0, 1, 61])
        with pytest.raises(ValueError, match="there are 2 tokens, expected n_draft_vocab, 3"):
            core_of(recurrent_tensors(N_VOCAB, 3, SHAPE), tokens=[0, 1])
        with pytest.raises(ValueError, match="there are no tokens, expected 3 of the target's 61"):
            core_of(recurrent_tensors(N_VOCAB, 3, SHAPE))
        with pytest.raises(ValueError, match="n_layers is 17, expected 1 to 16"):
            core_of(tensors, shape=(12, 37, 17))
        with pytest.raises(TypeError, match="Recurrent: n_vocab is missing"):
            _core.Recurrent({}, [])
        with pytest.raises(ValueError, match=r"ids\[1\] is 61, expected 0 to 60"):
            core_of(tensors).logits([1, 61])

    def test_python(self, target: specdec.Model) -> None:
        weights = recurrent_weights(target, text(300))
        draft = drafts.Recurrent(weights)
        with pytest.raises(specdec.InputError, match=r"ids\[0\] is -1; expected 0 to 60"):
            draft.probabilities([-1])
        assert reference.distribution(draft.core.logits([1])[0], 1.0).shape == (N_VOCAB,)
        with pytest.raises(specdec.InputError, match="weights is"):
            drafts.Recurrent(3)
        for options in ({"gamma": 0}, {"tree": 3}, {"dtype": "f64"}, {"n_threads": 0}):
            with pytest.raises(specdec.InputError, match=f"{next(iter(options))} is"):
                drafts.Recurrent(weights, **options)
