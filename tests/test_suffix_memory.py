"""Suffix decoding: the tree against counting by hand, every guess against the method in plain Python."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import specdec
from allocations import allowing, fail_each_allocation, needs_hooks, nothing_leaks
from descriptions import by_method
from sessions import Session
from specdec import CheckpointError, InputError, VocabularyMismatchError, _core
from specdec.drafts import Ensemble, ModelDraft, SuffixMemory
from worlds.canonical import LLAMA, build, random_tensors, run_session

CONFIG = LLAMA | {"n_ctx": 512, "n_layer": 1}
TARGET = build(CONFIG, random_tensors(CONFIG))

Tokens = tuple[int, ...]

# ------------------------------------------------------------------------------- the method in plain Python


class PlainMemory:
    """Texts as (end of the prompt, output), the oldest first."""

    def __init__(self, max_tokens: int = 10**6, depth: int = 64) -> None:
        self.max_tokens, self.depth = max_tokens, depth
        self.texts: list[tuple[Tokens, Tokens]] = []

    def add(self, before: Sequence[int], output: Sequence[int]) -> None:
        text = (*before, *output)
        cut = max(0, len(text) - self.max_tokens)
        n_before = max(len(before) - cut, 0)
        text = text[cut:]
        self.texts.append((text[:n_before], text[n_before:]))
        while sum(len(a) + len(b) for a, b in self.texts) > self.max_tokens:
            self.texts.pop(0)

    def following(self, text: Sequence[int]) -> tuple[int, list[Tokens]]:
        """How long the longest suffix is that an output's token follows, and what follows it everywhere."""
        places = []
        for before, output in self.texts:
            whole = before + output
            places += [
                (whole[: i + 1], whole[i + 1 :]) for i in range(max(len(before) - 1, 0), len(whole) - 1)
            ]
        for length in range(min(self.depth, len(text)), 0, -1):
            suffix = tuple(text[-length:])
            if found := [after for before, after in places if before[-length:] == suffix]:
                return length, found
        return 0, []


def in_text(text: Sequence[int], depth: int) -> tuple[int, list[Tokens]]:
    """The same of what followed earlier in the text itself."""
    memory = PlainMemory(depth=depth)
    memory.add((), text)
    return memory.following(text)


def guesses(
    following: list[Tokens], n: int, depth: int, min_value: float, branches: bool
) -> tuple[list[int], list[int], float]:
    """Tokens, parents and Σ of the values of the best n guesses, or of the best chain."""
    counts = Counter(after[:k] for after in following for k in range(len(after) + 1))
    values = {(): 1.0}
    made: list[Tokens] = [()]
    waiting: list[Tokens] = []

    def offer(parent: Tokens) -> None:
        for child in sorted(way for way in counts if len(way) == len(parent) + 1 and way[:-1] == parent):
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
    ways = made[1:]
    return [way[-1] for way in ways], [made.index(way[:-1]) for way in ways], sum(values[way] for way in ways)


def expected(
    memory: PlainMemory, text: list[int], n: int, depth: int, how: tuple[int, float, float, bool]
) -> tuple[list[int], list[int]]:
    """What is guessed after a text; `how` is min_match, factor, min_probability, branches."""
    min_match, factor, min_value, branches = how
    found = []
    for length, following in (in_text(text, memory.depth), memory.following(text)):
        most = min(n, max(1, int(length * factor))) if length >= min_match and depth > 0 else 0
        found.append(guesses(following, most, depth, min_value, branches))
    own, remembered = found
    return (remembered if remembered[2] > own[2] else own)[:2]


def tree_of(
    texts: Sequence[tuple[Sequence[int], Sequence[int]]], max_tokens: int = 10**6, depth: int = 64
) -> Any:
    tree = _core.SuffixTree(max_tokens, depth)
    for before, output in texts:
        tree.add(np.array([*before, *output], np.int32), [len(before) + len(output)], [len(before)])
    return tree


def texts_of(tree: Any) -> list[tuple[Tokens, Tokens]]:
    tokens, lengths, n_before = tree.texts()
    found = []
    for length, n in zip(lengths, n_before, strict=True):
        text, tokens = tuple(tokens[:length].tolist()), tokens[length:]
        found.append((text[:n], text[n:]))
    assert len(tokens) == 0
    return found


# ------------------------------------------------------------------------------------------- the tree

SHORT = st.lists(st.integers(0, 2), max_size=12)
OUTPUT = st.lists(st.integers(0, 2), min_size=1, max_size=12)
TEXTS = st.lists(st.tuples(st.lists(st.integers(0, 2), max_size=5), OUTPUT), max_size=7)


@settings(deadline=None, max_examples=100)
@given(TEXTS, SHORT, st.integers(1, 40), st.integers(1, 6))
def test_suffixes_and_how_often_they_occurred(
    texts: list[tuple[list[int], list[int]]], other: list[int], max_tokens: int, depth: int
) -> None:
    """One by one and all at once, and after texts have left."""
    plain = PlainMemory(max_tokens, depth)
    for before, output in texts:
        plain.add(before, output)
    trees = [tree_of(texts, max_tokens, depth), _core.SuffixTree(max_tokens, depth)]
    whole = [token for before, output in texts for token in [*before, *output]]
    trees[1].add(np.array(whole, np.int32), [len(a) + len(b) for a, b in texts], [len(a) for a, _ in texts])
    n_tokens = sum(len(a) + len(b) for a, b in plain.texts)
    for tree in trees:
        assert texts_of(tree) == plain.texts
        assert (tree.n_texts, tree.n_tokens) == (len(plain.texts), n_tokens)
        assert tree.max_token == max([0, *(token for a, b in plain.texts for token in a + b)])
        for n in range(len(other) + 1):
            length, following = plain.following(other[:n])
            assert tree.find(other[:n]) == (length, len(following))


@pytest.mark.grid
@pytest.mark.parametrize("period", [1, 2, 7])
def test_a_long_text(period: int) -> None:
    """Longer than a slice of sorting; periodic, where suffixes agree as far as they count."""
    rng = np.random.default_rng(period)
    text = (rng.integers(0, 3, period).tolist() * 2000)[:1500] + rng.integers(0, 3, 200).tolist()
    plain = PlainMemory(depth=20)
    plain.add((), text)
    tree = tree_of([((), text)], depth=20)
    for end in (3, 1000, 1510, 1700):
        length, following = plain.following(text[:end])
        assert tree.find(text[:end]) == (length, len(following))


def test_memory_for_a_token() -> None:
    """8 bytes for a token of an output, 4 for one of a prompt, 12 for a text."""
    n = 100_000
    rng = np.random.default_rng(0)
    tree = tree_of([((), rng.integers(0, 1000, n))])
    assert 8 * n <= tree.n_bytes < 8 * n + 1000
    tree = tree_of([(rng.integers(0, 1000, n), [1])])
    assert 4 * n <= tree.n_bytes < 4 * n + 1000


def test_what_is_no_suffix_tree() -> None:
    for arguments, message in [
        ((0, 1), "max_tokens is 0"),
        ((2**28 + 1, 1), "max_tokens is"),
        ((1, 0), "depth is 0"),
        ((1, 1025), "depth is 1025"),
    ]:
        with pytest.raises(ValueError, match=message):
            _core.SuffixTree(*arguments)
    tree = _core.SuffixTree(9, 3)
    for tokens, lengths, n_before, message in [
        ([1, 2], [1], [0], "add up to 1, expected 2"),
        ([1, 2], [3, -1], [0, 0], r"lengths\[1\] is -1"),
        ([1, 2], [2], [3], r"n_before\[0\] is 3"),
        ([1, 2], [2], [], "1 lengths and 0 n_before"),
        ([1, -2], [2], [0], r"tokens\[1\] is -2"),
    ]:
        with pytest.raises(ValueError, match=message):
            tree.add(np.array(tokens, np.int32), lengths, n_before)
    with pytest.raises(ValueError, match=r"tokens: expected .* int32"):
        tree.add(np.zeros(2), [2], [0])
    assert (tree.n_texts, tree.n_tokens, tree.find([1]), texts_of(tree)) == (0, 0, (0, 0), [])


# --------------------------------------------------------------------------------------- the guesses


def how(
    tree: Any, min_match: int = 1, factor: float = 1.0, min_probability: float = 0.1, branches: bool = True
) -> tuple[str, dict[str, Any]]:
    return by_method("suffix_memory", tree, min_match, factor, min_probability, branches)


def forced(draft: object, prompt: list[int], output: list[int], gamma: int) -> list[dict[str, Any]]:
    """The rounds in which the target writes just this."""
    text = prompt + output

    def transform(probs: np.ndarray, tokens: list[int]) -> np.ndarray:
        probs[:] = 0.0
        probs[text[len(tokens)] if tokens == text[: len(tokens)] and len(tokens) < len(text) else 0] = 1.0
        return probs

    found, _, records = run_session(
        TARGET, draft, [prompt], gamma=gamma, max_new_tokens=len(output), transform=transform
    )
    assert found[0][: len(output)] == output
    return records


SOME = st.lists(st.integers(0, 3), min_size=1, max_size=20)


@settings(deadline=None, max_examples=100)
@given(
    TEXTS, SOME, SOME, st.integers(1, 8), st.sampled_from([1, 3, 9]),
    st.tuples(
        st.integers(1, 3), st.sampled_from([0.3, 1.0, 2.5]), st.sampled_from([0.01, 0.3, 1.0]), st.booleans()
    ),
)  # fmt: skip
def test_guesses_are_those_of_the_method_in_plain_python(
    texts: list[tuple[list[int], list[int]]], prompt: list[int], output: list[int], depth: int, gamma: int,
    settings_of: tuple[int, float, float, bool],
) -> None:  # fmt: skip
    plain = PlainMemory(depth=depth)
    for before, new in texts:
        plain.add(before, new)
    text, n_left = list(prompt), len(output)
    for record in forced(how(tree_of(texts, depth=depth), *settings_of), prompt, output, gamma):
        wanted = expected(plain, text, gamma if n_left > 1 else 0, n_left - 1, settings_of)
        assert (record["drafted"], record["parents"]) == wanted
        text += record["tokens"]
        n_left -= len(record["tokens"])
    assert n_left == 0


@pytest.mark.slow
def test_a_prompt_that_is_read_in_slices() -> None:
    """Longer than the 8192 tokens that a call reads."""
    config = LLAMA | {"n_ctx": 9000, "n_layer": 1, "sliding_window": 8}
    target = build(config, random_tensors(config))
    prompt = np.random.default_rng(1).integers(0, 3, 8700).tolist()
    plain = PlainMemory(depth=30)
    session = Session(
        target, how(_core.SuffixTree(9, 30)), [prompt], gamma=9, max_new_tokens=20, n_threads=1,
        sampling={"temperature": 0.0}, draft_sampling={"temperature": 0.0}, seeds=[(0, 0)],
    )  # fmt: skip
    session.prefill()
    [record] = session.round()
    assert (record["drafted"], record["parents"]) == expected(plain, prompt, 9, 19, (1, 1.0, 0.1, True))
    assert record["drafted"]


def test_the_tree_that_promises_more_is_taken() -> None:
    """By hand: the text's own suffix is shorter; of the memory's two ways one is twice as frequent."""
    texts = [((), [1, 2, 3, 4, 5, 6]), ((), [1, 2, 3, 4, 7, 6]), ((), [1, 2, 3, 4, 5, 8])]
    tree = tree_of(texts)
    first = forced(how(tree), [3, 9, 1, 2, 3, 4], [5, 0], 8)[0]
    assert (first["drafted"], first["parents"]) == ([5, 7], [0, 0])  # the text ends behind the next two
    first = forced(how(tree), [3, 9, 1, 2, 3, 4], [5, 8, 0, 0, 0], 8)[0]
    # 5 has 2/3, then 6 and 8 behind it 1/3 each and 7 1/3, found earlier; four tokens match, so four guesses
    assert (first["drafted"], first["parents"]) == ([5, 7, 6, 8], [0, 0, 1, 1])
    assert forced(how(tree, 1, 0.5), [1, 2, 3, 4], [5, 8, 0, 0], 8)[0]["drafted"] == [5, 7]
    chain = forced(how(tree, branches=False), [1, 2, 3, 4], [5, 8, 0, 0], 8)[0]
    assert (chain["drafted"], chain["parents"]) == ([5, 6], [0, 1])
    assert forced(how(tree, min_match=5), [1, 2, 3, 4], [5, 8, 0, 0], 8)[0]["drafted"] == []
    assert forced(how(tree, 1, 1.0, 0.5), [1, 2, 3, 4], [5, 8, 0, 0], 8)[0]["drafted"] == [5]
    own = forced(how(tree_of([])), [1, 2, 3, 9, 2, 3], [9, 2, 3, 9, 2], 8)[0]
    assert own["drafted"] == [9, 2]  # as many as match, from the text itself


def test_many_occurrences_are_sampled_evenly() -> None:
    """Of 1200 occurrences, a third each of three ways in the order of what stands before them, 256 count."""
    texts = [((), [before, 7, 8, before]) for before in (1, 2, 3) for _ in range(400)]
    first = forced(how(tree_of(texts), min_probability=0.01), [9, 7, 8], [1, 0, 0, 0], 8)[0]
    assert sorted(first["drafted"]) == [1, 2]  # two tokens match: the best two of three
    assert first["parents"] == [0, 0]


def test_the_whole_of_a_repeated_request_is_guessed() -> None:
    """The end of the prompt is remembered too, so that the first round guesses already."""
    prompt, output = [5, 1, 2, 3], [*range(10, 30), 4]
    tree = tree_of([(prompt, output)])
    rounds = forced(how(tree, factor=8.0), prompt, output, 30)
    assert [len(record["tokens"]) for record in rounds] == [21]


# ------------------------------------------------------------------------------------------ the draft


def test_calls_learn_from_one_another(pair: tuple[specdec.Model, specdec.Model]) -> None:
    """Fewer calls of the target the second time, whole texts and the ends of prompts kept, output as ever."""
    target, _ = pair
    memory = SuffixMemory(max_depth=8)
    plain = specdec.generate(target, None, "Once upon a time", max_new_tokens=80)
    runs = [specdec.generate(target, memory, "Once upon a time", max_new_tokens=80) for _ in range(2)]
    assert [run.tokens for run in runs] == [plain.tokens] * 2
    assert len(runs[1].trace.rounds) < len(runs[0].trace.rounds) / 2
    before, output = memory.texts()[-1]
    assert output.tolist() == plain.tokens and before.tolist() == plain.prompt_ids[-8:]
    assert repr(memory) == f"<specdec.drafts.SuffixMemory of 2 outputs, {memory.n_tokens} tokens>"


@pytest.fixture(scope="module")
def pair() -> tuple[specdec.Model, specdec.Model]:
    return specdec.embedded_pair()


def test_a_slot_that_is_taken_again_knows_the_text_before(pair: tuple[specdec.Model, specdec.Model]) -> None:
    prompts = ["Once upon a time"] * 3
    memory = SuffixMemory()
    results = specdec.generate(pair[0], memory, prompts, max_new_tokens=40, batch_size=1)
    n_rounds = [len(result.trace.rounds) for result in results]
    assert n_rounds[1] < n_rounds[0] and memory.n_texts == 3
    assert len({tuple(result.tokens) for result in results}) == 1


def test_within_other_drafts(pair: tuple[specdec.Model, specdec.Model]) -> None:
    """In an ensemble and as the draft of a draft; with gamma="auto"."""
    target, small = pair
    plain = specdec.generate(target, None, "Once upon a time", max_new_tokens=40)
    for make in (
        lambda memory: Ensemble(memory, small),
        lambda memory: Ensemble(memory, small, adaptive=False),
        lambda memory: ModelDraft(small, draft=memory),
        lambda memory: memory,
    ):
        memory = SuffixMemory()
        draft = make(memory)
        for _ in range(2):
            result = specdec.generate(target, draft, "Once upon a time", max_new_tokens=40, gamma="auto")
            assert result.tokens == plain.tokens
        assert [output.tolist() for _, output in memory.texts()] == [plain.tokens] * 2


def test_of_a_call_that_ends_early_there_is_what_was_committed(
    pair: tuple[specdec.Model, specdec.Model],
) -> None:
    target, _ = pair
    memory = SuffixMemory()
    stream = specdec.stream(target, memory, "Once upon a time", max_new_tokens=60)
    for _ in range(5):
        next(iter(stream))
    stream.close()
    [(_, output)] = memory.texts()
    plain = specdec.generate(target, None, "Once upon a time", max_new_tokens=60)
    assert 0 < len(output) < 60 and output.tolist() == plain.tokens[: len(output)]

    calls = 0

    def stopping(probs: np.ndarray, tokens: list[int]) -> np.ndarray:
        nonlocal calls
        calls += 1
        if calls == 9:
            raise KeyboardInterrupt
        return probs

    memory = SuffixMemory()
    prompts = ["Once upon a time", "One day"]
    with pytest.raises(KeyboardInterrupt):
        specdec.generate(target, memory, prompts, max_new_tokens=60, transform=stopping, stop="zzz")
    whole = specdec.generate(target, None, prompts, max_new_tokens=60)
    assert memory.n_texts == 2
    for (_, output), result in zip(memory.texts(), whole, strict=True):
        assert output.tolist() == result.tokens[: len(output)]
    before = memory.texts()
    with pytest.raises(InputError):
        specdec.generate(target, memory, [10**6])
    assert len(before) == memory.n_texts


def test_one_vocabulary(pair: tuple[specdec.Model, specdec.Model]) -> None:
    memory = SuffixMemory()
    memory.add([1, 2, 10**6])
    with pytest.raises(VocabularyMismatchError, match="memory has the token 1000000; expected the target's"):
        specdec.generate(pair[0], memory, "a", max_new_tokens=2)
    with pytest.raises(ValueError, match="memory has the token 1000000, expected 0 to 100"):
        run_session(TARGET, how(memory._tree), [[1, 2]])
    memory = SuffixMemory()
    specdec.generate(pair[0], memory, "a", max_new_tokens=2)
    for wrong in ([5000], [-1], ["a"], [0.5], [[1]]):
        with pytest.raises(InputError):
            memory.add(wrong)
    memory.n_vocab = 7
    with pytest.raises(VocabularyMismatchError, match="7 tokens; expected the target's"):
        specdec.generate(pair[0], memory, "a", max_new_tokens=2)


@pytest.mark.parametrize(
    "arguments",
    [
        {"max_tokens": 0}, {"max_depth": 0}, {"max_depth": 1025}, {"factor": 0.0}, {"factor": float("nan")},
        {"min_probability": 0.0}, {"min_probability": 1.1}, {"min_match": 0}, {"gamma": 1025},
        {"branches": 2},
    ],
    ids=str,
)  # fmt: skip
def test_arguments_out_of_range(arguments: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=next(iter(arguments))):
        SuffixMemory(**arguments)


# ----------------------------------------------------------------------------------------- exactness


@pytest.mark.law
def test_a_seed_that_is_used_twice_does_not_bend_the_law(pair: tuple[specdec.Model, specdec.Model]) -> None:
    """The second call has the seed of the first, whose output the memory guesses.

    Were the random numbers those of the first call, the number that made the guess would choose the token
    after its rejection: of (0.5, 0.3, 0.2) the first would then come with 0.40.
    """
    target, _ = pair
    law = np.array([0.5, 0.3, 0.2])

    def few(probs: np.ndarray, tokens: list[int]) -> np.ndarray:
        probs[:] = 0.0
        probs[10:13] = law
        return probs

    counts: Counter[int] = Counter()
    n_runs = 1000
    for seed in range(n_runs):
        memory = SuffixMemory(min_match=1)
        for _ in range(2):
            result = specdec.generate(
                target,
                memory,
                [40],
                max_new_tokens=2,
                temperature=1.0,
                transform=few,
                seed=seed,
                ignore_eos=True,
            )
        assert result.trace.n_drafted
        counts[result.tokens[0]] += 1
    found = np.array([counts[10 + i] for i in range(3)]) / n_runs
    assert np.abs(found - law).max() < 4.5 * np.sqrt(0.25 / n_runs)


def test_seeds_of_a_memory(pair: tuple[specdec.Model, specdec.Model]) -> None:
    """The same calls of a new memory give the same samples; the same call again another one, but coupled."""
    options: dict[str, Any] = {"temperature": 1.0, "seed": 3, "max_new_tokens": 12}

    def calls(**more: Any) -> list[list[int]]:
        memory = SuffixMemory()
        prompts = ["One day", "One day"]
        return [specdec.generate(pair[0], memory, prompt, **options, **more).tokens for prompt in prompts]

    found = calls()
    assert calls() == found
    assert found[0] != found[1]
    plain = specdec.generate(pair[0], None, "One day", **options, verify="coupled").tokens
    assert calls(verify="coupled") == [plain, plain]


def test_keys_are_never_given_twice(tmp_path: Path) -> None:
    """Nor after a file; and what was added by hand changes them, as another memory may have made it."""
    memory = SuffixMemory()
    keys = [memory.text_key() for _ in range(3)]
    memory.save(tmp_path / "memory")
    keys += [memory.text_key()]
    again = SuffixMemory.load(tmp_path / "memory")
    later = again.text_key()
    assert len({*keys}) == 4 and later not in keys[:3]
    other = SuffixMemory()
    other.add([1, 2, 3])
    assert other.text_key() != keys[0]
    small = Ensemble(memory, other)
    assert len(small.text_key()) == 4


# --------------------------------------------------------------------------------------------- files


def test_a_file_holds_all_of_it(tmp_path: Path, pair: tuple[specdec.Model, specdec.Model]) -> None:
    memory = SuffixMemory(max_tokens=500, max_depth=9)
    specdec.generate(pair[0], memory, ["Once upon a time", "One day"], max_new_tokens=30)
    memory.save(tmp_path / "memory")
    found = SuffixMemory.load(tmp_path / "memory", factor=2.0, branches=False)
    assert (found.max_tokens, found.max_depth, found.n_vocab) == (500, 9, memory.n_vocab)
    assert (found.factor, found.branches) == (2.0, False)
    for (before, output), (a, b) in zip(memory.texts(), found.texts(), strict=True):
        assert np.array_equal(before, a) and np.array_equal(output, b)
    result = specdec.generate(pair[0], found, "One day", max_new_tokens=30)
    assert result.trace.n_accepted > 15
    SuffixMemory().save(tmp_path / "empty")
    assert SuffixMemory.load(tmp_path / "empty").n_texts == 0
    assert SuffixMemory.load(tmp_path / "memory", max_tokens=31).n_texts == 0 + 1


def test_damaged_files(tmp_path: Path) -> None:
    from specdec.models.checkpoints.safetensors_file import write_safetensors

    sound = {"n_vocab": "9", "max_tokens": "50", "max_depth": "4", "n_begun": "3", "origin": "0"}
    ints = lambda *values: np.array(values, np.int32)  # noqa: E731
    arrays = {"tokens": ints(1, 2, 3), "lengths": ints(2, 1), "n_before": ints(1, 0)}

    def write(metadata: dict[str, str], arrays: dict[str, Any]) -> Path:
        path = tmp_path / "memory.safetensors"
        write_safetensors(path, arrays, SuffixMemory.metadata | sound | metadata)
        return path

    assert SuffixMemory.load(write({}, arrays)).n_texts == 2
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
        ({}, {"more": ints(1)}, "tensor 'more' is none of a suffix memory"),
    ]:
        with pytest.raises(CheckpointError, match=message) as caught:
            SuffixMemory.load(write(metadata, arrays | changed))
        assert "memory.safetensors" in str(caught.value)
    for name in arrays:
        with pytest.raises(CheckpointError, match=f"tensor '{name}' is missing"):
            SuffixMemory.load(write({}, {key: array for key, array in arrays.items() if key != name}))
    with pytest.raises(CheckpointError):
        SuffixMemory.load(tmp_path / "nothing")


# ---------------------------------------------------------------------------------- memory and threads


@needs_hooks
@pytest.mark.slow
@pytest.mark.usefixtures("quick_gc")
def test_allocations_that_fail_leave_the_memory_as_it_was() -> None:
    tree = tree_of([([1], [2, 3])])
    before = texts_of(tree)

    def add() -> None:
        tree.add(np.array([4, 5, 6], np.int32), [3], [0])

    for n in range(10):
        try:
            with allowing(n):
                add()
        except MemoryError:
            assert texts_of(tree) == before
        else:
            break
    assert n > 1 and texts_of(tree) == [*before, ((), (4, 5, 6))]
    assert fail_each_allocation(lambda: _core.SuffixTree(10, 3)) > 0
    made = how(tree_of([((), [1, 2, 3])]))
    fail_each_allocation(lambda: run_session(TARGET, made, [[1, 2]], max_new_tokens=3))


@needs_hooks
def test_an_old_tree_lives_as_long_as_it_is_read() -> None:
    """A session goes on with the tree of its beginning, which is freed with it; a round does not allocate."""
    with nothing_leaks():
        tree = tree_of([((), [1, 2, 3, 4])])
        session = Session(
            TARGET, how(tree), [[1, 2]], gamma=4, max_new_tokens=20, sampling={"temperature": 0.0},
            draft_sampling={"temperature": 0.0}, seeds=[(0, 0)], n_threads=1,
        )  # fmt: skip
        session.prefill()
        tree.add(np.array([1, 2, 9], np.int32), [3], [0])
        with allowing(0):
            records = session.round()
        assert records[0]["drafted"] == [3, 4]
        while session.round():
            pass
        del tree
        session.close()
        del session


def test_threads_share_a_memory(pair: tuple[specdec.Model, specdec.Model]) -> None:
    """Each adds texts, of which the oldest leave, while all draft from it."""
    target, _ = pair
    memory = SuffixMemory(max_tokens=400)
    prompts = ["Once upon a time", "One day", "The"]
    plain = {p: specdec.generate(target, None, p, max_new_tokens=25).tokens for p in prompts}
    wrong: list[object] = []

    def work(i: int) -> None:
        try:
            for j in range(6):
                prompt = prompts[(i + j) % 3]
                result = specdec.generate(target, memory, prompt, max_new_tokens=25, n_threads=1)
                if result.tokens != plain[prompt]:
                    wrong.append(result)
                memory.add(result.tokens[:5])
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert memory.n_tokens <= 400 < memory.n_tokens + 60
