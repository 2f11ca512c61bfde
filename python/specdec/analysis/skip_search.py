"""`search_skips`: search for the layers to skip in self-drafting, by measured speed."""

from __future__ import annotations

import json
import math
import os
import statistics
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Final, TypeAlias

from specdec.analysis.arguments import Setup, check_gammas, decoding_options
from specdec.analysis.experiment import Work, interleaved
from specdec.atomic_file import replacing
from specdec.checks import check_integer, check_path
from specdec.decoding.options import DecodingOptions, SampleOptions
from specdec.drafts import SkipLayers
from specdec.drafts.draft import MAX_GAMMA
from specdec.errors import InputError, MissingPackageError, printable
from specdec.fields import Fields, read_json_object
from specdec.models.model import ModelLike, Prompt
from specdec.progress import counted
from specdec.settings_table import Unpack
from specdec.tables import Column, OneTable, Table, bounds, figure, marked, record
from specdec.trace import invalid_speedup
from specdec.verification.sampling import TRUNCATIONS

_FINALISTS, _REPEATS = 3, 5  # the best trials to measure again, and how often
_OWNS: Final = {"gamma": "gammas", "lenience": "1.0", "verify": "'rejection'"}
Choice: TypeAlias = tuple[tuple[int, ...], tuple[int, ...], int]
"""(layers whose attention is skipped, layers whose MLP is skipped, gamma)."""

_PARTS: Final = ("attn", "mlp")
_FORMAT = 1  # of the file format
_SHOWN = 10  # trials in a table


@dataclass(frozen=True)
class SkipTrial:
    """Measurement of one choice of layers and gamma; of several repetitions, the median speed-up.

    Attention is skipped in the layers `attn`, the MLP in the layers `mlp`. `speedup` (`speedup_low` to
    `speedup_high` over the repetitions) is `tokens_per_s` over `plain_tokens_per_s`, interleaved, without
    prefill. `acceptance_rate` is alpha (Corollary 3.6) over all repetitions, NaN if nothing was drafted.
    """

    attn: tuple[int, ...]
    mlp: tuple[int, ...]
    gamma: int
    speedup: float
    tokens_per_s: float
    plain_tokens_per_s: float
    acceptance_rate: float
    tokens_per_call: float
    speedup_low: float = math.nan
    speedup_high: float = math.nan

    @property
    def invalid(self) -> str:
        """Why `speedup` is a measurement error (above the tokens per pass); empty if it is valid."""
        return invalid_speedup(self.speedup, self.tokens_per_call)

    @property
    def choice(self) -> Choice:
        """The choice: (attn, mlp, gamma)."""
        return self.attn, self.mlp, self.gamma

    @property
    def draft(self) -> SkipLayers:
        """The draft, with this gamma as its own."""
        draft = SkipLayers(self.attn, self.mlp)
        draft.gamma = self.gamma
        return draft


@dataclass(frozen=True, repr=False)
class SkipSearch(OneTable):
    """Result of a search; ``print`` and notebooks show it.

    `settings`: layers of the target, prompts, gammas, sampling, seed. `trials` are in order. `finals` are the
    best trials, measured again with more repetitions because the best of many noisy values is biased; empty
    for an interrupted search.
    """

    target: str
    settings: dict[str, Any]
    trials: tuple[SkipTrial, ...]
    finals: tuple[SkipTrial, ...] = ()

    @property
    def best(self) -> SkipTrial:
        """Fastest of the finals, else of the trials; with a valid speed-up if any has one."""
        return max(self.finals or self.trials, key=rank)

    @property
    def draft(self) -> SkipLayers:
        """The fastest draft, whether or not it beats plain decoding."""
        return self.best.draft

    @property
    def pays(self) -> bool:
        """Whether the best draft beats plain decoding with a valid speed-up."""
        return self.best.speedup > 1.0 and not self.best.invalid

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain dicts, lists and numbers, ready for JSON."""
        return {"specdec_skip_search": _FORMAT, **record(self)}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the search as JSON, replacing the file atomically."""
        with replacing(check_path("path", path)) as file:
            file.write(json.dumps(self.to_dict(), indent=1).encode())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> SkipSearch:
        """Read the file written by `save`; InputError if it is unreadable or invalid."""
        path = check_path("path", path)
        found = Fields(read_json_object(path, InputError), path, error_type=InputError)
        found.check_version("specdec_skip_search", _FORMAT)
        target, settings = found.text("target"), found.inner("settings")
        settings.amount("temperature")
        entries = (found.inner_items(name) for name in ("trials", "finals"))
        trials, finals = (tuple(_trial(one, settings) for one in several) for several in entries)
        if not trials:
            raise found.error("trials", "at least one")
        return cls(target, settings.as_dict(), trials, finals)

    def table(self) -> Table:
        """Return a table of the finals and the best other trials."""
        finals = sorted(self.finals, key=rank, reverse=True)
        known = {trial.choice for trial in finals}
        others = sorted((t for t in self.trials if t.choice not in known), key=rank, reverse=True)
        shown = (finals + others)[:_SHOWN]

        def skipped(trial: SkipTrial) -> str:
            layers = {name: " ".join(map(str, getattr(trial, name))) for name in _PARTS}
            star = " ★" if trial is shown[0] and not trial.invalid else ""
            return ", ".join(f"{name} {numbers}" for name, numbers in layers.items() if numbers) + star

        verdict = "" if self.pays else "; nothing beats plain decoding"
        verdict += "" if self.finals else "; interrupted"
        temperature = f"temperature {self.settings['temperature']:g}"
        title = f"{printable(self.target)} drafting for itself at {temperature}, {len(self.trials)} trials"
        columns: list[Column] = [
            ("skipped", skipped), ("gamma", lambda trial: f"{trial.gamma}"),
            figure("alpha", "acceptance_rate", ".3f"), figure("tokens/call", "tokens_per_call", ".2f"),
            figure("tokens/s", "tokens_per_s", ".1f"), figure("plain", "plain_tokens_per_s", ".1f"),
            ("speed-up", lambda trial: marked(f"{trial.speedup:.2f}X", trial.invalid)),
            bounds("min to max", "speedup", ".2f"),
        ]  # fmt: skip
        return Table.of(title + verdict, shown, columns)


def rank(trial: SkipTrial) -> tuple[bool, float]:
    """Sort key: valid speed-ups first, then by speed-up."""
    return not trial.invalid, trial.speedup


def _trial(entry: Fields, settings: Fields) -> SkipTrial:
    """Read a trial that a search with these settings can have made."""
    draft = SkipLayers(entry.integers("attn"), entry.integers("mlp"))
    if (n_layer := settings.integer("n_layer", default=None)) is not None:
        draft.check(n_layer)
    gamma = entry.integer("gamma", maximum=MAX_GAMMA)
    if settings.has("gammas") and gamma not in settings.integers("gammas"):
        raise entry.error("gamma", "one of the search's gammas")
    optional = ("acceptance_rate", "speedup_low", "speedup_high")
    names = [field.name for field in fields(SkipTrial)[3:]]
    numbers = {
        name: entry.amount(name, math.nan) if name in optional else entry.amount(name) for name in names
    }
    return SkipTrial(draft.attn, draft.mlp, gamma, **numbers)


def search_skips(
    target: ModelLike | dict[str, ModelLike],
    prompts: Prompt | Sequence[Prompt] | None = None,
    *,
    n_trials: int = 60,
    gammas: Sequence[int] = (1, 2, 4, 6),
    path: str | os.PathLike[str] | None = None,
    options: DecodingOptions | None = None,
    **changes: Unpack[SampleOptions],
) -> SkipSearch:
    """Find the layers that a model should skip to draft for itself (arXiv 2309.08168).

    Runs Bayesian optimization (Optuna's tree-structured Parzen estimator) over the attentions and MLPs to
    skip and over gamma. The objective is the measured speed of `specdec.generate` on your prompts over that
    of plain decoding, interleaved. The search starts with choices that often do well, such as the middle
    layers, and measures the best few again at the end.

    Parameters
    ----------
    target, prompts
        As in `specdec.measure`.
    n_trials, gammas : int, sequence of int
        Number of choices to try, including those of an earlier search in `path`; the gammas to choose from,
        each 1 to 1024.
    path : str or path, optional
        A file that is updated after every trial. If it exists, its search is resumed, with the same settings.
    options : DecodingOptions, optional
        Decoding options. `max_new_tokens` per prompt is 64 by default, limited by the context; end-of-text
        ids are ignored. `seed` (default 0) is for sampling and for the search: equal seeds try the same
        choices as long as measured times rank them equally.

    Returns
    -------
    SkipSearch
        ``search.draft`` is the draft, with its best gamma as its own; ``search.pays`` says whether it beats
        plain decoding, which many models cannot without training for it. Ctrl-C ends the search early and
        returns the result so far; before the first trial ends it raises KeyboardInterrupt.

    Raises
    ------
    InputError, CheckpointError, TokenizerError
        As in `specdec.measure`; or the search in `path` had other settings.
    MissingPackageError
        If Optuna is not installed: ``pip install 'specdec-cpu[search]'``.

    Examples
    --------
    >>> target, _ = specdec.embedded_pair()
    >>> search = specdec.search_skips(target, n_trials=30, path="skips.json")  # doctest: +SKIP
    >>> out = specdec.generate(target, search.draft, "It was a dark and stormy night")  # doctest: +SKIP
    """
    decoding = decoding_options(options, changes, _OWNS, max_new_tokens=64)
    n_trials = check_integer("n_trials", n_trials, 1)
    gammas = sorted(check_gammas(gammas))
    file = None if path is None else check_path("path", path)
    import_optuna()  # before loading a model
    setup = Setup.of(target, decoding, prompts)
    check_integer("seed", setup.seed, 0, 2**31 - 1)
    search = _Search(setup, gammas, file)
    try:
        with counted(n_trials + _FINALISTS, "trial", decoding.progress) as done:
            finals = search.run(n_trials, done)
    except KeyboardInterrupt:
        if not search.trials:
            raise
        return search.save()
    return search.save(sorted(finals, key=rank, reverse=True))


class _Search:
    """A search: its settings, its trials, and the study that proposes choices."""

    def __init__(self, setup: Setup, gammas: Sequence[int], path: Path | None) -> None:
        self._setup, self._gammas, self._path = setup, gammas, path
        self._n_layer = setup.target.config.n_layer
        prompts = [prompt.given for prompt in setup.prompts]
        n = check_integer("max_new_tokens", setup.options.max_new_tokens, 1)
        self._work: Work = [(prompt, n) for prompt in prompts]
        sampling = {name: getattr(setup.options, name) for name in ("temperature", *TRUNCATIONS)}
        self._settings = {
            "n_layer": self._n_layer, "prompts": prompts, "gammas": list(gammas), "max_new_tokens": n,
            "seed": setup.seed, **sampling,
        }  # fmt: skip
        self.trials = self._earlier()

    def _earlier(self) -> list[SkipTrial]:
        """Read the trials of an existing file, if they belong to the same search."""
        path = self._path
        if path is None or not path.exists():
            return []
        earlier = SkipSearch.load(path)
        if earlier.target != (target := self._setup.name):
            raise InputError(f"{path}: target is {earlier.target!r}; expected {target!r} or no such file")
        for name, wanted in self._settings.items():
            if earlier.settings.get(name) != wanted:
                raise InputError(f"{path}: its search had another {name}; expected the same, or no such file")
        return list(earlier.trials)

    def run(self, n_trials: int, done: Callable[..., object]) -> list[SkipTrial]:
        """Try choices; return the best few, measured again."""
        seed = self._setup.seed
        done(min(len(self.trials), n_trials))
        study = self._study()
        while len(self.trials) < n_trials:
            asked = study.ask(self._space)
            skipped = ([i for i in range(self._n_layer) if asked.params[f"{part}.{i}"]] for part in _PARTS)
            attn, mlp = skipped
            if not 0 < len(attn) + len(mlp) < 2 * self._n_layer:  # skipping nothing or all is not a draft
                study.tell(asked, state=import_optuna().trial.TrialState.FAIL)
                continue
            draft = SkipLayers(attn, mlp)
            draft.gamma = asked.params["gamma"]
            self.trials.append(self._measured(draft, 1, seed + len(self.trials)))
            study.tell(asked, self.trials[-1].speedup)
            self.save()
            done(1, f"best {max(trial.speedup for trial in self.trials):.2f}X")
        finals = []
        for trial in self._best_choices():
            finals.append(self._measured(trial.draft, _REPEATS, seed + n_trials))
            done(1)
        return finals

    def _best_choices(self) -> list[SkipTrial]:
        """Return the best distinct choices; repeated ones count by the median of their trials."""
        values: dict[Choice, list[SkipTrial]] = {}
        for trial in self.trials:
            values.setdefault(trial.choice, []).append(trial)
        ranked = sorted(values.values(), key=lambda same: -statistics.median(t.speedup for t in same))
        return [same[0] for same in ranked[:_FINALISTS]]

    def save(self, finals: Sequence[SkipTrial] = ()) -> SkipSearch:
        """Return the search so far, and write it if there is a file."""
        found = SkipSearch(self._setup.name, self._settings, tuple(self.trials), tuple(finals))
        if self._path is not None:
            found.save(self._path)
        return found

    def _study(self) -> Any:
        """Make a study that knows the trials so far and starts with promising choices."""
        optuna = import_optuna()
        one_of = optuna.distributions.CategoricalDistribution
        self._space: dict[str, Any] = {
            f"{part}.{i}": one_of([False, True]) for part in _PARTS for i in range(self._n_layer)
        }
        self._space["gamma"] = one_of(list(self._gammas))
        verbosity = optuna.logging.get_verbosity()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            # do not draw an earlier search's random numbers again
            seed = self._setup.seed + len(self.trials)
            sampler = optuna.samplers.TPESampler(seed=seed, multivariate=True)
        optuna.logging.set_verbosity(optuna.logging.WARNING)  # suppress its announcement
        try:
            study = optuna.create_study(direction="maximize", sampler=sampler)
        finally:
            optuna.logging.set_verbosity(verbosity)
        create = partial(optuna.trial.create_trial, distributions=self._space)
        for trial in self.trials:
            study.add_trial(create(params=self._params(trial.choice), value=trial.speedup))
        known = {trial.choice for trial in self.trials}
        for choice in promising(self._n_layer, self._gammas[len(self._gammas) // 2]):
            if choice not in known:
                study.enqueue_trial(self._params(choice))
        return study

    def _params(self, choice: Choice) -> dict[str, Any]:
        attn, mlp, gamma = choice
        skipped = {f"attn.{i}" for i in attn} | {f"mlp.{i}" for i in mlp}
        return {name: name in skipped for name in self._space} | {"gamma": gamma}

    def _measured(self, draft: SkipLayers, repeats: int, seed: int) -> SkipTrial:
        """Run plain decoding and the draft, interleaved prompt by prompt."""
        plain, runs = interleaved(
            self._setup.target, {0: (draft, None)}, self._work, self._setup.runs(ignore_eos=True),
            repeats=repeats, seed=seed,
        )  # fmt: skip
        drafted = runs[0]
        speedup = drafted.over(plain)
        median = speedup.ratios.index(statistics.median_low(speedup.ratios))
        betas = [beta for result in drafted.results for one in result.trace.rounds for beta in one.betas]
        return SkipTrial(
            attn=draft.attn, mlp=draft.mlp, gamma=draft.gamma, speedup=speedup.ratios[median],
            tokens_per_s=drafted.tokens_per_s[median], plain_tokens_per_s=plain.tokens_per_s[median],
            acceptance_rate=min(1.0, statistics.fmean(betas)) if betas else math.nan,
            tokens_per_call=speedup.tokens_per_call[median], speedup_low=speedup.low,
            speedup_high=speedup.high,
        )  # fmt: skip


def import_optuna() -> Any:
    """Import optuna; raises MissingPackageError if it is not installed."""
    try:
        return import_module("optuna")
    except ImportError as error:
        message = "search_skips needs optuna, which is not installed: pip install 'specdec-cpu[search]'"
        raise MissingPackageError(message) from error


def promising(n_layer: int, gamma: int) -> list[Choice]:
    """Return initial choices: middle layers, whole or in part, every other layer, and the last ones."""
    whole, quarter = tuple(range(n_layer)), n_layer // 4
    middle = whole[max(1, quarter) : max(2, n_layer - quarter)] if n_layer > 1 else ()
    others, half, last = whole[1:-1:2], whole[(n_layer + 1) // 2 :], whole[-1:]
    pairs = [
        (middle, middle), (middle, ()), ((), middle), (others, others), (others, ()), (half, half),
        (last, last), (last, ()),
    ]  # fmt: skip
    drafts = [(*pair, gamma) for pair in pairs if 0 < sum(map(len, pair)) < 2 * n_layer]
    return list(dict.fromkeys(drafts))
