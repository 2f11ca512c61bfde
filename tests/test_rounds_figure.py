"""Figure 1 in terminals and notebooks, from hand-made rounds."""

from __future__ import annotations

import html
import io
import re
from collections.abc import Sequence
from typing import Any
from xml.etree import ElementTree

import pytest

import hand_made_rounds
from colors import contrast, least_distance, over
from hand_made_rounds import tree
from specdec import Result, Round
from toy_pair import ToyTokenizer

TOKENIZER = ToyTokenizer()
GREEN, RED, BLUE, END = "\x1b[32m", "\x1b[31;9m", "\x1b[94;4m", "\x1b[0m"


def ids(*pieces: bytes) -> tuple[int, ...]:
    return tuple(TOKENIZER.vocabulary().index(piece) for piece in pieces)


def chain(
    index: int, accepted: Sequence[int], rejected: Sequence[int], token: int, kept: int | None = None
) -> Round:
    drafted, n = (*accepted, *rejected), len(accepted)
    return hand_made_rounds.chain(index, drafted, n, [0.75] * len(drafted[: n + 1]), token=token, kept=kept)


def result(rounds: Sequence[Round], tokenizer: Any = TOKENIZER, *prompt: bytes, **changes: Any) -> Result:
    return hand_made_rounds.result_of(rounds, tokenizer, prompt_ids=list(ids(*prompt or (b"ab",))), **changes)


A, B, AB, SPACE_A = ids(b"a", b"b", b"ab", b" a")
ROUNDS = [chain(0, (A, B), (AB, SPACE_A), B), chain(1, (A, A, A, B), (), SPACE_A)]


def spans_of(page: str) -> list[tuple[str, str, str]]:
    """(class, text, title) of every span of a page, whose tags match."""
    spans = ElementTree.fromstring(page).iter("span")
    return [(span.get("class", ""), "".join(span.itertext()), span.get("title", "")) for span in spans]


# --------------------------------------------------------------------------------------------- terminals


def test_marks() -> None:
    counts = "8 tokens in 2 target forward passes, 6 of 8 draft tokens accepted"
    closing = f"{counts}; ended by: max_new_tokens reached"
    lines = result(ROUNDS).figure(False).splitlines()
    lines[1] = lines[1].strip()
    assert lines == [
        "accepted draft · ~~rejected draft~~ · [the target's own token]", "ab", "   1   2/4 ab~~ab a~~[b]",
        "   2   4/4 aaab[ a]", closing,
    ]  # fmt: skip


def test_colors() -> None:
    lines = result(ROUNDS).figure(True).splitlines()
    unseen = "\x1b[2;31;9m"
    assert lines[2] == f"   1   2/4 {GREEN}ab{END}{RED}ab{END}{unseen} a{END}{BLUE}b{END}"
    assert lines[3] == f"   2   4/4 {GREEN}aaab{END}{BLUE} a{END}"
    plain_text = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(lines))
    assert plain_text == re.sub(r"~~|\[|\]", "", result(ROUNDS).figure(False))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "environment", "wanted"),
    [
        (Terminal(), {}, True), (io.StringIO(), {}, False), (Terminal(), {"NO_COLOR": "1"}, False),
        (Terminal(), {"NO_COLOR": ""}, True),  # https://no-color.org: not when empty
        (Terminal(), {"TERM": "dumb"}, False), (None, {}, False),  # no output at all
    ],
)  # fmt: skip
def test_color_is_for_terminals_that_want_it(
    monkeypatch: pytest.MonkeyPatch, stream: Any, environment: dict[str, str], wanted: bool
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.stdout", stream)
    assert (GREEN in result(ROUNDS).figure()) is wanted


def test_plain_decoding_is_a_paragraph() -> None:
    rounds = [chain(i, (), (), token) for i, token in enumerate(ids(b"a", b"\n", b"b", b"\x1b[31m"))]
    out = result(rounds).figure(False)
    assert out == "aba\nb\\x1b[31m\n4 tokens in 4 target forward passes; ended by: max_new_tokens reached"


def test_what_a_stop_cut_off_is_shown_as_such() -> None:
    out = result([chain(0, (A, B, A), (), AB, kept=2)], finish_reason="stop", stop="b", text="a")
    assert out.figure(False).splitlines()[2] == "   1   2/3 ab{aab}"
    assert out.figure(False).endswith("2 of 3 draft tokens accepted; ended by: stop 'b'")
    assert ">2/3</td>" in out._repr_html_()


# ------------------------------------------------------------------------------------------------ pieces


def pieces(rounds: Sequence[Round]) -> list[tuple[str, str]]:
    """Text and status of the tokens that have a text."""
    spans = spans_of(result(rounds)._repr_html_())
    return [(text, status.removeprefix("specdec-")) for status, text, title in spans if title]


def test_a_character_split_over_tokens_is_shown_when_it_is_whole() -> None:
    """Across accepted draft tokens, across the end of a round, and within rejected ones."""
    e2, x82, xac, c3, a9 = ids(b"\xe2", b"\x82", b"\xac", b"\xc3", b"\xa9")
    assert pieces([chain(0, (e2, x82, xac), (), B)]) == [("€", "accepted"), ("b", "target")]
    split = [chain(0, (e2,), (A,), x82), chain(1, (xac,), (), B)]
    assert [text for text, status in pieces(split) if status in ("accepted", "target")] == ["€", "b"]
    assert pieces([chain(0, (), (c3, a9), B)]) == [("é", "unseen"), ("b", "target")]
    # The rejected byte continues the accepted one; the character after it is never complete.
    wanted = [("é", "rejected"), ("\ufffd", "unseen"), ("\ufffda", "target")]
    assert pieces([chain(0, (c3,), (a9, c3), A)]) == wanted


def test_tokens_without_text_show_their_names() -> None:
    """Or ids, where there is no tokenizer."""
    lines = result([chain(0, (7,), (8,), 9)], None).figure(False).splitlines()
    assert lines[1].strip() == f"{AB}" and lines[2] == "   1   1/2  7~~ 8~~[ 9]"
    (end,) = ids(b"</s>")
    assert pieces([chain(0, (), (end,), A)])[0] == ("</s>", "rejected")
    assert result([chain(0, (A,), (), 1000)], text="").figure(False).splitlines()[2].endswith("a[<1000>]")


def test_whitespace_and_controls_are_made_visible() -> None:
    newline, space, two, red = ids(b"\n", b" ", b"  ", b"\x1b[31m")
    assert [text for text, _ in pieces([chain(0, (newline, space, two, red, SPACE_A), (), B)])] == [
        "⏎", "␣", "␣␣", "\\x1b[31m", " a", "b",
    ]  # fmt: skip
    plain = result([chain(0, (), (), A)], text="a\tb\r\x00\u2028é…\n").figure(False)
    assert "a⇥b␍\\x00⏎é…\n" in plain


def test_a_tree() -> None:
    """Two children of the root; the second was accepted, the first had a child of its own."""
    shown = pieces([tree((A, B, AB), (0, 0, 1), (2,), A, (0.5,))])
    assert shown == [("b", "accepted"), ("a", "rejected"), ("ab", "unseen"), ("a", "target")]


def test_a_long_prompt_shows_its_end() -> None:
    out = result(ROUNDS, TOKENIZER, *[b"a"] * 999, b"b")
    assert out.figure(False).splitlines()[1].strip() == "…" + "a" * 299 + "b"


# -------------------------------------------------------------------------------------------------- HTML


def test_html_has_a_span_for_each_token_with_what_is_known_of_it() -> None:
    page = spans_of(result(ROUNDS)._repr_html_())
    spans = [span for span in page if span[2]]
    assert [(status.removeprefix("specdec-"), text) for status, text, _ in spans] == [
        ("accepted", "a"), ("accepted", "b"), ("rejected", "ab"), ("unseen", " a"), ("target", "b"),
        ("accepted", "a"), ("accepted", "a"), ("accepted", "a"), ("accepted", "b"), ("target", " a"),
    ]  # fmt: skip
    titles = [title for _, _, title in spans]
    assert titles[0] == f"id {A}: accepted draft, β = 0.750"
    assert titles[2] == f"id {AB}: rejected draft, β = 0.750"
    assert titles[3] == f"id {SPACE_A}: draft after a rejected one"
    assert titles[4] == f"id {B}: correction"
    assert titles[9] == f"id {SPACE_A}: bonus token"
    assert [status for status, _, title in page if not title][:3] == [
        "specdec-accepted", "specdec-rejected", "specdec-target",
    ]  # fmt: skip


def test_html_is_escaped() -> None:
    tag, ampersand = ids(b"<b>", b"&")
    out = result([chain(0, (tag,), (ampersand,), tag)], TOKENIZER, b"<b>", finish_reason="stop", stop="<i>")
    text = out._repr_html_()
    assert "<b>" not in text
    assert "<i>" not in text
    assert [span[1] for span in spans_of(text) if span[2]] == ["<b>", "&", "<b>"]
    plain = result([chain(0, (), (), tag)], TOKENIZER, b"&")._repr_html_()
    assert "<b>" not in plain
    assert "<b>" in html.unescape(plain)
    assert spans_of(plain)


def test_html_takes_no_color_of_the_page_for_granted() -> None:
    """Translucent tints, so that text stays readable on light and dark pages."""
    style = re.search(r"<style>(.*?)</style>", result(ROUNDS)._repr_html_(), re.DOTALL)
    assert style is not None
    assert not re.search(r"[^-]color\s*:", style[1])
    found = re.findall(r"background: ([^;]*)", style[1])
    assert found and all(value.startswith("rgba(") or value == "transparent" for value in found)


def tint(status: str) -> tuple[list[float], float]:
    """Color and opacity of a status's tint."""
    style = result(ROUNDS)._repr_html_()
    found = re.search(rf"\.specdec-{status} {{ background: rgba\((\d+), (\d+), (\d+), ([\d.]+)\)", style)
    assert found is not None
    return [int(found[i]) / 255 for i in (1, 2, 3)], float(found[4])


@pytest.mark.parametrize("page", [(1.0, 1.0, 1.0), (0.07, 0.07, 0.07)], ids=["light", "dark"])
def test_tints_differ_under_every_color_vision(page: tuple[float, ...]) -> None:
    statuses = ("accepted", "rejected", "target")
    assert least_distance([page, *(over(*tint(status), page) for status in statuses)]) > 15.0
    # Text in the page's own color stays readable on them (WCAG 2.1, level AA).
    text = (0.0, 0.0, 0.0) if page[0] == 1.0 else (0.9, 0.9, 0.9)
    assert min(contrast(text, over(*tint(status), page)) for status in statuses) > 4.5


def test_no_two_statuses_differ_by_color_alone() -> None:
    """Struck out, underlined, or neither: in a terminal and on a page."""
    (_, _, first, *_) = result(ROUNDS).figure(True).splitlines()
    assert [re.findall(r"\x1b\[[\d;]*?;?([49])?m", code)[0] for code in (GREEN, RED, BLUE)] == ["", "9", "4"]
    assert first.index(GREEN) < first.index(RED) < first.index(BLUE)
    style = result(ROUNDS)._repr_html_()
    marks = {
        status: re.search(rf"\.specdec-{status} {{[^}}]*text-decoration: (\S+);", style)
        for status in ("accepted", "rejected", "unseen", "target")
    }
    assert {status: found and found[1] for status, found in marks.items()} == {
        "accepted": None, "rejected": "line-through", "unseen": "line-through", "target": "underline",
    }  # fmt: skip
