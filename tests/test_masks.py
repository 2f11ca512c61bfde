"""Settings that mask or penalize tokens by the text: exact for every rule, draft tree, batch and engine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import specdec
from distributions import FALSE_ALARM, count, p_value
from exact import chain_distribution
from refusals import refuses
from specdec import drafts, reference
from toy_pair import blurred
from trained import small_pair
from worlds.folders import llama_config, tensors_for, write_hf

PROMPT = [1, 3, 0, 4, 3, 1, 3]
Settings = dict[str, Any]

MASKS: dict[str, Settings] = {
    "min_tokens": {"min_tokens": 2, "stop": [1, 4]}, "no_repeat_ngram_size": {"no_repeat_ngram_size": 2},
    "bad_words": {"bad_words": [[2], [1, 3, 4], [4, 4], [3, 1]]},
    "dry_multiplier":
        {"dry_multiplier": 3.0, "dry_allowed_length": 1, "dry_sequence_breakers": [[2], [4, 4]]},
}  # fmt: skip
"""For each setting, values that matter after `PROMPT`."""
DRAFTS: dict[str, Any] = {
    "chain": None, "samples": drafts.StaticTree((2, 2)), "dynamic": drafts.DynamicTree(5),
    "distinct": drafts.StaticTree((2, 1), "without replacement"),
    "top-k": drafts.StaticTree((2, 2), "top-k"),
}  # fmt: skip
JUDGES = [
    *(("chain", rule) for rule in ("rejection", "block", "coupled", "k-sequential", "classical")),
    ("distinct", "rejection"),
    ("samples", "traversal"),
    pytest.param("samples", "k-sequential", marks=pytest.mark.statistical),
    *(pytest.param(tree, "coupled", marks=pytest.mark.statistical) for tree in ("distinct", "dynamic")),
    *(pytest.param(t, "rejection", marks=pytest.mark.statistical) for t in ("samples", "top-k", "dynamic")),
    *(pytest.param(t, "traversal", marks=pytest.mark.statistical) for t in ("distinct", "top-k", "dynamic")),
]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[specdec.Model, specdec.Model]:
    """Models of five tokens, so that all short texts can be enumerated."""
    folder = tmp_path_factory.mktemp("pair")
    config = llama_config(vocab_size=5, hidden_size=16, intermediate_size=24, max_position_embeddings=48)
    tensors = {name: array * 1.5 for name, array in tensors_for(config, seed=3).items()}
    target = write_hf(folder / "target", config, tensors)
    draft = write_hf(folder / "draft", config, blurred(tensors, 0.3))
    return specdec.load(target), specdec.load(draft)


def drafting(pair: Any, name: str) -> Any:
    return pair[1] if DRAFTS[name] is None else drafts.ModelDraft(pair[1], tree=DRAFTS[name])


def row_after(model: specdec.Model, new: tuple[int, ...], mask: Settings) -> NDArray[np.float32]:
    """Masked logits of the next token, from the reference."""
    tokens = [*PROMPT, *new]
    options = {name: value for name, value in mask.items() if name != "stop"}
    return reference.adjusted_logits(
        model.logits(tokens)[-1], tokens, n_prompt=len(PROMPT), end_ids=mask.get("stop", ()), **options
    )


def masked_distribution(model: specdec.Model, mask: Settings, length: int) -> dict[tuple[int, ...], float]:
    """Probability of every text of this many new tokens; ended texts continue with token 0."""

    def after(new: tuple[int, ...]) -> NDArray[np.float64]:
        if set(new) & set(mask.get("stop", ())):
            return np.eye(5)[0]
        return reference.distribution(row_after(model, new, mask), 1.0)

    return chain_distribution(after, length)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize(("draft", "rule"), JUDGES)
def test_texts_have_exactly_the_masked_distribution(pair: Any, mask: str, draft: str, rule: str) -> None:
    length, n = 3, 600
    results = specdec.generate(
        pair[0], drafting(pair, draft), PROMPT, n=n, batch_size=50, gamma=3, verify=rule, seed=5,  # type: ignore[call-overload]
        temperature=1.0, max_new_tokens=length, ignore_eos=True, n_threads=1, **MASKS[mask],
    )  # fmt: skip
    texts = np.array([(result.tokens + [0] * length)[:length] for result in results])
    expected = masked_distribution(pair[0], MASKS[mask], length)
    assert p_value(count(texts), expected) > FALSE_ALARM / len(JUDGES)
    plain = {name: value for name, value in MASKS[mask].items() if name == "stop"}
    assert p_value(count(texts), masked_distribution(pair[0], plain, length)) < 1e-6, "the mask must matter"


@pytest.mark.parametrize("mask", MASKS)
def test_greedy_texts_are_those_of_the_reference(pair: Any, mask: str) -> None:
    """Alone, in a batch and in an engine, with every draft."""
    how: Settings = {"max_new_tokens": 12, "ignore_eos": True, "n_threads": 1, **MASKS[mask]}
    expected: list[int] = []
    while len(expected) < 12 and not set(expected) & set(how.get("stop", ())):
        expected.append(int(row_after(pair[0], tuple(expected), MASKS[mask]).argmax()))
    unmasked = how | {mask: None if mask == "bad_words" else 0}
    assert specdec.generate(*pair, PROMPT, **unmasked).tokens != expected
    assert specdec.generate(pair[0], None, PROMPT, **how).tokens == expected
    for name in DRAFTS:
        out = specdec.generate(pair[0], drafting(pair, name), [PROMPT, [2, 2], PROMPT[:3]], gamma=5, **how)
        assert out[0].tokens == expected and out[0].trace.n_drafted > 0
    with specdec.Engine(*pair, gamma=4, n_slots=3, n_threads=1) as engine:
        del how["n_threads"]
        assert engine.submit(PROMPT, **how).result().tokens == expected


PERIODIC = [
    [2] * 40, [0, 1] * 20, [0, 1, 0] * 13, [3] * 20 + [1] + [3] * 19, [3] * 12 + [1] + [3] * 13,
    ([0, 1, 0, 0, 1] * 4 + [2]) * 2, [4, *[1, 2] * 10, 4, *[1, 2] * 9], [1, 0, 0] * 9 + [1, 0, 1, 0, 0],
]  # fmt: skip


@pytest.mark.parametrize("n_gram", [1, 2, 3, 5, 7, 19, 38, 39, 40, 41, 2**31 - 1])
def test_repeated_tokens_of_periodic_texts_are_those_of_the_reference(pair: Any, n_gram: int) -> None:
    """For every prefix of these texts, and along the paths of a draft tree."""
    n_masked = 0
    for text in PERIODIC:
        lengths = {1, 2, n_gram, n_gram + 1, len(text) - 1, len(text)}
        for prompt in (text[:n] for n in lengths if n <= len(text)):
            expected: list[int] = []
            while len(expected) < 3:
                tokens = [*prompt, *expected]
                plain = pair[0].logits(tokens)[-1]
                row = reference.adjusted_logits(plain, tokens, n_prompt=0, no_repeat_ngram_size=n_gram)
                if np.isinf(row).all():
                    break
                expected.append(int(row.argmax()))
                n_masked += int(np.isinf(row).any())
            if expected:
                how: Settings = {"max_new_tokens": len(expected), "no_repeat_ngram_size": n_gram}
                how |= {"ignore_eos": True, "n_threads": 1}
                for draft in (None, drafting(pair, "top-k")):
                    assert specdec.generate(pair[0], draft, prompt, gamma=3, **how).tokens == expected
    assert n_masked > 0 or n_gram > 40


@pytest.mark.parametrize("mask", MASKS)
def test_a_draft_with_the_same_mask_is_always_right(pair: Any, mask: str) -> None:
    how: Settings = {"temperature": 1.0, "seed": 3, "max_new_tokens": 8, "gamma": 4, **MASKS[mask]}
    how |= {"ignore_eos": True, "n_threads": 1}
    out = specdec.generate(pair[0], pair[0], PROMPT, **how)
    assert out.trace.acceptance_rate == pytest.approx(1.0, abs=1e-12)


def test_min_tokens_counts_new_tokens(pair: Any) -> None:
    """End ids of the model and the caller wait; a stop text does not."""
    how: Settings = {"n": 40, "temperature": 1.0, "seed": 1, "stop": [1, 2, 3, 4], "max_new_tokens": 9}
    for n in (0, 1, 4):
        for draft in (None, pair[1]):
            out: Any = specdec.generate(pair[0], draft, PROMPT, min_tokens=n, **how)
            assert min(len(result.tokens) for result in out) == n + 1


def test_bad_words_by_their_texts() -> None:
    """A text is masked with a space before it and without, and where it continues the prompt."""
    target, draft = small_pair()
    encode = target.tokenizer.encode  # type: ignore[union-attr]
    how: Settings = {"n": 20, "temperature": 1.0, "seed": 1, "max_new_tokens": 40}
    words = ["the", "a", " night", [target.eos_ids[0]]]
    ids = [encode(space + word.strip(), add_bos=False) for word in words[:3] for space in ("", " ")]  # type: ignore[union-attr]
    prompt = "It was a dark and stormy"
    results: Any = specdec.generate(target, draft, prompt, bad_words=words, **how)
    assert all(len(result.tokens) == 40 for result in results), "no text ends"
    same: Any = specdec.generate(target, draft, prompt, bad_words=[*ids, words[3]], **how)
    assert [result.tokens for result in same] == [result.tokens for result in results]
    for result in results:
        text = [*result.prompt_ids[-1:], *result.tokens]
        assert not any(text[i : i + len(word)] == word for word in ids for i in range(len(text)))
    plain: Any = specdec.generate(target, draft, prompt, **how)
    assert any(" the" in result.text for result in plain)


@pytest.mark.oracle
def test_transformers_masks_the_same(pair: Any) -> None:
    """Compare with its logits processors, on texts longer than every bad word: it ignores longer words."""
    torch = pytest.importorskip("torch")
    from transformers import generation

    rng = np.random.default_rng(1)
    words, ends, n_masked = [[2], [1, 3, 4], [4, 4], [0, 1, 0]], [1, 4], 0
    for n in range(4, 40):
        text = rng.integers(0, 5, n).tolist()
        logits = rng.normal(size=5).astype(np.float32)
        ids, scores = torch.tensor([text]), torch.tensor(logits[None])
        processors = {
            "min_tokens": generation.MinNewTokensLengthLogitsProcessor(4, 12, ends, "cpu"),
            "no_repeat_ngram_size": generation.NoRepeatNGramLogitsProcessor(3),
            "bad_words": generation.NoBadWordsLogitsProcessor(words, torch.tensor([3])),
        }
        values: Settings = {"min_tokens": 12, "no_repeat_ngram_size": 3, "bad_words": words}
        for name, processor in processors.items():
            ours = reference.adjusted_logits(logits, text, n_prompt=4, end_ids=ends, **{name: values[name]})
            assert np.array_equal(ours, processor(ids, scores.clone())[0].numpy()), name
            n_masked += int(np.isinf(ours).sum())
    assert n_masked > 50


@pytest.mark.parametrize(
    ("name", "value", "named"),
    [
        ("min_tokens", -1, "min_tokens"), ("min_tokens", None, "min_tokens"),
        ("no_repeat_ngram_size", 1.5, "no_repeat_ngram_size"), ("bad_words", "the", "bad_words"),
        ("bad_words", 3, "bad_words"), ("bad_words", {"a": 1}, "bad_words"),
        ("bad_words", ["a", ""], "bad_words[1]"),
        ("bad_words", [[]], "bad_words[0]"), ("bad_words", [[1, -1]], "bad_words[0]"),
        ("bad_words", [[True]], "bad_words[0]"),
    ],
)  # fmt: skip
def test_bad_values_are_named(name: str, value: Any, named: str) -> None:
    with refuses(named):
        specdec.Sampling(**{name: value})


def test_words_that_the_target_cannot_have_are_refused(pair: Any) -> None:
    for word, value in (([1, 5], 5), ("a", "a")):  # this target has five tokens and no tokenizer
        with refuses("bad_words", value):
            specdec.generate(*pair, PROMPT, bad_words=[word])


def test_a_text_without_tokens_to_choose_from_is_an_error(pair: Any) -> None:
    with pytest.raises(specdec.InputError, match="min_tokens and bad_words: no token is left"):
        specdec.generate(*pair, PROMPT, stop=[0, 1], min_tokens=3, bad_words=[[2], [3], [4]])
