"""Comparing drafts: each in its turn on the same prompts, plain decoding among them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from specdec.analysis.arguments import (
    check_gammas,
    different_numbers,
    drafts_by_name,
    name_of,
    sampling_options,
    split,
    work_of,
)
from specdec.analysis.comparison import Comparison, ComparisonRow, PromptRow
from specdec.analysis.running import figures_of
from specdec.analysis.speedup import TimedRuns, run_in_turns
from specdec.checks import check_flag, check_integer
from specdec.decoding.beginning import Beginning
from specdec.drafts.draft import Draft
from specdec.drafts.model_draft import DraftLike, as_draft
from specdec.errors import printable
from specdec.models.loading import as_model
from specdec.models.model import Model, ModelLike, Prompt
from specdec.progress import counted
from specdec.threads import check_threads
from specdec.time_limit import ENDLESS, TimeLimit
from specdec.verification.rules import DECODING_RULES, DecodingRule, check_rule
from specdec.verification.sampling import Sampling

__all__ = ["compare", "compare_ways"]

_LABEL = 40  # characters of a prompt that are shown


def compare(
    target: ModelLike,
    drafts: Mapping[str, DraftLike],
    prompts: Prompt | Sequence[Prompt],
    *,
    temperatures: Sequence[float] = (0.0, 1.0),
    gammas: Sequence[int] | None = None,
    n_tokens: int = 400,
    repeats: int = 5,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    verify: DecodingRule = "rejection",
    timing: bool = True,
    seed: int = 0,
    n_threads: int | None = None,
    target_name: str | None = None,
    progress: bool = False,
) -> Comparison:
    """Compare drafts of any kind for one target, by running them.

    Every draft, with each gamma, and plain decoding continue the same prompts in turns, prompt by prompt, so
    that all of them see the same machine. What is counted (acceptance, tokens per run of the target) and what
    is timed are of the same runs, and mean the same for every draft; what `specdec.measure` says of a model
    by its distribution is measured by running here too. A draft that learns from texts begins each turn with
    what it knows now (`Draft.snapshot`), learns from the prompts of the turn in their order, and is left as
    it is; an `Online` learns nothing meanwhile. An object of your own is used as it is.

    Parameters
    ----------
    target : Model, path or hub name
    drafts : dict of str to Model, path, hub name, Draft, Drafter or str
        By names of your own. A text is what `specdec.drafts.named` takes, such as ``"copy"``.
    prompts : str, sequence of int, or a list of these
        For an encoder-decoder sources.
    temperatures : sequence of float
    gammas : sequence of int, optional
        Guesses of a round at most, each 1 to 1024; None: as many as each draft asks for by itself.
    n_tokens : int, default 400
        New tokens of each draft in each turn, with each gamma at each temperature: each prompt its share.
    repeats : int, default 5
        Turns. Sampled texts differ from turn to turn.
    top_k, top_p, min_p
        As in `Sampling`.
    verify : {"rejection", "block", "coupled", "k-sequential", "classical"}
        As in `specdec.generate`: trees are not taken by every rule.
    timing : bool, default True
        False: one turn, without plain decoding and without times.
    seed : int, default 0
        Prompt i of turn k has the key (seed + k, i).
    n_threads : int, optional
        None: :func:`specdec.threads.default_threads`.
    target_name : str, optional
        What the target is called; None: the name of its folder.
    progress : bool, default False
        Show a progress bar (needs tqdm).

    Returns
    -------
    Comparison
        ``print`` shows its tables; `specdec.plot` draws it by position, by prompt and by temperature.

    Raises
    ------
    InputError
        If an argument is out of range, a draft is none, or the rule does not take what it drafts.
    VocabularyMismatchError
        If target and a draft have different vocabularies.
    CheckpointError, TokenizerError
        If a path cannot be loaded.

    Examples
    --------
    >>> target, draft = specdec.embedded_pair()
    >>> ways = {"small model": draft, "copies": specdec.drafts.ContextCopy()}
    >>> found = specdec.compare(target, ways, ["Once upon a time", "It was a dark and stormy night"])
    >>> print(found)
    """
    samplings = [
        Sampling(temperature, top_k, top_p, min_p)
        for temperature in different_numbers("temperatures", temperatures)
    ]
    chosen = None if gammas is None else check_gammas(gammas)
    n_tokens, repeats = check_integer("n_tokens", n_tokens, 1), check_integer("repeats", repeats, 1)
    check_rule("verify", verify, 1.0, DECODING_RULES)
    timing = check_flag("timing", timing)
    target = as_model("target", target)
    target_name = name_of(target, target_name, "target_name")
    opened = {
        name: as_draft(target, draft) for name, draft in drafts_by_name("drafts", target, drafts).items()
    }
    beginnings = split(target, prompts)
    seed, threads = check_integer("seed", seed, 0, 2**64 - 1), check_threads(n_threads)
    work = work_of(target, beginnings, -(-n_tokens // len(beginnings)), n_tokens)
    ways = [(name, gamma) for name, draft in opened.items() for gamma in chosen or [max(draft.gamma, 1)]]
    return compare_ways(
        target, opened, ways, work, samplings=samplings, repeats=repeats, verify=verify, timing=timing,
        seed=seed, n_threads=threads, target_name=target_name, prompts=beginnings[: len(work)],
        progress=progress,
        settings={
            "n_tokens": n_tokens, "repeats": repeats if timing else 1, "verify": verify, "top_k": top_k,
            "top_p": top_p, "min_p": min_p, "seed": seed, "n_threads": threads,
        },
    )  # fmt: skip


def compare_ways(
    target: Model,
    opened: Mapping[str, Draft],
    ways: Sequence[tuple[str, int]],
    work: Sequence[tuple[Sequence[int], int]],
    *,
    samplings: Sequence[Sampling],
    repeats: int,
    verify: DecodingRule,
    timing: bool,
    seed: int,
    n_threads: int,
    target_name: str,
    prompts: Sequence[Beginning],
    progress: bool,
    settings: dict[str, Any],
    limit: TimeLimit = ENDLESS,
    at_least: float = 0.0,
) -> Comparison:
    """Run drafts with gammas of their own, and plain decoding, in turns.

    Parameters
    ----------
    target : Model
    opened : dict of str to Draft
        Drafts that fit the target, by name.
    ways : sequence of (name, gamma)
        What has its turn.
    work : sequence of (prompt, new tokens)
    samplings, repeats, verify, timing, seed, n_threads, target_name, progress
        As of `compare`.
    prompts : sequence of Beginning
        Those of the work.
    settings : dict
        What the comparison says of its settings.
    limit, at_least
        As of `run_in_turns`.
    """
    repeats = repeats if timing else 1
    n_steps = len(samplings) * repeats * (len(ways) + timing) * sum(n for _, n in work)
    rows: list[ComparisonRow] = []
    rates: dict[float, tuple[float, ...]] = {}
    with counted(n_steps, "token", progress) as done:
        for sampling in samplings:
            options: dict[str, Any] = {**sampling_options(sampling), "verify": verify, "n_threads": n_threads}
            plain = TimedRuns(target, None, **options)
            runs = {
                (name, gamma): TimedRuns(target, opened[name], gamma=gamma, **options) for name, gamma in ways
            }
            everything = [plain, *runs.values()] if timing else [*runs.values()]
            run_in_turns(
                everything, work, repeats=repeats, seed=seed, done=done, limit=limit,
                at_least=at_least if timing else 0.0,
            )  # fmt: skip
            rows += [
                _row(name, sampling, gamma, way, plain if timing else None)
                for (name, gamma), way in runs.items()
            ]
            if timing:
                rates[sampling.temperature] = plain.tokens_per_s
    return Comparison(
        target=target_name,
        rows=tuple(rows),
        plain_tokens_per_s=rates,
        prompts=[beginning.given for beginning in prompts],
        labels=tuple(_label(target, beginning) for beginning in prompts),
        settings=settings,
    )


def _row(name: str, sampling: Sampling, gamma: int, way: TimedRuns, plain: TimedRuns | None) -> ComparisonRow:
    found = figures_of(way, sampling)
    prompts = []
    for i in range(len(way.turns[0])):
        one = way.of(i)
        part = figures_of(one, sampling)
        speedup = None if plain is None else one.over(plain.of(i))
        prompts.append(PromptRow(i, part.n_tokens, part.tokens_per_call, part.alpha, speedup))
    timed: dict[str, Any] = {}
    if plain is not None:
        costs = way.costs(plain)
        timed = {
            "c": None if math.isnan(costs.guess) else costs.guess,
            "draft_ratio": costs.draft,
            "verify_ratio": costs.verify,
            "tokens_per_s": way.tokens_per_s,
            "speedup": way.over(plain),
        }
    return ComparisonRow(
        draft=name,
        temperature=sampling.temperature,
        gamma=gamma,
        n_tokens=found.n_tokens,
        n_calls=found.n_calls,
        tokens_per_call=found.tokens_per_call,
        tokens_low=found.tokens_low,
        tokens_high=found.tokens_high,
        alpha=found.alpha,
        alpha_low=found.alpha_low,
        alpha_high=found.alpha_high,
        drafted_per_call=found.n_drafted / found.n_calls,
        draft_acceptance_rate=found.n_accepted / found.n_drafted if found.n_drafted else None,
        by_position=found.by_position,
        prompts=tuple(prompts),
        reason=found.reason,
        named_share=way.named_share,
        **timed,
    )


def _label(target: Model, beginning: Beginning) -> str:
    text = beginning.source_text(target)
    if text is None and beginning.source is None and target.tokenizer is not None:
        text = target.tokenizer.decode(beginning.ids)
    words = " ".join(map(str, beginning.given)) if text is None else " ".join(text.split())
    return printable(words if len(words) <= _LABEL else words[: _LABEL - 1] + "…")
