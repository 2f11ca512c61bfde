"""Named exceptions: the message names the file or argument, the field, its value and the expectation."""

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
"""Maximum characters of a value in a message."""
_LONGEST_MESSAGE: Final = 4000
"""Maximum characters of a message; names in files can be long."""


class _Repr(reprlib.Repr):
    """Shortens nested values."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 4
        self.maxlist = self.maxtuple = self.maxset = self.maxdict = self.maxdeque = self.maxarray = 16
        self.maxstring = self.maxother = self.maxlong = LONGEST_VALUE

    def repr_instance(self, x: Any, level: int) -> str:
        """Return an object's shortened ``repr``, or its type if ``repr`` fails."""
        try:
            text = repr(x)
        except Exception as error:
            pass_signals_on(error)
            return f"<{type(x).__name__} instance at {id(x):#x}>"
        half = self.maxother // 2
        return text if len(text) <= self.maxother else f"{text[:half]}...{text[-half:]}"


_REPR = _Repr()


def pass_signals_on(error: BaseException) -> None:
    """Re-raise an exception that a signal handler of the program raised.

    Python runs handlers between any two steps of the main thread, so any library call may raise such an
    exception. It does not mean that the call failed.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    handlers = {_code_of(signal.getsignal(number)) for number in signal.valid_signals()}
    frame = error.__traceback__
    while frame is not None:
        if frame.tb_frame.f_code in handlers:
            raise error
        frame = frame.tb_next


def _code_of(handler: Any) -> CodeType | None:
    """Return the code of a signal handler; None if it is not written in Python."""
    while isinstance(handler, partial):
        handler = handler.func
    if not isinstance(handler, FunctionType | MethodType):
        handler = vars(type(handler)).get("__call__")
    code = getattr(getattr(handler, "__func__", handler), "__code__", None)
    return code if isinstance(code, CodeType) else None


def shown(value: object) -> str:
    """Format a value for a message: its ``repr`` on one line, shortened, or its type if that fails."""
    try:
        text = _REPR.repr(value)
    except Exception as error:
        pass_signals_on(error)
        return f"<{type(value).__name__}>"
    text = text.encode("utf-8", "backslashreplace").decode("utf-8")  # escape lone surrogates
    text = re.sub(r"\s*\n\s*", " ", text)  # arrays have one line per row
    return text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 3]}..."


def as_json(value: Any) -> str:
    """Format a value from a file for a message: as JSON, or else its ``repr``, shortened."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except TypeError:
        return shown(value)
    except (ValueError, RecursionError):  # huge integers, deep nesting
        return f"a {type(value).__name__} too large to show"
    return text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 3]}..."


def type_of(value: object) -> str:
    """Describe a value's type: "an int", or "the class Ngram" for a class."""
    if issubclass(type(value), type):
        return f"the class {getattr(value, '__name__', 'of a value')}"
    name = type(value).__name__
    return f"{'an' if name[:1].lower() in 'aeio' else 'a'} {name}"


def number_of(n: int, noun: str) -> str:
    """Format a count with its noun: "1 layer", "2 layers"."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def printable(text: str) -> str:
    """Limit a text's length, and escape control characters and lone surrogates."""
    if len(text) > _LONGEST_MESSAGE:
        text = f"{text[: _LONGEST_MESSAGE // 2]} … {text[-_LONGEST_MESSAGE // 2 :]}"
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def _is_own(frame: FrameType) -> bool:
    return bool(frame.f_globals.get("__name__", "").partition(".")[0] == "specdec")


def warn(message: str | Warning) -> None:
    """Issue a warning (UserWarning for a text) located at the line of the user's program."""
    frame: FrameType | None = sys._getframe(1)
    level = 2  # the caller's frame
    while frame is not None and _is_own(frame):
        frame, level = frame.f_back, level + 1
    warnings.warn(printable(message) if isinstance(message, str) else message, stacklevel=level)


class UnusedFieldWarning(UserWarning):
    """A checkpoint file has fields that specdec ignores.

    `names` are the fields in the `file`, with dots for nested objects; `reason` says why they have no effect.
    """

    def __init__(self, file: object, names: Iterable[str], reason: str) -> None:
        self.file, self.names, self.reason = file, tuple(names), reason
        super().__init__(file, self.names, reason)

    def __str__(self) -> str:
        listed = ", ".join(f"'{name}'" for name in self.names)
        noun = "field" if len(self.names) == 1 else "fields"
        return printable(f"{self.file}: {noun} {listed} {self.reason}")


class SpecdecError(Exception):
    """Base class of all exceptions that specdec raises on purpose. The text is printable.

    Creating one while handling an exception of a signal handler raises that exception instead.
    """

    def __init__(self, *args: object) -> None:
        handled = sys.exc_info()[1]
        frame = None if handled is None else handled.__traceback__
        # handled by specdec, not by a caller's handler that calls specdec
        if handled is not None and frame is not None and _is_own(frame.tb_frame):
            pass_signals_on(handled)
        super().__init__(*args)

    def __str__(self) -> str:
        return printable(super().__str__())


class FieldError(SpecdecError, ValueError):
    """A file of a model or tokenizer is damaged, inconsistent or incomplete."""

    file: object = None
    """The file; None if unknown."""
    field: str | None = None
    """The field, with dots for nested objects."""
    value: object = None
    """The field's value."""
    expected: str | None = None
    """What the field may hold."""

    @classmethod
    def of(
        cls: type[_Field], file: object, field: str, value: object, expected: str, *,
        found: str | None = None, noun: str = "field",
    ) -> _Field:  # fmt: skip
        """Make an error for a field's value, described as `found` instead of as JSON."""
        held = as_json(value) if found is None else found
        error = cls(f"{file}: {noun} '{field}' is {held}; expected {expected}")
        error.file, error.field, error.value, error.expected = file, field, value, expected
        return error


class CheckpointError(FieldError):
    """A checkpoint file is damaged, inconsistent or incomplete; see `FieldError`."""


class CheckpointNotFoundError(CheckpointError, FileNotFoundError):
    """A checkpoint, or a file it needs, does not exist."""


class UnsupportedModelError(CheckpointError):
    """A valid checkpoint requires a computation that specdec does not support."""


class TokenizerError(FieldError):
    """Tokenizer files are damaged or missing, or the library that reads them is; see `FieldError`."""


class VocabularyMismatchError(SpecdecError, ValueError):
    """Target and draft have different vocabularies, so draft tokens have no meaning for the target."""


class InputError(SpecdecError, ValueError):
    """An argument is invalid, such as ids out of range, too long a prompt, or a negative gamma."""

    argument: str | None = None
    """The argument; None if unknown."""
    value: object = None
    """The caller's value."""
    expected: str | None = None
    """What the argument may be."""

    @classmethod
    def of(
        cls: type[_Input], argument: str, value: object, expected: str, found: str | None = None,
        verb: str = "is",
    ) -> _Input:  # fmt: skip
        """Make an error for an argument's value, described as `found` instead of its ``repr``."""
        error = cls(f"{argument} {verb} {shown(value) if found is None else found}; expected {expected}")
        error.argument, error.value, error.expected = argument, value, expected
        return error

    @classmethod
    def about(cls: type[_Input], argument: str, message: str) -> _Input:
        """Make an error for one or several arguments from a message."""
        error = cls(message)
        error.argument = argument
        return error


class ContextLengthError(InputError):
    """A prompt exceeds the longest text of an engine."""


class BusyError(SpecdecError, RuntimeError):
    """Too many requests wait for a slot of an engine; try again later."""


class EngineClosedError(SpecdecError, RuntimeError):
    """An engine is closed, or closing, and refuses requests."""


class ConstraintError(InputError):
    """A schema, regular expression or grammar cannot be read, is too large, or matches no text."""


class LearningError(SpecdecError, RuntimeError):
    """A draft that learns during serving failed to; the cause is its trainer's exception."""


class WorkerError(SpecdecError, RuntimeError):
    """Work in other processes failed; the message says where and why."""


class MissingPackageError(SpecdecError, ImportError):
    """A required package is not installed; the message says how to install it.

    Most subclasses are also a `CheckpointError`, a `TokenizerError` or an `InputError`.
    """


class MissingLibraryError(SpecdecError, OSError):
    """OpenBLAS, loaded on first use, is missing from the installation or cannot be used."""


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
    """A model computed a non-finite number: its weights are finite, but products overflow.

    The message names the model, the first layer with non-finite output ("the head" if only the logits are),
    and the token's position, counted from 0 including the prompt. It may be a draft token that plain decoding
    never reaches.
    """

    result: Any = None
    """Output of `specdec.generate` and similar functions before the error, as `generate` returns it;
    unfinished texts have the `finish_reason` "error"."""
