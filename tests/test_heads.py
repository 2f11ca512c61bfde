"""`specdec.drafts.Heads`: what each head predicts, in every form, against the papers in plain NumPy."""

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
from allocations import fail_each_allocation, needs_hooks, nothing_leaks
from sessions import Session
from specdec import PromptCache, _core, drafts, reference
from specdec.drafts.learned.folder import LearnedWeights
from specdec.drafts.learned.heads.draft import pack_heads
from toy_pair import load_pair
from worlds.canonical import VARIANTS, random_tensors, with_drafts
from worlds.encoder_decoders import EncoderDecoder, model_of
from worlds.folders import llama_config, tensors_for, write_hf
from worlds.learned import heads_logits, random_heads

PROMPT = [5, 9, 5, 9, 30, 5, 9]
SOURCE = [3, 7, 4, 9]
QUICK = "parallel-one-norm-without-bias"  # has a factor of the logits


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> specdec.Model:
    return load_pair(tmp_path_factory.mktemp("pair"))[0]


def open_session(
    target: specdec.Model,
    description: Any,
    prompts: list[list[int]],
    *,
    n_new: int,
    gamma: int = 3,
    **options: Any,
) -> Session:
    """A session that samples at temperature 1, with the prompts read."""  # fmt: skip
    sampling = {"temperature": 1.0}
    options = {"n_threads": 1, "sampling": sampling, "draft_sampling": sampling, **options}
    seeds = [(3, i) for i in range(len(prompts))]
    session = Session(
        target.core, description, prompts, gamma=gamma, max_new_tokens=n_new, seeds=seeds, **options
    )
    session.prefill()
    return session


def drafted(
    target: specdec.Model,
    draft: Any,
    prompts: list[list[int]],
    *,
    n_new: int = 12,
    gamma: int | None = None,
    source: Any = None,
    n_threads: int = 1,
) -> list[dict[str, Any]]:
    """All records of a batch at temperature 1."""  # fmt: skip
    sources = None if source is None else [source] * len(prompts)
    session = with_drafts(
        open_session(
            target, draft.describe(target), prompts, n_new=n_new, gamma=gamma or draft.gamma, sources=sources,
            n_threads=n_threads,
        )
    )  # fmt: skip
    records = []
    while found := session.round():
        records += found
    session.close()
    return records


FORMS: dict[str, dict[str, Any]] = {
    "own": {"n_blocks": 2},
    "shared": {"shared_output": True, "n_heads": 4},
    "some tokens": {"tokens": [7, 3, 60, 9, 30, 5]},
    "some tokens, shared": {"tokens": [7, 3, 60, 9, 30, 5], "shared_output": True},
    "seen": {"see_guesses": True, "n_heads": 4},
    "seen, shared, without blocks": {"see_guesses": True, "shared_output": True, "n_blocks": 0},
}
TREES: dict[str, Any] = {
    "chain": None,
    "chains": drafts.ParallelChains(3),
    "tree": drafts.StaticTree((3, 1, 2)),
}


def check_laws(
    target: specdec.Model, weights: LearnedWeights, tree: Any, source: Any = None, **options: Any
) -> int:
    """Each guess is drawn from the law that NumPy gives its place; returns how many there are."""
    prompts, n = [PROMPT, PROMPT[2:]], 0
    texts = [list(prompt) for prompt in prompts]
    for record in drafted(target, drafts.Heads(weights, tree=tree), prompts, source=source, **options):
        text = texts[record["sequence"]]
        paths: list[list[int]] = [[]]
        for token, parent, law in zip(
            record["drafted"], record["parents"], record["draft_probs"][1:], strict=True
        ):
            wanted = reference.distribution(heads_logits(weights, target, text, paths[parent], source), 1.0)
            np.testing.assert_allclose(law, wanted, rtol=2e-4, atol=1e-7)
            paths.append([*paths[parent], token])
            n += 1
        text += record["tokens"]
    return n


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.grid
def test_guesses_have_the_law_of_their_heads(target: specdec.Model, form: str, tree: str) -> None:
    assert check_laws(target, random_heads(target, **FORMS[form]), TREES[tree], n_threads=2) > 20


@pytest.mark.parametrize("form", FORMS)
def test_a_batch_changes_no_bit_of_a_guess(target: specdec.Model, form: str) -> None:
    """The law of each node alone, and in a batch of texts of other lengths on other threads."""
    for tree in (None, drafts.StaticTree((2, 2))):
        draft = drafts.Heads(random_heads(target, **FORMS[form]), tree=tree, dtype="bf16")
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
    config = VARIANTS[name]
    model = model_of(config, random_tensors(config))
    check_shared_output(model)
    assert check_laws(model, random_heads(model, see_guesses=True), None) > 0


@pytest.mark.parametrize("dtype", ["bf16", "int8", "int4"])
def test_the_output_is_shared_in_every_number_format(dtype: str) -> None:
    config = VARIANTS[QUICK]
    check_shared_output(model_of(config, random_tensors(config), dtype=dtype))


def check_shared_output(model: specdec.Model) -> None:
    """Behind blocks of zeros it gives the target's logits, of all tokens or of some, to the bit."""
    weights = random_heads(model, shared_output=True, n_heads=1)
    for tensor in weights._held.values():
        tensor.array()[...] = 0.0
    tokens = np.array([70, 3, 31, 32, 9, 100, 64], np.int32)
    logits = model.logits(PROMPT[:-1])[-1]
    few = np.full_like(logits, -np.inf)
    few[tokens] = logits[tokens]
    for some, wanted in ((None, logits), (tokens, few)):
        draft = drafts.Heads(replace(weights, tokens=some))
        law = drafted(model, draft, [PROMPT], n_new=2)[0]["draft_probs"][1]
        assert np.array_equal(law, _core.distribution(wanted, temperature=1.0))


def test_heads_of_a_target_with_an_encoder() -> None:
    target = EncoderDecoder("t5", n_ctx=64).target
    assert check_laws(target, random_heads(target, n_heads=2), None, SOURCE) > 5


@needs_hooks
@pytest.mark.parametrize("dtype", ["bf16", "int8", "int4"])
def test_number_formats(target: specdec.Model, dtype: str) -> None:
    """Weights that the format holds exactly have the law of f32, but for rows that are rounded too."""
    weights = random_heads(target, n_blocks=1)
    stored = {
        name: reference.formats.stored(tensor.array(), dtype) if tensor.array().ndim == 2 else tensor.array()
        for name, tensor in weights._held.items()
    }
    fields = {"n_heads": 3, "n_blocks": 1}
    rounded = LearnedWeights.of("heads", target, fields, stored, taps=weights.taps)
    packed = drafts.Heads(weights, dtype=dtype)
    assert packed.core.dtype == dtype
    for record in drafted(target, packed, [PROMPT], n_new=4)[:1]:
        assert len(record["drafted"]) == 3
        for k, law in enumerate(record["draft_probs"][1:]):
            logits = heads_logits(rounded, target, PROMPT, record["drafted"][:k])
            wanted = reference.distribution(logits, 1.0)
            assert np.abs(law - wanted).sum() < 0.05
            assert np.abs(law - wanted).sum() > 0.0, "the rows of activations were not rounded"


def test_no_more_guesses_in_a_row_than_heads(target: specdec.Model) -> None:
    weights = random_heads(target, n_heads=2)
    heads = drafts.Heads(weights)
    assert heads.gamma == heads.n_heads == 2
    for gamma in (1, 2, 9):
        records = drafted(target, heads, [PROMPT], gamma=gamma)
        assert max(len(record["drafted"]) for record in records) == min(gamma, 2)
    deep = drafts.Heads(weights, tree=drafts.StaticTree((2, 2, 2)))
    assert max(len(record["drafted"]) for record in drafted(target, deep, [PROMPT])) == 6
    deep = drafts.Heads(weights, tree=drafts.DynamicTree(20, width=3, steps=6))
    out = specdec.generate(target, deep, PROMPT, max_new_tokens=12, ignore_eos=True)
    assert out.tokens == specdec.generate(target, None, PROMPT, max_new_tokens=12, ignore_eos=True).tokens


def test_a_text_of_one_token_has_nothing_to_guess_from(target: specdec.Model) -> None:
    records = drafted(target, drafts.Heads(random_heads(target)), [[5]])
    assert [len(record["drafted"]) > 0 for record in records][:2] == [False, True]


def test_trained_heads_are_right(target: specdec.Model) -> None:
    """Heads fitted to one text by least squares guess all of it, in chains and in a tree."""
    text = specdec.generate(target, None, PROMPT, max_new_tokens=24, ignore_eos=True)
    ids = [*PROMPT, *text.tokens]
    layer = target.config.n_layer + 1
    states = target.hidden_states(ids, [layer])[layer].astype(np.float64)
    tensors = {}
    for k in range(3):
        rows, wanted = states[: len(ids) - 2 - k], np.eye(61)[ids[2 + k :]]
        tensors[f"heads.{k}.output.weight"] = (np.linalg.pinv(rows, rcond=1e-6) @ wanted).T
    fields = {"n_heads": 3, "n_blocks": 0}
    weights = LearnedWeights.of("heads", target, fields, tensors, taps=[layer])
    for tree in (None, drafts.StaticTree((2, 1, 1), "top-k")):
        found = specdec.generate(
            target, drafts.Heads(weights, tree=tree), PROMPT, max_new_tokens=24, ignore_eos=True
        )
        assert found.tokens == text.tokens
        assert found.trace.tokens_per_call > 2.5


def test_adaptive_gamma_and_ensembles(target: specdec.Model) -> None:
    heads = drafts.Heads(random_heads(target, shared_output=True))
    for draft in (heads, drafts.Ensemble(heads, drafts.ContextCopy(min_match=1), drafts.EarlyExit(1))):
        options: dict[str, Any] = {"max_new_tokens": 30, "ignore_eos": True, "logits": True}
        wanted = specdec.generate(target, None, PROMPT, **options)
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
        core = pack_heads(random_heads(target))
        session = open_session(target, ("model", {"model": core}), [PROMPT], n_new=20)
        del core
        gc.collect()
        while session.round():
            pass
        session.close()
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
    with pytest.raises(specdec.InputError, match="does not work in its target's cache"):
        drafts.ModelDraft(small, draft=inner)
    nested = "nested", {"model": small.core, "draft": inner.describe(small), "gamma": 3}
    with pytest.raises(specdec.InputError, match="reads hidden states of its target"):
        open_session(target, nested, [PROMPT], n_new=5)


def test_a_wrong_target_is_refused_by_name(target: specdec.Model, tmp_path: Path) -> None:
    folder = random_heads(target).save(tmp_path / "heads")
    config = llama_config(vocab_size=61, hidden_size=64)
    other = specdec.load(write_hf(tmp_path / "other", config, tensors_for(config)))
    message = "was trained for the target '.*target'; given is .*other, of d_model 64; expected 32"
    for open_it in (
        lambda: drafts.load(folder, other),
        lambda: specdec.generate(other, drafts.Heads(folder), PROMPT),
        lambda: specdec.generate(other, folder, PROMPT),
    ):
        with pytest.raises(specdec.InputError, match=message):
            open_it()
    with pytest.raises(ValueError, match="for a target of d_model 32"):
        drafted(other, _Bare(drafts.Heads(folder)), [PROMPT])


class _Bare:
    """Heads that are given to the core without a look at the target."""

    def __init__(self, heads: drafts.Heads) -> None:
        self.core, self.gamma = heads.core, heads.gamma

    def describe(self, target: specdec.Model) -> Any:
        return "model", {"model": self.core}


def test_a_path_is_opened_as_what_lies_there(target: specdec.Model, tmp_path: Path) -> None:
    folder = random_heads(target).save(tmp_path / "heads")
    loaded = drafts.load(folder, target, tree=drafts.ParallelChains(2), dtype="int8", gamma=5)
    assert isinstance(loaded, drafts.Heads)
    assert (loaded.gamma, loaded.core.dtype, loaded.tree) == (5, "int8", drafts.ParallelChains(2))
    assert drafts.Heads(folder).core.dtype == "bf16"
    found = specdec.generate(target, str(folder), PROMPT, max_new_tokens=6, seed=1, temperature=1.0)
    assert found.trace.n_drafted > 0


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"method": "ears"}, "'method' is \"ears\"; expected one of"),
        ({"n_heads": 0}, "'n_heads' is 0; expected a whole number from 1 to 64"),
        ({"n_heads": 4}, r"tensor 'heads\.3\.blocks\.0\.weight' is missing"),
        ({"n_heads": 2}, r"tensor 'heads\.2\.blocks\.0\.bias' is not part of this draft"),
        ({"n_blocks": -1}, "'n_blocks' is -1; expected a whole number from 0"),
        ({"see_guesses": 1}, "'see_guesses' is 1; expected true or false"),
        ({"see_guesses": True}, r"tensor 'heads\.0\.input\.weight' is missing"),
        ({"shared_output": True}, r"tensor 'heads\.0\.output\.weight' is not part of this draft"),
        ({"activation": "gelu"}, "'activation' is \"gelu\"; expected one of 'silu'"),
        ({"taps": [1]}, r"'taps' is \[1\]; expected \[3\]"),
        ({"n_blocks": 0, "shared_output": True}, "'n_blocks' is 0; expected at least 1"),
    ],
)
def test_damaged_folders_are_refused_by_name(
    target: specdec.Model, tmp_path: Path, fields: dict[str, Any], message: str
) -> None:
    folder = random_heads(target).save(tmp_path)
    config = json.loads((folder / "config.json").read_text()) | fields
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(specdec.CheckpointError, match=message):
        drafts.load(folder, target)


@pytest.mark.parametrize("which", ["output", "blocks.0"])
def test_numbers_that_overflow_are_no_guesses(target: specdec.Model, which: str) -> None:
    weights = random_heads(target)
    tensors = {name: tensor.array().copy() for name, tensor in weights._held.items()}
    tensors[f"heads.1.{which}.weight"][:] = 3e38
    fields = {"n_heads": 3, "n_blocks": 1}
    bad = LearnedWeights.of("heads", target, fields, tensors, taps=weights.taps)
    message = r"the draft: the logits of head 2 are not finite after position 7"
    with pytest.raises(specdec.NotFiniteError, match=message):
        specdec.generate(target, drafts.Heads(bad), PROMPT, max_new_tokens=4)


def test_weights_that_are_not_finite_name_the_folder(target: specdec.Model, tmp_path: Path) -> None:
    weights = random_heads(target)
    weights._held["heads.0.blocks.0.bias"].array()[3] = np.nan  # type: ignore[index]
    with pytest.raises(specdec.CheckpointError, match=r"tensor heads\.0\.blocks\.0\.bias: element \[3\]"):
        drafts.Heads(weights)


SMALL = {
    "n_heads": 1, "n_blocks": 1, "d_model": 4, "n_vocab": 8, "n_draft_vocab": 8, "see_guesses": False,
    "shared_output": True,
}  # fmt: skip
TENSORS = [
    ("heads.0.blocks.0.weight", np.eye(4, dtype=np.float32), "f32"),
    ("heads.0.blocks.0.bias", np.zeros(4, np.float32), "f32"),
]


@pytest.mark.parametrize(
    ("config", "tensors", "options", "error", "message"),
    [
        ({}, TENSORS[:1], {}, ValueError, r"tensor heads.0.blocks.0.bias: missing, expected shape \(4,\)"),
        ({}, TENSORS[1:], {}, ValueError, r"weight: missing, expected shape \(4, 4\)"),
        ({}, [*TENSORS, TENSORS[0]], {}, ValueError, "given twice"),
        ({}, [("other", TENSORS[0][1], "f32")], {}, ValueError, "not part of a draft"),
        ({}, [(TENSORS[0][0], np.zeros((4, 5), "f4"), "f32")], {}, ValueError, r"shape is \(4, 5\)"),
        ({}, [(TENSORS[1][0], np.zeros(5, "f4"), "f32")], {}, ValueError, r"is \(5,\), expected \(4,\)"),
        ({"n_heads": 65}, TENSORS, {}, ValueError, "n_heads is 65, expected 1 to 64"),
        ({"n_blocks": 65}, TENSORS, {}, ValueError, "n_blocks is 65"),
        ({"d_model": 0}, TENSORS, {}, ValueError, "d_model is 0"),
        ({"n_draft_vocab": 9}, TENSORS, {}, ValueError, "n_draft_vocab is 9, expected 1 to 8"),
        ({"n_draft_vocab": 2}, TENSORS, {}, ValueError, "there are no tokens, expected 2"),
        ({"n_draft_vocab": 2}, TENSORS, {"tokens": [1]}, ValueError, "there are 1 tokens"),
        (
            {"n_draft_vocab": 1, "shared_output": False}, TENSORS, {"tokens": [8]}, ValueError,
            r"tokens\[0\] is 8, expected 0 to 7",
        ),
        ({"more": 1}, TENSORS, {}, TypeError, "more"),
        ({"n_heads": "1"}, TENSORS, {}, TypeError, "n_heads is a str"),
        ({}, TENSORS, {"dtype": "f64"}, ValueError, 'dtype is "f64"'),
    ],
)  # fmt: skip
def test_the_core_checks_what_it_is_given(
    config: dict[str, Any], tensors: Any, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        _core.Heads(SMALL | config, tensors, **options)


def test_what_heads_say_of_themselves() -> None:
    heads = _core.Heads(SMALL, TENSORS)
    assert (heads.n_parameters, heads.dtype) == (20, "f32")


@needs_hooks
@pytest.mark.usefixtures("quick_gc")
def test_memory_that_is_not_granted(target: specdec.Model) -> None:
    weights = random_heads(target, see_guesses=True, tokens=[3, 4])
    assert fail_each_allocation(lambda: pack_heads(weights, n_threads=1)) >= 2
    heads = drafts.Heads(weights)

    def run() -> None:
        session = open_session(target, heads.describe(target), [PROMPT], n_new=5)
        before = _core._alloc_live()
        while session.round():
            assert _core._alloc_live() == before, "a round allocates"

    assert fail_each_allocation(run) >= 6
