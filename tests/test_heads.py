"""`specdec.drafts.Heads`: what each head predicts, in every variant, against the papers in plain NumPy."""

from __future__ import annotations

import gc
import importlib.resources
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import specdec
from allocations import allowing, fail_each_allocation, needs_hooks, nothing_leaks
from refusals import refuses
from specdec import PromptCache, drafts, reference
from toy_pair import load_pair
from worlds.canonical import VARIANTS, random_tensors
from worlds.encoder_decoders import EncoderDecoder, model_of
from worlds.folders import llama_config, tensors_for, write_hf
from worlds.learned import (
    all_records,
    check_distributions,
    heads_logits,
    learned_weights,
    open_session,
    random_heads,
    tensors_of,
)  # fmt: skip

PROMPT = [5, 9, 5, 9, 30, 5, 9]
SOURCE = [3, 7, 4, 9]
QUICK = "parallel-one-norm-without-bias"  # has a factor of the logits
SHORT: dict[str, Any] = {"max_new_tokens": 12, "ignore_eos": True}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> specdec.Model:
    return load_pair(tmp_path_factory.mktemp("pair"))[0]


def drafted(target: specdec.Model, draft: Any, prompts: list[list[int]], **options: Any) -> list[Any]:
    """All records of a batch at temperature 1."""
    return all_records(open_session(target, draft, prompts, **({"max_new_tokens": 12} | options)))


VARIANTS_OF_HEADS: dict[str, dict[str, Any]] = {
    "own": {"n_blocks": 2},
    "shared": {"shared_output": True, "n_heads": 4},
    "some tokens": {"tokens": [7, 3, 60, 9, 30, 5]},
    "some tokens, shared": {"tokens": [7, 3, 60, 9, 30, 5], "shared_output": True},
    "seen": {"see_guesses": True, "n_heads": 4},
    "seen, shared, without blocks": {"see_guesses": True, "shared_output": True, "n_blocks": 0},
}
TREES: dict[str, Any] = {
    "chain": None, "chains": drafts.ParallelChains(3), "tree": drafts.StaticTree((3, 1, 2))
}  # fmt: skip


def check_heads(
    target: specdec.Model, weights: Any, tree: Any = None, source: Any = None, **options: Any
) -> int:
    """Each draft token is drawn from the distribution that NumPy computes; returns how many there are."""
    prompts = [PROMPT, PROMPT[2:]]

    def expected(text: list[int], path: list[int]) -> Any:
        return reference.distribution(heads_logits(weights, target, text, path, source), 1.0)

    sources = None if source is None else [source] * len(prompts)
    draft = drafts.Heads(weights, tree=tree)
    return check_distributions(
        target, draft, prompts, expected, rtol=2e-4, atol=1e-7, sources=sources, max_new_tokens=12, **options
    )[0]


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("variant", VARIANTS_OF_HEADS)
@pytest.mark.grid
def test_nodes_are_drawn_from_their_heads(target: specdec.Model, variant: str, tree: str) -> None:
    heads = random_heads(target, **VARIANTS_OF_HEADS[variant])
    assert check_heads(target, heads, TREES[tree], n_threads=2) > 20


@pytest.mark.parametrize("variant", VARIANTS_OF_HEADS)
def test_a_batch_changes_no_bit_of_a_distribution(target: specdec.Model, variant: str) -> None:
    """Of each node alone, and in a batch of texts of other lengths on other threads."""
    for tree in (None, drafts.StaticTree((2, 2))):
        heads = random_heads(target, **VARIANTS_OF_HEADS[variant])
        draft = drafts.Heads(heads, tree=tree, dtype="bf16")
        alone = drafted(target, draft, [PROMPT])
        batch = drafted(target, draft, [PROMPT, [5], PROMPT[3:]], n_threads=3)
        for one, other in zip(alone, (r for r in batch if r["sequence"] == 0), strict=True):
            assert one["drafted"] == other["drafted"]
            assert np.array_equal(one["draft_probs"], other["draft_probs"])


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == QUICK else pytest.mark.slow) for name in sorted(VARIANTS)]
)
def test_heads_of_every_kind_of_target(name: str) -> None:
    """The shared output with its bias, scale and cap, and embeddings as the table has them."""
    model = model_of(VARIANTS[name], random_tensors(VARIANTS[name]))
    check_shared_output(model)
    assert check_heads(model, random_heads(model, see_guesses=True)) > 0


@pytest.mark.parametrize("dtype", ["bf16", "int8", "int4"])
def test_the_output_is_shared_in_every_number_format(dtype: str) -> None:
    check_shared_output(model_of(VARIANTS[QUICK], random_tensors(VARIANTS[QUICK]), dtype=dtype))


def check_shared_output(model: specdec.Model) -> None:
    """After blocks of zeros it gives the target's logits, of all tokens or of some, to the bit."""
    weights = random_heads(model, shared_output=True, n_heads=1)
    for tensor in tensors_of(weights).values():
        tensor[...] = 0.0
    tokens = np.array([70, 3, 31, 32, 9, 100, 64], np.int32)
    logits = model.logits(PROMPT[:-1])[-1]
    few = np.full_like(logits, -np.inf)
    few[tokens] = logits[tokens]
    for some, expected in ((None, logits), (tokens, few)):
        draft = drafts.Heads(replace(weights, tokens=some))
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
    packed = drafts.Heads(weights, dtype=dtype)
    assert packed.core.dtype == dtype
    record = drafted(target, packed, [PROMPT], max_new_tokens=4)[0]
    assert len(record["drafted"]) == 3
    for k, probs in enumerate(record["draft_probs"][1:]):
        logits = heads_logits(rounded, target, PROMPT, record["drafted"][:k])
        away = np.abs(probs - reference.distribution(logits, 1.0)).sum()
        assert 0.0 < away < 0.05, "0 if the rows of activations were not rounded"


def test_no_more_draft_tokens_in_a_row_than_heads(target: specdec.Model) -> None:
    weights = random_heads(target, n_heads=2)
    heads = drafts.Heads(weights)
    assert heads.gamma == heads.n_heads == 2
    for gamma in (1, 2, 9):
        records = drafted(target, heads, [PROMPT], gamma=gamma)
        assert max(len(record["drafted"]) for record in records) == min(gamma, 2)
    deep = drafts.Heads(weights, tree=drafts.StaticTree((2, 2, 2)))
    assert max(len(record["drafted"]) for record in drafted(target, deep, [PROMPT])) == 6
    deep = drafts.Heads(weights, tree=drafts.DynamicTree(20, width=3, steps=6))
    plain = specdec.generate(target, None, PROMPT, **SHORT)
    assert specdec.generate(target, deep, PROMPT, **SHORT).tokens == plain.tokens


def test_a_text_of_one_token_has_no_hidden_state(target: specdec.Model) -> None:
    records = drafted(target, drafts.Heads(random_heads(target)), [[5]])
    assert [len(record["drafted"]) > 0 for record in records][:2] == [False, True]


def test_trained_heads_are_right(target: specdec.Model) -> None:
    """Heads fitted to one text by least squares draft all of it, in chains and in a tree."""
    options: dict[str, Any] = {"max_new_tokens": 24, "ignore_eos": True}
    text = specdec.generate(target, None, PROMPT, **options)
    ids, layer = [*PROMPT, *text.tokens], target.config.n_layer + 1
    states = target.hidden_states(ids, [layer])[layer].astype(np.float64)
    tensors = {}
    for k in range(3):
        rows, wanted = states[: len(ids) - 2 - k], np.eye(61)[ids[2 + k :]]
        tensors[f"heads.{k}.output.weight"] = (np.linalg.pinv(rows, rcond=1e-6) @ wanted).T
    weights = learned_weights("heads", target, {"n_heads": 3, "n_blocks": 0}, tensors, taps=[layer])
    for tree in (None, drafts.StaticTree((2, 1, 1), "top-k")):
        found = specdec.generate(target, drafts.Heads(weights, tree=tree), PROMPT, **options)
        assert found.tokens == text.tokens and found.trace.tokens_per_call > 2.5


def test_adaptive_gamma_and_ensembles(target: specdec.Model) -> None:
    heads = drafts.Heads(random_heads(target, shared_output=True))
    options: dict[str, Any] = {"max_new_tokens": 30, "ignore_eos": True, "logits": True}
    wanted = specdec.generate(target, None, PROMPT, **options)
    for draft in (heads, drafts.Ensemble(heads, drafts.ContextCopy(min_match=1), drafts.EarlyExit(1))):
        found = specdec.generate(target, draft, PROMPT, gamma="auto", **options)
        assert found.tokens == wanted.tokens and np.array_equal(found.logits, wanted.logits)


def test_texts_that_were_read_without_hidden_states_are_read_again(target: specdec.Model) -> None:
    heads, cache = drafts.Heads(random_heads(target)), PromptCache()
    ids = [3 + (7 * i + i * i) % 50 for i in range(30)]

    def ask(draft: Any, prompt: list[int]) -> int:
        options: dict[str, Any] = {"max_new_tokens": 4, "ignore_eos": True, "logits": True}
        found = specdec.generate(target, draft, prompt, prompt_cache=cache, **options)
        wanted = specdec.generate(target, None, prompt, **options)
        assert found.tokens == wanted.tokens and np.array_equal(found.logits, wanted.logits)
        return found.n_cached_tokens

    assert ask(None, ids) == 0
    assert ask(heads, ids) == 0
    assert len(cache) == 1  # the one with hidden states serves plain runs too
    assert ask(heads, ids) == len(ids) - 1
    assert ask(None, ids) == len(ids) - 1
    assert ask(heads, [*ids[:20], 4, 5]) == 20
    assert ask(None, [*ids, 6, 7, 8]) == len(ids)
    assert ask(heads, [*ids, 6, 7, 8]) == len(ids)  # the longer text of the plain run has no hidden states


@needs_hooks
def test_heads_live_as_long_as_a_session(target: specdec.Model) -> None:
    with nothing_leaks():
        core = drafts.Heads(random_heads(target)).core
        session = open_session(target, ("model", {"model": core}), [PROMPT])
        del core
        gc.collect()
        all_records(session)
        del session


def test_the_heads_of_the_embedded_target() -> None:
    """They are small, as exact as any draft, and right more often than not."""
    target, small = specdec.embedded_pair()
    folder = importlib.resources.files("specdec") / "embedded" / "heads"
    assert sum(len(file.read_bytes()) for file in folder.iterdir()) < 3_000_000
    heads = drafts.load("embedded-heads")
    options: dict[str, Any] = {"max_new_tokens": 40, "ignore_eos": True, "n_threads": 1}
    for prompt in ("It was a dark and stormy night", "The old man looked at"):
        found = specdec.generate(target, heads, prompt, **options)
        assert found.tokens == specdec.generate(target, None, prompt, **options).tokens
        assert found.trace.tokens_per_call > 1.3
    tree = drafts.StaticTree((2, 2))
    assert drafts.load("embedded-heads", specdec.embedded_pair("int8")[0], tree=tree).gamma == 6
    with pytest.raises(specdec.InputError, match="for the target 'embedded/target'; given is .*draft"):
        drafts.load("embedded-heads", small)


# -------------------------------------------------------------------------------------------- refusals


def test_a_draft_has_no_hidden_states(target: specdec.Model, tmp_path: Path) -> None:
    _, small = load_pair(tmp_path)
    inner = drafts.Heads(random_heads(small))
    with refuses("draft"):
        drafts.ModelDraft(small, draft=inner)
    nested = "nested", {"model": small.core, "draft": inner.describe(small), "gamma": 3}
    with pytest.raises(specdec.InputError, match="reads hidden states of its target"):
        open_session(target, nested, [PROMPT])


def test_a_wrong_target_is_refused_by_name(target: specdec.Model, tmp_path: Path) -> None:
    folder = random_heads(target).save(tmp_path / "heads")
    config = llama_config(vocab_size=61, hidden_size=64)
    other = specdec.load(write_hf(tmp_path / "other", config, tensors_for(config)))
    heads = drafts.Heads(folder)
    for open_it in (
        lambda: drafts.load(folder, other),
        lambda: specdec.generate(other, heads, PROMPT),
        lambda: specdec.generate(other, folder, PROMPT),
    ):
        with pytest.raises(specdec.InputError, match="'.*target'; given is .*other, of d_model 64; expected"):
            open_it()
    with pytest.raises(ValueError, match="for a target of d_model 32"):  # the core by itself
        open_session(other, ("model", {"model": heads.core}), [PROMPT])


def test_a_path_is_opened_as_what_it_holds(target: specdec.Model, tmp_path: Path) -> None:
    folder = random_heads(target).save(tmp_path / "heads")
    loaded = drafts.load(folder, target, tree=drafts.ParallelChains(2), dtype="int8", gamma=5)
    assert isinstance(loaded, drafts.Heads)
    assert (loaded.gamma, loaded.core.dtype, loaded.tree) == (5, "int8", drafts.ParallelChains(2))
    assert drafts.Heads(folder).core.dtype == "bf16"
    found = specdec.generate(target, str(folder), PROMPT, max_new_tokens=6, seed=1, temperature=1.0)
    assert found.trace.n_drafted > 0


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"method": "ears"}, "'method'"),
        ({"n_heads": 0}, "'n_heads'"),
        ({"n_heads": 65}, "'n_heads'"),
        ({"n_heads": 4}, r"'heads\.3\.blocks\.0\.weight' is missing"),
        ({"n_heads": 2}, r"'heads\.2\.blocks\.0\.bias' is not part"),
        ({"n_blocks": -1}, "'n_blocks'"),
        ({"see_guesses": 1}, "'see_guesses'"),
        ({"see_guesses": True}, r"'heads\.0\.input\.weight' is missing"),
        ({"shared_output": True}, r"'heads\.0\.output\.weight' is not part"),
        ({"activation": "gelu"}, "'activation'"),
        ({"taps": [1]}, "'taps'"),
        ({"n_blocks": 0, "shared_output": True}, "'n_blocks'"),
    ],
)
def test_damaged_folders_are_refused_by_name(
    target: specdec.Model, tmp_path: Path, fields: dict[str, Any], named: str
) -> None:
    folder = random_heads(target).save(tmp_path)
    config = json.loads((folder / "config.json").read_text()) | fields
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(specdec.CheckpointError, match=named):
        drafts.load(folder, target)


@pytest.mark.parametrize("which", ["output", "blocks.0"])
def test_numbers_that_overflow_are_no_draft_tokens(target: specdec.Model, which: str) -> None:
    weights = random_heads(target)
    tensors_of(weights)[f"heads.1.{which}.weight"][:] = 3e38
    with pytest.raises(specdec.NotFiniteError, match=r"the logits of head 2 are not finite after position 7"):
        specdec.generate(target, drafts.Heads(weights), PROMPT, max_new_tokens=4)


def test_weights_that_are_not_finite_name_the_tensor(target: specdec.Model) -> None:
    weights = random_heads(target)
    tensors_of(weights)["heads.0.blocks.0.bias"][3] = np.nan
    with pytest.raises(specdec.CheckpointError, match=r"tensor heads\.0\.blocks\.0\.bias: element \[3\]"):
        drafts.Heads(weights)


SMALL = {
    "n_heads": 1, "n_blocks": 1, "d_model": 4, "n_vocab": 8, "n_draft_vocab": 8, "see_guesses": False,
    "shared_output": True,
}  # fmt: skip
WEIGHT, BIAS = (f"heads.0.blocks.0.{name}" for name in ("weight", "bias"))
TENSORS = [(WEIGHT, np.eye(4, dtype=np.float32), "f32"), (BIAS, np.zeros(4, np.float32), "f32")]


@pytest.mark.parametrize(
    ("config", "tensors", "options", "named"),
    [
        ({}, TENSORS[:1], {}, BIAS),
        ({}, [*TENSORS, TENSORS[0]], {}, "given twice"),
        ({}, [("other", TENSORS[0][1], "f32")], {}, "not part of a draft"),
        ({}, [(WEIGHT, np.zeros((4, 5), "f4"), "f32")], {}, r"shape is \(4, 5\)"),
        ({"n_heads": 65}, TENSORS, {}, "n_heads is 65"),
        ({"n_blocks": 65}, TENSORS, {}, "n_blocks is 65"),
        ({"d_model": 0}, TENSORS, {}, "d_model is 0"),
        ({"n_draft_vocab": 9}, TENSORS, {}, "n_draft_vocab is 9"),
        ({"n_draft_vocab": 2}, TENSORS, {"tokens": [1]}, "there are 1 tokens"),
        ({"n_draft_vocab": 1, "shared_output": False}, TENSORS, {"tokens": [8]}, r"tokens\[0\] is 8"),
        ({"more": 1}, TENSORS, {}, "more"),
        ({"n_heads": "1"}, TENSORS, {}, "n_heads is a str"),
        ({}, TENSORS, {"dtype": "f64"}, "dtype"),
    ],
)
def test_the_core_checks_what_it_is_given(
    target: specdec.Model, config: dict[str, Any], tensors: Any, options: dict[str, Any], named: str
) -> None:
    make = type(drafts.Heads(random_heads(target)).core)
    assert make(SMALL, TENSORS).n_parameters == 20
    with pytest.raises((ValueError, TypeError), match=named):
        make(SMALL | config, tensors, **options)


@needs_hooks
@pytest.mark.usefixtures("quick_gc")
def test_memory_that_is_not_granted(target: specdec.Model) -> None:
    weights = random_heads(target, see_guesses=True, tokens=[3, 4])
    assert fail_each_allocation(lambda: drafts.Heads(weights, n_threads=1)) >= 2
    heads = drafts.Heads(weights)

    assert fail_each_allocation(lambda: open_session(target, heads, [PROMPT]).close()) >= 6
    session = open_session(target, heads, [PROMPT])
    with allowing(0):
        all_records(session)
