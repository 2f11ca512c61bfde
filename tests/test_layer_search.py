"""The search for layers to skip: its objective, its bookkeeping, and its end."""

from __future__ import annotations

import json
import math
import statistics
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import specdec
from refusals import refuses
from specdec import InputError, SkipSearch, SkipTrial, search_skips
from specdec.drafts import SkipLayers
from specdec.errors import MissingPackageError
from worlds.folders import llama_config, tensors_for, write_hf

PROMPTS = [[1, 5, 9], [1, 7]]
N_LAYER = 3
OPTIONS: dict[str, Any] = {"gammas": [1, 3], "max_new_tokens": 12, "n_threads": 1, "progress": False}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> specdec.Model:
    settings = llama_config(num_hidden_layers=N_LAYER)
    tensors = tensors_for(settings, seed=2)
    for name, array in tensors.items():  # layers of unequal weight, so that it matters which are skipped
        if "o_proj" in name or "down_proj" in name:
            array *= 4.0 / (1 + int(name.split(".")[2])) ** 2
    folder = write_hf(tmp_path_factory.mktemp("models") / "tiny", settings, tensors)
    return specdec.load(folder, tokenizer=False)


def modeled(draft: SkipLayers | None, result: specdec.Result) -> float:
    """Simulated seconds of a run, if attention and MLP cost the same and verification is free."""
    n_left = 0 if draft is None else 2 * N_LAYER - len(draft.attn) - len(draft.mlp)
    return sum(1.0 + r.n_drafted * n_left / (2 * N_LAYER) for r in result.trace.rounds)


TIMED = "specdec.analysis.experiment._timed"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[SkipLayers | None]:
    """Simulate times by a model, so that searches can be compared; return the drafts that ran, in order."""
    run: list[SkipLayers | None] = []

    def timed(target: Any, draft: Any, prompt: Any, options: Any) -> Any:
        result = specdec.generate(target, draft, prompt, **options)
        run.append(draft)
        return modeled(draft, result), result

    monkeypatch.setattr(TIMED, timed)
    return run


def choices() -> Iterator[SkipLayers]:
    flags = list(product([False, True], repeat=N_LAYER))
    for attn, mlp, gamma in product(flags, flags, OPTIONS["gammas"]):
        skipped = [tuple(i for i in range(N_LAYER) if part[i]) for part in (attn, mlp)]
        if 0 < len(skipped[0]) + len(skipped[1]) < 2 * N_LAYER:
            draft = SkipLayers(*skipped)
            draft.gamma = gamma
            yield draft


def speedup_of(target: specdec.Model, draft: SkipLayers) -> float:
    """Simulated speed-up over plain decoding."""
    seconds = [0.0, 0.0]
    for i, prompt in enumerate(PROMPTS):
        for j, one in enumerate((None, draft)):
            options = {"max_new_tokens": 12, "ignore_eos": True, "seed": [(0, i)]}
            seconds[j] += modeled(one, specdec.generate(target, one, prompt, **options))
    return seconds[0] / seconds[1]


@pytest.mark.oracle
def test_it_finds_what_an_exhaustive_search_finds(target: specdec.Model, clock: list[Any]) -> None:
    """60 trials find one of the best three of 124 choices; one blind search in four would not.

    Most of the last 20 trials are among the best fifth of all choices.
    """
    every = sorted(speedup_of(target, draft) for draft in choices())
    assert every[-1] > 1.05 * every[len(every) // 2]
    for seed in range(3):
        search = search_skips(target, PROMPTS, n_trials=60, seed=seed, **OPTIONS)
        assert search.best.speedup >= every[-3]
        assert search.finals[0] == search.best
        assert statistics.median(trial.speedup for trial in search.trials[-20:]) > every[-len(every) // 5]


@pytest.mark.oracle
def test_equal_seeds_search_alike(target: specdec.Model, clock: list[Any]) -> None:
    first, again, other = (
        search_skips(target, PROMPTS, n_trials=20, seed=seed, **OPTIONS) for seed in (1, 1, 2)
    )
    assert (first.trials, first.finals) == (again.trials, again.finals)
    assert first.trials != other.trials
    begun = [(trial.attn, trial.mlp) for trial in first.trials[:8]]
    assert len(set(begun)) == 8 and ((1,), (1,)) in begun  # the middle layer, whole
    assert all(0 < len(t.attn) + len(t.mlp) < 2 * N_LAYER for t in first.trials)
    assert {trial.gamma for trial in first.trials} == {1, 3}


@pytest.mark.oracle
def test_plain_decoding_takes_its_turn(target: specdec.Model, clock: list[Any]) -> None:
    """Every trial and final: both once a turn, in alternating order; the numbers are those of these runs."""
    search = search_skips(target, PROMPTS, n_trials=4, **OPTIONS)
    pairs = list(zip(clock[0::2], clock[1::2], strict=True))
    assert all((first is None) != (second is None) for first, second in pairs)
    assert {first is None for first, _ in pairs} == {True, False}
    assert len(clock) == 2 * len(PROMPTS) * (4 + 3 * 5)
    for i, trial in enumerate(search.trials):
        plain_s = draft_s = 0.0
        n_calls = n_tokens = 0
        betas: list[float] = []
        for j, prompt in enumerate(PROMPTS):
            options = {"max_new_tokens": 12, "seed": [(i, j)], "ignore_eos": True}
            plain_s += modeled(None, specdec.generate(target, None, prompt, **options))
            out = specdec.generate(target, trial.draft, prompt, **options)
            assert out.trace.rounds[0].n_drafted == trial.gamma  # the draft brings its gamma
            draft_s += modeled(trial.draft, out)
            n_calls, n_tokens = n_calls + out.trace.n_calls, n_tokens + len(out.tokens)
            betas += [beta for one in out.trace.rounds for beta in one.betas]
        assert trial.speedup == pytest.approx(plain_s / draft_s)
        assert trial.tokens_per_s == pytest.approx(n_tokens / draft_s)
        assert trial.tokens_per_call == pytest.approx(n_tokens / n_calls)
        assert trial.acceptance_rate == pytest.approx(sum(betas) / len(betas))


@pytest.mark.oracle
def test_a_search_by_the_clock_on_the_wall(target: specdec.Model, tmp_path: Path, capsys: Any) -> None:
    options = OPTIONS | {"progress": True, "path": tmp_path / "found.json"}
    search = search_skips(target, PROMPTS, n_trials=3, temperature=0.8, top_k=20, **options)
    assert "6/6" in capsys.readouterr().err
    assert SkipSearch.load(tmp_path / "found.json") == search
    assert len(search.trials) == 3 and len(search.finals) == 3
    for trial in (*search.trials, *search.finals):
        assert trial.speedup > 0 and trial.tokens_per_s > 0 and 0 <= trial.acceptance_rate <= 1
    plain = specdec.generate(target, None, PROMPTS[0], max_new_tokens=10)
    assert specdec.generate(target, search.draft, PROMPTS[0], max_new_tokens=10).tokens == plain.tokens


@pytest.mark.oracle
def test_a_search_is_saved_and_goes_on(target: specdec.Model, clock: list[Any], tmp_path: Path) -> None:
    path = tmp_path / "skips.json"
    first = search_skips(target, PROMPTS, n_trials=5, path=path, **OPTIONS)
    assert SkipSearch.load(path) == first
    more = search_skips(target, PROMPTS, n_trials=9, path=path, **OPTIONS)
    assert more.trials[:5] == first.trials and len(more.trials) == 9
    assert len({(t.attn, t.mlp, t.gamma) for t in more.trials}) >= 8  # it does not start over
    for change in ({"gammas": [2]}, {"seed": 1}, {"temperature": 0.5}, {"prompts": PROMPTS[:1]}):
        (name,) = change
        with pytest.raises(InputError, match=f"another {name}"):
            search_skips(target, n_trials=9, path=path, **{"prompts": PROMPTS, **OPTIONS, **change})
    assert SkipSearch.load(path) == more


OTHER = ["", "[]", "{}", '{"specdec_skip_search": 2}', '{"specdec_skip_search": 1, "target": "x"}',
         '{"specdec_skip_search": ' + "[" * 100_000]  # fmt: skip


@pytest.mark.oracle
@pytest.mark.parametrize("text", OTHER, ids=range(len(OTHER)))
def test_another_file_is_refused(target: specdec.Model, tmp_path: Path, text: str) -> None:
    path = tmp_path / "other.json"
    path.write_text(text, encoding="utf-8")
    for read in (lambda: SkipSearch.load(path), lambda: search_skips(target, PROMPTS, path=path, **OPTIONS)):
        with pytest.raises(InputError, match=r"other\.json"):
            read()
    assert path.read_text(encoding="utf-8") == text


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"settings": {}}, "settings.temperature"), ({"target": ["x"]}, "target"), ({"trials": []}, "trials"),
        ({"settings": {"temperature": "hot"}}, "settings.temperature"), ({"trials": {"attn": 1}}, "trials"),
        ({"settings": {"temperature": True}}, "settings.temperature"),
        ({"trials": [{"speedup": None}]}, "trials[0].speedup"),
        ({"trials": [{"speedup": 10**400}]}, "trials[0].speedup"),
        ({"trials": [{"tokens_per_s": -1.0}]}, "trials[0].tokens_per_s"),
        ({"finals": [{"tokens_per_call": None}]}, "finals[0].tokens_per_call"),
        ({"finals": [{"gamma": 0}]}, "finals[0].gamma"), ({"finals": [{"attn": [-1]}]}, "finals[0].attn[0]"),
        ({"settings": {"temperature": 0.0, "n_layer": 1}}, ""),
        ({"settings": {"temperature": 0.0, "gammas": [1, 4]}}, "trials[0].gamma"),
    ],
    ids=range(14),
)  # fmt: skip
def test_a_file_is_checked_as_a_whole(tmp_path: Path, change: dict[str, Any], field: str) -> None:
    """So that whatever is loaded can be shown; the name of a target is shown escaped."""
    search = SkipSearch("\x1b[31mred", {"temperature": 0.0}, (TRIAL,), (TRIAL,))
    values, path = search.to_dict(), tmp_path / "changed.json"
    for name in ("trials", "finals"):
        if isinstance(entries := change.get(name), list):
            change = change | {name: [values[name][0] | entry for entry in entries]}
    search.save(path)
    assert str(SkipSearch.load(path)) == str(search) and str(search).startswith(r"\x1b[31mred drafting")
    path.write_text(json.dumps(values | change), encoding="utf-8")
    with refuses(f"{path}: {field}") if field else pytest.raises(InputError, match="attn has layer 1"):
        SkipSearch.load(path)


@pytest.mark.oracle
@pytest.mark.parametrize("n_runs", [5, 17, 30])
def test_ctrl_c_leaves_what_was_found(
    target: specdec.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: list[Any], n_runs: int
) -> None:
    """In the second trial, in the fifth, and when the best are measured again."""
    path = tmp_path / "skips.json"
    whole = search_skips(target, PROMPTS, n_trials=6, **OPTIONS)
    del clock[:]
    interrupt_at(monkeypatch, clock, n_runs)
    found = search_skips(target, PROMPTS, n_trials=6, path=path, **OPTIONS)
    n_trials = min(6, n_runs // (2 * len(PROMPTS)))
    assert found.trials == whole.trials[:n_trials] and found.finals == ()
    assert "interrupted" in str(found) and isinstance(found.draft, SkipLayers)
    assert SkipSearch.load(path) == found
    interrupt_at(monkeypatch, clock, -1)
    assert len(search_skips(target, PROMPTS, n_trials=6, path=path, **OPTIONS).trials) == 6
    interrupt_at(monkeypatch, [], 0)  # before any result
    with pytest.raises(KeyboardInterrupt):
        search_skips(target, PROMPTS, **OPTIONS)


def interrupt_at(monkeypatch: pytest.MonkeyPatch, clock: list[Any], n_runs: int) -> None:
    """Press Ctrl-C after so many runs."""

    def timed(target: Any, draft: Any, prompt: Any, options: Any) -> Any:
        if len(clock) == n_runs:
            raise KeyboardInterrupt
        result = specdec.generate(target, draft, prompt, **options)
        clock.append(draft)
        return modeled(draft, result), result

    monkeypatch.setattr(TIMED, timed)


@pytest.mark.oracle
def test_a_speed_up_is_that_of_its_rates(target: specdec.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several repetitions, of which the machine's speed changes: the one with the median speed-up counts."""
    # a trial, then its final: plain, draft, draft, plain, plain, ...
    seconds = iter([1.0, 1.0, 1.0, 0.5, 4.0, 7.0, 3.0, 4.0, 0.9, 2.0, 9.0, 4.6])
    monkeypatch.setattr(
        TIMED,
        lambda target, draft, prompt, how: (next(seconds), specdec.generate(target, draft, prompt, **how)),
    )
    (trial,) = search_skips(target, PROMPTS[:1], n_trials=1, **OPTIONS).finals
    assert trial.speedup == pytest.approx(9.0 / 4.6)
    assert trial.speedup == pytest.approx(trial.tokens_per_s / trial.plain_tokens_per_s)
    assert trial.plain_tokens_per_s == pytest.approx(12 / 9.0)
    assert (trial.speedup_low, trial.speedup_high) == pytest.approx((3.0 / 4.0, 2.0 / 0.9))


TRIAL = SkipTrial((1,), (0, 1), 2, 1.25, 50.0, 40.0, 0.5, 1.75, 1.1, 1.3)


def test_what_is_printed_and_written(tmp_path: Path) -> None:
    slow = replace(TRIAL, speedup=0.9, attn=())
    unknown = replace(TRIAL, acceptance_rate=float("nan"), gamma=1, speedup=0.8)
    search = SkipSearch("tiny", {"temperature": 0.0}, (slow, TRIAL, unknown), (TRIAL,))
    path = tmp_path / "a.json"
    search.save(path)
    json.loads(path.read_text(encoding="utf-8"), parse_constant=pytest.fail)  # JSON has no NaN
    assert repr(SkipSearch.load(path).trials) == repr(search.trials)
    assert search.pays and search.best == TRIAL and search.draft == SkipLayers([1], [0, 1])
    assert search.draft.gamma == 2
    lines = str(search).splitlines()
    assert lines[0] == "tiny drafting for itself at temperature 0, 3 trials"
    assert lines[2].split("  ")[0] == "attn 1, mlp 0 1 ★" and lines[2].endswith("1.25X  1.10 to 1.30")
    assert lines[3].startswith("mlp 0 1 ") and "–" in lines[4]
    assert repr(search) == f"<specdec.SkipSearch: {lines[0]}>" and "<table>" in search._repr_html_()
    honest = replace(search, finals=(slow,))
    assert not honest.pays and "nothing beats plain decoding" in repr(honest)


def test_a_speed_up_above_the_tokens_per_run_is_invalid(tmp_path: Path) -> None:
    """It has no star and is not the best, however high."""
    wrong = replace(TRIAL, attn=(0,), speedup=1.9, speedup_low=1.8, speedup_high=2.5)
    search = SkipSearch("tiny", {"temperature": 0.0}, (wrong, TRIAL), (wrong, TRIAL))
    assert search.best == TRIAL and search.pays
    lines = str(search).splitlines()
    assert "★" in lines[2] and "1.25X" in lines[2] and "★" not in lines[3]
    assert lines[3].endswith("1.90X !  1.80 to 2.50")
    alone = replace(search, finals=(wrong,))
    assert not alone.pays and "★" not in str(alone)
    entries = search.to_dict()  # a file of an earlier version
    for entry in (*entries["trials"], *entries["finals"]):
        del entry["speedup_low"], entry["speedup_high"]
    (tmp_path / "a.json").write_text(json.dumps(entries), encoding="utf-8")
    (loaded, _) = SkipSearch.load(tmp_path / "a.json").trials
    assert math.isnan(loaded.speedup_low) and loaded.speedup == 1.9


@pytest.mark.oracle
def test_bad_arguments_are_refused(target: specdec.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    for argument, value in (
        ("n_trials", 0), ("gammas", [0]), ("gammas", []), ("max_new_tokens", 1.5), ("temperature", -1),
        ("seed", -1), ("verify", "block"), ("gamma", 3),
    ):  # fmt: skip
        with refuses(argument):
            search_skips(target, PROMPTS, **OPTIONS | {argument: value})
    with pytest.raises(InputError, match="the target has no tokenizer"):
        search_skips(target, **OPTIONS)
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(MissingPackageError, match=r"pip install 'specdec-cpu\[search\]'"):
        search_skips(target, PROMPTS, **OPTIONS)
