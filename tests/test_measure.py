"""Results of `measure` and `tune` against the reference's distributions, formulas and simulated clocks."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy

import specdec
from experiments import use_forward_times, use_speedups
from specdec import DecodingOptions, Speedup, reference, theory
from specdec.drafts import ModelDraft, OnlineNgram, PromptLookup
from specdec.errors import InputError, VocabularyMismatchError
from toy_pair import N_CTX, N_VOCAB, load_pair
from trained import small_pair
from worlds.folders import llama_config, tensors_for, write_hf

pytestmark = pytest.mark.usefixtures("quick_timing")

Pair = tuple[specdec.Model, specdec.Model]
PROMPTS = ["ab ab", [1, 5, 9, 30], "ba", np.array([1, 4])]
LENIENCES = (1.0, 0.5, 0.1)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return load_pair(tmp_path_factory.mktemp("pair"), amount=0.2)


@pytest.fixture(scope="module")
def measured(pair: Pair) -> specdec.Measurement:
    return specdec.measure(
        *pair, PROMPTS, gammas=(2, 1), temperatures=(0, 1.3), leniences=LENIENCES, n_tokens=160,
        timing=specdec.Timing(repeats=1, n_tokens=30),
        options=DecodingOptions(top_k=20, min_p=0.02, seed=3),
    )  # fmt: skip


@pytest.fixture(scope="module")
def untimed(pair: Pair) -> specdec.Measurement:
    return specdec.measure(*pair, PROMPTS, n_tokens=80, timing=False)


def standardized(logits: np.ndarray, temperature: float) -> np.ndarray:
    """The reference's distribution with the fixture's top-k, then min-p."""
    probs = reference.distribution(logits, temperature, 20)
    probs = np.where(probs >= 0.02 * probs.max(), probs, 0.0)
    return probs / probs.sum()


@pytest.mark.parametrize("temperature", [0.0, 1.3])
def test_betas_are_the_overlap_of_the_references_distributions(
    pair: Pair, measured: specdec.Measurement, temperature: float
) -> None:
    """Both models' logits on the target's text, standardized in plain NumPy (Corollary 3.6, A.5)."""
    found: dict[float, list[float]] = {lenience: [] for lenience in LENIENCES}
    for prompt, tokens, betas in zip(
        measured.prompts, measured.tokens[temperature], measured.betas[temperature], strict=True
    ):
        assert len(betas) == len(tokens) > 0
        target, draft = (model.logits([*prompt, *tokens[:-1]])[len(prompt) - 1 :] for model in pair)
        here = []
        for row in range(len(tokens)):
            q = standardized(draft[row], temperature)
            if temperature:
                p = standardized(target[row], temperature)
                overlaps = {lenience: np.minimum(p / lenience, q).sum() for lenience in LENIENCES}
            else:
                p = reference.distribution(target[row], 1.0)
                draft_token = q.argmax()
                overlaps = {lenience: float(p[draft_token] >= lenience * p.max()) for lenience in LENIENCES}
            here.append(overlaps[1.0])
            for lenience, overlap in overlaps.items():
                found[lenience].append(overlap)
        assert betas == pytest.approx(here, abs=1e-4)
    for row in measured.rows:
        if row.temperature == temperature:
            assert row.alpha == pytest.approx(np.mean(found[row.lenience]), abs=1e-4)
            assert row.n_tokens == len(found[1.0])
            assert row.alpha_low < row.alpha < row.alpha_high


def test_greedy_betas_say_where_greedy_rounds_accept(pair: Pair, measured: specdec.Measurement) -> None:
    """At temperature 0 a round accepts as many drafts as there are ones in a row where it begins."""
    for prompt, tokens, betas in zip(
        measured.prompts, measured.tokens[0.0], measured.betas[0.0], strict=True
    ):
        out = specdec.generate(*pair, prompt, gamma=3, max_new_tokens=len(tokens))
        assert out.tokens == tokens
        at = 0
        for round_ in out.trace.rounds:
            run = betas[at : at + round_.n_drafted]
            assert round_.n_accepted == int(np.cumprod(run).sum())
            at += round_.kept


def test_texts_are_the_targets_own(pair: Pair, measured: specdec.Measurement) -> None:
    assert measured.text is not None
    for i, prompt in enumerate(measured.prompts):
        out = specdec.generate(
            pair[0], None, prompt, max_new_tokens=40, temperature=1.3, top_k=20, min_p=0.02, seed=[(3, i)]
        )
        assert measured.tokens[1.3][i] == out.tokens
        pieces = measured.text[1.3][i]
        assert len(pieces) == len(out.tokens)
        if out.finish_reason != "stop":
            assert "".join(pieces) == out.text


class Uneven:
    """A draft distribution without model: after token y, half of the mass is on y + 1."""

    def probabilities(self, ids: Sequence[int], n_vocab: int = N_VOCAB) -> np.ndarray:
        rows = np.full((len(ids), n_vocab), 0.5 / n_vocab)
        rows[np.arange(len(ids)), (np.asarray(ids) + 1) % n_vocab] += 0.5
        return rows


@pytest.mark.parametrize("draft", [Uneven(), OnlineNgram(2)])
def test_a_draft_may_be_any_object_with_probabilities(pair: Pair, draft: Any) -> None:
    """A table that learns has counted the text so far, as when it drafts."""
    found = specdec.measure(pair[0], draft, PROMPTS, gammas=(1, 3), n_tokens=40)
    ratios = []
    for prompt, tokens, betas in zip(found.prompts, found.tokens[1.0], found.betas[1.0], strict=True):
        ids, n = [*prompt, *tokens[:-1]], len(prompt) - 1
        rows = np.array(draft.probabilities(ids, N_VOCAB))[n:]
        targets = np.array([reference.distribution(logits, 1.0) for logits in pair[0].logits(ids)[n:]])
        assert betas == pytest.approx(np.minimum(targets, rows).sum(axis=1), abs=1e-4)
        ratios.append((rows / targets)[range(len(tokens)), tokens])
    for row in found.rows:
        if isinstance(draft, Uneven):  # of which no run is timed
            assert row.draft == "uneven" and row.c == found.draft_s == 0.0 and row.speedup is None
        tokens = theory.expected_tokens(row.alpha, row.gamma)
        assert row.rule == ("block" if row.temperature and row.lenience == 1.0 else "rejection")
        if row.rule == "block":
            tokens = theory.expected_block_tokens(ratios, row.gamma)
        predicted = tokens / (row.gamma * row.c + max(row.verify_ratio, 1.0))
        assert row.predicted_speedup == pytest.approx(predicted, rel=1e-4)
    tuned = specdec.tune(pair[0], draft, PROMPTS, max_gamma=1, n_tokens=8)
    assert tuned.draft == type(draft).__name__.lower()
    assert (tuned.row.c == 0.0) == isinstance(draft, Uneven)


def test_texts_end_with_the_shorter_context(pair: Pair, tmp_path: Path) -> None:
    config = llama_config(vocab_size=N_VOCAB, max_position_embeddings=32)
    short = specdec.load(write_hf(tmp_path / "short", config, tensors_for(config, seed=4)))
    prompt = [1, 5, 9, 30]
    for draft, n in ((short, 32 + 1), (pair[1], N_CTX)):  # the last token is not read by the draft
        found = specdec.measure(pair[0], draft, [prompt], temperatures=[0], n_tokens=500, timing=False)
        assert len(found.tokens[0][0]) == n - len(prompt)
    with pytest.raises(InputError, match="prompt 0 has 40 tokens; expected fewer than the context length"):
        specdec.measure(pair[0], short, [[1] * 40], timing=False)
    for one in (short, ModelDraft(short)):  # the text that is timed fits the draft's context
        timed = specdec.oracle(pair[0], one, [[1] * 60], gammas=[1], max_gamma=2, max_new_tokens=4)
        assert timed.draft_s > 0.0


def test_rows_are_the_formulas_on_what_was_measured(measured: specdec.Measurement) -> None:
    settings = [(row.temperature, row.lenience, row.gamma) for row in measured.rows]
    assert settings == [(t, lenience, g) for t in (0.0, 1.3) for lenience in LENIENCES for g in (2, 1)]
    assert list(measured.verify_ratio) == [1, 2, 3]
    assert measured.verify_ratio[1] == 1.0
    for row in measured.rows:
        assert row.c == measured.draft_s / measured.target_s > 0.0
        assert row.verify_ratio == measured.verify_ratio[row.gamma + 1]
        tokens = sum(row.alpha**i for i in range(row.gamma + 1))
        if row.rule == "block":  # its tokens follow from texts, not from alpha
            tokens = row.ideal_speedup * (row.gamma * row.c + 1.0)
            assert 1.0 < tokens < row.gamma + 1
        assert row.ideal_speedup == pytest.approx(tokens / (row.gamma * row.c + 1.0))
        counted = max(row.verify_ratio, 1.0)  # a smaller one is an error of measurement
        assert row.predicted_speedup == pytest.approx(tokens / (row.gamma * row.c + counted))
        assert (row.speedup is None) == (row.lenience != 1.0)
        if row.speedup is not None:
            assert row.speedup.low == row.speedup.median == row.speedup.high > 0.0  # one repetition
            assert 1.0 <= row.tokens_per_call <= row.gamma + 1


def test_lenient_runs_are_timed_if_asked(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    def speedup(run: Any) -> Speedup:
        ratio = run.gamma + 10 * run.options["temperature"] + run.options.get("lenience", 1.0)
        return Speedup((ratio - 1, ratio, ratio + 1), (20.0,) * 3)

    use_speedups(monkeypatch, speedup)
    options = {"gammas": (1, 2), "leniences": (1.0, 0.5), "n_tokens": 20}
    timing = specdec.Timing(repeats=1, n_tokens=8, leniences=True)
    found = specdec.measure(*pair, PROMPTS, **options, timing=timing)
    for row in found.rows:
        assert row.speedup.median == row.gamma + 10 * row.temperature + row.lenience
    assert "measured" in found.tables()[3].rows[0][2]
    found = specdec.measure(*pair, PROMPTS, **options, timing=replace(timing, leniences=False))
    assert all((row.speedup is None) == (row.lenience == 0.5) for row in found.rows)


def test_a_rule_that_was_not_asked_for_is_not_timed(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """The progress bar completes, whether the draft has a distribution or is run."""
    counts: list[list[int]] = []

    @contextmanager
    def counted(total: int, unit: str, wanted: bool) -> Iterator[Callable[[int], None]]:
        advanced: list[int] = []
        yield advanced.append
        counts.append([total, sum(advanced)])

    for view in ("measure", "compare"):
        monkeypatch.setattr(f"specdec.analysis.{view}.counted", counted)
    options = {"gammas": [2], "leniences": [0.5], "temperatures": [0.0], "n_tokens": 8}
    for draft in (pair[1], PromptLookup()):
        found = specdec.measure(pair[0], draft, [[1, 5, 9, 30], [1, 4]], **options)
        assert found.rows[0].speedup is None and found.verify_ratio
        assert counts[-1] == [8, 8]
    timing = specdec.Timing(2, 12, leniences=True)
    specdec.measure(*pair, PROMPTS, n_tokens=30, gammas=[1], timing=timing)
    tuned = specdec.tune(*small_pair(), max_gamma=1, n_tokens=40)  # of the given prompts
    assert tuned.row.n_tokens == 40 and 0.3 < tuned.row.alpha <= 1.0
    assert all(done == total > 30 for total, done in counts[-2:])


def test_without_timing_there_are_acceptance_rates_alone(untimed: specdec.Measurement) -> None:
    assert untimed.verify_ratio == {}
    assert math.isnan(untimed.target_s) and math.isnan(untimed.draft_s)
    for row in untimed.rows:
        assert row.c is row.verify_ratio is row.predicted_speedup is row.speedup is None
        assert 0.0 <= row.alpha <= 1.0


def test_speedup_is_the_median_ratio_of_times_a_token(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock on which prefills take 100 s, and everything else ten times longer with each repetition."""
    clock = SimpleNamespace(now=0.0)
    calls: list[tuple[int, int, int]] = []

    def generate(target: Any, draft: Any, prompt: Any, *, gamma: int = 0, **options: Any) -> Any:
        assert options.get("lenience", 1.0) == (0.3 if gamma else 1.0) and (draft is None) == (gamma == 0)
        out = specdec.generate(target, draft, prompt, gamma=gamma, **options)
        ((repetition, index),) = options["seed"]
        calls.append((repetition, index, gamma))
        slowness = 10.0 ** (repetition - 7) / (1 + gamma * (1.0 if repetition < 9 else 5.0))
        clock.now += 100.0 + slowness * len(out.tokens)
        out.trace.prefill_s = 100.0
        return out

    monkeypatch.setattr("specdec.analysis.experiment.generate", generate)
    monkeypatch.setattr("specdec.analysis.experiment.time", SimpleNamespace(perf_counter=lambda: clock.now))
    rows = specdec.compare(
        pair[0], {"draft": pair[1]}, [[1], [2]], temperatures=[0.5], gammas=[1, 4], n_tokens=15, repeats=3,
        seed=7, lenience=0.3,
    ).rows  # fmt: skip
    one, four = (row.speedup for row in rows)
    assert one.ratios == pytest.approx((2.0, 2.0, 6.0)) and four.ratios == pytest.approx((5.0, 5.0, 21.0))
    assert (four.median, four.low, four.high) == pytest.approx((5.0, 5.0, 21.0))
    assert rows[0].n_tokens > 2 * 15 and all(row.verify_ratio > 0.0 for row in rows)  # of all turns
    assert calls == [
        (r, i, g) for r in (7, 8, 9) for i in range(2) for g in ((4, 1, 0) if r == 8 else (0, 1, 4))
    ]


def test_independence_is_tested_on_the_betas(measured: specdec.Measurement) -> None:
    found, betas = measured.independence[1.3], measured.betas[1.3]
    n = found.n_tokens
    assert n == sum(map(len, betas)) and found.band == pytest.approx(1.96 / math.sqrt(n))
    centered = [text - np.concatenate(betas).mean() for text in betas]
    power = sum(text @ text for text in centered)
    lags = range(1, len(found.autocorrelation) + 1)
    wanted = [sum(x[lag:] @ x[:-lag] for x in centered if len(x) > lag) / power for lag in lags]
    assert found.autocorrelation == pytest.approx(wanted)
    statistic = n * (n + 2) * sum(r**2 / (n - lag) for lag, r in zip(lags, wanted, strict=True))
    p_value = scipy.stats.chi2.sf(statistic, len(lags))
    assert (found.statistic, found.p_value) == pytest.approx((statistic, p_value))
    pairs = sum((text[:-1] * text[1:]).sum() for text in betas) / sum(text[:-1].sum() for text in betas)
    assert found.by_position == pytest.approx((np.concatenate(betas).mean(), pairs), abs=1e-9)


def test_views_show_what_there_is(measured: specdec.Measurement, untimed: specdec.Measurement) -> None:
    loaded = json.loads(json.dumps(measured.to_dict()))
    assert loaded["rows"][0]["alpha"] == measured.rows[0].alpha
    assert loaded["rows"][0].keys() == set(specdec.ExperimentRow.__dataclass_fields__)
    assert loaded["betas"]["1.3"][0] == measured.betas[1.3][0].tolist()
    assert loaded["verify_ratio"]["3"] == measured.verify_ratio[3]
    assert loaded["independence"]["0.0"]["p_value"] == measured.independence[0.0].p_value
    json.dumps(untimed.to_dict())
    text, html = str(measured), measured._repr_html_()
    for part in ("Table 2", "Table 3", "Table 4", "Table 5", "t(M) / t(1)", "Ljung-Box"):
        assert part in text
    assert html.count("<table>") == 6
    assert f"{measured.rows[0].alpha:.3f}" in text and f"{measured.rows[0].alpha:.3f}" in html
    assert [table.title[:7] for table in untimed.tables()] == ["Table 3", "Table 5", "Indepen"]
    assert "alpha" in repr(measured) and "'target'" in repr(measured)
    table = measured.tables()[0]
    assert table.markdown().splitlines()[2] == "| draft | temp | gamma | alpha | speed-up (min to max) |"
    assert len({len(row) for row in (table.head, *table.rows)}) == 1
    first, second = measured.rows[0], measured.rows[-1]
    mixed = replace(untimed, rows=(first, replace(second, lenience=1.0), first))
    samplings = next(one for one in mixed.tables() if one.title.startswith("Table 3"))
    assert [row[1] for row in samplings.rows] == ["T=0", "T=1.3"]


def test_a_model_that_is_wrapped_as_a_draft_is_measured_as_the_model() -> None:
    target, small = small_pair()
    options: dict[str, Any] = {"temperatures": [0.0], "n_tokens": 30, "timing": False}
    found = [specdec.measure(target, one, ["It was"], **options) for one in (small, ModelDraft(small))]
    assert found[0].rows[0].alpha == found[1].rows[0].alpha > 0.0
    assert found[1].rows[0].draft == found[0].rows[0].draft


def test_betas_that_are_all_alike_have_no_correlation() -> None:
    target, _ = small_pair()

    class Never:
        """A draft with all mass on a token that the target never writes."""

        def probabilities(self, ids: Sequence[int]) -> np.ndarray:
            rows = np.zeros((len(ids), target.config["n_vocab"]))
            rows[:, 0] = 1.0
            return rows

    found = specdec.measure(target, Never(), ["It was a dark"], temperatures=[0.0], n_tokens=30, timing=False)
    text = str(found)
    assert found.rows[0].alpha == 0.0 and "correlation with lag 1" in text
    assert "nan" not in text.lower()


@pytest.mark.parametrize(
    ("ratios", "bounds", "reason"),
    [
        ((2.9, 2.1, 3.0), (1.7, 1.7, 1.7), "2.90 is above 1.70"), ((1.6, 1.5, 3.0), (1.7, 1.7, 1.7), ""),
        ((1.9, 2.1, 1.0), (2.0, 2.2, 1.1), ""), ((math.nan,), (math.nan,), ""),
        ((1.9, 2.1, 1.0), (1.8, 1.9, 4.0), "1.90 is above 1.80"),  # the mean of bounds is above every ratio
        ((2.0, 1.0), (1.0, 1.1), "2.00 is above 1.00"), ((1.0004,), (1.0,), "1.0004 is above 1.0000"),
    ],
)  # fmt: skip
def test_a_speed_up_above_the_tokens_per_pass_is_invalid(ratios: Any, bounds: Any, reason: str) -> None:
    """Each repetition has the tokens per pass of its own texts; the median repetition decides."""
    reason = reason.replace("above", "above the tokens per pass,")
    assert Speedup(ratios, bounds).invalid == (f"invalid: {reason}" if reason else "")


def table_of(measured: specdec.Measurement, number: int, *rows: specdec.ExperimentRow) -> Any:
    (found,) = [one for one in replace(measured, rows=rows).tables() if f"Table {number}" in one.title]
    return found


def test_an_invalid_speed_up_has_its_reason_and_no_star(measured: specdec.Measurement) -> None:
    """No round is faster than a plain step, so none gives more speed than tokens."""
    rows = [row for row in measured.rows if row.lenience == 1.0 and row.temperature == 0.0]
    honest = replace(rows[0], gamma=2, speedup=Speedup((1.4, 1.5, 1.6), (2.0,) * 3))
    wrong = replace(rows[1], gamma=1, speedup=Speedup((2.1, 2.9, 3.0), (1.7,) * 3))
    assert [row[2:] for row in table_of(measured, 2, honest, wrong).rows] == [
        ("2 ★", f"{honest.alpha:.2f}", "1.50X (1.40 to 1.60)"),
        ("1  ", f"{wrong.alpha:.2f}", "2.90X ! (2.10 to 3.00)"),
    ]
    lenient = replace(wrong, lenience=0.5)
    fourth = table_of(measured, 4, honest, wrong, lenient)
    shown = [row[fourth.head.index("measured")] for row in fourth.rows]
    assert shown == ["1.50 (1.40 to 1.60)", "2.90 ! (2.10 to 3.00)"]
    valid = replace(lenient, speedup=Speedup((2.1, 2.9, 3.0), (3.7,) * 3))
    for row, mark in ((lenient, " !"), (valid, "")):
        cell = table_of(measured, 5, honest, wrong, row).rows[0][-1]
        assert cell.endswith(f"; measured 2.90X{mark} (2.10 to 3.00))")
    slow = replace(honest, speedup=Speedup((0.9,), (2.0,)))  # plain decoding is faster
    assert all("★" not in table_of(measured, 2, row).rows[0][2] for row in (wrong, slow))


def test_a_prediction_from_a_time_below_t1_is_marked(measured: specdec.Measurement) -> None:
    rows = [row for row in measured.rows if row.lenience == 1.0 and row.temperature == 0.0]
    wrong = replace(rows[0], gamma=2, alpha=0.5, c=0.1, verify_ratio=0.3, predicted_speedup=1.75 / 1.2)
    right = replace(wrong, gamma=1, verify_ratio=1.1, predicted_speedup=1.5 / 1.2)
    assert wrong.invalid_prediction == "invalid: t(3)/t(1) is 0.300, below 1" and not right.invalid_prediction
    rows = [wrong, right, *(replace(row, lenience=0.5) for row in (wrong, right))]
    fourth = table_of(measured, 4, *rows)
    assert [row[fourth.head.index("predicted")] for row in fourth.rows] == ["1.46 !", "1.25"]
    assert "(1.46X !, γ 2" in table_of(measured, 5, *rows).rows[0][-1]


def test_the_seconds_bound_a_measurement(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time per token limits the tokens; the remaining time goes to temperatures that are not timed."""
    monkeypatch.setattr("specdec.analysis.prediction.step_seconds", lambda *_: 0.01)
    use_forward_times(monkeypatch)
    lines: list[str] = []
    found = specdec.measure(*pair, PROMPTS, gammas=[1, 2], seconds=8.0, say=lines.append)
    # 0.3 of 8 s at 0.01 s a token are 120 tokens for each of two temperatures, less a moment.
    assert all(80 < sum(map(len, texts)) <= 119 for texts in found.tokens.values())
    assert len(found.rows) == 2 * 4 * 2 and found.stopped == ""
    assert lines[0].startswith("temperature 0: alpha ") and len(lines) == 2 + 4
    clock = iter(range(10**6))
    monkeypatch.setattr("specdec.time_limit.time", SimpleNamespace(monotonic=lambda: 2.0 * next(clock)))
    for draft in (pair[1], specdec.drafts.Lookahead()):
        short = specdec.measure(pair[0], draft, PROMPTS, gammas=[1, 2], leniences=[1.0], seconds=4.0)
        assert short.stopped == "time limit of 4 s reached" and short.stopped in str(short)
        timed = {row.temperature for row in short.rows if row.speedup is not None}
        assert timed == {0.0}


def test_ctrl_c_keeps_the_rows_that_were_measured(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    use_forward_times(monkeypatch)
    with monkeypatch.context() as patch:
        patch.setattr("specdec.analysis.experiment.take_turns", interrupt)
        found = specdec.measure(*pair, PROMPTS, gammas=[1], n_tokens=20)
    assert found.stopped == "interrupted" and len(found.rows) == 2 * 4
    assert all(row.speedup is None and row.alpha is not None for row in found.rows)
    monkeypatch.setattr("specdec.analysis.prediction.acceptance", interrupt)
    with pytest.raises(KeyboardInterrupt):
        specdec.measure(*pair, PROMPTS, gammas=[1], n_tokens=20)


def test_one_prompt_and_paths_are_taken(make_llama) -> None:
    target, draft = make_llama("target"), make_llama("draft", seed=1)
    with pytest.raises(VocabularyMismatchError):
        specdec.measure(target, make_llama("other", vocab_size=77), PROMPTS[1:2])
    found = specdec.measure(target, draft, [1, 2, 3], n_tokens=5, timing=False)
    assert found.prompts == [[1, 2, 3]]
    assert (found.target, found.draft, found.text) == ("target", "draft", None)
    with pytest.raises(InputError, match="expected token ids, because the target has no tokenizer"):
        specdec.tune(target, draft)


def test_a_prediction_by_hand(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """A draft that is its target: 3 tokens a run, in 2 drafts of half a run and one of one and a half."""
    use_forward_times(monkeypatch, {1: 2.0, 2: 2.4, 3: 3.0}, draft_s=1.0)
    how: dict[str, Any] = {"gammas": [2], "temperatures": [1.0], "leniences": [1.0], "n_tokens": 20}
    (row,) = specdec.measure(
        pair[0], pair[0], PROMPTS, timing=specdec.Timing(repeats=1, n_tokens=4), **how
    ).rows
    assert (row.c, row.verify_ratio) == (0.5, 1.5)
    assert row.predicted_speedup == pytest.approx(1.2) and row.ideal_speedup == pytest.approx(1.5)


def with_times(monkeypatch: pytest.MonkeyPatch, draft_s: float, *target_s: float) -> None:
    use_forward_times(monkeypatch, dict(enumerate(target_s, start=1)), draft_s)


def test_tune_takes_the_best_gamma_for_given_times(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two positions cost as much as one, three cost four times as much: gamma is 1, unlike Theorem 3.8."""
    with_times(monkeypatch, 0.001, 1.0, 1.0, 4.0, 4.0)
    found = specdec.tune(*pair, PROMPTS, max_gamma=3, n_tokens=80)
    assert (found.gamma, found.idealised_gamma, found.row.c) == (1, 3, 0.001) and 0.1 < found.row.alpha < 1.0
    tokens = [sum(found.row.alpha**i for i in range(gamma + 1)) for gamma in range(4)]
    assert found.speedups == pytest.approx({g: tokens[g] / (0.001 * g + (1, 1, 4, 4)[g]) for g in range(4)})
    assert found.idealised == pytest.approx({g: tokens[g] / (0.001 * g + 1) for g in range(4)})
    low, high = found.speedup_intervals[2]
    for alpha, end in ((found.row.alpha_low, low), (found.row.alpha_high, high)):
        assert end == pytest.approx((1 + alpha + alpha**2) / 4.002)
    assert low < found.speedups[2] < high and f"{low:.2f} to {high:.2f}" in str(found)
    assert found.speedups[0] == 1.0
    with_times(monkeypatch, 0.001, 1.0, 1.0, 1.0, 1.0)
    assert specdec.tune(*pair, PROMPTS, max_gamma=3, n_tokens=80).gamma == 3
    with_times(monkeypatch, 0.1, 1.0, 2.0, 3.0)  # drafting does not pay
    found = specdec.tune(*pair, PROMPTS, max_gamma=2, n_tokens=40)
    assert found.gamma == 0 and "0 ★" in str(found)


def test_tune_predicts_and_chooses_nothing_above_its_ideal(pair: Pair, monkeypatch: Any) -> None:
    """Two positions seem to take half the time of one."""
    with_times(monkeypatch, 0.1, 1.0, 0.5, 1.2)
    found = specdec.tune(*pair, PROMPTS, max_gamma=2, n_tokens=40)
    reason = "invalid: t(2)/t(1) is 0.500, below 1"
    assert found.invalid_predictions == {1: reason}
    assert all(found.speedups[gamma] <= found.idealised[gamma] for gamma in range(3))
    assert found.speedups[1] == pytest.approx((1 + found.row.alpha) / 1.1)
    assert [row["invalid"] for row in found.to_dict()["rows"]] == ["", reason, ""]
    assert f"{found.speedups[1]:.2f}X !" in str(found) and str(found).count("! measurement error") == 1


def test_tune_on_a_tiny_pair(pair: Pair) -> None:
    found = specdec.tune(*pair, PROMPTS, max_gamma=3, n_tokens=40, temperature=1.0)
    assert list(found.speedups) == list(found.idealised) == [0, 1, 2, 3]
    assert found.speedups[found.gamma] == max(found.speedups.values())
    assert found.rows[0].verify_ratio == 1.0 and found.row.c > 0.0
    assert (found.alpha, found.c, found.ran) == (found.row.alpha, found.row.c, False)
    rows = json.loads(json.dumps(found.to_dict()))["rows"]
    assert [row["c"] for row in rows] == [found.c] * 4 and rows[1]["tokens_per_call"] is None
    assert found._repr_html_().count("<tr>") == 5 and f"gamma {found.gamma}" in repr(found)
