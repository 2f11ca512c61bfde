"""The vocabulary of a GGUF file, as a tokenizer of ``tokenizers`` or ``sentencepiece``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from specdec.errors import TokenizerError
from specdec.fields import Fields, MetadataFields
from specdec.models.tokenizer.added_tokens import AddedTokenFinder, import_tokenizers, library_errors
from specdec.models.tokenizer.byte_tokenizer import Tokenizer
from specdec.models.tokenizer.hf_tokenizer import HFTokenizer
from specdec.models.tokenizer.sentencepiece_file import (
    SentencePieceTokenizer,
    bytes_field,
    float_field,
    integer_field,
    parse_sentencepiece,
)

PREFIX: Final = "tokenizer.ggml."
_MAX_TOKENS: Final = 1 << 22

# Types of tokens, those of SentencePiece.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)

SPECIAL_TOKENS: Final[Mapping[str, str]] = {
    "bos_token": "bos",
    "eos_token": "eos",
    "unk_token": "unknown",
    "sep_token": "seperator",
    "pad_token": "padding",
}
"""Variables of chat templates, and the keys of their ids, less "_token_id" ("seperator" is GGUF's word)."""
ENDS: Final = ("eos", "eot", "eom")
"""The keys of the ids of tokens that end a text, less "_token_id"."""

_INFILLING: Final = ("fim_pre", "fim_suf", "fim_mid", "fim_pad", "fim_rep", "fim_sep")
_CONTROL_TEXTS: Final = frozenset(
    (
        "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>",
        "<end_of_turn>", "<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]",
        "<|end_of_text|>", "<end_of_utterance>", "<eos>", "<turn|>", "<｜end▁of▁sentence｜>",
    )
)  # fmt: skip
"""Tokens that are control tokens whatever their type, as llama.cpp has them."""
_MARK: Final = re.compile(r"_?[<\[].+[>\]]", re.DOTALL)

# How byte-level BPE cuts a text into words, by the names that ``tokenizer.ggml.pre`` has: steps, one after
# the other. "digits": each by itself; "bytes": GPT-2's rule; else a regular expression.
_GPT2: Final = ("bytes",)
_DIGITS: Final = ("digits", "bytes")
_CONTRACTIONS: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST: Final = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_REST_SLASH: Final = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3: Final = (rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_REST}",)
_QWEN2: Final = (rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_REST}",)
_UPPER: Final = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER: Final = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN: Final = (rf"{_UPPER}*{_LOWER}+|{_UPPER}+{_LOWER}*|\p{{N}}|{_REST_SLASH}",)
_GPT4O: Final = (
    rf"{_UPPER}*{_LOWER}+{_CONTRACTIONS}?|{_UPPER}+{_LOWER}*{_CONTRACTIONS}?|\p{{N}}{{1,3}}|{_REST_SLASH}",
)
_GPT4O_AYA: Final = (r"\d{1,3}(?=(?:\d{3})*\b)", *_GPT4O)
_BLOOM: Final = (" ?[^(\\s|.,!?…。，、।۔،)]+",)
_GPT2_WORDS: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_LLAMA3_WHOLE: Final = (
    "llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2",
)  # fmt: skip
# Letters with a case as DeepSeek LLM lists them, an older set than that of Unicode's properties today.
_CASED: Final = (
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-\u1f7d"
    "ᾀ-ᾴᾶ-ᾼ\u1fbeῂ-ῄῆ-ῌῐ-\u1fd3ῖ-\u1fdbῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\u2126ℨ\u212a-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗ"
    "Ａ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)
WORDS: Final[Mapping[str, tuple[str, ...]]] = {
    "default": (r"[\p{P}\$\+<=>\^~\|]+", _GPT2_WORDS, r"\p{N}+", "[0-9][0-9][0-9]"),
    **dict.fromkeys(
        (
            "gpt-2",
            "phi-2",
            "olmo",
            "mpt",
            "jais",
            "trillion",
            "granite-docling",
            "mellum",
            "roberta-bpe",
            "a.x-4.0",
        ),
        _GPT2,
    ),
    **dict.fromkeys(
        ("starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b"), _DIGITS
    ),
    **dict.fromkeys((*_LLAMA3_WHOLE, "dbrx", "smaug-bpe"), _LLAMA3),
    **dict.fromkeys(("qwen2", "stablelm2", "deepseek-r1-qwen", "hunyuan", "megrez", "kormo"), _QWEN2),
    "seed-coder": (
        rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|\s*[\r\n]+"
        r"|\s+(?!\S)|\s+",
    ),
    "superbpe": (r"\p{N}+", r"(?=(\d{3})+(?!\d))"),
    **dict.fromkeys(("tiny_aya", "cohere2moe"), _GPT4O_AYA),
    "tekken": _TEKKEN,
    **dict.fromkeys(("gpt-4o", "llama4"), _GPT4O),
    "falcon": (r"[\p{P}\$\+<=>\^~\|`]+", _GPT2_WORDS, "[0-9][0-9][0-9]"),
    **dict.fromkeys(("bloom", "poro-chat", "gpt3-finnish"), _BLOOM),
    "viking": (*_BLOOM, "digits"),
    "deepseek-llm": (
        "[\r\n]",
        rf"\s?[{_CASED}]+",
        "\\s?[!-/:-~！-／：-～‘-‟\u3000-。]+",
        r"\s+$",
        "[一-龥ࠀ-一가-퟿]+",
        r"\p{N}+",
    ),
    "deepseek-coder": ("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", r"\p{N}"),
    "deepseek-v3": (
        r"\p{N}{1,3}",
        "[一-龥぀-ゟ゠-ヿ]+",
        r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
        r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ),
}
WHOLE_WORDS: Final = (*_LLAMA3_WHOLE, "tekken")
"""Vocabularies that take a word that is a token as this token, whatever the merges."""
_WITH_BOS: Final = WHOLE_WORDS
"""Vocabularies whose texts begin with BOS where the file does not say."""


@dataclass(frozen=True)
class Vocabulary:
    """What a file says of its texts.

    `special_tokens`: Texts of the tokens that the file names, as "bos_token": variables of chat templates.
    """

    tokenizer: Tokenizer
    n_tokens: int
    special_tokens: Mapping[str, str]


@dataclass(frozen=True)
class _Tokens:
    """The lists of a vocabulary, of one length; kinds and scores may be absent."""

    source: str
    texts: list[str]
    kinds: NDArray[np.integer[Any]]
    scores: Sequence[float] | None
    bos_id: int | None
    eos_ids: tuple[int, ...]

    def of_kind(self, *kinds: int) -> Iterator[tuple[int, str]]:
        return ((i, self.texts[i]) for i in np.flatnonzero(np.isin(self.kinds, kinds)).tolist())


def read_vocabulary(values: Mapping[str, Any], file: Path) -> Vocabulary | None:
    """Return the vocabulary of a file's metadata; None if there is none."""
    fields = MetadataFields(values, file, kind=TokenizerError)
    model = fields.raw(PREFIX + "model")
    if model is None or model == "none" or model == "no_vocab":
        return None
    tokens = _read_tokens(fields)
    tokenizer: Tokenizer
    if model == "gpt2":
        tokenizer = _byte_level(fields, tokens)
    elif model in ("llama", "t5"):
        tokenizer = _pieces(fields, tokens, unigram=model == "t5")
    else:
        expected = "gpt2, llama or t5 (or tokenizer= with another one, or False: ids in, ids out)"
        raise fields.error(PREFIX + "model", expected)
    special = {
        name: tokens.texts[token]
        for name, key in SPECIAL_TOKENS.items()
        if (token := _token_id(fields, f"{key}_token_id", len(tokens.texts))) is not None
    }
    return Vocabulary(tokenizer, len(tokens.texts), special)


def read_end_ids(values: Mapping[str, Any], file: Path, n: int) -> tuple[int | None, tuple[int, ...]]:
    """Return BOS and the ids that end a text, which the metadata name among `n` ids."""
    return _end_ids(MetadataFields(values, file, kind=TokenizerError), n)


def _end_ids(fields: Fields, n: int) -> tuple[int | None, tuple[int, ...]]:
    ends = [_token_id(fields, f"{key}_token_id", n) for key in ENDS]
    return (
        _token_id(fields, "bos_token_id", n),
        tuple(dict.fromkeys(token for token in ends if token is not None)),
    )


def _token_id(fields: Fields, key: str, n: int) -> int | None:
    token = fields.raw(PREFIX + key)
    if token is None:
        return None
    if isinstance(token, bool) or not isinstance(token, int):
        raise fields.error(PREFIX + key, f"a token id from 0 to {n - 1}")
    return token if 0 <= token < n else None  # files name ids that the vocabulary has not for "none"


def _read_tokens(fields: Fields) -> _Tokens:
    texts = fields.raw(PREFIX + "tokens")
    if not isinstance(texts, list) or not 1 <= len(texts) <= _MAX_TOKENS:
        raise fields.error(PREFIX + "tokens", f"an array of 1 to {_MAX_TOKENS} strings")
    n = len(texts)
    kinds = fields.raw(PREFIX + "token_type")
    if kinds is None:
        kinds = np.full(n, NORMAL)
    if not isinstance(kinds, np.ndarray) or len(kinds) != n or kinds.dtype.kind not in "iu":
        raise fields.error(PREFIX + "token_type", f"an array of {n} whole numbers, one for each token")
    scores = fields.raw(PREFIX + "scores")
    if scores is not None and (
        not isinstance(scores, np.ndarray) or len(scores) != n or not np.isfinite(scores).all()
    ):
        raise fields.error(PREFIX + "scores", f"an array of {n} finite numbers, one for each token")
    bos_id, eos_ids = _end_ids(fields, n)
    named = (bos_id, *eos_ids, *(_token_id(fields, f"{key}_token_id", n) for key in _INFILLING))
    return _Tokens(
        str(fields.file),
        texts,
        _corrected(kinds, texts, {token for token in named if token is not None}),
        None if scores is None else scores.tolist(),
        bos_id,
        eos_ids,
    )


def _corrected(
    kinds: NDArray[np.integer[Any]], texts: Sequence[str], named: set[int]
) -> NDArray[np.integer[Any]]:
    """The types of tokens, with control for those that end a turn though the file has them as text.

    llama.cpp corrects the same tokens. Tokens that the file itself names as the beginning or end of a text
    are corrected too, if their texts look like marks.
    """
    wrong = [
        i
        for i in np.flatnonzero(np.isin(kinds, (NORMAL, USER_DEFINED))).tolist()
        if texts[i] in _CONTROL_TEXTS or (i in named and _MARK.fullmatch(texts[i]))
    ]
    if not wrong:
        return kinds
    kinds = kinds.copy()
    kinds[wrong] = CONTROL
    return kinds


# ------------------------------------------------------------------------------------ byte-level BPE


def _byte_level(fields: Fields, tokens: _Tokens) -> HFTokenizer:
    tokenizers = import_tokenizers(tokens.source)
    pre = fields.raw(PREFIX + "pre")
    pre = "default" if pre is None else pre
    if pre not in WORDS:
        raise fields.error(
            PREFIX + "pre", f"one of {', '.join(sorted(WORDS))} (or tokenizer= with another tokenizer)"
        )
    merges = fields.raw(PREFIX + "merges")
    if not isinstance(merges, list):
        raise fields.error(PREFIX + "merges", "an array of strings")
    pairs = [
        (merge[:at], merge[at + 1 :]) for merge in merges if 0 < (at := merge.find(" ", 1)) < len(merge) - 1
    ]
    if len(pairs) < len(merges):
        wrong = next(merge for merge in merges if not 0 < merge.find(" ", 1) < len(merge) - 1)
        raise fields.error(PREFIX + "merges", "two tokens with a space between them in each", wrong)
    special = dict(tokens.of_kind(CONTROL, UNKNOWN))
    added = special | dict(tokens.of_kind(USER_DEFINED))
    with library_errors(f"{tokens.source}: not a BPE vocabulary that `tokenizers` can use"):
        vocabulary = dict(zip(tokens.texts, range(len(tokens.texts)), strict=True))
        model = tokenizers.models.BPE(vocab=vocabulary, merges=pairs, ignore_merges=pre in WHOLE_WORDS)
        library = tokenizers.Tokenizer(model)
        library.pre_tokenizer = word_steps(tokenizers, WORDS[pre])
        if WORDS[pre] is _QWEN2:
            library.normalizer = tokenizers.normalizers.NFC()
        library.decoder = tokenizers.decoders.ByteLevel()
        library.add_tokens(
            [tokenizers.AddedToken(added[i], special=i in special, normalized=False) for i in sorted(added)]
        )
    return HFTokenizer(
        library,
        tokens.source,
        bos_id=tokens.bos_id,
        eos_ids=tokens.eos_ids,
        adds_bos=fields.boolean(PREFIX + "add_bos_token", default=pre in _WITH_BOS),
        vocab=vocabulary,
    )


def word_steps(tokenizers: Any, steps: tuple[str, ...]) -> Any:
    """The steps that cut a text into words, the last of which writes bytes as characters."""
    pre = tokenizers.pre_tokenizers
    made = []
    for step in steps:
        if step == "digits":
            made.append(pre.Digits(individual_digits=True))
        elif step == "bytes":
            made.append(pre.ByteLevel(add_prefix_space=False))
        else:
            made.append(pre.Split(tokenizers.Regex(step), behavior="isolated"))
    if steps[-1] != "bytes":
        made.append(pre.ByteLevel(add_prefix_space=False, use_regex=False))
    return pre.Sequence(made)


# ------------------------------------------------------------------------------------- SentencePiece


def _pieces(fields: Fields, tokens: _Tokens, *, unigram: bool) -> SentencePieceTokenizer:
    if tokens.scores is None:
        raise fields.error(PREFIX + "scores", "an array of numbers")
    for kind in set(tokens.kinds.tolist()) - set(range(NORMAL, BYTE + 1)):
        raise fields.error(PREFIX + "token_type", "types from 1 to 6", kind)
    unknown = _token_id(fields, "unknown_token_id", len(tokens.texts))
    model = _model_proto(fields, tokens, unigram, unknown)
    library = parse_sentencepiece(model, tokens.source)
    marks = {text: i for i, text in tokens.of_kind(CONTROL, USER_DEFINED) if text}
    made = SentencePieceTokenizer(
        library,
        tokens.source,
        finder=AddedTokenFinder.of(marks, tokens.source) if marks else None,
        added={},
        silent=frozenset(i for i, _ in tokens.of_kind(CONTROL)),
        prefixes_all=True,  # as llama.cpp has it
        bos_id=tokens.bos_id,
        eos_ids=tokens.eos_ids,
        adds_bos=fields.boolean(PREFIX + "add_bos_token", default=not unigram),
    )
    if fields.boolean(PREFIX + "add_eos_token", default=unigram):
        made.after = tokens.eos_ids[:1]
    return made


def _model_proto(fields: Fields, tokens: _Tokens, unigram: bool, unknown: int | None) -> bytes:
    """The vocabulary as a serialised SentencePiece model (sentencepiece_model.proto)."""
    charsmap = fields.raw(PREFIX + "precompiled_charsmap")
    if charsmap is not None and (not isinstance(charsmap, np.ndarray) or charsmap.dtype.itemsize != 1):
        raise fields.error(PREFIX + "precompiled_charsmap", "an array of bytes")
    kinds = tokens.kinds.tolist()
    if UNKNOWN not in kinds:  # SentencePiece wants one
        kinds[unknown or 0] = UNKNOWN
    assert tokens.scores is not None
    pieces = b"".join(
        bytes_field(1, bytes_field(1, text.encode()) + float_field(2, score) + integer_field(3, kind))
        for text, score, kind in zip(tokens.texts, tokens.scores, kinds, strict=True)
    )
    trainer = integer_field(3, 1 if unigram else 2) + integer_field(35, int(BYTE in kinds))
    trainer += integer_field(40, kinds.index(UNKNOWN))
    for number, token in (
        (41, tokens.bos_id),
        (42, tokens.eos_ids[0] if tokens.eos_ids else None),
        (43, None),
    ):
        trainer += integer_field(number, -1 if token is None else token)
    normalizer = bytes_field(1, b"identity" if charsmap is None else b"nmt_nfkc")
    if charsmap is not None:
        normalizer += bytes_field(2, charsmap.tobytes())
    normalizer += integer_field(3, int(fields.boolean(PREFIX + "add_space_prefix", default=True)))
    normalizer += integer_field(
        4, int(fields.boolean(PREFIX + "remove_extra_whitespaces", default=False))
    ) + integer_field(5, 1)
    return pieces + bytes_field(2, trainer) + bytes_field(3, normalizer)
