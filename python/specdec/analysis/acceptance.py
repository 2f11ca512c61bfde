"""How well a draft guesses a target: beta at every position of texts that the target generates."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeGuard, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from specdec import _core, drafts, theory
from specdec.checks import check_items
from specdec.containers import prompts_of
from specdec.decoding.beginning import Beginning
from specdec.decoding.generate import generate
from specdec.drafts.draft import check_source
from specdec.drafts.model_draft import DraftLike, as_draft
from specdec.errors import InputError, kind_of, shown
from specdec.models.model import Model, ModelLike, Prompt, as_model
from specdec.models.tokenizer import check_same_vocabulary
from specdec.threads import check_threads
from specdec.verification.sampling import Sampling
from specdec.verification.verify import distribution

__all__ = [
    "RUN_BY_THE_CORE",
    "Acceptance",
    "MeasurableDraft",
    "MeasurableDraftLike",
    "ProbabilityDraft",
    "acceptance",
    "default_prompts",
    "different_numbers",
    "drafts_by_name",
    "has_law",
    "name_of",
    "open_pair",
    "sampling_options",
    "split",
    "work_of",
]

Array = NDArray[np.float64]

PROMPTS = (
    "It was a dark and stormy night, and",
    "She looked out of the window, and",
    '"My dear sir," said the old gentleman,',
    "The captain of the ship",
)
_ROWS = 64  # positions whose distributions are in memory at a time


@runtime_checkable
class ProbabilityDraft(Protocol):
    """A draft that is no model, such as `specdec.drafts.Bigram`."""

    def probabilities(self, ids: Sequence[int] | NDArray[np.integer[Any]], /) -> Array:
        """[len(ids), n_vocab]: row i is the distribution of the token after ids[: i + 1]."""
        ...


MeasurableDraft: TypeAlias = Model | ProbabilityDraft | drafts.Draft
RUN_BY_THE_CORE = (Model, drafts.Draft)
"""Drafts that `generate` takes, so that runs with them can be timed."""
MeasurableDraftLike: TypeAlias = DraftLike | ProbabilityDraft


@dataclass(frozen=True, eq=False)
class Acceptance:
    """Texts that a target generated, and how likely a draft's guesses in them would have been accepted.

    Attributes
    ----------
    tokens : list of list of int
        For each prompt, what the target generated.
    text : list of list of str, or None
        The same as text, a piece for each token; None without a tokenizer.
    betas : dict of float to list of ndarray of float64, [n_tokens]
        By lenience, for each prompt: the chance that a guess at this position is accepted.
    """

    tokens: list[list[int]]
    text: list[list[str]] | None
    betas: dict[float, list[Array]]


def acceptance(
    target: Model,
    draft: Model | ProbabilityDraft,
    beginnings: Sequence[Beginning],
    *,
    sampling: Sampling,
    leniences: Sequence[float],
    n_tokens: int,
    seed: int,
    n_threads: int | None,
    done: Callable[[int], object],
) -> Acceptance:
    """Continue prompts with the target, and hold the draft's distribution against its own (section 4.2).

    At temperature 0 both decode by argmax, and a lenience below 1 judges by the target's whole distribution
    at temperature 1 (appendix A.5).

    Parameters
    ----------
    target : Model
    draft : Model or ProbabilityDraft
    beginnings : sequence of Beginning
    sampling : Sampling
        Of both.
    leniences : sequence of float
        In (0, 1].
    n_tokens : int
        New tokens a prompt, as far as the contexts reach.
    seed : int
        Prompt i is continued with the key (seed, i).
    n_threads : int or None
    done : callable
        Told of `n_tokens`, after every prompt.
    """
    tokens: list[list[int]] = []
    text: list[list[str]] | None = None if target.tokenizer is None else []
    betas: dict[float, list[Array]] = {lenience: [] for lenience in leniences}
    for i, beginning in enumerate(beginnings):
        result = generate(
            target,
            None,
            beginning.given,
            max_new_tokens=min(n_tokens, _room(target, draft, beginning, i)),
            temperature=sampling.temperature,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
            min_p=sampling.min_p,
            seed=[(seed, i)],
            n_threads=n_threads,
            logits=True,
        )
        assert result.logits is not None
        guesses = _draft_logits(draft, beginning, result.tokens, target, n_threads)
        for lenience, found in _betas(result.logits, guesses, sampling, leniences).items():
            betas[lenience].append(found)
        tokens.append(result.tokens)
        stream = beginning.stream_decoder(target)
        if text is not None and stream is not None:
            pieces = [stream.feed([token]) for token in result.tokens]
            pieces[-1] += stream.finish()
            text.append(pieces)
        done(n_tokens)
    return Acceptance(tokens, text, betas)


def _room(target: Model, draft: Model | ProbabilityDraft, beginning: Beginning, index: int) -> int:
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
    draft: Model | ProbabilityDraft,
    beginning: Beginning,
    tokens: Sequence[int],
    target: Model,
    n_threads: int | None,
) -> NDArray[np.float32]:
    """The draft's logits at every position that the target generated, [n_tokens, n_vocab]."""
    ids, first = [*beginning.ids, *tokens[:-1]], len(beginning.ids) - 1
    if isinstance(draft, Model):
        decoder = _core.Decoder(
            draft.core,
            capacity=len(ids),
            n_threads=check_threads(n_threads),
            n_vocab=target.config.n_vocab,
            source=beginning.source_of(draft),
        )
        logits = decoder.prefill(ids, logits=True, finite=True)
        assert logits is not None
        return logits[first:]
    if isinstance(draft, drafts.OnlineNgram):  # which may have no table to say how many ids there are
        probs = draft.probabilities(ids, target.config.n_vocab)
    else:
        probs = np.asarray(draft.probabilities(ids), dtype=np.float64)
    shape = (len(ids), target.config.n_vocab)
    if probs.shape != shape:
        raise InputError(f"draft.probabilities gave an array of shape {probs.shape}; expected {shape}")
    if not (np.all(probs >= 0.0) and np.allclose(probs.sum(axis=1), 1.0, rtol=0.0, atol=1e-6)):
        raise InputError("draft.probabilities gave a row that is no distribution; expected sum 1")
    with np.errstate(divide="ignore"):
        return np.log(probs[first:]).astype(np.float32)


def _betas(
    target_logits: NDArray[np.float32],
    draft_logits: NDArray[np.float32],
    sampling: Sampling,
    leniences: Sequence[float],
) -> dict[float, Array]:
    ours: dict[str, Any] = {
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
    }
    rate: Callable[..., float | Array] = theory.acceptance_rate
    targets = ours
    if sampling.greedy:  # judged by what the argmax is taken of, as `generate` does
        rate, targets = theory.greedy_acceptance_rate, {"temperature": 1.0}
    betas = {lenience: np.empty(len(target_logits)) for lenience in leniences}
    for first in range(0, len(target_logits), _ROWS):
        rows = slice(first, first + _ROWS)
        target_probs = distribution(target_logits[rows], **targets)
        draft_probs = distribution(draft_logits[rows], **ours)
        for lenience, found in betas.items():
            found[rows] = rate(target_probs, draft_probs, lenience=lenience)
    return betas


# --------------------------------------------------------------------------------------------- arguments


def open_pair(target: ModelLike, draft: MeasurableDraftLike) -> tuple[Model, MeasurableDraft]:
    """Target and draft, loaded where they are paths, of one vocabulary.

    A draft that learns from texts is a snapshot. What drafts chains by a model alone is the model.

    Raises
    ------
    InputError, VocabularyMismatchError, CheckpointError, TokenizerError
    """
    target = as_model("target", target)
    opened: object = drafts.load(draft, target) if isinstance(draft, str | os.PathLike) else draft
    if isinstance(opened, drafts.Draft):
        opened = opened.snapshot()
    if isinstance(opened, drafts.ModelDraft) and opened.tree is None and opened.draft is None:
        opened = opened.model
    if isinstance(opened, Model):
        check_same_vocabulary(target, opened)
        check_source(opened.config.encoder is not None, target)
        return target, opened
    if has_law(opened):
        return target, opened
    if not isinstance(opened, drafts.Draft | type) and not hasattr(opened, "propose"):
        raise InputError(
            f"draft is {kind_of(opened)}; expected a specdec.Model, a path, a hub name, one of "
            "specdec.drafts, or an object with a method propose or probabilities(ids)"
        )
    return target, as_draft(target, opened)


def has_law(draft: object) -> TypeGuard[Model | ProbabilityDraft]:
    """Whether a draft has one distribution for the token after a text, whatever it has guessed before.

    Such a draft can be held against every text of the target. Any other is measured by running it.
    """
    if isinstance(draft, Model):
        return True
    chain = not isinstance(draft, type) and getattr(draft, "tree", None) is None
    return chain and isinstance(draft, ProbabilityDraft)


def name_of(model: object, name: str | None = None, argument: str = "name") -> str:
    """A name for tables: the caller's; of a model its folder or file, of an exit its layer; else the type.

    Raises
    ------
    InputError
        If the caller's name is no text.
    """
    if name is not None:
        if not isinstance(name, str) or not name:
            raise InputError(f"{argument} is {shown(name)}; expected a text")
        return name
    if isinstance(model, drafts.Draft):
        model = model.identity
    if isinstance(model, Model):
        return model.path.name
    if isinstance(model, drafts.EarlyExit):
        return f"exit at layer {model.layer}"
    return type(model).__name__.lower()


def drafts_by_name(target: Model, given: Any) -> dict[str, Any]:
    """A dict of drafts by name, checked, loaded where they are paths.

    Raises
    ------
    InputError, CheckpointError, TokenizerError
    """
    expected = "a dict of drafts by their names"
    if not isinstance(given, Mapping) or not given:
        raise InputError(f"drafts is {shown(given)}; expected {expected}")
    for name in given:
        if not isinstance(name, str) or not name:
            raise InputError(f"drafts has the name {shown(name)}; expected {expected}")
    return {
        name: drafts.load(draft, target) if isinstance(draft, str | os.PathLike) else draft
        for name, draft in given.items()
    }


def sampling_options(sampling: Sampling) -> dict[str, Any]:
    """Sampling settings as keyword arguments of `generate`."""
    return {name: getattr(sampling, name) for name in ("temperature", "top_k", "top_p", "min_p")}


def default_prompts(target: Model) -> list[str]:
    """What is continued where the caller has no prompts."""
    if target.tokenizer is None:
        raise InputError("prompts is None, and the target has no tokenizer; expected prompts of token ids")
    return list(PROMPTS)


def split(target: Model, prompts: Prompt | Sequence[Prompt]) -> list[Beginning]:
    """What each prompt's text begins with; a text, or a list of integers, is one prompt."""
    given, _ = prompts_of("prompts", prompts)
    return [Beginning.of(target, prompt, f"prompt {i}") for i, prompt in enumerate(given)]


def work_of(
    target: Model, beginnings: Sequence[Beginning], share: int, n_tokens: int
) -> list[tuple[Sequence[int], int]]:
    """Prompts in order with their new tokens: `share` each, as far as contexts reach, `n_tokens` in all."""
    work: list[tuple[Sequence[int], int]] = []
    left = n_tokens
    for beginning in beginnings:
        n = min(share, left, beginning.room(target))
        if n > 0:
            work.append((beginning.given, n))
            left -= n
    return work


def different_numbers(name: str, values: Any) -> list[Any]:
    """A sequence of at least one number, none twice.

    Raises
    ------
    InputError
    """
    found = check_items(name, values, "a sequence of numbers")
    try:
        n_different = len(set(found))
    except TypeError:
        raise InputError(f"{name} is {shown(values)}; expected a sequence of numbers") from None
    if not found or n_different < len(found):
        raise InputError(f"{name} is {shown(values)}; expected at least one number, and none twice")
    return found
