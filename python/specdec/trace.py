"""`Trace` and `Round`: a record of every round, and the statistics that follow from it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias, get_args

import numpy as np

from specdec.checks import check_choice, check_items
from specdec.errors import InputError, type_of
from specdec.fields import MAX_TIME, Fields, without_nan
from specdec.tables import data_frame
from specdec.theory import expected_tokens

if TYPE_CHECKING:
    from pandas import DataFrame
else:
    DataFrame = Any  # pandas is imported on use

__all__ = [
    "Round", "RoundTimes", "Step", "StepFigures", "Trace", "invalid_ratio", "invalid_speedup", "steps_of",
    "wilson_interval",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Round:
    """One round of one sequence: draft tokens, one target forward pass, and at least one new token.

    The draft tokens are nodes 1, 2, … of a tree whose root, node 0, is the last token before the round. A
    chain is a tree in which each node's parent is the previous node.

    Attributes
    ----------
    index : int
        Number of the round in its sequence, from 0.
    drafted : tuple of int
        Draft token ids, at nodes 1, 2, …; empty in plain decoding.
    parents : tuple of int
        Parent node of each draft token.
    path : tuple of int
        Accepted nodes, in order, root excluded.
    tokens : tuple of int
        New token ids of the round: the accepted draft tokens, then the target's own token.
    kept : int
        Number of `tokens` in the result. A stop or a length limit inside the round cuts off the rest.
    betas : tuple of float
        Acceptance probability at each verified position, in order; none after a rejection. For one draft
        token it is computed from the distributions: sum(min(target, draft)) (Theorem 3.5); with lenience l,
        sum(min(target / l, draft)) (appendix A.5); for argmax, the draft's mass on accepted tokens; for the
        classical rule, 1 / max(target / draft) (appendix A.2); for block and traversal verification, which
        judge whole trees, sum(min(target, draft)). For several draft tokens, and under the coupled rule, it
        is the outcome, 1 or 0.
    draft_s : float
        Seconds of the draft's forward passes; in a batch, like the other times, for the whole batch.
    verify_s : float
        Seconds of the target. In the first round of plain decoding it only computes logits.
    other_s : float
        Seconds of everything else.
    experts : float
        Mean number of experts read per layer of a mixture-of-experts target; in a batch, for the whole batch.
        0 for a model without experts, and if the prefill processed all tokens of the round.
    planned : int
        ``gamma="auto"``: the number of draft tokens that was expected to be fastest before the round; the
        draft stops earlier or later as its confidence in each token suggests. -1 while drafting is paused; 0
        without it.
    gain : float
        ``gamma="auto"``: this speed relative to plain decoding, for the whole batch; 1 while drafting is
        paused. 0 without it.
    """

    index: int
    drafted: tuple[int, ...]
    parents: tuple[int, ...]
    path: tuple[int, ...]
    tokens: tuple[int, ...]
    kept: int
    betas: tuple[float, ...]
    draft_s: float
    verify_s: float
    other_s: float
    experts: float = 0.0
    planned: int = 0
    gain: float = 0.0

    @property
    def n_drafted(self) -> int:
        """Number of draft tokens."""
        return len(self.drafted)

    @property
    def n_accepted(self) -> int:
        """Number of accepted draft tokens, including those cut off by `kept`."""
        return len(self.path)

    @property
    def accepted(self) -> tuple[int, ...]:
        """Accepted draft token ids, in order."""
        return tuple(self.drafted[node - 1] for node in self.path)

    @property
    def token(self) -> int:
        """The target's own token, the last of the round: recovered ("correction") or bonus token."""
        return self.tokens[-1]

    @property
    def origin(self) -> tuple[str, ...]:
        """Origin of each of `tokens`: "draft"; for the last one "correction", "bonus" or "target".

        "correction" follows a rejected draft token, "bonus" a fully accepted draft, "target" no draft at all.
        """
        rows = self.rows
        end = rows[self.path[-1]] if self.path else 0
        if not self.drafted:
            last = "target"
        elif any(rows[parent] == end for parent in self.parents):
            last = "correction"
        else:
            last = "bonus"
        return ("draft",) * self.n_accepted + (last,)

    @property
    def rows(self) -> tuple[int, ...]:
        """Row of each node, root included: the first node with the same tokens from the root.

        Nodes of one row are duplicates, verified together with the children of all of them.
        """
        rows = [0]
        first: dict[tuple[int, int], int] = {}
        for node, (token, parent) in enumerate(zip(self.drafted, self.parents, strict=True), start=1):
            rows.append(first.setdefault((rows[parent], token), node))
        return tuple(rows)

    @property
    def depth(self) -> int:
        """Length of the longest drafted path: gamma for a chain."""
        depths = [0]
        for parent in self.parents:
            depths.append(depths[parent] + 1)
        return max(depths)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Round:
        """Return the round that `to_dict` wrote; InputError for a missing, wrong or inconsistent field."""
        return cls._described(Fields(values, "", error_type=InputError))

    @classmethod
    def _described(cls, found: Fields) -> Round:
        """Read a round from a dict within another."""
        drafted, parents = found.integers("drafted"), found.integers("parents")
        if len(parents) != len(drafted):
            raise found.error("parents", f"{len(drafted)} nodes, one per entry of drafted")
        for i, parent in enumerate(parents):
            if parent > i:
                raise found.error(f"parents[{i}]", f"0 to {i}", parent)
        path, tokens = found.integers("path", 1, len(drafted)), found.integers("tokens")
        betas = found.amounts("betas")
        if len(betas) > len(drafted):
            raise found.error("betas", f"at most {len(drafted)} numbers, the length of drafted")
        amounts = ("draft_s", "verify_s", "other_s", "experts")
        round_ = cls(
            found.integer("index", minimum=0), tuple(drafted), tuple(parents), tuple(path), tuple(tokens),
            found.integer("kept", minimum=0, maximum=len(path) + 1), tuple(betas),
            **{name: found.amount(name, below=MAX_TIME) for name in amounts},
            planned=found.integer("planned", minimum=-1, default=0), gain=found.amount("gain", 0.0),
        )  # fmt: skip
        rows = round_.rows
        steps = zip([0, *path], path, strict=False)
        if any(rows[parents[node - 1]] != rows[before] for before, node in steps):
            expected = "a path of nodes, each a child of the previous one"
            raise found.error("path", expected)
        if len(tokens) != len(path) + 1 or round_.accepted != round_.tokens[:-1]:
            raise found.error("tokens", f"{list(round_.accepted)}, accepted by path, plus one token")
        return round_

    def to_dict(self) -> dict[str, Any]:
        """Return the round as plain lists and numbers, ready for JSON."""
        values = ((name, getattr(self, name)) for name in _ROUND_COLUMNS)
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values}


VERSION: Final = 1
"""Version of the dict that `Trace.to_dict` returns."""

TraceRow: TypeAlias = Literal["round", "token"]
"""Row type of `Trace.to_pandas`."""
_ROUND_COLUMNS: Final = (
    "index", "drafted", "accepted", "n_drafted", "n_accepted", "parents", "path", "token", "tokens", "kept",
    "origin", "betas", "draft_s", "verify_s", "other_s", "experts", "planned",
    "gain",
)  # fmt: skip
_TOKEN_COLUMNS: Final = ("round", "position", "token", "origin", "beta")

_FEWEST_PLAIN = 5  # minimum of rounds without drafts to estimate t(1)


def _whole_runs(rounds: Sequence[Round]) -> Sequence[Round]:
    """Return the rounds without those that the prefill has partly done, if others remain."""
    return [r for r in rounds if r.index > 0 or r.drafted] or rounds


def _mean_run_s(rounds: Sequence[Round]) -> float:
    """Return the target's mean seconds per pass."""
    whole = _whole_runs(rounds)
    return _ratio(math.fsum(r.verify_s for r in whole), len(whole))


class RoundTimes:
    """Base class with the total times of its `rounds`."""

    __slots__ = ()

    rounds: Sequence[Any]

    @property
    def draft_s(self) -> float:
        """Seconds of drafting."""
        return math.fsum(r.draft_s for r in self.rounds)

    @property
    def verify_s(self) -> float:
        """Seconds of the target."""
        return math.fsum(r.verify_s for r in self.rounds)

    @property
    def other_s(self) -> float:
        """Seconds of the rounds outside both models."""
        return math.fsum(r.other_s for r in self.rounds)

    @property
    def rounds_s(self) -> float:
        """Seconds of all rounds, without prefill."""
        return self.draft_s + self.verify_s + self.other_s

    def _properties(self) -> dict[str, Any]:
        """Return the value of each property by name."""
        owners = type(self).__mro__
        names = (n for owner in owners for n, x in vars(owner).items() if isinstance(x, property))
        return {name: getattr(self, name) for name in names}


class Trace(RoundTimes):
    """All rounds of one sequence, and their statistics.

    Statistics without data (acceptance without draft tokens, a rate over no time) are NaN; nothing raises. A
    round has one target forward pass, so plain decoding has as many passes as tokens. Counts refer to the
    result; `acceptance_rate`, `acceptance_histogram` and `acceptance_by_position` include every judged draft
    token, also after a stop in the last round.

    Parameters
    ----------
    rounds : sequence of Round
        The rounds in order.
    prefill_s : float, default 0.0
        Seconds of processing the prompt in target and draft, including its log-probabilities; in a batch, of
        all prompts processed together.
    n_sequences : int, default 1
        Number of sequences decoded together. Times are those of the whole batch's rounds, so `tokens_per_s`
        is this sequence's rate, not the machine's.
    target_s : float, optional
        t(1), seconds of a target forward pass with one row, if measured.
    rule : str, optional
        Verification rule that judged the draft tokens, such as the one that ``verify="auto"`` found.
    """

    def __init__(
        self, rounds: Sequence[Round], *, prefill_s: float = 0.0, n_sequences: int = 1,
        target_s: float | None = None, rule: str | None = None,
    ) -> None:  # fmt: skip
        self.rounds: tuple[Round, ...] = tuple(rounds)
        self.prefill_s, self.n_sequences, self._target_s = prefill_s, n_sequences, target_s
        self.rule = rule

    @classmethod
    def joined(cls, traces: Iterable[Trace]) -> Trace:
        """Join traces into one whose statistics cover all of their rounds.

        Seconds add up, rates and shares count each round once, `n_sequences` is the maximum. t(1) is the mean
        of the given ones, weighted by rounds, if all traces have one; `rule` is None if they differ.
        InputError if there is no trace.

        Examples
        --------
        >>> results = specdec.generate(target, draft, prompts)
        >>> specdec.Trace.joined(result.trace for result in results).acceptance_interval()
        """
        several = check_items("traces", traces, "a list of specdec.Trace")
        for i, trace in enumerate(several):
            if not isinstance(trace, Trace):
                raise InputError.of(f"traces[{i}]", trace, "a specdec.Trace", type_of(trace))
        if not several:
            raise InputError.of("traces", traces, "at least one specdec.Trace", "empty")
        rounds = [round_ for trace in several for round_ in trace.rounds]
        target_s = None
        if rounds and all(trace._target_s is not None for trace in several):
            target_s = math.fsum(trace.target_s * trace.n_calls for trace in several) / len(rounds)
        prefill_s, n = math.fsum(t.prefill_s for t in several), max(t.n_sequences for t in several)
        rule = several[0].rule if len({t.rule for t in several}) == 1 else None
        return cls(rounds, prefill_s=prefill_s, n_sequences=n, target_s=target_s, rule=rule)

    def against(self, plain: Trace) -> Trace:
        """Return the same trace with t(1) from a run of plain decoding, needed for `predicted_speedup`.

        `plain` must be plain decoding with the same target, number of sequences and threads on the same
        machine; else InputError.

        Examples
        --------
        >>> out.trace.against(specdec.generate(target, None, "Once upon a time").trace).predicted_speedup
        """
        found = f"{plain.n_drafted} drafts in {plain.n_calls} rounds of {plain.n_sequences} sequences at once"
        if not plain.rounds or plain.n_drafted or plain.n_sequences != self.n_sequences:
            expected = f"plain decoding of {self.n_sequences} at once, as in this trace"
            raise InputError.of("plain", plain, expected, found, "has")
        return self._with_target_s(plain.run_s)

    def _with_target_s(self, target_s: float) -> Trace:
        return Trace(
            self.rounds, prefill_s=self.prefill_s, n_sequences=self.n_sequences, target_s=target_s,
            rule=self.rule,
        )  # fmt: skip

    # -- counts and times ---------------------------------------------------------------------------------

    @property
    def n_calls(self) -> int:
        """Target forward passes, one per round (prefill excluded)."""
        return len(self.rounds)

    @property
    def run_s(self) -> float:
        """Mean seconds of a target forward pass; NaN without any.

        The first pass of plain decoding is excluded if there are others: the prefill has partly done it.
        """
        return _mean_run_s(self.rounds)

    @property
    def n_drafted(self) -> int:
        """Number of draft tokens."""
        return sum(r.n_drafted for r in self.rounds)

    @property
    def n_accepted(self) -> int:
        """Accepted draft tokens in the result; those after a stop do not count."""
        return sum(min(r.n_accepted, r.kept) for r in self.rounds)

    @property
    def n_verified(self) -> int:
        """Number of positions where the target's distribution was compared with the draft's."""
        return sum(len(r.betas) for r in self.rounds)

    @property
    def n_tokens(self) -> int:
        """Number of new tokens in the result."""
        return sum(r.kept for r in self.rounds)

    @property
    def total_s(self) -> float:
        """Seconds of prefill and all rounds."""
        return self.prefill_s + self.rounds_s

    @property
    def tokens_per_s(self) -> float:
        """New tokens per second of `rounds_s`, without prefill."""
        return _ratio(self.n_tokens, self.rounds_s)

    @property
    def experts_per_call(self) -> float:
        """Mean number of experts read per layer and target forward pass; NaN for a target without experts.

        Divide by ``n_experts_per_token`` to compare the weights read with plain decoding. Uses the rounds of
        `run_s`.
        """
        whole = _whole_runs(self.rounds)
        mean = _ratio(math.fsum(r.experts for r in whole), len(whole))
        return mean if mean > 0.0 else math.nan

    # -- acceptance ---------------------------------------------------------------------------------------

    @property
    def acceptance_rate(self) -> float:
        """Alpha (Corollary 3.6): mean of beta over all verified positions; NaN if nothing was drafted.

        The probability that a draft token (any of several) is accepted at a position, computed from the
        distributions as in `Round.betas`. Block verification accepts more often than this.
        """
        mean = _ratio(math.fsum(beta for r in self.rounds for beta in r.betas), self.n_verified)
        return 1.0 if mean > 1.0 else mean  # rounding may exceed 1 for equal distributions

    def acceptance_interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """Confidence interval (low, high) of `acceptance_rate`: Wilson's score interval.

        Conservative; treats positions as independent. (NaN, NaN) if nothing was drafted; ValueError if
        `confidence` is not in (0, 1).
        """
        if not 0.0 < confidence < 1.0:
            raise ValueError(f"confidence is {confidence!r}; expected a number in (0, 1)")
        return wilson_interval(self.acceptance_rate, self.n_verified, confidence)

    @property
    def draft_acceptance_rate(self) -> float:
        """Accepted over draft tokens, vLLM's definition; NaN if nothing was drafted.

        Lower than `acceptance_rate`, because tokens after a rejection are dropped unjudged.
        """
        return StepFigures(steps_of(self)).draft_acceptance_rate

    @property
    def mean_acceptance_length(self) -> float:
        """New tokens per target pass that verified a draft, vLLM's definition; NaN without any."""
        return StepFigures(steps_of(self)).mean_acceptance_length

    @property
    def acceptance_histogram(self) -> list[int]:
        """Number of rounds that accepted 0, 1, … draft tokens, up to the longest drafted path."""
        if not self.rounds:
            return []
        accepted = [r.n_accepted for r in self.rounds]
        return [accepted.count(n) for n in range(max(r.depth for r in self.rounds) + 1)]

    @property
    def acceptance_by_position(self) -> list[float]:
        """Share of rounds that accepted at least 1, 2, … tokens, if they drafted so many in a row."""
        shares = []
        for depth in range(1, max((r.depth for r in self.rounds), default=0) + 1):
            reached = [r for r in self.rounds if r.depth >= depth]
            shares.append(_ratio(sum(r.n_accepted >= depth for r in reached), len(reached)))
        return shares

    # -- speed --------------------------------------------------------------------------------------------

    @property
    def tokens_per_call(self) -> float:
        """Tokens per pass: new tokens of the result per target forward pass, drafting or not."""
        return _ratio(self.n_tokens, self.n_calls)

    @property
    def target_s(self) -> float:
        """t(1): mean seconds of a target forward pass with one row, as in plain decoding.

        Given to the trace or measured by `against`; otherwise from its own rounds without drafts, if there
        are 5. NaN if unknown: every round drafts, or a batch.
        """
        if self._target_s is not None:
            return self._target_s
        plain = [r for r in self.rounds if not r.drafted]
        if len(plain) < _FEWEST_PLAIN or (self.n_sequences > 1 and self.n_drafted):
            return math.nan
        return _mean_run_s(plain)

    @property
    def cost_coefficient(self) -> float:
        """c of Definition 3.7 as measured: (draft_s / draft tokens) / t(1); NaN if nothing was drafted.

        If t(1) is unknown (`target_s`), the mean time of a target pass replaces it. That includes rows for
        the draft tokens, so c is underestimated.
        """
        target_s = _ratio(self.verify_s, self.n_calls) if math.isnan(self.target_s) else self.target_s
        return _ratio(_ratio(self.draft_s, self.n_drafted), target_s)

    def _has_trees(self) -> bool:
        """Whether a round drafted a tree other than a chain."""
        return any(r.depth != r.n_drafted for r in self.rounds)

    @property
    def expected_tokens_per_call(self) -> float:
        """Expected tokens per target pass by equation (1), (1 − α^(γ+1)) / (1 − α), at the measured alpha.

        Averaged over the rounds, each with its own γ. Block verification gives at least as many. 1 if nothing
        was drafted; NaN without rounds or with trees.
        """
        if self._has_trees():
            return math.nan
        alpha = self.acceptance_rate
        expected = np.asarray(expected_tokens(alpha, [r.n_drafted for r in self.rounds]))
        return _ratio(math.fsum(expected), self.n_calls)

    @property
    def predicted_speedup(self) -> float:
        """Speed-up over plain decoding predicted from the measured alpha and times.

        E(tokens) · t(1) / (γ t_draft + t(γ + 1)): `expected_tokens_per_call` times t(1) over the mean seconds
        of both models per round. NaN for trees, and if t(1) is unknown. May be a measurement error, see
        `invalid_prediction`.
        """
        if not self.n_drafted:
            return self.expected_tokens_per_call
        round_s = _ratio(self.draft_s + self.verify_s, self.n_calls)
        return self.expected_tokens_per_call * _ratio(self.target_s, round_s)

    @property
    def invalid_prediction(self) -> str:
        """Why `predicted_speedup` is an error (above `expected_tokens_per_call`); empty if it is valid."""
        return invalid_speedup(self.predicted_speedup, self.expected_tokens_per_call)

    @property
    def ideal_speedup(self) -> float:
        """Speed-up by Theorem 3.8, if verifying γ + 1 positions were as fast as computing one.

        (1 − α^(γ+1)) / ((1 − α)(γc + 1)): `expected_tokens_per_call` over the mean cost γc + 1 of a round. 1
        if nothing was drafted; NaN without rounds and for trees.
        """
        if not self.n_drafted:
            return self.expected_tokens_per_call
        gamma = self.n_drafted / self.n_calls
        return self.expected_tokens_per_call / (gamma * self.cost_coefficient + 1.0)

    # -- views --------------------------------------------------------------------------------------------

    def figures(self) -> dict[str, Any]:
        """Return every statistic of the trace by name."""
        given = {"n_sequences": self.n_sequences, "prefill_s": self.prefill_s, "rule": self.rule}
        return given | self._properties() | {"acceptance_interval": list(self.acceptance_interval())}

    def to_dict(self) -> dict[str, Any]:
        """Return statistics and rounds as plain dicts, lists and numbers, ready for JSON: None for NaN."""
        rounds = [r.to_dict() for r in self.rounds]
        found: dict[str, Any] = without_nan({"specdec_trace": VERSION, **self.figures(), "rounds": rounds})
        return found

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Trace:
        """Return the trace that `to_dict` wrote; every statistic follows from its rounds and times.

        Raises `InputError` for another version, or a field that is missing, wrong or inconsistent.

        Examples
        --------
        >>> trace = specdec.Trace.from_dict(json.loads(json.dumps(out.trace.to_dict())))
        """
        return cls._described(Fields(values, "", error_type=InputError))

    @classmethod
    def _described(cls, found: Fields) -> Trace:
        """Read a trace from a dict within another."""
        found.check_version("specdec_trace", VERSION)
        rounds = [Round._described(round_) for round_ in found.inner_items("rounds")]
        prefill_s, n_sequences = found.amount("prefill_s", below=MAX_TIME), found.integer("n_sequences")
        target_s = found.amount("target_s", None, below=MAX_TIME)
        rule = found.text("rule", default=None)
        trace = cls(rounds, prefill_s=prefill_s, n_sequences=n_sequences, rule=rule)
        return trace if target_s is None or target_s == trace.target_s else trace._with_target_s(target_s)

    def to_pandas(self, per: TraceRow = "round") -> DataFrame:
        """Return the trace as a `pandas.DataFrame`, with a row per round or per token.

        The first column, ``run``, numbers the traces of a `joined` one from 0. The others are those of
        `Round.to_dict`; or per token, ``round``, ``position`` (in the new text, from 0), ``token``,
        ``origin`` (`Round.origin`) and ``beta`` of the draft token judged there, NaN without one.

        Examples
        --------
        >>> out.trace.to_pandas().groupby("n_drafted").n_accepted.mean()
        """
        check_choice("per", per, get_args(TraceRow))
        rows: list[dict[str, Any]] = []
        run, position = -1, 0
        for round_ in self.rounds:
            if round_.index == 0 or run < 0:
                run, position = run + 1, 0
            if per == "round":
                rows.append({"run": run} | round_.to_dict())
                continue
            betas = (*round_.betas, *[math.nan] * len(round_.tokens))
            for values in zip(round_.tokens[: round_.kept], round_.origin, betas, strict=False):
                row = zip(_TOKEN_COLUMNS, (round_.index, position, *values), strict=True)
                rows.append({"run": run, **dict(row)})
                position += 1
        return data_frame(rows, ["run", *(_ROUND_COLUMNS if per == "round" else _TOKEN_COLUMNS)])

    def summary(self) -> str:
        """Return the statistics as a table for reading."""
        low, high = self.acceptance_interval()
        accepted = f"{self.n_accepted} of {self.n_drafted}"
        c, expected = f"{self.cost_coefficient:.3f}", f"{self.expected_tokens_per_call:.2f}"
        predicted = f"{self.predicted_speedup:.2f}"
        if self.invalid_prediction:
            predicted += f" ! above {expected} tokens per pass: the times are unreliable"
        ideal = f"{self.ideal_speedup:.2f} (Theorem 3.8)"
        without_t1 = bool(self.n_drafted) and math.isnan(self.target_s)
        if without_t1:
            c += " (relative to whole rounds, because t(1) is unknown)"
        if self._has_trees():
            expected = predicted = ideal = "undefined for trees"
        elif without_t1:
            predicted = "unknown: needs the time of a plain step, see Trace.against"
        rate = f"{self.acceptance_rate:.3f} (95 %: {low:.3f} to {high:.3f})"
        length = f"{self.mean_acceptance_length:.2f}"
        if self.n_drafted:
            accepted += f" ({self.draft_acceptance_rate:.3f}) of the draft tokens (vLLM)"
        else:
            rate = c = length = "none (nothing was drafted)"
        times = (
            ("prefill", self.prefill_s), ("drafting", self.draft_s), ("verification", self.verify_s),
            ("other", self.other_s),
        )  # fmt: skip
        rows = [
            ("new tokens", f"{self.n_tokens}"), ("target forward passes", f"{self.n_calls}"),
            ("tokens per pass", f"{self.tokens_per_call:.2f} (expected: {expected})"),
            ("acceptance rate", f"{rate} per judged token (paper)" if self.n_drafted else rate),
            ("draft tokens accepted", accepted), ("mean accepted length", length),
            ("acceptance histogram", " ".join(map(str, self.acceptance_histogram))),
            ("acceptance by position", " ".join(f"{share:.2f}" for share in self.acceptance_by_position)),
            ("cost coefficient", c), ("predicted speed-up", predicted), ("ideal speed-up", ideal),
            *((name, f"{seconds * 1e3:.1f} ms") for name, seconds in times),
            ("tokens per second", f"{self.tokens_per_s:.1f}"),
        ]  # fmt: skip
        if not math.isnan(self.experts_per_call):
            rows.insert(3, ("experts read per layer", f"{self.experts_per_call:.2f} per pass"))
        if self.rule is not None and self.n_drafted:
            argmax = "; at temperature 0: equal argmaxes" if self.rule == "rejection" else ""
            rows.append(("verification rule", self.rule + argmax))
        if self.n_sequences > 1:
            rows.append(("times of a batch of", f"{self.n_sequences} sequences"))
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name:<{width}}  {value}".rstrip() for name, value in rows)

    def __repr__(self) -> str:
        rate = f"acceptance_rate={self.acceptance_rate:.3f}, " if self.n_drafted else ""
        names = ("n_tokens", "n_calls", "n_accepted", "n_drafted")
        counts = ", ".join(f"{name}={getattr(self, name)}" for name in names)
        rates = f"tokens_per_call={self.tokens_per_call:.2f}, tokens_per_s={self.tokens_per_s:.1f}"
        return f"Trace({counts}, {rate}{rates})"


class Step(NamedTuple):
    """One target forward pass and its share of the text.

    Accepted tokens (including a drafted end-of-text token), new tokens `n_emitted` and `betas` count up to
    the end of the text. `depth` is the length of the longest drafted path.
    """

    n_drafted: int
    depth: int
    n_accepted: int
    n_emitted: int
    betas: tuple[float, ...]


def steps_of(trace: Trace) -> tuple[Step, ...]:
    """Return the steps of a run, without anything after the end of the text."""
    return tuple(
        Step(r.n_drafted, r.depth, min(r.n_accepted, r.kept), r.kept, r.betas[: r.kept]) for r in trace.rounds
    )


class StepFigures:
    """vLLM's acceptance metrics over steps.

    Unlike vLLM, tokens accepted after the end of a text are excluded, so that the mean acceptance length is
    the mean number of new tokens.
    """

    def __init__(self, steps: Iterable[Step]) -> None:
        self._steps = tuple(steps)
        self._drafted = [step for step in self._steps if step.n_drafted]

    @property
    def mean_acceptance_length(self) -> float:
        """New tokens per step that verified a draft, the target's own token included; NaN without any."""
        return _ratio(sum(step.n_emitted for step in self._drafted), len(self._drafted))

    @property
    def draft_acceptance_rate(self) -> float:
        """Accepted over draft tokens; NaN if nothing was drafted."""
        n_accepted = sum(step.n_accepted for step in self._drafted)
        return _ratio(n_accepted, sum(step.n_drafted for step in self._drafted))

    @property
    def per_position_acceptance_rate(self) -> tuple[float, ...]:
        """Share of the verifying steps that accepted a first, second, … draft token."""
        n, reach = len(self._drafted), max((step.depth for step in self._drafted), default=0)
        return tuple(sum(step.n_accepted > i for step in self._drafted) / n for i in range(reach))

    @property
    def tokens_per_call(self) -> float:
        """New tokens per target forward pass, including steps without a draft: 1 in plain decoding."""
        return _ratio(sum(step.n_emitted for step in self._steps), len(self._steps))


def invalid_ratio(gamma: int, ratio: float) -> str:
    """Why t(gamma + 1) / t(1) is a measurement error (below 1); empty if it is valid or NaN."""
    return f"invalid: t({gamma + 1})/t(1) is {ratio:.3f}, below 1" if ratio < 1.0 else ""


def invalid_speedup(speedup: float, tokens_per_call: float) -> str:
    """Why a speed-up is a measurement error (above the tokens per pass); empty if it is valid or NaN."""
    if not speedup > tokens_per_call * (1.0 + 1e-9):  # rounding of equal sums
        return ""
    digits = 2
    while digits < 9 and f"{speedup:.{digits}f}" == f"{tokens_per_call:.{digits}f}":  # for a weak draft
        digits += 1
    return f"invalid: {speedup:.{digits}f} is above the tokens per pass, {tokens_per_call:.{digits}f}"


def wilson_interval(share: float, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson's score interval (low, high) of a share of `n`; (NaN, NaN) for n = 0."""
    if n == 0:
        return math.nan, math.nan
    z = NormalDist().inv_cdf(0.5 + confidence / 2.0)
    scale = 1.0 + z * z / n
    center = (share + z * z / (2.0 * n)) / scale
    half = z * math.sqrt(max(0.0, share * (1.0 - share)) / n + z * z / (4.0 * n * n)) / scale
    return max(0.0, center - half), min(1.0, center + half)


def _ratio(numerator: float, denominator: float) -> float:
    """numerator / denominator; NaN for a denominator of 0."""
    return numerator / denominator if denominator else math.nan
