"""Trainings of drafts on the target's hidden states: heads, EAGLE, look-ahead embeddings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import specdec
from learnable_target import VOCABULARY, learnable_target, train
from refusals import refuses
from specdec.errors import InputError

pytestmark = pytest.mark.oracle  # torch

HEADS = {"n_heads": 2}
KINDS = {
    "medusa": ("heads", HEADS),
    "medusa-text": ("heads", HEADS | {"from_text": True}),
    "medusa-own-output": ("heads", HEADS | {"shared_output": False, "n_draft_vocab": 16}),
    "medusa-reduced": ("heads", HEADS | {"n_draft_vocab": 16}),
    "hydra": ("heads", HEADS | {"see_guesses": True, "n_draft_vocab": 20}),
    "medusa-2": ("heads", HEADS | {"joint": True}),
    "eagle-1": ("eagle", {"version": 1}),
    "eagle-3": ("eagle", {"d_head": 6, "d_ff": 40, "steps": 3}),
    "eagle-3-reduced": ("eagle", {"n_draft_vocab": 16, "steps": 2}),
    "pass": ("pass", {"n_tokens": 2, "n_points": 12}),
}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> specdec.Model:
    return learnable_target(tmp_path_factory.mktemp("target"))


def train_on(target: Any, out: Path, kind: str, shape: dict[str, Any], **options: Any) -> Any:
    return train(target, out, kind, shape=shape, **({"steps": 96, "learning_rate": 0.02} | options))


def trainer_of(target: specdec.Model, name: str, more: dict[str, Any], **settings: Any) -> Any:
    """The trainer of one of `KINDS`, outside of a training."""
    from specdec.training.settings import TrainingSettings
    from specdec.training.trainer import trainer_type

    kind, given = KINDS[name]
    shape = {key: str(value) for key, value in (given | more).items()}
    trainer = trainer_type(kind)(target, TrainingSettings(kind=kind, shape=shape, **settings))
    trainer.token_counts = lambda: np.arange(VOCABULARY)
    return trainer


@pytest.mark.parametrize("name", list(KINDS))
def test_a_training_raises_alpha_beyond_chance(name: str, target: specdec.Model, tmp_path: Path) -> None:
    """The interval of the gain is a 95 % one: a training that did nothing would pass once in forty."""
    trained = train_on(target, tmp_path, *KINDS[name])
    for temperature in (0.0, 1.0):
        assert trained.gains[temperature][1] > 0, str(trained)
        assert trained.after.tokens_per_call[temperature] > trained.before.tokens_per_call[temperature]


def probs_of_network(network: Any, kind: Any, text: list[int], n: int) -> np.ndarray:
    """What torch predicts after a text, whose last `n` tokens are draft tokens after a root."""
    import torch

    from specdec.drafts.learned.objective import scattered

    root = len(text) - n - 1
    states = kind.target.hidden_states(text[:root], kind.taps) if kind.taps else {}
    ids = torch.tensor(text)
    with torch.no_grad():
        if kind.name == "pass":
            guesses, _ = network(ids[None, :root], torch.tensor([root - 1]))
            logits = guesses[0, 0, n]
        elif kind.name == "heads":
            logits = network(torch.from_numpy(states[kind.taps[0]][-1]), ids[root:], n + 1)
        else:
            taps = torch.from_numpy(np.concatenate([states[tap] for tap in kind.taps], axis=-1))
            *_, hidden = network.steps(taps[None], ids[None, 1:], n + 1)
            logits = network.logits(hidden[0, -1])
        draft_ids = getattr(network, "draft_ids", None)
        return scattered(logits, draft_ids, VOCABULARY).double().softmax(-1).numpy()


def probs_of_target(target: specdec.Model, text: list[int]) -> np.ndarray:
    return specdec.distribution(target.logits(text)[-1], temperature=1.0)


@pytest.mark.parametrize("name", [name for name in KINDS if name not in ("medusa-text", "medusa-2")])
def test_a_folder_drafts_as_its_network_does(name: str, target: specdec.Model, tmp_path: Path) -> None:
    """By the betas of real runs, sums over both distributions at every judged position."""
    train_on(target, tmp_path, *KINDS[name], steps=24)
    kind = trainer_of(target, name, {}, begin=str(tmp_path))
    network = kind.network()
    draft, n_judged = specdec.drafts.load(tmp_path, target), 0
    for seed in range(4):
        result = specdec.generate(
            target, draft, [3, 21], max_new_tokens=30, gamma=3, temperature=1.0, seed=seed, n_threads=1,
            ignore_eos=True,
        )  # fmt: skip
        text = [3, 21]
        for each in result.trace.rounds:
            for i, beta in enumerate(each.betas):
                whole = [*text, *each.drafted[:i]]
                both = probs_of_target(target, whole), probs_of_network(network, kind, whole, i)
                assert abs(np.minimum(*both).sum() - beta) < 1e-4
                n_judged += 1
            text += each.tokens
    assert n_judged > 50


@pytest.mark.parametrize("name", ["medusa", "medusa-reduced", "hydra", "eagle-3-reduced", "pass"])
def test_a_loss_is_the_mean_over_the_tokens_that_are_drafted(name: str, target: specdec.Model) -> None:
    """Each against the target's distribution of the very token that it is for, one text at a time."""
    import torch

    from specdec.drafts.learned.objective import Objective
    from specdec.training.batch import TargetStates
    from specdec.training.training_texts import Texts

    kind = trainer_of(target, name, {"n_points": 99} if name == "pass" else {}, length=12)
    torch.manual_seed(3)
    network = kind.network()
    with torch.no_grad():
        for weight in network.parameters():
            weight.add_(torch.randn_like(weight) * 0.1)
    rng = np.random.default_rng(5)
    texts = Texts.of_lists([rng.integers(3, VOCABULARY, 12).tolist() for _ in range(2)], [4, 1], 12)
    batch = TargetStates(target, taps=kind.taps, n_threads=1).of(texts)
    with torch.no_grad():
        found = float(kind.loss(network, batch, Objective({"tvd": 1.0}), 0.5))
    sums, counts = np.zeros(2), np.zeros(2)
    for n in range(2):  # two heads, steps, embeddings
        for ids, begin in zip(texts.ids.tolist(), texts.begins, strict=True):
            for end in range(max(2 + n, int(begin)), 12):  # after so many tokens of the text
                if name == "pass" and end - n - 2 >= 10:
                    continue  # not all embeddings fit after the point
                probs = probs_of_network(network, kind, ids[:end], n)
                away = np.abs(probs_of_target(target, ids[:end]) - probs)
                sums[n] += away[probs > 0].sum() / 2.0
                counts[n] += 1.0
    means = sums / counts
    expected = sums.sum() / counts.sum() if name == "pass" else means[0] + 0.8 * means[1]
    assert found == pytest.approx(expected, rel=1e-4)


def test_medusa_2_writes_another_target(target: specdec.Model, tmp_path: Path) -> None:
    """The tuned target decodes by its heads; the original refuses nothing but is another model."""
    trained = train_on(target, tmp_path, *KINDS["medusa-2"], steps=24)
    assert any("another model" in line for line in trained.words) and "another model" in str(trained)
    tuned = specdec.load(tmp_path / "target")
    assert not np.array_equal(tuned.logits([3, 21, 5]), target.logits([3, 21, 5]))
    draft = specdec.drafts.load(tmp_path, tuned)
    options: dict[str, Any] = {"max_new_tokens": 24, "n_threads": 1}
    found = specdec.generate(tuned, draft, [3, 21], **options)
    assert found.tokens == specdec.generate(tuned, None, [3, 21], **options).tokens


def test_heads_of_another_target_do_not_begin_a_training(target: specdec.Model, tmp_path: Path) -> None:
    train_on(target, tmp_path / "heads", "heads", HEADS, steps=2)
    begun: dict[str, Any] = {"steps": 2, "begin": tmp_path / "heads"}
    with pytest.raises(InputError, match="was trained for the target '.*learnable'"):
        train_on(None, tmp_path / "more", "heads", HEADS, prompts=None, **begun)
    with refuses("n_blocks", 2):
        train_on(target, tmp_path / "on", "heads", HEADS | {"n_blocks": 2}, **begun)


def test_targets_that_torch_would_read_otherwise_are_refused_by_name(tmp_path: Path) -> None:
    """Look-ahead embeddings are learned by a mask, which knows no windows and distances."""
    from worlds.folders import llama_tensors, mistral_config, write_hf

    config = mistral_config(vocab_size=VOCABULARY, max_position_embeddings=64)
    windows = specdec.load(write_hf(tmp_path / "windows", config, llama_tensors(config, 1)))
    with refuses("length", 24):
        train_on(windows, tmp_path / "out", "pass", {})


def test_what_a_draft_never_drafts_is_no_part_of_its_loss() -> None:
    """Gradients are those of the whole distribution, kept whole or by its most probable tokens."""
    import torch

    from specdec.drafts.learned.objective import Objective, TargetDistribution, reachable, scattered

    torch.manual_seed(0)
    some, logits = torch.tensor([0, 2, 3, 7]), torch.randn(3, 4, requires_grad=True)
    for top in (None, 5):
        whole = TargetDistribution.of_logits(torch.randn(3, 9), top)
        for name in ("fkl", "tvd"):
            gradients = []
            for each in (whole, reachable(whole, some, 9)):
                loss = Objective({name: 1.0})(each, scattered(logits, some, 9)).sum()
                gradients.append(torch.autograd.grad(loss, logits)[0])
            assert torch.allclose(*gradients, atol=1e-6), (top, name)
            assert abs(float(loss.detach())) < 20.0
