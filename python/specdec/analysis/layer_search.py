"""Which of its layers a model should skip to draft for itself: Bayesian optimisation of measured speed."""

from __future__ import annotations

import json
import math
import os
import statistics
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specdec.analysis.acceptance import name_of, split
from specdec.analysis.tune import PROMPTS
from specdec.atomic_file import replacing
from specdec.checks import check_flag, check_integer, check_items, check_path
from specdec.decoding.generate import generate
from specdec.decoding.result import Result
from specdec.display.tables import Table, Tabular
from specdec.drafts import SkipLayers
from specdec.drafts.draft import MAX_GAMMA
from specdec.errors import InputError, MissingPackageError, printable
from specdec.models.json_fields import as_json
from specdec.models.model import Model, ModelLike, Prompt, as_model
from specdec.progress import progress_bar
from specdec.threads import check_threads
from specdec.verification.sampling import Sampling

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

__all__ = ["SkipSearch", "SkipTrial", "search_skips"]

_FORMAT = 1  # of the file
_FINALISTS, _REPEATS = 3, 5  # of the trials, the best so many are measured again, so often
_SHOWN = 10  # trials in a table


@dataclass(frozen=True)
class SkipTrial:
    """What one choice of layers and gamma gave.

    Attributes
    ----------
    attn, mlp : tuple of int
        Layers whose attention or MLP is skipped.
    gamma : int
        Guesses a round.
    speedup : float
        Seconds a new token of plain decoding over those with this draft, measured in turns; prefill
        excluded.
    tokens_per_s, plain_tokens_per_s : float
        New tokens per second, with the draft and without.
    acceptance_rate : float
        Alpha of Corollary 3.6; NaN if nothing was drafted.
    tokens_per_call : float
        New tokens per run of the whole target.
    """

    attn: tuple[int, ...]
    mlp: tuple[int, ...]
    gamma: int
    speedup: float
    tokens_per_s: float
    plain_tokens_per_s: float
    acceptance_rate: float
    tokens_per_call: float

    @property
    def draft(self) -> SkipLayers:
        """The draft, with this gamma as its own."""
        draft = SkipLayers(self.attn, self.mlp)
        draft.gamma = self.gamma
        return draft

    def to_dict(self) -> dict[str, Any]:
        """All of it as lists and numbers, ready for JSON, which has no NaN: None."""
        rate = None if math.isnan(self.acceptance_rate) else self.acceptance_rate
        return asdict(self) | {"acceptance_rate": rate}


@dataclass(frozen=True, repr=False)
class SkipSearch(Tabular):
    """What a search found; ``print`` shows it, a notebook too.

    Attributes
    ----------
    target : str
        Name.
    settings : dict
        What was asked for: layers of the target, prompts, gammas, sampling, seed.
    trials : tuple of SkipTrial
        In order.
    finals : tuple of SkipTrial
        The best trials, measured again and more often, best first: the best of many noisy numbers looks
        better than it is. Empty for a search that was interrupted.
    """

    target: str
    settings: dict[str, Any]
    trials: tuple[SkipTrial, ...]
    finals: tuple[SkipTrial, ...] = ()

    @property
    def best(self) -> SkipTrial:
        """The fastest of the finals; of the trials, if the search was interrupted."""
        return max(self.finals or self.trials, key=lambda trial: trial.speedup)

    @property
    def draft(self) -> SkipLayers:
        """The fastest draft, whether it pays or not."""
        return self.best.draft

    @property
    def pays(self) -> bool:
        """Whether the best draft was faster than plain decoding."""
        return self.best.speedup > 1.0

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain dicts, lists and numbers, ready for JSON."""
        return {
            "specdec_skip_search": _FORMAT,
            "target": self.target,
            "settings": self.settings,
            "trials": [trial.to_dict() for trial in self.trials],
            "finals": [trial.to_dict() for trial in self.finals],
        }

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it as JSON; what stood in the file before stays until all of it is written.

        Raises
        ------
        InputError
            `path` is none, or cannot be that of a file.
        OSError
            The file cannot be written.
        """
        text = json.dumps(self.to_dict(), indent=1)
        with replacing(check_path("path", path)) as file:
            file.write(text.encode())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> SkipSearch:
        """Read what `save` wrote.

        Raises
        ------
        InputError
            The file holds something else.
        OSError
            It cannot be read.
        """
        path = check_path("path", path)
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            if values["specdec_skip_search"] != _FORMAT:
                raise ValueError(f"its format is {as_json(values['specdec_skip_search'])}")
            target, settings = values["target"], dict(values["settings"])
            if not isinstance(target, str):
                raise ValueError(f"target is {as_json(target)}")
            _number("temperature", settings["temperature"])
            trials, finals = (
                tuple(_trial(entry, settings) for entry in values[name]) for name in ("trials", "finals")
            )
            if not trials:
                raise ValueError("there are no trials")
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            reason = f"{type(error).__name__}: {error}"
            raise InputError(f"{path}: expected a saved specdec.SkipSearch ({reason})") from error
        return cls(target, settings, trials, finals)

    def table(self) -> Table:
        """The finals, then the best other trials."""
        finals = sorted(self.finals, key=lambda trial: -trial.speedup)
        known = {_key(trial) for trial in finals}
        others = sorted(
            (t for t in self.trials if _key(t) not in known), key=lambda trial: -trial.speedup
        )  # fmt: skip
        rows = [_row(trial, " ★" if i == 0 else "") for i, trial in enumerate((finals + others)[:_SHOWN])]
        verdict = "" if self.pays else "; nothing beats plain decoding"
        if not self.finals:
            verdict += "; interrupted"
        title = (
            f"{printable(self.target)} drafting for itself at temperature {self.settings['temperature']:g}, "
            f"{len(self.trials)} trials{verdict}"
        )
        head = ("skipped", "gamma", "alpha", "tokens/call", "tokens/s", "plain", "speed-up")
        return Table(title, head, rows)

    def __repr__(self) -> str:
        best = self.best
        paying = "" if self.pays else ", nothing beats plain decoding"
        return (
            f"<specdec.SkipSearch of {len(self.trials)} trials: {best.draft!r} with gamma {best.gamma}, "
            f"speed-up {best.speedup:.2f}{paying}>"
        )


def _key(trial: SkipTrial) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    return trial.attn, trial.mlp, trial.gamma


def _row(trial: SkipTrial, mark: str) -> tuple[str, ...]:
    parts = [
        f"{name} {' '.join(map(str, layers))}"
        for name, layers in (("attn", trial.attn), ("mlp", trial.mlp))
        if layers
    ]
    return (
        ", ".join(parts) + mark,
        str(trial.gamma),
        f"{trial.acceptance_rate:.3f}",
        f"{trial.tokens_per_call:.2f}",
        f"{trial.tokens_per_s:.1f}",
        f"{trial.plain_tokens_per_s:.1f}",
        f"{trial.speedup:.2f}X",
    )


def _number(name: str, value: Any) -> float:
    """A number of a file: finite, at least 0."""
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= sys.float_info.max:
        return float(value)
    raise ValueError(f"{name} is {as_json(value)}")


def _trial(entry: Mapping[str, Any], settings: Mapping[str, Any]) -> SkipTrial:
    """A trial of a file, one that a search of these settings can have made."""
    draft = SkipLayers(entry["attn"], entry["mlp"])
    n_layer = settings.get("n_layer")
    if n_layer is not None:
        draft.check(check_integer("n_layer", n_layer, 1))
    gamma = check_integer("gamma", entry["gamma"], 1, MAX_GAMMA)
    gammas = settings.get("gammas")
    if gammas is not None and gamma not in gammas:
        raise ValueError(f"gamma is {gamma}, none of the search's")
    numbers = {
        field.name: math.nan
        if field.name == "acceptance_rate" and entry[field.name] is None
        else _number(field.name, entry[field.name])
        for field in fields(SkipTrial)[3:]
    }
    return SkipTrial(draft.attn, draft.mlp, gamma, **numbers)


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
    progress: bool = True,
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
        What is continued: give what resembles your use. None: some beginnings of English sentences, for a
        target with a tokenizer.
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
    progress : bool, default True
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
        Optuna is not installed: ``pip install 'specdec[search]'``.
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
    _optuna()  # before a model is loaded
    target = as_model("target", target)
    if prompts is None:
        if target.tokenizer is None:
            raise InputError(
                "prompts is None, and the target has no tokenizer; expected prompts of token ids"
            )
        prompts = list(PROMPTS)
    ids = split(target, prompts)
    settings = {
        "n_layer": target.config["n_layer"], "prompts": ids, "gammas": list(gammas),
        "max_new_tokens": max_new_tokens, "temperature": sampling.temperature, "top_k": sampling.top_k,
        "top_p": sampling.top_p, "min_p": sampling.min_p, "seed": seed,
    }  # fmt: skip
    trials = _earlier(path, target, settings)
    options: dict[str, Any] = {
        "temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p, "ignore_eos": True,
        "max_new_tokens": max_new_tokens, "n_threads": check_threads(n_threads),
        "verify": "rejection",
    }  # fmt: skip

    def save(finals: Sequence[SkipTrial] = ()) -> SkipSearch:
        found = SkipSearch(name_of(target), settings, tuple(trials), tuple(finals))
        if path is not None:
            found.save(path)
        return found

    bar = None
    if progress:
        bar = progress_bar(n_trials + _FINALISTS, "trial", initial=min(len(trials), n_trials))
    try:
        study = _Study(target.config["n_layer"], gammas, seed, trials)
        while len(trials) < n_trials:
            draft, asked = study.ask()
            trial = _measure(target, draft, ids, 1, seed + len(trials), options)
            study.tell(asked, trial.speedup)
            trials.append(trial)
            save()
            if bar is not None:
                best = max(one.speedup for one in trials)
                bar.set_postfix_str(f"best {best:.2f}X", refresh=False)
                bar.update()
        finals = []
        for trial in _best(trials, _FINALISTS):
            finals.append(_measure(target, trial.draft, ids, _REPEATS, seed + n_trials, options))
            if bar is not None:
                bar.update()
    except KeyboardInterrupt:
        if not trials:
            raise
        return save()
    finally:
        if bar is not None:
            bar.close()
    return save(sorted(finals, key=lambda trial: -trial.speedup))


def _earlier(path: Any, target: Model, settings: dict[str, Any]) -> list[SkipTrial]:
    """The trials in a file that is there, if they are of the same search."""
    if path is None or not Path(path).exists():
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
        values.setdefault(_key(trial), []).append(trial)
    ranked = sorted(values.values(), key=lambda same: -statistics.median(t.speedup for t in same))
    return [same[0] for same in ranked[:n]]


# --------------------------------------------------------------------------------------------- measuring


def _timed(
    target: Model, draft: SkipLayers | None, prompt: Sequence[int], key: tuple[int, int], options: Any
) -> tuple[float, Result]:
    begun = time.perf_counter()
    result = generate(target, draft, prompt, seed=[key], **options)
    return time.perf_counter() - begun - result.trace.prefill_s, result


def _measure(
    target: Model,
    draft: SkipLayers,
    prompts: Sequence[Sequence[int]],
    repeats: int,
    seed: int,
    options: Mapping[str, Any],
) -> SkipTrial:
    """Plain decoding and the draft in turns, prompt by prompt; the median of the repetitions' ratios."""
    speedups, plain_s, draft_s, n_plain = [], 0.0, 0.0, 0
    results: list[Result] = []
    for repetition in range(repeats):
        seconds = {False: 0.0, True: 0.0}
        n_tokens = {False: 0, True: 0}
        for i, prompt in enumerate(prompts):
            for drafting in (False, True):
                taken, result = _timed(
                    target, draft if drafting else None, prompt, (seed + repetition, i), options
                )
                seconds[drafting] += taken
                n_tokens[drafting] += len(result.tokens)
                if drafting:
                    results.append(result)
        speedups.append((seconds[False] / n_tokens[False]) / (seconds[True] / n_tokens[True]))
        plain_s, draft_s, n_plain = (
            plain_s + seconds[False],
            draft_s + seconds[True],
            n_plain + n_tokens[False],
        )
    traces = [result.trace for result in results]
    n_new = sum(len(result.tokens) for result in results)
    betas = [beta for trace in traces for one in trace.rounds for beta in one.betas]
    return SkipTrial(
        attn=draft.attn,
        mlp=draft.mlp,
        gamma=draft.gamma,
        speedup=statistics.median(speedups),
        tokens_per_s=n_new / draft_s,
        plain_tokens_per_s=n_plain / plain_s,
        acceptance_rate=min(1.0, statistics.fmean(betas)) if betas else math.nan,
        tokens_per_call=n_new / sum(trace.n_calls for trace in traces),
    )


# --------------------------------------------------------------------------------------------- searching


def _optuna() -> Any:
    try:
        import optuna
    except ImportError as error:
        raise MissingPackageError(
            "search_skips needs optuna, which is not installed: pip install 'specdec[search]'"
        ) from error
    return optuna


class _Study:
    """Which choice is tried next.

    Parameters
    ----------
    n_layer : int
    gammas : sequence of int
    seed : int
    trials : sequence of SkipTrial
        What was tried before.
    """

    def __init__(self, n_layer: int, gammas: Sequence[int], seed: int, trials: Sequence[SkipTrial]) -> None:
        optuna = self._optuna = _optuna()
        self._n_layer = n_layer
        flag = optuna.distributions.CategoricalDistribution([False, True])
        self._space: dict[str, BaseDistribution] = {
            f"{part}.{i}": flag for part in ("attn", "mlp") for i in range(n_layer)
        }
        self._space["gamma"] = optuna.distributions.CategoricalDistribution(list(gammas))
        with warnings.catch_warnings(), _quiet(optuna):
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            # an earlier search's random numbers are not drawn again
            sampler = optuna.samplers.TPESampler(seed=seed + len(trials), multivariate=True)
            self._study = optuna.create_study(direction="maximize", sampler=sampler)
        known = {_key(trial) for trial in trials}
        for trial in trials:
            params = self._params(trial.attn, trial.mlp, trial.gamma)
            self._study.add_trial(
                optuna.trial.create_trial(params=params, distributions=self._space, value=trial.speedup)
            )
        typical = sorted(gammas)[len(gammas) // 2]
        for attn, mlp in _promising(n_layer):
            if (attn, mlp, typical) not in known:
                self._study.enqueue_trial(self._params(attn, mlp, typical))

    def _params(self, attn: Sequence[int], mlp: Sequence[int], gamma: int) -> dict[str, Any]:
        params: dict[str, Any] = {f"attn.{i}": i in attn for i in range(self._n_layer)}
        params |= {f"mlp.{i}": i in mlp for i in range(self._n_layer)}
        return params | {"gamma": gamma}

    def ask(self) -> tuple[SkipLayers, Any]:
        """The next draft, and what `tell` is to be told of."""
        while True:
            trial = self._study.ask(self._space)
            attn, mlp = (
                tuple(i for i in range(self._n_layer) if trial.params[f"{part}.{i}"])
                for part in ("attn", "mlp")
            )
            if 0 < len(attn) + len(mlp) < 2 * self._n_layer:
                draft = SkipLayers(attn, mlp)
                draft.gamma = trial.params["gamma"]
                return draft, trial
            # to skip nothing or everything is no draft
            self._study.tell(trial, state=self._optuna.trial.TrialState.FAIL)

    def tell(self, trial: Any, value: float) -> None:
        """How fast it was."""
        self._study.tell(trial, value)


def _promising(n_layer: int) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Where to begin: layers in the middle, whole or in part, every other one, and the last (early exits)."""
    whole, quarter = tuple(range(n_layer)), n_layer // 4
    middle = whole[max(1, quarter) : max(2, n_layer - quarter)] if n_layer > 1 else ()
    others = whole[1:-1:2]
    half, last = whole[(n_layer + 1) // 2 :], whole[-1:]
    found: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    for attn, mlp in [
        (middle, middle), (middle, ()), ((), middle), (others, others), (others, ()), (half, half),
        (last, last), (last, ()),
    ]:  # fmt: skip
        if 0 < len(attn) + len(mlp) < 2 * n_layer and (attn, mlp) not in found:
            found.append((attn, mlp))
    return found


@contextmanager
def _quiet(optuna: Any) -> Iterator[None]:
    """Optuna says nothing of its own meanwhile."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)
