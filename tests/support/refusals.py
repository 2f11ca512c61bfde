"""Assertions about errors by their argument or field instead of the words of their message."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from specdec.errors import CheckpointError, FieldError, InputError, shown

_ANY = object()


@contextmanager
def refuses(argument: str, value: object = _ANY, kind: type[InputError] = InputError) -> Iterator[None]:
    """Expect an `InputError` about an argument, whose message names it, its value and the expectation."""
    with pytest.raises(kind) as caught:
        yield
    error = caught.value
    assert error.argument == argument, error
    assert argument in str(error)
    assert error.expected and error.expected in str(error)
    if value is not _ANY:
        assert shown(error.value) == shown(value)


@contextmanager
def refuses_field(file: object, field: str, kind: type[FieldError] = CheckpointError) -> Iterator[None]:
    """Expect a `CheckpointError` about a field of a file, whose message names both and the expectation."""
    with pytest.raises(kind) as caught:
        yield
    error = caught.value
    assert (str(error.file), error.field) == (str(file), field), error
    assert str(file) in str(error) and field in str(error)
    assert error.expected and error.expected in str(error)
