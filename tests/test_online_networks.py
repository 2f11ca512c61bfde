"""Networks that learn while they serve: alpha rises, what is packed is what was learned, and it goes on."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy

import specdec
from processes import wait_for
from refusals import refuses, refuses_field
from specdec import drafts
from specdec.drafts.learned.online.corrections import Corrections, passages
from specdec.errors import CheckpointError, LearningError
from toy_pair import blurred
from worlds.folders import llama_config, tensors_for, write_hf
from worlds.learned import random_heads, recurrent_weights

pytestmark = pytest.mark.oracle

N_VOCAB = 61
PROMPTS = [[3, 5, 8], [9, 2] * 5, list(range(20, 40)), [7], [1, 4, 4, 6]]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A target whose next token hangs on the last ones, and a draft that differs from it much."""
    folder = tmp_path_factory.mktemp("models")
    config = llama_config(vocab_size=N_VOCAB, max_position_embeddings=200)
    tensors = {name: 2.0 * array for name, array in tensors_for(config, seed=3).items()}
    return write_hf(folder / "target", config, tensors), write_hf(
        folder / "draft", config, blurred(tensors, 0.6)
    )


@pytest.fixture(scope="module")
def target(folders: tuple[Path, Path]) -> specdec.Model:
    return specdec.load(folders[0], tokenizer=False)


KINDS = ("model", "recurrent", "reduced", "heads")


def learning(kind: str, folders: tuple[Path, Path], target: specdec.Model, **options: Any) -> drafts.Online:
    """One of `KINDS`; "reduced": a recurrent network of two thirds of the tokens, in an order of its own."""
    ids, learner = list(range(N_VOCAB)), drafts.NetworkLearner
    draft: Any
    if kind == "model":
        draft = drafts.ModelDraft(specdec.load(folders[1], tokenizer=False))
    elif kind == "heads":
        draft = drafts.Heads(random_heads(target, see_guesses=True, tokens=ids[1:]))
        learner = partial(drafts.HeadsLearner, target=target)  # type: ignore[assignment]
    else:
        tokens = [*range(60, 30, -1), *range(10)] if kind == "reduced" else None
        draft = drafts.Recurrent(recurrent_weights(target, ids, (16, 32, 1), tokens=tokens))
    return drafts.Online(draft, learner=learner(draft, **options), interval=None)


def serve(target: specdec.Model, draft: Any, seed: int) -> tuple[int, int]:
    """(accepted draft tokens, those that were judged) of some texts."""
    runs = specdec.generate(
        target, draft, PROMPTS * 4, temperature=1.0, seed=seed, max_new_tokens=60, gamma=3, ignore_eos=True
    )
    return (
        sum(run.trace.n_accepted for run in runs),
        sum(len(round_.betas) for run in runs for round_ in run.trace.rounds),
    )


@pytest.mark.parametrize("kind", KINDS)
def test_alpha_rises_beyond_chance(folders: tuple[Path, Path], target: specdec.Model, kind: str) -> None:
    """Against the draft that it began with, on texts that neither has seen; greedy output stays."""
    online = learning(kind, folders, target, loss="fkl", learning_rate=5e-3)
    first = online.draft
    for seed in range(6):
        serve(target, online, seed)
        assert online.learn()
    (a, n), (b, m) = serve(target, first, 100), serve(target, online.draft, 100)
    test = scipy.stats.fisher_exact([[a, n - a], [b, m - b]], alternative="less")
    assert test.pvalue < 1e-4, f"accepted {a} of {n} before, {b} of {m} after"
    greedy = [
        specdec.generate(target, draft, PROMPTS[0], max_new_tokens=30, ignore_eos=True).tokens
        for draft in (online, None)
    ]
    assert greedy[0] == greedy[1]


def rounds_of(target: specdec.Model, drafting: list[Any]) -> list[Any]:
    """What each of some drafts proposes for the same prompts and seed, and how likely it was."""
    options: dict[str, Any] = {"temperature": 1.0, "seed": 5, "max_new_tokens": 30}
    runs = [specdec.generate(target, draft, PROMPTS, **options) for draft in drafting]
    return [[(r.drafted, r.betas) for run in each for r in run.trace.rounds] for each in runs]


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_saved_goes_on_to_the_bit(
    folders: tuple[Path, Path], target: specdec.Model, kind: str, tmp_path: Path
) -> None:
    """Weights, moments, corrections and counts: both objects draft alike after the next step."""
    online = learning(kind, folders, target)
    serve(target, online, 0)
    online.learn()
    online.save(tmp_path / "learned")
    made = learning(kind, folders, target)
    loaded = drafts.Online.load(tmp_path / "learned", made.draft, learner=made.learner, interval=None)
    # Which corrections a step takes is drawn; the file has no generator.
    loaded.learner._rng, online.learner._rng = (np.random.default_rng(4) for _ in range(2))  # type: ignore[attr-defined]
    for one in (online, loaded):
        serve(target, one, 1)
        one.learn()
    ours, theirs = online.learner.state(), loaded.learner.state()
    assert ours.keys() == theirs.keys() and len(ours) > 4
    assert all(np.array_equal(ours[name], theirs[name]) for name in ours)
    first, second = rounds_of(target, [online.draft, loaded.draft])
    assert first == second


@pytest.mark.parametrize("kind", KINDS)
def test_weights_that_have_learned_nothing_are_what_they_were(
    folders: tuple[Path, Path], target: specdec.Model, kind: str
) -> None:
    """Through torch, a file or memory, and packing, to the bit."""
    online = learning(kind, folders, target)
    learned = online.learner._exported()  # type: ignore[attr-defined]
    first, second = rounds_of(target, [online.draft, learned])
    assert first == second and type(learned) is type(online.draft)


def test_what_is_never_drafted_is_not_learned(folders: tuple[Path, Path], target: specdec.Model) -> None:
    import torch

    online = learning("reduced", folders, target, loss="fkl")
    first = online.draft
    assert isinstance(first, drafts.Recurrent) and first.weights.tokens is not None
    network = online.learner._network  # type: ignore[attr-defined]
    ids = [3, 9, 27, 20, 60]
    logits = network(torch.tensor([ids]))[0].detach().numpy()
    np.testing.assert_allclose(logits, first.core.logits(ids), atol=1e-5)  # -inf where nothing is drafted
    serve(target, online, 0)
    assert online.learn()
    learned = online.draft
    assert isinstance(learned, drafts.Recurrent)
    assert np.array_equal(learned.weights.tokens, first.weights.tokens)  # type: ignore[arg-type]
    after = learned.core.logits(ids)
    assert np.array_equal(np.isinf(after), np.isinf(logits)) and not np.array_equal(after, logits)


def test_the_loss_is_that_of_the_distributions(folders: tuple[Path, Path], target: specdec.Model) -> None:
    """Of the most probable tokens and the rest, against NumPy on the target's and draft's logits."""
    import torch

    from specdec.drafts.learned.objective import Objective
    from specdec.drafts.learned.online.learner import target_of

    online = learning("model", folders, target)
    model = online.draft.model  # type: ignore[attr-defined]
    text = [3, 9, 27, 20, 60]
    probs = [specdec.distribution(each.logits(text)[-1], temperature=1.0) for each in (target, model)]
    top = np.argsort(-probs[0])[:32]
    ints = (np.array(x, np.int32) for x in ([[-1] * 59 + text], [0], [0], [5], [top]))
    floats = (np.array(x, np.float32) for x in ([np.log(probs[0][top])], [1 - probs[0][top].sum()], [[]]))
    one = Corrections(*ints, *floats)
    got = online.learner._logits(passages(one, 128))  # type: ignore[attr-defined]
    np.testing.assert_allclose(got.detach().numpy()[0], model.logits(text)[-1], atol=2e-4)
    padded = torch.nn.functional.pad(got, (0, 1), value=float("-inf"))
    loss = Objective({"fkl": 1.0})(target_of(one, np.array([0]), N_VOCAB), padded).item()
    p, q = (np.append(each[top], 1 - each[top].sum()) for each in probs)
    np.testing.assert_allclose(loss, (p * np.log(p / q)).sum(), rtol=1e-4)
    fewer = target_of(one, np.array([0]), 40)  # a draft of 40 tokens
    assert fewer.tokens is not None and (fewer.tokens[0].numpy() == np.where(top < 40, top, 40)).all()


def test_damaged_states_are_refused_by_name(
    folders: tuple[Path, Path], target: specdec.Model, tmp_path: Path
) -> None:
    online = learning("recurrent", folders, target)
    serve(target, online, 0)
    online.learn()
    state, name = dict(online.learner.state()), "output.bias"
    for part, array, message in (
        ("parameter", None, "is missing"),
        ("first", np.zeros(3, np.float32), "is of float32, .3.; expected float32, .61."),
        ("steps", np.zeros(1, np.int32), "is .*; expected one number above 0"),
        ("parameter", np.full(61, np.nan, np.float32), "has a number that is not finite"),
        ("first", np.full(61, np.inf, np.float32), "has a number that is not finite"),
        ("second", np.full(61, -1.0, np.float32), "has a number below 0"),
        ("other", np.zeros(1, np.float32), "is none of this"),
    ):
        changed: dict[str, Any] = state | {f"{part}.{name}": array}
        bad = {key: held for key, held in changed.items() if held is not None}
        with pytest.raises(ValueError, match=f"'{part}.{name}' {message}"):
            online.learner.restore(bad, online._corrections)
    online.save(tmp_path / "learned")
    with refuses_field(tmp_path / "learned", "learner"):
        drafts.Online.load(tmp_path / "learned", drafts.Ngram([1], N_VOCAB, 2), interval=None)


def test_a_model_learns_in_the_background(folders: tuple[Path, Path], target: specdec.Model) -> None:
    draft = drafts.ModelDraft(specdec.load(folders[1], tokenizer=False))
    with drafts.Online(draft, interval=0.01) as online:
        plain = specdec.generate(target, None, PROMPTS, max_new_tokens=60)

        def serve() -> None:
            got = specdec.generate(target, online, PROMPTS, max_new_tokens=60)
            assert [one.tokens for one in got] == [one.tokens for one in plain]

        for _ in range(2):
            n_before = online.n_updates
            serve()
            wait_for(lambda n=n_before: online.n_updates > n)
        serve()


def test_what_was_learned_is_named_after_what_it_was(
    folders: tuple[Path, Path], target: specdec.Model
) -> None:
    online = learning("model", folders, target)
    for _ in range(2):
        serve(target, online, 0)
        assert online.learn()
    assert f"{folders[1]} (learned online)" in repr(online.draft) and repr(online.draft) in repr(online)
    assert tempfile.gettempdir() not in repr(online).replace(str(folders[1]), "")


def test_a_loss_that_is_no_number_reaches_the_caller(
    folders: tuple[Path, Path], target: specdec.Model
) -> None:
    online = learning("model", folders, target, learning_rate=1e30)
    with pytest.raises((FloatingPointError, CheckpointError)) as raised:
        for seed in range(5):
            serve(target, online, seed)
            online._step()
            if online._error is not None:
                raise online._error
    with pytest.raises(LearningError) as told:
        specdec.generate(target, online, PROMPTS[0])
    assert told.value.__cause__ is raised.value


def test_arguments_are_refused_by_name(folders: tuple[Path, Path], target: specdec.Model) -> None:
    model = drafts.ModelDraft(specdec.load(folders[1], tokenizer=False))
    for name, value in (
        ("loss", "kl"), ("learning_rate", 0), ("passes", -1), ("batch", 0), ("n_before", 1), ("n_top", 0),
        ("seed", -1),
    ):  # fmt: skip
        with refuses(name, value):
            drafts.NetworkLearner(model, **{name: value})  # type: ignore[arg-type]
    nested = drafts.ModelDraft(model.model, draft=drafts.Random())
    for make in (
        lambda: drafts.NetworkLearner(drafts.Random()),  # type: ignore[arg-type]
        lambda: drafts.NetworkLearner(nested),
        lambda: drafts.HeadsLearner(model, target),  # type: ignore[arg-type]
        lambda: drafts.Online(drafts.Heads(random_heads(target))),
    ):
        with refuses("draft"):
            make()
