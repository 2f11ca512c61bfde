"""Conversion of GGUF vocabularies to tokenizers of ``tokenizers`` or ``sentencepiece``, and back."""

from __future__ import annotations

import base64
import itertools
import json
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from specdec.errors import TokenizerError, warn
from specdec.fields import Fields, MetadataFields
from specdec.models.tokenizer.added_tokens import AddedTokenFinder, import_tokenizers, library_errors
from specdec.models.tokenizer.byte_tokenizer import Tokenizer
from specdec.models.tokenizer.hf_tokenizer import (
    CONTRACTIONS,
    GPT2_WORDS,
    QWEN2_WORDS,
    REST,
    HFTokenizer,
    word_steps,
)
from specdec.models.tokenizer.llama2c_tokenizer import Llama2cTokenizer
from specdec.models.tokenizer.sentencepiece_file import (
    META,
    SentencePieceTokenizer,
    message,
    parse_sentencepiece,
    read_fields,
)
from specdec.models.tokenizer.vocabulary import special_tokens_of

PREFIX: Final = "tokenizer.ggml."
_MAX_TOKENS: Final = 1 << 22

# Token types of SentencePiece.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)

# Fields of sentencepiece_model.proto.
_PIECES, _TRAINER, _NORMALIZER = 1, 2, 3
_CHARSMAP, _DUMMY_PREFIX, _EXTRA_SPACES, _ESCAPES = 2, 3, 4, 5  # normalizer fields

SPECIAL_TOKENS: Final[Mapping[str, str]] = {
    "bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "sep_token": "seperator",
    "pad_token": "padding",
}  # fmt: skip
"""Variables of chat templates, and the keys of their ids without "_token_id" ("seperator" is GGUF's)."""
ENDS: Final = ("eos", "eot", "eom")
"""Keys of EOS ids, without "_token_id"."""

_INFILLING: Final = ("fim_pre", "fim_suf", "fim_mid", "fim_pad", "fim_rep", "fim_sep")
_CONTROL_TEXTS: Final = frozenset(
    (
        "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>",
        "<end_of_turn>", "<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]",
        "<|end_of_text|>", "<end_of_utterance>", "<eos>", "<turn|>", "<｜end▁of▁sentence｜>",
    )
)  # fmt: skip
"""Tokens that llama.cpp treats as control tokens whatever their type."""
_MARK: Final = re.compile(r"_?[<\[].+[>\]]", re.DOTALL)
_SPACE: Final = "▁"
_BYTE_TOKEN: Final = re.compile(r"<0x[0-9A-Fa-f]{2}>")

# Word splitting of byte-level BPE, by ``tokenizer.ggml.pre``; see `word_steps`.
_SLASH: Final = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3: Final = (rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{REST}",)
_UPPER: Final = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER: Final = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_GPT4O: Final = (
    rf"{_UPPER}*{_LOWER}+{CONTRACTIONS}?|{_UPPER}+{_LOWER}*{CONTRACTIONS}?|\p{{N}}{{1,3}}|{_SLASH}"
)
_BLOOM: Final = (" ?[^(\\s|.,!?…。，、।۔،)]+",)
_GPT2: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_LLAMA3_WHOLE: Final = (
    "llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2",
)  # fmt: skip
# Cased letters as DeepSeek LLM lists them, fewer than Unicode's current properties.
_CASED: Final = (
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-\u1f7d"
    "ᾀ-ᾴᾶ-ᾼ\u1fbeῂ-ῄῆ-ῌῐ-\u1fd3ῖ-\u1fdbῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\u2126ℨ\u212a-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗ"
    "Ａ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)
_RULES: Final[Mapping[str, tuple[str, ...]]] = {
    "default": (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]"),
    "gpt-2 phi-2 olmo mpt jais trillion granite-docling mellum roberta-bpe a.x-4.0 exaone4": GPT2_WORDS,
    "starcoder refact command-r smollm codeshell exaone minerva-7b": ("digits", "bytes"),
    " ".join((*_LLAMA3_WHOLE, "dbrx", "smaug-bpe", "chatglm-bpe", "glm4")): _LLAMA3,
    "qwen2 stablelm2 deepseek-r1-qwen hunyuan megrez kormo": QWEN2_WORDS,
    "seed-coder": (
        rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|\s*[\r\n]+"
        r"|\s+(?!\S)|\s+",
    ),
    "superbpe": (r"\p{N}+", r"(?=(\d{3})+(?!\d))"),
    "tiny_aya cohere2moe": (r"\d{1,3}(?=(?:\d{3})*\b)", _GPT4O),
    "tekken": (rf"{_UPPER}*{_LOWER}+|{_UPPER}+{_LOWER}*|\p{{N}}|{_SLASH}",),
    "gpt-4o llama4": (_GPT4O,),
    "falcon": (r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]"),
    "bloom poro-chat gpt3-finnish": _BLOOM,
    "viking": (*_BLOOM, "digits"),
    "deepseek-llm": (
        "[\r\n]", rf"\s?[{_CASED}]+", "\\s?[!-/:-~！-／：-～‘-‟\u3000-。]+", r"\s+$",
        "[一-龥ࠀ-一가-퟿]+", r"\p{N}+",
    ),
    "deepseek-coder": ("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", r"\p{N}"),
    "deepseek-v3": (
        r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+",
        r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
        r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ),
}  # fmt: skip
WORDS: Final = {name: rule for names, rule in _RULES.items() for name in names.split()}
WHOLE_WORDS: Final = (*_LLAMA3_WHOLE, "tekken")
"""Vocabularies that encode a word as its token, if there is one, whatever the merges, and prepend BOS."""

# Names that are written for word rules; the first match is used.
_WRITTEN: Final = (
    "gpt-2", "llama-bpe", "smaug-bpe", "qwen2", "tekken", "gpt-4o", "starcoder", "deepseek-v3",
    "deepseek-coder", "default", "falcon", "bloom", "viking",
)  # fmt: skip

PROBES: Final = (
    "Hello, world! It's 12345 o'clock; WE'RE here, they'll say: \"no\".",
    "  two spaces\n\n\tand a tab\r\n   \n end ",
    "def f(x):\n    return x**2 + 3.14e-10  # naïve café\n",
    "Größe, façade, ИСТОРИЯ, ελληνικά, 中文字符和日本語のテキスト, 한국어, العربية, हिन्दी",
    "x1y22z333 4444 55555 666666 a_b-c/d\\e http://a.b/c?d=e&f=1",
    "😀👍🏽 e\u0301 \u00a0nbsp \u2003 em… « quotes » 'tis 'S 'RE don't",
    "A",
    " leading",
    "",
)
"""Texts that a tokenizer and its GGUF version must encode identically."""


TokenTypes: TypeAlias = NDArray[np.integer[Any]]
"""Token types, [n_tokens]."""


@dataclass(frozen=True)
class Vocabulary:
    """A file's tokenizer; `special_tokens` are variables of chat templates, such as "bos_token"."""

    tokenizer: Tokenizer
    n_tokens: int
    special_tokens: Mapping[str, str]


@dataclass(frozen=True)
class _Tokens:
    """Token lists of a vocabulary, all of one length; scores may be absent."""

    source: str
    texts: list[str]
    token_types: TokenTypes
    scores: Sequence[float] | None
    bos_id: int | None
    eos_ids: tuple[int, ...]

    def of_type(self, *token_types: int) -> Iterator[tuple[int, str]]:
        return ((i, self.texts[i]) for i in np.flatnonzero(np.isin(self.token_types, token_types)).tolist())


def read_vocabulary(values: Mapping[str, Any], file: Path) -> Vocabulary | None:
    """Read the vocabulary from a file's metadata; None if there is none."""
    fields = MetadataFields(values, file, error_type=TokenizerError)
    model = fields.raw(PREFIX + "model")
    if model is None or model == "none" or model == "no_vocab":
        return None
    tokens = _read_tokens(fields)
    tokenizer: Tokenizer
    if model == "gpt2":
        tokenizer = _byte_level(fields, tokens)
    elif model == "gemma4":
        tokenizer = _characters(fields, tokens)
    elif model in ("llama", "t5"):
        tokenizer = _pieces(fields, tokens, unigram=model == "t5")
    else:
        expected = "gpt2, gemma4, llama or t5 (or pass tokenizer= with a path, or False to use token ids)"
        raise fields.error(PREFIX + "model", expected)
    special = {
        name: tokens.texts[token]
        for name, key in SPECIAL_TOKENS.items()
        if (token := _token_id(fields, key, len(tokens.texts))) is not None
    }
    return Vocabulary(tokenizer, len(tokens.texts), special)


def read_end_ids(values: Mapping[str, Any], file: Path, n: int) -> tuple[int | None, tuple[int, ...]]:
    """Read BOS and EOS ids below `n` from the metadata."""
    return _end_ids(MetadataFields(values, file, error_type=TokenizerError), n)


def _end_ids(fields: Fields, n: int) -> tuple[int | None, tuple[int, ...]]:
    ends = dict.fromkeys(_token_id(fields, key, n) for key in ENDS)
    return _token_id(fields, "bos", n), tuple(token for token in ends if token is not None)


def _token_id(fields: Fields, key: str, n: int) -> int | None:
    token = fields.raw(f"{PREFIX}{key}_token_id")
    if token is not None and type(token) is not int:
        raise fields.error(f"{PREFIX}{key}_token_id", f"a token id from 0 to {n - 1}")
    # files write an id outside the vocabulary for "none"
    return token if token is not None and 0 <= token < n else None


def _read_tokens(fields: Fields) -> _Tokens:
    texts = fields.raw(PREFIX + "tokens")
    if not isinstance(texts, list) or not 1 <= len(texts) <= _MAX_TOKENS:
        raise fields.error(PREFIX + "tokens", f"an array of 1 to {_MAX_TOKENS} strings")
    n = len(texts)
    token_types = fields.raw(PREFIX + "token_type")
    if token_types is None:
        token_types = np.full(n, NORMAL)
    if not isinstance(token_types, np.ndarray) or len(token_types) != n or token_types.dtype.kind not in "iu":
        raise fields.error(PREFIX + "token_type", f"an array of {n} whole numbers, one for each token")
    scores = fields.raw(PREFIX + "scores")
    if scores is not None and (
        not isinstance(scores, np.ndarray) or len(scores) != n or not np.isfinite(scores).all()
    ):
        raise fields.error(PREFIX + "scores", f"an array of {n} finite numbers, one for each token")
    bos_id, eos_ids = _end_ids(fields, n)
    named = {bos_id, *eos_ids, *(_token_id(fields, key, n) for key in _INFILLING)}
    token_types = _corrected(token_types, texts, named)
    found = None if scores is None else scores.tolist()
    return _Tokens(str(fields.file), texts, token_types, found, bos_id, eos_ids)


def _corrected(token_types: TokenTypes, texts: Sequence[str], named: set[int | None]) -> TokenTypes:
    """Return token types with end-of-turn and named special tokens corrected to control, as in llama.cpp."""
    token_types = token_types.copy()
    for i in np.flatnonzero(np.isin(token_types, (NORMAL, USER_DEFINED))).tolist():
        if texts[i] in _CONTROL_TEXTS or (i in named and _MARK.fullmatch(texts[i])):
            token_types[i] = CONTROL
    return token_types


# ----------------------------------------------------------------------------------------------- BPE


def _read_merges(fields: Fields) -> list[tuple[str, str]]:
    merges = fields.raw(PREFIX + "merges")
    if not isinstance(merges, list):
        raise fields.error(PREFIX + "merges", "an array of strings")
    pairs = []
    for merge in merges:
        at = merge.find(" ", 1)
        if not 0 < at < len(merge) - 1:
            raise fields.error(PREFIX + "merges", "two tokens separated by a space in each", merge)
        pairs.append((merge[:at], merge[at + 1 :]))
    return pairs


def _characters(fields: Fields, tokens: _Tokens) -> HFTokenizer:
    """Read Gemma 4's BPE of characters: spaces are a mark, runs of newlines are words, bytes a fallback."""
    tokenizers = import_tokenizers(tokens.source)
    pairs = _read_merges(fields)
    unknown = next((text for _, text in tokens.of_type(UNKNOWN)), None)
    special = dict(tokens.of_type(CONTROL, UNKNOWN))
    added = special | dict(tokens.of_type(USER_DEFINED))
    new, decoders = tokenizers.AddedToken, tokenizers.decoders
    with library_errors(f"{tokens.source}: not a BPE vocabulary that `tokenizers` can use"):
        vocabulary = dict(zip(tokens.texts, range(len(tokens.texts)), strict=True))
        model = tokenizers.models.BPE(
            vocab=vocabulary, merges=pairs, byte_fallback=True, unk_token=unknown, fuse_unk=True
        )
        library = tokenizers.Tokenizer(model)
        library.normalizer = tokenizers.normalizers.Replace(" ", _SPACE)
        library.pre_tokenizer = tokenizers.pre_tokenizers.Split(tokenizers.Regex(r"\n+"), "isolated")
        steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
        library.decoder = decoders.Sequence(steps)
        library.add_tokens([new(added[i], special=i in special, normalized=False) for i in sorted(added)])
    return HFTokenizer(
        library, tokens.source, bos_id=tokens.bos_id, eos_ids=tokens.eos_ids,
        adds_bos=fields.boolean(PREFIX + "add_bos_token", default=True), vocab=vocabulary,
    )  # fmt: skip


def _byte_level(fields: Fields, tokens: _Tokens) -> HFTokenizer:
    tokenizers = import_tokenizers(tokens.source)
    pre = fields.raw(PREFIX + "pre")
    pre = "default" if pre is None else pre
    if pre not in WORDS:
        expected = f"one of {', '.join(sorted(WORDS))} (or pass tokenizer= with a path)"
        raise fields.error(PREFIX + "pre", expected)
    pairs = _read_merges(fields)
    special = dict(tokens.of_type(CONTROL, UNKNOWN))
    added = special | dict(tokens.of_type(USER_DEFINED))
    new = tokenizers.AddedToken
    with library_errors(f"{tokens.source}: not a BPE vocabulary that `tokenizers` can use"):
        vocabulary = dict(zip(tokens.texts, range(len(tokens.texts)), strict=True))
        model = tokenizers.models.BPE(vocab=vocabulary, merges=pairs, ignore_merges=pre in WHOLE_WORDS)
        library = tokenizers.Tokenizer(model)
        library.pre_tokenizer = word_steps(WORDS[pre])
        if WORDS[pre] is QWEN2_WORDS:
            library.normalizer = tokenizers.normalizers.NFC()
        library.decoder = tokenizers.decoders.ByteLevel()
        library.add_tokens([new(added[i], special=i in special, normalized=False) for i in sorted(added)])
    return HFTokenizer(
        library, tokens.source, bos_id=tokens.bos_id, eos_ids=tokens.eos_ids,
        adds_bos=fields.boolean(PREFIX + "add_bos_token", default=pre in WHOLE_WORDS), vocab=vocabulary,
    )  # fmt: skip


# ------------------------------------------------------------------------------------- SentencePiece


def _pieces(fields: Fields, tokens: _Tokens, *, unigram: bool) -> SentencePieceTokenizer:
    if tokens.scores is None:
        raise fields.error(PREFIX + "scores", "an array of numbers")
    for token_type in set(tokens.token_types.tolist()) - set(range(NORMAL, BYTE + 1)):
        raise fields.error(PREFIX + "token_type", "types from 1 to 6", token_type)
    library = parse_sentencepiece(_model_proto(fields, tokens, unigram), tokens.source)
    marks = {text: i for i, text in tokens.of_type(CONTROL, USER_DEFINED) if text}
    made = SentencePieceTokenizer(
        library, tokens.source, finder=AddedTokenFinder.of(marks, tokens.source) if marks else None, added={},
        silent={i for i, _ in tokens.of_type(CONTROL)}, prefixes_all=True,  # as in llama.cpp
        bos_id=tokens.bos_id, eos_ids=tokens.eos_ids,
        adds_bos=fields.boolean(PREFIX + "add_bos_token", default=not unigram),
    )  # fmt: skip
    if fields.boolean(PREFIX + "add_eos_token", default=unigram):
        made.after = tokens.eos_ids[:1]
    return made


def _model_proto(fields: Fields, tokens: _Tokens, unigram: bool) -> bytes:
    """Serialize the vocabulary as a SentencePiece model (sentencepiece_model.proto)."""
    charsmap = fields.raw(PREFIX + "precompiled_charsmap")
    if charsmap is not None and (not isinstance(charsmap, np.ndarray) or charsmap.dtype.itemsize != 1):
        raise fields.error(PREFIX + "precompiled_charsmap", "an array of bytes")
    token_types = tokens.token_types.tolist()
    if UNKNOWN not in token_types:  # SentencePiece requires one
        token_types[_token_id(fields, "unknown", len(token_types)) or 0] = UNKNOWN
    rows = zip(tokens.texts, tokens.scores or (), token_types, strict=True)
    pieces = [message((1, text.encode()), (2, score), (3, token_type)) for text, score, token_type in rows]
    bos_id, eos_id = tokens.bos_id, (*tokens.eos_ids, None)[0]
    trainer = message(
        (3, 1 if unigram else 2), (35, int(BYTE in token_types)), (40, token_types.index(UNKNOWN)),
        (41, -1 if bos_id is None else bos_id), (42, -1 if eos_id is None else eos_id), (43, -1),
    )  # fmt: skip
    normalizer = message(
        (1, b"identity" if charsmap is None else b"nmt_nfkc"),
        *([] if charsmap is None else [(_CHARSMAP, charsmap.tobytes())]),
        (_DUMMY_PREFIX, int(fields.boolean(PREFIX + "add_space_prefix", default=True))),
        (_EXTRA_SPACES, int(fields.boolean(PREFIX + "remove_extra_whitespaces", default=False))),
        (_ESCAPES, 1),
    )
    return message(*((_PIECES, piece) for piece in pieces), (_TRAINER, trainer), (_NORMALIZER, normalizer))


# ------------------------------------------------------------------------------------------- writing


_Lists: TypeAlias = tuple[list[str], list[int], Sequence[float]]
"""Token strings, types, and scores (empty for byte-level BPE)."""


def vocabulary_values(
    tokenizer: Tokenizer, n_vocab: int, tokens: Mapping[str, str], path: Path, *, with_encoder: bool = False
) -> dict[str, Any]:
    """Return the metadata of a vocabulary, padded to `n_vocab`; `tokens` are variables of chat templates."""
    if isinstance(tokenizer, HFTokenizer):
        found, (texts, token_types, scores) = _of_library(tokenizer, path)
    elif isinstance(tokenizer, SentencePieceTokenizer):
        found, (texts, token_types, scores) = _of_sentencepiece(tokenizer)
    elif isinstance(tokenizer, Llama2cTokenizer):
        found, (texts, token_types, scores) = _of_llama2c(tokenizer, path)
    else:
        raise _refused(path, f"a {type(tokenizer).__name__}")
    n = len(texts)
    if n > n_vocab:
        raise _refused(path, f"{n} tokens, more than the model's {n_vocab}")
    texts = texts + [f"[PAD{i}]" for i in range(n, n_vocab)]
    token_types = token_types + [UNUSED] * (n_vocab - n)
    found |= {"tokens": texts, "token_type": np.array(token_types, np.int32)}
    if scores:
        found["scores"] = np.array([*scores, *[-1000.0] * (n_vocab - n)], np.float32)
    ids_of_texts = {text: i for i, text in enumerate(texts)}
    ids = {
        key: ids_of_texts[tokens[name]]
        for name, key in SPECIAL_TOKENS.items()
        if tokens.get(name) in ids_of_texts
    }
    if UNKNOWN in token_types:
        ids["unknown"] = token_types.index(UNKNOWN)
    found |= {f"{key}_token_id": token for key, token in ids.items() if token < n_vocab}
    found["add_bos_token"] = tokenizer.adds_bos
    if found["model"] != "gpt2":
        found["add_eos_token"] = with_encoder
    values = {PREFIX + key: value for key, value in found.items()}
    values |= end_values(tokenizer.bos_id, tokenizer.eos_ids, n_vocab, path)
    _check(tokenizer, values, n_vocab, path)
    return values


def end_values(bos_id: int | None, eos_ids: Sequence[int], n_vocab: int, path: Path) -> dict[str, Any]:
    """Return the metadata of BOS and EOS ids with full keys."""
    if len(eos_ids) > len(ENDS):
        raise _refused(path, f"{len(eos_ids)} EOS tokens, more than {len(ENDS)}")
    ids = dict(zip(ENDS, eos_ids, strict=False)) | ({} if bos_id is None else {"bos": bos_id})
    return {f"{PREFIX}{key}_token_id": token for key, token in ids.items() if token < n_vocab}


def _refused(path: Path, what: str) -> TokenizerError:
    expected = "byte-level BPE or SentencePiece (or tokenizer=False for a file without vocabulary)"
    found = f"the model's tokenizer has {what}, which GGUF cannot express"
    return TokenizerError(f"{path}: {found}; expected {expected}")


def _check(tokenizer: Any, values: Mapping[str, Any], n_vocab: int, path: Path) -> None:
    """Refuse metadata that read back as a different tokenizer."""
    vocabulary = read_vocabulary(values, path)
    assert vocabulary is not None
    read = vocabulary.tokenizer
    if (read.bos_id, read.eos_ids) != (tokenizer.bos_id, tokenizer.eos_ids):
        raise _refused(path, f"BOS {tokenizer.bos_id} and EOS {tokenizer.eos_ids}")
    for text in PROBES:
        if read.encode(text) != tokenizer.encode(text):
            raise _refused(path, f"another encoding of {text!r}")
    if not getattr(tokenizer, "reads_special_tokens", False):
        return
    marks = [name for name, i in tokenizer.special_tokens().items() if i < n_vocab]
    known = {*tokenizer.special_tokens().values(), *read.eos_ids, read.bos_id}
    if hidden := [repr(name) for name, i in special_tokens_of(read).items() if i not in known]:
        why = "because readers of GGUF files treat such names as special tokens"
        warn(f"{path}: {', '.join(hidden)} will decode to nothing, {why}")
    for mark in marks:
        if read.encode(mark) != tokenizer.encode(mark):
            raise _refused(path, f"another encoding of {mark!r}")
    after = f"{marks[0]}a" if marks else ""
    if read.encode(after) != tokenizer.encode(after):
        why = "because GGUF has no field for a space at the start only"
        warn(f"{path}: text after a special token, such as {after!r}, will get a leading space, {why}")


def _of_library(tokenizer: HFTokenizer, path: Path) -> tuple[dict[str, Any], _Lists]:
    """Convert a tokenizer.json."""
    state = json.loads(tokenizer.library.to_str())
    model, model_type = state["model"], state["model"]["type"]
    steps = {step["type"] for step in _walk(state["decoder"])}
    if model_type == "BPE" and steps == {"ByteLevel"}:
        return _of_byte_level(tokenizer, model, path)
    if model_type == "Unigram" or (model_type == "BPE" and model.get("byte_fallback")):
        return _of_pieces(tokenizer, state, bpe=model_type == "BPE")
    raise _refused(path, f"a model of the type {model_type} with the decoder {sorted(steps)}")


def _walk(step: Any) -> Iterator[dict[str, Any]]:
    """Yield the steps of a normalizer, pre-tokenizer or decoder in order."""
    if step is None:
        return
    parts = next((step[key] for key in ("decoders", "normalizers", "pretokenizers") if key in step), None)
    if parts is None:
        yield step
    for part in parts or ():
        yield from _walk(part)


def _texts_and_types(tokenizer: HFTokenizer) -> tuple[list[str], list[int]]:
    """Return token strings and types by id; added tokens are control or user-defined."""
    library = tokenizer.library
    ids = library.get_vocab(with_added_tokens=True)
    texts = [f"[PAD{i}]" for i in range(max(ids.values()) + 1)]
    token_types = [UNUSED] * len(texts)
    for token_id in ids.values():
        texts[token_id], token_types[token_id] = library.id_to_token(token_id), NORMAL
    for token_id, added in library.get_added_tokens_decoder().items():
        texts[token_id] = added.content
        token_types[token_id] = CONTROL if added.special else USER_DEFINED
    return texts, token_types


def _pairs(model: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [tuple(merge.split(" ", 1) if isinstance(merge, str) else merge) for merge in model["merges"]]


def _of_byte_level(
    tokenizer: HFTokenizer, model: Mapping[str, Any], path: Path
) -> tuple[dict[str, Any], _Lists]:
    words, normalizer = tokenizer.library.pre_tokenizer, tokenizer.library.normalizer
    texts = [text if normalizer is None else normalizer.normalize_str(text) for text in PROBES]
    cuts = list(map(words.pre_tokenize_str, texts))
    whole = bool(model.get("ignore_merges"))
    for name in _WRITTEN:
        fits = (name in WHOLE_WORDS) == whole
        if fits and list(map(word_steps(WORDS[name]).pre_tokenize_str, texts)) == cuts:
            break
    else:
        raise _refused(path, "a pre-tokenizer other than those of GGUF files")
    merges = [f"{left} {right}" for left, right in _pairs(model)]
    return {"model": "gpt2", "pre": name, "merges": merges}, (*_texts_and_types(tokenizer), [])


def _of_pieces(
    tokenizer: HFTokenizer, state: Mapping[str, Any], *, bpe: bool
) -> tuple[dict[str, Any], _Lists]:
    """Convert a SentencePiece vocabulary in a tokenizer.json."""
    model = state["model"]
    texts, token_types = _texts_and_types(tokenizer)
    scores = [0.0] * len(texts)
    if bpe:
        # The first merge that makes a piece decides its score: earlier merges score higher.
        for rank, (left, right) in reversed(list(enumerate(_pairs(model)))):
            token = model["vocab"].get(left + right)
            if token is not None:
                scores[token] = -float(rank + 1)
    else:
        scores[: len(model["vocab"])] = [float(score) for _, score in model["vocab"]]
    for token, text in enumerate(texts):
        if token_types[token] == NORMAL and _BYTE_TOKEN.fullmatch(text):
            token_types[token] = BYTE
    unknown = model.get("unk_id") if not bpe else model["vocab"].get(model.get("unk_token"))
    if unknown is not None:
        token_types[unknown] = UNKNOWN
    found: dict[str, Any] = {"model": "t5", "add_space_prefix": False}
    if bpe:
        found |= {"model": "llama", "pre": "default"}
    for step in itertools.chain(_walk(state["normalizer"]), _walk(state["pre_tokenizer"])):
        step_type = step["type"]
        if step_type == "Prepend" or (
            step_type == "Metaspace" and step.get("prepend_scheme", "always") != "never"
        ):
            found["add_space_prefix"] = True
        if step_type in ("WhitespaceSplit", "Strip") or (not bpe and step_type == "Replace"):
            found["remove_extra_whitespaces"] = True
        if step_type == "Precompiled" and step.get("precompiled_charsmap"):
            charsmap = base64.b64decode(step["precompiled_charsmap"])
            found["precompiled_charsmap"] = np.frombuffer(charsmap, np.uint8)
    return found, (texts, token_types, scores)


def _of_sentencepiece(tokenizer: SentencePieceTokenizer) -> tuple[dict[str, Any], _Lists]:
    """Convert a serialized model (sentencepiece_model.proto) and its added tokens."""
    model = list(read_fields(tokenizer.library.serialized_model_proto()))
    pieces = [dict(read_fields(value)) for number, value in model if number == _PIECES]
    texts = [piece.get(1, b"").decode("utf-8") for piece in pieces]
    scores = [struct.unpack("<f", piece[2])[0] if 2 in piece else 0.0 for piece in pieces]
    token_types = [piece.get(3, NORMAL) for piece in pieces]
    trainer, normalizer = (
        dict(field for number, value in model if number == part for field in read_fields(value))
        for part in (_TRAINER, _NORMALIZER)
    )
    found: dict[str, Any] = {"model": "t5"}
    if trainer.get(3, 1) == 2:
        found = {"model": "llama", "pre": "default"}
    found["add_space_prefix"] = bool(normalizer.get(_DUMMY_PREFIX, 1))
    found["remove_extra_whitespaces"] = bool(normalizer.get(_EXTRA_SPACES, 1))
    if normalizer.get(_CHARSMAP):
        found["precompiled_charsmap"] = np.frombuffer(normalizer[_CHARSMAP], np.uint8)
    special = tokenizer.special_tokens().values()
    for token_id, token in enumerate(tokenizer.vocabulary()):
        control = CONTROL if token_id in special else USER_DEFINED
        if token_id >= len(texts):
            texts.append(f"[PAD{token_id}]" if token is None else token.decode("utf-8"))
            token_types.append(UNUSED if token is None else control)
            scores.append(-1000.0)
        elif token_id in tokenizer.added_ids and token_types[token_id] in (NORMAL, USER_DEFINED):
            token_types[token_id] = control
    return found, (texts, token_types, scores)


def _of_llama2c(tokenizer: Llama2cTokenizer, path: Path) -> tuple[dict[str, Any], _Lists]:
    token_types = [UNKNOWN, CONTROL, CONTROL] + [NORMAL] * (tokenizer.n_vocab - 3)
    texts = []
    for i, piece in enumerate(tokenizer.vocabulary()):
        if tokenizer.has_bytes and 3 <= i < 3 + 256:
            texts.append(f"<0x{i - 3:02X}>")
            token_types[i] = BYTE
            continue
        try:
            texts.append((piece or b"").decode("utf-8").replace(" ", META))
        except UnicodeDecodeError as error:
            raise _refused(path, f"token {i}, {piece!r}, which is not UTF-8") from error
    found = {"model": "llama", "pre": "default", "add_space_prefix": True}
    return found, (texts, token_types, tokenizer.scores)
