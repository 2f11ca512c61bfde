"""Trainings of drafts that live on the target: heads, EAGLE, look-ahead embeddings."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import specdec
from learnable_target import PROMPTS, VOCABULARY, learnable_target
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


def train(target: Any, out: Path, kind: str, shape: dict[str, Any], **options: Any) -> Any:
    from specdec.training import TrainingOptions, train_draft

    given: dict[str, Any] = {
        "prompts": PROMPTS, "steps": 96, "length": 24, "batch": 4, "passes": 3, "weights": "f32",
        "threads": 1, "shape": shape, "learning_rate": 0.02,
    }  # fmt: skip
    given |= options
    own = {name: given.pop(name) for name in ("prompts", "dtype", "say", "progress") if name in given}
    return train_draft(target, kind, out, TrainingOptions(**given), **own)


@pytest.mark.parametrize("name", list(KINDS))
def test_a_training_raises_alpha_beyond_chance(name: str, target: specdec.Model, tmp_path: Path) -> None:
    """The interval of the gain is a 95 % one: a training that did nothing would pass once in forty."""
    trained = train(target, tmp_path, *KINDS[name])
    for temperature in (0.0, 1.0):
        assert trained.gains[temperature][1] > 0, str(trained)
        assert trained.after.tokens_per_call[temperature] > trained.before.tokens_per_call[temperature]


def law_of_network(network: Any, kind: Any, text: list[int], n: int) -> np.ndarray:
    """What torch says of the token behind a text, whose last `n` tokens are guesses behind a root."""
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


@pytest.mark.parametrize(
    "name",
    [
        "medusa",
        "medusa-own-output",
        "medusa-reduced",
        "hydra",
        "eagle-1",
        "eagle-3",
        "eagle-3-reduced",
        "pass",
    ],
)
def test_a_folder_guesses_as_its_network_does(name: str, target: specdec.Model, tmp_path: Path) -> None:
    """By the betas of real runs, sums over the draft's law and the target's at every judged position."""
    from specdec.training.settings import TrainingSettings
    from specdec.training.trainer import trainer_type

    train(target, tmp_path, *KINDS[name], steps=24)
    shape = {key: str(value) for key, value in KINDS[name][1].items()}
    settings = TrainingSettings(kind=KINDS[name][0], begin=str(tmp_path), shape=shape)
    kind = trainer_type(settings.kind)(target, settings)
    network = kind.network()
    draft, n_judged = specdec.drafts.load(tmp_path, target), 0
    for seed in range(4):
        result = specdec.generate(
            target, draft, [3, 21], max_new_tokens=30, gamma=2, temperature=1.0, seed=seed, n_threads=1,
            ignore_eos=True,
        )  # fmt: skip
        text = [3, 21]
        for each in result.trace.rounds:
            for i, beta in enumerate(each.betas):
                whole = [*text, *each.drafted[:i]]
                law = target.logits(whole)[-1].astype(np.float64)
                law = np.exp(law - law.max()) / np.exp(law - law.max()).sum()
                assert abs(np.minimum(law, law_of_network(network, kind, whole, i)).sum() - beta) < 1e-4
                n_judged += 1
            text += each.tokens
    assert n_judged > 50


@pytest.mark.parametrize("name", ["medusa", "medusa-reduced", "hydra", "eagle-3-reduced", "pass"])
def test_a_loss_is_the_mean_over_the_tokens_that_are_guessed(name: str, target: specdec.Model) -> None:
    """Each guess against the target's law of the very token that it is a guess of, one text at a time."""
    import torch

    from specdec.drafts.learned.objective import Objective
    from specdec.training.batch import TargetStates
    from specdec.training.settings import TrainingSettings
    from specdec.training.trainer import trainer_type
    from specdec.training.training_texts import Texts

    given = KINDS[name][1] | ({"n_points": 99} if name == "pass" else {})
    shape = {key: str(value) for key, value in given.items()}
    kind = trainer_type(KINDS[name][0])(target, TrainingSettings(kind=KINDS[name][0], length=12, shape=shape))
    kind.token_counts = lambda: np.arange(VOCABULARY)
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
            for end in range(max(2 + n, int(begin)), 12):  # behind so many tokens of the text
                if name == "pass" and end - n - 2 >= 10:
                    continue  # not all embeddings fit behind the point
                law = target.logits(ids[:end])[-1].astype(np.float64)
                law = np.exp(law - law.max()) / np.exp(law - law.max()).sum()
                guess = law_of_network(network, kind, ids[:end], n)
                sums[n] += np.abs(law - guess)[guess > 0].sum() / 2.0
                counts[n] += 1.0
    means = sums / counts
    expected = sums.sum() / counts.sum() if name == "pass" else means[0] + 0.8 * means[1]
    assert found == pytest.approx(expected, rel=1e-4)


def test_medusa_2_writes_another_target(target: specdec.Model, tmp_path: Path) -> None:
    """The tuned target decodes by its heads; the original refuses nothing but is another model."""
    trained = train(target, tmp_path, *KINDS["medusa-2"], steps=24)
    assert any("another model" in line for line in trained.words) and "another model" in str(trained)
    tuned = specdec.load(tmp_path / "target")
    assert not np.array_equal(tuned.logits([3, 21, 5]), target.logits([3, 21, 5]))
    draft = specdec.drafts.load(tmp_path, tuned)
    options: dict[str, Any] = {"max_new_tokens": 24, "threads": 1}
    found = specdec.generate(tuned, draft, [3, 21], **options)
    assert found.tokens == specdec.generate(tuned, None, [3, 21], **options).tokens


@pytest.mark.parametrize(
    ("kind", "shape", "message"),
    [
        ("heads", {"n_heads": 0}, "n_heads=0; expected 1 to 64"),
        ("heads", {"n_draft_vocab": 25}, "n_draft_vocab=25; expected at most the target's 24, and heads"),
        ("heads", {"decay": 2.0}, r"decay=2\.0; expected a number above 0, at most 1"),
        ("heads", {"joint_rate": 0}, r"joint_rate=0\.0.*expected two numbers above 0"),
        ("eagle", {"version": 2}, "version=2; expected 1 or 3"),
        ("eagle", {"n_kv_heads": 3}, "expected a number of heads that n_kv_heads divides"),
        ("eagle", {"version": 1, "d_head": 6}, "expected heads of together the target's 32 dimensions"),
        ("eagle", {"version": 1, "n_draft_vocab": 8}, "and version 3: EAGLE-1"),
        ("eagle", {"steps": 0}, "steps=0; expected 1 to 16"),
        ("pass", {"n_tokens": 0}, "n_tokens=0, n_points=32; expected 1 to 32, and 1 or more"),
        ("pass", {"n_tokens": 30}, "texts have 24 tokens; expected more than n_tokens=30"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_bad_settings_are_refused_by_name(
    kind: str, shape: dict[str, Any], message: str, target: specdec.Model, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=message):
        train(target, tmp_path, kind, shape)


def test_heads_of_another_target_do_not_begin_a_training(target: specdec.Model, tmp_path: Path) -> None:
    train(target, tmp_path / "heads", "heads", HEADS, steps=2)
    with pytest.raises(InputError, match="was trained for the target '.*learnable'"):
        train(None, tmp_path / "more", "heads", HEADS, steps=2, begin=tmp_path / "heads", prompts=None)
    with pytest.raises(InputError, match="--set n_blocks=2, but the draft in .*heads has n_blocks 1"):
        train(target, tmp_path / "on", "heads", HEADS | {"n_blocks": 2}, steps=2, begin=tmp_path / "heads")


def test_targets_that_torch_would_read_otherwise_are_refused_by_name(tmp_path: Path) -> None:
    """Look-ahead embeddings are learnt by a mask, which says nothing of windows and distances."""
    from worlds.folders import llama_tensors, mistral_config, write_hf

    config = mistral_config(vocab_size=VOCABULARY, max_position_embeddings=64)
    windows = specdec.load(write_hf(tmp_path / "windows", config, llama_tensors(config, 1)))
    with pytest.raises(InputError, match="has windows of 8 tokens; expected shorter texts: --length at most"):
        train(windows, tmp_path / "out", "pass", {})


EMBEDDED = {
    "heads": {"n_heads": 2, "see_guesses": True},
    "eagle": {"d_ff": 64, "n_draft_vocab": 1024, "steps": 2},
    "pass": {"n_tokens": 2},
}


@pytest.mark.parametrize("kind", list(EMBEDDED))
def test_the_command_trains_drafts_for_the_embedded_target(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In some seconds, alpha at temperature 1 rises by more than chance, and the folder decodes."""
    from specdec.commands.program import main

    command = ["train", "draft", "--kind", kind, "--out", str(tmp_path), "--quiet", "--threads", "1"]
    command += ["--steps", "16", "--batch", "4", "--length", "48", "--passes", "2"]
    command += [word for name, value in EMBEDDED[kind].items() for word in ("--set", f"{name}={value}")]
    assert main(command) == 0
    gain = re.search(r"after, T = 1 .*\(([+-][0-9.]+) to", capsys.readouterr().out)
    assert gain is not None and float(gain[1]) > 0
    target, _ = specdec.embedded_pair()
    draft = specdec.drafts.load(tmp_path, target)
    options: dict[str, Any] = {"max_new_tokens": 24, "threads": 1}
    found = specdec.generate(target, draft, "It was", **options)
    assert found.tokens == specdec.generate(target, None, "It was", **options).tokens


def test_what_a_draft_never_guesses_is_no_part_of_its_loss() -> None:
    """Gradients are those of the whole law, whether it is kept whole or by its most probable tokens."""
    import torch

    from specdec.drafts.learned.objective import Objective, TargetDistribution, reachable, scattered

    torch.manual_seed(0)
    some, logits = torch.tensor([0, 2, 3, 7]), torch.randn(3, 4, requires_grad=True)
    for top in (None, 5):
        law = TargetDistribution.of_logits(torch.randn(3, 9), top)
        for name in ("fkl", "tvd"):
            gradients = []
            for each in (law, reachable(law, some, 9)):
                loss = Objective({name: 1.0})(each, scattered(logits, some, 9)).sum()
                gradients.append(torch.autograd.grad(loss, logits)[0])
            assert torch.allclose(*gradients, atol=1e-6), (top, name)
            assert abs(float(loss.detach())) < 20.0
