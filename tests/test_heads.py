"""`specdec.drafts.DecodingHeads`: each head's prediction, in every variant, against plain NumPy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import specdec
from allocations import needs_hooks
from specdec import PromptCache, drafts, reference
from trained import MODELS, small_pair
from worlds.canonical import VARIANTS, random_tensors
from worlds.encoder_decoders import EncoderDecoder, model_of
from worlds.learned import (
    all_records,
    check_distributions,
    heads_logits,
    open_session,
    random_heads,
    tensors_of,
)  # fmt: skip

PROMPT = [5, 9, 5, 9, 30, 5, 9]
SOURCE = [3, 7, 4, 9]
QUICK = "parallel-one-norm-without-bias"  # has a factor of the logits


def drafted(target: specdec.Model, draft: Any, prompts: list[list[int]], **options: Any) -> list[Any]:
    """Records of a whole batch at temperature 1."""
    return all_records(open_session(target, draft, prompts, **({"max_new_tokens": 12} | options)))


VARIANTS_OF_HEADS: dict[str, dict[str, Any]] = {
    "own": {"n_blocks": 2},
    "shared": {"shared_output": True, "n_heads": 4},
    "some tokens": {"tokens": [7, 3, 60, 9, 30, 5]},
    "some tokens, shared": {"tokens": [7, 3, 60, 9, 30, 5], "shared_output": True},
    "seen": {"see_draft_tokens": True, "n_heads": 4},
    "seen, shared, without blocks": {"see_draft_tokens": True, "shared_output": True, "n_blocks": 0},
}
TREES: dict[str, Any] = {
    "chain": None, "chains": drafts.ParallelChains(3), "tree": drafts.StaticTree((3, 1, 2))
}  # fmt: skip


def check_heads(
    target: specdec.Model, weights: Any, tree: Any = None, source: Any = None, **options: Any
) -> int:
    """Check that each draft token is drawn from NumPy's distribution; returns their number."""
    prompts = [PROMPT, PROMPT[2:]]

    def expected(text: list[int], path: list[int]) -> Any:
        return reference.distribution(heads_logits(weights, target, text, path, source), 1.0)

    sources = None if source is None else [source] * len(prompts)
    draft = drafts.DecodingHeads(weights, tree=tree)
    return check_distributions(
        target, draft, prompts, expected, rtol=2e-4, atol=1e-7, sources=sources, max_new_tokens=12, **options
    )[0]


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("variant", VARIANTS_OF_HEADS)
@pytest.mark.grid
def test_nodes_are_drawn_from_their_heads(target: specdec.Model, variant: str, tree: str) -> None:
    heads = random_heads(target, **VARIANTS_OF_HEADS[variant])
    assert check_heads(target, heads, TREES[tree], n_threads=2) > 20


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == QUICK else pytest.mark.slow) for name in sorted(VARIANTS)]
)
def test_heads_of_every_type_of_target(name: str) -> None:
    """The shared output with its bias, scale and cap, and embeddings as the table has them."""
    model = model_of(VARIANTS[name], random_tensors(VARIANTS[name]))
    check_shared_output(model)
    assert check_heads(model, random_heads(model, see_draft_tokens=True)) > 0


@pytest.mark.parametrize("dtype", ["bf16", "int8", "int4"])
def test_the_output_is_shared_in_every_number_format(dtype: str) -> None:
    check_shared_output(model_of(VARIANTS[QUICK], random_tensors(VARIANTS[QUICK]), dtype=dtype))


def check_shared_output(model: specdec.Model) -> None:
    """Check that zero blocks give the target's logits, of all tokens or some, to the bit."""
    weights = random_heads(model, shared_output=True, n_heads=1)
    for tensor in tensors_of(weights).values():
        tensor[...] = 0.0
    tokens = np.array([70, 3, 31, 32, 9, 100, 64], np.int32)
    logits = model.logits(PROMPT[:-1])[-1]
    few = np.full_like(logits, -np.inf)
    few[tokens] = logits[tokens]
    for some, expected in ((None, logits), (tokens, few)):
        draft = drafts.DecodingHeads(replace(weights, tokens=some))
        found = drafted(model, draft, [PROMPT], max_new_tokens=2)[0]["draft_probs"][1]
        assert np.array_equal(found, specdec.distribution(expected, temperature=1.0))


def test_heads_of_a_target_with_an_encoder() -> None:
    target = EncoderDecoder("t5", n_ctx=64).target
    assert check_heads(target, random_heads(target, n_heads=2), None, SOURCE) > 5


@needs_hooks
@pytest.mark.parametrize("dtype", ["bf16", "int8", "int4"])
def test_number_formats(target: specdec.Model, dtype: Any) -> None:
    """Weights that the format holds exactly compute what f32 does, but for rows that are rounded too."""
    weights = random_heads(target, n_blocks=1)
    stored = {
        name: reference.formats.stored(array, dtype) if array.ndim == 2 else array
        for name, array in tensors_of(weights).items()
    }
    rounded = weights.with_numbers(stored)
    packed = drafts.DecodingHeads(weights, dtype=dtype)
    assert packed.core.dtype == dtype
    record = drafted(target, packed, [PROMPT], max_new_tokens=4)[0]
    assert len(record["drafted"]) == 3
    for k, probs in enumerate(record["draft_probs"][1:]):
        logits = heads_logits(rounded, target, PROMPT, record["drafted"][:k])
        away = np.abs(probs - reference.distribution(logits, 1.0)).sum()
        assert 0.0 < away < 0.05, "0 if the rows of activations were not rounded"


def test_no_more_draft_tokens_in_a_row_than_heads(target: specdec.Model) -> None:
    weights = random_heads(target, n_heads=2)
    heads = drafts.DecodingHeads(weights)
    assert heads.gamma == heads.n_heads == 2
    for gamma in (1, 2, 9):
        records = drafted(target, heads, [PROMPT], gamma=gamma)
        assert max(len(record["drafted"]) for record in records) == min(gamma, 2)
    deep = drafts.DecodingHeads(weights, tree=drafts.StaticTree((2, 2, 2)))
    assert max(len(record["drafted"]) for record in drafted(target, deep, [PROMPT])) == 6


def test_texts_that_were_read_without_hidden_states_are_read_again(target: specdec.Model) -> None:
    heads, cache = drafts.DecodingHeads(random_heads(target)), PromptCache()
    ids = [3 + (7 * i + i * i) % 50 for i in range(30)]

    def ask(draft: Any, prompt: list[int]) -> int:
        options: dict[str, Any] = {"max_new_tokens": 4, "ignore_eos": True, "logits": True}
        found = specdec.generate(target, draft, prompt, prompt_cache=cache, **options)
        wanted = specdec.generate(target, None, prompt, **options)
        assert found.tokens == wanted.tokens and np.array_equal(found.logits, wanted.logits)
        return found.n_cached_tokens

    assert ask(None, ids) == 0
    assert ask(heads, ids) == 0
    assert len(cache) == 1  # the cached text with hidden states serves plain runs too
    assert ask(heads, ids) == len(ids) - 1
    assert ask(None, ids) == len(ids) - 1
    assert ask(heads, [*ids[:20], 4, 5]) == 20
    assert ask(None, [*ids, 6, 7, 8]) == len(ids)
    assert ask(heads, [*ids, 6, 7, 8]) == len(ids)  # the longer text of the plain run has no hidden states


def test_trained_heads() -> None:
    """They are as exact as any draft, and usually right."""
    target, small = small_pair()
    heads = drafts.load(MODELS / "heads", target)
    options: dict[str, Any] = {"max_new_tokens": 40, "ignore_eos": True, "n_threads": 1}
    for prompt in ("It was a dark and stormy night", "The old man looked at"):
        found = specdec.generate(target, heads, prompt, **options)
        assert found.tokens == specdec.generate(target, None, prompt, **options).tokens
        assert found.trace.tokens_per_call > 1.3
    tree = drafts.StaticTree((2, 2))
    assert drafts.load(MODELS / "heads", small_pair("int8")[0], tree=tree).gamma == 6
    with pytest.raises(specdec.InputError, match="for the target '[^']*target'; the given one is .*draft"):
        drafts.load(MODELS / "heads", small)
