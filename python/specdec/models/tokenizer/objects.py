"""Tokenizer objects of other libraries, as tokenizers of this one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from specdec.errors import InputError, kind_of
from specdec.models.tokenizer.hf_tokenizer import HFTokenizer
from specdec.models.tokenizer.interface import Tokenizer
from specdec.models.tokenizer.library import library_errors
from specdec.models.tokenizer.numbered_pieces import m2m_of, marian_of

__all__ = ["SlowTokenizer", "adapted"]


def adapted(
    given: Any, *, bos_id: int | None = None, eos_ids: tuple[int, ...] | None = None
) -> Tokenizer | None:
    """The tokenizer that an object of ``transformers`` or ``tokenizers`` is; None for any other object.

    The object is read, never changed. A fast tokenizer becomes what its tokenizer.json would become.

    Parameters
    ----------
    bos_id, eos_ids
        What the model's configuration says. The object's own end-of-text token is one too.
    """
    source = f"the {type(given).__name__}"
    if hasattr(given, "to_str") and hasattr(given, "get_vocab") and hasattr(given, "id_to_token"):
        return HFTokenizer(_copy(given, source), source, bos_id=bos_id, eos_ids=eos_ids or ())
    if not (hasattr(given, "convert_ids_to_tokens") and hasattr(given, "eos_token_id")):
        return None
    if bos_id is None:
        bos_id = given.bos_token_id
    own = () if given.eos_token_id is None else (given.eos_token_id,)
    eos_ids = tuple(dict.fromkeys([*(eos_ids or ()), *own]))
    if hasattr(given, "spm_files"):
        with library_errors(f"{source} is no MarianTokenizer that can be read"):
            return marian_of(given, source, bos_id=bos_id, eos_ids=eos_ids)
    if hasattr(given, "lang_token_to_id") and hasattr(given, "spm_file"):
        with library_errors(f"{source} is no M2M100Tokenizer that can be read"):
            return m2m_of(given, source, bos_id=bos_id, eos_ids=eos_ids)
    library_tokenizer = getattr(given, "backend_tokenizer", None)
    if library_tokenizer is None:
        return SlowTokenizer(given, bos_id=bos_id, eos_ids=eos_ids)
    return HFTokenizer(_copy(library_tokenizer, source), source, bos_id=bos_id, eos_ids=eos_ids)


def _copy(library_tokenizer: Any, source: str) -> Any:
    """A copy of its own for specdec, which turns padding and truncation off."""
    with library_errors(f"{source} cannot be copied"):
        return type(library_tokenizer).from_str(library_tokenizer.to_str())


class SlowTokenizer:
    """A tokenizer of ``transformers`` that is written in Python, known by its methods alone.

    Parameters
    ----------
    given : transformers.PreTrainedTokenizer
        Borrowed; its calls encode and decode.
    bos_id, eos_ids
        As in `Tokenizer`.
    """

    def __init__(self, given: Any, *, bos_id: int | None, eos_ids: tuple[int, ...]) -> None:
        self._given = given
        self._eos_ids = eos_ids
        with library_errors(f"the {type(given).__name__} cannot encode"):
            whole, inner = self._ids("a", True), self._ids("a", False)
            self.n_vocab = len(given)
        starts = [at for at in range(len(whole) + 1) if whole[at : at + len(inner)] == inner]
        self._prefix = whole[: starts[0]] if starts else []
        self.before = tuple(self._prefix)
        self.after = tuple(whole[starts[0] + len(inner) :]) if starts else ()
        self.bos_id: int | None = self._prefix[0] if self._prefix else bos_id

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """The tokens that end a text."""
        return self._eos_ids

    def _ids(self, text: str, special: bool) -> list[int]:
        return [int(token) for token in self._given.encode(text, add_special_tokens=special)]

    def encode(self, text: str, *, add_bos: bool = True) -> list[int]:
        """Token ids of a text; see `Tokenizer`."""
        if not isinstance(text, str):
            raise InputError(f"text is {kind_of(text)}; expected a str")
        with library_errors(f"the {type(self._given).__name__} cannot encode this text"):
            return (self._prefix if add_bos else []) + self._ids(text, False)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of some ids, special tokens left out."""
        with library_errors(f"the {type(self._given).__name__} cannot decode these ids"):
            text: str = self._given.decode(
                [int(token) for token in ids], skip_special_tokens=True, clean_up_tokenization_spaces=False
            )
        return text
