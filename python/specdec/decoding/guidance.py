"""Forms read by ``llguidance``: JSON schemas, regular expressions and grammars, on a model's tokens."""

from __future__ import annotations

import functools
import json
import re
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias, TypeVar

from specdec.decoding.endless_forms import FirstBytes, bound_of, forces_on, unforced
from specdec.errors import FormError, InputError, MissingFormError, kind_of, shown
from specdec.models.tokenizer import ByteTokenizer, Tokenizer
from specdec.models.tokenizer.continuing import encode_exactly

__all__ = ["FormKind", "Guidance", "GuidanceState", "json_text"]

FormKind: TypeAlias = Literal["schema", "regex", "grammar"]

T = TypeVar("T")

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
_SHORT: Final = 128  # bytes of a forced text that is remembered in tokens
_MOST_TEXTS: Final = 2048  # that are remembered so
_MOST_FORMS: Final = 64  # that stay compiled
_MOST_S: Final = 20.0  # seconds in which a form is compiled
_MOST_LEFT: Final = 2  # forms that took longer and are still being compiled
_STACK: Final = (
    256 << 20
)  # bytes of stack: rules lead to each other as deep as a form of MOST_BYTES has room for
_MOST_JOINED: Final = 16  # patterns that a text has to match at once: time doubles with each
_MOST_UNTOLD: Final = 64  # tokens that a matcher has not been told

_lock: Final = threading.Lock()
_tokenizers: Final[weakref.WeakKeyDictionary[Any, dict[Any, Any]]] = weakref.WeakKeyDictionary()
_matchers: Final[OrderedDict[Any, Any]] = OrderedDict()
_left: Final[list[threading.Thread]] = []


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


def _check_joined(schema: str) -> None:
    """Refuse what the library would compile for ever: patterns joined by ``allOf``."""
    patterns: set[str] = set()
    n_entries, left = 0, [json.loads(schema)]
    while left:
        part = left.pop()
        if isinstance(part, dict):
            patterns |= {str(part[name]) for name in ("pattern", "format") if name in part}
            n_entries += len(part["allOf"]) if isinstance(part.get("allOf"), list) else 0
            left += part.values()
        elif isinstance(part, list):
            left += part
    n_joined = min(len(patterns), n_entries)
    if n_joined > _MOST_JOINED:
        raise FormError(f"schema: allOf may join {n_joined} patterns; expected at most {_MOST_JOINED}")


# In a regular expression: white space any number of times.
_SPACE: Final = re.compile(r"(\\[snrt]| |\[( |\\[snrt]|[\n\r\t])+\])([*+]|\{\d+,\})")


def _check_separators(schema: str) -> None:
    """Refuse separators of JSON that may have no end: the library would write them for ever."""
    left = [json.loads(schema)]
    while left:
        part = left.pop()
        if isinstance(part, dict):
            given = part.get("x-guidance")
            for name in ("item_separator", "key_separator", "whitespace_pattern"):
                pattern = given.get(name) if isinstance(given, dict) else None
                if isinstance(pattern, str) and re.search(r"[*+]|\{\d*,\}", _SPACE.sub("", pattern)):
                    raise FormError(
                        f"schema: x-guidance.{name} is {shown(pattern)}; expected nothing but white space "
                        "any number of times"
                    )
            left += part.values()
        elif isinstance(part, list):
            left += part


def _in_time(kind: str, compile_form: Callable[[], T]) -> T:
    """What a function returns, in a thread with a deep stack, if that takes no longer than it may.

    A thread that takes longer cannot be ended: it goes on, and when there are several such, other forms are
    refused until one is done.
    """
    results: list[T | BaseException] = []

    def run() -> None:
        try:
            results.append(compile_form())
        except BaseException as error:
            results.append(error)

    thread = threading.Thread(target=run, name="specdec form", daemon=True)
    with _lock:
        _left[:] = [one for one in _left if one.is_alive()]
        if len(_left) >= _MOST_LEFT:
            raise FormError(
                f"{kind}: {len(_left)} forms that took longer than {_MOST_S:g} s are still being compiled; "
                "expected none"
            )
        usual = threading.stack_size(_STACK)
        try:
            thread.start()
        finally:
            threading.stack_size(usual)
    thread.join(_MOST_S)
    if not results:
        with _lock:
            _left.append(thread)
        raise FormError(f"{kind}: compiling takes longer than {_MOST_S:g} s; expected a simpler form")
    (result,) = results
    if isinstance(result, BaseException):
        raise result
    return result


class _Vocabulary:
    """A tokenizer as the library asks for it: the bytes of each token, and how forced bytes are written.

    Special tokens are names behind the byte 0xFF, which no text has; the library never takes them for text. A
    token id without bytes is such a name too.
    """

    def __init__(self, tokenizer: ByteTokenizer, n_tokens: int, end_ids: Sequence[int]) -> None:
        self._tokenizer = weakref.ref(tokenizer)  # which would else be kept by what is known of it
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
        self._remembered = functools.lru_cache(_MOST_TEXTS)(self._encode)
        self.bos_token_id = None
        self.eos_token_id = end_ids[0]

    def __call__(self, text: str | bytes) -> list[int]:
        """Tokens of a text, whose bytes joined are the text's: as the tokenizer writes it, if that is so."""
        data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
        if len(data) <= _SHORT:  # forms force the same texts again and again
            return list(self._remembered(data))
        ids: list[int] = []
        for at in range(0, len(data), _PIECE):
            ids += self._encode(data[at : at + _PIECE])
        return ids

    def _encode(self, data: bytes) -> list[int]:
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError:
            return self._longest_first(data)
        tokenizer = self._tokenizer()
        try:
            ids = None if tokenizer is None else encode_exactly(tokenizer, text)
        except Exception:  # a tokenizer without some of the characters
            ids = None
        if ids is None or b"".join(self.tokens[token] for token in ids) != data:  # it has special tokens
            return self._longest_first(data)
        return ids

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


def _checked(tokenizer: Tokenizer | None, kind: str) -> ByteTokenizer:
    if isinstance(tokenizer, ByteTokenizer):
        return tokenizer
    what = "no tokenizer" if tokenizer is None else f"the tokenizer {kind_of(tokenizer)}"
    raise InputError(
        f"{kind} is given, but the target has {what}; expected one whose tokens are byte strings, as those "
        "of specdec.tokenizer"
    )


def _tokenizer_of(
    tokenizer: ByteTokenizer, n_vocab: int, end_ids: tuple[int, ...], kind: str
) -> tuple[Any, FirstBytes, tuple[int, ...]]:
    """(the library's tokenizer, its tokens, the ids that end a text in it): made once for each tokenizer."""
    library = _library()
    ends = tuple(sorted(token for token in set(end_ids) if token < n_vocab))
    # Without a token that ends a text the library gets one behind the vocabulary, which no model has.
    n_tokens, own_ends = (n_vocab, ends) if ends else (n_vocab + 1, (n_vocab,))
    with _lock:
        known = _tokenizers.setdefault(tokenizer, {})
        made = known.get((n_tokens, own_ends))
    if made is None:
        vocabulary = _Vocabulary(tokenizer, n_tokens, own_ends)
        its_own = library.LLTokenizer(
            library.TokenizerWrapper(vocabulary),
            n_vocab=n_tokens,
            eos_token=list(own_ends),
            slices=library.LLTokenizer.json_slices() if kind == "schema" else None,
        )
        made = (its_own, FirstBytes(vocabulary.tokens))
        with _lock:
            made = known.setdefault((n_tokens, own_ends), made)
    return *made, own_ends


def _grammar_of(library: Any, kind: FormKind, form: Any) -> str:
    if kind == "schema":
        text = json_text(form)
        _check_size(kind, text)
        _check_joined(text)
        _check_separators(text)
        made: str = library.LLMatcher.grammar_from_json_schema(text, defaults=_JSON)
        return made
    _check_size(kind, form)
    if kind == "regex":
        made = library.LLMatcher.grammar_from_regex(form)
        return made
    from llguidance.gbnf_to_lark import any_to_lark

    try:
        lark = any_to_lark(form)
    except Exception:
        if "::=" not in form:
            raise FormError(
                "grammar has no rule that a text begins with; expected a line 'start: …' (Lark) or "
                "'root ::= …' (GBNF)"
            ) from None
        raise
    return library.LLMatcher.grammar_from_lark(lark)  # type: ignore[no-any-return]


class _Watcher:
    """A grammar whose forced bytes are not written, so that a place where these never end can be found.

    Only grammars have such places: a word of theirs is read as far as it goes, and what follows may begin
    like the word.
    """

    def __init__(self, matcher: Any, first: FirstBytes, bound: int) -> None:
        self.matcher = matcher
        self._first, self._bound = first, bound

    def check(self, matcher: Any) -> None:
        """Raise a `FormError` if more bytes than the bound are forced where the matcher is."""
        if forces_on(matcher, self._first, self._bound):
            raise FormError(
                f"grammar: more than {self._bound} bytes must come one after the other, and no text has so "
                "many; expected words that end, where what follows may begin like them"
            )


class Guidance:
    """A form that ``llguidance`` reads, as a `specdec.Constraint`.

    Make one with `of`. The same form on the same tokenizer is compiled once.
    """

    def __init__(
        self,
        kind: FormKind,
        matcher: Any,
        tokenizer: ByteTokenizer,
        n_vocab: int,
        end_ids: tuple[int, ...],
        watcher: _Watcher | None,
    ) -> None:
        self.kind = kind
        self._tokenizer = tokenizer  # stays as long as texts are written in it
        self.end_ids = end_ids
        self.nothing = bytes((n_vocab + 31) // 32 * 4)
        self._n_vocab = n_vocab
        self._matcher, self.watcher = matcher, watcher

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
        tokenizer = _checked(tokenizer, kind)
        made, first, own_ends = _tokenizer_of(tokenizer, n_vocab, tuple(end_ids), kind)
        try:
            grammar = _grammar_of(library, kind, form)
        except (InputError, MissingFormError):  # a FormError is an InputError
            raise
        except Exception as error:  # what the library raises has no common type
            raise FormError(f"{kind} cannot be read: {error}") from None
        key = (id(made), grammar)
        with _lock:
            matcher = _matchers.get(key)
            if matcher is not None:
                _matchers.move_to_end(key)
                return cls(kind, matcher[1], tokenizer, n_vocab, own_ends, matcher[2])
        unwritten = unforced(grammar) if kind == "grammar" else None

        def compile_form() -> tuple[Any, Any, _Watcher | None]:
            limits = library.LLParserLimits(**_LIMITS)
            watcher = None
            if unwritten is not None:
                unforcing = library.LLMatcher(made, unwritten, log_level=0, limits=limits)
                watcher = _Watcher(unforcing, first, bound_of(grammar))
                watcher.check(watcher.matcher)
            matcher = library.LLMatcher(made, grammar, log_level=0, limits=limits)
            begun = matcher.deep_copy()  # a form that no text has is refused now
            begun.consume_tokens(begun.compute_ff_tokens())
            begun.compute_bitmask()
            return matcher, begun, watcher

        matcher, begun, watcher = _in_time(kind, compile_form)
        guidance = cls(kind, matcher, tokenizer, n_vocab, own_ends, watcher)
        if begun.is_error():
            raise guidance.error_of(begun)
        with _lock:
            _matchers[key] = (made, matcher, watcher)  # the tokenizer too, so that its id stays its own
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

    def word_of(self, token: int) -> bytes:
        """The mask of one token."""
        words = bytearray(self.nothing)
        words[token >> 3] = 1 << (token & 7)
        return bytes(words)

    def error_of(self, matcher: Any) -> FormError:
        """What the library says of a fault, in a line."""
        said = _fault_of_pattern(self.kind, matcher)
        said = said or " ".join(matcher.get_error().replace("<non-verbose/>", "").split())
        if "NoExtension" in said:
            said = "no text of this form goes on from here in the target's tokens"
        return FormError(f"{self.kind}: {said or 'a token may not come here'}")

    def start(self, tokens: Sequence[int]) -> GuidanceState:
        """The state in which a new text begins; the prompt does not count."""
        watched = None if self.watcher is None else self.watcher.matcher
        return GuidanceState(_Reader(self, self._matcher, watched))


_PATTERN_ERROR: Final = re.compile(
    r"(?P<place>at \d+\(\d+\): )?.*regex parse error:\n"
    r" {4}(?P<pattern>.*)\n {4}(?P<before> *)\^+\nerror: (?P<why>.*)"
)


def _fault_of_pattern(kind: FormKind, matcher: Any) -> str | None:
    """What is wrong with a regular expression, and where; the library shows its own grammar of it."""
    found = _PATTERN_ERROR.search(matcher.get_error())
    if found is None:
        return None
    place = (found["place"] or "") if kind == "grammar" else ""
    pattern, at = found["pattern"], len(found["before"])
    return f"{place}{found['why']}, at character {at + 1} of the regular expression {shown(pattern)}"


class _Reader:
    """The library's matcher at a place of a text; of a grammar also the matcher of `_Watcher` at that place.

    Both stay at their place: a later place has copies. The library's own way back, ``rollback``, leaves
    masks behind that are those of other places, and is refused by grammars with ``stop=`` or ``max_tokens=``.
    """

    __slots__ = ("_matcher", "_watched", "form")

    def __init__(self, form: Guidance, matcher: Any, watched: Any | None) -> None:
        self.form = form
        self._matcher, self._watched = matcher, watched

    def behind(self, tokens: Sequence[int]) -> _Reader:
        """That of the place behind some tokens."""
        copies = [None if one is None else one.deep_copy() for one in (self._matcher, self._watched)]
        for copy in copies:
            if copy is not None and tokens and not copy.consume_tokens(list(tokens)):
                raise self.form.error_of(copy)
        return _Reader(self.form, *copies)

    def forced(self) -> list[int]:
        """The tokens that must come here, one after the other."""
        if self.form.watcher is not None:
            self.form.watcher.check(self._watched)
        tokens: list[int] = self._matcher.compute_ff_tokens()
        if self._matcher.is_error():
            raise self.form.error_of(self._matcher)
        return tokens

    def mask(self) -> bytes | None:
        """The words of the tokens that may come here; None: the text is complete."""
        words = self.form.words_of(self._matcher.compute_bitmask())
        if self._matcher.is_error():
            raise self.form.error_of(self._matcher)
        return None if words == self.form.nothing else words


class GuidanceState:
    """What a `Guidance` knows behind some tokens.

    The library's matcher is copied and told the tokens when its mask is asked for: behind tokens that follow
    from the form alone nobody asks, as the matcher before them has said what they are.
    """

    __slots__ = ("_behind", "_ended", "_forced", "_n_told", "_reader")

    def __init__(self, reader: _Reader) -> None:
        self._reader = reader  # of a state before this one, or of this one; shared
        # Tokens that it has not been told; None: it is this state's.
        self._behind: tuple[int, ...] | None = ()
        # Tokens that a reader says must come; None: not asked.
        self._forced: list[int] | None = None
        self._n_told = 0  # of these, those that are behind this state
        self._ended = False

    def fork(self) -> GuidanceState:
        """An independent copy."""
        copy = GuidanceState(self._reader)
        copy._behind, copy._ended = self._behind, self._ended
        copy._forced, copy._n_told = self._forced, self._n_told
        return copy

    def advance(self, token: int) -> None:
        """The text goes on with a token."""
        if token in self._reader.form.end_ids:
            self._ended = True
            return
        if self._behind is not None and len(self._behind) == _MOST_UNTOLD:
            self._own_reader()
        self._behind = (*(self._behind or ()), token)
        forced, n_told = self._forced, self._n_told
        if forced and n_told + 1 < len(forced) and forced[n_told] == token:
            self._n_told = n_told + 1
        else:
            self._forced, self._n_told = None, 0

    def mask(self) -> bytes | None:
        """The words of the tokens that may come next; None: the text is complete."""
        if self._ended:
            return None
        if self._forced is None:
            self._forced = self._own_reader().forced()
        if self._forced:
            return self._reader.form.word_of(self._forced[self._n_told])
        return self._own_reader().mask()

    def _own_reader(self) -> _Reader:
        if self._behind is not None:
            self._reader, self._behind = self._reader.behind(self._behind), None
        return self._reader
