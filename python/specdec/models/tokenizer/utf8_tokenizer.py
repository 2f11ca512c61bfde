"""ByT5: the bytes of UTF-8 are the tokens, behind three special ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from specdec.models.tokenizer.byte_stream import Strip
from specdec.models.tokenizer.byte_tokenizer import ByteTokenizer

__all__ = ["Utf8Tokenizer"]

_SPECIAL: Final = ("<pad>", "</s>", "<unk>")
_FIRST: Final = len(_SPECIAL)
_MOST: Final = 4096  # added tokens


class Utf8Tokenizer(ByteTokenizer):
    """Ids 0 to 2 are special, id 3 + b is the byte b; then come the added tokens of the settings.

    Parameters
    ----------
    source : str
        Where the settings were read, for messages.
    settings : mapping
        The contents of tokenizer_config.json.
    bos_id, eos_ids
        The model's own; None: no BOS, and "</s>".
    """

    def __init__(
        self,
        source: str,
        settings: Mapping[str, Any],
        *,
        bos_id: int | None = None,
        eos_ids: tuple[int, ...] | None = None,
    ) -> None:
        vocabulary: list[bytes | None] = [name.encode() for name in _SPECIAL]
        vocabulary += [bytes([byte]) for byte in range(256)]
        added = settings.get("added_tokens_decoder")
        names = added if isinstance(added, dict) else {}
        while len(vocabulary) < _MOST and (token := names.get(str(len(vocabulary)))) is not None:
            content = token.get("content") if isinstance(token, dict) else token
            vocabulary.append(str(content).encode("utf-8", "replace"))
        silent = frozenset([*range(_FIRST), *range(_FIRST + 256, len(vocabulary))])
        super().__init__(
            source,
            vocabulary=vocabulary,
            silent=silent,
            strip=Strip.NOTHING,
            bos_id=bos_id,
            eos_ids=(1,) if eos_ids is None else eos_ids,
            adds_bos=False,
        )

    def _encode(self, text: str) -> list[int]:
        return [_FIRST + byte for byte in text.encode("utf-8")]
