"""What earlier drafts leave to a new one that guesses beside them.

Guesses for one token are judged in turn: where that of the first draft, drawn from its law Q, is rejected,
the next one is judged by the residual of the target's law, max(0, P - Q) normalised, and so on (SpecInfer,
arXiv 2305.09781). So a new draft is trained on the residual that the earlier ones leave, each position
weighted by the chance that it comes to it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from specdec import drafts
from specdec.drafts.draft import Draft
from specdec.errors import InputError
from specdec.fields import read_json_object
from specdec.models.loading import load
from specdec.models.model import Model
from specdec.models.tokenizer import check_same_vocabulary

__all__ = ["Cover"]

Array: TypeAlias = NDArray[np.float64]
Logits: TypeAlias = NDArray[np.float32]

_LEAST = 1e-9
"""A residual of less mass is rounding."""


class Cover:
    """Earlier drafts, in the order in which they are asked.

    Parameters
    ----------
    target : Model
    folders : sequence of path
        Small models and recurrent drafts: drafts whose law depends on the text alone.
    temperature : float
        Of laws.
    n_threads : int

    Attributes
    ----------
    drafts : list of Model or Draft
        As `specdec.generate` takes them.

    Raises
    ------
    InputError, VocabularyMismatchError, CheckpointError
        A draft that is none, cannot be read, or is of another kind.
    """

    def __init__(
        self, target: Model, folders: Sequence[str], *, temperature: float = 1.0, n_threads: int = 1
    ) -> None:
        self._temperature = temperature
        found = [_opened(target, Path(folder), n_threads) for folder in folders]
        self.drafts = [draft for draft, _ in found]
        self._logits = [logits for _, logits in found]

    def residual(self, ids: NDArray[np.int32], probs: Array, temperature: float) -> tuple[Array, Array]:
        """What is left of the target's laws after each token of a text.

        Parameters
        ----------
        ids : ndarray of int32, [n]
        probs : ndarray of float64, [n, n_vocab]
            The target's laws.
        temperature : float
            Of the drafts' laws.

        Returns
        -------
        residual : ndarray of float64, [n, n_vocab]
            Laws.
        share : ndarray of float64, [n]
            Chance that no guess of the drafts is accepted.
        """
        share = np.ones(len(ids))
        for logits in self._logits:
            left = np.maximum(probs - law_of(logits(ids), temperature), 0.0)
            mass = left.sum(-1)
            share *= np.where(mass > _LEAST, mass, 0.0)
            probs = np.where(mass[:, None] > _LEAST, left / np.maximum(mass, _LEAST)[:, None], probs)
        return probs, share

    def hits(self, ids: NDArray[np.int32], tokens: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Where the most probable token of one of the drafts is that of `tokens` [n]."""
        found = np.zeros(len(ids), bool)
        for logits in self._logits:
            found |= logits(ids).argmax(-1) == tokens
        return found

    def __call__(self, ids: NDArray[np.int32], logits: Logits) -> tuple[Logits, Logits]:
        """From the target's logits after each token of a text to the residual's, and weights of positions."""
        probs, share = self.residual(ids, law_of(logits, self._temperature), self._temperature)
        with np.errstate(divide="ignore"):
            left = (np.log(probs) * self._temperature).astype(np.float32)
        return left, share.astype(np.float32)


def law_of(logits: Logits, temperature: float = 1.0) -> Array:
    """Softmax of logits [n, n_vocab] in double."""
    scaled = logits.astype(np.float64) / temperature
    weights = np.exp(scaled - scaled.max(-1, keepdims=True))
    found: Array = weights / weights.sum(-1, keepdims=True)
    return found


def _opened(
    target: Model, folder: Path, n_threads: int
) -> tuple[Model | Draft, Callable[[NDArray[np.int32]], Logits]]:
    """A draft, and its logits after each token of a text."""
    config = folder / "config.json"
    method = read_json_object(config).get("method") if config.is_file() else None
    if method is None:
        model = load(folder)
        check_same_vocabulary(target, model)
        if model.config.n_vocab != target.config.n_vocab:
            raise InputError(
                f"after {folder} has {model.config.n_vocab} ids; expected {target.config.n_vocab}"
            )
        return model, lambda ids: model.logits(ids, n_threads=n_threads)
    if method != "recurrent":
        raise InputError(
            f"after {folder} is a draft by {method!r}; expected a small model or a recurrent draft, whose "
            "law depends on the text alone"
        )
    draft = drafts.load(folder, target)
    if not isinstance(draft, drafts.Recurrent):
        raise InputError(f"after {folder} is {draft!r}; expected a recurrent draft, as its config.json says")
    core = draft.core
    return draft, lambda ids: core.logits(ids)
