"""Guarantees of every learned draft: it loads from its folder, and rejects a target that it does not fit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import specdec
from allocations import allowing, fail_each_allocation, needs_hooks
from refusals import refuses
from specdec import drafts
from trained import small_pair
from worlds.canonical import GPT, random_tensors
from worlds.eagles import eagle_for
from worlds.encoder_decoders import model_of
from worlds.learned import (
    all_records,
    learned_weights,
    look_ahead_weights,
    open_session,
    random_heads,
    recurrent_weights,
    tensors_of,
)  # fmt: skip

PROMPT = [5, 9, 5, 9, 30, 5, 9]
METHODS: dict[str, tuple[type[drafts.Draft], Callable[[specdec.Model], Any]]] = {
    "heads": (drafts.DecodingHeads, random_heads),
    "recurrent": (drafts.RecurrentDraft, lambda target: recurrent_weights(target, PROMPT)),
    "look-ahead": (drafts.LookAheadEmbeddings, look_ahead_weights),
}
SAMPLED: dict[str, Any] = {"max_new_tokens": 9, "ignore_eos": True, "temperature": 1.0, "seed": 1}


def random_draft(name: str, target: specdec.Model, **options: Any) -> Any:
    """A draft with random weights; also "eagle", which has no `LearnedWeights`."""
    if name == "eagle":
        return eagle_for(target, "reduced")
    draft_type, weights = METHODS[name]
    return draft_type(weights(target), **options)  # type: ignore[call-arg]


def drafted(target: specdec.Model, draft: Any) -> list[Any]:
    return [each.drafted for each in specdec.generate(target, draft, PROMPT, **SAMPLED).trace.rounds]


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_a_folder_is_loaded(target: specdec.Model, tmp_path: Path, name: str, dtype: str) -> None:
    draft, tree = random_draft(name, target), drafts.StaticTree((2, 2))
    folder = draft.weights.save(tmp_path, dtype)
    loaded: Any = drafts.load(folder, target)
    assert type(loaded) is type(draft) and loaded.gamma == draft.gamma
    if dtype == "f32":
        assert drafted(target, loaded) == drafted(target, draft) == drafted(target, str(folder))
    if name != "look-ahead":
        assert loaded.core.dtype == ("bf16" if dtype == "bf16" else "f32")
        assert drafts.load(folder, target, dtype="int8").core.dtype == "int8"  # type: ignore[attr-defined]
        assert f"{loaded.core.n_parameters:,} parameters in" in repr(loaded)
        assert loaded.core.n_parameters == sum(array.size for array in tensors_of(draft.weights).values())
    of_tree: Any = drafts.load(folder, target, tree=tree)
    assert (of_tree.tree, of_tree.gamma, drafts.load(folder, target, tree=tree, gamma=2).gamma) == (
        tree,
        6,
        2,
    )


@pytest.mark.parametrize(
    ("name", "of_the_core"),
    [
        ("heads", "for a target of d_model 32"),
        ("recurrent", "the draft has 61 tokens and the target 4096"),
        ("look-ahead", "look-ahead embeddings have 32 numbers, expected"),
    ],
)
def test_another_target_is_refused_by_name(
    target: specdec.Model, tmp_path: Path, name: str, of_the_core: str
) -> None:
    draft, other = random_draft(name, target), small_pair()[0]
    folder = draft.weights.save(tmp_path)
    for use in (lambda: drafts.load(folder, other), lambda: specdec.generate(other, draft, PROMPT)):
        with pytest.raises(
            specdec.InputError, match=r"was trained for the target '.*target'; the given one is"
        ):
            use()
    with pytest.raises(ValueError, match=of_the_core):
        open_session(other, ("model", {"model": draft.core}), [PROMPT])


@pytest.mark.parametrize("name", METHODS)
def test_arguments_are_refused_by_name(target: specdec.Model, name: str) -> None:
    dtype = "int8" if name == "look-ahead" else "f64"
    wrong = {"gamma": 0, "dtype": dtype, "tree": 3} | ({} if name == "look-ahead" else {"n_threads": 0})
    for argument, value in wrong.items():
        with pytest.raises(specdec.InputError, match=f"{argument} is"):
            random_draft(name, target, **{argument: value})
    with refuses("weights", 3):
        METHODS[name][0](3)  # type: ignore[call-arg]
    of_another = learned_weights("some", target, {}, {})
    with pytest.raises(specdec.CheckpointError, match="'method'"):
        METHODS[name][0](of_another)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("name", "fields", "tensors", "named"),
    [
        ("heads", {"n_heads": 0}, {}, "'n_heads'"),
        ("heads", {"n_heads": 65}, {}, "'n_heads'"),
        ("heads", {"n_heads": 4}, {}, r"'heads\.3\.blocks\.0\.weight' is missing"),
        ("heads", {"n_heads": 2}, {}, r"'heads\.2\.blocks\.0\.bias' is not part"),
        ("heads", {"n_blocks": -1}, {}, "'n_blocks'"),
        ("heads", {"see_draft_tokens": 1}, {}, "'see_draft_tokens'"),
        ("heads", {"see_draft_tokens": True}, {}, r"'heads\.0\.input\.weight' is missing"),
        ("heads", {"shared_output": True}, {}, r"'heads\.0\.output\.weight' is not part"),
        ("heads", {"n_blocks": 0, "shared_output": True}, {}, "'n_blocks'"),
        ("heads", {"activation": "gelu"}, {}, "'activation'"),
        ("heads", {"captures": [1]}, {}, "'captures'"),
        ("heads", {}, {"heads.0.blocks.0.bias": np.full(32, np.nan)}, r"heads\.0\.blocks\.0\.bias: element"),
        ("recurrent", {"d_embed": 0}, {}, "'d_embed'"),
        (
            "recurrent",
            {"d_hidden": 8},
            {},
            r"'cells\.0\.weight_ih' has shape \[27, 5\]; expected .*\[24, 5\]",
        ),
        ("recurrent", {"n_layers": 17}, {}, "'n_layers'"),
        ("recurrent", {"n_layers": 2}, {}, r"'cells\.1\.weight_ih' is missing"),
        ("recurrent", {}, {"more": np.zeros(3)}, "'more' is not part"),
        ("recurrent", {}, {"output.bias": np.full(61, np.inf)}, r"output\.bias: element \[0\] is inf"),
        ("look-ahead", {"n_tokens": 0}, {}, "'n_tokens'"),
        ("look-ahead", {"n_tokens": 4}, {}, r"'embeddings' has shape \[3, 32\]; expected .* \[4, 32\]"),
        ("look-ahead", {"n_tokens": ...}, {}, "'n_tokens' is missing"),
        ("look-ahead", {}, {"embeddings": np.full((3, 32), np.nan)}, r"element \[0, 0\] is not finite"),
        ("look-ahead", {"n_draft_vocab": 2}, {"d2t": np.ones(2)}, "'n_draft_vocab'"),
    ],
)
def test_what_does_not_fit_is_named(
    target: specdec.Model, name: str, fields: dict[str, Any], tensors: dict[str, Any], named: str
) -> None:
    draft_type, weights = METHODS[name]
    sound = weights(target)
    config = {key: value for key, value in (sound.fields.as_dict() | fields).items() if value is not ...}
    damaged = learned_weights(sound.method, target, config, tensors_of(sound) | tensors)
    with pytest.raises(specdec.CheckpointError, match=f"the draft: .*{named}"):
        draft_type(damaged)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("name", "large", "message", "other"),
    [
        ("heads", {"heads.1.output.weight": 3e38}, "head 2 are not finite after position 7", "copy"),
        ("heads", {"heads.1.blocks.0.weight": 3e38}, "head 2 are not finite after position 7", "copy"),
        ("recurrent", {"output.weight": 3e38, "embedding.weight": 9.0}, "the draft: .* not finite", "copy"),
        ("recurrent", {"cells.0.weight_ih": 3e38, "embedding.weight": 9.0}, "the draft: .* not finite", None),
        ("look-ahead", {"embeddings": 3e38}, "the target: .* not finite", False),
    ],
)
def test_a_draft_that_overflows_fails_its_request(
    target: specdec.Model, name: str, large: dict[str, float], message: str, other: Any
) -> None:
    """Requests of the same rounds that use another draft, or none, do not fail."""
    model = model_of(GPT, random_tensors(GPT)) if name == "look-ahead" else target  # whose norm overflows
    weights = METHODS[name][1](model)
    for tensor, value in large.items():
        tensors_of(weights)[tensor][:] = value
    draft = METHODS[name][0](weights)  # type: ignore[call-arg]
    with pytest.raises(specdec.NotFiniteError, match=message):
        specdec.generate(model, draft, PROMPT, max_new_tokens=8)
    if other is None:  # its prompts are read for all drafts
        return
    options: Any = {"max_new_tokens": 20}
    with specdec.Engine(
        model, {"copy": drafts.PromptLookup(min_match=1), "bad": draft}, n_threads=1
    ) as engine:
        good = engine.submit([5, 6, 5, 6], speculative=specdec.Speculative(draft=other), **options)
        bad = engine.submit([5, 6, 8], speculative=specdec.Speculative(draft="bad"), **options)
        with pytest.raises(specdec.NotFiniteError, match="not finite"):
            bad.result(60)
        alone = specdec.generate(model, None, [5, 6, 5, 6], n_threads=1, **options)
        assert good.result(60).tokens == alone.tokens


@pytest.mark.parametrize(
    ("name", "of_the_core"),
    [
        ("heads", "reads hidden states of its target"),
        ("eagle", "reads hidden states of its target"),
        ("look-ahead", "has look-ahead embeddings"),
    ],
)
def test_what_needs_the_targets_cache_drafts_for_no_draft(
    target: specdec.Model, name: str, of_the_core: str
) -> None:
    draft = random_draft(name, target)
    with refuses("draft"):
        drafts.ModelDraft(target, draft=draft)
    nested = "nested", {"model": target.core, "draft": draft.describe(target), "gamma": 2}
    with pytest.raises(specdec.InputError, match=f"the draft of a draft {of_the_core}"):
        open_session(target, nested, [PROMPT])


@needs_hooks
@pytest.mark.usefixtures("quick_gc")
@pytest.mark.parametrize("name", [*METHODS, "eagle"])
def test_memory_that_is_not_granted(target: specdec.Model, name: str) -> None:
    """Each allocation of packing and of a session fails once; rounds allocate nothing."""
    draft, prompts = random_draft(name, target), [PROMPT, PROMPT * 8]
    given = (draft.path, target) if name == "eagle" else (draft.weights,)
    if name != "look-ahead":  # whose numbers are in NumPy's memory
        assert fail_each_allocation(lambda: type(draft)(*given)) >= 2
    assert fail_each_allocation(lambda: open_session(target, draft, prompts).close()) > 5
    session = open_session(target, draft, prompts)
    with allowing(0):
        all_records(session)


# -------------------------------------------------------------------------------- the core's own checks

SMALL = {
    "n_heads": 1, "n_blocks": 1, "d_model": 4, "n_vocab": 8, "n_draft_vocab": 8, "see_draft_tokens": False,
    "shared_output": True,
}  # fmt: skip
WEIGHT, BIAS = (f"heads.0.blocks.0.{name}" for name in ("weight", "bias"))
TENSORS = [(WEIGHT, np.eye(4, dtype=np.float32), "f32"), (BIAS, np.zeros(4, np.float32), "f32")]


@pytest.mark.parametrize(
    ("config", "tensors", "options", "named"),
    [
        ({}, TENSORS[:1], {}, BIAS), ({}, [*TENSORS, TENSORS[0]], {}, "given twice"),
        ({}, [("other", TENSORS[0][1], "f32")], {}, "not part of a draft"),
        ({}, [(WEIGHT, np.zeros((4, 5), "f4"), "f32")], {}, r"shape is \(4, 5\)"),
        ({"n_heads": 65}, TENSORS, {}, "n_heads is 65"), ({"n_blocks": 65}, TENSORS, {}, "n_blocks is 65"),
        ({"d_model": 0}, TENSORS, {}, "d_model is 0"), ({"n_heads": "1"}, TENSORS, {}, "n_heads is a str"),
        ({"n_draft_vocab": 9}, TENSORS, {}, "n_draft_vocab is 9"), ({"more": 1}, TENSORS, {}, "more"),
        ({"n_draft_vocab": 2}, TENSORS, {"tokens": [1]}, "there are 1 tokens"),
        ({"n_draft_vocab": 1, "shared_output": False}, TENSORS, {"tokens": [8]}, r"tokens\[0\] is 8"),
        ({}, TENSORS, {"dtype": "f64"}, "dtype"),
    ],
)  # fmt: skip
def test_heads_of_the_core_check_what_they_are_given(
    target: specdec.Model, config: dict[str, Any], tensors: Any, options: dict[str, Any], named: str
) -> None:
    make = type(random_draft("heads", target).core)
    assert make(SMALL, TENSORS).n_parameters == 20
    with pytest.raises((ValueError, TypeError), match=named):
        make(SMALL | config, tensors, **options)


def test_other_types_of_the_core_check_what_they_are_given(target: specdec.Model) -> None:
    network = random_draft("recurrent", target).core
    with pytest.raises(TypeError, match="n_vocab is missing"):
        type(network)({}, [])
    with pytest.raises(ValueError, match=r"ids\[1\] is 61"):
        network.logits([1, 61])
    with refuses("ids[0]", -1):
        random_draft("recurrent", target).probabilities([-1])
    with pytest.raises(ValueError, match="expected 1 to 1024 rows"):
        type(random_draft("look-ahead", target).core)(np.zeros((0, 33), np.float32))
    eagle = eagle_for(target, "reduced").core
    for given, named in (
        ({"layers": [1, 1, 2], "tokens": [1, 2]}, "there are 2 tokens"),
        ({"layers": [1, 1, 2], "tokens": [61] * 40}, r"tokens\[0\] is 61, expected 0 to 60, each once"),
        ({"layers": [1, 1, 2], "tokens": [1] * 40}, r"tokens\[1\] is 1, expected 0 to 60, each once"),
        ({"layers": []}, "there are 0 layers"),
        ({"layers": [1] * 17}, "there are 17 layers"),
    ):
        with pytest.raises(ValueError, match=named):
            type(eagle)(eagle.model, **given)
    for layers, named in (
        ([1, 2], "features have 96 numbers, expected 2 hidden states of 32"),
        ([1, 2, 6], "reads hidden state 6 of the target, expected 0 to 3"),
    ):
        wrong = type(eagle)(eagle.model, layers=layers, tokens=range(40))
        with pytest.raises(ValueError, match=named):
            open_session(target, ("model", {"model": wrong}), [PROMPT])
