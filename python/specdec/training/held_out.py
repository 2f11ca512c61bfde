"""Evaluation of a draft on held-out texts, and the summary of a training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from specdec import theory
from specdec.analysis.statistics import mean_interval
from specdec.decoding.generate import generate
from specdec.drafts.draft import Draft
from specdec.errors import CheckpointError, number_of
from specdec.fields import read_json_object
from specdec.models.model import Model
from specdec.tables import OneTable, Table
from specdec.training.settings import TrainingSettings
from specdec.training.trainer import Array, DraftTrainer, EarlierDrafts, TargetStates, softmax
from specdec.training.training_texts import HELD_OUT_KEY, OPENING, Prompts, Texts, continued

TEMPERATURES_SHOWN = (0.0, 1.0)  # greedy decoding, and the target's own distribution


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Texts that the target wrote at each temperature, and acceptance rates of drafts on them."""

    prompts: list[list[int]]
    texts: Mapping[float, Texts]

    @classmethod
    def written(cls, target: Model, prompts: Prompts, settings: TrainingSettings, n_texts: int) -> HeldOut:
        """Generate `n_texts` texts of the target at each temperature."""
        chosen = [list(prompts.held_out[i % len(prompts.held_out)]) for i in range(n_texts)]
        texts = {}
        for temperature in TEMPERATURES_SHOWN:
            seeds = [(settings.seed, HELD_OUT_KEY + i) for i in range(n_texts)]
            found = continued(
                target, settings.threads, chosen, length=settings.length, temperature=temperature, seed=seeds
            )
            opened = min(OPENING, settings.length // 4) if temperature < 1.0 else 0
            both = zip(chosen, found, strict=True)
            begins = [min(len(prompt) + opened, len(text)) for prompt, text in both]
            texts[temperature] = Texts.of_lists(found, begins, settings.length)
        return cls(chosen, texts)

    def some(self, n_texts: int) -> HeldOut:
        """Return the first `n_texts` texts at each temperature."""
        rows = slice(0, n_texts)
        return HeldOut(self.prompts[rows], {t: texts.of(rows) for t, texts in self.texts.items()})

    def betas(
        self, target: Model, trainer: DraftTrainer, network: Any, earlier: EarlierDrafts | None = None
    ) -> dict[float, list[Array]]:
        """Return the acceptance probability at every position, by temperature.

        With earlier drafts: the probability that any draft's token is accepted. At temperature 0: 1 if the
        argmax is equal, else 0.
        """
        n_vocab = target.config.n_vocab  # alpha needs complete distributions
        states = TargetStates(
            target, captures=trainer.captures, top=n_vocab, n_threads=trainer.settings.threads
        )
        found: dict[float, list[Array]] = {}
        training = network.training
        network.eval()
        with torch.no_grad():
            for temperature, texts in self.texts.items():
                found[temperature] = [
                    _betas(states, trainer, network, texts.of([i]), temperature, earlier)
                    for i in range(len(texts))
                ]
        network.train(training)
        return found

    def tokens_per_call(
        self, target: Model, draft: Model | Draft, gamma: int, n_threads: int
    ) -> dict[float, float]:
        """Measure new tokens per target forward pass in real runs from the same prompts, by temperature."""
        found, texts = {}, self.texts[1.0]  # continuations make equal prompts differ
        both = zip(texts.ids, texts.ends, self.prompts, strict=True)
        begun = [ids[: max(int(end) // 4, len(prompt))].tolist() for ids, end, prompt in both]
        for temperature in TEMPERATURES_SHOWN:
            results = [
                generate(
                    target, draft, prompt, gamma=gamma, temperature=temperature, n_threads=n_threads,
                    max_new_tokens=max(8, texts.ids.shape[1] // 2), seed=[(0, HELD_OUT_KEY + i)],
                )
                for i, prompt in enumerate(begun)
            ]  # fmt: skip
            n_calls = sum(result.trace.n_calls for result in results)
            found[temperature] = sum(result.trace.n_tokens for result in results) / n_calls
        return found


def _betas(
    states: TargetStates, trainer: DraftTrainer, network: Any, text: Texts, temperature: float,
    earlier: EarlierDrafts | None,
) -> Array:  # fmt: skip
    first, last = max(int(text.begins[0]), 1) - 1, int(text.ends[0]) - 1
    if last <= first:
        return np.zeros(0)
    batch = states.of(text)
    on_device = batch.to(trainer.settings.device)
    own = trainer.target_logits(network, on_device)
    target = (batch.target.log_probs if own is None else own)[0, first:last].float().cpu().numpy()
    draft = trainer.first_token_logits(network, on_device)[0, first:last].float().cpu().numpy()
    if temperature == 0.0:
        tokens = target.argmax(-1)
        equal = tokens == draft.argmax(-1)
        if earlier is not None:
            padded = np.concatenate((np.zeros(first, np.intp), tokens))
            equal |= earlier.hits(text.ids[0, :last], padded)[first:]
        return np.asarray(equal, np.float64)
    probs, share = softmax(target), np.ones(1)
    if earlier is not None:
        whole = np.concatenate((np.zeros((first, probs.shape[-1])), probs))
        probs, share = (part[first:] for part in earlier.residual(text.ids[0, :last], whole, 1.0))
    accepted = np.asarray(theory.acceptance_rate(probs, softmax(draft)), np.float64).reshape(-1)
    return 1.0 - share * (1.0 - accepted)


def alpha_of(betas: Sequence[Array]) -> tuple[float, float, float]:
    """Return the mean acceptance rate (Corollary 3.6 of arXiv 2211.17192) and its 95 % interval."""
    low, high = mean_interval(betas)
    return _mean(betas), low, high


def gain(before: Sequence[Array], after: Sequence[Array]) -> tuple[float, float, float]:
    """Return the gain in alpha on the same positions, and its paired 95 % confidence interval.

    An unimproved draft has an interval above 0 in 2.5 % of trainings.
    """
    halves = [(new - old + 1.0) / 2.0 for old, new in zip(before, after, strict=True)]
    low, high = mean_interval(halves)
    return 2.0 * _mean(halves) - 1.0, 2.0 * low - 1.0, 2.0 * high - 1.0


def _mean(parts: Sequence[Array]) -> float:
    """Return the mean of all entries; NaN if all texts ended within their prompts."""
    entries = np.concatenate(parts)
    return float(entries.mean()) if len(entries) else np.nan


@dataclass(frozen=True)
class DraftFigures:
    """Figures of a draft on held-out texts, at temperature 0 and 1."""

    alpha: Mapping[float, tuple[float, float, float]]  # mean acceptance rate and its 95 % interval
    tokens_per_call: Mapping[float, float]  # new tokens per target forward pass in real runs


@dataclass(frozen=True, repr=False)
class TrainedDraft(OneTable):
    """Summary of a training; ``print`` and notebooks show it as a table.

    Attributes
    ----------
    before, after : DraftFigures
        Before the first step and after the last.
    gains : dict of float to (float, float, float)
        Gain in alpha on the same positions, with its paired 95 % confidence interval, by temperature.
    """

    folder: str  # of the draft
    method: str
    target: str
    n_parameters: int  # trained parameters
    n_steps: int
    n_tokens: int  # trained tokens, over all passes
    minutes: float  # of training, texts included
    losses: str  # tab-separated file of the loss curve
    before: DraftFigures
    after: DraftFigures
    gains: Mapping[float, tuple[float, float, float]]
    words: tuple[str, ...] = ()  # notes of the method

    def table(self) -> Table:
        """Return alpha and tokens per forward pass, before and after."""
        rows = []
        for temperature in TEMPERATURES_SHOWN:
            for name, figures in (("before", self.before), ("after", self.after)):
                alpha, low, high = figures.alpha[temperature]
                rose = ""
                if name == "after":
                    rose = "{:+.3f} ({:+.3f} to {:+.3f})".format(*self.gains[temperature])
                calls = f"{figures.tokens_per_call[temperature]:.2f}"
                interval = f"{low:.3f} to {high:.3f}"
                rows.append((f"{name}, T = {temperature:g}", f"{alpha:.3f}", interval, rose, calls))
        title = (
            f"{self.method} draft for {self.target}: {self.n_parameters:,} parameters, "
            f"{number_of(self.n_steps, 'step')}, {self.n_tokens:,} tokens, {self.minutes:.1f} minutes\n"
            f"draft: {self.folder}\nlosses: {self.losses}"
        )
        title += "".join(f"\n{words}" for words in self.words)
        return Table(title, ("held-out texts", "alpha", "95 %", "gain (95 %)", "tokens/call"), rows)

    @classmethod
    def load(cls, path: Path) -> TrainedDraft:
        """Read the summary from a file; raise a `CheckpointError` for anything else."""
        values = read_json_object(path)
        try:
            before, after = (
                DraftFigures(_by_temperature(part["alpha"]), _by_temperature(part["tokens_per_call"]))
                for part in (values.pop("before"), values.pop("after"))
            )
            gains, words = _by_temperature(values.pop("gains")), tuple(values.pop("words"))
            found = cls(before=before, after=after, gains=gains, words=words, **values)
            found.table()  # refuse what cannot be shown
            return found
        except (ValueError, LookupError, TypeError, AttributeError, OverflowError) as error:
            raise CheckpointError(f"{path}: expected the summary of a training ({error})") from error


def _by_temperature(values: Mapping[str, Any]) -> dict[float, Any]:
    return {float(name): tuple(one) if isinstance(one, list) else one for name, one in values.items()}
