"""Look-ahead embeddings: what rides on verification, and what is guessed from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import specdec
from specdec import _core, drafts, reference
from specdec.drafts.learned.folder import LearnedWeights
from toy_pair import load_pair
from worlds.canonical import GPT, SWITCHES, random_tensors
from worlds.encoder_decoders import model_of
from worlds.learned import look_ahead_weights, open_session

L = 3


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> specdec.Model:
    return load_pair(tmp_path_factory.mktemp("pair"))[0]


def text(n: int, n_vocab: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, n_vocab, n).tolist()


def said_after_embeddings(
    config: dict[str, Any], tensors: dict[str, Any], embeddings: Any, ids: list[int], source: Any = None
) -> np.ndarray:
    """The target's logits after each of the embeddings behind a text, by the reference.

    They are tokens more there, whose rows of the table become the embeddings when they are scaled.
    """
    n_vocab, n_tokens = config["n_vocab"], len(embeddings)
    scale = np.float32(config.get("embedding_scale", 1.0))
    more = dict(tensors) | {
        "token_embedding": np.concatenate([tensors["token_embedding"], embeddings / scale])
    }
    for name in ("head", "head_bias"):
        if name in tensors:
            rows = np.zeros((n_tokens, *tensors[name].shape[1:]), np.float32)
            more[name] = np.concatenate([tensors[name], rows])
    config = config | {"n_vocab": n_vocab + n_tokens}
    behind = [n_vocab + k for k in range(n_tokens)]
    return reference.logits(config, more, ids + behind, source=source)[-n_tokens:, :n_vocab]


CASES = [
    pytest.param(name, marks=() if i in (0, 2, 5) else pytest.mark.slow) for i, name in enumerate(SWITCHES)
]
SHAPES: dict[str, Any] = {
    "chain": None,
    "tree": drafts.StaticTree((2, 2)),
    "chains": drafts.ParallelChains(2),
}


@pytest.mark.parametrize("name", CASES)
def test_guesses_are_drawn_from_what_the_target_says_after_the_embeddings(name: str) -> None:
    """Of every guess of every round, behind accepted guesses or none, in chains and trees, in a batch.

    In windows, with learned positions, with scaled and normed embeddings, in mixtures.
    """
    config = SWITCHES[name]
    tensors = random_tensors(config)
    target = model_of(config, tensors)
    weights = look_ahead_weights(target, L)
    ((_, embeddings, _),) = weights.tensors({"embeddings": (L, config["d_model"])})
    n_guesses = n_accepted = 0
    for tree in SHAPES.values():
        draft = drafts.LookAheadEmbeddings(weights, tree=tree)
        texts = [text(1, config["n_vocab"]), text(11, config["n_vocab"], 1)]
        session = open_session(target, draft, texts, gamma=draft.gamma, max_new_tokens=8)
        while records := session.round():
            for record in records:
                known = texts[record["sequence"]]
                if record["drafted"]:
                    said = said_after_embeddings(config, tensors, embeddings, known[:-1])
                for node, parent in enumerate(record["parents"], 1):
                    depth = 0
                    while parent > 0:
                        depth, parent = depth + 1, record["parents"][parent - 1]
                    wanted = reference.distribution(said[depth].astype(np.float32), 1.0)
                    np.testing.assert_allclose(record["draft_probs"][node], wanted, atol=2e-4)
                    n_guesses += 1
                n_accepted += len(record["accepted"])
                texts[record["sequence"]] = known + record["tokens"]
        session.close()
    assert n_guesses > 20 and n_accepted > 0


def test_every_round_but_the_first_guesses(target: specdec.Model) -> None:
    """As far as the text has room; with fewer guesses in a row, fewer embeddings ride."""
    for gamma, longest in ((1, 1), (2, 2), (7, L)):
        draft = drafts.LookAheadEmbeddings(look_ahead_weights(target, L), gamma=gamma)
        session = open_session(target, draft, [text(4, 61)], gamma=gamma, max_new_tokens=12)
        left, n_drafted = 12, []
        while records := session.round():
            (record,) = records
            n_drafted.append(len(record["drafted"]))
            assert n_drafted[-1] == (min(longest, left - 1) if len(n_drafted) > 1 else 0)
            n_nodes = 1 + n_drafted[-1]
            assert record["n_rows"] == sum(
                1 + max(0, min(longest, left - 2 - depth)) for depth in range(n_nodes)
            )
            left -= len(record["tokens"])
        session.close()
        assert left == 0


def test_a_round_that_may_not_draft_carries_nothing(target: specdec.Model) -> None:
    """The next one, which may, has no guesses yet."""
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


def test_what_rides_is_told_from_what_is_decoded(target: specdec.Model) -> None:
    """Records have neither rows of it nor nodes, and the logits are those of plain decoding."""
    draft = drafts.LookAheadEmbeddings(look_ahead_weights(target, L), tree=drafts.StaticTree((3, 2)))
    prompts = [text(4, 61), text(20, 61, 1), text(1, 61, 2)]
    options: dict[str, Any] = {"max_new_tokens": 30, "ignore_eos": True, "logits": True}
    plain = specdec.generate(target, None, prompts, **options)
    for more in ({}, {"batch_size": 2}, {"node_budget": 15}, {"gamma": "auto"}):
        for got, wanted in zip(
            specdec.generate(target, draft, prompts, **options, **more), plain, strict=True
        ):
            assert got.tokens == wanted.tokens and np.array_equal(got.logits, wanted.logits), more


@pytest.mark.parametrize(
    "formats",
    [{"dtype": dtype, "cache_dtype": "bf16"} for dtype in ("bf16", "int8", "int4")] + [{"prefill": "blas"}],
    ids=["bf16", "int8", "int4", "blas"],
)
def test_targets_of_every_format(formats: Any) -> None:
    config = SWITCHES["heads-by-layer"]  # with windows
    target = model_of(config, random_tensors(config), **formats)
    draft = drafts.LookAheadEmbeddings(look_ahead_weights(target, L))
    prompt = text(70, config["n_vocab"])
    options: dict[str, Any] = {"max_new_tokens": 25, "ignore_eos": True, "logits": True}
    plain = specdec.generate(target, None, prompt, **options)
    got = specdec.generate(target, draft, prompt, **options)
    assert got.tokens == plain.tokens and np.array_equal(got.logits, plain.logits)
    assert got.trace.n_drafted > 20


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
    with pytest.raises(
        specdec.InputError, match="node_budget is 11, expected at least 12: a row and 3 look-ahead"
    ):
        open_session(target, draft, prompts, gamma=4, node_budget=11)


def test_beside_layers_of_the_target(target: specdec.Model) -> None:
    """An early exit begins rows of the tree in the target's cache; what rides is computed with the others."""
    mixed = drafts.Ensemble(
        drafts.LookAheadEmbeddings(look_ahead_weights(target, L)), drafts.EarlyExit(1), adaptive=False
    )
    prompt = text(5, 61)
    options: dict[str, Any] = {"max_new_tokens": 25, "ignore_eos": True, "logits": True}
    plain = specdec.generate(target, None, prompt, **options)
    got = specdec.generate(target, mixed, prompt, **options)
    assert got.tokens == plain.tokens and np.array_equal(got.logits, plain.logits)
    assert max(len(r.drafted) for r in got.trace.rounds) == L + 4


def test_nothing_rides_where_an_ensemble_leaves_it_out(target: specdec.Model) -> None:
    """Embeddings that guess nothing are tried, and then rest."""
    mixed = drafts.Ensemble(drafts.LookAheadEmbeddings(look_ahead_weights(target, 5)))
    session = open_session(target, mixed, [text(5, 61)], gamma=mixed.gamma, max_new_tokens=85)
    records = []
    while found := session.round():
        records += found
    session.close()
    n_rows = [record["n_rows"] for record in records]
    assert n_rows[0] == 6 and max(n_rows) == 36
    assert n_rows.count(1) > len(n_rows) / 2
    assert not any(record["drafted"] for record, n in zip(records, n_rows, strict=True) if n == 1)


def test_drafts_that_it_cannot_be_within_are_named(target: specdec.Model, tmp_path: Path) -> None:
    _, small = load_pair(tmp_path)
    draft = drafts.LookAheadEmbeddings(look_ahead_weights(target, L))
    with pytest.raises(specdec.InputError, match="does not work in its target's cache"):
        drafts.ModelDraft(target, draft=draft)
    nested = ("nested", {"model": small.core, "draft": ("model", {"model": draft.core}), "gamma": 2})
    with pytest.raises(specdec.InputError, match="the draft of a draft has look-ahead embeddings"):
        open_session(target, nested, [[1]])
    with pytest.raises(
        specdec.InputError, match="two drafts have look-ahead embeddings, expected one at most"
    ):
        specdec.generate(target, drafts.Ensemble(draft, draft), [1, 2])


def test_rows_that_overflow_are_named() -> None:
    target = model_of(GPT, random_tensors(GPT))
    large = np.full((1, target.config["d_model"]), 3e38, np.float32)
    weights = LearnedWeights.of("look_ahead_embeddings", target, {"n_tokens": 1}, {"embeddings": large})
    draft = drafts.LookAheadEmbeddings(weights)
    with pytest.raises(specdec.NotFiniteError, match="not finite"):
        specdec.generate(target, draft, [1, 2], max_new_tokens=8)
    with specdec.Engine(target, draft, n_threads=1) as engine:  # only the text that they are guesses for ends
        good = engine.submit([3, 4], max_new_tokens=8, speculative=specdec.Speculative(draft=False))
        bad = engine.submit([1, 2], max_new_tokens=8)
        with pytest.raises(specdec.NotFiniteError, match="not finite"):
            bad.result(60)
        plain = specdec.generate(target, None, [3, 4], max_new_tokens=8, n_threads=1)
        assert good.result(60).tokens == plain.tokens


# ------------------------------------------------------------------------------------------- folders


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_a_folder_is_loaded(target: specdec.Model, tmp_path: Path, dtype: str) -> None:
    weights = look_ahead_weights(target, L)
    loaded = drafts.load(weights.save(tmp_path, dtype), target)
    assert isinstance(loaded, drafts.LookAheadEmbeddings)
    assert (loaded.n_tokens, loaded.gamma, loaded.core.d_model) == (L, L, target.config["d_model"])
    tree = drafts.StaticTree((2, 1))
    assert drafts.load(tmp_path, target, tree=tree).gamma == 4
    assert drafts.load(tmp_path, target, gamma=1).gamma == 1
    assert "3 tokens" in repr(loaded)
    if dtype == "f32":
        options: dict[str, Any] = {"max_new_tokens": 9, "ignore_eos": True, "temperature": 1.0, "seed": 1}
        ours = specdec.generate(target, drafts.LookAheadEmbeddings(weights), [1, 2], **options)
        theirs = specdec.generate(target, loaded, [1, 2], **options)
        assert [r.drafted for r in ours.trace.rounds] == [r.drafted for r in theirs.trace.rounds]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"n_tokens": 0}, "'n_tokens' is 0; expected a whole number from 1 to 1024"),
        ({"n_tokens": 4}, r"tensor 'embeddings' has shape \[3, 32\]; expected it with shape \[4, 32\]"),
        ({}, "'n_tokens' is missing"),
    ],
)
def test_folders_that_do_not_fit_are_named(target: specdec.Model, fields: Any, message: str) -> None:
    tensors = {"embeddings": np.zeros((3, 32), np.float32)}
    with pytest.raises(specdec.CheckpointError, match=message):
        drafts.LookAheadEmbeddings(LearnedWeights.of("look_ahead_embeddings", target, fields, tensors))


def test_bad_input_is_named(target: specdec.Model) -> None:
    embedded, _ = specdec.embedded_pair()
    weights = look_ahead_weights(target, L)
    draft = drafts.LookAheadEmbeddings(weights)
    with pytest.raises(specdec.InputError, match="was trained for the target '.*target'; given is"):
        specdec.generate(embedded, draft, [1, 2])
    for tensors, tokens, message in (
        ({"embeddings": np.full((3, 32), np.nan)}, None, r"element \[0, 0\] is not finite, expected"),
        ({"embeddings": np.zeros((3, 32))}, [1, 2], "'n_draft_vocab' is 2; expected 61"),
        ({}, None, "tensor 'embeddings' is missing"),
    ):
        given = LearnedWeights.of("look_ahead_embeddings", target, {"n_tokens": 3}, tensors, tokens=tokens)
        with pytest.raises(specdec.CheckpointError, match=message):
            drafts.LookAheadEmbeddings(given)
    for options in ({"gamma": 0}, {"tree": 3}):
        with pytest.raises(specdec.InputError, match=f"{next(iter(options))} is"):
            drafts.LookAheadEmbeddings(weights, **options)
    with pytest.raises(specdec.InputError, match="weights is"):
        drafts.LookAheadEmbeddings(3)  # type: ignore[arg-type]
    wide = _core.LookAheadEmbeddings(np.zeros((2, 33), np.float32))
    with pytest.raises(ValueError, match="the draft's look-ahead embeddings have 33 numbers, expected 32"):
        open_session(target, ("model", {"model": wide}), [[1]])
    with pytest.raises(ValueError, match="expected 1 to 1024 rows"):
        _core.LookAheadEmbeddings(np.zeros((0, 33), np.float32))


def test_a_text_that_may_not_guess_has_no_riders_whatever_others_do(target: specdec.Model) -> None:
    """A gamma of 0 now and then, at other rounds for each text: a sample is that of the text alone."""
    draft = drafts.LookAheadEmbeddings(look_ahead_weights(target))

    def gamma(rounds: Any) -> int:
        return (2 * len(rounds) + (rounds[-1].n_accepted if rounds else 1)) % 3

    prompts = [text(n, 61, n) for n in (2, 5, 9, 13)]
    options: dict[str, Any] = {"temperature": 1.0, "gamma": gamma, "max_new_tokens": 30, "ignore_eos": True}
    together = specdec.generate(target, draft, prompts, seed=[*range(4)], **options)
    for seed, (prompt, found) in enumerate(zip(prompts, together, strict=True)):
        alone = specdec.generate(target, draft, prompt, seed=seed, **options)
        assert found.tokens == alone.tokens
