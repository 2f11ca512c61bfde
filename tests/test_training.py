"""The trainer of drafts (`specdec.training`): divergences, resumed trainings, exports, what it reaches."""

from __future__ import annotations

import importlib
import io
import json
import math
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import specdec
from learnable_target import PROMPTS, VOCABULARY, learnable_target, train
from refusals import refuses
from specdec import drafts
from specdec.commands.program import main
from specdec.errors import CheckpointError, InputError

pytestmark = pytest.mark.oracle  # torch


@pytest.fixture(scope="module", autouse=True)
def libraries() -> None:
    """torch takes a second to import, transformers some more."""
    global torch, objective, run, loop
    import torch

    from specdec.drafts.learned import objective
    from specdec.training import loop

    run = importlib.import_module("specdec.training.training_run")


def two_logits(seed: int = 0, n: int = 5, n_vocab: int = 11) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    return tuple(rng.normal(0.0, 2.0, (n, n_vocab)).astype(np.float32) for _ in range(2))  # type: ignore[return-value]


def softmax(logits: Any, temperature: float) -> Any:
    weights = np.exp(np.float64(logits) / temperature)
    return weights / weights.sum(-1, keepdims=True)


def by_hand(name: str, p: Any, q: Any, beta: float) -> Any:
    """The definitions, in NumPy."""

    def kl(a: Any, b: Any) -> Any:
        return np.where(a > 0, a * np.log(np.where(a > 0, a, 1) / np.where(a > 0, b, 1)), 0).sum(-1)

    m = beta * p + (1 - beta) * q
    return {
        "fkl": lambda: kl(p, q),
        "rkl": lambda: kl(q, p),
        "jsd": lambda: beta * kl(p, m) + (1 - beta) * kl(q, m),
        "tvd": lambda: 1 - np.minimum(p, q).sum(-1),
    }[name]()


NAMES = ("fkl", "rkl", "jsd", "tvd")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("temperature", [0.5, 1.0])
def test_divergences_are_those_of_their_definitions(name: Any, temperature: float) -> None:
    ours, theirs = two_logits()
    target = objective.TargetDistribution.of_logits(torch.from_numpy(ours), None, temperature)
    for beta in (0.1, 0.5, 0.9):
        found = objective.Objective({name: 1.0}, beta)(target, torch.from_numpy(theirs))
        expected = by_hand(name, softmax(ours, temperature), softmax(theirs, temperature), beta)
        np.testing.assert_allclose(found.numpy(), expected, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_gradients_of_divergences_are_differences_of_their_definitions(name: Any) -> None:
    """In double, with tokens that the draft never drafts and the target never takes."""
    ours, theirs = (torch.from_numpy(np.float64(one)) for one in two_logits(3, 2))
    ours[:, 1] = -math.inf
    theirs[:, 1:3] = -math.inf
    if name == "fkl":
        ours[:, 2] = -math.inf  # else it is infinite
    logits = theirs.clone().requires_grad_()
    p, log_probs = ours.log_softmax(-1), logits.log_softmax(-1)
    found = {
        "fkl": objective.forward_kl, "rkl": objective.reverse_kl, "jsd": objective.jensen_shannon,
        "tvd": objective.total_variation,
    }[name](p, log_probs)  # fmt: skip
    found.sum().backward()
    assert torch.isfinite(found).all() and torch.isfinite(logits.grad).all()
    for token in (0, 4, 10):
        moved = []
        for sign in (1, -1):
            other = theirs.clone()
            other[:, token] += sign * 1e-6
            moved.append(by_hand(name, p.exp().numpy(), other.softmax(-1).numpy(), 0.5))
        slope = (moved[0] - moved[1]) / 2e-6
        np.testing.assert_allclose(logits.grad[:, token].numpy(), slope, rtol=1e-4, atol=1e-6)


def test_a_distribution_of_the_top_tokens_takes_the_others_together() -> None:
    ours, theirs = (torch.from_numpy(one) for one in two_logits(5))
    some = objective.TargetDistribution.of_logits(ours, top=4)
    draft = some.of_draft(theirs).exp().numpy()
    p, q = softmax(ours.numpy(), 1.0), softmax(theirs.numpy(), 1.0)
    order = np.argsort(-p, axis=-1)[:, :4]
    for found, whole in ((some.log_probs.exp().numpy(), p), (draft, q)):
        kept = np.take_along_axis(whole, order, -1)
        np.testing.assert_allclose(found, np.column_stack([kept, 1 - kept.sum(-1)]), rtol=1e-4, atol=1e-6)
    whole = objective.TargetDistribution.of_logits(ours, top=ours.shape[-1])
    assert whole.tokens is None
    for name in NAMES:
        loss = objective.Objective({name: 1.0})
        assert (loss(some, theirs) <= loss(whole, theirs) + 1e-6).all(), name
        assert (loss(some, ours).abs() < 1e-6).all(), name


# ------------------------------------------------------------------------------------------- trainings


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> specdec.Model:
    return learnable_target(tmp_path_factory.mktemp("target"))


def weights_of(folder: Path) -> dict[str, Any]:
    return load_file(folder / "model.safetensors")


@pytest.mark.parametrize("kind", ["small", "recurrent"])
def test_a_training_raises_alpha_beyond_chance(kind: str, target: specdec.Model, tmp_path: Path) -> None:
    """The interval of the gain is a 95 % one: a training that did nothing would pass once in forty."""
    state, n_threads = torch.random.get_rng_state(), torch.get_num_threads()
    trained = train(target, tmp_path, kind, steps=96)
    for temperature in (0.0, 1.0):
        assert trained.gains[temperature][1] > 0.05, str(trained)
        assert trained.after.tokens_per_call[temperature] > trained.before.tokens_per_call[temperature]
    assert f"{kind} draft for learnable" in str(trained)
    assert torch.equal(torch.random.get_rng_state(), state) and torch.get_num_threads() == n_threads
    again = train(target, tmp_path, kind, steps=96)
    assert again.to_dict() == trained.to_dict()


def test_a_recurrent_folder_computes_what_its_network_does(target: specdec.Model, tmp_path: Path) -> None:
    train(target, tmp_path, "recurrent", steps=2, shape={"d_hidden": 24, "n_layers": 2})
    network = trainer_of(target, "recurrent", begin=str(tmp_path)).network()
    ids = np.random.default_rng(0).integers(0, VOCABULARY, 40)
    with torch.no_grad():
        expected = network(torch.from_numpy(ids)[None])[0].numpy()
    draft: Any = drafts.load(tmp_path, target)
    found = draft.core.logits(ids)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4 * np.abs(expected).max())


def trainer_of(target: specdec.Model, kind: str, **settings: Any) -> Any:
    """The trainer of a method, outside of a training."""
    from specdec.training.settings import TrainingSettings
    from specdec.training.trainer import trainer_type

    trainer = trainer_type(kind)(target, TrainingSettings(kind=kind, **settings))
    trainer.token_counts = lambda: np.ones(VOCABULARY, np.int64)
    return trainer


@pytest.mark.parametrize("kind", ["small", "recurrent"])
def test_a_training_begins_with_the_weights_that_it_is_given(
    kind: str, target: specdec.Model, tmp_path: Path
) -> None:
    train(target, tmp_path / "first", kind, steps=64)
    trained = train(target, tmp_path / "second", kind, steps=2, begin=tmp_path / "first", learning_rate=1e-9)
    first, second = (weights_of(tmp_path / part) for part in ("first", "second"))
    assert all(np.allclose(second[name], first[name], atol=1e-6) for name in first)
    assert abs(trained.gains[1.0][0]) < 1e-3


@pytest.mark.parametrize(
    ("kind", "named", "setting"),
    [
        ("small", {"d_model": 64, "n_heads": 0}, "d_model"),
        ("recurrent", {"d_hidden": 24}, "d_hidden"),
        ("heads", {"see_guesses": True}, "see_guesses"),
        ("pass", {"n_tokens": 2}, "n_tokens"),
        ("eagle", {"n_heads": 2, "n_kv_heads": 1, "d_head": 16}, "n_heads"),
    ],
)
def test_settings_that_contradict_the_weights_are_refused(
    kind: str, named: dict[str, Any], setting: str, target: specdec.Model, tmp_path: Path
) -> None:
    shape = {"d_model": "32", "n_layers": "1"} if kind == "small" else {}
    fresh = trainer_of(target, kind, shape=shape)
    fresh.export(fresh.network(), tmp_path)
    text = {name: str(value) for name, value in named.items()}
    with refuses(setting, named[setting]):
        trainer_of(target, kind, begin=str(tmp_path), shape=text).network()
    trainer_of(target, kind, begin=str(tmp_path), shape=shape).network()


def interrupted_at(patch: pytest.MonkeyPatch, limit: int) -> None:
    """A training ends before this step, as if a user had interrupted it."""
    step = run.train_step

    def stepped(*given: Any) -> float:
        if given[4] == limit:
            raise KeyboardInterrupt
        return float(step(*given))

    patch.setattr(run, "train_step", stepped)


OF_TARGET = [(kind, "target") for kind in ("small", "exit", "heads", "eagle", "pass")]


@pytest.mark.parametrize(("kind", "data"), [*OF_TARGET, ("small", "mixture"), ("recurrent", "draft")])
def test_a_training_that_goes_on_ends_as_one_that_was_not_interrupted(
    kind: str, data: str, target: specdec.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"data": data, "steps": 40, "passes": 1}
    train(target, tmp_path / "whole", kind, **options)
    monkeypatch.setattr(run, "_CHECKPOINT_S", 0.0)
    for limit in (3, 21, 37):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            interrupted_at(patch, limit)
            train(target, tmp_path / "parts", kind, **options)
    train(target, tmp_path / "parts", kind, **options)
    parts, whole = (weights_of(tmp_path / part) for part in ("parts", "whole"))
    assert parts.keys() == whole.keys() and all(np.array_equal(parts[name], whole[name]) for name in whole)
    curves = [loop.LossCurve.read(tmp_path / part / "training" / "losses.tsv") for part in ("parts", "whole")]
    np.testing.assert_array_equal(*(np.array(curve)[:, :-1] for curve in curves))


def test_an_interruption_says_what_is_kept(
    target: specdec.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        interrupted_at(patch, 18)
        train(target, tmp_path, steps=20, passes=1, say=said.append)
    assert [line.split()[0] for line in said] == [
        "Making", "Writing", "Writing", "Measuring", "A", "Measuring", "Training:", "Interrupted:",
    ]  # fmt: skip
    assert "held-out" in said[1] and "to train on" in said[2] and "20 steps in about" in said[4]
    assert f"{tmp_path / 'training'} keeps texts and the checkpoint of step 16 of 20" in said[-1]
    said.clear()
    train(target, tmp_path, steps=20, passes=1, say=said.append)
    assert said[1] == "Goes on at step 16 of 20." and said[-1].startswith("Measuring the draft after")


class WorkClock:
    """A clock that runs while a training works: seconds for a token written or read, and for a step."""

    def __init__(self, patch: pytest.MonkeyPatch, token_s: float, step_s: float) -> None:
        from specdec import time_limit
        from specdec.training import batch, held_out, training_texts

        self.now, self.step_s = 0.0, step_s
        patch.setattr(time_limit, "time", SimpleNamespace(monotonic=lambda: self.now))
        generate, of, step = training_texts.generate, batch.TargetStates.of, loop.train_step

        def generated(*given: Any, **options: Any) -> Any:
            found = generate(*given, **options)
            results = found if isinstance(found, list) else [found]
            self.now += token_s * sum(len(result.tokens) for result in results)
            return found

        def states(own: Any, texts: Any) -> Any:
            self.now += token_s * int(texts.ends.sum())
            return of(own, texts)

        def stepped(*given: Any) -> float:
            self.now += self.step_s
            return step(*given)

        patch.setattr(training_texts, "generate", generated)
        patch.setattr(held_out, "generate", generated)
        patch.setattr(batch.TargetStates, "of", states)
        for module in (loop, run):
            patch.setattr(module, "train_step", stepped)


@pytest.mark.parametrize("token_s", [1e-4, 2e-3, 3e-2])
def test_the_minutes_bound_the_whole_training(
    token_s: float, target: specdec.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a clock that stands still but for the work: any target has texts, steps and figures in time."""
    clock = WorkClock(monkeypatch, token_s, step_s=max(0.5, 20.0 * token_s))
    said: list[str] = []
    trained = train(target, tmp_path, steps=None, minutes=1.0, length=None, batch=8, say=said.append)
    assert clock.now <= 60.0 * 1.05
    assert clock.now >= 30.0  # and is used
    assert trained.n_steps >= 1 and all(0.0 <= alpha <= 1.0 for alpha, _, _ in trained.after.alpha.values())
    plan = json.loads((tmp_path / "training" / "plan.json").read_text())
    assert 2 <= plan["n_held_out"] <= 16 and 8 <= plan["n_texts"] <= 8 * 16
    assert said[0].startswith("Measuring how fast") and said[-1].startswith("Measuring the draft after")


def test_texts_without_positions_have_no_alpha() -> None:
    from specdec.training.held_out import alpha_of, gain

    nothing = [np.zeros(0), np.zeros(0)]
    assert math.isnan(alpha_of(nothing)[0]) and math.isnan(gain(nothing, nothing)[0])  # warnings are errors


def test_steps_that_become_slower_are_fewer(
    target: specdec.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the tenth step of the training on a step takes ten times as long as when it was measured."""
    clock = WorkClock(monkeypatch, 1e-3, step_s=0.3)
    step = run.train_step

    def slower(*given: Any) -> float:
        clock.step_s = 3.0 if given[4] >= 10 else 0.3
        return step(*given)

    monkeypatch.setattr(run, "train_step", slower)
    said: list[str] = []
    trained = train(target, tmp_path, steps=None, minutes=1.0, batch=8, say=said.append)
    planned = next(int(line.split()[1]) for line in said if line.startswith("Training: "))
    assert trained.n_steps < planned / 2
    assert clock.now <= 60.0 + 3.0 * 2


def test_a_training_of_minutes_goes_on_with_its_plan(
    target: specdec.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = tmp_path / "training"
    plan, settings = work / "plan.json", work / "settings.json"
    how: dict[str, Any] = {"steps": None, "length": None, "batch": 8}
    with monkeypatch.context() as patch:
        WorkClock(patch, 2e-3, step_s=0.5)
        interrupted_at(patch, 3)
        with pytest.raises(KeyboardInterrupt):
            train(target, tmp_path, minutes=1.0, **how)
    planned, length = plan.read_text(), json.loads(settings.read_text())["length"]
    with monkeypatch.context() as patch:
        WorkClock(patch, 1e-4, step_s=0.5)  # faster: more would fit now
        train(target, tmp_path, minutes=0.5, **how)
    assert plan.read_text() == planned and json.loads(settings.read_text())["length"] == length
    (work / "summary.json").unlink()
    for damaged in ("{", '{"n_held_out": 0, "n_texts": 9}', '{"n_held_out": 3}', "[]"):
        plan.write_text(damaged)
        with pytest.raises(CheckpointError, match=r"plan\.json"):
            train(target, tmp_path, minutes=0.5, **how)


def test_a_number_format_is_for_a_target_that_is_not_loaded(target: specdec.Model, tmp_path: Path) -> None:
    with refuses("dtype", "int8"):
        train(target, tmp_path, dtype="int8")
    trained = train(target.path, tmp_path / "int8", dtype="int8", steps=1)
    stored = json.loads((tmp_path / "int8" / "training" / "settings.json").read_text())
    assert stored["target"] == f"{target.path} in int8" and trained.n_steps == 1


def test_a_short_time_has_short_texts() -> None:
    """256 tokens where 20 steps fit, else fewer; never more than the context."""
    from specdec.training.training_texts import WritingSpeed, affordable_length

    speed = WritingSpeed(1e-3, 1e-2)
    lengths = [affordable_length(speed, 16, seconds, 1024) for seconds in (1000.0, 90.0, 45.0, 20.0, 1.0)]
    assert lengths[0] == 256 and lengths[-1] == 32 and lengths == sorted(lengths, reverse=True)
    assert affordable_length(speed, 16, 1000.0, 48) == 48


def test_what_drafts_leave_is_the_residual_of_the_rule(target: specdec.Model, tmp_path: Path) -> None:
    """By enumeration: the chance that all of them are rejected, and the distribution then."""
    from specdec.training.batch import EarlierDrafts, softmax

    for i, kind in enumerate(("small", "recurrent")):
        train(target, tmp_path / f"{i}", kind, steps=2)
    cover = EarlierDrafts(target, [str(tmp_path / f"{i}") for i in range(2)])
    ids = np.arange(3, 9, dtype=np.int32)
    probs = softmax(target.logits(ids))
    left, share = cover.residual(ids, probs, 1.0)
    recurrent: Any = drafts.load(tmp_path / "1", target)
    drawn = [softmax(specdec.load(tmp_path / "0").logits(ids)), recurrent.probabilities(ids)]
    for row in range(len(ids)):
        reached, rest = 1.0, probs[row]
        for draft in drawn:
            kept = np.minimum(rest, draft[row])
            reached *= 1.0 - kept.sum()
            rest = (rest - kept) / (1.0 - kept.sum())
        np.testing.assert_allclose(share[row], reached, rtol=1e-6)
        np.testing.assert_allclose(left[row], rest, atol=1e-9)
    logits, weights = cover(ids, target.logits(ids))
    np.testing.assert_allclose(softmax(logits), left, atol=1e-6)
    np.testing.assert_allclose(weights, share, rtol=1e-6)
    best = probs.argmax(-1)
    hits = np.any([draft.argmax(-1) == best for draft in drawn], axis=0)
    np.testing.assert_array_equal(cover.hits(ids, best), hits)


def test_a_second_draft_covers_for_the_first(target: specdec.Model, tmp_path: Path) -> None:
    train(target, tmp_path / "first", steps=64, passes=4)
    after = [tmp_path / "first"]
    trained = train(target, tmp_path / "second", steps=64, passes=4, seed=1, after=after)
    assert trained.gains[1.0][1] > 0, str(trained)  # the lower end of the interval: no chance
    assert "side by side" in str(trained)


def test_weights_of_exits_are_those_of_the_paper() -> None:
    """LayerSkip, section 4.1: the sums by hand for four layers, and what the curricula switch on."""
    from specdec.drafts.learned.early_exit.trainer import exit_weights, layer_dropout

    def weights(curriculum: Any, step: int, progress: float) -> Any:
        return np.array(exit_weights(4, step, progress, curriculum=curriculum, scale=0.5, period=2))

    whole = np.array([0.0, 0.5, 1.5, 3 + 0.5 * 3])
    np.testing.assert_allclose(weights("all", 0, 0), whole / whole.sum())
    for step, on in ((0, [1, 0, 1, 1]), (1, [0, 1, 0, 1]), (2, [1, 0, 1, 1])):
        expected = whole * on
        np.testing.assert_allclose(weights("rotational", step, 0), expected / expected.sum())
    for progress, n_on in ((0.0, 1), (0.124, 1), (0.125, 2), (0.25, 3), (0.375, 4), (1.0, 4)):
        expected = whole * [layer >= 4 - n_on for layer in range(4)]
        np.testing.assert_allclose(weights("gradual", 0, progress), expected / expected.sum())
    assert layer_dropout(0, 4, 0.3, 0.2) == 0.0 and layer_dropout(3, 4, 0.3, 0.2) == pytest.approx(0.2)
    assert layer_dropout(1, 4, 0.3, 0.2) == pytest.approx(0.2 * (2 ** (1 / 3) - 1))
    assert layer_dropout(3, 4, 0.5, 0.2, rising=True) == pytest.approx(0.2 * (2**0.5 - 1))


def test_layers_are_skipped_for_the_texts_that_skip_them(target: specdec.Model) -> None:
    """A skipped layer leaves the stream as it is, and the others see that; nothing stays."""
    from specdec.drafts.learned.early_exit.trainer import ExitNetwork
    from specdec.drafts.learned.networks import open_decoder

    network = ExitNetwork(open_decoder(target.path)).eval()
    ids = torch.from_numpy(np.random.default_rng(0).integers(0, VOCABULARY, (2, 9)))
    with torch.no_grad():
        embedded = network.model.get_input_embeddings()(ids)
        whole = network.states(ids)
        some = network.states(ids, torch.tensor([[True, False], [False, True]]))
        again = network.states(ids)
    assert torch.equal(some[0][0], embedded[0]) and torch.equal(some[1][1], some[0][1])
    assert torch.allclose(some[0][1], whole[0][1], atol=1e-5) and not torch.allclose(some[1][0], whole[1][0])
    assert all(torch.equal(one, other) for one, other in zip(whole, again, strict=True))
    for exited, expected in ((1, whole[0]), (2, whole[1])):
        hidden = target.hidden_states(ids[0].numpy(), [exited])[exited]
        np.testing.assert_allclose(hidden, expected[0].numpy(), atol=1e-4)


@pytest.mark.parametrize("family", ["gpt2", "qwen3", "gemma2"])
def test_exits_are_found_in_other_families_or_refused(family: str, tmp_path: Path) -> None:
    """The streams after the layers are those of specdec; a soft cap after the head is none of ours."""
    import transformers

    from specdec.drafts.learned.early_exit.trainer import ExitNetwork
    from specdec.drafts.learned.networks import open_decoder

    sizes = {
        "vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2,
        "max_position_embeddings": 48,
    }  # fmt: skip
    more = {"num_key_value_heads": 1, "head_dim": 16, "intermediate_size": 40}
    configs = {
        "gpt2": lambda: transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0),
        "qwen3": lambda: transformers.Qwen3Config(**sizes, **more),
        "gemma2": lambda: transformers.Gemma2Config(**sizes, **more, final_logit_softcapping=2.0),
    }
    torch.manual_seed(0)
    network = transformers.AutoModelForCausalLM.from_config(configs[family]())
    network.save_pretrained(tmp_path)
    if family == "gemma2":
        with refuses("target", "Gemma2ForCausalLM"):
            ExitNetwork(open_decoder(tmp_path))
        return
    ids = np.random.default_rng(1).integers(0, VOCABULARY, 9)
    with torch.no_grad():
        states = ExitNetwork(open_decoder(tmp_path)).eval().states(torch.from_numpy(ids)[None])
    hidden = specdec.load(tmp_path).hidden_states(ids, [1, 2, 3])
    for layer, state in enumerate(states, start=1):
        np.testing.assert_allclose(hidden[layer], state[0].numpy(), atol=1e-4)


def test_an_exit_is_trained_and_the_summary_tells_how_far_the_target_moved(
    target: specdec.Model, tmp_path: Path
) -> None:
    trained = train(target, tmp_path, "exit", steps=48, shape={"dropout": 0.05}, learning_rate=2e-3)
    text = str(trained)
    assert trained.gains[1.0][1] > 0, text  # the lower end of the interval: no chance
    assert "the target itself was trained" in text and "KL" in text
    assert ("no exit pays: plain decoding of" in text) != ("fastest greedy exit: 1 layer" in text)
    values = json.loads((tmp_path / "specdec_exit.json").read_text())
    assert values["layer"] == 1 and values["gamma"] in (1, 2, 3, 4, 6)
    tuned = specdec.load(tmp_path)
    exit_draft = drafts.load(tmp_path, tuned)
    assert isinstance(exit_draft, drafts.EarlyExit) and exit_draft.gamma == values["gamma"]
    runs = [specdec.generate(tuned, draft, PROMPTS[0], max_new_tokens=30) for draft in (None, exit_draft)]
    assert runs[0].tokens == runs[1].tokens


def command_of(kind: str, out: Path, *words: str) -> list[str]:
    return ["train", "draft", "--kind", kind, "--out", str(out), "--threads", "1", *words]


def test_the_command_refuses_by_name(
    target: specdec.Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts = tmp_path / "prompts.jsonl"
    command = command_of("small", tmp_path / "out", "--target", str(target.path))
    for written, words, message in (
        ('{"prompt": ""}\n', ["--prompts", str(prompts)], "line 1: is {'prompt': ''}; expected a text"),
        ("", ["--prompts", str(prompts)], f"prompts {prompts}: has no prompt"),
        ("", ["--set", "d_model"], "--set is 'd_model'"),
        ("", ["--loss", "kl"], "loss is 'kl'"),
    ):
        prompts.write_text(written)
        assert main([*command, *words]) == 2
        assert message in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["train", "draft", "--kind", "small"])
    assert "specdec train draft: error" in capsys.readouterr().err


EMBEDDED = {
    "small": {"d_model": 32, "n_layers": 1},
    "eagle": {"d_ff": 64, "n_draft_vocab": 1024, "steps": 2},
    "pass": {"n_tokens": 2},
}


@pytest.mark.parametrize("kind", EMBEDDED)
def test_the_command_trains_drafts_for_the_embedded_target(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In some seconds, alpha at temperature 1 rises by more than chance, and the folder decodes."""
    settings = [word for name, value in EMBEDDED[kind].items() for word in ("--set", f"{name}={value}")]
    command = command_of(kind, tmp_path, "--steps", "12", "--batch", "4", "--length", "32", "--passes", "2")
    assert main([*command, *settings]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("Loading torch and the trainer of this kind of draft;")
    assert "12 steps in about" in shown and "tokens/call" in shown
    gain = re.search(r"after, T = 1 .*\(([+-][0-9.]+) to", shown)
    assert gain is not None and float(gain[1]) > 0
    assert (tmp_path / "training" / "losses.tsv").read_text().startswith("step\ttokens\tloss\t")
    target, _ = specdec.embedded_pair()
    runs = [
        specdec.generate(target, draft, "It was", max_new_tokens=24, n_threads=1).tokens
        for draft in (drafts.load(tmp_path, target), None)
    ]
    assert runs[0] == runs[1]
    assert main([*command, *settings]) == 0  # it is done


def test_texts_are_those_of_the_prompts(target: specdec.Model, tmp_path: Path) -> None:
    """Training begins with prompts that are not held out; every text goes on as the target may go on."""
    from specdec.training.training_texts import Prompts

    prompts = [[3 + i % 20, 4, 5] for i in range(40)]
    train(target, tmp_path, steps=2, prompts=prompts)
    found = Prompts.read(target, prompts, 12)
    assert found.held_out == tuple(tuple(prompt) for prompt in prompts[::10])
    assert sorted(found.train + found.held_out) == sorted(map(tuple, prompts))
    texts = load_file(tmp_path / "training" / "texts" / "00000.safetensors")
    ids, begins, ends = texts["ids"], texts["begins"], texts["ends"]
    assert len(ids) == 16 * 4 and (begins == 3).all() and (ends <= 24).all()
    assert {tuple(row[:3]) for row in ids.tolist()} <= set(found.train)
    for row, end in zip(ids[3::4], ends[3::4], strict=True):  # those at temperature 0, after their opening
        if end > 19:
            expected = specdec.generate(target, None, row[:19].tolist(), max_new_tokens=5).tokens
            assert row[19:end].tolist() == expected[: end - 19]


def test_a_training_takes_a_quantised_target(target: specdec.Model, tmp_path: Path) -> None:
    from specdec.training.batch import TargetStates
    from specdec.training.training_texts import Texts

    quantised = specdec.load(target.path, "int8")
    ids = np.arange(4, 20, dtype=np.int32)
    states = TargetStates(quantised, taps=[0, 2, 3]).of(Texts.of_lists([ids, ids[:7]], [2, 1], 20))
    np.testing.assert_array_equal(states.hidden[2][0, :16], quantised.hidden_states(ids, [2])[2])
    np.testing.assert_allclose(
        states.target.log_probs[1, :7], torch.from_numpy(quantised.logits(ids[:7])).log_softmax(-1), atol=1e-6
    )
    assert states.weights.tolist() == [[0.0] + [1.0] * 14 + [0.0] * 5, [1.0] * 6 + [0.0] * 14]
    train(quantised, tmp_path, steps=2)


def test_other_arguments_are_refused_by_name(target: specdec.Model, tmp_path: Path) -> None:
    train(target, tmp_path, steps=2)
    with refuses("loss", "jsd"):
        train(target, tmp_path, steps=2, loss="jsd")
    with pytest.raises(InputError, match="prompts: other prompts than those that the training in"):
        train(target, tmp_path, steps=2, prompts=[[3]])


def test_a_model_is_not_overwritten(target: specdec.Model) -> None:
    for out in (target.path, target.path / "config.json" / "out"):
        with refuses("out", str(out)):
            train(target, out, "exit")


@pytest.mark.parametrize(
    ("argument", "options"),
    [
        ("kind", {"kind": "none"}),
        ("loss", {"loss": "kl"}),
        ("data", {"data": "mine"}),
        ("steps", {"steps": 0}),
        ("minutes", {"minutes": math.nan, "steps": None}),
        ("length", {"length": 65}),
        ("beta", {"beta": 1}),
        ("steps", {"minutes": 1.0}),
        ("device", {"device": "foo"}),
        ("device", {"device": "meta"}),
        ("prompts", {"prompts": None}),
        ("--set", {"shape": {"d_modell": 3}}),
        ("d_model", {"shape": {"d_model": "wide"}}),
        ("n_heads", {"shape": {"d_model": 33}}),
        ("layer", {"kind": "exit", "shape": {"layer": 2}}),
        ("curriculum", {"kind": "exit", "shape": {"curriculum": "none"}}),
        ("dropout", {"kind": "exit", "shape": {"dropout": "2"}}),
        ("data", {"kind": "exit", "data": "draft"}),
        ("n_heads", {"kind": "heads", "shape": {"n_heads": 0}}),
        ("n_draft_vocab", {"kind": "heads", "shape": {"n_draft_vocab": 25}}),
        ("decay", {"kind": "heads", "shape": {"decay": 2.0}}),
        ("joint_rate", {"kind": "heads", "shape": {"joint_rate": 0}}),
        ("version", {"kind": "eagle", "shape": {"version": 2}}),
        ("n_kv_heads", {"kind": "eagle", "shape": {"n_kv_heads": 3}}),
        ("n_heads", {"kind": "eagle", "shape": {"version": 1, "d_head": 6}}),
        ("n_draft_vocab", {"kind": "eagle", "shape": {"version": 1, "n_draft_vocab": 8}}),
        ("steps", {"kind": "eagle", "shape": {"steps": 0}}),
        ("n_tokens", {"kind": "pass", "shape": {"n_tokens": 0}}),
        ("length", {"kind": "pass", "shape": {"n_tokens": 30}}),
    ],
)
def test_bad_arguments_are_refused_by_name(
    argument: str, options: dict[str, Any], target: specdec.Model, tmp_path: Path
) -> None:
    with refuses(argument):
        train(target, tmp_path, **options)
    assert not (tmp_path / "training" / "settings.json").exists()  # so that the right command begins there


def test_prompts_that_cannot_be_read_are_refused(target: specdec.Model, tmp_path: Path) -> None:
    for prompts, message in (([], "prompts: has no prompt"), ("/no/such/file", "prompts: /no/such/file")):
        with pytest.raises(InputError, match=message):
            train(target, tmp_path, prompts=prompts)


@pytest.fixture
def work(target: specdec.Model, tmp_path: Path) -> Path:
    """The folder of a training that has not written its summary."""
    train(target, tmp_path, steps=2)
    (tmp_path / "training" / "summary.json").unlink()
    return tmp_path / "training"


@pytest.mark.parametrize("file", ["checkpoint.pt", "settings.json", "texts/00000.safetensors"])
def test_damaged_files_are_refused_by_name(file: str, target: specdec.Model, work: Path) -> None:
    sound, rng = (work / file).read_bytes(), np.random.default_rng(0)
    for damage in (sound[: len(sound) // 2], b"", rng.bytes(len(sound))):
        (work / file).write_bytes(damage)
        if file.startswith("texts"):
            (work / "checkpoint.pt").unlink(missing_ok=True)
        with pytest.raises(CheckpointError, match=Path(file).name.replace(".", r"\.")):
            train(target, work.parent, steps=2)
    (work / file).write_bytes(sound)
    train(target, work.parent, steps=2)


def test_texts_of_another_training_are_refused_by_name(target: specdec.Model, work: Path) -> None:
    """Other sizes, kinds and tokens."""
    path = work / "texts" / "00000.safetensors"
    sound = load_file(path)
    (work / "checkpoint.pt").unlink()
    ids, begins, ends = sound["ids"], sound["begins"], sound["ends"]
    for name, array in (
        ("ids", ids - 10**6), ("ids", ids + 10**6), ("ids", ids.astype(np.int64)), ("ids", ids.T.copy()),
        ("begins", begins - 1000), ("begins", np.full_like(begins, 1000)), ("ends", np.zeros_like(ends)),
        ("ends", ends + 1000), ("more", ids),
    ):  # fmt: skip
        save_file(sound | {name: array}, path, {"format": "specdec training texts"})
        with pytest.raises(CheckpointError, match=r"00000\.safetensors"):
            train(target, work.parent, steps=2)


def test_checkpoints_that_do_not_fit_are_refused_by_name(target: specdec.Model, work: Path) -> None:
    """Numbers of steps, optimizers of other settings and sizes, and one bit of a weight."""
    path = work / "checkpoint.pt"

    def sizes(state: dict[str, Any]) -> None:
        next(iter(state["optimisers"]["adamw"]["state"].values()))["exp_avg"] = torch.zeros(3)

    changes: list[Any] = [{"n_steps": 10**30}, {"n_steps": 3}, {"n_steps": math.inf}, {"step": True}]
    changes += [{"seconds": -1.0}, {"seconds": math.nan}, {"recent": None}, sizes]
    sound = path.read_bytes()
    flipped = bytearray(sound)
    flipped[len(sound) // 2] ^= 1
    for change in [*changes, None]:
        if change is None:
            path.write_bytes(bytes(flipped))
        else:
            state = torch.load(io.BytesIO(sound), weights_only=True) | {"step": 1}
            change(state) if callable(change) else state.update(change)
            torch.save(state, path)
        with pytest.raises(CheckpointError, match=r"checkpoint\.pt: expected the checkpoint"):
            train(target, work.parent, steps=2)


def test_summaries_that_cannot_be_shown_are_refused_by_name(target: specdec.Model, tmp_path: Path) -> None:
    train(target, tmp_path, steps=2)
    path = tmp_path / "training" / "summary.json"
    sound = json.loads(path.read_text())
    for change in ({"n_tokens": "x"}, {"minutes": None}, {"gains": {}}, {"gains": {"0.0": 1, "1.0": 2}}):
        path.write_text(json.dumps(sound | change))
        with pytest.raises(CheckpointError, match=r"summary\.json: expected the summary"):
            train(target, tmp_path, steps=2)
