"""`bench`: benchmark questions answered with and without a draft, by category."""

from __future__ import annotations

import json
import math
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from typing import Any, Final, Literal, TypeAlias, get_args

import numpy as np

from specdec import _core
from specdec.analysis.arguments import decoding_options, in_json, name_of, named_one, run_options, seed_of
from specdec.analysis.experiment import NOT_RUN, Speedup, take_turns
from specdec.analysis.prediction import mean_of
from specdec.analysis.questions import (
    Answer,
    AnswerFile,
    Question,
    QuestionsLike,
    Reply,
    check_settings,
    questions_of,
)
from specdec.analysis.statistics import mean_interval
from specdec.checks import check_choice, check_flag, check_integer, check_path
from specdec.decoding.adaptive_gamma import AdaptiveGamma
from specdec.decoding.generate import generate
from specdec.decoding.options import DecodingOptions, SampleOptions
from specdec.decoding.prompts import Chat, PromptIds
from specdec.decoding.result import Result
from specdec.drafts.draft import Draft
from specdec.drafts.model_draft import DraftLike, as_draft
from specdec.errors import InputError, number_of, shown
from specdec.models.loading import as_model
from specdec.models.model import Model, ModelLike
from specdec.progress import counted
from specdec.settings_table import Unpack
from specdec.tables import Column, Table, Tabular, bounds, figure, figures_frame, tables_by_position
from specdec.trace import StepFigures
from specdec.verification.sampling import TRUNCATIONS

PLAIN: Final = "plain"
"""Name of decoding without a draft."""
OVERALL: Final = "overall"
MT_BENCH: Final = "mt_bench"
MT_BENCH_CATEGORIES: Final = (
    "writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities",
)  # fmt: skip
"""Categories that Spec-Bench reports as one task."""
_N_WARM_UPS: Final = 3  # discarded runs: caches, threads, clock speed
_WARM_UP_TOKENS: Final = 16
TooLong: TypeAlias = Literal["error", "skip"]
"""Handling of questions that do not fit the context."""
_N_NAMED: Final = 5  # maximum of questions named in a message


@dataclass(frozen=True)
class BenchRow:
    """Results of one category.

    Attributes
    ----------
    category : str
        From the question file; "mt_bench" is all eight categories of MT-Bench, "overall" all questions.
    n_questions, n_turns, n_tokens : int
        Answered questions and turns; new tokens per repetition, averaged and rounded.
    alpha, alpha_low, alpha_high : float
        Mean acceptance rate (Corollary 3.6) over the verified positions, and its 95 % confidence interval;
        for trees, the share of positions where one of several draft tokens was accepted (`Round.betas`).
    mean_acceptance_length, draft_acceptance_rate, per_position_acceptance_rate
        vLLM's metrics: new tokens per target forward pass that verified a draft, bonus token included;
        accepted over draft tokens; share of these passes that accepted their first, second, … draft token.
    tokens_per_call : float
        New tokens per target forward pass: the mean of Spec-Bench's ``accept_lengths``.
    tokens_per_s, plain_tokens_per_s : tuple of float
        New tokens per second of whole calls, prompt processing included, in each repetition.
    speedup, decode_speedup, question_speedup : Speedup
        tokens_per_s over plain_tokens_per_s; the same for the rounds only; and Spec-Bench's, by the mean over
        questions of their tokens per second.
    n_equal, n_compared : int
        Turns over all repetitions whose tokens equal plain decoding's (all of them at temperature 0 with the
        exact rule), and turns that both answered.
    """

    category: str
    n_questions: int
    n_turns: int
    n_tokens: int
    alpha: float
    alpha_low: float
    alpha_high: float
    mean_acceptance_length: float
    draft_acceptance_rate: float
    per_position_acceptance_rate: tuple[float, ...]
    tokens_per_call: float
    tokens_per_s: tuple[float, ...]
    plain_tokens_per_s: tuple[float, ...]
    speedup: Speedup
    decode_speedup: Speedup
    question_speedup: Speedup
    n_equal: int
    n_compared: int


@dataclass(frozen=True, eq=False, repr=False)
class Bench(Tabular):
    """Result of `specdec.bench`; ``print`` and notebooks show its tables.

    `draft` is "plain" without one. `settings` are those of the answers. `rows` has one per category in the
    order of the questions, then MT-Bench, then all together. `skipped` has the ids of questions that were not
    answered completely, and why. `answers` and `plain_answers` are by repetition, then by question; empty if
    not run.
    """

    target: str
    draft: str
    settings: dict[str, Any]
    rows: tuple[BenchRow, ...]
    questions: tuple[Question, ...]
    skipped: tuple[tuple[int | str, str], ...]
    answers: tuple[tuple[Answer, ...], ...]
    plain_answers: tuple[tuple[Answer, ...], ...]

    _not_in_dict = ("questions", "answers", "plain_answers")

    def __getitem__(self, category: str) -> BenchRow:
        """Return the row of a category; KeyError if there is none."""
        return {row.category: row for row in self.rows}[category]

    def to_pandas(self) -> Any:
        """Return the rows as a `pandas.DataFrame` with columns such as ``speedup_low``, without positions."""
        return figures_frame(self.rows)

    def tables(self) -> list[Table]:
        """Return the tables of speed and, with a draft, of acceptance in total and by position."""
        if not self.answers:
            return [self._speed_table()]
        columns = [
            _CATEGORY, figure("alpha", "alpha", ".3f"), bounds("95 % interval", "alpha"),
            figure("mean accepted length", "mean_acceptance_length", ".2f"),
            figure("draft acceptance rate", "draft_acceptance_rate", ".3f"),
            figure("tokens/pass", "tokens_per_call", ".2f"),
        ]  # fmt: skip
        title = "Share of verifying passes that accepted their first, second, … draft token"
        rates = [(row.category, row.per_position_acceptance_rate) for row in self.rows]
        by_position = tables_by_position(title, ("position",), rates, ".3f")
        return [self._speed_table(), Table.of("Acceptance", self.rows, columns), *by_position]

    def _speed_table(self) -> Table:
        """Return the table of tokens per second and speed-ups."""
        both = bool(self.answers and self.plain_answers)
        title = f"{self.target} alone"
        if self.answers:
            title = f"{self.draft} drafting for {self.target}, gamma {self.settings['gamma']}"
        title += f", temperature {self.settings['temperature']:g}"
        decides = not self.settings["temperature"] or self.settings["verify"] == "coupled"
        if decides and both:  # otherwise they are different samples
            last = self.rows[-1]
            title += f"; {last.n_equal} of {last.n_compared} answers equal those of plain decoding"
        if self.skipped:
            title += f"; {len(self.skipped)} questions skipped or incomplete"
        columns: list[Column] = [_CATEGORY, figure("questions", "n_questions", "d")]
        columns.append(figure("tokens", "n_tokens", "d"))
        if self.plain_answers:
            columns.append(("plain tokens/s", lambda row: _spread(row.plain_tokens_per_s)))
        if self.answers:
            columns.append(("tokens/s", lambda row: _spread(row.tokens_per_s)))
        if both:
            columns.append(("speed-up (min to max)", lambda row: _ratio(row.speedup)))
            columns.append(("without prompts", lambda row: _ratio(row.decode_speedup)))
        return Table.of(title, self.rows, columns)


_CATEGORY: Final[Column] = ("", lambda row: row.category)


def _spread(values: Sequence[float], spec: str = ".1f", middle: str = "") -> str:
    """Format the median, with the minimum and maximum in parentheses."""
    middle = middle or f"{float(np.median(values)):{spec}}"
    return middle if len(values) == 1 else f"{middle} ({min(values):{spec}} to {max(values):{spec}})"


def _ratio(speedup: Speedup) -> str:
    """Format a speed-up with its spread, marked if it is a measurement error."""
    return _spread(speedup.ratios, ".2f", speedup.text(""))


def bench(
    target: ModelLike | dict[str, ModelLike],
    draft: DraftLike | dict[str, DraftLike] | None,
    questions: QuestionsLike,
    *,
    repeats: int = 3,
    plain: bool = True,
    chat: bool | Mapping[str, Any] | None = None,
    too_long: TooLong = "error",
    answers: str | os.PathLike[str] | None = None,
    options: DecodingOptions | None = None,
    **changes: Unpack[SampleOptions],
) -> Bench:
    """Answer benchmark questions with and without a draft, and report results by category.

    As in Spec-Bench, questions are answered one at a time, greedily unless a temperature is given, each turn
    after the model's own answer to the previous one. Turns go through the target's chat template if it has
    one; otherwise the next turn follows after an empty line, and an encoder-decoder reads each turn as a
    source. Plain and speculative decoding are interleaved question by question. Tokens accepted after an
    end-of-text token or a stop count neither as new nor as accepted.

    Parameters
    ----------
    target, draft : as of `specdec.generate`, or a dict of one by its name
        Draft None: plain decoding only. A draft that learns from texts learns within each repetition, from
        its answers in order, otherwise as in `specdec.measure`.
    questions : path-like, or iterable of Question and str
        A file for `specdec.read_questions` (which can select a part of it), or the questions; a str is a
        question of the category "prompts".
    repeats, plain : int, bool, default 3 and True
        Number of repetitions; whether to run plain decoding too, for speed-ups.
    chat : bool or mapping, optional
        Whether turns go through the chat template; None: if the target has one. A mapping holds template
        variables, as ``chat_template_kwargs`` of `specdec.generate`.
    too_long : {"error", "skip"}
        Handling of a question that does not fit the context: raise an error before starting, or leave it out
        and list it in `Bench.skipped`. A later turn that does not fit raises an error, or ends the question.
    answers : path-like, optional
        Folder for the answers in Spec-Bench's format: ``run_1/plain.jsonl``, ``run_1/NAME.jsonl`` and so on,
        one line per question as it is answered. A call with the same folder and settings resumes an
        interrupted one; ``settings.json`` records the settings. A draft that learns first repeats the
        finished answers of an incomplete repetition, to learn from them.
    options : DecodingOptions, optional
        Decoding options. Defaults: `max_new_tokens` 1024 per turn; `seed` 0, where repetition k uses seed + k
        and each turn of a question its own key. Plain decoding ignores `lenience`. With `ignore_eos` every
        answer has `max_new_tokens`, as throughput benchmarks require.

    Returns
    -------
    Bench
        ``print`` shows its tables.

    Raises
    ------
    InputError, VocabularyMismatchError, CheckpointError, TokenizerError
        As in `specdec.measure`; or a file of questions or answers is damaged (the message names file, line
        and field), the folder has answers made with other settings, or a question does not fit the context.

    Examples
    --------
    >>> target, draft = specdec.embedded_pair()
    >>> found = specdec.bench(target, draft, ["Once upon a time", "It was a dark and stormy night"])
    >>> print(found)
    >>> found["overall"].mean_acceptance_length  # with a file that has several categories
    """
    if isinstance(stop := changes.get("stop"), Iterator):  # used for each answer
        changes["stop"] = list(stop)
    decoding = decoding_options(options, changes, {}, max_new_tokens=1024)
    asked = questions_of(questions)
    repeats, seed = check_integer("repeats", repeats, 1), seed_of(decoding)
    if seed + repeats > 2**64:
        raise InputError.of("seed", seed, f"at most {2**64 - repeats}, for {repeats} repeats")
    plain, too_long = check_flag("plain", plain), check_choice("too_long", too_long, get_args(TooLong))
    folder = None if answers is None else check_path("answers", answers)

    target_name, given = named_one("target", target)
    target = as_model("target", given)
    name, given = named_one("draft", draft)
    opened = None if given is None else as_draft(target, given, optional=True)
    name = _called(name, opened)
    asker = Asker(target, chat, too_long)
    fitting, skipped = asker.fitting(asked)
    how = run_options(decoding) | {"max_new_tokens": decoding.max_new_tokens}
    exact = {key: value for key, value in how.items() if key != "lenience"}
    runners = [_Runner(PLAIN, None, exact, asker, fitting)] if plain or opened is None else []
    if opened is not None:
        runners.append(_Runner(name, opened, how | {"gamma": decoding.gamma}, asker, fitting))
    settings = _settings(target_name or name_of(target), runners[-1], decoding, seed)
    if folder is not None:
        check_settings(folder / "settings.json", settings)
        for runner in runners:
            file = f"{_file_name(runner.name)}.jsonl"
            paths = [folder / f"run_{run + 1}" / file for run in range(repeats)]
            runner.files = [AnswerFile(path, runner.name) for path in paths]
    with counted(len(fitting) * len(runners) * repeats, "answer", decoding.progress) as done:
        take_turns(runners, fitting, repeats=repeats, seed=seed, done=done)
    ours = runners[-1].answers if opened is not None else []
    theirs = runners[0].answers if runners[0].draft is None else []
    for i, question in enumerate(fitting):  # sampled answers may end early in some runs only
        reasons = [run[i].left_out for one in reversed(runners) for run in one.answers if run[i].left_out]
        skipped += [(question.id, reason) for reason in reasons[:1]]
    rows = bench_rows(fitting, ours, theirs, sampled=not decoding.sampling.greedy)
    answered = (tuple(map(tuple, runs)) for runs in (ours, theirs))
    return Bench(settings["target"], name, settings, rows, tuple(fitting), tuple(skipped), *answered)


@dataclass
class _Runner:
    """Answers questions in one configuration: plain, or with a draft."""

    name: str
    draft: Draft | None
    options: dict[str, Any]
    asker: Asker
    questions: Sequence[Question]
    answers: list[list[Answer]] = field(default_factory=list)
    files: list[AnswerFile] = field(default_factory=list)
    drafting: Draft | None = None
    n_learned: int = 0
    is_warm: bool = False

    def run(self, turn: int, index: int, item: Question, seed: int) -> int:
        """Answer a question, or reuse the stored answer."""
        if turn == len(self.answers):
            self._begin(turn)
        found = self.files[turn].find(item) if self.files else None
        if found is None:
            found = self._answer(item, seed)
            if self.files:
                self.files[turn].add(item, found)
        elif index < self.n_learned:
            self.asker.answer(item, self.drafting, seed, self.options)
        self.answers[turn].append(found)
        return 1

    def _begin(self, turn: int) -> None:
        """Start a repetition with a snapshot of the draft, which learns only from this repetition's texts.

        A draft that learns repeats the first `n_learned` questions, whose answers are in the file.
        """
        self.answers.append([])
        self.drafting = None if self.draft is None else self.draft.snapshot()
        learns = self.drafting is not None and self.drafting.snapshot() is not self.drafting
        files = self.files[turn : turn + 1]
        missing = [i for i, one in enumerate(self.questions) if not files or files[0].find(one) is None]
        self.n_learned = max(missing, default=0) if learns else 0

    def _answer(self, question: Question, seed: int) -> Answer:
        if not self.is_warm:
            self.is_warm = True
            warming = None if self.draft is None else self.draft.snapshot()
            options = self.options | {"max_new_tokens": _WARM_UP_TOKENS}
            for _ in range(_N_WARM_UPS):
                self.asker.run(question, [], warming, seed, options)
        return self.asker.answer(question, self.drafting, seed, self.options)


def _called(name: str | None, draft: Draft | None) -> str:
    """Return the draft's name."""
    if draft is None:
        return PLAIN
    if name is None:
        return name_of(draft.identity)
    if _file_name(name) == PLAIN:
        raise InputError.of("draft", name, f"a name other than {PLAIN!r}", verb="has the name")
    return name


def _file_name(name: str) -> str:
    """Return a name without characters that are unsafe in file names."""
    return re.sub(r"[^\w.-]+", "-", name).strip(".-") or "draft"


def _settings(target_name: str, runner: _Runner, options: DecodingOptions, seed: int) -> dict[str, Any]:
    """Return the settings that determine the answers, as JSON types."""
    asker = runner.asker
    gamma: object = options.gamma
    if gamma is None:
        gamma = 0 if runner.draft is None else runner.draft.gamma
    elif not isinstance(gamma, int | str):
        gamma = "auto" if isinstance(gamma, AdaptiveGamma) else type(gamma).__name__
    always = ("max_new_tokens", "temperature", *TRUNCATIONS, "verify", "lenience", "stop",
              "ignore_eos", "n_threads")  # fmt: skip
    return {
        "version": _core.__version__, "target": target_name,
        **{name: getattr(asker.target, name) for name in ("n_parameters", "dtype", "cache_dtype")},
        "draft": runner.name, "gamma": gamma,
        **{name: in_json(getattr(options, name)) for name in dict.fromkeys((*always, *run_options(options)))},
        "seed": seed, "chat": asker.chat,
        "chat_template_kwargs": None if asker.variables is None else shown(asker.variables),
        "kernels": _core.kernels(),
    }  # fmt: skip


class Asker:
    """Asks a target questions, turn by turn; `chat` and `too_long` as in `specdec.bench`."""

    def __init__(self, target: Model, chat: bool | Mapping[str, Any] | None, too_long: TooLong) -> None:
        self.target = target
        self.is_encoder_decoder = target.config.encoder is not None
        self.variables: dict[str, Any] | None = None
        if isinstance(chat, Mapping):
            Chat.of_call(None, [{"role": "user"}], None, None, chat)  # checks the variables
            self.variables, chat = dict(chat), True
        has_template = target.chat_template is not None and not self.is_encoder_decoder
        self.chat = has_template if chat is None else check_flag("chat", chat)
        if self.chat and not has_template:
            why = "is an encoder-decoder" if self.is_encoder_decoder else "has no chat template"
            raise InputError.of("chat", chat, f"False, or None ({target.path} {why})")
        if target.tokenizer is None:
            raise InputError(f"target {target.path} has no tokenizer; expected one for questions")
        self.too_long = too_long

    def fitting(self, questions: Sequence[Question]) -> tuple[list[Question], list[tuple[int | str, str]]]:
        """Return (questions whose first turn fits the context, ids of the others with reasons)."""
        found, skipped = [], []
        for question in questions:
            try:
                self._check(self._prompt(question, []))
            except InputError as error:
                skipped.append((question.id, str(error)))
            else:
                found.append(question)
        if skipped and (self.too_long == "error" or not found):
            named = "; ".join(f"{question_id!r}: {why}" for question_id, why in skipped[:_N_NAMED])
            named += f"; and {len(skipped) - _N_NAMED} more" if len(skipped) > _N_NAMED else ""
            expected = "questions that fit" if not found else "shorter questions, or too_long='skip'"
            n_skipped = number_of(len(skipped), "question")
            raise InputError(f"{n_skipped} cannot be used: {named}; expected {expected}")
        return found, skipped

    def answer(
        self, question: Question, draft: Draft | None, seed: int, options: Mapping[str, Any]
    ) -> Answer:
        """Ask all turns of a question; a turn that does not fit ends the answer, or raises InputError."""
        replies: list[Reply] = []
        for turn in range(len(question.turns)):
            if turn:
                try:
                    self._check(self._prompt(question, replies))
                except InputError as error:
                    why = f"turn {turn + 1}: {error}"
                    if self.too_long == "skip":
                        return Answer(tuple(replies), why)
                    expected = "expected shorter turns, or too_long='skip'"
                    raise InputError(f"question {question.id!r}, {why}; {expected}") from None
            begun = time.perf_counter()
            result = self.run(question, replies, draft, seed, options)
            replies.append(Reply.of(result, time.perf_counter() - begun))
        return Answer(tuple(replies))

    def run(
        self, question: Question, replies: Sequence[Reply], draft: Draft | None, seed: int, options: Any
    ) -> Result:
        """Generate the reply to the next turn, with its own random numbers."""
        prompt = self._prompt(question, replies)
        asked = {"prompt": prompt}
        if self.chat:
            asked = {"messages": prompt, "chat_template_kwargs": self.variables}
        turn = json.dumps([question.id, len(replies)]).encode()  # independent of the other questions
        sequence = int.from_bytes(blake2b(turn, digest_size=4).digest(), "little")
        result: Result = generate(self.target, draft, seed=[(seed, sequence)], **asked, **options)
        return result

    def _prompt(self, question: Question, replies: Sequence[Reply]) -> Any:
        """Return the prompt of the next turn: messages, or text."""
        said, asked = zip(question.turns, replies, strict=False), question.turns[len(replies)]
        if self.chat:
            messages = [] if question.system is None else [{"role": "system", "content": question.system}]
            for turn, reply in said:
                messages += [{"role": "user", "content": turn}, {"role": "assistant", "content": reply.text}]
            return [*messages, {"role": "user", "content": asked}]
        if self.is_encoder_decoder:
            return asked
        return "".join(f"{turn}{reply.text}\n\n" for turn, reply in said) + asked

    def _check(self, prompt: Any) -> None:
        """Raise unless a prompt and an answer fit the context."""
        if self.chat:
            chat = Chat.of_call(None, prompt, None, None, self.variables)
            assert chat is not None
            (prompt,) = chat.prompts(self.target)
        PromptIds.of(self.target, prompt, "prompt")


def bench_rows(
    questions: Sequence[Question], answers: Sequence[Sequence[Answer]], plain: Sequence[Sequence[Answer]], *,
    sampled: bool,
) -> tuple[BenchRow, ...]:  # fmt: skip
    """Aggregate answers (by repetition, then question) by category; `sampled`: repetitions differ."""
    groups: dict[str, list[int]] = {}
    for i, question in enumerate(questions):
        groups.setdefault(question.category, []).append(i)
    n_categories = len(groups)
    if set(MT_BENCH_CATEGORIES) <= groups.keys() and MT_BENCH not in groups:
        groups[MT_BENCH] = [i for i, one in enumerate(questions) if one.category in MT_BENCH_CATEGORIES]
    if n_categories > 1:
        groups[OVERALL] = list(range(len(questions)))

    return tuple(
        _row(name, [[r[i] for i in ids] for r in answers], [[r[i] for i in ids] for r in plain], sampled)
        for name, ids in groups.items()
    )


def _row(category: str, answers: list[list[Answer]], plain: list[list[Answer]], sampled: bool) -> BenchRow:
    main = answers or plain
    betas = [
        np.minimum([beta for step in reply.steps for beta in step.betas], 1.0)
        for run in (answers if sampled else answers[:1])  # repetitions of one text add nothing
        for answer in run
        for reply in answer.replies
    ]
    low, high = mean_interval(betas) if any(map(len, betas)) else (math.nan, math.nan)
    pairs = [
        pair
        for run, plain_run in zip(answers, plain, strict=False)
        for one, other in zip(run, plain_run, strict=True)
        for pair in zip(one.replies, other.replies, strict=False)
    ]

    def speedup(speed: Callable[[list[Answer]], float], bounds: Iterable[float]) -> Speedup:
        """Return speeds over plain decoding's, by repetition; `bounds` are tokens per pass."""
        runs = zip(map(speed, answers), map(speed, plain), strict=False)
        ratios = tuple(one / other if other else math.nan for one, other in runs)
        return Speedup(ratios, tuple(bounds)) if ratios else NOT_RUN

    counts = _counts([answer for run in answers for answer in run])
    names = ("mean_acceptance_length", "draft_acceptance_rate", "per_position_acceptance_rate")
    per_run = [_counts(run).tokens_per_call for run in answers]
    return BenchRow(
        category=category, n_questions=len(main[0]), n_turns=sum(len(answer.replies) for answer in main[0]),
        n_tokens=round(sum(answer.n_tokens for run in main for answer in run) / len(main)),
        alpha=mean_of(betas), alpha_low=low, alpha_high=high,
        **{name: getattr(counts, name) for name in names},
        tokens_per_call=_counts([answer for run in main for answer in run]).tokens_per_call,
        tokens_per_s=tuple(map(_per_s, answers)), plain_tokens_per_s=tuple(map(_per_s, plain)),
        speedup=speedup(_per_s, per_run),
        decode_speedup=speedup(partial(_per_s, seconds="rounds_s"), per_run),
        question_speedup=speedup(_mean_speed, map(_question_bound, answers, plain)),
        n_equal=sum(ours.tokens == theirs.tokens for ours, theirs in pairs), n_compared=len(pairs),
    )  # fmt: skip


def _counts(answers: Sequence[Answer]) -> StepFigures:
    return StepFigures(step for answer in answers for reply in answer.replies for step in reply.steps)


def _per_s(answers: Sequence[Answer], seconds: str = "wall_s") -> float:
    """Return new tokens per second of ``wall_s``, or of ``rounds_s``."""
    total = math.fsum(getattr(reply, seconds) for one in answers for reply in one.replies)
    return sum(one.n_tokens for one in answers) / total if total else math.nan


def _mean_speed(answers: Sequence[Answer]) -> float:
    """Return the mean over questions of tokens per second."""
    return math.fsum(_per_s([one]) for one in answers) / len(answers)


def _question_bound(answers: Sequence[Answer], plain: Sequence[Answer]) -> float:
    """Return the bound on a ratio of mean speeds: tokens per pass, questions weighted by their speed."""
    weights = [_per_s([one]) for one in plain]
    bounds = [_counts([one]).tokens_per_call for one in answers]
    products = math.fsum(weight * bound for weight, bound in zip(weights, bounds, strict=True))
    return products / total if (total := math.fsum(weights)) else math.nan
