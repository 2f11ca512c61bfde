"""An exception from a signal handler reaches the program, whatever specdec is doing and whatever its type."""

from __future__ import annotations

import functools
import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import specdec
from specdec.errors import CheckpointError, InputError, SpecdecError
from trained import DRAFT, small_pair


class LateError(TimeoutError, ValueError):
    """Error raised by a handler, of types that libraries raise too."""


def late(number: int, frame: object) -> None:
    raise LateError


class Handler:
    """A handler that is an object."""

    def __call__(self, number: int, frame: object) -> None:
        raise LateError

    def method(self, number: int, frame: object) -> None:
        late(number, frame)


HANDLERS: dict[str, Any] = {
    "function": late, "object": Handler(), "method": Handler().method,
    "partial": functools.partial(lambda given, number, frame: late(number, frame), 3),
}  # fmt: skip


@pytest.fixture(params=HANDLERS)
def handled(request: pytest.FixtureRequest) -> Iterator[None]:
    before = signal.signal(signal.SIGALRM, HANDLERS[request.param])
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def interrupted(*_: object, **__: object) -> Any:
    """Replaces a library's function by one during which the signal arrives."""
    signal.raise_signal(signal.SIGALRM)


class Odd:
    """A user's object that receives the signal in its methods."""

    __repr__ = __index__ = __array__ = __iter__ = __fspath__ = __reduce__ = interrupted


def encoding(patched: pytest.MonkeyPatch, folder: Path) -> None:
    import tokenizers

    class Pieces:
        def encode(self, *_: object, **__: object) -> Any:
            return interrupted()

        encode_batch = encode_batch_fast = encode

        def __getattr__(self, name: str) -> Any:
            return getattr(library, name)

    tokenizer: Any = specdec.load(DRAFT).tokenizer
    library = tokenizer.library
    assert isinstance(library, tokenizers.Tokenizer)
    patched.setattr(tokenizer, "_library" if hasattr(tokenizer, "_library") else "library", Pieces())
    tokenizer.encode("some text")


def loading(function: str) -> Callable[[pytest.MonkeyPatch, Path], object]:
    """The signal arrives in a function called by loading."""

    def load(patched: pytest.MonkeyPatch, folder: Path) -> None:
        patched.setattr(function, interrupted)
        specdec.load(DRAFT)

    return load


def packed_file(patched: pytest.MonkeyPatch, folder: Path) -> None:
    path = specdec.convert(DRAFT, folder / "model.specdec", "int8")
    patched.setattr(Path, "exists", interrupted)
    specdec.load(path)


def hub(patched: pytest.MonkeyPatch, folder: Path) -> None:
    huggingface_hub = pytest.importorskip("huggingface_hub")
    for name in ("snapshot_download", "hf_hub_download", "list_repo_files"):
        patched.setattr(huggingface_hub, name, interrupted)
    specdec.load("nobody/nothing")


def grammar(patched: pytest.MonkeyPatch, folder: Path) -> None:
    llguidance = pytest.importorskip("llguidance")
    patched.setattr(llguidance.LLMatcher, "grammar_from_regex", interrupted)
    target, _ = small_pair()
    specdec.generate(target, None, "a", regex="a+", max_new_tokens=3)


class Interrupted:
    """A user's draft."""

    propose = interrupted


def transform(patched: pytest.MonkeyPatch, folder: Path) -> None:
    target, draft = small_pair()
    specdec.generate(target, draft, "Once", max_new_tokens=3, transform=interrupted)


def own_draft(patched: pytest.MonkeyPatch, folder: Path) -> None:
    target, _ = small_pair()
    specdec.generate(target, Interrupted(), "Once", max_new_tokens=3)


def progress_bar(patched: pytest.MonkeyPatch, folder: Path) -> None:
    tqdm = pytest.importorskip("tqdm")
    patched.setattr(tqdm.tqdm, "update", interrupted)
    specdec.convert(DRAFT, folder / "model.gguf", progress=True)


CALLS: dict[str, Callable[[pytest.MonkeyPatch, Path], object]] = {
    "repr": lambda patched, folder: specdec.load(DRAFT, Odd()),  # type: ignore[arg-type]
    "path": lambda patched, folder: specdec.load(Odd()),  # type: ignore[arg-type]
    "ids": lambda patched, folder: specdec.load(DRAFT).logits([1, Odd()]),  # type: ignore[list-item]
    "iterator": lambda patched, folder: specdec.load(DRAFT).logits(Odd()),  # type: ignore[arg-type]
    "array": lambda patched, folder: specdec.verify([1], Odd(), Odd()),  # type: ignore[arg-type, call-arg]
    "reading_json": loading("json.loads"), "reading_weights": loading("os.preadv"),
    "packing": loading("specdec._core.Model"), "encoding": encoding, "packed_file": packed_file, "hub": hub,
    "grammar": grammar, "transform": transform, "own_draft": own_draft, "progress_bar": progress_bar,
}  # fmt: skip


@pytest.mark.parametrize("call", CALLS)
def test_it_comes_through(call: str, handled: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched, pytest.raises(LateError):
        CALLS[call](patched, tmp_path)


@pytest.mark.parametrize("handled", ["function"], indirect=True)
def test_it_comes_through_in_masks(handled: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after draft tokens, where failures of a constraint are ignored until the text contains them."""
    pytest.importorskip("llguidance")
    from specdec.decoding.guided.guidance import GuidanceState

    target, draft = small_pair()
    usual = GuidanceState.mask
    for nth in range(1, 12):
        calls = iter(range(1, 1000))

        def mask(state: GuidanceState, calls: Iterator[int] = calls, nth: int = nth) -> bytes | None:
            if next(calls) == nth:
                interrupted()
            return usual(state)

        monkeypatch.setattr(GuidanceState, "mask", mask)
        with pytest.raises(LateError):
            specdec.generate(target, draft, "Once", regex="[a-z ]{400}", max_new_tokens=20, seed=nth)


def test_errors_of_specdec_after_a_handled_one(handled: None) -> None:
    """A program that continues after its timeout and then fails gets the error of its later action."""
    try:
        interrupted()
    except LateError:
        with pytest.raises(CheckpointError):
            specdec.load("no/such/folder/here")
        with pytest.raises(InputError):
            specdec.load(DRAFT, "f7")  # type: ignore[arg-type]
    with pytest.raises(SpecdecError):
        specdec.load("no/such/folder/here")


@pytest.mark.slow
@pytest.mark.parametrize("handled", ["function"], indirect=True)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # raised in a finalizer
def test_it_comes_through_at_any_moment(handled: None, tmp_path: Path) -> None:
    """Timers of random lengths, over loading, encoding, scoring, decoding and converting."""
    rng = random.Random(11)
    target, draft = small_pair("int8", "int8")
    text = "Once upon a time there was a house. " * 200
    path = specdec.convert(DRAFT, tmp_path / "model.specdec", "int8")
    expected = specdec.generate(target, None, "Once", max_new_tokens=8).tokens
    calls: list[tuple[float, Callable[[], object]]] = [
        (0.08, lambda: specdec.load(DRAFT).tokenizer),
        (0.02, lambda: specdec.load(path).tokenizer),
        (0.01, lambda: target.tokenizer.encode(text)),  # type: ignore[union-attr]
        (0.1, lambda: target.score(text[:1200])),
        (0.05, lambda: specdec.generate(target, draft, "Once", max_new_tokens=8)),
        (0.1, lambda: specdec.convert(DRAFT, tmp_path / "m.gguf", "Q8_0", force=True)),
    ]
    for _, call in calls:  # libraries that are interrupted during their import stay half imported
        call()
    n_late = 0
    for i in range(180):
        longest, call = calls[i % len(calls)]
        try:
            try:
                signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-5, longest))
                call()
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        except LateError:
            n_late += 1
    assert n_late > 30
    assert np.array_equal(specdec.generate(target, draft, "Once", max_new_tokens=8).tokens, expected)
