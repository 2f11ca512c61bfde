"""The log-probabilities of prompts that requests of an engine ask for, in a thread of their own."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from specdec.decoding.generation import Generation
from specdec.decoding.sequence import score_prompts

__all__ = ["PromptScorer"]


class PromptScorer:
    """Scores prompts, one after the other; running texts go on meanwhile."""

    def __init__(self) -> None:
        self._thread: ThreadPoolExecutor | None = None

    def submit(
        self,
        generation: Generation,
        is_wanted: Callable[[], bool],
        done: Callable[[BaseException | None], None],
    ) -> None:
        """Have the prompt of a request scored.

        Parameters
        ----------
        generation : Generation
            Its samples get the score, and what was read.
        is_wanted : function
            Is asked before the prompt is scored.
        done : function
            Is called when the request has its score, with None, or with an error.
        """
        if len(generation.prompt_ids) < 2:  # nothing is computed
            score_prompts(generation.samples)
            done(None)
            return
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "specdec-scores")
        self._thread.submit(self._score, generation, is_wanted, done)

    def _score(
        self,
        generation: Generation,
        is_wanted: Callable[[], bool],
        done: Callable[[BaseException | None], None],
    ) -> None:
        error: BaseException | None = None
        try:
            if is_wanted():
                score_prompts(generation.samples)
        except BaseException as found:
            error = found
        done(error)

    def stop(self, *, wait: bool = False) -> None:
        """End the thread."""
        if self._thread is not None:
            self._thread.shutdown(wait=wait)
