"""A tokenizer as the metadata of a GGUF file."""

from __future__ import annotations

import base64
import itertools
import json
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from specdec.errors import TokenizerError, warn
from specdec.models.tokenizer.byte_tokenizer import Tokenizer
from specdec.models.tokenizer.gguf_vocabulary import (
    BYTE,
    CONTROL,
    ENDS,
    NORMAL,
    PREFIX,
    SPECIAL_TOKENS,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    WHOLE_WORDS,
    WORDS,
    read_vocabulary,
    word_steps,
)
from specdec.models.tokenizer.hf_tokenizer import HFTokenizer
from specdec.models.tokenizer.llama2c_tokenizer import Llama2cTokenizer
from specdec.models.tokenizer.sentencepiece_file import SentencePieceTokenizer, read_fields
from specdec.models.tokenizer.vocabulary import special_tokens_of

_BYTE_TOKEN: Final = re.compile(r"<0x[0-9A-Fa-f]{2}>")

# Names of word rules that are written, the first that fits: those that stand for a rule alone.
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
"""Texts that a tokenizer and the one that is read from its metadata have to encode alike."""


@dataclass(frozen=True)
class _Lists:
    """The lists of a vocabulary; scores of SentencePiece, merges of byte-level BPE."""

    texts: list[str]
    kinds: list[int]
    scores: list[float]


def vocabulary_values(
    tokenizer: Tokenizer, n_vocab: int, tokens: Mapping[str, str], path: Path, *, with_encoder: bool = False
) -> dict[str, Any]:
    """The metadata of a vocabulary, keys in full.

    `tokenizer`: One that was read from a tokenizer.json, a SentencePiece model or a llama2.c file. `n_vocab`:
    Rows of the model's table of tokens; ids without token get one that is not used. `tokens`: Texts of
    special tokens by the names that chat templates have for them. `path`: The file that is written, for
    messages. `with_encoder`: Sources end with EOS.
    """
    if isinstance(tokenizer, HFTokenizer):
        found, lists = _of_library(tokenizer, path)
    elif isinstance(tokenizer, SentencePieceTokenizer):
        found, lists = _of_sentencepiece(tokenizer)
    elif isinstance(tokenizer, Llama2cTokenizer):
        found, lists = _of_llama2c(tokenizer, path)
    else:
        raise _refused(path, f"a {type(tokenizer).__name__}")
    n = len(lists.texts)
    if n > n_vocab:
        raise _refused(path, f"{n} tokens, more than the model's {n_vocab}")
    texts = lists.texts + [f"[PAD{i}]" for i in range(n, n_vocab)]
    kinds = lists.kinds + [UNUSED] * (n_vocab - n)
    found |= {"tokens": texts, "token_type": np.array(kinds, np.int32)}
    if lists.scores:
        found["scores"] = np.array(lists.scores + [-1000.0] * (n_vocab - n), np.float32)
    ids: dict[str, int] = {}
    places = {text: i for i, text in enumerate(texts)}
    for name, key in SPECIAL_TOKENS.items():
        if tokens.get(name) in places:
            ids[key] = places[tokens[name]]
    if UNKNOWN in kinds:
        ids["unknown"] = kinds.index(UNKNOWN)
    found |= {f"{key}_token_id": token for key, token in ids.items() if token < n_vocab}
    found["add_bos_token"] = tokenizer.adds_bos
    if found["model"] != "gpt2":
        found["add_eos_token"] = with_encoder
    values = {PREFIX + key: value for key, value in found.items()}
    values |= end_values(tokenizer.bos_id, tokenizer.eos_ids, n_vocab, path)
    _check(tokenizer, values, n_vocab, path)
    return values


def end_values(bos_id: int | None, eos_ids: Sequence[int], n_vocab: int, path: Path) -> dict[str, Any]:
    """The metadata of BOS and the tokens that end a text, keys in full."""
    if len(eos_ids) > len(ENDS):
        raise _refused(path, f"{len(eos_ids)} tokens that end a text, more than {len(ENDS)}")
    ids = dict(zip(ENDS, eos_ids, strict=False)) | ({} if bos_id is None else {"bos": bos_id})
    return {f"{PREFIX}{key}_token_id": token for key, token in ids.items() if token < n_vocab}


def _refused(path: Path, what: str) -> TokenizerError:
    return TokenizerError(
        f"{path}: the model's tokenizer has {what}, which GGUF files cannot say; expected byte-level BPE or "
        "SentencePiece (or tokenizer=False: a file without vocabulary)"
    )


def _check(tokenizer: Any, values: Mapping[str, Any], n_vocab: int, path: Path) -> None:
    """Refuse metadata whose reader encodes some text in another way."""
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
    if hidden := [name for name, i in special_tokens_of(read).items() if i not in known]:
        warn(
            f"{path}: {', '.join(map(repr, hidden))} will have no text, as readers of GGUF files take tokens "
            "of such names for special tokens"
        )
    for mark in marks:
        if read.encode(mark) != tokenizer.encode(mark):
            raise _refused(path, f"another encoding of {mark!r}")
    after = f"{marks[0]}a" if marks else ""
    if read.encode(after) != tokenizer.encode(after):
        warn(
            f"{path}: a text after a special token, such as {after!r}, is encoded with a space before it, as "
            "GGUF files have no field for it; expected a vocabulary with the space at the beginning alone"
        )


# ------------------------------------------------------------------------------------ tokenizer.json


def _of_library(tokenizer: HFTokenizer, path: Path) -> tuple[dict[str, Any], _Lists]:
    state = json.loads(tokenizer.library.to_str())
    model, kind = state["model"], state["model"]["type"]
    steps = {step["type"] for step in _walk(state["decoder"])}
    if kind == "BPE" and steps == {"ByteLevel"}:
        return _of_byte_level(tokenizer, model, path)
    if kind == "BPE" and model.get("byte_fallback"):
        return _of_pieces(tokenizer, state, bpe=True)
    if kind == "Unigram":
        return _of_pieces(tokenizer, state, bpe=False)
    raise _refused(path, f"a model of the type {kind} with the decoder {sorted(steps)}")


def _walk(step: Any) -> Iterator[dict[str, Any]]:
    """The steps of a normaliser, pre-tokenizer or decoder, one after the other."""
    if step is None:
        return
    parts = next((step[key] for key in ("decoders", "normalizers", "pretokenizers") if key in step), None)
    if parts is None:
        yield step
        return
    for part in parts:
        yield from _walk(part)


def _texts_and_kinds(tokenizer: HFTokenizer) -> tuple[list[str], list[int]]:
    """Tokens by id; those that were added are control tokens or the user's."""
    library = tokenizer.library
    ids = library.get_vocab(with_added_tokens=True)
    texts = [f"[PAD{i}]" for i in range(max(ids.values()) + 1)]
    kinds = [UNUSED] * len(texts)
    for token_id in ids.values():
        texts[token_id], kinds[token_id] = library.id_to_token(token_id), NORMAL
    for token_id, added in library.get_added_tokens_decoder().items():
        texts[token_id] = added.content
        kinds[token_id] = CONTROL if added.special else USER_DEFINED
    return texts, kinds


def _pairs(model: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [tuple(merge.split(" ", 1) if isinstance(merge, str) else merge) for merge in model["merges"]]


def _of_byte_level(
    tokenizer: HFTokenizer, model: Mapping[str, Any], path: Path
) -> tuple[dict[str, Any], _Lists]:
    import tokenizers

    words = tokenizer.library.pre_tokenizer
    normalizer = tokenizer.library.normalizer

    texts = [text if normalizer is None else normalizer.normalize_str(text) for text in PROBES]
    cuts = [words.pre_tokenize_str(text) for text in texts]
    for name in _WRITTEN:
        if (name in WHOLE_WORDS) != bool(model.get("ignore_merges")):
            continue
        rule = word_steps(tokenizers, WORDS[name])
        if [rule.pre_tokenize_str(text) for text in texts] == cuts:
            break
    else:
        raise _refused(path, "words that are cut by another rule than those of GGUF files")
    tokens, kinds = _texts_and_kinds(tokenizer)
    merges = [f"{left} {right}" for left, right in _pairs(model)]
    return {"model": "gpt2", "pre": name, "merges": merges}, _Lists(tokens, kinds, [])


def _of_pieces(
    tokenizer: HFTokenizer, state: Mapping[str, Any], *, bpe: bool
) -> tuple[dict[str, Any], _Lists]:
    """SentencePiece's vocabularies as tokenizer.json has them."""
    model = state["model"]
    texts, kinds = _texts_and_kinds(tokenizer)
    scores = [0.0] * len(texts)
    if bpe:
        # The first merge that makes a piece says when it is made: the higher the score, the earlier.
        for rank, (left, right) in reversed(list(enumerate(_pairs(model)))):
            token = model["vocab"].get(left + right)
            if token is not None:
                scores[token] = -float(rank + 1)
    else:
        for token, (_, score) in enumerate(model["vocab"]):
            scores[token] = float(score)
    for token, text in enumerate(texts):
        if kinds[token] == NORMAL and _BYTE_TOKEN.fullmatch(text):
            kinds[token] = BYTE
    unknown = model.get("unk_id") if not bpe else model["vocab"].get(model.get("unk_token"))
    if unknown is not None:
        kinds[unknown] = UNKNOWN
    found: dict[str, Any] = {"model": "llama" if bpe else "t5", "add_space_prefix": False}
    if bpe:
        found["pre"] = "default"
    for step in itertools.chain(_walk(state["normalizer"]), _walk(state["pre_tokenizer"])):
        if step["type"] == "Prepend" or (
            step["type"] == "Metaspace" and step.get("prepend_scheme", "always") != "never"
        ):
            found["add_space_prefix"] = True
        if step["type"] in ("WhitespaceSplit", "Strip") or (not bpe and step["type"] == "Replace"):
            found["remove_extra_whitespaces"] = True
        if step["type"] == "Precompiled" and step.get("precompiled_charsmap"):
            charsmap = base64.b64decode(step["precompiled_charsmap"])
            found["precompiled_charsmap"] = np.frombuffer(charsmap, np.uint8)
    return found, _Lists(texts, kinds, scores)


# ------------------------------------------------------------------------------------- SentencePiece


def _of_sentencepiece(tokenizer: SentencePieceTokenizer) -> tuple[dict[str, Any], _Lists]:
    """From a serialized model (sentencepiece_model.proto) and the tokens added to it."""
    proto = tokenizer.library.serialized_model_proto()
    texts: list[str] = []
    kinds: list[int] = []
    scores: list[float] = []
    found: dict[str, Any] = {"model": "t5", "add_space_prefix": True, "remove_extra_whitespaces": True}
    for number, value in read_fields(proto):
        if number == 1:
            piece = dict(read_fields(value))
            texts.append(piece.get(1, b"").decode("utf-8"))
            scores.append(struct.unpack("<f", piece[2])[0] if 2 in piece else 0.0)
            kinds.append(piece.get(3, NORMAL))
        elif number == 2 and dict(read_fields(value)).get(3, 1) == 2:
            found |= {"model": "llama", "pre": "default"}
        elif number == 3:
            normalizer = dict(read_fields(value))
            found["add_space_prefix"] = bool(normalizer.get(3, 1))
            found["remove_extra_whitespaces"] = bool(normalizer.get(4, 1))
            if normalizer.get(2):
                found["precompiled_charsmap"] = np.frombuffer(normalizer[2], np.uint8)
    special = tokenizer.special_tokens().values()
    for token_id, token in enumerate(tokenizer.vocabulary()):
        control = CONTROL if token_id in special else USER_DEFINED
        if token_id < len(texts):
            if token_id in tokenizer.added_ids and kinds[token_id] in (NORMAL, USER_DEFINED):
                kinds[token_id] = control
            continue
        texts.append(f"[PAD{token_id}]" if token is None else token.decode("utf-8"))
        kinds.append(UNUSED if token is None else control)
        scores.append(-1000.0)
    return found, _Lists(texts, kinds, scores)


# ------------------------------------------------------------------------------------------- llama2.c


def _of_llama2c(tokenizer: Llama2cTokenizer, path: Path) -> tuple[dict[str, Any], _Lists]:
    n = tokenizer.n_vocab
    kinds = [NORMAL] * n
    kinds[:3] = [UNKNOWN, CONTROL, CONTROL]
    texts = []
    for i, piece in enumerate(tokenizer.vocabulary()):
        if tokenizer.has_bytes and 3 <= i < 3 + 256:
            texts.append(f"<0x{i - 3:02X}>")
            kinds[i] = BYTE
            continue
        try:
            texts.append((piece or b"").decode("utf-8").replace(" ", "\u2581"))
        except UnicodeDecodeError as error:
            raise _refused(path, f"token {i}, {piece!r}, which is not UTF-8") from error
    return {"model": "llama", "pre": "default", "add_space_prefix": True}, _Lists(
        texts, kinds, tokenizer.scores
    )
