"""`specdec.oracle`: replays, against counts by hand and runs with the replayed gammas."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import specdec
from experiments import use_forward_times
from specdec import OracleRow, theory
from specdec.analysis import oracle as oracle_module
from specdec.analysis.oracle import fastest, outcomes, replayed
from specdec.analysis.prediction import ForwardTimes
from specdec.drafts import ModelDraft, StaticTree, SuffixDecoding
from trained import small_pair

Pair = tuple[specdec.Model, specdec.Model]
TIMES = ForwardTimes({m: 1.0 + 0.1 * (m - 1) for m in range(1, 50)}, 0.05)
PROMPTS = ["It was a dark and stormy night, and", "The captain of the ship"]


@pytest.fixture(scope="module")
def pair() -> Pair:
    return small_pair()


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable timing."""
    use_forward_times(monkeypatch, TIMES.target_s)


def made(n_drafted: int, n_accepted: int) -> Any:
    parents = tuple(range(n_drafted))
    return SimpleNamespace(
        drafted=(7,) * n_drafted, parents=parents, rows=tuple(range(n_drafted + 1)),
        n_drafted=n_drafted, n_accepted=n_accepted,
        tokens=(7,) * (n_accepted + 1),
    )  # fmt: skip


def test_a_replay_by_hand() -> None:
    text = outcomes([made(4, 2), made(4, 4), made(0, 0), made(4, 0)])
    assert text == [True, True, False, True, True, True, True, False, None, False]
    assert replayed(text, 0) == [(0, 1)] * 10
    # after an accepted draft token the next position is the target's own
    assert replayed(text, 1) == [(1, 2), (1, 1), (1, 2), (1, 2), (1, 1), (0, 1), (0, 1)]
    assert replayed(text, 4) == [(4, 3), (4, 5), (0, 1), (0, 1)]


def test_the_fastest_rounds_are_those_of_an_exhaustive_search() -> None:
    """With stepped times it may pay to draft less than will be accepted."""

    def least(text: list[bool | None], at: int, seconds: list[float]) -> float:
        if at >= len(text):
            return 0.0
        limit = 0 if text[at] is None else min(len(seconds) - 1, len(text) - 1 - at)
        found = []
        for gamma in range(limit + 1):
            n = 0
            while n < gamma and text[at + n]:
                n += 1
            found.append(seconds[gamma] + least(text, at + n + 1, seconds))
        return min(found)

    rng = np.random.default_rng(7)
    for _ in range(50):
        text: list[bool | None] = [[True, True, False, None][k] for k in rng.integers(0, 4, 9)]
        seconds = [*rng.uniform(0.5, 3.0, 4)]
        rounds = fastest(text, seconds)
        assert sum(n for _, n in rounds) == len(text)
        assert math.fsum(seconds[g] for g, _ in rounds) == pytest.approx(least(text, 0, seconds))
    assert fastest([True, True, False], [1.0, math.nan, 1.2]) == [(2, 3)]
    assert fastest([], [1.0]) == []


def test_no_fixed_gamma_is_faster_than_the_oracle() -> None:
    """Even if four rows take three times as long as three, or times are wrong."""
    rng = np.random.default_rng(5)
    rounds = [made(5, min(int(k), 5)) for k in rng.geometric(0.3, size=300) - 1]
    for seconds in ([1.0, 1.1, 1.2, 3.6, 3.8, 4.0], [1.0, 1.4, 0.4, 2.0, 0.9, 1.7]):
        times = ForwardTimes(dict(enumerate(seconds, 1)), 0.05)
        *fixed, _, perfect, skipping = oracle_module.rows_of([rounds], [rounds], range(6), 0.7, times)
        assert max(row.speedup for row in fixed) <= perfect.speedup * (1.0 + 1e-12)
        assert skipping.speedup >= perfect.speedup or perfect.invalid


def test_a_speed_up_above_the_tokens_per_run_is_invalid(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = ForwardTimes({m: 1.0 if m != 3 else 0.2 for m in range(1, 50)}, 0.01)
    use_forward_times(monkeypatch, wrong.target_s, 0.01)
    found = specdec.oracle(*pair, PROMPTS, max_new_tokens=40, gammas=[0, 1, 2], n_threads=1)
    invalid = {row.name for row in found.rows if row.invalid}
    assert invalid >= {"gamma 2", "oracle"} and not invalid & {"gamma 0", "gamma 1"}
    assert found.best.name == "gamma 1"
    text = str(found)
    assert text.count("X !") >= 2 and "! measurement error" in text and "gamma 2 ★" not in text
    invalid = OracleRow("gamma 3", 2.0, 2.5, 2.0, 1.5).invalid
    assert invalid == "invalid: 2.50 is above the tokens per pass, 2.00"


def test_gammas_of_a_tree_really_run(pair: Pair) -> None:
    """Tokens per pass are measured; the oracle drafts accepted paths; no formula is shown."""
    draft = ModelDraft(pair[1], tree=StaticTree((2, 1, 1)))  # samples: equal draft tokens share a row
    options: dict[str, Any] = {"max_new_tokens": 40, "temperature": 1.0, "verify": "rejection"}
    found = specdec.oracle(pair[0], draft, PROMPTS, gammas=[2, 6], max_gamma=6, **options)
    for gamma in (2, 6):
        rounds = [
            r
            for i, prompt in enumerate(PROMPTS)
            for r in specdec.generate(
                pair[0], draft, prompt, gamma=gamma, seed=[(0, i)], ignore_eos=True, **options
            ).trace.rounds
        ]
        row = found[f"gamma {gamma}"]
        assert row.tokens_per_call == sum(len(r.tokens) for r in rounds) / len(rounds)
        texts = []  # draft tokens from the root to each node of a tree
        for r in rounds:
            texts.append([()])
            for token, parent in zip(r.drafted, r.parents, strict=True):
                texts[-1].append((*texts[-1][parent], token))
        rows = [len({*several}) for several in texts]
        assert any(n <= r.n_drafted for n, r in zip(rows, rounds, strict=True))
        verification = math.fsum(TIMES.target_s[n] for n in rows)
        assert row.speedup == pytest.approx(sum(len(r.tokens) for r in rounds) / verification, rel=1e-2)
        assert math.isnan(row.closed_speedup)
    longest = sum(r.n_accepted + 1 for r in rounds)  # of gamma 6: every round with its accepted path alone
    seconds = math.fsum(TIMES.target_s[r.n_accepted + 1] for r in rounds)
    assert found["oracle"].speedup >= longest / (seconds + 1e-2) * (1 - 1e-2)
    assert found.alpha is None and "alpha" not in str(found)
    assert repr(found).startswith("<specdec.Oracle: modeldraft drafting for ")


def test_a_memory_begins_each_run_with_what_it_knows_now(pair: Pair) -> None:
    """Otherwise the second run would know the first one's text; the given draft stays unchanged."""
    memory = SuffixDecoding(branches=False)
    options: dict[str, Any] = {"max_new_tokens": 30, "gammas": [4], "max_gamma": 8}
    first = specdec.oracle(pair[0], memory, PROMPTS * 2, **options)
    assert memory.n_texts == 0
    again = specdec.oracle(pair[0], memory, PROMPTS * 2, **options)
    assert first["gamma 4"].tokens_per_call == again["gamma 4"].tokens_per_call
    fresh = SuffixDecoding(branches=False)  # a run of these prompts learns from its own texts
    runs = [
        specdec.generate(pair[0], fresh, prompt, gamma=4, max_new_tokens=30, ignore_eos=True)
        for prompt in PROMPTS * 2
    ]
    n_calls = sum(run.trace.n_calls for run in runs)
    n_tokens = sum(len(r.tokens) for run in runs for r in run.trace.rounds)
    assert first["gamma 4"].tokens_per_call == n_tokens / n_calls
    assert runs[2].trace.n_calls < runs[0].trace.n_calls


def test_a_replay_is_the_run_with_that_gamma(pair: Pair) -> None:
    """Round by round, except after as many accepted draft tokens as the replay knows."""
    target, draft = pair
    longest = specdec.generate(target, draft, PROMPTS[0], gamma=60, max_new_tokens=80, ignore_eos=True)
    text = outcomes(longest.trace.rounds)[:80]
    n_full = sum(r.n_drafted == r.n_accepted for r in longest.trace.rounds[:-1])
    for gamma in (0, 1, 2, 3, 5):
        run = specdec.generate(target, draft, PROMPTS[0], gamma=gamma, max_new_tokens=80, ignore_eos=True)
        played = [n for _, n in replayed(text, gamma)]
        wanted = [len(r.tokens) for r in run.trace.rounds]
        if n_full == 0:
            assert played == wanted
        assert abs(len(played) - len(wanted)) <= n_full


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_what_an_oracle_gains(pair: Pair, temperature: float) -> None:
    found = specdec.oracle(*pair, PROMPTS, max_new_tokens=100, temperature=temperature, seed=3, n_threads=1)
    perfect, skipping, auto = found["oracle"], found["oracle, not verified"], found["auto"]
    fixed = [row for row in found.rows if row.name.startswith("gamma")]
    assert found.n_tokens == 200 and 0.3 < found.alpha < 1 and found.c == 0.05
    # More tokens per pass than any shorter gamma, no rejected draft token, and rows that cost nothing.
    assert all(perfect.tokens_per_call >= row.tokens_per_call for row in fixed)
    assert all(perfect.speedup > row.speedup for row in fixed) and perfect.speedup > auto.speedup
    assert skipping.speedup > perfect.speedup and skipping.tokens_per_call == perfect.tokens_per_call
    assert found.best in fixed and found.best.speedup == max(row.speedup for row in fixed)
    assert fixed[2].closed_tokens_per_call == theory.expected_tokens(found.alpha, 3)
    assert perfect.closed_speedup == theory.oracle_speedup(found.alpha, 0.05)
    assert math.isnan(auto.closed_speedup) and auto.tokens_per_call >= 1  # 1 on a busy machine
    text = str(found)
    assert "oracle, not verified" in text and "★" in text and "auto" in text
    assert "<table>" in found._repr_html_()
    assert found.to_dict()["rows"][-1]["name"] == "oracle, not verified"
    with pytest.raises(KeyError):
        found["gamma 99"]


def test_independent_draft_tokens_match_the_formulas_of_the_paper() -> None:
    """A synthetic draft, right with probability 0.7: equation (1) and 1 / (1 - alpha)."""
    rng = np.random.default_rng(4)
    alpha, n = 0.7, 20_000
    runs = [int(k) for k in rng.geometric(1 - alpha, size=n) - 1]
    rounds = [made(40, min(k, 40)) for k in runs]
    rows = oracle_module.rows_of([rounds], [rounds], [1, 3], alpha, TIMES)
    for row in rows[:2] + rows[3:]:
        # standard error of the mean of n lengths: sqrt(alpha) / (1 - alpha) / sqrt(n) = 0.02 at most
        assert row.tokens_per_call == pytest.approx(row.closed_tokens_per_call, abs=0.06)
