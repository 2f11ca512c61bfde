"""A model of another vocabulary than its target's: how the two understand each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from specdec import _core
from specdec.errors import VocabularyMismatchError
from specdec.models.model import Model
from specdec.models.tokenizer import ByteTokenizer, Strip, check_same_vocabulary
from specdec.models.tokenizer.byte_tokenizer import encode_continuing
from specdec.models.tokenizer.vocabulary import correspondence_of, token_strings

_KNOWN: WeakKeyDictionary[Model, WeakKeyDictionary[Model, _core.Translation]] = WeakKeyDictionary()


def same_vocabulary(target: Model, draft: Model) -> bool:
    """Return whether two models have the same tokens, or one of them has no tokenizer that tells.

    Other tokens whose bytes are not known are refused, as they cannot be translated.
    """
    try:
        check_same_vocabulary(target, draft)
    except VocabularyMismatchError as error:
        for model in (target, draft):
            if not isinstance(model.tokenizer, ByteTokenizer):
                unknown = f"{model.path} has no tokenizer whose tokens are known as bytes, to translate them"
                raise VocabularyMismatchError(f"{error}; {unknown}") from None
        if draft.config.encoder is not None and None in (target.source_tokenizer, draft.source_tokenizer):
            raise
        return False
    return True


def translation_of(target: Model, draft: Model) -> _core.Translation:
    """Return the translation of a target and a draft of another vocabulary, made once for each pair."""
    known = _KNOWN.setdefault(target, WeakKeyDictionary())
    if (found := known.get(draft)) is None:
        found = known.setdefault(draft, _translation(target, draft))
    return found


def _translation(target: Model, draft: Model) -> _core.Translation:
    ours, theirs = target.tokenizer, draft.tokenizer
    assert isinstance(ours, ByteTokenizer) and isinstance(theirs, ByteTokenizer)
    n_target, n_draft = target.config["n_vocab"], draft.config["n_vocab"]
    pairs = correspondence_of(ours, theirs, n_target, n_draft)
    strings = token_strings(ours, n_target), token_strings(theirs, n_draft)
    byte_tokens = [-1] * 256
    for token, string in enumerate(strings[1]):
        if len(string) == 1:
            byte_tokens[string[0]] = token
    arrays: dict[str, Any] = {
        "target_starts": _starts(strings[0]), "draft_starts": _starts(strings[1]),
        "draft_of": pairs.draft_of, "target_of": pairs.target_of, "byte_tokens": byte_tokens,
        "first": draft.decoder_start or _first(theirs, ours.adds_bos or theirs.adds_bos),
        "target_first": target.decoder_start or _first(ours, True),
    }  # fmt: skip
    return _core.Translation(
        draft.core, b"".join(strings[0]), b"".join(strings[1]),
        {name: np.asarray(values, np.int32) for name, values in arrays.items()},
        ours.strip is not Strip.NOTHING, theirs.strip is not Strip.NOTHING,
        partial(_for_draft, theirs), partial(_for_target, ours), _for_encoder(target, draft),
    )  # fmt: skip


def _starts(strings: Sequence[bytes]) -> Any:
    return np.concatenate([[0], np.cumsum([len(string) for string in strings])])


def _first(tokenizer: ByteTokenizer, begins: bool) -> tuple[int, ...]:
    return (tokenizer.bos_id,) if begins and tokenizer.bos_id is not None else ()


def _for_draft(tokenizer: ByteTokenizer, text: str, begins: int) -> list[int]:
    """Return the draft's ids of a text, which begins or follows another one."""
    return tokenizer.encode(text, add_bos=False) if begins else encode_continuing(tokenizer, text)


def _for_target(tokenizer: ByteTokenizer, text: str, n_before: int) -> list[int]:
    """Return the target's ids of what follows the first bytes of a text; -1: it is a text by itself.

    Where a token reaches across that index, those of what follows alone; none within a character.
    """
    if n_before < 0:
        return tokenizer.encode(text, add_bos=False)
    ids, after = encode_continuing(tokenizer, text), text.encode("utf-8")[n_before:]
    left = len(after)
    for at in range(len(ids) - 1, -1, -1):
        left -= len(tokenizer.text_bytes(ids[at]))
        if left == 0:
            return ids[at:]
        if left < 0:
            break
    try:
        return encode_continuing(tokenizer, after.decode("utf-8"))
    except UnicodeDecodeError:
        return []


def _for_encoder(target: Model, draft: Model) -> Callable[[Sequence[int]], list[int]] | None:
    """Return what turns a source of the target into that which the draft's encoder reads."""
    ours, theirs = target.source_tokenizer, draft.source_tokenizer
    if draft.config.encoder is None or ours is None or theirs is None:
        return None
    return lambda ids: theirs.encode(ours.tokenizer.decode(ids))
