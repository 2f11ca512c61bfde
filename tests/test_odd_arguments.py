"""Public functions with odd values of every parameter: it works, or says why not by a named exception."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from decimal import Decimal
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import specdec
from command_line import ends_with_an_error
from specdec import drafts, theory
from specdec.errors import SpecdecError
from worlds.eagles import eagle_folder, mimo_target
from worlds.folders import llama_config, write_hf
from worlds.learned import look_ahead_weights, random_heads, recurrent_weights


class Hostile(Exception):  # noqa: N818
    """What an object of the caller's raises by itself: it may come through."""


def raising(*_: Any, **__: Any) -> Any:
    raise Hostile


def giving(value: Any) -> Callable[..., Any]:
    return lambda *_, **__: value


def hostile(name: str, *bases: type, **methods: Any) -> Any:
    """An object whose special methods are these; one that is no function is returned by the method."""
    members = {f"__{key}__": value if callable(value) else giving(value) for key, value in methods.items()}
    made = type(name, bases, members)
    return made("x") if issubclass(made, str) else made()


def described_result() -> dict[str, Any]:
    return specdec.Result("", [], "length", None, specdec.Trace([]), [1], (0, 0)).to_dict()


@cache
def nested(depth: int) -> list[Any]:
    """Made once: deep lists take the garbage collector long."""
    found: list[Any] = []
    for _ in range(depth):
        found = [found]
    return found


def endless() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


NUMBERS = [
    0, -1, 1, 2, 2**31 - 1, 2**31, -(2**31) - 1, 2**32, 2**63, 2**64, -(2**64), 10**400, -(10**400), 10**5000,
    0.5, 1.5, -0.5, float("nan"), float("inf"), -float("inf"), 1e308, 5e-324, 1 + 2j, Fraction(1, 3),
    Fraction(10**400), Decimal("0.5"), Decimal("NaN"), np.int8(-1), np.uint64(2**64 - 1), np.int64(1),
    np.float32("nan"), np.float64(1.0), np.float16("inf"), np.longdouble(1), np.complex64(1j), np.bool_(True),
    np.datetime64("2020"), np.array(1), np.array(1.5), np.array(None, object),
]  # fmt: skip

OTHERS: list[Callable[[], Any]] = [
    lambda: None, lambda: True, lambda: False, lambda: "", lambda: "x", lambda: "\0", lambda: "\udcff",
    lambda: "a\udcff" * 3, lambda: "x" * 5000, lambda: "~nosuchuser/x", lambda: "~", lambda: ".",
    lambda: "x/y/z", lambda: b"", lambda: b"x", lambda: b"\xff", lambda: bytearray(b"x"),
    lambda: memoryview(b"xy"), lambda: Path("x" * 5000), lambda: Path("\0"), lambda: Path("~nosuchuser"),
    lambda: [], lambda: (), lambda: [[]], lambda: [[], [1]], lambda: [[[1]]], lambda: [1, [2]],
    lambda: [None], lambda: [True], lambda: ["x"], lambda: ["\udcff"], lambda: [b"x"], lambda: [1, 2],
    lambda: [0.5, 0.5], lambda: [float("nan")], lambda: [1, "x"], lambda: [-1], lambda: [10**400],
    lambda: [10**5000], lambda: [2**31], lambda: [2**63], lambda: [1j], lambda: [object()],
    lambda: [[1], [1, 2]], lambda: [(1, 2)], lambda: [(1, 2, 3)], lambda: [None, 1], lambda: nested(50),
    lambda: nested(100_000), endless, lambda: {}, lambda: {1: 2}, lambda: {1: 10**400}, lambda: {"x": 1},
    lambda: {10**400: 1}, lambda: {1: None}, lambda: {True: 1.0}, lambda: set(), lambda: {1},
    lambda: frozenset({"x"}), object, lambda: lambda *a, **k: None, lambda: lambda *a, **k: 10**400,
    lambda: raising, lambda: iter(()), lambda: iter([1, 2]), lambda: iter(["x"]), lambda: range(0),
    lambda: range(3), lambda: slice(1), lambda: NotImplemented, lambda: ..., lambda: Ellipsis,
    lambda: Hostile(), lambda: specdec, lambda: np.array([]), lambda: np.array([1, 2]),
    lambda: np.array([[1, 2]]), lambda: np.array(["x"]), lambda: np.array([None]), lambda: np.array([1.5]),
    lambda: np.array([np.nan]), lambda: np.array([1], "uint64"), lambda: np.array([2**64 - 1], "uint64"),
    lambda: np.array([True]), lambda: np.array([1j]), lambda: np.zeros((0, 3)), lambda: np.zeros((2, 0)),
    lambda: np.zeros((1, 1, 1)), lambda: np.array([(1, 2.0)], "i4,f4"),
    lambda: np.ma.masked_array([1, 2], [0, 1]), lambda: np.array([1, 2])[::-1],
    lambda: hostile("BadIndex", index="x"), lambda: hostile("RaisingIndex", index=raising),
    lambda: hostile("BadInt", int, index="x", int="x"),
    lambda: hostile("LessInt", int, lt=raising, gt=raising, le=raising, ge=raising),
    lambda: hostile("BadFloat", float="x"), lambda: hostile("NanFloat", float, float=None),
    lambda: hostile("BadLen", len=-1, getitem=1), lambda: hostile("HugeLen", len=2**70, getitem=1),
    lambda: hostile("WordLen", len="x", getitem=1, iter=lambda self: iter([1])),
    lambda: hostile("LyingLen", len=5, iter=lambda self: iter([1])), lambda: hostile("BadList", list, len=-1),
    lambda: hostile("EmptyList", list, len=3), lambda: hostile("BadTuple", tuple, iter=5),
    lambda: hostile("BadIter", iter=5), lambda: hostile("RaisingIter", iter=raising),
    lambda: hostile("RaisingNext", iter=lambda self: self, next=raising),
    lambda: hostile("BadStr", str=5, repr=5), lambda: hostile("RaisingStr", str=raising, repr=raising),
    lambda: hostile("RecursiveRepr", repr=lambda self: repr([self])),
    lambda: hostile("SurrogateRepr", repr="\udcff"),
    lambda: hostile("StrSubclass", str, repr=raising, eq=raising, hash=1),
    lambda: hostile("RaisingEq", eq=raising, hash=raising), lambda: hostile("RaisingBool", bool=raising),
    lambda: hostile("BadBool", bool=5), lambda: hostile("RaisingGetattr", getattr=raising),
    lambda: hostile("BadPath", fspath=5), lambda: hostile("BytesPath", fspath=b"x"),
    lambda: hostile("RaisingPath", fspath=raising), lambda: hostile("RaisingHash", hash=raising),
    lambda: hostile("BadArray", array=5), lambda: hostile("RaisingArray", array=raising),
    lambda: hostile("RaisingCall", call=raising),
    lambda: hostile("BadMapping", dict, items=5, iter=5, keys=5),
]  # fmt: skip

VALUES: list[Callable[[], Any]] = [*map(giving, NUMBERS), *OTHERS]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[specdec.Model, specdec.Model]:
    """Tiny models, whose tokenizer knows single bytes."""
    folder = tmp_path_factory.mktemp("pair")
    return tuple(  # type: ignore[return-value]
        specdec.load(write_hf(folder / name, llama_config(), seed=seed), tokenizer=Bytes())
        for name, seed in (("target", 0), ("draft", 1))
    )


class Bytes:
    """A tokenizer of the caller's: a character is its code modulo the vocabulary."""

    chat_template = specdec.ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}")
    n_vocab, bos_id, eos_ids = 61, 1, (2,)

    def encode(self, text: str, *, add_bos: bool = True) -> list[int]:
        return (
            [1, *(ord(letter) % 61 for letter in text)] if add_bos else [ord(letter) % 61 for letter in text]
        )

    def decode(self, ids: Any) -> str:
        return "".join(chr(token + 32) for token in ids)

    def fingerprint(self) -> str:
        return "bytes"


class Guess:
    """A draft that proposes the same thing again and again."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def propose(self, sequence: int, tokens: Any, budget: int) -> Any:
        return self.answer


class World(NamedTuple):
    """What the functions work on."""

    target: specdec.Model
    draft: specdec.Model
    folder: Path

    def saved_memory(self) -> Path:
        path = self.folder / "memory"
        drafts.SuffixMemory().save(path)
        return path

    def saved_online(self) -> Path:
        path = self.folder / "online"
        drafts.Online(TABLE, interval=None).save(path)
        return path

    def questions(self) -> Path:
        (self.folder / "questions.jsonl").write_text('{"text": "a"}\n')
        return self.folder / "questions.jsonl"

    def saved(self) -> Path:
        TABLE.save(self.folder / "table")
        return self.folder / "table"


Case = tuple[Callable[..., Any], dict[str, Any]]

HALF = [[0.5, 0.5]]
RUN = {"prompt": [3, 4], "max_new_tokens": 3}
TEXTS = {"prompts": [[3, 4]]}
SMALL = {"n_tokens": 4, "timing": False}
COUNTED = {"ids": [1, 2, 3, 1], "n_vocab": 61}
TABLE = drafts.Ngram([1, 2, 3, 1], 61)
SEARCH = specdec.SkipSearch(
    "x", {"temperature": 0.0}, (specdec.SkipTrial((1,), (0,), 2, 1.2, 5.0, 4.0, 0.5, 1.7),)
)
RATES = {"alpha": 0.8, "cost": 0.1}
PAIR = {"target_probs": HALF, "draft_probs": HALF}


def engine_of(**given: Any) -> None:
    specdec.Engine(**given).close()


def submitted_to(world: World) -> Callable[..., Any]:
    def submit(**given: Any) -> Any:
        with specdec.Engine(world.target, world.draft, n_text=20, n_threads=1) as engine:
            return engine.submit(**given).results(60.0)

    return submit


async def all_of(pieces: Any) -> list[str]:
    return [piece async for piece in pieces]


@contextlib.contextmanager
def at_home(world: World) -> Iterator[None]:
    """Relative paths, and those of the home folder, are in a folder of the test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(world.folder)
        patch.setenv("HOME", str(world.folder))
        yield


def called_at_home(world: World, function: Callable[..., Any], given: dict[str, Any]) -> Any:
    with at_home(world):
        return function(**given)


def in_folder(world: World, save: Callable[..., None]) -> Callable[..., None]:
    """A name of a file is one in a folder of the test. An OSError must name the file that was asked for."""

    def saves(path: Any) -> None:
        with at_home(world):
            try:
                save(path)
            except OSError as error:
                if error.filename != str(Path(path).expanduser()) or error.filename2 is not None:
                    raise

    return saves


def theory_case(name: str) -> Callable[[World], Case]:
    """A formula with arguments that it takes, by the names of its parameters."""
    known = {**PAIR, **RATES, "gamma": 4, "parents": [0, 1]}
    function = getattr(theory, name)
    given = {key: value for key, value in known.items() if key in inspect.signature(function).parameters}
    return lambda _: (function, given)


def drafts_of_defaults() -> dict[str, Callable[[World], Case]]:
    """The drafts whose every parameter has a default, without arguments."""

    def case(draft: type[drafts.Draft]) -> Callable[[World], Case]:
        return lambda _: (draft, {})

    return {
        name: case(value)
        for name, value in vars(drafts).items()
        if inspect.isclass(value) and issubclass(value, drafts.Draft) and not inspect.isabstract(value)
        if all(entry.default is not entry.empty for entry in inspect.signature(value).parameters.values())
    }


CASES: dict[str, Callable[[World], Case]] = {
    **drafts_of_defaults(),
    "generate": lambda w: (specdec.generate, {"target": w.target, "draft": w.draft, **RUN}),
    "generate a batch": lambda w: (
        specdec.generate,
        {"target": w.target, "draft": w.draft, "prompt": [[3], [4]], "temperature": 1.0, "max_new_tokens": 3},
    ),
    "generate a chat": lambda w: (
        specdec.generate,
        {
            "target": w.target,
            "draft": None,
            "messages": [{"role": "user", "content": "a"}],
            "max_new_tokens": 2,
        },
    ),
    "ChatTemplate": lambda w: (specdec.ChatTemplate, {"templates": "a"}),
    "ChatTemplate.render": lambda w: (
        specdec.ChatTemplate("{{ messages }}{{ tools }}{{ documents }}").render,
        {"messages": [{"role": "user", "content": "a"}]},
    ),
    "ChatTemplate.text": lambda w: (specdec.ChatTemplate("a").text, {}),
    "Model.chat_ids": lambda w: (w.target.chat_ids, {"messages": [{"role": "user", "content": "a"}]}),
    "stream": lambda w: (
        lambda **given: list(specdec.stream(**given)),
        {"target": w.target, "draft": w.draft, **RUN},
    ),
    "beam_search": lambda w: (specdec.beam_search, {"target": w.target, "draft": w.draft, **RUN, "width": 2}),
    "measure": lambda w: (
        specdec.measure,
        {"target": w.target, "draft": w.draft, **TEXTS, **SMALL, "gammas": [1], "leniences": [1.0]},
    ),
    "convert": lambda w: (
        lambda **given: called_at_home(w, specdec.convert, given),
        {"source": w.target.path, "out": "model.gguf", "tokenizer": False},
    ),
    "tune": lambda w: (
        specdec.tune,
        {"target": w.target, "draft": w.draft, **TEXTS, "n_tokens": 4, "max_gamma": 1},
    ),
    "recommend_draft": lambda w: (
        specdec.recommend_draft,
        {"target": w.target, "drafts": {"a": w.draft}, **TEXTS, "n_tokens": 2, "repeats": 1, "gammas": [1]},
    ),
    "compare": lambda w: (
        specdec.compare,
        {
            "target": w.target,
            "drafts": {"a": w.draft},
            **TEXTS,
            "n_tokens": 2,
            "repeats": 1,
            "temperatures": [0.0],
            "gammas": [1],
        },
    ),
    "oracle": lambda w: (
        specdec.oracle,
        {"target": w.target, "draft": w.draft, **TEXTS, "max_new_tokens": 2, "max_gamma": 1, "gammas": [1]},
    ),
    "bench": lambda w: (
        lambda **given: called_at_home(w, specdec.bench, given),
        {
            "target": w.target,
            "draft": w.draft,
            "questions": ["ab"],
            "max_new_tokens": 2,
            "repeats": 1,
            "n_threads": 1,
        },
    ),
    "read_questions": lambda w: (specdec.read_questions, {"path": w.questions()}),
    "Timing": lambda w: (specdec.Timing, {}),
    "Question": lambda w: (specdec.Question, {"id": 1, "category": "c", "turns": ["a"]}),
    "speculate": lambda w: (
        specdec.speculate,
        {"f": lambda x: [0.5, 0.5], "f_approx": lambda x: [0.5, 0.5], "g": str, "x": 1},
    ),
    "verify": lambda w: (specdec.verify, {"tokens": [0], "target_probs": HALF * 2, "draft_probs": HALF}),
    "verify coupled": lambda w: (
        specdec.verify,
        {"tokens": [0], "target_probs": HALF * 2, "draft_probs": HALF, "rule": "coupled"},
    ),
    "distribution": lambda w: (specdec.distribution, {"logits": [0.5, 1.0]}),
    "load": lambda w: (
        lambda **given: called_at_home(w, specdec.load, given),
        {"path": w.target.path, "tokenizer": False},
    ),
    "embedded_pair": lambda w: (specdec.embedded_pair, {}),
    "DecodingOptions": lambda w: (specdec.DecodingOptions, {}),
    "PromptCache": lambda w: (specdec.PromptCache, {}),
    "Engine": lambda w: (engine_of, {"target": w.target, "draft": w.draft, "n_text": 20}),
    "Engine.submit": lambda w: (submitted_to(w), {"prompt": [1, 2], "max_new_tokens": 2}),
    "agenerate": lambda w: (
        lambda **given: asyncio.run(specdec.agenerate(**given)),
        {"target": w.target, "draft": w.draft, "prompt": [1, 2], "max_new_tokens": 2},
    ),
    "astream": lambda w: (
        lambda **given: asyncio.run(all_of(specdec.astream(**given))),
        {"target": w.target, "draft": w.draft, "prompt": [1, 2], "max_new_tokens": 2},
    ),
    "AdaptiveGamma": lambda w: (specdec.AdaptiveGamma, {}),
    "AdaptiveGamma in a run": lambda w: (
        lambda **given: specdec.generate(
            w.target, w.draft, [3], gamma=specdec.AdaptiveGamma(**given), max_new_tokens=2
        ),
        {},
    ),
    "kernels": lambda w: (specdec.kernels, {}),
    "Model.logits": lambda w: (w.target.logits, {"ids": [1, 2]}),
    "Model.score": lambda w: (w.target.score, {"ids": [1, 2]}),
    "Model.score of requests": lambda w: (
        lambda **given: w.target.score([[1, 2], ([1], [2])], **given),
        {"top_logprobs": 1, "batch_size": 1, "rolling": True, "n_threads": 1},
    ),
    "Model.check_ids": lambda w: (w.target.check_ids, {"ids": [1, 2]}),
    "Model.quantization_report": lambda w: (w.target.quantization_report, {"ids": [1, 2]}),
    "Ensemble": lambda w: (lambda draft, **given: drafts.Ensemble(draft, **given), {"draft": w.draft}),
    "named": lambda w: (drafts.named, {"text": "copy", "target": w.target}),
    "Trace.from_dict": lambda w: (specdec.Trace.from_dict, {"values": specdec.Trace([]).to_dict()}),
    "Result.from_dict": lambda w: (specdec.Result.from_dict, {"values": described_result()}),
    "Trace.joined": lambda w: (specdec.Trace.joined, {"traces": [specdec.Trace([])]}),
    "ParallelChains": lambda w: (drafts.ParallelChains, {"k": 2}),
    "StaticTree": lambda w: (drafts.StaticTree, {"widths": (2, 1)}),
    "StaticTree by parents": lambda w: (drafts.StaticTree, {"parents": (0, 0)}),
    "StaticTree.expected": lambda w: (drafts.StaticTree.expected, {"n_nodes": 3}),
    "DynamicTree": lambda w: (drafts.DynamicTree, {"n_nodes": 3}),
    "ModelDraft": lambda w: (drafts.ModelDraft, {"model": w.draft}),
    "Recurrent": lambda w: (drafts.Recurrent, {"weights": recurrent_weights(w.target, [1, 2, 3])}),
    "LookAheadEmbeddings": lambda w: (drafts.LookAheadEmbeddings, {"weights": look_ahead_weights(w.target)}),
    "Recurrent.probabilities": lambda w: (
        drafts.Recurrent(recurrent_weights(w.target, [1, 2, 3])).probabilities,
        {"ids": [1, 2]},
    ),
    "Heads": lambda w: (drafts.Heads, {"weights": random_heads(w.target)}),
    "drafts.load": lambda w: (
        drafts.load,
        {"path": random_heads(w.target).save(w.folder / "heads"), "target": w.target},
    ),
    "EarlyExit": lambda w: (drafts.EarlyExit, {"layer": 1}),
    "Eagle": lambda w: (
        drafts.Eagle,
        {"path": eagle_folder(w.target, "eagle3"), "target": w.target, "n_threads": 1},
    ),
    "MTP": lambda w: (drafts.MTP, {"target": mimo_target(), "n_threads": 1}),
    "SkipLayers": lambda w: (drafts.SkipLayers, {"attn": [0]}),
    "Ngram": lambda w: (drafts.Ngram, COUNTED),
    "Ngram.from_text": lambda w: (drafts.Ngram.from_text, {"texts": ["ab"], "tokenizer": w.target}),
    "Ngram.from_results": lambda w: (
        drafts.Ngram.from_results,
        {"results": specdec.generate(w.target, None, [1], max_new_tokens=2), "target": w.target},
    ),
    "Ngram.load": lambda w: (drafts.Ngram.load, {"path": w.saved()}),
    "Ngram.probabilities": lambda w: (TABLE.probabilities, {"ids": [1, 2]}),
    "Unigram": lambda w: (drafts.Unigram, COUNTED),
    "Bigram": lambda w: (drafts.Bigram, COUNTED),
    "OnlineNgram.probabilities": lambda w: (drafts.OnlineNgram().probabilities, {"ids": [1], "n_vocab": 61}),
    "PythonDraft": lambda w: (drafts.PythonDraft, {"drafter": Guess([1])}),
    "Ngram.save": lambda w: (in_folder(w, TABLE.save), {"path": "table"}),
    "SuffixMemory.add": lambda w: (drafts.SuffixMemory().add, {"ids": [1, 2], "prompt": [3]}),
    "SuffixMemory.save": lambda w: (in_folder(w, drafts.SuffixMemory().save), {"path": "memory"}),
    "SuffixMemory.load": lambda w: (drafts.SuffixMemory.load, {"path": w.saved_memory()}),
    "Online": lambda w: (drafts.Online, {"draft": TABLE, "interval": None}),
    "Online.save": lambda w: (in_folder(w, drafts.Online(TABLE).save), {"path": "learnt"}),
    "Online.load": lambda w: (drafts.Online.load, {"path": w.saved_online(), "draft": TABLE}),
    "TableLearner": lambda w: (drafts.TableLearner, {"draft": TABLE}),
    "TokenRecycling in a run": lambda w: (
        lambda **given: specdec.generate(w.target, drafts.TokenRecycling(**given), [3], max_new_tokens=2),
        {},
    ),
    "SkipSearch.save": lambda w: (in_folder(w, SEARCH.save), {"path": "search"}),
    **{f"theory.{name}": theory_case(name) for name in theory.__all__},
}
"""Each function and arguments that it takes."""


ENDLESS = {
    ("measure", "repeats"), ("compare", "repeats"), ("recommend_draft", "repeats"), ("bench", "repeats"),
}  # fmt: skip
"""How often something is done: large numbers are obeyed."""

LONG = {"bench"}
"""Cases that take seconds."""

SOURCES = {
    "convert": specdec.convert, "load": specdec.load, "bench": specdec.bench,
    "generate a batch": specdec.generate, "stream": specdec.stream, "Ensemble": drafts.Ensemble,
    "Engine": specdec.Engine, "Engine.submit": specdec.Engine.submit, "agenerate": specdec.agenerate,
    "astream": specdec.astream, "AdaptiveGamma in a run": specdec.AdaptiveGamma,
    "TokenRecycling in a run": drafts.TokenRecycling,
}  # fmt: skip


def parameters(name: str, function: Callable[..., Any]) -> list[str]:
    signature = inspect.signature(SOURCES.get(name, function))
    kinds = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    found = [
        entry.name
        for entry in signature.parameters.values()
        if entry.kind not in kinds and entry.name != "self"
    ]
    return ["draft", *found] if name == "Ensemble" else found


def complaint(function: Callable[..., Any], given: dict[str, Any]) -> str | None:
    """What is wrong with what came of a call."""
    try:
        function(**given)
    except (SpecdecError, Hostile) as error:
        try:
            text = str(error)
        except Exception as another:
            return f"{type(error).__name__} whose text cannot be had: {type(another).__name__}"
        return (
            None if len(text) < 2000 or isinstance(error, Hostile) else f"a message of {len(text)} characters"
        )
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:150]}"
    return None


def shown(value: Any) -> str:
    try:
        return f"{type(value).__name__} {value!r:.60}"
    except Exception:
        return type(value).__name__


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in LONG else name for name in CASES]
)
def test_every_parameter_takes_or_refuses_every_value(
    name: str, pair: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("specdec.analysis.prediction._ENOUGH_S", 0.0)
    monkeypatch.setattr("specdec.analysis.prediction._TURNS", (1, 1))
    monkeypatch.setattr("specdec.analysis.prediction._WARM_UP", 0)
    monkeypatch.setattr("specdec.analysis.prediction._N_NEW", 4)
    function, given = CASES[name](World(*pair, tmp_path))
    assert complaint(function, given) is None
    found: Counter[tuple[str, str]] = Counter()
    names = parameters(name, function)
    step = min(4, len(names))  # every value is given to every fourth parameter
    for i, parameter in enumerate(names):
        for make in VALUES[i % step :: step]:
            if (name, parameter) in ENDLESS:
                continue
            value = make()
            wrong = complaint(function, {**given, parameter: value})
            if wrong is not None:
                found[parameter, f"{shown(value)}: {wrong}"] += 1
    capsys.readouterr()  # progress bars
    assert found == {}


def test_every_public_function_is_in_the_table() -> None:
    """But what is made by others alone, and what needs Optuna or matplotlib."""
    made_by_others = {
        "Beam", "BeamResult", "BeamTrace", "Bench", "BenchRow", "Comparison", "Constraint",
        "ConstraintState", "EngineMetrics", "Explorer", "ExplorerSettings", "DraftFit", "ExperimentRow",
        "Generation", "KnownModel", "Measurement", "Model", "Oracle", "OracleRow", "DraftRecommendation",
        "Piece", "QuantizationReport", "Result", "Round", "Sampling", "Score", "SkipSearch", "SkipTrial",
        "Speculation", "Speculative", "Speedup", "StatefulTransform", "Stream", "Trace",
        "TransformState", "Tuning", "UnusedFieldWarning", "__version__", "available_kernels", "explore",
        "search_skips",
    }  # fmt: skip
    rest = {entry for entry in specdec.__all__ if not entry.endswith("Error")} - (set(CASES) - {"Model"})
    assert rest == made_by_others, "public names and the entries of CASES and made_by_others differ"
    missing = (
        set(drafts.__all__)
        - set(CASES)
        - {"Draft", "DraftName", "Drafter", "Proposal", "Learner", "NetworkLearner", "HeadsLearner", "NAMES"}
    )
    assert not missing, f"give CASES an entry with the arguments that it needs: drafts.{sorted(missing)}"
    assert {f"theory.{name}" for name in theory.__all__} <= set(CASES)


@pytest.mark.filterwarnings("ignore::numpy.exceptions.ComplexWarning")  # NumPy's float() of a complex number
@pytest.mark.parametrize("make", VALUES)
def test_what_a_draft_proposes(make: Callable[[], Any], pair: Any) -> None:
    """Each field of a proposal, and a bare answer."""
    target, _ = pair
    row = np.full(61, 1 / 61)
    for field in ("tokens", "parents", "probs", "confidence"):
        given = {"tokens": [1], "parents": [0], "probs": [row], "confidence": [0.5]}
        for value in (make(), [make()]):
            answer = drafts.Proposal(**{**given, field: value})
            run = {"target": target, "draft": Guess(answer), "prompt": [3], "max_new_tokens": 3, "gamma": 2}
            assert complaint(specdec.generate, run) is None, field
    run = {"target": target, "draft": Guess(make()), "prompt": [3], "max_new_tokens": 3, "gamma": 2}
    assert complaint(specdec.generate, run) is None


@pytest.mark.parametrize("make", VALUES)
def test_what_a_transform_returns(make: Callable[[], Any], pair: Any) -> None:
    target, _ = pair
    run = {"target": target, "draft": None, "prompt": [3], "max_new_tokens": 3}
    assert complaint(specdec.generate, {**run, "transform": lambda *_: make()}) is None


def test_errors_of_the_caller_s_own_come_through(pair: Any) -> None:
    """They are raised while the items are computed, and say nothing of the argument."""
    with pytest.raises(ZeroDivisionError):
        specdec.generate(pair[0], None, [3], max_new_tokens=2, stop=(1 // token for token in [1, 0]))
    with pytest.raises(TypeError, match="unsupported operand"):
        pair[0].logits(token + "x" for token in ["3", 4])


@pytest.mark.parametrize(
    ("value", "expected"),
    [("a  b\tc", "'a  b\\tc'"), (np.array([[1, 2], [3, 4]]), "array([[1, 2], [3, 4]])"), ("x" * 300, "...")],
)
def test_a_value_in_a_message(value: Any, expected: str) -> None:
    """As Python writes it, on one line."""
    from specdec.errors import LONGEST_VALUE
    from specdec.errors import shown as quoted

    assert expected in quoted(value) and len(quoted(value)) <= LONGEST_VALUE


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("~nosuchuser/x", "home"), ("x" * 5000, "too long"), (f"{'y' * 300}/x", "too long"), ("a\0b", "null"),
        (Path("~nosuchuser"), "home"), ("no such folder", "no such file"),
    ],
)  # fmt: skip
def test_paths_of_no_file(path: Any, message: str) -> None:
    for use in (specdec.load, drafts.Ngram.load):
        with pytest.raises(specdec.CheckpointError, match=message):
            use(path)
    with pytest.raises(specdec.InputError, match="path is None; expected a path"):
        specdec.load(None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--top-k", str(2**31)], ["--top-k", str(10**400)], ["--max-new-tokens", str(-(10**400))],
        ["--seed", str(10**400)], ["--threads", str(10**400)], ["--temperature", "1e999"],
        ["--gamma", str(10**400)], ["--target", "~nosuchuser/x", "--draft", "~nosuchuser/x"],
        ["--target", "x" * 5000, "--draft", "y"], ["--lenience", "nan"], ["--top-k", "9" * 5000], ["\udcff"],
        ["generate", "\udcff"], ["generate", "--draft", "online:" * 3000 + "copy", "a"],
        ["generate", "--draft", "exit:" + "9" * 5000, "a"], ["generate", "--samples", "0", "--json", "a"],
        ["compare", "\udcff"], ["measure", "--prompts", "/"], ["measure", "--gammas", "9" * 5000],
        ["bench", "\0"], ["tune", "--max-gamma", "-1", "a"], ["recommend", "embedded", "exit:99"],
        ["recommend", "embedded", "\udcff"],
    ],
)  # fmt: skip
def test_the_command_line_has_no_traceback(arguments: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert ends_with_an_error(arguments)
    captured = capfd.readouterr()
    assert "error: " in captured.err and "Traceback" not in captured.err and captured.out == ""


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
def test_a_folder_that_may_not_be_searched(tmp_path: Path, pair: Any) -> None:
    closed = tmp_path / "closed"
    (closed / "model").mkdir(parents=True)
    script = f"""
import os, sys
import specdec
for use in (specdec.load, specdec.drafts.Ngram.load):  # the other user may not read the interpreter's files
    try:
        use({str(closed / "model")!r})
    except specdec.CheckpointError:
        pass
os.chmod({str(closed)!r}, 0)
if os.geteuid() == 0:
    os.seteuid(65534)
for use in (specdec.load, specdec.drafts.Ngram.load):
    for path in ({str(closed / "model")!r}, {str(closed / "model" / "x.bin")!r}):
        try:
            use(path)
        except specdec.CheckpointError as error:
            assert "ermission denied" in str(error), error
        else:
            raise SystemExit("loaded")
"""
    for folder in (tmp_path, *tmp_path.parents[:3]):  # the other user must come so far
        if folder.owner() != "root" or folder.stat().st_mode & 0o5 != 0o5:
            try:
                folder.chmod(folder.stat().st_mode | 0o5)
            except PermissionError:
                pass
    try:
        run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    finally:
        closed.chmod(0o700)
    assert run.returncode == 0, run.stderr
