"""Named exceptions; a message says which file or argument, which field, what it is and what was expected."""

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
"""Characters of a value in a message."""
_LONGEST_MESSAGE: Final = 4000
"""Characters of a message; a file may hold names of any length."""


class _Repr(reprlib.Repr):
    """Of a nested value its beginning."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 4
        self.maxlist = self.maxtuple = self.maxset = self.maxdict = self.maxdeque = self.maxarray = 16
        self.maxstring = self.maxother = self.maxlong = LONGEST_VALUE

    def repr_instance(self, x: Any, level: int) -> str:
        """The ``repr`` of an object of any class, shortened; its type if ``repr`` fails."""
        try:
            text = repr(x)
        except Exception as error:
            pass_signals_on(error)
            return f"<{type(x).__name__} instance at {id(x):#x}>"
        half = self.maxother // 2
        return text if len(text) <= self.maxother else f"{text[:half]}...{text[-half:]}"


_REPR = _Repr()


def pass_signals_on(error: BaseException) -> None:
    """Raise an exception again if a signal handler of the program raised it.

    Python runs handlers in the main thread between any two steps, so such an exception may come out of any
    library call. It is no failure of the call, whatever its type.
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
    """The code that a signal handler runs; None if it is not written in Python."""
    while isinstance(handler, partial):
        handler = handler.func
    if not isinstance(handler, FunctionType | MethodType):
        handler = vars(type(handler)).get("__call__")
    code = getattr(getattr(handler, "__func__", handler), "__code__", None)
    return code if isinstance(code, CodeType) else None


def shown(value: object) -> str:
    """A value in a message: its ``repr`` on one line, shortened, or its type where that fails."""
    try:
        text = _REPR.repr(value)
    except Exception as error:
        pass_signals_on(error)
        return f"<{type(value).__name__}>"
    text = text.encode("utf-8", "backslashreplace").decode("utf-8")  # no lone surrogates
    text = re.sub(r"\s*\n\s*", " ", text)  # arrays have a line a row
    return text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 3]}..."


def as_json(value: Any) -> str:
    """A value from a file as a message quotes it: as JSON, else as Python shows it; shortened."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except TypeError:
        return shown(value)
    except (ValueError, RecursionError):  # an integer of thousands of digits, nesting as deep as the stack
        return f"a {type(value).__name__} too large to show"
    return text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 3]}..."


def type_of(value: object) -> str:
    """What a value is, in a message: "an int", or "the class Ngram" for a class itself."""
    if issubclass(type(value), type):
        return f"the class {getattr(value, '__name__', 'of a value')}"
    name = type(value).__name__
    return f"{'an' if name[:1].lower() in 'aeio' else 'a'} {name}"


def number_of(n: int, noun: str) -> str:
    """A number of things: "1 layer", "2 layers"."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def printable(text: str) -> str:
    """A text of bounded length, with control characters and lone surrogates as in a string literal."""
    if len(text) > _LONGEST_MESSAGE:
        text = f"{text[: _LONGEST_MESSAGE // 2]} … {text[-_LONGEST_MESSAGE // 2 :]}"
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def _is_own(frame: FrameType) -> bool:
    return bool(frame.f_globals.get("__name__", "").partition(".")[0] == "specdec")


def warn(message: str | Warning) -> None:
    """Issue a warning, a UserWarning if it is a text, located at the line of the user's program."""
    frame: FrameType | None = sys._getframe(1)
    level = 2  # of the function that called this one
    while frame is not None and _is_own(frame):
        frame, level = frame.f_back, level + 1
    warnings.warn(printable(message) if isinstance(message, str) else message, stacklevel=level)


class UnusedFieldWarning(UserWarning):
    """A checkpoint's file has fields that specdec does not know or does not apply.

    `names` are those of the fields in the `file`, of nested objects with dots; the `reason` says why they
    have no effect.
    """

    def __init__(self, file: object, names: Iterable[str], reason: str) -> None:
        self.file, self.names, self.reason = file, tuple(names), reason
        super().__init__(file, self.names, reason)

    def __str__(self) -> str:
        listed = ", ".join(f"'{name}'" for name in self.names)
        noun = "field" if len(self.names) == 1 else "fields"
        return printable(f"{self.file}: {noun} {listed} {self.reason}")


class SpecdecError(Exception):
    """Base of every exception that specdec raises on purpose. Its text has printable characters only.

    To create one while specdec handles an exception of a signal handler raises that exception instead.
    """

    def __init__(self, *args: object) -> None:
        handled = sys.exc_info()[1]
        frame = None if handled is None else handled.__traceback__
        # caught here, not by a handler of the caller's that calls specdec
        if handled is not None and frame is not None and _is_own(frame.tb_frame):
            pass_signals_on(handled)
        super().__init__(*args)

    def __str__(self) -> str:
        return printable(super().__str__())


class FieldError(SpecdecError, ValueError):
    """A file of a model or tokenizer is damaged, contradicts itself or lacks something."""

    file: object = None
    """The file; None if the error does not name one."""
    field: str | None = None
    """The field, those of nested objects with dots."""
    value: object = None
    """What the field holds."""
    expected: str | None = None
    """What it may hold."""

    @classmethod
    def of(
        cls: type[_Field], file: object, field: str, value: object, expected: str, *,
        found: str | None = None, noun: str = "field",
    ) -> _Field:  # fmt: skip
        """Make an error about one field's value, described as `found` instead of as JSON."""
        held = as_json(value) if found is None else found
        error = cls(f"{file}: {noun} '{field}' is {held}; expected {expected}")
        error.file, error.field, error.value, error.expected = file, field, value, expected
        return error


class CheckpointError(FieldError):
    """A checkpoint file is damaged, contradicts itself or lacks something; see `FieldError`."""


class CheckpointNotFoundError(CheckpointError, FileNotFoundError):
    """A checkpoint, or a file it needs, is not there."""


class UnsupportedModelError(CheckpointError):
    """A well-formed checkpoint asks for a computation that specdec does not have."""


class TokenizerError(FieldError):
    """A tokenizer's files are damaged or missing, or the library that reads them is; see `FieldError`."""


class VocabularyMismatchError(SpecdecError, ValueError):
    """Target and draft do not share one vocabulary, so a draft's token has no meaning for the target."""


class InputError(SpecdecError, ValueError):
    """An argument cannot be used: ids out of range, a prompt longer than the context, a negative gamma."""

    argument: str | None = None
    """The argument; None if the error does not name one."""
    value: object = None
    """What the caller gave."""
    expected: str | None = None
    """What the argument takes."""

    @classmethod
    def of(
        cls: type[_Input], argument: str, value: object, expected: str, found: str | None = None,
        verb: str = "is",
    ) -> _Input:  # fmt: skip
        """Make an error about one argument's value, described as `found` instead of its ``repr``."""
        error = cls(f"{argument} {verb} {shown(value) if found is None else found}; expected {expected}")
        error.argument, error.value, error.expected = argument, value, expected
        return error

    @classmethod
    def about(cls: type[_Input], argument: str, message: str) -> _Input:
        """Make an error about an argument, or several, whose message says more than a value."""
        error = cls(message)
        error.argument = argument
        return error


class ContextLengthError(InputError):
    """A prompt is longer than the texts that an engine has room for."""


class BusyError(SpecdecError, RuntimeError):
    """More texts wait for a slot of an engine than its bound allows; later there may be room."""


class EngineClosedError(SpecdecError, RuntimeError):
    """An engine that is closed, or is being closed, takes no requests."""


class ConstraintError(InputError):
    """A schema, regular expression or grammar cannot be read, is too large, or no text satisfies it."""


class LearningError(SpecdecError, RuntimeError):
    """A draft that learns while it serves has failed to; the cause is what its trainer raised."""


class WorkerError(SpecdecError, RuntimeError):
    """Work that was given to other processes could not be done there; the message says which, and why."""


class MissingPackageError(SpecdecError, ImportError):
    """Something needs a package that is not installed; the message says how to install it.

    Most are also the error of what needs it: a `CheckpointError`, a `TokenizerError` or an `InputError`.
    """


class MissingLibraryError(SpecdecError, OSError):
    """OpenBLAS, which is loaded when it is first needed, is not where it was installed or cannot be used."""


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
    """A model computed a number that is not finite: its weights are, but their products overflow.

    The message names the model, the first layer whose output is not finite ("the head" if only the logits are
    not), and the position of the token, counted from 0 with the prompt. That token may be a draft token,
    which plain decoding does not come to.
    """

    result: Any = None
    """What `specdec.generate`, `specdec.stream` and functions that decode by them had before, as `generate`
    returns it; texts that had not come to their end have the `finish_reason` "error"."""
