"""The metadata of a model in a GGUF file: values by key, errors that name the field."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np

from specdec.errors import CheckpointError
from specdec.models.families.family import Array
from specdec.models.json_fields import Fields

__all__ = ["Metadata", "Stored"]


# A longer array is no value by layer, and as a list it would take many times the memory of the file.
_MOST_LAYERS: Final = 10_000


class Stored(Protocol):
    """A tensor of the file."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows first."""

    def numbers(self) -> Array:
        """All of its numbers, f32."""


class Metadata(Fields):
    """The metadata of a model, less the name of its architecture in front, and its tensors.

    A value that a file gives for each layer counts as one number where the layers agree.

    Parameters
    ----------
    name : str
        Of the architecture, ``general.architecture``.
    values : mapping
        Keys as "block_count" to values.
    tensors : mapping of str to Stored
    file : Path
        For messages.

    Attributes
    ----------
    name, tensors
        As given.
    used : set of str
        The tensors that were read with the configuration, see `numbers_of`.
    """

    _noun = "metadata field"

    def __init__(self, name: str, values: Mapping[str, Any], tensors: Mapping[str, Any], file: Path) -> None:
        listed = {
            key: value.tolist() if isinstance(value, np.ndarray) and value.size <= _MOST_LAYERS else value
            for key, value in values.items()
        }
        super().__init__(listed, file, f"{name}.")
        self.name, self.tensors = name, tensors
        self.used: set[str] = set()

    def raw(self, name: str) -> Any:
        """The value, None if absent; of a list the number that all layers share."""
        value = super().raw(name)
        if isinstance(value, np.ndarray):
            raise self.unsupported(name, f"at most {_MOST_LAYERS} values, one for each layer")
        if not isinstance(value, list):
            return value
        if not value or any(one != value[0] for one in value[1:]):
            raise self.unsupported(name, "the same value for all layers")
        return value[0]

    def get(self, key: str, default: Any = None) -> Any:
        """A value; ``default`` if absent."""
        value = self.raw(key)
        return default if value is None else value

    def amount(self, key: str, *default: float | None) -> Any:
        """A finite number from 0 on; the default, if there is one, where it is absent."""
        value = self.raw(key)
        if value is None and default:
            return default[0]
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 <= value < math.inf:
            raise self.error(key, "a finite number from 0 on")
        return value

    def pattern(self, key: str, n: int) -> list[bool] | None:
        """Which of n layers have a window; None if absent.

        Files give a value for each layer, or a period: the last layer of each has none.
        """
        value = super().raw(key)
        if value is None:
            return None
        if type(value) is int and value > 0:
            return [i % value < value - 1 for i in range(n)]
        if not isinstance(value, list) or len(value) != n:
            raise self.error(key, f"{n} values, one for each layer, or a period")
        return [bool(flag) for flag in value]

    def numbers_of(self, name: str, n: int | None = None) -> list[float] | None:
        """The numbers of a vector that belongs to the configuration; None if there is no such tensor.

        ``n`` is how many there must be.
        """
        tensor = self.tensors.get(name)
        if tensor is None:
            return None
        self.used.add(name)
        if n is not None and tensor.shape != (n,):
            found = list(tensor.shape)
            raise CheckpointError(f"{self.file}: tensor '{name}' has shape {found}; expected [{n}]")
        return [float(number) for number in tensor.numbers().reshape(-1)]

    @property
    def d_head(self) -> int:
        """The size of a head."""
        if self.raw("attention.key_length") is None:
            n_head, width = self.integer("attention.head_count"), self.integer("embedding_length")
            if width % n_head:
                raise self.error("embedding_length", f"a multiple of the heads, {n_head}")
            return int(width // n_head)
        size: int = self.integer("attention.key_length")
        if self.get("attention.value_length", size) != size:
            raise self.unsupported("attention.value_length", f"{size}, as keys have")
        return size
