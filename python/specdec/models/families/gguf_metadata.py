"""The metadata of a model in a GGUF file: values by key, errors that name the field."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from specdec.errors import CheckpointError, UnsupportedModelError
from specdec.models.families.family import Array
from specdec.models.json_fields import as_json

__all__ = ["Metadata", "Stored"]


class Stored(Protocol):
    """A tensor of the file."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows first."""

    def numbers(self) -> Array:
        """All of its numbers, f32."""


@dataclass(frozen=True)
class Metadata:
    """The metadata of a model, less the name of its architecture in front, and its tensors.

    Attributes
    ----------
    name : str
        Of the architecture, ``general.architecture``.
    values : mapping
        Keys as "block_count" to values.
    tensors : mapping of str to Stored
    file : str
        For messages.
    """

    name: str
    values: Mapping[str, Any]
    tensors: Mapping[str, Any]
    file: str

    def get(self, key: str, default: Any = None) -> Any:
        """A value; ``default`` if absent."""
        value = self.values.get(key)
        return default if value is None else value

    def error(self, key: str, expected: str) -> CheckpointError:
        """The exception for a key whose value is wrong."""
        value = self.values.get(key)
        found = "is missing" if value is None else f"is {as_json(value)}"
        return CheckpointError(
            f"{self.file}: metadata field '{self.name}.{key}' {found}; expected {expected}"
        )

    def unsupported(self, key: str, expected: str) -> UnsupportedModelError:
        """The exception for a value that is right and asks for what specdec does not have."""
        return UnsupportedModelError(str(self.error(key, expected)))

    def integer(self, key: str) -> int:
        """A whole number above 0."""
        value = self.values.get(key)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.error(key, "a whole number above 0")
        return value

    def number(self, key: str, *default: float | None) -> Any:
        """A finite number from 0 on; the default, if there is one, where it is absent."""
        value = self.values.get(key)
        if value is None and default:
            return default[0]
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 <= value < math.inf:
            raise self.error(key, "a finite number from 0 on")
        return value

    def flags(self, key: str, n: int) -> list[bool] | None:
        """A value for each of n layers; None if absent."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, np.ndarray) or len(value) != n:
            raise self.error(key, f"{n} values, one for each layer")
        return [bool(flag) for flag in value]

    @property
    def d_head(self) -> int:
        """The size of a head."""
        if self.get("attention.key_length") is None:
            n_head, width = self.integer("attention.head_count"), self.integer("embedding_length")
            if width % n_head:
                raise self.error("embedding_length", f"a multiple of the heads, {n_head}")
            return width // n_head
        size = self.integer("attention.key_length")
        if self.get("attention.value_length", size) != size:
            raise self.unsupported("attention.value_length", f"{size}, as keys have")
        return size
