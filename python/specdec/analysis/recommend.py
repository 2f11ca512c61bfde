"""`recommend_draft`: which drafts fit a target, their speed-up and memory, and which one to use."""

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
from specdec.models.number_formats import DTYPES, Dtype
from specdec.models.tokenizer import ByteTokenizer
from specdec.settings_table import Unpack
from specdec.tables import Column, Table, Tabular
from specdec.time_limit import TimeLimit

WITHOUT_MODEL: Final = (
    "prompt-lookup", "input-copy", "suffix-decoding", "token-recycling", "online-ngram", "lookahead"
)  # fmt: skip
"""Drafts that need only the target, by name."""
_GAMMAS: Final = (2, 4, 8)
_HOPELESS: Final = 0.5  # no further repetitions below this speed-up
_REFUSALS: Final = (VocabularyMismatchError, InputError, UnsupportedModelError)
_OWNS: Final = {"gamma": "gammas", "max_new_tokens": "n_tokens"}
_PANEL: Final = 32  # columns of values stored together (csrc/model/cache/cache.h)
Openable: TypeAlias = DraftLike | Callable[[], DraftLike]
"""A draft, or a function that opens one."""


@dataclass(frozen=True)
class DraftFit:
    """Compatibility of a draft with a target; `refusal` is the reason if it does not fit.

    `methods` maps each measured method to its name in the comparison: "same vocabulary", "intersection" or
    "text" (`drafts.ModelDraft`), or "its own" for a draft that is not a model. Such a draft has `n_vocab`
    None.
    """

    draft: str
    methods: dict[str, str]
    n_shared: int | None = None  # tokens in both vocabularies; None if these are equal
    n_vocab: int | None = None
    weight_bytes: int = 0
    cache_bytes: int = 0  # keys and values per token
    refusal: str = ""

    @property
    def overlap(self) -> float | None:
        """Share of the draft's tokens that the target has too; None if the vocabularies are equal."""
        return None if self.n_shared is None or not self.n_vocab else self.n_shared / self.n_vocab


@dataclass(frozen=True, eq=False, repr=False)
class DraftRecommendation(Tabular):
    """Result of `specdec.recommend_draft`; ``print`` and notebooks show its tables.

    `fits` has an entry for each given draft. `comparison` has the measurements of those that fit, and
    `drafts` the drafts by their names in it. `vocabulary` names public models with the target's vocabulary,
    if known; `known` lists small ones of them, none of which was downloaded or tried. `stopped` says why
    measuring ended early and what was not measured, or is empty.
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
        """Fastest row with a valid speed-up; None: plain decoding."""
        return self.comparison.best(self.comparison.temperatures[0])

    @property
    def gamma(self) -> int:
        """Gamma of `best`; 0: plain decoding."""
        return 0 if self.best is None else self.best.gamma

    @property
    def choice(self) -> Any:
        """Draft of `best`, to pass to `specdec.generate`; None: plain decoding."""
        return None if self.best is None else self.drafts[self.best.draft]

    @property
    def is_certain(self) -> bool:
        """Whether `best` was faster than plain decoding in each of several repetitions."""
        return self.best is not None and len(self.best.timed.ratios) > 1 and self.best.timed.low > 1.0

    @property
    def reason(self) -> str:
        """Reason for the choice, in one sentence."""
        ranked = self.comparison.ranked(self.comparison.temperatures[0])
        if self.best is None:
            if ranked:
                return f"no draft beats plain decoding; fastest: {_figures(ranked[0])}"
            if all(row.is_plain for row in self.comparison.rows):
                return "no draft proposed any token on these prompts"
            return "no speed-up is valid: the machine was too busy to measure"
        found = _figures(self.best)
        if not self.is_certain:
            why = "only one repetition" if self.best.timed.low > 1.0 else "some repetitions were slower"
            found += f"; {why}: measure again with more repeats or seconds"
        others = [row for row in ranked if row.draft != self.best.draft]
        return found + (f"; next is {_figures(others[0])}" if others else "")

    def tables(self) -> list[Table]:
        """Return compatibility, measurements (more in `comparison`), known models and the choice."""
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
                f"Small public models with the vocabulary of {self.vocabulary} (names only: none was "
                "downloaded or tried; specdec recommend TARGET NAME does both)"
            )
            rows = [(model.name, f"{model.n_parameters / 1e6:.0f} M") for model in self.known]
            rows = rows or [("none at most half as large as the target", "")]
            found.append(Table(title, ("model", "parameters"), rows))
        name = "plain decoding" if self.best is None else self.best.draft
        stopped = f"\nended early: {self.stopped}" if self.stopped else ""
        title = f"Recommended: {self.reason}{stopped}"
        return [*found, Table(title, ("draft", "gamma"), [(name, str(self.gamma))])]

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain dicts, lists and numbers, ready for JSON; None for missing values."""
        best = None if self.best is None else self.best.draft
        choice = {"best": best, "gamma": self.gamma, "is_certain": self.is_certain, "reason": self.reason}
        return super().to_dict() | choice

    def to_pandas(self) -> Any:
        """Return the rows of the comparison as a `pandas.DataFrame`, as `Comparison.to_pandas`."""
        return self.comparison.to_pandas()

    def __repr__(self) -> str:
        best = "plain decoding" if self.best is None else f"{self.best.draft} with gamma {self.gamma}"
        return f"<specdec.DraftRecommendation of {len(self.fits)} drafts for {self.target!r}: {best}>"


def _figures(row: ExperimentRow) -> str:
    """Format a row as a phrase."""
    speed = f"{row.timed.median:.2f} times as fast as plain decoding ({row.timed.interval})"
    return f"{row.draft} with gamma {row.gamma}: {speed}, tokens per pass {row.tokens_per_call:.2f}"


def _size(n_bytes: float) -> str:
    """Format a number of bytes."""
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
    """Recommend a draft for a target: check which drafts fit, measure them on prompts, and choose.

    Drafts are measured one after another, each at several gammas, interleaved with plain decoding as in
    `specdec.compare`; a gamma that is less than half as fast in the first repetition is dropped. A model with
    another vocabulary is measured by each applicable method: the intersection of the vocabularies, and text
    (`drafts.ModelDraft`). Incompatible drafts are refused with a reason. Without `drafts`, those that need no
    model are measured: prompt lookup, suffix decoding, token recycling, n-grams, lookahead, an early exit of
    the target, and its MTP block if it has one.

    Parameters
    ----------
    target, prompts
        As in `specdec.measure`.
    drafts : draft, list of drafts, or dict of drafts by name, optional
        A draft is a Model, a Draft, an object with ``propose``, or a str: a name for `drafts.named`, a path
        or a hub name. Values of a dict may also be functions that open a draft; one that fails is refused
        with the reason, and the others are measured.
    gammas : sequence of int, optional
        Maximum number of draft tokens per round, each 1 to 1024; None: 2, 4, 8 and the draft's own.
    n_tokens, repeats : int, default 120 and 3
        New tokens of each draft per repetition and gamma, shared by the prompts; repetitions, of which the
        median counts.
    draft_dtype : {None, "f32", "bf16", "int8", "int4"}
        Number format of drafts given as str; None: that of their files.
    seconds, say : float, callable, optional
        As in `specdec.measure`; the drafts share the time. A draft that exceeds its share gets fewer
        repetitions, and drafts that are not reached are left out.
    options : DecodingOptions, optional
        Decoding options; `seed` is 0 by default.

    Returns
    -------
    DraftRecommendation
        ``print`` shows its tables; pass ``found.choice`` and ``found.gamma`` to `generate`. Ctrl-C ends the
        measurement early and returns the results so far (``found.stopped`` says so); before the first draft
        is measured it raises KeyboardInterrupt.

    Raises
    ------
    InputError, VocabularyMismatchError, CheckpointError, TokenizerError
        As in `specdec.measure`; or none of the drafts fits the target (the message has the reasons).

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
    """Return each draft's fit, and the usable drafts by name and method; raises if none fits."""
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
            raise InputError(f"drafts has the names {shown(sorted(taken))} twice; expected distinct names")
        fits.append(fit)
        usable |= of_draft
    if not usable:
        raise type(errors[0])(f"{'; '.join(map(str, errors))}; drafts that fit: {_what_could(target)}")
    return tuple(fits), usable


def _in_words(row: ExperimentRow) -> str:
    """Format a measured row as a line."""
    speed = f"{row.timed.text()} ({row.timed.interval}), tokens per pass {row.tokens_per_call:.2f}"
    return f"{row.draft} with gamma {row.gamma}: {EQUALS_PLAIN if row.is_plain else speed}"


def without_model(target: Model) -> dict[str, Openable]:
    """Return the drafts that need no other model, by name."""
    found: dict[str, Openable] = {name: partial(named, name, target) for name in WITHOUT_MODEL}
    n_layer = target.config.n_layer
    if (target.path / EXIT_NAME).is_file():
        found["early-exit"] = partial(load, target.path, target)
    elif n_layer > 1:
        found[f"early-exit:{n_layer // 2}"] = partial(named, f"early-exit:{n_layer // 2}", target)
    with suppress(SpecdecError):  # the target has no such head
        found["mtp"] = named("mtp", target)
    return found


def _opened(target: Model, given: Any, dtype: Dtype | None) -> DraftLike:
    """Open a draft given as a str or a function."""
    if isinstance(given, str | os.PathLike):
        text = given if isinstance(given, str) else str(check_path("drafts", given))
        return named(text, target, dtype=dtype)
    if callable(given) and not isinstance(given, Model | Draft | Drafter):
        given = given()
    draft: DraftLike = given
    return draft


def _by_name(given: Any) -> dict[str, Any]:
    """Return the argument `drafts` as a dict by name."""
    if isinstance(given, Mapping):
        arguments.check_names("drafts", given, "drafts by their names")
        return dict(given)
    several = [] if given is None else list(given) if isinstance(given, list | tuple) else [given]
    texts = [str(check_path("drafts", one)) if isinstance(one, os.PathLike) else one for one in several]
    names = arguments.short_names([one if isinstance(one, str) else arguments.name_of(one) for one in texts])
    return dict(zip(arguments.unique(names), several, strict=True))


def _fit(target: Model, name: str, given: DraftLike) -> tuple[DraftFit, dict[str, Draft]]:
    """Return a draft's fit, and its methods by name in the comparison; raises if it does not fit."""
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
    """Return the drafts of a model with another vocabulary, by method."""
    if draft.vocabulary != "auto":
        return {draft.vocabulary: draft}
    if draft.tree is not None:
        return {"intersection": draft}
    methods: list[Literal["intersection", "text"]] = ["intersection", "text"] if n_shared else ["text"]
    return {method: ModelDraft(draft.model, gamma=draft.gamma, vocabulary=method) for method in methods}


def _what_could(target: Model) -> str:
    """Describe which drafts fit a target."""
    known = known_models(target)
    models = f" (known by name: {', '.join(model.name for model in known)})" if known else ""
    found = [f"a model with the target's vocabulary{models}"]
    if isinstance(target.tokenizer, ByteTokenizer):
        found.append("a model with another vocabulary and a tokenizer whose tokens are known as bytes")
    return f"{', '.join(found)}, or a draft without a model: {', '.join(WITHOUT_MODEL)}"


def memory_of(draft: Draft) -> tuple[int, int]:
    """Return (bytes of weights, bytes of keys and values per token) of a draft.

    Counts models, heads and memories, but not tables of n-grams and documents.
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
        cache = _token_bytes(model.config, model.cache_dtype)
    elif isinstance(core := getattr(draft, "core", None), _core.Heads | _core.Recurrent):
        weights = core.n_bytes
    inner = [memory_of(part) for part in parts if isinstance(part, Draft)]
    return weights + sum(w for w, _ in inner), cache + sum(c for _, c in inner)


def _token_bytes(config: Mapping[str, Any], cache_dtype: str) -> int:
    n_layer = config["n_layer"]
    n_kv_heads = config.get("n_kv_heads") or (config["n_kv_head"],) * n_layer
    widths = config.get("d_heads") or (config["d_head"],) * n_layer
    padded = [-(-width // _PANEL) * _PANEL for width in widths]
    keys = padded if cache_dtype == "int8" else widths
    mixers = config.get("mixers") or ("attention",) * n_layer
    lenders = config.get("kv_layers") or range(n_layer)
    own = [i for i in range(n_layer) if lenders[i] == i and "attention" in mixers[i]]
    n_values = 0 if config.get("borrows_kv") else sum(n_kv_heads[i] * (keys[i] + padded[i]) for i in own)
    return int(n_values * {"f32": 4, "bf16": 2, "int8": 34 / 32}[cache_dtype])


@dataclass(frozen=True)
class KnownModel:
    """A public model on the hub, and its approximate number of weights."""

    name: str
    n_parameters: int


class KnownVocabulary(NamedTuple):
    """Public models with one vocabulary, small ones first, identified by `marks`, tokens by id."""

    name: str
    marks: Mapping[int, bytes]
    models: tuple[KnownModel, ...]
    has_encoder: bool = False


# Marks of GPT-2, Llama 2, Phi 3 and T5 are tested with their tokenizers. The others are as published: Llama
# 3 in tokenizer.py of meta-llama/llama3; Gemma, SmolLM 2, Pythia, OPT and OLMo 2 in the models'
# tokenizer.json (OLMo 2's last mark is not in cl100k_base); Qwen in its tokenizer_config.json, as the first
# ids after vocab.json. None of the models was downloaded for this table.
@cache
def known_vocabularies() -> tuple[KnownVocabulary, ...]:
    """Return the vocabularies whose small models are known."""
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
    """Return the target's vocabulary if it is known, else None; needs a tokenizer with byte tokens."""
    if not isinstance(target.tokenizer, ByteTokenizer):
        return None
    tokens = dict(enumerate(target.tokenizer.vocabulary()))
    for known in known_vocabularies():
        if known.has_encoder == (target.config.encoder is not None) and known.marks.items() <= tokens.items():
            return known
    return None


def known_models(target: Model) -> tuple[KnownModel, ...]:
    """Return known models with the target's vocabulary and at most half its weights, small ones first."""
    known = vocabulary_of(target)
    models = () if known is None else known.models
    return tuple(model for model in models if 2 * model.n_parameters <= target.n_parameters)
