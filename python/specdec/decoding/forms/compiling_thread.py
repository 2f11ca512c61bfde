"""The thread in which a form is compiled: with a deep stack, for a bounded time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, TypeVar

from specdec.errors import FormError

__all__ = ["in_time"]

T = TypeVar("T")

_MOST_S: Final = 20.0  # seconds in which a form is compiled
_MOST_LEFT: Final = 2  # forms that took longer and are still being compiled
# Bytes of stack: the library goes into rules by recursion, as deep as the largest form has room for.
_STACK: Final = 256 << 20

_lock: Final = threading.Lock()
_left: Final[list[threading.Thread]] = []


def in_time(kind: str, compile_form: Callable[[], T]) -> T:
    """What a function returns, in a thread with a deep stack, if that takes no longer than it may.

    A thread that takes longer cannot be ended: it goes on, and when there are several such, other forms are
    refused until one is done.
    """
    results: list[T | BaseException] = []

    def run() -> None:
        try:
            results.append(compile_form())
        except BaseException as error:
            results.append(error)

    thread = threading.Thread(target=run, name="specdec form", daemon=True)
    with _lock:
        _left[:] = [one for one in _left if one.is_alive()]
        if len(_left) >= _MOST_LEFT:
            raise FormError(
                f"{kind}: {len(_left)} forms that took longer than {_MOST_S:g} s are still being compiled; "
                "expected none"
            )
        usual = threading.stack_size(_STACK)
        try:
            thread.start()
        finally:
            threading.stack_size(usual)
    thread.join(_MOST_S)
    if not results:
        with _lock:
            _left.append(thread)
        raise FormError(f"{kind}: compiling takes longer than {_MOST_S:g} s; expected a simpler form")
    (result,) = results
    if isinstance(result, BaseException):
        raise result
    return result
