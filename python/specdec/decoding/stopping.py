"""Stop strings and stop ids."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral

from specdec.checks import as_integer, check_items
from specdec.containers import plain
from specdec.display.rounds import FinishReason
from specdec.errors import InputError
from specdec.models.tokenizer import MarkSpelling, StreamDecoder, Tokenizer, overlap, special_tokens_of


@dataclass(frozen=True)
class StopRules:
    """Stop strings and stop ids of a text.

    The text ends before the first of the `strings` to be completed, or the first of the token `ids`; `names`
    are those ids that were given as strings. Special tokens have no text, so a stop string that contains the
    name of one is searched twice: as text, and with each name replaced by the token, in the `spelling` of
    special tokens. A string that is exactly one name is also a stop id. `included`: the text ends after them.
    """

    strings: tuple[str, ...] = ()
    ids: frozenset[int] = frozenset()
    names: Mapping[int, str] = field(default_factory=dict)
    spelling: MarkSpelling = field(default_factory=MarkSpelling, compare=False)
    included: bool = False

    @classmethod
    def parse(
        cls, stop: str | int | Iterable[str | int] | None, *, n_vocab: int, tokenizer: Tokenizer | None,
        eos_ids: Iterable[int] = (), included: bool = False,
    ) -> StopRules:  # fmt: skip
        """Validate the `stop` argument of a call, and add `eos_ids`, the end-of-text ids."""
        stop = plain(stop)
        if isinstance(stop, str | Integral):
            stop = [stop]
        expected = "a string, a token id, or a list of these"
        if isinstance(stop, bytes | bytearray):
            raise InputError.of("stop", stop, expected)
        entries: list[str | int] = [] if stop is None else check_items("stop", stop, expected)
        strings: list[str] = []
        ids = set(eos_ids)
        for entry in entries:
            if isinstance(entry, str):
                if not entry:
                    found = "an empty string"
                    raise InputError.of("stop", entry, "strings of at least one character", found, "holds")
                if tokenizer is None:
                    expected = "token ids, as the target has no tokenizer"
                    raise InputError.of("stop", entry, expected, verb="holds")
                strings.append(entry)
            elif (token := as_integer(entry)) is None:
                raise InputError.of("stop", entry, "strings and token ids", verb="holds")
            elif not 0 <= token < n_vocab:
                raise InputError.of("stop", entry, f"ids from 0 to {n_vocab - 1}", verb="holds the id")
            else:
                ids.add(token)
        if tokenizer is None or not strings:
            return cls((), frozenset(ids), included=included)
        special = special_tokens_of(tokenizer)
        in_strings = (name for name in special if any(name in string for string in strings))
        named = {name: special[name] for name in in_strings if special[name] < n_vocab}
        given = {token for token in map(as_integer, entries) if token is not None}
        names = {named[one]: one for one in strings if one in named and named[one] not in given}
        spelling = MarkSpelling.of(special, named) if named else MarkSpelling()
        return cls(tuple(dict.fromkeys(strings)), frozenset(ids | names.keys()), names, spelling, included)


class StopScanner:
    """Finds stop strings in a text that arrives in pieces.

    The first string to be *completed* wins; among several completed by the same character, the longest. So
    the outcome does not depend on the boundaries of the pieces: text in rounds of accepted drafts ends where
    plain decoding ends it. `spelling` writes each special token as one character, which is not part of the
    text. Strings that contain names of special tokens are also searched in this spelling. If `included`, the
    text ends with the string.
    """

    def __init__(
        self, strings: Iterable[str], spelling: MarkSpelling | None = None, *, included: bool = False
    ) -> None:
        self.match: str | None = None
        self._included = included
        self.strings = tuple(strings)
        self._spelling = spelling or MarkSpelling()
        spelled = {self._spelling.spell(string): string for string in self.strings}
        self._with_marks = {one: string for one, string in spelled.items() if one != string}
        self._reach = max(map(len, self.strings), default=0)
        self._tail = self._marked_tail = ""  # the last characters of the text, without and with marks
        self._n_held = 0  # trailing characters that may begin a stop string
        self._taken: list[str] = []
        self._waiting: list[str] = []

    def feed(self, piece: str) -> str | None:
        """Append `piece`; return the stop string it completes, if any, where the text ends."""
        if self.match is not None:
            raise ValueError("the text has already ended")
        if not self.strings:
            self._waiting.append(piece)
            return None
        text = self._spelling.without_marks(piece) if self._with_marks else piece
        self._waiting.append(text)
        n = 0  # characters of the text in the piece so far
        for character in piece:
            found = []  # (start relative to the piece, string) of each match that ends here
            if not self._with_marks or not self._spelling.is_mark(character):
                n += 1
                self._tail = (self._tail + character)[-self._reach :]
                found = [(n - len(one), one) for one in self.strings if self._tail.endswith(one)]
            self._marked_tail = (self._marked_tail + character)[-self._reach :]
            for spelled, string in self._with_marks.items():
                if self._marked_tail.endswith(spelled):
                    found.append((n - len(self._spelling.without_marks(spelled)), string))
            if found:
                begin, self.match = min(found)
                waiting = "".join(self._waiting)
                self._waiting, self._n_held = [waiting[: len(waiting) - len(text) + begin]], 0
                if self._included:
                    self._waiting.append(self.match)
                return self.match
        held = [(self._tail, string) for string in self.strings]
        held += [(self._marked_tail, spelled) for spelled in self._with_marks]
        ends = (tail[len(tail) - overlap(tail, string) :] for tail, string in held)
        self._n_held = max((len(self._spelling.without_marks(end)) for end in ends), default=0)
        return None

    def end_with(self, text: str) -> None:
        """Append the last text, in which no stop string is searched."""
        self._waiting.append(text)

    @property
    def text(self) -> str:
        """Text so far, without a stop string that is not included."""
        return "".join(self._taken + self._waiting)

    def take(self, *, final: bool = False) -> str:
        """Return new text that cannot become part of a stop string; all of it if `final`."""
        waiting = "".join(self._waiting)
        n_held = 0 if final else self._n_held
        piece, rest = waiting[: len(waiting) - n_held], waiting[len(waiting) - n_held :]
        self._taken.append(piece)
        self._waiting = [rest]
        return piece


class NewText:
    """New text of a sequence; decides where it ends token by token, independent of rounds.

    It ends by `stop`, or after `limit` tokens with `limit_reason`; without a `decoder` it has no text.
    `finish_reason` is None until it ends; `stop` is the stop string or stop id that was met.
    """

    def __init__(
        self, decoder: StreamDecoder | None, stop: StopRules, limit: int, limit_reason: FinishReason
    ) -> None:
        self.tokens: list[int] = []
        self.finish_reason: FinishReason | None = None
        self.stop: str | int | None = None
        self._decoder, self._rules, self._limit, self._limit_reason = decoder, stop, limit, limit_reason
        self._scanner = StopScanner(stop.strings, stop.spelling, included=stop.included)
        self._ended_by_id = False
        self._n_read = 0  # decoded tokens
        self._whole = False  # whether the decoder has been flushed

    def extend(self, tokens: Sequence[int], *, complete: bool = False) -> int:
        """Add tokens up to where the text ends (`complete`: its constraint is satisfied); return how many."""
        if self.finish_reason is not None:
            raise ValueError("the text has already ended")
        inside = len(self.tokens) + len(tokens) < self._limit and not complete
        if inside and not self._rules.strings and self._rules.ids.isdisjoint(tokens):  # the usual case
            self.tokens += tokens
            return len(tokens)
        n_before = len(self.tokens)
        for token in tokens:
            self.tokens.append(token)
            if token in self._rules.ids:
                self.finish_reason, self.stop = "stop", self._rules.names.get(token, token)
                self._ended_by_id = True
            elif self._scanner.strings:
                self._read()
            if self.finish_reason is None and len(self.tokens) >= self._limit:
                self.finish_reason = self._limit_reason
            if self.finish_reason is not None:
                break
        if complete and self.finish_reason is None:
            self.finish_reason = "stop"
        if self.finish_reason is not None and self._scanner.strings:
            self._read()
        return len(self.tokens) - n_before

    def _read(self) -> None:
        """Decode new tokens and search for stop strings; without stop strings, only when the text is read."""
        if self._decoder is None or self._whole or self._scanner.match is not None:
            return
        end = len(self.tokens) - self._ended_by_id  # no stop string is searched in the text of a stop id
        piece = self._decoded(self.tokens[self._n_read : end]) if end > self._n_read else ""
        self._n_read, last = end, ""
        if self.finish_reason is not None:
            if self._ended_by_id and self._rules.included:
                name = self.stop if isinstance(self.stop, str) else ""
                last = self._decoder.feed(self.tokens[-1:]) or name
            # The rest of an incomplete character is text too: it may complete a stop string.
            piece += self._decoder.finish()
            self._whole = True
        if self._ended_by_id:
            piece += self._rules.spelling.mark(self.tokens[-1])  # it may complete a longer stop string
        if self._scanner.feed(piece) is not None:
            self.finish_reason, self.stop = "stop", self._scanner.match
        else:
            self._scanner.end_with(last)

    def _decoded(self, tokens: list[int]) -> str:
        """Return the text that tokens complete, with marks for special tokens if stop strings name some."""
        assert self._decoder is not None
        if not self._rules.spelling:
            return self._decoder.feed(tokens)
        return "".join(self._rules.spelling.mark(token) + self._decoder.feed([token]) for token in tokens)

    def take_text(self, *, final: bool = False) -> str:
        """Return new text that is settled; `final`: no more text follows."""
        self._read()
        return self._scanner.take(final=final or self.finish_reason is not None)

    @property
    def text(self) -> str | None:
        """Text so far; None without a tokenizer."""
        if self._decoder is None:
            return None
        self._read()
        return self._scanner.text
