"""N-gram tables as drafters of a session: what they draft, and that outputs stay exact."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy

import specdec
from descriptions import by_method
from specdec import InputError, _core, reference
from specdec.drafts import Bigram, Ngram, Unigram
from worlds.canonical import LLAMA, build, random_tensors, run_session

N_VOCAB = LLAMA["n_vocab"]
PROMPT = [5, 17, 3]
TEXT = np.random.default_rng(8).integers(0, 30, 600) ** 2 % 60  # some tokens never occur, some never follow


@pytest.fixture(scope="module")
def target() -> _core.Model:
    tensors = random_tensors(LLAMA, 1)
    return build(LLAMA, {name: 3 * tensor for name, tensor in tensors.items()})


TABLES = [
    Unigram(TEXT, N_VOCAB),
    Bigram(TEXT, N_VOCAB),
    Ngram(TEXT, N_VOCAB, 4),
    Ngram(TEXT, N_VOCAB, 3, smoothing="backoff"),
]
IDS = ["unigram", "bigram", "4-gram", "back-off"]


@pytest.mark.law
@pytest.mark.parametrize("table", TABLES, ids=IDS)
@pytest.mark.parametrize("last", [PROMPT[-1], 49, 99], ids=["seen", "last of the text", "never seen"])
def test_drafts_are_drawn_from_the_table(target: _core.Model, table: Ngram, last: int) -> None:
    """Chi-square of 4,000 first drafts against `probabilities`: false alarm 1e-3, the seed is fixed.

    And beta of the round is the overlap with that very row.
    """
    prompt, n_samples = [*PROMPT[:-1], last], 4000
    probs = table.probabilities(prompt)[-1]
    _, logits, records = run_session(
        target, table.core, [prompt] * n_samples, gamma=1, max_new_tokens=2, temperature=1.0
    )
    first = {record["sequence"]: record for record in reversed(records)}
    drafted = np.array([first[i]["drafted"][0] for i in range(n_samples)])
    common = probs * n_samples >= 5
    counts = np.bincount(drafted, minlength=N_VOCAB)
    found = np.append(counts[common], counts[~common].sum())
    expected = np.append(probs[common], probs[~common].sum()) * n_samples
    found, expected = found[expected > 0], expected[expected > 0]
    assert scipy.stats.chisquare(found, expected).pvalue > 1e-3
    overlap = np.minimum(reference.distribution(logits[0][0], 1.0), probs).sum()
    assert first[0]["betas"][0] == pytest.approx(overlap, rel=1e-5)


def walk(n_tokens: int) -> list[int]:
    """A text in which a token mostly has one successor, another one for each."""
    rng, text = np.random.default_rng(2), [0]
    for _ in range(n_tokens):
        text.append((7 * text[-1] + 3) % N_VOCAB if rng.random() < 0.8 else int(rng.integers(N_VOCAB)))
    return text


@pytest.mark.parametrize(
    "table",
    [*TABLES, Bigram(walk(3000), N_VOCAB), Ngram(walk(3000), N_VOCAB, 5)],
    ids=[*IDS, "walk", "long walk"],
)
def test_greedy_drafts_follow_the_table(target: _core.Model, table: Ngram) -> None:
    """Each from the draft before it."""
    _, _, records = run_session(target, table.core, [PROMPT], gamma=5, max_new_tokens=30)
    text = list(PROMPT)
    for record in records:
        for i, drafted in enumerate(record["drafted"]):
            row = table.probabilities(text + record["drafted"][:i])[-1]
            assert drafted == np.argmax(row)
        text += record["tokens"]


@pytest.mark.grid
@pytest.mark.parametrize("table", TABLES, ids=IDS)
@pytest.mark.parametrize("gamma", [1, 4, 9])
@pytest.mark.parametrize(
    "how", [{}, {"temperature": 1.0, "rule": "coupled"}, {"temperature": 0.7, "top_k": 9, "rule": "coupled"}],
    ids=["greedy", "coupled", "coupled top-k"],
)  # fmt: skip
def test_output_is_plain_output(
    target: _core.Model, table: Ngram, gamma: int, how: dict[str, object]
) -> None:
    prompts = [PROMPT, [1, 2], [40] * 70]
    tokens, logits, _ = run_session(target, table.core, prompts, gamma=gamma, **how)
    plain_tokens, plain_logits, _ = run_session(target, None, prompts, gamma=0, **how)
    for i in range(len(prompts)):
        n = len(plain_tokens[i])
        assert tokens[i][:n] == plain_tokens[i]
        assert np.array_equal(logits[i][:n], plain_logits[i])


def test_generate_takes_a_table() -> None:
    target, _ = specdec.embedded_pair()
    n_vocab = target.config["n_vocab"]
    text = specdec.generate(target, None, "It was", max_new_tokens=60, ignore_eos=True).tokens
    out = specdec.generate(target, Bigram(text, n_vocab), "It was", max_new_tokens=60, ignore_eos=True)
    assert out.tokens == text
    assert out.trace.n_accepted > 0
    with pytest.raises(specdec.VocabularyMismatchError, match="draft has 7 tokens"):
        specdec.generate(target, Unigram([0], 7), "It was")
    with pytest.raises(InputError, match=r"one of specdec\.drafts"):
        specdec.generate(target, 7, "It was")  # type: ignore[arg-type]


def table(**changes: object) -> _core.Ngram:
    """Of 3 tokens: aa, ac, ba; acb, bac."""
    good: dict[str, object] = {
        "unigrams": np.array([2, 1, 1], np.int32),
        "starts": np.array([0, 2, 3, 3]),
        "tokens": np.array([0, 2, 0], np.int32),
        "counts": np.array([1, 2, 1], np.int32),
        "starts3": np.array([0, 0, 1, 2]),
        "tokens3": np.array([1, 2], np.int32),
        "counts3": np.array([1, 1], np.int32),
    }
    unigrams, *rest = (good | changes).values()
    return _core.Ngram(unigrams, (tuple(rest[:3]), tuple(rest[3:])))  # type: ignore[arg-type]


I32 = np.int32


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"unigrams": np.zeros(3)}, "unigrams: expected .* int32"),
        ({"unigrams": np.array([2, -1, 1], I32)}, r"unigrams\[1\] is -1, expected at least 0"),
        ({"unigrams": np.zeros(0, I32)}, "unigrams has 0 entries"),
        ({"starts": np.zeros(4, I32)}, "starts: expected .* int64"),
        ({"starts": np.array([0, 2, 3])}, "starts has 3 entries, tokens 3 and counts 3; expected 4"),
        ({"counts": np.array([1], I32)}, "tokens 3 and counts 1"),
        ({"starts": np.array([1, 2, 3, 3])}, r"starts\[0\] of the 2-grams is 1, expected 0 to 0"),
        ({"starts": np.array([0, 2, 1, 3])}, r"starts\[2\] of the 2-grams is 1, expected 2 to 3"),
        ({"starts": np.array([0, 4, 4, 4])}, r"starts\[1\] of the 2-grams is 4, expected 0 to 3"),
        ({"starts": np.array([0, 2, 2, 2])}, r"starts\[3\] of the 2-grams is 2, expected 3 to 3"),
        ({"tokens": np.array([0, 3, 0], I32)}, r"tokens\[1\] of the 2-grams is 3, expected 1 to 2"),
        ({"tokens": np.array([2, 2, 0], I32)}, r"tokens\[1\] of the 2-grams is 2, expected 3 to 2"),
        ({"tokens": np.array([-1, 2, 0], I32)}, r"tokens\[0\] of the 2-grams is -1, expected 0 to 2"),
        ({"counts3": np.array([1, 0], I32)}, r"counts\[1\] of the 3-grams is 0, expected 1 to 2147483647"),
        ({"starts3": np.array([0, 0, 2])}, "starts has 3 entries, tokens 2 and counts 2; expected 4"),
    ],
)
def test_bad_tables_are_refused(changes: dict[str, object], message: str) -> None:
    table()
    with pytest.raises(ValueError, match=message):
        table(**changes)


def test_levels_are_tuples_and_not_too_many() -> None:
    zeros = np.zeros(1, I32)
    with pytest.raises(TypeError, match="tuples"):
        _core.Ngram(zeros, ([],))  # type: ignore[arg-type]
    levels = [(np.zeros(2, np.int64), zeros[:0], zeros[:0])]
    levels += [(np.zeros(1, np.int64), zeros[:0], zeros[:0])] * 7
    _core.Ngram(zeros, tuple(levels[:7]))
    with pytest.raises(ValueError, match="levels has 8 entries, expected at most 7"):
        _core.Ngram(zeros, tuple(levels))


def test_a_table_that_changes_under_a_run_touches_no_other_memory() -> None:
    """As a mapped file may; the output stays that of the target. Under ASan this is more than it looks."""
    tokens, counts = np.array([0, 2, 0], I32), np.array([1, 2, 1], I32)
    starts = np.array([0, 2, 3, 3])
    changing = table(tokens=tokens, counts=counts, starts=starts)
    config = LLAMA | {"n_vocab": 3}
    model = build(config, random_tensors(config, 1))
    plain, _, _ = run_session(model, None, [[0]], max_new_tokens=20)
    how: dict[str, Any] = {"temperature": 1.0, "rule": "coupled"}
    coupled, _, _ = run_session(model, None, [[0]], max_new_tokens=20, **how)
    tokens[:] = [10**9, -5, 1]
    counts[:] = [-7, 0, 2**31 - 1]
    for wrong in ([-(10**12), 10**12, 1, 10**12], [0, 3, 2, 3]):
        starts[:] = wrong
        for method in ("ngram", "online_ngram"):
            draft = by_method(method, changing)
            assert run_session(model, draft, [[0]], gamma=3, max_new_tokens=20)[0] == plain
            assert run_session(model, draft, [[0]], gamma=3, max_new_tokens=20, **how)[0] == coupled


def test_vocabularies_must_agree(target: _core.Model) -> None:
    with pytest.raises(ValueError, match="the draft has 3 tokens and the target"):
        run_session(target, table(), [[0]])
