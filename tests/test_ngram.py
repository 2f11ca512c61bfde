"""N-gram drafts: counts and formulas in plain Python, files, and the core's draws."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

import specdec
from descriptions import by_method
from refusals import refuses
from sessions import Session, all_rounds
from specdec import InputError
from specdec.drafts import Bigram, Ngram, OnlineNgram, Unigram
from specdec.errors import CheckpointError, CheckpointNotFoundError
from trained import small_pair
from worlds.canonical import LLAMA, random_model, with_drafts

N_VOCAB = LLAMA["n_vocab"]
SMOOTHINGS = ["interpolated", "backoff"]

# ------------------------------------------------------------------------------ counts and formulas


def expected(
    texts: list[list[int]], n_vocab: int, n: int, smoothing: str, context: list[int], min_count: int = 1
) -> list[float]:
    """Compute the docstring of `Ngram`, token by token with dicts."""
    grams = Counter(
        tuple(text[i : i + k]) for text in texts for k in range(1, n + 1) for i in range(len(text) - k + 1)
    )
    grams = Counter({gram: m for gram, m in grams.items() if m >= min_count or len(gram) == 1})
    singles = {gram[0]: m for gram, m in grams.items() if len(gram) == 1}
    probs = [
        (singles.get(x, 0) + len(singles) / n_vocab) / (sum(singles.values()) + len(singles))
        for x in range(n_vocab)
    ]
    for k in range(1, n):
        h = tuple(context[-k:])
        after = {gram[-1]: m for gram, m in grams.items() if len(gram) == k + 1 and gram[:-1] == h}
        if len(h) < k or not after:
            continue
        total, different = sum(after.values()), len(after)
        if smoothing == "interpolated":
            probs = [(after.get(x, 0) + different * probs[x]) / (total + different) for x in range(n_vocab)]
        else:
            rest = max(1.0 - sum(probs[x] for x in after), 1e-9)
            probs = [
                after[x] / (total + different)
                if x in after
                else different / (total + different) * probs[x] / rest
                for x in range(n_vocab)
            ]
    return [p / sum(probs) for p in probs]


TEXTS = st.lists(st.lists(st.integers(0, 4), max_size=30), min_size=1, max_size=4).filter(any)


@given(TEXTS, st.integers(1, 5), st.sampled_from(SMOOTHINGS), st.integers(1, 2), st.lists(st.integers(0, 4)))
@settings(max_examples=300, deadline=None)
def test_probabilities_are_those_of_the_formula(
    texts: list[list[int]], n: int, smoothing: str, min_count: int, asked: list[int]
) -> None:
    table = Ngram(texts, 5, n, smoothing=smoothing, min_count=min_count)
    found = table.probabilities(asked)
    assert found.shape == (len(asked), 5)
    for i, row in enumerate(found):
        wanted = expected(texts, 5, n, smoothing, asked[: i + 1], min_count)
        np.testing.assert_allclose(row, wanted, rtol=1e-6, atol=1e-12)
    np.testing.assert_allclose(found.sum(axis=1), 1.0, rtol=1e-12)


TEXT = [0, 1, 0, 2, 0, 1, 3]  # of 5 tokens; 4 never occurs
P = (np.array([3, 2, 1, 1, 0]) + 4 / 5) / (7 + 4)  # 4 different tokens among 7


def test_unigrams_and_bigrams_by_hand() -> None:
    """After 0 came 1 twice and 2 once; after 1 came 0 and 3; after 2 came 0; after 3 and 4 nothing."""
    np.testing.assert_allclose(Unigram(TEXT, 5).probabilities([3, 0, 4]), [P, P, P], rtol=1e-15)
    found = Bigram(TEXT, 5).probabilities([0, 1, 2, 3, 4])
    np.testing.assert_allclose(found[0], (np.array([0, 2, 1, 0, 0]) + 2 * P) / (3 + 2), rtol=1e-14)
    np.testing.assert_allclose(found[1], (np.array([1, 0, 0, 1, 0]) + 2 * P) / (2 + 2), rtol=1e-14)
    np.testing.assert_allclose(found[2], (np.array([1, 0, 0, 0, 0]) + P) / (1 + 1), rtol=1e-14)
    np.testing.assert_array_equal(found[3:], [Unigram(TEXT, 5).probs] * 2)


def test_trigrams_by_hand() -> None:
    """0 1 was followed by 0 and 3, once each; 1 0 by 2; 3 0 by nothing, so 0 decides: 1 twice, 2 once."""
    pairs = Bigram(TEXT, 5).probabilities([0, 1])
    found = Ngram(TEXT, 5, 3).probabilities([0, 1, 0])
    np.testing.assert_allclose(found[1], (np.array([1, 0, 0, 1, 0]) + 2 * pairs[1]) / (2 + 2), rtol=1e-14)
    np.testing.assert_allclose(found[2], (np.array([0, 0, 1, 0, 0]) + pairs[0]) / (1 + 1), rtol=1e-14)
    np.testing.assert_allclose(found[2][2], (1 + (1 + 2 * (1 + 4 / 5) / 11) / 5) / 2, rtol=1e-14)
    np.testing.assert_allclose(Ngram(TEXT, 5, 3).probabilities([3, 0])[1], pairs[0], rtol=1e-14)


def test_memory_grows_with_the_pairs() -> None:
    (pairs,) = Bigram(np.arange(1000), 200_000).counts.levels
    assert len(pairs.tokens) == len(pairs.counts) == 999
    assert len(pairs.starts) == 200_001


@pytest.mark.parametrize("draft", [Unigram, Bigram])
@pytest.mark.parametrize("ids", [[], [[], []], [0, 5], [0, -1], [0.5]], ids=str)
def test_what_cannot_be_counted_is_refused(draft: type[Ngram], ids: Any) -> None:
    with pytest.raises(InputError, match="ids"):
        draft(ids, 5)
    with refuses("n_vocab", 0):
        draft([0], 0)
    with pytest.raises(InputError, match=r"ids\[0\] is 9"):
        draft([0], 5).probabilities([9])
    assert draft([0, 1], 5).probabilities([]).shape == (0, 5)
    with pytest.raises(specdec.VocabularyMismatchError, match="draft has 5 tokens"):
        specdec.generate(small_pair()[0], draft([0], 5), "It was")


@given(TEXTS, TEXTS, st.integers(1, 4))
@settings(max_examples=100, deadline=None)
def test_an_update_is_as_if_all_had_been_counted_at_once(
    first: list[list[int]], second: list[list[int]], n: int
) -> None:
    table, together = Ngram(first, 5, n), Ngram([*first, *second], 5, n)
    before = table.core
    table.probabilities([0])
    table.update(second)
    assert table.core is not before
    assert_same(table, together)
    np.testing.assert_array_equal(table.probabilities([1, 2, 3]), together.probabilities([1, 2, 3]))


def assert_same(a: Ngram, b: Ngram) -> None:
    assert (a.n, a.n_vocab, a.smoothing) == (b.n, b.n_vocab, b.smoothing)
    np.testing.assert_array_equal(a.counts.unigrams, b.counts.unigrams)
    for mine, theirs in zip(a.counts.levels, b.counts.levels, strict=True):
        np.testing.assert_array_equal(mine.starts, theirs.starts)
        np.testing.assert_array_equal(mine.tokens, theirs.tokens)
        np.testing.assert_array_equal(mine.counts, theirs.counts)


@pytest.mark.parametrize(
    ("name", "value"), [("n", 0), ("n", 9), ("n", True), ("smoothing", "katz"), ("min_count", 0)]
)
def test_bad_arguments_are_refused(name: str, value: Any) -> None:
    with refuses(name, value):
        Ngram([0, 1], 5, **{name: value})
    for texts in ("text", ["text", "more"]):
        with pytest.raises(InputError, match="ids is a text; expected token ids .from_text"):
            Ngram(texts, 600, 3)


def test_a_bad_update_changes_nothing() -> None:
    table = Ngram([0, 1, 2], 5, 2)
    with pytest.raises(InputError, match=r"ids\[1\] is 5"):
        table.update([0, 5])
    assert_same(table, Ngram([0, 1, 2], 5, 2))


def test_counts_of_what_the_target_writes() -> None:
    """They draft the target's text, all of it if they have counted it."""
    target, prompts = small_pair()[0], ["It was", "Once upon a time"]
    results = specdec.generate(target, None, prompts, max_new_tokens=30)
    table = Ngram.from_results(results, target, 4)
    with pytest.raises(InputError, match=r"results\[1\] is 7; expected a specdec.Result"):
        Ngram.from_results([results[0], 7], target)
    texts = [[*result.prompt_ids, *result.tokens] for result in results]
    assert_same(table, Ngram(texts, target.config["n_vocab"], 4))
    out = specdec.generate(target, table, prompts[0], max_new_tokens=30)
    assert out.trace.acceptance_rate > 0.5


@pytest.mark.parametrize(("table_type", "n"), [(Unigram, 1), (Bigram, 2), (Ngram, 3)])
def test_a_table_from_text_results_or_a_file_has_the_n_of_its_class(
    tmp_path: Path, table_type: type[Ngram], n: int
) -> None:
    target, file = small_pair()[0], tmp_path / "text.txt"
    file.write_text("It was night — and the wind", encoding="utf-8")
    texts = ["Once upon a time", file]
    result = specdec.generate(target, None, "It was", max_new_tokens=20)
    table = table_type.from_text(texts, target, smoothing="backoff")
    ids = [target.tokenizer.encode(text) for text in ("Once upon a time", file.read_text(encoding="utf-8"))]
    assert_same(table, Ngram(ids, target.config["n_vocab"], n, smoothing="backoff"))
    table.save(tmp_path / "table")
    assert_same(table_type.load(tmp_path / "table"), table)
    by_tokenizer, of_counts = table_type.from_text(file, target.tokenizer, n), table_type.of(table.counts)
    for made in (
        by_tokenizer,
        of_counts,
        table_type.from_results(result, target),
        table_type.load(tmp_path / "table"),
    ):
        assert (type(made), made.n) == (table_type, n)
    with pytest.raises(InputError, match="missing.txt: no such file; expected a text"):
        table_type.from_text(tmp_path / "missing.txt", target)


@pytest.mark.parametrize(("table_type", "n"), [(Unigram, 1), (Bigram, 2)])
def test_a_unigram_or_bigram_of_another_n_is_refused(tmp_path: Path, table_type: type[Ngram], n: int) -> None:
    target, _ = small_pair()
    result = specdec.generate(target, None, "It was", max_new_tokens=5)
    for made in (table_type.from_text, table_type.from_results):
        with refuses("n", 3):
            made("Once upon a time" if made == table_type.from_text else result, target, 3)
    Ngram([0, 1, 2, 3], 5, 3).save(tmp_path / "trigrams")
    with pytest.raises(CheckpointError, match=f"n is 3; expected {n} for every {table_type.__name__}"):
        table_type.load(tmp_path / "trigrams")


# -------------------------------------------------------------------------------------------- files

SAVED = Ngram(np.random.default_rng(5).integers(0, 12, 400) ** 2 % 20, 20, 4, smoothing="backoff")


@pytest.mark.parametrize("mmap", [True, False])
def test_a_saved_table_is_the_same(tmp_path: Path, mmap: bool) -> None:
    path = tmp_path / "table"
    SAVED.save(path)
    SAVED.save(path)  # replaced
    table = Ngram.load(path, mmap=mmap)
    assert_same(table, SAVED)
    np.testing.assert_array_equal(table.probabilities([1, 4, 9, 7]), SAVED.probabilities([1, 4, 9, 7]))
    assert table.counts.levels[0].tokens.flags.writeable is not mmap  # the file's pages do not count
    table.update([1, 2, 3])
    assert_same(Ngram.load(path), SAVED)
    assert [file.name for file in tmp_path.iterdir()] == ["table"]


def test_a_file_that_shrinks_after_it_was_read(tmp_path: Path) -> None:
    """The table is in memory; a mapped one would end the process (SIGBUS)."""
    path = tmp_path / "table"
    SAVED.save(path)
    table = Ngram.load(path)
    os.truncate(path, 0)
    assert_same(table, SAVED)


METADATA = {"format": "specdec n-gram counts", "version": "1", "smoothing": "interpolated"}


def i32(*values: int) -> Any:
    return np.array(values, np.int32)


TENSORS = {
    "unigrams": i32(2, 1, 1), "starts.2": np.array([0, 2, 3, 3]), "tokens.2": i32(0, 2, 0),
    "counts.2": i32(1, 2, 1),
}  # fmt: skip
PARTS = ("starts", "tokens", "counts")
LEVELS = {f"{part}.{k}": TENSORS[f"{part}.2"] for part in PARTS for k in range(3, 10)}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "pt"}, "'format' is \"pt\""),
        ({"version": "2"}, "'version' is \"2\""),
        ({"smoothing": "katz"}, "smoothing is 'katz'; expected one of 'interpolated', 'backoff'"),
        ({"unigrams": None}, "'unigrams' is missing"),
        ({"unigrams": np.ones((1, 3), np.int32)}, "unigrams: expected a C-contiguous array of 1 dimensions"),
        ({"unigrams": i32()}, "unigrams has 0 entries"),
        ({"unigrams": i32(2, -1, 1)}, r"unigrams\[1\] is -1"),
        ({"starts.2": np.array([0, 3, 3])}, "starts has 3 entries, tokens 3 and counts 3; expected 4"),
        ({"starts.2": np.array([1, 2, 3, 3])}, r"starts\[0\] of the 2-grams is 1, expected 0 to 0"),
        ({"starts.2": np.array([0, 4, 4, 4])}, r"starts\[1\] of the 2-grams is 4, expected 0 to 3"),
        ({"starts.2": np.array([0, 2, 1, 3])}, r"starts\[2\] of the 2-grams is 1, expected 2 to 3"),
        ({"tokens.2": i32(-1, 2, 0)}, r"tokens\[0\] of the 2-grams is -1, expected 0 to"),
        ({"tokens.2": i32(0, 3, 0)}, r"tokens\[1\] of the 2-grams is 3"),
        ({"tokens.2": i32(2, 2, 0)}, r"tokens\[1\] of the 2-grams is 2, expected 3 to 2"),
        ({"counts.2": None}, "'counts.2' is missing"),
        ({"counts.2": np.ones(3)}, "'counts.2' has dtype F64; expected I32"),
        ({"counts.2": i32(1, 1)}, "starts has 4 entries, tokens 3 and counts 2; expected 4"),
        ({"counts.2": i32(1, 0, 1)}, r"counts\[1\] of the 2-grams is 0, expected 1 to"),
        ({"more": np.ones(1)}, "'more' is not part of a table of 2-grams"),
        (LEVELS, "levels has 8 entries, expected at most 7"),
    ],
)
def test_wrong_files_are_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path = tmp_path / "table.safetensors"
    save_file(TENSORS, path, METADATA)
    assert Ngram.load(path).n_ngrams == (3, 3)
    said = {name: value for name, value in (METADATA | TENSORS | changes).items() if value is not None}
    texts = {name: value for name, value in said.items() if isinstance(value, str)}
    save_file({name: value for name, value in said.items() if name not in texts}, path, texts)
    for mmap in (True, False):
        with pytest.raises(CheckpointError, match=rf"table\.safetensors.*{message}"):
            Ngram.load(path, mmap=mmap)


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "table"
    with pytest.raises(CheckpointNotFoundError, match="no such file"):
        Ngram.load(path)
    SAVED.save(path)
    whole = path.read_bytes()
    for size in (0, 7, 8, 100, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(CheckpointError, match="table"):
            Ngram.load(path)
    save_file(TENSORS, path)
    with pytest.raises(CheckpointError, match="'format' is null"):
        Ngram.load(path)


# ------------------------------------------------------------------------------- what the core draws


def run(
    target: Any, draft: Any, prompts: list[list[int]], temperature: float, n_new: int = 60, first: int = 0
) -> list[tuple[list[int], dict[str, Any]]]:
    """(text before the round, record) of all rounds."""
    seeds = [(1, first + i) for i in range(len(prompts))]
    options: dict[str, Any] = {"gamma": 4, "max_new_tokens": n_new, "temperature": temperature}
    texts, found = [list(prompt) for prompt in prompts], []
    for record in all_rounds(with_drafts(Session(target, draft, prompts, seeds=seeds, **options))):
        text = texts[record["sequence"]]
        found.append((list(text), record))
        text += record["tokens"]
    return found


def test_online_probabilities_are_those_of_plain_python() -> None:
    loop = np.random.default_rng(8).integers(0, 12, 60) ** 2 % 40
    text = loop[:40].tolist()
    for draft, texts in (
        (OnlineNgram(3), []),
        (OnlineNgram(3, smoothing="backoff"), []),
        (OnlineNgram(Ngram(loop, N_VOCAB, 4)), [loop.tolist()]),
    ):
        found = draft.probabilities(text, N_VOCAB)
        for i in range(0, 40, 3):
            wanted = expected([*texts, text[: i + 1]], N_VOCAB, draft.n, draft.smoothing, text[: i + 1])
            np.testing.assert_allclose(found[i], wanted, rtol=1e-9)


@given(
    st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=20), min_size=1, max_size=4),
    TEXTS, st.integers(1, 5), st.sampled_from(SMOOTHINGS), st.booleans(), st.integers(0, 1000),
    st.sampled_from([0.0, 1.0]),
)  # fmt: skip
@settings(max_examples=200, deadline=None)
def test_draft_tokens_are_drawn_from_the_probabilities(
    prompts: list[list[int]], texts: list[list[int]], n: int, smoothing: str, online: bool, seed: int,
    temperature: float,
) -> None:  # fmt: skip
    """Row by row of the core, which does not count draft tokens; sampling is tested for all drafts.

    Greedy draft tokens are the most probable, although the core skips most tokens.
    """
    model = random_model(LLAMA | {"n_vocab": 5}, scale=1.0)
    table = Ngram(texts, 5, n, smoothing=smoothing)
    method = by_method("online_ngram" if online else "ngram", table.core)
    for text, record in run(model, method, prompts, temperature, 15, seed):
        counted = [*texts, text] if online else texts
        table = Ngram(counted, 5, n, smoothing=smoothing) if online else table
        for i, token in enumerate(record["drafted"]):
            known = (text + record["drafted"][:i])[-n:]
            if temperature == 0.0:
                row = table.probabilities(known)[-1]
                assert row[token] >= row.max() * (1 - 1e-12)
                continue
            # where a back-off leaves almost no mass for unseen tokens, this depends on rounding
            wanted = expected(counted, 5, n, smoothing, known)
            np.testing.assert_allclose(record["draft_probs"][i + 1], wanted, rtol=2e-5, atol=1e-7)


def test_greedy_ties_go_to_the_lowest_id() -> None:
    table = Ngram([3, 2, 0, 3, 1, 0, 3, 2, 0, 3, 1], N_VOCAB, 2)
    (_, record), *_ = run(random_model(LLAMA), by_method("ngram", table.core), [[3]], 0.0)
    assert record["drafted"] == [1, 0, 3, 1]


@pytest.mark.parametrize(
    ("start", "smoothing", "name"),
    [(0, None, "n"), ("3", None, "n"), (3, "katz", "smoothing"), (Ngram([0], 3), "backoff", "smoothing")],
)
def test_bad_online_drafts_are_refused(start: Any, smoothing: str | None, name: str) -> None:
    with refuses(name, smoothing or start):
        OnlineNgram(start, smoothing=smoothing)
    with pytest.raises(InputError, match="n_vocab is None"):
        OnlineNgram(3).probabilities([0])
    with pytest.raises(specdec.VocabularyMismatchError, match="draft has 7 tokens"):
        specdec.generate(small_pair()[0], OnlineNgram(Ngram([0], 7)), "It was")


def test_random_is_uniform() -> None:
    for _, record in run(random_model(LLAMA), by_method("random"), [[5, 17, 3], [7]], 1.0, 30):
        np.testing.assert_allclose(record["draft_probs"][1:], 1 / N_VOCAB, rtol=1e-15)
