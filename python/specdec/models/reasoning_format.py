"""Reasoning formats: where the reasoning of a reply ends and its answer begins, token by token."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

from specdec.models.tokenizer import ByteTokenizer, MarkSpelling, Tokenizer, overlap
from specdec.models.tokenizer.byte_tokenizer import encode_continuing

_TAGS: Final = (
    ("</think>", "<think>", "</think>"), ("[/THINK]", "[THINK]", "[/THINK]"),
    ("<seed:think>", "<seed:think>", "</seed:think>"), ("<mm:think>", "<mm:think>", "</mm:think>"),
    ("<|END_THINKING|>", "<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|channel>thought", "<|channel>thought\n", "<channel|>"),
    ("</think{}>", "<think:opensource>", "</think:opensource>"),
)  # fmt: skip
"""(text that identifies a template, begin tag, end tag); a template has the first format that fits."""
_SPACE: Final = " \t\r\n"
_TAIL: Final = 32  # last tokens of a prompt that may hold a tag and white space after it

Phase: TypeAlias = Literal["undecided", "outside", "inside", "ended"]

HARMONY_MARKS: Final = (
    "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|return|>", "<|call|>",
)  # fmt: skip
"""Marks of gpt-oss: before a message's role, channel, content type and content, and three at its end."""
HARMONY_ENDS: Final = ("<|end|>", "<|return|>", "<|call|>")
_CHANNEL: Final = re.compile(r"<\|channel\|>\s*(\w+)")
_RECIPIENT: Final = re.compile(r"\bto=([^\s<]+)")


def harmony_address(header: str) -> tuple[str, str]:
    """Return (channel, recipient) of a harmony message's header, "" for what it lacks."""
    channel, recipient = _CHANNEL.search(header), _RECIPIENT.search(header)
    return "" if channel is None else channel[1], "" if recipient is None else recipient[1]


def _may_be_recipient(text: str) -> bool:
    return text.startswith("to=") or "to=".startswith(text)


class ReasoningFormat(ABC):
    """Reasoning format of a model's replies."""

    marks: Sequence[str]
    """Names of the special tokens that separate reasoning and answer."""

    def __init__(self, tokenizer: ByteTokenizer) -> None:
        self.tokenizer = tokenizer

    @abstractmethod
    def position(self, prompt_ids: Sequence[int], continued: str | None = None) -> ReasoningPosition:
        """Return the position after a prompt; `continued`: the reply's text so far, if the prompt has any."""

    def encode(self, text: str) -> tuple[int, ...]:
        """Return the token ids of a text that continues another."""
        return tuple(encode_continuing(self.tokenizer, text))


@dataclass(frozen=True, kw_only=True)
class ReasoningPosition(ABC):
    """Position in a reply; immutable."""

    n_tokens: int = 0
    """Tokens of reasoning so far, without its marks."""
    phase: Phase = "outside"
    """Whether the reply may begin with reasoning or the answer, is between parts, in its reasoning, or in its
    answer."""
    is_plain: bool = False
    """Whether all of the reply is the answer."""

    @abstractmethod
    def after(self, token: int) -> ReasoningPosition:
        """Return the position after another token."""

    @abstractmethod
    def closing(self, is_constrained: bool) -> tuple[frozenset[int], ...]:
        """Return the tokens of which one must come next, then next, to end the reasoning here."""

    @abstractmethod
    def allowed(self, n_vocab: int, limit: int | None) -> int:
        """Return the bit set of tokens that lead to an answer under a constraint; `limit`: of reasoning."""


def reasoning_format(tokenizer: Tokenizer | None, template: str) -> ReasoningFormat | None:
    """Return the reasoning format of a chat template, if it has one and tokens are byte strings."""
    if not isinstance(tokenizer, ByteTokenizer):
        return None
    needed = {"<|start|>", "<|channel|>", "<|message|>", "<|end|>"}
    if "<|channel|>" in template and needed <= tokenizer.special_tokens().keys():
        return HarmonyFormat(tokenizer)
    found = next((tags for sign, *tags in _TAGS if sign in template), None)
    return None if found is None else TagFormat(tokenizer, *found)


# ---------------------------------------------------------------------------------------------------- tags


class TagFormat(ReasoningFormat):
    """Reasoning between two tags at the start of a reply, or after a begin tag at the prompt's end.

    A special token in a tag is that token only; otherwise the tag's text counts, in any tokens.
    """

    def __init__(self, tokenizer: ByteTokenizer, begin: str, end: str) -> None:
        super().__init__(tokenizer)
        special = tokenizer.special_tokens()
        self.tags = (begin, end)
        self.marks = [name for name in special if name in begin or name in end]
        self.spelling = MarkSpelling.of(special, self.marks, others=False)
        self.begin, self.end = (_latin(self.spelling.spell(tag)) for tag in self.tags)
        self._ids = {self.spelling.spell(name): special[name] for name in self.marks}
        self._sets: dict[tuple[str, int], int] = {}

    def spelled(self, token: int) -> str:
        """Return the bytes of a token as Latin-1 text, with a mark for a special tag."""
        return _latin(self.spelling.mark(token)) + self.tokenizer.text_bytes(token).decode("latin-1")

    def position(self, prompt_ids: Sequence[int], continued: str | None = None) -> TagPosition:
        """Return the position after a prompt."""
        begin, end = self.tags
        if continued is not None and continued.strip():
            is_inside = continued.lstrip().startswith(begin) and end not in continued
            return TagPosition(self, phase="inside" if is_inside else "ended", is_plain=not is_inside)
        tail = "".join(map(self.spelled, prompt_ids[-_TAIL:])).rstrip(_SPACE)
        if tail.endswith(self.end):
            return TagPosition(self, phase="ended", is_plain=True)
        return TagPosition(self, phase="inside" if tail.endswith(self.begin.rstrip()) else "undecided")

    def end_ids(self, n_matched: int) -> tuple[int, ...]:
        """Return the tokens that complete the end tag."""
        rest, ids, begin = _text(self.end[n_matched:]), list[int](), 0
        for at, character in enumerate(f"{rest}\0"):
            if at == len(rest) or character in self._ids:
                ids += self.encode(rest[begin:at]) if at > begin else ()
                ids += [self._ids[character]] if at < len(rest) else ()
                begin = at + 1
        return tuple(ids)

    def opening(self, n_matched: int) -> int:
        """Return the bit set of tokens that continue the begin tag."""
        rest = self.begin[n_matched:]
        return self._set("begin", n_matched, lambda text: text != "" and rest.startswith(text))

    def overshooting(self, n_matched: int) -> int:
        """Return the bit set of tokens that complete the end tag and have text of the answer."""

        def overshoots(text: str) -> bool:
            _, found, rest = (self.end[:n_matched] + text).partition(self.end)
            return found != "" and rest.strip(_SPACE) != ""

        return self._set("end", n_matched, overshoots)

    def _set(self, name: str, n_matched: int, belongs: Callable[[str], bool]) -> int:
        if (found := self._sets.get((name, n_matched))) is None:
            tokens = (i for i in range(self.tokenizer.n_vocab) if belongs(self.spelled(i)))
            found = self._sets[name, n_matched] = sum(1 << token for token in tokens)
        return found


def _latin(text: str) -> str:
    """Return the UTF-8 bytes of text, which may have marks, as Latin-1 text."""
    return text.encode("utf-8", "surrogatepass").decode("latin-1")


def _text(latin: str) -> str:
    """Invert `_latin`."""
    return latin.encode("latin-1").decode("utf-8", "surrogatepass")


@dataclass(frozen=True)
class TagPosition(ReasoningPosition):
    """Position in a reply of a `TagFormat`."""

    format: TagFormat
    n_matched: int = 0
    """Bytes of the next tag that the text ends with."""
    n_before: int = 0
    """Tokens of reasoning before those bytes."""

    def after(self, token: int) -> TagPosition:
        """Return the position after another token."""
        how, text, n_tokens = self.format, self.format.spelled(token), self.n_tokens
        if self.phase == "ended":
            return self
        if self.phase == "undecided":
            text = how.begin[: self.n_matched] + (text if self.n_matched else text.lstrip(_SPACE))
            if how.begin.startswith(text) and text != how.begin:
                return replace(self, n_matched=len(text))
            if not text.startswith(how.begin):
                return replace(self, phase="ended", is_plain=True)
            text, n_known = text[len(how.begin) :], 0
        else:
            n_tokens += bool(text)
            text, n_known = how.end[: self.n_matched] + text, self.n_matched
        n_matched = overlap(text, how.end)
        n_before = self.n_before
        if how.end in text:
            return replace(self, n_tokens=n_before if n_known else self.n_tokens, phase="ended")
        if n_matched <= len(text) - n_known:  # the match begins in this token
            n_before = self.n_tokens if n_matched == len(text) - n_known else n_tokens
        return replace(self, n_tokens=n_tokens, phase="inside", n_matched=n_matched, n_before=n_before)

    def closing(self, is_constrained: bool) -> tuple[frozenset[int], ...]:
        """Return the tokens that end the reasoning here."""
        return tuple(frozenset({token}) for token in self.format.end_ids(self.n_matched))

    def allowed(self, n_vocab: int, limit: int | None) -> int:
        """Return the tokens that lead to an answer under a constraint."""
        if self.phase == "undecided":
            return self.format.opening(self.n_matched)
        return (1 << n_vocab) - 1 & ~self.format.overshooting(self.n_matched)


# ------------------------------------------------------------------------------------------------- harmony


class HarmonyFormat(ReasoningFormat):
    """Channels of gpt-oss: messages on "analysis" are reasoning, "final" is the answer."""

    def __init__(self, tokenizer: ByteTokenizer) -> None:
        super().__init__(tokenizer)
        special = tokenizer.special_tokens()
        self.marks = HARMONY_MARKS
        self.ids = {name: special[name] for name in HARMONY_MARKS if name in special}
        self.names = {token: name for name, token in self.ids.items()}

    def position(self, prompt_ids: Sequence[int], continued: str | None = None) -> HarmonyPosition:
        """Return the position after a prompt."""
        ids, start = list(prompt_ids), self.ids["<|start|>"]
        if start not in ids:
            return HarmonyPosition(self, header="assistant")
        found = HarmonyPosition(self, header="")
        for token in ids[len(ids) - ids[::-1].index(start) :]:
            found = found.after(token)
        return replace(found, n_tokens=0, is_plain=found.phase == "ended")

    def next_ids(self, words: Sequence[str], begun: str) -> frozenset[int]:
        """Return the first tokens of what words lack."""
        rests = (word[len(begun) :] for word in words if word.startswith(begun) and word != begun)
        return frozenset(self.encode(rest)[0] for rest in rests)


@dataclass(frozen=True)
class HarmonyPosition(ReasoningPosition):
    """Position in a reply of a `HarmonyFormat`."""

    format: HarmonyFormat
    header: str | None = None
    """Header of the message so far, with marks; None in the content of a message and between messages."""

    def after(self, token: int) -> HarmonyPosition:
        """Return the position after another token."""
        name, header = self.format.names.get(token), self.header
        if self.phase == "ended":
            return self
        if name is None:
            text = self.format.tokenizer.text_bytes(token)
            if header is not None:
                header += text.decode("utf-8", "replace")
                rest = header.removeprefix("assistant").lstrip()
                if header.startswith("assistant") and "<|" not in rest and not _may_be_recipient(rest):
                    return replace(self, header=None, phase="ended", is_plain=True)  # no header
                return replace(self, header=header)
            return replace(self, n_tokens=self.n_tokens + (self.phase == "inside" and bool(text)))
        if name in HARMONY_ENDS:
            return replace(self, header=None, phase="outside")
        if name == "<|start|>":
            return replace(self, header="", phase="outside")
        if name == "<|message|>" and header is not None:
            channel, recipient = harmony_address(header)
            phases: dict[str, Phase] = {"analysis": "inside", "final": "ended"}
            phase: Phase = "outside" if recipient else phases.get(channel, "outside")
            return replace(self, header=None, phase=phase)
        if header is not None or name == "<|channel|>":
            return replace(self, header=(header or "") + name, phase="outside")
        return self

    def closing(self, is_constrained: bool) -> tuple[frozenset[int], ...]:
        """Return the tokens that end the reasoning here."""
        how = self.format
        words = ("final",) if is_constrained else ("final", "commentary")
        ids = (how.ids["<|end|>"], how.ids["<|start|>"], *how.encode("assistant"), how.ids["<|channel|>"])
        return (*(frozenset({token}) for token in ids), how.next_ids(words, ""))

    def allowed(self, n_vocab: int, limit: int | None) -> int:
        """Return the tokens that lead to an answer under a constraint."""
        how, header = self.format, self.header
        if self.phase == "inside":
            blocked = (token for name, token in how.ids.items() if name != "<|end|>")
            return (1 << n_vocab) - 1 & ~sum(1 << token for token in blocked)
        if header is None:
            return 1 << how.ids["<|start|>"]
        role, mark, channel = header.rpartition("<|channel|>")
        if not mark:
            found = how.next_ids(("assistant",), role or channel) or {how.ids["<|channel|>"]}
        else:
            words = ("final",) if limit is not None and self.n_tokens >= limit else ("final", "analysis")
            found = how.next_ids(words, channel) or {how.ids["<|message|>"]}
        return sum(1 << token for token in found)
