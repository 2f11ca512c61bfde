"""tokenizer.json, and vocab.json with merges.txt, through the ``tokenizers`` library."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from specdec.errors import TokenizerError
from specdec.models.tokenizer.added_tokens import SideTokens, import_tokenizers, library_errors
from specdec.models.tokenizer.byte_tokenizer import ByteTokenizer, Strip

# Maximum expansion of one character. NFKC makes 18, bytes for characters 4, a template adds a few.
_MOST: Final = 1024

_PARTS: Final[Mapping[str, str]] = {
    "normalizer": "normalizers", "pre_tokenizer": "pretokenizers", "post_processor": "processors",
}  # fmt: skip


def check_tokenizer_json(values: Mapping[str, Any], path: Path) -> None:
    """Refuse a file whose steps could expand text excessively, or whose merges cut characters."""
    _check_merges(values.get("model"), path)
    for part, key in _PARTS.items():
        length = 1
        for step in _steps(values.get(part), key):
            length = _length_after(step, length)
            if length > _MOST:
                found = f"a sequence that can turn one character into {length}"
                raise TokenizerError.of(path, part, None, f"at most {_MOST} characters", found=found)


def _check_merges(model: Any, path: Path) -> None:
    """Check merges for the subword prefix, whose length the library removes from every right half."""
    fields = model if isinstance(model, dict) else {}
    prefix, merges = fields.get("continuing_subword_prefix"), fields.get("merges")
    if not (isinstance(prefix, str) and prefix and isinstance(merges, list)):
        return
    if not prefix.isascii():
        raise TokenizerError.of(path, "model.continuing_subword_prefix", prefix, "ASCII characters")
    for i, merge in enumerate(merges):
        right = merge.partition(" ")[2] if isinstance(merge, str) else None
        if isinstance(merge, list) and merge:
            right = merge[-1]
        if not (isinstance(right, str) and right.startswith(prefix)):
            expected = f"a second half that starts with {prefix!r}, the continuing_subword_prefix"
            raise TokenizerError.of(path, f"model.merges[{i}]", merge, expected)


def _steps(step: Any, key: str) -> Iterator[Mapping[str, Any]]:
    """Yield the steps of nested sequences in execution order."""
    waiting = [step]
    while waiting:
        step = waiting.pop()
        if isinstance(step, dict):
            inner = step.get(key)
            if isinstance(inner, list):
                waiting += reversed(inner)
            else:
                yield step


def _length_after(step: Mapping[str, Any], length: int) -> int:
    """Return an upper bound of a text's length after a step, identified by its fields as in the library."""
    content, pattern, prepended = step.get("content"), step.get("pattern"), step.get("prepend")
    if isinstance(content, str):
        string = pattern.get("String") if isinstance(pattern, dict) else None
        if isinstance(string, str) and string:
            return max(length, -(-length * len(content) // len(string)))
        return length + (length + 1) * len(content)  # a regular expression may match between characters
    if isinstance(prepended, str):
        return length + len(prepended)
    if isinstance(step.get("precompiled_charsmap"), str):
        return length * _longest_replacement(step["precompiled_charsmap"])
    if step.get("type") == "ByteLevel" or "add_prefix_space" in step:
        return 4 * (length + 1)
    if isinstance(step.get("single"), list):
        known = step.get("special_tokens")
        tokens = known.values() if isinstance(known, dict) else ()
        ids = (one.get("ids") for one in tokens if isinstance(one, dict))
        longest = max((len(one) for one in ids if isinstance(one, list)), default=1)
        return len(step["single"]) * max(length, longest)
    return length


def _longest_replacement(charsmap: str) -> int:
    """Return the length of the longest string in SentencePiece's table: trie size, trie, strings."""
    try:
        table = base64.b64decode(charsmap)
    except ValueError:
        return 1  # the library refuses it too
    strings = table[4 + int.from_bytes(table[:4], "little") :]
    return max(1, *map(len, strings.split(b"\0")))


_BYTE_TOKEN: Final = re.compile(r"<0x([0-9A-Fa-f]{2})>")

CONTRACTIONS: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
REST: Final = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
GPT2_WORDS: Final = ("bytes",)
QWEN2_WORDS: Final = (rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{REST}",)
# Word splitting of transformers' classes that read vocab.json and merges.txt; see `word_steps`.
_SPLITS: Final[Mapping[str, tuple[str, ...]]] = {
    **dict.fromkeys(("GPT2Tokenizer", "BartTokenizer", "CodeGenTokenizer"), GPT2_WORDS),
    "Qwen2Tokenizer": QWEN2_WORDS,
}

# Limits against small files with a large cost. Vocabularies have few unused ids, decoders few steps.
_MAX_UNUSED: Final = 1 << 20
_MAX_TEXT: Final = 1 << 26  # characters of all tokens together
_LONG: Final = 4096  # characters, which take milliseconds
_MAX_STEPS: Final = 64
_STRIP_NONE, _STRIP_ONE = ({"type": "Strip", "content": " ", "start": n, "stop": 0} for n in (0, 1))


class HFTokenizer(ByteTokenizer):
    """A tokenizer that encodes with the ``tokenizers`` library, whose decoding is not incremental.

    `adds_bos`: None: if the template prepends tokens. `vocab`: Ids of tokens except added ones, if known.
    """

    reads_special_tokens = True

    def __init__(
        self, library_tokenizer: Any, source: str, *, bos_id: int | None = None,
        eos_ids: tuple[int, ...] = (), adds_bos: bool | None = None, vocab: Mapping[str, int] | None = None,
    ) -> None:  # fmt: skip
        self.library = library_tokenizer
        with library_errors(f"{source}: not a tokenizer that `tokenizers` can use"):
            # A tokenizer.json may contain padding and truncation settings from training.
            self.library.no_padding()
            self.library.no_truncation()
            added = self.library.get_added_tokens_decoder()
            if vocab is None:
                vocab = self.library.get_vocab(with_added_tokens=True)
            tokens = dict(zip(vocab.values(), vocab, strict=True))
            # The library decodes the normalized content of an added token, and knows which of several
            # tokens with one id counts.
            for token_id in added if len(tokens) == len(vocab) else [*tokens, *added]:
                tokens[token_id] = self.library.id_to_token(token_id)
            decoder = self.library.decoder
            state = None if decoder is None else json.loads(decoder.__getstate__())
            self.before, self.after = self._read_template()
        to_bytes, strip = _read_decoder(state, source)
        vocabulary, silent = _read_vocabulary(tokens, added, to_bytes, source)
        if self.before:
            # The template shows what the model was trained with; its configuration may name another BOS.
            bos_id = self.before[0]
        super().__init__(
            source, vocabulary=vocabulary, silent=silent, strip=strip, bos_id=bos_id, eos_ids=eos_ids,
            adds_bos=bool(self.before) if adds_bos is None else adds_bos,
        )  # fmt: skip
        self.added_ids = frozenset(added)

    @classmethod
    def from_file(cls, path: Path, side: SideTokens, vocab: Mapping[str, int] | None = None) -> HFTokenizer:
        """Read tokenizer.json and the tokens of the files next to it; `vocab` as in the class."""
        library = import_tokenizers(path)
        with library_errors(f"{path}: not a tokenizer.json that `tokenizers` can read"):
            tokenizer = library.Tokenizer.from_file(str(path))
        return cls._with_side_tokens(tokenizer, str(path), side, vocab=vocab)

    @classmethod
    def from_bpe_files(cls, vocab: Path, merges: Path, side: SideTokens) -> HFTokenizer:
        """Read vocab.json and merges.txt and the tokens next to them; transformers' class splits words."""
        library = import_tokenizers(vocab)
        if side.tokenizer_class not in _SPLITS:
            if side.names_class:
                expected = f"one of {', '.join(_SPLITS)} for {vocab.name}, or a tokenizer.json"
                raise TokenizerError.of(side.folder, "tokenizer_class", side.tokenizer_class, expected)
            side = replace(side, tokenizer_class="GPT2Tokenizer")
        words = _SPLITS[side.tokenizer_class or ""]
        with library_errors(f"{vocab} and {merges.name}: not a BPE vocabulary that `tokenizers` can read"):
            tokenizer = library.Tokenizer(library.models.BPE.from_file(str(vocab), str(merges)))
            tokenizer.pre_tokenizer = word_steps(words, prefixed=side.flag("add_prefix_space") is True)
            if words is not GPT2_WORDS:
                tokenizer.normalizer = library.normalizers.NFC()
            tokenizer.decoder = library.decoders.ByteLevel()
        return cls._with_side_tokens(tokenizer, str(vocab), side, of_bpe_files=True)

    @classmethod
    def _with_side_tokens(
        cls, tokenizer: Any, source: str, side: SideTokens, *, of_bpe_files: bool = False,
        vocab: Mapping[str, int] | None = None,
    ) -> HFTokenizer:  # fmt: skip
        with library_errors(f"{source}: the tokens of {side.folder} cannot be added"):
            side.add_to(tokenizer, source, with_defaults=of_bpe_files)
            if of_bpe_files and side.tokenizer_class == "BartTokenizer":
                first, last = side.name("bos_token"), side.name("eos_token")
                if first is None or last is None:
                    expected = "both bos_token and eos_token for a BartTokenizer"
                    raise TokenizerError(f"{source}: bos_token or eos_token is null; expected {expected}")
                ids = [(token, tokenizer.token_to_id(token)) for token in (first, last)]
                template = import_tokenizers(source).processors.TemplateProcessing
                tokenizer.post_processor = template(single=f"{first} $A {last}", special_tokens=ids)
            bos_id, eos_ids = side.end_ids(tokenizer.token_to_id)
        adds_bos = side.flag("add_bos_token")
        return cls(tokenizer, source, bos_id=bos_id, eos_ids=eos_ids, adds_bos=adds_bos, vocab=vocab)

    def _read_template(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the special tokens that the post-processor puts before and after a text."""
        plain, whole = (self.library.encode("a", add_special_tokens=adds).ids for adds in (False, True))
        n = len(plain)
        at = next((at for at in range(len(whole) - n + 1) if whole[at : at + n] == plain), None)
        return ((), ()) if at is None else (tuple(whole[:at]), tuple(whole[at + n :]))

    def _encode(self, text: str) -> list[int]:
        with library_errors(f"{self.source}: `tokenizers` cannot encode this text"):
            if len(text) < _LONG:
                ids: list[int] = self.library.encode(text, add_special_tokens=False).ids
            else:  # releases the GIL and skips offsets; its threads start with the first long text
                ids = self.library.encode_batch_fast([text], add_special_tokens=False)[0].ids
        return ids


def word_steps(steps: tuple[str, ...], *, prefixed: bool = False) -> Any:
    """Make a pre-tokenizer of steps "digits", "bytes" (GPT-2's rule), or regular expressions."""
    import tokenizers

    pre = tokenizers.pre_tokenizers
    rules = {"digits": pre.Digits(individual_digits=True), "bytes": pre.ByteLevel(add_prefix_space=prefixed)}
    made = [rules.get(step) or pre.Split(tokenizers.Regex(step), behavior="isolated") for step in steps]
    if steps[-1] != "bytes":
        made.append(pre.ByteLevel(add_prefix_space=prefixed, use_regex=False))
    return pre.Sequence(made)


def _read_vocabulary(
    tokens: dict[int, str], added: dict[int, Any], to_bytes: Callable[[Collection[str]], Iterable[bytes]],
    source: str,
) -> tuple[list[bytes | None], frozenset[int]]:  # fmt: skip
    """Return the bytes of each token by id, and the ids of special tokens."""
    if not tokens:
        raise TokenizerError(f"{source}: has no tokens; expected at least one")
    n_ids = max(tokens) + 1
    if n_ids > len(tokens) + _MAX_UNUSED:
        expected = f"at most {len(tokens) + _MAX_UNUSED - 1} in a vocabulary of {len(tokens)} tokens"
        raise TokenizerError(f"{source}: token {tokens[n_ids - 1]!r} has id {n_ids - 1}; expected {expected}")
    vocabulary: list[bytes | None] = [None] * n_ids
    for token_id, text in zip(tokens, to_bytes(tokens.values()), strict=True):
        vocabulary[token_id] = text
    silent = frozenset(token_id for token_id, token in added.items() if token.special)
    for token_id in silent:
        vocabulary[token_id] = added[token_id].content.encode("utf-8")
    return vocabulary, silent


def _read_decoder(state: Any, source: str) -> tuple[Callable[[Collection[str]], Iterable[bytes]], Strip]:
    """Return a function from tokens to bytes, and the leading spaces to strip, of a decoder's settings."""
    if state is None:
        return lambda tokens: (b" " + token.encode("utf-8") for token in tokens), Strip.ONE_SPACE
    steps = state["decoders"] if state["type"] == "Sequence" else [state]
    if len(steps) > _MAX_STEPS:
        raise TokenizerError.of(source, "decoder", None, f"at most {_MAX_STEPS}", found=f"{len(steps)} steps")
    step_types = [step["type"] for step in steps]
    if step_types == ["ByteLevel"]:
        return _byte_level, Strip.NOTHING

    replaced: list[tuple[str, str]] = []
    strip = Strip.NOTHING
    for at, step in enumerate(steps):
        step_type = step["type"]
        if step_type == "Replace" and set(step["pattern"]) == {"String"}:
            replaced.append((step["pattern"]["String"], step["content"]))
        elif step_type == "Metaspace":
            replaced.append((step["replacement"], " "))
            if step["prepend_scheme"] != "never":
                strip = Strip.SPACES_OF_FIRST_TOKEN
        # Before Fuse, Strip acts on every token.
        elif step_type == "Strip" and "Fuse" in step_types[:at] and step in (_STRIP_NONE, _STRIP_ONE):
            strip = Strip.ONE_SPACE if step["start"] else strip
        elif step_type not in ("ByteFallback", "Fuse"):
            parts = "Replace, Metaspace, ByteFallback, Fuse and Strip of one leading space"
            raise TokenizerError.of(source, "decoder", step, f"ByteLevel, or a sequence of {parts}")

    def to_bytes(tokens: Collection[str]) -> Iterator[bytes]:
        left = _MAX_TEXT
        for token in tokens:
            text = text_of(token, left)
            left -= len(text)
            yield text

    def text_of(token: str, most: int) -> bytes:
        if "ByteFallback" in step_types and (match := _BYTE_TOKEN.fullmatch(token)):
            return bytes.fromhex(match[1])
        for pattern, content in replaced:
            if len(token) + token.count(pattern) * (len(content) - len(pattern)) > most:
                found = f"one that makes more than {_MAX_TEXT} characters of the vocabulary"
                raise TokenizerError.of(source, "decoder", None, "fewer", found=found)
            token = token.replace(pattern, content)
        return token.encode("utf-8")

    return to_bytes, strip


def _byte_level_alphabet() -> NDArray[np.uint32]:
    """Return the byte of each character in GPT-2's alphabet, by code point; 256 for none."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = sorted({*range(256)} - {*printable})
    alphabet = np.full(0x100 + len(others) + 1, 256, np.uint32)
    alphabet[printable] = printable
    alphabet[0x100:-1] = others
    return alphabet


_ALPHABET: Final = _byte_level_alphabet()


def _byte_level(tokens: Collection[str]) -> list[bytes]:
    """Decode tokens in GPT-2's alphabet; added tokens with other characters are UTF-8."""
    codes = np.frombuffer("".join(tokens).encode("utf-32-le", "surrogatepass"), "<u4")
    found = _ALPHABET[np.minimum(codes, len(_ALPHABET) - 1)]
    data = found.astype(np.uint8).tobytes()
    ends = list(accumulate(map(len, tokens), initial=0))
    texts = [data[start:end] for start, end in pairwise(ends)]
    others = np.flatnonzero(found == 256)
    if len(others) > 0:
        named = list(tokens)
        for i in set((np.searchsorted(ends, others, "right") - 1).tolist()):
            texts[i] = named[i].encode("utf-8")
    return texts
