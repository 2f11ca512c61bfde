"""Suffix decoding: the tree against counting by hand, every draft token against plain Python."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

import specdec
from allocations import allowing, needs_hooks
from specdec import CheckpointError, InputError, VocabularyMismatchError
from specdec.drafts import Ensemble, SuffixDecoding
from trained import small_pair
from worlds.canonical import LLAMA, forced, random_tensors
from worlds.encoder_decoders import model_of

CONFIG = LLAMA | {"n_ctx": 512, "n_layer": 1}
TARGET = model_of(CONFIG, random_tensors(CONFIG))

Tokens = tuple[int, ...]

# ------------------------------------------------------------------------------- the method in plain Python


class PlainMemory:
    """Texts as (end of the prompt, output), the oldest first."""

    def __init__(self, max_tokens: int = 10**6, depth: int = 64) -> None:
        self.max_tokens, self.depth = max_tokens, depth
        self.texts: list[tuple[Tokens, Tokens]] = []

    def add(self, before: Sequence[int], output: Sequence[int]) -> None:
        text = (*before[-self.depth :], *output)
        before = before[-self.depth :]
        cut = max(0, len(text) - self.max_tokens)
        n_before = max(len(before) - cut, 0)
        text = text[cut:]
        self.texts.append((text[:n_before], text[n_before:]))
        while sum(len(a) + len(b) for a, b in self.texts) > self.max_tokens:
            self.texts.pop(0)

    def following(self, text: Sequence[int]) -> tuple[int, list[Tokens]]:
        """Length of the longest suffix that precedes an output token, and all its continuations."""
        positions = []
        for before, output in self.texts:
            whole = before + output
            positions += [
                (whole[: i + 1], whole[i + 1 :]) for i in range(max(len(before) - 1, 0), len(whole) - 1)
            ]
        for length in range(min(self.depth, len(text)), 0, -1):
            suffix = tuple(text[-length:])
            if found := [after for before, after in positions if before[-length:] == suffix]:
                return length, found
        return 0, []


def in_text(text: Sequence[int], depth: int) -> tuple[int, list[Tokens]]:
    """The same for earlier text of the sequence itself."""
    memory = PlainMemory(depth=depth)
    memory.add((), text)
    return memory.following(text)


def draft_tokens(
    following: list[Tokens], n: int, depth: int, min_value: float, branches: bool
) -> tuple[list[int], list[int], float]:
    """Tokens, parents and Σ of the values of the best n draft tokens, or of the best chain."""
    counts = Counter(after[:k] for after in following for k in range(len(after) + 1))
    values = {(): 1.0}
    made: list[Tokens] = [()]
    waiting: list[Tokens] = []

    def offer(parent: Tokens) -> None:
        for child in sorted(path for path in counts if len(path) == len(parent) + 1 and path[:-1] == parent):
            values[child] = values[parent] * (counts[child] / counts[parent])
            waiting.append(child)

    offer(())
    while waiting and len(made) <= n:
        best = max(waiting, key=values.__getitem__)  # the first of equal ones
        if values[best] < min_value:
            break
        waiting.remove(best)
        if not branches:
            waiting.clear()
        made.append(best)
        if len(best) < depth:
            offer(best)
    paths = made[1:]
    return (
        [path[-1] for path in paths],
        [made.index(path[:-1]) for path in paths],
        sum(values[path] for path in paths),
    )


def expected(
    memory: PlainMemory, text: list[int], n: int, depth: int, how: tuple[int, float, float, bool]
) -> tuple[list[int], list[int]]:
    """Draft tokens after a text; `how` is min_match, factor, min_probability, branches."""
    min_match, factor, min_value, branches = how
    found = []
    for length, following in (in_text(text, memory.depth), memory.following(text)):
        most = min(n, max(1, int(length * factor))) if length >= min_match and depth > 0 else 0
        found.append(draft_tokens(following, most, depth, min_value, branches))
    own, remembered = found
    return (remembered if remembered[2] > own[2] else own)[:2]


def memory_of(texts: Sequence[tuple[Sequence[int], Sequence[int]]], **settings: Any) -> SuffixDecoding:
    memory = SuffixDecoding(**{"min_match": 1} | settings)
    for before, output in texts:
        memory.add(output, before)
    return memory


def texts_of(memory: SuffixDecoding) -> list[tuple[Tokens, Tokens]]:
    return [(tuple(before.tolist()), tuple(output.tolist())) for before, output in memory.texts()]


# --------------------------------------------------------------------------------------- draft tokens

OUTPUT = st.lists(st.integers(0, 2), min_size=1, max_size=12)
TEXTS = st.lists(st.tuples(st.lists(st.integers(0, 2), max_size=5), OUTPUT), max_size=7)
SOME = st.lists(st.integers(0, 3), min_size=1, max_size=20)


@settings(deadline=None, max_examples=100)
@given(
    TEXTS, SOME, SOME, st.integers(1, 8), st.integers(1, 60), st.sampled_from([1, 3, 9]),
    st.tuples(
        st.integers(1, 3), st.sampled_from([0.3, 1.0, 2.5]), st.sampled_from([0.01, 0.3, 1.0]), st.booleans()
    ),
)  # fmt: skip
def test_draft_tokens_are_those_of_the_method_in_plain_python(
    texts: list[tuple[list[int], list[int]]], prompt: list[int], output: list[int], depth: int,
    max_tokens: int, gamma: int, how: tuple[int, float, float, bool],
) -> None:  # fmt: skip
    """Also after texts were dropped; the written text is stored with the others."""
    plain = PlainMemory(max_tokens, depth)
    for text in texts:
        plain.add(*text)
    settings = dict(zip(("min_match", "factor", "min_probability", "branches"), how, strict=True))
    memory = memory_of(texts, max_tokens=max_tokens, max_depth=depth, **settings)
    assert texts_of(memory) == plain.texts
    text, n_left = list(prompt), len(output)
    for done in forced(TARGET, memory, prompt, output, gamma):
        wanted = expected(plain, text, gamma if n_left > 1 else 0, n_left - 1, how)
        assert ([*done.drafted], [*done.parents]) == wanted
        text += done.tokens
        n_left -= len(done.tokens)
    assert n_left == 0
    plain.add(prompt, output)
    assert texts_of(memory) == plain.texts
    n_tokens = sum(len(before) + len(new) for before, new in plain.texts)
    assert (memory.n_texts, memory.n_tokens) == (len(plain.texts), n_tokens)


@pytest.mark.slow
@pytest.mark.parametrize("period", [1, 2, 7])
def test_long_texts(period: int) -> None:
    """Longer than a slice of sorting; periodic, where suffixes agree as far as they count. And a prompt of
    more than the 8192 tokens that a call reads."""
    rng = np.random.default_rng(period)
    long = (rng.integers(0, 3, period).tolist() * 2000)[:1500] + rng.integers(0, 3, 200).tolist()
    config = LLAMA | {"n_ctx": 9000, "n_layer": 1, "sliding_window": 8}
    target = model_of(config, random_tensors(config))
    plain = PlainMemory(depth=20)
    plain.add((), long)
    prompts = [long[:3], long[:1510], long] + [rng.integers(0, 3, 8700).tolist()] * (period == 7)
    for prompt in prompts:
        first = forced(target, memory_of([((), long)], max_depth=20), prompt, [0] * 20, 9)[0]
        assert ([*first.drafted], [*first.parents]) == expected(plain, prompt, 9, 19, (1, 1.0, 0.1, True))
        assert first.drafted


def test_memory_for_a_token() -> None:
    """8 bytes for a token of an output, 4 for one of a prompt, 12 for a text."""
    n, depth = 100_000, 1024
    ids = np.random.default_rng(0).integers(0, 1000, n)
    assert 8 * n <= memory_of([((), ids)]).n_bytes < 8 * n + 1000
    prompts = memory_of([(ids, [1])] * 20, max_depth=depth)
    assert 20 * 4 * depth <= prompts.n_bytes < 20 * (4 * depth + 8 + 12) + 1000


def test_many_occurrences_are_sampled_evenly() -> None:
    """Of 1200 occurrences, a third each of three continuations in the order of their contexts, 256 count."""
    texts = [((), [before, 7, 8, before]) for before in (1, 2, 3) for _ in range(400)]
    first = forced(TARGET, memory_of(texts, min_probability=0.01), [9, 7, 8], [1, 0, 0, 0], 8)[0]
    assert sorted(first.drafted) == [1, 2]  # two tokens match: the best two of three
    assert first.parents == (0, 0)


# ------------------------------------------------------------------------------------------ the draft


def test_calls_learn_from_one_another() -> None:
    """Fewer passes of the target the second time; whole texts and ends of prompts kept; same output."""
    target, _ = small_pair()
    memory = SuffixDecoding(max_depth=8)
    plain = specdec.generate(target, None, "Once upon a time", max_new_tokens=80)
    runs = [specdec.generate(target, memory, "Once upon a time", max_new_tokens=80) for _ in range(2)]
    assert [run.tokens for run in runs] == [plain.tokens] * 2
    assert len(runs[1].trace.rounds) < len(runs[0].trace.rounds) / 2
    before, output = memory.texts()[-1]
    assert output.tolist() == plain.tokens and before.tolist() == plain.prompt_ids[-8:]
    assert repr(memory) == f"<specdec.drafts.SuffixDecoding of 2 outputs, {memory.n_tokens} tokens>"


def test_of_a_call_that_ends_early_there_is_what_was_committed() -> None:
    target, prompts = small_pair()[0], ["Once upon a time", "One day"]
    plain = specdec.generate(target, None, prompts, max_new_tokens=60)
    memory = SuffixDecoding()
    stream = specdec.stream(target, memory, prompts[0], max_new_tokens=60)
    for _ in range(5):
        next(iter(stream))
    stream.close()
    [(_, output)] = memory.texts()
    assert 0 < len(output) < 60 and output.tolist() == plain[0].tokens[: len(output)]

    calls = iter(range(8))

    def stopping(probs: np.ndarray, tokens: list[int]) -> np.ndarray:
        if next(calls, None) is None:
            raise KeyboardInterrupt
        return probs

    memory = SuffixDecoding()
    with pytest.raises(KeyboardInterrupt):
        specdec.generate(target, memory, prompts, max_new_tokens=60, transform=stopping, stop="zzz")
    assert memory.n_texts == 2
    for (_, output), result in zip(memory.texts(), plain, strict=True):
        assert output.tolist() == result.tokens[: len(output)]
    with pytest.raises(InputError):
        specdec.generate(target, memory, [10**6])
    assert memory.n_texts == 2


def test_one_vocabulary() -> None:
    memory = SuffixDecoding()
    memory.add([1, 2, 10**6])
    with pytest.raises(VocabularyMismatchError, match="memory has the token 1000000; expected the target's"):
        specdec.generate(small_pair()[0], memory, "a", max_new_tokens=2)
    memory = SuffixDecoding()
    specdec.generate(small_pair()[0], memory, "a", max_new_tokens=2)
    for wrong in ([5000], [-1], ["a"], [0.5], [[1]]):
        with pytest.raises(InputError):
            memory.add(wrong)
    memory.n_vocab = 7
    with pytest.raises(VocabularyMismatchError, match="7 tokens; expected the target's"):
        specdec.generate(small_pair()[0], memory, "a", max_new_tokens=2)


@pytest.mark.statistical
def test_a_seed_that_is_used_twice_does_not_bias_the_distribution() -> None:
    """The second call has the seed of the first, whose output the memory drafts.

    With the random numbers of the first call, the number that produced the draft token would also choose
    the token after its rejection: of (0.5, 0.3, 0.2) the first would then have probability 0.40.
    """
    probabilities = np.array([0.5, 0.3, 0.2])

    def few(probs: np.ndarray, tokens: list[int]) -> np.ndarray:
        probs[:] = 0.0
        probs[10:13] = probabilities
        return probs

    counts, n_runs = np.zeros(3), 1000
    how: dict[str, Any] = {"max_new_tokens": 2, "temperature": 1.0, "transform": few, "ignore_eos": True}
    for seed in range(n_runs):
        memory = SuffixDecoding(min_match=1)
        for _ in range(2):
            result = specdec.generate(small_pair()[0], memory, [40], seed=seed, **how)
        assert result.trace.n_drafted
        counts[result.tokens[0] - 10] += 1
    assert np.abs(counts / n_runs - probabilities).max() < 4.5 * np.sqrt(0.25 / n_runs)


def test_seeds_of_a_memory() -> None:
    """The same calls of a new memory give the same samples; the same call again another one, but coupled."""
    options: dict[str, Any] = {"temperature": 1.0, "seed": 3, "max_new_tokens": 12}

    def calls(**more: Any) -> list[list[int]]:
        memory = SuffixDecoding()
        again = [specdec.generate(small_pair()[0], memory, "One day", **options, **more) for _ in range(2)]
        return [result.tokens for result in again]

    found = calls()
    assert calls() == found and found[0] != found[1]
    plain = specdec.generate(small_pair()[0], None, "One day", **options, verify="coupled").tokens
    assert calls(verify="coupled") == [plain, plain]


def test_keys_are_never_given_twice(tmp_path: Path) -> None:
    """Nor after loading a file; texts passed to `add` change them: another memory may have made these."""
    memory = SuffixDecoding()
    keys = [memory.rng_key() for _ in range(3)]
    memory.save(tmp_path / "memory")
    keys += [memory.rng_key()]
    again = SuffixDecoding.load(tmp_path / "memory")
    later = again.rng_key()
    assert len({*keys}) == 4 and later not in keys[:3]
    other = SuffixDecoding()
    other.add([1, 2, 3])
    assert other.rng_key() != keys[0]
    assert len(Ensemble(memory, other).rng_key()) == 4


# --------------------------------------------------------------------------------------------- files


def test_a_file_holds_all_of_it(tmp_path: Path) -> None:
    memory = SuffixDecoding(max_tokens=500, max_depth=9)
    specdec.generate(small_pair()[0], memory, ["Once upon a time", "One day"], max_new_tokens=30)
    memory.save(tmp_path / "memory")
    found = SuffixDecoding.load(tmp_path / "memory", factor=2.0, branches=False)
    assert (found.max_tokens, found.max_depth, found.n_vocab) == (500, 9, memory.n_vocab)
    assert (found.factor, found.branches) == (2.0, False)
    assert texts_of(found) == texts_of(memory)
    result = specdec.generate(small_pair()[0], found, "One day", max_new_tokens=30)
    assert result.trace.n_accepted > 15
    SuffixDecoding().save(tmp_path / "empty")
    assert SuffixDecoding.load(tmp_path / "empty").n_texts == 0
    assert SuffixDecoding.load(tmp_path / "memory", max_tokens=31).n_texts == 1


def test_damaged_files(tmp_path: Path) -> None:
    sound = {"n_vocab": "9", "max_tokens": "50", "max_depth": "4", "n_begun": "3", "origin": "0"}
    ints = lambda *values: np.array(values, np.int32)  # noqa: E731
    arrays = {"tokens": ints(1, 2, 3), "lengths": ints(2, 1), "n_before": ints(1, 0)}

    def write(metadata: dict[str, str], arrays: dict[str, Any]) -> Path:
        path = tmp_path / "memory.safetensors"
        save_file(arrays, path, SuffixDecoding.metadata | sound | metadata)
        return path

    assert SuffixDecoding.load(write({}, arrays)).n_texts == 2
    for metadata, changed, message in [
        ({"format": "other"}, {}, "'format' is \"other\""),
        ({"max_depth": "0"}, {}, "'max_depth' is .*expected an integer, 1 to 1024"),
        ({"max_tokens": "x"}, {}, "'max_tokens' is"),
        ({"n_vocab": "-1"}, {}, "'n_vocab' is"),
        ({"n_vocab": "3"}, {}, "the token 3; expected 0 to 2"),
        ({"n_begun": "9" * 30}, {}, "'n_begun'"),
        ({}, {"tokens": ints(1, -2, 3)}, r"tokens\[1\] is -2"),
        ({}, {"lengths": ints(2, 2)}, "add up to 4, expected 3"),
        ({}, {"n_before": ints(3, 0)}, r"n_before\[0\] is 3"),
        ({}, {"n_before": ints(0)}, "2 lengths and 1 n_before"),
        ({}, {"tokens": np.array([1, 2, 3])}, "dtype int64; expected one dimension and int32"),
        ({}, {"more": ints(1)}, "tensor 'more' is not part of a suffix memory"),
    ]:
        with pytest.raises(CheckpointError, match=rf"memory\.safetensors.*{message}"):
            SuffixDecoding.load(write(metadata, arrays | changed))
    for name in arrays:
        with pytest.raises(CheckpointError, match=f"tensor '{name}' is missing"):
            SuffixDecoding.load(write({}, {key: array for key, array in arrays.items() if key != name}))
    with pytest.raises(CheckpointError):
        SuffixDecoding.load(tmp_path / "nothing")


@needs_hooks
def test_allocations_that_fail_leave_the_memory_as_it_was() -> None:
    memory = memory_of([([1], [2, 3])])
    before = texts_of(memory)
    for n in range(10):
        try:
            with allowing(n):
                memory.add([4, 5, 6])
            break
        except MemoryError:
            assert texts_of(memory) == before
    assert n > 1 and texts_of(memory) == [*before, ((), (4, 5, 6))]
