"""Public functions with odd values of every parameter work, or raise a named exception."""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from collections.abc import Callable
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
from worlds.assistants import assisted
from worlds.eagles import eagle_folder, mimo_target
from worlds.folders import llama_config, write_hf
from worlds.learned import look_ahead_weights, random_heads, recurrent_weights


class Hostile(Exception):  # noqa: N818
    """An exception raised by a caller's object, which may propagate."""


def raising(*_: Any, **__: Any) -> Any:
    raise Hostile


def giving(value: Any) -> Callable[..., Any]:
    return lambda *_, **__: value


def hostile(name: str, *bases: type, **methods: Any) -> Any:
    """Return an object with these special methods; a value is returned by its method."""
    members = {f"__{key}__": value if callable(value) else giving(value) for key, value in methods.items()}
    made = type(name, bases, members)
    return made("x") if issubclass(made, str) else made()


def described_result() -> dict[str, Any]:
    return specdec.Result("", [], "length", None, specdec.Trace([]), [1], (0, 0)).to_dict()


@cache
def nested(depth: int) -> list[Any]:
    """Return a deep list, made once because the garbage collector takes long."""
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


def values() -> list[Any]:
    """Return odd values, new ones in each call."""
    return [
        *NUMBERS,
        None, True, False, "", "x", "\0", "\udcff", "a\udcff" * 3, "x" * 5000, "~nosuchuser/x", "~", ".",
        "x/y/z", b"", b"x", b"\xff", bytearray(b"x"), memoryview(b"xy"), Path("x" * 5000), Path("\0"),
        Path("~nosuchuser"), [], (), [[]], [[], [1]], [[[1]]], [1, [2]], [None], [True], ["x"], ["\udcff"],
        [b"x"], [1, 2], [0.5, 0.5], [float("nan")], [1, "x"], [-1], [10**400], [10**5000], [2**31], [2**63],
        [1j], [object()], [[1], [1, 2]], [(1, 2)], [(1, 2, 3)], [None, 1], nested(50), nested(100_000),
        endless(), {}, {1: 2}, {1: 10**400}, {"x": 1}, {10**400: 1}, {1: None}, {True: 1.0}, set(), {1},
        frozenset({"x"}), object(), lambda *a, **k: None, lambda *a, **k: 10**400, raising, iter(()),
        iter([1, 2]), iter(["x"]), range(0), range(3), slice(1), NotImplemented, ..., Ellipsis, Hostile(),
        specdec, np.array([]), np.array([1, 2]), np.array([[1, 2]]), np.array(["x"]), np.array([None]),
        np.array([1.5]), np.array([np.nan]), np.array([1], "uint64"), np.array([2**64 - 1], "uint64"),
        np.array([True]), np.array([1j]), np.zeros((0, 3)), np.zeros((2, 0)), np.zeros((1, 1, 1)),
        np.array([(1, 2.0)], "i4,f4"), np.ma.masked_array([1, 2], [0, 1]), np.array([1, 2])[::-1],
        hostile("BadIndex", index="x"), hostile("RaisingIndex", index=raising),
        hostile("BadInt", int, index="x", int="x"),
        hostile("LessInt", int, lt=raising, gt=raising, le=raising, ge=raising),
        hostile("BadFloat", float="x"), hostile("NanFloat", float, float=None),
        hostile("BadLen", len=-1, getitem=1), hostile("HugeLen", len=2**70, getitem=1),
        hostile("WordLen", len="x", getitem=1, iter=lambda self: iter([1])),
        hostile("LyingLen", len=5, iter=lambda self: iter([1])), hostile("BadList", list, len=-1),
        hostile("EmptyList", list, len=3), hostile("BadTuple", tuple, iter=5), hostile("BadIter", iter=5),
        hostile("RaisingIter", iter=raising), hostile("RaisingNext", iter=lambda self: self, next=raising),
        hostile("BadStr", str=5, repr=5), hostile("RaisingStr", str=raising, repr=raising),
        hostile("RecursiveRepr", repr=lambda self: repr([self])), hostile("SurrogateRepr", repr="\udcff"),
        hostile("StrSubclass", str, repr=raising, eq=raising, hash=1),
        hostile("RaisingEq", eq=raising, hash=raising), hostile("RaisingBool", bool=raising),
        hostile("BadBool", bool=5), hostile("RaisingGetattr", getattr=raising), hostile("BadPath", fspath=5),
        hostile("BytesPath", fspath=b"x"), hostile("RaisingPath", fspath=raising),
        hostile("RaisingHash", hash=raising), hostile("BadArray", array=5),
        hostile("RaisingArray", array=raising), hostile("RaisingCall", call=raising),
        hostile("BadMapping", dict, items=5, iter=5, keys=5),
    ]  # fmt: skip


N_VALUES = len(values())


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[specdec.Model, specdec.Model]:
    """Return tiny models, whose tokenizer has only single bytes."""
    folder = tmp_path_factory.mktemp("pair")
    return tuple(  # type: ignore[return-value]
        specdec.load(write_hf(folder / name, llama_config(), seed=seed), tokenizer=Bytes())
        for name, seed in (("target", 0), ("draft", 1))
    )


class Bytes:
    """A caller's tokenizer: a character's id is its code modulo the vocabulary size."""

    chat_template = specdec.ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}")
    n_vocab, bos_id, eos_ids = 61, 1, (2,)

    def encode(self, text: str, *, add_bos: bool = True) -> list[int]:
        return [1] * add_bos + [ord(letter) % 61 for letter in text]

    def decode(self, ids: Any) -> str:
        return "".join(chr(token + 32) for token in ids)

    def fingerprint(self) -> str:
        return "bytes"


class FixedDraft:
    """A draft that always proposes the same tokens."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def propose(self, sequence: int, tokens: Any, budget: int) -> Any:
        return self.answer


class World(NamedTuple):
    """Objects that the functions work on."""

    target: specdec.Model
    draft: specdec.Model
    folder: Path

    @property
    def pair(self) -> dict[str, Any]:
        return {"target": self.target, "draft": self.draft}

    @property
    def several(self) -> dict[str, Any]:
        return {"target": self.target, "drafts": {"a": self.draft}, **TEXTS, "n_tokens": 2, "repeats": 1}

    def recurrent(self) -> Any:
        return recurrent_weights(self.target, [1, 2, 3])

    def submit(self, **given: Any) -> Any:
        with specdec.Engine(self.target, self.draft, n_text=20, n_threads=1) as engine:
            return engine.submit(**given).results(60.0)

    def questions(self) -> Path:
        (self.folder / "questions.jsonl").write_text('{"text": "a"}\n')
        return self.folder / "questions.jsonl"

    def saved(self, name: str, what: Any) -> Path:
        what.save(self.folder / name)
        return self.folder / name


Case = tuple[Callable[..., Any], dict[str, Any]]
"""A function and arguments that it takes."""

HALF = [[0.5, 0.5]]
RUN = {"prompt": [3, 4], "max_new_tokens": 3}
TEXTS = {"prompts": [[3, 4]], "n_tokens": 4}
MESSAGES = [{"role": "user", "content": "a"}]
TABLE = drafts.Ngram([1, 2, 3, 1], 61)
SEARCH = specdec.SkipSearch(
    "x", {"temperature": 0.0}, (specdec.SkipTrial((1,), (0,), 2, 1.2, 5.0, 4.0, 0.5, 1.7),)
)
PAIR = {"target_probs": HALF, "draft_probs": HALF}


def engine_of(**given: Any) -> None:
    specdec.Engine(**given).close()


async def all_of(pieces: Any) -> list[str]:
    return [piece async for piece in pieces]


def at_home(world: World, function: Callable[..., Any]) -> Callable[..., Any]:
    """Redirect relative paths and the home folder to a folder of the test."""

    def call(**given: Any) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(world.folder)
            patch.setenv("HOME", str(world.folder))
            return function(**given)

    return call


def saving(world: World, save: Callable[..., None]) -> Callable[..., None]:
    """Return a file name in a folder of the test. An OSError must name the requested file."""

    def saves(path: Any) -> None:
        try:
            save(path)
        except OSError as error:
            if error.filename != str(Path(path).expanduser()) or error.filename2 is not None:
                raise

    return at_home(world, saves)


def of(module: Any, name: str, given: Callable[[World], dict[str, Any]]) -> Callable[[World], Case]:
    return lambda w: (getattr(module, name), given(w))


def theory_case(name: str) -> Callable[[World], Case]:
    """Return a formula with valid arguments by parameter name."""
    known = {**PAIR, "alpha": 0.8, "cost": 0.1, "gamma": 4, "parents": [0, 1], "ratios": [[0.5, 1.5]]}
    taken = inspect.signature(getattr(theory, name)).parameters
    return of(theory, name, lambda w: {key: known[key] for key in taken if key in known})


def drafts_of_defaults() -> list[str]:
    """Return drafts whose every parameter has a default."""
    public = {name: getattr(drafts, name) for name in drafts.__all__}
    return [
        name
        for name, value in public.items()
        if inspect.isclass(value) and issubclass(value, drafts.Draft) and not inspect.isabstract(value)
        if all(entry.default is not entry.empty for entry in inspect.signature(value).parameters.values())
    ]


OF_SPECDEC: dict[str, Callable[[World], dict[str, Any]]] = {
    **dict.fromkeys(
        ("Timing", "embedded_pair", "DecodingOptions", "PromptCache", "AdaptiveGamma", "kernels"),
        lambda w: {},
    ),
    "generate": lambda w: {**w.pair, **RUN}, "beam_search": lambda w: {**w.pair, **RUN, "width": 2},
    "measure": lambda w: {**w.pair, **TEXTS, "timing": False, "gammas": [1], "leniences": [1.0]},
    "tune": lambda w: {**w.pair, **TEXTS, "max_gamma": 1},
    "recommend_draft": lambda w: {**w.several, "gammas": [1]},
    "compare": lambda w: {**w.several, "temperatures": [0.0], "gammas": [1]},
    "oracle": lambda w: {
        **w.pair, "prompts": [[3, 4]], "max_new_tokens": 2, "max_gamma": 1, "gammas": [1],
    },
    "read_questions": lambda w: {"path": w.questions()},
    "Question": lambda w: {"id": 1, "category": "c", "turns": ["a"]},
    "speculate": lambda w: {"f": lambda x: [0.5, 0.5], "f_approx": lambda x: [0.5, 0.5], "g": str, "x": 1},
    "verify": lambda w: {**PAIR, "tokens": [0], "target_probs": HALF * 2},
    "distribution": lambda w: {"logits": [0.5, 1.0]}, "ChatTemplate": lambda w: {"templates": "a"},
}  # fmt: skip
OF_DRAFTS: dict[str, Callable[[World], dict[str, Any]]] = {
    **dict.fromkeys(drafts_of_defaults(), lambda w: {}),
    **dict.fromkeys(("Ngram", "Unigram", "Bigram"), lambda w: {"ids": [1, 2, 3, 1], "n_vocab": 61}),
    "named": lambda w: {"text": "prompt-lookup", "target": w.target}, "ParallelChains": lambda w: {"k": 2},
    "StaticTree": lambda w: {"widths": (2, 1)}, "DynamicTree": lambda w: {"n_nodes": 3},
    "ModelDraft": lambda w: {"model": w.draft}, "RecurrentDraft": lambda w: {"weights": w.recurrent()},
    "LookAheadEmbeddings": lambda w: {"weights": look_ahead_weights(w.target)},
    "DecodingHeads": lambda w: {"weights": random_heads(w.target)}, "EarlyExit": lambda w: {"layer": 1},
    "Eagle": lambda w: {"path": eagle_folder(w.target, "eagle3"), "target": w.target, "n_threads": 1},
    "Assistant": lambda w: {"target": assisted()[0], "path": assisted()[1], "n_threads": 1},
    "MTP": lambda w: {"target": mimo_target(), "n_threads": 1}, "SkipLayers": lambda w: {"attn": [0]},
    "PythonDraft": lambda w: {"drafter": FixedDraft([1])}, "OnlineTableTrainer": lambda w: {"draft": TABLE},
    "OnlineDraft": lambda w: {"draft": TABLE, "interval": None},
}  # fmt: skip

CASES: dict[str, Callable[[World], Case]] = {
    **{name: of(specdec, name, given) for name, given in OF_SPECDEC.items()},
    **{name: of(drafts, name, given) for name, given in OF_DRAFTS.items()},
    **{f"theory.{name}": theory_case(name) for name in theory.__all__},
    "generate a batch": lambda w: (
        specdec.generate, {**w.pair, "prompt": [[3], [4]], "temperature": 1.0, "max_new_tokens": 3}
    ),
    "generate a chat": lambda w: (
        specdec.generate, {"target": w.target, "draft": None, "messages": MESSAGES, "max_new_tokens": 2}
    ),
    "ChatTemplate.render": lambda w: (
        specdec.ChatTemplate("{{ messages }}{{ tools }}{{ documents }}").render, {"messages": MESSAGES}
    ),
    "ChatTemplate.text": lambda w: (specdec.ChatTemplate("a").text, {}),
    "Model.chat_ids": lambda w: (w.target.chat_ids, {"messages": MESSAGES}),
    "stream": lambda w: (lambda **given: list(specdec.stream(**given)), {**w.pair, **RUN}),
    "convert": lambda w: (
        at_home(w, specdec.convert), {"source": w.target.path, "out": "model.gguf", "tokenizer": False}
    ),
    "bench": lambda w: (
        at_home(w, specdec.bench),
        {**w.pair, "questions": ["ab"], "max_new_tokens": 2, "repeats": 1, "n_threads": 1},
    ),
    "load": lambda w: (at_home(w, specdec.load), {"path": w.target.path, "tokenizer": False}),
    "verify coupled": lambda w: (specdec.verify, {**OF_SPECDEC["verify"](w), "rule": "coupled"}),
    "Engine": lambda w: (engine_of, {**w.pair, "n_text": 20}), "Engine.submit": lambda w: (w.submit, RUN),
    "agenerate": lambda w: (lambda **given: asyncio.run(specdec.agenerate(**given)), {**w.pair, **RUN}),
    "astream": lambda w: (lambda **given: asyncio.run(all_of(specdec.astream(**given))), {**w.pair, **RUN}),
    "AdaptiveGamma in a run": lambda w: (
        lambda **given: specdec.generate(*w[:2], **RUN, gamma=specdec.AdaptiveGamma(**given)), {}
    ),
    "Model.logits": lambda w: (w.target.logits, {"ids": [1, 2]}),
    "Model.score": lambda w: (w.target.score, {"ids": [1, 2]}),
    "Model.score of requests": lambda w: (
        lambda **given: w.target.score([[1, 2], ([1], [2])], **given),
        {"top_logprobs": 1, "batch_size": 1, "rolling": True, "n_threads": 1},
    ),
    "Model.check_ids": lambda w: (w.target.check_ids, {"ids": [1, 2]}),
    "Model.quantization_report": lambda w: (w.target.quantization_report, {"ids": [1, 2]}),
    "Trace.from_dict": lambda w: (specdec.Trace.from_dict, {"values": specdec.Trace([]).to_dict()}),
    "Trace.joined": lambda w: (specdec.Trace.joined, {"traces": [specdec.Trace([])]}),
    "Result.from_dict": lambda w: (specdec.Result.from_dict, {"values": described_result()}),
    "SkipSearch.save": lambda w: (saving(w, SEARCH.save), {"path": "search"}),
    "Ensemble": lambda w: (lambda draft, **given: drafts.Ensemble(draft, **given), {"draft": w.draft}),
    "StaticTree by parents": lambda w: (drafts.StaticTree, {"parents": (0, 0)}),
    "StaticTree.expected": lambda w: (drafts.StaticTree.expected, {"n_nodes": 3}),
    "RecurrentDraft.probabilities": lambda w: (
        drafts.RecurrentDraft(w.recurrent()).probabilities, {"ids": [1, 2]}
    ),
    "drafts.load": lambda w: (
        drafts.load, {"path": w.saved("heads", random_heads(w.target)), "target": w.target}
    ),
    "Ngram.from_text": lambda w: (drafts.Ngram.from_text, {"texts": ["ab"], "tokenizer": w.target}),
    "Ngram.from_results": lambda w: (
        drafts.Ngram.from_results,
        {"results": specdec.generate(w.target, None, [1], max_new_tokens=2), "target": w.target},
    ),
    "Ngram.save": lambda w: (saving(w, TABLE.save), {"path": "table"}),
    "Ngram.load": lambda w: (drafts.Ngram.load, {"path": w.saved("table", TABLE)}),
    "Ngram.probabilities": lambda w: (TABLE.probabilities, {"ids": [1, 2]}),
    "OnlineNgram.probabilities": lambda w: (drafts.OnlineNgram().probabilities, {"ids": [1], "n_vocab": 61}),
    "SuffixDecoding.add": lambda w: (drafts.SuffixDecoding().add, {"ids": [1, 2], "prompt": [3]}),
    "SuffixDecoding.save": lambda w: (saving(w, drafts.SuffixDecoding().save), {"path": "memory"}),
    "SuffixDecoding.load": lambda w: (
        drafts.SuffixDecoding.load, {"path": w.saved("memory", drafts.SuffixDecoding())}
    ),
    "OnlineDraft.save": lambda w: (saving(w, drafts.OnlineDraft(TABLE).save), {"path": "learned"}),
    "OnlineDraft.load": lambda w: (
        drafts.OnlineDraft.load,
        {"path": w.saved("online", drafts.OnlineDraft(TABLE, interval=None)), "draft": TABLE}
    ),
    "TokenRecycling in a run": lambda w: (
        lambda **given: specdec.generate(w.target, drafts.TokenRecycling(**given), [3], max_new_tokens=2), {}
    ),
}  # fmt: skip
"""Each function and arguments that it takes."""


ENDLESS = {
    ("measure", "repeats"), ("compare", "repeats"), ("recommend_draft", "repeats"), ("bench", "repeats"),
}  # fmt: skip
"""Numbers of repetitions: large numbers are obeyed."""

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
    variadic = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    entries = signature.parameters.values()
    found = [
        parameter.name for parameter in entries if parameter.kind not in variadic and parameter.name != "self"
    ]
    return ["draft", *found] if name == "Ensemble" else found


def complaint(function: Callable[..., Any], given: dict[str, Any]) -> str | None:
    """Describe what is wrong with a call's outcome."""
    try:
        function(**given)
    except (SpecdecError, Hostile) as error:
        n = 0 if isinstance(error, Hostile) else len(str(error))
        return None if n < 2000 else f"a message of {n} characters"
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
    for setting, less in {"ENOUGH_S": 0.0, "TURNS": (1, 1), "WARM_UP": 0, "N_NEW": 4}.items():
        monkeypatch.setattr(f"specdec.analysis.prediction._{setting}", less)
    function, given = CASES[name](World(*pair, tmp_path))
    assert complaint(function, given) is None
    found: Counter[tuple[str, str]] = Counter()
    names = parameters(name, function)
    like_generate = name in {"stream", "agenerate", "astream", "Engine.submit"}
    every = 16 if like_generate else 4  # each value is given to every fourth parameter, or every 16th
    step = min(every, len(names))
    for i, parameter in enumerate(names):
        for value in values()[i % step :: step]:
            if (name, parameter) in ENDLESS:
                continue
            wrong = complaint(function, {**given, parameter: value})
            if wrong is not None:
                found[parameter, f"{shown(value)}: {wrong}"] += 1
    capsys.readouterr()  # progress bars
    assert found == {}


def test_every_public_function_is_in_the_table() -> None:
    """Except what others create, and what needs Optuna or matplotlib."""
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
    trainers = {"OnlineTrainer", "OnlineNetworkTrainer", "OnlineHeadsTrainer"}
    none = {"Draft", "DraftName", "Drafter", "Proposal", "NAMES"} | trainers
    missing = set(drafts.__all__) - set(CASES) - none
    assert not missing, f"give CASES an entry with the arguments that it needs: drafts.{sorted(missing)}"


@pytest.mark.filterwarnings("ignore::numpy.exceptions.ComplexWarning")  # NumPy's float() of a complex number
@pytest.mark.parametrize("index", range(N_VALUES))
def test_what_a_draft_proposes(index: int, pair: Any) -> None:
    """Each field of a proposal, and a bare answer."""
    target, _ = pair
    row = np.full(61, 1 / 61)
    for field in ("tokens", "parents", "probs", "confidence"):
        given = {"tokens": [1], "parents": [0], "probs": [row], "confidence": [0.5]}
        for value in (values()[index], [values()[index]]):
            answer = drafts.Proposal(**{**given, field: value})
            run = {
                "target": target,
                "draft": FixedDraft(answer),
                "prompt": [3],
                "max_new_tokens": 3,
                "gamma": 2,
            }
            assert complaint(specdec.generate, run) is None, field
    run = {
        "target": target,
        "draft": FixedDraft(values()[index]),
        "prompt": [3],
        "max_new_tokens": 3,
        "gamma": 2,
    }
    assert complaint(specdec.generate, run) is None


@pytest.mark.parametrize("index", range(N_VALUES))
def test_what_a_transform_returns(index: int, pair: Any) -> None:
    target, _ = pair
    run = {"target": target, "draft": None, "prompt": [3], "max_new_tokens": 3}
    assert complaint(specdec.generate, {**run, "transform": lambda *_: values()[index]}) is None


def test_errors_of_the_caller_s_own_come_through(pair: Any) -> None:
    """Errors raised while items are computed do not name the argument."""
    with pytest.raises(ZeroDivisionError):
        specdec.generate(pair[0], None, [3], max_new_tokens=2, stop=(1 // token for token in [1, 0]))
    with pytest.raises(TypeError, match="unsupported operand"):
        pair[0].logits(token + "x" for token in ["3", 4])


@pytest.mark.parametrize(
    ("value", "expected"),
    [("a  b\tc", "'a  b\\tc'"), (np.array([[1, 2], [3, 4]]), "array([[1, 2], [3, 4]])"), ("x" * 300, "...")],
)
def test_a_value_in_a_message(value: Any, expected: str) -> None:
    """As in Python, on one line."""
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
        ["generate", "\udcff"], ["generate", "--draft", "online:" * 3000 + "prompt-lookup", "a"],
        ["generate", "--draft", "early-exit:" + "9" * 5000, "a"], ["compare", "\udcff"],
        ["generate", "--samples", "0", "--json", "a"], ["measure", "--prompts", "/"],
        ["measure", "--gammas", "9" * 5000], ["bench", "\0"],
        ["tune", "--max-gamma", "-1", "a"], ["recommend", "embedded", "early-exit:99"],
        ["recommend", "embedded", "\udcff"],
    ],
)  # fmt: skip
def test_the_command_line_has_no_traceback(arguments: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert ends_with_an_error(arguments)
    captured = capfd.readouterr()
    assert "error: " in captured.err and "Traceback" not in captured.err and captured.out == ""
