"""What specdec asks of a tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

__all__ = ["Tokenizer"]


@runtime_checkable
class Tokenizer(Protocol):
    """Anything with these attributes can be given as ``tokenizer=``.

    ``decode`` of a longer sequence must begin with ``decode`` of its beginning, but for a trailing U+FFFD
    where a character is still incomplete; streaming rests on that.
    """

    @property
    def n_vocab(self) -> int:
        """Ids run from 0 to n_vocab - 1; a model may have more, which then stand for no text."""
        ...

    @property
    def bos_id(self) -> int | None:
        """The token that begins a text, if there is one."""
        ...

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """The tokens that end a text."""
        ...

    def encode(self, text: str, *, add_bos: bool = True) -> list[int]:
        """Token ids of a text; ``add_bos`` puts BOS in front where the model was trained with it."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """The text of some ids, special tokens left out."""
        ...
