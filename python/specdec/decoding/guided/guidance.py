"""Constraints read by ``llguidance``: JSON schemas, regular expressions and grammars, on a model's tokens."""

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

_MOST_COMPILED: Final = 64  # constraints that stay compiled

_lock: Final = threading.Lock()
_known: Final[OrderedDict[Any, _Compiled]] = OrderedDict()


def _library() -> Any:
    try:
        import llguidance
    except ImportError:
        needs = "schema=, regex= and grammar= need llguidance, which is not installed"
        raise MissingConstraintError(f"{needs}: pip install llguidance") from None
    return llguidance


class Guidance:
    """What ``llguidance`` reads, as a `specdec.Constraint`; `of` makes one.

    `mask_s` is the processor time that the masks of its texts have taken, in seconds.
    """

    raises: Final = ConstraintError
    """What its states raise. After a draft token the core forgets this alone, not a signal handler's."""

    def __init__(self, compiled: _Compiled, tokenizer: ByteTokenizer) -> None:
        self._compiled = compiled
        self._tokenizer = tokenizer  # stays as long as texts are written in it
        self.mask_s = 0.0

    @classmethod
    def of(
        cls, name: ConstraintType, given: Any, tokenizer: Tokenizer | None, n_vocab: int,
        end_ids: Sequence[int],
    ) -> Guidance:  # fmt: skip
        """Compile a JSON schema, a regular expression, or a grammar in Lark's syntax or GBNF, each once.

        `n_vocab` are the tokens of the target, which may have more than its tokenizer; `end_ids` end a text.
        """
        library = _library()
        tokenizer = checked(tokenizer, name)
        made = LibraryTokenizer.of(library, tokenizer, n_vocab, end_ids, name)
        try:
            grammar = grammar_of(library, name, given)
        except InputError:  # a ConstraintError is one
            raise
        except Exception as error:  # what the library raises has no common type
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
        """The state in which a new text begins; the prompt does not count."""
        compiled = self._compiled
        # Only the rows of a grammar's parser can get long: the lexer of the others has a bound on its steps.
        meter = MaskMeter(compiled.name, compiled.name == "grammar", self._spend)
        leading = None if compiled.watcher is None else compiled.watcher.matcher
        return GuidanceState(_Reader(compiled, compiled.matcher, leading), meter)

    def _spend(self, seconds: float) -> None:
        self.mask_s += seconds


_MOST_UNREAD: Final = 64  # tokens that a matcher has not read


class GuidanceState:
    """What a `Guidance` knows after some tokens.

    The library's matcher is copied and reads the tokens when its mask is asked for: after tokens that follow
    from the constraint alone nobody asks, as the matcher before them has said what they are.
    """

    __slots__ = ("_ended", "_forced", "_job", "_meter", "_n_passed", "_reader", "_unread")

    def __init__(self, reader: _Reader, meter: MaskMeter) -> None:
        self._meter = meter
        self._job: MaskJob | None = None  # which computes the mask, and uses what is below
        self._reader = reader  # of a state before this one, or of this one; shared
        # Tokens that it has not read; None: it is this state's.
        self._unread: tuple[int, ...] | None = ()
        # Tokens that a reader says must come; None: not asked.
        self._forced: list[int] | None = None
        self._n_passed = 0  # how many of these have come
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
        """The words of the tokens that may come next; None: the text is complete.

        Raises ConstraintError if it takes too long to find them, or the text cannot go on here.
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
    """The library's matcher at one position of a text; of a grammar also that of its `Watcher`.

    Both stay at their position: a later one has copies. The library's own way back, ``rollback``, leaves
    masks that are those of other positions, and is refused by grammars with ``stop=`` or ``max_tokens=``.
    """

    __slots__ = ("_leading", "_matcher", "compiled")

    def __init__(self, compiled: _Compiled, matcher: Any, leading: Any | None) -> None:
        self.compiled, self._matcher, self._leading = compiled, matcher, leading

    def after(self, tokens: Sequence[int]) -> _Reader:
        """The reader after some more tokens."""
        copies = [None if one is None else one.deep_copy() for one in (self._matcher, self._leading)]
        for copy in copies:
            if copy is not None and tokens and not copy.consume_tokens(list(tokens)):
                raise self.compiled.error_of(copy)
        return _Reader(self.compiled, *copies)

    def forced(self) -> list[int]:
        """The tokens that must come here, one after the other."""
        if self.compiled.watcher is not None:
            self.compiled.watcher.check(self._leading)
        tokens: list[int] = self._matcher.compute_ff_tokens()
        if self._matcher.is_error():
            raise self.compiled.error_of(self._matcher)
        return tokens

    def mask(self) -> bytes | None:
        """The words of the tokens that may come here; None: the text is complete."""
        words = self.compiled.made.words_of(self._matcher.compute_bitmask())
        if self._matcher.is_error():
            raise self.compiled.error_of(self._matcher)
        return words if any(words) else None


class _Compiled:
    """What all texts of a constraint share: the matcher where a text begins, which stays there.

    `watcher` is that of a grammar which may force bytes without end. A constraint that no text satisfies is
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
        """The mask of one token."""
        words = bytearray(self.made.n_bytes_of_mask)
        words[token >> 3] = 1 << (token & 7)
        return bytes(words)

    def error_of(self, matcher: Any, pointer: str = "") -> ConstraintError:
        """What the library says of a fault, in a line; `pointer` is a JSON pointer in a schema."""
        reason = _fault_of_pattern(self.name, matcher)
        reason = reason or " ".join(matcher.get_error().replace("<non-verbose/>", "").split())
        if "NoExtension" in reason:
            reason = "no text satisfies it that goes on from here in the target's tokens"
            if self._has_patterns:
                reason += (
                    ", or llguidance began a key of patternProperties where all keys that match have come; "
                    "expected patterns that no key of properties matches"
                )
        if "Unknown format" in reason:
            reason += (
                "; expected one that llguidance reads (date-time, date, time, duration, email, hostname, "
                'ipv4, ipv6, uuid, uri), a pattern, or "x-guidance": {"lenient": true} in the schema, with '
                "which unknown formats are ignored"
            )
        where = f"{self.name}, at {pointer}" if pointer else self.name
        return ConstraintError.about(self.name, f"{where}: {reason or 'a token may not come here'}")


_PATTERN_ERROR: Final = re.compile(
    r"(?P<line>at \d+\(\d+\): )?.*regex parse error:\n"
    r" {4}(?P<pattern>.*)\n {4}(?P<before> *)\^+\nerror: (?P<why>.*)"
)


def _fault_of_pattern(name: ConstraintType, matcher: Any) -> str | None:
    """What is wrong with a regular expression, and where; the library shows its own grammar of it."""
    found = _PATTERN_ERROR.search(matcher.get_error())
    if found is None:
        return None
    line = (found["line"] or "") if name == "grammar" else ""
    pattern, at = found["pattern"], len(found["before"])
    return f"{line}{found['why']}, at character {at + 1} of the regular expression {shown(pattern)}"


# ---------------------------------------------------------------------------------------------- compiling

_COMPILE_S: Final = 20.0  # seconds in which a constraint is compiled
_MOST_LEFT: Final = 2  # constraints that took longer and are still being compiled
# Bytes of stack: the library goes into rules by recursion, as deep as the largest constraint has room for.
_STACK: Final = 256 << 20

_threads_lock: Final = threading.Lock()
_left: Final[list[threading.Thread]] = []


def in_time(name: str, compile_it: Callable[[], T]) -> T:
    """What a function returns, in a thread with a deep stack, if that takes no longer than it may.

    A thread that takes longer cannot be ended: when there are several such, other constraints are refused.
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
            found = f"while {len(_left)} that took longer than {_COMPILE_S:g} s are still being compiled"
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
