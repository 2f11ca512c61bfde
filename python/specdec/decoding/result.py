"""What a run gives back."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specdec.decoding.stopping import FinishReason
from specdec.display.rounds import html, terminal
from specdec.models.tokenizer import Tokenizer
from specdec.trace import Trace

__all__ = ["Result"]


@dataclass(frozen=True, eq=False, repr=False)
class Result:
    """The new text and tokens of one sequence, and how they came about.

    `print(result)` draws Figure 1 of the paper, a line a round: accepted drafts green, the target's own
    tokens blue and underlined, rejected drafts red and struck out; a notebook shows the same. Colours are
    used when standard output is a terminal and the environment variable NO_COLOR is not set; otherwise marks
    stand in for them.

    Attributes
    ----------
    text : str or None
        The new text, without the prompt, up to the stop string or stop id that ended it. None if the target
        has no tokenizer.
    tokens : list of int
        The new token ids. With a stop id that id is the last one; with a stop string the last one is the
        token that completed it, so that `text` can be shorter than the text of `tokens`.
    finish_reason : str
        "stop" where a stop string or stop id (the end-of-text token is one) was met, "length" where
        `max_new_tokens` was reached, "context" where the model's context is full. "error" in the `result` of
        a `NotFiniteError`, where a text had not come to its end.
    stop : str, int or None
        The stop string or stop id that was met.
    trace : Trace
        What every round did, and the figures that follow.
    prompt_ids : list of int
        The prompt as the models saw it. In an encoder-decoder: the ids that each of its texts begins with,
        then those of the `decoder_prompt`.
    seed : tuple of (int, int)
        The key (seed, sequence) of the random numbers: `generate(..., prompt, seed=[result.seed])` gives this
        sequence again, alone or in any batch.
    logits : ndarray of shape (len(tokens), n_vocab), float32, or None
        The target's logits that each new token was chosen from; None unless asked for.
    tokenizer : Tokenizer or None
        The target's, for the figure.
    n_cached_tokens : int
        Tokens of the prompt that were copied from the `prompt_cache`, not computed.
    source_ids : list of int or None
        What the encoder of an encoder-decoder read; None for other targets.
    source_text : str or None
        Its text, None without a tokenizer of sources.
    """

    text: str | None
    tokens: list[int]
    finish_reason: FinishReason
    stop: str | int | None
    trace: Trace
    prompt_ids: list[int]
    seed: tuple[int, int]
    logits: NDArray[np.float32] | None = None
    tokenizer: Tokenizer | None = None
    n_cached_tokens: int = 0
    source_ids: list[int] | None = None
    source_text: str | None = None

    def __str__(self) -> str:
        return terminal(self)

    def _repr_html_(self) -> str:
        return html(self)

    def __repr__(self) -> str:
        shown = (
            "None" if self.text is None else repr(self.text if len(self.text) <= 40 else self.text[:39] + "…")
        )
        rate = f", acceptance_rate={self.trace.acceptance_rate:.3f}" if self.trace.n_drafted else ""
        return (
            f"Result(text={shown}, n_tokens={len(self.tokens)}, finish_reason={self.finish_reason!r}, "
            f"n_calls={self.trace.n_calls}{rate})"
        )
