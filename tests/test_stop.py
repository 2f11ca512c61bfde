"""Ends of texts: stop strings, stop ids and limits, also inside a block of accepted draft tokens."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import specdec
from refusals import refuses
from specdec.decoding.stopping import NewText, StopRules
from specdec.errors import InputError
from specdec.tokenizer import StreamDecoder
from toy_pair import EOS, N_CTX, ToyTokenizer, greedy_tokens

pytestmark = pytest.mark.usefixtures("one_thread")


class NamedTokenizer(ToyTokenizer):
    """The toy tokenizer, in which some tokens are special ones with names."""

    def __init__(self, names: dict[int, bytes]) -> None:
        super().__init__()
        self._vocabulary = tuple(names.get(i, piece) for i, piece in enumerate(self._vocabulary))
        self._texts = tuple(b"" if i in names else text for i, text in enumerate(self._texts))


SPECIAL = {30: b"<|end|>", 31: b"<|e", 32: b"a"}
NAMED = NamedTokenizer(SPECIAL)
NAMED_TEXT = re.compile("|".join(map(re.escape, sorted(NAMED.special_tokens(), key=len, reverse=True))))
TOKENIZER = ToyTokenizer()


# -------------------------------------------------------------------------------------- the scanner


def first_stop(text: str, strings: Sequence[str]) -> tuple[str, str] | None:
    """(text before the stop, stop) by looking after every character, the longest of several."""
    for end in range(1, len(text) + 1):
        matches = [string for string in strings if text[:end].endswith(string)]
        if matches:
            longest = max(matches, key=len)
            return text[: end - len(longest)], longest
    return None


# ------------------------------------------------------------------------------------------ the rules


def parse(stop: Any, **options: Any) -> StopRules:
    return StopRules.parse(stop, **{"n_vocab": 61, "tokenizer": TOKENIZER, **options})


def test_rules_sort_strings_and_ids() -> None:
    assert parse(None) == StopRules()
    assert parse("end") == StopRules(("end",))
    assert parse(7) == StopRules((), frozenset({7}))
    assert parse(["a", 7, "b", "a", np.int32(8)], eos_ids=(2,)) == StopRules(("a", "b"), frozenset({2, 7, 8}))
    assert parse(("a",)) == parse({"a"}) == StopRules(("a",))
    sequence = state(5, tokenizer=None)
    assert sequence.extend([3, 4, 5, 6]) == 3
    assert (sequence.text, sequence.tokens, sequence.stop) == (None, [3, 4, 5], 5)


@pytest.mark.parametrize(
    ("stop", "value"),
    [
        ("", ""), (["a", ""], ""), (61, 61), (-1, -1), ([1.0], 1.0), (2.5, 2.5), (True, True),
        (b"end", b"end"), ([None], None),
    ],
)  # fmt: skip
def test_rules_refuse_and_name(stop: Any, value: Any) -> None:
    with refuses("stop", value):
        parse(stop)
    with refuses("stop", "end"):
        parse("end", tokenizer=None)


# --------------------------------------------------------------------------- where a text ends


def state(*stop: Any, limit: int = 100, tokenizer: Any = TOKENIZER) -> NewText:
    decoder = None if tokenizer is None else StreamDecoder(tokenizer, continuing=True)
    return NewText(decoder, parse(list(stop), tokenizer=tokenizer), limit, "length")


def ids(*pieces: bytes) -> list[int]:
    """Ids of tokens by their bytes."""
    return [TOKENIZER.vocabulary().index(piece) for piece in pieces]


def test_a_character_split_over_tokens() -> None:
    """One that is incomplete where the text ends stays, also before a special token."""
    euro = ids(b"\xe2", b"\x82", b"\xac")
    sequence = state("€")
    assert sequence.extend(ids(b"a") + euro[:2]) == 3
    assert sequence.take_text() == "a"
    assert sequence.extend([euro[2], *ids(b"a")]) == 1
    assert (sequence.text, sequence.stop) == ("a", "€")
    for stop, limit, new in ((EOS, 2, []), (EOS, 100, [EOS]), (30, 100, [30]), ("<|end|>", 100, [30])):
        sequence = state(stop, limit=limit, tokenizer=NAMED)
        sequence.extend([*ids(b"b", b"\xe2"), *new])
        assert (sequence.text, sequence.stop) == ("b\ufffd", stop if new else None)


# ------------------------------------------------------------------- special tokens, which have no text


def symbols(string: str, special: dict[str, int]) -> list[str | int]:
    """A stop string with the names of special tokens read as tokens, from the left, the longest first."""
    found: list[str | int] = []
    while string:
        name = max((name for name in special if string.startswith(name)), key=len, default=None)
        found.append(string[0] if name is None else special[name])
        string = string[1 if name is None else len(name) :]
    return found


def first_end(tokens: Sequence[int], strings: Sequence[str]) -> tuple[int, str, str | int | None]:
    """(tokens kept, text, stop) by looking after every character and every special token."""
    special = NAMED.special_tokens()
    seen: list[str | int] = []
    for n, token in enumerate(tokens, 1):
        text = NAMED.text_bytes(token).decode()
        for symbol in text or ([token] if token in special.values() else []):
            seen.append(symbol)
            shown = "".join(one for one in seen if isinstance(one, str))
            matches = []
            for string in strings:
                if isinstance(symbol, str) and shown.endswith(string):
                    matches.append((len(shown) - len(string), string))
                wanted = symbols(string, special)
                if seen[-len(wanted) :] == wanted:
                    n_shown = sum(isinstance(one, str) for one in wanted)
                    matches.append((len(shown) - n_shown, string))
            if matches:
                begin, string = min(matches)
                return n, shown[:begin], string
            if symbol == EOS:
                return n, shown, EOS
    return len(tokens), NAMED.decode(list(tokens)), None


@given(data=st.data())
@settings(deadline=None, max_examples=400)
def test_stop_strings_see_special_tokens(data: st.DataObject) -> None:
    """However the text is cut. Half of the strings are parts of it, with the names of its special tokens."""
    tokens = data.draw(
        st.lists(st.sampled_from([0, EOS, 3, 4, 5, 12, 30, 31, 32, 60]), min_size=1, max_size=9)
    )
    written = [(NAMED.vocabulary()[token] or b"").decode() for token in tokens]
    parts = st.tuples(st.integers(0, len(tokens) - 1), st.integers(1, 3)).map(
        lambda part: "".join(written[part[0] : sum(part)])
    )
    others = st.sampled_from(["a", "b", "ab", "</", ">", "<|e", "<|end|>a", "</s>b", "<|e<|end|>"])
    others |= st.text(alphabet="ab.", min_size=1, max_size=5)
    strings = data.draw(st.lists(parts | others, min_size=1, max_size=4, unique=True))
    cuts = data.draw(st.lists(st.integers(0, len(tokens)), max_size=5))
    included = data.draw(st.booleans())
    rules = StopRules.parse(strings, n_vocab=61, tokenizer=NAMED, eos_ids=[EOS], included=included)
    sequence, given_out = NewText(StreamDecoder(NAMED), rules, 100, "length"), ""
    ends = sorted({*cuts, len(tokens)})
    for begin, end in zip([0, *ends], ends, strict=False):
        if begin < end:
            sequence.extend(tokens[begin:end])
            given_out += sequence.take_text()
        if sequence.finish_reason is not None:
            break
    n_kept, text, stop = first_end(tokens, strings)
    if included and isinstance(stop, str):
        text += stop
    assert (len(sequence.tokens), sequence.text, sequence.stop) == (n_kept, text, stop)
    if stop is None:  # no more than the beginning of a stop string is held back
        held = text[len(given_out) :]
        shown = [NAMED_TEXT.sub("", string) for string in strings] + strings
        assert held == "" or any(string.startswith(held) for string in shown)
    assert given_out + sequence.take_text(final=True) == text


def test_a_stop_string_that_names_a_token_is_its_id() -> None:
    rules = StopRules.parse(["<|end|>", "x<|end|>", 31, "<|e"], n_vocab=61, tokenizer=NAMED)
    assert (rules.ids, rules.names) == ({30, 31}, {30: "<|end|>"})  # a stop given as an id stays an id
    assert StopRules.parse("<|end|>", n_vocab=30, tokenizer=NAMED).ids == frozenset()  # the model has none


@pytest.mark.parametrize("included", [False, True])
@pytest.mark.parametrize(
    ("new", "stop", "text", "end"),
    [
        ([32, 12, 31], [], "a{12}<|e", None), ([12, 30], ["<|end|>"], "{12}", "<|end|>"),
        ([12, EOS], [], "{12}", EOS), ([31, 12, 12], ["e{12}{12}"], "<|", "e{12}{12}"),
        ([12, 31, 30], ["{12}<|e<|end|>"], "", "{12}<|e<|end|>"),
    ],
)  # fmt: skip
def test_names_of_special_tokens_are_text(
    new: list[int], stop: list[str], text: str, end: str | int | None, included: bool
) -> None:
    """In which stop strings are searched; a stop token that is included is written as its name."""
    piece = NAMED.text_bytes(12).decode()
    stop, text = [one.replace("{12}", piece) for one in stop], text.replace("{12}", piece)
    end = end.replace("{12}", piece) if isinstance(end, str) else end
    rules = StopRules.parse(stop, n_vocab=61, tokenizer=NAMED, eos_ids=[EOS], included=included)
    if included:
        text += end if isinstance(end, str) else {None: "", EOS: "</s>"}[end]
    for cut in range(len(new) + 1):
        sequence = NewText(StreamDecoder(NAMED, names=True), rules, 100, "length")
        for part in (new[:cut], new[cut:]):
            if part:
                sequence.extend(part)
        assert (sequence.text, sequence.stop) == (text, end)


def with_tokenizer(model: specdec.Model, tokenizer: ToyTokenizer) -> specdec.Model:
    return specdec.Model(model.core, model.config, tokenizer, model.path, model.architecture)


def test_all_decoding_stops_at_special_tokens(pair: tuple[specdec.Model, specdec.Model]) -> None:
    """By its name, or by itself if it ends texts, for a token inside a block of accepted tokens."""
    prompt = [5, 9, 5]
    options: dict[str, Any] = {"max_new_tokens": 60, "ignore_eos": True}
    free = specdec.generate(*pair, prompt, gamma=4, **options)  # type: ignore[call-overload]
    at = next(i for i, token in enumerate(free.tokens) if i > 2 and token not in free.tokens[:i])
    tokenizer = NamedTokenizer({free.tokens[at]: b"<|im_end|>"})
    named, drafting = (with_tokenizer(model, tokenizer) for model in pair)
    before = tokenizer.decode(free.tokens[:at])
    for string, text in (("<|im_end|>", before), (before[-1:] + "<|im_end|>", before[:-1])):
        wanted = (free.tokens[: at + 1], text, "stop", string)
        for drafter in (drafting, None):
            out: Any = specdec.generate(named, drafter, prompt, stop=[string], **options)  # type: ignore[call-overload]
            assert (out.tokens, out.text, out.finish_reason, out.stop) == wanted
            stream = specdec.stream(named, drafter, prompt, stop=[string], **options)  # type: ignore[arg-type]
            assert ("".join(stream), stream.result.stop) == (text, string)
        with specdec.Engine(named, drafting, n_threads=1) as engine:
            generation = engine.submit(prompt, stop=[string], **options)  # type: ignore[arg-type]
            assert "".join(piece.text for piece in generation) == text
            assert generation.result().stop == string
        for drafter in (drafting, None):
            out = specdec.generate(
                named, drafter, prompt, stop=[string], include_stop_str_in_output=True, **options
            )
            assert (out.tokens, out.text, out.stop) == (wanted[0], text + string, string)
            out = specdec.generate(named, drafter, prompt, skip_special_tokens=False, **options)
            rest = tokenizer.decode(free.tokens[at + 1 :])
            assert free.tokens[at] in free.tokens[at + 1 :] or out.text == f"{before}<|im_end|>{rest}"
    found = specdec.beam_search(named, drafting, prompt, width=1, stop="<|im_end|>", **options).best  # type: ignore[arg-type]
    assert (found.tokens, found.text, found.finish_reason) == (free.tokens[: at + 1], before, "stop")
    with pytest.raises(InputError, match="not a special token"):
        specdec.beam_search(named, drafting, prompt, stop=["b"])
    tokenizer.eos_ids = (free.tokens[at],)
    for drafter in (drafting, None):
        out = specdec.generate(named, drafter, prompt, max_new_tokens=60, gamma=4)
        assert (out.tokens, out.text, out.stop) == (free.tokens[: at + 1], before, free.tokens[at])


# --------------------------------------------------------------- speculative = plain = naive, on real models


def naive(tokens: Sequence[int], strings: Sequence[str], stop_ids: set[int], limit: int) -> tuple[Any, ...]:
    """(tokens, text, finish reason, stop) by decoding all of the text again after every token."""
    text = ""
    for n in range(1, len(tokens) + 1):
        if tokens[n - 1] in stop_ids:
            return list(tokens[:n]), TOKENIZER.decode(tokens[: n - 1]), "stop", tokens[n - 1]
        text = TOKENIZER.decode(tokens[:n])
        found = first_stop(text.rstrip("\ufffd"), strings)  # U+FFFD may still become a character
        if found is not None:
            return list(tokens[:n]), found[0], "stop", found[1]
        if n == limit:
            return list(tokens[:n]), text, "length", None
    raise AssertionError("there are too few tokens")


@settings(deadline=None, max_examples=60, derandomize=True)
@given(data=st.data())
def test_stops_end_speculative_plain_and_naive_decoding_alike(
    pair: tuple[specdec.Model, specdec.Model], data: st.DataObject
) -> None:
    target, draft = pair
    prompt = data.draw(st.lists(st.integers(3, 60), min_size=1, max_size=6), label="prompt")
    limit = data.draw(st.integers(1, 40), label="limit")
    gamma = data.draw(st.integers(1, 8), label="gamma")
    tokens = greedy_tokens(target, prompt, 40)
    whole = TOKENIZER.decode(tokens).rstrip("\ufffd")

    # Half of the stop strings are parts of the text, so that they are met.
    begin = st.integers(0, max(0, len(whole) - 1))
    parts = begin.flatmap(lambda at: st.integers(1, 6).map(lambda n: whole[at : at + n] or "a"))
    anything = st.text(alphabet="abcxyz\n <€é", min_size=1, max_size=3)
    strings = data.draw(st.lists(parts | anything, max_size=3), label="strings")
    strings = [string for string in strings if "\ufffd" not in string]
    stop_ids = set(data.draw(st.lists(st.sampled_from(tokens) | st.integers(0, 60), max_size=2), label="ids"))

    wanted = naive(tokens, strings, stop_ids | {EOS}, limit)
    options: dict[str, Any] = {"max_new_tokens": limit, "stop": [*strings, *stop_ids]}
    for drafter in (draft, None):
        out = specdec.generate(target, drafter, prompt, gamma=gamma, **options)
        assert (out.tokens, out.text, out.finish_reason, out.stop) == wanted
        stream = specdec.stream(target, drafter, prompt, gamma=gamma, **options)
        assert "".join(stream) == out.text
        assert stream.result.tokens == out.tokens
        assert sum(round_.kept for round_ in out.trace.rounds) == len(out.tokens)
        included = specdec.generate(
            target, drafter, prompt, gamma=gamma, include_stop_str_in_output=True, **options
        )
        text = f"{out.text}{out.stop}" if isinstance(out.stop, str) else TOKENIZER.decode(out.tokens)
        assert (included.tokens, included.text, included.stop) == (out.tokens, text, out.stop)


@pytest.mark.parametrize("gamma", [0, 1, 3, 8])
@pytest.mark.parametrize("n_prompt", [1, 50, N_CTX - 2, N_CTX - 1])
def test_a_full_context_ends_the_text(
    pair: tuple[specdec.Model, specdec.Model], gamma: int, n_prompt: int
) -> None:
    for limit, reason in ((None, "context"), (N_CTX - n_prompt, "length")):
        out = specdec.generate(*pair, [7] * n_prompt, gamma=gamma, max_new_tokens=limit, ignore_eos=True)
        assert (len(out.tokens), out.finish_reason) == (N_CTX - n_prompt, reason)
