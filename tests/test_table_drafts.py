"""Unigram and bigram tables as drafters of a session: what they draft, and that outputs stay exact."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

import specdec
from canonical import LLAMA, build, random_tensors, run_session
from specdec import InputError, _core, reference
from specdec.drafts import Bigram, Unigram

N_VOCAB = LLAMA["n_vocab"]
PROMPT = [5, 17, 3]
TEXT = np.random.default_rng(8).integers(0, 30, 600) ** 2 % 60  # some tokens never occur, some never follow


@pytest.fixture(scope="module")
def target() -> _core.Model:
    tensors = random_tensors(LLAMA, 1)
    return build(LLAMA, {name: 3 * tensor for name, tensor in tensors.items()})


TABLES = [Unigram(TEXT, N_VOCAB), Bigram(TEXT, N_VOCAB)]
IDS = ["unigram", "bigram"]


@pytest.mark.parametrize("table", TABLES, ids=IDS)
@pytest.mark.parametrize("last", [PROMPT[-1], 49, 99], ids=["seen", "last of the text", "never seen"])
def test_drafts_are_drawn_from_the_table(target: _core.Model, table: Unigram | Bigram, last: int) -> None:
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
    assert stats.chisquare(found, expected).pvalue > 1e-3
    overlap = np.minimum(reference.distribution(logits[0][0], 1.0), probs).sum()
    assert first[0]["betas"][0] == pytest.approx(overlap, rel=1e-5)


def walk(n_tokens: int) -> list[int]:
    """A text in which a token mostly has one successor, another one for each."""
    rng, text = np.random.default_rng(2), [0]
    for _ in range(n_tokens):
        text.append((7 * text[-1] + 3) % N_VOCAB if rng.random() < 0.8 else int(rng.integers(N_VOCAB)))
    return text


@pytest.mark.parametrize("table", [*TABLES, Bigram(walk(3000), N_VOCAB)], ids=[*IDS, "walk"])
def test_greedy_drafts_follow_the_table(target: _core.Model, table: Unigram | Bigram) -> None:
    """Each from the draft before it."""
    _, _, records = run_session(target, table.core, [PROMPT], gamma=5, max_new_tokens=30)
    text = list(PROMPT)
    for record in records:
        token = text[-1]
        for drafted in record["drafted"]:
            assert drafted == np.argmax(table.probabilities([token])[0])
            token = drafted
        text += record["tokens"]


@pytest.mark.parametrize("table", TABLES, ids=IDS)
@pytest.mark.parametrize("gamma", [1, 4, 9])
@pytest.mark.parametrize(
    "how", [{}, {"temperature": 1.0, "rule": "coupled"}, {"temperature": 0.7, "top_k": 9, "rule": "coupled"}],
    ids=["greedy", "coupled", "coupled top-k"],
)  # fmt: skip
def test_output_is_plain_output(
    target: _core.Model, table: Unigram | Bigram, gamma: int, how: dict[str, object]
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


def arrays(**changes: object) -> list[object]:
    good: dict[str, object] = {
        "base": np.zeros(3, np.float32),
        "shifts": np.zeros(3, np.float32),
        "starts": np.array([0, 1, 1, 2]),
        "successors": np.array([2, 0], np.int32),
        "logits": np.zeros(2, np.float32),
    }
    return list((good | changes).values())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"base": np.zeros(3)}, "base: expected .* float32"),
        ({"starts": np.zeros(4, np.int32)}, "starts: expected .* int64"),
        ({"starts": np.array([0, 1, 2])}, r"starts \[n_vocab \+ 1\]"),
        ({"starts": np.array([1, 1, 1, 2])}, r"starts\[0\] is 1, expected 0 to 0"),
        ({"starts": np.array([0, 2, 1, 2])}, r"starts\[2\] is 1, expected 2 to 2"),
        ({"starts": np.array([0, 3, 3, 3])}, r"starts\[1\] is 3, expected 0 to 2"),
        ({"starts": np.array([0, 1, 1, 1])}, r"starts\[3\] is 1, expected 2 to 2"),
        ({"successors": np.array([3, 0], np.int32)}, r"successors\[0\] is 3, expected 0 to 2"),
        ({"logits": np.array([0, np.nan], np.float32)}, r"logits\[1\] is -?nan"),
        ({"shifts": np.array([0, 0, -np.inf], np.float32)}, r"shifts\[2\] is -inf"),
    ],
)
def test_bad_tables_are_refused(changes: dict[str, object], message: str) -> None:
    _core.Bigram(*arrays())
    with pytest.raises(ValueError, match=message):
        _core.Bigram(*arrays(**changes))


def test_a_table_is_copied() -> None:
    given = arrays()
    table = _core.Bigram(*given)
    given[3][:] = 1000  # type: ignore[index]
    config = LLAMA | {"n_vocab": 3}
    model = build(config, random_tensors(config, 1))
    tokens, _, _ = run_session(model, table, [[0]], gamma=3, max_new_tokens=8)
    assert max(tokens[0]) < 3


def test_vocabularies_must_agree(target: _core.Model) -> None:
    with pytest.raises(ValueError, match="the draft has 3 tokens and the target"):
        run_session(target, _core.Bigram(*arrays()), [[0]])
