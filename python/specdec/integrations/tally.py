"""What speculation did, summed over the texts of an evaluation."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from specdec.decoding.result import Result


@dataclass
class Tally:
    """Counts of decoded texts; `add` adds some.

    Attributes
    ----------
    n_texts, n_tokens : int
        Texts, and the tokens that stand in them.
    n_calls : int
        Rounds of all texts: how often the target was run for a text.
    n_drafted, n_verified, n_accepted : int
        Guesses; positions at which guesses were judged, to the first rejection of a round; those accepted.
    beta : float
        Sum of `Round.betas`, the chances of acceptance at these positions.
    seconds : float
        Wall clock of the calls of `specdec.generate`.
    """

    n_texts: int = 0
    n_tokens: int = 0
    n_calls: int = 0
    n_drafted: int = 0
    n_verified: int = 0
    n_accepted: int = 0
    beta: float = 0.0
    seconds: float = 0.0

    def add(self, results: Iterable[Result], seconds: float = 0.0) -> Tally:
        """Count some results, which took so many seconds together; gives the tally itself."""
        for result in results:
            trace = result.trace
            self.n_texts += 1
            self.n_tokens += trace.n_tokens
            self.n_calls += trace.n_calls
            self.n_drafted += trace.n_drafted
            self.n_verified += trace.n_verified
            self.n_accepted += trace.n_accepted
            self.beta += sum(beta for one in trace.rounds for beta in one.betas)
        self.seconds += seconds
        return self

    def rates(self) -> dict[str, Any]:
        """The counts, and what follows from them; None for a quotient of nothing.

        They are defined as in `specdec.Trace`, over all texts: ``tokens_per_call`` is 1 for plain decoding,
        ``acceptance_rate`` is alpha, ``draft_acceptance_rate`` accepted guesses over guesses.
        """
        return {
            "n_texts": self.n_texts,
            "n_tokens": self.n_tokens,
            "n_calls": self.n_calls,
            "n_drafted": self.n_drafted,
            "n_accepted": self.n_accepted,
            "tokens_per_call": _quotient(self.n_tokens, self.n_calls),
            "acceptance_rate": _quotient(self.beta, self.n_verified),
            "draft_acceptance_rate": _quotient(self.n_accepted, self.n_drafted),
        }

    def figures(self) -> dict[str, Any]:
        """The same, with seconds and tokens per second."""
        per_s = _quotient(self.n_tokens, self.seconds)
        return {**self.rates(), "seconds": round(self.seconds, 3), "tokens_per_s": per_s}


def _quotient(above: float, below: float) -> float | None:
    return above / below if below else None
