"""The text drafts itself: what followed the same tokens before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from specdec import _core
from specdec.checks import check_integer, check_items
from specdec.containers import plain
from specdec.drafts.draft import MAX_GAMMA, Description, Draft
from specdec.drafts.texts import Text, check_text, ids_of
from specdec.errors import InputError, kind_of
from specdec.models.model import Model

__all__ = ["MAX_CANDIDATES", "ContextCopy"]

MAX_CANDIDATES = 16
"""Continuations that are drafted in one round; the core's SD_MAX_COPIES."""


class ContextCopy(Draft):
    """A draft that copies: what followed the longest suffix of the text that occurs in it before.

    No model drafts, so a guess costs nothing, and where the text does not repeat itself there is no guess.
    For texts that do: quoting, summaries, code, tables, answers from documents. The longest suffix is found
    by a suffix automaton (Blumer et al. 1985), kept up to date in O(1) a token, as in SAM Decoding (Hu et al.
    2024, arXiv 2411.10666); the method is the copying of the paper's section 5 without its restriction to
    the input. A copy that reaches the end of the text goes on with what it copied, so it follows a period of
    any length.

    Parameters
    ----------
    documents : list of str or of sequences of int, optional
        Other texts to copy from: where their match is longer than the one in the text itself. Texts are
        encoded with the target's tokenizer, without BOS. The automaton is made once and is used by all
        runs; it takes some 100 to 170 bytes a token.
    min_match : int, optional
        The shortest match, in tokens, that is copied from, at least 1.
    n_candidates : int, optional
        1: a chain of guesses. More, up to 16: a tree with other continuations too; first the match in the
        text and that in the documents, then what else followed these matches and their suffixes. The guesses
        of a round go where they are likeliest to be accepted.
    gamma : int, optional
        Guesses of a round when the caller does not say.

    Attributes
    ----------
    min_match, n_candidates, gamma : int

    Raises
    ------
    InputError
        If a parameter is out of its range, or documents is not a list of texts.
    """

    def __init__(
        self,
        documents: Sequence[Text] | None = None,
        *,
        min_match: int = 2,
        n_candidates: int = 1,
        gamma: int = 8,
    ) -> None:
        self.min_match = check_integer("min_match", min_match, 1, MAX_GAMMA)
        self.n_candidates = check_integer("n_candidates", n_candidates, 1, MAX_CANDIDATES)
        self.gamma = check_integer("gamma", gamma, 0, MAX_GAMMA)
        documents = plain(documents)
        if isinstance(documents, np.ndarray) and documents.ndim == 2:
            documents = list(documents)
        if documents is not None and not isinstance(documents, list | tuple):
            raise InputError(f"documents is {kind_of(documents)}; expected a list of texts, or None")
        texts = [] if documents is None else check_items("documents", documents, "a list of texts, or None")
        self._documents = [check_text(f"documents[{i}]", item) for i, item in enumerate(texts)]
        self._automaton: _core.Automaton | None = None
        self._made_for: tuple[object, int] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_automaton": None, "_made_for": None}  # made anew for a target

    def describe(self, target: Model) -> Description:
        """See `Draft.describe`."""
        wanted = target.tokenizer, target.config["n_vocab"]
        if self._documents and self._made_for != wanted:  # texts may be other tokens for another target
            pieces = [np.full(1, -1, np.int32)]
            for i, document in enumerate(self._documents):
                pieces += [ids_of(f"documents[{i}]", document, target), pieces[0]]
            self._automaton = _core.Automaton(np.concatenate(pieces))
            self._made_for = wanted
        return "context_copy", {
            "documents": self._automaton,
            "min_match": self.min_match,
            "n_candidates": self.n_candidates,
        }

    def __repr__(self) -> str:
        documents = f" and {len(self._documents)} documents" if self._documents else ""
        return (
            f"<specdec.drafts.ContextCopy from the text{documents}, min_match {self.min_match}, "
            f"n_candidates {self.n_candidates}>"
        )
