"""The trace of a run: what every round did, and the figures that follow from it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

from specdec.theory import expected_tokens

__all__ = ["Round", "RoundTimes", "Trace", "wilson_interval"]


@dataclass(frozen=True, slots=True)
class Round:
    """One round of one sequence: some drafted tokens, one run of the target, at least one new token.

    The drafted tokens are the nodes 1, 2, … of a tree whose node 0 is the last token before the round; a
    chain of drafts is the tree in which each node's parent is the node before it.

    Attributes
    ----------
    index : int
        Number of the round in its sequence, from 0.
    drafted : tuple of int
        Token ids the draft proposed, those of nodes 1, 2, …; empty in plain decoding.
    parents : tuple of int
        Parent node of each drafted node.
    path : tuple of int
        Nodes of the accepted drafts, in order, root excluded.
    tokens : tuple of int
        Token ids the round produced: the accepted drafts, then the target's own token.
    kept : int
        How many of `tokens` stand in the result. A stop or a length limit inside the round cuts the rest.
    betas : tuple of float
        sum(min(target, draft)) (Theorem 3.5) at each verified position, in order of position; with lenience
        l, sum(min(target / l, draft)) (appendix A.5), and for argmax the mass of the draft on what is
        accepted. Positions behind a rejected draft are not verified. It is the chance of rejection's
        accepting, whatever rule the run had.
    draft_s, verify_s, other_s : float
        Seconds spent in the draft's forward passes, in the target's, and on the rest (distributions of both,
        acceptance, bookkeeping).
        In a batch these are the times of the whole batch's round.
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

    @property
    def n_drafted(self) -> int:
        """Number of drafted tokens."""
        return len(self.drafted)

    @property
    def n_accepted(self) -> int:
        """Number of drafted tokens that were accepted."""
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
        """Where each of `tokens` comes from.

        "draft" for an accepted draft; for the last token "correction" where a draft was rejected before it,
        "bonus" where there was none left to reject, and "target" where nothing was drafted.
        """
        places = self.places
        end = places[self.path[-1]] if self.path else 0
        if not self.drafted:
            last = "target"
        elif any(places[parent] == end for parent in self.parents):
            last = "correction"
        else:
            last = "bonus"
        return ("draft",) * self.n_accepted + (last,)

    @property
    def places(self) -> tuple[int, ...]:
        """Where each node of the tree stands, root included: at the first node with its tokens from the root.

        Nodes at one place are judged together, and so are the drafts that hang on any of them.
        """
        places = [0]
        first: dict[tuple[int, int], int] = {}
        for node, (token, parent) in enumerate(zip(self.drafted, self.parents, strict=True), start=1):
            places.append(first.setdefault((places[parent], token), node))
        return tuple(places)

    @property
    def depth(self) -> int:
        """Length of the longest drafted path: gamma for a chain."""
        depths = [0]
        for parent in self.parents:
            depths.append(depths[parent] + 1)
        return max(depths)

    def to_dict(self) -> dict[str, Any]:
        """The round as plain lists and numbers, ready for JSON."""
        return {
            "index": self.index,
            "drafted": list(self.drafted),
            "accepted": list(self.accepted),
            "n_drafted": self.n_drafted,
            "n_accepted": self.n_accepted,
            "parents": list(self.parents),
            "path": list(self.path),
            "token": self.token,
            "tokens": list(self.tokens),
            "kept": self.kept,
            "origin": list(self.origin),
            "betas": list(self.betas),
            "draft_s": self.draft_s,
            "verify_s": self.verify_s,
            "other_s": self.other_s,
        }


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


class Trace(RoundTimes):
    """All rounds of one sequence and the figures they give.

    A figure that has nothing to be measured on (acceptance where nothing was drafted, a rate over no time) is
    NaN; nothing here raises. One call of the target is one round, so plain decoding has as many calls as
    tokens. Acceptance figures count every draft that was judged, also those of a last round that a stop then
    cut short; `n_tokens` and the rates of tokens count only what stands in the result.

    Parameters
    ----------
    rounds : sequence of Round
        In order.
    prefill_s : float, default 0.0
        Seconds spent running the prompt through target and draft; in a batch, of all prompts that were read
        at the same time.
    n_sequences : int, default 1
        Sequences decoded at once. All times of the trace are those of the whole batch's rounds: with more
        than one sequence, `tokens_per_s` is what this sequence got, not what the machine produced.
    """

    __slots__ = ("n_sequences", "prefill_s", "rounds")

    rounds: tuple[Round, ...]
    prefill_s: float
    n_sequences: int

    def __init__(self, rounds: Sequence[Round], *, prefill_s: float = 0.0, n_sequences: int = 1) -> None:
        self.rounds = tuple(rounds)
        self.prefill_s = prefill_s
        self.n_sequences = n_sequences

    # -- counts and times ---------------------------------------------------------------------------------

    @property
    def n_calls(self) -> int:
        """Runs of the target, one a round (the prefill is not counted)."""
        return len(self.rounds)

    @property
    def n_drafted(self) -> int:
        """Drafted tokens in all."""
        return sum(r.n_drafted for r in self.rounds)

    @property
    def n_accepted(self) -> int:
        """Accepted drafts in all."""
        return sum(r.n_accepted for r in self.rounds)

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

    # -- acceptance ---------------------------------------------------------------------------------------

    @property
    def acceptance_rate(self) -> float:
        """Alpha of Corollary 3.6: the mean of beta = sum(min(target, draft)) over all verified positions.

        It is the probability of accepting a draft, measured from the two distributions themselves and not
        from the luck of the draws; under argmax sampling each beta is 0 or 1. A coupled run accepts less
        often than this says, a run of block verification more. NaN if nothing was drafted.
        """
        mean = _ratio(math.fsum(beta for r in self.rounds for beta in r.betas), self.n_verified)
        return 1.0 if mean > 1.0 else mean  # equal distributions may overlap by a rounding more than 1

    def acceptance_interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """Confidence interval (low, high) of `acceptance_rate`: Wilson's score interval.

        Wilson's interval is that of a proportion, with variance α(1 − α) an observation. Each beta is in
        [0, 1], so its variance is at most that, and the interval errs on the wide side; it takes the
        positions as independent. (NaN, NaN) if nothing was drafted.

        Parameters
        ----------
        confidence : float, default 0.95
            Probability in (0, 1) that the interval should cover the true rate.

        Raises
        ------
        ValueError
            If `confidence` is not in (0, 1).
        """
        if not 0.0 < confidence < 1.0:
            raise ValueError(f"confidence is {confidence!r}; expected a number in (0, 1)")
        return wilson_interval(self.acceptance_rate, self.n_verified, confidence)

    @property
    def draft_acceptance_rate(self) -> float:
        """Accepted drafts over drafted tokens, as vLLM counts it.

        Lower than `acceptance_rate`, for the drafts behind a rejected one are thrown away unseen. NaN if
        nothing was drafted.
        """
        return _ratio(self.n_accepted, self.n_drafted)

    @property
    def mean_acceptance_length(self) -> float:
        """1 + accepted drafts / runs of the target, as vLLM counts it: the target's own token is included.

        1 in plain decoding. NaN if there was no round.
        """
        return 1.0 + _ratio(self.n_accepted, self.n_calls)

    @property
    def acceptance_histogram(self) -> list[int]:
        """How often a round accepted 0, 1, 2, … drafts, as vLLM counts it.

        Entry i is the number of rounds in which i drafts were accepted; the list reaches to the longest
        drafted path, so that it has gamma + 1 entries for chains of gamma. Empty if there was no round.
        """
        if not self.rounds:
            return []
        counts = [0] * (max(r.depth for r in self.rounds) + 1)
        for r in self.rounds:
            counts[r.n_accepted] += 1
        return counts

    @property
    def acceptance_by_position(self) -> list[float]:
        """How often the first, second, … draft of a round was accepted.

        Entry i is the share of rounds that accepted at least i + 1 drafts among those that drafted that
        many in a row. An accepted draft needs all drafts before it accepted, so the entries tend to fall.
        Empty if nothing was drafted.
        """
        shares = []
        for depth in range(1, max((r.depth for r in self.rounds), default=0) + 1):
            reached = [r for r in self.rounds if r.depth >= depth]
            shares.append(_ratio(sum(r.n_accepted >= depth for r in reached), len(reached)))
        return shares

    # -- speed --------------------------------------------------------------------------------------------

    @property
    def tokens_per_call(self) -> float:
        """New tokens in the result per run of the target: 1 in plain decoding.

        Differs from `mean_acceptance_length` only by tokens that a stop cut off. NaN if there was no round.
        """
        return _ratio(self.n_tokens, self.n_calls)

    @property
    def cost_coefficient(self) -> float:
        """c of Definition 3.7 as measured: (draft_s / drafted tokens) / (verify_s / runs of the target).

        The denominator is the time of a run that verifies all positions of a round; Theorem 3.8 assumes that
        this costs what one position costs. NaN if nothing was drafted.
        """
        return _ratio(_ratio(self.draft_s, self.n_drafted), _ratio(self.verify_s, self.n_calls))

    @property
    def expected_tokens_per_call(self) -> float:
        """Tokens per run of the target that equation (1) expects of the measured alpha.

        (1 − α^(γ+1)) / (1 − α), averaged over the rounds with each round's own γ (the last round before a
        length limit drafts fewer). 1 if nothing was drafted, NaN if there was no round.
        """
        alpha = self.acceptance_rate
        return _ratio(math.fsum(expected_tokens(alpha, [r.depth for r in self.rounds])), self.n_calls)

    @property
    def predicted_speedup(self) -> float:
        """Speed-up over plain decoding that Theorem 3.8 predicts from the measured alpha and c.

        (1 − α^(γ+1)) / ((1 − α)(γc + 1)): `expected_tokens_per_call` over the mean cost γc + 1 of a round,
        with each round's own γ. 1 if nothing was drafted, NaN if there was no round.
        """
        if not self.n_drafted:
            return self.expected_tokens_per_call
        gamma = self.n_drafted / self.n_calls
        return self.expected_tokens_per_call / (gamma * self.cost_coefficient + 1.0)

    # -- views --------------------------------------------------------------------------------------------

    def figures(self) -> dict[str, Any]:
        """Every figure of the trace by name."""
        return {
            "n_sequences": self.n_sequences,
            "n_tokens": self.n_tokens,
            "n_calls": self.n_calls,
            "n_drafted": self.n_drafted,
            "n_accepted": self.n_accepted,
            "n_verified": self.n_verified,
            "acceptance_rate": self.acceptance_rate,
            "acceptance_interval": list(self.acceptance_interval()),
            "draft_acceptance_rate": self.draft_acceptance_rate,
            "mean_acceptance_length": self.mean_acceptance_length,
            "acceptance_histogram": self.acceptance_histogram,
            "acceptance_by_position": self.acceptance_by_position,
            "tokens_per_call": self.tokens_per_call,
            "cost_coefficient": self.cost_coefficient,
            "expected_tokens_per_call": self.expected_tokens_per_call,
            "predicted_speedup": self.predicted_speedup,
            "prefill_s": self.prefill_s,
            "draft_s": self.draft_s,
            "verify_s": self.verify_s,
            "other_s": self.other_s,
            "rounds_s": self.rounds_s,
            "total_s": self.total_s,
            "tokens_per_s": self.tokens_per_s,
        }

    def to_dict(self) -> dict[str, Any]:
        """Figures and rounds as plain dicts, lists and numbers, ready for JSON (NaN is a float NaN)."""
        return {**self.figures(), "rounds": [r.to_dict() for r in self.rounds]}

    def summary(self) -> str:
        """The figures as a table for reading."""
        low, high = self.acceptance_interval()
        accepted = f"{self.n_accepted} of {self.n_drafted}"
        rows = [
            ("new tokens", f"{self.n_tokens}"),
            ("runs of the target", f"{self.n_calls}"),
            ("tokens per run", f"{self.tokens_per_call:.2f} (expected: {self.expected_tokens_per_call:.2f})"),
            ("acceptance rate", f"{self.acceptance_rate:.3f} (95 %: {low:.3f} to {high:.3f})"),
            ("drafts accepted", f"{accepted} ({self.draft_acceptance_rate:.3f})"),
            ("mean acceptance length", f"{self.mean_acceptance_length:.2f}"),
            ("acceptance histogram", " ".join(map(str, self.acceptance_histogram))),
            ("acceptance by position", " ".join(f"{share:.2f}" for share in self.acceptance_by_position)),
            ("cost coefficient", f"{self.cost_coefficient:.3f}"),
            ("predicted speed-up", f"{self.predicted_speedup:.2f}"),
            ("prefill", f"{self.prefill_s * 1e3:.1f} ms"),
            ("drafting", f"{self.draft_s * 1e3:.1f} ms"),
            ("verification", f"{self.verify_s * 1e3:.1f} ms"),
            ("other", f"{self.other_s * 1e3:.1f} ms"),
            ("tokens per second", f"{self.tokens_per_s:.1f}"),
        ]
        if self.n_sequences > 1:
            rows.append(("times are of a batch of", f"{self.n_sequences} sequences"))
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name:<{width}}  {value}".rstrip() for name, value in rows)

    def __repr__(self) -> str:
        return (
            f"Trace(n_tokens={self.n_tokens}, n_calls={self.n_calls}, n_accepted={self.n_accepted}, "
            f"n_drafted={self.n_drafted}, acceptance_rate={self.acceptance_rate:.3f}, "
            f"tokens_per_call={self.tokens_per_call:.2f}, tokens_per_s={self.tokens_per_s:.1f})"
        )


def wilson_interval(share: float, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson's score interval (low, high) of a share of `n`; (NaN, NaN) of none."""
    if n == 0:
        return math.nan, math.nan
    z = NormalDist().inv_cdf(0.5 + confidence / 2.0)
    scale = 1.0 + z * z / n
    centre = (share + z * z / (2.0 * n)) / scale
    half = z * math.sqrt(max(0.0, share * (1.0 - share)) / n + z * z / (4.0 * n * n)) / scale
    return max(0.0, centre - half), min(1.0, centre + half)


def _ratio(numerator: float, denominator: float) -> float:
    """numerator / denominator, NaN where there is nothing to divide by."""
    return numerator / denominator if denominator else math.nan
