"""`Guidance`: JSON schemas, regular expressions and grammars as token constraints, by ``llguidance``."""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from specdec.decoding.guided.constraint_vocabulary import LibraryTokenizer, Watcher, checked, unforced
from specdec.decoding.guided.grammars import LIBRARY_LIMITS, ConstraintType, fault_pointer, grammar_of
from specdec.decoding.guided.mask_time import MaskJob, MaskMeter
from specdec.errors import ConstraintError, InputError, MissingConstraintError, shown
from specdec.models.tokenizer import ByteTokenizer, Tokenizer

T = TypeVar("T")

_MOST_COMPILED: Final = 64  # compiled constraints to cache

_lock: Final = threading.Lock()
_known: Final[OrderedDict[Any, _Compiled]] = OrderedDict()


def _library() -> Any:
    try:
        import llguidance
    except ImportError:
        needs = "schema=, regex= and grammar= need llguidance, which is not installed"
        raise MissingConstraintError(f"{needs}: pip install 'specdec-cpu[guided]'") from None
    return llguidance


class Guidance:
    """A `specdec.Constraint` read by ``llguidance``; created by `of`.

    `mask_s` is the processor time spent on the masks of its texts, in seconds.
    """

    raises: Final = ConstraintError
    """Error type of its states. After a draft token the core ignores only this type."""

    def __init__(self, compiled: _Compiled, tokenizer: ByteTokenizer) -> None:
        self._compiled = compiled
        self._tokenizer = tokenizer  # keeps it alive
        self.mask_s = 0.0

    @classmethod
    def of(
        cls, name: ConstraintType, given: Any, tokenizer: Tokenizer | None, n_vocab: int,
        end_ids: Sequence[int],
    ) -> Guidance:  # fmt: skip
        """Compile a JSON schema, a regular expression, or a grammar (Lark or GBNF), each only once.

        `n_vocab` is the target's vocabulary size, which may exceed its tokenizer's; `end_ids` are end-of-text
        ids.
        """
        library = _library()
        tokenizer = checked(tokenizer, name)
        made = LibraryTokenizer.of(library, tokenizer, n_vocab, end_ids, name)
        try:
            grammar = grammar_of(library, name, given)
        except InputError:  # includes ConstraintError
            raise
        except Exception as error:  # the library's errors have no common type
            raise ConstraintError.about(name, f"{name} cannot be read: {error}") from None
        key = (id(made), name, grammar)
        with _lock:
            if (compiled := _known.get(key)) is not None:
                _known.move_to_end(key)
                return cls(compiled, tokenizer)
        compiled = in_time(name, partial(_Compiled, library, made, name, given, grammar))
        with _lock:
            _known[key] = compiled
            while len(_known) > _MOST_COMPILED:
                _known.popitem(last=False)
        return cls(compiled, tokenizer)

    def start(self, tokens: Sequence[int]) -> GuidanceState:
        """Return the state at the start of a new text; the prompt does not matter."""
        compiled = self._compiled
        # Only a grammar's parser rows can get long: the lexer of schemas and regexes has a bound on its
        # steps.
        meter = MaskMeter(compiled.name, compiled.name == "grammar", self._spend)
        leading = None if compiled.watcher is None else compiled.watcher.matcher
        return GuidanceState(_Reader(compiled, compiled.matcher, leading), meter)

    def _spend(self, seconds: float) -> None:
        self.mask_s += seconds


_MOST_UNREAD: Final = 64  # tokens appended but not read by the matcher


class GuidanceState:
    """State of a `Guidance` after some tokens.

    The library's matcher is copied and reads the pending tokens only when a mask is requested. Forced tokens
    need no mask, because the matcher before them has already named them.
    """

    __slots__ = ("_ended", "_forced", "_job", "_meter", "_n_passed", "_reader", "_unread")

    def __init__(self, reader: _Reader, meter: MaskMeter) -> None:
        self._meter = meter
        self._job: MaskJob | None = None  # computes the mask from the fields below
        self._reader = reader  # at this state or an earlier one; shared
        # Tokens that the reader has not read; None: it is at this state.
        self._unread: tuple[int, ...] | None = ()
        # Forced tokens after the reader's position; None: unknown.
        self._forced: list[int] | None = None
        self._n_passed = 0  # forced tokens already appended
        self._ended = False

    def fork(self) -> GuidanceState:
        """An independent copy."""
        if self._job is not None:
            self.mask()
        copy = GuidanceState(self._reader, self._meter)
        copy._unread, copy._ended = self._unread, self._ended
        copy._forced, copy._n_passed = self._forced, self._n_passed
        return copy

    def advance(self, token: int) -> None:
        """Continue the text with a token."""
        if token in self._reader.compiled.made.end_ids:
            self._ended = True
            return
        if self._unread is not None and len(self._unread) == _MOST_UNREAD:
            self._own_reader()
        self._unread = (*(self._unread or ()), token)
        forced, n_passed = self._forced, self._n_passed
        if forced and n_passed + 1 < len(forced) and forced[n_passed] == token:
            self._n_passed = n_passed + 1
        else:
            self._forced, self._n_passed = None, 0

    def mask(self) -> bytes | None:
        """Return the bit mask of allowed tokens; None: the text is complete.

        Raises ConstraintError if this takes too long, or if the text cannot continue.
        """
        if self._ended:
            return None
        if self._job is None:
            if self._forced:
                return self._reader.compiled.word_of(self._forced[self._n_passed])
            self._job = MaskJob(self._compute)
        mask = self._meter.mask(self._job)
        self._job = None
        return mask

    def _compute(self) -> bytes | None:
        if self._forced is None:
            self._forced = self._own_reader().forced()
        if self._forced:
            return self._reader.compiled.word_of(self._forced[self._n_passed])
        return self._own_reader().mask()

    def _own_reader(self) -> _Reader:
        if self._unread is not None:
            self._reader, self._unread = self._reader.after(self._unread), None
        return self._reader


class _Reader:
    """The library's matcher at one position of a text, and for a grammar that of its `Watcher`.

    Readers stay at their position; later positions use copies. The library's ``rollback`` leaves masks of
    other positions, and grammars with ``stop=`` or ``max_tokens=`` refuse it.
    """

    __slots__ = ("_leading", "_matcher", "compiled")

    def __init__(self, compiled: _Compiled, matcher: Any, leading: Any | None) -> None:
        self.compiled, self._matcher, self._leading = compiled, matcher, leading

    def after(self, tokens: Sequence[int]) -> _Reader:
        """Return the reader after some more tokens."""
        copies = [None if one is None else one.deep_copy() for one in (self._matcher, self._leading)]
        for copy in copies:
            if copy is not None and tokens and not copy.consume_tokens(list(tokens)):
                raise self.compiled.error_of(copy)
        return _Reader(self.compiled, *copies)

    def forced(self) -> list[int]:
        """Return the tokens that must follow, in order."""
        if self.compiled.watcher is not None:
            self.compiled.watcher.check(self._leading)
        tokens: list[int] = self._matcher.compute_ff_tokens()
        if self._matcher.is_error():
            raise self.compiled.error_of(self._matcher)
        return tokens

    def mask(self) -> bytes | None:
        """Return the bit mask of the tokens allowed here; None: the text is complete."""
        words = self.compiled.made.words_of(self._matcher.compute_bitmask())
        if self._matcher.is_error():
            raise self.compiled.error_of(self._matcher)
        return words if any(words) else None


class _Compiled:
    """A compiled constraint, shared by its texts: the matcher at the start of a text.

    `watcher` belongs to a grammar that may force bytes without end. Constraints that no text satisfies are
    refused.
    """

    def __init__(
        self, library: Any, made: LibraryTokenizer, name: ConstraintType, given: Any, grammar: str
    ) -> None:
        self.name, self.made = name, made
        self._has_patterns = name == "schema" and '"patternProperties"' in grammar
        limits = library.LLParserLimits(**LIBRARY_LIMITS)
        matcher_of = partial(library.LLMatcher, made.tokenizer, log_level=0, limits=limits)
        self.watcher: Watcher | None = None
        if name == "grammar" and (unwritten := unforced(grammar)) is not None:
            self.watcher = Watcher(matcher_of(unwritten), made, grammar)
            self.watcher.check(self.watcher.matcher)
        self.matcher = matcher_of(grammar)
        begun = self.matcher.deep_copy()
        begun.consume_tokens(begun.compute_ff_tokens())
        begun.compute_bitmask()
        if begun.is_error():
            pointer = ""
            if name == "schema" and self.matcher.is_error():
                pointer = fault_pointer(given, lambda x: matcher_of(grammar_of(library, name, x)).get_error())
            raise self.error_of(begun, pointer)

    def word_of(self, token: int) -> bytes:
        """Return the bit mask of one token."""
        words = bytearray(self.made.n_bytes_of_mask)
        words[token >> 3] = 1 << (token & 7)
        return bytes(words)

    def error_of(self, matcher: Any, pointer: str = "") -> ConstraintError:
        """Make the error for the library's message; `pointer` is a JSON pointer in a schema."""
        reason = _fault_of_pattern(self.name, matcher)
        reason = reason or " ".join(matcher.get_error().replace("<non-verbose/>", "").split())
        if "NoExtension" in reason:
            reason = "no text satisfies it: the target's tokens cannot continue from here"
            if self._has_patterns:
                reason += (
                    ", or llguidance began another key of patternProperties after all matching keys; "
                    "expected patterns that match no key of properties"
                )
        if "Unknown format" in reason:
            reason += (
                "; expected one that llguidance supports (date-time, date, time, duration, email, hostname, "
                'ipv4, ipv6, uuid, uri), a pattern, or "x-guidance": {"lenient": true} in the schema, which '
                "ignores unknown formats"
            )
        where = f"{self.name}, at {pointer}" if pointer else self.name
        return ConstraintError.about(self.name, f"{where}: {reason or 'this token is not allowed here'}")


_PATTERN_ERROR: Final = re.compile(
    r"(?P<line>at \d+\(\d+\): )?.*regex parse error:\n"
    r" {4}(?P<pattern>.*)\n {4}(?P<before> *)\^+\nerror: (?P<why>.*)"
)


def _fault_of_pattern(name: ConstraintType, matcher: Any) -> str | None:
    """Return the error in a regular expression and its position; the library reports its own rewriting."""
    found = _PATTERN_ERROR.search(matcher.get_error())
    if found is None:
        return None
    line = (found["line"] or "") if name == "grammar" else ""
    pattern, at = found["pattern"], len(found["before"])
    return f"{line}{found['why']}, at character {at + 1} of the regular expression {shown(pattern)}"


# ---------------------------------------------------------------------------------------------- compiling

_COMPILE_S: Final = 20.0  # time limit for compiling a constraint
_MOST_LEFT: Final = 2  # compilations past the limit that may still be running
# Bytes of stack: the library recurses into rules, as deep as the largest constraint allows.
_STACK: Final = 256 << 20

_threads_lock: Final = threading.Lock()
_left: Final[list[threading.Thread]] = []


def in_time(name: str, compile_it: Callable[[], T]) -> T:
    """Run a function with a deep stack and a time limit, and return its result.

    A thread past the limit cannot be stopped; while several such threads run, new constraints are refused.
    """
    results: list[T | BaseException] = []

    def run() -> None:
        try:
            results.append(compile_it())
        except BaseException as error:
            results.append(error)

    thread = threading.Thread(target=run, name="specdec constraint", daemon=True)
    with _threads_lock:
        _left[:] = [one for one in _left if one.is_alive()]
        if len(_left) >= _MOST_LEFT:
            found = f"while {len(_left)} others are still compiling after {_COMPILE_S:g} s"
            raise ConstraintError.of(name, None, "none", found, "is refused")
        usual = threading.stack_size(_STACK)
        try:
            thread.start()
        finally:
            threading.stack_size(usual)
    thread.join(_COMPILE_S)
    if not results:
        with _threads_lock:
            _left.append(thread)
        found = f"longer than {_COMPILE_S:g} s to compile"
        raise ConstraintError.of(name, None, "a simpler one", found, "takes")
    (result,) = results
    if isinstance(result, BaseException):
        raise result
    return result
