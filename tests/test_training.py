"""`specdec.training`: interrupts, time limits, texts, the command, and rejected arguments."""

from __future__ import annotations

import importlib
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
from learnable_target import learnable_target, train
from refusals import refuses
from specdec import drafts
from specdec.commands.program import main
from specdec.errors import CheckpointError, InputError

pytestmark = pytest.mark.oracle  # torch


@pytest.fixture(scope="module", autouse=True)
def libraries() -> None:
    """torch and transformers, imported late because that takes seconds."""
    global torch, run, loop
    import torch

    from specdec.training import loop

    run = importlib.import_module("specdec.training.training_run")


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> specdec.Model:
    return learnable_target(tmp_path_factory.mktemp("target"))


def interrupted_at(patch: pytest.MonkeyPatch, limit: int) -> None:
    """Interrupt a training before this step, like a user."""
    step = run.train_step

    def stepped(*given: Any) -> float:
        if given[4] == limit:
            raise KeyboardInterrupt
        return float(step(*given))

    patch.setattr(run, "train_step", stepped)


OF_TARGET = [(method, "target") for method in ("small", "early-exit", "heads", "eagle", "pass")]


@pytest.mark.parametrize(("method", "data"), [*OF_TARGET, ("small", "mixture"), ("recurrent", "draft")])
def test_a_training_that_goes_on_ends_as_one_that_was_not_interrupted(
    method: str, data: str, target: specdec.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"data": data, "steps": 40, "passes": 1}
    train(target, tmp_path / "whole", method, **options)
    monkeypatch.setattr(run, "_CHECKPOINT_S", 0.0)
    for limit in (3, 21):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            interrupted_at(patch, limit)
            train(target, tmp_path / "parts", method, **options)
    train(target, tmp_path / "parts", method, **options)
    parts, whole = (load_file(tmp_path / part / "model.safetensors") for part in ("parts", "whole"))
    assert parts.keys() == whole.keys() and all(np.array_equal(parts[name], whole[name]) for name in whole)
    curves = [loop.LossCurve.read(tmp_path / part / "training" / "losses.tsv") for part in ("parts", "whole")]
    np.testing.assert_array_equal(*(np.array(curve)[:, :-1] for curve in curves))


def test_equal_seeds_give_equal_weights(target: specdec.Model, tmp_path: Path) -> None:
    for name, seed in (("one", 1), ("same", 1), ("other", 2)):
        train(target, tmp_path / name, steps=4, passes=1, seed=seed)
    one, same, other = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "same", "other"))
    assert all(np.array_equal(one[name], same[name]) for name in one)
    assert not all(np.array_equal(one[name], other[name]) for name in one)


def test_an_interruption_says_what_is_kept(
    target: specdec.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        interrupted_at(patch, 18)
        train(target, tmp_path, steps=20, passes=1, say=said.append)
    assert [line.split()[0] for line in said] == [
        "Building", "Generating", "Generating", "Timing", "A", "Measuring", "Training:", "Interrupted:",
    ]  # fmt: skip
    assert "held-out" in said[1] and "training texts" in said[2] and "20 steps in about" in said[4]
    assert f"{tmp_path / 'training'} keeps texts and the checkpoint of step 16 of 20" in said[-1]
    said.clear()
    train(target, tmp_path, steps=20, passes=1, say=said.append)
    assert said[1] == "Continuing at step 16 of 20." and said[-1].startswith(
        "Measuring the draft before and after"
    )


class WorkClock:
    """A clock that advances with work: seconds per token written or read, and per step."""

    def __init__(self, patch: pytest.MonkeyPatch, token_s: float, step_s: float) -> None:
        from specdec import time_limit
        from specdec.training import held_out, trainer, training_texts

        self.now, self.step_s = 0.0, step_s
        patch.setattr(time_limit, "time", SimpleNamespace(monotonic=lambda: self.now))
        generate, of, step = training_texts.generate, trainer.TargetStates.of, loop.train_step

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
        patch.setattr(trainer.TargetStates, "of", states)
        for module in (loop, run):
            patch.setattr(module, "train_step", stepped)


@pytest.mark.parametrize("token_s", [1e-4, 2e-3, 3e-2])
def test_the_minutes_bound_the_whole_training(
    token_s: float, target: specdec.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a clock that advances only with work: any target gets texts, steps and figures in time."""
    clock = WorkClock(monkeypatch, token_s, step_s=max(0.5, 20.0 * token_s))
    said: list[str] = []
    trained = train(target, tmp_path, steps=None, minutes=1.0, length=None, batch=8, say=said.append)
    assert clock.now <= 60.0 * 1.05
    assert clock.now >= 30.0  # and is used
    assert trained.n_steps >= 1 and all(0.0 <= alpha <= 1.0 for alpha, _, _ in trained.after.alpha.values())
    plan, settings = (
        json.loads((tmp_path / "training" / f"{name}.json").read_text()) for name in ("plan", "settings")
    )
    assert settings["length"] == (32 if token_s == 3e-2 else 64)  # the context, or less for 20 steps to fit
    assert 2 <= plan["n_held_out"] <= 16 and 8 <= plan["n_texts"] <= 8 * 16
    assert said[0].startswith("Measuring how fast") and said[-1].startswith(
        "Measuring the draft before and after"
    )


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
    plan, settings, summary = (
        tmp_path / "training" / f"{name}.json" for name in ("plan", "settings", "summary")
    )
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
    summary.unlink()
    for damaged in ("{", '{"n_held_out": 0, "n_texts": 9}', '{"n_held_out": 3}', "[]"):
        plan.write_text(damaged)
        with pytest.raises(CheckpointError, match=r"plan\.json"):
            train(target, tmp_path, minutes=0.5, **how)


def command_of(method: str, out: Path, *words: str) -> list[str]:
    return ["train", "draft", "--method", method, "--out", str(out), "--threads", "1", *words]


def test_the_command_refuses_by_name(
    target: specdec.Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts = tmp_path / "prompts.jsonl"
    command = command_of("small", tmp_path / "out", "--target", str(target.path))
    for written, words, message in (
        ('{"prompt": ""}\n', ["--prompts", str(prompts)], "line 1: is {'prompt': ''}; expected a text"),
        ("", ["--prompts", str(prompts)], f"prompts {prompts}: no prompt found"),
        ("", ["--set", "d_model"], "--set is 'd_model'"),
        ("", ["--loss", "kl"], "loss is 'kl'"),
    ):
        prompts.write_text(written)
        assert main([*command, *words]) == 2
        assert message in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["train", "draft", "--method", "small"])
    assert "specdec train draft: error" in capsys.readouterr().err


def test_the_command_trains_a_draft_for_the_embedded_target(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In some seconds, alpha at temperature 1 rises by more than chance, and the folder decodes."""
    settings = ("--set", "d_model=64", "--set", "n_layers=1")
    sizes = ("--steps", "12", "--batch", "4", "--length", "32", "--passes", "2")
    command = command_of("small", tmp_path, *sizes, *settings)
    assert main(command) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("Loading torch and the trainer;")
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
    assert main(command) == 0  # it is done
    assert shown.endswith(capsys.readouterr().out.partition("\n")[2])


def test_texts_are_those_of_the_prompts(target: specdec.Model, tmp_path: Path) -> None:
    """Training texts begin with prompts that are not held out, and continue as the target may continue."""
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


def test_a_training_takes_a_quantized_target(target: specdec.Model, tmp_path: Path) -> None:
    from specdec.training.trainer import TargetStates
    from specdec.training.training_texts import Texts

    quantized = specdec.load(target.path, "int8")
    ids = np.arange(4, 20, dtype=np.int32)
    states = TargetStates(quantized, captures=[0, 2, 3]).of(Texts.of_lists([ids, ids[:7]], [2, 1], 20))
    np.testing.assert_array_equal(states.hidden[2][0, :16], quantized.hidden_states(ids, [2])[2])
    np.testing.assert_allclose(
        states.target.log_probs[1, :7], torch.from_numpy(quantized.logits(ids[:7])).log_softmax(-1), atol=1e-6
    )
    assert states.weights.tolist() == [[0.0] + [1.0] * 14 + [0.0] * 5, [1.0] * 6 + [0.0] * 14]
    with refuses("dtype", "int8"):
        train(quantized, tmp_path, dtype="int8")
    train(target.path, tmp_path, dtype="int8", steps=2)
    stored = json.loads((tmp_path / "training" / "settings.json").read_text())
    assert stored["target"] == f"{target.path} in int8"
    train(quantized, tmp_path, steps=2)  # the same one


def test_other_arguments_and_folders_are_refused(target: specdec.Model, work: Path) -> None:
    with refuses("loss", "jsd"):
        train(target, work.parent, steps=2, loss="jsd")
    for prompts, message in (
        ([[3]], "prompts: not the prompts of the training in"),
        ([], "prompts: no prompt found"),
        ("/no/such/file", "prompts: /no/such/file"),
    ):
        with pytest.raises(InputError, match=message):
            train(target, work.parent, steps=2, prompts=prompts)
    for out in (target.path, target.path / "config.json" / "out"):  # a model is not overwritten
        with refuses("out", str(out)):
            train(target, out, "early-exit")


BAD: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "small": [
        ("loss", {"loss": "kl"}), ("data", {"data": "mine"}), ("steps", {"steps": 0}),
        ("minutes", {"minutes": math.nan, "steps": None}), ("length", {"length": 65}), ("beta", {"beta": 1}),
        ("steps", {"minutes": 1.0}), ("device", {"device": "foo"}), ("device", {"device": "meta"}),
        ("prompts", {"prompts": None}), ("--set", {"shape": {"d_modell": 3}}),
        ("d_model", {"shape": {"d_model": "wide"}}), ("n_heads", {"shape": {"d_model": 33}}),
    ],
    "early-exit": [
        ("layer", {"shape": {"layer": 2}}), ("curriculum", {"shape": {"curriculum": "none"}}),
        ("dropout", {"shape": {"dropout": "2"}}), ("data", {"data": "draft"}),
    ],
    "heads": [
        ("n_heads", {"shape": {"n_heads": 0}}), ("n_draft_vocab", {"shape": {"n_draft_vocab": 25}}),
        ("decay", {"shape": {"decay": 2.0}}), ("joint_rate", {"shape": {"joint_rate": 0}}),
    ],
    "eagle": [
        ("version", {"shape": {"version": 2}}), ("n_kv_heads", {"shape": {"n_kv_heads": 3}}),
        ("n_heads", {"shape": {"version": 1, "d_head": 6}}), ("steps", {"shape": {"steps": 0}}),
        ("n_draft_vocab", {"shape": {"version": 1, "n_draft_vocab": 8}}),
    ],
    "pass": [("n_tokens", {"shape": {"n_tokens": 0}}), ("length", {"shape": {"n_tokens": 30}})],
    "none": [("method", {})],
}  # fmt: skip


@pytest.mark.parametrize(
    ("method", "argument", "options"), [(method, *case) for method, cases in BAD.items() for case in cases]
)
def test_bad_arguments_are_refused_by_name(
    method: str, argument: str, options: dict[str, Any], target: specdec.Model, tmp_path: Path
) -> None:
    with refuses(argument):
        train(target, tmp_path, method, **options)
    assert not (tmp_path / "training" / "settings.json").exists()  # so that the right command begins there


def test_a_length_is_refused_before_anything_is_measured(target: specdec.Model, tmp_path: Path) -> None:
    said: list[str] = []
    with refuses("length", 65):
        train(target, tmp_path, steps=None, minutes=1.0, length=65, say=said.append)
    assert not said


@pytest.fixture
def work(target: specdec.Model, tmp_path: Path) -> Path:
    """The folder of a training that has not written its summary."""
    train(target, tmp_path, steps=2)
    (tmp_path / "training" / "summary.json").unlink()
    return tmp_path / "training"


def check_refused(target: specdec.Model, file: Path) -> None:
    """Check that a training with this file in its folder refuses to continue, and names the file."""
    with pytest.raises(CheckpointError, match=f"{re.escape(file.name)}: "):
        train(target, next(path for path in file.parents if path.name == "training").parent, steps=2)


@pytest.mark.parametrize("name", ["checkpoint.pt", "settings.json", "texts/00000.safetensors"])
def test_damaged_files_are_refused_by_name(name: str, target: specdec.Model, work: Path) -> None:
    file = work / name
    sound, rng = file.read_bytes(), np.random.default_rng(0)
    if name.startswith("texts"):
        (work / "checkpoint.pt").unlink()
    for damage in (sound[: len(sound) // 2], b"", rng.bytes(len(sound))):
        file.write_bytes(damage)
        check_refused(target, file)
    file.write_bytes(sound)
    train(target, work.parent, steps=2)


def test_texts_of_another_training_are_refused_by_name(target: specdec.Model, work: Path) -> None:
    """Other sizes, methods and tokens."""
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
        check_refused(target, path)


def test_checkpoints_that_do_not_fit_are_refused_by_name(target: specdec.Model, work: Path) -> None:
    """Numbers of steps, optimizers of other settings and sizes, and one bit of a weight."""
    path = work / "checkpoint.pt"
    sound = bytearray(path.read_bytes())
    state = torch.load(path, weights_only=True) | {"step": 1}
    changes: list[Any] = [{"n_steps": 10**30}, {"n_steps": 3}, {"n_steps": math.inf}, {"step": True}]
    for change in [*changes, {"seconds": -1.0}, {"seconds": math.nan}, {"recent": None}]:
        torch.save(state | change, path)
        check_refused(target, path)
    next(iter(state["optimizers"]["adamw"]["state"].values()))["exp_avg"] = torch.zeros(3)
    torch.save(state, path)
    check_refused(target, path)
    sound[len(sound) // 2] ^= 1
    path.write_bytes(sound)
    check_refused(target, path)


def test_summaries_that_cannot_be_shown_are_refused_by_name(target: specdec.Model, tmp_path: Path) -> None:
    trained = train(target, tmp_path, steps=2)
    assert train(target, tmp_path, steps=2).to_dict() == trained.to_dict()  # it is done
    path = tmp_path / "training" / "summary.json"
    sound = json.loads(path.read_text())
    for change in ({"n_tokens": "x"}, {"minutes": None}, {"gains": {}}, {"gains": {"0.0": 1, "1.0": 2}}):
        path.write_text(json.dumps(sound | change))
        check_refused(target, path)
