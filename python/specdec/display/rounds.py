"""Figure 1 of the paper for terminals and notebooks: each round's draft and what was accepted.

One line per round: accepted draft tokens (green), rejected ones (red, struck out), then the target's own
token (blue, underlined). Statuses never differ by color alone, and all tints are distinct under color
blindness. Plain decoding is one paragraph.
"""

from __future__ import annotations

import html as html_escapes
import os
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Literal, TextIO, TypeAlias

from specdec.models.tokenizer import ByteTokenizer, StreamDecoder, Tokenizer
from specdec.trace import Round, Trace

FinishReason: TypeAlias = Literal["stop", "length", "context", "error", "cancelled"]
"""Reason why a text ended; see `specdec.Result`."""

_ANSI = {
    "accepted": "\x1b[32m", "rejected": "\x1b[31;9m", "unseen": "\x1b[2;31;9m", "target": "\x1b[94;4m",
    "plain": "\x1b[94m", "cut": "\x1b[2m", "prompt": "\x1b[2m",
}  # fmt: skip
"""By status; "plain" is the text of plain decoding."""
_ANSI_END = "\x1b[0m"
_MARKS = {"rejected": ("~~", "~~"), "unseen": ("~~", "~~"), "target": ("[", "]"), "cut": ("{", "}")}
_MEANINGS = {
    "accepted": "accepted draft",
    "rejected": "rejected draft",
    "unseen": "draft after a rejected one",
    "target": "the target's own token",
    "cut": "cut off by the stop",
}
_LEGEND = ("accepted", "rejected", "target")
_SIGNS = {"\n": "⏎", "\r": "␍", "\t": "⇥", "\u2028": "⏎", "\u2029": "⏎"}
_N_CONTEXT = 8  # tokens that surely cover an incomplete character
_N_PROMPT = 300  # characters of the prompt to show
_COLUMNS = 11  # width of a round's number and counts before its text

_STYLE = """
.specdec-figure { font-family: monospace; line-height: 1.6; overflow-x: auto; }
.specdec-figure table { border-collapse: collapse; border: 0; }
.specdec-figure td { border: 0; padding: 0 0.8em 0 0; text-align: left; vertical-align: top;
  background: transparent; }
.specdec-figure .specdec-text { white-space: pre-wrap; overflow-wrap: anywhere; }
.specdec-figure td.specdec-count, .specdec-figure .specdec-note { opacity: 0.6; white-space: nowrap; }
.specdec-figure .specdec-prompt { opacity: 0.6; }
.specdec-figure span[class] { border-radius: 3px; }
.specdec-figure .specdec-accepted { background: rgba(0, 170, 90, 0.4); }
.specdec-figure .specdec-target { background: rgba(40, 90, 255, 0.5); text-decoration: underline; }
.specdec-figure .specdec-plain { background: rgba(40, 90, 255, 0.5); }
.specdec-figure .specdec-rejected { background: rgba(240, 90, 20, 0.55); text-decoration: line-through; }
.specdec-figure .specdec-unseen { background: rgba(240, 90, 20, 0.2); text-decoration: line-through; }
.specdec-figure .specdec-cut { opacity: 0.5; text-decoration: line-through; }
"""


@dataclass(frozen=True, eq=False, repr=False)
class DecodedText:
    """Content of the figure: the first fields of `specdec.Result`."""

    text: str | None
    tokens: list[int]
    finish_reason: FinishReason
    stop: str | int | None
    trace: Trace
    prompt_ids: list[int]
    seed: tuple[int, int]
    tokenizer: Tokenizer | None = None
    source_ids: list[int] | None = None
    source_text: str | None = None
    figure_texts: FigureTexts | None = None


@dataclass(frozen=True, slots=True)
class FigurePiece:
    """A token in the figure: its text with control characters made visible, and its id.

    `status` is "accepted", "rejected", "unseen" (after a rejected one), "target" (the target's own token) or
    "cut" (after the end of the text). `origin` is as in `Round.origin`, "draft" for all draft tokens. `beta`
    is that of the position, if judged.
    """

    text: str
    status: str
    token: int
    origin: str
    beta: float | None = None


@dataclass(frozen=True)
class FigureTexts:
    """Texts of the figure without a tokenizer: end of the prompt, and the pieces of each round."""

    prompt: str
    rounds: tuple[tuple[str, ...], ...]

    @classmethod
    def of(cls, result: DecodedText) -> FigureTexts:
        """Return the texts of a result."""
        figure = Figure.of(result)
        rounds = tuple(tuple(piece.text for piece in figure.pieces(round_)) for round_ in result.trace.rounds)
        return cls(figure.prompt, rounds)


class Figure:
    """Turns successive rounds into pieces; without a tokenizer it shows `texts`, or ids.

    `prompt_ids` precede the first round; `source` is the encoder's input, if any. With a `decoder` of the new
    text its control characters stay, so the pieces join to that text.
    """

    def __init__(
        self, tokenizer: Tokenizer | None, prompt_ids: Sequence[int], source: str | None = None,
        texts: FigureTexts | None = None, decoder: StreamDecoder | None = None,
    ) -> None:  # fmt: skip
        self._tokenizer, self._prompt_ids, self._source = tokenizer, list(prompt_ids), source
        self._texts = texts if tokenizer is None else None
        self._n_rounds = 0
        self._context = self._prompt_ids[-_N_CONTEXT:]
        self._is_exact = decoder is not None
        self._decoder = decoder or self._branch()

    @classmethod
    def of(cls, result: DecodedText) -> Figure:
        """Make the figure of a result."""
        return cls(result.tokenizer, result.prompt_ids, source_of(result), result.figure_texts)

    @property
    def prompt(self) -> str:
        """End of the prompt as text, or ids without a tokenizer, after the end of the source."""
        if self._texts is not None:
            return visible(self._texts.prompt)  # may come from an untrusted file
        ids = self._prompt_ids
        text = _ids(ids) if self._tokenizer is None else self._tokenizer.decode(ids)
        return _end(text) if self._source is None else f"{_end(self._source)} → {_end(text)}"

    def pieces(self, round_: Round) -> list[FigurePiece]:
        """Return the next round's pieces: accepted draft tokens, the others, the target's own token."""
        pieces = []
        rows = round_.rows
        verified = (0, *(rows[node] for node in round_.path))
        judged = dict(zip(verified, round_.betas, strict=False))  # by the row of their parents
        for position, node in enumerate(round_.path):
            status = "accepted" if position < round_.kept else "cut"
            beta = judged.get(rows[round_.parents[node - 1]])
            pieces.append(self._piece(self._decoder, round_.drafted[node - 1], status, "draft", beta))
            self._remember(round_.drafted[node - 1])
        pieces += self._not_accepted(round_, judged)
        status = "target" if round_.kept == len(round_.tokens) else "cut"
        pieces.append(self._piece(self._decoder, round_.token, status, round_.origin[-1], None))
        self._remember(round_.token)
        if self._texts is not None:
            texts = self._texts.rounds[self._n_rounds]
            pieces = [replace(piece, text=visible(text)) for piece, text in zip(pieces, texts, strict=True)]
        self._n_rounds += 1
        return pieces

    def _not_accepted(self, round_: Round, judged: dict[int, float]) -> list[FigurePiece]:
        """Decode the draft tokens off the accepted path, each after its own ancestors."""
        accepted, rows = {0, *round_.path}, round_.rows
        verified = {rows[node] for node in accepted}
        decoders = {round_.path[-1] if round_.path else 0: self._branch()}
        pieces: list[FigurePiece] = []
        decoder = None
        for node, (token, parent) in enumerate(zip(round_.drafted, round_.parents, strict=True), start=1):
            if node in accepted:
                continue
            decoder = decoders.pop(parent, None) or self._branch()  # for a first child
            decoders[node] = decoder
            status = "rejected" if rows[parent] in verified else "unseen"
            pieces.append(self._piece(decoder, token, status, "draft", judged.get(rows[parent])))
        if decoder is not None and (rest := visible(decoder.finish())):
            pieces[-1] = replace(pieces[-1], text=pieces[-1].text + rest)
        return pieces

    def _piece(
        self, decoder: StreamDecoder | None, token: int, status: str, origin: str, beta: float | None
    ) -> FigurePiece:
        if decoder is None:
            return FigurePiece(f" {token}", status, token, origin, beta)
        text = decoder.feed([token])
        if self._is_exact:
            return FigurePiece(text, status, token, origin, beta)
        text = visible(text) or self._name(token)
        if text.isspace():
            text = text.replace(" ", "␣")
        return FigurePiece(text, status, token, origin, beta)

    def _name(self, token: int) -> str:
        """Return a placeholder for a token without text: its name, or "" inside a character."""
        if isinstance(self._tokenizer, ByteTokenizer):
            if self._tokenizer.text_bytes(token):
                return ""
            names = self._tokenizer.vocabulary()
            name = names[token] if token < len(names) else None
            return f"<{token}>" if name is None else visible(name.decode("utf-8", "replace"))
        return "" if self._tokenizer is not None and self._tokenizer.decode([token]) else f"<{token}>"

    def _branch(self) -> StreamDecoder | None:
        """Return a decoder that continues the tokens so far, including an incomplete last character."""
        if self._tokenizer is None:
            return None
        decoder = StreamDecoder(self._tokenizer, continuing=True)
        decoder.feed(self._context)
        return decoder

    def _remember(self, token: int) -> None:
        self._context = [*self._context, token][-_N_CONTEXT:]


def source_of(result: DecodedText) -> str | None:
    """Return the source of a result as text, or as ids without a tokenizer; None without a source."""
    return result.source_text if result.source_ids is None or result.source_text else _ids(result.source_ids)


def _ids(ids: Sequence[int]) -> str:
    return " ".join(map(str, ids))


def _end(text: str) -> str:
    return visible(text if len(text) <= _N_PROMPT else "…" + text[-_N_PROMPT:])


def visible(text: str, *, keep_lines: bool = False) -> str:
    """Replace control characters by signs, line breaks too unless `keep_lines`."""
    if text.isprintable():
        return text
    shown = []
    for c in text:
        is_control = unicodedata.category(c) in ("Cc", "Zl", "Zp") and not (keep_lines and c == "\n")
        shown.append(_SIGNS.get(c, f"\\x{ord(c):02x}") if is_control else c)
    return "".join(shown)


def use_color(stream: TextIO | None = None) -> bool:
    """Whether to color output to `stream` (standard output): a capable terminal without NO_COLOR."""
    stream = sys.stdout if stream is None else stream
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    try:
        return stream.isatty()
    except (AttributeError, ValueError):  # not a file, or closed
        return False


def paint(text: str, status: str, color: bool) -> str:
    """Color or mark some text of one status."""
    if not text:
        return ""
    if color:
        return f"{_ANSI[status]}{text}{_ANSI_END}"
    before, after = _MARKS.get(status, ("", ""))
    return f"{before}{text}{after}"


def line(round_: Round, pieces: Iterable[FigurePiece], *, color: bool) -> str:
    """Format a round as a line: its number from 1, accepted/drafted, its text."""
    return f"{round_.index + 1:>4} {_accepted(round_):>{_COLUMNS - 6}} {_paint_all(pieces, color)}"


def _accepted(round_: Round) -> str:
    """Format accepted draft tokens in the result over all draft tokens."""
    return f"{min(round_.n_accepted, round_.kept)}/{round_.n_drafted}"


def _paint_all(pieces: Iterable[FigurePiece], color: bool) -> str:
    # Both statuses of tokens off the path have their own color, but one mark.
    def type_of(piece: FigurePiece) -> str:
        return "rejected" if piece.status == "unseen" and not color else piece.status

    runs = groupby(pieces, key=type_of)
    return "".join(paint("".join(piece.text for piece in run), status, color) for status, run in runs)


def legend(*, color: bool) -> str:
    """Explain the colors or marks."""
    return " · ".join(paint(_MEANINGS[status], status, color) for status in _LEGEND)


def terminal(result: DecodedText, *, color: bool | None = None) -> str:
    """Format Figure 1 as text, with ANSI colors or marks; by default as `use_color` decides."""
    color = use_color() if color is None else color
    figure = Figure.of(result)
    prompt = paint(figure.prompt, "prompt", color)
    if not result.trace.n_drafted:
        text = _paragraph(result)
        return f"{prompt}{paint(text, 'plain', color)}\n{closing(result)}"
    lines = [line(round_, figure.pieces(round_), color=color) for round_ in result.trace.rounds]
    return "\n".join([legend(color=color), " " * _COLUMNS + prompt, *lines, closing(result)])


def _paragraph(result: DecodedText) -> str:
    """Format the output of plain decoding as one paragraph."""
    if result.text is None:
        return "".join(f" {token}" for token in result.tokens)
    return visible(result.text, keep_lines=True)


def closing(result: DecodedText) -> str:
    """Format the last line: tokens, target passes, accepted draft tokens, and why the text ended."""
    trace = result.trace
    drafts = f", {trace.n_accepted} of {trace.n_drafted} draft tokens accepted" if trace.n_drafted else ""
    reason = {
        "stop": f"stop {result.stop!r}",
        "length": "max_new_tokens reached",
        "context": "context full",
        "error": "a number that is not finite",
    }[result.finish_reason]
    return f"{trace.n_tokens} tokens in {trace.n_calls} target forward passes{drafts}; ended by: {reason}"


def html(result: DecodedText) -> str:
    """Format Figure 1 as HTML, for light and dark pages, with a tooltip on each token."""
    escape = html_escapes.escape
    figure = Figure.of(result)
    prompt = f'<span class="specdec-prompt">{escape(figure.prompt)}</span>'
    if result.trace.n_drafted:
        key = " ".join(f'<span class="specdec-{one}">{escape(_MEANINGS[one])}</span>' for one in _LEGEND)
        rows = [f'<tr><td></td><td></td><td class="specdec-text">{prompt}</td></tr>']
        for round_ in result.trace.rounds:
            spans = "".join(_span(piece) for piece in figure.pieces(round_) if piece.text)
            rows.append(
                f'<tr><td class="specdec-count">{round_.index + 1}</td>'
                f'<td class="specdec-count">{_accepted(round_)}</td>'
                f'<td class="specdec-text">{spans}</td></tr>'
            )
        body = f"<div>{key}</div><table>{''.join(rows)}</table>"
    else:
        text = f'<span class="specdec-plain">{escape(_paragraph(result))}</span>'
        body = f'<div class="specdec-text">{prompt}{text}</div>'
    note = f'<div class="specdec-note">{escape(closing(result))}</div>'
    return f'<div class="specdec-figure"><style>{_STYLE}</style>{body}{note}</div>'


def _span(piece: FigurePiece) -> str:
    what = _MEANINGS[piece.status]
    if piece.status == "target" and piece.origin in ("correction", "bonus"):
        what = {"correction": "correction", "bonus": "bonus token"}[piece.origin]
    beta = "" if piece.beta is None else f", β = {piece.beta:.3f}"
    title = html_escapes.escape(f"id {piece.token}: {what}{beta}")
    return f'<span class="specdec-{piece.status}" title="{title}">{html_escapes.escape(piece.text)}</span>'
