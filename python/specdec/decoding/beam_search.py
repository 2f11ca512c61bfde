"""Beam search, plain or by speculation (appendix A.4 of arXiv 2211.17192)."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any

from specdec import _core
from specdec.checks import check_flag, check_integer, check_number
from specdec.decoding.prompt_cache import PromptCache, check_prompt_cache
from specdec.decoding.prompts import PromptIds, decoder_prompts_of
from specdec.decoding.scheduler import SLICE_S
from specdec.decoding.stopping import StopRules
from specdec.display.rounds import FinishReason
from specdec.drafts import Draft
from specdec.drafts.draft import MAX_GAMMA, check_source
from specdec.errors import InputError, VocabularyMismatchError, number_of, shown, type_of
from specdec.models.loading import as_model
from specdec.models.model import Model, ModelLike, Prompt
from specdec.models.tokenizer import check_same_vocabulary, special_tokens_of
from specdec.progress import counted
from specdec.tables import plain, record
from specdec.threads import check_threads
from specdec.trace import RoundTimes

_MAX_WIDTH = 1024


def beam_search(
    target: ModelLike, draft: ModelLike | None, prompt: Prompt, *, decoder_prompt: Prompt | None = None,
    width: int = 4, draft_width: int | None = None, gamma: int = 1, max_new_tokens: int | None = 100,
    length_penalty: float = 0.0, stop: int | str | Iterable[int | str] | None = None,
    n_threads: int | None = None, ignore_eos: bool = False, progress: bool = False,
    prompt_cache: PromptCache | None = None,
) -> BeamResult:  # fmt: skip
    """The most probable continuations of a prompt that beam search finds, found by speculation (A.4).

    In each round the draft runs beam search of width `draft_width` for `gamma` steps from the present
    hypotheses; the target evaluates them and all that the draft chose, width + draft_width · gamma nodes, in
    one forward pass; then the target's own steps are made for as long as all that they choose was among it
    (top_w(M_p) ⊆ top_u(M_q)), and one step more. So the beams, tokens and scores, are those of plain beam
    search with the target alone, bit for bit, for every draft, draft width and gamma.

    Parameters
    ----------
    target : Model, path or hub name
        The model whose continuations these are.
    draft : Model, path, hub name or None
        The model that drafts, with the target's vocabulary. None: plain beam search.
    prompt : str or sequence of int
        One prompt; for an encoder-decoder one source.
    decoder_prompt, n_threads, ignore_eos, progress, prompt_cache
        As in `specdec.generate`.
    width : int, default 4
        Hypotheses kept after each step (w), 1 to 1024; 1 is greedy decoding.
    draft_width : int, optional
        Width of the draft's search (u), `width` to 1024; by default `width`.
    gamma : int, default 1
        Steps of the draft a round, 0 to 1024; 0 is plain beam search.
    max_new_tokens : int or None, default 100
        New tokens at most, at least 1; None goes on until the context is full. The caches have room for
        `width` continuations of this length that share nothing.
    length_penalty : float, default 0.0
        The beams are ordered by score / len(tokens) ** length_penalty. The search goes by the score alone,
        so this changes the order of what was found, never what is found.
    stop : int, str, or an iterable of these, optional
        A hypothesis ends with one of these tokens, given by id or, if it is special, by name; it keeps its
        rank among the `width` as long as its score does, and is not continued. `Model.eos_ids` are among
        them, except with `ignore_eos`.

    Returns
    -------
    BeamResult
        Up to `width` beams, best first; fewer only where there are fewer continuations of that length.

    Raises
    ------
    InputError
        If an argument is out of range, the prompt is empty, holds an id that the target does not have, or
        fills the context.
    VocabularyMismatchError, CheckpointError, TokenizerError, KeyboardInterrupt
        As `specdec.generate`.

    Notes
    -----
    Scores are sums of ln p at temperature 1. Of equal scores the one whose beginning ranked higher comes
    first, then the one with the lower token id. The search ends when all `width` hypotheses have ended, or at
    the length limit. A round easily costs more than the steps it saves: the defaults are the smallest that
    speculate.

    Examples
    --------
    >>> target, draft = specdec.embedded_pair()
    >>> out = specdec.beam_search(target, draft, "Once upon a time", width=4, max_new_tokens=20)
    >>> out.beams[0].text, out.beams[0].score
    """
    width = check_integer("width", width, 1, _MAX_WIDTH)
    if draft_width is None:
        draft_width = width
    draft_width = check_integer("draft_width", draft_width, width, _MAX_WIDTH)
    gamma = check_integer("gamma", gamma, 0, MAX_GAMMA)
    if max_new_tokens is not None:
        max_new_tokens = check_integer("max_new_tokens", max_new_tokens, 1)
    n_threads = check_threads(n_threads)
    length_penalty = check_number("length_penalty", length_penalty, "a finite number", math.isfinite)
    ignore_eos, progress = check_flag("ignore_eos", ignore_eos), check_flag("progress", progress)
    if type(prompt) in (list, tuple) and prompt and isinstance(prompt[0], str | list | tuple):
        found = f"a list of {number_of(len(prompt), 'prompt')}"
        raise InputError.of("prompt", prompt, "one prompt for a beam search", found)
    check_prompt_cache(prompt_cache)
    target = as_model("target", target)
    draft = None if draft is None else _checked_draft(draft, target)
    stop_ids = _stop_ids(stop, target, () if ignore_eos else target.eos_ids)
    (start,) = decoder_prompts_of(target, decoder_prompt, 1, False)
    ids = PromptIds.of(target, prompt, "prompt", decoder_prompt=start)
    capacity = ids.capacity(target)
    n_steps = capacity if max_new_tokens is None else min(capacity, max_new_tokens)
    limit_reason: FinishReason = "length" if n_steps == max_new_tokens else "context"

    search = _core.BeamSearch(
        target.core, None if draft is None or gamma == 0 else draft.core, ids.ids, width=width,
        draft_width=draft_width, gamma=gamma, max_new_tokens=n_steps, stop_ids=stop_ids, n_threads=n_threads,
        source=ids.source,
    )  # fmt: skip
    of_draft = [] if draft is None or not search.drafts else [draft]
    readers = list({model.core: model for model in [*of_draft, target]}.values())
    rounds: list[BeamRound] = []
    n_cached = 0
    with closing(search), counted(n_steps, "token", progress) as count:
        if prompt_cache is not None:
            for model in readers:
                known = prompt_cache.find(model.core, ids.ids, ids.source_of(model))
                n_cached = 0 if known is None else search.begin_with(known)
        begun = time.perf_counter()
        while search.prefill_slice():
            pass
        prefill_s = time.perf_counter() - begun
        while records := search.round(SLICE_S):  # Python handles signals between the slices
            rounds += [BeamRound(**record) for record in records]
            count(sum(record["n_levels"] for record in records))
        found_rows = search.beams()
        if prompt_cache is not None:
            for model in readers:
                tokens, n_bytes, n_low = search.cached_size(model.core)
                copy = partial(search.cached_text, model.core)
                prompt_cache.keep(model.core, tokens, n_bytes, n_low, copy, ids.source_of(model))

    beams = [_beam(row, ids, target, limit_reason) for row in found_rows]
    if length_penalty:
        beams.sort(key=lambda beam: _log_penalized(beam, length_penalty))
    return BeamResult(beams, BeamTrace(rounds, prefill_s), ids.ids, ids.source, n_cached)


def _checked_draft(draft: ModelLike, target: Model) -> Model:
    if isinstance(draft, Draft):
        raise InputError.of("draft", draft, "a Model for a beam search", type_of(draft))
    draft = as_model("draft", draft)
    try:
        check_same_vocabulary(target, draft)
    except VocabularyMismatchError as error:
        expected = "one of the target's vocabulary, None, or specdec.generate, which takes others"
        raise VocabularyMismatchError(
            f"{error}; a beam search drafts with a model: expected {expected}"
        ) from None
    check_source(draft.config.encoder is not None, target)
    return draft


def _stop_ids(stop: Any, target: Model, eos_ids: Iterable[int]) -> list[int]:
    """The ids that end a hypothesis: given ids, special tokens given by name, and ends of text."""
    n_vocab, tokenizer = target.config["n_vocab"], target.tokenizer
    rules = StopRules.parse(stop, n_vocab=n_vocab, tokenizer=tokenizer, eos_ids=eos_ids)
    special = {} if tokenizer is None else special_tokens_of(tokenizer)
    for string in rules.strings:
        if special.get(string) not in rules.ids:
            found = f"the string {shown(string)}, which is no special token"
            raise InputError.of("stop", string, "ids or names of special tokens", found, "holds")
    return sorted(rules.ids)


def _beam(row: _core.BeamRow, ids: PromptIds, target: Model, limit_reason: FinishReason) -> Beam:
    tokens, decoder = row["tokens"], ids.stream_decoder(target)
    shown_tokens = tokens[:-1] if row["ended"] else tokens
    text = None if decoder is None else decoder.feed(shown_tokens) + decoder.finish()
    return Beam(tokens, text, row["score"], "stop" if row["ended"] else limit_reason)


def _log_penalized(beam: Beam, length_penalty: float) -> float:
    """ln(-score / len(tokens) ** length_penalty), which no penalty makes overflow."""
    log_score = math.log(-beam.score) if beam.score < 0.0 else -math.inf
    return log_score - length_penalty * math.log(len(beam.tokens))


@dataclass(frozen=True)
class Beam:
    """One hypothesis of a beam search."""

    tokens: list[int]
    """New token ids; with finish reason "stop" the last one is the stop id."""
    text: str | None
    """Their text, without the stop id. None if the target has no tokenizer."""
    score: float
    """Sum of ln p of the tokens, the stop id included, under the target at temperature 1."""
    finish_reason: FinishReason
    """As in `Result`: "stop", "length" or "context"."""


@dataclass(frozen=True)
class BeamRound:
    """What one round did, with the seconds of the draft's forward passes, the target's, and the rest."""

    n_nodes: int  # rows of the target's forward pass: the hypotheses and the drafted nodes
    n_drafted: int  # nodes that the draft chose
    n_draft_calls: int  # its forward passes
    n_levels: int  # steps of the search: 1 in plain beam search, up to gamma + 1 by speculation
    draft_s: float
    verify_s: float
    other_s: float


@dataclass(frozen=True, repr=False)
class BeamTrace(RoundTimes):
    """Every round of a beam search, `rounds`, and `prefill_s`, seconds of reading the prompt."""

    rounds: list[BeamRound]
    prefill_s: float

    @property
    def n_levels(self) -> int:
        """Steps of the search: tokens of its longest hypothesis."""
        return self._sum("n_levels")

    @property
    def n_target_calls(self) -> int:
        """Forward passes of the target after the prompt: one a round."""
        return len(self.rounds)

    @property
    def n_draft_calls(self) -> int:
        """Forward passes of the draft after the prompt."""
        return self._sum("n_draft_calls")

    @property
    def n_nodes(self) -> int:
        """Rows of the target's forward passes together; A.4's compute budget is w + u · gamma a round."""
        return self._sum("n_nodes")

    @property
    def n_drafted(self) -> int:
        """Nodes that the draft chose."""
        return self._sum("n_drafted")

    @property
    def levels_per_call(self) -> float:
        """Steps for each forward pass of the target: 1 in plain beam search. NaN if there was no round."""
        return self.n_levels / len(self.rounds) if self.rounds else math.nan

    def _sum(self, name: str) -> int:
        return sum(getattr(r, name) for r in self.rounds)

    def to_dict(self) -> dict[str, Any]:
        """Figures and rounds as plain dicts, lists and numbers, ready for JSON: None for NaN."""
        return record(self) | {name: plain(value) for name, value in self._properties().items()}

    def __repr__(self) -> str:
        return (
            f"BeamTrace(n_levels={self.n_levels}, n_target_calls={self.n_target_calls}, "
            f"n_draft_calls={self.n_draft_calls}, levels_per_call={self.levels_per_call:.2f}, "
            f"rounds_s={self.rounds_s:.3f})"
        )


@dataclass(frozen=True, repr=False)
class BeamResult:
    """What a beam search found; iterating over it gives the `beams`, best first.

    `trace` says what every round did; `prompt_ids`, `source_ids` and `n_cached_tokens` are as in `Result`.
    """

    beams: list[Beam]
    trace: BeamTrace
    prompt_ids: list[int]
    source_ids: list[int] | None = None
    n_cached_tokens: int = 0

    @property
    def best(self) -> Beam:
        """The first of the beams."""
        return self.beams[0]

    def __iter__(self) -> Iterator[Beam]:
        return iter(self.beams)

    def __len__(self) -> int:
        return len(self.beams)

    def __str__(self) -> str:
        """A line a beam: its score, then its text, or its ids where there is no tokenizer."""
        return "\n".join(f"{b.score:9.3f}  {b.tokens if b.text is None else b.text!r}" for b in self.beams)

    def __repr__(self) -> str:
        return f"BeamResult(n_beams={len(self.beams)}, best={self.best!r}, trace={self.trace!r})"
