"""Beam search, with or without speculation (appendix A.4 of arXiv 2211.17192)."""

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
    """Find the most probable continuations of a prompt by speculative beam search (appendix A.4).

    In each round the draft runs a beam search of width `draft_width` for `gamma` steps from the current
    hypotheses. The target evaluates all of its nodes, width + draft_width · gamma, in one forward pass. Then
    the target's own steps follow as long as their choices are among these nodes (top_w(M_p) ⊆ top_u(M_q)),
    plus one step. So beams, tokens and scores equal those of the target's plain beam search bit for bit, for
    every draft, draft width and gamma.

    Parameters
    ----------
    target : Model, path or hub name
        The model to search.
    draft : Model, path, hub name or None
        The draft model, with the target's vocabulary. None: plain beam search.
    prompt : str or sequence of int
        One prompt; for an encoder-decoder one source.
    decoder_prompt, n_threads, ignore_eos, progress, prompt_cache
        As in `specdec.generate`.
    width : int, default 4
        Hypotheses kept after each step (w), 1 to 1024; 1 is greedy decoding.
    draft_width : int, optional
        Width of the draft's search (u), `width` to 1024; `width` by default.
    gamma : int, default 1
        Draft steps per round, 0 to 1024; 0 is plain beam search.
    max_new_tokens : int or None, default 100
        Maximum number of new tokens, at least 1; None continues until the context is full. The caches hold
        `width` continuations of this length without a common prefix.
    length_penalty : float, default 0.0
        Beams are ordered by score / len(tokens) ** length_penalty. The search itself uses the score, so this
        reorders the beams but does not change them.
    stop : int, str, or an iterable of these, optional
        Token ids, or names of special tokens, that end a hypothesis. It then keeps its rank among the `width`
        as long as its score does, and is not continued. Includes `Model.eos_ids`, except with `ignore_eos`.

    Returns
    -------
    BeamResult
        Up to `width` beams, best first; fewer only if fewer continuations exist.

    Raises
    ------
    InputError
        If an argument is out of range, or the prompt is empty, has an id outside the vocabulary, or fills the
        context.
    VocabularyMismatchError, CheckpointError, TokenizerError, KeyboardInterrupt
        As `specdec.generate`.

    Notes
    -----
    Scores are sums of ln p at temperature 1. Ties go to the hypothesis whose prefix ranked higher, then
    to the lower token id. The search ends when all `width` hypotheses have ended, or at the length limit.
    A round easily costs more than the steps it saves: the defaults are the smallest that speculate.

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
        raise InputError.of("prompt", prompt, "one prompt", found)
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
        raise InputError.of("draft", draft, "a Model", type_of(draft))
    draft = as_model("draft", draft)
    try:
        check_same_vocabulary(target, draft)
    except VocabularyMismatchError as error:
        needs = "beam_search needs a draft with the target's vocabulary, or None"
        raise VocabularyMismatchError(f"{error} ({needs})") from None
    check_source(draft.config.encoder is not None, target)
    return draft


def _stop_ids(stop: Any, target: Model, eos_ids: Iterable[int]) -> list[int]:
    """Return the stop ids: given ids, special tokens given by name, and end-of-text ids."""
    n_vocab, tokenizer = target.config["n_vocab"], target.tokenizer
    rules = StopRules.parse(stop, n_vocab=n_vocab, tokenizer=tokenizer, eos_ids=eos_ids)
    special = {} if tokenizer is None else special_tokens_of(tokenizer)
    for string in rules.strings:
        if special.get(string) not in rules.ids:
            found = f"the string {shown(string)}, which is not a special token"
            raise InputError.of("stop", string, "ids or names of special tokens", found, "holds")
    return sorted(rules.ids)


def _beam(row: _core.BeamRow, ids: PromptIds, target: Model, limit_reason: FinishReason) -> Beam:
    tokens, decoder = row["tokens"], ids.stream_decoder(target)
    shown_tokens = tokens[:-1] if row["ended"] else tokens
    text = None if decoder is None else decoder.feed(shown_tokens) + decoder.finish()
    return Beam(tokens, text, row["score"], "stop" if row["ended"] else limit_reason)


def _log_penalized(beam: Beam, length_penalty: float) -> float:
    """Return ln(-score / len(tokens) ** length_penalty), which cannot overflow."""
    log_score = math.log(-beam.score) if beam.score < 0.0 else -math.inf
    return log_score - length_penalty * math.log(len(beam.tokens))


@dataclass(frozen=True)
class Beam:
    """One hypothesis of a beam search."""

    tokens: list[int]
    """New token ids; with finish reason "stop" the last one is the stop id."""
    text: str | None
    """Text of the tokens without the stop id. None if the target has no tokenizer."""
    score: float
    """Sum of ln p of the tokens, stop id included, under the target at temperature 1."""
    finish_reason: FinishReason
    """As in `Result`: "stop", "length" or "context"."""


@dataclass(frozen=True)
class BeamRound:
    """Counts of one round, and seconds of the draft's forward passes, the target's, and the rest."""

    n_nodes: int  # rows of the target's forward pass: hypotheses and draft nodes
    n_drafted: int  # draft nodes
    n_draft_calls: int  # forward passes of the draft
    n_levels: int  # search steps: 1 in plain beam search, else up to gamma + 1
    draft_s: float
    verify_s: float
    other_s: float


@dataclass(frozen=True, repr=False)
class BeamTrace(RoundTimes):
    """All `rounds` of a beam search, and the seconds `prefill_s` of prompt processing."""

    rounds: list[BeamRound]
    prefill_s: float

    @property
    def n_levels(self) -> int:
        """Search steps: tokens of the longest hypothesis."""
        return self._sum("n_levels")

    @property
    def n_target_calls(self) -> int:
        """Forward passes of the target after the prompt: one per round."""
        return len(self.rounds)

    @property
    def n_draft_calls(self) -> int:
        """Forward passes of the draft after the prompt."""
        return self._sum("n_draft_calls")

    @property
    def n_nodes(self) -> int:
        """Rows of all target forward passes; A.4's compute budget is w + u · gamma per round."""
        return self._sum("n_nodes")

    @property
    def n_drafted(self) -> int:
        """Number of draft nodes."""
        return self._sum("n_drafted")

    @property
    def levels_per_call(self) -> float:
        """Search steps per forward pass of the target: 1 in plain beam search. NaN without rounds."""
        return self.n_levels / len(self.rounds) if self.rounds else math.nan

    def _sum(self, name: str) -> int:
        return sum(getattr(r, name) for r in self.rounds)

    def to_dict(self) -> dict[str, Any]:
        """Return totals and rounds as plain dicts, lists and numbers, ready for JSON: None for NaN."""
        return record(self) | {name: plain(value) for name, value in self._properties().items()}

    def __repr__(self) -> str:
        return (
            f"BeamTrace(n_levels={self.n_levels}, n_target_calls={self.n_target_calls}, "
            f"n_draft_calls={self.n_draft_calls}, levels_per_call={self.levels_per_call:.2f}, "
            f"rounds_s={self.rounds_s:.3f})"
        )


@dataclass(frozen=True, repr=False)
class BeamResult:
    """Beams found by a search; iterating yields the `beams`, best first.

    `trace` records every round; `prompt_ids`, `source_ids` and `n_cached_tokens` are as in `Result`.
    """

    beams: list[Beam]
    trace: BeamTrace
    prompt_ids: list[int]
    source_ids: list[int] | None = None
    n_cached_tokens: int = 0

    @property
    def best(self) -> Beam:
        """The best beam."""
        return self.beams[0]

    def __iter__(self) -> Iterator[Beam]:
        return iter(self.beams)

    def __len__(self) -> int:
        return len(self.beams)

    def __str__(self) -> str:
        """One line per beam: its score, then its text, or its ids without a tokenizer."""
        return "\n".join(f"{b.score:9.3f}  {b.tokens if b.text is None else b.text!r}" for b in self.beams)

    def __repr__(self) -> str:
        return f"BeamResult(n_beams={len(self.beams)}, best={self.best!r}, trace={self.trace!r})"
