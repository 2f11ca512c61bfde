"""`oracle`: the speed-up of a perfect choice of gamma, by replaying runs (section 3.5)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from specdec import theory
from specdec.analysis import arguments, prediction
from specdec.analysis.arguments import Setup
from specdec.analysis.experiment import Configuration, counts_of, number_of, take_turns
from specdec.checks import check_integer, check_items
from specdec.decoding.adaptive_gamma import AdaptiveGamma
from specdec.decoding.options import DecodingOptions, SampleOptions
from specdec.decoding.result import Result
from specdec.drafts.draft import MAX_GAMMA, Draft
from specdec.drafts.model_draft import DraftLike, as_draft
from specdec.errors import InputError
from specdec.models.model import ModelLike, Prompt
from specdec.progress import counted
from specdec.settings_table import Unpack
from specdec.tables import OneTable, Table, figure, marked
from specdec.trace import Round, invalid_speedup
from specdec.verification.rules import WHOLE_TREE_RULES

_LEARNING = 2  # runs of `auto` before the measured one


@dataclass(frozen=True)
class OracleRow:
    """Result of one policy for gamma: "gamma 3", "auto", "oracle" or "oracle, not verified".

    `tokens_per_call`: new tokens per target forward pass, replayed, or measured for `auto`. `speedup` over
    plain decoding uses the same measured times. `closed_...` are the paper's predictions from alpha and c:
    equation (1) and Theorem 3.8 for a fixed gamma, 1 / (1 - alpha) and `theory.oracle_speedup` for the
    oracle, NaN for `auto`.
    """

    name: str
    tokens_per_call: float
    speedup: float
    closed_tokens_per_call: float
    closed_speedup: float

    @property
    def invalid(self) -> str:
        """Why `speedup` is a measurement error (above the tokens per pass); empty if it is valid."""
        return invalid_speedup(self.speedup, self.tokens_per_call)


@dataclass(frozen=True, repr=False)
class Oracle(OneTable):
    """How close `gamma="auto"` comes to the optimum; ``print`` and notebooks show it.

    `n_tokens` were replayed, with at most `max_gamma` draft tokens in a row. `alpha` is the mean acceptance
    rate over the verified positions (Corollary 3.6), None for trees or if nothing was drafted. `c` is the
    cost coefficient (Definition 3.7), from `draft_s` per draft token and `target_s` per pass by rows. `rows`
    has the fixed gammas, `auto`, the oracle, and the oracle without verification.
    """

    target: str
    draft: str
    temperature: float
    n_tokens: int
    max_gamma: int
    alpha: float | None
    c: float
    target_s: dict[int, float]
    draft_s: float
    rows: tuple[OracleRow, ...]

    def __getitem__(self, name: str) -> OracleRow:
        """Return the row of a name; KeyError if there is none."""
        return {row.name: row for row in self.rows}[name]

    @property
    def best(self) -> OracleRow:
        """Fastest fixed gamma, with a valid speed-up if any has one."""
        fixed = [row for row in self.rows if row.name.startswith("gamma")]
        return max(fixed, key=lambda row: (not row.invalid, row.speedup))

    def table(self) -> Table:
        """Return a table of all policies; a star marks the best fixed gamma if its speed-up is valid."""
        best, bound = self.best, self["oracle"]

        def share(row: OracleRow) -> str:
            return "" if row.invalid or bound.invalid else f"{row.speedup / bound.speedup:.2f}"

        title = f"{self.draft} drafting for {self.target} at temperature {self.temperature:g}: "
        title += "" if self.alpha is None else f"alpha {self.alpha:.3f}, "
        title += f"c {self.c:.3f}, {self.n_tokens} tokens"
        columns = [
            ("", lambda row: row.name + (" ★" if row is best and not row.invalid else "")),
            figure("tokens per pass", "tokens_per_call", ".2f"),
            ("speed-up", lambda row: marked(f"{row.speedup:.2f}X", row.invalid)),
            ("share of oracle's", share),
            figure("tokens per pass, formula", "closed_tokens_per_call", ".2f", none=""),
            figure("speed-up, formula", "closed_speedup", ".2f", "X", none=""),
        ]
        return Table.of(title, self.rows, columns)


def oracle(
    target: ModelLike | dict[str, ModelLike],
    draft: DraftLike | dict[str, DraftLike],
    prompts: Prompt | Sequence[Prompt] | None = None,
    *,
    gammas: Sequence[int] = (1, 2, 3, 4, 5, 6, 8),
    max_gamma: int = 16,
    options: DecodingOptions | None = None,
    **changes: Unpack[SampleOptions],
) -> Oracle:
    """Replay runs with a perfect choice of gamma, to bound the gain of choosing it (section 3.5).

    Each prompt is decoded with `max_gamma` draft tokens per round, so every position of the text is tested
    once. An oracle would have drafted exactly the tokens that were accepted. (Acceptance of a position does
    not depend on gamma; in sampling, it depends on the run's random numbers.) The same positions are then
    replayed with fixed gammas, and with an oracle that chooses each round's gamma to minimize the total time.
    A second oracle skips verification (footnote 4): it needs no rows of the target for draft tokens, but as
    many passes. `auto` is really run, after two runs to learn from. All use the same measured t(M) and draft
    time; a speed-up above the tokens per pass comes from wrong times and is marked invalid.

    Only models and tables draft the same tokens wherever a round begins. For other drafts (see
    `specdec.measure`) the fixed gammas are really run, and there are no formulas; the oracle drafts what each
    round of the longest run accepted. Drafts learn as in `specdec.measure`.

    Parameters
    ----------
    target, prompts
        As in `specdec.measure`.
    draft : Model, path, hub name, Draft or Drafter, or a dict of one of these by its name
    gammas, max_gamma : sequence of int, int
        Fixed gammas to compare, and the maximum of draft tokens in a row; longer accepted runs are split.
    options : DecodingOptions, optional
        Decoding options; `verify` must judge token by token, by default "rejection", and end-of-text ids are
        ignored. `seed` is 0 by default.

    Raises
    ------
    InputError, VocabularyMismatchError, CheckpointError, TokenizerError
        As in `specdec.measure`; or the rule judges a tree as a whole.

    Examples
    --------
    >>> target, draft = specdec.embedded_pair()
    >>> print(specdec.oracle(target, draft, "It was a dark and stormy night"))
    """
    decoding = arguments.decoding_options(options, changes, {"gamma": "gammas"})
    max_gamma = check_integer("max_gamma", max_gamma, 1, MAX_GAMMA)
    expected = f"integers from 0 to max_gamma, {max_gamma}"
    given = check_items("gammas", gammas, expected)
    if not given:
        raise InputError.of("gammas", gammas, expected)
    chosen = [check_integer("gammas", gamma, 0, max_gamma) for gamma in given]
    if decoding.verify in WHOLE_TREE_RULES:
        raise InputError.of("verify", decoding.verify, "a rule that judges each draft token by itself")
    if decoding.verify == "auto":
        decoding = decoding.replace(verify="rejection")
    setup = Setup.of(target, decoding, prompts)
    name, one = arguments.named_one("draft", draft)
    drafting = as_draft(setup.target, one)
    measured = arguments.measurable(setup.target, drafting)
    replays = arguments.has_distribution(measured)  # drafts the same wherever a round begins
    policies: list[int | AdaptiveGamma] = [max_gamma, AdaptiveGamma(max_gamma), *([] if replays else chosen)]
    results = _played(setup, drafting, policies)
    longest, with_auto, *ran = [[result.trace.rounds for result in texts] for texts in results]
    # a draft that chooses its own length ignores max_gamma when gamma is "auto"
    n_rows = max(max_gamma + 1, *(len(set(r.rows)) for rounds in with_auto for r in rounds))
    times = prediction.forward_times(setup, measured, [result.tokens for result in results[0]], n_rows)
    counts = counts_of(results[0])
    if not replays:
        drafting_s = math.fsum(result.trace.draft_s for result in results[0])
        times = replace(times, draft_s=drafting_s / max(1, counts["n_drafted"]))
    alpha, n_tokens = counts.get("alpha"), sum(len(result.tokens) for result in results[0])
    fixed = None if replays else dict(zip(chosen, ran, strict=True))
    rows = rows_of(longest, with_auto, chosen, alpha, times, fixed)
    return Oracle(
        setup.name, name or arguments.name_of(drafting), decoding.temperature, n_tokens, max_gamma, alpha,
        times.cost, times.target_s, times.draft_s, rows,
    )  # fmt: skip


def _played(setup: Setup, draft: Draft, policies: Sequence[int | AdaptiveGamma]) -> list[list[Result]]:
    """Run the policies interleaved and return their results; the second, `auto`, has learned before."""
    n = check_integer("max_new_tokens", setup.options.max_new_tokens, 1)
    work = [(prompt.given, n) for prompt in setup.prompts]
    settings = setup.runs(ignore_eos=True)
    with counted(len(work) * (_LEARNING + len(policies)), "run", setup.options.progress) as done:
        for several in (*[policies[1:2]] * _LEARNING, policies):
            runs = [Configuration(setup.target, draft, policy, **settings) for policy in several]
            take_turns(runs, work, repeats=1, seed=setup.seed, done=lambda n: done(1))
    return [run.results for run in runs]


Texts = Sequence[Sequence[Round]]  # the rounds of each text


def rows_of(
    longest: Texts, auto: Texts, gammas: Sequence[int], alpha: float | None, times: prediction.ForwardTimes,
    fixed: Mapping[int, Texts] | None = None,
) -> tuple[OracleRow, ...]:  # fmt: skip
    """Compute all rows from the rounds of each text at the maximum gamma, and with auto.

    `fixed`: measured rounds of each gamma; None: replay them, and include the formulas.
    """
    bits = [outcomes(rounds) for rounds in longest]
    rate = number_of(alpha if fixed is None else None)

    def row(name: str, played: Any, closed: Iterable[float], draft_s: float | None = None) -> OracleRow:
        """`played`: draft tokens, rows and new tokens of each round; `draft_s` if drafting was timed."""
        n_drafts, rows, tokens = zip(*played, strict=True)
        seconds = math.fsum(times.target_s[n] for n in rows)
        seconds += sum(n_drafts) * times.draft_s if draft_s is None else draft_s
        speedup = sum(tokens) * times.target_s[1] / seconds
        return OracleRow(name, sum(tokens) / len(tokens), speedup, *closed)

    def ran(name: str, texts: Texts) -> OracleRow:
        rounds = [r for text in texts for r in text]
        draft_s = None if fixed is None else math.fsum(r.draft_s for r in rounds)
        played = [(r.n_drafted, len(set(r.rows)), len(r.tokens)) for r in rounds]
        return row(name, played, (math.nan, math.nan), draft_s)

    def replay(name: str, gamma: int) -> OracleRow:
        formulas = theory.expected_tokens(rate, gamma), theory.expected_speedup(rate, gamma, times.cost)
        played = [(g, g + 1, n) for text in bits for g, n in replayed(text, gamma)]
        return row(name, played, map(float, formulas))

    def perfect(name: str, *, verified: bool) -> OracleRow:
        """Without verification each target pass has one row."""
        n_rows = [g + 1 if verified else 1 for g in range(n_gammas)]
        seconds = [g * times.draft_s + times.target_s[n] for g, n in enumerate(n_rows)]
        per_call = math.inf if rate == 1.0 else 1.0 / (1.0 - rate)
        closed = per_call, float(theory.oracle_speedup(rate, times.cost))
        return row(name, [(g, n_rows[g], n) for text in bits for g, n in fastest(text, seconds)], closed)

    n_gammas = 1 + max((r.n_drafted for text in longest for r in text), default=0)
    names = {gamma: f"gamma {gamma}" for gamma in gammas}
    return (
        *(replay(name, g) if fixed is None else ran(name, fixed[g]) for g, name in names.items()),
        ran("auto", auto),
        # in the paper rows are free, so skipping verification saves nothing
        perfect("oracle", verified=True),
        perfect("oracle, not verified", verified=False),
    )


def outcomes(rounds: Sequence[Round]) -> list[bool | None]:
    """For each position of a text: whether the draft token is accepted there; None without one.

    A tree counts by its accepted path; the position after a fully accepted round counts as rejected.
    """
    found: list[bool | None] = []
    for r in rounds:
        found += [True] * r.n_accepted
        found.append(False if r.drafted else None)
    return found


def replayed(text: Sequence[bool | None], gamma: int) -> list[tuple[int, int]]:
    """Replay a text's outcomes with a fixed gamma: (draft tokens, new tokens) of each round."""
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
    """Replay a text's outcomes with the fastest gammas: (draft tokens, new tokens) of each round.

    `seconds` is the time of a round by its number of draft tokens; NaN excludes a number.
    """
    known = [math.inf if math.isnan(one) else one for one in seconds]
    rest = [0.0] * (len(text) + 1)  # minimal seconds from each position on
    chosen = [(0, 0)] * len(text)
    run = 0  # accepted tokens in a row from here; the last token is the target's own
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
