"""tokenizer.json, and vocab.json with merges.txt, through the ``tokenizers`` library."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from specdec.errors import MissingTokenizerLibraryError, TokenizerError
from specdec.models.json_fields import as_json
from specdec.models.tokenizer.byte_stream import Strip
from specdec.models.tokenizer.byte_tokenizer import ByteTokenizer
from specdec.models.tokenizer.library import library_errors

__all__ = ["SPECIAL_NAMES", "HFTokenizer", "content_of"]

_BYTE_TOKEN: Final = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_END_OF_TEXT: Final = "<|endoftext|>"
SPECIAL_NAMES: Final = tuple(f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
"""What a tokenizer_config.json calls the special tokens that it names."""

# How the tokenizers of byte-level BPE in two files cut a text into words: classes of transformers, types of
# models. GPT-2's rule is the library's own.
_SPLITS: Final[Mapping[str, str | None]] = {
    "gpt2": None,
    "qwen2": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
}
_CLASSES: Final[Mapping[str, str]] = {
    "GPT2Tokenizer": "gpt2",
    "BartTokenizer": "gpt2",
    "CodeGenTokenizer": "gpt2",
    "Qwen2Tokenizer": "qwen2",
}
_BETWEEN: Final = ("BartTokenizer", "BartTokenizerFast")

# What a small file may cost. Vocabularies have few ids without token, or none; decoders a handful of steps.
_MAX_UNUSED: Final = 1 << 20
_MAX_TEXT: Final = 1 << 26  # characters of all tokens together
_LONG: Final = 4096  # characters, which take milliseconds
_MAX_STEPS: Final = 64


class HFTokenizer(ByteTokenizer):
    """A tokenizer of the ``tokenizers`` library; make one with :meth:`from_file` or :meth:`from_bpe_files`.

    The library encodes. Decoding is done here, on a table of bytes made from its decoder's settings,
    because the library's decoders are not incremental: with byte fallback a later token can change the text
    of an earlier one. On valid UTF-8 both give the same text.

    Parameters
    ----------
    library_tokenizer : tokenizers.Tokenizer
    source : str
        Where it was read, for messages.
    bos_id, eos_ids
        The model's own, from its configuration; None: what ``settings`` name.
    settings : dict
        The contents of tokenizer_config.json; of it only ``add_bos_token``, ``bos_token`` and ``eos_token``
        are read, the last two where the model names none.
    vocab : mapping of str to int, optional
        The ids of the tokens but the added ones, of a caller who has read them; None: the library is asked,
        which takes as long as reading the file.

    Attributes
    ----------
    added_ids : frozenset of int
        Tokens that were added to the vocabulary: what `encode` looks for in a text first, special or not.
    """

    reads_special_tokens = True

    def __init__(
        self,
        library_tokenizer: Any,
        source: str,
        *,
        bos_id: int | None = None,
        eos_ids: tuple[int, ...] | None = None,
        settings: dict[str, Any] | None = None,
        vocab: Mapping[str, int] | None = None,
    ) -> None:
        self._library = library_tokenizer
        settings = settings or {}
        with library_errors(f"{source}: not a tokenizer that `tokenizers` can use"):
            # A tokenizer.json may carry the padding and truncation of its last training run.
            self._library.no_padding()
            self._library.no_truncation()
            added = self._library.get_added_tokens_decoder()
            if vocab is None:
                vocab = self._library.get_vocab(with_added_tokens=True)
            tokens = dict(zip(vocab.values(), vocab, strict=True))
            # Of an added token the library decodes what its normaliser makes of it; of several tokens with
            # one id it knows which counts.
            for token_id in added if len(tokens) == len(vocab) else [*tokens, *added]:
                tokens[token_id] = self._library.id_to_token(token_id)
            decoder = self._library.decoder
            state = None if decoder is None else json.loads(decoder.__getstate__())
            self.before, self.after = self._read_template()
            bos_id, eos_ids, adds_bos = self._read_ends(settings, bos_id, eos_ids)
        to_bytes, strip = _read_decoder(state, source)
        vocabulary, silent = _read_vocabulary(tokens, added, to_bytes, source)
        super().__init__(
            source,
            vocabulary=vocabulary,
            silent=silent,
            strip=strip,
            bos_id=bos_id,
            eos_ids=eos_ids,
            adds_bos=adds_bos,
        )
        self.added_ids = frozenset(added)

    def _read_ends(
        self, settings: dict[str, Any], bos_id: int | None, eos_ids: tuple[int, ...] | None
    ) -> tuple[int | None, tuple[int, ...], bool]:
        """(BOS, ids that end a text, whether a text begins with BOS); see the parameters of the class."""
        if bos_id is None:
            bos_id = self._named(settings, "bos_token")
        if eos_ids is None:
            eos = self._named(settings, "eos_token")
            eos_ids = () if eos is None else (eos,)
        if self.before:
            # What the template puts in front is what the model saw; its configuration may name another BOS.
            bos_id = self.before[0]
        adds_bos = settings.get("add_bos_token")
        if not isinstance(adds_bos, bool):
            adds_bos = bool(self.before)
        return bos_id, eos_ids, adds_bos

    @property
    def library(self) -> Any:
        """The tokenizer of the library."""
        return self._library

    @classmethod
    def from_file(cls, path: Path, **options: Any) -> HFTokenizer:
        """Read tokenizer.json. Options are those of the class."""
        library = _import_library(path)
        with library_errors(f"{path}: not a tokenizer.json that `tokenizers` can read"):
            tokenizer = library.Tokenizer.from_file(str(path))
        return cls(tokenizer, str(path), **options)

    @classmethod
    def from_bpe_files(
        cls, vocab: Path, merges: Path, *, model_type: str | None = None, **options: Any
    ) -> HFTokenizer:
        """Read vocab.json and merges.txt: byte-level BPE. Options are those of the class.

        The files do not say how a text is cut into words: ``tokenizer_class`` of the settings does, else the
        type of the model, else it is done as GPT-2 does it. Added tokens are ``added_tokens_decoder`` of the
        settings.
        """
        library = _import_library(vocab)
        settings = options.get("settings") or {}
        split = _split_of(settings.get("tokenizer_class"), model_type, vocab)
        with library_errors(f"{vocab} and {merges.name}: not a BPE vocabulary that `tokenizers` can read"):
            model = library.models.BPE.from_file(str(vocab), str(merges))
            tokenizer = library.Tokenizer(model)
            prefixed = settings.get("add_prefix_space") is True
            tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=prefixed)
            if split is not None:
                words = library.pre_tokenizers.Split(library.Regex(split), behavior="isolated")
                whole = library.pre_tokenizers.ByteLevel(add_prefix_space=prefixed, use_regex=False)
                tokenizer.pre_tokenizer = library.pre_tokenizers.Sequence([words, whole])
                tokenizer.normalizer = library.normalizers.NFC()
            tokenizer.decoder = library.decoders.ByteLevel()
            _add_tokens(library, tokenizer, settings.get("added_tokens_decoder"), vocab)
            specials = [content_of(settings.get(name)) for name in SPECIAL_NAMES]
            for token in [_END_OF_TEXT, *specials]:
                if token is not None and tokenizer.token_to_id(token) is not None:
                    tokenizer.add_special_tokens([token])
            if split is not None:
                tokenizer.add_special_tokens([_END_OF_TEXT])
            if settings.get("tokenizer_class") in _BETWEEN or model_type == "bart":
                tokenizer.post_processor = _between(library, tokenizer, specials, vocab)
            end = tokenizer.token_to_id(_END_OF_TEXT)
        if end is not None and split is None:
            if options.get("bos_id") is None:
                options["bos_id"] = end
        if end is not None and options.get("eos_ids") is None and "eos_token" not in settings:
            options["eos_ids"] = (end,)
        return cls(tokenizer, str(vocab), **options)

    def _named(self, settings: dict[str, Any], key: str) -> int | None:
        """Id of the token a setting names, as text or as an object with its content."""
        value = content_of(settings.get(key))
        return None if value is None else self._library.token_to_id(value)

    def _read_template(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The special tokens that the file's post-processor puts in front of a text, and behind it."""
        plain = self._library.encode("a", add_special_tokens=False).ids
        whole: list[int] = self._library.encode("a", add_special_tokens=True).ids
        for at in range(len(whole) - len(plain) + 1):
            if whole[at : at + len(plain)] == plain:
                return tuple(whole[:at]), tuple(whole[at + len(plain) :])
        return (), ()

    def _encode(self, text: str) -> list[int]:
        with library_errors(f"{self.source}: `tokenizers` cannot encode this text"):
            if len(text) < _LONG:
                ids: list[int] = self._library.encode(text, add_special_tokens=False).ids
            else:  # releases the GIL, and computes no offsets; its threads start with the first long text
                ids = self._library.encode_batch_fast([text], add_special_tokens=False)[0].ids
        return ids


def content_of(token: Any) -> str | None:
    """The text of a token that a setting names, as text or as an object with its content; None: no token."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None


def _between(library: Any, tokenizer: Any, specials: list[str | None], vocab: Path) -> Any:
    """A template that puts a text between BOS and EOS, which the settings name, as BART has it."""
    first, last = specials[0] or "<s>", specials[1] or "</s>"
    ids = [(token, tokenizer.token_to_id(token)) for token in (first, last)]
    for token, token_id in ids:
        if token_id is None:
            raise TokenizerError(f"{vocab}: has no token {token!r}; expected it, as texts stand between two")
    return library.processors.TemplateProcessing(single=f"{first} $A {last}", special_tokens=ids)


def _split_of(tokenizer_class: Any, model_type: str | None, vocab: Path) -> str | None:
    """The regular expression of the words; None: GPT-2's."""
    if tokenizer_class is None:
        return _SPLITS["qwen2" if (model_type or "").startswith(("qwen2", "qwen3")) else "gpt2"]
    name = tokenizer_class.removesuffix("Fast") if isinstance(tokenizer_class, str) else None
    if name is None or name not in _CLASSES:
        raise TokenizerError(
            f"{vocab}: tokenizer_config.json names the class {as_json(tokenizer_class)}; expected one of "
            f"{', '.join(_CLASSES)} for a vocab.json with merges.txt, or a tokenizer.json"
        )
    return _SPLITS[_CLASSES[name]]


def _add_tokens(library: Any, tokenizer: Any, added: Any, vocab: Path) -> None:
    """Add the tokens of ``added_tokens_decoder``, an object of id to token, in the order of their ids."""
    if added is None:
        return
    expected = "an object of ids and tokens with 'content'"
    try:
        tokens = sorted((int(key), token["content"], token) for key, token in added.items())
    except (AttributeError, KeyError, TypeError, ValueError):
        raise TokenizerError(
            f"{vocab}: field 'added_tokens_decoder' of tokenizer_config.json is {as_json(added)}; expected "
            f"{expected}"
        ) from None
    for token_id, content, settings in tokens:
        names = ("single_word", "lstrip", "rstrip", "normalized", "special")
        flags = {name: settings[name] for name in names if isinstance(settings.get(name), bool)}
        tokenizer.add_tokens([library.AddedToken(content, **flags)])
        if tokenizer.token_to_id(content) != token_id:
            raise TokenizerError(
                f"{vocab}: added token {content!r} of tokenizer_config.json has id {token_id}; expected "
                f"{tokenizer.token_to_id(content)}, the next one behind the vocabulary"
            )


def _import_library(path: Path) -> Any:
    try:
        import tokenizers
    except ImportError as error:
        raise MissingTokenizerLibraryError(
            f"{path}: is read by the package `tokenizers`, which is not installed: pip install tokenizers "
            f"(or tokenizer=False: ids in, ids out)"
        ) from error
    return tokenizers


def _read_vocabulary(
    tokens: dict[int, str],
    added: dict[int, Any],
    to_bytes: Callable[[Collection[str]], Iterable[bytes]],
    source: str,
) -> tuple[list[bytes | None], frozenset[int]]:
    """(bytes of each token by id, ids that stand for no text) from the library's tokens and added tokens."""
    if not tokens:
        raise TokenizerError(f"{source}: has no tokens; expected at least one")
    n_ids = max(tokens) + 1
    if n_ids > len(tokens) + _MAX_UNUSED:
        raise TokenizerError(
            f"{source}: token {tokens[n_ids - 1]!r} has id {n_ids - 1}; expected at most "
            f"{len(tokens) + _MAX_UNUSED - 1} in a vocabulary of {len(tokens)} tokens"
        )
    vocabulary: list[bytes | None] = [None] * n_ids
    for token_id, text in zip(tokens, to_bytes(tokens.values()), strict=True):
        vocabulary[token_id] = text
    silent = frozenset(token_id for token_id, token in added.items() if token.special)
    for token_id in silent:
        vocabulary[token_id] = added[token_id].content.encode("utf-8")
    return vocabulary, silent


def _read_decoder(state: Any, source: str) -> tuple[Callable[[Collection[str]], Iterable[bytes]], Strip]:
    """(bytes of tokens' texts, what the beginning of a text loses) from the library's decoder settings.

    The first is a function of all tokens. Covers byte-level BPE, Metaspace, Llama's sequence Replace,
    ByteFallback, Fuse, Strip, and no decoder at all, where the library puts spaces between tokens.
    """
    if state is None:
        return lambda tokens: (b" " + token.encode("utf-8") for token in tokens), Strip.ONE_SPACE
    steps = state["decoders"] if state["type"] == "Sequence" else [state]
    if len(steps) > _MAX_STEPS:
        raise TokenizerError(f"{source}: decoder has {len(steps)} steps; expected at most {_MAX_STEPS}")
    kinds = [step["type"] for step in steps]
    if kinds == ["ByteLevel"]:
        return _byte_level, Strip.NOTHING

    replaced: list[tuple[str, str]] = []
    byte_fallback = False
    strip = Strip.NOTHING
    for at, step in enumerate(steps):
        kind = step["type"]
        if kind == "Replace" and set(step["pattern"]) == {"String"}:
            replaced.append((step["pattern"]["String"], step["content"]))
        elif kind == "Metaspace":
            replaced.append((step["replacement"], " "))
            if step["prepend_scheme"] != "never":
                strip = Strip.SPACES_OF_FIRST_TOKEN
        elif kind == "ByteFallback":
            byte_fallback = True
        elif kind == "Fuse":
            pass
        # Before Fuse, Strip would act on every token.
        elif (
            kind == "Strip"
            and "Fuse" in kinds[:at]
            and (step["content"], step["stop"]) == (" ", 0)
            and step["start"] < 2
        ):
            strip = Strip.ONE_SPACE if step["start"] else strip
        else:
            raise TokenizerError(
                f"{source}: decoder has a step {as_json(step)} here; expected ByteLevel, "
                "or a sequence "
                f"of Replace, Metaspace, ByteFallback, Fuse and Strip of one leading space"
            )

    def to_bytes(tokens: Collection[str]) -> Iterator[bytes]:
        left = _MAX_TEXT
        for token in tokens:
            text = text_of(token, left)
            left -= len(text)
            yield text

    def text_of(token: str, most: int) -> bytes:
        if byte_fallback and (match := _BYTE_TOKEN.fullmatch(token)):
            return bytes.fromhex(match[1])
        for pattern, content in replaced:
            if len(token) + token.count(pattern) * (len(content) - len(pattern)) > most:
                raise TokenizerError(
                    f"{source}: decoder makes a text of more than {_MAX_TEXT} characters of the vocabulary; "
                    f"expected less"
                )
            token = token.replace(pattern, content)
        return token.encode("utf-8")

    return to_bytes, strip


def _byte_level_alphabet() -> NDArray[np.uint32]:
    """The byte that each character of GPT-2's alphabet stands for, by its code; 256 where it stands for none.

    Printable Latin-1 stands for itself, the characters from U+0100 on for the other bytes.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = sorted({*range(256)} - {*printable})
    alphabet = np.full(0x100 + len(others) + 1, 256, np.uint32)
    alphabet[printable] = printable
    alphabet[0x100:-1] = others
    return alphabet


_ALPHABET: Final = _byte_level_alphabet()


def _byte_level(tokens: Collection[str]) -> list[bytes]:
    """The bytes of tokens in GPT-2's alphabet; of a token with another character, an added one, its UTF-8."""
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
