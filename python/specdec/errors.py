"""Exceptions whose messages name the file or argument, the field, its value and what was expected."""

from __future__ import annotations

import json
import re
import reprlib
import signal
import sys
import threading
import warnings
from collections.abc import Iterable
from functools import partial
from types import CodeType, FrameType, FunctionType, MethodType
from typing import Any, Final, TypeVar

__all__ = [
    "BusyError",
    "CheckpointError",
    "CheckpointNotFoundError",
    "ConstraintError",
    "ContextLengthError",
    "EngineClosedError",
    "FieldError",
    "InputError",
    "LearningError",
    "MissingConstraintError",
    "MissingGGUFError",
    "MissingHubError",
    "MissingLibraryError",
    "MissingPackageError",
    "MissingProgressError",
    "MissingTokenizerLibraryError",
    "NotFiniteError",
    "SpecdecError",
    "TokenizerError",
    "UnsupportedModelError",
    "UnusedFieldWarning",
    "VocabularyMismatchError",
    "WorkerError",
    "as_json",
    "number_of",
    "pass_signals_on",
    "printable",
    "shown",
    "type_of",
    "warn",
]  # fmt: skip

_Field = TypeVar("_Field", bound="FieldError")
_Input = TypeVar("_Input", bound="InputError")

LONGEST_VALUE: Final = 200
"""Maximum length of a quoted value, in characters."""
_LONGEST_MESSAGE: Final = 4000
"""Maximum length of a message, in characters; names in a file have any length."""


class _Repr(reprlib.Repr):
    """Bounded ``repr`` of nested values."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 4
        self.maxlist = self.maxtuple = self.maxset = self.maxdict = self.maxdeque = self.maxarray = 16
        self.maxstring = self.maxother = self.maxlong = LONGEST_VALUE

    def repr_instance(self, x: Any, level: int) -> str:
        """Return the shortened ``repr`` of an object, or its type if ``repr`` fails."""
        try:
            text = repr(x)
        except Exception as error:
            pass_signals_on(error)
            return f"<{type(x).__name__} instance at {id(x):#x}>"
        half = self.maxother // 2
        return text if len(text) <= self.maxother else f"{text[:half]}...{text[-half:]}"


_REPR = _Repr()


def pass_signals_on(error: BaseException) -> None:
    """Re-raise an exception of a signal handler, which Python may run inside any library call."""
    if threading.current_thread() is not threading.main_thread():
        return
    handlers = {_code_of(signal.getsignal(number)) for number in signal.valid_signals()}
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code in handlers:
            raise error
        trace = trace.tb_next


def _code_of(handler: Any) -> CodeType | None:
    """Return the code object of a signal handler; None if it is not written in Python."""
    while isinstance(handler, partial):
        handler = handler.func
    if not isinstance(handler, FunctionType | MethodType):
        handler = vars(type(handler)).get("__call__")
    code = getattr(getattr(handler, "__func__", handler), "__code__", None)
    return code if isinstance(code, CodeType) else None


def shown(value: object) -> str:
    """Return a value's ``repr`` on one line for a message, shortened, or its type if ``repr`` fails."""
    try:
        text = _REPR.repr(value)
    except Exception as error:
        pass_signals_on(error)
        return f"<{type(value).__name__}>"
    text = text.encode("utf-8", "backslashreplace").decode("utf-8")  # no lone surrogates
    text = re.sub(r"\s*\n\s*", " ", text)  # arrays have a line a row
    return text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 3]}..."


def as_json(value: Any) -> str:
    """Return a value as shortened JSON for a message, or as `shown` if JSON has no such type."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except TypeError:
        return shown(value)
    except (ValueError, RecursionError):  # an integer with thousands of digits, or very deep nesting
        return f"a {type(value).__name__} too large to show"
    return text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 3]}..."


def type_of(value: object) -> str:
    """Describe a value's type for a message: "an int", or "the class Ngram" for a class itself."""
    if issubclass(type(value), type):
        return f"the class {getattr(value, '__name__', 'of a value')}"
    name = type(value).__name__
    return f"{'an' if name[:1].lower() in 'aeio' else 'a'} {name}"


def number_of(n: int, noun: str) -> str:
    """Return a count with its noun: "1 layer", "2 layers"."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def printable(text: str) -> str:
    """Escape control characters and lone surrogates, and bound the length."""
    if len(text) > _LONGEST_MESSAGE:
        text = f"{text[: _LONGEST_MESSAGE // 2]} … {text[-_LONGEST_MESSAGE // 2 :]}"
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def _is_own(frame: FrameType) -> bool:
    return bool(frame.f_globals.get("__name__", "").partition(".")[0] == "specdec")


def warn(message: str | Warning) -> None:
    """Issue a warning (a UserWarning if given a string) that points at the user's own line."""
    frame: FrameType | None = sys._getframe(1)
    level = 2  # of the function that called this one
    while frame is not None and _is_own(frame):
        frame, level = frame.f_back, level + 1
    warnings.warn(printable(message) if isinstance(message, str) else message, stacklevel=level)


class UnusedFieldWarning(UserWarning):
    """Fields `names` of a checkpoint's `file` that have no effect, for a `reason`."""

    def __init__(self, file: object, names: Iterable[str], reason: str) -> None:
        self.file, self.names, self.reason = file, tuple(names), reason
        super().__init__(file, self.names, reason)

    def __str__(self) -> str:
        listed = ", ".join(f"'{name}'" for name in self.names)
        noun = "field" if len(self.names) == 1 else "fields"
        return printable(f"{self.file}: {noun} {listed} {self.reason}")


class SpecdecError(Exception):
    """Base of every exception that specdec raises on purpose; messages are printable.

    Creating one while specdec handles an exception from a signal handler re-raises that exception instead.
    """

    def __init__(self, *args: object) -> None:
        handled = sys.exc_info()[1]
        trace = None if handled is None else handled.__traceback__
        # caught in specdec, not in a caller's except block that calls specdec
        if handled is not None and trace is not None and _is_own(trace.tb_frame):
            pass_signals_on(handled)
        super().__init__(*args)

    def __str__(self) -> str:
        return printable(super().__str__())


class FieldError(SpecdecError, ValueError):
    """A model or tokenizer file is damaged, inconsistent or incomplete."""

    file: object = None
    """The file, or None."""
    field: str | None = None
    """The field; nested fields have dots."""
    value: object = None
    """The field's value."""
    expected: str | None = None
    """What the field should hold."""

    @classmethod
    def of(
        cls: type[_Field], file: object, field: str, value: object, expected: str, *,
        found: str | None = None, noun: str = "field",
    ) -> _Field:  # fmt: skip
        """Return an error about a field; `found` describes the value, by default quoted as JSON."""
        held = as_json(value) if found is None else found
        error = cls(f"{file}: {noun} '{field}' is {held}; expected {expected}")
        error.file, error.field, error.value, error.expected = file, field, value, expected
        return error


class CheckpointError(FieldError):
    """A checkpoint file is damaged, inconsistent or incomplete; see `FieldError`."""


class CheckpointNotFoundError(CheckpointError, FileNotFoundError):
    """A checkpoint, or a file it needs, does not exist."""


class UnsupportedModelError(CheckpointError):
    """A valid checkpoint needs a computation that specdec does not support."""


class TokenizerError(FieldError):
    """A tokenizer file is damaged or missing, or its library is not installed; see `FieldError`."""


class VocabularyMismatchError(SpecdecError, ValueError):
    """Target and draft have different vocabularies, so the target cannot judge draft tokens."""


class InputError(SpecdecError, ValueError):
    """An invalid argument: ids out of range, a prompt longer than the context, a negative gamma."""

    argument: str | None = None
    """The argument, or None."""
    value: object = None
    """The value that was passed."""
    expected: str | None = None
    """What the argument accepts."""

    @classmethod
    def of(
        cls: type[_Input], argument: str, value: object, expected: str, found: str | None = None,
        verb: str = "is",
    ) -> _Input:  # fmt: skip
        """Return an error about an argument; `found` describes the value, by default its ``repr``."""
        error = cls(f"{argument} {verb} {shown(value) if found is None else found}; expected {expected}")
        error.argument, error.value, error.expected = argument, value, expected
        return error

    @classmethod
    def about(cls: type[_Input], argument: str, message: str) -> _Input:
        """Return an error about one or several arguments with a message of its own."""
        error = cls(message)
        error.argument = argument
        return error


class ContextLengthError(InputError):
    """A prompt is longer than the context, or than an engine's slots."""


class BusyError(SpecdecError, RuntimeError):
    """An engine's queue is full; retry later."""


class EngineClosedError(SpecdecError, RuntimeError):
    """A request to an engine that is closed or closing."""


class ConstraintError(InputError):
    """A schema, regular expression or grammar that is invalid, too large or unsatisfiable."""


class LearningError(SpecdecError, RuntimeError):
    """Online training of a draft failed; ``__cause__`` is the trainer's exception."""


class WorkerError(SpecdecError, RuntimeError):
    """Work in another process failed; the message says which, and why."""


class MissingPackageError(SpecdecError, ImportError):
    """A required package is not installed; the message says how to install it.

    Most subclasses are also a `CheckpointError`, a `TokenizerError` or an `InputError`.
    """


class MissingLibraryError(SpecdecError, OSError):
    """OpenBLAS, loaded on first use, is missing or unusable."""


class MissingHubError(MissingPackageError, CheckpointError):
    """``huggingface_hub`` is not installed."""


class MissingGGUFError(MissingPackageError, CheckpointError):
    """``gguf`` is not installed."""


class MissingTokenizerLibraryError(MissingPackageError, TokenizerError):
    """``tokenizers`` or ``sentencepiece`` is not installed."""


class MissingProgressError(MissingPackageError, InputError):
    """``tqdm`` is not installed."""


class MissingConstraintError(MissingPackageError, InputError):
    """``llguidance`` is not installed."""


class NotFiniteError(SpecdecError, ArithmeticError):
    """A model computed NaN or infinity: its weights are finite, but their products overflow.

    The message names the model, the first layer with a non-finite output ("the head" if only the logits are
    affected) and the token's position, counted from 0 with the prompt. The token may be a draft token, which
    plain decoding would not reach.
    """

    result: Any = None
    """Results up to the error, as `specdec.generate` returns them; unfinished sequences have the
    `finish_reason` "error". Set by `generate`, `stream` and functions that use them."""
