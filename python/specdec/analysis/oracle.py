"""What a perfect gamma would have given: runs replayed with what is known afterwards (section 3.5)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from specdec import theory
from specdec.analysis.acceptance import name_of, split
from specdec.analysis.timing import ForwardTimes, forward_times, sample_text
from specdec.checks import as_integer, check_integer, check_items
from specdec.decoding.adaptive_gamma import AdaptiveGamma
from specdec.decoding.generate import generate
from specdec.decoding.result import Result
from specdec.drafts.draft import MAX_GAMMA
from specdec.drafts.model_draft import DraftLike, as_draft
from specdec.errors import InputError, shown
from specdec.models.model import ModelLike, Prompt, as_model
from specdec.progress import counted
from specdec.tables import OneTable, Table
from specdec.threads import check_threads
from specdec.trace import Round, invalid_speedup
from specdec.verification.rules import DECODING_RULES, DecodingRule, check_rule
from specdec.verification.sampling import Sampling

__all__ = ["Oracle", "OracleRow", "oracle"]

_LEARNING = 2  # runs of `auto` before the one that counts


@dataclass(frozen=True)
class OracleRow:
    """One way of choosing gamma.

    Attributes
    ----------
    name : str
        "gamma 3", "auto", "oracle", "oracle, not verified".
    tokens_per_call : float
        New tokens per run of the target, replayed; of `auto` as it ran.
    speedup : float
        Over plain decoding, all by the same measured times: t(M) of the target's runs with their rows, the
        draft's times its steps. It can be an error of measuring, see `invalid`.
    closed_tokens_per_call, closed_speedup : float
        What the paper's formulas make of the mean acceptance rate alpha and the cost coefficient c, guesses
        being independent and verification of any number of them as fast as a step: equation (1) and Theorem
        3.8 with a gamma; 1 / (1 - alpha) and `theory.oracle_speedup` with the oracle; NaN for `auto`.
    """

    name: str
    tokens_per_call: float
    speedup: float
    closed_tokens_per_call: float
    closed_speedup: float

    @property
    def invalid(self) -> str:
        """Why `speedup` is an error of measuring; empty if it is not.

        A run of the target takes at least as long as t(1), so no speed-up is above the tokens per run. One
        that is comes from wrong times, as on a busy machine.
        """
        return invalid_speedup(self.speedup, self.tokens_per_call)


@dataclass(frozen=True, repr=False)
class Oracle(OneTable):
    """How close `gamma="auto"` comes to what could be had at most; ``print`` shows it, a notebook too.

    Attributes
    ----------
    target, draft : str
        Names.
    temperature : float
    n_tokens : int
        New tokens that were replayed.
    max_gamma : int
        Guesses in a row at most, those of the oracle too.
    alpha : float
        Mean acceptance rate at the verified positions (Corollary 3.6).
    c : float
        Cost coefficient (Definition 3.7).
    target_s : dict of int to float
        Seconds of a run of the target, by its rows.
    draft_s : float
        Seconds of the draft for a guess.
    rows : tuple of OracleRow
        The gammas, `auto`, the oracle, the oracle that does not verify.
    """

    target: str
    draft: str
    temperature: float
    n_tokens: int
    max_gamma: int
    alpha: float
    c: float
    target_s: dict[int, float]
    draft_s: float
    rows: tuple[OracleRow, ...]

    def __getitem__(self, name: str) -> OracleRow:
        """The row of a name.

        Raises
        ------
        KeyError
        """
        for row in self.rows:
            if row.name == name:
                return row
        raise KeyError(name)

    @property
    def best(self) -> OracleRow:
        """The fastest fixed gamma, of those whose speed-up is not invalid if there are any."""
        fixed = [row for row in self.rows if row.name.startswith("gamma")]
        return max(fixed, key=lambda row: (not row.invalid, row.speedup))

    def table(self) -> Table:
        """Every way of choosing gamma; the best fixed one has a star, unless its speed-up is invalid."""
        best, bound = self.best, self["oracle"]
        rows = [
            (
                row.name + (" ★" if row is best and not row.invalid else ""),
                f"{row.tokens_per_call:.2f}",
                row.invalid or f"{row.speedup:.2f}X",
                "" if row.invalid or bound.invalid else f"{row.speedup / bound.speedup:.2f}",
                "" if math.isnan(row.closed_tokens_per_call) else f"{row.closed_tokens_per_call:.2f}",
                "" if math.isnan(row.closed_speedup) else f"{row.closed_speedup:.2f}X",
            )
            for row in self.rows
        ]
        title = (
            f"{self.draft} drafting for {self.target} at temperature {self.temperature:g}: alpha "
            f"{self.alpha:.3f}, c {self.c:.3f}, {self.n_tokens} tokens"
        )
        head = ("", "tokens/run", "speed-up", "share of oracle's", "tokens/run, formula", "speed-up, formula")
        return Table(title, head, rows)

    def __repr__(self) -> str:
        ways = (("auto", self["auto"]), (self.best.name, self.best), ("an oracle", self["oracle"]))
        shown = [f"{row.speedup:.2f} with {way}{' (invalid)' if row.invalid else ''}" for way, row in ways]
        wrong = any(row.invalid for _, row in ways)
        why = "; invalid: above the tokens per run, an error of measuring" if wrong else ""
        return f"<specdec.Oracle: alpha {self.alpha:.3f}, speed-up {', '.join(shown)}{why}>"


def oracle(
    target: ModelLike,
    draft: DraftLike,
    prompts: Prompt | Sequence[Prompt],
    *,
    gammas: Sequence[int] = (1, 2, 3, 4, 5, 6, 8),
    max_gamma: int = 16,
    max_new_tokens: int = 200,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    verify: DecodingRule = "rejection",
    seed: int = 0,
    n_threads: int | None = None,
    progress: bool = False,
) -> Oracle:
    """Replay runs with a perfect gamma, to see how much is to be had by choosing it (section 3.5).

    Each prompt is decoded with `max_gamma` guesses a round. So every position of the text is tested once:
    where a round accepts n guesses, an oracle would have drafted n. In sampling, acceptance is what the run's
    own random numbers gave, not the mean beta: a round's length depends on all of its positions at once, and
    whether one is accepted does not depend on gamma, so these are the draws that any gamma would have met in
    such a text. Then the same positions are gone through with fixed gammas and with an oracle. It knows
    what will be accepted, and chooses the gamma of each round so that the whole text takes least time: no
    fixed gamma is faster. A second oracle need not have its guesses verified (footnote 4): they need no rows
    of the target then, but as many runs, for there is still one for every token that is not a good guess.
    (The keys and values of the guesses are taken to cost nothing, so this is a bound.) `auto` really runs,
    after two runs to learn from. All are timed by the same law: t(M) and the draft's time for a guess,
    measured. A speed-up above the tokens per run comes from wrong times, and is shown as invalid.

    Parameters
    ----------
    target : Model, path or hub name
    draft : Model, path, hub name or Draft
        One that drafts chains.
    prompts : str, sequence of int, or a list of these
        Of an encoder-decoder the sources.
    gammas : sequence of int
        Fixed ones to compare with, 0 to `max_gamma`.
    max_gamma : int, default 16
        Guesses in a row at most; runs of accepted guesses that are longer count as several.
    max_new_tokens : int, default 200
        For each prompt.
    temperature, top_k, top_p, min_p
        As in `Sampling`.
    verify : {"rejection", "coupled", "classical"}
        A rule that judges guess by guess.
    seed : int, default 0
    n_threads : int, optional
        None: :func:`specdec.threads.default_threads`.
    progress : bool, default False
        Show a progress bar (needs tqdm).

    Returns
    -------
    Oracle

    Raises
    ------
    InputError
        If an argument is out of its range, the draft drafts trees or remembers the texts of earlier runs, or
        the rule judges a chain as a whole.
    VocabularyMismatchError, CheckpointError, TokenizerError
        As `specdec.generate`.

    Examples
    --------
    >>> target, draft = specdec.embedded_pair()
    >>> print(specdec.oracle(target, draft, "It was a dark and stormy night"))
    """
    max_gamma = check_integer("max_gamma", max_gamma, 1, MAX_GAMMA)
    n_new = check_integer("max_new_tokens", max_new_tokens, 1)
    expected = f"integers from 0 to max_gamma, {max_gamma}"
    found = [as_integer(gamma) for gamma in check_items("gammas", gammas, expected)]
    chosen = [gamma for gamma in found if gamma is not None and 0 <= gamma <= max_gamma]
    if len(chosen) < len(found) or not chosen:
        raise InputError(f"gammas is {shown(gammas)}; expected {expected}")
    sampling = Sampling(temperature, top_k, top_p, min_p)
    check_rule("verify", verify, 1.0, DECODING_RULES)
    if verify == "block":
        raise InputError("verify is 'block', which judges chains as a whole; expected a rule for each guess")
    target = as_model("target", target)
    draft = as_draft(target, draft)
    if draft.text_key():
        raise InputError(
            f"draft is {shown(draft)}, which remembers the texts of earlier runs; expected one that drafts "
            f"alike in each run"
        )
    beginnings = split(target, prompts)
    seed, threads = check_integer("seed", seed, 0, 2**64 - 1), check_threads(n_threads)
    options: dict[str, Any] = {
        "max_new_tokens": n_new, "temperature": sampling.temperature, "top_k": sampling.top_k,
        "top_p": sampling.top_p, "min_p": sampling.min_p,
        "verify": verify, "n_threads": threads, "ignore_eos": True,
    }  # fmt: skip
    auto = AdaptiveGamma(max_gamma)
    policies: list[int | AdaptiveGamma] = [max_gamma, *[auto] * (_LEARNING + 1)]
    with counted(len(policies) * len(beginnings), "run", progress) as done:
        results: list[list[Result]] = []
        for policy in policies:
            results.append([])
            for i, beginning in enumerate(beginnings):
                key = [(seed, i)]
                results[-1].append(
                    generate(target, draft, beginning.given, gamma=policy, seed=key, **options)
                )
                done(1)
    longest = [result.trace.rounds for result in results[0]]
    times = forward_times(
        target,
        draft,
        sample_text(target, beginnings, [result.tokens for result in results[0]], max_gamma + 1),
        max_rows=max_gamma + 1,
        n_threads=threads,
    )
    betas = [beta for rounds in longest for r in rounds for beta in r.betas]
    alpha = min(1.0, math.fsum(betas) / len(betas)) if betas else math.nan
    return Oracle(
        target=name_of(target),
        draft=name_of(draft.identity),
        temperature=sampling.temperature,
        n_tokens=sum(len(result.tokens) for result in results[0]),
        max_gamma=max_gamma,
        alpha=alpha,
        c=times.cost,
        target_s=times.target_s,
        draft_s=times.draft_s,
        rows=_rows(longest, [r.trace.rounds for r in results[-1]], chosen, alpha, times),
    )


def _rows(
    longest: Sequence[Sequence[Round]],
    auto: Sequence[Sequence[Round]],
    gammas: Sequence[int],
    alpha: float,
    times: ForwardTimes,
) -> tuple[OracleRow, ...]:
    """The table, from the rounds of each text with as many guesses as possible, and with auto."""
    bits = [outcomes(rounds) for rounds in longest]
    plain_s = times.target_s[1]

    def row(
        name: str, played: list[tuple[int, int]], closed: tuple[float, float], skip: bool = False
    ) -> OracleRow:
        """`played`: guesses and new tokens of each round."""
        tokens = sum(n for _, n in played)
        seconds = math.fsum(g * times.draft_s + times.target_s[1 if skip else g + 1] for g, _ in played)
        return OracleRow(name, tokens / len(played), tokens * plain_s / seconds, *closed)

    rows = []
    for gamma in gammas:
        closed = (
            float(theory.expected_tokens(alpha, gamma)),
            float(theory.expected_speedup(alpha, gamma, times.cost)),
        )
        rows.append(row(f"gamma {gamma}", [r for text in bits for r in replayed(text, gamma)], closed))
    ran = [(r.n_drafted, len(r.tokens)) for rounds in auto for r in rounds]
    rows.append(row("auto", ran, (math.nan, math.nan)))
    n_gammas = len(times.target_s)
    verified = [g * times.draft_s + times.target_s[g + 1] for g in range(n_gammas)]
    perfect = [r for text in bits for r in fastest(text, verified)]
    per_call = math.inf if alpha == 1.0 else 1.0 / (1.0 - alpha)
    closed = (per_call, float(theory.oracle_speedup(alpha, times.cost)))
    rows.append(row("oracle", perfect, closed))
    # in the paper's law, where rows are free, not to verify saves nothing
    skipping = [g * times.draft_s + plain_s for g in range(n_gammas)]
    perfect = [r for text in bits for r in fastest(text, skipping)]
    rows.append(row("oracle, not verified", perfect, closed, skip=True))
    return tuple(rows)


def outcomes(rounds: Sequence[Round]) -> list[bool | None]:
    """Of each position of a text whether the draft's guess is accepted there, None where it has none.

    Behind a round all of whose guesses were accepted there was none left; there it counts as wrong.
    """
    found: list[bool | None] = []
    for r in rounds:
        if list(r.parents) != list(range(r.n_drafted)):
            raise InputError(f"the draft drafts trees: parents are {list(r.parents)}; expected chains")
        found += [True] * r.n_accepted
        found.append(False if r.drafted else None)
    return found


def replayed(text: Sequence[bool | None], gamma: int) -> list[tuple[int, int]]:
    """(guesses, new tokens) of each round that a fixed gamma makes of a text's outcomes."""
    rounds, at = [], 0
    while at < len(text):
        n = 0
        while n < gamma and at + n < len(text) - 1 and text[at + n]:
            n += 1
        n_drafted = 0 if text[at] is None else min(gamma, len(text) - 1 - at)
        rounds.append((n_drafted, n + 1))
        at += n + 1
    return rounds


def fastest(text: Sequence[bool | None], seconds: Sequence[float]) -> list[tuple[int, int]]:
    """(guesses, new tokens) of each round, with the gammas that take least time for a text's outcomes.

    `seconds` is what a round takes by its number of guesses; one with NaN is not chosen.
    """
    known = [math.inf if math.isnan(one) else one for one in seconds]
    rest = [0.0] * (len(text) + 1)  # seconds from each position on, by the best gammas
    chosen = [(0, 0)] * len(text)
    run = 0  # guesses in a row that are accepted from here on; the last token is the target's own
    for at in reversed(range(len(text))):
        run = run + 1 if text[at] and at < len(text) - 1 else 0
        limit = 0 if text[at] is None else min(len(known) - 1, len(text) - 1 - at)
        totals = [known[g] + rest[at + min(g, run) + 1] for g in range(limit + 1)]
        rest[at] = min(totals)
        gamma = totals.index(rest[at])
        chosen[at] = (gamma, min(gamma, run) + 1)
    rounds, at = [], 0
    while at < len(text):
        rounds.append(chosen[at])
        at += chosen[at][1]
    return rounds
