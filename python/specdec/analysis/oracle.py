"""What a perfect gamma would have given: runs replayed with what is known afterwards (section 3.5)."""

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

_LEARNING = 2  # runs of `auto` before the one that counts


@dataclass(frozen=True)
class OracleRow:
    """One run of choosing gamma: "gamma 3", "auto", "oracle", "oracle, not verified".

    `tokens_per_call` are new tokens per run of the target, replayed; of `auto` as it ran. `speedup` is over
    plain decoding by the same measured times. `closed_...` are what the paper's formulas make of alpha and c:
    equation (1) and Theorem 3.8 with a gamma; 1 / (1 - alpha) and `theory.oracle_speedup` with the oracle;
    NaN for `auto`.
    """

    name: str
    tokens_per_call: float
    speedup: float
    closed_tokens_per_call: float
    closed_speedup: float

    @property
    def invalid(self) -> str:
        """Why `speedup` is an error of measuring (it is above the tokens per run); empty if it is not."""
        return invalid_speedup(self.speedup, self.tokens_per_call)


@dataclass(frozen=True, repr=False)
class Oracle(OneTable):
    """How close `gamma="auto"` comes to what could be had at most; ``print`` shows it, a notebook too.

    `n_tokens` were replayed, with at most `max_gamma` drafted tokens in a row. `alpha` is the mean acceptance
    rate at the verified positions (Corollary 3.6), None of trees, and where nothing was drafted. `c` is the
    cost coefficient (Definition 3.7), of the seconds `draft_s` of a drafted token and `target_s` of a run of
    the target by its rows. `rows` are the gammas, `auto`, the oracle, the oracle that does not verify.
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
        """The row of a name; KeyError if there is none."""
        return {row.name: row for row in self.rows}[name]

    @property
    def best(self) -> OracleRow:
        """The fastest fixed gamma, of those whose speed-up is not invalid if there are any."""
        fixed = [row for row in self.rows if row.name.startswith("gamma")]
        return max(fixed, key=lambda row: (not row.invalid, row.speedup))

    def table(self) -> Table:
        """Every run of choosing gamma; the best fixed one has a star, unless its speed-up is invalid."""
        best, bound = self.best, self["oracle"]

        def share(row: OracleRow) -> str:
            return "" if row.invalid or bound.invalid else f"{row.speedup / bound.speedup:.2f}"

        title = f"{self.draft} drafting for {self.target} at temperature {self.temperature:g}: "
        title += "" if self.alpha is None else f"alpha {self.alpha:.3f}, "
        title += f"c {self.c:.3f}, {self.n_tokens} tokens"
        columns = [
            ("", lambda row: row.name + (" ★" if row is best and not row.invalid else "")),
            figure("tokens/run", "tokens_per_call", ".2f"),
            ("speed-up", lambda row: marked(f"{row.speedup:.2f}X", row.invalid)),
            ("share of oracle's", share),
            figure("tokens/run, formula", "closed_tokens_per_call", ".2f", none=""),
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
    """Replay runs with a perfect gamma, to see how much is to be had by choosing it (section 3.5).

    Each prompt is decoded with `max_gamma` drafted tokens a round, so every position of the text is tested
    once: where a round accepts n of them, an oracle would have drafted n. (Whether a position is accepted
    does not depend on gamma; in sampling it is what the run's own random numbers gave.) Then the same
    positions are gone through with fixed gammas and with an oracle, which chooses the gamma of each round so
    that the whole text takes least time. A second oracle need not have its drafts verified (footnote 4): they
    need no rows of the target then, but as many runs. `auto` really runs, after two runs to learn from. All
    are timed by the same measured t(M) and time of a draft; a speed-up above the tokens per run comes from
    wrong times, and is shown as invalid.

    Only the drafts of a model or a table are the same wherever their round began. With any other
    (`specdec.measure`) the fixed gammas really run, the oracle is one of the longest run, drafting what each
    of its rounds accepted, and the formulas say nothing. Drafts learn as in `specdec.measure`.

    Parameters
    ----------
    target, prompts
        As of `specdec.measure`.
    draft : Model, path, hub name, Draft or Drafter, or a dict of one of these by its name
    gammas, max_gamma : sequence of int, int
        Fixed ones to compare with, and drafted tokens in a row at most; longer runs of accepted ones count as
        several.
    options : DecodingOptions, optional
        Of the runs; `verify` is a rule that judges token by token, and end-of-text ids are passed by. The
        default of `seed` is 0.

    Raises
    ------
    InputError, VocabularyMismatchError, CheckpointError, TokenizerError
        As `specdec.measure`; or the rule judges a chain as a whole.

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
    if decoding.verify == "block":
        raise InputError.of("verify", "block", "a rule for each guess: this one judges chains as a whole")
    setup = Setup.of(target, decoding, prompts)
    name, one = arguments.named_one("draft", draft)
    drafting = as_draft(setup.target, one)
    measured = arguments.measurable(setup.target, drafting)
    replays = arguments.has_distribution(measured)  # what drafts alike wherever a round begins
    policies: list[int | AdaptiveGamma] = [max_gamma, AdaptiveGamma(max_gamma), *([] if replays else chosen)]
    results = _played(setup, drafting, policies)
    longest, with_auto, *ran = [[result.trace.rounds for result in texts] for texts in results]
    # a draft that decides by itself how much to draft is not bound by max_gamma when gamma is "auto"
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
    """Run the policies in turns, and return the results of each; the second, `auto`, has learned before."""
    n = check_integer("max_new_tokens", setup.options.max_new_tokens, 1)
    work = [(beginning.given, n) for beginning in setup.prompts]
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
    """The table, from the rounds of each text with as many n_drafts as possible, and with auto.

    `fixed`: those of each gamma as they ran; None: they are replayed, and the formulas hold.
    """
    bits = [outcomes(rounds) for rounds in longest]
    rate = number_of(alpha if fixed is None else None)

    def row(name: str, played: Any, closed: Iterable[float], draft_s: float | None = None) -> OracleRow:
        """`played`: n_drafts, rows and new tokens of each round; `draft_s` where drafting has been timed."""
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
        """Without verification a run of the target has one row, however many n_drafts there are."""
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
        # in the paper, where rows are free, not to verify saves nothing
        perfect("oracle", verified=True),
        perfect("oracle, not verified", verified=False),
    )


def outcomes(rounds: Sequence[Round]) -> list[bool | None]:
    """Of each position of a text whether the draft's guess is accepted there, None where it has none.

    A tree counts by its accepted path; the position after a round that accepted all counts as wrong.
    """
    found: list[bool | None] = []
    for r in rounds:
        found += [True] * r.n_accepted
        found.append(False if r.drafted else None)
    return found


def replayed(text: Sequence[bool | None], gamma: int) -> list[tuple[int, int]]:
    """(n_drafts, new tokens) of each round that a fixed gamma makes of a text's outcomes."""
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
    """(n_drafts, new tokens) of each round, with the gammas that take least time for a text's outcomes.

    `seconds` is what a round takes by its number of n_drafts; one with NaN is not chosen.
    """
    known = [math.inf if math.isnan(one) else one for one in seconds]
    rest = [0.0] * (len(text) + 1)  # seconds from each position on, by the best gammas
    chosen = [(0, 0)] * len(text)
    run = 0  # n_drafts in a row that are accepted from here on; the last token is the target's own
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
