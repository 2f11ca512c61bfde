"""`recommend_draft`: which draft for a target, by which way, what it gives and what it takes."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeAlias

from specdec.analysis.arguments import (
    check_gammas,
    check_names,
    check_say,
    default_prompts,
    name_of,
    short_names,
    split,
    work_of,
)
from specdec.analysis.compare import compare_ways
from specdec.analysis.comparison import Comparison, ComparisonRow
from specdec.analysis.draft_memory import cache_bytes_of, weight_bytes_of
from specdec.analysis.draft_recommendation import DraftFit, DraftRecommendation
from specdec.analysis.known_models import known_models, vocabulary_of
from specdec.analysis.running import EQUALS_PLAIN
from specdec.checks import check_choice, check_integer, check_path
from specdec.drafts import Draft, ModelDraft, named
from specdec.drafts.draft import check_source
from specdec.drafts.model_draft import DraftLike, as_draft
from specdec.drafts.opening import EXIT_NAME, load
from specdec.drafts.python_draft import Drafter
from specdec.drafts.translation import translation_of
from specdec.errors import (
    InputError,
    SpecdecError,
    UnsupportedModelError,
    VocabularyMismatchError,
    shown,
)
from specdec.models.loading import as_model
from specdec.models.model import Model, ModelLike, Prompt
from specdec.models.number_formats import DTYPES, Dtype
from specdec.models.tokenizer import ByteTokenizer
from specdec.threads import check_threads
from specdec.time_limit import TimeLimit
from specdec.verification.rules import DECODING_RULES, DecodingRule, check_rule
from specdec.verification.sampling import Sampling

__all__ = ["recommend_draft"]

WITHOUT_MODEL: Final = ("copy", "input", "suffix", "recycling", "online-ngram", "lookahead")
"""Drafts that need nothing but the target, by name."""
_GAMMAS: Final = (2, 4, 8)
_HOPELESS: Final = 0.5  # speed-up in the first turn, below which there is no other
_REFUSALS: Final = (VocabularyMismatchError, InputError, UnsupportedModelError)
Openable: TypeAlias = DraftLike | Callable[[], DraftLike]
"""A draft, or a function that opens one."""


def recommend_draft(
    target: ModelLike,
    drafts: DraftLike | Sequence[DraftLike] | Mapping[str, Openable] | None = None,
    prompts: Prompt | Sequence[Prompt] | None = None,
    *,
    gammas: Sequence[int] | None = None,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    n_tokens: int = 120,
    repeats: int = 3,
    verify: DecodingRule = "rejection",
    draft_dtype: Dtype | None = None,
    seed: int = 0,
    n_threads: int | None = None,
    target_name: str | None = None,
    seconds: float | None = None,
    progress: bool = False,
    say: Callable[[str], object] = lambda line: None,
) -> DraftRecommendation:
    """Say which drafts fit a target, by which way, what they give on some prompts, and which to take.

    Drafts are measured one after the other, each with some gammas in turns with plain decoding, as in
    `specdec.compare`. A gamma with which decoding is less than half as fast in the first turn has no other. A
    model with another vocabulary is measured by each way that it can take, by the intersection of the
    vocabularies and through text (`drafts.ModelDraft`). One that cannot draft is refused with the reason.

    Without drafts those that need no model are measured: copies of the text, of the prompt, of earlier texts,
    tokens after tokens, n-grams that are counted, lookahead, an exit of the target; and heads where the
    target has some.

    Parameters
    ----------
    target : Model, path or hub name
    drafts : draft, list of drafts, or dict of drafts by name, optional
        A draft is a Model, a Draft, an object with ``propose``, or a text: a name as `drafts.named` takes it,
        a path or a hub name. In a dict also a function that opens one, so that a draft which does not fit is
        refused beside the others, with the reason that the function raises.
    prompts : str, sequence of int, or a list of these, optional
        What is continued: give what resembles your use; for an encoder-decoder sources. None: some beginnings
        of English sentences, for a target with a tokenizer.
    gammas : sequence of int, optional
        Guesses of a round at most, each 1 to 1024; None: 2, 4, 8, and as many as a draft asks for by itself.
    temperature, top_k, top_p, min_p
        As in `Sampling`.
    n_tokens : int, default 120
        New tokens of each draft in each turn, with each gamma: each prompt its share.
    repeats : int, default 3
        Turns, of which the median counts; the least and the most are shown.
    verify : {"rejection", "block", "coupled", "k-sequential", "classical"}
        As in `specdec.generate`.
    draft_dtype : {None, "f32", "bf16", "int8", "int4"}
        The number format of drafts that are given as texts; None: that of their files.
    seed : int, default 0
    n_threads : int, optional
        None: :func:`specdec.threads.default_threads`.
    target_name : str, optional
        What the target is called; None: the name of its folder.
    seconds : float, optional
        How long the measuring may take, shared by the drafts; a text that has begun is finished. A draft
        whose share is over has fewer turns, and drafts that are not reached are left out. None: no limit.
    progress : bool, default False
        Show a progress bar for each draft (needs tqdm).
    say : callable, optional
        Called with a line for each row as soon as it is measured.

    Returns
    -------
    DraftRecommendation
        ``print`` shows its tables; ``found.choice`` and ``found.gamma`` are what to take. Ctrl-C ends the
        measuring early, and what was measured until then is returned (``found.stopped`` says so); before the
        first draft is measured it raises KeyboardInterrupt.

    Raises
    ------
    VocabularyMismatchError, InputError, UnsupportedModelError
        None of the drafts can draft for the target: why, and what could. Or an argument is out of range.
    CheckpointError, TokenizerError
        If a path cannot be loaded.

    Examples
    --------
    >>> target, draft = specdec.embedded_pair()
    >>> found = specdec.recommend_draft(target, {"small": draft, "copies": "copy"}, ["Once upon a time"])
    >>> print(found)
    >>> out = specdec.generate(target, found.choice, "Once upon a time", gamma=found.gamma)
    """
    target = as_model("target", target)
    check_choice("draft_dtype", draft_dtype, DTYPES, optional=True)
    sampling = Sampling(temperature, top_k, top_p, min_p)
    chosen = None if gammas is None else check_gammas(gammas)
    n_tokens, repeats = check_integer("n_tokens", n_tokens, 1), check_integer("repeats", repeats, 1)
    check_rule("verify", verify, 1.0, DECODING_RULES)
    target_name = name_of(target, target_name, "target_name")
    beginnings = split(target, default_prompts(target) if prompts is None else prompts)
    seed, threads = check_integer("seed", seed, 0, 2**64 - 1), check_threads(n_threads)
    check_say(say)
    limit = TimeLimit.of(seconds)
    work = work_of(target, beginnings, -(-n_tokens // len(beginnings)), n_tokens)

    fits: list[DraftFit] = []
    ways: dict[str, Draft] = {}
    errors: list[SpecdecError] = []
    for name, given in (_by_name(drafts) or without_model(target)).items():
        try:
            fit, of_draft = _fit(target, name, _opened(target, given, draft_dtype))
        except _REFUSALS as error:
            errors.append(error)
            fit, of_draft = DraftFit(name, {}, refusal=f"{error}"), {}
        if taken := ways.keys() & of_draft.keys():
            raise InputError(f"drafts has the names {shown(sorted(taken))} twice; expected different ones")
        fits.append(fit)
        ways |= of_draft
    if not ways:
        raise type(errors[0])(f"{'; '.join(map(str, errors))}; what could draft: {_what_could(target)}")
    known = vocabulary_of(target)
    settings = {
        "n_tokens": n_tokens, "repeats": repeats, "verify": verify, "top_k": top_k, "top_p": top_p,
        "min_p": min_p, "seed": seed, "n_threads": threads,
    }  # fmt: skip
    found: list[Comparison] = []
    try:
        for (name, draft), share in limit.shares(list(ways.items())):
            found.append(
                compare_ways(
                    target, {name: draft}, [(name, gamma) for gamma in _gammas(draft, chosen)], work,
                    samplings=[sampling], repeats=repeats, verify=verify, timing=True, seed=seed,
                    n_threads=threads, target_name=target_name, prompts=beginnings[: len(work)],
                    progress=progress, settings=settings, limit=share,
                    at_least=_HOPELESS,
                )
            )  # fmt: skip
            for row in found[-1].rows:
                say(_in_words(row))
        reason = limit.reason
    except KeyboardInterrupt:
        if not found:
            raise
        reason = "interrupted"
    left = list(ways)[len(found) :]
    return DraftRecommendation(
        target=target_name,
        fits=tuple(fits),
        comparison=_together(found),
        vocabulary="" if known is None else known.name,
        known=known_models(target),
        drafts=ways,
        stopped=f"{reason}; not measured: {', '.join(left)}" if left else "",
    )


def _in_words(row: ComparisonRow) -> str:
    """A row that is measured, as a line."""
    assert row.speedup is not None
    name = f"{row.draft} with gamma {row.gamma}"
    if not row.drafted_per_call:
        return f"{name}: {EQUALS_PLAIN}"
    return (
        f"{name}: {row.speedup.text()} ({row.speedup.low:.2f} to {row.speedup.high:.2f}), "
        f"{row.tokens_per_call:.2f} tokens a run"
    )


def _together(found: Sequence[Comparison]) -> Comparison:
    """Comparisons of one target on the same prompts as one."""
    return replace(
        found[0],
        rows=tuple(row for one in found for row in one.rows),
        plain_tokens_per_s={
            temperature: tuple(rate for one in found for rate in one.plain_tokens_per_s[temperature])
            for temperature in found[0].plain_tokens_per_s
        },
    )


def without_model(target: Model) -> dict[str, Openable]:
    """What could draft for a target without another model, by name."""
    found: dict[str, Openable] = {name: partial(named, name, target) for name in WITHOUT_MODEL}
    n_layer = target.config.n_layer
    if (target.path / EXIT_NAME).is_file():
        found["exit"] = partial(load, target.path, target)
    elif n_layer > 1:
        found[f"exit:{n_layer // 2}"] = partial(named, f"exit:{n_layer // 2}", target)
    for name in ("heads", "mtp"):  # where the target has some
        try:
            found[name] = named(name, target)
        except SpecdecError:
            continue
    return found


def _opened(target: Model, given: Any, dtype: Dtype | None) -> DraftLike:
    """A draft that is given as a text, or by a function, is opened."""
    if isinstance(given, str | os.PathLike):
        return named(_text(given), target, dtype=dtype)
    if callable(given) and not isinstance(given, Model | Draft | Drafter):
        given = given()
    draft: DraftLike = given
    return draft


def _text(given: str | os.PathLike[str]) -> str:
    return given if isinstance(given, str) else str(check_path("drafts", given))


def _by_name(given: Any) -> dict[str, Any]:
    """The argument `drafts` by names."""
    if given is None:
        return {}
    if isinstance(given, Mapping):
        check_names("drafts", given, "drafts by their names")
        return dict(given)
    several = list(given) if isinstance(given, list | tuple) else [given]
    names = [_text(one) if isinstance(one, str | os.PathLike) else name_of(one) for one in several]
    names = short_names(names)
    unique = [name if names.count(name) == 1 else f"{name} ({i})" for i, name in enumerate(names)]
    return dict(zip(unique, several, strict=True))


def _fit(target: Model, name: str, given: DraftLike) -> tuple[DraftFit, dict[str, Draft]]:
    """How a draft fits, and its ways by their names in the comparison.

    Raises
    ------
    VocabularyMismatchError, InputError
        It does not.
    """
    draft = as_draft(target, given)
    check_source(draft.reads_source, target)
    ways: dict[str, Draft] = {"its own": draft}
    n_shared = n_vocab = None
    if isinstance(draft, ModelDraft):
        n_vocab = draft.model.config.n_vocab
        ways = {"same vocabulary": draft}
        if draft.translates(target):
            n_shared = translation_of(target, draft.model).n_shared
            ways = _translating(draft, n_shared)
    names = {way: name if len(ways) == 1 else f"{name}, {way}" for way in ways}
    fit = DraftFit(
        name, names, n_shared=n_shared, n_vocab=n_vocab, weight_bytes=weight_bytes_of(draft),
        cache_bytes=cache_bytes_of(draft),
    )  # fmt: skip
    return fit, {names[way]: one for way, one in ways.items()}


def _translating(draft: ModelDraft, n_shared: int) -> dict[str, Draft]:
    """The ways of a model with another vocabulary."""
    if draft.vocabulary != "auto":
        return {draft.vocabulary: draft}
    if draft.tree is not None:
        return {"intersection": draft}
    ways: dict[str, Draft] = {}
    if n_shared:
        ways["intersection"] = ModelDraft(draft.model, gamma=draft.gamma, vocabulary="intersection")
    ways["text"] = ModelDraft(draft.model, gamma=draft.gamma, vocabulary="text")
    return ways


def _gammas(draft: Draft, chosen: Sequence[int] | None) -> list[int]:
    return list(chosen) if chosen else sorted({*_GAMMAS, max(draft.gamma, 1)})


def _what_could(target: Model) -> str:
    """What a target can be drafted for by, in words."""
    known = known_models(target)
    models = f" (known by name: {', '.join(model.name for model in known)})" if known else ""
    found = [f"a model with the target's vocabulary{models}"]
    if isinstance(target.tokenizer, ByteTokenizer):
        found.append("one with another vocabulary and a tokenizer whose tokens are known as bytes")
    return f"{', '.join(found)}, or what needs no model: {', '.join(WITHOUT_MODEL)}"
