"""Drafts that copy: from the text itself, from the input, from a prediction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from specdec import _core
from specdec.checks import check_integer, check_items
from specdec.containers import plain
from specdec.drafts.draft import MAX_GAMMA, Description, Draft
from specdec.drafts.texts import Text, check_text, ids_of
from specdec.errors import InputError, type_of
from specdec.models.model import Model

MAX_CANDIDATES: Final = 16  # continuations per round; SD_MAX_COPIES of the core
MAX_MATCH: Final = 32  # longest match that is compared, in tokens; MAX_MATCH of the core
MAX_START: Final = 2**31 - 1
PREDICTION_GAMMA: Final = 15  # draft tokens per round copied from a prediction


class PromptLookup(Draft):
    """Prompt lookup: copies what followed the longest suffix of the text that occurred before.

    For texts that repeat themselves: quotes, summaries, code, tables, answers from documents. Drafting costs
    almost nothing, and proposes nothing where no suffix repeats. A suffix automaton (Blumer et al. 1985)
    finds the suffix in O(1) per token, as in SAM Decoding (Hu et al. 2024, arXiv 2411.10666). A copy that
    reaches the end of the text continues with its own tokens, and so follows a period of any length.

    Parameters
    ----------
    documents : list of str or of sequences of int, optional
        More texts, copied from if their match is longer than that in the text itself. Encoded with the
        target's tokenizer, without BOS. Their automaton takes 100 to 170 bytes per token.
    min_match : int, optional
        Shortest match in tokens, at least 1.
    n_candidates : int, optional
        1: a chain. 2 to 16: a tree with other continuations of the match and of its suffixes; each round
        spends its tokens where acceptance is most likely.
    gamma : int, default 8
    """

    def __init__(
        self, documents: Sequence[Text] | None = None, *, min_match: int = 2, n_candidates: int = 1,
        gamma: int = 8,
    ) -> None:  # fmt: skip
        self.min_match = check_integer("min_match", min_match, 1, MAX_GAMMA)
        self.n_candidates = check_integer("n_candidates", n_candidates, 1, MAX_CANDIDATES)
        self.gamma = check_integer("gamma", gamma, 0, MAX_GAMMA)
        found = [] if documents is None else plain(documents)
        if not isinstance(found, list | tuple | np.ndarray):
            raise InputError.of("documents", documents, "a list of texts, or None", type_of(documents))
        texts = check_items("documents", found, "a list of texts, or None")
        self._documents = [check_text(f"documents[{i}]", item) for i, item in enumerate(texts)]
        self._automaton: _core.Automaton | None = None
        self._made_for: tuple[object, int] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_automaton": None, "_made_for": None}  # rebuilt for a target

    def describe(self, target: Model) -> Description:
        wanted = target.tokenizer, target.config["n_vocab"]
        if self._documents and self._made_for != wanted:  # another target may tokenize texts differently
            pieces = [np.full(1, -1, np.int32)]
            for i, document in enumerate(self._documents):
                pieces += [ids_of(f"documents[{i}]", document, target), pieces[0]]
            self._automaton = _core.Automaton(np.concatenate(pieces))
            self._made_for = wanted
        settings = {"min_match": self.min_match, "n_candidates": self.n_candidates}
        return "context_copy", {"documents": self._automaton, **settings}

    def __repr__(self) -> str:
        documents = f" and {len(self._documents)} documents" if self._documents else ""
        return _shown(self, f"the text{documents}")


class InputCopy(Draft):
    """Copies the input in order: for correcting or rewriting it, or translating code line by line.

    Aggressive decoding (Sun et al. 2021, arXiv 2106.04970, Figure 1; section 5 of arXiv 2211.17192) under any
    verification rule. The draft tokens are the rest of the input. After a rejection the draft searches the
    input for the longest suffix of the output; ties go to the nearest match ahead. While that match is
    shorter than `min_match`, it proposes the likeliest edits (deletion, replacement, insertion), where Sun et
    al. decode token by token. After eight unmatched tokens it proposes nothing.

    Parameters
    ----------
    source : str or sequence of int, optional
        The input; a text is encoded with the target's tokenizer, without BOS. None: the prompt of each
        sequence, or the source if the target is an encoder-decoder.
    start : int, optional
        Source index where the output is expected to begin, such as after an instruction. If it begins
        elsewhere, the draft finds the match itself.
    min_match : int, optional
        Tokens that must match in the source, 1 to 32.
    n_candidates : int, optional
        Edit hypotheses to draft, up to 3. 1: a chain; more: a tree.
    gamma : int, default 8
    """

    def __init__(
        self, source: Text | None = None, *, start: int = 0, min_match: int = 3, n_candidates: int = 1,
        gamma: int = 8,
    ) -> None:  # fmt: skip
        self.start = check_integer("start", start, 0, MAX_START)
        self.min_match = check_integer("min_match", min_match, 1, MAX_MATCH)
        self.n_candidates = check_integer("n_candidates", n_candidates, 1, 3)
        self.gamma = check_integer("gamma", gamma, 0, MAX_GAMMA)
        self._source = None if source is None else check_text("source", source)

    def describe(self, target: Model) -> Description:
        encoder, n_vocab = target.config.encoder, target.config.n_vocab
        if self._source is None and encoder is not None and encoder.n_vocab != n_vocab:
            why = f"as the encoder of {target.path} has a vocabulary of {encoder.n_vocab}"
            raise InputError.of("source", None, f"one in the decoder's vocabulary of {n_vocab} tokens, {why}")
        source = None if self._source is None else ids_of("source", self._source, target)
        return "input_copy", {"source": source, **self._settings}

    @property
    def _settings(self) -> dict[str, object]:
        return {"start": self.start, "min_match": self.min_match, "n_candidates": self.n_candidates}

    def __repr__(self) -> str:
        source = "the input" if self._source is None else "a given source"
        return _shown(self, f"{source}, start {self.start}")


def _shown(draft: PromptLookup | InputCopy, source: str) -> str:
    how = f"min_match {draft.min_match}, n_candidates {draft.n_candidates}"
    return f"<specdec.drafts.{type(draft).__name__} from {source}, {how}>"


class PredictionCopy(InputCopy):
    """Copies from each sequence's prediction (`_core.Settings.prediction`), if it has one."""

    def __init__(self) -> None:
        super().__init__(min_match=2, gamma=PREDICTION_GAMMA)

    def describe(self, target: Model) -> Description:
        return "prediction_copy", self._settings
