"""gamma="auto": how many tokens to draft, learned from the run (section 3.5 of arXiv 2211.17192)."""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple

import numpy as np

from specdec import _core
from specdec.checks import check_integer
from specdec.drafts.draft import MAX_GAMMA, Draft
from specdec.errors import InputError
from specdec.tables import Table
from specdec.verification.rules import Rule

AUTO_GAMMA = 16
"""Guesses a round at most, where neither the caller nor the draft says."""


class RunType(NamedTuple):
    """What acceptance and times depend on: estimates are kept for each run_type of run by itself."""

    target: Any
    draft: Draft
    temperature: float
    rule: Rule
    n_threads: int

    @property
    def key(self) -> tuple[Any, ...]:
        """Hashable. An id in a key is not used again: the key goes with its object."""
        return id(self.target), id(self.draft.identity), self.temperature, self.rule, self.n_threads

    def __str__(self) -> str:
        return f"temperature {self.temperature:g}, {self.rule}, {self.n_threads} threads"


_Learned = tuple[weakref.ref[Any], weakref.ref[Any], str, _core.AdaptiveGamma]
"""Target, draft, name and estimates of one target and draft, in one way of sampling, on so many threads."""


class AdaptiveGamma:
    """A gamma that chooses itself: drafts until another token's expected gain is below its measured cost.

    The policy with the most tokens per second, lambda = E(tokens) / E(seconds) of a round, drafts another
    token exactly if the accepted tokens that it is expected to bring are at least lambda times the seconds
    that it costs. All of it is learned during the run: acceptance by the draft's confidence and the position
    in the round; seconds of the target by its rows, t(M), and of the draft by its steps; and lambda. Where
    plain decoding is as fast, rounds are plain, in stretches that grow from 32 to 4096 times what a proposal
    costs, with a few trial rounds after each. A paused draft reads what it has missed before a trial, so
    trials come where a text begins, or when one in two hundred tokens' time has saved up that of the reading.

    All calls of ``generate(..., gamma="auto")`` of a process share their estimates, for each target, draft,
    temperature, rule and number of threads by itself. An `AdaptiveGamma` of your own has its own, which
    ``print(auto)`` shows; a pickle or a copy has `max_gamma` alone. A draft that decides by itself how much
    to draft (`Ensemble`, if it is adaptive) is left to it.

    With temperature 0 or ``verify="coupled"`` the tokens are those of plain decoding. With the rule
    "rejection" the output has exactly the target's distribution, but the same seed may give another sample,
    as how much is drafted depends on measured times.

    Parameters
    ----------
    max_gamma : int, optional
        Guesses a round at most, 1 to 1024; by default 16, or as many as the draft asks for if that is more.

    Examples
    --------
    >>> auto = specdec.AdaptiveGamma()
    >>> out = specdec.generate(target, draft, "It was a dark and stormy night", gamma=auto)
    >>> print(auto)  # what was learned, and the gamma that it makes best
    """

    def __init__(self, max_gamma: int | None = None) -> None:
        self.max_gamma = None if max_gamma is None else check_integer("max_gamma", max_gamma, 1, MAX_GAMMA)
        # The last one used comes last. No lock: each step is one operation under the interpreter's lock, and
        # a forked child, a signal handler or a collected stream would wait for ever for one that `end` holds.
        self._learned: dict[tuple[Any, ...], _Learned] = {}

    def __reduce__(self) -> tuple[type[AdaptiveGamma], tuple[int | None]]:
        return AdaptiveGamma, (self.max_gamma,)

    def reset(self) -> None:
        """Forget everything."""
        self._learned.clear()

    def limit(self, draft: Draft | None) -> int:
        """Guesses a round of this draft at most."""
        return self.max_gamma or max(AUTO_GAMMA, 0 if draft is None else draft.gamma)

    def begin(self, run_type: RunType) -> _core.AdaptiveGamma:
        """The estimates that a run begins with, its own copy: runs in other threads learn by themselves."""
        found = self._learned.get(run_type.key)
        return _core.AdaptiveGamma() if found is None else found[-1].copy()

    def end(self, run_type: RunType, estimates: _core.AdaptiveGamma) -> None:
        """Keep what a run has learned; of two at the same time what the one that ends last has."""
        key = run_type.key

        def forget(_: object) -> None:
            self._learned.pop(key, None)

        references = weakref.ref(run_type.target, forget), weakref.ref(run_type.draft.identity, forget)
        self._learned.pop(key, None)
        self._learned[key] = (*references, str(run_type), estimates)

    def to_dict(self) -> dict[str, Any]:
        """What the last run left, as plain lists and numbers; {} before the first.

        For one sequence: ``gamma``, the best number of guesses a round without a look at confidences; by
        gamma from 0 the expected ``tokens_per_s``, ``target_s`` of a round with gamma + 1 rows and
        ``draft_s``; ``chance`` of a guess at each depth, from 1, to be accepted if the one before it is;
        ``by_confidence``: (confidence, chance at depth 1, number of guesses); ``plain_left``: tokens to come
        without drafting.
        """
        all_learned = self._learned.copy()
        if not all_learned:
            return {}
        *_, name, estimates = next(reversed(all_learned.values()))
        view = estimates.view()
        reach = np.cumprod(view["chance"])
        seconds = np.add(view["target_s"], view["draft_s"])
        rates = np.divide(np.cumsum(reach), seconds, out=np.zeros_like(reach), where=seconds > 0)
        return {
            "name": name, "gamma": int(rates.argmax()), "tokens_per_s": rates.tolist(),
            "target_s": view["target_s"], "draft_s": view["draft_s"], "chance": view["chance"][1:],
            "by_confidence": view["by_confidence"], "plain_left": view["rest_left"],
        }  # fmt: skip

    def __repr__(self) -> str:
        of = "" if self.max_gamma is None else f"max_gamma={self.max_gamma}"
        found = self.to_dict()
        if not found:
            return f"specdec.AdaptiveGamma({of})"
        plain, best = found["tokens_per_s"][0], max(found["tokens_per_s"])
        return (
            f"<specdec.AdaptiveGamma({of}): {found['name']}: gamma {found['gamma']} is best on average, "
            f"{best / plain:.2f} times plain, t(1) {found['target_s'][0] * 1e3:.3g} ms>"
        )

    def table(self) -> Table:
        """What the last run left: every gamma with its times and what is expected of it; a star at the best.

        Raises
        ------
        InputError
            If there has been no run.
        """
        found = self.to_dict()
        if not found:
            raise InputError("nothing has been learned yet; expected a run with this gamma before")
        rows = []
        for gamma in range(max(9, found["gamma"] + 2)):
            star = " ★" if gamma == found["gamma"] else ""
            times = (f"{found[name][gamma] * 1e3:.3f}" for name in ("target_s", "draft_s"))
            chance = f"{found['chance'][gamma - 1]:.2f}" if gamma else ""
            rows.append((f"{gamma}{star}", *times, chance, f"{found['tokens_per_s'][gamma]:.1f}"))
        head = ("gamma", "target ms", "draft ms", "accepted", "tokens/s expected")
        by = ", ".join(f"{c:.2f}: {a:.2f}" for c, a, n in found["by_confidence"] if n >= 1.0)
        return Table(f"{found['name']}; accepted by confidence {by}", head, rows)

    def __str__(self) -> str:
        return self.table().text() if self._learned else repr(self)

    def _repr_html_(self) -> str:
        return self.table().html() if self._learned else repr(self)


SHARED = AdaptiveGamma()
"""That of ``gamma="auto"``."""
