"""The input drafts: for outputs that are the input with edits."""

from __future__ import annotations

from specdec.checks import check_integer
from specdec.drafts.draft import MAX_GAMMA, Description, Draft
from specdec.drafts.texts import Text, check_text, ids_of
from specdec.errors import InputError
from specdec.models.model import Model

__all__ = ["InputCopy"]

MAX_MATCH = 32
"""Tokens of a match that are compared; the core's MAX_MATCH."""
MAX_START = 2**31 - 1


class InputCopy(Draft):
    """A draft that goes through the input: for correcting, rewriting or translating code line by line.

    The aggressive decoding of Sun et al. 2021 (arXiv 2106.04970, Figure 1; section 5 of arXiv 2211.17192),
    with the target's own rule of verification, so for sampling too. The guesses are the rest of the input.
    Where the target rejects one, the draft looks for the end of the output in the input: the longest suffix,
    of equally long ones the nearest match ahead. Sun et al. decode token by token until there is one. Here,
    as long as it is shorter than `min_match`, the likeliest edits are drafted: tokens left out (the last
    token stands a little further on), replaced, or inserted; after eight tokens without a counterpart
    nothing.

    Parameters
    ----------
    source : str or sequence of int, optional
        The input; a text is encoded with the target's tokenizer, without BOS. None: of each sequence its
        prompt, or the source where the target is an encoder-decoder.
    start : int, optional
        Index of the token in the source with which the output is expected to begin: behind an instruction,
        for example. If it begins elsewhere, the draft finds the match by itself.
    min_match : int, optional
        How many tokens must match, 1 to 32, for a match in the source to be believed.
    n_candidates : int, optional
        Hypotheses about an edit that are drafted, up to 3: 1 is a chain of guesses, more make a tree.
    gamma : int, optional
        Guesses of a round when the caller does not say.

    Attributes
    ----------
    start, min_match, n_candidates, gamma : int

    Raises
    ------
    InputError
        If a parameter is out of its range, or source is neither text nor token ids.
    """

    def __init__(
        self,
        source: Text | None = None,
        *,
        start: int = 0,
        min_match: int = 3,
        n_candidates: int = 1,
        gamma: int = 8,
    ) -> None:
        self.start = check_integer("start", start, 0, MAX_START)
        self.min_match = check_integer("min_match", min_match, 1, MAX_MATCH)
        self.n_candidates = check_integer("n_candidates", n_candidates, 1, 3)
        self.gamma = check_integer("gamma", gamma, 0, MAX_GAMMA)
        self._source = None if source is None else check_text("source", source)

    def describe(self, target: Model) -> Description:
        """See `Draft.describe`."""
        encoder, n_vocab = target.config.encoder, target.config.n_vocab
        if self._source is None and encoder is not None and encoder.n_vocab != n_vocab:
            raise InputError(
                f"InputCopy has no source, and the encoder of {target.path} has a vocabulary of its own, of "
                f"{encoder.n_vocab} tokens; expected a source in the decoder's, of {n_vocab}"
            )
        source = None if self._source is None else ids_of("source", self._source, target)
        return "input_copy", {
            "source": source,
            "start": self.start,
            "min_match": self.min_match,
            "n_candidates": self.n_candidates,
        }

    def __repr__(self) -> str:
        source = "the input" if self._source is None else "a given source"
        return (
            f"<specdec.drafts.InputCopy from {source}, start {self.start}, min_match {self.min_match}, "
            f"n_candidates {self.n_candidates}>"
        )
