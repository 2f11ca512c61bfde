"""Look-ahead embeddings: extra query tokens in verification, and the tokens drafted from them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import specdec
from specdec import drafts, reference
from worlds.canonical import SWITCHES, random_tensors
from worlds.encoder_decoders import model_of
from worlds.learned import (
    all_records,
    check_distributions,
    look_ahead_weights,
    open_session,
    tensors_of,
)  # fmt: skip

L = 3


def text(n: int, n_vocab: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, n_vocab, n).tolist()


def logits_after(
    config: dict[str, Any], tensors: dict[str, Any], embeddings: Any, ids: list[int]
) -> np.ndarray:
    """The target's logits after each embedding that follows a text, as extra tokens of the reference."""
    n_vocab, n_tokens = config["n_vocab"], len(embeddings)
    scale = np.float32(config.get("embedding_scale", 1.0))
    more = dict(tensors) | {
        "token_embedding": np.concatenate([tensors["token_embedding"], embeddings / scale])
    }
    for name in ("head", "head_bias", "per_layer_embedding"):
        if name in tensors:
            rows = np.zeros((n_tokens, *tensors[name].shape[1:]), np.float32)
            more[name] = np.concatenate([tensors[name], rows])
    config = config | {"n_vocab": n_vocab + n_tokens}
    after = [n_vocab + k for k in range(n_tokens)]
    return reference.logits(config, more, ids + after)[-n_tokens:, :n_vocab]


CASES = [
    pytest.param(name, marks=() if i in (0, 2, 5) else pytest.mark.slow) for i, name in enumerate(SWITCHES)
]
TREES: list[Any] = [None, drafts.StaticTree((2, 2)), drafts.ParallelChains(2)]


@pytest.mark.parametrize("name", CASES)
def test_nodes_are_drawn_from_the_target_after_the_embeddings(name: str) -> None:
    """Of every round, after accepted draft tokens or none, in chains and trees, in a batch.

    In windows, with learned positions, with scaled and normed embeddings, in mixtures.
    """
    config, tensors = SWITCHES[name], random_tensors(SWITCHES[name])
    target, n_vocab = model_of(config, tensors), config["n_vocab"]
    weights = look_ahead_weights(target, L)

    def expected(known: list[int], path: list[int]) -> Any:
        logits = logits_after(config, tensors, tensors_of(weights)["embeddings"], known[:-1])
        return reference.distribution(logits[len(path)].astype(np.float32), 1.0)

    n_nodes = n_accepted = 0
    for tree in TREES:
        draft, prompts = (
            drafts.LookAheadEmbeddings(weights, tree=tree),
            [text(1, n_vocab), text(11, n_vocab, 1)],
        )
        found = check_distributions(target, draft, prompts, expected, atol=2e-4, max_new_tokens=8)
        n_nodes, n_accepted = n_nodes + found[0], n_accepted + found[1]
    assert n_nodes > 20 and n_accepted > 0


def test_every_round_but_the_first_drafts(target: specdec.Model) -> None:
    """As far as the text has capacity; with fewer draft tokens in a row, fewer embeddings are used."""
    for gamma, longest in ((1, 1), (2, 2), (7, L)):
        draft = drafts.LookAheadEmbeddings(look_ahead_weights(target, L), gamma=gamma)
        session = open_session(target, draft, [text(4, 61)], gamma=gamma, max_new_tokens=12)
        left, n_drafted = 12, []
        while records := session.round():
            (record,) = records
            n_drafted.append(len(record["drafted"]))
            assert n_drafted[-1] == (min(longest, left - 1) if len(n_drafted) > 1 else 0)
            used = [max(0, min(longest, left - 2 - depth)) for depth in range(1 + n_drafted[-1])]
            assert record["n_rows"] == sum(1 + n for n in used)
            left -= len(record["tokens"])
        session.close()
        assert left == 0


def test_a_round_that_may_not_draft_has_no_extra_rows(target: specdec.Model) -> None:
    """The next one, which may, has no draft tokens yet."""
    draft = drafts.LookAheadEmbeddings(look_ahead_weights(target, L))
    session = open_session(target, draft, [text(4, 61)], gamma=4, max_new_tokens=40)
    drafted, rows = [], []
    for gamma in (4, 4, 0, 4, 4, 0, 0, 4):
        (record,) = session.round(gammas=[gamma])
        drafted.append(len(record["drafted"]))
        rows.append(record["n_rows"])
    session.close()
    assert drafted == [0, 3, 0, 0, 3, 0, 0, 0]
    assert rows == [4, 16, 1, 4, 16, 1, 1, 4]


def check_plain(target: specdec.Model, draft: Any, prompts: Any, **options: Any) -> Any:
    """Check that greedy output and logits equal those of plain decoding; returns the result."""
    how: dict[str, Any] = {"max_new_tokens": 25, "ignore_eos": True, "logits": True}
    plain = specdec.generate(target, None, prompts, **how)
    found = specdec.generate(target, draft, prompts, **how, **options)
    for one, wanted in zip(*((x if isinstance(x, list) else [x]) for x in (found, plain)), strict=True):
        assert one.tokens == wanted.tokens and np.array_equal(one.logits, wanted.logits), options
    return found


@pytest.mark.parametrize("options", [{}, {"batch_size": 2}, {"node_budget": 15}, {"gamma": "auto"}])
def test_extra_rows_are_no_part_of_the_output(target: specdec.Model, options: dict[str, Any]) -> None:
    draft = drafts.LookAheadEmbeddings(look_ahead_weights(target, L), tree=drafts.StaticTree((3, 2)))
    check_plain(target, draft, [text(4, 61), text(20, 61, 1), text(1, 61, 2)], **options)


@pytest.mark.parametrize(
    "formats",
    [{"dtype": dtype, "cache_dtype": "bf16"} for dtype in ("bf16", "int8", "int4")] + [{"prefill": "blas"}],
    ids=["bf16", "int8", "int4", "blas"],
)
def test_targets_of_every_format(formats: Any) -> None:
    config = SWITCHES["heads-by-layer"]  # with windows
    target = model_of(config, random_tensors(config), **formats)
    draft = drafts.LookAheadEmbeddings(look_ahead_weights(target, L))
    assert check_plain(target, draft, text(70, config["n_vocab"])).trace.n_drafted > 20


def test_a_node_budget_bounds_all_rows(target: specdec.Model) -> None:
    draft = drafts.LookAheadEmbeddings(look_ahead_weights(target, L))
    prompts = [text(4, 61), text(20, 61, 1), text(1, 61, 2)]
    most = 0
    for budget in (12, 13, 25, 31):
        session = open_session(target, draft, prompts, gamma=4, node_budget=budget)
        while records := session.round():
            assert sum(record["n_rows"] for record in records) <= budget
            most = max(most, sum(len(record["drafted"]) for record in records))
        session.close()
    assert most > 3
    with pytest.raises(specdec.InputError, match="node_budget is 11, expected at least 12"):
        open_session(target, draft, prompts, gamma=4, node_budget=11)


def test_an_ensemble_leaves_out_what_drafts_nothing(target: specdec.Model) -> None:
    """The embeddings are tried, and then paused."""
    mixed = drafts.Ensemble(drafts.LookAheadEmbeddings(look_ahead_weights(target, 5)))
    records = all_records(open_session(target, mixed, [text(5, 61)], max_new_tokens=85))
    n_rows = [record["n_rows"] for record in records]
    assert n_rows[0] == 6 and max(n_rows) == 36
    assert n_rows.count(1) > len(n_rows) / 2
    assert not any(record["drafted"] for record, n in zip(records, n_rows, strict=True) if n == 1)
    with pytest.raises(specdec.InputError, match="two drafts have look-ahead embeddings"):
        specdec.generate(target, drafts.Ensemble(*mixed.drafts, mixed.drafts[0]), [1, 2])


def test_a_text_that_may_not_draft_has_no_extra_rows_whatever_others_do(target: specdec.Model) -> None:
    """A gamma of 0 at times, in different rounds of each text: samples equal those of the text alone."""
    draft = drafts.LookAheadEmbeddings(look_ahead_weights(target))

    def gamma(rounds: Any) -> int:
        return (2 * len(rounds) + (rounds[-1].n_accepted if rounds else 1)) % 3

    prompts = [text(n, 61, n) for n in (2, 5, 9, 13)]
    options: dict[str, Any] = {"temperature": 1.0, "gamma": gamma, "max_new_tokens": 30, "ignore_eos": True}
    together = specdec.generate(target, draft, prompts, seed=[*range(4)], **options)
    for seed, (prompt, found) in enumerate(zip(prompts, together, strict=True)):
        alone = specdec.generate(target, draft, prompt, seed=seed, **options)
        assert found.tokens == alone.tokens
