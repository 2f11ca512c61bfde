"""gamma="auto": learns online how many tokens to draft (section 3.5 of arXiv 2211.17192)."""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple

import numpy as np

from specdec import _core
from specdec.checks import check_integer
from specdec.drafts.draft import MAX_GAMMA, Draft
from specdec.errors import InputError
from specdec.tables import Table
from specdec.verification.rules import DecodingRule, Rule

AUTO_GAMMA = 16
"""Default maximum of draft tokens per round, if neither the caller nor the draft sets one."""


class RunType(NamedTuple):
    """Conditions that acceptance and times depend on; each combination has its own estimates."""

    target: Any
    draft: Draft
    temperature: float
    rule: DecodingRule | Rule
    n_threads: int

    @property
    def key(self) -> tuple[Any, ...]:
        """Hashable key. Its ids stay valid: the entry is dropped with its objects."""
        return id(self.target), id(self.draft.identity), self.temperature, self.rule, self.n_threads

    def __str__(self) -> str:
        return f"temperature {self.temperature:g}, {self.rule}, {self.n_threads} threads"


_Learned = tuple[weakref.ref[Any], weakref.ref[Any], str, _core.AdaptiveGamma]
"""Target, draft, name and estimates of one target and draft under one sampling and thread setting."""


class AdaptiveGamma:
    """Adaptive gamma: drafts until another token's expected gain drops below its measured cost.

    Let lambda = E(tokens) / E(seconds) of a round. The policy that maximizes it drafts another token exactly
    if its expected accepted tokens are at least lambda times its cost in seconds. Everything is learned
    during decoding: acceptance by the draft's confidence and the position in the round; seconds of the target
    by its rows, t(M), and of the draft by its steps; and lambda. Where plain decoding is as fast, rounds are
    plain, in stretches that grow from 32 to 4096 times the cost of a proposal. A few trial rounds follow
    each, in which an eighth of a batch drafts (at least four sequences). A paused draft first processes the
    tokens it has missed. So trials happen at the start of a text, or after saving one token's time in two
    hundred. Estimates that depend on the number of sequences in a round are kept apart for 1, 2 to 3, 4 to 7,
    and so on. `Round.planned` and `Round.gain` record each round's plan.

    All calls of ``generate(..., gamma="auto")`` in a process share estimates, kept separately for each
    target, draft, temperature, rule and number of threads. Your own `AdaptiveGamma` has separate estimates,
    which ``print(auto)`` shows; pickles and copies keep `max_gamma` only. A draft that chooses its own length
    (an adaptive `Ensemble`) is left alone.

    At temperature 0 or with ``verify="coupled"`` the tokens are those of plain decoding. With other rules the
    output has exactly the target's distribution, but a seed may give another sample: the number of draft
    tokens depends on measured times.

    Parameters
    ----------
    max_gamma : int, optional
        Maximum number of draft tokens per round, 1 to 1024; by default 16, or more if the draft asks for
        more.

    Examples
    --------
    >>> auto = specdec.AdaptiveGamma()
    >>> out = specdec.generate(target, draft, "It was a dark and stormy night", gamma=auto)
    >>> print(auto)  # what was learned, and the gamma that it makes best
    """

    def __init__(self, max_gamma: int | None = None) -> None:
        self.max_gamma = None if max_gamma is None else check_integer("max_gamma", max_gamma, 1, MAX_GAMMA)
        # Most recently used last. No lock: each step is atomic under the interpreter's lock, while a forked
        # child, a signal handler or a collected stream could wait forever for a lock that `end` holds.
        self._learned: dict[tuple[Any, ...], _Learned] = {}

    def __reduce__(self) -> tuple[type[AdaptiveGamma], tuple[int | None]]:
        return AdaptiveGamma, (self.max_gamma,)

    def reset(self) -> None:
        """Forget all estimates."""
        self._learned.clear()

    def limit(self, draft: Draft | None) -> int:
        """Return the maximum of draft tokens per round with this draft."""
        return self.max_gamma or max(AUTO_GAMMA, 0 if draft is None else draft.gamma)

    def begin(self, run_type: RunType) -> _core.AdaptiveGamma:
        """Return a copy of the estimates to start from; concurrent calls learn separately."""
        found = self._learned.get(run_type.key)
        return _core.AdaptiveGamma() if found is None else found[-1].copy()

    def end(self, run_type: RunType, estimates: _core.AdaptiveGamma) -> None:
        """Store what a call has learned; of concurrent calls the last one to end wins."""
        key = run_type.key

        def forget(_: object) -> None:
            self._learned.pop(key, None)

        references = weakref.ref(run_type.target, forget), weakref.ref(run_type.draft.identity, forget)
        self._learned.pop(key, None)
        self._learned[key] = (*references, str(run_type), estimates)

    def to_dict(self) -> dict[str, Any]:
        """Return the estimates after the last call as plain lists and numbers; {} before the first.

        For one sequence: ``gamma``, the best fixed gamma; by gamma from 0, the expected ``tokens_per_s``, the
        seconds ``target_s`` of a pass with gamma + 1 rows and ``draft_s``; ``chance`` of acceptance at each
        depth from 1, given that the previous token was accepted; ``by_confidence``: (confidence, chance at
        depth 1, number of draft tokens); ``plain_left``: tokens until the next trial.
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
            "by_confidence": view["by_confidence"], "plain_left": view["pause_left"],
        }  # fmt: skip

    def __repr__(self) -> str:
        of = "" if self.max_gamma is None else f"max_gamma={self.max_gamma}"
        found = self.to_dict()
        if not found:
            return f"specdec.AdaptiveGamma({of})"
        plain, best = found["tokens_per_s"][0], max(found["tokens_per_s"])
        return (
            f"<specdec.AdaptiveGamma({of}): {found['name']}: best fixed gamma {found['gamma']}, "
            f"{best / plain:.2f} times plain, t(1) {found['target_s'][0] * 1e3:.3g} ms>"
        )

    def table(self) -> Table:
        """Return a table of each gamma's times and expected speed; a star marks the best.

        Raises
        ------
        InputError
            If nothing has been decoded yet.
        """
        found = self.to_dict()
        if not found:
            raise InputError("nothing has been learned yet; generate with this gamma first")
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
"""Shared by all calls with ``gamma="auto"``."""
