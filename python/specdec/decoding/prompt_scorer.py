"""The log-probabilities of prompts that requests of an engine ask for, in a thread of their own."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from specdec.decoding.generation import Generation
from specdec.models.model import Model
from specdec.models.score import score_and_keep, score_of_nothing

__all__ = ["PromptScorer"]


class PromptScorer:
    """Scores prompts, one after the other; running texts go on meanwhile.

    Parameters
    ----------
    target : Model
    n_threads : int
    """

    def __init__(self, target: Model, n_threads: int) -> None:
        self._target, self._n_threads = target, n_threads
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
            Gets the score as `of_prompt`, and what was read.
        is_wanted : function
            Is asked before the prompt is scored.
        done : function
            Is called when the request has its score, with None, or with an error.
        """
        if len(generation.prompt_ids) < 2:
            generation.of_prompt = score_of_nothing(_n_top(generation))
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
        beginning = generation.samples[0].beginning
        error: BaseException | None = None
        try:
            if is_wanted():
                generation.of_prompt, generation.read = score_and_keep(
                    generation.request.model(0),
                    beginning.ids,
                    beginning.source_of(self._target),
                    n_top=_n_top(generation),
                    n_threads=self._n_threads,
                )
        except BaseException as found:
            error = found
        done(error)

    def stop(self, *, wait: bool = False) -> None:
        """End the thread."""
        if self._thread is not None:
            self._thread.shutdown(wait=wait)


def _n_top(generation: Generation) -> int:
    """Most probable tokens that are wanted beside each token of a prompt."""
    return generation.request.options.prompt_logprobs or 0
