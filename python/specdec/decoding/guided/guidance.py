"""Constraints read by ``llguidance``: JSON schemas, regular expressions and grammars, on a model's tokens."""

from __future__ import annotations

import json
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from specdec.decoding.guided.grammars import (
    LIBRARY_LIMITS,
    FormKind,
    grammar_of,
    json_text,
    place_of_fault,
)
from specdec.decoding.guided.mask_time import MaskJob, MaskMeter
from specdec.decoding.guided.token_bytes import Watcher, checked, library_tokenizer, unforced
from specdec.errors import FormError, InputError, MissingFormError, shown
from specdec.models.tokenizer import ByteTokenizer, Tokenizer

T = TypeVar("T")

_MOST_FORMS: Final = 64  # that stay compiled

_lock: Final = threading.Lock()
_matchers: Final[OrderedDict[Any, Any]] = OrderedDict()


def _library() -> Any:
    try:
        import llguidance
    except ImportError:
        raise MissingFormError(
            "schema=, regex= and grammar= need llguidance, which is not installed: pip install llguidance"
        ) from None
    return llguidance


class Guidance:
    """A form that ``llguidance`` reads, as a `specdec.Constraint`.

    Make one with `of`. The same form on the same tokenizer is compiled once.

    Attributes
    ----------
    mask_s : float
        Processor time that the masks of its texts have taken, in seconds.
    """

    raises: Final = FormError
    """What its states raise. Behind a guess the core forgets this alone, not a signal handler's exception."""

    def __init__(self, form: _Compiled) -> None:
        self._form = form
        self.mask_s = 0.0

    @classmethod
    def of(
        cls,
        kind: FormKind,
        form: Any,
        tokenizer: Tokenizer | None,
        n_vocab: int,
        end_ids: Sequence[int],
    ) -> Guidance:
        """Compile a JSON schema, a regular expression, or a grammar in Lark's syntax or GBNF.

        `n_vocab` are the tokens of the target, which may have more than its tokenizer; `end_ids` end a text.
        Raises as `constraint_of`.
        """
        library = _library()
        tokenizer = checked(tokenizer, kind)
        made, first, own_ends = library_tokenizer(library, tokenizer, n_vocab, tuple(end_ids), kind)
        try:
            grammar = grammar_of(library, kind, form)
        except InputError:  # a FormError is one
            raise
        except Exception as error:  # what the library raises has no common type
            raise FormError.about(kind, f"{kind} cannot be read: {error}") from None
        key = (id(made), grammar)
        has_patterns = kind == "schema" and '"patternProperties"' in grammar
        common: dict[str, Any] = {
            "tokenizer": tokenizer, "n_vocab": n_vocab, "end_ids": own_ends, "has_patterns": has_patterns
        }  # fmt: skip
        with _lock:
            known = _matchers.get(key)
            if known is not None:
                _matchers.move_to_end(key)
                _, matcher, watcher = known
                return cls(_Compiled(kind, matcher, watcher, **common))
        unwritten = unforced(grammar) if kind == "grammar" else None

        def compile_form() -> tuple[Any, Any, Watcher | None, str]:
            limits = library.LLParserLimits(**LIBRARY_LIMITS)

            def schema_error(schema: Any) -> str:
                part = grammar_of(library, "schema", schema)
                error: str = library.LLMatcher(made, part, log_level=0, limits=limits).get_error()
                return error

            watcher = None
            if unwritten is not None:
                unforcing = library.LLMatcher(made, unwritten, log_level=0, limits=limits)
                watcher = Watcher(unforcing, first, grammar)
                watcher.check(watcher.matcher)
            matcher = library.LLMatcher(made, grammar, log_level=0, limits=limits)
            begun = matcher.deep_copy()  # a form that no text has is refused now
            begun.consume_tokens(begun.compute_ff_tokens())
            begun.compute_bitmask()
            at_fault = kind == "schema" and matcher.is_error()
            place = place_of_fault(json.loads(json_text(form)), schema_error) if at_fault else ""
            return matcher, begun, watcher, place

        matcher, begun, watcher, place = in_time(kind, compile_form)
        compiled = _Compiled(kind, matcher, watcher, **common)
        if begun.is_error():
            raise compiled.error_of(begun, place)
        with _lock:
            _matchers[key] = (made, matcher, watcher)  # the tokenizer too, so that its id stays its own
            while len(_matchers) > _MOST_FORMS:
                _matchers.popitem(last=False)
        return cls(compiled)

    def start(self, tokens: Sequence[int]) -> GuidanceState:
        """The state in which a new text begins; the prompt does not count."""
        # Only the rows of a grammar's parser can get long: the lexer of the others has a bound on its steps.
        meter = MaskMeter(self._form.kind, self._form.kind == "grammar", self._spend)
        return GuidanceState(_Place.of(self._form), meter)

    def _spend(self, seconds: float) -> None:
        self.mask_s += seconds


_MOST_UNTOLD: Final = 64  # tokens that a matcher has not been told


class GuidanceState:
    """What a `Guidance` knows behind some tokens.

    The library's matcher is copied and told the tokens when its mask is asked for: behind tokens that follow
    from the form alone nobody asks, as the matcher before them has said what they are.
    """

    __slots__ = ("_behind", "_ended", "_forced", "_job", "_meter", "_n_told", "_reader")

    def __init__(self, reader: _Place, meter: MaskMeter) -> None:
        self._meter = meter
        self._job: MaskJob | None = None  # which computes the mask, and uses what is below
        self._reader = reader  # of a state before this one, or of this one; shared
        # Tokens that it has not been told; None: it is this state's.
        self._behind: tuple[int, ...] | None = ()
        # Tokens that a reader says must come; None: not asked.
        self._forced: list[int] | None = None
        self._n_told = 0  # of these, those that are behind this state
        self._ended = False

    def fork(self) -> GuidanceState:
        """An independent copy."""
        if self._job is not None:
            self.mask()
        copy = GuidanceState(self._reader, self._meter)
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
        """The words of the tokens that may come next; None: the text is complete.

        Raises
        ------
        FormError
            It takes too long to find them, or the form cannot go on here.
        """
        if self._ended:
            return None
        if self._job is None:
            if self._forced:
                return self._reader.form.word_of(self._forced[self._n_told])
            self._job = MaskJob(self._compute)
        mask = self._meter.mask(self._job)
        self._job = None
        return mask

    def _compute(self) -> bytes | None:
        if self._forced is None:
            self._forced = self._own_reader().forced()
        if self._forced:
            return self._reader.form.word_of(self._forced[self._n_told])
        return self._own_reader().mask()

    def _own_reader(self) -> _Place:
        if self._behind is not None:
            self._reader, self._behind = self._reader.behind(self._behind), None
        return self._reader


class _Place:
    """The library's matcher at a place of a text; of a grammar also that of its `Watcher`.

    Both stay at their place: a later place has copies. The library's own way back, ``rollback``, leaves
    masks behind that are those of other places, and is refused by grammars with ``stop=`` or ``max_tokens=``.
    """

    __slots__ = ("_matcher", "_watched", "form")

    def __init__(self, form: _Compiled, matcher: Any, watched: Any | None) -> None:
        self.form = form
        self._matcher, self._watched = matcher, watched

    @classmethod
    def of(cls, form: _Compiled) -> _Place:
        """The reader at the place where a text begins."""
        return cls(form, form.matcher, None if form.watcher is None else form.watcher.matcher)

    def behind(self, tokens: Sequence[int]) -> _Place:
        """The reader at the place behind some tokens."""
        copies = [None if one is None else one.deep_copy() for one in (self._matcher, self._watched)]
        for copy in copies:
            if copy is not None and tokens and not copy.consume_tokens(list(tokens)):
                raise self.form.error_of(copy)
        return _Place(self.form, *copies)

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


class _Compiled:
    """What all texts of a constraint share: the matcher where a text begins, which stays there.

    `watcher` is that of a grammar which may force bytes without end, `end_ids` those of the library's
    tokenizer, `nothing` the mask of no token; `has_patterns`: a schema has patternProperties.
    """

    def __init__(
        self,
        kind: FormKind,
        matcher: Any,
        watcher: Watcher | None,
        tokenizer: ByteTokenizer,
        n_vocab: int,
        end_ids: tuple[int, ...],
        *,
        has_patterns: bool = False,
    ) -> None:
        self.matcher, self.watcher = matcher, watcher
        self.end_ids = end_ids
        self.nothing = bytes((n_vocab + 31) // 32 * 4)
        self.kind: Final = kind
        self._n_vocab, self._has_patterns = n_vocab, has_patterns
        self._tokenizer = tokenizer  # stays as long as texts are written in it

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

    def error_of(self, matcher: Any, place: str = "") -> FormError:
        """What the library says of a fault, in a line; `place` is a JSON pointer in a schema."""
        said = _fault_of_pattern(self.kind, matcher)
        said = said or " ".join(matcher.get_error().replace("<non-verbose/>", "").split())
        if "NoExtension" in said:
            said = "no text of this form goes on from here in the target's tokens"
            if self._has_patterns:
                said += (
                    ", or llguidance began a key of patternProperties where all keys that match have come; "
                    "expected patterns that no key of properties matches"
                )
        if "Unknown format" in said:
            said += (
                "; expected one that llguidance reads (date-time, date, time, duration, email, hostname, "
                'ipv4, ipv6, uuid, uri), a pattern, or "x-guidance": {"lenient": true} in the schema, with '
                "which unknown formats are ignored"
            )
        where = f"{self.kind}, at {place}" if place else self.kind
        return FormError(f"{where}: {said or 'a token may not come here'}")


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


# ---------------------------------------------------------------------------------------------- compiling

_COMPILE_S: Final = 20.0  # seconds in which a form is compiled
_MOST_LEFT: Final = 2  # forms that took longer and are still being compiled
# Bytes of stack: the library goes into rules by recursion, as deep as the largest form has room for.
_STACK: Final = 256 << 20

_threads_lock: Final = threading.Lock()
_left: Final[list[threading.Thread]] = []


def in_time(kind: str, compile_form: Callable[[], T]) -> T:
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
    with _threads_lock:
        _left[:] = [one for one in _left if one.is_alive()]
        if len(_left) >= _MOST_LEFT:
            raise FormError.about(
                kind,
                f"{kind}: {len(_left)} forms that took longer than {_COMPILE_S:g} s are still being "
                "compiled; expected none",
            )
        usual = threading.stack_size(_STACK)
        try:
            thread.start()
        finally:
            threading.stack_size(usual)
    thread.join(_COMPILE_S)
    if not results:
        with _threads_lock:
            _left.append(thread)
        raise FormError.about(
            kind, f"{kind}: compiling takes longer than {_COMPILE_S:g} s; expected a simpler form"
        )
    (result,) = results
    if isinstance(result, BaseException):
        raise result
    return result
