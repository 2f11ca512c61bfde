"""llama2.c's tokenizer files (``tok*.bin``): a SentencePiece BPE vocabulary with scores, and its encoder.

A file has an int32, the maximum token length, then for each token a float32 score, an int32 length and its
bytes. Ids 0, 1, 2 are <unk>, <s>, </s>, the last two surrounded by newlines.
"""

from __future__ import annotations

import heapq
import math
import struct
from pathlib import Path
from typing import Final

from specdec.errors import TokenizerError
from specdec.models.tokenizer.byte_tokenizer import ByteTokenizer, Strip
from specdec.text_files import reading

_UNK, _BOS, _EOS, _FIRST_BYTE = 0, 1, 2, 3
_UNK_TEXT: Final = " \u2047 "  # as in SentencePiece


class Llama2cTokenizer(ByteTokenizer):
    """A tokenizer that encodes as llama2.c does.

    Prepends a space, takes a token for each character or its bytes, and merges the best-scored adjacent pair,
    leftmost first, until none is left. `has_bytes`: Whether tokens 3 to 258 are single bytes.
    """

    def __init__(
        self, path: Path, *, bos_id: int | None = None, eos_ids: tuple[int, ...] | None = None
    ) -> None:
        tokens, scores = _read(path)
        byte_tokens = [b"<0x%02X>" % byte for byte in range(256)]
        self.has_bytes = tokens[_FIRST_BYTE : _FIRST_BYTE + 256] == byte_tokens
        # Special and byte tokens are not text: "<s>" in a prompt is three characters.
        first_text = _FIRST_BYTE + 256 if self.has_bytes else _FIRST_BYTE
        self._ids: dict[bytes, int] = {}
        for token_id in range(first_text, len(tokens)):
            self._ids.setdefault(tokens[token_id], token_id)
        self.scores = scores
        self._first_text = first_text

        vocabulary: list[bytes | None] = [token.strip(b"\n") for token in tokens[:_FIRST_BYTE]]
        if self.has_bytes:
            vocabulary += [bytes([byte]) for byte in range(256)]
        vocabulary += tokens[first_text:]
        super().__init__(
            str(path), vocabulary=vocabulary, silent={_BOS, _EOS}, replaced={_UNK: _UNK_TEXT.encode("utf-8")},
            strip=Strip.ONE_SPACE, bos_id=_BOS if bos_id is None else bos_id,
            eos_ids=(_EOS,) if eos_ids is None else eos_ids, adds_bos=True,
        )  # fmt: skip

    def _characters(self, text: str) -> list[int]:
        ids: list[int] = []
        for char in text:
            piece = char.encode("utf-8")
            if piece in self._ids:
                ids.append(self._ids[piece])
            elif self.has_bytes:
                ids.extend(_FIRST_BYTE + byte for byte in piece)
            elif not ids or ids[-1] != _UNK:  # SentencePiece takes a run of unknown characters as one
                ids.append(_UNK)
        return ids

    def _encode(self, text: str) -> list[int]:
        if not text:
            return []
        ids = self._characters(" " + text)
        # A doubly linked list of symbols and a heap of candidate merges, best score first, then leftmost:
        # O(n log n), where llama2.c rescans for each merge. Stale candidates are skipped.
        n = len(ids)
        following = [*range(1, n), -1]
        preceding = list(range(-1, n - 1))
        heap: list[tuple[float, int, int, int, int]] = []

        def propose(left: int) -> None:
            right = following[left] if left >= 0 else -1
            if right < 0 or min(ids[left], ids[right]) < self._first_text:
                return
            merged = self._ids.get(self._texts[ids[left]] + self._texts[ids[right]])
            if merged is not None:
                heapq.heappush(heap, (-self.scores[merged], left, ids[left], ids[right], merged))

        for left in range(n - 1):
            propose(left)
        while heap:
            _, left, left_id, right_id, merged = heapq.heappop(heap)
            right = following[left]
            if ids[left] != left_id or right < 0 or ids[right] != right_id:
                continue
            ids[left], ids[right] = merged, -1
            following[left] = following[right]
            if following[right] >= 0:
                preceding[following[right]] = left
            propose(preceding[left])
            propose(left)
        return [token_id for token_id in ids if token_id >= 0]


def _read(path: Path) -> tuple[list[bytes], list[float]]:
    with reading(path, TokenizerError):
        data = path.read_bytes()
    if len(data) < 4:
        raise TokenizerError(f"{path}: has {len(data)} bytes; expected a llama2.c tokenizer file")
    (longest,) = struct.unpack_from("<i", data)
    tokens: list[bytes] = []
    scores: list[float] = []
    at = 4
    while at < len(data):
        if at + 8 > len(data):
            raise TokenizerError(f"{path}: ends inside token {len(tokens)}; expected its score and length")
        score, length = struct.unpack_from("<fi", data, at)
        at += 8
        if not 0 <= length <= min(longest, len(data) - at):
            expected = f"0 to {longest}, the header's maximum, and at most the {len(data) - at} bytes left"
            raise TokenizerError(f"{path}: token {len(tokens)} has length {length}; expected {expected}")
        if math.isnan(score):
            raise TokenizerError(f"{path}: token {len(tokens)} has the score NaN; expected a number")
        tokens.append(data[at : at + length])
        scores.append(score)
        at += length
    if len(tokens) <= _EOS:
        raise TokenizerError(f"{path}: has {len(tokens)} tokens; expected at least <unk>, <s> and </s>")
    return tokens, scores
