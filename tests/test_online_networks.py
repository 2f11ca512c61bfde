"""Networks that learn while they serve: alpha rises, what is packed is what was learnt, and it goes on."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy

import specdec
from processes import wait_for
from specdec import drafts
from specdec.drafts.learned.online.corrections import Corrections
from specdec.errors import CheckpointError, InputError, LearningError
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


def a_model(folders: tuple[Path, Path], target: specdec.Model, **options: Any) -> drafts.Online:
    draft = drafts.ModelDraft(specdec.load(folders[1], tokenizer=False))
    return drafts.Online(draft, learner=drafts.NetworkLearner(draft, **options), interval=None)


def a_recurrent(folders: tuple[Path, Path], target: specdec.Model, **options: Any) -> drafts.Online:
    draft = drafts.Recurrent(recurrent_weights(target, list(range(N_VOCAB)), (16, 32, 1)))
    return drafts.Online(draft, learner=drafts.NetworkLearner(draft, **options), interval=None)


def a_reduced_one(folders: tuple[Path, Path], target: specdec.Model, **options: Any) -> drafts.Online:
    """A recurrent network that guesses two thirds of the tokens, in an order of its own."""
    tokens = [*range(60, 30, -1), *range(10)]
    draft = drafts.Recurrent(recurrent_weights(target, list(range(N_VOCAB)), (16, 32, 1), tokens=tokens))
    return drafts.Online(draft, learner=drafts.NetworkLearner(draft, **options), interval=None)


def some_heads(folders: tuple[Path, Path], target: specdec.Model, **options: Any) -> drafts.Online:
    draft = drafts.Heads(random_heads(target, see_guesses=True, tokens=list(range(1, N_VOCAB))))
    return drafts.Online(draft, learner=drafts.HeadsLearner(draft, target, **options), interval=None)


KINDS: dict[str, Callable[..., drafts.Online]] = {
    "model": a_model, "recurrent": a_recurrent, "reduced": a_reduced_one, "heads": some_heads,
}  # fmt: skip


def serve(target: specdec.Model, draft: Any, seed: int) -> tuple[int, int]:
    """(accepted guesses, guesses that were judged) of some texts."""
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
    online = KINDS[kind](folders, target, loss="fkl", learning_rate=5e-3)
    first = online.draft
    for seed in range(6):
        serve(target, online, seed)
        assert online.learn()
    (a, n), (b, m) = serve(target, first, 100), serve(target, online.draft, 100)
    test = scipy.stats.fisher_exact([[a, n - a], [b, m - b]], alternative="less")
    assert test.pvalue < 1e-4, f"accepted {a} of {n} before, {b} of {m} after"
    greedy = specdec.generate(target, online, PROMPTS[0], max_new_tokens=30, ignore_eos=True)
    assert (
        greedy.tokens == specdec.generate(target, None, PROMPTS[0], max_new_tokens=30, ignore_eos=True).tokens
    )


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_saved_goes_on_to_the_bit(
    folders: tuple[Path, Path], target: specdec.Model, kind: str, tmp_path: Path
) -> None:
    """Weights, moments, corrections and counts: both objects guess alike after the next step."""
    online = KINDS[kind](folders, target)
    serve(target, online, 0)
    online.learn()
    online.save(tmp_path / "learnt")
    made = KINDS[kind](folders, target)
    loaded = drafts.Online.load(tmp_path / "learnt", made.draft, learner=made.learner, interval=None)
    # Which corrections a step takes is drawn; the file has no generator.
    loaded.learner._rng, online.learner._rng = (np.random.default_rng(4) for _ in range(2))  # type: ignore[attr-defined]
    for one in (online, loaded):
        serve(target, one, 1)
        one.learn()
    ours, theirs = online.learner.state(), loaded.learner.state()
    assert ours.keys() == theirs.keys() and len(ours) > 4
    assert all(np.array_equal(ours[name], theirs[name]) for name in ours)
    runs = [
        specdec.generate(target, one.draft, PROMPTS, temperature=1.0, seed=5, max_new_tokens=20)
        for one in (online, loaded)
    ]
    drafted = [[round_.drafted for run in each for round_ in run.trace.rounds] for each in runs]
    assert drafted[0] == drafted[1]


@pytest.mark.parametrize("kind", KINDS)
def test_weights_that_have_learnt_nothing_are_those_that_there_were(
    folders: tuple[Path, Path], target: specdec.Model, kind: str
) -> None:
    """Through torch, a file or memory, and packing, to the bit."""
    online = KINDS[kind](folders, target)
    learnt = online.learner._exported()  # type: ignore[attr-defined]
    runs = [
        specdec.generate(target, one, PROMPTS, temperature=1.0, seed=5, max_new_tokens=30)
        for one in (online.draft, learnt)
    ]
    drafted = [[(r.drafted, r.betas) for run in each for r in run.trace.rounds] for each in runs]
    assert drafted[0] == drafted[1] and type(learnt) is type(online.draft)


def test_what_is_never_guessed_is_not_learnt(folders: tuple[Path, Path], target: specdec.Model) -> None:
    import torch

    online = a_reduced_one(folders, target, loss="fkl")
    first = online.draft
    assert isinstance(first, drafts.Recurrent) and first.weights.tokens is not None
    network = online.learner._network  # type: ignore[attr-defined]
    ids = [3, 9, 27, 20, 60]
    logits = network(torch.tensor([ids]))[0].detach().numpy()
    np.testing.assert_allclose(logits, first.core.logits(ids), atol=1e-5)  # -inf where nothing is guessed
    serve(target, online, 0)
    assert online.learn()
    learnt = online.draft
    assert isinstance(learnt, drafts.Recurrent)
    assert np.array_equal(learnt.weights.tokens, first.weights.tokens)  # type: ignore[arg-type]
    after = learnt.core.logits(ids)
    assert np.array_equal(np.isinf(after), np.isinf(logits)) and not np.array_equal(after, logits)


def test_the_loss_is_that_of_the_laws(folders: tuple[Path, Path], target: specdec.Model) -> None:
    """The law of the most probable tokens and the rest, against NumPy on the target's and draft's logits."""
    import torch

    from specdec.drafts.learned.objective import Objective

    online = a_model(folders, target)
    learner = online.learner
    model = online.draft.model  # type: ignore[attr-defined]
    text = [3, 9, 27, 20, 60]
    logits = target.logits(text)[-1].astype(np.float64)
    law = np.exp(logits - np.logaddexp.reduce(logits))
    top = np.argsort(-law)[:32]
    none = Corrections.none(64, 32, 0)
    one = replace(
        none,
        before=np.array([[-1] * 59 + text], np.int32),
        depth=np.zeros(1, np.int32),
        text=np.zeros(1, np.int32),
        position=np.array([5], np.int32),
        top=top[None].astype(np.int32),
        log_probs=np.log(law[top])[None].astype(np.float32),
        rest=np.array([1 - law[top].sum()], np.float32),
        hidden=np.zeros((1, 0), np.float32),
    )
    from specdec.drafts.learned.online.corrections import passages
    from specdec.drafts.learned.online.learner import target_of

    got = learner._logits(passages(one, 128))  # type: ignore[attr-defined]
    np.testing.assert_allclose(got.detach().numpy()[0], model.logits(text)[-1], atol=2e-4)
    padded = torch.nn.functional.pad(got, (0, 1), value=float("-inf"))
    loss = Objective({"fkl": 1.0})(target_of(one, np.array([0]), N_VOCAB), padded).item()
    ours = model.logits(text)[-1].astype(np.float64)
    draft = np.exp(ours - np.logaddexp.reduce(ours))
    p, q = (np.append(each[top], 1 - each[top].sum()) for each in (law, draft))
    np.testing.assert_allclose(loss, (p * np.log(p / q)).sum(), rtol=1e-4)
    fewer = target_of(one, np.array([0]), 40)  # a draft of 40 tokens
    assert fewer.tokens is not None and (fewer.tokens[0].numpy() == np.where(top < 40, top, 40)).all()


def test_damaged_states_are_refused_by_name(
    folders: tuple[Path, Path], target: specdec.Model, tmp_path: Path
) -> None:
    online = a_recurrent(folders, target)
    serve(target, online, 0)
    online.learn()
    state = dict(online.learner.state())
    name = "output.bias"
    cases: dict[str, dict[str, Any]] = {
        f"'parameter.{name}' is missing": {f"parameter.{name}": None},
        f"'first.{name}' is of float32, .3.; expected float32, .61.": {
            f"first.{name}": np.zeros(3, np.float32)
        },
        f"'steps.{name}' is": {f"steps.{name}": np.zeros(1, np.int32)},
        f"'parameter.{name}' has a number that is not finite": {
            f"parameter.{name}": np.full(61, np.nan, np.float32)
        },
        f"'first.{name}' has a number that is not finite": {f"first.{name}": np.full(61, np.inf, np.float32)},
        f"'second.{name}' has a number below 0": {f"second.{name}": np.full(61, -1.0, np.float32)},
        "'parameter.other' is none of this": {"parameter.other": np.zeros(1, np.float32)},
    }
    for message, changes in cases.items():
        bad = {key: array for key, array in (state | changes).items() if array is not None}
        with pytest.raises(ValueError, match=message):
            online.learner.restore(bad, online._corrections)
    online.save(tmp_path / "learnt")
    with pytest.raises(CheckpointError, match=r"metadata field 'learner' is 'network'"):
        drafts.Online.load(tmp_path / "learnt", drafts.Ngram([1], N_VOCAB, 2), interval=None)


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


def test_what_was_learnt_is_named_after_what_it_was(
    folders: tuple[Path, Path], target: specdec.Model
) -> None:
    online = a_model(folders, target)
    for _ in range(2):
        serve(target, online, 0)
        assert online.learn()
    assert f"{folders[1]} (learned online)" in repr(online.draft) and repr(online.draft) in repr(online)
    assert tempfile.gettempdir() not in repr(online).replace(str(folders[1]), "")


def test_a_loss_that_is_no_number_reaches_the_caller(
    folders: tuple[Path, Path], target: specdec.Model
) -> None:
    online = a_model(folders, target, learning_rate=1e30)
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
        with pytest.raises(InputError, match=name):
            drafts.NetworkLearner(model, **{name: value})  # type: ignore[arg-type]
    for draft in (drafts.Random(), drafts.ModelDraft(model.model, draft=drafts.Random())):
        with pytest.raises(
            InputError, match="expected a ModelDraft without a draft of its own, or a Recurrent"
        ):
            drafts.NetworkLearner(draft)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"expected a specdec\.drafts\.Heads"):
        drafts.HeadsLearner(model, target)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="learner=HeadsLearner"):
        drafts.Online(drafts.Heads(random_heads(target)))
