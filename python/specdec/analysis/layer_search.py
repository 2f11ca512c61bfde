"""Which of its layers a model should skip to draft for itself: a search for measured speed."""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from specdec.analysis.arguments import default_prompts, name_of, split
from specdec.analysis.skip_study import SkipStudy, import_optuna
from specdec.analysis.skip_trials import SkipSearch, SkipTrial, rank
from specdec.analysis.speedup import TimedRuns, run_in_turns
from specdec.checks import check_flag, check_integer, check_items, check_path
from specdec.drafts import SkipLayers
from specdec.drafts.draft import MAX_GAMMA
from specdec.errors import InputError
from specdec.models.loading import as_model
from specdec.models.model import Model, ModelLike, Prompt
from specdec.progress import counted
from specdec.threads import check_threads
from specdec.verification.sampling import Sampling

__all__ = ["search_skips"]

_FINALISTS, _REPEATS = 3, 5  # of the trials, the best so many are measured again, so often


def search_skips(
    target: ModelLike,
    prompts: Prompt | Sequence[Prompt] | None = None,
    *,
    n_trials: int = 60,
    gamma: int | Sequence[int] = (1, 2, 4, 6),
    max_new_tokens: int = 64,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    seed: int = 0,
    n_threads: int | None = None,
    path: str | os.PathLike[str] | None = None,
    progress: bool = False,
) -> SkipSearch:
    """Find the layers that a model should skip to draft for itself (arXiv 2309.08168).

    Bayesian optimisation (Optuna's tree-structured Parzen estimator) over the sets of attentions and MLPs,
    and over gamma, of the speed that `specdec.generate` has on your prompts, by the clock on the wall. Plain
    decoding takes its turn in every trial and what counts is the ratio, so that the machine's own ups and
    downs drop out. The search begins with choices that often do well, such as the layers in the middle; in
    the end the best few are measured again.

    Parameters
    ----------
    target : Model, path or hub name
    prompts : str, sequence of int, or a list of these, optional
        What is continued: give what resembles your use; for an encoder-decoder sources. None: some beginnings
        of English sentences, for a target with a tokenizer.
    n_trials : int, default 60
        Choices that are tried, among them those of an earlier search in `path`.
    gamma : int or sequence of int, default (1, 2, 4, 6)
        Guesses a round, each 1 to 1024; of several the search takes the best.
    max_new_tokens : int, default 64
        New tokens for each prompt, as far as the context reaches; end-of-text ids are passed by.
    temperature, top_k, top_p, min_p
        As in `Sampling`.
    seed : int, default 0
        Of the sampled texts and of the search. Equal seeds try the same choices as long as measured times put
        them in the same order.
    n_threads : int, optional
        None: :func:`specdec.threads.default_threads`.
    path : str or path, optional
        A file that holds what was found so far after every trial. If it is there, the search of equal
        settings in it goes on.
    progress : bool, default False
        Show a progress bar (needs tqdm).

    Returns
    -------
    SkipSearch
        ``search.draft`` is the draft, with its best gamma as its own; ``search.pays`` says whether it beats
        plain decoding: a model that was not made for it may have no such draft. Ctrl-C ends the search early,
        and what it found until then is returned; before the first trial is through it raises
        KeyboardInterrupt.

    Raises
    ------
    InputError
        An argument is out of range, or the search in `path` had other settings.
    MissingPackageError
        Optuna is not installed: ``pip install optuna``.
    CheckpointError, TokenizerError
        As `specdec.generate`.

    Examples
    --------
    >>> target, _ = specdec.embedded_pair()
    >>> search = specdec.search_skips(target, n_trials=30, path="skips.json")  # doctest: +SKIP
    >>> out = specdec.generate(target, search.draft, "It was a dark and stormy night")  # doctest: +SKIP
    """
    n_trials = check_integer("n_trials", n_trials, 1)
    max_new_tokens = check_integer("max_new_tokens", max_new_tokens, 1)
    given = (gamma,)
    if isinstance(gamma, Sequence) and not isinstance(gamma, str | bytes):
        given = tuple(check_items("gamma", gamma, "an integer or several"))
    gammas = tuple(sorted({check_integer("gamma", one, 1, MAX_GAMMA) for one in given}))
    if not gammas:
        raise InputError("gamma is empty; expected at least one")
    seed = check_integer("seed", seed, 0, 2**31 - 1)
    sampling = Sampling(temperature, top_k, top_p, min_p)
    path = None if path is None else check_path("path", path)
    progress = check_flag("progress", progress)
    import_optuna()  # before a model is loaded
    target = as_model("target", target)
    beginnings = split(target, default_prompts(target) if prompts is None else prompts)
    ids = [beginning.given for beginning in beginnings]
    sampled = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    settings = {
        "n_layer": target.config["n_layer"], "prompts": ids, "gammas": list(gammas),
        "max_new_tokens": max_new_tokens, "seed": seed, **{name: getattr(sampling, name) for name in sampled},
    }  # fmt: skip
    trials = _earlier(path, target, settings)
    threads = check_threads(n_threads)
    options = sampled | {"ignore_eos": True, "n_threads": threads, "verify": "rejection"}
    work = [(prompt, max_new_tokens) for prompt in ids]

    def save(finals: Sequence[SkipTrial] = ()) -> SkipSearch:
        found = SkipSearch(name_of(target), settings, tuple(trials), tuple(finals))
        if path is not None:
            found.save(path)
        return found

    try:
        with counted(n_trials + _FINALISTS, "trial", progress) as done:
            done(min(len(trials), n_trials))
            study = SkipStudy(target.config["n_layer"], gammas, seed, trials)
            while len(trials) < n_trials:
                draft, asked = study.ask()
                trials.append(_measure(target, draft, work, 1, seed + len(trials), options))
                study.tell(asked, trials[-1].speedup)
                save()
                done(1, f"best {max(trial.speedup for trial in trials):.2f}X")
            finals = []
            for trial in _best(trials, _FINALISTS):
                finals.append(_measure(target, trial.draft, work, _REPEATS, seed + n_trials, options))
                done(1)
    except KeyboardInterrupt:
        if not trials:
            raise
        return save()
    return save(sorted(finals, key=rank, reverse=True))


def _measure(
    target: Model,
    draft: SkipLayers,
    work: Sequence[tuple[Prompt, int]],
    repeats: int,
    seed: int,
    options: Mapping[str, Any],
) -> SkipTrial:
    """Plain decoding and the draft in turns, prompt by prompt."""
    plain, drafted = TimedRuns(target, None, **options), TimedRuns(target, draft, **options)
    run_in_turns([plain, drafted], work, repeats=repeats, seed=seed)
    speedup = drafted.over(plain)
    median = speedup.ratios.index(statistics.median_low(speedup.ratios))
    betas = [beta for result in drafted.results for one in result.trace.rounds for beta in one.betas]
    return SkipTrial(
        attn=draft.attn,
        mlp=draft.mlp,
        gamma=draft.gamma,
        speedup=speedup.ratios[median],
        tokens_per_s=drafted.tokens_per_s[median],
        plain_tokens_per_s=plain.tokens_per_s[median],
        acceptance_rate=min(1.0, statistics.fmean(betas)) if betas else math.nan,
        tokens_per_call=speedup.tokens_per_run[median],
        speedup_low=speedup.low,
        speedup_high=speedup.high,
    )


def _earlier(path: Path | None, target: Model, settings: Mapping[str, Any]) -> list[SkipTrial]:
    """The trials in a file that is there, if they are of the same search."""
    if path is None or not path.exists():
        return []
    earlier = SkipSearch.load(path)
    if earlier.target != name_of(target):
        raise InputError(
            f"{path}: target is {earlier.target!r}; expected {name_of(target)!r} or no such file"
        )
    for name, wanted in settings.items():
        if earlier.settings.get(name) != wanted:
            raise InputError(f"{path}: its search had another {name}; expected the same, or no such file")
    return list(earlier.trials)


def _best(trials: Sequence[SkipTrial], n: int) -> list[SkipTrial]:
    """The best n different choices; one that was tried more often by the median of its trials."""
    values: dict[Any, list[SkipTrial]] = {}
    for trial in trials:
        values.setdefault(trial.choice, []).append(trial)
    ranked = sorted(values.values(), key=lambda same: -statistics.median(t.speedup for t in same))
    return [same[0] for same in ranked[:n]]
