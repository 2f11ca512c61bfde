"""Copying drafts: the automaton against brute force, and every draft token against plain Python.

The target is forced to write a given text, so any sequence of accepted and rejected tokens can occur.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import specdec
from specdec import InputError, _core
from specdec.drafts import InputCopy, PromptLookup
from trained import small_pair
from worlds.canonical import LLAMA, forced, random_tensors
from worlds.encoder_decoders import model_of
from worlds.folders import llama_config, tensors_for, write_hf

CONFIG = LLAMA | {"n_ctx": 512, "n_layer": 1}
TARGET = model_of(CONFIG, random_tensors(CONFIG))


# ------------------------------------------------------------------------------------- the automaton


def ends(piece: list[int], text: list[int]) -> list[int]:
    """Occurrences of a piece in a text: indices of its last token."""
    n = len(piece)
    return [i + n - 1 for i in range(len(text) - n + 1) if text[i : i + n] == piece]


def automaton(text: list[int]) -> _core.Automaton:
    return _core.Automaton(np.array(text, np.int32))


def periodic(draw: st.DrawFn) -> list[int]:
    """Repeat a period, with single tokens changed."""
    text = draw(st.lists(st.integers(0, 2), min_size=1, max_size=6)) * draw(st.integers(1, 14))
    for at in draw(st.lists(st.integers(0, len(text) - 1), max_size=3)):
        text[at] = draw(st.integers(0, 3))
    return text


TEXTS = st.lists(st.integers(0, 2), max_size=70) | st.composite(periodic)()


@settings(deadline=None, max_examples=400)
@given(TEXTS, TEXTS)
def test_the_longest_suffix_that_occurred_before(text: list[int], other: list[int]) -> None:
    """Of every prefix of a text. The position is right, and the most recent one in texts so short that every
    token refreshes every suffix. Another text is found without being appended."""
    for n in range(len(text) + 1):
        found = automaton(text[:n])
        length, end = found.repeated()
        known = [k for k in range(1, n) if len(ends(text[n - k : n], text[:n])) > 1]
        assert length == max(known, default=0)
        assert found.n_tokens == n and found.n_states <= max(2 * n - 1, n + 1)
        if length:
            earlier = ends(text[n - length : n], text[: n - 1])
            assert end in earlier
            assert n > 32 or end == earlier[-1]
    n_states = found.n_states
    for n in range(len(other) + 1):
        length, end = found.find(other[:n])
        known = [k for k in range(1, n + 1) if ends(other[n - k : n], text)]
        assert length == max(known, default=0)
        assert end in ends(other[n - length : n], text) if length else end == -1
    assert found.n_states == n_states


@pytest.mark.parametrize("text", [[0] * 2000, [0, 1] * 1000, [0] * 1000 + [1] * 1000], ids=["a", "ab", "a b"])
def test_periodic_text_takes_no_more_states(text: list[int]) -> None:
    found = automaton(text)
    assert found.n_states <= 2 * len(text)
    assert found.n_bytes <= 180 * len(text)
    assert found.find(text) == (2000, 1999)


def test_what_is_no_automaton() -> None:
    with pytest.raises(ValueError, match="ids: expected .* int32"):
        _core.Automaton(np.zeros(3, np.int64))
    with pytest.raises(ValueError, match=r"ids\[1\] is -2"):
        automaton([3, -2])
    empty = automaton([])
    assert (empty.n_tokens, empty.n_states, empty.repeated(), empty.find([1])) == (0, 1, (0, -1), (0, -1))


# ------------------------------------------------------------------------- the methods in plain Python


Copying = PromptLookup | InputCopy
Copy = tuple[Callable[[int], "int | None"], int, "Odds"]
"""The i-th token of a copy, how many tokens before it match, how often such matches were right."""


class Odds:
    """Share of matches of each length that predicted the next token; see csrc/draft/copy/copying.c."""

    def __init__(self) -> None:
        self.tried: dict[int, float] = defaultdict(float)
        self.right: dict[int, float] = defaultdict(float)

    def learn(self, length: int, right: bool) -> None:
        i = min(length, 32)
        if self.tried[i] >= 64:
            self.tried[i] /= 2
            self.right[i] /= 2
        self.tried[i] += 1
        self.right[i] += right

    def of(self, length: int) -> float:
        i = min(length, 32)
        return (self.right[i] + 4 * (i + 0.5) / (i + 2.5)) / (self.tried[i] + 4)


def grown(copies: list[Copy], budget: int, depth: int) -> tuple[list[int], list[int]]:
    """Tree of some copies: (tokens, parents) of the nodes except the root."""
    chains = []
    for copy in copies:
        token = copy[0](0)
        if token is not None and token not in [other[0](0) for other, *_ in chains]:
            chains.append((copy, [0], [1.0]))
    tokens: list[int] = []
    parents: list[int] = []
    while len(tokens) < budget:
        best = None
        for (token_of, length, odds), nodes, reach in chains:
            n_made = len(nodes) - 1
            if n_made < depth and token_of(n_made) is not None:
                next_reach = reach[-1] * odds.of(length + n_made)
                if best is None or next_reach > best[0]:
                    best = next_reach, token_of(n_made), nodes, reach
        if best is None:
            break
        tokens.append(best[1])
        parents.append(best[2][-1])
        best[2].append(len(tokens))
        best[3].append(best[0])
    return tokens, parents


def longest(text: list[int], within: list[int]) -> tuple[int, list[int]]:
    """(length, ends) of the longest suffix of a text that occurs in another."""
    n = len(text)
    for length in range(n, 0, -1):
        if found := ends(text[n - length :], within):
            return length, found
    return 0, []


def context_copies(
    text: list[int], documents: list[int], odds: tuple[Odds, Odds], min_match: int, n_candidates: int
) -> list[Copy]:
    def own(at: int, length: int) -> Copy:
        return lambda i: text[at + i % (len(text) - at)], length, odds[0]

    def documented(at: int, length: int) -> Copy:
        stop = next((i for i in range(at, len(documents)) if documents[i] < 0), len(documents))
        return lambda i: documents[at + i] if at + i < stop else None, length, odds[1]

    matches = []
    for make, within, source in [(own, text[:-1], text), (documented, documents, documents)]:
        length, found = longest(text, within)
        matches.append((make, source, found, length))
    copies = [
        make(found[-1] + 1, length)
        for make, _, found, length in sorted(matches, key=lambda match: -match[3])
        if length >= min_match
    ]
    copies = [copy for copy in copies if copy[0](0) is not None][:n_candidates]
    for make, source, _, length in matches:
        for k in range(length, min_match - 1, -1):  # a suffix that ends nowhere else adds nothing
            followers = {}
            for token in {source[end + 1] for end in ends(text[len(text) - k :], source[:-1])} - {-1}:
                positions = ends([*text[len(text) - k :], token], source)
                at_the_end = positions[-1] == len(source) - 1 and len(positions) > 1
                followers[positions[-2] if at_the_end else positions[-1]] = token
            for at in sorted(followers, reverse=True):
                begun = [copy[0](0) for copy in copies]
                if len(copies) < n_candidates and followers[at] not in begun:
                    copies.append(make(at, k))
    return copies


class PlainContextCopy:
    def __init__(self, prompt: list[int], documents: list[int], min_match: int, n_candidates: int) -> None:
        self.how = documents, (Odds(), Odds()), min_match, n_candidates
        self.text: list[int] = []
        self.read(prompt)

    def read(self, tokens: list[int]) -> None:
        documents, odds, *_ = self.how
        for token in tokens:
            for i, source in enumerate([self.text, documents]):
                length, found = longest(self.text, self.text[:-1] if i == 0 else documents)
                if length:
                    at = found[-1] + 1
                    odds[i].learn(length, at < len(source) and source[at] == token)
            self.text.append(token)

    def copies(self) -> list[Copy]:
        return context_copies(self.text, *self.how)


class PlainInputCopy:
    def __init__(
        self, prompt: list[int], source: list[int] | None, start: int, min_match: int, n_candidates: int
    ) -> None:
        self.source = prompt if source is None else source
        self.output: list[int] = []
        self.at, self.n_lost, self.length = min(start, len(self.source)), 0, 0
        self.min_match, self.n_candidates = min_match, n_candidates
        self.odds = Odds()

    def read(self, tokens: list[int]) -> None:
        for token in tokens:
            self.output.append(token)
            right = False
            if not self.n_lost and self.at < len(self.source):
                right = self.source[self.at] == token
                self.odds.learn(self.length, right)
            if right:
                self.at, self.length = self.at + 1, self.length + 1
            else:
                self.n_lost += 1
                self.realign()

    def realign(self) -> None:
        for length in range(min(32, len(self.output)), self.min_match - 1, -1):
            found = [end + 1 for end in ends(self.output[-length:], self.source)]
            if found:
                wanted = self.at + self.n_lost
                self.at = min(found, key=lambda at: (at < self.at, abs(at - wanted), at))
                self.n_lost, self.length = 0, length
                return

    def copies(self) -> list[Copy]:
        if self.at >= len(self.source) or self.n_lost > 8:
            return []

        def copy(at: int, length: int) -> Copy:
            return lambda i: self.source[at + i] if at + i < len(self.source) else None, length, self.odds

        if not self.n_lost:
            return [copy(self.at, self.length)]
        near = self.source[self.at : self.at + 8]
        deletion = [copy(self.at + near.index(self.output[-1]) + 1, 1)] if self.output[-1] in near else []
        others = [copy(self.at + self.n_lost, 0), copy(self.at, 0)]
        return (deletion + others)[: self.n_candidates]


def check(
    draft: Copying, plain: PlainContextCopy | PlainInputCopy, prompt: list[int], output: list[int], gamma: int
) -> None:
    """Compare the draft tokens of every round."""
    n_left = len(output)
    for done in forced(TARGET, draft, prompt, output, gamma):
        expected = grown(plain.copies(), gamma if n_left > 1 else 0, n_left - 1)
        assert ([*done.drafted], [*done.parents]) == expected
        plain.read([*done.tokens])
        n_left -= len(done.tokens)
    assert n_left == 0


SHORT = st.lists(st.integers(0, 3), min_size=1, max_size=16)
"""With an output as long, texts of which every suffix is refreshed: the most recent occurrence is copied."""
GAMMAS = st.sampled_from([1, 3, 9])


@settings(deadline=None, max_examples=300)
@given(SHORT, SHORT, st.lists(SHORT, max_size=3), st.integers(1, 3), st.sampled_from([1, 2, 5]), GAMMAS)
def test_context_copy_is_the_method_in_plain_python(
    prompt: list[int], output: list[int], texts: list[list[int]],
    min_match: int, n_candidates: int, gamma: int,
) -> None:  # fmt: skip
    documents = [token for text in texts for token in [*text, -1]]
    plain = PlainContextCopy(prompt, documents, min_match, n_candidates)
    draft = PromptLookup(texts, min_match=min_match, n_candidates=n_candidates)
    check(draft, plain, prompt, output, gamma)


@settings(deadline=None, max_examples=300)
@given(
    SHORT, st.none() | SHORT, st.lists(st.integers(0, 3), min_size=1, max_size=40),
    st.integers(0, 9), st.integers(1, 3), st.integers(1, 3), GAMMAS,
)  # fmt: skip
def test_input_copy_is_the_method_in_plain_python(
    prompt: list[int], source: list[int] | None, output: list[int],
    start: int, min_match: int, n_candidates: int, gamma: int,
) -> None:  # fmt: skip
    plain = PlainInputCopy(prompt, source, start, min_match, n_candidates)
    draft = InputCopy(source, start=start, min_match=min_match, n_candidates=n_candidates)
    check(draft, plain, prompt, output, gamma)


SOURCE = list(range(10, 40))


@pytest.mark.parametrize(
    ("output", "n_candidates", "expected"),
    [
        # 19 replaced: the token after it is drafted
        ([*SOURCE[:9], 99, *SOURCE[10:]], 1, [(SOURCE[:9], 9), (SOURCE[10:19], 9), (SOURCE[20:29], 9)]),
        # 99 inserted: replaced or inserted, two chains in turn, of which the second is right
        (
            [*SOURCE[:9], 99, *SOURCE[9:]], 3,
            [(SOURCE[:9], 9), ([20, 19, 21, 20, 22, 21, 23, 22, 24], 4), (SOURCE[14:23], 9),
             (SOURCE[24:29], 5)],
        ),
        # 19 to 21 left out: 22 is found further ahead
        ([*SOURCE[:9], *SOURCE[12:]], 1, [(SOURCE[:9], 9), (SOURCE[13:22], 9), (SOURCE[23:29], 6)]),
    ],
    ids=["substitution", "insertion", "deletion"],
)  # fmt: skip
def test_input_copy_continues_after_an_edit(
    output: list[int], n_candidates: int, expected: list[tuple[list[int], int]]
) -> None:
    """A round adds one token more than it accepts, so every tenth is not drafted."""
    draft = InputCopy(SOURCE, min_match=2, n_candidates=n_candidates)
    rounds = forced(TARGET, draft, [1, 2], output, gamma=9)
    assert [([*done.drafted], len(done.accepted)) for done in rounds] == expected


def test_texts_are_encoded_with_the_tokenizer_of_the_target(tmp_path: Path) -> None:
    target, text = small_pair()[0], "He was a tall man."
    ids = target.tokenizer.encode(text, add_bos=False)
    as_text = PromptLookup([text, "and"])
    documents = as_text.describe(target)[1]["documents"]
    with_bos = PromptLookup([ids, np.array(target.tokenizer.encode("and"))]).describe(target)[1]["documents"]
    assert documents.n_tokens == with_bos.n_tokens - target.tokenizer.adds_bos
    assert documents is as_text.describe(target)[1]["documents"], "made once"
    assert InputCopy(text).describe(target)[1]["source"].tolist() == ids
    config = llama_config(vocab_size=50)
    other = specdec.load(write_hf(tmp_path / "other", config, tensors_for(config)), tokenizer=None)
    for draft, message in [
        (PromptLookup([text]), r"documents\[0\] is a text; expected token ids"),
        (PromptLookup([[1], [49, 50]]), r"documents\[1\]\[1\] is 50; expected 0 to 49"),
        (InputCopy(text), "source is a text; expected token ids"),
        (InputCopy([-1]), r"source\[0\] is -1; expected 0 to 49"),
    ]:
        with pytest.raises(InputError, match=message):
            specdec.generate(other, draft, [1, 2], max_new_tokens=3)


def test_what_was_given_is_kept() -> None:
    given = np.array([1, 2, 3])
    draft = InputCopy(given)
    given[:] = 9
    assert draft.describe(small_pair()[0])[1]["source"].tolist() == [1, 2, 3]
    assert "min_match 3" in repr(draft)
    assert "1 documents" in repr(PromptLookup([given]))
