"""Drafts from the target's own layers: what they guess, what they cost, and that outputs stay plain."""

from __future__ import annotations

from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import specdec
from allocations import needs_hooks
from descriptions import by_method
from sessions import Session
from specdec import InputError, _core, reference
from specdec.drafts import Bigram, EarlyExit, Ensemble, ModelDraft, SkipLayers, Unigram
from worlds.canonical import (
    DTYPES,
    FORMATS,
    GPT,
    LLAMA,
    VARIANTS,
    Tensors,
    build,
    fixed_acceptance,
    random_tensors,
    run_session,
    with_drafts,
)

PROMPTS = [[5, 17, 3], [1], [40, 2, 9] * 30]
N_LAYER = LLAMA["n_layer"]
COUPLED = {"temperature": 1.0, "rule": "coupled"}


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
    """Later layers change little, so that guesses are accepted now and then."""
    tensors = random_tensors(config, seed)
    for name in tensors:
        if name.endswith(("attn_out.weight", "mlp_down.weight")) and not name.startswith("layers.0."):
            tensors[name] = tensors[name] * np.float32(0.5)
    return tensors


def rounds(target: _core.Model, draft: Any, gamma: int = 4, **options: Any) -> list[dict[str, Any]]:
    """All rounds of the three prompts, sampled, with what was drawn from."""
    sampling = {"temperature": 1.0}
    session = Session(
        target, draft, PROMPTS, gamma=gamma, max_new_tokens=25, sampling=sampling, draft_sampling=sampling,
        seeds=[(4, i) for i in range(len(PROMPTS))], n_threads=options.pop("n_threads", 1),
        **options,
    )  # fmt: skip
    with_drafts(session).prefill()
    records = []
    while batch := session.round():
        records += batch
    session.close()
    return records


# --------------------------------------------------------------------------------- what they guess


def cut(config: dict[str, Any], tensors: Tensors, n_layer: int, **formats: str) -> _core.Model:
    """The model of the first layers."""
    config = config | {"n_layer": n_layer}
    for name in ("n_heads", "n_kv_heads", "d_heads", "windows", "rotations", "score_scales", "mixtures"):
        config[name] = list(config.get(name, ()))[:n_layer]
    return build(config, {name: tensors[name] for name in _core.tensor_shapes(config)}, **formats)


@pytest.mark.grid
@pytest.mark.parametrize(("dtype", "cache"), FORMATS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_an_early_exit_guesses_what_the_cut_model_guesses(variant: str, dtype: str, cache: str) -> None:
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
    """Guesses pass the layers by, and attend to the text's keys and values, which went through all."""
    config = VARIANTS[variant]
    tensors = lively(config)
    attn, mlp = SKIPS[skip]
    texts = [list(prompt) for prompt in PROMPTS]
    for i, record in enumerate(rounds(build(config, tensors), skipping(attn, mlp))):
        text = texts[record["sequence"]]
        *prefix, root = text
        text += record["tokens"]
        if i % 4:  # of three texts each in turn; the reference takes long
            continue
        logits = reference.tree_logits(
            config, tensors, prefix, [root, *record["drafted"]], [-1, *record["parents"]],
            skip_attn=attn, skip_mlp=mlp,
        )  # fmt: skip
        assert record["parents"] == list(range(len(record["drafted"])))
        for row, expected in zip(record["draft_probs"][1:], logits[:-1], strict=True):
            np.testing.assert_allclose(row, reference.distribution(expected, 1.0), rtol=2e-3, atol=1e-6)


# ------------------------------------------------------------------------------ outputs stay plain

DESCRIPTIONS = {f"exit {layer}": exit_after(layer) for layer in range(1, N_LAYER)} | {
    f"without {name}": skipping(*skips) for name, skips in SKIPS.items()
}


@pytest.mark.grid
@pytest.mark.parametrize("how", [{}, COUPLED], ids=["greedy", "coupled"])
@pytest.mark.parametrize(("dtype", "cache"), FORMATS)
@pytest.mark.parametrize("config", [LLAMA, GPT], ids=["llama", "gpt"])
def test_output_is_plain_output(config: dict[str, Any], dtype: str, cache: str, how: dict[str, Any]) -> None:
    """In a batch of three, with one and two threads, for every gamma from 1 to 6."""
    target = build(config, lively(config), dtype=dtype, cache_dtype=cache)
    plain_tokens, plain_logits, _ = run_session(target, None, PROMPTS, gamma=0, **how)
    n_accepted = 0
    for name, draft in DESCRIPTIONS.items():
        for gamma in range(1, 7):
            tokens, logits, records = run_session(
                target, draft, PROMPTS, gamma=gamma, n_threads=1 + gamma % 2, **how
            )
            n_accepted += sum(len(r["accepted"]) for r in records)
            for i in range(len(PROMPTS)):
                n = len(plain_tokens[i])
                assert tokens[i][:n] == plain_tokens[i], (name, gamma)
                assert np.array_equal(logits[i][:n], plain_logits[i]), (name, gamma)
    assert n_accepted > 0


LARGER = [pytest.param(name, marks=pytest.mark.slow) for name in ("embedded", "stories260K", "chars105")]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["small", *LARGER])
def test_every_exit_of_trained_models(name: str, dtype: str, request: pytest.FixtureRequest) -> None:
    if name in ("small", "embedded"):
        file = Path(specdec.__file__).parent / "embedded" / ("draft" if name == "small" else "target")
    else:
        shared: Path = request.getfixturevalue("shared")
        file = shared / "models" / name / {"stories260K": "stories260K.bin"}.get(name, "model5000.bin")
    target = specdec.load(file, dtype=dtype)
    prompts = [target.tokenizer.encode(text) for text in ("Once upon a time", "T", "One day, a little " * 4)]
    options: dict[str, Any] = {"max_new_tokens": 24, "ignore_eos": True, "logits": True}
    coupled = {"temperature": 0.8, "verify": "coupled", "seed": 6}
    turns = cycle([1, 2, 3, 4, 5, 6])
    n_accepted = 0
    for how in ({}, coupled):
        plain = specdec.generate(target, None, prompts, **options, **how)
        for layer in range(1, target.config["n_layer"]):
            gamma = next(turns)
            got = specdec.generate(
                target, EarlyExit(layer), prompts, gamma=gamma, n_threads=1 + gamma % 2, **options, **how
            )
            for one, wanted in zip(got, plain, strict=True):
                assert one.tokens == wanted.tokens
                assert np.array_equal(one.logits, wanted.logits)
                n_accepted += one.trace.n_accepted
    assert n_accepted > 0


def without_last_layer(config: dict[str, Any]) -> Tensors:
    """The last layer adds nothing, so without it the model is what it was."""
    tensors = random_tensors(config, 2)
    for part in ("attn_out", "mlp_down"):
        tensors[f"layers.{N_LAYER - 1}.{part}.weight"][:] = 0
    return tensors


@pytest.mark.parametrize("gamma", [1, 3, 6])
@pytest.mark.parametrize("draft", [exit_after(2), skipping((2,), (2,))], ids=["exit", "skip"])
def test_all_accepted_up_to_a_full_context(draft: Any, gamma: int) -> None:
    target = build(LLAMA, without_last_layer(LLAMA))
    room = LLAMA["n_ctx"] - len(PROMPTS[0])
    wanted, logits, _ = run_session(target, None, PROMPTS[:1], gamma=0, max_new_tokens=room)
    tokens, found, records = run_session(target, draft, PROMPTS[:1], gamma=gamma, max_new_tokens=room)
    assert tokens == wanted and len(tokens[0]) == room
    assert np.array_equal(found[0], logits[0])
    assert all(len(r["accepted"]) == len(r["drafted"]) for r in records)
    assert all(len(r["drafted"]) == gamma for r in records[:-1])


@pytest.mark.grid
@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("draft", DESCRIPTIONS.values(), ids=DESCRIPTIONS)
def test_guesses_that_were_replaced_are_computed_anew(draft: Any, alpha: float) -> None:
    """A draft of fixed acceptance has other tokens than the layers ran on; with alpha 0 all are wrong."""
    target = build(LLAMA, lively(LLAMA))
    wanted, logits, _ = run_session(target, None, PROMPTS, gamma=0)
    texts = [prompt + tokens for prompt, tokens in zip(PROMPTS, wanted, strict=True)]
    tokens, found, records = run_session(
        target, fixed_acceptance(draft, alpha, texts), PROMPTS, gamma=4, n_threads=2
    )
    for i in range(len(PROMPTS)):
        assert tokens[i] == wanted[i]
        assert np.array_equal(found[i], logits[i])
    n_accepted = sum(len(r["accepted"]) for r in records)
    assert (n_accepted == 0) == (alpha == 0.0)


# ------------------------------------------------------------------------ no work is done twice


@pytest.mark.grid
@needs_hooks
@pytest.mark.parametrize("n_threads", [1, 2])
@pytest.mark.parametrize("gamma", [1, 2, 5])
@pytest.mark.parametrize("name", DESCRIPTIONS)
def test_no_layer_is_run_twice_for_a_token(name: str, gamma: int, n_threads: int) -> None:
    """Counted in attentions and MLPs: the target's run of every node once, and no more for an early exit.

    Where layers are skipped in between, the guesses' way past the first of them is on top.
    """
    target = build(LLAMA, lively(LLAMA))
    draft = DESCRIPTIONS[name]
    blocks = [2 - skipped.bit_count() for skipped in draft[1]["skipped"]]
    n_shared = next(i for i, n in enumerate(blocks) if n < 2)
    session = Session(
        target, draft, PROMPTS, gamma=gamma, max_new_tokens=30, sampling={"temperature": 0.0},
        draft_sampling={"temperature": 0.0}, seeds=[(1, i) for i in range(3)], n_threads=n_threads,
    )  # fmt: skip
    session.prefill()
    before = _core._forward_work()
    n_rows = n_guesses = 0
    while batch := session.round():
        n_rows += sum(1 + len(record["drafted"]) for record in batch)
        n_guesses += sum(len(record["drafted"]) for record in batch)
    session.close()
    work = _core._forward_work() - before
    assert work == n_rows * 2 * N_LAYER + n_guesses * sum(blocks[n_shared:])
    if name.startswith("exit"):
        assert work == n_rows * 2 * N_LAYER


# -------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: EarlyExit(0), "layer is 0; expected an integer, at least 1"),
        (lambda: EarlyExit(True), "layer is True"),
        (lambda: EarlyExit(1.5), r"layer is 1\.5"),  # type: ignore[arg-type]
        (lambda: SkipLayers(), "attn and mlp are empty"),
        (lambda: SkipLayers(attn=[-1]), "attn has -1"),
        (lambda: SkipLayers(mlp=["2"]), "mlp has '2'"),  # type: ignore[list-item]
        (lambda: SkipLayers(attn=2), r"attn is 2; expected layers"),  # type: ignore[arg-type]
    ],
)
def test_bad_arguments_are_refused(make: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()


def test_what_does_not_fit_the_target_is_refused() -> None:
    target, _ = specdec.embedded_pair()
    n = target.config["n_layer"]
    for draft, message in [
        (EarlyExit(n), f"layer is {n}; expected 1 to {n - 1}"),
        (SkipLayers(attn=[0, n]), f"attn has layer {n}; expected 0 to {n - 1}"),
        (SkipLayers(range(n), range(n)), f"skip all {n} layers"),
    ]:
        with pytest.raises(InputError, match=message):
            specdec.generate(target, draft, "It was")
    target_core = build(LLAMA, random_tensors(LLAMA))
    for mask in (b"", bytes(N_LAYER), b"\x04\x00\x00", bytes(N_LAYER + 1)):
        with pytest.raises(ValueError, match="expected 3 bytes from 0 to 3"):
            run_session(target_core, by_method("skip_layers", mask), PROMPTS)
    with pytest.raises(TypeError):
        run_session(target_core, by_method("skip_layers", [0, 0, 1]), PROMPTS)


def test_repr() -> None:
    assert repr(EarlyExit(2)) == "specdec.drafts.EarlyExit(2)"
    assert repr(SkipLayers([3, 1, 3], [2])) == "specdec.drafts.SkipLayers(attn=[1, 3], mlp=[2])"
    assert SkipLayers([1]) == SkipLayers(attn=(1,)) != SkipLayers(mlp=[1])


# ------------------------------------------------------------------------------- among other drafts


@needs_hooks
@pytest.mark.parametrize("n_threads", [1, 2])
@pytest.mark.parametrize("order", ["first", "last"])
def test_nothing_is_run_twice_beside_another_draft(order: str, n_threads: int) -> None:
    """The exit's guesses need not be the first of the tree: the target goes on from them all the same."""
    target, _ = specdec.embedded_pair()
    ids = target.tokenizer.encode("It was the best of times, it was the worst of times, it was the age")
    prompts, n_layer = [ids, ids[:3]], target.config["n_layer"]
    parts = [EarlyExit(2), Bigram(ids, target.config["n_vocab"])]
    draft = Ensemble(*(parts if order == "first" else parts[::-1]), adaptive=False)
    options: dict[str, Any] = {"max_new_tokens": 30, "temperature": 0.0, "ignore_eos": True, "logits": True}
    wanted = specdec.generate(target, None, prompts, **options)
    before = _core._forward_work()
    results = specdec.generate(target, draft, prompts, n_threads=n_threads, **options)
    work = _core._forward_work() - before
    n_rows = sum(len(prompt) - 1 for prompt in prompts)
    n_trees = 0
    for got, one in zip(results, wanted, strict=True):
        assert got.tokens == one.tokens and np.array_equal(got.logits, one.logits)
        for round_ in got.trace.rounds:
            paths: list[tuple[int, ...]] = [()]
            for token, parent in zip(round_.drafted, round_.parents, strict=True):
                paths.append((*paths[parent], token))
            prefixes = set(paths)
            n_rows += len(prefixes)
            n_trees += len(prefixes) > round_.depth + 1
    assert n_trees > 10, "the drafts hardly ever disagreed"
    assert work == n_rows * 2 * n_layer


@pytest.mark.parametrize("inner", [EarlyExit(1), SkipLayers([1]), Ensemble(Unigram([0], 4096), EarlyExit(1))])
def test_they_draft_for_no_draft(inner: Any) -> None:
    """Its cache is not theirs."""
    _, draft = specdec.embedded_pair()
    with pytest.raises(InputError, match="does not work in its target's cache"):
        ModelDraft(draft, draft=inner)
    core = build(LLAMA, random_tensors(LLAMA))
    with pytest.raises(RuntimeError, match="layers of the target can draft for the target only"):
        run_session(core, by_method("nested", core, exit_after(1), 3), PROMPTS)
