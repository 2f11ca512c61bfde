"""`recommend_draft`: which draft for a target, by which way, what it gives and what it takes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from specdec import _core
from specdec.analysis import arguments
from specdec.analysis.arguments import Setup
from specdec.analysis.compare import Comparison, compare_drafts
from specdec.analysis.experiment import EQUALS_PLAIN, ExperimentRow
from specdec.checks import check_choice, check_integer, check_path
from specdec.decoding.options import DecodingOptions, SampleOptions
from specdec.drafts import Draft, Eagle, Ensemble, ModelDraft, SuffixDecoding, named
from specdec.drafts.draft import check_source
from specdec.drafts.model_draft import DraftLike, as_draft, translation_of
from specdec.drafts.opening import load
from specdec.drafts.python_draft import Drafter
from specdec.drafts.self_drafts import EXIT_NAME
from specdec.errors import InputError, SpecdecError, UnsupportedModelError, VocabularyMismatchError, shown
from specdec.models.model import Model, ModelLike, Prompt
from specdec.models.model_config import ModelConfig
from specdec.models.number_formats import DTYPES, Dtype
from specdec.models.tokenizer import ByteTokenizer
from specdec.settings_table import Unpack
from specdec.tables import Column, Table, Tabular
from specdec.time_limit import TimeLimit

WITHOUT_MODEL: Final = (
    "prompt-lookup", "input-copy", "suffix-decoding", "token-recycling", "online-ngram", "lookahead"
)  # fmt: skip
"""Drafts that need nothing but the target, by name."""
_GAMMAS: Final = (2, 4, 8)
_HOPELESS: Final = 0.5  # speed-up in the first turn, below which there is no other
_REFUSALS: Final = (VocabularyMismatchError, InputError, UnsupportedModelError)
_OWNS: Final = {"gamma": "gammas", "max_new_tokens": "n_tokens"}
_PANEL: Final = 32  # columns of values that lie together (csrc/model/cache/cache.h)
Openable: TypeAlias = DraftLike | Callable[[], DraftLike]
"""A draft, or a function that opens one."""


@dataclass(frozen=True)
class DraftFit:
    """Whether a draft can draft for a target; `refusal` says why not.

    `ways` has the name in the comparison of each way that was measured: "same vocabulary", "intersection",
    "text" (`drafts.ModelDraft`), or "its own" of what is no model, of which `n_vocab` is None.
    """

    draft: str
    methods: dict[str, str]
    n_shared: int | None = None  # tokens of both vocabularies; None where they are the same
    n_vocab: int | None = None
    weight_bytes: int = 0
    cache_bytes: int = 0  # of keys and values for each token of a text
    refusal: str = ""

    @property
    def overlap(self) -> float | None:
        """Share of the draft's tokens that the target has too; None where the vocabularies are the same."""
        return None if self.n_shared is None or not self.n_vocab else self.n_shared / self.n_vocab


@dataclass(frozen=True, eq=False, repr=False)
class DraftRecommendation(Tabular):
    """What `specdec.recommend_draft` found; ``print`` shows its tables, a notebook too.

    `fits` has one for each draft that was given. `comparison` is what those that fit gave, by running them in
    turns, and `drafts` has these by their names in it. `vocabulary` says which public models have the
    target's vocabulary, if known, and `known` are small ones of these, none of which was downloaded or tried.
    `stopped` says why the measuring ended early, and what was not measured; empty if it did not.
    """

    target: str
    fits: tuple[DraftFit, ...]
    comparison: Comparison
    vocabulary: str
    known: tuple[KnownModel, ...]
    drafts: dict[str, Any]
    stopped: str = ""

    _not_in_dict = ("drafts",)

    @property
    def best(self) -> ExperimentRow | None:
        """The fastest row whose speed-up is not invalid; None: plain decoding is."""
        return self.comparison.best(self.comparison.temperatures[0])

    @property
    def gamma(self) -> int:
        """The gamma of `best`; 0: plain decoding."""
        return 0 if self.best is None else self.best.gamma

    @property
    def choice(self) -> Any:
        """The draft of `best`, as `specdec.generate` takes it; None: plain decoding."""
        return None if self.best is None else self.drafts[self.best.draft]

    @property
    def is_certain(self) -> bool:
        """Whether `best` had several turns, each of them faster than plain decoding."""
        return self.best is not None and len(self.best.timed.ratios) > 1 and self.best.timed.low > 1.0

    @property
    def reason(self) -> str:
        """Why that is the choice, in a sentence."""
        ranked = self.comparison.ranked(self.comparison.temperatures[0])
        if self.best is None:
            if ranked:
                return f"no draft beats plain decoding; the fastest, {_figures(ranked[0])}"
            if all(row.is_plain for row in self.comparison.rows):
                return "no draft found anything to draft on these prompts"
            return "no speed-up is valid: the machine was too busy to measure"
        found = _figures(self.best)
        if not self.is_certain:
            why = "it had a single turn" if self.best.timed.low > 1.0 else "some turns were slower"
            found += f"; {why}: measure again with more repeats, and time"
        others = [row for row in ranked if row.draft != self.best.draft]
        return found + (f"; next is {_figures(others[0])}" if others else "")

    def tables(self) -> list[Table]:
        """What fits, by which way; what runs gave (more in `comparison`); known models; the choice."""
        refused = "".join(f"\n{fit.draft}: {fit.refusal}" for fit in self.fits if fit.refusal)

        def in_common(fit: DraftFit) -> str:
            n_shared = fit.n_vocab if fit.n_shared is None else fit.n_shared
            return "–" if fit.n_vocab is None else f"{n_shared} of {fit.n_vocab}"

        columns: list[Column] = [
            ("draft", lambda fit: fit.draft), ("fits by", lambda fit: " and ".join(fit.methods) or "refused"),
            ("tokens in common", in_common), ("weights", lambda fit: _size(fit.weight_bytes)),
            ("cache of 1000 tokens", lambda fit: _size(1000 * fit.cache_bytes)),
        ]  # fmt: skip
        title = f"Drafts for {self.target}: do they fit?{refused}"
        found = [Table.of(title, self.fits, columns), self.comparison.summary()]
        if self.vocabulary:
            title = (
                f"Small public models with the vocabulary of {self.vocabulary} (names only: none of them was "
                "downloaded or tried; specdec recommend TARGET NAME does both)"
            )
            rows = [(model.name, f"{model.n_parameters / 1e6:.0f} M") for model in self.known]
            rows = rows or [("none that is half as large as the target", "")]
            found.append(Table(title, ("model", "parameters"), rows))
        name = "plain decoding" if self.best is None else self.best.draft
        stopped = f"\nmeasuring ended early: {self.stopped}" if self.stopped else ""
        title = f"Recommended: {self.reason}{stopped}"
        return [*found, Table(title, ("draft", "gamma"), [(name, str(self.gamma))])]

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain dicts, lists and numbers, ready for JSON; None where there is no number."""
        best = None if self.best is None else self.best.draft
        choice = {"best": best, "gamma": self.gamma, "is_certain": self.is_certain, "reason": self.reason}
        return super().to_dict() | choice

    def to_pandas(self) -> Any:
        """The rows of the comparison as a `pandas.DataFrame`, see `Comparison.to_pandas`."""
        return self.comparison.to_pandas()

    def __repr__(self) -> str:
        best = "plain decoding" if self.best is None else f"{self.best.draft} with gamma {self.gamma}"
        return f"<specdec.DraftRecommendation of {len(self.fits)} drafts for {self.target!r}: {best}>"


def _figures(row: ExperimentRow) -> str:
    """A row in words."""
    speed = f"{row.timed.median:.2f} times as fast as plain decoding ({row.timed.interval})"
    return f"{row.draft} with gamma {row.gamma}: {speed}, {row.tokens_per_call:.2f} tokens a run"


def _size(n_bytes: float) -> str:
    """Bytes in words."""
    units = iter(("B", "kB", "MB", "GB"))
    while (unit := next(units)) != "GB" and n_bytes >= 999.5:
        n_bytes /= 1000
    return f"{n_bytes:.3g} {unit}"


def recommend_draft(
    target: ModelLike | dict[str, ModelLike],
    drafts: DraftLike | Sequence[DraftLike] | Mapping[str, Openable] | None = None,
    prompts: Prompt | Sequence[Prompt] | None = None,
    *,
    gammas: Sequence[int] | None = None,
    n_tokens: int = 120,
    repeats: int = 3,
    draft_dtype: Dtype | None = None,
    seconds: float | None = None,
    say: Callable[[str], object] = lambda line: None,
    options: DecodingOptions | None = None,
    **changes: Unpack[SampleOptions],
) -> DraftRecommendation:
    """Say which drafts fit a target, by which way, what they give on some prompts, and which to take.

    Drafts are measured one after the other, each with some gammas in turns with plain decoding, as in
    `specdec.compare`; a gamma that is less than half as fast in the first turn has no other. A model with
    another vocabulary is measured by each way that it can take: the intersection of the vocabularies, and
    text (`drafts.ModelDraft`). One that cannot draft is refused with the reason. Without drafts those that
    need no model are measured: copies of the text, of the prompt, of earlier texts, tokens after tokens,
    n-grams that are counted, lookahead, an exit of the target, and the MTP head of a target that has one.

    Parameters
    ----------
    target, prompts
        As of `specdec.measure`.
    drafts : draft, list of drafts, or dict of drafts by name, optional
        A draft is a Model, a Draft, an object with ``propose``, or a text: a name as `drafts.named` takes it,
        a path or a hub name. In a dict also a function that opens one, so that a draft which does not fit is
        refused next to the others, with the reason that the function raises.
    gammas : sequence of int, optional
        Drafted tokens of a round at most, each 1 to 1024; None: 2, 4, 8, and as many as a draft asks for.
    n_tokens, repeats : int, default 120 and 3
        New tokens of each draft in each turn, with each gamma, each prompt its share; and turns, of which the
        median counts.
    draft_dtype : {None, "f32", "bf16", "int8", "int4"}
        The number format of drafts that are given as texts; None: that of their files.
    seconds, say : float, callable, optional
        As of `specdec.measure`; the drafts share the time. A draft whose share is over has fewer turns, and
        drafts that are not reached are left out.
    options : DecodingOptions, optional
        Of the runs; the default of `seed` is 0.

    Returns
    -------
    DraftRecommendation
        ``print`` shows its tables; ``found.choice`` and ``found.gamma`` are what to take. Ctrl-C ends the
        measuring early, and what was measured until then is returned (``found.stopped`` says so); before the
        first draft is measured it raises KeyboardInterrupt.

    Raises
    ------
    InputError, VocabularyMismatchError, CheckpointError, TokenizerError
        As `specdec.measure`, and where none of the drafts can draft for the target: why, and what could.

    Examples
    --------
    >>> target, draft = specdec.embedded_pair()
    >>> found = specdec.recommend_draft(
    ...     target, {"small": draft, "copies": "prompt-lookup"}, ["Once upon a time"]
    ... )
    >>> print(found)
    >>> out = specdec.generate(target, found.choice, "Once upon a time", gamma=found.gamma)
    """
    decoding = arguments.decoding_options(options, changes, _OWNS)
    check_choice("draft_dtype", draft_dtype, DTYPES, optional=True)
    chosen = None if gammas is None else arguments.check_gammas(gammas)
    n_tokens, repeats = check_integer("n_tokens", n_tokens, 1), check_integer("repeats", repeats, 1)
    limit = TimeLimit.of(seconds)
    arguments.check_say(say)
    setup = Setup.of(target, decoding, prompts)
    fits, usable = _fitting(setup.target, drafts, draft_dtype)
    temperature, found = decoding.temperature, list[Comparison]()
    try:
        for (name, draft), share in limit.shares(list(usable.items())):
            gammas_of = chosen or sorted({*_GAMMAS, max(draft.gamma, 1)})
            of_draft = {(name, gamma): (draft, gamma) for gamma in gammas_of}
            how: dict[str, Any] = {"repeats": repeats, "limit": share, "at_least": _HOPELESS}
            found.append(compare_drafts(setup, of_draft, n_tokens, temperatures=[temperature], **how))
            for row in found[-1].rows:
                say(_in_words(row))
        reason = limit.reason
    except KeyboardInterrupt:
        if not found:
            raise
        reason = "interrupted"
    left = list(usable)[len(found) :]
    rates = [rate for one in found for rate in one.plain_tokens_per_s[temperature]]
    rows = tuple(row for one in found for row in one.rows)
    known = vocabulary_of(setup.target)
    return DraftRecommendation(
        target=setup.name, fits=fits,
        comparison=replace(found[0], rows=rows, plain_tokens_per_s={temperature: tuple(rates)}),
        vocabulary="" if known is None else known.name, known=known_models(setup.target), drafts=usable,
        stopped=f"{reason}; not measured: {', '.join(left)}" if left else "",
    )  # fmt: skip


def _fitting(
    target: Model, drafts: Any, dtype: Dtype | None
) -> tuple[tuple[DraftFit, ...], dict[str, Draft]]:
    """How each draft fits, and the ways of those that do, by name; refused if none does."""
    fits: list[DraftFit] = []
    usable: dict[str, Draft] = {}
    errors: list[SpecdecError] = []
    for name, given in (_by_name(drafts) or without_model(target)).items():
        try:
            fit, of_draft = _fit(target, name, _opened(target, given, dtype))
        except _REFUSALS as error:
            errors.append(error)
            fit, of_draft = DraftFit(name, {}, refusal=f"{error}"), {}
        if taken := usable.keys() & of_draft.keys():
            raise InputError(f"drafts has the names {shown(sorted(taken))} twice; expected different ones")
        fits.append(fit)
        usable |= of_draft
    if not usable:
        raise type(errors[0])(f"{'; '.join(map(str, errors))}; what could draft: {_what_could(target)}")
    return tuple(fits), usable


def _in_words(row: ExperimentRow) -> str:
    """A row that is measured, as a line."""
    speed = f"{row.timed.text()} ({row.timed.interval}), {row.tokens_per_call:.2f} tokens a run"
    return f"{row.draft} with gamma {row.gamma}: {EQUALS_PLAIN if row.is_plain else speed}"


def without_model(target: Model) -> dict[str, Openable]:
    """What could draft for a target without another model, by name."""
    found: dict[str, Openable] = {name: partial(named, name, target) for name in WITHOUT_MODEL}
    n_layer = target.config.n_layer
    if (target.path / EXIT_NAME).is_file():
        found["early-exit"] = partial(load, target.path, target)
    elif n_layer > 1:
        found[f"early-exit:{n_layer // 2}"] = partial(named, f"early-exit:{n_layer // 2}", target)
    with suppress(SpecdecError):  # a target without a head for it
        found["mtp"] = named("mtp", target)
    return found


def _opened(target: Model, given: Any, dtype: Dtype | None) -> DraftLike:
    """A draft that is given as a text, or by a function, is opened."""
    if isinstance(given, str | os.PathLike):
        text = given if isinstance(given, str) else str(check_path("drafts", given))
        return named(text, target, dtype=dtype)
    if callable(given) and not isinstance(given, Model | Draft | Drafter):
        given = given()
    draft: DraftLike = given
    return draft


def _by_name(given: Any) -> dict[str, Any]:
    """The argument `drafts` by names."""
    if isinstance(given, Mapping):
        arguments.check_names("drafts", given, "drafts by their names")
        return dict(given)
    several = [] if given is None else list(given) if isinstance(given, list | tuple) else [given]
    texts = [str(check_path("drafts", one)) if isinstance(one, os.PathLike) else one for one in several]
    names = arguments.short_names([one if isinstance(one, str) else arguments.name_of(one) for one in texts])
    return dict(zip(arguments.unique(names), several, strict=True))


def _fit(target: Model, name: str, given: DraftLike) -> tuple[DraftFit, dict[str, Draft]]:
    """How a draft fits, and its ways by their names in the comparison; refused if it does not."""
    draft = as_draft(target, given)
    check_source(draft.reads_source, target)
    by_method: dict[str, Draft] = {"its own": draft}
    n_shared = n_vocab = None
    if isinstance(draft, ModelDraft):
        n_vocab = draft.model.config.n_vocab
        by_method = {"same vocabulary": draft}
        if draft.translates(target):
            n_shared = translation_of(target, draft.model).n_shared
            by_method = _translating(draft, n_shared)
    names = {method: name if len(by_method) == 1 else f"{name}, {method}" for method in by_method}
    fit = DraftFit(name, names, n_shared, n_vocab, *memory_of(draft))
    return fit, {names[method]: one for method, one in by_method.items()}


def _translating(draft: ModelDraft, n_shared: int) -> dict[str, Draft]:
    """The ways of a model with another vocabulary."""
    if draft.vocabulary != "auto":
        return {draft.vocabulary: draft}
    if draft.tree is not None:
        return {"intersection": draft}
    methods: list[Literal["intersection", "text"]] = ["intersection", "text"] if n_shared else ["text"]
    return {method: ModelDraft(draft.model, gamma=draft.gamma, vocabulary=method) for method in methods}


def _what_could(target: Model) -> str:
    """What a target can be drafted for by, in words."""
    known = known_models(target)
    models = f" (known by name: {', '.join(model.name for model in known)})" if known else ""
    found = [f"a model with the target's vocabulary{models}"]
    if isinstance(target.tokenizer, ByteTokenizer):
        found.append("one with another vocabulary and a tokenizer whose tokens are known as bytes")
    return f"{', '.join(found)}, or what needs no model: {', '.join(WITHOUT_MODEL)}"


def memory_of(draft: Draft) -> tuple[int, int]:
    """(bytes of weights, bytes of keys and values for each token of a text) of the draft's own.

    Weights of models and heads, and what a memory remembers, but not tables of n-grams and documents.
    """
    parts = draft.drafts if isinstance(draft, Ensemble) else [getattr(draft, "draft", None)]
    weights = cache = 0
    if isinstance(draft, ModelDraft):
        weights = draft.model.n_bytes
        cache = _token_bytes(draft.model.config, draft.model.cache_dtype)
    elif isinstance(draft, SuffixDecoding):
        weights = draft.n_bytes
    elif isinstance(draft, Eagle):
        model = draft.core.model
        weights = model.n_bytes
        cache = _token_bytes(ModelConfig.from_canonical(model.config), model.cache_dtype)
    elif isinstance(core := getattr(draft, "core", None), _core.Heads | _core.Recurrent):
        weights = core.n_bytes
    inner = [memory_of(part) for part in parts if isinstance(part, Draft)]
    return weights + sum(w for w, _ in inner), cache + sum(c for _, c in inner)


def _token_bytes(config: ModelConfig, cache_dtype: str) -> int:
    n_kv_heads = config.n_kv_heads or (config.n_kv_head,) * config.n_layer
    widths = config.d_heads or (config.d_head,) * config.n_layer
    padded = [width + -(-width // _PANEL) * _PANEL for width in widths]
    n_values = sum(n * width for n, width in zip(n_kv_heads, padded, strict=True))
    return n_values * (4 if cache_dtype == "f32" else 2)


@dataclass(frozen=True)
class KnownModel:
    """A public model on the hub, and about how many weights it has."""

    name: str
    n_parameters: int


class KnownVocabulary(NamedTuple):
    """A vocabulary of public models, small ones first: the first whose tokens by id, `marks`, fit counts."""

    name: str
    marks: Mapping[int, bytes]
    models: tuple[KnownModel, ...]
    has_encoder: bool = False


# Marks of GPT-2, Llama 2, Phi 3 and T5 are tested on their tokenizers. Others are as published: Llama 3 in
# tokenizer.py of meta-llama/llama3; Gemma, SmolLM 2, Pythia, OPT, OLMo 2 in the tokenizer.json of the models
# (the last mark of OLMo 2 is not in cl100k_base); Qwen's in its tokenizer_config.json, as the first ids after
# vocab.json. None of the models was downloaded to make the table.
@cache
def known_vocabularies() -> tuple[KnownVocabulary, ...]:
    """Vocabularies whose small models are known."""
    table = json.loads(Path(__file__).with_name("known_models.json").read_bytes())
    return tuple(
        KnownVocabulary(
            row["name"],
            {int(token): text.encode() for token, text in row["marks"].items()},
            tuple(KnownModel(name, millions * 1_000_000) for name, millions in row["models"].items()),
            row.get("has_encoder", False),
        )
        for row in table
    )


def vocabulary_of(target: Model) -> KnownVocabulary | None:
    """The known vocabulary that a target has; None for any other, and without a tokenizer of bytes."""
    if not isinstance(target.tokenizer, ByteTokenizer):
        return None
    tokens = dict(enumerate(target.tokenizer.vocabulary()))
    for known in known_vocabularies():
        if known.has_encoder == (target.config.encoder is not None) and known.marks.items() <= tokens.items():
            return known
    return None


def known_models(target: Model) -> tuple[KnownModel, ...]:
    """Known models with the target's vocabulary and at most half of its weights, small ones first."""
    known = vocabulary_of(target)
    models = () if known is None else known.models
    return tuple(model for model in models if 2 * model.n_parameters <= target.n_parameters)
