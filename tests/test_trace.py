"""The statistics of a trace, against the papers' definitions and hand-made rounds."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from statistics import NormalDist

import numpy as np
import pytest
import scipy

from hand_made_rounds import chain, result_of, tree
from refusals import refuses
from specdec import Round, Sampling, Trace, theory

CORRECTED = chain(0, (11, 12, 13, 14), 2, (1.0, 0.9, 0.2))
BONUS = chain(1, (21, 22, 23, 24), 4, (0.9, 0.8, 1.0, 0.7))
NONE = chain(2, (31, 32, 33, 34), 0, (0.1,))
SHORT = chain(3, (41,), 1, (0.6,), times=(0.005, 0.09, 0.005))
TRACE = Trace([CORRECTED, BONUS, NONE, SHORT], prefill_s=0.5)


def test_round_of_a_chain() -> None:
    assert CORRECTED.accepted == (11, 12) and CORRECTED.token == 99
    assert (CORRECTED.n_drafted, CORRECTED.n_accepted, CORRECTED.depth) == (4, 2, 4)
    assert CORRECTED.origin == ("draft", "draft", "correction")
    assert BONUS.origin == ("draft",) * 4 + ("bonus",)
    assert NONE.origin == ("correction",)
    assert chain(0, (), 0, ()).origin == ("target",)


def test_round_of_a_tree() -> None:
    """Two children of the root, the second with a child: the second path was accepted to its leaf."""
    round_ = tree((5, 6, 7), (0, 0, 2), (2, 3), 8, (0.5, 0.25))
    assert (round_.accepted, round_.depth, round_.origin) == ((6, 7), 2, ("draft", "draft", "bonus"))


def test_nodes_with_the_same_tokens_from_the_root_are_one_row() -> None:
    """Nodes 1 and 3 are token 5, 2 and 4 are their children: 5 was accepted, both children were rejected."""
    round_ = tree((5, 6, 5, 7, 6), (0, 1, 0, 3, 3), (1,), 9, (1.0, 0.5))
    assert round_.rows == (0, 1, 2, 1, 4, 2)
    assert round_.origin == ("draft", "correction")
    only = tree((5, 5, 7), (0, 0, 2), (1,), 9, (1.0, 0.5))
    assert only.rows == (0, 1, 1, 3)
    assert only.origin == ("draft", "correction"), "7 is a child of the duplicate of the accepted node"
    statuses = re.findall(r'class="specdec-(\w+)" title', result_of([only])._repr_html_())
    assert statuses == ["accepted", "rejected", "rejected", "target"], "and so 7 was judged too"


# ---------------------------------------------------------------------------------------- figures


def test_counts_and_times() -> None:
    assert (TRACE.n_calls, TRACE.n_drafted, TRACE.n_accepted, TRACE.n_verified) == (4, 13, 7, 9)
    assert TRACE.n_tokens == 3 + 5 + 1 + 2
    times = (TRACE.draft_s, TRACE.verify_s, TRACE.other_s, TRACE.rounds_s, TRACE.total_s)
    assert times == pytest.approx((0.065, 0.39, 0.02, 0.475, 0.975))
    assert TRACE.tokens_per_s == pytest.approx(11 / 0.475)


def test_acceptance() -> None:
    alpha = (1.0 + 0.9 + 0.2 + 0.9 + 0.8 + 1.0 + 0.7 + 0.1 + 0.6) / 9
    assert TRACE.acceptance_rate == pytest.approx(alpha)
    assert TRACE.draft_acceptance_rate == pytest.approx(7 / 13)
    assert TRACE.mean_acceptance_length == pytest.approx(1 + 7 / 4)
    assert TRACE.acceptance_histogram == [1, 1, 1, 0, 1]
    # Position 1: all four rounds drafted it, three accepted; positions 2 to 4: three rounds drafted them.
    assert TRACE.acceptance_by_position == pytest.approx([3 / 4, 2 / 3, 1 / 3, 1 / 3])


def test_speed() -> None:
    alpha, cost = TRACE.acceptance_rate, (0.065 / 13) / (0.39 / 4)
    tokens = (3 * (1 - alpha**5) / (1 - alpha) + (1 - alpha**2) / (1 - alpha)) / 4
    assert TRACE.tokens_per_call == pytest.approx(11 / 4)
    assert TRACE.cost_coefficient == pytest.approx(cost)
    assert TRACE.expected_tokens_per_call == pytest.approx(tokens)
    assert TRACE.ideal_speedup == pytest.approx(tokens / (13 / 4 * cost + 1))
    assert math.isnan(TRACE.target_s)
    assert math.isnan(TRACE.predicted_speedup)


# t(1) = 0.06: the first round's root has been read in the prefill
PLAIN = Trace([chain(i, (), 0, (), times=(0.0, (0.004, 0.05, 0.06, 0.07)[i], 0.001)) for i in range(4)])


def test_experts_of_a_run() -> None:
    """The first round of plain decoding has no forward pass of its own."""
    rounds = [dataclasses.replace(r, experts=(0.0, 2.0, 2.0, 2.0)[r.index]) for r in PLAIN.rounds]
    assert Trace(rounds).experts_per_call == 2.0
    assert math.isnan(Trace(rounds[:1]).experts_per_call) and math.isnan(PLAIN.experts_per_call)
    drafted = [dataclasses.replace(r, experts=4.0 - r.index) for r in (CORRECTED, BONUS)]
    assert Trace(drafted).experts_per_call == 3.5


def test_speed_against_a_plain_run() -> None:
    """With a measured t(1), c has it as denominator, and the prediction counts all of a round's time."""
    trace = TRACE.against(PLAIN)
    tokens = TRACE.expected_tokens_per_call
    assert trace.rounds == TRACE.rounds
    assert trace.prefill_s == TRACE.prefill_s
    assert trace.target_s == PLAIN.run_s == pytest.approx(0.06)
    assert Trace(PLAIN.rounds[:1]).run_s == 0.004 and math.isnan(Trace([]).run_s)
    assert trace.cost_coefficient == pytest.approx((0.065 / 13) / 0.06)
    assert trace.ideal_speedup == pytest.approx(tokens / (13 / 4 * (0.065 / 13) / 0.06 + 1))
    # Rounds take (0.065 + 0.39) / 4 s in both models, where t(1) is 0.06 s.
    assert trace.predicted_speedup == pytest.approx(tokens * 0.06 * 4 / (0.065 + 0.39))
    assert trace.predicted_speedup < 0.7 * trace.ideal_speedup
    assert f"{trace.predicted_speedup:.2f}" in trace.summary()
    assert "not known" not in trace.summary()
    assert "unknown: needs the time of a plain step" in TRACE.summary()
    for trace, plain in ((PLAIN, TRACE), (TRACE, Trace([])), (TRACE, Trace(PLAIN.rounds, n_sequences=2))):
        with refuses("plain"):
            trace.against(plain)


def test_a_prediction_above_the_expected_tokens_is_invalid() -> None:
    """A round takes at least as long as a pass with one row."""
    trace = Trace([NONE], target_s=0.3)  # its round takes 0.12 s
    assert trace.predicted_speedup == pytest.approx(trace.expected_tokens_per_call * 2.5)
    said = f"invalid: {trace.predicted_speedup:.2f} is above the tokens per pass, "
    said += f"{trace.expected_tokens_per_call:.2f}"
    assert trace.invalid_prediction == trace.to_dict()["invalid_prediction"] == said
    assert re.search(f"^predicted speed-up +{trace.predicted_speedup:.2f} ! ", trace.summary(), re.MULTILINE)
    for valid in (Trace([NONE], target_s=0.11), TRACE, PLAIN, Trace([])):
        assert valid.invalid_prediction == ""
        assert "!" not in valid.summary()


def test_a_run_measures_t1_in_its_own_plain_rounds() -> None:
    plain = [chain(1 + i, (), 0, (), times=(0.0, 0.03 + 0.01 * (i % 2), 0.001)) for i in range(6)]
    trace = Trace([CORRECTED, *plain, BONUS])
    assert trace.target_s == pytest.approx(0.035)
    tokens = trace.expected_tokens_per_call
    assert trace.predicted_speedup == pytest.approx(tokens * 0.035 * 8 / (0.04 + 0.2 + 0.21))
    assert math.isnan(Trace([CORRECTED, *plain[:4], BONUS]).predicted_speedup)  # too few for an estimate
    # In a batch, other sequences drafted in those rounds.
    assert math.isnan(Trace([CORRECTED, *plain, BONUS], n_sequences=2).predicted_speedup)


def test_nothing_is_predicted_of_trees() -> None:
    """Equation (1) is about chains: one draft a position."""
    round_ = tree((5, 6, 7), (0, 0, 2), (2, 3), 8, (1.0, 1.0), (0.01, 0.1, 0.0))
    trace = Trace([CORRECTED, round_], target_s=0.05)
    for name in ("expected_tokens_per_call", "ideal_speedup", "predicted_speedup"):
        assert math.isnan(getattr(trace, name)), name
    for said in (trace.summary(), Trace([CORRECTED, round_]).summary()):
        assert "tokens per pass         3.00 (expected: undefined for trees)" in said
        assert re.search("predicted (speed-up) +(undefined for trees)\nideal \\1 +\\2\n", said)
        assert "nan" not in said and "against`" not in said and "Trace.against" not in said
    assert trace.acceptance_rate == pytest.approx((1.0 + 0.9 + 0.2 + 2.0) / 5)


def test_one_gamma_throughout_is_theorem_3_8_as_printed() -> None:
    """And the prediction is E(tokens) / (gamma c + t(gamma + 1) / t(1)), as `theory` has it."""
    trace = Trace([CORRECTED, BONUS, NONE], target_s=0.08)
    alpha, cost = trace.acceptance_rate, trace.cost_coefficient
    assert trace.expected_tokens_per_call == pytest.approx((1 - alpha**5) / (1 - alpha))
    assert trace.ideal_speedup == pytest.approx((1 - alpha**5) / ((1 - alpha) * (4 * cost + 1)))
    wanted = theory.expected_speedup(alpha, 4, (0.02 / 4) / 0.08, 0.1 / 0.08)
    assert trace.predicted_speedup == pytest.approx(wanted)


def test_a_stop_cuts_tokens_and_not_acceptance() -> None:
    cut = Trace([chain(0, (1, 2, 3, 4), 4, (1.0, 1.0, 1.0, 1.0 + 2**-52), kept=2)])
    assert cut.acceptance_rate == 1.0  # rounding may lift the overlap of equal distributions above 1
    assert cut.expected_tokens_per_call == 5.0
    assert cut.ideal_speedup == pytest.approx(5.0 / (4 * cut.cost_coefficient + 1.0))
    assert cut.n_tokens == 2
    assert cut.tokens_per_call == cut.mean_acceptance_length == 2.0
    assert cut.n_accepted == 2, "what stands in the text"
    assert cut.draft_acceptance_rate == 2 / 4
    assert re.search(r"^draft tokens accepted +2 of 4 \(0\.500\) of the draft", cut.summary(), re.MULTILINE)
    assert (cut.n_verified, cut.acceptance_histogram) == (4, [0, 0, 0, 0, 1]), "what was judged"
    assert cut.acceptance_by_position == [1.0] * 4


def test_accepted_drafts_count_as_far_as_the_text_goes() -> None:
    """Passes that verified no draft count in `tokens_per_call` only."""
    trace = Trace([CORRECTED, chain(1, (), 0, ()), BONUS, chain(2, (1, 2, 3, 4), 4, (1.0,) * 4, kept=2)])
    assert trace.n_accepted == 2 + 4 + 2
    assert (trace.mean_acceptance_length, trace.tokens_per_call) == ((3 + 5 + 2) / 3, (3 + 1 + 5 + 2) / 4)
    assert trace.draft_acceptance_rate == 8 / 12


def test_plain_decoding() -> None:
    trace = Trace([chain(i, (), 0, (), times=(0.0, 0.1, 0.001)) for i in range(5)])
    assert trace.tokens_per_call == trace.expected_tokens_per_call == 1.0
    assert math.isnan(trace.mean_acceptance_length), "no run verified a draft"
    assert re.search("^mean accepted length +none .nothing was drafted.$", trace.summary(), re.MULTILINE)
    assert trace.predicted_speedup == trace.ideal_speedup == 1.0
    assert trace.target_s == pytest.approx(0.1)
    assert trace.acceptance_histogram == [5]
    assert trace.acceptance_by_position == []
    for name in ("acceptance_rate", "draft_acceptance_rate", "cost_coefficient"):
        assert math.isnan(getattr(trace, name))
    assert all(math.isnan(end) for end in trace.acceptance_interval())


def test_no_round_at_all() -> None:
    trace = Trace([])
    figures = trace.figures()
    assert figures.pop("acceptance_interval") == pytest.approx([math.nan, math.nan], nan_ok=True)
    assert figures["acceptance_histogram"] == figures["acceptance_by_position"] == []
    for name in ("tokens_per_call", "mean_acceptance_length", "predicted_speedup", "tokens_per_s"):
        assert math.isnan(figures[name]), name
    assert "nan" in trace.summary()


# --------------------------------------------------------------------------------------- interval


@pytest.mark.parametrize(("k", "n"), [(0, 5), (5, 5), (3, 7), (80, 100), (999, 1000)])
@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.999])
def test_interval_is_wilsons(k: int, n: int, confidence: float) -> None:
    """With betas of 0 and 1, as under argmax, it is the interval of a proportion: SciPy has that too."""
    trace = Trace([chain(i, (1,), int(i < k), (float(i < k),)) for i in range(n)])
    wanted = scipy.stats.binomtest(k, n).proportion_ci(confidence, method="wilson")
    assert trace.acceptance_interval(confidence) == pytest.approx((wanted.low, wanted.high), abs=1e-12)
    for none in (0.0, 1.0, -1.0, math.nan):
        with pytest.raises(ValueError, match="confidence"):
            trace.acceptance_interval(none)


def test_interval_of_overlaps_covers_at_least_as_often_as_it_says() -> None:
    rng = np.random.default_rng(5)
    alpha, n_runs, covered = 0.7, 400, 0
    for _ in range(n_runs):
        betas = rng.beta(1.4, 0.6, 60)  # mean 0.7, between a constant and a coin in spread
        low, high = Trace([chain(0, (1,), 1, (float(beta),)) for beta in betas]).acceptance_interval(0.9)
        covered += low <= alpha <= high
    # Below 0.9 by chance with probability less than 1e-3 if coverage were exactly 0.9.
    assert covered / n_runs > 0.9 - NormalDist().inv_cdf(0.999) * math.sqrt(0.09 / n_runs)


# ------------------------------------------------------------------------------------------ views


def test_to_dict_is_json_and_complete() -> None:
    loaded = json.loads(json.dumps(TRACE.to_dict()))
    figures = {name: value.__doc__ for name, value in vars(Trace).items() if isinstance(value, property)}
    assert figures.keys() <= loaded.keys() and all(figures.values())
    assert loaded["acceptance_rate"] == TRACE.acceptance_rate
    assert loaded["rounds"][0]["accepted"] == [11, 12]
    assert loaded["rounds"][0]["origin"] == ["draft", "draft", "correction"]
    assert {name for name in Round.__dataclass_fields__} <= loaded["rounds"][0].keys()
    assert type("MyTrace", (Trace,), {})(TRACE.rounds, prefill_s=0.5).to_dict() == TRACE.to_dict()


def test_summary_and_repr_show_the_figures() -> None:
    summary = TRACE.summary()
    assert "7 of 13 (0.538)" in summary
    assert "batch" not in summary and "nan" not in PLAIN.summary() + repr(PLAIN)
    assert "acceptance rate         none (nothing was drafted)" in PLAIN.summary()
    assert "n_drafted=0, tokens_per_call=1.00" in repr(PLAIN)
    result = result_of(PLAIN.rounds)
    assert repr(result) == "Result(text=None, n_tokens=4, finish_reason='length', n_calls=4)"
    assert repr(dataclasses.replace(result, trace=TRACE)).endswith("n_calls=4, acceptance_rate=0.689)")
    assert "batch of     3 sequences" in Trace(TRACE.rounds, n_sequences=3).summary()
    shown = "Trace(n_tokens=11, n_calls=4, n_accepted=7, n_drafted=13, acceptance_rate=0.689"
    assert repr(TRACE).startswith(shown)


def test_sampling_takes_numbers_of_numpy() -> None:
    settings = Sampling(np.float32(0.5), np.int64(3), 1)  # type: ignore[arg-type]
    assert (type(settings.temperature), type(settings.top_k), type(settings.top_p)) == (float, int, float)
    assert Sampling().greedy and not Sampling(1e-6).greedy
