"""How good a draft is on texts that it was not trained on: alpha, and tokens a call of real runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from specdec import theory
from specdec.analysis.statistics import mean_interval
from specdec.decoding.generate import generate
from specdec.drafts.draft import Draft
from specdec.models.model import Model
from specdec.training.batch import EarlierDrafts, TargetStates, softmax
from specdec.training.settings import TrainingSettings
from specdec.training.trainer import DraftTrainer
from specdec.training.training_texts import HELD_OUT_KEY, OPENING, Prompts, Texts, continued

TEMPERATURES_SHOWN = (0.0, 1.0)
"""At which a draft is measured: greedy decoding, and the target's own distribution."""

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Texts that the target wrote at each temperature, and the betas of drafts there.

    Attributes
    ----------
    prompts : list of list of int
    texts : dict of float to Texts
        By temperature.
    """

    prompts: list[list[int]]
    texts: Mapping[float, Texts]

    @classmethod
    def written(cls, target: Model, prompts: Prompts, settings: TrainingSettings, n_texts: int) -> HeldOut:
        """Let the target write `n_texts` texts at each temperature."""
        chosen = [list(prompts.held_out[i % len(prompts.held_out)]) for i in range(n_texts)]
        texts = {}
        for temperature in TEMPERATURES_SHOWN:
            seeds = [(settings.seed, HELD_OUT_KEY + i) for i in range(n_texts)]
            found = continued(
                target, settings.threads, chosen, length=settings.length, temperature=temperature, seed=seeds
            )
            opened = min(OPENING, settings.length // 4) if temperature < 1.0 else 0
            begins = [
                min(len(prompt) + opened, len(text)) for prompt, text in zip(chosen, found, strict=True)
            ]
            texts[temperature] = Texts.of_lists(found, begins, settings.length)
        return cls(chosen, texts)

    def some(self, n_texts: int) -> HeldOut:
        """Return the first `n_texts` of them at each temperature."""
        rows = slice(0, n_texts)
        return HeldOut(self.prompts[rows], {t: texts.of(rows) for t, texts in self.texts.items()})

    def betas(
        self, target: Model, trainer: DraftTrainer, network: Any, earlier: EarlierDrafts | None = None
    ) -> dict[float, list[Array]]:
        """Return the chance that the first draft token is accepted, by temperature, at every position.

        At temperature 0 it is 1 where the argmaxes are equal, else 0. With earlier drafts it is the chance
        that one of all first draft tokens is accepted.
        """
        n_vocab = target.config.n_vocab  # distributions are whole, as alpha needs them
        states = TargetStates(target, taps=trainer.taps, top=n_vocab, n_threads=trainer.settings.threads)
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
        """Measure new tokens a run of the target, in real runs from the same prompts, by temperature."""
        found = {}
        for temperature in TEMPERATURES_SHOWN:
            # Equal prompts differ by the target's continuations at temperature 1.
            begun = [
                self.texts[1.0].ids[i, : max(int(self.texts[1.0].ends[i]) // 4, len(prompt))].tolist()
                for i, prompt in enumerate(self.prompts)
            ]
            results = [
                generate(
                    target, draft, prompt, gamma=gamma, temperature=temperature, n_threads=n_threads,
                    max_new_tokens=max(8, len(self.texts[1.0].ids[0]) // 2), seed=[(0, HELD_OUT_KEY + i)],
                )
                for i, prompt in enumerate(begun)
            ]  # fmt: skip
            n_calls = sum(result.trace.n_calls for result in results)
            found[temperature] = sum(result.trace.n_tokens for result in results) / n_calls
        return found


def _betas(
    states: TargetStates,
    trainer: DraftTrainer,
    network: Any,
    text: Texts,
    temperature: float,
    earlier: EarlierDrafts | None,
) -> Array:
    first, last = max(int(text.begins[0]), 1) - 1, int(text.ends[0]) - 1
    if last <= first:
        return np.zeros(0)
    batch = states.of(text)
    on_device = batch.to(trainer.settings.device)
    own = trainer.target_logits(network, on_device)
    target = (batch.target.log_probs if own is None else own)[0, first:last].float().cpu().numpy()
    draft = trainer.first_guess(network, on_device)[0, first:last].float().cpu().numpy()
    if temperature == 0.0:
        tokens = target.argmax(-1)
        equal = tokens == draft.argmax(-1)
        if earlier is not None:
            equal |= earlier.hits(text.ids[0, :last], np.concatenate((np.zeros(first, np.intp), tokens)))[
                first:
            ]
        return np.asarray(equal, np.float64)
    probs, share = softmax(target), np.ones(1)
    if earlier is not None:
        padded = np.concatenate((np.zeros((first, probs.shape[-1])), probs))
        left, all_shares = earlier.residual(text.ids[0, :last], padded, 1.0)
        probs, share = left[first:], all_shares[first:]
    accepted = np.asarray(theory.acceptance_rate(probs, softmax(draft)), np.float64).reshape(-1)
    return 1.0 - share * (1.0 - accepted)


def alpha_of(betas: Sequence[Array]) -> tuple[float, float, float]:
    """Return the mean acceptance rate (Corollary 3.6 of arXiv 2211.17192) and its 95 % interval."""
    low, high = mean_interval(betas)
    return _mean(betas), low, high


def gain(before: Sequence[Array], after: Sequence[Array]) -> tuple[float, float, float]:
    """Return the rise of alpha on the same positions, and its 95 % confidence interval.

    A draft that is no better than before has an interval above 0 in one training of forty.
    """
    halves = [(new - old + 1.0) / 2.0 for old, new in zip(before, after, strict=True)]
    low, high = mean_interval(halves)
    return 2.0 * _mean(halves) - 1.0, 2.0 * low - 1.0, 2.0 * high - 1.0


def _mean(parts: Sequence[Array]) -> float:
    """Mean of all entries; NaN if there are none, as where all texts ended within their prompts."""
    entries = np.concatenate(parts)
    return float(entries.mean()) if len(entries) else np.nan
