"""How well a draft guesses a target: beta at every position of texts that the target generates."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec import _core, drafts, theory
from specdec.analysis.arguments import ProbabilityDraft, Setup
from specdec.analysis.experiment import ExperimentRow
from specdec.analysis.statistics import mean_interval
from specdec.analysis.timing import ForwardTimes
from specdec.decoding.generate import generate
from specdec.decoding.options import DecodingOptions
from specdec.decoding.prompts import PromptIds
from specdec.errors import InputError
from specdec.models.model import Model
from specdec.verification.sampling import TRUNCATIONS
from specdec.verification.verify import distribution

Array = NDArray[np.float64]

_ROWS = 64  # positions whose distributions are in memory at a time


@dataclass(frozen=True, eq=False)
class Acceptance:
    """Texts that a target generated, and how likely a draft's tokens in them would have been accepted.

    `text` has a piece for each of `tokens`, None without a tokenizer. `betas` has by lenience, for each
    prompt, the chance that a draft at this position is accepted.
    """

    tokens: list[list[int]]
    text: list[list[str]] | None
    betas: dict[float, list[Array]]


def acceptance(
    setup: Setup,
    draft: Model | ProbabilityDraft,
    options: DecodingOptions,
    *,
    leniences: Sequence[float],
    n_tokens: int,
    done: Callable[[int], object],
) -> Acceptance:
    """Continue prompts with the target, and hold the draft's distribution against its own (section 4.2).

    At temperature 0 both decode by argmax, and a lenience below 1 judges by the target's whole distribution
    at temperature 1 (appendix A.5). Prompt i has the key (seed, i) and `n_tokens`, as far as the contexts
    reach.
    """
    target = setup.target
    text: list[list[str]] | None = None if target.tokenizer is None else []
    found = Acceptance([], text, {lenience: [] for lenience in leniences})
    settings = setup.runs(temperature=options.temperature)
    for i, beginning in enumerate(setup.prompts):
        n = min(n_tokens, _room(target, draft, beginning, i))
        result = generate(
            target, None, beginning.given, max_new_tokens=n, seed=[(setup.seed, i)], logits=True, **settings
        )
        assert result.logits is not None
        guesses = _draft_logits(setup, draft, beginning, result.tokens)
        for lenience, betas in _betas(result.logits, guesses, options, leniences).items():
            found.betas[lenience].append(betas)
        found.tokens.append(result.tokens)
        stream = beginning.stream_decoder(target)
        if found.text is not None and stream is not None:
            pieces = [stream.feed([token]) for token in result.tokens]
            pieces[-1] += stream.finish()
            found.text.append(pieces)
        done(n_tokens)
    return found


def _room(target: Model, draft: Model | ProbabilityDraft, beginning: PromptIds, index: int) -> int:
    """New tokens that the contexts have room for; the last one needs none in the draft's."""
    room = beginning.room(target)
    if isinstance(draft, Model):
        room = min(room, beginning.room(draft) + 1)
        n, encoder = len(beginning.source or ()), draft.config.encoder
        if encoder is not None and n > encoder.n_ctx:
            raise InputError(
                f"prompt {index} has {n} tokens; expected at most {encoder.n_ctx}, as its draft reads"
            )
    if room < 1:
        n = len(beginning.ids)
        raise InputError(f"prompt {index} has {n} tokens, which leaves no room in the context")
    return room


def _draft_logits(
    setup: Setup, draft: Model | ProbabilityDraft, beginning: PromptIds, tokens: Sequence[int]
) -> NDArray[np.float32]:
    """The draft's logits at every position that the target generated, [n_tokens, n_vocab]."""
    ids, first, n_vocab = [*beginning.ids, *tokens[:-1]], len(beginning.ids) - 1, setup.target.config.n_vocab
    if isinstance(draft, Model):
        decoder = _core.Decoder(
            draft.core, capacity=len(ids), n_threads=setup.options.threads, n_vocab=n_vocab,
            source=beginning.source_of(draft),
        )  # fmt: skip
        logits = decoder.prefill(ids, logits=True, finite=True)
        assert logits is not None
        return logits[first:]
    if isinstance(draft, drafts.OnlineNgram):  # which may have no table to say how many ids there are
        probs = draft.probabilities(ids, n_vocab)
    else:
        probs = np.asarray(draft.probabilities(ids), dtype=np.float64)
    if probs.shape != (len(ids), n_vocab):
        raise InputError(
            f"draft.probabilities gave an array of shape {probs.shape}; expected {(len(ids), n_vocab)}"
        )
    if not (np.all(probs >= 0.0) and np.allclose(probs.sum(axis=1), 1.0, rtol=0.0, atol=1e-6)):
        raise InputError("draft.probabilities gave a row that is no distribution; expected sum 1")
    with np.errstate(divide="ignore"):
        return np.log(probs[first:]).astype(np.float32)


def _betas(
    target_logits: NDArray[np.float32],
    draft_logits: NDArray[np.float32],
    options: DecodingOptions,
    leniences: Sequence[float],
) -> dict[float, Array]:
    ours = {name: getattr(options, name) for name in ("temperature", *TRUNCATIONS)}
    rate: Callable[..., float | Array] = theory.acceptance_rate
    targets = ours
    if options.sampling.greedy:  # judged by what the argmax is taken of, as `generate` does
        rate, targets = theory.greedy_acceptance_rate, {"temperature": 1.0}
    betas = {lenience: np.empty(len(target_logits)) for lenience in leniences}
    for first in range(0, len(target_logits), _ROWS):
        rows = slice(first, first + _ROWS)
        target_probs = distribution(target_logits[rows], **targets)
        draft_probs = distribution(draft_logits[rows], **ours)
        for lenience, found in betas.items():
            found[rows] = rate(target_probs, draft_probs, lenience=lenience)
    return betas


def mean_of(betas: Sequence[Array]) -> float:
    """Mean acceptance rate of texts; NaN without any position."""
    n_positions = sum(map(len, betas))
    return math.fsum(float(text.sum()) for text in betas) / n_positions if n_positions else math.nan


def predicted_row(
    draft: str,
    betas: Sequence[Array],
    times: ForwardTimes | None,
    temperature: float,
    gamma: int,
    lenience: float = 1.0,
) -> ExperimentRow:
    """What betas and times of forward passes say of a draft with a distribution of its own."""
    alpha, (low, high) = mean_of(betas), mean_interval(betas)
    timed: dict[str, Any] = {}
    if times is not None:
        c, ratio = times.cost, times.verify_ratio[gamma + 1]
        ideal, predicted = (
            float(theory.expected_speedup(alpha, gamma, c, verify)) for verify in (1.0, max(ratio, 1.0))
        )
        timed = {"c": c, "verify_ratio": ratio, "ideal_speedup": ideal, "predicted_speedup": predicted}
    return ExperimentRow(
        draft=draft, temperature=temperature, gamma=gamma, lenience=lenience, n_tokens=sum(map(len, betas)),
        alpha=alpha, alpha_low=low, alpha_high=high, by_running=False, **timed,
    )  # fmt: skip
