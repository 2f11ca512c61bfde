"""The matcher of ``llguidance`` at a place of a text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from specdec.decoding.forms.compiled_form import CompiledForm

__all__ = ["GuidanceReader"]


class GuidanceReader:
    """The library's matcher at a place of a text; of a grammar also that of its `Watcher`.

    Both stay at their place: a later place has copies. The library's own way back, ``rollback``, leaves
    masks behind that are those of other places, and is refused by grammars with ``stop=`` or ``max_tokens=``.
    """

    __slots__ = ("_matcher", "_watched", "form")

    def __init__(self, form: CompiledForm, matcher: Any, watched: Any | None) -> None:
        self.form = form
        self._matcher, self._watched = matcher, watched

    @classmethod
    def of(cls, form: CompiledForm) -> GuidanceReader:
        """The reader at the place where a text begins."""
        return cls(form, form.matcher, None if form.watcher is None else form.watcher.matcher)

    def behind(self, tokens: Sequence[int]) -> GuidanceReader:
        """The reader at the place behind some tokens."""
        copies = [None if one is None else one.deep_copy() for one in (self._matcher, self._watched)]
        for copy in copies:
            if copy is not None and tokens and not copy.consume_tokens(list(tokens)):
                raise self.form.error_of(copy)
        return GuidanceReader(self.form, *copies)

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
