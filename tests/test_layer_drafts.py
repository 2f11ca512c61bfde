"""Drafts from the target's own layers: their tokens, their cost, and unchanged output."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import specdec
from allocations import needs_hooks
from compiled import counted_work
from descriptions import by_method
from exact import prefixes_of
from sessions import Session, all_rounds
from specdec import InputError, reference
from specdec.drafts import Bigram, EarlyExit, Ensemble, SkipLayers
from trained import small_pair
from worlds import canonical
from worlds.canonical import FORMATS, LLAMA, VARIANTS, Tensors, build, random_tensors, with_drafts

PROMPTS = [[5, 17, 3], [1], [40, 2, 9] * 30]
N_LAYER = LLAMA["n_layer"]


def skipping(attn: tuple[int, ...] = (), mlp: tuple[int, ...] = (), n_layer: int = N_LAYER) -> Any:
    return by_method("skip_layers", bytes((i in attn) + 2 * (i in mlp) for i in range(n_layer)))


def exit_after(layer: int, n_layer: int = N_LAYER) -> Any:
    rest = tuple(range(layer, n_layer))
    return skipping(rest, rest, n_layer)


SKIPS = {
    "attention": ((1,), ()),
    "mlp": ((), (2,)),
    "a layer": ((1,), (1,)),
    "the first layer": ((0,), (0,)),
    "the last, and the first's mlp": ((2,), (0, 2)),
    "all but one mlp": ((0, 1, 2), (0, 2)),
}


def lively(config: dict[str, Any], seed: int = 1) -> Tensors:
    """A model whose later layers change little, so that draft tokens are sometimes accepted."""
    tensors = random_tensors(config, seed)
    for name in tensors:
        if name.endswith(("attn_out.weight", "mlp_down.weight")) and not name.startswith("layers.0."):
            tensors[name] = tensors[name] * np.float32(0.5)
    return tensors


def rounds(target: Any, draft: Any, **options: Any) -> list[dict[str, Any]]:
    """Sampled rounds of the three prompts, with their draft distributions."""
    options = {"gamma": 4, "max_new_tokens": 25, "temperature": 1.0} | options
    seeds = [(4, i) for i in range(len(PROMPTS))]
    return all_rounds(with_drafts(Session(target, draft, PROMPTS, seeds=seeds, **options)))


# --------------------------------------------------------------------------------- what they draft


def cut(config: dict[str, Any], tensors: Tensors, n_layer: int, **formats: str) -> Any:
    """Make the model of the first layers."""
    config = config | {"n_layer": n_layer}
    by_layer = [
        "n_heads", "n_kv_heads", "d_heads", "windows", "rotations", "score_scales", "mixtures",
        "values_from_keys", "d_ffs", "kv_layers",
    ]  # fmt: skip
    for name in [*by_layer, "mixers"]:
        config[name] = list(config.get(name, ()))[:n_layer]
    gone = tuple(f"layers.{i}." for i in range(n_layer, N_LAYER))
    held = {name: t for name, t in tensors.items() if not name.startswith(gone)}
    if width := n_layer * config.get("d_per_layer", 0):
        held["per_layer_embedding"] = held["per_layer_embedding"][:, :width]
        held["per_layer_projection.weight"] = held["per_layer_projection.weight"][:width]
    return build(config, held, **formats)


@pytest.mark.grid
@pytest.mark.parametrize(("dtype", "cache"), FORMATS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_an_early_exit_drafts_what_the_cut_model_drafts(variant: str, dtype: str, cache: str) -> None:
    """That model, with a cache of its own, draws the same tokens from the same distributions, bit for bit."""
    config, formats = VARIANTS[variant], {"dtype": dtype, "cache_dtype": cache}
    tensors = lively(config)
    target = build(config, tensors, **formats)
    for layer in range(1, N_LAYER):
        model = cut(config, tensors, layer, **formats)
        wanted = rounds(target, by_method("model", model))
        found = rounds(target, exit_after(layer), n_threads=2)
        assert [r["drafted"] for r in found] == [r["drafted"] for r in wanted]
        assert [r["tokens"] for r in found] == [r["tokens"] for r in wanted]
        for one, other in zip(found, wanted, strict=True):
            assert np.array_equal(one["draft_probs"], other["draft_probs"])
        assert 0 < sum(len(r["accepted"]) for r in found) < sum(len(r["drafted"]) for r in found)


@pytest.mark.grid
@pytest.mark.parametrize("skip", SKIPS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_skipping_layers_is_what_the_reference_says(variant: str, skip: str) -> None:
    """Draft tokens skip the layers, and attend to the text's keys and values, which went through all."""
    config = VARIANTS[variant]
    tensors = lively(config)
    attn, mlp = SKIPS[skip]
    texts = [list(prompt) for prompt in PROMPTS]
    for i, record in enumerate(rounds(build(config, tensors), skipping(attn, mlp))):
        text = texts[record["sequence"]]
        *prefix, root = text
        text += record["tokens"]
        if i % 8:  # of three texts each in turn; the reference takes long
            continue
        logits = reference.tree_logits(
            config, tensors, prefix, [root, *record["drafted"]], [-1, *record["parents"]],
            skip_attn=attn, skip_mlp=mlp,
        )  # fmt: skip
        assert record["parents"] == list(range(len(record["drafted"])))
        for row, expected in zip(record["draft_probs"][1:], logits[:-1], strict=True):
            np.testing.assert_allclose(row, reference.distribution(expected, 1.0), rtol=2e-3, atol=1e-6)


DESCRIPTIONS = {f"exit {layer}": exit_after(layer) for layer in range(1, N_LAYER)} | {
    f"without {name}": skipping(*skips) for name, skips in SKIPS.items()
}


@pytest.mark.grid
@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("draft", DESCRIPTIONS.values(), ids=DESCRIPTIONS)
def test_replaced_draft_tokens_are_computed_again(draft: Any, alpha: float) -> None:
    """A draft of fixed acceptance proposes other tokens than the layers read; with alpha 0 all are wrong."""
    target = build(LLAMA, lively(LLAMA))
    wanted, logits, _ = canonical.run_session(target, None, PROMPTS, gamma=0)
    texts = [prompt + tokens for prompt, tokens in zip(PROMPTS, wanted, strict=True)]
    fixed = canonical.fixed_acceptance(draft, alpha, texts)
    tokens, found, records = canonical.run_session(target, fixed, PROMPTS, gamma=4, n_threads=2)
    assert tokens == wanted and all(map(np.array_equal, found, logits))
    n_accepted = sum(len(r["accepted"]) for r in records)
    assert (n_accepted == 0) == (alpha == 0.0)


@pytest.mark.grid
@needs_hooks
@pytest.mark.parametrize("n_threads", [1, 2])
@pytest.mark.parametrize("gamma", [1, 2, 5])
@pytest.mark.parametrize("name", DESCRIPTIONS)
def test_no_layer_is_run_twice_for_a_token(name: str, gamma: int, n_threads: int) -> None:
    """Attentions and MLPs run once per node, except from the first skipped layer on."""
    target = build(LLAMA, lively(LLAMA))
    draft = DESCRIPTIONS[name]
    blocks = [2 - skipped.bit_count() for skipped in draft[1]["skipped"]]
    n_shared = next(i for i, n in enumerate(blocks) if n < 2)
    options: dict[str, Any] = {"max_new_tokens": 30, "temperature": 0.0, "n_threads": n_threads}
    session = Session(target, draft, PROMPTS, gamma=gamma, **options)
    session.prefill()
    with counted_work() as work:
        records = all_rounds(session)
    n_draft_tokens = sum(len(record["drafted"]) for record in records)
    n_rows = len(records) + n_draft_tokens
    assert work.blocks == n_rows * 2 * N_LAYER + n_draft_tokens * sum(blocks[n_shared:])
    if name.startswith("exit"):
        assert work.blocks == n_rows * 2 * N_LAYER


def test_what_does_not_fit_the_target_is_refused() -> None:
    with pytest.raises(InputError, match="attn and mlp are empty"):
        SkipLayers()
    target, _ = small_pair()
    n = target.config["n_layer"]
    for draft, message in [
        (EarlyExit(n), f"layer is {n}; expected 1 to {n - 1}"),
        (SkipLayers(attn=[0, n]), f"attn has layer {n}; expected 0 to {n - 1}"),
        (SkipLayers(range(n), range(n)), f"skip all {n} layers"),
    ]:
        with pytest.raises(InputError, match=message):
            specdec.generate(target, draft, "It was")


def test_repr() -> None:
    assert repr(EarlyExit(2)) == "specdec.drafts.EarlyExit(2)"
    assert repr(SkipLayers([3, 1, 3], [2])) == "specdec.drafts.SkipLayers(attn=[1, 3], mlp=[2])"
    assert SkipLayers([1]) == SkipLayers(attn=(1,)) != SkipLayers(mlp=[1])


@needs_hooks
def test_layers_that_share_skipped_keys_are_skipped() -> None:
    config = VARIANTS["shared-keys-per-layer-embeddings"]
    target = build(config, lively(config))
    first, both = (rounds(target, skipping(attn)) for attn in ((0,), (0, 2)))
    assert any(record["tokens"] for record in first) and len(first) == len(both)
    for one, other in zip(first, both, strict=True):
        assert one["tokens"] == other["tokens"]
        np.testing.assert_array_equal(one["draft_probs"], other["draft_probs"])


@needs_hooks
def test_prompts_end_in_the_last_layer_with_keys() -> None:
    """Later layers run for the last token alone."""
    config = LLAMA | {"kv_layers": [0, 0, 0]}
    target, prompt = build(config, random_tensors(config)), list(range(40))
    with counted_work() as work:
        canonical.run_session(target, None, [prompt], max_new_tokens=1)
    assert work.blocks == 2 * 3  # the prompt's other tokens only store keys and values in layer 0


@needs_hooks
@pytest.mark.parametrize("n_threads", [1, 2])
@pytest.mark.parametrize("order", ["first", "last"])
def test_nothing_is_run_twice_with_another_draft(order: str, n_threads: int) -> None:
    """The exit's draft tokens need not be the first of the tree: the target still continues from them."""
    target, _ = small_pair()
    ids = target.tokenizer.encode("It was the best of times, it was the worst of times, it was the age")
    prompts, n_layer = [ids, ids[:3]], target.config["n_layer"]
    parts = [EarlyExit(2), Bigram(ids, target.config["n_vocab"])]
    draft = Ensemble(*(parts if order == "first" else parts[::-1]), adaptive=False)
    options: dict[str, Any] = {"max_new_tokens": 30, "temperature": 0.0, "ignore_eos": True}
    with counted_work() as work:
        results = specdec.generate(target, draft, prompts, n_threads=n_threads, **options)
    n_rows = n_read = sum(len(prompt) - 1 for prompt in prompts)
    n_trees = 0
    for got in results:
        for round_ in got.trace.rounds:
            prefixes = set(prefixes_of(round_.drafted, round_.parents))
            n_rows += len(prefixes)
            n_trees += len(prefixes) > round_.depth + 1
    assert n_trees > 10, "the drafts hardly ever disagreed"
    assert work.blocks == n_rows * 2 * n_layer - n_read * 2  # prompts end in the last layer
