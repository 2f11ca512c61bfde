"""Forms read by ``llguidance``: JSON schemas, regular expressions and grammars, on a model's tokens."""

from __future__ import annotations

import json
import threading
import weakref
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

from specdec.errors import FormError, InputError, MissingFormError, kind_of
from specdec.models.tokenizer import ByteTokenizer, Tokenizer

__all__ = ["FormKind", "Guidance", "GuidanceState", "json_text"]

FormKind: TypeAlias = Literal["schema", "regex", "grammar"]

MOST_BYTES: Final = 1 << 17
"""Of a form's text; larger ones are refused."""

# The library's own bounds, in its units: what a form may cost. Building one takes some seconds at most, a
# mask some tenths of a second, and the states of its lexer some hundred megabytes.
_LIMITS: Final = {
    "max_items_in_row": 2000,
    "initial_lexer_fuel": 1_000_000,
    "step_lexer_fuel": 200_000,
    "step_max_items": 50_000,
    "max_lexer_states": 50_000,
    "max_grammar_size": 20_000,
    "verbose_errors": False,
}

# JSON as Python writes it: a space behind "," and ":", and no other between tokens. A form's own "x-guidance"
# says otherwise.
_JSON: Final = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}

_PIECE: Final = 4096  # bytes of a forced text that are encoded at once
_MOST_FORMS: Final = 64  # that stay compiled
_MARKER: Final = "\x02"  # a character that tokenizers do not join with others

_lock: Final = threading.Lock()
_tokenizers: Final[weakref.WeakKeyDictionary[Any, dict[Any, Any]]] = weakref.WeakKeyDictionary()
_matchers: Final[OrderedDict[Any, Any]] = OrderedDict()


def json_text(schema: Any) -> str:
    """A JSON schema as text.

    Parameters
    ----------
    schema : mapping, bool, str or class
        A schema, its text, or a class with the method ``model_json_schema``.

    Raises
    ------
    InputError
        For something else.
    FormError
        For a text that is no JSON.
    """
    if isinstance(schema, type) and callable(getattr(schema, "model_json_schema", None)):
        schema = schema.model_json_schema()  # type: ignore[attr-defined]
    if isinstance(schema, str):
        _check_size("schema", schema)
        try:
            schema = json.loads(schema)
        except (ValueError, RecursionError) as error:
            raise FormError(f"schema is no JSON: {error}") from None
    if not isinstance(schema, Mapping | bool):
        raise InputError(
            f"schema is {kind_of(schema)}; expected a dict, True, the text of a JSON schema, or a class with "
            "the method model_json_schema"
        )
    if schema is False:
        raise FormError("schema is False: no text has it")
    if schema is True:
        schema = {}
    try:
        return json.dumps(dict(schema))
    except (TypeError, ValueError, RecursionError) as error:
        raise FormError(f"schema cannot be written as JSON: {error}") from None


def _check_size(kind: str, text: str) -> None:
    n_bytes = len(text.encode("utf-8", "surrogatepass"))
    if n_bytes > MOST_BYTES:
        raise FormError(f"{kind} has {n_bytes} bytes; expected at most {MOST_BYTES}")


def _library() -> Any:
    try:
        import llguidance
    except ImportError:
        raise MissingFormError(
            "schema=, regex= and grammar= need llguidance, which is not installed: pip install llguidance"
        ) from None
    return llguidance


class _Vocabulary:
    """A tokenizer as the library asks for it: the bytes of each token, and how forced bytes are written.

    Special tokens are names behind the byte 0xFF, which no text has; the library never takes them for text. A
    token id without bytes is such a name too.
    """

    def __init__(self, tokenizer: ByteTokenizer, n_tokens: int, end_ids: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        entries = tokenizer.vocabulary()
        self.tokens: list[bytes] = []
        self.special_token_ids: list[int] = []
        self._ids: dict[bytes, int] = {}
        for token in range(n_tokens):
            text = tokenizer.text_bytes(token)
            if not text or token in end_ids:
                name = entries[token] if token < len(entries) else None
                text = b"\xff" + (name or b"<[%d]>" % token)
                self.special_token_ids.append(token)
            else:
                self._ids.setdefault(text, token)
            self.tokens.append(text)
        self._longest = max(map(len, self._ids), default=1)
        self.bos_token_id = None
        self.eos_token_id = end_ids[0]

    def __call__(self, text: str | bytes) -> list[int]:
        """Tokens of a text, whose bytes joined are the text's: as the tokenizer writes it, if that is so."""
        data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
        ids: list[int] = []
        for at in range(0, len(data), _PIECE):
            ids += self._encode(data[at : at + _PIECE])
        return ids

    def _encode(self, data: bytes) -> list[int]:
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError:
            return self._longest_first(data)
        # Behind another character a text has no space of its own in front.
        for before in (_MARKER, ""):
            try:
                ids = self._tokenizer.encode(before + text, add_bos=False)
            except Exception:
                continue
            for begin in range(len(ids)):
                own = ids[begin:]
                if b"".join(self.tokens[token] for token in own) == data:
                    return own
                if begin >= 3:
                    break
        return self._longest_first(data)

    def _longest_first(self, data: bytes) -> list[int]:
        """The longest token at each place; a byte without token is left out, as no text can have it."""
        ids, at = [], 0
        while at < len(data):
            for length in range(min(self._longest, len(data) - at), 0, -1):
                token = self._ids.get(data[at : at + length])
                if token is not None:
                    ids.append(token)
                    break
            else:
                length = 1
            at += length
        return ids


def _tokenizer_of(
    tokenizer: Tokenizer | None, n_vocab: int, end_ids: tuple[int, ...], kind: str
) -> tuple[Any, tuple[int, ...]]:
    """(the library's tokenizer, the ids that end a text in it): made once for each tokenizer."""
    if not isinstance(tokenizer, ByteTokenizer):
        what = "no tokenizer" if tokenizer is None else f"the tokenizer {kind_of(tokenizer)}"
        raise InputError(
            f"{kind} is given, but the target has {what}; expected one whose tokens are byte strings, as "
            "those of specdec.tokenizer"
        )
    library = _library()
    ends = tuple(sorted(token for token in set(end_ids) if token < n_vocab))
    # Without a token that ends a text the library gets one behind the vocabulary, which no model has.
    n_tokens, own_ends = (n_vocab, ends) if ends else (n_vocab + 1, (n_vocab,))
    with _lock:
        known = _tokenizers.setdefault(tokenizer, {})
        made = known.get((n_tokens, own_ends))
    if made is None:
        vocabulary = _Vocabulary(tokenizer, n_tokens, own_ends)
        made = library.LLTokenizer(
            library.TokenizerWrapper(vocabulary),
            n_vocab=n_tokens,
            eos_token=list(own_ends),
            slices=library.LLTokenizer.json_slices() if kind == "schema" else None,
        )
        with _lock:
            made = known.setdefault((n_tokens, own_ends), made)
    return made, own_ends


def _grammar_of(library: Any, kind: FormKind, form: Any) -> str:
    if kind == "schema":
        text = json_text(form)
        _check_size(kind, text)
        made: str = library.LLMatcher.grammar_from_json_schema(text, defaults=_JSON)
        return made
    _check_size(kind, form)
    if kind == "regex":
        made = library.LLMatcher.grammar_from_regex(form)
        return made
    from llguidance.gbnf_to_lark import any_to_lark

    return library.LLMatcher.grammar_from_lark(any_to_lark(form))  # type: ignore[no-any-return]


class Guidance:
    """A form that ``llguidance`` reads, as a `specdec.Constraint`.

    Make one with `of`. The same form on the same tokenizer is compiled once.
    """

    def __init__(self, kind: FormKind, matcher: Any, n_vocab: int, end_ids: tuple[int, ...]) -> None:
        self.kind = kind
        self.end_ids = end_ids
        self.nothing = bytes((n_vocab + 31) // 32 * 4)
        self._n_vocab = n_vocab
        self._matcher = matcher

    @classmethod
    def of(
        cls,
        kind: FormKind,
        form: Any,
        tokenizer: Tokenizer | None,
        n_vocab: int,
        end_ids: Sequence[int],
    ) -> Guidance:
        """Compile a form.

        Parameters
        ----------
        kind : {"schema", "regex", "grammar"}
        form : mapping, bool or str
            A JSON schema; a regular expression, which the whole text matches; a grammar in the syntax of
            Lark, or in GBNF.
        tokenizer : Tokenizer or None
            Of the target.
        n_vocab : int
            Tokens of the target, which may have more than its tokenizer.
        end_ids : sequence of int
            Tokens that end a text.

        Raises
        ------
        FormError
            For a form that cannot be read, is too large, or that no text satisfies.
        InputError
            For a tokenizer whose tokens are not byte strings.
        MissingPackageError
            ``llguidance`` is not installed.
        """
        library = _library()
        made, own_ends = _tokenizer_of(tokenizer, n_vocab, tuple(end_ids), kind)
        try:
            grammar = _grammar_of(library, kind, form)
        except (InputError, MissingFormError):
            raise
        except Exception as error:  # what the library raises has no common type
            raise FormError(f"{kind} cannot be read: {error}") from None
        key = (id(made), grammar)
        with _lock:
            matcher = _matchers.get(key)
            if matcher is not None:
                _matchers.move_to_end(key)
                return cls(kind, matcher[1], n_vocab, own_ends)
        matcher = library.LLMatcher(made, grammar, log_level=0, limits=library.LLParserLimits(**_LIMITS))
        guidance = cls(kind, matcher, n_vocab, own_ends)
        if matcher.is_error():
            raise FormError(f"{kind}: {_said(matcher)}")
        guidance.start(()).mask()  # a form that no text satisfies is refused now
        with _lock:
            _matchers[key] = (made, matcher)  # the tokenizer too, so that its id stays its own
            while len(_matchers) > _MOST_FORMS:
                _matchers.popitem(last=False)
        return guidance

    def words_of(self, mask: bytes) -> bytes:
        """A mask of the library's tokenizer without the end of text that no model has."""
        n_bytes = len(self.nothing)
        if self.end_ids != (self._n_vocab,):
            return mask[:n_bytes]
        words = bytearray(mask)
        words[self._n_vocab >> 3] &= ~(1 << (self._n_vocab & 7)) & 0xFF
        return bytes(words[:n_bytes])

    def start(self, tokens: Sequence[int]) -> GuidanceState:
        """The state in which a new text begins; the prompt does not count."""
        return GuidanceState(self, self._matcher.deep_copy())


def _said(matcher: Any) -> str:
    """What the library says of a fault, in a line."""
    return " ".join(matcher.get_error().replace("<non-verbose/>", "").split())


class GuidanceState:
    """What a `Guidance` knows behind some tokens."""

    __slots__ = ("_ended", "_form", "_matcher")

    def __init__(self, form: Guidance, matcher: Any, ended: bool = False) -> None:
        self._form = form
        self._matcher = matcher
        self._ended = ended

    def fork(self) -> GuidanceState:
        """An independent copy: some microseconds."""
        return GuidanceState(self._form, self._matcher.deep_copy(), self._ended)

    def advance(self, token: int) -> None:
        """The text goes on with a token."""
        if token in self._form.end_ids:
            self._ended = True
        elif not self._matcher.consume_token(token):
            said = _said(self._matcher) or f"token {token} may not come here"
            raise FormError(f"{self._form.kind}: {said}")

    def mask(self) -> bytes | None:
        """The words of the tokens that may come next; None: the text is complete."""
        if self._ended:
            return None
        words = self._form.words_of(self._matcher.compute_bitmask())
        if self._matcher.is_error():
            said = _said(self._matcher)
            if "NoExtension" in said:
                said = "no text of this form goes on from here in the target's tokens"
            raise FormError(f"{self._form.kind}: {said}")
        return None if words == self._form.nothing else words
