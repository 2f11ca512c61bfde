"""DRY penalties: as published, as the reference for any text, and with breakers given as texts.

`test_settings.py` and `test_masks.py` compare whole runs, along trees and in batches, with the reference.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import specdec
from refusals import refuses
from specdec import reference
from trained import small_pair
from worlds.folders import llama_config, tensors_for, write_hf

PUBLISHED: list[tuple[int, list[int], dict[str, Any], list[float]]] = [
    (4, [0, 1], {"dry_penalty_last_n": 4}, [0.25] * 4),
    (4, [0, 1, 2, 0, 1], {"dry_penalty_last_n": 5}, [0.296923, 0.296923, 0.109232, 0.296923]),
    (5, [0, 1, 3, 4, 0, 1], {"dry_penalty_last_n": 6, "dry_sequence_breakers": [[3]]}, [0.2] * 5),
    (5, [0, 1, 2, 0, 1], {"dry_multiplier": 2.0}, [0.241818, 0.241818, 0.032727, 0.241818, 0.241818]),
    (5, [0, 1, 2, 3, 4, 0, 1], {"dry_allowed_length": 4}, [0.2] * 5),
]
"""Tests of llama.cpp (`test_dry` in tests/test-sampling.cpp): tokens, settings, probabilities."""


@pytest.mark.parametrize(("n_vocab", "tokens", "settings", "expected"), PUBLISHED)
def test_probabilities_of_llama_cpp(
    n_vocab: int, tokens: list[int], settings: dict[str, Any], expected: list[float]
) -> None:
    how = {"dry_multiplier": 1.0, "dry_base": 1.1, **settings}
    row = reference.adjusted_logits(np.zeros(n_vocab), tokens, **how)
    np.testing.assert_allclose(reference.distribution(row, 1.0), expected, atol=1e-6)


def test_any_text_is_penalized_as_by_the_reference(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Few tokens, so that repetitions are long and overlap, and breakers of any length."""
    config = llama_config(vocab_size=5, hidden_size=16, intermediate_size=24, max_position_embeddings=96)
    target = specdec.load(write_hf(tmp_path_factory.mktemp("target"), config, tensors_for(config, seed=3)))
    rng, n_changed = np.random.default_rng(4), 0
    for case in range(200):
        n, n_tokens = int(rng.integers(1, 60)), int(rng.integers(2, 6))
        tokens = rng.integers(0, n_tokens, n).tolist()
        if case % 3 == 0:
            tokens = (tokens[: 1 + case % 7] * n)[:n]
        breakers = [rng.integers(0, 5, rng.integers(1, 4)).tolist() for _ in range(case % 4)]
        how: dict[str, Any] = {
            "dry_multiplier": float(rng.choice([0.8, 3.0, 1e6])), "dry_sequence_breakers": breakers,
            "dry_base": float(rng.choice([1.0, 1.2, 1.75, 1e30])),
            "dry_allowed_length": int(rng.integers(0, 4)),
            "dry_penalty_last_n": [None, 0, 1, 5, 20, 100][case % 6],
        }  # fmt: skip
        logits = target.logits(tokens)[-1]
        row = reference.adjusted_logits(logits, tokens, **how)
        n_changed += not np.array_equal(row, logits)
        (top,) = specdec.generate(  # type: ignore[misc]
            target, None, tokens, max_new_tokens=1, logprobs=5, logprobs_of="sampling", temperature=1.0,
            ignore_eos=True, n_threads=1, **how,
        ).top_logprobs  # fmt: skip
        expected = reference.distribution(row, 1.0)
        found = np.zeros(5)
        for token, log_prob in top:
            found[token] = np.exp(log_prob)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-30)
    assert n_changed > 80


def written_in(pieces: list[bytes], tokenizer: Any, text: str) -> set[tuple[int, ...]]:
    """Return the sequences of tokens in which a text begins, by looking at every token."""
    wanted, found = text.encode(), set()
    for token, piece in enumerate(pieces):
        if wanted in piece:
            found.add((token,))
            continue
        for n in range(1, len(wanted)):
            if piece.endswith(wanted[:n]):
                found.add((token, *tokenizer.encode(wanted[n:].decode(), add_bos=False)))
    return found


@pytest.mark.parametrize("breakers", [None, ["\n"], ["the", "."], ["ing"], ["<|endoftext|>"], []])
def test_breakers_as_texts_are_those_in_tokens(breakers: list[str] | None) -> None:
    target, _ = small_pair()
    tokenizer: Any = target.tokenizer
    names = {token: name.encode() for name, token in tokenizer.special_tokens().items()}
    pieces = [names.get(token, tokenizer.text_bytes(token)) for token in range(tokenizer.n_vocab)]
    how = {} if breakers is None else {"dry_sequence_breakers": breakers}
    settings = specdec.Sampling(dry_multiplier=0.8, **how)  # type: ignore[arg-type]
    found: Any = settings.for_vocabulary(target.config.n_vocab, tokenizer).dry_sequence_breakers
    texts = ["\n", ":", '"', "*"] if breakers is None else breakers
    expected = set().union(*(written_in(pieces, tokenizer, text) for text in texts))
    assert expected <= set(found) and list(found) == sorted(found)
    assert all("".join(texts)[:1] in b"".join(pieces[i] for i in ids).decode("utf-8", "replace")
               for ids in found if len(texts) == 1)  # fmt: skip


def test_breakers_end_repetitions_of_texts() -> None:
    """A text repeated after a line break may be repeated again; without breakers it may not."""
    target, draft = small_pair()
    first, *_ = target.tokenizer.encode("It was a dark night", add_bos=False)  # type: ignore[union-attr]
    prompt, n_vocab = "It was a dark night\n" * 3, target.config.n_vocab
    how: Any = {
        "max_new_tokens": 12,
        "dry_multiplier": 9.0,
        "temperature": 1.0,
        "verify": "coupled",
        "seed": 1,
    }
    how |= {"n_threads": 1, "ignore_eos": True, "logprobs": n_vocab, "logprobs_of": "sampling"}
    given: Any = specdec.Sampling(dry_multiplier=1.0).for_vocabulary(n_vocab, target.tokenizer)
    for drafter in (draft, None):
        broken = specdec.generate(target, drafter, prompt, **how)
        free = specdec.generate(target, drafter, prompt, dry_sequence_breakers=[], **how)
        ids = specdec.generate(
            target, drafter, prompt, dry_sequence_breakers=given.dry_sequence_breakers, **how
        )
        assert ids == broken and np.array_equal(ids.logprobs, broken.logprobs)
        assert dict(broken.top_logprobs[0])[first] > dict(free.top_logprobs[0]).get(first, -np.inf) + 9.0


def test_nothing_is_penalized_without_a_multiplier() -> None:
    target, _ = small_pair()
    how: Any = {"max_new_tokens": 8, "n_threads": 1}
    out = specdec.generate(target, None, "a b a b a b", dry_base=4.0, dry_sequence_breakers=["a"], **how)
    assert out == specdec.generate(target, None, "a b a b a b", **how)


@pytest.mark.parametrize(
    ("name", "value", "named"),
    [
        ("dry_multiplier", -0.1, "dry_multiplier"), ("dry_multiplier", 1e39, "dry_multiplier"),
        ("dry_base", 0.9, "dry_base"), ("dry_allowed_length", -1, "dry_allowed_length"),
        ("dry_penalty_last_n", -1, "dry_penalty_last_n"),
        ("dry_sequence_breakers", "a", "dry_sequence_breakers"),
        ("dry_sequence_breakers", ["a", "x" * 41], "dry_sequence_breakers[1]"),
        ("dry_sequence_breakers", [[]], "dry_sequence_breakers[0]"),
    ],
)  # fmt: skip
def test_bad_values_are_named(name: str, value: Any, named: str) -> None:
    with refuses(named):
        specdec.Sampling(**{name: value})
