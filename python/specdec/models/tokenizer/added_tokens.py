"""Added and special tokens from the files next to a vocabulary.

``tokenizer_config.json``, or ``added_tokens.json`` and ``special_tokens_map.json`` in older folders, add and
name tokens. They are added in the order of ``transformers``, which decides their ids.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from specdec.errors import (
    MissingTokenizerLibraryError,
    SpecdecError,
    TokenizerError,
    UnusedFieldWarning,
    warn,
)
from specdec.fields import read_json_object


@contextmanager
def library_errors(what: str) -> Iterator[None]:
    """Turn exceptions and Rust panics of a library into a TokenizerError that starts with `what`."""
    try:
        yield
    except (SpecdecError, MemoryError):
        raise
    except BaseException as error:
        # pyo3 does not export the panic type.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise TokenizerError(f"{what}: {type(error).__name__}: {error}") from error


SPECIAL_NAMES: Final = tuple(f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
"""The fields of a tokenizer_config.json that name special tokens."""

_CONFIG: Final = "tokenizer_config.json"
_MAP: Final = "special_tokens_map.json"
_ADDED: Final = "added_tokens.json"
_EXTRA: Final = "extra_special_tokens"
_FORMER: Final = "additional_special_tokens"  # former name of `_EXTRA`
_NOT_APPLIED: Final = ("add_eos_token", "split_special_tokens")
_FLAGS: Final = ("single_word", "lstrip", "rstrip", "normalized", "special")

_MOST_SENTINELS: Final = 1 << 16
_TEXT: Final = 2**32 - 1  # the id that the library gives to text between added tokens

_END_OF_TEXT: Final = "<|endoftext|>"
_SENTENCEPIECE: Final = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
_GPT2: Final = dict.fromkeys(("bos_token", "eos_token", "unk_token"), _END_OF_TEXT)
_NAMED_BY_CLASS: Final[Mapping[str, Mapping[str, Any]]] = {
    "GPT2Tokenizer": _GPT2,
    "CodeGenTokenizer": _GPT2,
    "Qwen2Tokenizer": dict.fromkeys(("eos_token", "unk_token", "pad_token"), _END_OF_TEXT),
    "BartTokenizer": _SENTENCEPIECE
    | {"sep_token": "</s>", "cls_token": "<s>", "pad_token": "<pad>"}
    | {"mask_token": {"content": "<mask>", "lstrip": True}},
    "LlamaTokenizer": _SENTENCEPIECE,
    "T5Tokenizer": {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"},
}
"""Default tokens of transformers' classes, for absent fields."""

_CLASS_OF_MODEL: Final[Mapping[str, str]] = {
    **{"bart": "BartTokenizer", "codegen": "CodeGenTokenizer", "gpt2": "GPT2Tokenizer"},
    **dict.fromkeys(("t5", "mt5", "umt5", "switch_transformers", "longt5"), "T5Tokenizer"),
}

_READ_BY_NO_CLASS: Final = frozenset(
    "granite ministral ministral3 mistral mistral3 mixtral olmo2 olmo3 phi3 stablelm".split()
)
"""Model types for which transformers ignores the tokenizer class that a file names."""


@dataclass(frozen=True)
class _Token:
    """A token and the flags that a file sets."""

    content: str
    flags: Mapping[str, bool]
    file: str


@dataclass(frozen=True)
class SideTokens:
    """Added and special tokens of a folder, and the `settings` of its tokenizer_config.json.

    `tokenizer_class`: In transformers, without "Fast"; `names_class`: whether a file names it. `n_vocab`,
    `bos_id`, `eos_ids`: From the model's configuration; None: unknown.
    """

    folder: Path
    settings: dict[str, Any]
    tokenizer_class: str | None
    names_class: bool
    model_type: Any
    n_vocab: int | None
    bos_id: int | None
    eos_ids: tuple[int, ...] | None
    _added: Mapping[int, _Token]
    _named: Mapping[str, _Token | None]
    _extra: tuple[_Token, ...]
    _lists_all: bool

    @property
    def n_sentinels(self) -> int:
        """Number of sentinels, ``<extra_id_0>`` and so on, after the pieces of a T5 file."""
        n = self.settings.get("extra_ids", 100) if self.tokenizer_class == "T5Tokenizer" else 0
        if type(n) is not int or not 0 <= n <= _MOST_SENTINELS:
            expected = f"a whole number from 0 to {_MOST_SENTINELS}"
            raise TokenizerError.of(self.folder / _CONFIG, "extra_ids", n, expected)
        return n

    @property
    def prefixes_text(self) -> bool:
        """Whether text gets the leading space that its SentencePiece file asks for."""
        return not self._is_llama or self.flag("add_prefix_space") is not False

    @property
    def prefixes_all(self) -> bool:
        """Whether text after a special token gets a leading space too."""
        return bool(self.flag("legacy")) if "legacy" in self.settings else not self._is_llama

    @property
    def _is_llama(self) -> bool:
        """Whether transformers reads this folder's SentencePiece file with LlamaTokenizer."""
        is_named = self.names_class and self.tokenizer_class == "LlamaTokenizer"
        return is_named and self.model_type not in _READ_BY_NO_CLASS

    def flag(self, name: str) -> bool | None:
        """Return a boolean setting; None if null or absent."""
        value = self.settings.get(name)
        if value is not None and not isinstance(value, bool):
            raise TokenizerError.of(self.folder / _CONFIG, name, value, "true or false")
        return value

    def add_to(self, tokenizer: Any, source: str, *, with_defaults: bool) -> None:
        """Add the tokens, and `with_defaults` the class's, to a tokenizer, or set flags of existing ones."""
        new = import_tokenizers(source).AddedToken
        own = tokenizer.get_added_tokens_decoder()
        tokens = dict(self._added)
        if not self._lists_all:  # tokens of a tokenizer.json count as listed
            for i, token in own.items():
                flags = {name: getattr(token, name) for name in _FLAGS}
                tokens[i] = _Token(token.content, flags, source)
        named = {key: token for key, token in self._named.items() if token is not None}
        if with_defaults:
            missing = self._defaults.keys() - self._named.keys()
            named |= {key: _token(self._defaults[key], source, key) for key in missing}
        names = {token.content for token in named.values()}
        adding: dict[str, Any] = {}
        for _, token in sorted(tokens.items()):
            special = token.content in names or token.flags.get("special", False)
            adding[token.content] = new(token.content, **{**token.flags, "special": special})
        known = {token.content for token in own.values()}
        order = {key: i for i, key in enumerate(SPECIAL_NAMES)}
        in_order = sorted(named, key=lambda key: order.get(key, len(order)))
        for token in (*(named[key] for key in in_order), *self._extra):
            if token.content not in known:
                adding.setdefault(token.content, new(token.content, **{**token.flags, "special": True}))
        adding.pop("", None)
        before = {token.content: tokenizer.token_to_id(token.content) for token in self._added.values()}
        tokenizer.add_tokens(list(adding.values()))
        if self.tokenizer_class == "Qwen2Tokenizer":  # which overrides the flags of special tokens
            specials = dict.fromkeys([*names, *(token.content for token in self._extra)])
            tokenizer.add_tokens([new(name, special=True) for name in specials if name])
        for token_id, token in sorted(self._added.items()):
            found = tokenizer.token_to_id(token.content)
            if not token.content or found == token_id:
                continue
            message = f"{token.file}: token {token.content!r} has id {token_id}; expected {found}"
            if before[token.content] is None:
                raise TokenizerError(f"{message}, the next one after the vocabulary of {source}")
            warn(f"{message}, its id in {source}; using that id")

    def end_ids(
        self, id_of: Callable[[str], int | None], own: Mapping[str, int] | None = None
    ) -> tuple[int | None, tuple[int, ...]]:
        """Return BOS and EOS ids from the model, else from files, else the vocabulary's `own`."""
        bos_id, eos_ids = self.bos_id, self.eos_ids
        if bos_id is None:
            bos_id = self._end("bos_token", id_of, own or {})
        if eos_ids is None:
            eos = self._end("eos_token", id_of, own or {})
            eos_ids = () if eos is None else (eos,)
        return bos_id, eos_ids

    def name(self, key: str) -> str | None:
        """Return the token that a file, else the class, names `key`, such as "eos_token", or None."""
        if key not in self._named:
            return content_of(self._defaults.get(key))
        token = self._named[key]
        return None if token is None else token.content

    def _end(self, key: str, id_of: Callable[[str], int | None], own: Mapping[str, int]) -> int | None:
        if key not in self._named and own.get(key, -1) >= 0:
            return own[key]
        content = self.name(key)
        token_id = None if content is None else id_of(content)
        if token_id is None or self.n_vocab is None or token_id < self.n_vocab:
            return token_id
        token = self._named.get(key)
        if token is None:
            return None  # a default of the class
        expected = f"a token of {self.folder} with an id from 0 to {self.n_vocab - 1}"
        raise TokenizerError.of(token.file, key, content, expected)

    @property
    def _defaults(self) -> Mapping[str, Any]:
        return _NAMED_BY_CLASS.get(self.tokenizer_class or "", {})


def read_side_tokens(
    folder: Path, n_vocab: int | None = None, *, bos_id: int | None = None,
    eos_ids: tuple[int, ...] | None = None,
) -> SideTokens:  # fmt: skip
    """Read the files next to a vocabulary; ``added_tokens_decoder`` supersedes the older files."""
    config, settings = str(folder / _CONFIG), read_settings(folder / _CONFIG)
    if dropped := [name for name in _NOT_APPLIED if settings.get(name) is True]:
        warn(UnusedFieldWarning(config, dropped, "without effect: not supported when encoding"))
    # Field to value and file.
    held = {k: (value, config) for k, value in settings.items() if value is not None or k in SPECIAL_NAMES}
    lists_all = "added_tokens_decoder" in held
    if _FORMER in held and not settings.get(_EXTRA):
        held[_EXTRA] = held.pop(_FORMER)
    named: dict[str, _Token | None] = _other_names(held)
    late = False  # whether extra special tokens come too late to set flags of added_tokens.json
    if isinstance(held.get(_EXTRA, (None,))[0], dict):
        extras, file = held.pop(_EXTRA)
        named |= {key: _token(value, file, _EXTRA) for key, value in extras.items()}
    if not lists_all:
        file = str(folder / _MAP)
        mapped = {key: (value, file) for key, value in read_settings(folder / _MAP).items()}
        # Ordered as in the map, with values from the settings.
        named = _other_names(mapped) | named
        for former, one in mapped.items():
            key = _EXTRA if former == _FORMER else former
            if key in SPECIAL_NAMES or not held.get(key, (None,))[0]:
                held[key] = one
                late = late or former != key
    for key in SPECIAL_NAMES:
        if key in held:
            named[key] = None if content_of(held[key][0]) is None else _token(*held[key], key)
    extras, file = held.get(_EXTRA, ([], config))
    if isinstance(extras, dict):
        for key, value in extras.items():
            named.setdefault(key, _token(value, file, _EXTRA))
    elif not isinstance(extras or [], list):
        raise TokenizerError.of(file, _EXTRA, extras, "a list of tokens")
    listed = [] if isinstance(extras, dict) else extras or []
    extra = tuple(_token(value, file, _EXTRA) for value in listed)
    if lists_all:
        added = _added_tokens_decoder(*held["added_tokens_decoder"])
    else:
        added = _added_tokens(folder / _ADDED, named, () if late else extra)
    by_content = {token.content: token for token in added.values()}
    named = {key: token and by_content.get(token.content, token) for key, token in named.items()}
    model = read_settings(folder / "config.json")
    return SideTokens(
        folder, settings, *_class_of(settings, model, folder), model.get("model_type"), n_vocab, bos_id,
        eos_ids, added, named, extra, lists_all,
    )  # fmt: skip


def _other_names(held: Mapping[str, tuple[Any, str]]) -> dict[str, _Token | None]:
    """Return tokens of fields other than `SPECIAL_NAMES`, such as "image_token"."""
    return {
        key: _token(value, file, key)
        for key, (value, file) in held.items()
        if key.endswith("_token") and key not in SPECIAL_NAMES and content_of(value) is not None
    }


def _class_of(settings: Mapping[str, Any], model: Mapping[str, Any], folder: Path) -> tuple[str | None, bool]:
    """Return the tokenizer class in transformers, and whether a file names it."""
    for values, file in ((settings, _CONFIG), (model, "config.json")):
        found = values.get("tokenizer_class")
        if found is not None and not isinstance(found, str):
            raise TokenizerError.of(folder / file, "tokenizer_class", found, "a class name in transformers")
        if found is not None:
            name = found.removesuffix("Fast")
            return {"MT5Tokenizer": "T5Tokenizer"}.get(name, name), True
    model_type = model.get("model_type")
    if not isinstance(model_type, str):
        return None, False
    is_qwen = model_type.startswith(("qwen2", "qwen3"))
    return "Qwen2Tokenizer" if is_qwen else _CLASS_OF_MODEL.get(model_type), False


def _added_tokens_decoder(value: Any, file: str) -> dict[int, _Token]:
    """Parse ``added_tokens_decoder``, an object of id to token."""
    try:
        return {
            int(token_id): _token(token, file, "added_tokens_decoder")
            for token_id, token in value.items()
            if token["content"] is not None
        }
    except (AttributeError, KeyError, TypeError, ValueError):
        expected = "an object of ids and tokens with 'content'"
        raise TokenizerError.of(file, "added_tokens_decoder", value, expected) from None


def _added_tokens(
    file: Path, named: Mapping[str, _Token | None], extras: tuple[_Token, ...]
) -> dict[int, _Token]:
    """Read added_tokens.json, an object of token to id; tokens that another file names are special."""
    usual = (named.get(key) for key in SPECIAL_NAMES)
    special = {token.content for token in (*usual, *extras) if token is not None}
    return {
        i: _Token(content, {"special": content in special, "normalized": content not in special}, str(file))
        for content, i in read_numbers(file).items()
    }


def read_numbers(file: Path) -> dict[str, int]:
    """Read an object of token to id from a JSON file; empty if there is no such file."""
    values = read_settings(file)
    seen: set[int] = set()
    for text, token_id in values.items():
        if type(token_id) is not int or token_id < 0 or token_id in seen:
            raise TokenizerError.of(file, text, token_id, "a unique non-negative integer", noun="token")
        seen.add(token_id)
    return values


def _token(value: Any, file: str, key: str) -> _Token:
    content = content_of(value)
    if content is None:
        raise TokenizerError.of(file, key, value, "a string, or an object with 'content'")
    flags = {name: value[name] for name in _FLAGS if name in value} if isinstance(value, dict) else {}
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise TokenizerError.of(file, f"{content}.{name}", flag, "true or false", noun="token")
    return _Token(content, flags, file)


def content_of(token: Any) -> str | None:
    """Return the string of a token given as string or object with "content"; None if it is neither."""
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else None


def read_settings(file: Path) -> dict[str, Any]:
    """Read the object of a tokenizer's JSON file; empty if there is no such file."""
    return read_json_object(file, TokenizerError) if file.is_file() else {}


def import_tokenizers(source: Any) -> Any:
    """Import the ``tokenizers`` library for the file `source`."""
    return import_library("tokenizers", source)


def import_library(name: str, source: Any) -> Any:
    """Import a tokenizer library for the file `source`."""
    try:
        return import_module(name)
    except ImportError as error:
        how = f"which is not installed: pip install {name} (or pass tokenizer=False to use token ids)"
        raise MissingTokenizerLibraryError(f"{source}: needs the package `{name}`, {how}") from error


class AddedTokenFinder:
    """Search for added tokens by a `tokenizer` of ``tokenizers``, whose model it replaces."""

    def __init__(self, tokenizer: Any, source: str) -> None:
        library = import_tokenizers(source)
        self.tokens: dict[int, Any] = tokenizer.get_added_tokens_decoder()
        # One token for any text between added tokens.
        tokenizer.model = library.models.WordLevel(vocab={"text": _TEXT}, unk_token="text")
        self._tokenizer = tokenizer

    @classmethod
    def of(cls, ids: Mapping[str, int], source: str) -> AddedTokenFinder:
        """Make a finder of the given tokens."""
        tokenizer = pieces_tokenizer(ids, source)
        library = import_tokenizers(source)
        tokenizer.add_tokens([library.AddedToken(text, special=True, normalized=False) for text in ids])
        return cls(tokenizer, source)

    def split(self, text: str) -> list[tuple[int | None, str]]:
        """Split text into (id, added token) and (None, text between added tokens)."""
        found = self._tokenizer.encode(text, add_special_tokens=False)
        return [
            (None if token_id == _TEXT else token_id, text[start:end])
            for token_id, (start, end) in zip(found.ids, found.offsets, strict=True)
        ]


def pieces_tokenizer(ids: Mapping[str, int], source: str) -> Any:
    """Make a tokenizer of the library with these pieces; added tokens get the next ids."""
    library = import_tokenizers(source)
    return library.Tokenizer(library.models.WordLevel(vocab=dict(ids), unk_token=""))
