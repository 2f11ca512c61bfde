"""Drafts that remember texts, and their files: arrays of integers in safetensors."""

from __future__ import annotations

import os
import threading
from abc import abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from specdec.checks import check_path
from specdec.drafts.draft import Draft, loaded_again
from specdec.errors import CheckpointError, InputError
from specdec.fields import as_json
from specdec.models.checkpoints.safetensors_file import read_safetensors_with_metadata, write_safetensors
from specdec.models.origin import ReadFiles


class IntegerFile:
    """The arrays of integers of a file, taken one by one; `expected` is metadata that the file must have."""

    def __init__(self, path: Path, expected: Mapping[str, str]) -> None:
        self.path = path
        self.tensors, self.metadata = read_safetensors_with_metadata(path)  # those that are not taken yet
        for name, value in expected.items():
            if self.metadata.get(name) != value:
                raise CheckpointError.of(path, name, self.metadata.get(name), as_json(value))

    def take(self, name: str, *, mmap: bool = False) -> NDArray[Any]:
        """Take an array, in memory or as a view of the mapped file."""
        if name not in self.tensors:
            raise CheckpointError(f"{self.path}: tensor '{name}' is missing")
        return self.tensors.pop(name).integers(mmap=mmap)

    def take_ids(self, name: str) -> NDArray[np.int32]:
        """Take an array of int32 of one dimension, in memory."""
        array = self.take(name)
        if array.dtype != np.int32 or array.ndim != 1:
            found = f"shape {array.shape} and dtype {array.dtype}; expected one dimension and int32"
            raise CheckpointError(f"{self.path}: tensor '{name}' has {found}")
        return array

    def number(self, name: str, low: int, high: int) -> int:
        """Return a field of the metadata that is an integer from low to high."""
        text = self.metadata.get(name, "")
        if text.isascii() and text.isdigit() and len(text) <= 20 and low <= int(text) <= high:
            return int(text)
        raise CheckpointError.of(self.path, name, text, f"an integer, {low} to {high}")

    def check_end(self, of: str) -> None:
        """Refuse a file with arrays that have not been taken; `of` is what it holds."""
        if self.tensors:
            raise CheckpointError(f"{self.path}: tensor '{min(self.tensors)}' is none of {of}")


Memory = TypeVar("Memory", bound="MemoryDraft")


class MemoryDraft(Draft):
    """A draft that one object shares between texts, with a file to save it.

    A pickle names the file that it was loaded from or saved to last, and another process begins with what
    that holds. One that has no file and has begun a text cannot be pickled; an empty one can.
    """

    metadata: ClassVar[Mapping[str, str]]  # of its file
    holds: ClassVar[str]  # its file, in messages
    sizes: ClassVar[Mapping[str, int]]  # arguments that the file has, and the largest of each

    def __init__(self) -> None:
        self.n_vocab: int | None = None
        self._lock = threading.Lock()  # of who changes it, or begins a text
        self._n_begun = 0
        self._has_begun = False
        self._file: ReadFiles | None = None  # loaded from or saved to last

    @property
    @abstractmethod
    def _settings(self) -> dict[str, Any]:
        """The arguments that it was made with."""

    @abstractmethod
    def _knows_something(self) -> bool:
        """Return whether it differs from a new object."""

    @abstractmethod
    def _stored(self) -> tuple[dict[str, int], dict[str, NDArray[Any]]]:
        """Return the numbers of the file, but for its `sizes`, and its arrays."""

    def __reduce__(self) -> tuple[Callable[..., Draft], tuple[Any, ...]]:
        if self._file is not None:
            return loaded_again, (type(self), self._file.reference(), (), self._settings)
        if self._has_begun or self._knows_something():
            raise InputError(
                f"{self!r} cannot be pickled, as it lives in this process; expected one that was saved to a "
                "file or loaded from one, which a pickle names"
            )
        return partial(type(self), **self._settings), ()

    def text_key(self) -> tuple[int, ...]:
        self._has_begun = True
        return (self._next_text(),)

    def _next_text(self) -> int:
        with self._lock:
            self._n_begun += 1
            return self._n_begun

    def _as_snapshot_of(self, other: MemoryDraft) -> None:
        """Count texts from where `other` is now; called after its knowledge was copied."""
        self._n_begun, self._has_begun = other._n_begun, other._has_begun
        self.n_vocab, self._snapshot_of = other.n_vocab, other

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it to a file (safetensors), for `load`. A file that is there is replaced."""
        file = check_path("path", path)
        numbers, arrays = self._stored()
        numbers |= {name: getattr(self, name) for name in self.sizes} | {"n_begun": self._next_text()}
        write_safetensors(
            file, arrays, {**self.metadata, **{name: str(number) for name, number in numbers.items()}}
        )
        self._file = ReadFiles.at(file, [file])

    @classmethod
    def load(cls: type[Memory], path: str | os.PathLike[str], **settings: Any) -> Memory:
        """Read what `save` wrote; `settings` are arguments of the class, by default those of the file."""
        location = check_path("path", path, CheckpointError)
        files, file = ReadFiles.at(location, [location]), IntegerFile(location, cls.metadata)
        n_begun = file.number("n_begun", 0, 2**62)
        draft = cls(**{**{name: file.number(name, 1, most) for name, most in cls.sizes.items()}, **settings})
        try:
            draft._fill(file)
        except CheckpointError:
            raise
        except ValueError as error:  # the core names no file
            raise CheckpointError(f"{location}: {error}") from error
        file.check_end(cls.holds)
        draft._n_begun, draft._file = n_begun, files
        return draft

    @abstractmethod
    def _fill(self, file: IntegerFile) -> None:
        """Take what `_stored` gave into a new object; a ValueError is one of the file."""
