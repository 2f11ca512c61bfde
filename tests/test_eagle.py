"""EAGLE-1, EAGLE-3 and native heads for multi-token prediction: as the papers have them, from their files.

That output stays the target's, and the law exact, is tested with all other drafts (`test_every_drafter.py`).
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import specdec
from allocations import allowing, fail_each_allocation, needs_hooks
from sessions import Session
from specdec import _core, drafts
from specdec.checkpoints import open_checkpoint
from specdec.drafts.learned.target_identity import TargetIdentity
from specdec.errors import (
    CheckpointError,
    CheckpointNotFoundError,
    InputError,
    UnsupportedModelError,
    VocabularyMismatchError,
)
from worlds.canonical import LLAMA, random_tensors, with_drafts
from worlds.eagles import EagleFolder, PaperDraft, eagle1, eagle3, mimo
from worlds.folders import llama_config, write_hf

PROMPT = [1, 5, 2, 7, 3, 5, 2]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> specdec.Model:
    """Of four layers and few tokens, so that random guesses are right now and then."""
    config = llama_config(vocab_size=17, num_hidden_layers=4, max_position_embeddings=240)
    return specdec.load(write_hf(tmp_path_factory.mktemp("target"), config, seed=3), tokenizer=False)


FOLDERS: dict[str, Callable[[specdec.Model], EagleFolder]] = {
    "EAGLE-1": eagle1,
    "vLLM": lambda target: eagle3(target, own_embedding=True),
    "SpecForge": lambda target: eagle3(target, "specforge", n_draft=9),
    "speculators": lambda target: eagle3(
        target,
        "speculators",
        n_draft=11,
        flags={"norm_before_residual": True, "norm_before_fc": True, "norm_output": True},
    ),
    "EAGLE 3.1": lambda target: eagle3(
        target, flags={"fc_norm": True}, model_type="qwen3", num_hidden_layers=2, rope_theta=1e6
    ),
    "a narrower draft": lambda target: eagle3(target, taps=(3, 0), hidden_size=24),
}


def paper_of(folder: EagleFolder) -> PaperDraft:
    tensors = {
        name: array for name, array, _ in open_checkpoint(folder.target.path, tokenizer=False).tensors()
    }
    return PaperDraft(folder, tensors["token_embedding"], tensors["head"])


def features_of(folder: EagleFolder, text: list[int]) -> np.ndarray:
    states = folder.target.hidden_states(text, folder.taps)
    return np.concatenate([states[layer] for layer in folder.taps], axis=1)


def assert_chains_of_the_paper(folder: EagleFolder, draft: Any, **options: Any) -> specdec.Result:
    """Each round's guesses, after whatever the rounds before have accepted."""
    settings: dict[str, Any] = {"max_new_tokens": 60, "ignore_eos": True, "gamma": 3, **options}
    result = specdec.generate(folder.target, draft, PROMPT, **settings)
    paper, text = paper_of(folder), list(PROMPT)
    features = features_of(folder, PROMPT + result.tokens)
    for one in result.trace.rounds:
        expected = paper.chain(text, features[: len(text) - 1], len(one.drafted))
        assert list(one.drafted) == expected, f"after {len(text)} tokens"
        text += one.tokens
    return result


@pytest.mark.parametrize("layout", FOLDERS)
def test_greedy_chains_are_those_of_the_paper(target: specdec.Model, layout: str, tmp_path: Path) -> None:
    folder = FOLDERS[layout](target)
    draft = drafts.Eagle(folder.write(tmp_path), target)
    assert draft.taps == folder.taps
    result = assert_chains_of_the_paper(folder, draft)
    assert result.trace.n_drafted > 80


@pytest.mark.parametrize(
    "layout",
    [
        name if name in ("EAGLE-1", "speculators") else pytest.param(name, marks=pytest.mark.slow)
        for name in FOLDERS
    ],
)
def test_laws_of_trees_are_those_of_the_paper(target: specdec.Model, layout: str, tmp_path: Path) -> None:
    """What each node of sampled trees was drawn from, over rounds that accept some of them, in a batch."""
    folder = FOLDERS[layout](target)
    draft = drafts.Eagle(folder.write(tmp_path), target, tree=drafts.StaticTree((2, 2, 1)))
    prompts = [PROMPT, PROMPT[2:]]
    session = session_of(target, draft.describe(target), prompts, n_new=30, gamma=draft.gamma)
    papers = [paper_of(folder), paper_of(folder)]
    texts, n_accepted = [list(PROMPT), PROMPT[2:]], 0
    while records := session.round():
        for record in records:
            text, paper = texts[record["sequence"]], papers[record["sequence"]]
            features, paths = features_of(folder, text), [[]]
            for token, parent in zip(record["drafted"], record["parents"], strict=True):
                law = paper.probabilities(paper.after(text, features, paths[parent]))
                np.testing.assert_allclose(record["draft_probs"][len(paths)], law, atol=2e-5)
                paths.append([*paths[parent], token])
            n_accepted += len(record["accepted"])
            text += record["tokens"]
    session.close()
    assert n_accepted > 5


def session_of(
    target: specdec.Model, description: Any, prompts: list[list[int]], *, n_new: int, gamma: int = 3
) -> Session:
    sampling = specdec.Sampling(1.0).core()
    session = Session(
        target.core,
        description,
        [np.array(prompt, np.int32) for prompt in prompts],
        gamma=gamma,
        max_new_tokens=n_new,
        sampling=sampling,
        draft_sampling=sampling,
        seeds=[(7, i) for i in range(len(prompts))],
        n_threads=1,
    )
    with_drafts(session).prefill()
    return session


def test_rounds_that_are_sat_out_are_read_later(target: specdec.Model, tmp_path: Path) -> None:
    """Up to more than a slice of them, with the target's hidden states."""
    folder = eagle3(target, n_draft=9)
    draft = drafts.Eagle(folder.write(tmp_path), target)

    def gamma(rounds: Any) -> int:
        return 3 if len(rounds) in (0, 1, 10, 11, 90, 91) else 0

    result = assert_chains_of_the_paper(folder, draft, gamma=gamma, max_new_tokens=110)
    assert result.trace.n_drafted == 18


def test_long_prompts_are_read_in_slices(target: specdec.Model, tmp_path: Path) -> None:
    folder = eagle1(target)
    draft = drafts.Eagle(folder.write(tmp_path), target)
    prompt = np.random.default_rng(0).integers(0, 17, 180).tolist()
    result = specdec.generate(target, draft, prompt, max_new_tokens=3, gamma=2, ignore_eos=True)
    features = features_of(folder, prompt)
    assert list(result.trace.rounds[0].drafted) == paper_of(folder).chain(prompt, features, 2)


def test_eagle_2_is_a_tree_that_grows(target: specdec.Model, tmp_path: Path) -> None:
    """Of width 1 it is the chain; wider, each node's children are the likeliest after its path."""
    folder = eagle3(target)
    path = folder.write(tmp_path)
    chain = drafts.Eagle(path, target, tree=drafts.DynamicTree(3, width=1, steps=3))
    assert_chains_of_the_paper(folder, chain)
    draft = drafts.Eagle(path, target, tree=drafts.DynamicTree(8, width=2, steps=4, sharpness=1.0))
    result = specdec.generate(target, draft, PROMPT, max_new_tokens=20, ignore_eos=True)
    paper, text = paper_of(folder), list(PROMPT)
    features = features_of(folder, PROMPT + result.tokens)
    depths = set()
    for one in result.trace.rounds:
        paths: list[list[int]] = [[]]
        for token, parent in zip(one.drafted, one.parents, strict=True):
            logits = paper.after(text, features[: len(text) - 1], paths[parent])
            assert token in np.argsort(-logits)[:2]
            paths.append([*paths[parent], token])
        depths.add(max(map(len, paths)))
        text += one.tokens
    assert max(depths) > 2


def test_mimo_brings_a_head(tmp_path: Path) -> None:
    """Its tensors are no part of the target, and the draft is what the family's own code computes."""
    target, head = mimo(tmp_path, vocab_size=17, max_position_embeddings=120)
    draft = drafts.MTP(target)
    assert (draft.kind, draft.path) == ("MTP", target.path)
    result = assert_chains_of_the_paper(head, draft)
    assert result.trace.n_drafted > 80


def test_a_target_without_a_head_is_refused(target: specdec.Model, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match="LlamaForCausalLM, which has no head"):
        drafts.MTP(target)
    many, _ = mimo(tmp_path, num_nextn_predict_layers=3)
    with pytest.raises(UnsupportedModelError, match="'num_nextn_predict_layers' is 3; expected 1"):
        drafts.MTP(many)


# --------------------------------------------------------------------------------------- with the rest


@pytest.mark.parametrize("dtype", ["bf16", "int8"])
@pytest.mark.parametrize("draft_dtype", [None, "int8"])
def test_number_formats_of_target_and_draft_are_apart(
    target: specdec.Model, dtype: Any, draft_dtype: Any, tmp_path: Path
) -> None:
    """A head of the target keeps its format, whatever the draft's own matrices have."""
    other = specdec.load(target.path, dtype, tokenizer=False)
    draft = drafts.Eagle(eagle1(target).write(tmp_path), other, dtype=draft_dtype)
    assert draft.dtype == draft_dtype or "f32"
    options: dict[str, Any] = {"max_new_tokens": 30, "ignore_eos": True, "logits": True}
    got = specdec.generate(other, draft, PROMPT, **options)
    plain = specdec.generate(other, None, PROMPT, **options)
    assert got.tokens == plain.tokens and np.array_equal(got.logits, plain.logits)


def test_prompts_by_openblas(target: specdec.Model, tmp_path: Path) -> None:
    """Their hidden states have bits of their own; the draft reads those that are there."""
    other = specdec.load(target.path, "f32", prefill="blas", tokenizer=False)
    draft = drafts.Eagle(eagle3(target).write(tmp_path), other)
    options: dict[str, Any] = {"max_new_tokens": 30, "ignore_eos": True, "logits": True}
    prompts = [PROMPT * 6, PROMPT * 6 + [3], PROMPT]
    plain = specdec.generate(other, None, prompts, **options)
    for got, one in zip(specdec.generate(other, draft, prompts, **options), plain, strict=True):
        assert got.tokens == one.tokens and np.array_equal(got.logits, one.logits)


def test_what_is_the_targets_lies_in_memory_once(target: specdec.Model, tmp_path: Path) -> None:
    shared, own = eagle1(target), eagle1(target)
    del shared.tensors["embed_tokens.weight"]
    sizes = [
        drafts.Eagle(folder.write(tmp_path / str(i)), target).core.model.n_parameters
        for i, folder in enumerate((shared, own))
    ]
    assert sizes[1] - sizes[0] == 17 * 32
    assert sizes[0] == sum(array.size for array in shared.tensors.values())


def test_a_prompt_cache_changes_no_guess(target: specdec.Model, tmp_path: Path) -> None:
    draft = drafts.Eagle(eagle3(target).write(tmp_path), target)
    cache = specdec.PromptCache()
    options: dict[str, Any] = {"max_new_tokens": 20, "ignore_eos": True, "temperature": 1.0, "seed": 3}
    alone = specdec.generate(target, draft, PROMPT * 4, **options)
    for _ in range(2):
        got = specdec.generate(target, draft, PROMPT * 4, prompt_cache=cache, **options)
        assert got.tokens == alone.tokens
        assert [one.drafted for one in got.trace.rounds] == [one.drafted for one in alone.trace.rounds]
    plain = specdec.generate(target, None, PROMPT * 4, max_new_tokens=5, prompt_cache=cache)
    assert plain.tokens == specdec.generate(target, None, PROMPT * 4, max_new_tokens=5).tokens


def test_a_slot_is_taken_by_a_prompt_of_another_first_token(target: specdec.Model, tmp_path: Path) -> None:
    """The draft's rows hold the later tokens only, and depend on the first."""
    folder = eagle3(target)
    draft = drafts.Eagle(folder.write(tmp_path), target)
    prompts = [[first, *PROMPT] for first in (1, 2, 3)]
    options: dict[str, Any] = {"max_new_tokens": 4, "ignore_eos": True, "gamma": 3}
    for got, prompt in zip(
        specdec.generate(target, draft, prompts, batch_size=1, **options), prompts, strict=True
    ):
        expected = paper_of(folder).chain(prompt, features_of(folder, prompt), 3)
        assert list(got.trace.rounds[0].drafted) == expected


def test_several_drafts_may_be_of_this_kind(target: specdec.Model, tmp_path: Path) -> None:
    ours = [
        drafts.Eagle(folder.write(tmp_path / str(i)), target)
        for i, folder in enumerate((eagle1(target), eagle3(target, taps=(0, 4, 2))))
    ]
    both = drafts.Ensemble(*ours, drafts.ContextCopy(), adaptive=False)
    options: dict[str, Any] = {"max_new_tokens": 40, "ignore_eos": True, "logits": True}
    got = specdec.generate(target, both, PROMPT, **options)
    plain = specdec.generate(target, None, PROMPT, **options)
    assert got.tokens == plain.tokens and np.array_equal(got.logits, plain.logits)


def test_a_draft_of_a_draft_cannot_be_of_this_kind(target: specdec.Model, tmp_path: Path) -> None:
    draft = drafts.Eagle(eagle3(target).write(tmp_path), target)
    with pytest.raises(InputError, match="does not work in its target's cache"):
        drafts.ModelDraft(target, draft=draft)
    nested = "nested", {"model": target.core, "draft": draft.describe(target), "gamma": 2}
    with pytest.raises(ValueError, match="the draft of a draft reads hidden states of its target"):
        session_of(target, nested, [PROMPT], n_new=3)


def test_a_prompt_of_one_token_has_no_guess_at_first(target: specdec.Model, tmp_path: Path) -> None:
    """No token is before it whose hidden states could be read."""
    draft = drafts.Eagle(eagle3(target).write(tmp_path), target)
    result = specdec.generate(target, draft, [4], max_new_tokens=9, ignore_eos=True, gamma=2)
    assert [len(one.drafted) for one in result.trace.rounds][:2] == [0, 2]


def test_a_model_that_reads_features_is_no_model_by_itself(target: specdec.Model, tmp_path: Path) -> None:
    model = drafts.Eagle(eagle3(target).write(tmp_path), target).core.model
    with pytest.raises(RuntimeError, match="reads features beside tokens"):
        _core.Decoder(model, capacity=5).prefill([1, 2])
    with pytest.raises(ValueError, match="reads no features"):
        _core.Eagle(target.core, layers=[1])


@needs_hooks
@pytest.mark.usefixtures("quick_gc")
def test_the_nth_allocation_fails(target: specdec.Model, tmp_path: Path) -> None:
    """And rounds make none."""
    folder = eagle3(target, n_draft=9)
    path = folder.write(tmp_path)
    assert fail_each_allocation(lambda: drafts.Eagle(path, target)) > 1
    description = drafts.Eagle(path, target).describe(target)

    def work() -> None:
        session = session_of(target, description, [PROMPT, PROMPT * 12], n_new=6)
        session.close()

    assert fail_each_allocation(work) > 5
    session = session_of(target, description, [PROMPT, PROMPT * 12], n_new=6)
    with allowing(0):
        while session.round():
            pass
    session.close()


def test_the_type_of_the_core_checks_what_it_is_given(target: specdec.Model, tmp_path: Path) -> None:
    model = drafts.Eagle(eagle3(target, n_draft=3).write(tmp_path), target).core.model
    for tokens, message in (
        ([1, 2], "there are 2 tokens, expected 3"),
        ([1, 2, 1], r"tokens\[2\] is 1, expected 0 to 16, each once"),
        ([1, 2, 17], r"tokens\[2\] is 17"),
    ):
        with pytest.raises(ValueError, match=message):
            _core.Eagle(model, layers=[1, 2, 4], tokens=tokens)
    for layers, message in (([], "there are 0 layers"), ([1] * 17, "there are 17 layers")):
        with pytest.raises(ValueError, match=message):
            _core.Eagle(model, layers=layers)
    for wrong, message in (
        (_core.Eagle(model, layers=[1, 2]), "features have 96 numbers, expected 2 hidden states of 32"),
        (_core.Eagle(model, layers=[1, 2, 6]), "reads hidden state 6 of the target, expected 0 to 5"),
    ):
        with pytest.raises(ValueError, match=message):
            session_of(target, ("model", {"model": wrong}), [PROMPT], n_new=3)


# ------------------------------------------------------------------------------------------- refusals


def test_load_opens_what_is_there(target: specdec.Model, tmp_path: Path) -> None:
    for i, folder in enumerate((eagle1(target), *(eagle3(target, of) for of in ("vllm", "specforge")))):
        tree = drafts.DynamicTree(6)
        draft = drafts.load(folder.write(tmp_path / str(i)), target, tree=tree, dtype="int8")
        assert isinstance(draft, drafts.Eagle) and draft.tree is tree and draft.dtype == "int8"
    assert isinstance(drafts.load(target.path, target), drafts.ModelDraft)
    draft = tmp_path / "1"
    got = specdec.generate(target, draft, PROMPT, max_new_tokens=9, ignore_eos=True)
    assert got.trace.n_drafted > 8
    with pytest.raises(InputError, match=r"draft 0 of Ensemble is .*; expected specdec.drafts.Eagle\("):
        drafts.Ensemble(draft)


def test_another_target_is_refused_by_name(target: specdec.Model, tmp_path: Path) -> None:
    path = eagle3(target).write(tmp_path / "draft")
    folders = {
        name: specdec.load(write_hf(tmp_path / name, llama_config(**changes)), tokenizer=False)
        for name, changes in {
            "wide": {"vocab_size": 17, "hidden_size": 48, "num_hidden_layers": 4},
            "tokens": {"num_hidden_layers": 4},
            "shallow": {"vocab_size": 17},
        }.items()
    }
    with pytest.raises(InputError, match=r"reads hidden states of 32 numbers; given is .*wide of d_model 48"):
        drafts.Eagle(path, folders["wide"])
    with pytest.raises(VocabularyMismatchError, match=r"reads 17 tokens; expected the 61 of .*tokens"):
        drafts.Eagle(path, folders["tokens"])
    with pytest.raises(CheckpointError, match=r"layer_ids' is \[1, 2, 4\]; expected .*shallow, 0 to 3"):
        drafts.Eagle(path, folders["shallow"])
    draft = drafts.Eagle(path, target)
    with pytest.raises(InputError, match=r"of n_layer 2; expected 4"):
        specdec.generate(folders["shallow"], draft, PROMPT)


def test_usual_layers_are_taken_where_none_are_named(target: specdec.Model, tmp_path: Path) -> None:
    config = llama_config(vocab_size=17, num_hidden_layers=8)
    deep = specdec.load(write_hf(tmp_path / "deep", config), tokenizer=False)
    for number, (model, taps) in enumerate(((deep, (2, 4, 5)), (target, None))):
        path = eagle3(model, taps=(1, 2, 3)).write(tmp_path / str(number))
        stored = json.loads((path / "config.json").read_text())
        del stored["eagle_aux_hidden_state_layer_ids"]
        (path / "config.json").write_text(json.dumps(stored))
        if taps is None:
            with pytest.raises(InputError, match="4 layers are too few for the usual ones"):
                drafts.Eagle(path, model)
            assert drafts.Eagle(path, model, taps=[4, 0, 4]).taps == (4, 0, 4)
        else:
            assert drafts.Eagle(path, model).taps == taps


@pytest.mark.parametrize("layout", ["EAGLE-1", "SpecForge"])
def test_what_training_wrote_of_the_target_is_heeded(
    target: specdec.Model, layout: str, tmp_path: Path
) -> None:
    """An object `specdec_draft` beside the published layout: whose draft it is, and what it reads."""
    folder = FOLDERS[layout](target)
    path = folder.write(tmp_path / "draft")
    config = json.loads((path / "config.json").read_text())
    config.pop("eagle_config", None)
    taps = list(folder.taps)
    config["specdec_draft"] = {"target": TargetIdentity.of(target).as_dict(), "taps": taps}
    (path / "config.json").write_text(json.dumps(config))
    assert_chains_of_the_paper(folder, drafts.load(path, target))
    other = specdec.load(
        write_hf(tmp_path / "other", llama_config(vocab_size=17, num_hidden_layers=4, rms_norm_eps=1e-4)),
        tokenizer=False,
    )
    with pytest.raises(InputError, match="was trained for the target '.*target0'; given is .*other"):
        drafts.load(path, other)
    for wrong, message in (
        ({"taps": taps}, "'specdec_draft.target' is missing"),
        (3, "'specdec_draft' is 3"),
    ):
        (path / "config.json").write_text(json.dumps(config | {"specdec_draft": wrong}))
        with pytest.raises(CheckpointError, match=message):
            drafts.Eagle(path, target)


Change = Callable[[dict[str, Any], dict[str, np.ndarray]], None]


def setting(**fields: Any) -> Change:
    return lambda config, tensors: config.update(fields)


def without(name: str) -> Change:
    return lambda config, tensors: [tensors.pop(name)]  # type: ignore[return-value]


def shaped(name: str, *shape: int) -> Change:
    return lambda config, tensors: tensors.update({name: np.zeros(shape, np.float32)})


DAMAGES: dict[str, tuple[Change, type[Exception], str]] = {
    "no fc": (without("fc.weight"), CheckpointError, "tensor 'fc.weight' is missing"),
    "no norm": (without("norm.weight"), CheckpointError, "tensor 'norm.weight' is missing"),
    "no d2t": (without("d2t"), CheckpointError, r"tensor 'd2t' is missing; expected it with shape \[9\]"),
    "long d2t": (
        lambda config, tensors: tensors.update(d2t=np.zeros(10)),
        CheckpointError,
        r"tensor 'd2t' has shape \[10\]; expected \[9\]",
    ),
    "d2t beyond": (
        lambda config, tensors: tensors.update(d2t=np.full(9, 9)),
        CheckpointError,
        r"element \[8\] is 9; expected -8 to 8",
    ),
    "d2t twice": (
        lambda config, tensors: tensors.update(d2t=-np.arange(9)),
        CheckpointError,
        r"gives the target's token 0 9 times, first for 0; expected each once",
    ),
    "fc of two taps": (
        shaped("fc.weight", 32, 64),
        CheckpointError,
        r"shape \[32, 64\]; expected \[32, 96\]",
    ),
    "another tensor": (
        shaped("mask_hidden", 1, 96),
        UnsupportedModelError,
        "without use: 'mask_hidden'; expected only those of EAGLE-3",
    ),
    "not finite": (
        lambda config, tensors: tensors["norm.weight"].fill(np.nan),
        CheckpointError,
        r"draft: tensor output_norm.weight: element \[0\] is nan",
    ),
    "parallel": (setting(parallel_drafting=True), UnsupportedModelError, "'parallel_drafting' is true"),
    "one state": (
        setting(eagle_config={"use_aux_hidden_state": False}),
        UnsupportedModelError,
        "'eagle_config.use_aux_hidden_state' is false",
    ),
    "no last norm": (
        setting(eagle_config={"use_last_layernorm": False}),
        UnsupportedModelError,
        "'eagle_config.use_last_layernorm' is false",
    ),
    "both norms": (setting(fc_norm=True, norm_before_fc=True), CheckpointError, "'fc_norm' is true"),
    "a word for layers": (
        setting(eagle_aux_hidden_state_layer_ids="low"),
        CheckpointError,
        "'eagle_aux_hidden_state_layer_ids' is \"low\"",
    ),
    "too many tokens": (setting(draft_vocab_size=18), CheckpointError, "'draft_vocab_size' is 18"),
    "another model": (setting(model_type="mamba"), UnsupportedModelError, "'model_type' is \"mamba\""),
    "another method": (
        setting(architectures=["Eagle3DeepseekV2ForCausalLM"]),
        UnsupportedModelError,
        "'architectures' is",
    ),
    "another speculator": (
        setting(speculators_model_type="dflash"),
        UnsupportedModelError,
        '\'speculators_model_type\' is "dflash"; expected "eagle3"',
    ),
    "nothing nested": (
        setting(speculators_model_type="eagle3"),
        CheckpointError,
        "'transformer_layer_config' is missing",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_folders_are_refused_by_name(target: specdec.Model, damage: str, tmp_path: Path) -> None:
    folder = eagle3(target, n_draft=9)
    path = folder.write(tmp_path / "draft")
    config = json.loads((path / "config.json").read_text())
    tensors = dict(folder.tensors) | {"d2t": np.array(folder.tokens) - np.arange(9)}
    change, error, message = DAMAGES[damage]
    change(config, tensors)
    write_hf(path, config, tensors, dtype={"d2t": "I64"})
    with pytest.raises(error, match=message):
        drafts.Eagle(path, target)


def test_weights_in_pickles_are_refused_by_name(target: specdec.Model, tmp_path: Path) -> None:
    path = eagle1(target).write(tmp_path / "draft")
    (path / "model.safetensors").unlink()
    (path / "pytorch_model.bin").write_bytes(pickle.dumps({}))
    with pytest.raises(CheckpointNotFoundError, match="pytorch_model.bin: expected the weights"):
        drafts.Eagle(path, target)


def test_a_table_is_shared_with_a_target_of_its_shape_alone() -> None:
    config = LLAMA | {
        "features": "joined", "feature_width": LLAMA["d_model"], "shared_embedding": True, "tied": False,
    }  # fmt: skip
    tensors = [
        (name, np.zeros(shape, np.float32), "f32") for name, shape in _core.tensor_shapes(config).items()
    ]
    other = LLAMA | {"n_vocab": LLAMA["n_vocab"] + 1}
    wrong = _core.Model(other, [(name, x, "f32") for name, x in random_tensors(other).items()])
    with pytest.raises(ValueError, match="expected the target that has it"):
        _core.Model(config, tensors)
    with pytest.raises(ValueError, match="a table or head"):
        _core.Model(config, tensors, target=wrong)
