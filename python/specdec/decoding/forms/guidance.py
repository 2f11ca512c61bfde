"""Forms read by ``llguidance``: JSON schemas, regular expressions and grammars, on a model's tokens."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Final

from specdec.decoding.forms.compiled_form import CompiledForm
from specdec.decoding.forms.compiling_thread import in_time
from specdec.decoding.forms.endless_forms import Watcher, unforced
from specdec.decoding.forms.form_text import FormKind, grammar_of, json_text
from specdec.decoding.forms.form_vocabulary import checked, library_tokenizer
from specdec.decoding.forms.guidance_reader import GuidanceReader
from specdec.decoding.forms.guidance_state import GuidanceState
from specdec.decoding.forms.mask_time import MaskMeter
from specdec.decoding.forms.schema_fault import place_of_fault
from specdec.decoding.forms.schema_limits import LIBRARY_LIMITS
from specdec.errors import FormError, InputError, MissingFormError
from specdec.models.tokenizer import Tokenizer

__all__ = ["Guidance"]

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

    def __init__(self, form: CompiledForm) -> None:
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
        tokenizer = checked(tokenizer, kind)
        made, first, own_ends = library_tokenizer(library, tokenizer, n_vocab, tuple(end_ids), kind)
        try:
            grammar = grammar_of(library, kind, form)
        except InputError:  # a FormError is one
            raise
        except Exception as error:  # what the library raises has no common type
            raise FormError(f"{kind} cannot be read: {error}") from None
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
                return cls(CompiledForm(kind, matcher, watcher, **common))
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
        compiled = CompiledForm(kind, matcher, watcher, **common)
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
        return GuidanceState(GuidanceReader.of(self._form), meter)

    def _spend(self, seconds: float) -> None:
        self.mask_s += seconds
