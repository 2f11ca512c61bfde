"""Benchmarks of speculation: the questions of a file, answered with and without a draft, by category."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from specdec import _core
from specdec.analysis.answers import Answer, AnswerFile, check_settings
from specdec.analysis.arguments import name_of
from specdec.analysis.asker import TOO_LONG, Asker, TooLong
from specdec.analysis.bench_rows import Bench, bench_rows
from specdec.analysis.questions import Question, QuestionsLike, questions_of
from specdec.checks import check_choice, check_flag, check_integer, check_items, check_path
from specdec.decoding.adaptive_gamma import AdaptiveGamma
from specdec.decoding.options import DecodingOptions, Gamma, Stop
from specdec.drafts.draft import Draft
from specdec.drafts.model_draft import DraftLike, as_draft
from specdec.errors import InputError, shown
from specdec.models.loading import as_model
from specdec.models.model import Model, ModelLike
from specdec.progress import counted
from specdec.verification.rules import DecodingRule

__all__ = ["bench"]

PLAIN: Final = "plain"
"""What decoding without a draft is called."""
_N_WARM_UPS: Final = 3
"""Runs that are thrown away: caches, threads, the processor's clock."""
_WARM_UP_TOKENS: Final = 16
"""New tokens of each of these runs."""


def bench(
    target: ModelLike,
    draft: DraftLike | None,
    questions: QuestionsLike,
    *,
    name: str | None = None,
    target_name: str | None = None,
    categories: Sequence[str] | None = None,
    limit: int | None = None,
    gamma: Gamma = None,
    max_new_tokens: int | None = 1024,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    verify: DecodingRule = "rejection",
    lenience: float = 1.0,
    stop: Stop = None,
    ignore_eos: bool = False,
    seed: int = 0,
    repeats: int = 3,
    plain: bool = True,
    chat: bool | None = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    too_long: TooLong = "error",
    answers: str | os.PathLike[str] | None = None,
    n_threads: int | None = None,
    progress: bool = False,
) -> Bench:
    """Answer the questions of a benchmark with and without a draft, and count by category.

    As in Spec-Bench, questions are answered one at a time, greedily unless a temperature is given, turn by
    turn, each turn after the model's own answer to the one before. Where the target has a chat template, the
    turns go through it; else a text goes on with the next turn after an empty line, and an encoder-decoder
    reads each turn as a source of its own. Plain and speculative decoding answer each question in turns, so
    that both see the same machine.

    A text that ends within a round counts up to its end: what was accepted behind an end-of-text token or a
    stop is neither a new token nor an accepted draft (`BenchRow`).

    Parameters
    ----------
    target : Model, path or hub name
    draft : Model, path, hub name, Draft, object or None
        As of `specdec.generate`. None: plain decoding alone. A draft that learns from texts, such as
        `specdec.drafts.SuffixMemory`, begins each repetition with what it knows now (`Draft.snapshot`),
        learns from the answers of the repetition in their order, and is left as it is. An object of your own
        is used as it is.
    questions : path-like, or iterable of Question and str
        A file that `specdec.read_questions` takes, or questions themselves; a text is one of the category
        "prompts".
    name : str, optional
        What the draft is called; by default after its file or its class.
    target_name : str, optional
        What the target is called; by default after its file.
    categories : sequence of str, optional
        Ask the questions of these alone.
    limit : int, optional
        Ask the first so many questions of each category alone, at least 1.
    gamma : int, "auto", AdaptiveGamma or callable, optional
        As of `specdec.generate`.
    max_new_tokens : int or None, default 1024
        Of each turn, as of `specdec.generate`.
    temperature, top_k, top_p, min_p
        As in `Sampling`.
    verify, lenience
        As of `specdec.generate`; lenience below 1 is not exact, and plain decoding is.
    stop, ignore_eos
        As of `specdec.generate`. With `ignore_eos` every answer has `max_new_tokens`, as benchmarks of
        throughput ask for.
    seed : int, default 0
        Repetition k uses seed + k, and each turn of a question a key of its own.
    repeats : int, default 3
        How often all questions are answered, at least 1. Times differ, and so do texts that are sampled.
    plain : bool, default True
        Answer without the draft too. Without, there are no speed-ups.
    chat : bool, optional
        Whether turns go through the chat template; None: where the target has one.
    chat_template_kwargs : mapping, optional
        Variables of the chat template, as of `specdec.generate`.
    too_long : {"error", "skip"}
        What happens with a question that the context has no room for: nothing is begun, or it is left out and
        `Bench.skipped` has it. A later turn that has no room ends the call, or the question.
    answers : path-like, optional
        A folder for the answers, in the format of Spec-Bench: ``run_1/plain.jsonl``, ``run_1/NAME.jsonl`` and
        so on for each repetition, a line for each question as soon as it is answered. A call with the same
        folder and settings goes on where an earlier one was interrupted; ``settings.json`` has the settings.
        A draft that learns is first asked again what was answered in an unfinished repetition, so that it
        knows those texts; the answers in the folder stay.
    n_threads : int, optional
        None: :func:`specdec.threads.default_threads`.
    progress : bool, default False
        Show a progress bar (needs tqdm).

    Returns
    -------
    Bench
        ``print`` shows its tables.

    Raises
    ------
    InputError
        If an argument is out of range, a file of questions or answers is damaged (the message names file,
        line and field), the answers in the folder were made with other settings, or a question does not fit
        the context.
    VocabularyMismatchError
        If target and draft have different vocabularies.
    CheckpointError, TokenizerError
        If a path cannot be loaded.
    MissingPackageError
        If a file of questions or a progress bar needs a package that is not installed.

    Examples
    --------
    >>> target, draft = specdec.embedded_pair()
    >>> found = specdec.bench(target, draft, ["Once upon a time", "It was a dark and stormy night"])
    >>> print(found)
    >>> found["overall"].mean_acceptance_length  # with a file that has several categories
    """
    asked = _chosen(questions_of(questions), categories, limit)
    repeats, seed = check_integer("repeats", repeats, 1), check_integer("seed", seed, 0, 2**64 - 1)
    if seed + repeats > 2**64:
        raise InputError(f"seed is {shown(seed)}; expected at most {2**64 - repeats}, for {repeats} repeats")
    plain, too_long = check_flag("plain", plain), check_choice("too_long", too_long, TOO_LONG)
    chat = None if chat is None else check_flag("chat", chat)
    stop = list(stop) if isinstance(stop, Iterator) else stop  # it is gone through in each call
    options: dict[str, Any] = {
        "max_new_tokens": max_new_tokens, "temperature": temperature, "top_k": top_k, "top_p": top_p,
        "min_p": min_p, "stop": stop, "ignore_eos": ignore_eos, "n_threads": n_threads,
    }  # fmt: skip
    drafting: dict[str, Any] = {"gamma": gamma, "lenience": lenience}
    checked = DecodingOptions(**options, **drafting, verify=verify, progress=progress)
    if verify == "coupled":
        options["verify"] = verify  # plain decoding draws otherwise then
    else:
        drafting["verify"] = verify
    folder = None if answers is None else check_path("answers", answers)

    target = as_model("target", target)
    opened = None if draft is None else as_draft(target, draft, optional=True)
    called, target_name = _called(name, opened), name_of(target, target_name, "target_name")
    ways = []
    if plain or opened is None:
        ways.append(_Way(PLAIN, None, options))
    if opened is not None:
        ways.append(_Way(called, opened, options | drafting))
    asker = Asker(target, chat, chat_template_kwargs, too_long)
    fitting, skipped = asker.fitting(asked)
    settings = _settings(target, target_name, ways, checked, seed, asker)
    if folder is not None:
        check_settings(folder / "settings.json", settings)
        for way in ways:
            way.files = [
                AnswerFile(folder / f"run_{run + 1}" / f"{_file_name(way.name)}.jsonl", way.name)
                for run in range(repeats)
            ]
    with counted(len(fitting) * len(ways) * repeats, "answer", checked.progress) as done:
        for run in range(repeats):
            for way in ways:
                way.begin(run, fitting)
            for question in fitting:
                for way in ways:
                    way.answer(run, question, asker, seed + run)
                    done(1)
    ours = ways[-1].answers if opened is not None else []
    theirs = ways[0].answers if ways[0].draft is None else []
    for i, question in enumerate(fitting):  # sampled answers of a question may end in some runs alone
        reasons = [run[i].left_out for way in reversed(ways) for run in way.answers if run[i].left_out]
        skipped += [(question.id, reason) for reason in reasons[:1]]
    return Bench(
        target=target_name,
        draft=called,
        settings=settings,
        rows=bench_rows(fitting, ours, theirs, sampled=not checked.sampling.greedy),
        questions=tuple(fitting),
        skipped=tuple(skipped),
        answers=tuple(map(tuple, ours)),
        plain_answers=tuple(map(tuple, theirs)),
    )


@dataclass
class _Way:
    """One way to answer: without a draft, or with it."""

    name: str
    draft: Draft | None
    options: dict[str, Any]
    answers: list[list[Answer]] = field(default_factory=list)
    files: list[AnswerFile] = field(default_factory=list)
    is_warm: bool = False
    drafting: Draft | None = None
    n_learnt: int = 0

    def begin(self, run: int, questions: Sequence[Question]) -> None:
        """Begin a repetition, with a snapshot of the draft: it learns from the texts of this one alone.

        Behind questions that have answers already a draft that learns must know what it knew then, so these
        `n_learnt` questions are asked again and the answers that there are stay.
        """
        self.answers.append([])
        self.drafting = None if self.draft is None else self.draft.snapshot()
        learns = self.drafting is not None and self.drafting.snapshot() is not self.drafting
        answered = [bool(self.files) and self.files[run].find(question) is not None for question in questions]
        self.n_learnt = max((i for i, there in enumerate(answered) if not there), default=0) if learns else 0

    def answer(self, run: int, question: Question, asker: Asker, seed: int) -> None:
        """Answer a question, or take the answer that there is."""
        found = self.files[run].find(question) if self.files else None
        if found is not None and len(self.answers[run]) < self.n_learnt:
            asker.answer(question, self.drafting, seed, self.options)
        if found is None:
            if not self.is_warm:
                self.is_warm = True
                warming = None if self.draft is None else self.draft.snapshot()
                options = self.options | {"max_new_tokens": _WARM_UP_TOKENS}
                for _ in range(_N_WARM_UPS):
                    asker.run(question, [], 0, warming, seed, options)
            found = asker.answer(question, self.drafting, seed, self.options)
            if self.files:
                self.files[run].add(question, found)
        self.answers[run].append(found)


def _chosen(questions: list[Question], categories: Sequence[str] | None, limit: int | None) -> list[Question]:
    """The questions of some categories, the first ones of each."""
    if categories is not None:
        known = list(dict.fromkeys(question.category for question in questions))
        wanted = check_items("categories", categories, "a sequence of texts")
        for one in wanted:
            if not isinstance(one, str) or one not in known:
                raise InputError(
                    f"categories has {shown(one)}; expected some of {', '.join(map(repr, known))}"
                )
        if isinstance(categories, str) or not wanted:
            raise InputError(f"categories is {shown(categories)}; expected a sequence of at least one text")
        questions = [question for question in questions if question.category in wanted]
    if limit is None:
        return questions
    limit = check_integer("limit", limit, 1)
    kept, counts = [], dict.fromkeys((question.category for question in questions), 0)
    for question in questions:
        counts[question.category] += 1
        if counts[question.category] <= limit:
            kept.append(question)
    return kept


def _called(name: str | None, draft: Draft | None) -> str:
    """What the draft is called."""
    if draft is None:
        if name is not None:
            raise InputError(f"name is {shown(name)}, and there is no draft; expected None")
        return PLAIN
    if name is None:
        return name_of(draft.identity)
    if not isinstance(name, str) or not name or _file_name(name) == PLAIN:
        raise InputError(f"name is {shown(name)}; expected a text other than {PLAIN!r}, or None")
    return name


def _file_name(name: str) -> str:
    """A name without what a file's name may not have."""
    return re.sub(r"[^\w.-]+", "-", name).strip(".-") or "draft"


def _settings(
    target: Model,
    target_name: str,
    ways: Sequence[_Way],
    options: DecodingOptions,
    seed: int,
    asker: Asker,
) -> dict[str, Any]:
    """What the answers depend on, in the types of JSON."""
    gamma: object = options.gamma
    draft = ways[-1].draft
    if isinstance(gamma, AdaptiveGamma):
        gamma = "auto"
    elif gamma is None:
        gamma = 0 if draft is None else draft.gamma
    elif not isinstance(gamma, int | str):
        gamma = type(gamma).__name__
    return {
        "version": _core.__version__,
        "target": target_name,
        "n_parameters": target.n_parameters,
        "dtype": target.dtype,
        "cache_dtype": target.cache_dtype,
        "draft": ways[-1].name,
        "gamma": gamma,
        "max_new_tokens": options.max_new_tokens,
        "temperature": options.sampling.temperature,
        "top_k": None if options.sampling.top_k is None else int(options.sampling.top_k),
        "top_p": options.sampling.top_p,
        "min_p": options.sampling.min_p,
        "verify": options.verify,
        "lenience": options.lenience,
        "stop": None if options.stop is None else shown(options.stop),
        "ignore_eos": options.ignore_eos,
        "seed": seed,
        "chat": asker.chat,
        "chat_template_kwargs": None if asker.variables is None else shown(asker.variables),
        "n_threads": options.threads,
        "kernels": _core.kernels(),
    }
