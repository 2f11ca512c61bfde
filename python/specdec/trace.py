"""The trace of a run: what every round did, and the figures that follow from it."""

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
    """One round of one sequence: some drafted tokens, one run of the target, at least one new token.

    The drafted tokens are the nodes 1, 2, … of a tree whose node 0 is the last token before the round; a
    chain of drafts is the tree in which each node's parent is the node before it.
    """

    index: int
    """Number of the round in its sequence, from 0."""
    drafted: tuple[int, ...]
    """Token ids the draft proposed, those of nodes 1, 2, …; empty in plain decoding."""
    parents: tuple[int, ...]
    """Parent node of each drafted node."""
    path: tuple[int, ...]
    """Nodes of the accepted drafts, in order, root excluded."""
    tokens: tuple[int, ...]
    """Token ids the round produced: the accepted drafts, then the target's own token."""
    kept: int
    """How many of `tokens` are in the result. A stop or a length limit inside the round cuts the rest."""
    betas: tuple[float, ...]
    """The chance that a draft is accepted at each verified position, in order; positions after a rejected
    draft are not verified. Of one draft it is computed from the distributions: sum(min(target, draft))
    (Theorem 3.5); with lenience l, sum(min(target / l, draft)) (appendix A.5); for argmax the mass of the
    draft on what is accepted; for the classical rule 1 / max(target / draft) (appendix A.2); under block
    verification, which judges no draft alone, sum(min(target, draft)). Of several drafts, and under the
    coupled rule, it is the outcome, 1 or 0, whose mean is the chance."""
    draft_s: float
    """Seconds of the draft's forward passes; in a batch, as the other times, of the whole batch's round."""
    verify_s: float
    """Seconds of the target's. In the first round of plain decoding it computes logits alone."""
    other_s: float
    """Seconds of the rest."""
    experts: float = 0.0
    """Experts that a layer of the target with a mixture of experts has read, on average; in a batch, for the
    whole batch. 0 for a model without experts, and where the prefill has read all of a round's tokens."""

    @property
    def n_drafted(self) -> int:
        """Number of drafted tokens."""
        return len(self.drafted)

    @property
    def n_accepted(self) -> int:
        """Number of drafted tokens that were accepted, also of those after `kept`."""
        return len(self.path)

    @property
    def accepted(self) -> tuple[int, ...]:
        """Token ids of the accepted drafts, in order."""
        return tuple(self.drafted[node - 1] for node in self.path)

    @property
    def token(self) -> int:
        """The target's own token, the last one of the round: a correction, or the bonus token."""
        return self.tokens[-1]

    @property
    def origin(self) -> tuple[str, ...]:
        """Where each of `tokens` comes from: "draft"; for the last one "correction", "bonus" or "target".

        It is a correction where a draft was rejected before it, the bonus token where there was none left to
        reject, and "target" where nothing was drafted.
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
        """The row of each node of the tree, root included: the first node with the same tokens from the root.

        Nodes of one row are duplicates: verified together, with the children of all of them.
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
        """The round that `to_dict` gave; InputError where a field is missing or wrong, or two do not fit."""
        return cls._described(Fields(values, "", error_type=InputError))

    @classmethod
    def _described(cls, found: Fields) -> Round:
        """The same of a dict within another one."""
        drafted, parents = found.integers("drafted"), found.integers("parents")
        if len(parents) != len(drafted):
            raise found.error("parents", f"{len(drafted)} nodes, one for each of drafted")
        for i, parent in enumerate(parents):
            if parent > i:
                raise found.error(f"parents[{i}]", f"0 to {i}", parent)
        path, tokens = found.integers("path", 1, len(drafted)), found.integers("tokens")
        betas = found.amounts("betas")
        if len(betas) > len(drafted):
            raise found.error("betas", f"at most {len(drafted)} numbers, as many as drafted")
        amounts = ("draft_s", "verify_s", "other_s", "experts")
        round_ = cls(
            found.integer("index", minimum=0), tuple(drafted), tuple(parents), tuple(path), tuple(tokens),
            found.integer("kept", minimum=0, maximum=len(path) + 1), tuple(betas),
            *(found.amount(name, below=MAX_TIME) for name in amounts),
        )  # fmt: skip
        rows = round_.rows
        steps = zip([0, *path], path, strict=False)
        if any(rows[parents[node - 1]] != rows[before] for before, node in steps):
            expected = "nodes of which each is a child of the one before, the first of the root"
            raise found.error("path", expected)
        if len(tokens) != len(path) + 1 or round_.accepted != round_.tokens[:-1]:
            raise found.error("tokens", f"{list(round_.accepted)}, which path accepts, and one token more")
        return round_

    def to_dict(self) -> dict[str, Any]:
        """The round as plain lists and numbers, ready for JSON."""
        values = ((name, getattr(self, name)) for name in _ROUND_COLUMNS)
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values}


VERSION: Final = 1
"""Of what `Trace.to_dict` gives."""

TraceRow: TypeAlias = Literal["round", "token"]
"""What a row of `Trace.to_pandas` is."""
_ROUND_COLUMNS: Final = (
    "index", "drafted", "accepted", "n_drafted", "n_accepted", "parents", "path", "token", "tokens", "kept",
    "origin", "betas", "draft_s", "verify_s", "other_s", "experts",
)  # fmt: skip
_TOKEN_COLUMNS: Final = ("round", "position", "token", "origin", "beta")

_FEWEST_PLAIN = 5  # rounds without drafts that a run's own t(1) is taken from


def _whole_runs(rounds: Sequence[Round]) -> Sequence[Round]:
    """Rounds, those apart of which the prefill has done a part, if there are others."""
    return [r for r in rounds if r.index > 0 or r.drafted] or rounds


def _mean_run_s(rounds: Sequence[Round]) -> float:
    """Mean seconds of the target in whole runs."""
    whole = _whole_runs(rounds)
    return _ratio(math.fsum(r.verify_s for r in whole), len(whole))


class RoundTimes:
    """Where the seconds of rounds were spent; what has `rounds` with these times inherits it."""

    __slots__ = ()

    rounds: Sequence[Any]

    @property
    def draft_s(self) -> float:
        """Seconds spent drafting."""
        return math.fsum(r.draft_s for r in self.rounds)

    @property
    def verify_s(self) -> float:
        """Seconds spent in the target."""
        return math.fsum(r.verify_s for r in self.rounds)

    @property
    def other_s(self) -> float:
        """Seconds spent in the rounds on anything else."""
        return math.fsum(r.other_s for r in self.rounds)

    @property
    def rounds_s(self) -> float:
        """Seconds spent in rounds: drafting, verification and the rest, without the prefill."""
        return self.draft_s + self.verify_s + self.other_s

    def _properties(self) -> dict[str, Any]:
        """The value of each property by its name."""
        owners = type(self).__mro__
        names = (n for owner in owners for n, x in vars(owner).items() if isinstance(x, property))
        return {name: getattr(self, name) for name in names}


class Trace(RoundTimes):
    """All rounds of one sequence and the figures they give.

    A figure that has nothing to be measured on (acceptance where nothing was drafted, a rate over no time) is
    NaN; nothing here raises. One call of the target is one round, so plain decoding has as many calls as
    tokens. Tokens and accepted drafts are those in the result; `acceptance_rate`, `acceptance_histogram` and
    `acceptance_by_position` are of every draft that was judged, also after a stop in the last round.

    Parameters
    ----------
    rounds : sequence of Round
        In order.
    prefill_s : float, default 0.0
        Seconds spent running the prompt through target and draft, for its log-probabilities too; in a batch,
        of all prompts that were read at the same time.
    n_sequences : int, default 1
        Sequences decoded at once. All times are those of the whole batch's rounds: with more than one,
        `tokens_per_s` is what this sequence got, not what the machine produced.
    target_s : float, optional
        t(1), seconds of a run of the target that computes one row, where the caller has measured it.
    """

    def __init__(
        self, rounds: Sequence[Round], *, prefill_s: float = 0.0, n_sequences: int = 1,
        target_s: float | None = None,
    ) -> None:  # fmt: skip
        self.rounds: tuple[Round, ...] = tuple(rounds)
        self.prefill_s, self.n_sequences, self._target_s = prefill_s, n_sequences, target_s

    @classmethod
    def joined(cls, traces: Iterable[Trace]) -> Trace:
        """Several traces as one, their rounds one after the other: every figure is that of all of them.

        Seconds are summed, rates and shares count each round once, `n_sequences` is the largest. t(1) is the
        mean, by rounds, of those that the traces were given, if all were. InputError if there is no trace.

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
        return cls(rounds, prefill_s=prefill_s, n_sequences=n, target_s=target_s)

    def against(self, plain: Trace) -> Trace:
        """The same trace with t(1) measured in a run of plain decoding, which `predicted_speedup` needs.

        `plain` is of plain decoding with the same target, number of sequences and threads, on the same
        machine; else InputError.

        Examples
        --------
        >>> out.trace.against(specdec.generate(target, None, "Once upon a time").trace).predicted_speedup
        """
        found = f"{plain.n_drafted} drafts in {plain.n_calls} rounds of {plain.n_sequences} sequences at once"
        if not plain.rounds or plain.n_drafted or plain.n_sequences != self.n_sequences:
            expected = f"rounds of plain decoding of {self.n_sequences}, as in this trace"
            raise InputError.of("plain", plain, expected, found, "has")
        return self._with_target_s(plain.run_s)

    def _with_target_s(self, target_s: float) -> Trace:
        return Trace(self.rounds, prefill_s=self.prefill_s, n_sequences=self.n_sequences, target_s=target_s)

    # -- counts and times ---------------------------------------------------------------------------------

    @property
    def n_calls(self) -> int:
        """Runs of the target, one a round (the prefill is not counted)."""
        return len(self.rounds)

    @property
    def run_s(self) -> float:
        """Mean seconds of a run of the target; NaN without any.

        Of plain decoding the first is left out, if there are others: the prefill has done a part of it.
        """
        return _mean_run_s(self.rounds)

    @property
    def n_drafted(self) -> int:
        """Drafted tokens in all."""
        return sum(r.n_drafted for r in self.rounds)

    @property
    def n_accepted(self) -> int:
        """Accepted drafts in the result; what a last round accepted after a stop does not count."""
        return sum(min(r.n_accepted, r.kept) for r in self.rounds)

    @property
    def n_verified(self) -> int:
        """Drafted positions at which the target's distribution was compared with the draft's."""
        return sum(len(r.betas) for r in self.rounds)

    @property
    def n_tokens(self) -> int:
        """New tokens in the result."""
        return sum(r.kept for r in self.rounds)

    @property
    def total_s(self) -> float:
        """Seconds spent in the core: the prefill and all rounds."""
        return self.prefill_s + self.rounds_s

    @property
    def tokens_per_s(self) -> float:
        """New tokens per second of decoding (`rounds_s`; the prefill is not counted)."""
        return _ratio(self.n_tokens, self.rounds_s)

    @property
    def experts_per_call(self) -> float:
        """Experts that a layer reads in a run of the target, on average; NaN for a target without experts.

        Divided by that of plain decoding, ``n_experts_per_token``, it says how many times as many weights are
        read. The rounds are those of `run_s`.
        """
        whole = _whole_runs(self.rounds)
        mean = _ratio(math.fsum(r.experts for r in whole), len(whole))
        return mean if mean > 0.0 else math.nan

    # -- acceptance ---------------------------------------------------------------------------------------

    @property
    def acceptance_rate(self) -> float:
        """Alpha of Corollary 3.6: the mean of beta over all verified positions; NaN if nothing was drafted.

        The probability that a draft, any of them where there are several, is accepted at a position, from the
        two distributions where `Round.betas` are. Block verification accepts more often than this says.
        """
        mean = _ratio(math.fsum(beta for r in self.rounds for beta in r.betas), self.n_verified)
        return 1.0 if mean > 1.0 else mean  # equal distributions may overlap by a rounding more than 1

    def acceptance_interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """Confidence interval (low, high) of `acceptance_rate`: Wilson's score interval of a proportion.

        It errs on the wide side, and takes the positions as independent. (NaN, NaN) if nothing was drafted;
        ValueError if `confidence` is not in (0, 1).
        """
        if not 0.0 < confidence < 1.0:
            raise ValueError(f"confidence is {confidence!r}; expected a number in (0, 1)")
        return wilson_interval(self.acceptance_rate, self.n_verified, confidence)

    @property
    def draft_acceptance_rate(self) -> float:
        """Accepted drafts over drafted tokens, as vLLM names it; NaN if nothing was drafted.

        Lower than `acceptance_rate`: drafts after a rejected one are dropped unseen.
        """
        return StepFigures(steps_of(self)).draft_acceptance_rate

    @property
    def mean_acceptance_length(self) -> float:
        """New tokens in the result per run that verified a draft, as vLLM names it; NaN without any."""
        return StepFigures(steps_of(self)).mean_acceptance_length

    @property
    def acceptance_histogram(self) -> list[int]:
        """How many rounds accepted 0, 1, … drafts, up to the longest drafted path; empty without rounds."""
        if not self.rounds:
            return []
        accepted = [r.n_accepted for r in self.rounds]
        return [accepted.count(n) for n in range(max(r.depth for r in self.rounds) + 1)]

    @property
    def acceptance_by_position(self) -> list[float]:
        """Share of rounds that accepted at least 1, 2, … drafts, of those that drafted so many in a row."""
        shares = []
        for depth in range(1, max((r.depth for r in self.rounds), default=0) + 1):
            reached = [r for r in self.rounds if r.depth >= depth]
            shares.append(_ratio(sum(r.n_accepted >= depth for r in reached), len(reached)))
        return shares

    # -- speed --------------------------------------------------------------------------------------------

    @property
    def tokens_per_call(self) -> float:
        """New tokens in the result per run of the target, with those that drafted nothing."""
        return _ratio(self.n_tokens, self.n_calls)

    @property
    def target_s(self) -> float:
        """t(1): mean seconds of a run of the target that computes one row, as plain decoding does.

        As given to the trace or measured by `against`; else from the run's own rounds that drafted nothing,
        if there are 5. NaN where it is not known: a run that always drafts, or one of a batch.
        """
        if self._target_s is not None:
            return self._target_s
        plain = [r for r in self.rounds if not r.drafted]
        if len(plain) < _FEWEST_PLAIN or (self.n_sequences > 1 and self.n_drafted):
            return math.nan
        return _mean_run_s(plain)

    @property
    def cost_coefficient(self) -> float:
        """c of Definition 3.7 as measured: (draft_s / drafted tokens) / t(1); NaN if nothing was drafted.

        Where t(1) is not known (`target_s`), the mean time of a run of the target takes its place. Such a run
        computes a row for each draft as well, so that c comes out too small.
        """
        target_s = _ratio(self.verify_s, self.n_calls) if math.isnan(self.target_s) else self.target_s
        return _ratio(_ratio(self.draft_s, self.n_drafted), target_s)

    def _has_trees(self) -> bool:
        """Whether a round drafted a tree that is no chain."""
        return any(r.depth != r.n_drafted for r in self.rounds)

    @property
    def expected_tokens_per_call(self) -> float:
        """Tokens per run of the target by equation (1), (1 − α^(γ+1)) / (1 − α), of the measured alpha.

        Averaged over the rounds with each round's own γ. Block verification gives at least as many. 1 if
        nothing was drafted; NaN if there was no round, or one drafted a tree.
        """
        if self._has_trees():
            return math.nan
        alpha = self.acceptance_rate
        expected = np.asarray(expected_tokens(alpha, [r.n_drafted for r in self.rounds]))
        return _ratio(math.fsum(expected), self.n_calls)

    @property
    def predicted_speedup(self) -> float:
        """Speed-up over plain decoding that the measured alpha and the measured times predict.

        E(tokens) · t(1) / (γ t_draft + t(γ + 1)): `expected_tokens_per_call` times t(1) over the mean seconds
        that a round spends in both models. NaN for trees, and where t(1) is not known. It can be an error of
        measuring, see `invalid_prediction`.
        """
        if not self.n_drafted:
            return self.expected_tokens_per_call
        round_s = _ratio(self.draft_s + self.verify_s, self.n_calls)
        return self.expected_tokens_per_call * _ratio(self.target_s, round_s)

    @property
    def invalid_prediction(self) -> str:
        """Why `predicted_speedup` is an error, as above `expected_tokens_per_call`; empty if it is not."""
        return invalid_speedup(self.predicted_speedup, self.expected_tokens_per_call)

    @property
    def ideal_speedup(self) -> float:
        """Speed-up by Theorem 3.8, were verifying γ + 1 positions as fast as computing one.

        (1 − α^(γ+1)) / ((1 − α)(γc + 1)): `expected_tokens_per_call` over the mean cost γc + 1 of a round. 1
        if nothing was drafted, NaN if there was no round, and for trees.
        """
        if not self.n_drafted:
            return self.expected_tokens_per_call
        gamma = self.n_drafted / self.n_calls
        return self.expected_tokens_per_call / (gamma * self.cost_coefficient + 1.0)

    # -- views --------------------------------------------------------------------------------------------

    def figures(self) -> dict[str, Any]:
        """Every figure of the trace by name."""
        given = {"n_sequences": self.n_sequences, "prefill_s": self.prefill_s}
        return given | self._properties() | {"acceptance_interval": list(self.acceptance_interval())}

    def to_dict(self) -> dict[str, Any]:
        """Figures and rounds as plain dicts, lists and numbers, ready for JSON: None for NaN."""
        rounds = [r.to_dict() for r in self.rounds]
        found: dict[str, Any] = without_nan({"specdec_trace": VERSION, **self.figures(), "rounds": rounds})
        return found

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Trace:
        """The trace that `to_dict` gave, also by way of JSON; every figure follows from its rounds and times.

        InputError if the dict is of another version, a field is missing or wrong, or two do not fit together.

        Examples
        --------
        >>> trace = specdec.Trace.from_dict(json.loads(json.dumps(out.trace.to_dict())))
        """
        return cls._described(Fields(values, "", error_type=InputError))

    @classmethod
    def _described(cls, found: Fields) -> Trace:
        """The same of a dict within another one."""
        found.check_version("specdec_trace", VERSION)
        rounds = [Round._described(round_) for round_ in found.inner_items("rounds")]
        prefill_s, n_sequences = found.amount("prefill_s", below=MAX_TIME), found.integer("n_sequences")
        target_s = found.amount("target_s", None, below=MAX_TIME)
        trace = cls(rounds, prefill_s=prefill_s, n_sequences=n_sequences)
        return trace if target_s is None or target_s == trace.target_s else trace._with_target_s(target_s)

    def to_pandas(self, per: TraceRow = "round") -> DataFrame:
        """The trace as a `pandas.DataFrame`, with a row for each round or for each token.

        The first column is ``run``: which of the runs of a `joined` trace, from 0. The others are those of
        `Round.to_dict`, or of a token ``round``, ``position`` (in the new text, from 0), ``token``,
        ``origin`` (`Round.origin`) and ``beta``, of the draft that was judged there, NaN where none was.

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
        """The figures as a table for reading."""
        low, high = self.acceptance_interval()
        accepted = f"{self.n_accepted} of {self.n_drafted}"
        c, expected = f"{self.cost_coefficient:.3f}", f"{self.expected_tokens_per_call:.2f}"
        predicted = f"{self.predicted_speedup:.2f}"
        if self.invalid_prediction:
            predicted += f" ! above {expected} tokens per run: the times are unreliable"
        ideal = f"{self.ideal_speedup:.2f} (Theorem 3.8)"
        without_t1 = bool(self.n_drafted) and math.isnan(self.target_s)
        if without_t1:
            c += " (against a run on all rows of a round, for t(1) is not known)"
        if self._has_trees():
            expected = predicted = ideal = "not defined for trees"
        elif without_t1:
            predicted = "not known without t(1), see Trace.against"
        rate = f"{self.acceptance_rate:.3f} (95 %: {low:.3f} to {high:.3f})"
        length = f"{self.mean_acceptance_length:.2f}"
        if self.n_drafted:
            accepted += f" ({self.draft_acceptance_rate:.3f}) accepted/drafted (vLLM)"
        else:
            rate = c = length = "none, nothing was drafted"
        times = (
            ("prefill", self.prefill_s), ("drafting", self.draft_s), ("verification", self.verify_s),
            ("other", self.other_s),
        )  # fmt: skip
        rows = [
            ("new tokens", f"{self.n_tokens}"), ("runs of the target", f"{self.n_calls}"),
            ("tokens per run", f"{self.tokens_per_call:.2f} (expected: {expected})"),
            ("acceptance rate", f"{rate} per judged token (paper)" if self.n_drafted else rate),
            ("drafts accepted", accepted), ("mean acceptance length", length),
            ("acceptance histogram", " ".join(map(str, self.acceptance_histogram))),
            ("acceptance by position", " ".join(f"{share:.2f}" for share in self.acceptance_by_position)),
            ("cost coefficient", c), ("predicted speed-up", predicted), ("ideal speed-up", ideal),
            *((name, f"{seconds * 1e3:.1f} ms") for name, seconds in times),
            ("tokens per second", f"{self.tokens_per_s:.1f}"),
        ]  # fmt: skip
        if not math.isnan(self.experts_per_call):
            rows.insert(3, ("experts read by a layer", f"{self.experts_per_call:.2f} in a run"))
        if self.n_sequences > 1:
            rows.append(("times are of a batch of", f"{self.n_sequences} sequences"))
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name:<{width}}  {value}".rstrip() for name, value in rows)

    def __repr__(self) -> str:
        rate = f"acceptance_rate={self.acceptance_rate:.3f}, " if self.n_drafted else ""
        names = ("n_tokens", "n_calls", "n_accepted", "n_drafted")
        counts = ", ".join(f"{name}={getattr(self, name)}" for name in names)
        rates = f"tokens_per_call={self.tokens_per_call:.2f}, tokens_per_s={self.tokens_per_s:.1f}"
        return f"Trace({counts}, {rate}{rates})"


class Step(NamedTuple):
    """One run of the target and what of it is in the text.

    Accepted tokens (a drafted end-of-text token is one), the new tokens `n_emitted` and `betas` count as far
    as the text goes. `depth` is the length of the longest drafted path.
    """

    n_drafted: int
    depth: int
    n_accepted: int
    n_emitted: int
    betas: tuple[float, ...]


def steps_of(trace: Trace) -> tuple[Step, ...]:
    """The steps of a run. What a round gave after the end of the text counts in none of them."""
    return tuple(
        Step(r.n_drafted, r.depth, min(r.n_accepted, r.kept), r.kept, r.betas[: r.kept]) for r in trace.rounds
    )


class StepFigures:
    """What became of the drafts of steps, under the names that vLLM gives the figures.

    vLLM counts what was accepted after an end of text too; here that is left out, so that the mean acceptance
    length is what its name says: new tokens a step.
    """

    def __init__(self, steps: Iterable[Step]) -> None:
        self._steps = tuple(steps)
        self._drafted = [step for step in self._steps if step.n_drafted]

    @property
    def mean_acceptance_length(self) -> float:
        """New tokens of a step that verified a draft, the target's own token included; NaN without any."""
        return _ratio(sum(step.n_emitted for step in self._drafted), len(self._drafted))

    @property
    def draft_acceptance_rate(self) -> float:
        """Accepted over drafted tokens; NaN where nothing was drafted."""
        n_accepted = sum(step.n_accepted for step in self._drafted)
        return _ratio(n_accepted, sum(step.n_drafted for step in self._drafted))

    @property
    def per_position_acceptance_rate(self) -> tuple[float, ...]:
        """Share of the steps with a draft that accepted a first, second, … token of it."""
        n, reach = len(self._drafted), max((step.depth for step in self._drafted), default=0)
        return tuple(sum(step.n_accepted > i for step in self._drafted) / n for i in range(reach))

    @property
    def tokens_per_call(self) -> float:
        """New tokens per run of the target, steps without a draft included: 1 in plain decoding."""
        return _ratio(sum(step.n_emitted for step in self._steps), len(self._steps))


def invalid_ratio(gamma: int, ratio: float) -> str:
    """Why t(gamma + 1) / t(1) is an error of measurement: it is below 1; empty if it is not, and for NaN."""
    return f"invalid: t({gamma + 1})/t(1) is {ratio:.3f}, below 1" if ratio < 1.0 else ""


def invalid_speedup(speedup: float, tokens_per_run: float) -> str:
    """Why a speed-up is an error of measuring: it is above the tokens per run; empty if not, and for NaN."""
    if not speedup > tokens_per_run * (1.0 + 1e-9):  # sums of equal times may differ by a rounding
        return ""
    digits = 2
    while digits < 9 and f"{speedup:.{digits}f}" == f"{tokens_per_run:.{digits}f}":  # as of a weak draft
        digits += 1
    return f"invalid: {speedup:.{digits}f} is above {tokens_per_run:.{digits}f} tokens per run"


def wilson_interval(share: float, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson's score interval (low, high) of a share of `n`; (NaN, NaN) of none."""
    if n == 0:
        return math.nan, math.nan
    z = NormalDist().inv_cdf(0.5 + confidence / 2.0)
    scale = 1.0 + z * z / n
    center = (share + z * z / (2.0 * n)) / scale
    half = z * math.sqrt(max(0.0, share * (1.0 - share)) / n + z * z / (4.0 * n * n)) / scale
    return max(0.0, center - half), min(1.0, center + half)


def _ratio(numerator: float, denominator: float) -> float:
    """numerator / denominator, NaN where there is nothing to divide by."""
    return numerator / denominator if denominator else math.nan
